"""Whether new samples look like the calibration samples, as far as that can be seen without labels.

A :class:`Profile` holds what can be seen: the confidence of each sample, its best class and, with features, the similarity to
the nearest training sample (:mod:`hace.decisions.nearness`). The last is the best alarm where a guarantee was calibrated on a
random hold-out: held-out samples that have a twin among the training samples are nearer to them than new samples are.

:func:`compare_profiles` tests that calibration units and new units, samples or groups, are exchangeable. Confidence and
similarity count with the greatest distance between the two distributions (Kolmogorov and Smirnov), the best classes with
chi-squared of their shares; groups count the same, whatever their size. Which units are the new ones is drawn again and again:
under exchangeability each draw is as likely as the real one, so the share of draws with as great a distance is an exact
p-value. The p-values of the several distances are corrected for each other by the least of each draw (Westfall and Young 1993).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hace.checks import require
from hace.decisions.bounds import group_places
from hace.decisions.scores import Scores, rank_leaves
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy

_DRAWS = 999
_GRID = 64  # points at which two distributions are compared
_BLOCK = 1 << 22  # entries worked on at once
_UNLIKE = 0.05  # the share of calibration samples that count as unlike the rest
_STORED = 7  # digits of numbers in a file
_COMPARED = 5  # digits that are compared: equal scores stay equal, whatever their rounding


@dataclass(frozen=True, eq=False)
class Profile:
    """What can be seen of samples without their labels.

    Attributes:
        confidence: (S,) the probability of the best class.
        best: (S,) the label of the best class.
        similarity: (S,) to the nearest training sample; None: without features.
        groups: (S,) the group of each sample, as text; None: samples stand for themselves.
    """

    confidence: np.ndarray
    best: np.ndarray
    similarity: np.ndarray | None = None
    groups: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        scores: Any,
        hierarchy: Hierarchy,
        *,
        similarity: np.ndarray | None = None,
        groups: Sequence[Any] | np.ndarray | None = None,
        kind: str = "logits",
        outputs: str = "auto",
    ) -> Profile:
        """From scores, prepared as a threshold takes them.

        Args:
            scores: (S, n) over the leaves or (S, N) over the nodes.
            hierarchy: The hierarchy.
            similarity: (S,) from :func:`hace.nearest_similarity`.
            groups: (S,) the group of each sample.
            kind: See :func:`hace.predict`.
            outputs: See :func:`hace.predict`.
        """
        given = Scores(scores, hierarchy, kind, outputs)
        confidence = np.empty(len(given))
        best = np.empty(len(given), dtype=np.int64)
        for rows, block in given.blocks():
            log_p = block.leaves().log_softmax(dim=1)
            label = rank_leaves(log_p, 1)
            best[rows] = label.squeeze(1).cpu().numpy()
            confidence[rows] = log_p.gather(1, label).squeeze(1).double().exp().cpu().numpy()
        if similarity is not None:
            similarity = np.asarray(similarity, dtype=np.float64)
            if similarity.shape != (len(given),) or not np.isfinite(similarity).all():
                raise DataError(
                    f"similarity must hold one finite number for each of the {len(given)} samples. "
                    f"Got shape {similarity.shape}."
                )
        named = None
        if groups is not None:
            names, places = group_places(groups, len(given))
            named = names[places]
        return cls(confidence, best, similarity, named)

    def __len__(self) -> int:
        return len(self.confidence)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; numbers to more digits than are compared."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        short = {
            n: c.round(_STORED) if c is not None and c.dtype.kind == "f" else c for n, c in columns.items()
        }
        return {name: None if column is None else column.tolist() for name, column in short.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        """What :meth:`to_dict` gave."""
        kinds = {"confidence": np.float64, "best": np.int64, "similarity": np.float64, "groups": np.str_}
        columns = {name: values.get(name) for name in kinds}
        if columns["confidence"] is None or columns["best"] is None:
            raise DataError(
                "A profile must hold confidence and best, one of each for every sample. Calibrate again."
            )
        made = {n: None if c is None else np.asarray(c, dtype=kinds[n]) for n, c in columns.items()}
        if len({column.shape for column in made.values() if column is not None}) != 1:
            raise DataError("The columns of a profile must have one length. Calibrate again.")
        return cls(**made)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Comparison:
    """How new samples differ from the calibration samples.

    Attributes:
        p_values: by what was compared, corrected for each other.
        distances: the greatest distance of the two distributions; for the best classes, chi-squared
            of their shares.
        units: "samples" or "groups".
        unlike: the share of new samples that are less similar to the training samples than 95% of the calibration
            samples; less confident, where there are no features. 0.05 is expected.
        unlike_groups: the same for each new group.
    """

    p_values: dict[str, float]
    distances: dict[str, float]
    units: str
    unlike: float
    unlike_groups: dict[str, float]

    @property
    def p_value(self) -> float:
        """Of all comparisons together."""
        return min(self.p_values.values())


def compare_profiles(
    calibration: Profile, new: Profile, *, by_group: bool = False, draws: int = _DRAWS, seed: int = 0
) -> Comparison:
    """Test that new samples, or groups of them, are exchangeable with the calibration samples.

    Args:
        calibration: What was seen of the calibration samples.
        new: The same of the new samples.
        by_group: Whole groups are exchangeable, samples within them are not.
        draws: How often it is drawn again which units are the new ones.
        seed: Of these draws.
    """
    require("draws", draws, "at least 1", draws >= 1)
    if not len(calibration) or not len(new):
        raise DataError("There must be at least one calibration sample and one new sample. Got none.")
    if by_group and (calibration.groups is None or new.groups is None):
        raise ConfigError("groups must name the group of every sample, of the calibration and new. Got none.")
    both, is_new = _units(calibration, new, by_group)
    columns = _compared(calibration, new)
    distances = np.array([_distances(column, both, is_new, draws, seed) for column in columns.values()])
    # (1 + draws) the share of draws at least as far, for every draw and the real one, which is first.
    order = np.sort(distances, axis=1)
    shares = np.array(
        [1 - np.searchsorted(o, d, side="left") / len(o) for o, d in zip(order, distances, strict=True)]
    )
    least = np.sort(shares.min(axis=0))
    p_values = [float(np.searchsorted(least, share, side="right") / len(least)) for share in shares[:, 0]]
    unlike = _unlike(calibration, new)
    each: dict[str, float] = {}
    if new.groups is not None:
        names, places = np.unique(new.groups, return_inverse=True)
        means = np.bincount(places, weights=unlike) / np.bincount(places)
        each = dict(zip(names.tolist(), means.tolist(), strict=True))
    named = {n: float(d[0]) for n, d in zip(columns, distances, strict=True)}
    units = "groups" if by_group else "samples"
    return Comparison(dict(zip(columns, p_values, strict=True)), named, units, float(unlike.mean()), each)


def _units(calibration: Profile, new: Profile, by_group: bool) -> tuple[np.ndarray, np.ndarray]:
    """(S,) the unit of each sample, those of the calibration first, and (U,) which are new."""
    if not by_group:
        number = len(calibration) + len(new)
        return np.arange(number), np.arange(number) >= len(calibration)
    _, first = np.unique(calibration.groups, return_inverse=True)  # type: ignore[arg-type]
    _, second = np.unique(new.groups, return_inverse=True)  # type: ignore[arg-type]
    known = int(first.max()) + 1
    return np.concatenate([first, known + second]), np.arange(known + int(second.max()) + 1) >= known


def _compared(calibration: Profile, new: Profile) -> dict[str, tuple[np.ndarray, bool]]:
    """What is compared: (S, K) a row for each sample, whose means are compared, and whether they are shares of classes."""
    columns = {"confidence": (_below(calibration.confidence, new.confidence), False)}
    if calibration.similarity is not None and new.similarity is not None:
        columns["similarity"] = (_below(calibration.similarity, new.similarity), False)
    labels, place = np.unique(np.concatenate([calibration.best, new.best]), return_inverse=True)
    columns["classes"] = (np.eye(len(labels), dtype=np.float32)[place], True)
    return columns


def _below(calibration: np.ndarray, new: np.ndarray) -> np.ndarray:
    """(S, K) whether each value is at most each of some points spread over all of them."""
    values = np.concatenate([_as_compared(calibration), _as_compared(new)])
    points = np.unique(np.quantile(values, np.linspace(0, 1, _GRID + 2)[1:-1]))
    return (values[:, None] <= points).astype(np.float32)


def _distances(
    column: tuple[np.ndarray, bool], unit: np.ndarray, is_new: np.ndarray, draws: int, seed: int
) -> np.ndarray:
    """(1 + draws,) the distance of the new units from the others, as it is and for other draws of the new ones."""
    rows, shares = column
    sizes = np.bincount(unit).astype(np.float32)
    means = np.zeros((len(sizes), rows.shape[1]), dtype=np.float32)
    np.add.at(means, unit, rows)
    means /= sizes[:, None]
    total = means.sum(axis=0)
    number = len(is_new)
    new = int(is_new.sum())
    rng = np.random.default_rng(seed)  # the same draws for every column
    parts = []
    step = max(1, _BLOCK // number)
    for start in range(0, 1 + draws, step):
        drawn = np.tile(is_new, (min(step, 1 + draws - start), 1))
        rng.permuted(drawn[(start == 0) :], axis=1, out=drawn[(start == 0) :])
        inside = drawn.astype(np.float32) @ means
        apart = inside / new - (total - inside) / (number - new)
        if shares:
            parts.append((apart**2 / np.maximum(total / number, 1e-12)).sum(axis=1))
        else:
            parts.append(np.abs(apart).max(axis=1))
    return np.round(np.concatenate(parts), 5)  # ties of equal draws, whatever the order of their sums


def _unlike(calibration: Profile, new: Profile) -> np.ndarray:
    """(S,) whether a new sample is below nearly all calibration samples."""
    seen = calibration.similarity
    here = new.similarity
    if seen is None or here is None:
        seen = calibration.confidence
        here = new.confidence
    return _as_compared(here) < np.quantile(_as_compared(seen), _UNLIKE)


def _as_compared(values: np.ndarray) -> np.ndarray:
    """Values in the few digits that are compared; the same whether they were stored or not, hence rounded twice."""
    return values.round(_STORED).round(_COMPARED)
