"""From probabilities of one sample to an answer, by exhaustive search over the definitions.

`log_q` and `q` are dicts over all nodes, `p` over the leaves. Ties are broken by `order`, a sequence of ids.
The answer `None` is the virtual root: no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from math import exp, fsum, log2

from tests.hierarchies import Plain

from . import structure
from .losses import leaf_probs, node_log_probs
from .targets import Row


def top_k(p: Row, k: int, order: Sequence[str]) -> list[str]:
    """The k most probable ids, best first; equal ones in the given order."""
    if k > len(p):
        raise ValueError(f"k={k} of {len(p)}")
    return sorted(p, key=lambda c: (-p[c], order.index(c)))[:k]


def node_masses(h: Plain, logits: Row, *, leaves_only: bool = False) -> Row:
    """q* of every node: of the whole head, or of the renormalised leaf outputs alone."""
    if leaves_only:
        p = leaf_probs(h, logits)
        return {v: fsum(p[c] for c in structure.leaves_below(h, v)) for v in h.parents}
    return {v: exp(x) for v, x in node_log_probs(h, logits).items()}


def node_at_level(h: Plain, q: Row, level: int, order: Sequence[str]) -> str:
    """The node of greatest mass among those of the level and the leaves that end above it."""
    return top_k({v: q[v] for v in structure.level_choices(h, level)}, 1, order)[0]


def _passes(h: Plain, q: Row, v: str, threshold: float | Sequence[float]) -> bool:
    depth = structure.depths(h)[v]
    if depth == 0:
        return True
    return q[v] >= (threshold if isinstance(threshold, (int, float)) else threshold[depth - 1])


def walk_down(h: Plain, q: Row, threshold: float | Sequence[float], order: Sequence[str]) -> str | None:
    """From the root, go to the child of greatest mass while its mass is at least the threshold.

    `threshold` is one number, or one for each depth 1..max. A root always passes.
    """
    below = structure.children(h)
    answer: str | None = h.tops[0] if h.rooted else None
    while True:
        choices = h.tops if answer is None else below[answer]
        if not choices:
            return answer
        best = top_k({v: q[v] for v in choices}, 1, order)[0]
        if not _passes(h, q, best, threshold):
            return answer
        answer = best


def deepest_above(h: Plain, q: Row, threshold: float | Sequence[float], order: Sequence[str]) -> str | None:
    """Of all nodes that pass: fewest leaves, then the most probable, the deepest, the first; None when none passes.

    From there down the chain of only children, to the last that passes.
    """
    depth = structure.depths(h)
    passing = [v for v in h.parents if _passes(h, q, v, threshold)]
    key = {v: (len(structure.leaves_below(h, v)), -q[v], -depth[v], order.index(v)) for v in passing}
    below = [v for v in passing if depth[v] > 0]
    answer = chain = min(below or passing, key=key.__getitem__, default=None)
    while below and chain is not None and len(structure.children(h)[chain]) == 1:
        (chain,) = structure.children(h)[chain]
        answer = chain if chain in passing else answer
    return answer


def climb(h: Plain, p: Row, q: Row, threshold: float | Sequence[float], order: Sequence[str]) -> str | None:
    """From the most probable leaf up to the first ancestor that passes; None when none does."""
    answer: str | None = top_k(p, 1, order)[0]
    while answer is not None and not _passes(h, q, answer, threshold):
        answer = next(iter(h.parents[answer]), None)
    return answer


def expected_costs(
    h: Plain,
    p: Row,
    *,
    distance: str = "lca_height",
    price: float = 0.5,
    candidates: Sequence[str] | None = None,
) -> Row:
    """sum_c p(c) cost(c, v) for every candidate answer v (default: all nodes).

    cost = dist(c, v) where v is not above c, price * dist(c, v) where v is an ancestor of c: true but vague.
    """
    costs: Row = {}
    for v in h.parents if candidates is None else candidates:
        below = structure.leaves_below(h, v)
        costs[v] = sum(
            p[c] * structure.pair_distance(h, c, v, distance) * (price if c in below else 1.0)
            for c in h.leaves
        )
    return costs


def least_cost(costs: Row, mass: Mapping[str, float], order: Sequence[str], tolerance: float = 1e-12) -> str:
    """The candidate of least cost; costs that agree to the tolerance: greater mass, then the given order."""
    least = min(costs.values())
    tied = [v for v in costs if costs[v] <= least + tolerance * max(1.0, abs(least))]
    return min(tied, key=lambda v: (-mass[v], order.index(v)))


def restrict(h: Plain, logits: Row, subset: Sequence[str]) -> Row:
    """Probabilities of the outputs when only some leaves can be: the others get 0, the rest is renormalised.

    An internal output keeps its own mass where a leaf of the subset is below it.
    """
    allowed = {v: exp(z) for v, z in logits.items() if structure.leaves_below(h, v) & set(subset)}
    total = sum(allowed.values())
    return {v: allowed.get(v, 0.0) / total for v in logits}


def information(h: Plain, v: str | None) -> float:
    """I(v) = -log2(share of the leaves under v); 0 for the virtual root."""
    if v is None:
        return 0.0
    return -log2(len(structure.leaves_below(h, v)) / len(h.leaves))


def operating_points(
    h: Plain,
    masses: Sequence[Row],
    truths: Sequence[str],
    thresholds: Sequence[float],
    order: Sequence[str],
    *,
    constrained: bool = True,
) -> list[tuple[float, float]]:
    """(specificity, precision) for each threshold.

    precision: share of answers that are the truth or an ancestor of it, the root and no answer included.
    specificity: mean I(answer) / log2 n; 1 when there is only one leaf.
    """
    decide = walk_down if constrained else deepest_above
    points = []
    for t in thresholds:
        answers = [decide(h, q, t, order) for q in masses]
        true = [a is None or a in structure.ancestors(h, y) for a, y in zip(answers, truths, strict=True)]
        most = log2(len(h.leaves))
        specific = [information(h, a) / most if most else 1.0 for a in answers]
        points.append((sum(specific) / len(answers), sum(true) / len(answers)))
    return points


def operating_area(points: Sequence[tuple[float, float]]) -> float:
    """Area under precision over specificity: trapezoids over the sorted points and (0, 1)."""
    curve = sorted([(0.0, 1.0), *points], key=lambda point: (point[0], -point[1]))
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(curve))


def risk_coverage(confidences: Sequence[float], risks: Sequence[float]) -> list[tuple[float, float]]:
    """(coverage, mean risk of the covered) by falling confidence; equal confidences enter together."""
    points = []
    for t in sorted(set(confidences), reverse=True):
        covered = [r for c, r in zip(confidences, risks, strict=True) if c >= t]
        points.append((len(covered) / len(risks), sum(covered) / len(covered)))
    return points


def risk_coverage_area(points: Sequence[tuple[float, float]]) -> float:
    """AURC: sum of (step in coverage) * risk."""
    area, before = 0.0, 0.0
    for coverage, risk in points:
        area += (coverage - before) * risk
        before = coverage
    return area


def share_of_information(h: Plain, v: str | None) -> float:
    """I(v) / log2 n; 0 at a root, 1 elsewhere where there is one leaf."""
    if v is None or structure.depths(h)[v] == 0:
        return 0.0
    return information(h, v) / log2(len(h.leaves)) if len(h.leaves) > 1 else 1.0


def hedge_values(h: Plain, q: Row, threshold: float) -> dict[str | None, float]:
    """q* (lambda + I) of every answer, scaled: Deng et al. 2012, with lambda / (lambda + log2 n) = threshold."""
    answers: list[str | None] = [*h.parents] + ([] if h.rooted else [None])
    return {
        v: (1.0 if v is None else q[v]) * ((1 - threshold) * share_of_information(h, v) + threshold)
        for v in answers
    }


def informative(h: Plain, q: Row, floor: float, order: Sequence[str]) -> str:
    """The most probable node below the root with a floor of information; the root where there is nothing else."""
    depth = structure.depths(h)
    choices = [v for v in h.parents if depth[v] > 0 and share_of_information(h, v) >= floor - 1e-12]
    return top_k({v: q[v] for v in choices or h.parents}, 1, order)[0]


def plurality(h: Plain, q: Row, order: Sequence[str]) -> str | None:
    """Of the nodes more probable than all they exclude, one with the fewest leaves; then the deepest."""
    related = {v: structure.ancestors(h, v) for v in h.parents}
    beats = [
        v
        for v in h.parents
        if all(q[v] > q[u] for u in h.parents if u not in related[v] and v not in related[u])
    ]
    depth = structure.depths(h)
    key = {v: (len(structure.leaves_below(h, v)), -depth[v], order.index(v)) for v in beats}
    return min(beats, key=key.__getitem__, default=None)


def informative_sequence(h: Plain, q: Row) -> list[tuple[str | None, float]]:
    """The answers that a threshold can choose, the most confident first, with their probabilities (Valmadre 2022).

    At the threshold t the answer is the most informative of the nodes with more probability than t, of these the most
    probable. A node is chosen at some t if it is more informative than all nodes of its probability or more.
    """
    start: tuple[str | None, float] = (h.tops[0], 1.0) if h.rooted else (None, 1.0)
    leaves = {v: len(structure.leaves_below(h, v)) for v in h.parents}
    chosen: list[tuple[str | None, float]] = [start]
    for v in sorted(h.parents, key=lambda v: (-q[v], leaves[v])):
        before = len(h.leaves) if chosen[-1][0] is None else leaves[chosen[-1][0]]
        if leaves[v] < before:
            chosen.append((v, q[v]))
    return chosen


def best_node_set(h: Plain, q: Row, nodes: int, threshold: float) -> tuple[int, float] | None:
    """How many leaves and how much mass the set of at most so many nodes has that reaches the threshold with the fewest leaves,
    then the greatest mass; None if only all leaves do. Every subset of the nodes is tried.
    """
    below = {v: set(structure.leaves_below(h, v)) for v in h.parents}
    best = None
    for size in range(1, nodes + 1):
        for chosen in combinations(h.parents, size):
            leaves = set().union(*(below[v] for v in chosen))
            if sum(len(below[v]) for v in chosen) > len(leaves) or len(leaves) == len(h.leaves):
                continue
            mass = fsum(q[v] for v in chosen)
            if mass >= threshold and (best is None or (len(leaves), -mass) < (best[0], -best[1])):
                best = len(leaves), mass
    return best
