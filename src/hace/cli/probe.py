"""`hace probe`: linear probes on frozen features."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.cli.options import numbers, reader_options
from hace.errors import ConfigError
from hace.files.writing import without_nan

if TYPE_CHECKING:
    from hace.lab.probe.grid import Chosen
    from hace.lab.runs.config import ProbeConfig

DESCRIPTION = """\
Train linear layers on frozen features: one, or a whole grid of losses, parameters, rates and seeds side by side. Every head
becomes a run directory with its configuration, log, weights, predictions and all metrics; finished runs are not repeated.
"""

EXAMPLES = """\
examples:
  hace probe --features F --loss hace --dilution 0.5 --lr 8
  hace probe --features birds.npz --hierarchy taxonomy.csv --loss cross_entropy hace --lr 4 8 16
  hace probe --features F --loss cross_entropy hace hxe --dilution 0.2 0.5 --protocol fair
  hace probe --features F --loss cross_entropy hace --protocol paper --lr 8
  hace probe --data synthetic-features --loss hace --lr 4 --seeds 3
  hace probe --config runs/4cd033b43672ca23/config.json

F is a folder that `hace features` wrote, or a file of features (.npz, .safetensors, .parquet; then --hierarchy names the
classes). Losses: cross_entropy, soft_label, hxe, hce, hace, ancestral_smoothing, hace_leaves, conditional_softmax, simloss,
expected_distance; parameters that a loss does not have are not its business.

protocols:
  single  every loss, parameter, rate and seed as given, judged on the test samples
  fair    the same rates (default 0.25 to 32) for every loss; each seed holds out 10 % of the training samples, chooses its
          rate on them and trains again on all; 5 seeds; the test samples are used once
  paper   the paper's rates around --lr (l, l/d, l*d; d = 0.2, 0.5, 0.7), the best run chosen on the test samples
