"""Large data: features stay on disk, a part of the samples chooses, and heads are trained in mini-batches.

L-BFGS holds all features and some thirty copies of the head. Where that is more than HACE_MAX_MEMORY, the head goes through
the samples a batch at a time instead, by SGD with momentum: it has the same objective, so the weight decay means the same, and
where both can be run it arrives within two percent of the same loss, in fewer passes. Its rate is the best of three in short
trainings.

The choice looks at :data:`MOST` samples at most: then the standard error of the difference between two candidates that
disagree about a twentieth of the samples is 0.16 points, and no difference that matters hides below it. Many classes would
leave few samples of each, a problem unlike the one at hand, and a choice that takes hours. So :data:`LOGITS` bounds samples
times classes, and where there are more, whole branches of the hierarchy choose, with all their samples: relatives, which are
what losses differ by, stay together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.files.reading import max_memory
from hace.fitting.inputs import Given
from hace.fitting.splits import Splits
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.linear.features import RowsOnDisk
from hace.linear.fit import fit_heads
from hace.linear.heads import Optimization, Trial
from hace.linear.selection import spread
from hace.losses.base import HierarchicalLoss

MOST = 20_000  # samples that choose
LOGITS = 4_000_000  # samples times classes that choose
_BRANCHES = 8  # at least so many branches choose, where whole branches do and have more than siblings
_COPIES = 28  # of the head, in double precision, that L-BFGS holds: pairs of steps and gradients, and what a step needs
_SCORED = 1 << 28  # probabilities of nodes that are evaluated at once
BATCH = 256
_STEPS = 4_000  # of SGD, at least
_EPOCHS = 5  # at least
_RATES = (0.1, 0.3, 1.0)  # per class: the gradient of a class's weights shrinks with their number
_TRIED = 20_000  # samples that try rates
_ROWS = 1024  # features that are read at once


@dataclass(frozen=True, eq=False)
class Sample:
    """The samples that choose: all, or a part of them over a part of the hierarchy.

    Attributes:
        given: the samples.
        parts: which of them train, calibrate and test.
        groups: of those that train, what no fold may cut; None: nothing.
        share: of all training samples, how many train here.
        note: what was left out, in a sentence; "" where nothing was.
    """

    given: Given
    parts: Splits
    groups: np.ndarray | None
    share: float = 1.0
    note: str = ""


def sample_of(given: Given, parts: Splits, together: np.ndarray | None, seed: int) -> Sample:
    """The samples that choose; ``together``: (M,) what no fold may cut, or None.

    All training samples where they are few (:func:`_most_that_choose`) and their logits at most LOGITS; else a random part,
    drawn with a seed, and of very many classes only whole branches. Calibration and test samples are cut by branch only.
    """
    h = given.hierarchy
    rows = len(parts.train)
    leaves = given.hierarchy.num_leaves
    most = _most_that_choose(given.x)
    if rows <= most and rows * leaves <= LOGITS:
        return Sample(given, parts, None if together is None else together[parts.train])
    rng = np.random.default_rng([seed, rows])
    part = h
    inside = np.full(h.num_nodes, True)
    if min(rows, most) * leaves > LOGITS:
        part, inside = _branches(h, _classes(rows, leaves, most), rng)
    train = some(parts.train[inside[given.nodes[parts.train]]], given.x, seed)
    calibration = parts.calibration[inside[given.nodes[parts.calibration]]]
    test = parts.test[inside[given.nodes[parts.test]]]
    smaller = given.rows(np.concatenate([train, calibration, test]))
    where = ""
    if part is not h:
        place_of = {node: v for v, node in enumerate(part.nodes)}
        place = np.array([place_of.get(node, -1) for node in h.nodes])
        smaller = replace(smaller, hierarchy=part, nodes=place[smaller.nodes])
        where = f", of {part.num_leaves:,} of {leaves:,} classes in whole branches,"
    after_train = len(train) + len(calibration)
    own = Splits(
        np.arange(len(train)),
        np.arange(len(train), after_train),
        np.arange(after_train, len(smaller.nodes)),
        parts.own,
    )
    note = f"{len(train):,} of {rows:,} training samples{where} chose the loss and its weight decay."
    groups = None if together is None else together[train]
    return Sample(smaller, own, groups, len(train) / rows, note)


def some(rows: IntArray, x: Any, seed: int) -> IntArray:
    """Rows of features, or where they are many as many of them as may choose, drawn with a seed."""
    most = _most_that_choose(x)
    return (
        rows
        if len(rows) <= most
        else np.sort(np.random.default_rng([seed, len(rows)]).permutation(rows)[:most])
    )


def _most_that_choose(x: Any) -> int:
    """How many samples choose at most: MOST, or of features on disk fewer, if so many would take half of HACE_MAX_MEMORY."""
    return min(MOST, max(1, max_memory() // (8 * x.shape[1]))) if isinstance(x, RowsOnDisk) else MOST


def _classes(rows: int, leaves: int, most: int) -> int:
    """The most classes whose samples, at most so many of them, stay within LOGITS."""
    all_samples = (LOGITS * leaves / rows) ** 0.5
    fits = all_samples * rows / leaves <= most
    return max(2, min(leaves, int(all_samples) if fits else LOGITS // most))


def _branches(h: Hierarchy, classes: int, rng: np.random.Generator) -> tuple[Hierarchy, np.ndarray]:
    """The hierarchy over whole branches, drawn at random, with about so many classes; and (N,) which nodes are in them."""
    counts = (h.labels >= 0).astype(np.int64)
    for parent, child in reversed(h.edges.tolist()):
        counts[parent] += counts[child]
    parents, children = h.edges.T
    has_grandchildren = np.isin(np.arange(h.num_nodes), parents[h.labels[children] < 0])
    fits = counts <= np.where(has_grandchildren, classes // _BRANCHES, classes // 2)  # siblings stay together
    below = np.zeros(h.num_nodes, dtype=bool)
    below[children[fits[parents]]] = True
    inside = np.zeros(h.num_nodes, dtype=bool)
    total = 0
    for top in rng.permutation(np.flatnonzero(fits & ~below)).tolist():
        if total + counts[top] > classes:
            continue
        total += counts[top]
        inside[top] = True
        inside[[h.index(node) for node in h.descendants(h.nodes[top])]] = True
    leaves = [h.nodes[v] for v in h.leaf_nodes.tolist() if inside[v]]
    return h.subset(leaves), inside


def bounded(parts: Splits, h: Hierarchy, seed: int) -> Splits:
    """Parts of which calibration and test samples are no more than can be scored at once: a random part of each."""
    most = max(1_000, _SCORED // (8 * h.num_nodes))
    rng = np.random.default_rng([seed, most])
    held = {}
    notes = list(parts.notes)
    for name in ("calibration", "test"):
        rows = getattr(parts, name)
        if len(rows) > most:
            held[name] = np.sort(rng.permutation(rows)[:most])
            notes.append(
                f"{most:,} of {len(rows):,} {name} samples are used: more would not fit into memory at once."
            )
    return replace(parts, **held, notes=tuple(notes))


# --- training in mini-batches


def why_streamed(samples: int, width: int, h: Hierarchy) -> str:
    """Why a head over a hierarchy is trained in mini-batches, in a sentence; "" where L-BFGS has room."""
    needed = 8 * samples * width + 8 * _COPIES * (width + 1) * h.num_nodes
    if needed <= max_memory():
        return ""
    gib = 1 << 30
    passes = epochs_of(samples)
    return (
        f"The head was trained in mini-batches, in {passes} passes over the samples: L-BFGS would take {needed / gib:.1f} GiB, "
        f"more than HACE_MAX_MEMORY={max_memory() / gib:.3g}G."
    )


def epochs_of(samples: int) -> int:
    """How often SGD goes over so many samples."""
    return max(_EPOCHS, -(-_STEPS * BATCH // samples))


def rate_of(x: Any, target: IntArray, loss: HierarchicalLoss, decay: float, seed: int) -> float:
    """The rate of SGD with the least loss after a short training on some of the samples."""
    rows = np.arange(len(target))
    if len(rows) > _TRIED:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:_TRIED])
    epochs = max(2, -(-_STEPS * BATCH // (16 * len(rows))))
    options = Optimization("sgd", epochs=epochs, batch_size=BATCH, start="zeros")
    trials = [Trial(loss, rate * loss.num_outputs, decay) for rate in _RATES]
    heads = fit_heads(x[rows], target[rows], trials, options, seed=seed)
    losses = [np.inf if head.diverged is not None else head.history[-1]["loss"] for head in heads]
    return trials[int(np.argmin(losses))].lr


# --- features a part at a time


def scaled(x: RowsOnDisk, mean: np.ndarray | None, divisor: np.ndarray) -> RowsOnDisk:
    """Rows on disk as (x - mean) / divisor, where they are read."""
    return x.scaled(functools.partial(_scaled, mean, divisor))


def _scaled(mean: np.ndarray | None, divisor: np.ndarray, rows: np.ndarray) -> Tensor:
    centred = rows if mean is None else rows - mean
    return torch.from_numpy((centred / divisor).astype(np.float32))


def shortened(x: Any, count: int) -> tuple[np.ndarray, float]:
    """(M, count) rows on the leading principal axes of a sample of them, and the sample's spread."""
    sample = np.asarray(x[some(np.arange(len(x)), x, 0)], dtype=np.float32)
    mean = sample.mean(axis=0)
    axes = np.eye(x.shape[1], dtype=np.float32)
    if x.shape[1] > count:
        centred = torch.from_numpy(sample - mean)
        axes = torch.linalg.eigh((centred.T @ centred).double()).eigenvectors[:, -count:].float().numpy()
    return np.concatenate([(part - mean) @ axes for part in blocks(x)]), spread(sample)


def blocks(x: Any) -> Iterator[np.ndarray]:
    """Features in float32, some rows at a time."""
    for first in range(0, len(x), _ROWS):
        yield np.asarray(x[first : first + _ROWS], dtype=np.float32)
