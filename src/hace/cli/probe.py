"""`hace probe`: linear probes on frozen features."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.cli.options import (
    SHORT,
    ConfigParser,
    add_data_option,
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
    from hace.lab.runs.progress import Start, Step
    from hace.lab.study.cells import Record
    from hace.lab.study.progress import Tally

FAIR_SEEDS = 5

DESCRIPTION = """\
Train linear layers on frozen features: one, or a grid of losses, parameters, rates and seeds side by side. Every head
becomes a run directory with its configuration, log, weights, predictions and all metrics; finished runs are not repeated.
"""

EXAMPLES = """\
examples:
  hace probe --features F --loss hace --dilution 0.5 --lr 8
  hace probe --features birds.npz --hierarchy taxonomy.csv --loss cross_entropy hace --lr 4 8 16
  hace probe --features F --loss cross_entropy hace hxe --dilution 0.2 0.5 --protocol fair
  hace probe --features F --loss cross_entropy hace --protocol paper --lr 8
  hace probe --data synthetic-features --loss hace --lr 4 --seeds 3
  hace probe --config runs/4cd033b43672ca23/config.json --epochs 60

F is a folder that `hace features` wrote, or a file of features (.npz, .safetensors, .parquet; then --hierarchy names the
classes). Losses: any name in hace.LOSSES (docs/losses.md); parameters a loss does not take are ignored.

protocols:
  single  every loss, parameter, rate and seed as given, judged on the test samples
  fair    the same rates (default 0.25 to 32, wider on a side where a loss chooses the edge) for every loss; each seed
          chooses its rate on the data's own validation split if there is one, else on 10 % of the training samples, and
          trains again on all; 5 seeds; the test samples are used once
  paper   the paper's rates around --lr (l, l/d, l*d; d = 0.2, 0.5, 0.7), the best run chosen on the test samples

`hace study` runs the same protocols over many data sets, models and methods, on several processes or a cluster.
"""

RATES = {
    "single": "as given",
    "fair": "each seed's rate chosen on {}, then trained on all",
    "paper": "the best run chosen on the test samples, as the paper does",
}

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
    loss.add_argument("--loss", metavar="NAME", nargs="+", help="losses (default: hace)")
    for name, help in PARAMETERS.items():
        option = f"--{name.replace('_', '-')}"
        loss.add_argument(option, metavar="X", nargs="+", type=float, help=help)
    loss.add_argument(
        "--loss-option", metavar="NAME=VALUE", action="append", default=[], help="any other parameter"
    )
    loss.add_argument(
        "--lr", metavar="RATE", nargs="+", type=float, help="learning rates (default: 8; fair: 0.25 ... 32)"
    )
    loss.add_argument(
        "--protocol", choices=("single", "fair", "paper"), default="single", help="default: single"
    )
    loss.add_argument(
        "--widen",
        metavar="N",
        type=int,
        default=2,
        help="fair: rates to add on each side, for all losses, while any of them picks the edge (default: 2)",
    )
    loss.add_argument("--seeds", metavar="K", type=int, help="how many seeds (default: 1; fair: 5)")

    command = parser.add_argument_group("the command")
    command.add_argument(
        "--out", metavar="FOLDER", default="runs", help="folder of run directories (default: runs)"
    )
    command.add_argument(
        "--config", metavar="FILE", help="start from the configuration of a run; options override it"
    )
    add_data_option(command)
    command.add_argument(
        "--threads", metavar="N", type=int, default=1, help="with 1, runs repeat bit for bit (default: 1)"
    )
    command.add_argument("--json", action="store_true", help="print the table as JSON")
    command.add_argument(
        "--print-config", action="store_true", help="print the configuration that the runs share and stop"
    )
    also = {
        "features": "data.root",
        **{name: place for name, place in SHORT.items() if name not in ("root", "loss")},
    }
    parser.add_config(ProbeConfig, skip=("loss", "lr", "keep", "temperature"), also=also)


def run(args: argparse.Namespace) -> None:
    """Train, and print the table."""
    import torch

    from hace.lab.report.comparisons import chosen_runs
    from hace.lab.report.results import MethodScores
    from hace.lab.report.summary import notes
    from hace.lab.study.ad_hoc import loss_grid

    if args.threads < 1:
        raise ConfigError(f"--threads must be at least 1. Got {args.threads}.")
    torch.set_num_threads(args.threads)
    base = base_config(args)
    if args.print_config:
        return print_config(base)
    count = args.seeds if args.seeds is not None else FAIR_SEEDS if args.protocol == "fair" else 1
    if count < 1:
        raise ConfigError(f"--seeds must be at least 1. Got {count}.")
    seeds = range(base.seed, base.seed + count)
    parameters = {name: getattr(args, name) for name in PARAMETERS if getattr(args, name) is not None}
    others = numbers(reader_options(args.loss_option, "--loss-option"))
    parameters |= {name: [value] for name, value in others.items()}
    losses = loss_grid(args.loss or [base.loss.name], parameters, base.loss)
    rates = list(dict.fromkeys(args.lr or ()))
    check_protocol(args, base, rates, parameters)
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


def make_runs(
    args: argparse.Namespace,
    base: ProbeConfig,
    losses: Mapping[str, LossConfig],
    rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Record]:
    """The runs of a protocol, made or read: all of the searches, and the final ones."""
    from hace.lab.runs.progress import progress
    from hace.lab.study.ad_hoc import probe_plan, run_plan, single_runs
    from hace.paper.recipes import fixed_runs

    rate = rates[0] if rates else base.lr
    if args.protocol == "single":
        with progress("probes", "epochs") as start:
            step = start(len(losses) * (len(rates) or 1) * len(seeds) * base.epochs, 0)
            return single_runs(base, losses, rates or [rate], seeds, args.out, step)
    if args.protocol == "paper":
        plan = probe_plan(replace(base, lr=rate), losses, seeds, fixed=fixed_runs)
    else:
        plan = probe_plan(base, losses, seeds, rates=rates, widen=args.widen)
    with progress("probes", "runs") as start:
        return run_plan(plan, args.out, threads=args.threads, watch=Steps(start))


class Steps:
    """Shows how many runs of a study are done."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._step: Step | None = None
        self._done = 0

    def changed(self, tally: Tally) -> None:
        """Count the runs that are new."""
        done = tally.sum("done")
        if self._step is None:
            self._step = self._start(tally.sum("total"), done)
        elif done > self._done:
            self._step(done - self._done)
        self._done = done


