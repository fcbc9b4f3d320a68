"""Tables and pictures of the runs from scratch, as far as they have come: python evidence/from_scratch_page.py

Reads results/from-scratch/runs, writes the tables beside it and the pictures into docs/images. `make results` calls it, and
then brings the tables into the pages. Every table says how many runs stand behind a number.
"""

from __future__ import annotations

import base64
import csv
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from from_scratch import EPOCHS, KEYS, RECORDS, Planned, planned

from hace.lab.study.presets import METHODS
from hace.metrics.intervals import paired_interval
from hace.paper.printed import paper_tables
from hace.paper.recipes import DILUTIONS, PAIRINGS, learning_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS = RECORDS.parent
IMAGES = Path(__file__).parents[1] / "docs" / "images"
BASE = 0.1  # the paper's base rate l for ResNets
RATES = (0.05, 0.1, 0.2, 0.4)  # of the fair rule
DATA = {"cub200": "CUB-200", "cars": "Stanford Cars", "cifar100": "CIFAR-100"}
PAPER_DATA = {"cifar100": "CIFAR-100", "aircraft": "FGVC-Aircraft", "nabirds": "NABirds"}
RANKS = {
    "cub200": ("order", "family", "genus", "species"),
    "cars": ("make", "line", "model"),
    "cifar100": ("superclass", "class"),
}
GROUPED = {
    "cub200": 1,
    "cars": 0,
    "cifar100": 0,
}  # the rank whose groups are counted: families, makes, superclasses
BY_RANK = "accuracy by level, best node of the level"


class Setting(NamedTuple):
    """A method with its dilution."""

    method: str
    dilution: float | None = None

    @property
    def title(self) -> str:
        """As tables name it."""
        title = METHODS[self.method].title
        if self.dilution is None:
            return title
        head, comma, rest = title.partition(",")
        return f"{head} d={self.dilution:g}{comma}{rest}"


CROSS_ENTROPY, HACE, SHUFFLED = Setting("cross_entropy"), Setting("hace", 0.5), Setting("hace_shuffled", 0.5)
STYLES = {  # colour in pictures
    CROSS_ENTROPY: "#555555",
    HACE: "#b5563c",
    Setting("hace", 0.2): "#7d2f1a",
    Setting("hace", 0.7): "#e0a184",
    SHUFFLED: "#8a7bb0",
}


class Runs:
    """The finished runs of a dataset with ResNet-18, by setting, rate and seed."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self._found: dict[tuple[Setting, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        for document in _documents():
            if document["dataset"] == dataset and document["model"] == "resnet18":
                key = Setting(document["method"], document["dilution"]), f"{document['lr']:.3g}"
                self._found[key][document["seed"]] = document

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def at(self, setting: Setting, rate: float) -> dict[int, dict[str, Any]]:
        """The runs of a setting at a rate, by seed; diverged ones are left out."""
        result = self._found.get((setting, f"{rate:.3g}"), {})
        return {seed: run for seed, run in result.items() if run["status"] == "finished"}

    def together(self, first: Setting, second: Setting, rate: float) -> list[int]:
        """The seeds that have both at a rate."""
        return sorted(self.at(first, rate).keys() & self.at(second, rate).keys())

    def settings(self) -> list[Setting]:
        """All that have a run."""
        return list(dict.fromkeys(setting for setting, _ in self._found))

    def rates(self, setting: Setting) -> list[float]:
        """The rates at which a setting has a run."""
        return sorted({float(rate) for own, rate in self._found if own == setting})


@cache
def _documents() -> tuple[dict[str, Any], ...]:
    """All records, in the order of the protocol."""
    paths = (RECORDS / f"{run.name}.json" for run in planned())
    return tuple(_read(path) for path in paths if path.exists())


def _read(path: Path) -> dict[str, Any]:
    """A record, with the key of its method."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return document | {"method": KEYS.get(document["method"], document["method"])}


def top1(run: Mapping[str, Any]) -> float:
    """Top-1 on the test samples, in percent."""
    return 100 * run["metrics"]["leaves"]["top-1"]


def right(runs: Mapping[int, Mapping[str, Any]], seeds: Iterable[int]) -> np.ndarray:
    """(K, M) whether each test sample is right."""
    return np.stack([_unpacked(runs[seed]["right"], runs[seed]) for seed in seeds])


