"""The measurements of PROTOCOL.md: python evidence/protocol.py [PART ...] --data FOLDER --work FOLDER [--collect]

    python evidence/protocol.py --data data --work work              # everything, the most important first
    python evidence/protocol.py paper-cub200 --data data --work work
    python evidence/protocol.py --data data --work work --collect    # keep the results of what is finished

Stopped at any point, the same command resumes. One process, one thread; the runs are in WORK/runs and stay there. --collect
trains nothing and writes below evidence/results; `make results` then brings the results into the pages.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from run import RESULTS, keep, sha256
from scipy import stats
from users import METHODS as USERS
from write import EDGE, at_edge

from hace.errors import HaceError
from hace.paper.printed import paper_tables
from hace.paper.recipes import PROBE_RATE
from hace.study import StudyResults

HERE = Path(__file__).parent
BASE_RATES = {  # half decades: three decades for each optimiser
    "adamw": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "sgd": (0.05, 0.15, 0.5, 1.5, 5.0, 15.0, 50.0),
}
NAMES = {"cub200": "CUB-200", "clinc150": "CLINC150", "cifar100": "CIFAR-100", "cars": "Cars"}
PRINTED = {"nabirds": "NABirds", "aircraft": "FGVC-Aircraft", "cifar100": "CIFAR-100"}
ENDED = ("finished", "diverged")
CONFIRMED = "cross_entropy,hace,hace_tuned,cross_entropy_paths,cross_entropy_paths_0.5,soft_margin"
SITUATIONS = ("", "5 a class", "5 a class + parent", "40% wrong within parent")


class Data(NamedTuple):
    """A feature set: file and hierarchy below the data folder, and the epochs of the paper's protocol."""

    features: str
    hierarchy: str
    epochs: int = 30


SETS = {
    "cub200": Data(
        "cub200_features_lite0/cub200_lite0_224px_fp16.npz", "cub200_hierarchy/cub_flat.parent-child.txt"
    ),
    "clinc150": Data("clinc150_minilm/clinc150_minilm_fp16.npz", "clinc150_minilm/clinc150_hierarchy.csv"),
    "cifar100": Data("cifar100_features_lite0/cifar100_lite0_128px_pca256_fp16.npz", "cifar100", 10),
    "cars": Data(
        "cars_resnet50/cars_resnet50_224px_pca512_fp16.npz", "cars_resnet50/cars_make_line_short.csv"
    ),
    "cub200-resnet50": Data(
        "cub200_resnet50/cub200_resnet50_224px_pca512_fp16.npz", "cub200_hierarchy/cub_flat.parent-child.txt"
    ),
    "hwu64": Data("hwu64_minilm/hwu64_minilm_fp16.npz", "hwu64_minilm/hwu64_hierarchy.csv"),
}
# Metrics of PROTOCOL.md, and the files of what is claimed: there "severity" is levels off, "detail at 95%" specificity at 95%.
CLAIMED = {"top-1": "top-1.csv", "levels off": "levels-off.csv", "specificity at 95%": "specificity.csv"}
CONFIRMATION = {"cub200-resnet50": "CUB-200 (ResNet-50)", "cars": "Stanford Cars", "hwu64": "HWU64"}
STATES = {
    "all labels": "all",
    "5 a class": "5 per class",
    "5 a class + parent": "5 per class, rest coarse",
    "40% wrong within parent": "40% wrong, same group",
}
RATES = tuple(
    2.0**k for k in range(9)
)  # of the confirmation: 4 to 64, and two more on each side where a search asked for them
KINDS = ("all", "coarse")  # labels of what users would pick
PARTS = (
    "paper-cub200", "paper-clinc150", "paper-cifar100", "confirm-cars", "confirm-cub200-resnet50", "confirm-hwu64",
    "paper-cars", "users-cub200", "users-clinc150", "users-hwu64", "users-cub200-resnet50", "users-cars",
)  # fmt: skip


