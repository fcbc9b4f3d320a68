"""Answers from the scores of a model: at a level, at a threshold, or with a guarantee once it is calibrated.

Where scores come from, and how samples become scores, is the business of whoever calls: :class:`hace.HACEClassifier`,
:class:`hace.Answers` and :class:`hace.Predictor` share what is here.

One temperature belongs to the model. What answers are restricted to, a prior and the pooling of groups are a :class:`Use` of
its scores, and every use has guarantees of its own: they rest on the held-out samples of its classes that did not fit the
temperature.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch

from hace.decisions.bounds import GUARANTEES, RiskBound, group_places
from hace.decisions.calibration import (
    ACCURACIES,
    CONFIDENCE,
    Calibration,
    calibration_samples,
    fitted_temperature,
    part_for_temperature,
)
from hace.decisions.check import Check, check
from hace.decisions.decisions import Decisions
from hace.decisions.guarantees import GuaranteedThreshold, guaranteed_threshold
from hace.decisions.nearness import Likeness, samples_like
from hace.decisions.rules import at_level, decide
from hace.decisions.scores import INDEPENDENT, Scores, check_prior, inside_subset, subset_mask
from hace.decisions.shift import Profile
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy

_SHARE = 2  # one of so many calibration samples fits the temperature
Key = tuple[float | None, float | None, str, float | None]  # accuracy, confidence, of, group_share


@dataclass(frozen=True)
class Use:
    """What happens to scores before a rule sees them; equal uses have the same guarantees.

    Attributes:
        subset: The classes that answers are restricted to, such as those of a region; None: all.
        prior: Pairs of a node and its weight: how much likelier it is here than in training.
        pool: How the answers to the samples of a group become one, "mean" or "log"; None: each sample has its own.
    """

    subset: tuple[str, ...] | None = None
    prior: tuple[tuple[str, float], ...] | None = None
    pool: str | None = None

    @classmethod
    def of(cls, subset: Any = None, prior: Mapping[str, float] | None = None, pool: str | None = None) -> Use:
        """From what a caller gives: a class or several, a mapping, a way to pool."""
        if isinstance(subset, Iterable) and getattr(subset, "ndim", 1) > 0:
            one = isinstance(subset, str)
            subset = (subset,) if one else tuple(dict.fromkeys(map(str, subset)))
        if prior is not None:
            check_prior(prior)
            prior = tuple(sorted(prior.items()))  # type: ignore[assignment]
        return cls(subset, prior, pool)  # type: ignore[arg-type]

    @property
    def weights(self) -> dict[str, float] | None:
        """The prior as a mapping."""
        return None if self.prior is None else dict(self.prior)

    def prepared(self, scores: Scores, temperature: float, places: np.ndarray | None = None) -> Scores:
        """Scores as rules take them; ``places``: the number of each sample's group, where groups are pooled."""
        scores = scores.restricted(
            None if self.subset is None else subset_mask(scores.hierarchy, self.subset)
        )
        if self.pool is not None and places is not None:
            scores = scores.pooled(places, self.pool)
        return scores.cooled(temperature).weighted(self.weights)

    def __str__(self) -> str:
        return (
            f"subset={reprlib.repr(self.subset)}, prior={reprlib.repr(self.weights)} and pool={self.pool!r}"
        )


@dataclass(frozen=True, eq=False)
class _Held:
    """Held-out samples, as the model scores them."""

    scores: Scores
    truth: np.ndarray
    groups: Any
    fits: np.ndarray  # (S,) which of them fit the temperature
    given: float | None  # a temperature from other samples
    near: np.ndarray | None = None  # (S,) their similarity to the nearest training sample
    like: np.ndarray | None = (
        None  # (M,) that of new samples, which those that support guarantees are drawn to match
    )


@dataclass(eq=False)
class _Basis:
    """What the guarantees of one use rest on, and those that were asked for."""

    temperature: float
    samples: int
    thresholds: dict[Key, GuaranteedThreshold] = field(default_factory=dict)
    profile: Profile | None = None
    log_q: np.ndarray | None = None  # None: from a file, which holds guarantees alone
    truth: np.ndarray | None = None
    groups: np.ndarray | None = None
    likeness: Likeness | None = None