"""

PARAMETERS = {
    "dilution": "d of HACE: the share that a node keeps; default 0.5",
    "label_smoothing": "mass spread evenly over the classes",
    "soft_label_beta": "soft labels below HACE: their sharpness",
    "beta": "sharpness of soft labels",
    "alpha": "decay of HXE",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    data = parser.add_argument_group("data")
    data.add_argument("--features", metavar="F", help="a folder of `hace features`, or a file of features")
    data.add_argument(
        "--data", metavar="NAME", help="a data set with features instead, such as synthetic-features"
    )
    data.add_argument("--hierarchy", metavar="H", help="the classes, where F is a file")
    data.add_argument("--root-node", action=argparse.BooleanOptionalAction, help="with or without a root")
    data.add_argument(
        "-o", "--option", metavar="NAME=VALUE", action="append", default=[], help="of the data set"
    )
    data.add_argument(
        "--normalize", choices=("unit", "standard", "none"), help="of the features (default: unit)"
    )
    data.add_argument("--shuffle", metavar="SEED", type=int, help="the control: train on a shuffled tree")

    loss = parser.add_argument_group("losses; several values make a grid")
    loss.add_argument("--loss", metavar="NAME", nargs="+", help="losses (default: hace)")
    for name, help in PARAMETERS.items():
        option = f"--{name.replace('_', '-')}"
        loss.add_argument(option, metavar="X", nargs="+", type=float, help=help)
    loss.add_argument(
        "--loss-option", metavar="NAME=VALUE", action="append", default=[], help="any other parameter"
    )

    fit = parser.add_argument_group("training")
    fit.add_argument(
        "--protocol", choices=("single", "fair", "paper"), default="single", help="default: single"
    )
    fit.add_argument(
        "--lr", metavar="RATE", nargs="+", type=float, help="learning rates (default: 8; fair: 0.25 ... 32)"
    )
    fit.add_argument("--seed", metavar="S", type=int, help="the first seed (default: 0)")
    fit.add_argument("--seeds", metavar="K", type=int, help="how many seeds (default: 1; fair: 5)")
    fit.add_argument("--optimizer", choices=("sgd", "adamw", "lbfgs"), help="default: sgd")
    fit.add_argument("--schedule", choices=("cosine", "constant"), help="default: cosine")
    fit.add_argument("--epochs", metavar="N", type=int, help="default: 30")
    fit.add_argument("--batch-size", metavar="N", type=int, help="default: 256")
    fit.add_argument("--momentum", metavar="M", type=float, help="of SGD (default: 0.9)")
    fit.add_argument("--weight-decay", metavar="W", type=float, help="default: 0")
    fit.add_argument("--bias", action=argparse.BooleanOptionalAction, help="a bias (default: yes)")
    fit.add_argument("--validation", metavar="SHARE", type=float, help="of the training samples, held out")
    fit.add_argument("--evaluate", choices=("test", "val"), help="what the result speaks of (default: test)")
    fit.add_argument(
        "--patience", metavar="N", type=int, help="stop early after N epochs without a better validation"
    )
    fit.add_argument(
        "--threads", metavar="N", type=int, default=1, help="1 makes runs repeat bit by bit (default: 1)"
    )
    fit.add_argument(
        "--config", metavar="FILE", help="a configuration, as a run directory holds it; options come on top"
    )

    out = parser.add_argument_group("results")
    out.add_argument(
        "--out", metavar="FOLDER", default="runs", help="where run directories go (default: runs)"
    )
    out.add_argument("--json", action="store_true", help="print the table as JSON")


def run(args: argparse.Namespace) -> None:
    """Train, and print the table."""
    import torch

    from hace.lab.probe.grid import (
        fair_probes,
        fixed_probes,
        loss_grid,
        single_probes,
        summary,
        summary_text,
    )
    from hace.lab.runs.progress import progress
    from hace.lab.study.protocol import FAIR_RATES
    from hace.paper.recipes import fixed_runs

    if args.threads < 1:
        raise ConfigError(f"--threads must be at least 1, got {args.threads}.")
    torch.set_num_threads(args.threads)
    base = base_config(args)
    fair = args.protocol == "fair"
    count = args.seeds if args.seeds is not None else 5 if fair else 1
    if count < 1:
        raise ConfigError(f"--seeds must be at least 1, got {count}.")
    seeds = range(base.seed, base.seed + count)
    given = {name: getattr(args, name) for name in PARAMETERS if getattr(args, name) is not None}
    loss_options = numbers(reader_options(args.loss_option, "--loss-option"))
    more = {name: [value] for name, value in loss_options.items()}
    losses = loss_grid(args.loss or [base.loss.name], {**given, **more}, base.loss)
    rates = list(dict.fromkeys(args.lr or ([] if fair else [base.lr])))
    check_protocol(args, base, rates, {**given, **more})
    tries = {"single": len(rates), "fair": len(rates or FAIR_RATES) + 1}
    heads = sum(tries.get(args.protocol, 6 if "dilution" in loss.options else 4) for loss in losses.values())
    with progress("probes", "epochs") as start:
        step = start(heads * count * base.epochs, 0)
        if args.protocol == "paper":
            chosen = fixed_probes(replace(base, lr=rates[0]), losses, fixed_runs, seeds, args.out, step)
        else:
            chosen = (fair_probes if fair else single_probes)(base, losses, rates, seeds, args.out, step)
    rows = summary(chosen)
    for note in notes(chosen):
        print(f"hace: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps(without_nan([_document(row, chosen) for row in rows]), indent=1, allow_nan=False))
        return
    print(summary_text(rows))
    about = {
        "single": "as given",
        "fair": "each seed's rate chosen on held-out training samples, then trained on all",
        "paper": "the best run chosen on the test samples, as the paper does",
    }[args.protocol]
    split = chosen[0].run.config.evaluate
    first = next((row.method for row in rows if row.values), rows[0].method)
    print(f"\n95 % intervals over seeds and {split} samples; Δ is the difference to {first}, paired.")
    print(f"Rates: {about}. Runs are in {args.out}:")
    for one in chosen:
        print(f"  {Path(args.out) / one.run.id}  {one.method}, seed {one.run.config.seed}, {one.run.status}")


def base_config(args: argparse.Namespace) -> ProbeConfig:
    """The configuration that all runs of a command share: a file's, with the options on top."""
    from hace.files.documents import read_mapping
    from hace.lab.runs.config import ProbeConfig
    from hace.lab.runs.config_files import merged
    from hace.lab.runs.settings import from_dict

    document: dict[str, Any] = {"lr": 8.0, **(read_mapping(args.config) if args.config else {})}
    data: dict[str, Any] = {}
    if args.features and args.data:
        raise ConfigError("--features and --data are two ways to name the data: give one.")
    if args.features:
        data = {"name": "features", "root": args.features}
    if args.data:
        from hace.data import DATASETS

        if args.data in DATASETS and DATASETS[args.data].takes("root"):
            raise ConfigError(
                f"--data {args.data} has no features of its own: compute them with `hace features --data {args.data} --out F`, "
                "then give --features F."
            )
        data = {"name": args.data}
    options = numbers(reader_options(args.option))
    if options:
        data["options"] = options
    for name in ("hierarchy", "root_node", "shuffle"):
        if getattr(args, name) is not None:
            data[name] = getattr(args, name)
    if data:
        document = merged(document, {"data": data})
    if not document.get("data"):
        raise ConfigError("Name the features: --features F, or --data synthetic-features for a first try.")
    settings = (
        "normalize",
        "optimizer",
        "schedule",
        "epochs",
        "batch_size",
        "momentum",
        "weight_decay",
        "bias",
    )
    for name in (*settings, "seed", "validation", "evaluate", "patience"):
        if getattr(args, name) is not None:
            document[name] = getattr(args, name)
    return replace(from_dict(ProbeConfig, document), keep=True)  # the table is made of predictions


