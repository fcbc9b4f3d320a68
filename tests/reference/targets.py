"""Target rows: horizontal smoothing H, ancestral smoothing V, their product T, HXE's weights.

A row is a dict node -> value in float64; a missing node has the value 0. The label may be any node.
"""

from __future__ import annotations

from math import exp

from tests.hierarchies import Plain

from . import structure

Row = dict[str, float]


def horizontal(
    h: Plain,
    label: str,
    *,
    label_smoothing: float = 0.0,
    soft_label_beta: float | None = None,
    distance: str = "lca_height",
) -> Row:
    """Row of H: one-hot, uniform smoothing (eq. 3), the LCA soft labels of Bertinetto et al., or a mix with these."""
    if soft_label_beta is not None:
        soft = lca_soft_labels(h, label, soft_label_beta, distance)
        share = (
            label_smoothing or 1.0
        )  # with eps, eq. (3) with soft labels in place of the uniform distribution
        return {c: share * p + (1.0 - share) * (c == label) for c, p in soft.items()}
    return uniform_smoothing(h, label, label_smoothing)


def uniform_smoothing(h: Plain, label: str, eps: float) -> Row:
    """Eq. (3): p~(i) = (1 - eps) 1[i = label] + eps / n over the leaves; also for an internal label."""
    row = {c: eps / len(h.leaves) for c in h.leaves}
    row[label] = row.get(label, 0.0) + (1 - eps)
    return row


def lca_soft_labels(h: Plain, label: str, beta: float, distance: str = "lca_height") -> Row:
    """exp(-beta dist(label, c) / max dist), normalised over the leaves c and the label itself."""
    widest = structure.max_distance(h, distance)
    if widest == 0:
        return {label: 1.0}
    support = dict.fromkeys([*h.leaves, label])
    raw = {c: exp(-beta * structure.pair_distance(h, label, c, distance) / widest) for c in support}
    total = sum(raw.values())
    return {c: value / total for c, value in raw.items()}


def ancestral_path(h: Plain, label: str, d: float) -> Row:
    """Eq. (4) for mass 1 at `label`, b_0 ... b_k its path to the top; trees and forests only."""
    b = structure.path(h, label)
    k = len(b) - 1
    row = {b[j]: d * (1 - d) ** j for j in range(k)}
    row[b[k]] = 1 - sum(d * (1 - d) ** j for j in range(k))
    return row


def ancestral(h: Plain, label: str, d: float) -> Row:
    """Row of V for any hierarchy: keep d of what arrives, pass the rest on in equal shares to the parents.

    A node without parents keeps everything. Nodes are visited by falling depth, so children come first.
    """
    arrived = dict.fromkeys(h.parents, 0.0)
    arrived[label] = 1.0
    row: Row = {}
    depth = structure.depths(h)
    for v in sorted(h.parents, key=lambda v: -depth[v]):
        above = h.parents[v]
        if arrived[v] == 0:
            continue
        row[v] = d * arrived[v] if above else arrived[v]
        for parent in above:
            arrived[parent] += (1 - d) * arrived[v] / len(above)
    return row


def ancestral_by_steps(h: Plain, label: str, weights: str | list[float]) -> Row:
    """Row of V for a profile: a walker goes up, to each parent alike, and stops after j steps with weight j.

    Where there is no parent it stops. "uniform" and "linear" are over the longest way up from the label.
    """
    length = structure.depths(h)[label] + h.rooted
    if weights == "uniform":
        weights = [1 / length] * length
    elif weights == "linear":
        weights = [2 * (length - j) / (length * (length + 1)) for j in range(length)]
    here, row = {label: 1.0}, {}
    for stops in weights:
        there: Row = {}
        for v, mass in here.items():
            row[v] = row.get(v, 0.0) + float(stops) * mass
            for parent in h.parents[v] or [v]:
                there[parent] = there.get(parent, 0.0) + mass / max(len(h.parents[v]), 1)
        here = there
    return row


def ancestral_by_paths(h: Plain, label: str, d: float) -> Row:
    """The same row by the appendix' sum over all ways up, with the errata mended.

    A way b_0 ... b_m reaches its end with (1-d)^m prod_j 1/|P(b_j)|: the split is by the parents of the node
    that is left. Its end keeps d of that, or all of it where it has no parents.
    """
    row: Row = {}

    def climb(v: str, reaching: float) -> None:
        above = h.parents[v]
        row[v] = row.get(v, 0.0) + reaching * (d if above else 1.0)
        for parent in above:
            climb(parent, reaching * (1 - d) / len(above))

    climb(label, 1.0)
    return row


def hace_row(
    h: Plain,
    label: str,
    d: float,
    *,
    label_smoothing: float = 0.0,
    soft_label_beta: float | None = None,
    distance: str = "lca_height",
    weight: Row | None = None,
    level_weights: str | list[float] | None = None,
) -> Row:
    """Row `label` of T = H diag(w) V: the mass p~(c) w(c) of every node c, spread over its ancestors."""
    smoothed = horizontal(
        h, label, label_smoothing=label_smoothing, soft_label_beta=soft_label_beta, distance=distance
    )
    row: Row = {}
    for c, mass in smoothed.items():
        shares = ancestral(h, c, d) if level_weights is None else ancestral_by_steps(h, c, level_weights)
        for v, share in shares.items():
            row[v] = row.get(v, 0.0) + mass * weight_of(weight, c) * share
    return row


def weight_of(weight: Row | None, label: str) -> float:
    """The weight of a class: 1 where none is given."""
    return 1.0 if weight is None else weight.get(label, 1.0)


def hxe_lambdas(h: Plain, alpha: float, *, decay: str = "depth", normalize: str = "none") -> Row:
    """lambda(v): weight of the conditional log[P(v) / P(parent of v)] in HXE.

    depth: exp(-alpha (depth - 1)), as both published codes do; height: exp(-alpha height), as the paper says.
    normalize="tree" divides by the sum over all nodes, the root (or virtual root) included.
    """
    if decay == "depth":
        depth = structure.depths(h)
        raw = {v: exp(-alpha * (depth[v] - 1)) for v in h.parents}
        virtual = exp(-alpha * (0 - 1))
    else:
        height = structure.heights(h)
        raw = {v: exp(-alpha * height[v]) for v in h.parents}
        virtual = 0.0 if h.rooted else exp(-alpha * height[None])
    total = 1.0
    if normalize == "tree":
        total = sum(raw.values()) + (0.0 if h.rooted else virtual)
    return {v: value / total for v, value in raw.items()}


def hxe_row(h: Plain, label: str, alpha: float, *, decay: str = "depth", normalize: str = "none") -> Row:
    """HXE as a signed row: lambda(label) at the label, lambda(c) - lambda(child on the path) at ancestors c.

    The conditional of a root, P(root)/1 = 1, carries no weight.
    """
    lambdas = hxe_lambdas(h, alpha, decay=decay, normalize=normalize)
    row: Row = {}
    below = 0.0
    for v in structure.path(h, label):
        here = 0.0 if h.rooted and not h.parents[v] else lambdas[v]
        row[v] = here - below
        below = here
    return row
