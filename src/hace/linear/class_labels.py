"""What scikit-learn calls classes, matched to the leaves of a hierarchy."""

from __future__ import annotations

from typing import Any

import numpy as np

from hace.errors import DataError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray


def flat_hierarchy(classes: np.ndarray) -> Hierarchy:
    """The classes and nothing above them, in their order.

    Example:
        >>> flat_hierarchy(np.array([1.0, 2.0])).leaves
        ('1.0', '2.0')
    """
    return Hierarchy.flat([str(c) for c in classes.tolist()])


def sorted_leaves(hierarchy: Hierarchy, y: np.ndarray) -> tuple[np.ndarray, IntArray]:
    """The leaves as classes of the kind of y, sorted as scikit-learn wants them, and the label of each.

    scikit-learn's scores (log loss, ROC) take the columns of ``predict_proba`` to be in sorted order, whatever ``classes_``
    says; so they are.

    Example:
        >>> sorted_leaves(Hierarchy.flat(["10", "9"]), np.array([9]))
        (array([ 9, 10]), array([1, 0]))
        >>> sorted_leaves(Hierarchy.flat(["10", "9"]), np.array(["9"]))
        (array(['10', '9'], dtype='<U2'), array([0, 1]))
    """
    if _kind(y) == "integers":
        words = [leaf for leaf in hierarchy.leaves if not _is_integer(leaf)]
        if words:
            raise DataError(
                f"y holds integers, and the leaf {words[0]!r} of the hierarchy is none. Give y as ids of the hierarchy, "
                f"such as {hierarchy.leaves[0]!r}."
            )
        classes = np.array([int(leaf) for leaf in hierarchy.leaves])
    else:
        classes = np.array(hierarchy.leaves, dtype=object if y.dtype == object else None)
    order = np.argsort(classes, kind="stable")
    return classes[order], order


def ids_to_nodes(y: np.ndarray, hierarchy: Hierarchy, what: str = "y") -> IntArray:
    """Node indices of labels: ids of leaves, or of inner nodes where no more is known.

    Raises:
        DataError: labels that the hierarchy does not know: how many, the first, and what is close to it.
    """
    _kind(y)
    values, inverse = np.unique(y, return_inverse=True)
    index = {node: i for i, node in enumerate(hierarchy.nodes)}
    found = np.array([index.get(str(value), -1) for value in values.tolist()], dtype=np.int64)[inverse]
    bad = np.flatnonzero(found < 0)
    if len(bad):
        word = str(y[bad[0]])
        raise DataError(
            f"{what} must hold ids of the hierarchy, {hierarchy!r}. {len(bad):,} of {len(y):,} are not; the first is "
            f"{word!r} in row {bad[0]}.{nearest(word, hierarchy.nodes)}"
        )
    return found


def at_or_below(leaves: IntArray, nodes: IntArray, hierarchy: Hierarchy) -> np.ndarray:
    """Whether each leaf (node index) is the node beside it, or lies below it.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)])
        >>> husky, dog, cat = (h.index(v) for v in ("husky", "dog", "cat"))
        >>> at_or_below(np.array([husky, husky, husky]), np.array([husky, dog, cat]), h)
        array([ True,  True, False])
    """
    ancestor, descendant = hierarchy.reachability()
    pairs = ancestor * hierarchy.num_nodes + descendant  # sorted, as they come
    return np.isin(nodes * hierarchy.num_nodes + leaves, pairs)


def _kind(y: np.ndarray) -> str:
    if y.dtype.kind in "iu" or (y.dtype == object and all(_is_int(value) for value in y.tolist())):
        return "integers"
    if y.dtype.kind in "U" or (y.dtype == object and all(isinstance(value, str) for value in y.tolist())):
        return "strings"
    raise DataError(
        f"y must hold ids of the hierarchy, as strings or as integers. Got {y.dtype}, such as {y.tolist()[0]!r}."
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_integer(word: str) -> bool:
    """Whether an id is a number written in the usual way, so that the number leads back to it."""
    try:
        return str(int(word)) == word
    except ValueError:
        return False
