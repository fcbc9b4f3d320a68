"""Checks of parameters: whether a value is one of the choices, or a number that keeps its rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hace.errors import ConfigError


def check_choice(argument: str, value: object, choices: Sequence[object]) -> None:
    """Refuses a value that is not one of the choices."""
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        raise ConfigError(f"{argument} must be one of {', '.join(map(repr, choices))}. Got {value!r}.")


def check_number(argument: str, value: object, rule: str, fits: bool) -> None:
    """Refuses a number that breaks its rule."""
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
