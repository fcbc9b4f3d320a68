"""Hierarchies from data, and how alike two trees are."""

from __future__ import annotations

import itertools
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage

from hace import Hierarchy, HierarchyError
from hace.hierarchy import induction
from tests.hierarchies import NAMED, hierarchies
from tests.reference import structure as oracle

CLASSES = ["cat", "lynx", "lion", "car", "bus", "van", "oak", "elm", "fir"]
PLACES = np.array([0.0, 0.1, 0.3, 10.0, 10.1, 10.4, 100.0, 100.2, 100.7])[:, None]


def groups_of(h: Hierarchy, level: int) -> set[frozenset[str]]:
    result: dict[int, set[str]] = {}
    for leaf, node in zip(h.leaves, h.level_nodes(level)[h.leaf_nodes].tolist(), strict=True):
        result.setdefault(node, set()).add(leaf)
    return {frozenset(group) for group in result.values()}


def test_features_give_the_groups_they_come_in() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(9), 5)[rng.permutation(45)]
    h = Hierarchy.from_features(
        PLACES[y] + 1e-3 * rng.normal(size=(45, 1)), y, CLASSES, levels=[2, 3], normalize="none"
    )
    assert groups_of(h, 1) == {frozenset(CLASSES[:6]), frozenset(CLASSES[6:])}
    assert groups_of(h, 2) == {frozenset(CLASSES[i : i + 3]) for i in (0, 3, 6)}
    assert h.leaves == tuple(CLASSES)
    assert h.nodes[:3] == ("group 1", "group 1.1", "cat")
    assert h.name("group 1") == "cat, van and 4 more"
    assert (h.rooted, h.max_depth) == (False, 3)


def test_length_counts_only_without_normalisation() -> None:
    x = np.array([[1.0, 0.0], [9.0, 1.0], [0.0, 1.0], [1.0, 9.0]])
    unit = Hierarchy.from_features(x, np.arange(4), levels=1)
    assert groups_of(unit, 1) == {frozenset("01"), frozenset("23")}
    raw = Hierarchy.from_features(x, np.arange(4), levels=[3], normalize="none")
    assert frozenset("02") in groups_of(raw, 1)


def test_confusions_bring_classes_together() -> None:
    counts = np.array([[8, 2, 0, 0], [4, 16, 0, 0], [0, 0, 5, 5], [0, 0, 0, 0]])
    h = Hierarchy.from_confusion(counts, ["a", "b", "c", "d"], levels=1)
    assert groups_of(h, 1) == {frozenset("ab"), frozenset("cd")}
    assert Hierarchy.from_confusion([[3]]).leaves == ("0",)


@settings(max_examples=40)
@given(n=st.integers(2, 12), seed=st.integers(0, 99), method=st.sampled_from(["ward", "single", "centroid"]))
def test_a_linkage_is_cut_where_its_last_merges_are_undone(n: int, seed: int, method: str) -> None:
    merges = linkage(np.random.default_rng(seed).normal(size=(n, 2)), method)
    whole = Hierarchy.from_linkage(merges, levels=None)
    assert whole.num_nodes == 2 * n - 1
    clusters: dict[int, frozenset[str]] = {i: frozenset([str(i)]) for i in range(n)}
    for i, (a, b, *_) in enumerate(merges.tolist()):
        clusters[n + i] = clusters.pop(int(a)) | clusters.pop(int(b))
        cut = Hierarchy.from_linkage(merges, levels=[n - 1 - i])
        assert groups_of(cut, 0 if cut.rooted else 1) == set(clusters.values())
        node = whole.nodes.index(f"group {n - 1 - i}")
        leaves = set(whole.nodes[node : whole.subtree_ends[node]]) & set(whole.leaves)
        assert leaves == clusters[n + i]


def test_levels_grow_geometrically_and_are_nested() -> None:
    x = np.random.default_rng(3).normal(size=(200, 8))
    h = Hierarchy.from_features(x, np.arange(200), levels=2)
    assert [len(h.level(k)) for k in (1, 2, 3)] == [6, 34, 200]
    assert {h.depth(leaf) for leaf in h.leaves} == {3}
    assert [len(Hierarchy.from_features(x, np.arange(200), levels=9).level(k)) for k in (1, 9)] == [2, 118]


def test_groups_keep_clear_of_classes_with_their_ids() -> None:
    merges = [[0, 1, 1.0, 2]]
    assert Hierarchy.from_linkage(merges, ["group 1", "b"], levels=1).nodes == ("group 1*", "group 1", "b")
    assert Hierarchy.from_linkage(merges, ["group 1", "b"], levels=None).nodes[0] == "group 1*"


