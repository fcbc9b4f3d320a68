"""Value and gradient of table losses in mpmath, for logits at which float64 loops would drown.

loss = -sum_v T(v) log q*(v);  d loss / d z_i = sum_v T(v) [p_i - 1(i at or below v) p_i / q*(v)].
mpmath has no exponent range to leave, so nothing is shifted: the formulas are used as written. Terms that
cancel do so to an absolute error of about 10**-DIGITS.
"""

from __future__ import annotations

import mpmath

from tests.hierarchies import Plain

from . import losses, structure, targets
from .targets import Row, weight_of

DIGITS = 60


def table_loss(h: Plain, logits: Row, row: Row, *, aggregate: bool = True) -> tuple[float, Row]:
    """Value and gradient for any row, signed ones included; the outputs are the keys of `logits`.

    An output of -inf has probability 0 and gradient 0. The mass at or below every v with T(v) != 0 must be
    positive. aggregate=False takes the plain softmax in place of q*.
    """
    with mpmath.workdps(DIGITS):
        e = {i: mpmath.exp(mpmath.mpf(z)) for i, z in logits.items()}
        total = mpmath.fsum(e.values())
        p = {i: x / total for i, x in e.items()}
        value = mpmath.mpf(0)
        gradient = dict.fromkeys(logits, mpmath.mpf(0))
        for v, t in row.items():
            if t == 0:
                continue
            below = structure.descendants(h, v) & set(logits) if aggregate else {v}
            outside = set(logits) - below
            inside = mpmath.fsum(p[i] for i in below)
            # log1p of the smaller part: q* near 1 keeps the digits of 1 - q*
            missing = mpmath.fsum(p[i] for i in outside)
            log_q = mpmath.log1p(-missing) if missing < 0.5 else mpmath.log(inside)
            value -= t * log_q
            for i in below:  # p_i - p_i / q* = -p_i (1 - q*) / q*: no cancellation within one node
                gradient[i] -= t * p[i] * missing / inside
            for i in outside:
                gradient[i] += t * p[i]
        return float(value), {i: float(g) for i, g in gradient.items()}


def hace(
    h: Plain, logits: Row, label: str, *, d: float = 0.5, aggregate: bool = True, **params
) -> tuple[float, Row]:
    """HACE with any horizontal smoothing and weights; the head is over nodes or leaves, as the logits are."""
    return table_loss(h, logits, targets.hace_row(h, label, d, **params), aggregate=aggregate)


def hce(h: Plain, logits: Row, label: str, *, weight: Row | None = None) -> tuple[float, Row]:
    """HCE: one entry at the label."""
    return table_loss(h, logits, {label: weight_of(weight, label)})


def leave_one_out(h: Plain, logits: Row, label: str, *, unseen: float) -> tuple[float, Row]:
    """HCE's gradient, and for each ancestor the softmax outside the branch, less 1 at its own output."""
    value, gradient = hce(h, logits, label)
    with mpmath.workdps(DIGITS):
        e = {i: mpmath.exp(mpmath.mpf(z)) for i, z in logits.items()}
        terms, slopes = mpmath.mpf(0), dict.fromkeys(logits, mpmath.mpf(0))
        for s in structure.ancestors(h, label) - {label}:
            others = {i: x for i, x in e.items() if i not in losses.left_out_branch(h, label, s) and i != s}
            rest = mpmath.fsum(others.values())
            terms += mpmath.log1p(rest / e[s])
            for i, x in others.items():
                slopes[i] += x / (rest + e[s])
            slopes[s] -= rest / (rest + e[s])
        return float(value + unseen * terms), {i: float(gradient[i] + unseen * slopes[i]) for i in logits}


def ce(h: Plain, logits: Row, label: str, *, label_smoothing: float = 0.0) -> tuple[float, Row]:
    """Cross-entropy over leaf outputs."""
    return table_loss(h, logits, targets.uniform_smoothing(h, label, label_smoothing))


