"""What a model says about classes it has never seen: whole classes are left out of training, and methods are compared.

A left-out class has a truth all the same: its closest ancestor among the listed nodes. An answer is true if it is that ancestor
or above it (the root says nothing), exact if it is that ancestor, and a wrong name if it is a listed class. Methods are
compared where they have lost equally many exact answers on the known classes, as their thresholds grow.
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
from hace.decisions.bounds import RiskBound
from hace.decisions.group_guarantees import GroupGuarantee, group_places
from hace.decisions.scores import Scores
from hace.decisions.threshold_rules import LADDERS, Outcomes, joined_outcomes, outcomes_of
from hace.errors import ConfigError, DataError, nearest
from hace.files.documents import csv_text
from hace.files.writing import write_whole
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.hierarchy.derived import is_above
from hace.linear.features import unit_rows
from hace.linear.fit import fit_heads, head_scores
from hace.linear.heads import Optimization, Trial
from hace.losses.registry import build_loss
from hace.metrics.intervals import seed_interval

RATES = (8.0, 16.0, 32.0)
# Points of exact answers on known classes, against cross-entropy's best class.
LOST = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
SPLITS = 4  # ways to halve the classes left out
_STEPS = 150  # thresholds of a curve
_GROUPS = 0.5  # how probable a group must be where only classes have a threshold of their own

Rows = list[dict[str, Any]]
_Judged = dict[str, list[tuple[Outcomes, IntArray]]]  # by method: outcomes of new samples, and their classes


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
    gone = set(classes)
    listed = h.subset([c for c in h.leaves if c not in gone])
    places = {node: i for i, node in enumerate(listed.nodes)}
    truths = [next((places[v] for v in h.path(c) if v in places), -1) for c in h.leaves]
    lonely = [c for c, v in zip(h.leaves, truths, strict=True) if v < 0]
    if lonely:
        raise ConfigError(f"A class left out must have a listed relative. Got {lonely[0]!r} without one.")
    labels = [-1 if c in gone else listed.label(c) for c in h.leaves]
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
            f"leave_out must be a number of classes that leaves each a listed sister. Got {count:g}; {len(gone)} can go."
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


def curve(log_q: Tensor, truth: IntArray, unseen: np.ndarray, h: Hierarchy, rule: str) -> list[Point]:
    """What a rule says as its threshold grows from 0, on samples with truths (M,), of which some are ``unseen``."""
    nodes, reached = _ladder(log_q, h, rule)
    is_leaf = np.append(h.labels, -1)[nodes] >= 0
    leaf = np.where(is_leaf, reached, -np.inf).max(axis=1)
    tried = np.unique(np.quantile(leaf[leaf > -np.inf], np.linspace(0, 0.98, _STEPS)))
    worth, rows = _worth(nodes, truth[:, None], h), np.arange(len(nodes))
    picked = ((t, _last(reached, t)) for t in tried.tolist())
    return [Point(t, *_shares(worth[:, rows, column], unseen)) for t, column in picked]


def answers_at(
    log_q: Tensor, h: Hierarchy, rule: str, thresholds: Sequence[float] | np.ndarray
) -> list[IntArray]:
    """(M,) answers at each threshold; the root, or no answer, always passes."""
    nodes, reached = _ladder(log_q, h, rule)
    return [nodes[np.arange(len(nodes)), _last(reached, t)] for t in thresholds]


def _ladder(log_q: Tensor, h: Hierarchy, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """(M, L) nodes and the greatest threshold of each. Rule "classes": a threshold for classes, 0.5 for all groups."""
    nodes, reached = LADDERS["threshold" if rule == "classes" else rule, True](log_q, h)
    if rule == "classes":
        group = np.append(h.labels, -1)[nodes] < 0
        reached[group] = np.where(reached[group] >= _GROUPS, np.inf, -np.inf)
    reached[:, 0] = np.inf
    return nodes, reached


def _last(reached: np.ndarray, threshold: float) -> np.ndarray:
    return (np.arange(reached.shape[1]) * (reached >= threshold)).max(axis=1)


def _worth(answer: IntArray, truth: IntArray, h: Hierarchy) -> np.ndarray:
    """(5, ...) of each answer whether it is exact, true, a class and false, and its edges to the truth."""
    truth = np.broadcast_to(truth, answer.shape)
    above = is_above(h, answer.ravel(), truth.ravel()).reshape(answer.shape)
    edges = h.distances(np.maximum(answer, 0).ravel(), truth.ravel(), "edges", labels="nodes")
    edges = np.where(answer < 0, h.depths[truth], edges.reshape(answer.shape))
    true, named = above & (np.append(h.depths, 0)[answer] > 0), np.append(h.labels, -1)[answer] >= 0
    return np.stack([answer == truth, true, named, ~above, edges]).astype(float)


def _shares(worth: np.ndarray, unseen: np.ndarray) -> list[float]:
    """What a :class:`Point` has behind its threshold, of answers (5, M)."""
    known, new = worth[:, ~unseen].mean(axis=1), worth[:, unseen].mean(axis=1)
    shares = (*known[:2], new[1], new[0], *new[2:4])
    return [*(100 * float(x) for x in shares), float(known[4] + new[4]) / 2]


def at_known(points: Iterable[Point], least: float) -> Point | None:
    """The point with the most true answers for unseen classes that keeps so many exact ones on known classes."""
    return max((p for p in points if p.known_exact >= least), key=lambda p: p.unseen_true, default=None)


@dataclass(frozen=True)
class UnseenStudy:
    """The study: methods on features with whole classes left out.

    Attributes:
        train: features (M, d) and labels (M,) from 0 to n - 1; ``test`` the same of samples to be judged on, of all classes.
        leave_out: how many classes, a share below 1, or their ids; drawn anew in each draw unless they are named.
        draws: how many draws of classes; ``seeds`` how many heads per draw, each with its own order of samples.
        groups: leave out whole groups.
        outside: (M, d) features of samples that belong to no class of the whole hierarchy, or None.
        guarantee: a share: half of the classes left out set a threshold that keeps this share from false answers on average
            over new classes, the other half shows whether it does; in :data:`SPLITS` ways for every head. None: not asked.
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

    def run(self, told: Callable[[str, Rows], None] = lambda text, rows: None) -> Rows:
        """One row per draw, seed, method and number of points lost; ``told`` hears of every seed, with the rows so far."""
        for name in self.methods:
            check_choice("A method", name, METHODS)
        kept: dict[Any, Any] = {}
        rows: Rows = []
        judged: _Judged = {}
        for seed in range(self.seeds):  # whatever stops it, all draws have as many seeds, or one more
            for draw in range(self.draws):
                drawn = self.leave_out
                if isinstance(drawn, int | float):
                    drawn = draw_classes(self.hierarchy, drawn, draw, groups=self.groups)
                left = leave_out(self.hierarchy, drawn)
                rows += self._rows(left, draw, seed, kept, judged)
                told(f"seed {seed + 1} of {self.seeds}, draw {draw + 1} of {self.draws}", rows)
        for name, parts in judged.items():  # a class counts once, with all heads that were trained without it
            classes = np.concatenate([y for _, y in parts])
            t = self._bound(joined_outcomes([part for part, _ in parts]), classes)
            row = dict.fromkeys(rows[0], float("nan")) | {"draw": "all", "seed": "all", "method": name}
            rows.append({**row, "lost": f"guarantee {self.guarantee:g}", "threshold": t})
        told("done", rows)
        return rows

    def _bound(self, outcomes: Outcomes, classes: IntArray) -> float:
        """The least threshold that keeps the guarantee on average over new classes."""
        assert self.guarantee is not None
        bound = GroupGuarantee(RiskBound.of_accuracy(self.guarantee, None, "samples"))
        return bound.threshold(outcomes, group_places(classes, len(outcomes))[1])

    def _rows(self, left: LeftOut, draw: int, seed: int, kept: dict[Any, Any], judged: _Judged) -> Rows:
        h, truth, unseen = left.hierarchy, left.truths[self.test[1]], left.labels[self.test[1]] < 0
        scores: dict[str, Tensor] = {}
        base = self.log_q(left, METHODS[BASELINE], seed, kept, scores)[: len(truth)].numpy()
        right = h.leaf_nodes[base[:, h.leaf_nodes].argmax(axis=1)] == truth
        best = 100 * float(right[~unseen].mean())
        found = []
        for name in self.methods:
            about, rule = {"draw": draw, "seed": seed, "method": name}, METHODS[name].rule
            every = self.log_q(left, METHODS[name], seed, kept, scores)
            log_q, outside = every[: len(truth)], every[len(truth) :]
            points = curve(log_q, truth, unseen, h, rule)
            for lost in LOST:
                point = at_known(points, best - lost) or Point(*[float("nan")] * len(Point._fields))
                found.append({**about, "lost": lost, "best": best, **point._asdict()})
                if self.outside is not None:
                    (answer,) = answers_at(outside, h, rule, [point.threshold])
                    named = float((np.append(h.labels, -1)[answer] >= 0).mean())
                    found[-1]["outside_named"] = float("nan") if np.isnan(point.threshold) else 100 * named
            if self.guarantee is not None and (rule, True) in LADDERS:
                new = np.flatnonzero(unseen)
                scored = Scores(log_q[torch.from_numpy(new)], h, "node_log_probs", "nodes")
                outcomes = outcomes_of(scored, truth[new], rule=rule, labels="nodes")
                judged.setdefault(name, []).append((outcomes, self.test[1][new]))
                found += self._guaranteed(log_q, outcomes, left, rule, about)
        return found

    def _guaranteed(
        self, log_q: Tensor, outcomes: Outcomes, left: LeftOut, rule: str, about: dict[str, Any]
    ) -> Rows:
        """What a threshold set on half of the classes left out does for the other half."""
        y, found, new = self.test[1], [], left.labels[self.test[1]] < 0
        for split in range(SPLITS):
            rng = np.random.default_rng([about["draw"], about["seed"], split])
            order = rng.permutation(np.unique(y[new]))
            setting, judging = np.split(order, [len(order) // 2])
            sets = np.isin(y[new], setting)
            t = self._bound(outcomes.take(np.flatnonzero(sets)), y[new][sets])
            (answer,) = answers_at(log_q, left.hierarchy, rule, [t])
            rows, lost = ~np.isin(y, setting), outcomes.losses(t)
            worth = _worth(answer[rows], left.truths[y[rows]], left.hierarchy)
            row = {"lost": f"guarantee {self.guarantee:g}", "best": float("nan")}
            row |= Point(t, *_shares(worth, new[rows]))._asdict()
            false = 100 * float(np.mean([lost[y[new] == c].mean() for c in judging]))  # over classes
            found.append({**about, **row, "unseen_false": false})
        return found

    def log_q(
        self, left: LeftOut, made: Candidate, seed: int, kept: dict[Any, Any], scores: dict[str, Tensor]
    ) -> Tensor:
        """(M, N) log q* of the test samples by a method trained without the classes left out.

        ``kept`` has what draws and seeds share, the rate of a loss and the distances of a draw; ``scores`` those of one head.
        """
        label = left.labels[self.train[1]]
        x, y = unit_rows(self.train[0][label >= 0]), label[label >= 0]
        h, test = left.hierarchy, unit_rows(self.test[0])
        test = test if self.outside is None else np.concatenate([test, unit_rows(self.outside)])
        if made.distances and left.classes not in kept:
            kept[left.classes] = distance_logits(x, y, test)
        near = kept[left.classes] if made.distances else None
        if made.loss is None:
            assert near is not None
            return build_loss("cross_entropy", h).node_log_probs(near)
        loss = build_loss(made.loss, h, **made.options)
        key = f"{made.loss} {made.options}"
        optimization = Optimization(epochs=self.epochs, batch_size=256)
        if key not in kept:  # once, on a tenth of the training samples of the first draw
            held = np.arange(len(y)) % 10 == 0
            heads = fit_heads(x[~held], y[~held], [Trial(loss, r) for r in RATES], optimization, seed=seed)
            found = [loss.leaf_logits(head_scores(x[held], head)).argmax(dim=1).numpy() for head in heads]
            kept[key] = RATES[int(np.argmax([(labels == y[held]).mean() for labels in found]))]
        if key not in scores:
            (head,) = fit_heads(x, y, [Trial(loss, kept[key])], optimization, seed=seed)
            scores[key] = head_scores(test, head)
        z = scores[key]
        return loss.node_log_probs(z if near is None else refined(z, near, loss.head.leaf_nodes))


def distance_logits(x: np.ndarray, y: IntArray, test: np.ndarray) -> Tensor:
    """(M, n) Mahalanobis distances to the classes' means, as logits: linear discriminant analysis, equal priors.

    Features are not Gaussian, so these densities are overconfident: a tenth of them counts.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    n = int(y.max()) + 1
    made = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3, priors=np.full(n, 1 / n)).fit(x, y)
    found = made.decision_function(test)
    if n == 2:  # scikit-learn has the difference
        found = np.stack([-found, found], axis=1) / 2
    return torch.from_numpy(0.1 * found).float()


def refined(z: Tensor, near: Tensor, leaves: Tensor) -> Tensor:
    """Logits over nodes in which distances share in the choice of the class; all classes together keep their mass."""
    found = z.index_select(1, leaves)
    chosen = (found.log_softmax(dim=1) + near).log_softmax(dim=1)
    return z.index_copy(1, leaves, found.logsumexp(dim=1, keepdim=True) + chosen)


def summary(rows: Rows, lost: float = 3.0) -> Rows:
    """Per method the means at so many points lost, with half the width of a 95% interval over draws (Student)."""
    found = []
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name and row["lost"] == lost]
        line: dict[str, Any] = {"method": name, "lost": lost, "draws": len({row["draw"] for row in mine})}
        for field in Point._fields[1:]:
            draws = {row["draw"] for row in mine}
            each = [float(np.mean([r[field] for r in mine if r["draw"] == d])) for d in draws]
            over_draws = seed_interval(each)
            line[field], line[f"{field}_95"] = over_draws.value, (over_draws.high - over_draws.low) / 2
        found.append(line)
    return found


def card(rows: Rows, lost: float = 3.0) -> str:
    """If something new appears, this is what happens: a table in text."""
    best, lines = np.nanmean([row["best"] for row in rows]), summary(rows, lost)
    several = lines[0]["draws"] > 1
    heads = "".join(f"{title:>16}" for title, _ in COLUMNS.values())
    said = [
        f"Something new appears: what each method says, keeping {best - lost:.1f}% exact answers on the classes it knows",
        f"(cross-entropy's best class has {best:.1f}% and names a listed class for everything new).",
        "",
        f"{'method':24}{heads}   in % of new samples",
    ]
    said += [f"{line['method']:24}" + "".join(f"{c:>16}" for c in cells(line)) for line in lines]
    return "\n".join([*said, *["± 95% over draws"] * several, *guarantees(rows)])


COLUMNS = {
    "unseen_true": ("true", 1),
    "unseen_exact": ("exact", 1),
    "unseen_named": ("named a class", 1),
    "distance": ("distance", 2),
}  # fields of a point on the card: title and digits


def cells(line: dict[str, Any]) -> list[str]:
    """What a line of :func:`summary` shows for each of :data:`COLUMNS`."""
    if np.isnan(line["known_exact"]):  # in some draw it never kept as many exact answers
        return ["less accurate", *["-"] * (len(COLUMNS) - 1)]
    half = {f: f" ± {line[f'{f}_95']:.{d}f}" if line["draws"] > 1 else "" for f, (_, d) in COLUMNS.items()}
    return [f"{line[f]:.{d}f}{half[f]}" for f, (_, d) in COLUMNS.items()]


def guarantees(rows: Rows) -> list[str]:
    """What the guarantee over classes gave, a sentence per method."""
    found = []
    for name in dict.fromkeys(row["method"] for row in rows if isinstance(row["lost"], str)):
        mine = [row for row in rows if row["method"] == name and isinstance(row["lost"], str)]
        halved = [row for row in mine if row["draw"] != "all"]
        fields = "unseen_false", "unseen_true", "known_exact"
        false, true, known = (np.mean([row[f] for row in halved]) for f in fields)
        at = "".join(f"; threshold {row['threshold']:.3g}" for row in mine if row["draw"] == "all")
        found.append(
            f"{mine[0]['lost']}, {name}: {false:.1f}% false answers on average over new classes ({len(halved)} halvings), "
            f"{true:.1f}% true, {known:.1f}% exact on known classes{at}"
        )
    return found


def write_rows(rows: Rows, path: Path) -> None:
    """A CSV file, six digits each."""
    cells = ([f"{v:.6g}" if isinstance(v, float) else v for v in map(row.get, rows[0])] for row in rows)
    write_whole(path, csv_text([rows[0], *cells], raw=True, end="\n").encode())
