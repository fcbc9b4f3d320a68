"""Cross-entropy that knows your taxonomy.

Every loss here is one expression, a table of targets against the log-probabilities of the nodes of a hierarchy:

    loss(z, y) = - sum_v T[y, v] * log q*[v]          q* = R softmax(z)

The symbols mean the same in the code, in the documentation and in the papers:

    N       number of nodes of the hierarchy
    n       number of leaves: the classes, labelled 0 to n - 1
    z       logits over the outputs, which are the n leaves (label order) or the N nodes (node order)
    q       softmax(z), the probabilities of the outputs
    q*      R q, the probabilities of the nodes: a node has its own and that of everything below it
    p       the target over the leaves: one-hot at the label, or smoothed
    p*      the target over the nodes, the row T[y]
    R       reachability, 0/1: R[v, u] = 1 where output u is v or below it
    T       the table of targets, label x node; for HACE T = H V
    H       horizontal smoothing, n x n: mass that moves to other leaves
    V       vertical (ancestral) smoothing, n x N: mass that moves up from a leaf to its ancestors
    d       dilution: the share of arriving mass that a node keeps; 1 - d goes on to its parents
    eps     label smoothing: the mass spread evenly over all leaves
    beta    sharpness of soft labels: a leaf at distance D gets mass in proportion to exp(-beta D / max D)
    alpha   decay of the weights of HXE along the path

`import hace` alone loads next to nothing, so that the command line answers at once: every name loads its module, and
with it torch, numpy or whatever that needs, when it is first used. The public names are listed once, in `__init__.pyi`.
"""

__version__ = "0.1.0"

import ast
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _listed() -> dict[str, str]:
    """The module of each name that the stub beside this file lists; the losses are listed by their registry."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.name != "*"}


_LISTED = _listed()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted({"__version__", *_LISTED, *_losses()})
    if name in _LISTED:
        module = importlib.import_module(_LISTED[name])
        value = getattr(module, name) if _LISTED[name] != "hace" else importlib.import_module(f"hace.{name}")
    elif not name.startswith("_") and name in _losses():
        value = _losses()[name]
    else:
        raise AttributeError(f"module 'hace' has no attribute {name!r}")
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LISTED, *_losses()})


def _losses() -> Mapping[str, type]:
    return importlib.import_module("hace.losses.registry").CLASSES


# Tells torch that checkpoints may hold a hierarchy; beside torch this import costs nothing.
if "torch" in sys.modules:
    importlib.import_module("hace.hierarchy")
