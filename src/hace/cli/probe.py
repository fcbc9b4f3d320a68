"""Train linear layers on frozen features: one, or a grid of losses, parameters, rates and seeds side by side. Every head
becomes a run directory with its configuration, log, weights, predictions and all metrics; finished runs are not repeated.

Examples:
  hace probe --features F --loss hace --dilution 0.5 --lr 8
  hace probe --features birds.npz --hierarchy taxonomy.csv --loss cross_entropy hace --lr 4 8 16
  hace probe --data synthetic-features --loss hace --lr 4 --seeds 3
  hace probe --config runs/4cd033b43672ca23/config.json --epochs 60

F is a folder that `hace features` wrote, or a file of features (.npz, .safetensors, .parquet; then --hierarchy names the
classes). Losses: any name in hace.LOSSES (docs/losses.md); parameters a loss does not take are ignored. Every combination is
trained as given and judged on the test samples; a split val is held out, for temperatures and early stops. A fair comparison,
each loss at the best of the same rates on held-out samples:
hace study fair-probe --features birds=F --methods sce,hace:dilution=0.3 --out S
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.checks import check_number
from hace.cli.options import (
    SHORT,
    ConfigParser,
    add_option,
    config_layers,
    numbers,
    print_config,
    reader_options,
    resolved,
)
from hace.errors import ConfigError
from hace.files.writing import without_nan

if TYPE_CHECKING:
    from hace.lab.report.results import MethodScores
    from hace.lab.runs.config import LossConfig, ProbeConfig
    from hace.lab.study.records import Record

PARAMETERS = {
    "dilution": "d of HACE: the share that a node keeps (default: 0.5)",
    "label_smoothing": "mass spread evenly over the classes",
    "soft_label_beta": "sharpness of HACE's soft labels",
    "beta": "sharpness of soft labels",
    "alpha": "decay of HXE",
}

PARSER = ConfigParser


def add_arguments(parser: ConfigParser) -> None:
    """Declare the command's arguments."""
    from hace.lab.runs.config import ProbeConfig

    loss = parser.add_argument_group("losses, rates and seeds; several values make a grid")
    add = loss.add_argument
    add("--loss", metavar="NAME", nargs="+", help="losses (default: hace)")
    for name, help in PARAMETERS.items():
        add(f"--{name.replace('_', '-')}", metavar="X", nargs="+", type=float, help=help)
    add("--loss-option", metavar="NAME=VALUE", action="append", default=[], help="any other parameter")
    add("--lr", metavar="RATE", nargs="+", type=float, help="learning rates (default: 8)")
    add("--seeds", metavar="K", type=int, default=1, help="how many seeds (default: 1)")

    command = parser.add_argument_group("the command")
    add = command.add_argument
    add("--out", metavar="FOLDER", default="runs", help="folder of run directories (default: runs)")
    add("--config", metavar="FILE", help="start from the configuration of a run; options override it")
    add_option(command)
    add("--threads", metavar="N", type=int, default=1, help="with 1, runs repeat bit for bit (default: 1)")
    add("--json", action="store_true", help="print the table as JSON")
    add("--print-config", action="store_true", help="print the configuration that the runs share and stop")
    also = {name: place for name, place in SHORT.items() if name not in ("root", "loss")}
    also["features"] = "data.root"
    parser.add_config(ProbeConfig, skip=("loss", "lr", "keep", "temperature"), also=also)