def main() -> None:
    """Run or collect the parts asked for, in the order of the protocol."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--collect", action="store_true")
    args = parser.parse_args()
    if stray := [part for part in args.parts if part not in PARTS]:
        parser.error(f"PART must be one of {', '.join(PARTS)}. Got {stray[0]!r}.")
    args.work.mkdir(parents=True, exist_ok=True)
    wanted = [part for part in PARTS if not args.parts or part in args.parts]
    if args.collect:
        collect(wanted, args.data, args.work)
        return
    for part in wanted:
        for command in commands(part, args.data, args.work):
            print(*command[1:], flush=True)
            one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            subprocess.run(
                command, check=False, env={**os.environ, **one}
            )  # what failed is tried again next time


def commands(part: str, data: Path, work: Path) -> Iterator[list[str]]:
    """The commands of a part."""
    what, _, name = part.partition("-")
    if what == "users":
        result = SETS[name]
        for labels in KINDS:
            place = [name, str(data / result.features), str(_tree(result, data)), "--labels", labels]
            yield [sys.executable, str(HERE / "users.py"), *place, "--keep", str(work / "users")]
    elif what == "paper":
        for optimizer, rates in BASE_RATES.items():
            for rate in rates:
                yield _study(part, f"{optimizer}-{rate:g}", data, work, "paper-probe", "--methods", "cross_entropy,hace",
                             "--seeds", "5", "--epochs-scale", str(SETS[name].epochs / 30), "--base-rate", str(rate), "--set",
                             f"optimizer={optimizer}")  # fmt: skip
    else:
        for by in ("labels", "truth"):
            yield _study(part, by, data, work, "low-shot", "noisy-labels", "--methods", CONFIRMED, "--seeds", "10",
                         "--fine", "5", "--shares", "40", "--choose-by", by, "--only", f"labels={','.join(SITUATIONS)}",
                         "--set", "steps=600", "--set", "batch_size=128")  # fmt: skip


def _study(part: str, variant: str, data: Path, work: Path, *words: str) -> list[str]:
    name = part.partition("-")[2]
    result = SETS[name]
    place = ["--features", f"{name}={data / result.features}", "--hierarchy", f"{name}={_tree(result, data)}"]
    folder = ["--out", str(work / part / variant), "--runs", str(work / "runs"), "--workers", "1"]
    return [sys.executable, "-m", "hace", "study", *words, *place, *folder]


def _tree(result: Data, data: Path) -> Path | str:
    return data / result.hierarchy if "/" in result.hierarchy else result.hierarchy


def collect(parts: list[str], data: Path, work: Path) -> None:
    """Keep the results of finished studies; of the paper's protocol, those of whole seeds."""
    commit = subprocess.run(
        ["git", "log", "--diff-filter=A", "--format=%h", "--", str(HERE / "PROTOCOL.md")],
        capture_output=True,
        text=True,
        cwd=HERE,
    ).stdout.strip()
    rows: list[dict[str, Any]] = []
    users = RESULTS / "users" / "about.json"
    about: dict[str, Any] = json.loads(users.read_text(encoding="utf-8")) if users.exists() else {}
    for part in parts:
        what, _, name = part.partition("-")
        if what == "paper":
            rows += [row for o, rates in BASE_RATES.items() for r in rates for row in _runs(work, part, o, r)]
        elif what == "confirm":
            for by, command in zip(("labels", "truth"), commands(part, data, work), strict=True):
                folder = work / part / by
                if _finished(folder):
                    path = data / SETS[name].features
                    inputs = {name: {"file": path.name, "sha256": sha256(path)}}
                    shown = f"hace {shlex.join(command[3:-6])}".replace(str(data), "DATA")
                    keep(folder, RESULTS / f"{part}-{by}", shown, inputs, RATES, protocol=commit)
        else:
            for path in sorted((work / "users").glob(f"{name}-*.csv")):
                if path.stem.removeprefix(f"{name}-") not in KINDS or len(_read(path)) < len(USERS):
                    continue  # of another dataset whose name starts alike, or not finished
                (RESULTS / "users").mkdir(exist_ok=True)
                (RESULTS / "users" / path.name).write_bytes(path.read_bytes())
                about.setdefault("tables", {})[path.name] = {
                    "command": f"python evidence/protocol.py {part} --data DATA --work WORK",
                    "protocol": commit,
                }
    if about:
        for labels in KINDS:
            _write(RESULTS / "users" / f"{labels}.csv", users_by_method(RESULTS / "users", labels))
            command = "python evidence/protocol.py --data DATA --work WORK --collect"
            about["tables"][f"{labels}.csv"] = {"command": command, "protocol": commit}
        users.write_text(f"{json.dumps(about, indent=2)}\n", encoding="utf-8")
    keep_claims(commit)
    if rows:
        target = RESULTS / "paper-protocol"
        target.mkdir(exist_ok=True)
        for table, made in (("runs", rows_by_setting), ("pairings", pairings), ("same-rates", same_rates)):
            _replace(target / f"{table}.csv", made(rows))
        _write(target / "printed.csv", beside_printed(_read(target / "runs.csv")))
        _write(target / "base-rates.csv", by_base_rate(_read(target / "pairings.csv")))
        command = "python evidence/protocol.py paper-cub200 paper-clinc150 paper-cifar100 paper-cars --data DATA --work WORK"
        (target / "about.json").write_text(f'{{\n  "command": "{command}",\n  "protocol": "{commit}"\n}}\n')


