"""Whether the columns of scores are the leaves or the nodes of a hierarchy, by their number."""

from __future__ import annotations

from typing import Literal

from hace.errors import ConfigError, DataError
from hace.hierarchy.hierarchy import Hierarchy


def score_columns(
    shape: tuple[int, ...], hierarchy: Hierarchy, outputs: str = "auto"
) -> Literal["leaves", "nodes"]:
    """Whether scores of a shape are over the leaves or over the nodes.

    Args:
        shape: the shape of the scores, (samples, columns).
        hierarchy: the hierarchy.
        outputs: ``"leaves"``, ``"nodes"``, or ``"auto"`` to tell by the number of columns.

    Raises:
        ConfigError: ``outputs`` is something else.
        DataError: the number of columns fits neither, or not ``outputs``.

    Example:
        >>> score_columns((10, 2), Hierarchy.from_paths([("pet", "cat"), ("pet", "dog")]))
        'leaves'
    """
    widths = {"leaves": hierarchy.num_leaves, "nodes": hierarchy.num_nodes}
    if outputs not in ("auto", *widths):
        remedy = " Pass the classes' logits instead: loss.leaf_logits(z)." if outputs == "paths" else ""
        raise ConfigError(f"outputs must be 'auto', 'leaves' or 'nodes'. Got {outputs!r}.{remedy}")
    if len(shape) != 2:
        raise DataError(f"scores must have two dimensions, samples and classes. Got shape {shape}.")
    fitting = [what for what, width in widths.items() if width == shape[1]]
    for what in fitting:
        if outputs in ("auto", what):
            return what  # type: ignore[return-value]
    if outputs == "auto":
        rule = f"one column for each of the {hierarchy.num_leaves} leaves or each of the {hierarchy.num_nodes} nodes"
    else:
        rule = f"one column for each of the {widths[outputs]} {outputs}"
    remedy = (
        f"That is the number of {fitting[0]}: pass outputs={fitting[0]!r} (on the command line: --outputs {fitting[0]})."
        if fitting
        else "Check that the hierarchy is the one the model was trained with, with or without its root."
    )
    raise DataError(f"scores must have {rule}. Got {shape[1]} columns. {remedy}")