def run(args: argparse.Namespace) -> None:
    """Train, and print the table."""
    import torch

    from hace.lab.probe import loss_grid
    from hace.lab.report.results import MethodScores, chosen_runs
    from hace.lab.report.study_report import notes

    check_number("--threads", args.threads, "at least 1", args.threads >= 1)
    torch.set_num_threads(args.threads)
    base = base_config(args)
    if args.print_config:
        return print_config(base)
    check_number("--seeds", args.seeds, "at least 1", args.seeds >= 1)
    seeds = range(base.seed, base.seed + args.seeds)
    parameters = {name: getattr(args, name) for name in PARAMETERS if getattr(args, name) is not None}
    others = numbers(reader_options(args.loss_option, "--loss-option"))
    parameters |= {name: [value] for name, value in others.items()}
    losses = loss_grid(args.loss or [base.loss.name], parameters, base.loss)
    rates = list(dict.fromkeys(args.lr or ()))
    if base.optimizer == "lbfgs" and len(rates) > 1:
        raise ConfigError("--optimizer lbfgs has no learning rate to choose. Omit --lr.")
    records = make_runs(args, base, losses, rates, seeds)
    (choices,) = chosen_runs(records).values()
    titles = dict.fromkeys(record.key.method for record in records)  # in the order of the command line
    arrays = MethodScores({title: choices[title] for title in titles})
    for note in notes(records):
        print(f"hace: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps(without_nan(documents(arrays)), indent=1, allow_nan=False))
    else:
        print_table(args, arrays, records)
    if all(record.status == "diverged" for record in records):
        raise SystemExit(1)


def make_runs(
    args: argparse.Namespace,
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
    (source,) = sources.values()
    asked = any("validation" in layer for layer in (*config_layers(args), args.given))
    if "val" in source.splits and not asked:
        base = replace(base, validation="split")
        held = f"the val split, {len(source['val']):,} samples, is held out"
        print(f"hace: {held}; --validation 0 trains on it too", file=sys.stderr)
    dataset = data.name if data.root is None else Path(data.root).stem
    cells = [
        (title if len(rates) < 2 else f"{title}, lr {rate:g}", replace(base, loss=loss, lr=rate, seed=seed))
        for title, loss in losses.items()
        for rate in rates or [base.lr]
        for seed in seeds
    ]
    with progress("probes", "epochs") as start:
        step = start(len(cells) * base.epochs, 0)
        configs = [config for _, config in cells]
        for work in passes(configs, sources):
            run_pass(work, args.out, sources, on_epoch=step)
        runs = [read_run(run_folder(config, args.out, sources)) for config in configs]
    records, model = [], behind(data)
    for (title, config), run in zip(cells, runs, strict=True):
        key = ConfigurationKey("single", dataset, model, title, None, None, config.seed)
        records.append(Record(key, "final", config.lr, run))
    return records


def print_table(args: argparse.Namespace, arrays: MethodScores, records: Sequence[Record]) -> None:
    """The table, how its runs were chosen, and where they are."""
    from hace.lab.report.document import to_text
    from hace.lab.report.results import HEADLINES
    from hace.lab.report.study_report import MARKS, summary_table

    reference = reference_of(arrays)
    top1, _, severity = HEADLINES[:3]
    print(to_text(summary_table(records[0].key.dataset, arrays, reference, gaps=(top1, severity), name=str)))
    final = [record for choice in arrays.choices.values() for record in choice.records]
    split = next((r.run.config.evaluate for r in final if r.status == "finished" and r.run), "test")
    over = "groups of " if arrays.store.groups is not None else ""
    print(f"\n[95% intervals] over seeds and {over}{split} samples; differences are paired.\n{MARKS}.")
    print(f"Runs are in {args.out}:")
    for record in final:
        if record.run is not None:
            folder = Path(args.out) / record.run.id
            print(f"  {folder}  {record.key.method}, seed {record.key.seed}, {record.status}")


def reference_of(arrays: MethodScores) -> str:
    """The method that others are compared with: the first that has a result."""
    return next((m for m, choice in arrays.choices.items() if choice.finished), next(iter(arrays.choices)))


def base_config(args: argparse.Namespace) -> ProbeConfig:
    """The configuration that all runs of a command share: a file's, overridden by the options."""
    from hace.data import DATASETS
    from hace.lab.runs.config import ProbeConfig

    layers = config_layers(args)
    data = args.given.get("data", {})
    name = data.get("name")
    if name not in (None, "features") and "root" in data:
        raise ConfigError("--features and --data both name the data: give one.")
    if name in DATASETS and DATASETS[name].takes("root") and name != "features":
        raise ConfigError(
            f"--data {name} has images, not features: compute them with `hace features --data {name} --out F`, "
            "then give --features F."
        )
    if "root" in data:
        data["name"] = "features"
    if not data and not any("data" in layer for layer in layers):
        raise ConfigError("Name the features: --features F, or --data synthetic-features for a first try.")
    base = resolved(ProbeConfig, args, {"lr": 8.0}, *layers)
    return replace(base, keep=True)  # the table is made of predictions


def documents(arrays: MethodScores) -> list[dict[str, Any]]:
    """The table for programs: one object per method."""
    from hace.lab.report.results import HEADLINES

    reference = reference_of(arrays)
    metrics = HEADLINES[:4]
    found = []
    for method, choice in arrays.choices.items():
        means = {m.key[1]: arrays.score(method, m.key) for m in metrics} if choice.finished else {}
        scores = {k: {"value": s.value, "low": s.low, "high": s.high} for k, s in means.items()}
        gaps = {m.key[1]: arrays.difference(method, reference, m.key) for m in metrics}
        changes = {name: gap[0] for name, gap in gaps.items() if gap is not None and method != reference}
        found.append(
            {
                "method": method,
                "seeds": len(choice.records),
                "diverged": sum(record.status == "diverged" for record in choice.records),
                "candidates": sorted(set(choice.candidates)),
                "rates": sorted({record.lr for record in choice.finished}),
                "metrics": scores,
                "changes": {name: change._asdict() for name, change in changes.items()},
                "runs": [record.run.id for record in choice.records if record.run is not None],
            }
        )
    return found
