"""The findings of a fit, as plain values that a file holds: one question, one number and one sentence each, in six lines."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any, NamedTuple

from hace.errors import BROKEN
from hace.fitting.evaluation import NOTHING
from hace.settings import Config

_WIDTH = 12  # of the first word of a line
_COUNTED = ("photos", "texts", "cells")  # kinds that are what their samples are called


class Answer(NamedTuple):
    """A question that people have, and what the fit says."""

    word: str  # before the line
    question: str
    number: str
    sentence: str
    bad: bool = False  # to be shown in red

    @property
    def line(self) -> str:
        """In one line."""
        return f"{self.word + ':':{_WIDTH}}{' '.join(part for part in (self.number, self.sentence) if part)}"


@dataclass(frozen=True)
class Findings(Config):
    """What a fit found.

    Attributes:
        kind: what the data are.
        samples: how many samples train, calibrate and test.
        classes: how many classes there are.
        chosen: what was chosen, in words.
        is_flat: whether that is plain logistic regression.
        candidates: of each candidate its key, what became of coarse labels, accuracy by cross-validation and weight decay.
        accuracy: share of right classes with its interval: on test samples, or by cross-validation where there are none.
        tested: whether that is on test samples.
        held_out: accuracy on calibration samples with its interval; None where there are none.
        gain: accuracy minus that of plain logistic regression, with its interval.
        coarse: share of training labels that are coarse.
        coarse_gain: what coarse labels added, with its interval; None where there are none.
        guarantee: how answers with a guarantee turned out; None where there is none.
        curve: the same for guarantees of other accuracies.
        no_guarantee: why there is none, or none for 95%.
        broken: why the guarantee must not be trusted; "" where nothing speaks against it.
        new: what happens to classes that were left out; None where there are too few.
        examples: test samples with their answers.
        notes: what was decided about the data, and what is odd.
        path: the file that commands name.
        layer: layer of an AnnData that the features are in; None: its X, or no AnnData.
        calibrated_on: the samples of a later calibration, on which the guarantees are then judged; "" where there was none.
    """

    kind: str
    samples: dict[str, int]
    classes: int
    chosen: str
    is_flat: bool
    candidates: tuple[dict[str, Any], ...]
    accuracy: tuple[float, ...]
    tested: bool
    held_out: tuple[float, ...] | None
    gain: tuple[float, ...]
    coarse: float
    coarse_gain: tuple[float, ...] | None
    guarantee: dict[str, Any] | None
    curve: tuple[dict[str, Any], ...] = ()
    no_guarantee: str = ""
    broken: str = ""
    new: dict[str, Any] | None = None
    examples: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    path: str = "model.hace"
    layer: str | None = None
    calibrated_on: str = ""

    def lines(self) -> list[str]:
        """Six lines: how good, how specific, what the taxonomy and coarse labels added, what to watch, what to do next."""
        return [
            answer.line
            for answer in (self.good, self.specific, self.taxonomy, self.labels, self.watch, self.next)
        ]

    @property
    def samples_in_words(self) -> str:
        """How many samples there are, and of what."""
        return f"{sum(self.samples.values()):,} {self.kind if self.kind in _COUNTED else 'samples'}"

    @property
    def answers(self) -> list[Answer]:
        """The questions of the page, one number and one sentence each."""
        answers = [self.good, self.specific, self.taxonomy, self.labels]
        return [*answers, *([self.something_new] if self.new is not None else []), self.watch]

    @property
    def good(self) -> Answer:
        """How good it is."""
        value, low, high = self.accuracy
        where = f"of {self.samples['test']:,} test samples" if self.tested else "of samples held out in turn"
        sentence = f"{where} get the right one of {self.classes:,} classes [{low:.1%}, {high:.1%}]"
        return Answer("How good", "How good is it?", f"{value:.1%}", sentence)

    @property
    def specific(self) -> Answer:
        """How specific its answers are under the guarantee."""
        question = "How specific are its answers under the guarantee?"
        if self.guarantee is None:
            return Answer("Guarantee", question, "none:", self.no_guarantee)
        ranks = {**self.guarantee["ranks"]}
        ranks.setdefault(NOTHING, 0.0)
        most = 1 - self.guarantee["accuracy"]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in ranks.items())
        sentence = f"wrong, guaranteed: {shares}"
        if self.calibrated_on:
            sentence += f"; calibrated on {self.calibrated_on}, not tested since"
        elif self.tested:
            false = self.guarantee["false"][0]
            chance = ", within chance" if false > most and not self.broken else ""
            sentence += f"; {false:.1%} of test samples were wrong{chance}"
        return Answer("Guarantee", question, f"at most {100 * most:.3g}%", sentence, bool(self.broken))

    @property
    def taxonomy(self) -> Answer:
        """What the taxonomy added."""
        question = "Did the taxonomy help?"
        value, low, high = (100 * v for v in self.gain)
        number = f"{value:+.1f} points"
        if self.is_flat:
            sentence = f"at best [{low:+.1f}, {high:+.1f}] by cross-validation, too little: logistic regression was chosen"
            return Answer("Taxonomy", question, number, sentence)
        verdict = "it helped" if low > 0 else "it did harm" if high < 0 else "no more than chance"
        where = "on test samples" if self.tested else "by cross-validation"
        return Answer(
            "Taxonomy",
            question,
            number,
            f"over plain logistic regression [{low:+.1f}, {high:+.1f}] {where}: {verdict} ({self.chosen})",
        )

    @property
    def labels(self) -> Answer:
        """What coarse labels added."""
        question = "Did coarse labels help?"
        if self.coarse_gain is None:
            return Answer("Coarse", question, "0%", "of the labels are coarse: all of them name a class")
        value, low, high = (100 * v for v in self.coarse_gain)
        verdict = "they helped" if low > 0 else "they did harm" if high < 0 else "no more than chance"
        sentence = (
            f"[{low:+.1f}, {high:+.1f}] by cross-validation, from {self.coarse:.0%} of the labels: {verdict}"
        )
        return Answer("Coarse", question, f"{value:+.1f} points", sentence)

    @property
    def something_new(self) -> Answer:
        """What happens to classes that it does not know."""
        assert self.new is not None
        sentence = (
            f"of samples of a class it never saw get a wrong class, {self.new['group']:.0%} a true group and "
            f"{self.new['nothing']:.0%} no answer ({self.new['classes']} classes left out)"
        )
        return Answer("New", "What if something new appears?", f"{self.new['wrong']:.0%}", sentence)

    @property
    def watch(self) -> Answer:
        """What to watch."""
        question = "What should I watch?"
        if self.broken:
            return Answer("Watch", question, "", f"{BROKEN}: {self.broken}", bad=True)
        odd = [self.no_guarantee if self.guarantee is not None else "", *self.notes]
        first = next((note for note in odd if note), "nothing odd was found")
        return Answer("Watch", question, "", first[0].upper() + first[1:])

    @property
    def next(self) -> Answer:
        """The next two commands."""
        return Answer("Next", "What next?", "", "    or    ".join(self.commands))

    @property
    def commands(self) -> list[str]:
        """The commands that use the model."""
        option = "" if self.guarantee is None else f" --accuracy {self.guarantee['accuracy']:g}"
        path = shlex.quote(self.path)
        return [f"hace predict {path} NEW{option}", f"hace serve {path}"]
