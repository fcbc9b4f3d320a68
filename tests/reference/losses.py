"""Losses as loops over the papers' sums, one sample at a time, in float64.

`logits` is a dict output id -> logit: over all nodes where outputs="nodes", over the leaves where
outputs="leaves". A term of weight 0 counts 0 even at probability 0; positive weight there gives inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, fsum, inf, log, nan, sqrt

from tests.hierarchies import Plain

from . import structure, targets
from .targets import Row, weight_of


def columns(ids: Sequence[str], values: Sequence[float]) -> Row:
    """Logits of one sample with explicit column ids, as a dict."""
    assert len(ids) == len(values), (len(ids), len(values))
    return {v: float(x) for v, x in zip(ids, values, strict=True)}


def log_sum_exp(values: Sequence[float]) -> float:
    """log of a sum of exponentials, -inf when nothing is there."""
    top = max(values, default=-inf)
    return top if top in (inf, -inf) else top + log(sum(exp(x - top) for x in values))


def node_log_probs(h: Plain, logits: Row) -> Row:
    """log q*(i), eq. (2): q*(i) is the softmax mass of the outputs at i or below; works for both heads."""
    total = log_sum_exp(list(logits.values()))
    log_q = {}
    for i in h.parents:
        below = structure.descendants(h, i)
        log_q[i] = log_sum_exp([z for v, z in logits.items() if v in below]) - total
    return log_q


def own_log_probs(h: Plain, logits: Row) -> Row:
    """log of the plain softmax, without aggregation."""
    total = log_sum_exp(list(logits.values()))
    return {v: z - total for v, z in logits.items()}


def leaf_probs(h: Plain, logits: Row) -> Row:
    """Softmax over the leaf outputs alone."""
    total = log_sum_exp([logits[c] for c in h.leaves])
    return {c: exp(logits[c] - total) for c in h.leaves}


def path_sums(h: Plain, logits: Row, sharing: float) -> Row:
    """Logits of the classes: each one's own output plus `sharing` times those of its ancestors, each once."""
    results = {}
    for c in h.leaves:
        results[c] = logits[c]
        for v in structure.ancestors(h, c) - {c}:
            results[c] += sharing * logits[v] if sharing else 0.0
    return results


def path_gradient(h: Plain, gradient: Row, sharing: float) -> Row:
    """The gradient of the outputs from that of the classes' path sums."""
    results = {}
    for v in h.parents:
        below = [c for c in h.leaves if v in structure.ancestors(h, c)]
        results[v] = gradient[v] if v in gradient else sharing * fsum(gradient[c] for c in below)
    return results


def cross_entropy_with(row: Row, log_q: Row) -> float:
    """Eq. (1): -sum_i p(i) log q(i)."""
    return -sum(p * log_q[v] for v, p in row.items() if p != 0)


def of_row(row: Callable[..., Row]) -> Callable[..., float]:
    """The oracle of a new loss with a table: eq. (1) with the row T[y] that `row(h, label, **params)` gives.

    `tests.loss_cases` feeds the same row to the sixty-digit form, so such a loss needs no second oracle. A loss outside
    the one equation has its value here and its exact value and gradient, under the same name, in `precise`.
    """

    def loss(h: Plain, logits: Row, label: str, *, weight: Row | None = None, **params: object) -> float:
        mass = weight_of(weight, label)
        return mass * cross_entropy_with(row(h, label, **params), node_log_probs(h, logits))

    loss.row = row  # type: ignore[attr-defined]
    return loss


def ce(
    h: Plain, logits: Row, label: str, *, label_smoothing: float = 0.0, weight: Row | None = None
) -> float:
    """Cross-entropy over leaf outputs, smoothed by eq. (3). An internal label is the sum below it."""
    row = targets.uniform_smoothing(h, label, label_smoothing)
    row = {c: mass * weight_of(weight, c) for c, mass in row.items()}
    return cross_entropy_with(row, node_log_probs(h, logits))


def soft_labels(
    h: Plain,
    logits: Row,
    label: str,
    *,
    beta: float,
    distance: str = "lca_height",
    weight: Row | None = None,
) -> float:
    """Cross-entropy over leaf outputs with the LCA soft labels of Bertinetto et al."""
    row = targets.lca_soft_labels(h, label, beta, distance)
    row = {c: mass * weight_of(weight, c) for c, mass in row.items()}
    return cross_entropy_with(row, node_log_probs(h, logits))


def hce(h: Plain, logits: Row, label: str, *, weight: Row | None = None) -> float:
    """HCE: -log q*(label) over node outputs, the label anywhere."""
    return -weight_of(weight, label) * node_log_probs(h, logits)[label]


