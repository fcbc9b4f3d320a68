"""Checks of arguments: choices, numbers, counts, class weights, trees. Imports neither torch nor a hierarchy."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import numpy as np

from hace.errors import ConfigError, HaceError, HierarchyError, nearest

# Bounds of what a caller may ask for: a mistyped number is an error, not an exhausted machine.
MOST_BINS = 100_000
MOST_REPLICATES = 1_000_000
MOST_SEED = 2**63 - 1


def check_choice(
    argument: str, value: object, choices: Collection[object], error: type[HaceError] = ConfigError
) -> None:
    """Refuses a value that is not one of the choices, and names those that look like it."""
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        hint = nearest(value, map(str, choices)) if isinstance(value, str) else ""
        raise error(f"{argument} must be one of {', '.join(map(repr, choices))}. Got {value!r}.{hint}")


def require(argument: str, value: object, rule: str, fits: bool) -> None:
    """Refuses a value that breaks its rule."""
    if not fits:
        raise ConfigError(f"{argument} must be {rule}. Got {value!r}.")


def is_number(value: object) -> bool:
    """Whether a value is a finite real number."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False


def check_count(name: str, value: object, most: int, least: int = 1) -> None:
    """Refuses what is not a whole number from ``least`` to ``most``.

    Example:
        >>> check_count("bins", 0, MOST_BINS)
        Traceback (most recent call last):
        hace.errors.ConfigError: bins must be a whole number from 1 to 100,000. Got 0.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # arrays have an index too, of one whole number
        number = None
    if number is None or not least <= number <= most:
        shown = repr(value)
        shown = shown if len(shown) < 40 else f"{shown[:40]}..."
        raise ConfigError(f"{name} must be a whole number from {least} to {most:,}. Got {shown}.")


def check_items(value: object) -> None:
    """Refuses what cannot be a number of labels; tensors are trusted, since looking would wait for the device."""
    fits = hasattr(value, "detach") or (is_number(value) and value >= 0)  # pyright: ignore[reportOperatorIssue]
    require("num_items_in_batch", value, "a number of at least 0", fits)


def checked_index(value: Any) -> int:
    """``ignore_index`` as an integer."""
    try:
        index = operator.index(value)
    except TypeError:
        index = None
    if index is None or isinstance(value, bool) or not -(2**63) <= index < 2**63:
        raise ConfigError(f"ignore_index must be an integer of 64 bits. Got {value!r}.")
    return index


def checked_weight(weight: Any, length: int, labels: str) -> np.ndarray | None:
    """Class weights as an array, one for each of ``length`` labels; None without any."""
    if weight is None:
        return None
    try:
        given = weight.detach().double().cpu().numpy() if hasattr(weight, "detach") else np.asarray(weight)
        array = given.astype(np.float64) if given.dtype.kind in "fiu" else None
    except (TypeError, ValueError, RuntimeError, NotImplementedError):  # ragged lists, tensors without values
        array = None
    if array is None:
        raise ConfigError(f"weight must be {length} numbers, one per label ({labels}). Got {weight!r}.")
    if array.shape != (length,):
        raise ConfigError(
            f"weight must have one entry for each of the {length} {labels}. Got shape {array.shape}."
        )
    if not np.isfinite(array).all() or (array < 0).any():
        bad = array[~np.isfinite(array) | (array < 0)][0]
        raise ConfigError(f"weight must be finite and not negative. Got {bad}.")
    return array


def require_tree(hierarchy: Any, loss: str) -> None:
    """Refuses a DAG where a loss needs one path from each label to the top."""
    if not getattr(hierarchy, "is_tree", True):  # anything but a hierarchy is refused by the loss itself
        raise HierarchyError(
            f"The hierarchy of {loss} must be a tree or forest, with at most one parent per node. Got {hierarchy!r}. "
            "HACELoss and HCELoss take DAGs."
        )