class AnswersFromScores:
    """The answers of one model, and what it learned from held-out samples.

    Attributes:
        hierarchy: The classes.
        temperature: Scores of single samples are divided by it; 1 until :meth:`calibrate`.
        temperature_samples: How many samples fitted it.
        labelled: Nodes that have training labels; answers may be kept from going deeper. None: any node has.
        default: The use that :meth:`guarantee` speaks of unless another is asked for.
    """

    def __init__(self, hierarchy: Hierarchy, labelled: np.ndarray | None = None) -> None:
        self.hierarchy = hierarchy
        self.labelled = labelled
        self.temperature = 1.0
        self.temperature_samples = 0
        self.default = Use()
        self._held: _Held | None = None
        self._bases: dict[Use, _Basis] = {}
        self._deepest: np.ndarray | None = None

    # -- calibration

    def calibrate(
        self,
        scores: Scores,
        truth: np.ndarray,
        groups: Any,
        use: Use,
        temperature: float | None = None,
        *,
        near: np.ndarray | None = None,
        like: np.ndarray | None = None,
    ) -> None:
        """Fit the temperature on a random half of held-out samples; guarantees rest on the others.

        Nothing changes if it fails.

        Args:
            scores: Of the samples, as the model gives them.
            truth: (S,) their nodes.
            groups: (S,) their groups; None: none.
            use: What guarantees are about unless another use is asked for.
            temperature: From other samples, 1 for none: all samples then support guarantees.
            near: (S,) similarity of the samples to the nearest training sample; see :mod:`hace.decisions.nearness`.
            like: (M,) that of new samples: guarantees rest on samples drawn to be as similar as these.
        """
        if len(truth) < 2:
            raise DataError(f"X must hold at least two samples to calibrate with. Got {len(truth)}.")
        if use.pool is not None and groups is None:
            raise ConfigError("pool needs groups: the site, burst or recording of each sample. Got none.")
        if scores.kind in INDEPENDENT:
            temperature = 1.0 if temperature is None else temperature
        fits = np.zeros(len(truth), dtype=bool)
        if temperature is None:
            fits = part_for_temperature(len(truth), groups, _SHARE, np.random.default_rng(0))
        held = _Held(scores.checked(), truth, groups, fits, temperature, near, like)
        basis = self._basis_of(held, use, self._temperature(held, use))
        self._held = held
        self._bases = {use: basis}
        self.default = use
        self.temperature = basis.temperature if use.pool is None else self.temperature
        self.temperature_samples = int(fits.sum())

    def _temperature(self, held: _Held, use: Use) -> float:
        """Fitted on the samples set aside for it, as this use takes them."""
        if held.given is not None:
            return held.given
        fits = held.fits
        groups = None if held.groups is None else np.asarray(held.groups)[fits]
        scores, truth, _ = calibration_samples(
            held.scores[fits], held.truth[fits], groups, use.pool, use.subset
        )
        # No temperature helps a class that the model does not know.
        has_mass = _log_q_of(scores, truth) > -np.inf
        return fitted_temperature(scores[has_mass], truth[has_mass], len(held.truth))

    def _basis_of(self, held: _Held, use: Use, temperature: float) -> _Basis:
        """The samples that a use rests on: inside its subset, like the new ones where there are any, and pooled."""
        rows = ~held.fits
        if use.subset is not None:
            rows &= inside_subset(self.hierarchy, use.subset, held.truth)
        rows = np.flatnonzero(rows)
        likeness = None
        if held.like is not None:
            if held.groups is not None:
                raise ConfigError(
                    "new must come without groups: samples are drawn to be like the new ones, not groups. Leave one of them "
                    "out."
                )
            likeness = samples_like(held.near[rows], held.like)  # type: ignore[index]
            rows = rows[likeness.rows]
        groups = None if held.groups is None else np.asarray(held.groups)[rows]
        scores, truth, groups = calibration_samples(
            held.scores[rows], held.truth[rows], groups, use.pool, use.subset
        )
        log_q = scores.cooled(temperature).weighted(use.weights).log_q().numpy()
        near = None if held.near is None or use.pool is not None else held.near[rows]
        profile = Profile.of(log_q, self.hierarchy, similarity=near, groups=groups, kind="node_log_probs")
        return _Basis(temperature, len(truth), {}, profile, log_q, truth, groups, likeness)

    def _basis(self, use: Use) -> _Basis:
        """What guarantees of a use rest on, made when it is first asked for."""
        if use in self._bases:
            return self._bases[use]
        if self._held is None and not self._bases:
            raise ConfigError(
                "accuracy needs a calibrated classifier. Call calibrate(X, y) with samples that fit did not see, or give a "
                "threshold."
            )
        if self._held is None:
            known = "; ".join(map(str, self._bases))
            raise ConfigError(
                f"accuracy must be for a use that the file holds: {known}. Got {use}. Calibrate again."
            )
        if use.pool is not None and self._held.groups is None:
            raise ConfigError(
                "accuracy for groups needs a calibration with groups. Call calibrate(X, y, groups)."
            )
        same = use.pool is None and self.default.pool is None
        temperature = self.temperature if same else self._temperature(self._held, use)
        self._bases[use] = self._basis_of(self._held, use, temperature)
        return self._bases[use]

    def guarantee(
        self,
        use: Use | None = None,
        accuracy: float = 0.95,
        *,
        of: str = "samples",
        confidence: float | None = None,
        group_share: float | None = None,
    ) -> GuaranteedThreshold:
        """The threshold that keeps a guarantee for a use; the default one if None."""
        accuracy = 0.95 if accuracy is None else accuracy
        RiskBound.of_accuracy(accuracy, confidence, of, group_share)  # refuses what no guarantee can be
        basis = self._basis(self.default if use is None else use)
        key = accuracy, confidence, of, group_share
        if key in basis.thresholds:
            return basis.thresholds[key]
        if basis.log_q is None:
            known = ", ".join(f"{t.accuracy:g} of {t.of}" for t in basis.thresholds.values())
            raise ConfigError(
                f"accuracy must be one that the file holds: {known}. Got {accuracy:g} of {of}. Calibrate again, or call "
                "guarantee with it before save."
            )
        basis.thresholds[key] = guaranteed_threshold(
            torch.from_numpy(basis.log_q),
            torch.from_numpy(basis.truth),
            self.hierarchy,
            accuracy,
            confidence,
            of,
            groups=basis.groups,
            group_share=group_share,
            labels="nodes",
            kind="node_log_probs",
        )
        return basis.thresholds[key]

    @property
    def likeness(self) -> Likeness | None:
        """How the samples behind the default guarantees were drawn to be like new ones; None: they were not."""
        basis = self._bases.get(self.default)
        return None if basis is None else basis.likeness

    # -- answers

    def prepared(self, scores: Scores, use: Use) -> Scores:
        """The scores of single samples as a use takes them, divided by the temperature."""
        return use.prepared(scores, self.temperature)

    def decide(
        self,
        scores: Scores,
        use: Use,
        *,
        threshold: float | Sequence[float] | None = None,
        level: int | str | None = None,
        accuracy: float | None = None,
        of: str = "samples",
        confidence: float | None = None,
        group_share: float | None = None,
        groups: Any = None,
        unlabelled: str = "stop",
    ) -> Decisions:
        """Answers to samples, or with ``use.pool`` to the groups named by ``groups``, in the order of ``np.unique``."""
        ways = {"threshold": threshold, "level": level, "accuracy": accuracy}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} must not be given together. Drop all but one.")
        guarantee = None
        if accuracy is not None:
            options: dict[str, Any] = {"of": of, "confidence": confidence, "group_share": group_share}
            guarantee = self.guarantee(use, accuracy, **options)
        if use.pool is None:
            scores = self.prepared(scores, use)
        else:
            temperature = 1.0 if guarantee is None else self._basis(use).temperature
            scores = use.prepared(scores, temperature, group_places(groups, len(scores))[1])
        if guarantee is None and level is None and threshold is None:
            threshold = 0.5
        decided = answer(scores, guarantee=guarantee, threshold=threshold, level=level)
        return decided if unlabelled == "allow" else stopped(decided, scores, self.deepest)

    @property
    def deepest(self) -> np.ndarray | None:
        """(N + 1,) the deepest allowed answer per node, -1 last; None if unrestricted."""
        if self._deepest is None and self.labelled is not None:
            self._deepest = deepest_labelled(self.labelled, self.hierarchy)
        return self._deepest

    def check(
        self,
        scores: Scores,
        truth: np.ndarray | None,
        groups: Any,
        use: Use,
        accuracy: float = 0.95,
        *,
        near: np.ndarray | None = None,
        level: float = 0.05,
        **options: Any,
    ) -> Check:
        """Whether a guarantee still holds on new samples; see :func:`hace.check`. ``near``: as of :meth:`calibrate`."""
        guarantee = self.guarantee(use, accuracy, **options)
        profile = self._basis(use).profile
        if profile is None or use.pool is not None:
            raise ConfigError("check needs a calibration without pool. Call calibrate(X, y) again.")
        return check(
            guarantee,
            profile,
            self.prepared(scores, use).log_q(),
            self.hierarchy,
            target=truth,
            similarity=near,
            groups=groups,
            labels="nodes",
            level=level,
            kind="node_log_probs",
        )

    # -- files

    def record(self, outputs: str, use: Use | None = None) -> Calibration | None:
        """What can be stored of a use: the usual guarantees, those asked for, and the profile; None without a guarantee."""
        use = self.default if use is None else use
        if self._held is not None:
            for of, accuracy in product(GUARANTEES, ACCURACIES):
                with suppress(DataError):  # too few samples for it
                    self.guarantee(use, accuracy, of=of, confidence=CONFIDENCE if of == "answers" else None)
        basis = self._bases.get(use)
        if basis is None or not basis.thresholds:
            return None
        return Calibration(
            temperature=float(basis.temperature),
            thresholds=tuple(basis.thresholds.values()),
            split="calibrate",
            samples=basis.samples,
            temperature_samples=self.temperature_samples,
            outputs=outputs,
            hierarchy=self.hierarchy.fingerprint,
            pool=use.pool,
            subset=use.subset,
            prior=use.weights,
            profile=None if basis.profile is None else basis.profile.to_dict(),
            notes=() if basis.likeness is None else (basis.likeness.note,),
        )

    def take(self, record: Calibration) -> None:
        """Continue with what :meth:`record` gave, in place of any calibration."""
        use = Use.of(record.subset, record.prior, record.pool)
        basis = _Basis(record.temperature, record.samples)
        basis.thresholds = {(t.accuracy, t.confidence, t.of, t.group_share): t for t in record.thresholds}
        basis.profile = None if record.profile is None else Profile.from_dict(record.profile)
        self._held = None
        self._bases = {use: basis}
        self.default = use
        self.temperature = record.temperature if record.pool is None else self.temperature
        self.temperature_samples = record.temperature_samples


