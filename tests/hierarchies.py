"""Small hierarchies as plain data: named shapes, a seeded generator and hypothesis strategies.

Nothing here knows the `Hierarchy` class except `Plain.build`, so the oracles in `reference` and the
library never share a line of structural code.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hace import Hierarchy


@dataclass(frozen=True)
class Plain:
    """A hierarchy as a reader would meet it.

    Attributes:
        parents: Every node with its parents, [] for a top. The order of the entries is the order of lines
            in an imagined file and carries no meaning.
        leaves: The nodes without children, in label order.
        rooted: Whether the single top is a root of depth 0. The tops of an unrooted hierarchy have depth 1.
    """

    parents: dict[str, list[str]]
    leaves: list[str]
    rooted: bool

    @property
    def nodes(self) -> list[str]:
        """All ids, in the order of the entries."""
        return list(self.parents)

    @property
    def tops(self) -> list[str]:
        """The nodes without parents."""
        return [v for v, above in self.parents.items() if not above]

    @property
    def internal(self) -> list[str]:
        """The nodes with children."""
        return [v for v in self.parents if v not in set(self.leaves)]

    @property
    def is_tree(self) -> bool:
        """Whether no node has two parents (a forest counts)."""
        return all(len(above) <= 1 for above in self.parents.values())

    @property
    def edges(self) -> list[tuple[str, str]]:
        """The (parent, child) pairs."""
        return [(parent, child) for child, above in self.parents.items() for parent in above]

    def without_root(self) -> Plain:
        """The same hierarchy without its root: its children become the tops."""
        (root,) = self.tops
        parents = {v: [u for u in above if u != root] for v, above in self.parents.items() if v != root}
        return Plain(parents, self.leaves, rooted=False)

    def build(self) -> Hierarchy:
        """The library's hierarchy of the same shape, label order and root."""
        from hace import Hierarchy

        lines: dict[str, Any] = {v: above or None for v, above in self.parents.items()}
        return Hierarchy.from_parents(lines, leaves=self.leaves, rooted=self.rooted)


def plain(
    edges: Sequence[str], *, leaves: str | None = None, isolated: str = "", rooted: bool | None = None
) -> Plain:
    """Read "parent: child child" lines; leaves default to the order in which they first appear.

    >>> plain(["pet: dog cat"]).leaves
    ['dog', 'cat']
    """
    parents: dict[str, list[str]] = {}
    for line in edges:
        parent, children = line.split(":")
        parents.setdefault(parent.strip(), [])
        for child in children.split():
            parents.setdefault(child, []).append(parent.strip())
    for lonely in isolated.split():
        parents[lonely] = []
    return _finished(parents, leaves=leaves.split() if leaves else None, rooted=rooted)


def _finished(parents: dict[str, list[str]], *, leaves: list[str] | None, rooted: bool | None) -> Plain:
    with_children = {parent for above in parents.values() for parent in above}
    results = [v for v in parents if v not in with_children]
    assert leaves is None or sorted(leaves) == sorted(results), (leaves, results)
    tops = [v for v, above in parents.items() if not above]
    natural = len(tops) == 1 and tops[0] in with_children
    assert natural or not rooted, "only a single top with children can be a root"
    return Plain(parents, results if leaves is None else leaves, natural if rooted is None else rooted)


ANIMALS = plain(
    ["animal: dog cat", "dog: husky beagle", "cat: persian siamese"],
    leaves="husky persian beagle siamese",  # label order differs from every natural node order
)
STAR = plain(["root: c a b d"])
CHAIN = plain(["a: b", "b: c", "c: d", "d: e"])
RAGGED = plain(
    ["root: near x1 y1", "x1: x2 x2b", "x2: x3", "x3: x4 x4b", "x4: x5", "x5: deep1 deep2", "y1: y2 y2b"],
    leaves="deep2 near y2b x2b deep1 x4b y2",
)
UNARY = plain(["root: a", "a: b c", "b: b1", "b1: b2", "b2: leaf2 leaf1", "c: c1", "c1: leaf3"])
FOREST = plain(
    ["bird: wren owl", "fish: ray shark", "shark: mako tiger"],
    isolated="amoeba",
    leaves="tiger owl amoeba wren ray mako",
)
FLAT = plain([], isolated="b10 b2 a")
ONE_NODE = plain([], isolated="only")
ONE_LEAF = plain(["root: only"])
TOP_NOT_ROOT = plain(["animal: dog cat", "dog: husky beagle", "cat: persian"], rooted=False)
DIAMOND = plain(["root: left right", "left: l shared", "right: shared r"], leaves="shared r l")
REDUNDANT = plain(  # root -> far repeats what root -> mid -> far says; far's mass still splits in two
    ["root: mid other far", "mid: far near", "other: away", "far: p q"], leaves="q away p near"
)
DAG_FOREST = plain(
    ["one: a b", "two: b c", "three: c", "b: x y", "c: y z", "a: w"], isolated="alone", leaves="y alone w z x"
)

