"""Options that several commands share: options of readers and data sets, the device, loader processes.

Commands import nothing from each other; what two of them need is here or in another `options_*` module.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from hace.errors import ConfigError

_LISTS = ("columns", "leaves", "level_names")  # options of readers that are lists


def add_raw_cells(parser: argparse.ArgumentParser) -> None:
    """Declare --raw-cells, for commands that write CSV tables."""
    parser.add_argument(
        "--raw-cells",
        action="store_true",
        help="write text in CSV tables unchanged (default: an apostrophe before = + - @, so that no spreadsheet runs a cell)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare --workers and --device, for commands that run a model over images."""
    parser.add_argument(
        "--workers",
        metavar="N",
        type=int,
        help="processes that read images (default: 0 on cpu, else one per processor, up to 8)",
    )
    parser.add_argument(
        "--device", metavar="DEVICE", default="auto", help="cpu, cuda, cuda:1, mps (default: auto)"
    )


def reader_options(pairs: list[str], option: str = "--option") -> dict[str, Any]:
    """The options of a reader.

    Args:
        pairs: Words such as "prefix=CL:".
        option: What they were given with, for messages.

    Example:
        >>> reader_options(["prefix=CL:", "internal_labels=false", "columns=order, species", 'leaves=["a, b", "c"]'])
        {'prefix': 'CL:', 'internal_labels': False, 'columns': ['order', 'species'], 'leaves': ['a, b', 'c']}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier() or name in ("path", "format", "root"):
            raise ConfigError(f"{option} must be NAME=VALUE with the name of an option. Got {pair!r}.")
        options[name] = _value(value)
        if name in _LISTS and isinstance(options[name], str):
            options[name] = [word.strip() for word in value.split(",")]
    return options


def _value(text: str) -> Any:
    """A list, an object, true or false if it parses as JSON; any other text stays text, numbers too: ids are text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | list | dict) else text


def numbers(options: dict[str, Any]) -> dict[str, Any]:
    """Options with numbers in place of words that parse as such: unlike those of hierarchies, no option of a data set is an id.

    Args:
        options: The options by name.

    Example:
        >>> numbers({"classes": "40", "signal": "0.5", "label_kind": "id", "crop": True})
        {'classes': 40, 'signal': 0.5, 'label_kind': 'id', 'crop': True}
    """

    def number(value: Any) -> Any:
        for kind in (int, float):
            try:
                return kind(value) if isinstance(value, str) else value
            except ValueError:
                pass
        return value

    return {name: number(value) for name, value in options.items()}


def pick_device(name: str, local_rank: int) -> str:
    """The device, chosen as in training.

    Args:
        name: What the user asked for.
        local_rank: The number of this process on its machine.
    """
    from hace.lab.runs.devices import choose_device

    return str(choose_device(name, local_rank))


def pick_workers(asked: int | None, device: str) -> int:
    """How many processes read images, chosen as in training.

    Args:
        asked: What the user asked for.
        device: Where the model computes.
    """
    import torch

    from hace.lab.runs.devices import choose_workers

    if asked is not None and asked < 0:
        raise ConfigError(f"--workers must be 0 or more. Got {asked}.")
    return choose_workers(asked, torch.device(device))
