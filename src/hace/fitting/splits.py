"""Which samples train, calibrate and test: the user's own splits where there are any, else held out, never cutting a group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hace.data.split import part_of_each, part_of_groups, places_of_each, split_name
from hace.errors import DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray

TRAIN = "train"
CALIBRATION = "val"
TEST = "test"
FOLDS = 3
# With fewer samples, or groups, that have a class label, what trains in two of three folds is too little to stand for all.
FEW = 200
MORE_FOLDS = 5
# A guarantee of 95% needs 19 samples; of these many a temperature and a test are worth their cost.
LEAST = 20
ENOUGH = 130  # samples with a class label, of which so many can be held out twice, to calibrate and to test
# What is held out: enough for narrow intervals, as a share within these bounds.
_WANTED = {TEST: (1000, 0.1, 0.2), CALIBRATION: (500, 0.05, 0.2)}
MOST_GROUPS = 0.25  # share of groups to hold out, where guarantees rest on groups and these are few
_SEEDS = {TEST: 0x7E57, CALIBRATION: 0xCA11}


@dataclass(frozen=True, eq=False)
class Splits:
    """Positions of the samples of each part.

    Attributes:
        train: samples that train and choose.
        calibration: samples that calibrate; none where there are too few.
        test: samples that are only evaluated; none where there are too few.
        own: the parts that the user made.
        notes: what could not be done, one sentence each.
    """

    train: IntArray
    calibration: IntArray
    test: IntArray
    own: frozenset[str]
    notes: tuple[str, ...] = ()


def split_samples(
    nodes: IntArray,
    hierarchy: Hierarchy,
    given: np.ndarray | None,
    together: np.ndarray | None,
    seed: int = 0,
) -> Splits:
    """The parts of labelled samples.

    Args:
        nodes: (M,) node indices of labels.
        hierarchy: the hierarchy.
        given: (M,) names of the user's splits; None: there are none.
        together: (M,) groups that no split cuts; None: every sample is its own.
        seed: decides what is held out.
    """
    names = np.full(len(nodes), TRAIN) if given is None else np.array([split_name(str(n)) for n in given])
    strange = sorted(set(names.tolist()) - {TRAIN, CALIBRATION, TEST})
    if strange:
        raise DataError(
            f"split must be train, val or test. Got {strange[0]!r}. Rename it, or leave the column out with split=None."
        )
    if TRAIN not in names:
        raise DataError(
            f"split must have training samples. Got only {', '.join(sorted(set(names.tolist())))}."
        )
    own = frozenset(set(names.tolist()) - {TRAIN})
    notes = []
    for part in (TEST, CALIBRATION):
        if part in own:
            continue
        pool = np.flatnonzero(names == TRAIN)
        held = _held_out(nodes[pool], hierarchy, None if together is None else together[pool], part, seed)
        if len(held) < LEAST:
            what = "test" if part == TEST else "calibrate and guarantee"
            where = ""
            if together is not None and len(pool) > 2 * (groups := len(np.unique(together[pool]))):
                where = f" in {groups:,} groups"
            notes.append(
                f"{len(pool):,} samples{where} are too few to hold out {LEAST} with a class label: nothing is left to {what}."
            )
            continue
        names[pool[held]] = part
    train, calibration, test = (np.flatnonzero(names == part) for part in (TRAIN, CALIBRATION, TEST))
    if not (hierarchy.labels[nodes[train]] >= 0).any():
        raise DataError(
            "Training samples must have class labels. All of them are labelled above the classes."
        )
    return Splits(train, calibration, test, own, tuple(notes))


def _held_out(nodes: IntArray, h: Hierarchy, together: np.ndarray | None, part: str, seed: int) -> IntArray:
    """Positions to hold out: of every class its share, never its last sample or group; none that is labelled coarsely."""
    fine = np.flatnonzero(h.labels[nodes] >= 0)
    wanted, least, most = _WANTED[part]
    share = min(max(wanted / max(len(fine), 1), least), most)
    rng = [seed, _SEEDS[part]]
    if together is None or len(np.unique(together)) == len(together):
        return fine[part_of_each(nodes[fine], share, rng)[1]]
    groups = len(np.unique(together))
    share = max(share, min(MOST_GROUPS, LEAST / groups))
    held = part_of_groups(nodes, together, share, rng)[1]
    return np.intersect1d(held, fine)


def folds_of(nodes: IntArray, hierarchy: Hierarchy, together: np.ndarray | None, seed: int = 0) -> IntArray:
    """(M,) the fold of each sample, from 0: classes spread evenly, groups whole; each leaves class labels outside."""
    fine = hierarchy.labels[nodes] >= 0
    units = np.flatnonzero(fine) if together is None else np.unique(together[fine])
    folds = MORE_FOLDS if len(units) < FEW else FOLDS
    if together is None or len(np.unique(together)) == len(together):
        fold = places_of_each(nodes, [seed]) % folds
    else:
        fold = _grouped_folds(nodes, together, folds, seed)
    for i in range(folds):
        if not (fine & (fold != i)).any():
            raise DataError(
                "Training samples with a class label must be in two groups or more, to choose a loss. Got one group of "
                "samples that belong together, or are near-copies. Add samples of others, or take samples one by one: "
                "groups=False (--groups none)."
            )
    return fold


def _grouped_folds(nodes: IntArray, together: np.ndarray, folds: int, seed: int) -> IntArray:
    """(M,) the fold of each sample, groups whole: the largest first, each where its labels, then all samples, are fewest."""
    _, group = np.unique(together, return_inverse=True)
    sizes = np.bincount(group)
    _, label = np.unique(nodes, return_inverse=True)
    fold = np.full(len(sizes), -1)
    counts = np.zeros((folds, label.max() + 1))
    totals = np.bincount(label)
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(sizes)[:-1])
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sizes))
    for place in order[np.argsort(-sizes[order], kind="stable")]:  # the largest first
        own, number = np.unique(label[members[place]], return_counts=True)
        load = (counts[:, own] / totals[own]).sum(axis=1)
        fold[place] = int(np.lexsort((counts.sum(axis=1), load))[0])
        counts[fold[place], own] += number
    return fold[group]
