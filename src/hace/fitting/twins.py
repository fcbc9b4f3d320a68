"""Samples that belong together though nobody said so: near-copies, bursts of photos, and rows that follow one another.

Near-copies are kept together by every split, as if they were a group: a twin in training makes held-out samples look easier
than new ones are. They are found among the nearest neighbours of features, and photos of one label that one camera took within
seconds are near-copies as well. Long recordings are not found that way: one sample of them is as far from the next as from a
new one. What gives them away is the order of the data, in which relatives stand close (:func:`share_in_sequence`). Then only
the user knows which samples belong together, and is told to say so; cutting the order into runs (:func:`runs`) helps, but less.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from hace.data.split import split_name
from hace.errors import ConfigError, DataError
from hace.files.reading import optional
from hace.fitting.inputs import Given
from hace.fitting.large import shortened
from hace.fitting.splits import CALIBRATION, TEST, TRAIN
from hace.hierarchy.assembly import IntArray
from hace.linear.features import RowsOnDisk

# Squared distance of near-copies, as a share of that of two samples drawn at random. Of photos it separates copies from others
# by a wide gap; texts that mean the same are no copies, and rows of a table are copies only if they are equal.
_NEAR = {"photos": 0.1, "features": 0.01, "texts": 0.003}
_EQUAL = 1e-9
_FEW_FEATURES = 16  # with fewer, samples are near one another by chance, and only equal rows are copies
_BURST = 10.0  # seconds
GAP = 60.0  # seconds without a photo that begin another group
RUNS = 5  # of each label, where the order of the data makes groups
_TELLING = 0.25  # share of samples whose nearest relative is close in the order; by chance 2 x _CLOSE
_CLOSE = 0.05
_MOST = 20_000  # samples that are compared with all others; more are compared within their label
_AXES = 64
_ROWS = 512
_CHECKED = 1 << 13
_PART = 0.34  # of a label's samples: more are no copies of one another
_LEAST = 20  # samples of a label whose order says something
# Tags of EXIF.
_DATE = 0x0132
_EXIF = 0x8769
_ORIGINAL = 0x9003
_MODEL = 0x0110


class Together(NamedTuple):
    """What splits must not cut.

    Attributes:
        groups: (M,) a name for each sample; None: every sample is its own.
        notes: what was found, one sentence each.
        by_user: whether the user named the groups, so that guarantees are about new ones.
    """

    groups: np.ndarray | None
    notes: tuple[str, ...] = ()
    by_user: bool = False


TIME = "time"
SEQUENCE = "sequence"


def grouped(given: Given, how: str) -> Given:
    """The samples with groups from the times of photos, or from the order of the data."""
    if how == SEQUENCE:
        return replace(given, groups=runs(given.nodes))
    if given.kind != "photos" or given.items is None:
        raise ConfigError(
            f"groups='time' must come with photos: their EXIF times make groups. Got {given.kind}."
        )
    return replace(given, groups=times(given.items))


def together(given: Given) -> Together:
    """The groups of the user, with near-copies joined to them; else near-copies alone."""
    place = near_copies(given)
    notes = []
    if len(given) > 1 and (place == place[0]).all():
        raise DataError(f"Features must differ between samples. All {len(given):,} are the same.")
    copies = int((np.bincount(place)[place] > 1).sum())
    if copies:
        across = _copies_in_training(given.split, place)
        remark = "; ".join(across) or "splits keep them together"
        notes.append(f"{copies:,} of {len(given):,} samples are near-copies of another; {remark}.")
    notes += _two_labels(given, place)
    if given.groups is not None:
        joined = joined_groups(given.groups, place)
        return Together(joined, tuple(notes), by_user=True)
    share = share_in_sequence(given.x, given.nodes)
    if share > _TELLING:
        notes.insert(
            0,
            f"Samples that follow one another resemble each other: {share:.0%} have their nearest neighbour close by in the "
            f"data, where chance alone gives {2 * _CLOSE:.0%}. If they come from recordings, bursts or sites, guarantees from "
            "random samples fail for new ones: name the column (groups=), or cut the order into runs (groups='sequence').",
        )
    return Together(place.astype(str) if copies else None, tuple(notes))


def near_copies(given: Given) -> IntArray:
    """(M,) the number of each sample's near-copies."""
    x = given.x
    if hasattr(x, "tocsr"):
        return np.arange(len(given))
    if given.kind == "table" or x.shape[1] < _FEW_FEATURES:
        _, first = np.unique(np.asarray(x), axis=0, return_inverse=True)
        return first.ravel()
    labels = given.nodes if len(given) > _MOST else np.zeros(len(given), dtype=np.int64)
    x = x if isinstance(x, RowsOnDisk) else np.asarray(x, dtype=np.float32)
    short, spread = shortened(x, _AXES)
    limit = 2 * spread * _NEAR.get(given.kind, _EQUAL)
    pairs_by_label = [_pairs(x, short, rows, limit) for rows in _members(labels)]
    pairs = np.concatenate([pairs for pairs, _ in pairs_by_label])
    distance = np.concatenate([distances for _, distances in pairs_by_label])
    bursts = np.zeros((0, 2), dtype=np.int64)
    if given.kind == "photos" and given.items is not None:
        bursts = _bursts(given.items, given.nodes)
    place = _components(np.concatenate([pairs, bursts]), len(given))
    while len(pairs) and _swallow(place, given.nodes):  # a chain of samples, each near the next: no copies
        limit /= 4
        near = distance <= limit
        pairs = pairs[near]
        distance = distance[near]
        place = _components(np.concatenate([pairs, bursts]), len(given))
    return place


