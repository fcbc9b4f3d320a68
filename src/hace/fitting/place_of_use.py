"""Splits that stand for the place where a model will be used, from unlabelled samples of it.

Held-out samples stand for new ones if both are as near to the training samples. Of photos in bursts, or syllables of one
recording, a random hold-out is nearer: most of it has a twin in training. So samples of one label that are alike are kept
together, and how much alike is chosen without a label of the new samples: by average linkage of cosines at falling limits, the
first limit at which held-out samples are hardly nearer to the training samples than new ones are (the one-sided distance of
Kolmogorov and Smirnov). What is then less similar than new samples is drawn less often
(:func:`hace.decisions.nearness.samples_like`).

Average linkage because single linkage runs together and stays further from new samples; complete linkage did about as well.
`benchmarks/new_photos.py` shows how often guarantees then hold, and what they cost. Groups that the user named are neither cut
nor joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.decisions.nearness import ALARM, Nearness, nearer_by, similarity_alarm
from hace.fitting.splits import Splits
from hace.hierarchy.assembly import IntArray

LIMITS = (0.97, 0.95, 0.93, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3, 0.2)
_LINKED = 3000  # samples of a label that are linked; others join the one nearest to them
_MOST_NEW = 5000  # new samples that are looked at
_HELD = 0.5  # of what a random split holds out: less is no hold-out
_NEARER = 0.05  # held-out samples that are nearer by so little are as far as new ones

Split = Callable[[np.ndarray | None], Splits]


@dataclass(frozen=True, eq=False)
class PlaceOfUse:
    """How a split was made to stand for new samples.

    Attributes:
        parts: the split.
        groups: (M,) what it kept together; None: every sample is its own.
        limit: the cosine from which on samples of a label stay together; None: the plain split was as good.
        before: the distance of held-out samples from new ones in similarity, with the plain split.
        after: the same with this split.
    """

    parts: Splits
    groups: np.ndarray | None
    limit: float | None
    before: float
    after: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done, in sentences."""
        if self.limit is None:
            verdict = "no other split comes closer"
            if self.before > ALARM:
                verdict = (
                    "no other split comes closer, so label some of the new samples and calibrate on them"
                )
            return (
                f"Held-out and new samples differ by {self.before:.2f} in similarity to training; {verdict}.",
            )
        return (
            f"Samples of a label with a cosine above {self.limit:g} were kept together: held-out and new samples differ by "
            f"{self.after:.2f} in similarity to training, {self.before:.2f} with a random split.",
        )


def split_for(
    new: np.ndarray, x: Any, nodes: IntArray, split: Split, together: np.ndarray | None, fixed: bool
) -> PlaceOfUse:
    """The split whose held-out samples are no nearer to the training samples than new ones are, or hardly.

    Args:
        new: (P, F) features of unlabelled samples from the place of use.
        x: (M, F) features of labelled samples.
        nodes: (M,) node indices of their labels.
        split: makes the parts, from what they must keep together.
        together: (M,) what is kept together anyway.
        fixed: whether nothing else may be kept together: the user named groups, or the splits.
    """
    near = Nearness.of(x)
    rows = near.on_axes(x)
    drawn = np.random.default_rng(0).permutation(len(new))[:_MOST_NEW]
    theirs = near.on_axes(np.asarray(new)[drawn])

    def apart(parts: Splits) -> tuple[float, float]:
        """How much nearer held-out samples are, and how far they are from new ones in any direction."""
        training = rows[parts.train]
        ours = _nearest(rows[parts.calibration], training)
        others = _nearest(theirs, training)
        return nearer_by(ours, others), similarity_alarm(ours, others)

    plain = split(together)
    if not len(plain.calibration):
        return PlaceOfUse(plain, together, None, float("nan"), float("nan"))
    nearer, before = apart(plain)
    best = PlaceOfUse(plain, together, None, before, before)
    if fixed:
        return best
    least = _HELD * len(plain.calibration)
    for limit, alike in zip(LIMITS, alike_groups(rows, nodes), strict=True):
        if nearer <= _NEARER:
            break
        groups = alike.astype(str) if together is None else _joined(alike, together)
        parts = split(groups)
        if len(parts.calibration) < least:
            continue
        nearer_now, after = apart(parts)
        if nearer_now < nearer:
            nearer = nearer_now
            best = PlaceOfUse(parts, groups, limit, before, after)
    return best


def alike_groups(rows: np.ndarray, nodes: IntArray) -> np.ndarray:
    """(limits, M) the number of each sample's group at each limit: samples of a label, linked by their average cosine."""
    from scipy.cluster.hierarchy import fcluster, linkage

    groups = np.zeros((len(LIMITS), len(rows)), dtype=np.int64)
    count = np.zeros(len(LIMITS), dtype=np.int64)
    rng = np.random.default_rng(0)
    for label in np.unique(nodes):
        members = np.flatnonzero(nodes == label)
        linked = np.sort(rng.permutation(members)[:_LINKED])
        own = np.ones((len(LIMITS), 1), dtype=np.int64)
        if len(linked) > 1:
            apart = 1 - rows[linked] @ rows[linked].T
            upper = np.triu_indices(len(linked), 1)
            tree = linkage(np.maximum(apart[upper], 0).astype(np.float64), "average")
            own = np.array([fcluster(tree, 1 - limit, "distance") for limit in LIMITS])
        nearest = (rows[members] @ rows[linked].T).argmax(axis=1)
        groups[:, members] = own[:, nearest] + count[:, None]
        count += own.max(axis=1)
    return groups


def _joined(alike: np.ndarray, together: np.ndarray) -> np.ndarray:
    """(M,) groups of alike samples, of which those that share a group of `together` are one."""
    from hace.fitting.twins import joined_groups

    place = np.unique(together, return_inverse=True)[1]
    return joined_groups(alike.astype(str), place)


def _nearest(rows: np.ndarray, training: np.ndarray) -> np.ndarray:
    """(S,) the cosine of each row and the nearest training row."""
    step = max(1, (1 << 22) // max(1, len(training)))
    parts = [(rows[i : i + step] @ training.T).max(axis=1) for i in range(0, len(rows), step)]
    return np.concatenate(parts) if parts else np.empty(0)
