"""Calibration on samples that a model was not trained on: one temperature, and thresholds that keep guarantees.

A guarantee needs scores that were settled without the samples it rests on, so samples are dealt in two: some fit the
temperature, the others support guarantees.

One temperature serves a whole head, so that q* means what it says. With b = 1/T and D(y) the outputs at or below the truth y,
the mean over held-out samples of

    -log q*_T[y] = logsumexp_i(b z_i) - logsumexp_{i in D(y)}(b z_i)

has the slope E[z] - E[z | D(y)] in b, expectations under softmax(b z). Where D(y) is one output it is convex in b and has
one minimum; where the truth is an inner node it may have several, so all sign changes of the slope are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, check_number, is_number
from hace.decisions.bounds import GUARANTEES
from hace.decisions.group_guarantees import group_places
from hace.decisions.guarantees import GuaranteedThreshold, guaranteed_threshold
from hace.decisions.scores import Scores, inside_subset, subset_mask
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.documents import read_mapping
from hace.files.writing import json_bytes, write_whole
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.settings import Config, from_dict

FORMAT, CHECKSUM = "hace.calibration.1", "sha256"
ACCURACIES = (0.8, 0.9, 0.95, 0.99)
CONFIDENCE = 0.9  # of guarantees about answers, which hold with a probability
_SHARE = 3  # one of so many calibration samples fits the temperature
_LARGEST = 1e200  # difference of two scores: beyond it sums overflow, and no temperature makes sense
_PER_DECADE = 8  # points of the grid, where the likelihood may have several maxima


def fit_temperature(
    scores: Any,
    target: Any,
    hierarchy: Hierarchy,
    *,
    labels: str = "leaves",
    kind: str = "logits",
    outputs: str = "auto",
) -> float:
    """The temperature T under which ``softmax(z / T)`` gives the truths the greatest likelihood.

    Divide the model's logits by it. It keeps every ranking of outputs, so the best leaf stays the best; it changes how
    sure the model is. Fit it on held-out samples: not those the model was trained on, and not the test set.

    Args:
        scores: (B, n) over leaves in label order or (B, N) over nodes in node order.
        target: (B,) truths: labels of leaves, or any nodes with ``labels="nodes"``. A truth at an inner node has the
            probability q* of that node.
        hierarchy: a tree, a forest or a DAG.
        labels: what the targets are: ``"leaves"`` or ``"nodes"`` (indices into ``hierarchy.nodes``).
        kind: what the scores are: ``"logits"``, ``"probs"`` or ``"log_probs"``. With the last two, divide the logarithms.
        outputs: what their columns are: ``"leaves"``, ``"nodes"``, or ``"auto"`` to tell by their number.

    Returns:
        T: above 1 for an over-confident model, below 1 for an under-confident one.

    Raises:
        DataError: no temperature is best: no samples; scores that say nothing about the truths, such as constant ones
            (T would be infinite); the truth always first (T would be 0); a truth of probability 0.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> z = torch.tensor([[4.0, 0.0, 0.0], [4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 4.0, 0.0]])
        >>> round(fit_temperature(z, [0, 0, 1, 0], h), 3)  # right in 3 of 4: softmax(z / T) gives the best class 3/4
        2.232
    """
    if kind == "node_log_probs":
        raise ConfigError("kind must be 'logits', 'probs' or 'log_probs': a temperature acts on the outputs.")
    given = Scores(scores, hierarchy, kind, outputs)
    likelihood = _Likelihood(given, given.truths(target, labels))
    found = [_solve(likelihood, low, high) for low, high in likelihood.brackets()]
    values = likelihood(found)[0]
    least = float(values.min()) if found else np.inf
    zero, infinity = likelihood.at_zero, likelihood.at_infinity  # of b: T infinite, and T = 0
    margin = 1e-12 * max(1.0, zero)
    if infinity < zero - margin and infinity <= least + margin:
        raise DataError(
            f"target must differ from the best output in some sample. In all {likelihood.samples} the truth comes first, so "
            "every smaller temperature is better. Calibrate on more samples (--validation holds them out), or keep T = 1."
        )
    if least < zero - margin:
        return 1.0 / found[int(values.argmin())]
    raise DataError(
        f"scores must say something about the truths. No temperature of the {likelihood.samples} samples is better than an "
        "infinite one: the scores are constant, or no better than chance. Check that scores, target and hierarchy belong "
        "together."
    )


def _solve(likelihood: _Likelihood, low: float, high: float) -> float:
    """The b in a bracket at which the slope is 0, to the last digits."""
    from scipy.optimize import brentq

    root = brentq(lambda u: float(likelihood([np.exp(u)])[1][0]), np.log(low), np.log(high), xtol=1e-13)
    return float(np.exp(root))  # type: ignore[arg-type]


class _Likelihood:
    """Mean -log q*[y] and its slope in b, a block of samples at a time."""

    def __init__(self, scores: Scores, truth: np.ndarray) -> None:
        self.scores, self.truth, self.samples = scores, truth, len(scores)
        if not self.samples:
            raise DataError("scores must hold at least one sample. Got none.")
        self._look()

    def _look(self) -> None:
        """The ends of the curve: values and slopes at b = 0 and at b = infinity, and the scale of b."""
        ends, spreads, silent, self.convex = np.zeros(4), [], 0, True
        for whole, own in self._blocks():
            wide = int((whole.masked_fill(whole == -torch.inf, 0.0).amin(dim=1) < -_LARGEST).sum())
            if wide:
                raise DataError(
                    f"scores must be within {_LARGEST:g} of each other in each row. {wide} or more of {self.samples} rows "
                    "break this rule. Check for overflow in the model."
                )
            self.convex &= own.shape[1] == 1
            silent += int((own == -torch.inf).all(dim=1).sum())
            best = own.amax(dim=1, keepdim=True)
            ends[0] += float((_log_count(whole > -torch.inf) - _log_count(own > -torch.inf)).sum())
            ends[1] += float((_mean(whole) - _mean(own)).sum())
            ends[2] += float((_log_count(whole == 0) - _log_count(own == best)).sum())
            ends[3] += float(-best.sum())  # the greatest score of a row is 0
            finite = whole.masked_fill(whole == -torch.inf, torch.nan)
            spreads.append(-finite.nanmedian(dim=1).values.median())
        if silent:
            raise DataError(
                f"scores must give every truth some probability. {silent} of {self.samples} truths have none, and no "
                "temperature changes that. Leave these samples out, or give the scores as logits."
            )
        self.at_zero, self.slope_at_zero, self.at_infinity, self.slope_at_infinity = ends / self.samples
        if self.slope_at_infinity > 0:
            self.at_infinity = np.inf
        spread = float(torch.stack(spreads).median())
        self.unit = 1 / spread if spread > 0 else 1.0

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(B, C) logits with their greatest at 0, and those of D(y): (B, 1), or (B, C) with -inf elsewhere."""
        for rows, block in self.scores.blocks():
            z = block.data.double()
            z = (z - z.amax(dim=1, keepdim=True)).cpu()
            truth = self.truth[rows]
            alone = self._only_column(truth)
            if alone is not None:
                yield z, z.gather(1, torch.from_numpy(alone)[:, None])
            else:
                yield z, z.masked_fill(~torch.from_numpy(self._below(truth)), -torch.inf)

    def _only_column(self, truth: np.ndarray) -> np.ndarray | None:
        """The column of each truth, where no truth of the block has another output below it."""
        h = self.scores.hierarchy
        if (h.labels[truth] < 0).any():
            return None
        return h.labels[truth] if self.scores.outputs == "leaves" else truth

    def _below(self, truth: np.ndarray) -> np.ndarray:
        """(B, C) whether each output is at or below each truth."""
        h = self.scores.hierarchy
        columns = h.leaf_nodes if self.scores.outputs == "leaves" else np.arange(h.num_nodes)
        return is_above(h, truth[:, None], columns[None, :])

    def __call__(self, inverse: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values and slopes at each b of ``inverse``."""
        values, slopes = np.zeros(len(inverse)), np.zeros(len(inverse))
        for whole, own in self._blocks():
            for i, b in enumerate(inverse):
                total, mean = _moments(whole, b)
                inside, inner_mean = _moments(own, b)
                values[i] += float((total - inside).sum())
                slopes[i] += float((mean - inner_mean).sum())
        return values / self.samples, slopes / self.samples

    def brackets(self) -> list[tuple[float, float]]:
        """Pairs of b between which the slope turns from falling to rising."""
        if self.convex:
            if self.slope_at_zero >= 0 or self.slope_at_infinity <= 0:
                return []
            points = np.array([self.unit])
        else:
            points = self.unit * np.logspace(-5, 5, 10 * _PER_DECADE + 1)
        slopes = self(points)[1]
        turns = np.flatnonzero((slopes[:-1] < 0) & (slopes[1:] >= 0))
        pairs = list(zip(points[turns].tolist(), points[turns + 1].tolist(), strict=True))
        if self.slope_at_zero < 0 <= slopes[0]:
            pairs.append((self._beyond(float(points[0]), 0.1), float(points[0])))
        if slopes[-1] < 0 < self.slope_at_infinity:
            pairs.append((float(points[-1]), self._beyond(float(points[-1]), 10.0)))
        return [pair for pair in pairs if all(pair)]

    def _beyond(self, b: float, factor: float) -> float:
        """The first b * factor^k at which the slope has the other sign; 0 where rounding hides it.

        The ends of the curve say that there is one, but they may be rounding themselves.
        """
        above = factor > 1
        while (self([b])[1][0] >= 0) != above:
            b *= factor
            if not 1e-300 < b < 1e300:
                return 0.0
        return b


def _log_count(chosen: Tensor) -> Tensor:
    """(B,) log of the number of chosen entries of each row."""
    return chosen.sum(dim=1).double().log()


def _mean(z: Tensor) -> Tensor:
    """(B,) mean of the finite entries of each row."""
    finite = z.isfinite()
    return z.masked_fill(~finite, 0.0).sum(dim=1) / finite.sum(dim=1)


def _moments(z: Tensor, b: float) -> tuple[Tensor, Tensor]:
    """(B,) logsumexp(b z) and the mean of z under softmax(b z)."""
    scaled = z * b
    total = scaled.logsumexp(dim=1)
    p = (scaled - total[:, None]).exp_()
    return total, (p * z.masked_fill(z == -torch.inf, 0.0)).sum(dim=1)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What guarantees rest on: samples, or pooled groups, whose scores are divided by a temperature that others fitted."""

    temperature: float
    scores: Scores
    truth: np.ndarray  # node indices
    groups: np.ndarray | None  # the name of each sample's group, unless pooled
    fitted: int  # how many others fitted the temperature
    outside: int  # samples of classes outside the subset, which were left out


def hold_out(
    scores: Scores,
    truth: np.ndarray,
    fitting: tuple[int, np.random.Generator],
    *,
    temperature: float | None = None,
    groups: Any = None,
    pool: str | None = None,
    subset: Sequence[str] | None = None,
    prior: Mapping[str, float] | None = None,
) -> HeldOut:
    """Restrict, weight and pool scores with truths (S,); then fit a temperature, unless one is given.

    ``fitting``: one of how many samples, or groups, fits the temperature, and the generator that draws them.
    """
    h, everyone = scores.hierarchy, len(truth)
    if subset is not None:
        inside = np.flatnonzero(inside_subset(h, subset, truth))
        scores, truth = scores[inside].restricted(subset_mask(h, subset), inside), truth[inside]
        groups = None if groups is None else np.asarray(groups)[inside]
    outside, scores = everyone - len(truth), scores.weighted(prior)
    if groups is None and pool is not None:
        raise ConfigError(
            "pool needs groups: the site, burst or recording of each sample. Got none (--groups)."
        )
    units = np.arange(len(truth))
    if groups is not None:
        names, units = group_places(groups, len(truth))
        groups = names[units]
        if pool is not None:
            scores, truth = scores.pooled(units, pool), _one_truth(truth, names, units)
            units, groups = np.arange(len(truth)), None
    fits = np.zeros(len(truth), dtype=bool)
    if temperature is None:
        share, rng = fitting
        order = rng.permutation(int(units.max(initial=-1)) + 1)
        fits = np.isin(units, order[: len(order) // share])
        form: Any = {"labels": "nodes", "kind": scores.kind, "outputs": scores.outputs}
        try:
            temperature = fit_temperature(scores.data[fits], truth[fits], h, **form)
        except DataError as error:
            raise DataError(
                f"No temperature fits the {fits.sum()} of {len(truth)} calibration samples set aside for it: {error} Give "
                "one: --temperature 1 (temperature=1) leaves scores as they are."
            ) from error
    check_number("temperature", temperature, "a number above 0", is_number(temperature) and temperature > 0)
    rest = scores[~fits].cooled(float(temperature))
    left = None if groups is None else groups[~fits]
    return HeldOut(float(temperature), rest, truth[~fits], left, int(fits.sum()), outside)


def _one_truth(truth: np.ndarray, names: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(G,) the truth of each group, which all of its samples share."""
    first = np.unique(place, return_index=True)[1]
    mixed = np.flatnonzero(truth != truth[first[place]])
    if len(mixed):
        raise DataError(f"A group must have one truth to be pooled. {names[place[mixed[0]]]!r} has several.")
    return truth[first]


@dataclass(frozen=True)
class GuaranteeRequest:
    """What to guarantee.

    Attributes:
        accuracies: The guaranteed shares; None: 0.8, 0.9, 0.95 and 0.99, as far as the samples suffice.
        of: "samples", "answers" or both; see :func:`hace.guaranteed_threshold`. None: both, as far as the samples suffice.
        confidence: None: guarantees about samples hold on average, those about answers with probability 0.9.
        rule: "threshold", the walk down from the root, "climb", up from the best leaf, or "own", for classes outside the list.
        group_share: Where samples come in groups: the share of new groups that keep a guarantee; None: on average over them.
    """

    accuracies: Sequence[float] | None = None
    of: Sequence[str] | None = None
    confidence: float | None = None
    rule: str = "threshold"
    group_share: float | None = None


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

    def check_use(
        self, pool: str | None, subset: Sequence[str] | None, prior: Mapping[str, float] | None, again: str
    ) -> None:
        """Refuse scores that are pooled, restricted or weighted in another way; the command `again` is for the message."""
        ours, theirs = (None if classes is None else set(classes) for classes in (self.subset, subset))
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
        found = [t for t in self.thresholds if t.of == of and t.accuracy == accuracy]
        if found:
            return found[0]
        known = ", ".join(f"{t.accuracy:g} of {t.of}" for t in self.thresholds)
        raise ConfigError(
            f"accuracy must be one that was calibrated: {known}. Got {accuracy:g} of {of}. To add it: {where} "
            f"{self._options(accuracy, of)}"
        )

    def _options(self, accuracy: float, of: str) -> str:
        """The options of `hace calibrate` that add a guarantee to these; both kinds are its default, as far as possible."""
        first = self.thresholds[0]
        wanted = sorted({accuracy, *(t.accuracy for t in self.thresholds if t.accuracy is not None)})
        words = "--accuracy " + " ".join(f"{a:g}" for a in wanted)
        words += f" --of {of}" if {t.of for t in self.thresholds} == {of} else ""
        words += f" --confidence {first.confidence:g}" if first.confidence and first.of == "samples" else ""
        return words + (f" --rule {first.rule}" if first.rule != "threshold" else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = {"format": FORMAT, **super().to_dict(), "thresholds": [t.to_dict() for t in self.thresholds]}
        later = ("pool", "subset", "prior")  # stored where they are used
        return {k: v for k, v in plain.items() if k != "missing" and not (k in later and v is None)}

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
    check_number("accuracy", accuracy, "a number above 0 and below 1", fits)
    check_choice("of", of, tuple(GUARANTEES))


def calibrate_scores(
    scores: Any,
    truth: np.ndarray,
    hierarchy: Hierarchy,
    guarantees: GuaranteeRequest | None = None,
    *,
    kind: str = "logits",
    outputs: str = "auto",
    temperature: float | None = None,
    split: str = "scores",
    seed: int = 0,
    groups: np.ndarray | None = None,
    pool: str | None = None,
    subset: Sequence[str] | None = None,
    prior: Mapping[str, float] | None = None,
) -> Calibration:
    """Calibrate scores of samples that the model was not trained on.

    Args:
        scores: (S, n) over the leaves or (S, N) over the nodes.
        truth: (S,) node indices.
        hierarchy: The hierarchy.
        guarantees: What to guarantee.
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
    asked = guarantees or GuaranteeRequest()
    for accuracy in asked.accuracies or ():
        for of in asked.of or GUARANTEES:
            check_guarantee(accuracy, of)
    check_number("seed", seed, "at least 0", seed >= 0)
    if groups is None and asked.group_share is not None:
        raise ConfigError(
            "group_share needs groups: the site or recording of each sample. Got none (--groups)."
        )
    if pool is not None and asked.group_share is not None:
        raise ConfigError(
            "group_share must come without pool: a pooled group has one answer, which is true or false."
        )
    how: Any = {"temperature": temperature, "groups": groups, "pool": pool, "subset": subset, "prior": prior}
    fitting = (_SHARE, np.random.default_rng([seed, 0xCA11]))
    held = hold_out(Scores(scores, hierarchy, kind, outputs).checked(), truth, fitting, **how)
    try:
        found, missing = _thresholds(held, asked)
    except DataError as error:
        if not held.fitted:
            raise
        spent = (
            f"Of the {len(held.truth) + held.fitted:,} calibration samples {held.fitted:,} fit the temperature. All support "
            "guarantees if it is given: --temperature T (temperature=T), fitted on other samples or 1."
        )
        raise DataError([*error.problems, spent]) from error
    left = f"{held.outside:,} samples of classes outside the subset were left out: guarantees are about samples of its classes."
    used: Any = {"pool": pool, "subset": None if subset is None else tuple(subset)}
    used |= {"prior": None if prior is None else dict(prior), "missing": missing}
    rests_on = (split, len(held.truth), held.fitted, held.scores.outputs, hierarchy.fingerprint)
    notes = (left,) if held.outside else ()
    return Calibration(held.temperature, found, *rests_on, notes=notes, **used)


def _thresholds(
    held: HeldOut, asked: GuaranteeRequest
) -> tuple[tuple[GuaranteedThreshold, ...], tuple[str, ...]]:
    """The guarantees that can be made, and why others cannot; what was asked for by name must be possible."""
    found, missing = [], []
    z, truth, h = held.scores.data, held.truth, held.scores.hierarchy
    options: Any = {"rule": asked.rule, "labels": "nodes", "outputs": held.scores.outputs}
    options |= {"groups": held.groups, "group_share": asked.group_share}
    for of in asked.of or GUARANTEES:
        for accuracy in asked.accuracies or ACCURACIES:
            confidence = CONFIDENCE if asked.confidence is None and of == "answers" else asked.confidence
            try:
                found.append(guaranteed_threshold(z, truth, h, accuracy, confidence, of, **options))
            except DataError as error:
                missing.append(f"{accuracy} of {of}: {error}")
    made = {t.accuracy for t in found}
    strict = asked.of is not None and asked.accuracies is not None
    if not found or (strict and missing) or any(a not in made for a in asked.accuracies or ()):
        raise DataError(missing)
    return tuple(found), tuple(missing)


def read_calibration(path: str | Path, remedy: str = "") -> Calibration:
    """Read a calibration; an error says what is damaged."""
    document = read_mapping(path)
    checksum = document.pop(CHECKSUM, None)
    found = parse_calibration(document, path, remedy)
    if checksum != _checksum(document):
        raise FormatError(
            f"{path} is damaged: its content does not match its checksum.{remedy or ' Calibrate again.'}"
        )
    return found


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_bytes(document)).hexdigest()


def parse_calibration(document: Mapping[str, Any], path: str | Path, remedy: str = "") -> Calibration:
    """A calibration from plain values; the path and the remedy are for the message."""
    try:
        values = {**document}
        if values.pop("format", None) != FORMAT or not isinstance(values.get("thresholds"), list):
            raise ValueError(f"its format must be {FORMAT!r}, with a list of thresholds.")
        values["thresholds"] = tuple(GuaranteedThreshold.from_dict(t) for t in values["thresholds"])
        return from_dict(Calibration, values)
    except (HaceError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = str(error).removesuffix(" Calibrate again.") if remedy else str(error)
        said = f"{path} must be a calibration that `hace calibrate` wrote: {why:.200}{remedy}"
        raise FormatError(said) from error
