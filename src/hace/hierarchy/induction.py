"""Trees from data: agglomerative clusters of class means, confusions or a linkage; and how alike two trees are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from hace.checks import check_choice
from hace.errors import HierarchyError, listed
from hace.hierarchy.assembly import IntArray, as_ids

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy

Linkage = Literal["ward", "average", "complete", "single"]
Cut = int | Sequence[int] | None

MAX_CLASSES = 20_000  # whose pairs take 1.6 GB
_ROWS = 4096  # features held in double precision at once
_TRIPLETS = 2_000_000  # beyond these, as many are drawn

Edges = list[tuple[str, str]]


def edges_of_linkage(
    linkage: ArrayLike, classes: Iterable[Any] | None, levels: Cut
) -> tuple[list[str], Edges, dict[str, str]]:
    """Classes, edges and names of groups; see :meth:`hace.Hierarchy.from_linkage`."""
    merges = _merges(linkage)
    ids = list(map(str, range(len(merges) + 1))) if classes is None else as_ids(classes, "classes")
    if len(ids) != len(merges) + 1:
        raise HierarchyError(f"classes must name the {len(merges) + 1} classes of the data. Got {len(ids)}.")
    if levels is None:
        return ids, *_whole_tree(merges, ids)
    return ids, *_cut_tree(_cuts(merges, _counts(levels, len(ids))), ids)


def linkage_of_features(
    x: np.ndarray, y: np.ndarray, classes: Sequence[str] | None, linkage: str, normalize: str
) -> np.ndarray:
    """The merges of the classes' means; see :meth:`hace.Hierarchy.from_features`."""
    from scipy.cluster.hierarchy import linkage as agglomerate

    check_choice("linkage", linkage, get_args(Linkage), HierarchyError)
    check_choice("normalize", normalize, ("unit", "none"), HierarchyError)
    means = _class_means(x, y, classes, unit=normalize == "unit")
    if len(means) == 1:
        return np.zeros((0, 4))
    if (means == means[0]).all():
        raise HierarchyError(f"x must tell classes apart. Got the same mean for all {len(means)} classes.")
    return agglomerate(means, linkage)


def linkage_of_confusions(counts: np.ndarray) -> np.ndarray:
    """The merges of classes taken for each other; see :meth:`hace.Hierarchy.from_confusion`."""
    from scipy.cluster.hierarchy import linkage as agglomerate

    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.size:
        raise HierarchyError(f"matrix must be square, one row per class. Got shape {counts.shape}.")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise HierarchyError(
            "matrix must hold finite counts or rates from 0 on. Got NaN, infinite or negative values."
        )
    _check_classes(len(counts))
    total = counts.sum(axis=1, keepdims=True)
    rates = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    if len(rates) == 1:
        return np.zeros((0, 4))
    near = ((rates + rates.T) / 2)[np.triu_indices(len(rates), 1)]
    if not near.any():
        raise HierarchyError("matrix must hold confusions. Got counts on the diagonal alone.")
    return agglomerate(1.0 - near, "average")


