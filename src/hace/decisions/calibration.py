"""Calibration on samples that a model was not trained on: one temperature, and thresholds that keep guarantees.

A guarantee needs scores that were settled without the samples it rests on, so samples are dealt in two: some fit the
temperature, the others support guarantees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hace.checks import MOST_SEED, check_choice, check_count, is_number, require
from hace.decisions.bounds import GUARANTEES, group_places
from hace.decisions.check import Check, check
from hace.decisions.frequencies import class_labels, estimate_frequencies, matching_rows
from hace.decisions.guarantees import GuaranteedThreshold, guaranteed_threshold
from hace.decisions.nearness import samples_like
from hace.decisions.scores import INDEPENDENT, Scores, inside_subset, rank_leaves, subset_mask
from hace.decisions.shift import Profile
from hace.decisions.temperature import AlwaysRightError, fit_temperature
from hace.decisions.trust import RightShare, right_share
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.documents import read_mapping
from hace.files.writing import json_bytes, write_whole
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.settings import Config, from_dict

FORMAT = "hace.calibration.1"
CHECKSUM = "sha256"
ACCURACIES = (0.8, 0.9, 0.95, 0.99)
CONFIDENCE = 0.9  # of guarantees about answers, which hold with a probability
_MATCHED = (
    "{:,} of {:,} calibration samples were drawn to have the class frequencies of the new samples: guarantees hold if, "
    "within each class, new samples look like the calibration samples."
)
_OUTSIDE = (
    "{:,} samples of classes outside the subset were left out: guarantees are about samples of its classes."
)
_FITTING = 3  # one of so many calibration samples fits the temperature


@dataclass(frozen=True)
class Calibration(Config):
    """What was learned about a model's confidence, and from what.

    Attributes:
        temperature: Scores are divided by it.
        thresholds: The guarantees, over scores divided by the temperature.
        split: The calibration samples: "val", "test", or a file of scores.
        samples: How many of them the thresholds rest on.
        temperature_samples: How many others fitted the temperature; 0: it was given.
        outputs: What the columns of the scores are: "leaves" or "nodes".
        hierarchy: The fingerprint of the hierarchy.
        weights: The sha256 of the run's weights; None for a file of scores.
        notes: What else a reader should know.
        missing: Guarantees that could not be made, with the reason; not stored.
        pool: How the scores of a group became one answer, "log" or "mean"; None: every sample has its own.
        subset: The classes that answers were restricted to.
        prior: Prior weights of nodes that were added to the scores.
        profile: What was seen of the samples that thresholds rest on, for :meth:`check`; see :class:`hace.Profile`.
        right: How often the best class is right on these samples; None where they are too few.
        broken: Why the guarantees must not be trusted, see :mod:`hace.decisions.trust`; "" where nothing speaks against them.
    """

    temperature: float
    thresholds: tuple[GuaranteedThreshold, ...]
    split: str
    samples: int
    temperature_samples: int
    outputs: str
    hierarchy: str
    weights: str | None = None
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    pool: str | None = None
    subset: tuple[str, ...] | None = None
    prior: Mapping[str, float] | None = None
    profile: Mapping[str, Any] | None = None
    right: RightShare | None = None
    broken: str = ""

    def check(
        self,
        scores: Scores,
        accuracy: float,
        of: str = "samples",
        *,
        truth: np.ndarray | None = None,
        groups: Sequence[Any] | np.ndarray | None = None,
        similarity: np.ndarray | None = None,
        level: float = 0.05,
    ) -> Check:
        """Check a guarantee on new samples; see :func:`hace.check`.

        Args:
            scores: Of the new samples, as the model gives them.
            accuracy: Of the guarantee.
            of: Of the guarantee.
            truth: (S,) their nodes in the order of arrival, -1 where unknown; None: all unknown.
            groups: (S,) the group of each sample; needed where the guarantee is about new groups.
            similarity: (S,) how near they are to the training samples, where the calibration knew that of its own.
            level: The probability of a false alarm.
        """
        if self.profile is None or self.pool is not None:
            what = (
                "a calibration that stores what was seen of its samples"
                if self.pool is None
                else "one that pools no groups"
            )
            raise ConfigError(f"A check needs {what}. Calibrate again.")
        if self.subset is not None:
            scores = scores.restricted(subset_mask(scores.hierarchy, self.subset))
        scores = scores.cooled(self.temperature).weighted(self.prior)
        return check(
            self.threshold_for(accuracy, of),
            Profile.from_dict(self.profile),
            scores.data,
            scores.hierarchy,
            target=truth,
            similarity=similarity,
            groups=groups,
            labels="nodes",
            level=level,
            kind=scores.kind,
            outputs=scores.outputs,
        )

    def check_use(
        self, pool: str | None, subset: Sequence[str] | None, prior: Mapping[str, float] | None, again: str
    ) -> None:
        """Refuse scores that are pooled, restricted or weighted in another way; the command `again` is for the message."""
        ours = None if self.subset is None else set(self.subset)
        theirs = None if subset is None else set(subset)
        uses = (("pool", self.pool, pool), ("subset", ours, theirs), ("prior", self.prior, prior))
        for name, made, now in uses:
            if made != now:
                how = "without" if made is None else f"with {'another' if now is not None else 'a'}"
                raise ConfigError(
                    f"accuracy must come with the {name} that it was calibrated with: it was made {how} {name}. Calibrate with "
                    f"the same: {again}{'' if now is None else f' --{name} ...'}"
                )

    def conflicts(self) -> list[str]:
        """A temperature that is none, thresholds that are missing or of another hierarchy."""
        if self.temperature <= 0:
            return [f"temperature must be above 0. Got {self.temperature}."]
        fits = self.thresholds and all(t.hierarchy == self.hierarchy for t in self.thresholds)
        return [] if fits else ["thresholds must be at least one, all for its hierarchy."]

    def threshold_for(
        self, accuracy: float, of: str = "samples", where: str = "hace calibrate RUN"
    ) -> GuaranteedThreshold:
        """The threshold for a guarantee, or an error with those there are; ``where``: the command that calibrates."""
        check_guarantee(accuracy, of)
        for threshold in self.thresholds:
            if threshold.of == of and threshold.accuracy == accuracy:
                return threshold
        known = ", ".join(f"{t.accuracy:g} of {t.of}" for t in self.thresholds)
        raise ConfigError(
            f"accuracy must be one that was calibrated: {known}. Got {accuracy:g} of {of}. To add it: {where} "
            f"{self._options(accuracy, of)}"
        )

    def _options(self, accuracy: float, of: str) -> str:
        """The options of `hace calibrate` that add a guarantee to these; both kinds are its default, as far as possible."""
        first = self.thresholds[0]
        wanted = sorted({accuracy, *(t.accuracy for t in self.thresholds if t.accuracy is not None)})
        words = "--accuracy " + ",".join(f"{a:g}" for a in wanted)
        words += f" --of {of}" if {t.of for t in self.thresholds} == {of} else ""
        words += f" --confidence {first.confidence:g}" if first.confidence and first.of == "samples" else ""
        words += f" --rule {first.rule}" if first.rule != "threshold" else ""
        return words + (f" --nodes {first.nodes}" if first.nodes is not None else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {"format": FORMAT, **super().to_dict(), "thresholds": [t.to_dict() for t in self.thresholds]}
        later = ("pool", "subset", "prior", "profile", "right", "broken")  # stored where they are used
        return {k: v for k, v in plain.items() if k != "missing" and not (k in later and v in (None, ""))}

    def write(self, path: str | Path) -> None:
        """Write it as JSON with its checksum, whole or not at all."""
        document = self.to_dict()
        write_whole(Path(path), json_bytes({**document, CHECKSUM: _checksum(document)}))

    def check_hierarchy(self, hierarchy: Hierarchy, path: str | Path, again: str) -> None:
        """Refuse another hierarchy than the one it was made with; `path` and the command `again` are for the message."""
        if self.hierarchy != hierarchy.fingerprint:
            raise ConfigError(
                f"{path} must be made with this hierarchy, {hierarchy.fingerprint[:12]}. It was made with "
                f"{self.hierarchy[:12]}. Calibrate again: {again}"
            )


def check_guarantee(accuracy: float, of: str) -> None:
    """Refuse what no guarantee can be about: an accuracy that is not between 0 and 1, or an unknown `of`."""
    fits = is_number(accuracy) and 0 < accuracy < 1
    require("accuracy", accuracy, "a number above 0 and below 1", fits)
    check_choice("of", of, tuple(GUARANTEES))


def calibrate_scores(
    scores: Any,
    truth: np.ndarray,
    hierarchy: Hierarchy,
    accuracy: float | Sequence[float] | None = None,
    *,
    of: str | Sequence[str] | None = None,
    confidence: float | None = None,
    rule: str = "threshold",
    nodes: int | None = None,
    group_share: float | None = None,
    prefer: str = "steadier",
    by: str | None = None,
    frequencies: Any = None,
    similarity: np.ndarray | None = None,
    new_similarity: np.ndarray | None = None,
    kind: str = "logits",
    outputs: str = "auto",
    temperature: float | None = None,
    split: str = "scores",
    seed: int = 0,
    groups: Sequence[Any] | np.ndarray | None = None,
    pool: str | None = None,
    subset: Sequence[str] | None = None,
    prior: Mapping[str, float] | None = None,
) -> Calibration:
    """Calibrate scores of samples that the model was not trained on.

    Args:
        scores: (S, n) over the leaves or (S, N) over the nodes.
        truth: (S,) node indices, or ids.
        hierarchy: The hierarchy.
        accuracy: The share to guarantee, or several; None: 0.8, 0.9, 0.95 and 0.99, as far as the samples suffice.
        of: "samples", "answers" or both; see :func:`hace.guaranteed_threshold`. None: both, as far as the samples suffice.
        confidence: None: guarantees about samples hold on average, those about answers with probability 0.9.
        rule: "threshold", the walk down from the root, "climb", up from the best leaf, "own", for classes outside the list, or
            "set", several nodes.
        nodes: Of the rule "set": at most so many.
        group_share: Where samples come in groups: the share of new groups that keep a guarantee; None: on average over them.
        prefer: "steadier" or "sharper": where samples come in groups, a guarantee on average rests on all samples of each
            group, or on one random sample of each, drawn by the seed; only with of="samples".
        by: "class", or the name of a rank: guarantees about samples hold within each class, or each node of the rank; see
            :func:`hace.guaranteed_threshold`.
        frequencies: Class frequencies that changed: (n,) shares of the classes where it will be used, or scores of new samples
            without labels, of the same kind, which estimate them. Guarantees then rest on calibration samples drawn to match;
            see :mod:`hace.decisions.frequencies` for what that assumes.
        similarity: (S,) how near each sample is to the training samples, from :func:`hace.nearest_similarity`; a check compares
            it with that of new samples.
        new_similarity: (M,) the same of unlabelled samples from where the model will be used. Guarantees then rest on
            calibration samples drawn to be as similar; see :mod:`hace.decisions.nearness` for what that assumes.
        kind: "logits" or "probs".
        outputs: What the columns are: "leaves", "nodes", or "auto".
        temperature: Fitted on other samples; None: fitted on a third of these, chosen by the seed.
        split: What the samples are, for the record.
        seed: See `temperature`.
        groups: (S,) the group of each sample: guarantees are about new groups, and the temperature is fitted on other groups.
        pool: "log" or "mean": a group gets one answer, from the mean of its log-probabilities or of its probabilities, and
            guarantees are about these answers.
        subset: Classes that answers are restricted to. Samples of other classes are left out: guarantees are about the rest.
        prior: Prior weights of nodes, which apply to all below; see :func:`hace.decisions.scores.prior_weights`.

    Raises:
        DataError: Too few samples for what was asked (the message says how many it takes), or scores that say nothing.
    """
    accuracies = _several(accuracy)
    kinds = _several(of)
    for share in accuracies or ():
        for about in kinds or GUARANTEES:
            check_guarantee(share, about)
    check_count("seed", seed, MOST_SEED, least=0)
    _check_together(groups, group_share, pool, by, frequencies, kinds)
    kinds = kinds if by is None else ("samples",)
    given = Scores(scores, hierarchy, kind, outputs).checked()
    nodes_of_truth = given.truths(truth, "nodes")
    near = _similarities(similarity, new_similarity, len(given), groups, pool)
    samples, outside = _as_used(given, nodes_of_truth, groups, near, pool, subset)
    if temperature is None and given.kind in INDEPENDENT:
        temperature = 1.0  # a threshold is calibrated on such scores as they are
    fits = np.zeros(len(samples.truth), dtype=bool)  # the samples that fit the temperature
    if temperature is None:
        rng = np.random.default_rng([seed, 0xCA11])
        temperature, fits = temperature_of_part(samples.scores, samples.truth, samples.groups, _FITTING, rng)
    rest = samples.take(~fits)  # the samples that guarantees rest on
    rest = replace(rest, scores=rest.scores.cooled(temperature).weighted(prior))
    notes = []
    if frequencies is not None:
        rows = _matching(frequencies, rest, temperature, kind, subset, prior, seed)
        notes.append(_MATCHED.format(len(rows), len(rest.truth)))
        rest = rest.take(rows)
    if new_similarity is not None:
        assert rest.near is not None
        like = samples_like(rest.near, np.asarray(new_similarity, dtype=np.float64), seed)
        notes.append(like.note)
        rest = rest.take(like.rows)
    if outside:
        notes.append(_OUTSIDE.format(outside))
    try:
        thresholds, missing = _thresholds(
            rest,
            accuracies,
            kinds,
            confidence,
            rule=rule,
            nodes=nodes,
            group_share=group_share,
            prefer=prefer,
            seed=seed,
            by=by,
        )
    except DataError as error:
        if not fits.any():
            raise
        spent = (
            f"Of the {len(fits):,} calibration samples {fits.sum():,} fit the temperature. All support guarantees if it is "
            "given: --temperature T (temperature=T), fitted on other samples or 1."
        )
        raise DataError([*error.problems, spent]) from error
    seen = Profile.of(
        rest.scores.data,
        hierarchy,
        similarity=rest.near,
        groups=rest.groups,
        kind=rest.scores.kind,
        outputs=rest.scores.outputs,
    )
    return Calibration(
        temperature=float(temperature),
        thresholds=thresholds,
        split=split,
        samples=len(rest.truth),
        temperature_samples=int(fits.sum()),
        outputs=rest.scores.outputs,
        hierarchy=hierarchy.fingerprint,
        notes=tuple(notes),
        missing=missing,
        pool=pool,
        subset=None if subset is None else tuple(subset),
        prior=None if prior is None else dict(prior),
        profile=seen.to_dict(),
        right=right_share(_best_is_right(rest.scores, rest.truth), rest.groups),
    )


@dataclass(frozen=True, eq=False)
class _Samples:
    """Calibration samples with what is known of each.

    Attributes:
        scores: their scores.
        truth: (S,) node indices of their truths.
        groups: (S,) the name of each one's group; None: guarantees are about samples.
        near: (S,) how near each one is to the training samples, where that is known.
    """

    scores: Scores
    truth: np.ndarray
    groups: np.ndarray | None
    near: np.ndarray | None

    def take(self, rows: np.ndarray) -> _Samples:
        """Some of them: a mask, or their places."""
        groups = None if self.groups is None else self.groups[rows]
        near = None if self.near is None else self.near[rows]
        return _Samples(self.scores[rows], self.truth[rows], groups, near)


def _as_used(
    scores: Scores,
    truth: np.ndarray,
    groups: Sequence[Any] | np.ndarray | None,
    near: np.ndarray | None,
    pool: str | None,
    subset: Sequence[str] | None,
) -> tuple[_Samples, int]:
    """The samples as answers will be given to them, and how many are left out: those of classes outside the subset."""
    outside = 0
    if subset is not None:
        inside = inside_subset(scores.hierarchy, subset, truth)
        outside = int((~inside).sum())
        near = None if near is None else near[inside]
    return _Samples(*calibration_samples(scores, truth, groups, pool, subset), near), outside


def _check_together(
    groups: Any, group_share: float | None, pool: str | None, by: str | None, frequencies: Any, kinds: Any
) -> None:
    """Refuse what a calibration cannot have at the same time."""
    if groups is None and group_share is not None:
        raise ConfigError(
            "group_share needs groups: the site or recording of each sample. Got none (--groups)."
        )
    if pool is not None and group_share is not None:
        raise ConfigError(
            "group_share must come without pool: a pooled group has one answer, which is true or false."
        )
    if by is not None and (groups is not None or "answers" in (kinds or ())):
        raise ConfigError(f"by={by!r} must come without groups, and with of='samples'.")
    if frequencies is not None and (groups is not None or pool is not None):
        raise ConfigError(
            "frequencies must come without groups: matching draws samples, not groups. Leave one of them out."
        )


def _similarities(
    similarity: np.ndarray | None, new: np.ndarray | None, samples: int, groups: Any, pool: str | None
) -> np.ndarray | None:
    """(S,) how near the calibration samples are to the training samples."""
    if new is not None and (similarity is None or groups is not None):
        raise ConfigError(
            "new_similarity must come with similarity, and without groups: samples are drawn to be like new ones, not groups."
        )
    if similarity is None or pool is not None:
        return None
    near = np.asarray(similarity, dtype=np.float64)
    if near.shape != (samples,) or not np.isfinite(near).all():
        raise DataError(
            f"similarity must hold one finite number for each of the {samples} samples. Got shape {near.shape}."
        )
    return near


def _best_is_right(scores: Scores, truth: np.ndarray) -> np.ndarray:
    """(S,) whether the most probable class is the truth or below it."""
    h = scores.hierarchy
    best = [rank_leaves(block.leaves(), 1)[:, 0].numpy() for _, block in scores.blocks()]
    return is_above(h, truth, h.leaf_nodes[np.concatenate(best)])


def _matching(
    frequencies: Any,
    samples: _Samples,
    temperature: float,
    kind: str,
    subset: Sequence[str] | None,
    prior: Mapping[str, float] | None,
    seed: int,
) -> np.ndarray:
    """The rows of calibration samples that match class frequencies, given or estimated from new scores."""
    scores = samples.scores
    h = scores.hierarchy
    shares = np.asarray(frequencies, dtype=np.float64)
    if shares.ndim == 2:
        new = Scores(frequencies, h, kind, scores.outputs).checked()
        if subset is not None:
            new = new.restricted(subset_mask(h, subset))
        shares = estimate_frequencies(new.cooled(temperature).weighted(prior), scores, samples.truth)
    if shares.shape != (h.num_leaves,):
        raise DataError(
            f"frequencies must be {h.num_leaves} shares, one for each class, or scores of new samples. Got shape "
            f"{shares.shape}."
        )
    return matching_rows(class_labels(h, samples.truth), shares, seed)


def _several(given: Any) -> tuple[Any, ...] | None:
    """One value or several as a tuple; None for none."""
    if given is None:
        return None
    several = isinstance(given, Iterable) and not isinstance(given, str) and getattr(given, "ndim", 1) > 0
    return tuple(given) if several else (given,)


def calibration_samples(
    scores: Scores,
    truth: np.ndarray,
    groups: Sequence[Any] | np.ndarray | None = None,
    pool: str | None = None,
    subset: Sequence[str] | None = None,
) -> tuple[Scores, np.ndarray, np.ndarray | None]:
    """Scores with truths (S,) as they will be used: restricted, without samples of other classes, and pooled.

    The third value is the name of each sample's group: None where there are no groups, or where each is one sample now.
    """
    h = scores.hierarchy
    if pool is not None and groups is None:
        raise ConfigError(
            "pool needs groups: the site, burst or recording of each sample. Got none (--groups)."
        )
    if subset is not None:
        inside = np.flatnonzero(inside_subset(h, subset, truth))
        scores = scores[inside].restricted(subset_mask(h, subset), inside)
        truth = truth[inside]
        groups = None if groups is None else np.asarray(groups)[inside]
    if groups is None:
        return scores, truth, None
    names, places = group_places(groups, len(truth))
    if pool is None:
        return scores, truth, names[places]
    return scores.pooled(places, pool), _one_truth(truth, names, places), None


def _one_truth(truth: np.ndarray, names: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(G,) the truth of each group, which all of its samples share."""
    first = np.unique(places, return_index=True)[1]
    mixed = np.flatnonzero(truth != truth[first[places]])
    if len(mixed):
        raise DataError(f"A group must have one truth to be pooled. {names[places[mixed[0]]]!r} has several.")
    return truth[first]


