"""What the labels of scikit-learn's y mean in a hierarchy: ids of nodes, or positions in a list of leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.errors import ConfigError, DataError, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray

INTEGER_LABELS = ("auto", "ids", "positions")
_SAY = (
    "Say which: labels='ids'; labels='positions' for positions in hierarchy.leaves; or labels=np.unique(y), with y as it was "
    "before scikit-learn encoded it."
)


@dataclass(frozen=True, eq=False)
class LabelReading:
    """The classes of an estimator, and what each label means.

    Attributes:
        hierarchy: the hierarchy.
        classes: (C,) the classes as scikit-learn sees them, sorted.
        order: (C,) the label of each class: its position in ``hierarchy.leaves``.
        nodes: the node index of every label known, by label.
        what: what a label must be, for messages.
    """

    hierarchy: Hierarchy
    classes: np.ndarray
    order: IntArray
    nodes: dict[Any, int]
    what: str

    def __call__(self, y: np.ndarray) -> IntArray:
        """Node indices of labels.

        Raises:
            DataError: labels that are not known: how many, the first, and what is close to it.
        """
        text = all(isinstance(label, str) for label in self.nodes)
        values, inverse = np.unique(y, return_inverse=True)
        keys = [str(value) if text else value for value in values.tolist()]
        found = np.array([self.nodes.get(key, -1) for key in keys], dtype=np.int64)[inverse]
        bad = np.flatnonzero(found < 0)
        if len(bad):
            label = y[bad[0]].item() if isinstance(y[bad[0]], np.generic) else y[bad[0]]
            hint = nearest(str(label), [str(known) for known in self.nodes]) if text else ""
            raise DataError(
                f"y must hold {self.what}. {len(bad):,} of {len(y):,} are not; the first is {label!r} in row {bad[0]}.{hint}"
            )
        return found


def read_classes(classes: np.ndarray) -> LabelReading:
    """Labels without a hierarchy: the classes themselves, and nothing above them.

    Args:
        classes: sorted labels.

    Example:
        >>> read_classes(np.array([1.0, 2.0])).hierarchy.leaves
        ('1.0', '2.0')
    """
    known = {label: position for position, label in enumerate(classes.tolist())}
    flat = Hierarchy.flat([str(label) for label in known])
    return LabelReading(flat, classes, np.arange(len(classes)), known, "labels in classes")


def read_labels(y: np.ndarray, hierarchy: Hierarchy, labels: str | Sequence[Any] = "auto") -> LabelReading:
    """What labels mean. Strings are ids; ``labels`` says what integers are.

    Args:
        y: labels: strings or integers.
        hierarchy: the hierarchy.
        labels: ``"ids"``; ``"positions"``, in ``hierarchy.leaves``; ``"auto"``, whichever fits, if only one does; or a list of
            leaves, the classes, of which integers are positions or ids.

    Raises:
        ConfigError: ``labels`` is something else.
        DataError: y holds something else, or integers that could be ids or positions.

    Example:
        >>> pets = Hierarchy.from_paths([("pet", "cat"), ("pet", "dog")])
        >>> read_labels(np.array(["dog"]), pets).classes.tolist(), read_labels(np.array([0, 1]), pets).classes.tolist()
        (['cat', 'dog'], [0, 1])
    """
    if isinstance(labels, str):
        if labels not in INTEGER_LABELS:
            choices = ", ".join(map(repr, INTEGER_LABELS))
            raise ConfigError(f"labels must be one of {choices}, or a list of leaves. Got {labels!r}.")
        chosen, mode = np.arange(hierarchy.num_leaves), labels
    else:
        chosen, mode = _listed(labels, hierarchy), "list"
    if not _holds_integers(y):
        return reading_of(hierarchy, chosen, object if y.dtype == object else str)
    values = np.unique(y).tolist()
    if mode == "auto":
        mode = "ids" if _are_ids(values, hierarchy) else "positions"
    elif mode == "list":
        mode = "ids" if _are_listed_ids(values, hierarchy, chosen) else "list"
    if mode == "ids":
        return reading_of(hierarchy, chosen, int)
    if mode == "positions" and not _sorted_either_way(hierarchy):
        raise DataError(
            "y must not hold positions if hierarchy.leaves is not sorted: they could follow label order, or the sorted "
            "order in which scikit-learn encodes labels. Pass labels=hierarchy.leaves for the first; labels=np.unique(y), "
            "with y as it was before, for the second."
        )
    return reading_of(hierarchy, chosen, int, positions=True)


def reading_of(
    hierarchy: Hierarchy, chosen: IntArray, type_: type, *, positions: bool = False
) -> LabelReading:
    """Positions, or ids of a type, as labels.

    The classes are sorted: scikit-learn's scores (log loss, ROC) take the columns of ``predict_proba`` to be in sorted order,
    whatever ``classes_`` says.

    Args:
        hierarchy: the hierarchy.
        chosen: (C,) the classes' labels.
        type_: type of ids: str, int or object.
        positions: labels are positions in ``chosen``.
    """
    if positions:
        nodes = dict(enumerate(hierarchy.leaf_nodes[chosen].tolist()))
        what = f"positions from 0 to {len(chosen) - 1} among the leaves"
        return LabelReading(hierarchy, np.arange(len(chosen)), chosen, nodes, what)
    leaves: list[Any] = [hierarchy.leaves[label] for label in chosen.tolist()]
    if type_ is int:
        words = [leaf for leaf in leaves if not _is_integer(leaf)]
        if words:
            raise DataError(
                f"y must hold strings if not every leaf is an integer. Got integers, and the leaf {words[0]!r}. Give y as ids, "
                f"such as {leaves[0]!r}, or say labels='positions'."
            )
        leaves = list(map(int, leaves))
    classes = np.array(leaves, dtype=object if type_ is object else None)
    order = np.argsort(classes, kind="stable")
    index = {node: i for i, node in enumerate(hierarchy.nodes)}
    return LabelReading(
        hierarchy, classes[order], chosen[order], index, f"ids of the hierarchy, {hierarchy!r}"
    )


def _are_ids(values: list[int], hierarchy: Hierarchy) -> bool:
    """Whether integers are ids rather than positions; refuses those that could be either."""
    if values[0] < 0 or values[-1] >= hierarchy.num_leaves:
        return True  # not positions
    index = {node: i for i, node in enumerate(hierarchy.nodes)}
    known = [index.get(str(value), -1) for value in values]
    if _sorted_either_way(hierarchy) and known == hierarchy.leaf_nodes[values].tolist():
        return True  # each id is its own position
    both = [value for value, node in zip(values, known, strict=True) if node >= 0]
    if both:
        raise DataError(
            f"y must hold integers that are clearly ids or positions. Got {both[0]}, which could be both. {_SAY}"
        )
    if values[-1] < hierarchy.num_leaves - 1:
        raise DataError(
            f"y must hold positions up to {hierarchy.num_leaves - 1}, one for each leaf. Got {values[-1]} as the largest: they "
            f"could be positions among fewer classes. {_SAY}"
        )
    return False


def _are_listed_ids(values: list[int], hierarchy: Hierarchy, chosen: IntArray) -> bool:
    """Whether integers are ids of listed leaves rather than positions in the list."""
    position = {hierarchy.leaves[label]: place for place, label in enumerate(chosen.tolist())}
    as_ids = [position.get(str(value), -1) for value in values]
    if values[0] < 0 or values[-1] >= len(chosen):
        return True
    if all(place >= 0 for place in as_ids) and as_ids != values:
        raise DataError(
            f"y must hold integers that are clearly ids or positions. Got {values[0]}, which could be both. Give y as strings."
        )
    return False


def _listed(labels: Sequence[Any], hierarchy: Hierarchy) -> IntArray:
    """The labels of a list of leaves."""
    words = [str(label) for label in np.asarray(labels).tolist()]
    known = set(hierarchy.leaves)
    strange = [word for word in words if word not in known]
    if strange:
        hint = nearest(strange[0], hierarchy.leaves)
        raise ConfigError(
            f"labels must list leaves of the hierarchy. Got {strange[0]!r}, which is not one.{hint}"
        )
    if not words or len(set(words)) < len(words):
        raise ConfigError(
            f"labels must list each leaf once. Got {len(words):,} of them, {len(set(words)):,} different."
        )
    return np.array([hierarchy.label(word) for word in words], dtype=np.int64)


def _sorted_either_way(hierarchy: Hierarchy) -> bool:
    """Whether label order is sorted order, by text and, if all leaves are integers, by number too."""
    leaves = list(hierarchy.leaves)
    numbers = [int(leaf) for leaf in leaves] if all(map(_is_integer, leaves)) else []
    return leaves == sorted(leaves) and numbers == sorted(numbers)


def at_or_below(leaves: IntArray, nodes: IntArray, hierarchy: Hierarchy) -> np.ndarray:
    """Whether each leaf (node index) is the given node or below it.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)])
        >>> husky, dog, cat = (h.index(v) for v in ("husky", "dog", "cat"))
        >>> at_or_below(np.array([husky, husky, husky]), np.array([husky, dog, cat]), h)
        array([ True,  True, False])
    """
    ancestor, descendant = hierarchy.reachability()
    pairs = ancestor * hierarchy.num_nodes + descendant  # sorted, as they come
    return np.isin(nodes * hierarchy.num_nodes + leaves, pairs)


def _holds_integers(y: np.ndarray) -> bool:
    """Whether y holds integers; False for strings, an error for anything else."""
    values = y.tolist() if y.dtype == object else []
    if y.dtype.kind in "iu" or (values and all(_is_int(value) for value in values)):
        return True
    if y.dtype.kind == "U" or (values and all(isinstance(value, str) for value in values)):
        return False
    raise DataError(
        f"y must hold ids of the hierarchy, as strings or as integers. Got {y.dtype}, such as {y.tolist()[0]!r}."
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_integer(word: str) -> bool:
    """Whether an id is an integer in its usual form, so that the integer leads back to it."""
    try:
        return str(int(word)) == word
    except ValueError:
        return False
