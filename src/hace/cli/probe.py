"""`hace probe`: linear layers on frozen features."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hace.checks import require
from hace.cli.engine import Numbers, With, Words, more, settings
from hace.cli.options import Option, data_options, print_yaml, resolved
from hace.errors import ConfigError
from hace.files.documents import read_mapping
from hace.files.writing import without_nan
from hace.lab.runs.config import LossConfig, ProbeConfig

if TYPE_CHECKING:
    from hace.lab.report.results import MethodScores
    from hace.lab.study.records import Record

SHOWN = "data.name data.hierarchy epochs batch_size weight_decay seed validation normalize optimizer"
NAMES = {"data": "*", "data.name": "--data", "data.root": "--features"}
NAMES |= {
    "head": "*",
    "head.name": "--head",
    "head.curvature": "--head.curvature",
    "head.clip": "--head.clip",
}
SKIP = ("data.options", "loss", "lr", "keep", "temperature")
LBFGS = With("--optimizer lbfgs", "--config")
Settings = settings(
    ProbeConfig,
    shown=("data.root", *SHOWN.split()),
    skip=SKIP,
    names=NAMES,
    rules={"tolerance": LBFGS, "max_iter": LBFGS},
)


def probe(
    *,
    given: Settings = {},  # type: ignore[valid-type]  # noqa: B006
    loss: Words = (),
    lr: Numbers = (),
    seeds: int = 1,
    option: Option = (),
    groups: str | None = None,
    config: Path | None = None,
    only_print: Annotated[bool, Parameter(name="--print-config")] = False,
    out: Path = Path("runs"),
    threads: Annotated[int, more] = 1,
    as_json: Annotated[bool, Parameter(name="--json"), more] = False,
) -> None:
    """Train linear layers on frozen features: one, or a grid of losses, rates and seeds side by side. Every head becomes a run
    directory with its configuration, log, weights, predictions and all metrics; finished runs are not repeated.

    Examples
      hace probe --features F --loss hace:dilution=0.5 --lr 8
      hace probe --features birds.npz --hierarchy taxonomy.csv --loss cross_entropy,hace --lr 4,8,16
      hace probe --data synthetic-features --loss hace --lr 4 --seeds 3
      hace probe --config runs/4cd033b43672ca23/config.json --epochs 60

    F is a folder that `hace features` wrote, or a file of features (.npz, .safetensors, .parquet; then --hierarchy names the
    classes). Every combination is trained as given and judged on the test samples; a split val is held out, for temperatures and
    early stops. A fair comparison, each loss at the best of the same rates on held-out samples:
    hace study fair-probe --features birds=F --methods sce,hace:dilution=0.3 --out S

    Args:
        loss: Losses of hace.LOSSES, with commas; parameters as in hace:dilution=0.3:label_smoothing=0.1 (default: hace).
        lr: Learning rates, with commas (default: 8).
        seeds: How many seeds.
        option: An option of the dataset, NAME=VALUE; may repeat.
        groups: The column that names each sample's group, such as its site: splits keep groups whole.
        config: Start from the configuration of a run; options override it.
        only_print: Print the configuration that the runs share and stop.
        out: Folder of run directories.
        threads: With 1, runs repeat bit for bit.
        as_json: Print the table as JSON.
    """
    import torch

    from hace.lab.report.results import MethodScores, chosen_runs
    from hace.lab.report.study_report import notes
    from hace.lab.study.presets import spelled_loss

    require("--threads", threads, "at least 1", threads >= 1)
    require("--seeds", seeds, "at least 1", seeds >= 1)
    torch.set_num_threads(threads)
    layers = [{"lr": 8.0}] + ([] if config is None else [read_mapping(config)])
    options = data_options(option, groups)
    check_data(given, layers, options)
    base = base_config(given, layers, options)
    if only_print:
        return print_yaml(base)
    losses = {text: spelled_loss(text) for text in loss} or {base.loss.name: base.loss}
    rates = list(dict.fromkeys(lr)) or [base.lr]
    if base.optimizer == "lbfgs" and lr:
        raise ConfigError(
            "--lr must come without --optimizer lbfgs, which has no learning rate. Leave one of them out."
        )
    if not any("validation" in layer for layer in (*layers, given)):
        base = with_own_split(base)
    records = make_runs(out, base, losses, rates, range(base.seed, base.seed + seeds))
    (choices,) = chosen_runs(records).values()
    titles = dict.fromkeys(record.key.method for record in records)  # in the order of the command line
    scores = MethodScores({title: choices[title] for title in titles})
    for note in notes(records):
        print(f"hace: {note}", file=sys.stderr)
    if as_json:
        print_json(documents(scores))
    else:
        print_table(out, scores, records)
    if all(record.status == "diverged" for record in records):
        raise SystemExit(1)


def check_data(
    given: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> None:
    """Refuse data that are not named, named twice, or images."""
    from hace.data import DATASETS

    data = given.get("data", {})
    name = data.get("name")
    if name not in (None, "features") and "root" in data:
        raise ConfigError("--data must come without --features: both name the data. Leave one of them out.")
    if name in DATASETS and DATASETS[name].takes("root") and name != "features":
        raise ConfigError(
            f"--data must hold features. {name} has images: compute their features with `hace features --data {name} --out F`, "
            "then give --features F."
        )
    if not data and not options and not any("data" in layer for layer in layers):
        raise ConfigError("--features must be given; or --data synthetic-features, for a first try.")


def base_config(
    given: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> ProbeConfig:
    """The configuration that all runs of a command share: a file's, overridden by the options."""
    data = given.get("data", {})
    if "root" in data:
        given = {**given, "data": {**data, "name": "features"}}
    return replace(
        resolved(ProbeConfig, layers, given, options), keep=True
    )  # the table is made of predictions