def left_out_branch(h: Plain, label: str, above: str) -> set[str]:
    """B(s, y): the children of s that are y or above it, and everything below them."""
    way = structure.ancestors(h, label) | {label}
    branches = [c for c in h.parents if above in h.parents[c] and c in way]
    return set().union(*(structure.descendants(h, c) | {c} for c in branches))


def leave_one_out(h: Plain, logits: Row, label: str, *, unseen: float, weight: Row | None = None) -> float:
    """HCE, and for each ancestor s of the label - log of its own share of all outputs outside B(s, y)."""
    terms = []
    for s in structure.ancestors(h, label) - {label}:
        rest = [z for v, z in logits.items() if v not in left_out_branch(h, label, s)]
        terms.append(log_sum_exp(rest) - logits[s])
    return hce(h, logits, label, weight=weight) + weight_of(weight, label) * unseen * sum(terms)


def hace(
    h: Plain,
    logits: Row,
    label: str,
    *,
    d: float = 0.5,
    label_smoothing: float = 0.0,
    soft_label_beta: float | None = None,
    distance: str = "lca_height",
    weight: Row | None = None,
    level_weights: str | list[float] | None = None,
    aggregate: bool = True,
    outputs: str = "nodes",
) -> float:
    """HACE: eq. (1) between p* (eqs. 3, 4) and q* (eq. 2), and the ablations.

    aggregate=False compares p* with the plain softmax; outputs="leaves" puts the same p* on a leaf head.
    """
    assert set(logits) == set(h.parents if outputs == "nodes" else h.leaves)
    if not aggregate and outputs == "leaves":
        raise ValueError("without aggregation a leaf head has nothing to compare with at internal nodes")
    row = targets.hace_row(
        h,
        label,
        d,
        label_smoothing=label_smoothing,
        soft_label_beta=soft_label_beta,
        distance=distance,
        weight=weight,
        level_weights=level_weights,
    )
    log_q = node_log_probs(h, logits) if aggregate else own_log_probs(h, logits)
    return cross_entropy_with(row, log_q)


def conditionals(h: Plain, logits: Row, label: str) -> list[tuple[str, float]]:
    """(b_i, log[P(b_i) / P(b_{i+1})]) from the label up; without a root the last one is P(top)/1."""
    log_q = node_log_probs(h, logits)
    b = structure.path(h, label)
    results = []
    for i, v in enumerate(b):
        if i + 1 < len(b):
            results.append((v, log_q[v] - log_q[b[i + 1]]))
        elif not h.rooted:
            results.append((v, log_q[v]))
    return results


def hxe(
    h: Plain,
    logits: Row,
    label: str,
    *,
    alpha: float,
    decay: str = "depth",
    normalize: str = "none",
    weight: Row | None = None,
) -> float:
    """HXE of Bertinetto et al.: -sum_i lambda(b_i) log p(b_i | b_{i+1}); trees and forests only."""
    lambdas = targets.hxe_lambdas(h, alpha, decay=decay, normalize=normalize)
    terms = [lambdas[v] * log_p for v, log_p in conditionals(h, logits, label)]
    return -weight_of(weight, label) * sum(terms)


def conditional_log_probs(h: Plain, logits: Row) -> Row:
    """log P(v) = sum over v's path of the log softmax among siblings; a root has P = 1."""
    log_p: Row = {}
    for v in h.parents:
        log_p[v] = 0.0
        for w in structure.path(h, v):
            if h.rooted and not h.parents[w]:
                continue
            siblings = [u for u in h.parents if h.parents[u] == h.parents[w]]
            log_p[v] += logits[w] - log_sum_exp([logits[u] for u in siblings])
    return log_p


def conditional_softmax(h: Plain, logits: Row, label: str, *, weight: Row | None = None) -> float:
    """-log P(label) with a softmax in every group of siblings (YOLO9000); trees and forests only."""
    return -weight_of(weight, label) * conditional_log_probs(h, logits)[label]


def simloss(
    h: Plain,
    logits: Row,
    label: str,
    *,
    r: float,
    distance: str = "lca_height",
    weight: Row | None = None,
) -> float:
    """SimLoss of Kobs et al.: -log sum_c S[y, c] p_c with S = r ** dist(y, c) over the leaves c."""
    p = leaf_probs(h, logits)
    similar = sum(float(r) ** structure.pair_distance(h, label, c, distance) * p[c] for c in h.leaves)
    return weight_of(weight, label) * (inf if similar == 0 else -log(similar))


