"""How good answers are: plain functions on a batch, streaming classes, and all metrics of a model at once.

The public names are listed once, in `__init__.pyi`; each loads its module on first use. The functions need torch and numpy, the
streaming classes torchmetrics, :func:`evaluate` and :func:`compare` scipy.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_LISTED = {a.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for a in node.names}

__all__ = sorted(_LISTED)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _LISTED:
        raise AttributeError(f"module 'hace.metrics' has no attribute {name!r}")
    value = getattr(importlib.import_module(str(_LISTED[name])), name)
    globals()[name] = value  # the next use finds it without this function
    return value