def temperature_of_part(
    scores: Scores, truth: np.ndarray, groups: np.ndarray | None, share: int, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """A temperature fitted on one of ``share`` samples, or groups of them, and (S,) which samples these are."""
    fits = part_for_temperature(len(truth), groups, share, rng)
    return fitted_temperature(scores[fits], truth[fits], len(truth)), fits


def part_for_temperature(samples: int, groups: Any, share: int, rng: np.random.Generator) -> np.ndarray:
    """(S,) whether a sample is among the one of ``share`` samples, or groups of them, that fit a temperature."""
    units = np.arange(samples) if groups is None else group_places(groups, samples)[1]
    order = rng.permutation(int(units.max(initial=-1)) + 1)
    return np.isin(units, order[: len(order) // share])


def fitted_temperature(scores: Scores, truth: np.ndarray, samples: int) -> float:
    """The temperature of the calibration samples set aside for it, of so many in all.

    Samples in which the truth always comes first say only that smaller is better; then the temperature is 1. They stay apart
    from the rest, because they chose it.
    """
    try:
        return fit_temperature(
            scores.data, truth, scores.hierarchy, labels="nodes", kind=scores.kind, outputs=scores.outputs
        )
    except AlwaysRightError:
        return 1.0
    except DataError as error:
        raise DataError(
            f"No temperature fits the {len(truth)} of {samples} calibration samples set aside for it: {error} Give "
            "one: --temperature 1 (temperature=1) leaves scores as they are."
        ) from error


def _thresholds(
    samples: _Samples,
    accuracies: tuple[float, ...] | None,
    kinds: tuple[str, ...] | None,
    confidence: float | None,
    **options: Any,
) -> tuple[tuple[GuaranteedThreshold, ...], tuple[str, ...]]:
    """The guarantees that can be made, and why others cannot; what was asked for by name must be possible."""
    made = []
    missing = []
    scores = samples.scores
    for of in kinds or GUARANTEES:
        for accuracy in accuracies or ACCURACIES:
            sure = CONFIDENCE if confidence is None and of == "answers" else confidence
            try:
                made.append(
                    guaranteed_threshold(
                        scores.data,
                        samples.truth,
                        scores.hierarchy,
                        accuracy,
                        sure,
                        of,
                        groups=samples.groups,
                        labels="nodes",
                        kind=scores.kind,
                        outputs=scores.outputs,
                        **options,
                    )
                )
            except DataError as error:
                missing.append(f"{accuracy} of {of}: {error}")
    possible = {threshold.accuracy for threshold in made}
    named = kinds is not None and accuracies is not None
    if not made or (named and missing) or any(a not in possible for a in accuracies or ()):
        raise DataError(missing)
    return tuple(made), tuple(missing)


def read_calibration(path: str | Path, remedy: str = "") -> Calibration:
    """Read a calibration; an error says what is damaged."""
    document = read_mapping(path)
    checksum = document.pop(CHECKSUM, None)
    calibration = parse_calibration(document, path, remedy)
    if checksum != _checksum(document):
        raise FormatError(
            f"{path} is damaged: its content does not match its checksum.{remedy or ' Calibrate again.'}"
        )
    return calibration


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_bytes(document)).hexdigest()


def parse_calibration(document: Mapping[str, Any], path: str | Path, remedy: str = "") -> Calibration:
    """A calibration from plain values; the path and the remedy are for the message."""
    try:
        values = {**document}
        if values.pop("format", None) != FORMAT or not isinstance(values.get("thresholds"), list):
            raise ValueError(f"its format must be {FORMAT!r}, with a list of thresholds.")
        values["thresholds"] = tuple(GuaranteedThreshold.from_dict(t) for t in values["thresholds"])
        if values.get("right") is not None:
            values["right"] = RightShare(*map(float, values["right"]))
        return from_dict(Calibration, values)
    except (HaceError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = str(error).removesuffix(" Calibrate again.") if remedy else str(error)
        message = f"{path} must be a calibration that `hace calibrate` wrote: {why:.200}{remedy}"
        raise FormatError(message) from error
