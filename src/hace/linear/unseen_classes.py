"""What a model says about classes it has never seen: whole classes are left out of training, and methods are compared.

A left-out class has a truth all the same: its closest ancestor among the listed nodes. An answer is true if it is that ancestor
or above it (the root says nothing), exact if it is that ancestor, and a wrong name if it is a listed class. Methods are
compared where they have lost equally many exact answers on the known classes, as their thresholds grow.

**The guarantee** is about new classes, with classes as the units of conformal risk control (:mod:`hace.decisions.bounds`). Let
class c have the loss R_c(t), the share of its samples with a false answer of a head at the threshold t. If the m classes that
this head never saw and a new class are exchangeable, the least t with (sum_c R_c(t) + 1) / (m + 1) <= alpha gives
E[R_new(t)] <= alpha. So a threshold belongs to the head whose classes set it. Scores of several heads may not be pooled:
cross-validation conformal risk control (Cohen, Park, Simeone and Shamai 2024) covers only answers that combine all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice
from hace.decisions.bounds import PREFERENCES, RiskBound, group_places, one_of_each
from hace.decisions.ladders import LADDERS, Ladder
from hace.errors import ConfigError, DataError, nearest
from hace.files.documents import csv_text
from hace.files.writing import write_whole
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above
from hace.linear.features import unit_rows
from hace.linear.fit import fit_heads, head_scores
from hace.linear.heads import Optimization, Trial
from hace.losses.base import HierarchicalLoss
from hace.losses.registry import build_loss
from hace.metrics.intervals import interval

RATES = (8.0, 16.0, 32.0)
# Points of exact answers on known classes, against cross-entropy's best class.
LOST = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
_STEPS = 150  # thresholds of a curve
_GROUPS = 0.5  # how probable a group must be where only classes have a threshold of their own

Rows = list[dict[str, Any]]


class Candidate(NamedTuple):
    """A head, the rule that answers from it, and whether distances in feature space help to choose the class."""

    loss: str | None  # None: distances alone
    options: dict[str, Any]
    rule: str
    distances: bool = False


METHODS = {
    "cross-entropy": Candidate("cross_entropy", {}, "threshold"),
    "class threshold": Candidate("cross_entropy", {}, "classes"),
    "HACE": Candidate("hace", {}, "threshold"),
    "path sums": Candidate("cross_entropy_paths", {}, "threshold"),
    "distances": Candidate(None, {}, "threshold", True),
    "leave-one-out": Candidate("hce", {"unseen": 0.3}, "own"),
    "both": Candidate("hce", {"unseen": 0.3}, "own", True),
}
BASELINE = "cross-entropy"


@dataclass(frozen=True, eq=False)
class LeftOut:
    """A hierarchy without some of its classes."""

    hierarchy: Hierarchy  # the listed classes and everything above them
    classes: tuple[str, ...]  # those left out
    labels: IntArray  # (n,) of each class of the whole hierarchy its label among the listed ones, or -1
    truths: IntArray  # (n,) of each the node of its closest listed ancestor, or itself


def leave_out(h: Hierarchy, classes: Sequence[str]) -> LeftOut:
    """The hierarchy without these classes; each needs a listed relative below one of its ancestors."""
    unknown = [c for c in classes if c not in h.leaves]
    if unknown:
        raise ConfigError(f"leave_out must name classes. Got {unknown[0]!r}.{nearest(unknown[0], h.leaves)}")
    unlisted = set(classes)
    listed = h.subset([c for c in h.leaves if c not in unlisted])
    places = {node: i for i, node in enumerate(listed.nodes)}
    truths = [next((places[v] for v in h.path(c) if v in places), -1) for c in h.leaves]
    lonely = [c for c, v in zip(h.leaves, truths, strict=True) if v < 0]
    if lonely:
        raise ConfigError(f"A class left out must have a listed relative. Got {lonely[0]!r} without one.")
    labels = [-1 if c in unlisted else listed.label(c) for c in h.leaves]
    return LeftOut(listed, tuple(classes), np.array(labels), np.array(truths))


def draw_classes(h: Hierarchy, count: float, seed: int, *, groups: bool = False) -> list[str]:
    """Classes to leave out, at random: so many, or a share below 1, each with a listed sister under the same parent.

    With ``groups`` whole groups are left out instead (all classes below a parent of classes), each with a listed group beside
    it, until there are enough classes.
    """
    wanted = round(count * h.num_leaves) if 0 < count < 1 else int(count)
    order = [h.leaves[i] for i in np.random.default_rng(seed).permutation(h.num_leaves).tolist()]
    gone: set[str] = set()
    for leaf in order:
        if len(gone) >= wanted or leaf in gone or not h.parents(leaf):
            continue
        branch = h.parents(leaf)[0] if groups else leaf
        if not h.parents(branch):
            continue
        below = {v for v in h.descendants(branch, include_self=True) if not h.children(v)}
        sisters = set(h.descendants(h.parents(branch)[0])) & set(h.leaves)
        if sisters - below - gone:
            gone |= below
    if not gone or (len(gone) < wanted and not groups):
        raise DataError(
            f"leave_out must be at most {len(gone)} here: every class left out needs a listed sister. Got {count:g}."
        )
    return [c for c in h.leaves if c in gone]


class Point(NamedTuple):
    """Shares of samples at one threshold; ``distance`` is the mean of known and unseen samples' mean edges to the truth."""

    threshold: float
    known_exact: float
    known_true: float
    unseen_true: float
    unseen_exact: float
    unseen_named: float
    unseen_false: float
    distance: float


