"""How good answers are: plain functions on a batch, streaming classes, and all metrics of a model at once.

The public names are listed once, in `__init__.pyi`; each loads its module on first use, and the functions and classes of the
table of metrics are made from its rows. The functions need torch and numpy, the streaming classes torchmetrics,
:func:`evaluate` and :func:`compare` scipy.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_LISTED = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname == alias.name  # others are for the stub itself
}
# Those of the table of metrics.
_FUNCTIONS = {node.name for node in _STUB.body if isinstance(node, ast.FunctionDef)}
_CLASSES = {node.name for node in _STUB.body if isinstance(node, ast.ClassDef)}

__all__ = sorted({*_LISTED, *_FUNCTIONS, *_CLASSES})  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _LISTED:
        value = getattr(importlib.import_module(_LISTED[name]), name)
    elif name in _FUNCTIONS:
        value = importlib.import_module("hace.metrics.functional").function_of(name)
    elif name in _CLASSES:
        value = importlib.import_module("hace.metrics.streaming").class_of(name)
    else:
        raise AttributeError(f"module 'hace.metrics' has no attribute {name!r}")
    globals()[name] = value  # the next use finds it without this function
    return value
