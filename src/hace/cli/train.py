"""`hace train`: train a model end to end on images."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hace.cli.engine import more, settings
from hace.cli.options import DataOption, Groups, data_options, print_yaml, resolved
from hace.errors import ConfigError, HaceError
from hace.files.documents import read_mapping
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.run import name_latest

if TYPE_CHECKING:
    from hace.lab.runs.run import Run

SHOWN = "data.name data.root data.hierarchy model epochs batch_size lr seed validation init_from device"
NAMES = {"data": "*", "data.name": "--data", "data.root": "--data-root"}
NAMES |= {
    "head": "*",
    "head.name": "--head",
    "head.curvature": "--head.curvature",
    "head.clip": "--head.clip",
}
Settings = settings(TrainConfig, shown=SHOWN.split(), skip=("data.options", "loss", "init_hash"), names=NAMES)


def train(
    *,
    out: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    loss: str | None = None,
    given: Settings = {},  # type: ignore[valid-type]  # noqa: B006
    option: Annotated[DataOption, more] = (),
    groups: Annotated[Groups, more] = None,
    restart: Annotated[bool, more] = False,
    only_print: Annotated[bool, Parameter(name="--print-config")] = False,
    only_list: Annotated[bool, Parameter(name="--list")] = False,
) -> None:
    """Train a model end to end on images. Settings come from --preset, then --config, then the other options; later ones win.
    If it is killed, the same command resumes from its last checkpoint and ends with the same bits. On CPUs with instructions
    for bf16 the default is --precision bf16 with --channels-last, elsewhere fp32. A validation split of the data is held out,
    unless --validation says otherwise.

    Examples
      hace train --model test_vit --epochs 2 --out runs/first         a tiny model on synthetic images, in seconds
      hace train --preset cifar100/resnet18/hace --data-root data --out runs/hace
      hace train --preset cifar100/resnet18/cross_entropy --data-root data --seed 1 --out runs/cross_entropy
      hace train --data folders --data-root photos --hierarchy tree.csv --loss hxe:alpha=0.2 --out runs/photos
      hace train --config mine.yaml --lr 0.05 --loss hace:dilution=0.2 --out runs/mine
      hace train --config runs/mine/config.json --out runs/again      repeat a run
      hace train --preset aircraft/swin_tiny --print-config > mine.yaml
      torchrun --nproc-per-node 4 -m hace train --config mine.yaml --out runs/mine
      hace train --list                                               the paper's recipes, with what to expect

    The run directory holds config.json, log.jsonl (one line per epoch), checkpoints, weights.safetensors, result.json and, once
    it is complete, manifest.json.
    Exit codes: 0 success, 1 loss infinite or NaN, 2 bad input, 130 and 143 stopped by Ctrl-C or SIGTERM after saving.

    Args:
        out: Run directory: a new one, or the same run's to resume it.
        preset: Recipe of the paper: DATA/MODEL or DATA/MODEL/METHOD.
        config: Settings in YAML or JSON, such as the config.json of a run.
        loss: Loss of hace.LOSSES, with parameters as in hace:dilution=0.3:label_smoothing=0.1 (default: the one advised for
            the labels: cross-entropy, with a shared-ancestor head (path sums) if some are coarse).
        restart: Start over instead of resuming from a checkpoint.
        only_print: Print the whole configuration as YAML and stop.
        only_list: List the presets and stop.
    """
    from hace.lab.runs.process import keep_freed_memory

    keep_freed_memory()
    if only_list:
        print(preset_list())
        return
    try:
        built = configuration(given, preset, config, loss, option, groups)
        if only_print:
            return print_yaml(built)
        if out is None:
            raise ConfigError("--out must be given: the folder for the run.")
        file = {} if config is None else read_mapping(config)
        asked = {*given, *file}
        run = _train(
            built,
            out,
            resume=not restart,
            own_split="validation" not in asked,
            advised_loss=loss is None and preset is None and "loss" not in asked,
        )
    except HaceError:
        if os.environ.get("LOCAL_RANK", "0") != "0":  # the first process of this machine prints it
            raise SystemExit(2) from None
        raise
    if run.status == "diverged":
        raise SystemExit(1)
    if os.environ.get("LOCAL_RANK", "0") == "0" and out.resolve().parent != Path.cwd():
        name_latest(out)


def configuration(
    given: Mapping[str, Any] = MappingProxyType({}),
    preset: str | None = None,
    config: Path | None = None,
    loss: str | None = None,
    option: tuple[str, ...] = (),
    groups: str | None = None,
) -> TrainConfig:
    """The configuration: preset, what is fast on this device, file and options, each over the one before."""
    from hace.lab.runs.process import fast_settings

    # The default dataset is named, so that a file or an option with other settings of the data keeps it.
    presets: list[Mapping[str, Any]] = [{"data": {"name": TrainConfig().data.name}}]
    if preset is not None:
        from hace.paper.recipes import train_preset

        presets.append(train_preset(preset).to_dict())
    file = [] if config is None else [read_mapping(config)]
    options = data_options(option, groups)
    asked = resolved(TrainConfig, [*presets, *file], given, options, loss)
    return resolved(TrainConfig, [*presets, fast_settings(asked.device), *file], given, options, loss)


def _train(config: TrainConfig, out: Path, *, resume: bool, own_split: bool, advised_loss: bool) -> Run:
    from hace.lab.runs.process import processes

    main = processes()[0] == 0
    if main:  # at once: libraries and data take their time
        print(f"loading {config.data.name} and {config.model}", file=sys.stderr, flush=True)
    from hace.lab.runs.process import Stopped, progress
    from hace.lab.train.train import train

    try:
        with progress("training", "images", sys.stderr if main else None) as start:
            run = train(
                config,
                out,
                resume=resume,
                own_split=own_split,
                advised_loss=advised_loss,
                progress=start,
                report=_print_epoch,
            )
    except Stopped as stopped:
        if main:
            print(stopped, file=sys.stderr)
        raise SystemExit(128 + stopped.number) from None
    if main and run.result is not None and run.result["metrics"] is not None:
        values = run.result["metrics"]["leaves"]
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
        print(f"{run.result['split']}: {numbers}\nrun {run.id} is in {run.folder}")
    return run


def _print_epoch(entry: Mapping[str, Any]) -> None:
    words = [f"epoch {entry['epoch']}", f"loss {entry['loss']:.4f}"]
    for key, word in (("accuracy", "accuracy"), ("val_loss", "val loss"), ("val_accuracy", "val accuracy")):
        if entry.get(key) is not None:
            words.append(f"{word} {entry[key]:.4f}")
    words += [f"lr {entry['lr']:.4g}", f"{entry['time']['images_per_second']:,.1f} images/s"]
    print(", ".join(words), flush=True)


def preset_list() -> str:
    """The presets, with the words of their recipes."""
    from hace.lab.study.presets import METHODS
    from hace.paper.recipes import TRAIN_PRESETS, describe

    parts = []
    for name in TRAIN_PRESETS:
        dataset, model = name.split("/")
        parts.append(f"{name}\n" + "\n".join(f"  {line}" for line in describe(model, dataset).splitlines()))
    parts.append("methods, as in cifar100/resnet18/cross_entropy: " + ", ".join(METHODS))
    return "\n\n".join(parts)