def curve(ladder: Ladder, truth: IntArray, unseen: np.ndarray) -> list[Point]:
    """What answers are worth as their threshold grows from 0, on samples with truths (M,), of which some are ``unseen``."""
    h = ladder.hierarchy
    is_leaf = np.append(h.labels, -1)[ladder.nodes] >= 0
    leaf = np.where(is_leaf, ladder.reached, -np.inf).max(axis=1)
    tried = np.unique(np.quantile(leaf[leaf > -np.inf], np.linspace(0, 0.98, _STEPS)))
    worth = _worth(ladder.nodes, truth[:, None], h)
    rows = np.arange(len(ladder))
    return [Point(t, *_shares(worth[:, rows, ladder.rung(t)], unseen)) for t in tried.tolist()]


def ladder_by(rule: str, log_q: Tensor, h: Hierarchy) -> Ladder:
    """The answers of a rule as its threshold falls. Rule "classes": a threshold for classes, 0.5 for all groups."""
    if rule != "classes":
        return LADDERS[rule, True](log_q, h)
    walked = LADDERS["threshold", True](log_q, h)
    is_group = np.append(h.labels, -1)[walked.nodes] < 0
    passes = np.where(walked.reached >= _GROUPS, 1.0, -np.inf)
    return Ladder.of(h, walked.nodes, np.where(is_group, passes, walked.reached))


def _worth(answer: IntArray, truth: IntArray, h: Hierarchy) -> np.ndarray:
    """(5, ...) of each answer whether it is exact, true, a class and false, and its edges to the truth."""
    truth = np.broadcast_to(truth, answer.shape)
    above = is_above(h, answer.ravel(), truth.ravel()).reshape(answer.shape)
    edges = h.distances(np.maximum(answer, 0).ravel(), truth.ravel(), "edges", labels="nodes")
    edges = np.where(answer < 0, h.depths[truth], edges.reshape(answer.shape))
    true = above & (np.append(h.depths, 0)[answer] > 0)
    named = np.append(h.labels, -1)[answer] >= 0
    return np.stack([answer == truth, true, named, ~above, edges]).astype(float)


def _shares(worth: np.ndarray, unseen: np.ndarray) -> list[float]:
    """What a :class:`Point` has behind its threshold, of answers (5, M)."""
    return _point_shares(worth[:, ~unseen].mean(axis=1), worth[:, unseen].mean(axis=1))


def _point_shares(known: np.ndarray, new: np.ndarray) -> list[float]:
    """The same, from the means (5,) over known and over new samples."""
    shares = (*known[:2], new[1], new[0], *new[2:4])
    return [*(100 * float(x) for x in shares), float(known[4] + new[4]) / 2]


def at_known(points: Iterable[Point], least: float) -> Point | None:
    """The point with the most true answers for unseen classes that keeps so many exact ones on known classes."""
    return max((p for p in points if p.known_exact >= least), key=lambda p: p.unseen_true, default=None)