def check_protocol(
    args: argparse.Namespace, base: ProbeConfig, rates: list[float], parameters: dict[str, Any]
) -> None:
    """Refuse options that the protocol decides by itself."""
    if args.protocol == "paper" and len(rates) > 1:
        raise ConfigError(f"--lr of the paper's protocol is one base rate, got {len(rates)}.")
    if args.protocol == "paper" and "dilution" in parameters:
        raise ConfigError("--dilution is the paper's in its protocol: 0.2, 0.5 and 0.7. Leave it away.")
    if args.protocol != "single" and args.evaluate == "val":
        raise ConfigError(
            f"--evaluate val belongs to single runs: --protocol {args.protocol} is judged on the test samples."
        )
    if base.optimizer == "lbfgs" and (args.protocol != "single" or len(rates) > 1):
        raise ConfigError(
            "--optimizer lbfgs has no learning rate, so there is none to choose. Leave --protocol and --lr away."
        )


def notes(chosen: Sequence[Chosen]) -> Iterator[str]:
    """What somebody should know who reads the table."""
    trained = [one.run.result["train"] for one in chosen if one.run.result]
    unseen = {name for train in trained for name in train["unseen_classes"]}
    if unseen:
        shown = ", ".join(sorted(unseen)[:5]) + (" ..." if len(unseen) > 5 else "")
        yield f"{len(unseen)} classes have no training sample: {shown}"
    short = sum(train.get("converged") is False for train in trained)
    if short:
        yield f"{short} of {len(trained)} runs of L-BFGS did not converge: raise max_iter or tolerance in a --config."
    searched = [
        (one.run.config.lr, sorted(run.config.lr for run in one.search))
        for one in chosen
        if one.search[1:] and one.run.status == "finished" and one.search[0].config.evaluate == "val"
    ]
    edges = sum(lr in (rates[0], rates[-1]) for lr, rates in searched)
    if edges:
        yield f"{edges} of {len(searched)} searches chose the smallest or largest rate: wider --lr may do better."


def _document(row: Any, chosen: list[Any]) -> dict[str, Any]:
    values = {name: dict(zip(("value", "low", "high"), v, strict=True)) for name, v in row.values.items()}
    changes = {name: dict(zip(("value", "low", "high"), v, strict=True)) for name, v in row.changes.items()}
    runs = [c.run.id for c in chosen if c.method == row.method]
    return {
        "method": row.method,
        "seeds": row.seeds,
        "diverged": row.diverged,
        "rates": row.rates,
        "metrics": values,
        "changes": changes,
        "runs": runs,
    }