def users_by_method(folder: Path, labels: str) -> list[dict[str, str]]:
    """What users would pick, in short: top-1, severity and seconds of the fit, a row per method and a column per dataset."""
    rows = {method: {"method": method} for method in USERS}
    for name, title in (NAMES | CONFIRMATION).items():
        path = folder / f"{name}-{labels}.csv"
        for result in _read(path) if path.exists() else []:
            said = f"{result['top-1']}, {result['severity']}, {result['fit, s']} s"
            rows[result["method"]][title] = said if result["severity"] else "failed"
    return list(rows.values())


def keep_claims(commit: str) -> None:
    """What the confirmation says, by the rule of PROTOCOL.md, once its three datasets are finished."""
    files = {title: RESULTS / f"confirm-{key}-labels" / "effects.csv" for key, title in CONFIRMATION.items()}
    if not all(path.is_file() for path in files.values()):
        return
    target = RESULTS / "confirmation"
    target.mkdir(exist_ok=True)
    made = {}
    for metric, name in CLAIMED.items():
        _write(target / name, claims(files, metric))
        command = "python evidence/protocol.py --data DATA --work WORK --collect"
        made[name] = {"command": command, "protocol": commit}
    (target / "about.json").write_text(f"{json.dumps({'tables': made}, indent=2)}\n", encoding="utf-8")


def claims(files: dict[str, Path], metric: str) -> list[dict[str, str]]:
    """Each method minus cross-entropy by labels and dataset, bold where Holm's p is below 0.05, and the verdict.

    Marked where the search of a seed, the method's or that of cross-entropy, ended at its smallest or largest rate.

    Confirmed: bold with the same sign on at least two datasets, and on none with the other.
    """
    result: dict[tuple[str, str], dict[str, str]] = {}
    signs: dict[tuple[str, str], list[str]] = {}
    for title, path in files.items():
        for e in _read(path):
            if (e["minus"], e["metric"]) != ("cross-entropy", metric):
                continue
            key = e["labels"], e["method"]
            text, sure = f"{e['difference']} [{e['low']}, {e['high']}]", float(e["holm"]) < 0.05
            row = result.setdefault(key, {"labels": STATES[e["labels"]], "method": e["method"]})
            edge = EDGE if {e["method"], "cross-entropy"} & at_edge(path.parent, e["labels"]) else ""
            row[title] = (f"**{text}**" if sure else text) + edge
            signs.setdefault(key, []).extend([e["difference"][0]] if sure else [])
    for key, row in result.items():
        confirmed = len(signs[key]) >= 2 and len(set(signs[key])) == 1
        row["verdict"] = "confirmed" if confirmed else "not confirmed"
    return list(result.values())


def _finished(folder: Path) -> bool:
    try:
        return all(r.status in ENDED for r in StudyResults.read(folder).records)
    except HaceError:
        return False