def _swallow(place: IntArray, nodes: IntArray) -> bool:
    """Whether some copies are most of what a label has."""
    pairs, counts = np.unique(np.stack([nodes, place], axis=1), axis=0, return_counts=True)
    totals = np.bincount(nodes)[pairs[:, 0]]
    return bool(((counts > _PART * totals) & (totals >= _LEAST)).any())


def joined_groups(groups: np.ndarray, place: IntArray) -> np.ndarray:
    """(M,) groups of the user, of which those that share near-copies are one."""
    names, own = np.unique(groups, return_inverse=True)
    pairs = np.stack([own, len(names) + place], axis=1)
    joined = _components(pairs, len(names) + int(place.max()) + 1)[: len(names)]
    first = np.unique(joined, return_index=True)[1]
    return names[first][np.searchsorted(joined[first], joined)][own] if len(first) < len(names) else groups


def share_in_sequence(x: Any, nodes: IntArray) -> float:
    """The share of samples whose nearest relative of the same label is within a twentieth of the label's samples, in their
    order.

    Near-copies and order by chance give :data:`_CLOSE` on either side.
    """
    if hasattr(x, "tocsr"):
        return 0.0
    close = 0
    total = 0
    labels = _members(nodes)
    for label in np.random.default_rng(len(nodes)).permutation(len(labels)).tolist():
        rows = labels[label]
        if len(rows) < _LEAST or total >= _MOST:
            continue
        rows = rows[: _MOST // 4]
        nearest = _nearest(np.asarray(x[rows], dtype=np.float32))
        reach = max(1, int(_CLOSE * len(rows)))
        close += int((np.abs(nearest - np.arange(len(rows))) <= reach).sum())
        total += len(rows)
    return close / total if total else 0.0


def runs(nodes: IntArray) -> np.ndarray:
    """(M,) groups from the order of the data: the samples of every label in a few runs."""
    run = np.zeros(len(nodes), dtype=np.int64)
    count = 0
    for rows in _members(nodes):
        number = min(RUNS, len(rows))
        run[rows] = count + np.arange(len(rows)) * number // len(rows)
        count += number
    return np.array([f"run {i}" for i in run.tolist()])


def times(paths: Sequence[Path]) -> np.ndarray:
    """(M,) groups of photos from their EXIF times: a camera's photos without a long gap between them are one."""
    taken = [_taken(path) for path in paths]
    groups = np.array([f"photo {i}" for i in range(len(taken))], dtype=object)
    known = sorted((camera, seconds, i) for i, (camera, seconds) in enumerate(taken) if seconds is not None)
    before: tuple[str, float, int] | None = None
    for camera, seconds, i in known:
        if before is not None and before[0] == camera and seconds - before[1] <= GAP:
            groups[i] = groups[before[2]]
        else:
            groups[i] = f"{camera} {datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
        before = (camera, seconds, i)
    return groups.astype(str)


def _copies_in_training(split: Any, place: IntArray) -> list[str]:
    """How many samples of splits that the user made have a near-copy in training, where nothing keeps them together."""
    if split is None:
        return []
    names = np.array([split_name(str(name)) for name in split])
    trained = np.isin(place, place[names == TRAIN])
    notes = []
    for part in (CALIBRATION, TEST):
        own = names == part
        twins = int((own & trained).sum())
        if twins:
            what = "guarantees flatter" if part == CALIBRATION else "accuracy flatters"
            has = "has" if twins == 1 else "have"
            notes.append(
                f"{twins:,} of your {own.sum():,} {part} samples {has} one in training, so {what} the model"
            )
    return notes


def _two_labels(given: Given, place: IntArray) -> list[str]:
    """A note about near-copies with different classes."""
    h = given.hierarchy
    fine = np.flatnonzero(h.labels[given.nodes] >= 0)
    pairs = np.unique(np.stack([place[fine], given.nodes[fine]], axis=1), axis=0)
    several = np.flatnonzero(np.bincount(pairs[:, 0]) > 1)
    if not len(several):
        return []
    first = fine[place[fine] == several[0]]
    other = first[given.nodes[first] != given.nodes[first[0]]][0]
    return [
        f"{len(several):,} near-copies have different labels, such as {given.names[int(first[0])]} and "
        f"{given.names[int(other)]}: {h.names[given.nodes[first[0]]]} and {h.names[given.nodes[other]]}."
    ]


def _members(labels: IntArray) -> list[IntArray]:
    """The positions of each label's samples."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _pairs(x: Any, short: np.ndarray, rows: IntArray, limit: float) -> tuple[IntArray, np.ndarray]:
    """Pairs of rows (P, 2) within a limit, and their squared distances (P,): sought on few axes, measured on all."""
    part = short[rows]
    squares = np.square(part).sum(axis=1, keepdims=True)
    reach = limit + 1e-4 * float(squares.max(initial=0.0))  # rounding
    ones = np.ones_like(squares)
    left = np.hstack([part, squares, ones])  # |a - b|^2 as one product
    right = np.hstack([-2 * part, ones, squares])
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    distances = [np.zeros(0, dtype=np.float32)]
    for start in range(0, len(part), _ROWS):
        block = slice(start, start + _ROWS)
        distance = left[block] @ right[start:].T
        i, j = np.nonzero(distance <= reach)
        later = j > i
        near = np.stack([rows[start + i[later]], rows[start + j[later]]], axis=1)
        for first in range(0, len(near), _CHECKED):
            some = near[first : first + _CHECKED]
            apart = np.square(np.asarray(x[some[:, 0]]) - np.asarray(x[some[:, 1]])).sum(axis=1)
            pairs.append(some[apart <= limit])
            distances.append(apart[apart <= limit])
    return np.concatenate(pairs), np.concatenate(distances)


def _nearest(x: np.ndarray) -> IntArray:
    """(M,) the nearest other row of each."""
    x = x - x.mean(axis=0)
    squares = np.square(x).sum(axis=1)
    nearest = np.empty(len(x), dtype=np.int64)
    for start in range(0, len(x), _ROWS):
        block = slice(start, start + _ROWS)
        distance = squares[block, None] + squares[None] - 2 * x[block] @ x.T
        own = np.arange(len(distance))
        distance[own, start + own] = np.inf
        nearest[block] = distance.argmin(axis=1)
    return nearest


def _components(pairs: IntArray, count: int) -> IntArray:
    """(count,) the number of the component that each of so many nodes is in."""
    ones = np.ones(len(pairs), dtype=bool)
    graph = sparse.coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def _bursts(paths: Sequence[Any], nodes: IntArray) -> IntArray:
    """(P, 2) photos of one label that one camera took within seconds."""
    taken = [_taken(path) for path in paths]
    known = sorted(
        (int(nodes[i]), camera, seconds, i)
        for i, (camera, seconds) in enumerate(taken)
        if seconds is not None
    )
    pairs = [(a[3], b[3]) for a, b in itertools.pairwise(known) if a[:2] == b[:2] and b[2] - a[2] <= _BURST]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _taken(path: Any) -> tuple[str, float | None]:
    """The camera and the time of a photo, in seconds; None where it does not say."""
    pillow = optional("PIL.Image", "Reading photos")
    try:
        with pillow.open(path) as image:
            about = image.getexif()
            when = about.get_ifd(_EXIF).get(_ORIGINAL) or about.get(_DATE)
            if not isinstance(when, str):
                return "", None
            return str(about.get(_MODEL, "")), datetime.strptime(
                when.strip(), "%Y:%m:%d %H:%M:%S"
            ).timestamp()
    # No EXIF, or what a camera should not write.
    except (OSError, ValueError, SyntaxError, KeyError, TypeError):
        return "", None