TREES = {
    "animals": ANIMALS,
    "star": STAR,
    "chain": CHAIN,
    "ragged": RAGGED,
    "unary": UNARY,
    "one_leaf": ONE_LEAF,
}
FORESTS = {"forest": FOREST, "flat": FLAT, "one_node": ONE_NODE, "top_not_root": TOP_NOT_ROOT}
DAGS = {"diamond": DIAMOND, "redundant": REDUNDANT, "dag_forest": DAG_FOREST}
NAMED = TREES | FORESTS | DAGS
NAMED_TREES = TREES | FORESTS
KINDS = ("star", "chain", "ragged", "unary", "forest", "dag", "dag_forest")


def random_plain(kind: str, seed: int, max_nodes: int = 30) -> Plain:
    """A hierarchy of one of `KINDS` with 2 to `max_nodes` nodes, the same for the same arguments.

    Ids, entries and labels are in random order, so nothing can be read off them.

    >>> random_plain("dag", 3) == random_plain("dag", 3)
    True
    """
    rng = random.Random(f"{kind}-{seed}-{max_nodes}")
    size = rng.randint(max(2, max_nodes // 2), max_nodes)
    above: list[list[int]] = [[]]
    for i in range(1, size):
        if kind == "star":
            above.append([0])
        elif kind == "chain":
            above.append([i - 1])
        elif kind == "ragged":  # half of the nodes go on downwards from the newest one
            above.append([i - 1 if rng.random() < 0.5 else rng.randrange(i)])
        elif kind == "unary":  # long runs of single children, a branch now and then
            above.append([i - 1 if rng.random() < 0.8 else rng.randrange(i)])
        elif kind == "forest":
            above.append([] if rng.random() < 0.25 else [rng.randrange(i)])
        elif kind == "dag":
            above.append(rng.sample(range(i), min(i, rng.choice((1, 1, 2, 3)))))
        elif kind == "dag_forest":
            above.append(rng.sample(range(i), min(i, rng.choice((0, 1, 1, 2, 3)))))
        else:
            raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    numbers, lines = rng.sample(range(size), size), rng.sample(range(size), size)
    rooted = kind not in ("forest", "dag_forest")
    leaves = rng.sample(_childless(above), len(_childless(above)))
    return _relabelled(above, numbers, lines, leaves, rooted)


def _childless(above: list[list[int]]) -> list[int]:
    with_children = {parent for parents in above for parent in parents}
    return [i for i in range(len(above)) if i not in with_children]


def _relabelled(
    above: list[list[int]], numbers: Sequence[int], lines: Sequence[int], leaves: Sequence[int], rooted: bool
) -> Plain:
    ids = [f"n{number}" for number in numbers]
    parents = {ids[i]: [ids[parent] for parent in above[i]] for i in lines}
    return Plain(parents, [ids[i] for i in leaves], rooted)


@st.composite
def _plains(draw: st.DrawFn, max_nodes: int, rooted: bool, max_parents: int) -> Plain:
    size = draw(st.integers(2 if rooted else 1, max_nodes))
    above: list[list[int]] = [[]]
    for i in range(1, size):
        fewest = 1 if rooted else 0
        parents = st.lists(st.integers(0, i - 1), min_size=fewest, max_size=max_parents, unique=True)
        above.append(draw(parents))
    numbers, lines = draw(st.permutations(range(size))), draw(st.permutations(range(size)))
    leaves = draw(st.permutations(_childless(above)))
    return _relabelled(above, numbers, lines, leaves, rooted)


def trees(max_nodes: int = 12) -> st.SearchStrategy[Plain]:
    """Rooted trees of at least two nodes."""
    return _plains(max_nodes, rooted=True, max_parents=1)


def forests(max_nodes: int = 12) -> st.SearchStrategy[Plain]:
    """Unrooted hierarchies without shared children: flat, one node, a single top that is not a root, ..."""
    return _plains(max_nodes, rooted=False, max_parents=1)


def dags(max_nodes: int = 12) -> st.SearchStrategy[Plain]:
    """Rooted and unrooted hierarchies whose nodes have up to three parents, redundant edges included."""
    return st.booleans().flatmap(lambda rooted: _plains(max_nodes, rooted=rooted, max_parents=3))


def hierarchies(max_nodes: int = 12) -> st.SearchStrategy[Plain]:
    """Any of them."""
    return st.one_of(trees(max_nodes), forests(max_nodes), dags(max_nodes))