def soft_labels(h: Plain, logits: Row, label: str, *, beta: float, distance: str = "lca_height"):
    """Cross-entropy over leaf outputs with LCA soft labels."""
    return table_loss(h, logits, targets.lca_soft_labels(h, label, beta, distance))


def hxe(
    h: Plain,
    logits: Row,
    label: str,
    *,
    alpha: float,
    decay: str = "depth",
    normalize: str = "none",
    weight: Row | None = None,
) -> tuple[float, Row]:
    """HXE by its conditionals, each one a small softmax of its own: no signed table is involved.

    log[P(b)/P(a)] has the gradient 1(i below b) p_i / P(b) - 1(i below a) p_i / P(a).
    """
    lambdas = targets.hxe_lambdas(h, alpha, decay=decay, normalize=normalize)
    scale = weight_of(weight, label)
    with mpmath.workdps(DIGITS):
        e = {i: mpmath.exp(mpmath.mpf(z)) for i, z in logits.items()}
        value = mpmath.mpf(0)
        gradient = dict.fromkeys(logits, mpmath.mpf(0))
        b = structure.path(h, label)
        for k, v in enumerate(b):
            if h.rooted and k == len(b) - 1:
                continue
            inner = structure.descendants(h, v) & set(logits)
            outer = structure.descendants(h, b[k + 1]) & set(logits) if k + 1 < len(b) else set(logits)
            inner_mass = mpmath.fsum(e[i] for i in inner)
            outer_mass = mpmath.fsum(e[i] for i in outer)
            rest = mpmath.fsum(e[i] for i in outer - inner)
            share = rest / outer_mass
            factor = lambdas[v] * scale
            value -= factor * (mpmath.log1p(-share) if share < 0.5 else mpmath.log(inner_mass / outer_mass))
            for i in inner:  # 1/P(b) - 1/P(a) = (P(a) - P(b)) / (P(a) P(b))
                gradient[i] -= factor * e[i] * rest / (inner_mass * outer_mass)
            for i in outer - inner:
                gradient[i] += factor * e[i] / outer_mass
        return float(value), {i: float(g) for i, g in gradient.items()}


def conditional_softmax(h: Plain, logits: Row, label: str) -> tuple[float, Row]:
    """-log P(label), a softmax in every group of siblings on the way up; a root has P = 1."""
    with mpmath.workdps(DIGITS):
        e = {i: mpmath.exp(mpmath.mpf(z)) for i, z in logits.items()}
        value = mpmath.mpf(0)
        gradient = dict.fromkeys(logits, mpmath.mpf(0))
        for v in structure.path(h, label):
            if h.rooted and not h.parents[v]:
                continue
            siblings = [u for u in h.parents if h.parents[u] == h.parents[v]]
            total = mpmath.fsum(e[u] for u in siblings)
            value -= mpmath.log(e[v] / total)
            for u in siblings:
                gradient[u] += e[u] / total - (u == v)
        return float(value), {i: float(g) for i, g in gradient.items()}


def simloss(
    h: Plain, logits: Row, label: str, *, r: float, distance: str = "lca_height"
) -> tuple[float, Row]:
    """-log sum_c S[y, c] p_c; its gradient is p_i - S[y, i] p_i / sum_c S[y, c] p_c."""
    with mpmath.workdps(DIGITS):
        p = _leaf_probs(logits)
        s = {c: mpmath.mpf(r) ** structure.pair_distance(h, label, c, distance) for c in logits}
        similar = mpmath.fsum(s[c] * p[c] for c in logits)
        return float(-mpmath.log(similar)), {c: float(p[c] - s[c] * p[c] / similar) for c in logits}


def expected_distance(
    h: Plain, logits: Row, label: str, *, distance: str = "lca_height"
) -> tuple[float, Row]:
    """E = sum_c dist(y, c) p_c; its gradient is p_i (dist(y, i) - E)."""
    with mpmath.workdps(DIGITS):
        p = _leaf_probs(logits)
        far = {c: structure.pair_distance(h, label, c, distance) for c in logits}
        expected = mpmath.fsum(far[c] * p[c] for c in logits)
        return float(expected), {c: float(p[c] * (far[c] - expected)) for c in logits}