def _merges(linkage: ArrayLike) -> IntArray:
    """(n - 1, 2) clusters that each merge joins."""
    rule = "linkage must be an array (n - 1, 4), as scipy has it."
    try:
        array = np.asarray(linkage, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise HierarchyError(f"{rule} Got something else.") from error
    if array.ndim != 2 or array.shape[1] != 4:
        raise HierarchyError(f"{rule} Got shape {array.shape}.")
    pairs = array[:, :2]
    known = len(array) + 1 + np.arange(len(array))[:, None]  # clusters that exist before each merge
    whole = np.isfinite(pairs).all() and (pairs == np.floor(pairs)).all()
    if not (whole and (pairs >= 0).all() and (pairs < known).all() and len(np.unique(pairs)) == pairs.size):
        raise HierarchyError(
            "linkage must join each cluster once, after it was made. Got other merges; scipy.cluster.hierarchy.linkage "
            "makes valid ones."
        )
    return pairs.astype(np.int64)


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
            for order in (np.inf, 2):  # by the largest entry first: squares overflow, or vanish
                length = np.linalg.norm(rows, order, axis=1, keepdims=True)
                rows /= np.where(length > 0, length, 1.0)
        np.add.at(means, y[start : start + _ROWS], rows)
    return means / samples[:, None]


def _cuts(merges: IntArray, counts: Sequence[int]) -> list[IntArray]:
    """(n,) arrays from the top down: the group of each class, numbered by the first class that is in it."""
    classes = len(merges) + 1
    group = np.arange(classes)  # of every class
    of_cluster = list(range(classes)) + [0] * len(merges)  # the group that a cluster has become
    groups = {classes: group}
    for i, (a, b) in enumerate(merges.tolist()):
        one, two = sorted((of_cluster[a], of_cluster[b]))
        group = np.where(group == two, one, group)
        of_cluster[classes + i] = one
        if classes - i - 1 in counts:
            groups[classes - i - 1] = group
    return [groups[count] for count in counts]


def _cut_tree(levels: Sequence[IntArray], classes: Sequence[str]) -> tuple[Edges, dict[str, str]]:
    """Nested groups: ids such as "group 2.1" number them by place, names say who is in them."""
    taken = frozenset(classes)
    edges: Edges = []
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
    return edges, names


def _whole_tree(merges: IntArray, classes: Sequence[str]) -> tuple[Edges, dict[str, str]]:
    """The binary tree of all merges; "group 1" is the last one."""
    taken = frozenset(classes)
    ids = [*classes, *(_group_id(f"group {len(merges) - i}", taken) for i in range(len(merges)))]
    first = list(range(len(classes)))
    last = list(range(len(classes)))
    size = [1] * len(classes)
    names: dict[str, str] = {}
    for a, b in merges.tolist():
        first.append(int(min(first[a], first[b])))
        last.append(int(max(last[a], last[b])))
        size.append(size[a] + size[b])
        names[ids[len(first) - 1]] = _group_name(classes[first[-1]], classes[last[-1]], size[-1])
    edges = [(ids[len(classes) + i], ids[child]) for i, pair in enumerate(merges.tolist()) for child in pair]
    return edges, names


def _group_id(text: str, classes: Collection[str]) -> str:
    """The id of a group, marked where a class is called so."""
    while text in classes:
        text += "*"
    return text


def _group_name(first: str, last: str, size: int) -> str:
    """The first and the last class by label order, and how many more there are."""
    return first if size == 1 else f"{first}, {last}" + (f" and {size - 2} more" if size > 2 else "")


class TreeAgreement(NamedTuple):
    """How alike two trees over the same classes are."""

    # of the triplets of classes in which both trees have a closest pair, the share in which it is the same pair; 1/3 by
    # chance, nan where there is no such triplet
    triplets: float
    resolved: float  # the share of all triplets in which both trees have a closest pair
    # the correlation of the two trees' distances over all pairs of classes; 0 by chance, nan where one tree has all classes
    # equally far
    cophenetic: float


def compare_trees(h: Hierarchy, other: Hierarchy, seed: int) -> TreeAgreement:
    """See :meth:`hace.Hierarchy.agreement`."""
    missing = sorted(set(h.leaves) ^ set(other.leaves))
    if missing:
        raise HierarchyError(
            f"other must have the same classes. Got {listed(missing)} in one of the two only."
        )
    label = np.array([other.label(leaf) for leaf in h.leaves])
    triples = _triples(h.num_leaves, np.random.default_rng(seed))
    ours = _closest(h, triples)
    theirs = _closest(other, label[triples])
    both = (ours >= 0) & (theirs >= 0)
    alike = float((ours == theirs)[both].mean()) if both.any() else float("nan")
    resolved = float(both.mean()) if len(both) else float("nan")
    a, b = _pairs(h.num_leaves, np.random.default_rng(seed))
    distances = h.distances(a, b), other.distances(label[a], label[b])
    flat = any(not len(d) or d.min() == d.max() for d in distances)
    correlation = float("nan") if flat else float(np.clip(np.corrcoef(*distances)[0, 1], -1.0, 1.0))
    return TreeAgreement(alike, resolved, correlation)


def _triples(classes: int, rng: np.random.Generator) -> IntArray:
    """(T, 3) triplets of labels: all of them, or as many as are looked at."""
    total = classes * (classes - 1) * (classes - 2) // 6
    if total <= _TRIPLETS:
        every = chain.from_iterable(combinations(range(classes), 3))
        return np.fromiter(every, np.int64, 3 * total).reshape(-1, 3)
    drawn = rng.integers(0, classes, (_TRIPLETS, 3))
    apart = (drawn[:, 0] != drawn[:, 1]) & (drawn[:, 0] != drawn[:, 2]) & (drawn[:, 1] != drawn[:, 2])
    return drawn[apart]


def _pairs(classes: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Pairs of labels: all of them, or as many as are looked at."""
    if classes * (classes - 1) // 2 <= _TRIPLETS:
        return np.triu_indices(classes, 1)
    a, b = rng.integers(0, classes, (2, _TRIPLETS))
    return a[a != b], b[a != b]


def _closest(h: Hierarchy, triples: IntArray) -> IntArray:
    """(T,) which class of each triplet is the odd one out, -1 where no pair is closest."""
    a, b, c = triples.T
    apart = np.stack([h.distances(b, c), h.distances(a, c), h.distances(a, b)], axis=1)
    order = np.sort(apart, axis=1)
    return np.where(order[:, 0] < order[:, 1], apart.argmin(axis=1), -1)
