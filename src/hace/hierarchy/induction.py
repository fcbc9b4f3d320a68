"""Hierarchies from data: agglomerative trees over class means, confusions or a linkage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from hace.errors import HierarchyError, listed
from hace.hierarchy.agreement import TreeAgreement, compare_trees
from hace.hierarchy.assembly import IntArray, as_ids
from hace.hierarchy.pairs import Pairs

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy

Linkage = Literal["ward", "average", "complete", "single"]
Cut = int | Sequence[int] | None

MAX_CLASSES = 20_000  # whose pairs take 1.6 GB
_ROWS = 4096  # features held in double precision at once


class Induced(Pairs):
    """The part of :class:`hace.Hierarchy` that makes trees from data."""

    @classmethod
    def from_linkage(
        cls, linkage: ArrayLike, classes: Iterable[Any] | None = None, *, levels: Cut = 2
    ) -> Hierarchy:
        """A hierarchy from a linkage matrix, as of :func:`scipy.cluster.hierarchy.linkage`.

        The merges are undone from the last one until a level has its number of groups. Every class is in a group at every
        level, so all classes have one depth; a group may hold one class.

        Args:
            linkage: (n - 1, 4) merges: row i joins the clusters in its first two columns into cluster n + i.
            classes: the n classes in the order of the linkage, which becomes the label order; "0", "1", ... by default.
            levels: how many levels of groups to put above the classes, with numbers of groups in geometric progression; or
                these numbers, from the top; or None for the whole binary tree, one node per merge.

        Example:
            >>> from hace import Hierarchy
            >>> merges = [[0, 1, 1.0, 2], [2, 3, 1.5, 2], [4, 5, 9.0, 4]]
            >>> Hierarchy.from_linkage(merges, ["cat", "lynx", "car", "bus"], levels=1).names
            ('cat, lynx', 'cat', 'lynx', 'car, bus', 'car', 'bus')
        """
        merges = _merges(linkage)
        ids = _class_ids(classes, len(merges) + 1)
        if levels is None:
            return _whole_tree(cls, merges, ids)
        return _cut_tree(cls, _cuts(merges, _counts(levels, len(ids))), ids)

    @classmethod
    def from_features(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        classes: Iterable[Any] | None = None,
        *,
        levels: Cut = 2,
        linkage: Linkage = "ward",
        normalize: Literal["unit", "none"] = "unit",
    ) -> Hierarchy:
        """A hierarchy from features: agglomerative clustering of the classes' means.

        Give training samples only: a tree made with test samples has seen the answers. All pairs of classes are compared, so
        time and memory grow with the square of their number: 20,000 classes of 256 features take about a minute and 3.3 GB.

        Args:
            x: (M, d) features.
            y: (M,) labels from 0 to n - 1; every class needs a sample.
            classes: the n classes in label order; "0", "1", ... by default.
            levels: as in :meth:`from_linkage`.
            linkage: how far apart two groups are, as in scipy.
            normalize: ``"unit"``: vectors are scaled to length 1 before their mean is taken; ``"none"``: taken as they are.

        Example:
            >>> from hace import Hierarchy
            >>> x = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]
            >>> Hierarchy.from_features(x, [0, 1, 2, 3], ["cat", "lynx", "car", "bus"], levels=1).names
            ('cat, lynx', 'cat', 'lynx', 'car, bus', 'car', 'bus')
        """
        from scipy.cluster.hierarchy import linkage as agglomerate

        if linkage not in get_args(Linkage):
            raise HierarchyError(
                f"linkage must be one of {', '.join(map(repr, get_args(Linkage)))}. Got {linkage!r}."
            )
        if normalize not in ("unit", "none"):
            raise HierarchyError(f"normalize must be 'unit' or 'none'. Got {normalize!r}.")
        given = None if classes is None else as_ids(classes, "classes")
        means = _class_means(np.asarray(x), np.asarray(y), given, unit=normalize == "unit")
        if len(means) == 1:
            return cls.from_linkage(np.zeros((0, 4)), given, levels=levels)
        if (means == means[0]).all():
            raise HierarchyError(
                f"x must tell classes apart. Got the same mean for all {len(means)} classes."
            )
        return cls.from_linkage(agglomerate(means, linkage), given, levels=levels)

    @classmethod
    def from_confusion(
        cls, matrix: ArrayLike, classes: Iterable[Any] | None = None, *, levels: Cut = 2
    ) -> Hierarchy:
        """A hierarchy from confusions: classes that are taken for each other come together.

        Rows are divided by their sums; two classes are as near as the mean of both directions says, and groups by the mean
        over their pairs (average linkage). Take the confusions from held-out training samples, never from the test samples.

        Args:
            matrix: (n, n) counts or rates, the true class in the row.
            classes: the n classes in label order; "0", "1", ... by default.
            levels: as in :meth:`from_linkage`.
        """
        from scipy.cluster.hierarchy import linkage as agglomerate

        counts = np.asarray(matrix, dtype=np.float64)
        if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
            raise HierarchyError(f"matrix must be square, one row per class. Got shape {counts.shape}.")
        if not np.isfinite(counts).all() or (counts < 0).any():
            raise HierarchyError("matrix must hold finite counts or rates from 0 on. Got others.")
        _check_classes(len(counts))
        total = counts.sum(axis=1, keepdims=True)
        rates = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
        if len(rates) == 1:
            return cls.from_linkage(np.zeros((0, 4)), classes, levels=levels)
        near = ((rates + rates.T) / 2)[np.triu_indices(len(rates), 1)]
        if not near.any():
            raise HierarchyError("matrix must hold confusions. Got counts on the diagonal alone.")
        return cls.from_linkage(agglomerate(1.0 - near, "average"), classes, levels=levels)

    def agreement(self, other: Hierarchy, *, seed: int = 0) -> TreeAgreement:
        """How alike this tree and another one over the same classes are.

        Args:
            other: a hierarchy with the same classes, in any label order.
            seed: draws the triplets and pairs where there are more than 2,000,000.

        Example:
            >>> from hace import Hierarchy
            >>> h = Hierarchy.from_paths([("pet", "cat"), ("pet", "dog"), ("car",)])
            >>> h.agreement(h)
            TreeAgreement(triplets=1.0, resolved=1.0, cophenetic=1.0)
        """
        return compare_trees(self, other, seed)


# ------------------------------------------------------------------ what is given


def _merges(linkage: ArrayLike) -> IntArray:
    """(n - 1, 2) clusters that each merge joins."""
    try:
        array = np.asarray(linkage, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise HierarchyError("linkage must be an array (n - 1, 4), as scipy has it. Got others.") from error
    if array.ndim != 2 or array.shape[1] != 4:
        raise HierarchyError(
            f"linkage must be an array (n - 1, 4), as scipy has it. Got shape {array.shape}."
        )
    pairs = array[:, :2]
    known = len(array) + 1 + np.arange(len(array))[:, None]  # clusters that exist before each merge
    whole = np.isfinite(pairs).all() and (pairs == np.floor(pairs)).all()
    if not (whole and (pairs >= 0).all() and (pairs < known).all() and len(np.unique(pairs)) == pairs.size):
        raise HierarchyError(
            "linkage must join each cluster once, after it was made. Got other merges; scipy.cluster.hierarchy.linkage "
            "makes valid ones."
        )
    return pairs.astype(np.int64)


def _class_ids(classes: Iterable[Any] | None, count: int) -> list[str]:
    ids = list(map(str, range(count))) if classes is None else list(as_ids(classes, "classes"))
    if len(ids) != count:
        raise HierarchyError(f"classes must name the {count} classes of the data. Got {len(ids)}.")
    return ids


def _check_classes(count: int) -> None:
    if count > MAX_CLASSES:
        raise HierarchyError(
            f"A tree from data compares all pairs of classes, so there must be at most {MAX_CLASSES:,}. Got {count:,}."
        )


def _counts(levels: int | Sequence[int], classes: int) -> list[int]:
    """How many groups each level has, from the top."""
    if isinstance(levels, (int, np.integer)) and not isinstance(levels, bool):
        if levels < 1:
            raise HierarchyError(f"levels must be at least 1, numbers of groups, or None. Got {levels}.")
        counts = _progression(int(min(levels, classes)), classes)
        if classes > 1 and (levels > classes or len(set(counts)) < levels):
            most = max(k for k in range(1, min(classes, 100) + 1) if len(set(_progression(k, classes))) == k)
            raise HierarchyError(
                f"levels must be at most {most} for {classes} classes, or levels would repeat. Got {levels}."
            )
        return counts
    counts = [] if isinstance(levels, (str, bool)) else list(levels)
    fits = all(isinstance(c, (int, np.integer)) and not isinstance(c, bool) for c in counts)
    if not counts or not fits or sorted(counts) != counts or not 1 <= counts[0] <= counts[-1] <= classes:
        raise HierarchyError(
            f"levels must be at least 1, numbers of groups that grow from the top up to {classes}, or None. "
            f"Got {levels!r}."
        )
    return [int(c) for c in counts]


def _progression(levels: int, classes: int) -> list[int]:
    """Numbers of groups in geometric progression between one and the classes."""
    shares = np.arange(1, levels + 1) / (levels + 1)
    return np.maximum(np.rint(classes**shares), 1).astype(int).tolist()


def _class_means(x: np.ndarray, y: np.ndarray, classes: Sequence[str] | None, *, unit: bool) -> np.ndarray:
    """(n, d) mean of each class."""
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.size:
        raise HierarchyError(f"x must be (M, d) and y (M,). Got {x.shape} and {y.shape}.")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise HierarchyError(f"y must hold labels from 0 on. Got {y.dtype}.")
    count = int(y.max()) + 1 if classes is None else len(classes)
    if y.max() >= count:
        raise HierarchyError(f"y must hold labels from 0 to {count - 1}, one per class. Got {int(y.max())}.")
    _check_classes(count)
    samples = np.bincount(y, minlength=count)
    if (samples == 0).any():
        empty = np.flatnonzero(samples == 0).tolist()
        names = [str(i) if classes is None else classes[i] for i in map(int, empty)]
        raise HierarchyError(f"Every class must have a sample. Got none of {listed(names)}.")
    means = np.zeros((count, x.shape[1]))
    for start in range(0, len(x), _ROWS):  # a memory map is never in memory as a whole
        rows = x[start : start + _ROWS].astype(np.float64)
        if not np.isfinite(rows).all():
            raise HierarchyError("x must be finite. Got infinite or missing values.")
        if unit:
            length = np.linalg.norm(rows, axis=1, keepdims=True)
            rows /= np.where(length > 0, length, 1.0)
        np.add.at(means, y[start : start + _ROWS], rows)
    return means / samples[:, None]


# ------------------------------------------------------------------ from merges to trees


def _cuts(merges: IntArray, counts: Sequence[int]) -> list[IntArray]:
    """(n,) arrays from the top down: the group of each class, numbered by the first class that is in it."""
    classes = len(merges) + 1
    group = np.arange(classes)  # of every class
    of_cluster = list(range(classes)) + [0] * len(merges)  # the group that a cluster has become
    found = {classes: group}
    for i, (a, b) in enumerate(merges.tolist()):
        one, two = sorted((of_cluster[a], of_cluster[b]))
        group = np.where(group == two, one, group)
        of_cluster[classes + i] = one
        if classes - i - 1 in counts:
            found[classes - i - 1] = group
    return [found[count] for count in counts]


def _cut_tree(cls: Any, levels: Sequence[IntArray], classes: Sequence[str]) -> Hierarchy:
    """The hierarchy of nested groups: ids such as "group 2.1" number them by place, names say who is in them."""
    taken = frozenset(classes)
    edges: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    above = [""] * len(classes)
    for groups in levels:
        members: dict[int, list[int]] = {}
        for label, group in enumerate(groups.tolist()):
            members.setdefault(group, []).append(label)
        count: dict[str, int] = {}
        for labels in members.values():  # in the order of their first class
            parent = above[labels[0]]
            count[parent] = count.get(parent, 0) + 1
            node = _group_id(f"{parent}.{count[parent]}" if parent else f"group {count[parent]}", taken)
            names[node] = _group_name(classes[labels[0]], classes[labels[-1]], len(labels))
            edges += [(parent, node)] if parent else []
            for label in labels:
                above[label] = node
    edges += list(zip(above, classes, strict=True))
    return cls.from_edges(edges, leaves=classes, names=names)


def _whole_tree(cls: Any, merges: IntArray, classes: Sequence[str]) -> Hierarchy:
    """The binary tree of all merges; "group 1" is the last one."""
    taken = frozenset(classes)
    ids = [*classes, *(_group_id(f"group {len(merges) - i}", taken) for i in range(len(merges)))]
    first, last = list(range(len(classes))), list(range(len(classes)))
    size = [1] * len(classes)
    names: dict[str, str] = {}
    for a, b in merges.tolist():
        first.append(int(min(first[a], first[b])))
        last.append(int(max(last[a], last[b])))
        size.append(size[a] + size[b])
        names[ids[len(first) - 1]] = _group_name(classes[first[-1]], classes[last[-1]], size[-1])
    edges = [(ids[len(classes) + i], ids[child]) for i, pair in enumerate(merges.tolist()) for child in pair]
    return cls.from_edges(edges, nodes=classes, leaves=classes, names=names)


def _group_id(text: str, classes: Collection[str]) -> str:
    """The id of a group, marked where a class is called so."""
    while text in classes:
        text += "*"
    return text


def _group_name(first: str, last: str, size: int) -> str:
    """The first and the last class by label order, and how many more there are."""
    return first if size == 1 else f"{first}, {last}" + (f" and {size - 2} more" if size > 2 else "")