def expected_distance(
    h: Plain, logits: Row, label: str, *, distance: str = "lca_height", weight: Row | None = None
) -> float:
    """sum_c dist(y, c) p_c over the leaves c."""
    p = leaf_probs(h, logits)
    total = sum(structure.pair_distance(h, label, c, distance) * p[c] for c in h.leaves)
    return weight_of(weight, label) * total


def soft_margin(
    h: Plain,
    logits: Row,
    label: str,
    *,
    margin: float,
    distance: str = "lca_height",
    weight: Row | None = None,
) -> float:
    """log sum_c exp(z_c + margin dist) - z_label; an inner label counts from the classes nearest to it."""
    far = {c: structure.pair_distance(h, label, c, distance) for c in h.leaves}
    nearest = min(far.values())
    ahead = log_sum_exp([logits[c] + margin * (far[c] - nearest) for c in h.leaves])
    right = log_sum_exp([logits[c] for c in h.leaves if far[c] == nearest])
    return weight_of(weight, label) * (ahead - right)


def level_classifiers(h: Plain, label: str) -> list[tuple[str, list[str]]]:
    """(right node, all nodes) of every level at which the label says something; classes are carried down."""
    depth = structure.depths(h)
    path = {depth[v]: v for v in structure.path(h, label)}
    lowest = max(depth.values()) if label in h.leaves else depth[label]
    results = []
    for k in range(1, lowest + 1):
        nodes = [v for v in h.parents if depth[v] == k or (v in h.leaves and depth[v] < k)]
        results.append((path.get(k, label), nodes))
    return results


def levelwise(h: Plain, logits: Row, label: str, *, weight: Row | None = None) -> float:
    """One softmax a level, the losses summed; trees and forests only."""
    total = 0.0
    for right, nodes in level_classifiers(h, label):
        total += log_sum_exp([logits[v] for v in nodes]) - logits[right]
    return weight_of(weight, label) * total


def level_scores(h: Plain, logits: Row) -> Row:
    """log of the product of the classes' probabilities at all levels."""
    return {c: -levelwise(h, logits, c) for c in h.leaves}


def embedding(h: Plain, label: str) -> Row:
    """phi(label) of Barz and Denzler, by the paths: lengths of edges are differences of height over the root's."""
    height = structure.heights(h)
    root = max(height.values())
    path = structure.path(h, label)
    above = [*(height[v] for v in path[1:]), root]
    return {v: sqrt((up - height[v]) / root) for v, up in zip(path, above, strict=True)}


def embedding_scores(h: Plain, logits: Row) -> Row:
    """z . phi(c) of the classes."""
    return {c: fsum(x * logits[v] for v, x in embedding(h, c).items()) for c in h.leaves}


def class_embedding(
    h: Plain, logits: Row, label: str, *, cross_entropy: float = 0.0, weight: Row | None = None
) -> float:
    """1 - cos(z, phi(label)) + lambda (-log of the softmax of z . phi(c), below the label); 0 has no direction."""
    phi = embedding(h, label)
    moved = [v for v in h.parents if h.parents[v] or not h.rooted]  # a root's output is inert
    size = sqrt(fsum(logits[v] ** 2 for v in moved) * fsum(x * x for x in phi.values()))
    cosine = fsum(x * logits[v] for v, x in phi.items()) / size if size else 0.0
    log_q = node_log_probs(h, embedding_scores(h, logits))
    entropy = -cross_entropy * log_q[label] if cross_entropy else 0.0
    return weight_of(weight, label) * (1.0 - cosine + entropy)


def soft_target(loss, h: Plain, logits: Row, mixture: Row, **params) -> float:
    """Rows times table: sum_y t(y) loss(y) for a target that mixes labels, as mixup makes them."""
    return sum(t * loss(h, logits, y, **params) for y, t in mixture.items() if t != 0)


def reduce(
    losses: Sequence[float],
    labels: Sequence[str] | None = None,
    *,
    reduction: str = "mean",
    weight: Row | None = None,
    ignored: Sequence[bool] | None = None,
) -> float | list[float]:
    """Reductions as torch has them, over losses that include the weights.

    none: 0 where ignored. mean: divided by the sum of the kept labels' weights, or by the number of samples
    where the targets are soft (labels=None); nan when that is 0. sum: 0 when nothing is kept.
    """
    ignored = [False] * len(losses) if ignored is None else ignored
    counted = [0.0 if skip else loss for loss, skip in zip(losses, ignored, strict=True)]
    if reduction == "none":
        return counted
    if reduction == "sum":
        return sum(counted)
    if labels is None:
        divisor = float(len(losses))
    else:
        divisor = sum(weight_of(weight, y) for y, skip in zip(labels, ignored, strict=True) if not skip)
    return sum(counted) / divisor if divisor else nan