def _unpacked(text: str, run: Mapping[str, Any]) -> np.ndarray:
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=run["samples"]).astype(float)


def main() -> None:
    """Write all tables and pictures."""
    everything = [runs for runs in map(Runs, DATA) if len(runs)]
    if not everything:
        print("no run from scratch has finished: nothing to write")
        return
    _write("progress", progress())
    _write("runs", [row for runs in everything for row in each_run(runs)])
    _write("equal-rates", [row for runs in everything for row in equal_rates(runs)])
    _write("by-rank", [row for runs in everything for row in by_rank(runs)])
    _write("groups", [row for runs in everything for row in groups(runs)])
    _write("printed", [*printed(), *(row for runs in everything for row in best_runs(runs))])
    _write("pairs", [row for runs in everything for row in pairs(runs)])
    _write("fair", [row for runs in everything for row in fair(runs)])
    _write("frozen", frozen())
    about = {
        "command": "python evidence/from_scratch.py run",
        "protocol": "PROTOCOL.md, From scratch",
        "runs": len(_documents()),
        "seconds": round(sum(run["seconds"] for run in _documents())),
        "made_with": _documents()[0]["made_with"],
    }
    (RESULTS / "about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    draw(everything)


def _write(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table; one without rows says so, since pages show it."""
    rows = rows or [{"so far": "too few runs have finished for this table"}]
    with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def progress() -> list[dict[str, Any]]:
    """How far the protocol has come."""
    done = {Planned(**{name: run[name] for name in Planned.__dataclass_fields__}) for run in _documents()}
    rows = []
    for dataset, title in DATA.items():
        own = [run for run in planned() if run.dataset == dataset]
        finished = [run for run in own if run in done]
        seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in finished})) or "none"
        diverged = sum(run["status"] == "diverged" for run in _documents() if run["dataset"] == dataset)
        rows.append(
            {
                "data": title,
                "epochs": EPOCHS[dataset],
                "finished runs": len(finished),
                "planned runs": len(own),
                "seeds so far": seeds,
                "diverged": diverged,
            }
        )
    return rows


def each_run(runs: Runs) -> list[dict[str, Any]]:
    """Every setting at every rate: means over its seeds."""
    rows = []
    for setting in runs.settings():
        for rate in runs.rates(setting):
            result = runs.at(setting, rate).values()
            if result:
                values = [run["metrics"]["leaves"] for run in result]
                rows.append(
                    {
                        "data": DATA[runs.dataset],
                        "method": setting.title,
                        "rate": f"{rate:g}",
                        "seeds": len(result),
                        "top-1": f"{100 * mean(v['top-1'] for v in values):.2f}",
                        "top-5": f"{100 * mean(v['top-5'] for v in values):.2f}",
                        "severity": f"{mean(v['severity'] for v in values):.3f}",
                        "held-out top-1": f"{100 * mean(run['val_accuracy'][-1] for run in result):.2f}",
                        "training top-1": f"{100 * mean(run['accuracy'][-1] for run in result):.2f}",
                    }
                )
    return rows


def equal_rates(runs: Runs) -> list[dict[str, Any]]:
    """Two methods at the same rate: top-1, the paired difference with its interval, top-5 and severity."""
    rows = []
    for setting in runs.settings():
        for minus in (CROSS_ENTROPY, SHUFFLED) if setting.method == "hace" else (CROSS_ENTROPY,):
            for rate in runs.rates(setting):
                seeds = runs.together(setting, minus, rate)
                if setting != minus and seeds:
                    rows.append(_compared(runs, setting, minus, rate, seeds))
    return rows


def _compared(
    runs: Runs, setting: Setting, minus: Setting, rate: float, seeds: Sequence[int]
) -> dict[str, Any]:
    ours, theirs = runs.at(setting, rate), runs.at(minus, rate)
    gap = paired_interval(100 * right(ours, seeds), 100 * right(theirs, seeds))

    def difference(name: str) -> float:
        return mean(ours[s]["metrics"]["leaves"][name] - theirs[s]["metrics"]["leaves"][name] for s in seeds)

    return {
        "data": DATA[runs.dataset],
        "rate": f"{rate:g}",
        "method": setting.title,
        "minus": minus.title,
        "seeds": len(seeds),
        "method's top-1": f"{mean(top1(ours[s]) for s in seeds):.2f}",
        "the other's": f"{mean(top1(theirs[s]) for s in seeds):.2f}",
        "top-1": f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]",
        "top-5": f"{100 * difference('top-5'):+.2f}",
        "severity": f"{difference('severity'):+.3f}",
    }


def by_rank(runs: Runs) -> list[dict[str, Any]]:
    """Accuracy at every rank by the node of the highest mass, after the last epoch."""
    rows = []
    for rate in RATES:
        shown = [s for s in (CROSS_ENTROPY, HACE, SHUFFLED) if runs.at(s, rate)]
        for setting in shown if CROSS_ENTROPY in shown and HACE in shown else ():
            own = runs.at(setting, rate)
            values = [[100 * v for v in run["metrics"][BY_RANK].values()] for run in own.values()]
            texts = [f"{mean(column):.2f}" for column in zip(*values, strict=True)]
            ranks = " / ".join(RANKS[runs.dataset])
            row = {"data": DATA[runs.dataset], "rate": f"{rate:g}", "method": setting.title}
            rows.append({**row, "seeds": len(own), "ranks": ranks, "accuracy": " / ".join(texts)})
    return rows


def groups(runs: Runs) -> list[dict[str, Any]]:
    """In how many families or makes HACE is ahead of cross-entropy, by the node of the highest mass at that rank."""
    path = RESULTS / f"test-{runs.dataset}.json"
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    rank = GROUPED[runs.dataset]
    above = json.loads(path.read_text(encoding="utf-8"))["ancestors"][rank]
    group = np.frombuffer(zlib.decompress(base64.b64decode(above)), "<i2")
    for rate in RATES:
        seeds = runs.together(HACE, CROSS_ENTROPY, rate)
        if not seeds:
            continue
        gaps = []
        for seed in seeds:
            ours, theirs = (
                _unpacked(runs.at(setting, rate)[seed]["right_at_levels"][rank], runs.at(setting, rate)[seed])
                for setting in (HACE, CROSS_ENTROPY)
            )
            gaps.append([float((ours - theirs)[group == one].mean()) for one in np.unique(group)])
        gap = np.mean(gaps, axis=0)
        rows.append(
            {
                "data": DATA[runs.dataset],
                "rate": f"{rate:g}",
                "seeds": len(seeds),
                "groups": f"{len(gap)} {RANKS[runs.dataset][rank]} groups",
                "HACE ahead": int((gap > 0).sum()),
                "tied": int((gap == 0).sum()),
                "HACE behind": int((gap < 0).sum()),
            }
        )
    return rows


def printed() -> list[dict[str, Any]]:
    """The paper's best runs of ResNet-18."""
    table = paper_tables()["best_to_best"]
    rows = []
    for dataset, title in PAPER_DATA.items():
        hace, cross_entropy = (
            table.value(model="resnet18", dataset=dataset, method=method)
            for method in ("hace", "cross_entropy")
        )
        rows.append(_best_row("paper", title, hace, cross_entropy, "6 and 4"))
    return rows


def best_runs(runs: Runs) -> list[dict[str, Any]]:
    """Ours by the paper's rule, seed by seed, from the runs of its ten that have finished."""
    rows = []
    for seed in (0, 1, 2):
        hace = [
            top1(run)
            for setting, rate in _papers_six()
            if (run := runs.at(setting, rate).get(seed)) is not None
        ]
        cross_entropy = [
            top1(run)
            for rate in _papers_four()
            if (run := runs.at(CROSS_ENTROPY, rate).get(seed)) is not None
        ]
        if hace and cross_entropy:
            title, behind = (
                f"{DATA[runs.dataset]}, seed {seed}",
                f"{len(hace)} of 6 and {len(cross_entropy)} of 4",
            )
            rows.append(_best_row("ours", title, max(hace), max(cross_entropy), behind))
    return rows


def _best_row(who: str, data: str, hace: float, cross_entropy: float, runs: str) -> dict[str, Any]:
    numbers = {
        "HACE": f"{hace:.2f}",
        "cross-entropy": f"{cross_entropy:.2f}",
        "HACE minus it": f"{hace - cross_entropy:+.2f}",
    }
    return {"whose": who, "data": data, **numbers, "runs": runs}


def _papers_six() -> list[tuple[Setting, float]]:
    return [
        (Setting("hace", d), learning_rates("hace", BASE, d, pair)) for pair in PAIRINGS for d in DILUTIONS
    ]


def _papers_four() -> list[float]:
    return [BASE, *(learning_rates("cross_entropy", BASE, d, "standard") for d in DILUTIONS)]


def pairs(runs: Runs) -> list[dict[str, Any]]:
    """The paper's six pairs, those of which both have finished."""
    rows = []
    for pairing in PAIRINGS:
        for d in DILUTIONS:
            ours = runs.at(Setting("hace", d), learning_rates("hace", BASE, d, pairing))
            theirs = runs.at(CROSS_ENTROPY, learning_rates("cross_entropy", BASE, d, pairing))
            seeds = sorted(ours.keys() & theirs.keys())
            if seeds:
                gap = paired_interval(100 * right(ours, seeds), 100 * right(theirs, seeds))
                rows.append(
                    {
                        "data": DATA[runs.dataset],
                        "d": f"{d:g}",
                        "pairing": pairing,
                        "seeds": len(seeds),
                        "HACE": f"{mean(top1(ours[s]) for s in seeds):.2f}",
                        "cross-entropy": f"{mean(top1(theirs[s]) for s in seeds):.2f}",
                        "difference": f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]",
                    }
                )
    return rows


def fair(runs: Runs) -> list[dict[str, Any]]:
    """Every method at the rate with the best mean on held-out samples, among the rates that it has so far."""
    rows = []
    for setting in runs.settings():
        tried = {rate: result for rate in RATES if (result := runs.at(setting, rate))}
        if len(tried) < 2:
            continue
        seeds = sorted(set.intersection(*(set(result) for result in tried.values())))
        if not seeds:
            continue
        held = {rate: mean(result[s]["val_accuracy"][-1] for s in seeds) for rate, result in tried.items()}
        best = max(held, key=lambda rate: held[rate])
        edge = " ‡" if best in (min(tried), max(tried)) else ""
        rows.append(
            {
                "data": DATA[runs.dataset],
                "method": setting.title,
                "rates so far": len(tried),
                "seeds": len(seeds),
                "chosen rate": f"{best:g}{edge}",
                "held out": f"{100 * held[best]:.2f}",
                "top-1": f"{mean(top1(tried[best][s]) for s in seeds):.2f}",
            }
        )
    return sorted(rows, key=lambda row: -float(row["top-1"]))


def frozen() -> list[dict[str, Any]]:
    """Every network's own top-1, and that of the same new last layer on its frozen features; means over seeds."""
    own = {run["id"]: top1(run) for run in _documents() if run["status"] == "finished"}
    result: dict[tuple[str, Setting, float], list[tuple[float, float]]] = defaultdict(list)
    for path in sorted((RESULTS / "frozen").glob("*.json")):
        probe = _read(path)
        key = probe["dataset"], Setting(probe["method"], probe["dilution"]), probe["lr"]
        result[key].append((own[probe["id"]], 100 * probe["top-1"]))
    return [
        {
            "data": DATA[dataset],
            "rate": f"{rate:g}",
            "loss of the network": setting.title,
            "seeds": len(values),
            "its own last layer": f"{mean(first for first, _ in values):.2f}",
            "a new one": f"{mean(second for _, second in values):.2f}",
        }
        for (dataset, setting, rate), values in result.items()
    ]


def draw(everything: Sequence[Runs]) -> None:
    """The pictures: a row per dataset."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "hace", "font.family": "DejaVu Sans", "font.size": 9})
    target = IMAGES / "from-scratch.svg"
    picture(everything).savefig(target, metadata={"Date": None})
    print(target)


def picture(everything: Sequence[Runs]) -> Figure:
    """Learning curves, accuracy by rank over training, and accuracy against the rate."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(everything), 3, figsize=(9.6, 3.3 * len(everything)), layout="constrained", squeeze=False
    )
    for row, runs in zip(axes, everything, strict=True):
        draw_curves(row[0], runs)
        draw_ranks(row[1], runs)
        draw_rates(row[2], runs)
        for axis in row:
            axis.tick_params(labelsize=8)
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
    return figure