X, Y = np.eye(2, 3), np.array([0, 1])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Hierarchy.from_features(X, Y, levels=0), "levels must be at least 1"),
        (lambda: Hierarchy.from_features(X, Y, levels=3), "levels must be at most 2 for 2 classes"),
        (lambda: Hierarchy.from_features(X, Y, levels=10**9), "or levels would repeat. Got 1000000000"),
        (lambda: Hierarchy.from_features(0 * X, Y), "Got the same mean for all 2 classes"),
        (lambda: Hierarchy.from_confusion(np.eye(3)), "Got counts on the diagonal alone"),
        (lambda: Hierarchy.from_features(X, Y, levels=[2, 1]), "levels must be at least 1"),
        (lambda: Hierarchy.from_features(X, Y, levels=[3]), "up to 2, or None"),
        (lambda: Hierarchy.from_features(X, Y, ["a"]), "y must hold labels from 0 to 0"),
        (lambda: Hierarchy.from_features(X, Y, list("abc")), "Got none of 'c'"),
        (lambda: Hierarchy.from_features(X, [0, 2]), "Got none of '1'"),
        (lambda: Hierarchy.from_features(X, [0.0, 1.0]), "y must hold labels from 0 on. Got float64"),
        (lambda: Hierarchy.from_features(X * np.nan, Y), "x must be finite"),
        (lambda: Hierarchy.from_features(X, Y[:1]), "x must be (M, d) and y (M,)"),
        (lambda: Hierarchy.from_features(X, Y, linkage="median"), "linkage must be one of 'ward'"),  # type: ignore[arg-type]
        (lambda: Hierarchy.from_features(X, Y, normalize="l2"), "normalize must be one of 'unit', 'none'"),  # type: ignore[arg-type]
        (lambda: Hierarchy.from_confusion([[1, 2]]), "matrix must be square"),
        (lambda: Hierarchy.from_confusion([[1, -2], [0, 1]]), "finite counts or rates from 0 on"),
        (lambda: Hierarchy.from_linkage([[0, 1, 1.0]]), "linkage must be an array (n - 1, 4)"),
        (lambda: Hierarchy.from_linkage([[0, 2, 1.0, 2]]), "linkage must join each cluster once"),
        (lambda: Hierarchy.from_linkage([[0, 1, 1.0, 2]], ["a"]), "classes must name the 2 classes"),
        (lambda: Hierarchy.flat([1, 2]).agreement(Hierarchy.flat([2])), "other must have the same classes"),
    ],
)
def test_what_is_refused(build, words: str) -> None:
    with pytest.raises(HierarchyError) as raised:
        build()
    assert words in str(raised.value)


# ------------------------------------------------------------------ agreement


def by_loops(a, b) -> tuple[float, float, float]:
    """Triplets and pairs one by one."""

    def odd(h, triple) -> str | None:
        near = {v: oracle.pair_distance(h, *(u for u in triple if u != v), "lca_height") for v in triple}
        least = [v for v in triple if near[v] == min(near.values())]
        return least[0] if len(least) == 1 else None

    triples = list(itertools.combinations(a.leaves, 3))
    both = [(odd(a, t), odd(b, t)) for t in triples]
    both = [(x, y) for x, y in both if x is not None and y is not None]
    alike = sum(x == y for x, y in both) / len(both) if both else nan
    pairs = list(itertools.combinations(a.leaves, 2))
    far = [[oracle.pair_distance(h, *p, "lca_height") for p in pairs] for h in (a, b)]
    flat = any(len(set(row)) < 2 for row in far)
    return alike, len(both) / len(triples) if triples else nan, nan if flat else np.corrcoef(*far)[0, 1]


@settings(max_examples=25)
@given(plain=hierarchies(), seed=st.integers(0, 9))
def test_agreement_counts_triplets_and_pairs(plain, seed: int) -> None:
    h = plain.build()
    order = np.random.default_rng(seed).permutation(len(plain.leaves)).tolist()
    moved = dict(zip(plain.leaves, [plain.leaves[i] for i in order], strict=True))
    parents = {moved.get(v, v): above for v, above in plain.parents.items()}
    other = type(plain)(parents, list(plain.leaves), plain.rooted)
    assert h.agreement(other.build()) == pytest.approx(by_loops(plain, other), nan_ok=True)
    assert other.build().agreement(h) == pytest.approx(by_loops(plain, other), nan_ok=True)


def test_many_classes_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = NAMED["ragged"]
    a, b = plain.build(), plain.build().shuffled(1)
    exact = a.agreement(b)
    monkeypatch.setattr(induction, "_TRIPLETS", 20)
    assert a.agreement(a)[0] == 1.0
    monkeypatch.setattr(induction, "_TRIPLETS", 34)  # of 35 triplets; of 21 pairs
    drawn = a.agreement(b, seed=2)
    assert drawn.cophenetic == exact.cophenetic
    assert not isnan(drawn.triplets)
    assert abs(drawn.resolved - exact.resolved) < 0.4


@pytest.mark.parametrize("size", [1e-200, 1e-170, 1e160, 1e200])
def test_unit_vectors_of_any_size(size: float) -> None:
    x = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    names = Hierarchy.from_features(x, range(4), ["cat", "lynx", "car", "bus"], levels=1).names
    assert Hierarchy.from_features(size * x, range(4), ["cat", "lynx", "car", "bus"], levels=1).names == names