def guaranteed_point(
    ladder: Ladder,
    truth: IntArray,
    unseen: np.ndarray,
    classes: IntArray,
    accuracy: float,
    prefer: str = "steadier",
) -> Point:
    """The threshold that the unseen classes set, with its figures on known classes.

    Of unseen samples the shares are means over classes, each judged with the threshold that the other classes set: nan where
    these are too few. ``classes`` (M,) are those of all samples. ``prefer``: "steadier" rests on all samples of each class,
    "sharper" on one of each, which answers more where classes are few; see :mod:`hace.decisions.bounds`.
    """
    check_choice("prefer", prefer, PREFERENCES)
    bound = RiskBound.of_accuracy(accuracy, None, "samples")
    new = np.flatnonzero(unseen)
    outcomes = ladder.outcomes(truth)
    worth = _worth(ladder.nodes, truth[:, None], ladder.hierarchy)
    every = np.arange(len(truth))

    def set_by(rows: np.ndarray) -> float:
        if prefer == "sharper":
            rows = rows[one_of_each(group_places(classes[rows], len(rows))[1], seed=0)]
        return bound.threshold(outcomes.take(rows), group_places(classes[rows], len(rows))[1], "classes")

    threshold = set_by(new)
    drawn = np.unique(classes[new])
    judged = np.full((len(worth), len(drawn)), np.nan)
    if len(drawn) > bound.needed():
        for column, left_out in enumerate(drawn):
            others = set_by(new[classes[new] != left_out])
            mine = new[classes[new] == left_out]
            judged[:, column] = worth[:, mine, ladder.rung(others)[mine]].mean(axis=1)
    known = worth[:, every, ladder.rung(threshold)][:, ~unseen].mean(axis=1)
    return Point(threshold, *_point_shares(known, judged.mean(axis=1)))


@dataclass(frozen=True)
class UnseenStudy:
    """The study: methods on features with whole classes left out.

    Attributes:
        train: features (M, d) and labels (M,) from 0 to n - 1; ``test`` the same of samples to be judged on, of all classes.
        leave_out: how many classes, a share below 1, or their ids; drawn anew in each draw unless they are named.
        draws: how many draws of classes; ``seeds`` how many heads per draw, each with its own order of samples.
        groups: leave out whole groups.
        outside: (M, d) features of samples that belong to no class of the whole hierarchy, or None.
        guarantee: a share: the classes left out set a threshold for the head that never saw them, which keeps this share from
            false answers on average over new classes. In its row, figures of known classes are those of this threshold; those
            of unseen classes judge each class with the threshold that the others set. None: not asked.
        prefer: "steadier" or "sharper": that threshold rests on all samples of each class left out, or on one of each.
    """

    hierarchy: Hierarchy
    train: tuple[np.ndarray, IntArray]
    test: tuple[np.ndarray, IntArray]
    leave_out: float | Sequence[str] = 0.2
    draws: int = 5
    seeds: int = 5
    groups: bool = False
    methods: Sequence[str] = tuple(METHODS)
    epochs: int = 30
    outside: np.ndarray | None = None
    guarantee: float | None = None
    prefer: str = "steadier"

    def run(self, report: Callable[[str, Rows], None] = lambda text, rows: None) -> Rows:
        """One row per draw, seed, method and number of points lost; ``report`` hears of every seed, with the rows so far."""
        for name in self.methods:
            check_choice("A method", name, METHODS)
        cached: dict[Any, Any] = {}
        rows: Rows = []
        for seed in range(self.seeds):  # whatever stops it, all draws have as many seeds, or one more
            for draw in range(self.draws):
                drawn = self.leave_out
                if isinstance(drawn, int | float):
                    drawn = draw_classes(self.hierarchy, drawn, draw, groups=self.groups)
                left = leave_out(self.hierarchy, drawn)
                rows += self._rows(left, draw, seed, cached)
                report(f"seed {seed + 1} of {self.seeds}, draw {draw + 1} of {self.draws}", rows)
        report("done", rows)
        return rows

    def _rows(self, left: LeftOut, draw: int, seed: int, cached: dict[Any, Any]) -> Rows:
        """The rows of one draw and seed."""
        h = left.hierarchy
        classes = self.test[1]
        truth = left.truths[classes]
        unseen = left.labels[classes] < 0
        scores: dict[str, Tensor] = {}
        base = self.log_q(left, METHODS[BASELINE], seed, cached, scores)[: len(truth)].numpy()
        right = h.leaf_nodes[base[:, h.leaf_nodes].argmax(axis=1)] == truth
        best = 100 * float(right[~unseen].mean())
        rows: Rows = []
        for name in self.methods:
            about = {"draw": draw, "seed": seed, "method": name}
            rule = METHODS[name].rule
            log_q = self.log_q(left, METHODS[name], seed, cached, scores)
            ladder = ladder_by(rule, log_q[: len(truth)], h)
            outside = ladder_by(rule, log_q[len(truth) :], h)
            points = curve(ladder, truth, unseen)
            for lost in LOST:
                point = at_known(points, best - lost) or Point(*[float("nan")] * len(Point._fields))
                rows.append({**about, "lost": lost, "best": best, **point._asdict()})
                if self.outside is not None:
                    named = (np.append(h.labels, -1)[outside.answers(point.threshold)] >= 0).mean()
                    rows[-1]["outside_named"] = (
                        float("nan") if np.isnan(point.threshold) else 100 * float(named)
                    )
            if self.guarantee is not None and rule != "classes":
                point = guaranteed_point(ladder, truth, unseen, classes, self.guarantee, self.prefer)
                label = f"guarantee {self.guarantee:g}"
                rows.append({**about, "lost": label, "best": float("nan"), **point._asdict()})
        return rows

    def log_q(
        self, left: LeftOut, made: Candidate, seed: int, cached: dict[Any, Any], scores: dict[str, Tensor]
    ) -> Tensor:
        """(M, N) log q* of the test samples by a method trained without the classes left out.

        ``cached`` has what draws and seeds share, the rate of a loss and the distances of a draw; ``scores`` those of one head.
        """
        label = left.labels[self.train[1]]
        x = unit_rows(self.train[0][label >= 0])
        y = label[label >= 0]
        test = unit_rows(self.test[0])
        if self.outside is not None:
            test = np.concatenate([test, unit_rows(self.outside)])
        near = None
        if made.distances:
            if left.classes not in cached:
                cached[left.classes] = distance_logits(x, y, test)
            near = cached[left.classes]
        if made.loss is None:
            assert near is not None
            return build_loss("cross_entropy", left.hierarchy).node_log_probs(near)
        loss = build_loss(made.loss, left.hierarchy, **made.options)
        key = f"{made.loss} {made.options}"
        if key not in cached:  # chosen once, in the first draw
            cached[key] = self._best_rate(loss, x, y, seed)
        if key not in scores:
            (head,) = fit_heads(x, y, [Trial(loss, cached[key])], self._optimization, seed=seed)
            scores[key] = head_scores(test, head)
        z = scores[key] if near is None else refined(scores[key], near, loss.head.leaf_nodes)
        return loss.node_log_probs(z)

    @property
    def _optimization(self) -> Optimization:
        return Optimization(epochs=self.epochs, batch_size=256)

    def _best_rate(self, loss: HierarchicalLoss, x: np.ndarray, y: IntArray, seed: int) -> float:
        """The learning rate of greatest accuracy on every tenth training sample, after training on the others."""
        held = np.arange(len(y)) % 10 == 0
        trials = [Trial(loss, rate) for rate in RATES]
        accuracies = []
        for head in fit_heads(x[~held], y[~held], trials, self._optimization, seed=seed):
            answers = loss.leaf_logits(head_scores(x[held], head)).argmax(dim=1).numpy()
            accuracies.append((answers == y[held]).mean())
        return RATES[int(np.argmax(accuracies))]