def curves_at(runs: Runs) -> tuple[float, dict[Setting, list[Any]]]:
    """The rate whose curves are shown, and the curves at it, of seeds that cross-entropy and HACE share, if any."""
    rate = next((rate for rate in (0.2, 0.1) if runs.together(CROSS_ENTROPY, HACE, rate)), 0.2)
    seeds = runs.together(CROSS_ENTROPY, HACE, rate)
    results = {
        setting: [run["curve"] for seed, run in runs.at(setting, rate).items() if not seeds or seed in seeds]
        for setting in (CROSS_ENTROPY, HACE, SHUFFLED)
    }
    return rate, {setting: curves for setting, curves in results.items() if curves}


def draw_curves(axis: Axes, runs: Runs) -> None:
    """Top-1 on the test samples against epochs, means over seeds."""
    axis.set_title(f"{DATA[runs.dataset]}: learning curves", loc="left", fontsize=9.5)
    axis.set_xlabel("epoch", fontsize=8.5)
    axis.set_ylabel("test top-1, %", fontsize=8.5)
    rate, result = curves_at(runs)
    for setting, curves in result.items():
        epochs, values = mean_curve(curves, lambda point: point["leaves"]["top-1"])
        title = f"{setting.title}, {len(curves)} seed{'s' if len(curves) > 1 else ''}"
        axis.plot(epochs, values, "-", color=STYLES[setting], lw=1.4, label=title)
    axis.legend(title=f"rate {rate:g}", fontsize=7.5, title_fontsize=7.5, frameon=False)