def with_own_split(base: ProbeConfig) -> ProbeConfig:
    """The configuration that holds out the data's own validation split, where there is one."""
    from hace.lab.probe import load_sources

    (source,) = load_sources([base]).values()
    if "val" not in source.splits:
        return base
    split = f"the val split, {len(source['val']):,} samples, is held out"
    print(f"hace: {split}; --validation 0 trains on it too", file=sys.stderr)
    return replace(base, validation="split")


def make_runs(
    out: Path,
    base: ProbeConfig,
    losses: Mapping[str, LossConfig],
    rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Record]:
    """Every loss at every rate and seed, made or read; several rates become part of the titles."""
    from hace.lab.probe import load_sources, passes, run_folder, run_pass
    from hace.lab.runs.process import progress
    from hace.lab.runs.run import read_run
    from hace.lab.study.configurations import ConfigurationKey
    from hace.lab.study.presets import behind
    from hace.lab.study.records import Record

    data, sources = base.data, load_sources([base])
    dataset = data.name if data.root is None else Path(data.root).stem
    named = [
        (title if len(rates) < 2 else f"{title}, lr {rate:g}", replace(base, loss=loss, lr=rate, seed=seed))
        for title, loss in losses.items()
        for rate in rates
        for seed in seeds
    ]
    configs = [config for _, config in named]
    with progress("probes", "epochs") as start:
        step = start(len(configs) * base.epochs, 0)
        for work in passes(configs, sources):
            run_pass(work, out, sources, on_epoch=step)
        runs = [read_run(run_folder(config, out, sources)) for config in configs]
    records, model = [], behind(data)
    for (title, config), run in zip(named, runs, strict=True):
        key = ConfigurationKey("single", dataset, model, title, None, None, config.seed)
        records.append(Record(key, "final", config.lr, run))
    return records


def print_table(out: Path, scores: MethodScores, records: Sequence[Record]) -> None:
    """The table, how its runs were chosen, and where they are."""
    from hace.lab.report.document import to_text
    from hace.lab.report.results import HEADLINES
    from hace.lab.report.study_report import MARKS, summary_table

    reference = reference_of(scores)
    top1, _, severity = HEADLINES[:3]
    print(to_text(summary_table(records[0].key.dataset, scores, reference, gaps=(top1, severity), name=str)))
    final = [record for choice in scores.choices.values() for record in choice.records]
    split = next((r.run.config.evaluate for r in final if r.status == "finished" and r.run), "test")
    over = "groups of " if scores.store.groups is not None else ""
    print(f"\n[95% intervals] over seeds and {over}{split} samples; differences are paired.\n{MARKS}.")
    print(f"Runs are in {out}:")
    for record in final:
        if record.run is not None:
            folder = out / record.run.id
            print(f"  {folder}  {record.key.method}, seed {record.key.seed}, {record.status}")


def reference_of(scores: MethodScores) -> str:
    """The method that others are compared with: the first that has a result."""
    return next((m for m, choice in scores.choices.items() if choice.finished), next(iter(scores.choices)))


def print_json(document: Any) -> None:
    """Print the table for programs."""
    print(json.dumps(without_nan(document), indent=1, allow_nan=False))


def documents(scores: MethodScores) -> list[dict[str, Any]]:
    """The table for programs: one object per method."""
    from hace.lab.report.results import HEADLINES

    reference = reference_of(scores)
    metrics = HEADLINES[:4]
    rows = []
    for method, choice in scores.choices.items():
        means = {m.key[1]: scores.score(method, m.key) for m in metrics} if choice.finished else {}
        intervals = {k: {"value": s.value, "low": s.low, "high": s.high} for k, s in means.items()}
        gaps = {m.key[1]: scores.difference(method, reference, m.key) for m in metrics}
        changes = {name: gap[0] for name, gap in gaps.items() if gap is not None and method != reference}
        rows.append(
            {
                "method": method,
                "seeds": len(choice.records),
                "diverged": sum(record.status == "diverged" for record in choice.records),
                "candidates": sorted(set(choice.candidates)),
                "rates": sorted({record.lr for record in choice.finished}),
                "metrics": intervals,
                "changes": {name: change._asdict() for name, change in changes.items()},
                "runs": [record.run.id for record in choice.records if record.run is not None],
            }
        )
    return rows
