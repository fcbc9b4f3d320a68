"""Packages of an extra: imported when needed, and missed with the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from hace.errors import ConfigError

_PACKAGES = {"PIL": "pillow", "yaml": "PyYAML"}  # where the package has another name than its module


def optional(module: str, purpose: str, extra: str = "data") -> Any:
    """A module that not every installation has.

    Args:
        module: Its dotted name.
        purpose: What needs it, as the start of a sentence.
        extra: The extra of hace that brings it.

    Raises:
        ConfigError: It is not installed.

    Example:
        >>> optional("no_such_package", "Reading old tapes")
        Traceback (most recent call last):
        hace.errors.ConfigError: Reading old tapes needs the package no_such_package. Install it with: pip install "hace[data]".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.split(".")[0]
        raise ConfigError(
            f'{purpose} needs the package {_PACKAGES.get(top, top)}. Install it with: pip install "hace[{extra}]".'
        ) from error