def answer(
    scores: Scores,
    *,
    guarantee: GuaranteedThreshold | None = None,
    threshold: float | Sequence[float] | None = None,
    level: int | str | None = None,
    nodes: int | None = None,
) -> Decisions:
    """Answers to prepared scores by the first that is given, or the best leaf; ``nodes``: sets of so many, by a threshold."""
    if guarantee is not None:
        return guarantee.predict(scores.data, scores.hierarchy, kind=scores.kind, outputs=scores.outputs)
    if threshold is not None and nodes is not None:
        return decide(scores, "set", threshold=threshold, nodes=nodes)
    if threshold is not None:
        return decide(scores, "threshold", threshold=threshold)
    if level is not None:
        return at_level(scores.log_q(), scores.hierarchy, level)
    return decide(scores, "leaf")


def stopped(decided: Decisions, scores: Scores, deepest: np.ndarray | None) -> Decisions:
    """The answers, no deeper than ``deepest`` (N + 1,) allows; a true answer that moves up stays true."""
    if deepest is None:
        return decided
    if decided.nodes.dim() == 2:  # each node of a set by itself
        columns = zip(decided.nodes.unbind(1), decided.probabilities.unbind(1), strict=True)
        alone = [stopped(Decisions(decided.hierarchy, *column), scores, deepest) for column in columns]
        moved = [
            torch.where(old < 0, old, one.nodes)
            for old, one in zip(decided.nodes.unbind(1), alone, strict=True)
        ]
        probabilities = torch.stack([one.probabilities for one in alone], dim=1)
        return replace(decided, nodes=torch.stack(moved, dim=1), probabilities=probabilities)
    nodes = torch.from_numpy(deepest)[decided.nodes]
    moved = torch.nonzero(nodes != decided.nodes).flatten()
    if not len(moved):
        return decided
    probabilities = decided.probabilities.clone()
    q = scores[moved.numpy()].log_q().exp()
    above = torch.cat([q, q.new_ones(len(q), 1)], dim=1)  # no answer is certain
    probabilities[moved] = above.gather(1, nodes[moved, None])[:, 0].to(probabilities.dtype)
    return replace(decided, nodes=nodes, probabilities=probabilities)


def deepest_labelled(labels: np.ndarray, hierarchy: Hierarchy) -> np.ndarray:
    """(N + 1,) for each node the deepest node at or above it that has a label at or below it, or -1; -1 for no answer."""
    labelled = np.zeros(hierarchy.num_nodes, dtype=bool)
    labelled[labels] = True
    above, below = hierarchy.reachability()
    labelled[above[labelled[below]]] = True
    pairs = np.flatnonzero(labelled[above])
    pairs = pairs[np.argsort(hierarchy.depths[above[pairs]], kind="stable")]  # the deepest is written last
    deepest = np.full(hierarchy.num_nodes + 1, -1)
    deepest[below[pairs]] = above[pairs]
    return deepest


def _log_q_of(scores: Scores, truth: np.ndarray) -> np.ndarray:
    """(S,) log q* of each truth."""
    parts = [
        block.log_q().gather(1, torch.from_numpy(truth[rows])[:, None])[:, 0]
        for rows, block in scores.blocks()
    ]
    return torch.cat(parts).numpy() if parts else np.empty(0)