def print_table(args: argparse.Namespace, arrays: MethodScores, records: Sequence[Record]) -> None:
    """The table, how its runs were chosen, and where they are."""
    from hace.lab.report.comparisons import HEADLINES
    from hace.lab.report.document import to_text
    from hace.lab.report.summary import MARKS, summary_table
    from hace.lab.study.cells import chosen_on

    reference = reference_of(arrays)
    top1, _, severity = HEADLINES[:3]
    key = records[0].key
    title = (
        f"{key.dataset}, {key.model}, {args.protocol} protocol" if args.protocol != "single" else key.dataset
    )
    print(to_text(summary_table(title, arrays, reference, gaps=(top1, severity), name=str)))
    final = [record for choice in arrays.choices.values() for record in choice.records]
    split = next((r.run.config.evaluate for r in final if r.status == "finished" and r.run), "test")
    print(f"\n[95 % intervals] over seeds and {split} samples; differences are paired.\n{MARKS}.")
    print(f"Rates: {RATES[args.protocol].format(chosen_on(records))}. Runs are in {args.out}:")
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


def check_protocol(
    args: argparse.Namespace, base: ProbeConfig, rates: Sequence[float], parameters: Mapping[str, Any]
) -> None:
    """Refuse options that the protocol sets."""
    if args.protocol == "paper" and len(rates) > 1:
        raise ConfigError(f"--lr must be one base rate with --protocol paper. Got {len(rates)}.")
    if args.protocol == "paper" and "dilution" in parameters:
        raise ConfigError("--dilution is set by --protocol paper: 0.2, 0.5 and 0.7. Omit it.")
    if args.protocol != "single" and base.evaluate == "val":
        raise ConfigError(
            f"--evaluate must be test with --protocol {args.protocol}, which is judged on the test samples. Got val."
        )
    if base.optimizer == "lbfgs" and (args.protocol != "single" or len(rates) > 1):
        raise ConfigError("--optimizer lbfgs has no learning rate to choose. Omit --protocol and --lr.")


def documents(arrays: MethodScores) -> list[dict[str, Any]]:
    """The table for programs: one object per method."""
    from hace.lab.report.comparisons import HEADLINES

    reference = reference_of(arrays)
    metrics = HEADLINES[:4]
    found = []
    for method, choice in arrays.choices.items():
        scores = {m.key[1]: arrays.score(method, m.key) for m in metrics} if choice.finished else {}
        gaps = {m.key[1]: arrays.difference(method, reference, m.key) for m in metrics}
        changes = {name: gap[0] for name, gap in gaps.items() if gap is not None and method != reference}
        found.append(
            {
                "method": method,
                "seeds": len(choice.records),
                "diverged": sum(record.status == "diverged" for record in choice.records),
                "candidates": sorted(set(choice.candidates)),
                "rates": sorted({record.lr for record in choice.finished}),
                "metrics": {
                    name: {"value": s.value, "low": s.low, "high": s.high} for name, s in scores.items()
                },
                "changes": {name: change._asdict() for name, change in changes.items()},
                "runs": [record.run.id for record in choice.records if record.run is not None],
            }
        )
    return found
