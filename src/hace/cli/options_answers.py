"""Options that several commands share: which answers, and among which classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hace.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
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


def level_of(text: str) -> int | str:
    """A level as a depth where it is written as one, otherwise as a name."""
    return int(text) if text.isdecimal() else text


def level_index_of(text: str, h: Hierarchy) -> int:
    """The depth of --level, on a tree or forest."""
    from hace.decisions.scores import level_numbers

    level_numbers(h)
    return h.level_index(level_of(text))


def subset_of(text: str, h: Hierarchy) -> list[str]:
    """The classes of --subset: the lines of a file, or words with commas."""
    from hace.files.reading import is_file
    from hace.formats.label_files import read_list
    from hace.hierarchy.names import known_names, subset_ids

    words = read_list(text)
    unknown = [word for word in words if word not in known_names(h)]
    if unknown and not is_file(text):
        raise DataError(
            f"--subset must name a file or classes. There is no file {text!r}, and the hierarchy has no class "
            f"{unknown[0]!r}.{nearest(unknown[0], h.leaves)}"
        )
    return subset_ids(words, h)