def distance_logits(x: np.ndarray, y: IntArray, test: np.ndarray) -> Tensor:
    """(M, n) Mahalanobis distances to the classes' means, as logits: linear discriminant analysis, equal priors.

    Features are not Gaussian, so these densities are overconfident: a tenth of them counts.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    n = int(y.max()) + 1
    made = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3, priors=np.full(n, 1 / n)).fit(x, y)
    logits = made.decision_function(test)
    if n == 2:  # scikit-learn has the difference
        logits = np.stack([-logits, logits], axis=1) / 2
    return torch.from_numpy(0.1 * logits).float()


def refined(z: Tensor, near: Tensor, leaves: Tensor) -> Tensor:
    """Logits over nodes in which distances share in the choice of the class; all classes together keep their mass."""
    classes = z.index_select(1, leaves)
    chosen = (classes.log_softmax(dim=1) + near).log_softmax(dim=1)
    return z.index_copy(1, leaves, classes.logsumexp(dim=1, keepdim=True) + chosen)


def _draw_means(rows: Rows, method: str, lost: float, field: str) -> dict[Any, float]:
    """The mean of a field by draw, over the heads of the draw."""
    mine = [row for row in rows if row["method"] == method and row["lost"] == lost]
    draws = dict.fromkeys(row["draw"] for row in mine)
    return {draw: float(np.mean([row[field] for row in mine if row["draw"] == draw])) for draw in draws}


def summary(rows: Rows, lost: float = 3.0) -> Rows:
    """Per method the means at so many points lost, with half the width of a 95% interval over draws (Student)."""
    lines = []
    for name in dict.fromkeys(row["method"] for row in rows):
        draws = len(_draw_means(rows, name, lost, "unseen_true"))
        line: dict[str, Any] = {"method": name, "lost": lost, "draws": draws}
        for field in Point._fields[1:]:
            over_draws = interval(np.array([*_draw_means(rows, name, lost, field).values()])[:, None])
            line[field] = over_draws.value
            line[f"{field}_95"] = (over_draws.high - over_draws.low) / 2
        lines.append(line)
    return lines


def best_methods(rows: Rows, lost: float = 3.0) -> list[str]:
    """The method with the most true answers for new samples, then those it is tied with: whose difference may be 0.

    The difference is over the draws, which the methods share; with one draw nothing is known of it, so none is tied.
    """
    names = dict.fromkeys(row["method"] for row in rows)
    of = {name: _draw_means(rows, name, lost, "unseen_true") for name in names}
    means = {name: np.mean(list(each.values())) for name, each in of.items()}
    ranked = sorted((name for name in means if not np.isnan(means[name])), key=lambda name: -means[name])
    return [name for name in ranked if name == ranked[0] or _tied(of[ranked[0]], of[name])]


def _tied(first: dict[Any, float], second: dict[Any, float]) -> bool:
    difference = interval(np.array([first[draw] - second[draw] for draw in first])[:, None])
    return difference.low <= 0 <= difference.high


def card(rows: Rows, lost: float = 3.0) -> str:
    """If something new appears, this is what happens: a table in text."""
    best = np.nanmean([row["best"] for row in rows])
    lines = summary(rows, lost)
    several = lines[0]["draws"] > 1
    heads = "".join(f"{title:>16}" for title, _ in COLUMNS.values())
    text = [
        f"Something new appears: what each method says, keeping {best - lost:.1f}% exact answers on the classes it knows",
        f"(cross-entropy's best class has {best:.1f}% and names a listed class for everything new).",
        "",
        f"{'method':24}{heads}   in % of new samples",
    ]
    text += [f"{line['method']:24}" + "".join(f"{c:>16}" for c in cells(line)) for line in lines]
    if several:
        text.append("± 95% over draws")
    tied = best_methods(rows, lost)
    if len(tied) > 1:
        text.append(f"tied for the most true answers: {', '.join(tied)}")
    return "\n".join([*text, *guarantees(rows)])


# Fields of a point on the card: title and digits.
COLUMNS = {
    "unseen_true": ("true", 1),
    "unseen_exact": ("exact", 1),
    "unseen_named": ("named a class", 1),
    "distance": ("distance", 2),
}


def cells(line: dict[str, Any]) -> list[str]:
    """What a line of :func:`summary` shows for each of :data:`COLUMNS`."""
    if np.isnan(line["known_exact"]):  # in some draw it never kept as many exact answers
        return ["less accurate", *["-"] * (len(COLUMNS) - 1)]
    half = {f: f" ± {line[f'{f}_95']:.{d}f}" if line["draws"] > 1 else "" for f, (_, d) in COLUMNS.items()}
    return [f"{line[f]:.{d}f}{half[f]}" for f, (_, d) in COLUMNS.items()]


def guarantees(rows: Rows) -> list[str]:
    """What the guarantee over classes gave, a sentence per method."""
    sentences = []
    for name in dict.fromkeys(row["method"] for row in rows if isinstance(row["lost"], str)):
        mine = [row for row in rows if row["method"] == name and isinstance(row["lost"], str)]
        each = sorted(row["threshold"] for row in mine)
        thresholds = f"threshold {each[0]:.3g}"
        if len(each) > 1:
            thresholds = f"thresholds {each[0]:.3g} to {each[-1]:.3g}, one for each of {len(each)} heads"
        known = np.mean([row["known_exact"] for row in mine])
        text = f"{mine[0]['lost']}, {name}: {thresholds}; {known:.1f}% of known samples get an exact answer"
        false = np.mean([row["unseen_false"] for row in mine])
        true = np.mean([row["unseen_true"] for row in mine])
        if np.isnan(false):
            text += "; too few classes to judge each with a threshold from the rest"
        else:
            text += (
                f"; each new class judged with a threshold from the rest: {false:.1f}% false answers on average over "
                f"classes, {true:.1f}% true"
            )
        sentences.append(text)
    return sentences


def write_rows(rows: Rows, path: Path) -> None:
    """A CSV file, six digits each."""
    cells = ([f"{v:.6g}" if isinstance(v, float) else v for v in map(row.get, rows[0])] for row in rows)
    write_whole(path, csv_text([rows[0], *cells], raw=True, end="\n").encode())
