"""`hace train`: a model from images, by a configuration."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.errors import ConfigError, HaceError

if TYPE_CHECKING:
    from hace.lab.runs.run import Run
    from hace.lab.runs.train_config import TrainConfig

DESCRIPTION = """\
Train a model end to end on images. Settings come from a preset, then a file, then the command line; later ones win. If it is
killed, the same command resumes from its last checkpoint and ends with the same bits.
"""

EXAMPLES = """\
examples:
  hace train model=test_vit epochs=2 --out runs/first             a tiny model on synthetic images: seconds
  hace train --model test_vit --epochs 2 --out runs/first         the same: both styles work in every command
  hace train --preset cifar100/resnet18/hace data.root=data --out runs/hace
  hace train --preset cifar100/resnet18/sce data.root=data seed=1 --out runs/sce
  hace train --config mine.yaml lr=0.05 loss.options.dilution=0.2 --out runs/mine
  hace train --config runs/mine/config.json --out runs/again      the configuration of a run, as it was
  hace train --preset aircraft/swin_tiny --print-config > mine.yaml
  torchrun --nproc-per-node 4 -m hace train --config mine.yaml --out runs/mine
  hace train --presets                                            the paper's recipes, with what to expect

--out gets config.json, log.jsonl (one line per epoch), weights.safetensors and result.json; while it runs, checkpoints too.
Exit codes: 0 done, 1 the loss became infinite or NaN, 2 bad input, 130 and 143 stopped by Ctrl-C or SIGTERM after saving.
"""

SETTINGS_TITLE = (
    "\nsettings, as NAME=VALUE, as --NAME VALUE, or in the file of --config (dots separate levels):\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("settings", metavar="NAME=VALUE", nargs="*", help="settings, over those of --config and --preset")
    add("--out", metavar="FOLDER", help="the run directory: new, or of the same run, which is then resumed")
    add("--config", metavar="FILE", help="settings in YAML or JSON, such as the config.json of a run")
    add("--preset", metavar="NAME", help="a recipe of the paper: DATA/MODEL or DATA/MODEL/METHOD")
    add("-o", "--option", metavar="NAME=VALUE", action="append", default=[], help="an option of the data set")
    add("--presets", action="store_true", help="list the presets and stop")
    add("--print-config", action="store_true", help="print the whole configuration as YAML and stop")
    add("--restart", action="store_true", help="start over instead of resuming from a checkpoint")
    # argparse has no hook for slow text: only this help waits for torch.
    parser.format_help = lambda: _plain_help(parser) + settings_help()  # pyright: ignore[reportAttributeAccessIssue]


def run(args: argparse.Namespace) -> None:
    """Build the configuration, train, and print the result."""
    if args.presets:
        print(preset_list())
        return
    try:
        options = [f"data.options.{option}" for option in args.option]
        config = build_config(args.preset, args.config, [*args.settings, *options])
        if args.print_config:
            print(as_yaml(config), end="")
            return
        if args.out is None:
            raise ConfigError("--out must be given: the folder for the run.")
        run = _train(config, Path(args.out), resume=not args.restart)
    except HaceError:
        if os.environ.get("LOCAL_RANK", "0") != "0":  # the first process of this machine prints it
            raise SystemExit(2) from None
        raise
    if run.status == "diverged":
        raise SystemExit(1)


def build_config(preset_name: str | None, file: str | None, settings: list[str]) -> TrainConfig:
    """The configuration: preset, file and settings, each over the one before.

    Raises:
        ConfigError: All problems at once.
    """
    from hace.files.documents import read_mapping
    from hace.lab.runs.config_files import merged, overrides
    from hace.lab.runs.settings import from_dict
    from hace.lab.runs.train_config import TrainConfig
    from hace.paper.train_presets import train_preset

    default = {"data": {"name": TrainConfig().data.name}}  # settings of its parts leave it what it is
    document: Mapping[str, Any] = train_preset(preset_name).to_dict() if preset_name else default
    if file is not None:
        document = merged(document, read_mapping(file))
    over, problems = overrides(settings)
    try:
        config = from_dict(TrainConfig, merged(document, over))
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return config


def _train(config: TrainConfig, out: Path, resume: bool) -> Run:
    from hace.lab.features.extraction import processes

    main = processes()[0] == 0
    if main:  # at once: libraries and data take their time
        print(f"loading {config.data.name} and {config.model}", file=sys.stderr, flush=True)
    from hace.lab.runs.progress import progress
    from hace.lab.runs.stopping import Stopped
    from hace.lab.train.train import run_train

    try:
        with progress("training", "images", sys.stderr if main else None) as start:
            run = run_train(config, out, resume=resume, progress=start, report=_print_epoch)
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


def settings_help() -> str:
    """All settings with their types, defaults and meaning."""
    try:
        import jsonargparse
    except ImportError:
        return "\nTo see all settings here: pip install 'hace[train]'.\n"
    from hace.lab.runs.train_config import TrainConfig

    parser = jsonargparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
    parser.add_class_arguments(TrainConfig, None)
    text = re.sub(r"(?m)^  --(data|loss) CONFIG.*\n", "", parser.format_help())  # a whole part cannot be set
    return SETTINGS_TITLE + re.sub(r"(?m)^  --(\S+ \S+)", r"  \1  ", text)


def as_yaml(config: TrainConfig) -> str:
    """The whole configuration as YAML; `--config` reads it back."""
    import yaml

    return yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)


def preset_list() -> str:
    """The presets, with the words of their recipes."""
    from hace.lab.study.methods import METHODS
    from hace.paper.recipes import describe
    from hace.paper.train_presets import TRAIN_PRESETS

    parts = []
    for name in TRAIN_PRESETS:
        dataset, model = name.split("/")
        parts.append(f"{name}\n" + "\n".join(f"  {line}" for line in describe(model, dataset).splitlines()))
    parts.append("methods, as in cifar100/resnet18/sce: " + ", ".join(METHODS))
    return "\n\n".join(parts)


def _plain_help(parser: argparse.ArgumentParser) -> str:
    return argparse.ArgumentParser.format_help(parser)