def draw_ranks(axis: Axes, runs: Runs) -> None:
    """Accuracy at every rank against epochs: cross-entropy dashed, HACE solid."""
    axis.set_title("by rank: HACE —, cross-entropy - -", loc="left", fontsize=9.5)
    axis.set_xlabel("epoch", fontsize=8.5)
    axis.margins(x=0.15)
    _, result = curves_at(runs)
    shades = ("#12766f", "#5aa7a0", "#b5563c", "#7d2f1a")
    for rank, (name, colour) in enumerate(zip(RANKS[runs.dataset], shades, strict=False)):
        for setting, line in ((HACE, "-"), (CROSS_ENTROPY, "--")):
            if setting not in result:
                continue
            epochs, values = mean_curve(result[setting], lambda point, rank=rank: point["levels"][rank])
            axis.plot(epochs, values, line, color=colour, lw=1.2)
            if setting == CROSS_ENTROPY:
                axis.annotate(
                    name,
                    (epochs[-1], values[-1]),
                    (3, -3),
                    textcoords="offset points",
                    fontsize=7.5,
                    color=colour,
                )


def mean_curve(curves: Sequence[Mapping[str, Any]], value: Any) -> tuple[list[int], list[float]]:
    """Epochs and the mean over runs, in percent."""
    epochs = sorted({int(epoch) for curve in curves for epoch in curve})
    return epochs, [100 * mean(value(curve[str(epoch)]) for curve in curves) for epoch in epochs]