def _runs(work: Path, part: str, optimizer: str, rate: float) -> list[dict[str, Any]]:
    """One row per run of a study of the paper's protocol: of the seeds whose ten runs are finished."""
    folder = work / part / f"{optimizer}-{rate:g}"
    try:
        table = StudyResults.read(folder).table()
    except HaceError:
        return []
    about = {"data": part.partition("-")[2], "optimiser": optimizer, "base rate": rate}
    names = ("method", "dilution", "pairing", "rate", "seed", "top-1", "severity")
    rows = [{**about, **{n: row.get(n) for n in (*names, "status")}} for row in table.to_dict("records")]
    whole = {
        seed for (seed,), own in _grouped(rows, ("seed",)).items() if all(r["status"] in ENDED for r in own)
    }
    return [row for row in rows if row["seed"] in whole]


def rows_by_setting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds of every setting."""
    keys = ("data", "optimiser", "base rate", "method", "dilution", "pairing", "rate")
    result: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        result.setdefault(tuple(_plain(row[k]) for k in keys), []).append(row)
    shown = []
    for key, same in result.items():
        top1 = [100 * _number(row["top-1"]) for row in same]
        more = {"top-1": f"{mean(top1):.2f}", "sd": f"{stdev(top1):.2f}" if len(top1) > 1 else ""}
        severity = [row["severity"] for row in same if row["severity"] == row["severity"]]
        more["severity"] = f"{mean(severity):.3f}" if severity else ""
        setting = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in zip(keys, key, strict=True)}
        shown.append({**setting, **more, "seeds": len(same)})
    return shown


def pairings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The paper's comparison at every base rate: the best of four and of six on the test samples, and the six pairs."""
    shown = []
    for (data, optimiser, base), own in _grouped(rows, ("data", "optimiser", "base rate")).items():
        best, gains, ahead = [], [], []
        for same in _grouped(own, ("seed",)).values():
            top1 = {
                (r["method"], _plain(r["dilution"]), r["pairing"]): 100 * _number(r["top-1"]) for r in same
            }
            hace = {k[1:]: v for k, v in top1.items() if k[0] == "hace"}
            cross_entropy = {k[1:]: v for k, v in top1.items() if k[0] == "cross_entropy"}
            pairs = [
                v - (cross_entropy[d, p] if p == "standard" else cross_entropy["", p])
                for (d, p), v in hace.items()
            ]
            best.append((max(cross_entropy.values()), max(hace.values())))
            gains.append(mean(pairs))
            ahead.append(sum(gain > 0 for gain in pairs))
        shown.append({
            "data": data, "optimiser": optimiser, "base rate": f"{base:g}",
            "cross-entropy, best of 4": f"{mean(s for s, _ in best):.2f}", "HACE, best of 6": f"{mean(h for _, h in best):.2f}",
            **_difference([h - s for s, h in best]),
            "pairs ahead, of 6": f"{mean(ahead):.1f}", "mean gain of the pairs": f"{mean(gains):+.2f}", "seeds": len(best),
        })  # fmt: skip
    return shown


def beside_printed(runs: list[dict[str, str]]) -> list[dict[str, str]]:
    """HACE minus cross-entropy in each pair: as the paper prints its probes, and in ours at its preset's base rate."""
    ours = [row for row in runs if (row["optimiser"], row["base rate"]) == ("adamw", f"{PROBE_RATE:g}")]
    top1 = {(r["data"], r["method"], r["dilution"], r["pairing"]): float(r["top-1"]) for r in ours}
    printed = paper_tables()["probe_matched"]
    rows: list[dict[str, str]] = []
    for d, pairing in ((d, pairing) for pairing in ("standard", "adjusted") for d in (0.2, 0.5, 0.7)):
        row = {"d": f"{d:g}", "pairing": pairing}
        for data, title in PRINTED.items():
            pair = {"dataset": data, "dilution": d, "pairing": pairing}
            hace, cross_entropy = (
                printed.value(**pair, method=method) for method in ("hace", "cross_entropy")
            )
            row[f"paper: {title}"] = f"{hace - cross_entropy:+.2f}"
        for data in dict.fromkeys(r["data"] for r in ours):
            cross_entropy = top1[data, "cross_entropy", f"{d:g}" if pairing == "standard" else "", pairing]
            row[f"ours: {NAMES[data]}"] = f"{top1[data, 'hace', f'{d:g}', pairing] - cross_entropy:+.2f}"
        rows.append(row)
    means = {name: f"{mean(float(row[name]) for row in rows):+.2f}" for name in list(rows[0])[2:]}
    return [*rows, {"d": "mean", "pairing": "", **means}]


