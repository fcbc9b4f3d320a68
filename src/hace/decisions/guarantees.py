"""Thresholds with a finite-sample guarantee: a guarantee and calibration samples in, a record to keep and apply out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number
from hace.decisions.bounds import GUARANTEES, PREFERENCES, RiskBound, group_places, one_of_each
from hace.decisions.by_class import (
    CLASS,
    answers_within_classes,
    check_classes,
    pooled_thresholds,
    pools_of_classes,
)
from hace.decisions.decisions import Decisions
from hace.decisions.ladders import (
    LADDERS,
    NOTHING,
    Ladder,
    Outcomes,
    greatest_distance,
    ladder_of,
    no_answers,
)
from hace.decisions.node_sets import ladder_of_sets
from hace.decisions.rules import check_kind, decide
from hace.decisions.scores import Scores
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import layout
from hace.hierarchy.distances import DISTANCES

_FORMAT = "hace.threshold.3"
_OF_NEW_GROUPS = ("num_groups", "group_share", "prefer", "seed")  # keys of guarantees about new groups
# {unit}: what gets one answer, samples or groups whose samples are pooled.
_SAME_SOURCE = "New {unit} come from the same source as the calibration {unit} and are prepared alike: all are exchangeable"
_WITHIN_CLASSES = (
    "Within each class, new {unit} look like the calibration {unit} of that class; how many there are of each does not "
    "matter."
)
_WITHIN_POOLS = "It holds on average over them, if they are as frequent as in the calibration."
_ASSUMED = (
    "The model and its temperature were fitted and chosen on other {unit} than the calibration {unit}.",
    "New {unit} get the same subset of classes, if any, and nothing was chosen by looking at them.",
    "This guarantee was chosen without looking at thresholds: of several, each holds by itself, not all at once.",
    "The guarantee is about the average sample; only groups named here have one of their own.",
)
_NEW_GROUPS = "New groups come from the same source as the calibration groups and are prepared alike: all are exchangeable"
_WITHIN_GROUPS = (
    "Groups count the same, whatever their size; samples within a group may depend on each other in any way."
)


@dataclass(frozen=True)
class GuaranteedThreshold:
    """A threshold, what it guarantees, and how to answer with it.

    Attributes:
        rule: the rule of :func:`hace.predict` it is for.
        constrained: the option of the rule ``"threshold"``.
        threshold: the threshold from 0 to 1, or 2: answer nothing; with ``by``, one for each group.
        groups: None; ``"new"``: the guarantee is about new groups; by ``by``, ``"top"``: one threshold for each child of the
            root that the answer is under; ``"given"``: one for each group of the user; ``"class"``: one for each class, within
            which, or within whose pool, it holds.
        of: ``"samples"`` or ``"answers"``.
        accuracy: the guaranteed share of true answers, or None.
        distance: the distance of a guarantee about distance, or None.
        at_most: the guaranteed mean distance, or None.
        confidence: the probability with which the guarantee holds; None: it holds on average.
        samples: how many calibration samples it rests on.
        answered: the share of them that it answers below the root: what the guarantee costs.
        hierarchy: the fingerprint of the hierarchy.
        num_groups: how many groups a guarantee about new groups rests on.
        group_share: the share of new groups that keep it; None: it holds on average over them.
        prefer: ``"steadier"``: it rests on all samples of each group; ``"sharper"``: on one of each, drawn by the seed.
        seed: of this draw.
        nodes: the option of the rule ``"set"``.
        enough: of a guarantee about answers that answers nothing: about how many samples like these would give answers.
        pools: of a guarantee within classes: the classes of each pool, by their ids; a pool of one has enough samples of its
            own.
        pool_samples: how many calibration samples each of these pools has.
    """

    rule: str
    constrained: bool
    threshold: float | dict[Any, float]
    groups: str | None
    of: str
    accuracy: float | None
    distance: str | None
    at_most: float | None
    confidence: float | None
    samples: int
    answered: float
    hierarchy: str
    num_groups: int | None = None
    group_share: float | None = None
    prefer: str | None = None
    seed: int | None = None
    nodes: int | None = None
    pools: tuple[tuple[str, ...], ...] | None = None
    pool_samples: tuple[int, ...] | None = None
    enough: int | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it answers nothing, in any group."""
        each = self.threshold.values() if isinstance(self.threshold, dict) else (self.threshold,)
        return all(t > 1 for t in each)

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        return self.sentence()

    def sentence(self, unit: str = "samples") -> str:
        """The guarantee in one sentence; ``unit``: what gets one answer."""
        what = f"{self._where}{self._what(unit)}{self._over_what}{self._how_sure(unit)}"
        rests = f"{self.samples:,} {unit}"
        if self.groups == "new":
            one = (
                f", one sample of each, drawn by seed {self.seed}"
                if self.prefer == "sharper"
                else f", {rests}"
            )
            rests = f"{self.num_groups:,} groups{one}"
        silent = " It answers nothing." if self.is_silent else ""
        return f"{what[0].upper()}{what[1:]} ({rests}).{silent}"

    @property
    def _where(self) -> str:
        """The new groups that it speaks of; a group without answers has no share of true ones."""
        if self.groups != "new":
            return ""
        answering = self.of == "answers"
        if self.group_share is None:
            return "in a new group that gets answers, " if answering else "in a new group "
        those = "the new groups that get answers, " if answering else "new groups "
        return f"in at least {_percent(self.group_share)} of {those}"

    def _what(self, unit: str) -> str:
        whose = "its" if self.groups == "new" else "all"
        if self.distance is not None:
            return f"the mean distance ({self.distance}) of false answers, over {whose} {unit}, is at most {self.at_most:g}"
        assert self.accuracy is not None
        if self.of == "samples":
            return f"at most {_percent(1 - self.accuracy)} of {whose} {unit} get a false answer"
        return f"of {whose if whose == 'its' else 'the'} answers below the root, at least {_percent(self.accuracy)} are true"

    @property
    def _over_what(self) -> str:
        if self.groups == "new" and self.group_share is None:
            return f", on average over {'such' if self.of == 'answers' else 'new'} groups"
        if self.pools is not None:
            return f", {_each_pool(self.pools)}"
        return ", in each group" if self.groups in ("top", "given") else ""

    def _how_sure(self, unit: str) -> str:
        new = self.groups == "new"
        if self.confidence is not None:
            over = "groups" if new else unit
            return f", with probability {self.confidence:.12g} over the calibration {over}"
        return " and calibrations" if new and self.group_share is None else ", on average over calibrations"

    @property
    def cost(self) -> str:
        """What the guarantee costs, in one sentence."""
        if self.is_silent:
            more = "calibrate on more samples"
            if self.enough is not None:
                more += f": about {self.enough:,} like these would give answers"
            why = "of the surest answers too many are false, or too few are known"
            return f"It answers nothing: {why}. Ask for less, or {more}."
        share = f"It answers {100 * self.answered:.3g}% of the calibration samples below the root"
        if self.pools is not None:
            return f"{share}."
        groups = self.threshold.items() if isinstance(self.threshold, dict) else ()
        silent = ", ".join(str(name) for name, t in groups if t > 1)
        return f"{share}; nothing in {silent}." if silent else f"{share}."

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee assumes, and how groups hold together, one sentence each."""
        return self.assumed()

    def assumed(self, unit: str = "samples") -> tuple[str, ...]:
        """What the guarantee assumes, one sentence each; ``unit``: what gets one answer."""
        independent = "." if self.confidence is None else " and independent."
        always = tuple(text.format(unit=unit) for text in _ASSUMED)
        if self.groups == "new":
            return (_NEW_GROUPS + independent, *always[:-1], _WITHIN_GROUPS)
        if self.pools is not None:
            pooled = [" and ".join(pool) for pool in self.pools if len(pool) > 1]
            shared = f"Classes that share one guarantee: {'; '.join(pooled)}. {_WITHIN_POOLS}"
            joint = () if self.confidence is None else (self._all_at_once("class or pool", len(self.pools)),)
            return (_WITHIN_CLASSES.format(unit=unit), *always[:-1], *joint, *((shared,) if pooled else ()))
        assumed = (_SAME_SOURCE.format(unit=unit) + independent, *always)
        if not isinstance(self.threshold, dict):
            return assumed
        if self.confidence is None:
            return (*assumed, "Each group keeps the guarantee on average, and so do all of them together.")
        return (*assumed, self._all_at_once("group", len(self.threshold)))

    def _all_at_once(self, each: str, number: int) -> str:
        assert self.confidence is not None
        together = max(0.0, 1 - number * (1 - self.confidence))
        return f"Each {each} keeps it with that probability, all {number} at once with probability {together:.3g} or more."

    def bound(self, hierarchy: Hierarchy) -> RiskBound:
        """What it guarantees, in exact fractions."""
        return _bound(
            hierarchy, self.accuracy, self.confidence, self.of, self.distance, self.at_most, self.group_share
        )

    def outcomes(self, scores: Scores, truth: np.ndarray) -> Outcomes:
        """What its rule does to samples with truths (S,), nodes, at every threshold."""
        ladder = _ladder(scores, self.rule, self.constrained, self.nodes)
        return ladder.outcomes(truth, self.distance)

    def predict(
        self,
        scores: Any,
        hierarchy: Hierarchy,
        *,
        by: Sequence[Any] | np.ndarray | None = None,
        kind: str = "logits",
        outputs: str = "auto",
    ) -> Decisions:
        """Answers that keep the guarantee.

        Args:
            scores: (B, n) or (B, N), prepared as the calibration scores were.
            hierarchy: the hierarchy of the calibration.
            by: (B,) the group of each sample, where the calibration found a threshold for each group.
            kind: see :func:`hace.predict`.
            outputs: see :func:`hace.predict`.
        """
        if hierarchy.fingerprint != self.hierarchy:
            raise DataError(
                f"hierarchy must be the one of the calibration, {self.hierarchy[:12]}. Got {hierarchy.fingerprint[:12]}. "
                "Calibrate again with this hierarchy."
            )
        if (by is None) == (self.groups == "given"):
            rule = "must name the group of each sample" if by is None else "must be None"
            raise ConfigError(f"by {rule}: the calibration had groups={self.groups!r}.")
        given = Scores(scores, hierarchy, kind, outputs)
        if not isinstance(self.threshold, dict):
            return self._decided(given, self.threshold)
        if self.groups == CLASS:
            return answers_within_classes(
                given, np.array([self.threshold[leaf] for leaf in hierarchy.leaves])
            )
        if by is not None:
            members = _members(by, len(given))
        else:
            members = _tops(ladder_of(given, self.rule).tops(), hierarchy)
        unknown = [name for name in members if name not in self.threshold]
        if unknown:
            raise DataError(f"by must name groups of the calibration. Got {unknown[0]!r}.")
        answers = no_answers(given)  # where no answer is possible but the root
        for name, rows in members.items():
            part = self._decided(given[rows], self.threshold[name])
            answers.nodes[rows] = part.nodes
            answers.probabilities[rows] = part.probabilities
        return answers

    def _decided(self, scores: Scores, threshold: float) -> Decisions:
        if threshold > 1:
            return no_answers(scores) if self.nodes is None else self._no_sets(scores)
        options: dict[str, Any] = {"constrained": self.constrained} if self.rule == "threshold" else {}
        options |= {} if self.nodes is None else {"nodes": self.nodes}
        return decide(scores, self.rule, threshold=threshold, **options)

    def _no_sets(self, scores: Scores) -> Decisions:
        """The root, or no answer, and no further node."""
        alone = no_answers(scores)
        further = alone.nodes.new_full((len(scores), int(self.nodes or 1) - 1), -1)
        masses = alone.probabilities.new_zeros(further.shape)
        nodes = torch.cat([alone.nodes[:, None], further], dim=1)
        return Decisions(scores.hierarchy, nodes, torch.cat([alone.probabilities[:, None], masses], dim=1))

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if isinstance(self.threshold, dict):
            values["threshold"] = [[name, t] for name, t in self.threshold.items()]
        if self.groups != "new":
            values = {name: value for name, value in values.items() if name not in _OF_NEW_GROUPS}
        if self.nodes is None:
            del values["nodes"]
        if self.enough is None:
            del values["enough"]
        if self.pools is None or self.pool_samples is None:
            del values["pools"], values["pool_samples"]
        else:
            values["pools"] = [list(pool) for pool in self.pools]
            values["pool_samples"] = list(self.pool_samples)
        return {"format": _FORMAT} | values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GuaranteedThreshold:
        """The record that :meth:`to_dict` gave.

        Args:
            values: the dict, as read from JSON.
        """
        fields = set(cls.__dataclass_fields__)
        if values.get("groups") != "new":
            fields -= set(_OF_NEW_GROUPS)
        if values.get("rule") != "set":
            fields -= {"nodes"}
        if values.get("groups") != CLASS:
            fields -= {"pools", "pool_samples"}
        fields -= {"enough"} - set(values)
        if values.get("format") != _FORMAT or set(values) != fields | {"format"}:
            raise DataError(
                f"A threshold record must have format {_FORMAT!r} and the keys {', '.join(sorted(fields))}. "
                f"Got format {values.get('format')!r}. Calibrate again."
            )
        given = {name: values[name] for name in fields}
        if isinstance(given["threshold"], list):
            given["threshold"] = dict(given["threshold"])
        if isinstance(given.get("pools"), list):
            given["pools"] = tuple(tuple(map(str, pool)) for pool in given["pools"])
            given["pool_samples"] = tuple(given["pool_samples"])
        wrong = _wrong_fields(given)
        if wrong:
            raise DataError(
                "A threshold record must have thresholds from 0 to 1, or 2, a rule with one, and shares between 0 and 1. "
                f"Got {', '.join(f'{name} {given[name]!r}' for name in wrong)}. Calibrate again."
            )
        return cls(**given)


def _percent(share: float) -> str:
    return f"{100 * share:.6g}%"


def _wrong_fields(given: dict[str, Any]) -> list[str]:
    """The fields of a record that cannot be right."""
    thresholds = given["threshold"]
    by_group = isinstance(thresholds, dict)
    each = thresholds.values() if by_group else [thresholds]
    about_distance = given["distance"] is not None
    right = {
        "threshold": all(is_number(t) and (0 <= t <= 1 or t == NOTHING) for t in each),
        "answered": is_number(given["answered"]) and 0 <= given["answered"] <= 1,
        "rule": (given["rule"], given["constrained"]) in [*LADDERS, ("set", True)],
        "nodes": given["rule"] != "set" or isinstance(given["nodes"], int),
        "groups": given["groups"] in (("top", "given", "class") if by_group else (None, "new")),
        "pools": given["groups"] != CLASS or set(chain(*given["pools"])) == set(thresholds),
        "pool_samples": given["groups"] != CLASS
        or (
            len(given["pool_samples"]) == len(given["pools"])
            and all(isinstance(number, int) for number in given["pool_samples"])
        ),
        "of": given["of"] in GUARANTEES,
        "distance": given["distance"] in (None, *DISTANCES)
        and about_distance == (given["at_most"] is not None),
        "at_most": given["at_most"] is None or _is_above_zero(given["at_most"]),
        "accuracy": given["accuracy"] is None if about_distance else _is_share(given["accuracy"]),
        "confidence": given["confidence"] is None or _is_share(given["confidence"]),
        "samples": isinstance(given["samples"], int),
        "num_groups": given["groups"] != "new" or isinstance(given["num_groups"], int),
        "group_share": given.get("group_share") is None or _is_share(given["group_share"]),
        "prefer": given["groups"] != "new" or given["prefer"] in PREFERENCES,
        "seed": given.get("seed") is None or isinstance(given["seed"], int),
        "hierarchy": isinstance(given["hierarchy"], str),
        "enough": given.get("enough") is None or isinstance(given["enough"], int),
    }
    return [name for name, fits in right.items() if not fits]


def _each_pool(pools: tuple[tuple[str, ...], ...]) -> str:
    """Within what a guarantee holds: classes, or pools of several, within which a class may do worse."""
    several = [pool for pool in pools if len(pool) > 1]
    if not several:
        return "in each class"
    if len(pools) == 1:
        return "over all classes, which share one pool"
    if len(several) == len(pools):
        return f"in each of {len(pools)} pools of classes"
    shared = f"{len(several)} pool{'s' if len(several) > 1 else ''}"
    return f"in each class or pool of classes ({sum(map(len, several))} of the classes share {shared})"


def _is_above_zero(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_share(value: Any) -> bool:
    return _is_above_zero(value) and value < 1


def guaranteed_threshold(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    accuracy: float | None = None,
    confidence: float | None = None,
    of: str = "samples",
    *,
    distance: str | None = None,
    at_most: float | None = None,
    rule: str = "threshold",
    constrained: bool = True,
    nodes: int | None = None,
    groups: Sequence[Any] | np.ndarray | None = None,
    group_share: float | None = None,
    prefer: str = "steadier",
    seed: int = 0,
    by: str | Sequence[Any] | np.ndarray | None = None,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> GuaranteedThreshold:
    """The least threshold of ``predict`` that keeps a guarantee on new samples.

    An answer is true when it is the truth or an ancestor of it; an answer at the root, or none, says nothing. An answer
    below a truth at an inner node counts as false. Where no threshold up to 1 keeps the guarantee, the record answers
    nothing: ``threshold`` is 2, and ``cost`` says so.

    What the guarantee assumes: the calibration samples and the new ones are exchangeable (same source, same model, same
    preparation of the scores, no ``subset``, no weights); the model, its temperature and this call were settled without
    looking at the new samples, and the model and its temperature without these calibration samples. The guarantee is about the
    average new sample, not about each class; ``by`` makes one for each group. Samples that come in groups, such as photos of
    one site, are not exchangeable with those of a new group: name the ``groups``, and the guarantee is about new ones.

    Args:
        scores: (B, n) over leaves in label order or (B, N) over nodes in node order, of held-out samples.
        target: (B,) truths: labels of leaves, or any nodes with ``labels="nodes"``.
        hierarchy: the hierarchy; a tree or forest for ``rule="climb"``.
        accuracy: the guaranteed share, above 0 and below 1. Default: 0.95.
        confidence: None: the guarantee holds on average over calibration samples and new samples. A probability: with at
            least this probability over the choice of the calibration samples, the threshold found keeps the guarantee.
        of: ``"samples"``: at most 1 - accuracy of all samples get a false answer; a sample without an answer is not false.
            ``"answers"``: of the answers below the root, at least the share ``accuracy`` is true; needs ``confidence``.
        distance: guarantee a mean distance in place of an accuracy: ``"lca_height"``, ``"lca_depth"`` or ``"edges"``. A false
            answer counts with its distance to the truth, every other sample with 0.
        at_most: the guaranteed mean distance, over all samples.
        rule: the rule of ``predict`` that the threshold is for: ``"threshold"``, ``"climb"``, ``"hedge"`` or ``"set"``.
        constrained: the option of ``rule="threshold"``.
        nodes: the option of ``rule="set"``: an answer of several nodes is true when the truth is at or below one of them.
        groups: (B,) the site, donor or recording of each sample: the guarantee is about new groups, each of which counts the
            same, and ``confidence`` is over groups. A guarantee about answers is about groups that get some. See
            :mod:`hace.decisions.bounds` for the theorem.
        group_share: the guarantee holds in at least this share of new groups. None: on average over new groups.
        prefer: with groups, ``"steadier"`` or ``"sharper"``: the guarantee on average over groups rests on all samples of
            each group, or on one random sample of each. The second answers more where groups are few, and its single
            calibrations vary more; both keep the guarantee.
        seed: of the samples that ``"sharper"`` draws: fix it beforehand.
        by: None: one threshold. (B,) the group of each sample, known without its truth: one for each group.
            ``"top"``: by the child of the root that the answer is under. ``"class"``: within each class, or the name of a rank:
            within each of its nodes. Classes with too few samples are pooled with relatives; ``pools`` says which.
        labels: what the targets are: ``"leaves"`` or ``"nodes"`` (indices into ``hierarchy.nodes``).
        kind: what the scores are: ``"logits"``, ``"probs"``, ``"log_probs"`` or ``"node_log_probs"``.
        outputs: what their columns are: ``"leaves"``, ``"nodes"``, or ``"auto"`` to tell by their number.

    Returns:
        A record with the threshold, its guarantee and a ``predict`` of its own; ``to_dict`` makes it JSON.

    Raises:
        DataError: too few samples or groups for the guarantee (the message says how many it takes).

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> p = np.array([[0.5, 0.3, 0.2]] * 10 + [[0.1, 0.1, 0.8]] * 29)
        >>> y = [1] * 10 + [2] * 29  # the unsure answers are false
        >>> sure = guaranteed_threshold(p, y, h, accuracy=0.9, kind="probs")
        >>> round(sure.threshold, 2), sure.cost
        (0.65, 'It answers 100% of the calibration samples below the root.')
        >>> sure.predict(p[9:11], h, kind="probs").ids
        ['dog', 'cat']
    """
    _check_groups(by, groups, group_share, prefer, of)
    bound = _bound(hierarchy, accuracy, confidence, of, distance, at_most, group_share)
    if distance is not None and isinstance(by, str) and by != "top":
        raise ConfigError(f"by={by!r} must come with an accuracy. Got distance={distance!r}.")
    given = Scores(scores, hierarchy, kind, outputs)
    truth = given.truths(target, labels)
    ladder = _ladder(given, rule, constrained, nodes)
    outcomes = ladder.outcomes(truth, distance)
    if isinstance(by, str) and by != "top":
        _check_by(by, hierarchy)
        check_classes(hierarchy, by, rule, constrained, of)
        return _within_classes(bound, given, truth, outcomes, by)
    members: dict[Any, np.ndarray] = {None: np.arange(len(outcomes))}
    num_groups = None
    kind_of_groups = None
    if groups is not None:
        kind_of_groups = "new"
        names, places = group_places(groups, len(outcomes))
        num_groups = len(names)
        thresholds = {None: _over_new_groups(bound, outcomes, places, prefer, seed)}
    else:
        if isinstance(by, str):
            kind_of_groups = "top"
            _check_top(by, rule, constrained)
            members = _tops(ladder.tops(), hierarchy)
        elif by is not None:
            kind_of_groups = "given"
            members = _members(by, len(outcomes))
        thresholds = _thresholds(bound, outcomes, members)
    enough = None
    if groups is None and by is None and thresholds[None] > 1:
        enough = bound.enough(outcomes)
    answered = sum(int((outcomes.answered[members[name]] >= t).sum()) for name, t in thresholds.items())
    return GuaranteedThreshold(
        rule=rule,
        constrained=constrained,
        threshold=thresholds[None] if by is None else thresholds,
        groups=kind_of_groups,
        of=of,
        accuracy=float(1 - bound.alpha) if distance is None else None,
        distance=distance,
        at_most=None if at_most is None else float(at_most),
        confidence=None if confidence is None else float(confidence),
        samples=len(outcomes),
        answered=answered / len(outcomes),
        hierarchy=hierarchy.fingerprint,
        num_groups=num_groups,
        group_share=None if group_share is None else float(group_share),
        prefer=None if groups is None else prefer,
        seed=seed if prefer == "sharper" else None,
        nodes=nodes,
        enough=enough,
    )


def _check_groups(by: Any, groups: Any, group_share: float | None, prefer: str, of: str) -> None:
    """Refuse options of groups that do not go together."""
    if by is not None and groups is not None:
        raise ConfigError(
            "groups and by must not come together: a guarantee is about new groups, or about known ones."
        )
    if group_share is not None and groups is None:
        raise ConfigError("group_share must come with groups, which name the group of each sample. Got none.")
    check_choice("prefer", prefer, PREFERENCES)
    if prefer == "sharper" and (groups is None or of == "answers" or group_share is not None):
        raise ConfigError(
            "prefer='sharper' must come with groups, of='samples' and no group_share: one random sample of each group stands "
            "for the mean over its samples. Use prefer='steadier'."
        )


def _within_classes(
    bound: RiskBound, scores: Scores, truth: np.ndarray, outcomes: Outcomes, by: str
) -> GuaranteedThreshold:
    """The record of a guarantee within each class, or each node of a rank."""
    h = scores.hierarchy
    label = h.labels[truth]
    if (label < 0).any():
        raise DataError(
            f"target must hold labels of classes for a guarantee within them. {(label < 0).sum():,} are above. Leave them out."
        )
    pools = pools_of_classes(h, label, bound.needed(), by)
    thresholds = pooled_thresholds(bound, outcomes, label, pools, h.num_leaves)
    answers = answers_within_classes(scores, thresholds).nodes.numpy()
    return GuaranteedThreshold(
        rule="threshold",
        constrained=True,
        threshold=dict(zip(h.leaves, thresholds.tolist(), strict=True)),
        groups=CLASS,
        of="samples",
        accuracy=float(1 - bound.alpha) if bound.most == 1 else None,
        distance=None,
        at_most=None,
        confidence=None if bound.delta is None else float(1 - bound.delta),
        samples=len(label),
        answered=float((np.append(h.depths, 0)[answers] > 0).mean()),
        hierarchy=h.fingerprint,
        pools=tuple(tuple(h.leaves[c] for c in pool) for pool in pools),
        pool_samples=tuple(int(np.isin(label, pool).sum()) for pool in pools),
    )


def _ladder(scores: Scores, rule: str, constrained: bool, nodes: int | None) -> Ladder:
    """The answers to each sample as the threshold falls."""
    is_set = isinstance(rule, str) and rule == "set"
    if is_set != (nodes is not None):
        raise ConfigError(f"rule 'set' and nodes must come together. Got rule={rule!r} with nodes={nodes!r}.")
    check_kind(rule, scores)
    return ladder_of(scores, rule, constrained) if nodes is None else ladder_of_sets(scores, nodes)


def _over_new_groups(
    bound: RiskBound, outcomes: Outcomes, places: np.ndarray, prefer: str, seed: int
) -> float:
    """The threshold of a guarantee about new groups, from all samples of each or from one."""
    if prefer == "steadier":
        return bound.threshold(outcomes, places)
    rows = one_of_each(places, seed)
    return bound.threshold(outcomes.take(rows), places[rows])


def _bound(
    hierarchy: Hierarchy,
    accuracy: float | None,
    confidence: float | None,
    of: str,
    distance: str | None,
    at_most: float | None,
    group_share: float | None,
) -> RiskBound:
    """What is guaranteed: a share of true answers, or a mean distance."""
    if distance is None:
        if at_most is not None:
            raise ConfigError(
                "at_most needs distance: the convention it is measured in. Give distance='lca_height'."
            )
        share = 0.95 if accuracy is None else accuracy
        return RiskBound.of_accuracy(share, confidence, of, group_share)
    if accuracy is not None or of != "samples" or at_most is None:
        raise ConfigError(
            "A guarantee of distance must have at_most, the mean distance over all samples, no accuracy, and of='samples'. "
            f"Got at_most={at_most!r}, accuracy={accuracy!r}, of={of!r}."
        )
    return RiskBound.of_distance(at_most, confidence, greatest_distance(hierarchy, distance), group_share)


def _thresholds(bound: RiskBound, outcomes: Outcomes, members: dict[Any, np.ndarray]) -> dict[Any, float]:
    """The threshold of each group, or of None: all samples; or an error that names every group without one."""
    thresholds = {}
    problems = []
    for name, rows in members.items():
        try:
            thresholds[name] = bound.threshold(outcomes.take(rows))
        except DataError as error:
            problems.append(str(error) if name is None else f"Group {name!r}: {error}")
    if problems:
        raise DataError(problems)
    return thresholds


def _check_by(by: str, h: Hierarchy) -> None:
    ranks = h.level_names or ()
    if by != CLASS and by not in ranks:
        named = "".join(f", {rank!r}" for rank in ranks)
        raise ConfigError(f"by must be None, 'top', 'class'{named} or one group for each sample. Got {by!r}.")


def _check_top(by: str, rule: str, constrained: bool) -> None:
    if not constrained or rule in ("hedge", "set"):
        raise ConfigError(
            "by='top' needs answers under one child of the root: rule='climb', or rule='threshold' with "
            f"constrained=True. Got {rule!r} with constrained={constrained!r}."
        )


def _tops(first: np.ndarray, hierarchy: Hierarchy) -> dict[Any, np.ndarray]:
    """The rows under each child of the root."""
    place = layout(hierarchy)
    start, count, child = (part.numpy() for part in place.children)
    tops = child[start[place.walk_start] :][: count[place.walk_start]]
    return {hierarchy.nodes[v]: np.flatnonzero(first == v) for v in tops.tolist()}


def _members(groups: Sequence[Any] | np.ndarray | str, samples: int) -> dict[Any, np.ndarray]:
    """The rows of each group."""
    given = groups.tolist() if isinstance(groups, np.ndarray | Tensor) else groups
    if not isinstance(given, Sequence):
        raise DataError(f"by must name one group for each of the {samples} samples. Got {groups!r}.")
    if len(given) != samples:
        raise DataError(f"by must name one group for each of the {samples} samples. Got {len(given)}.")
    if not given:
        raise DataError("scores must hold at least one sample. Got none.")
    rows: dict[Any, list[int]] = {}
    for row, name in enumerate(given):
        if not isinstance(name, str | int):
            raise DataError(f"by must hold texts or integers. Got {name!r} at position {row}.")
        rows.setdefault(name, []).append(row)
    return {name: np.array(row) for name, row in rows.items()}