def soft_margin(
    h: Plain, logits: Row, label: str, *, margin: float, distance: str = "lca_height"
) -> tuple[float, Row]:
    """The gradient is softmax(z + margin dist) less the softmax among the nearest classes."""
    with mpmath.workdps(DIGITS):
        far = {c: structure.pair_distance(h, label, c, distance) for c in h.leaves}
        nearest = min(far.values())
        ahead = {c: mpmath.exp(mpmath.mpf(logits[c]) + margin * (far[c] - nearest)) for c in h.leaves}
        right = {c: mpmath.exp(mpmath.mpf(logits[c])) for c in h.leaves if far[c] == nearest}
        total, mass = mpmath.fsum(ahead.values()), mpmath.fsum(right.values())
        rest = mpmath.fsum(x for c, x in ahead.items() if c not in right)
        gradient = {c: x / total for c, x in ahead.items()}
        for c, x in right.items():  # x / total - x / mass without cancellation
            gradient[c] = -x * rest / (total * mass)
        return float(mpmath.log1p(rest / mass)), {c: float(g) for c, g in gradient.items()}


def levelwise(h: Plain, logits: Row, label: str) -> tuple[float, Row]:
    """A softmax in every level."""
    with mpmath.workdps(DIGITS):
        e = {i: mpmath.exp(mpmath.mpf(z)) for i, z in logits.items()}
        value = mpmath.mpf(0)
        gradient = dict.fromkeys(logits, mpmath.mpf(0))
        for right, nodes in losses.level_classifiers(h, label):
            total = mpmath.fsum(e[v] for v in nodes)
            value -= mpmath.log(e[right] / total)
            for v in nodes:
                gradient[v] += e[v] / total - (v == right)
        return float(value), {i: float(g) for i, g in gradient.items()}


def class_embedding(h: Plain, logits: Row, label: str, *, cross_entropy: float = 0.0) -> tuple[float, Row]:
    """d cos / dz = (phi / |phi| - cos z / |z|) / |z|; the classes' logits are linear in z."""
    with mpmath.workdps(DIGITS):
        z = {v: mpmath.mpf(x) for v, x in logits.items()}
        phi = losses.embedding(h, label)
        moved = [v for v in z if h.parents[v] or not h.rooted]
        size = mpmath.sqrt(mpmath.fsum(z[v] ** 2 for v in moved))
        length = mpmath.sqrt(mpmath.fsum(mpmath.mpf(x) ** 2 for x in phi.values())) or 1
        cosine = mpmath.fsum(x * z[v] for v, x in phi.items()) / (size * length) if size else 0
        gradient = dict.fromkeys(z, mpmath.mpf(0))
        for v in moved if size else ():
            gradient[v] = (cosine * z[v] / size - phi.get(v, 0) / length) / size
        value = 1 - cosine
        if cross_entropy:
            rows = {c: losses.embedding(h, c) for c in h.leaves}
            scores = {c: mpmath.fsum(x * z[v] for v, x in row.items()) for c, row in rows.items()}
            extra, slopes = table_loss(h, scores, {label: 1.0})
            value += cross_entropy * mpmath.mpf(extra)
            for c, slope in slopes.items():
                for v, x in rows[c].items():
                    gradient[v] += cross_entropy * slope * x
        return float(value), {i: float(g) for i, g in gradient.items()}


def _leaf_probs(logits: Row) -> dict:
    e = {i: mpmath.exp(mpmath.mpf(z)) for i, z in logits.items()}
    total = mpmath.fsum(e.values())
    return {i: x / total for i, x in e.items()}


def numeric_gradient(value, logits: Row) -> Row:
    """Central differences of a float64 function of logits, with one step of Richardson: about ten digits."""
    step = 1e-3

    def slope(i: str, width: float) -> float:
        return (value({**logits, i: logits[i] + width}) - value({**logits, i: logits[i] - width})) / (
            2 * width
        )

    return {i: (4 * slope(i, step) - slope(i, 2 * step)) / 3 for i in logits}
