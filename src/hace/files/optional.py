"""Packages that only some data sets need: loaded when they are needed, and missed with words that help."""

from __future__ import annotations

import importlib
from typing import Any

from hace.errors import ConfigError


def optional(module: str, purpose: str) -> Any:
    """A module of the extra `data`.

    Args:
        module: Its dotted name.
        purpose: What needs it, as the start of a sentence.

    Raises:
        ConfigError: If it is not installed.

    Example:
        >>> optional("no_such_package", "Reading old tapes")
        Traceback (most recent call last):
        hace.errors.ConfigError: Reading old tapes needs the package no_such_package. Install it with: pip install "hace[data]".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise ConfigError(
            f'{purpose} needs the package {package}. Install it with: pip install "hace[data]".'
        ) from error
