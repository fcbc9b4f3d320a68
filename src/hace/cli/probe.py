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
from hace.cli.engine import Numbers, Words, more, settings
from hace.cli.options import DataOption, Groups, data_options, print_yaml, resolved
from hace.errors import ConfigError
from hace.files.documents import read_mapping
from hace.files.writing import without_nan
from hace.lab.runs.config import LossConfig, ProbeConfig
from hace.lab.runs.run import name_latest

if TYPE_CHECKING:
    from hace.lab.probe import Sources
    from hace.lab.probe_table import ProbeTable
    from hace.lab.runs.run import Run

SHOWN = "data.name data.hierarchy epochs batch_size weight_decay seed validation normalize optimizer"
NAMES = {"data": "*", "data.name": "--data", "data.root": "--features"}
NAMES |= {
    "head": "*",
    "head.name": "--head",
    "head.curvature": "--head.curvature",
    "head.clip": "--head.clip",
}
SKIP = ("data.options", "loss", "lr", "keep", "temperature")
Settings = settings(
    ProbeConfig,
    shown=("data.root", *SHOWN.split()),
    skip=SKIP,
    names=NAMES,
)


def probe(
    *,
    given: Settings = {},  # type: ignore[valid-type]  # noqa: B006
    loss: Words = (),
    lr: Numbers = (),
    seeds: int = 1,
    option: DataOption = (),
    groups: Groups = None,
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
      hace probe --config runs/latest/config.json --epochs 60

    F is a folder that `hace features` wrote, or a file of features (.npz, .safetensors, .parquet; then --hierarchy names the
    classes). Every combination is trained as given and scored on the test samples; a val split is held out for temperatures and
    early stopping. For a fair comparison, with each loss at its best rate on held-out samples:

      hace study fair-probe --features birds=F --methods cross_entropy,hace:dilution=0.3 --out S

    runs/latest is a link to the last run, for hace calibrate runs/latest, hace predict runs/latest NEW --accuracy 0.95, or
    hace export runs/latest --out birds.hace.

    Args:
        loss: Losses of hace.LOSSES, separated by commas, with parameters as in hace:dilution=0.3:label_smoothing=0.1 (default:
            the one advised for the labels: cross-entropy, with a shared-ancestor head (path sums) if some are coarse).
        lr: Learning rates, separated by commas (default: 8).
        seeds: Number of seeds.
        config: Configuration to start from, such as the config.json of a run; options override it.
        only_print: Print the configuration that the runs share and stop.
        out: Folder of run directories.
        threads: Threads; with 1, runs repeat bit for bit.
        as_json: Print the table as JSON.
    """
    import torch

    from hace.lab.probe import load_sources
    from hace.lab.probe_table import ProbeTable
    from hace.lab.runs.samples import advised_loss_note, own_split_note, with_advised_loss, with_own_split

    require("--threads", threads, "at least 1", threads >= 1)
    require("--seeds", seeds, "at least 1", seeds >= 1)
    torch.set_num_threads(threads)
    layers = [{"lr": 8.0}] + ([] if config is None else [read_mapping(config)])
    options = data_options(option, groups)
    check_data(given, layers, options)
    base = base_config({**given, "lr": lr[0]} if lr else given, layers, options)
    if only_print:
        return print_yaml(base)
    rates = list(dict.fromkeys(lr)) or [base.lr]
    asked = {name for layer in (*layers, given) for name in layer}
    sources = load_sources([base])
    (source,) = sources.values()
    base = base if "validation" in asked else with_own_split(source, base)
    notes = [own_split_note(source, base.validation)]
    if not loss and "loss" not in asked:
        base = with_advised_loss(source, base)
        notes.append(advised_loss_note(base.loss))
    for note in filter(None, notes):
        print(f"hace: {note}", file=sys.stderr)
    losses = {text: LossConfig.parse(text) for text in loss} or {base.loss.text: base.loss}
    runs = make_runs(out, base, sources, losses, rates, range(base.seed, base.seed + seeds))
    finished = [run for own in runs.values() for run in own if run.status == "finished"]
    if finished:
        name_latest(finished[-1].folder)
    table = ProbeTable(runs)
    for note in table.notes():
        print(f"hace: {note}", file=sys.stderr)
    if as_json:
        print(json.dumps(without_nan(table.documents()), indent=1, allow_nan=False))
    else:
        print_table(out, base, table)
    if all(run.status == "diverged" for own in runs.values() for run in own):
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
    # The table is made of predictions.
    return replace(resolved(ProbeConfig, layers, given, options), keep=True)


def make_runs(
    out: Path,
    base: ProbeConfig,
    sources: Sources,
    losses: Mapping[str, LossConfig],
    rates: Sequence[float],
    seeds: Sequence[int],
) -> dict[str, list[Run]]:
    """Every loss at every rate and seed, made or read; several rates become part of the titles."""
    from hace.lab.probe import passes, run_folder, run_pass
    from hace.lab.runs.process import progress
    from hace.lab.runs.run import read_run

    configs: dict[str, list[ProbeConfig]] = {}
    for name, loss in losses.items():
        for rate in rates:
            title = name if len(rates) < 2 else f"{name}, lr {rate:g}"
            configs[title] = [replace(base, loss=loss, lr=rate, seed=seed) for seed in seeds]
    together = [config for own in configs.values() for config in own]
    with progress("probes", "epochs") as start:
        step = start(len(together) * base.epochs, 0)
        for work in passes(together, sources):
            run_pass(work, out, sources, on_epoch=step)
    return {
        title: [read_run(run_folder(config, out, sources)) for config in own]
        for title, own in configs.items()
    }


def print_table(out: Path, base: ProbeConfig, table: ProbeTable) -> None:
    """The table, how its runs were judged, and where they are."""
    data = base.data
    dataset = data.name if data.root is None else Path(data.root).stem
    seeds = len(table.rows[0].runs)
    print(f"{dataset}, {seeds} {'seed' if seeds == 1 else 'seeds'}\n\n{table.text()}")
    over = "" if table.groups is None else "groups of "
    print(f"\n[95% intervals] over seeds and {over}{base.evaluate} samples.", end="")
    print(" Differences are paired; * marks intervals that exclude 0." if len(table.rows) > 1 else "")
    print(f"Runs are in {out}:")
    for row in table.rows:
        for run in row.runs:
            print(f"  {out / run.id}  {row.title}, seed {run.config.seed}, {run.status}")