def by_base_rate(pairings: list[dict[str, str]]) -> list[dict[str, str]]:
    """The best of six minus the best of four, and the pairs ahead: a row per base rate, a column per dataset.

    Bold where the protocol says "reproduced": the interval is above 0, and at least five of six pairs are ahead.
    """
    result: dict[tuple[str, str], dict[str, str]] = {}
    for row in pairings:
        key = row["optimiser"], row["base rate"]
        text = f"{row['difference']} {row['difference (detail)']}"
        if row["difference (detail)"].startswith("[+") and float(row["pairs ahead, of 6"]) >= 5:
            text = f"**{text}**"
        cells = result.setdefault(key, {"optimiser": key[0], "base rate": key[1]})
        cells[NAMES[row["data"]]] = f"{text}, {row['pairs ahead, of 6']}"
    return list(result.values())


def same_rates(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best of all rates on the test samples, for cross-entropy and for HACE at each dilution, which has no larger rate.

    Each seed's own best, of the seeds that every base rate has.
    """
    shown = []
    for (data, optimiser), result in _grouped(rows, ("data", "optimiser")).items():
        seeds = [{row["seed"] for row in same} for same in _grouped(result, ("base rate",)).values()]
        most = max(row["rate"] for row in result if row["method"] == "cross_entropy")
        own = [r for r in result if r["seed"] in set.intersection(*seeds) and r["rate"] <= most]
        cross_entropy = _best([row for row in own if row["method"] == "cross_entropy"])
        for d, same in _grouped([row for row in own if row["method"] == "hace"], ("dilution",)).items():
            hace = _best(same)
            gaps = [100 * (hace[seed][0] - cross_entropy[seed][0]) for seed in cross_entropy]
            milder = [hace[seed][1] - cross_entropy[seed][1] for seed in cross_entropy]
            shown.append({
                "data": data, "optimiser": optimiser, "d": d[0],
                "cross-entropy": f"{100 * mean(v[0] for v in cross_entropy.values()):.2f}",
                "HACE": f"{100 * mean(v[0] for v in hace.values()):.2f}", **_difference(gaps),
                "severity": f"{mean(milder):+.3f}", "seeds": len(gaps),
                "rates of cross-entropy": len({r["rate"] for r in own if r["method"] == "cross_entropy"}),
                "rates of HACE": len({r["rate"] for r in same}),
            })  # fmt: skip
    return shown


def _best(rows: list[dict[str, Any]]) -> dict[int, tuple[float, float]]:
    """Accuracy and severity of the best run of each seed."""
    results = {}
    for (seed,), same in _grouped(rows, ("seed",)).items():
        best = max(same, key=lambda row: _number(row["top-1"]))
        results[seed] = (_number(best["top-1"]), best["severity"])
    return results


def _grouped(
    rows: list[dict[str, Any]], keys: tuple[str, ...]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    result: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        result.setdefault(tuple(_plain(row[key]) for key in keys), []).append(row)
    return result


def _difference(values: list[float]) -> dict[str, str]:
    """The mean, and Student's 95% interval over seeds: it says nothing of other test samples."""
    results = {"difference": f"{mean(values):+.2f}", "difference (detail)": ""}
    if len(values) > 1:
        half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / np.sqrt(len(values))
        results["difference (detail)"] = f"[{mean(values) - half:+.2f}, {mean(values) + half:+.2f}]"
    return results


def _number(value: Any) -> float:
    return (
        0.0 if value is None or value != value else float(value)
    )  # a run that diverged answers nothing right


def _plain(value: Any) -> Any:
    return "" if value is None or value != value else value


def _replace(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write these rows; those of datasets that are not among them stay."""
    existing = _read(path) if path.exists() else []
    new = {row["data"] for row in rows}
    result = [row for row in existing if row["data"] not in new] + rows
    _write(path, sorted(result, key=lambda row: list(SETS).index(row["data"])))


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


if __name__ == "__main__":
    main()