def draw_rates(axis: Axes, runs: Runs) -> None:
    """Test top-1 against the learning rate; the paper's pairs are joined."""
    axis.set_title("by learning rate, pairs joined", loc="left", fontsize=9.5)
    axis.set_xlabel("learning rate", fontsize=8.5)
    for setting, colour in STYLES.items():
        points = [(rate, run) for rate in runs.rates(setting) for run in runs.at(setting, rate).values()]
        if points:
            axis.plot(
                [r for r, _ in points], [top1(run) for _, run in points], ".", color=colour, ms=4, alpha=0.6
            )
            rates = runs.rates(setting)
            means = [mean(map(top1, runs.at(setting, rate).values())) for rate in rates]
            axis.plot(rates, means, "-", color=colour, lw=1.2, label=setting.title)
    for pairing in PAIRINGS:
        for d in DILUTIONS:
            rates = (
                learning_rates("cross_entropy", BASE, d, pairing),
                learning_rates("hace", BASE, d, pairing),
            )
            both = (runs.at(CROSS_ENTROPY, rates[0]), runs.at(Setting("hace", d), rates[1]))
            if all(both):
                ends = [mean(map(top1, result.values())) for result in both]
                mark = "o" if pairing == "standard" else "D"
                colour = STYLES[Setting("hace", d)]
                axis.plot(rates, ends, f"--{mark}", color=colour, lw=0.7, ms=4, alpha=0.8)
    shown = sorted({rate for setting in STYLES for rate in runs.rates(setting)})
    axis.set_xscale("log")
    axis.set_xticks(shown, [f"{rate:g}" for rate in shown], rotation=45)
    axis.minorticks_off()
    axis.legend(fontsize=7, frameon=False)


if __name__ == "__main__":
    main()
