"""Options that several commands share: which answers, and among which classes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hace.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from hace.decisions import GuaranteedThreshold
    from hace.hierarchy import Hierarchy


def threshold_of(text: str, h: Hierarchy) -> float | list[float]:
    """The value of --threshold: a probability, or one per level with commas."""
    from hace.decisions.ladders import level_thresholds

    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--threshold must be a number, or one per level with commas. Got {text!r}."
        ) from None
    threshold = numbers[0] if len(numbers) == 1 else numbers
    level_thresholds(threshold, h)
    return threshold


def add_promise(parser: argparse.ArgumentParser) -> None:
    """Declare --accuracy and --of, for commands that answer with a calibrated model."""
    parser.add_argument(
        "--accuracy",
        metavar="A",
        type=float,
        help="answer at the rank that keeps a promise on new samples, such as 0.95; needs `hace calibrate` first",
    )
    parser.add_argument(
        "--of",
        choices=("samples", "answers"),
        help="what the promise is about: at most 1 - A of all samples get a false answer (default), or of the answers that "
        "say something at least A are true",
    )


def promise_of(args: argparse.Namespace) -> tuple[float, str] | None:
    """The values of --accuracy and --of; None without --accuracy."""
    if args.accuracy is None:
        if args.of is not None:
            raise ConfigError(f"--of must come with --accuracy. Got --of {args.of} alone.")
        return None
    if not 0 < args.accuracy < 1:
        raise ConfigError(f"--accuracy must be above 0 and below 1. Got {args.accuracy:g}.")
    return args.accuracy, args.of or "samples"


def promise_text(promise: GuaranteedThreshold) -> str:
    """A promise and what it assumes, for a person."""
    return "\n".join([f"promise: {promise.promise}", *(f"  assumed: {text}" for text in promise.assumptions)])


def level_of(text: str) -> int | str:
    """A level as a depth where it is written as one, otherwise as a name."""
    return int(text) if text.isdecimal() else text


def level_index_of(text: str, h: Hierarchy) -> int:
    """The depth of --level, on a tree or forest."""
    from hace.decisions.scores import level_numbers

    level_numbers(h)
    return h.level_index(level_of(text))


def subset_of(text: str, h: Hierarchy) -> list[str]:
    """The classes of --subset: the lines of a file, or words with commas; an inner node means all classes below it."""
    from hace.decisions.scores import subset_leaves
    from hace.files.reading import is_file
    from hace.formats.label_files import read_list
    from hace.hierarchy.names import known_names, subset_ids

    words = read_list(text)
    unknown = [word for word in words if word not in known_names(h)]
    if unknown and not is_file(text):
        raise DataError(
            f"--subset must name a file or classes. There is no file {text!r}, and the hierarchy has no class "
            f"{unknown[0]!r}.{nearest(unknown[0], known_names(h))}"
        )
    return subset_leaves(h, subset_ids(words, h))
