"""The answer of a study in plain words: does the hierarchy help, in what, by how much, how certain, and what to use.

Words follow from intervals by fixed rules. The question is asked of two methods named beforehand (HACE and cross-entropy, or
those of `--compare`), so nothing was picked by its test results; the method to use is the one that was best on held-out
samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hace.lab.report.arenas import PROTOCOLS, TOP1, Arena, may_be_used, method_title
from hace.lab.report.aspects import (
    Certainty,
    Finding,
    bracketed,
    certainties,
    certainty_word,
    findings,
    signed,
)
from hace.lab.report.doubts import doubts
from hace.lab.report.labels import Answer, LabelQuestion, in_words, label_questions
from hace.lab.report.results import Results
from hace.metrics.intervals import Interval

Tone = Literal["yes", "part", "no", "open"]


@dataclass(frozen=True)
class LabelStep:
    """What a study says of one state of the labels.

    Attributes:
        state: What is known of the labels.
        answer: The best method and its gain over dropping coarse labels.
        certainty: Of that gain; None where nothing drops them.
        best: The best method with its settings.
    """

    state: str
    answer: Answer
    certainty: Certainty | None
    best: str

    @property
    def word(self) -> str:
        """How certain the gain is, and which way: "clear gain"."""
        if self.certainty is None or self.answer.dropping is None:
            return ""
        return certainty_word(self.certainty, self.answer.dropping[1].value > 0)

    @property
    def line(self) -> str:
        """The best method, its gain over dropping, and how much of the gap it closes."""
        answer = self.answer
        said = f"{self.state}: {method_title(answer.best)} reaches {100 * answer.accuracy:.1f} %"
        if answer.dropping is not None and self.word:
            without = method_title(answer.dropping[0]).removesuffix(", coarse labels dropped")
            said += f", {points(answer.dropping[1])} against dropping the coarse labels"
            said += f" ({self.word}; best without them: {without})"
        elif answer.dropping is None and answer.against is not None:
            said += f", {points(answer.against[1])} against {method_title(answer.against[0])} with the same labels"
        return f"{said}.{self.rest}"

    @property
    def rest(self) -> str:
        """How far that is to knowing all labels."""
        closed, whole = self.answer.closed, self.answer.whole
        if closed is None or whole is None:
            return ""
        return f" That is {100 * closed:.0f} % of the way from dropping them to knowing all labels ({100 * whole:.1f} %)."

    @property
    def why(self) -> str:
        """On what evidence the best method is the best."""
        if self.answer.second is None:
            return "."
        name, gap = self.answer.second
        title = method_title(name)
        if not gap.excludes_zero:
            against = f"level with {title}, the next there, on test samples"
        else:
            against = f"{'ahead of' if gap.value > 0 else 'behind'} {title}, the next there, on test samples"
        chosen = "held-out" if self.answer.held_out else "test"
        return f": best on {chosen} samples; {against} ({points(gap)})."


@dataclass(frozen=True)
class Verdict:
    """What a study says about one question.

    Attributes:
        where: Data set, model, and what is known of the labels.
        answer: In a sentence or two.
        tone: "yes", "part", "no" or "open", for the colour of the card.
        findings: By aspect; empty for a question about labels.
        pair: The two methods of the findings.
        steps: By state of the labels, for a question about them.
        lines: More sentences.
        use: The method to use, with its settings; "" where nothing was held out.
        why: On what evidence, from the punctuation after `use` on.
        doubts: What is in doubt.
        question: What is asked.
        spoken: The methods that it speaks of.
    """

    where: str
    answer: str
    tone: Tone
    findings: tuple[Finding, ...] = ()
    pair: tuple[str, str] = ("", "")
    steps: tuple[LabelStep, ...] = ()
    lines: tuple[str, ...] = ()
    use: str = ""
    why: str = ""
    doubts: tuple[str, ...] = field(default=())
    question: str = ""
    spoken: tuple[str, ...] = ()


def verdicts(results: Results) -> list[Verdict]:
    """One for each data set and model with all labels known, and one for each question about labels.

    Where a data set and model were run under both protocols, the fair one answers.
    """
    questions = label_questions(results)
    asked = {arena for question in questions for arena in question.arenas if arena != question.whole}
    found = [arena for arena in results.choices if arena not in asked]
    fair = {(arena.dataset, arena.model) for arena in found if arena.protocol == "fair"}
    kept = [a for a in found if a.protocol == "fair" or (a.dataset, a.model) not in fair]
    return [*(arena_verdict(results, arena) for arena in kept), *map(label_verdict, questions)]


def arena_verdict(results: Results, arena: Arena) -> Verdict:
    """The verdict of an arena."""
    where = " · ".join(filter(None, (*arena.place, arena.labels)))
    if arena.protocol == "paper":
        where += f" · {PROTOCOLS[arena.protocol]}"
    first, second = results.first, results.second
    arrays = results.arrays[arena]
    found = findings(arrays, first, second) if first != second else []
    if not found:
        there = [method_title(m) for m, choice in results.choices[arena].items() if choice.finished]
        said = f"No comparison yet: finished are {', '.join(there)}." if there else "No run has finished."
        return Verdict(
            where, said, "open", doubts=tuple(doubts(results, {arena: ()})), question=results.question
        )
    held = [m for m in results.held_out(arena) if may_be_used(m)]
    best = held[0] if held else None
    answer, tone = _answer(results, arena, found, best)
    if arena.protocol == "paper":
        answer += " Rates were chosen on the test set, as in the paper: compare with its numbers, not with other studies."
    use, why = _use(results, arena, held) if held else ("", "")
    spoken = [first, second] if best is None or best in (first, second) else [first, second, best]
    return Verdict(
        where,
        answer,
        tone,
        tuple(found),
        (first, second),
        use=use,
        why=why,
        doubts=tuple(doubts(results, {arena: spoken})),
        question=results.question,
        spoken=tuple(spoken),
    )


def _answer(results: Results, arena: Arena, found: Sequence[Finding], best: str | None) -> tuple[str, Tone]:
    """The headline. Unless the first method wins, a better one that was chosen on held-out samples is named."""
    ours, theirs = method_title(results.first), method_title(results.second)
    better, worse = [f for f in found if f.better], [f for f in found if f.worse]
    other = "" if best is None or best in (results.first, results.second) else best
    gains = [f for f in findings(results.arrays[arena], other, results.second) if f.better] if other else []
    if better and worse:
        also = f" {method_title(other)} beats {theirs} in {_names(gains)}." if gains else ""
        return (
            f"In part. {ours} beats {theirs} in {_names(better)} and loses in {_names(worse)}.{also}",
            "part",
        )
    if better:
        sure = "Yes." if any(f.certainty == "clear" for f in better) else "Probably."
        level = [f for f in found if not f.better]
        rest = f" No difference is shown in {_names(level)}." if level else ""
        return f"{sure} {ours} beats {theirs} in {_names(better)}.{rest}", "yes"
    if gains:
        place = f"loses to {theirs} in {_names(worse)}" if worse else f"is level with {theirs}"
        return f"Not by {ours}, which {place}; {method_title(other)} is better in {_names(gains)}.", "part"
    if worse:
        sure = "No." if any(f.certainty == "clear" for f in worse) else "Probably not."
        return f"{sure} {ours} loses to {theirs} in {_names(worse)}.", "no"
    return f"No difference shown. {ours} and {theirs} are level in every aspect.", "open"


def _names(found: Sequence[Finding]) -> str:
    """The names of aspects: "accuracy, mistakes and confidence"."""
    names = [f.aspect.name for f in found]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _use(results: Results, arena: Arena, held: Sequence[str]) -> tuple[str, str]:
    """What to use and why: the best on held-out samples, unless the test samples show no gain over the reference.

    Then it is the method that was to be compared, where it shows a gain, or else the reference: both were named beforehand.
    """
    best, reference = held[0], results.second
    scores = results.held_out(arena)

    def title(method: str) -> str:
        return _with_settings(results, arena, method)

    def gain(method: str) -> Interval | None:
        gap = None if method == reference else results.gap(arena, method, reference, TOP1)
        return None if gap is None else gap.interval

    why = f": best of {len(held)} on held-out samples ({100 * scores[best]:.1f} %"
    if len(held) > 1:
        level = f"{scores[best]:.3f}" == f"{scores[held[1]]:.3f}"
        after = f"; next {method_title(held[1])}, {100 * scores[held[1]]:.1f} %"
        why += f"; level with {method_title(held[1])}" if level else after
    why += ")."
    found = gain(best)
    if found is None:
        return title(best), why
    if found.low > 0:
        return title(best), f"{why} On test samples {points(found)} against {method_title(reference)}."
    less = f"{title(best)} was the best of {len(held)} on held-out samples, but the test samples show "
    less += f"{'a loss' if found.high < 0 else 'no gain'}: {points(found)}."
    ours = gain(results.first)
    if ours is not None and ours.low > 0 and may_be_used(results.first):
        against = f"{points(ours)} against {method_title(reference)} on test samples"
        return title(results.first), f": {against}. {less}"
    return title(reference), f". {less}"


def _with_settings(results: Results, arena: Arena, method: str) -> str:
    """A method and the settings that were chosen for it: "HACE (d 0.5, rate 8)"."""
    settings = results.choices[arena][method].settings if method in results.choices[arena] else ""
    return method_title(method) + (f" ({settings})" if settings else "")


def label_verdict(question: LabelQuestion) -> Verdict:
    """The verdict of a question about labels."""
    results, where = question.results, question.title.replace(", ", " · ")
    poor = [answer for answer in question.answers if answer.arena != question.whole]
    gains = {a.arena: a.dropping[1] for a in poor if a.dropping is not None}
    seeds = {a: min(len(c.finished) for c in results.choices[a].values() if c.finished) for a in gains}
    sure = certainties({arena: (gain, seeds[arena]) for arena, gain in gains.items()})
    spoken = {a.arena: [a.best, *([a.dropping[0]] if a.dropping else [])] for a in poor}
    steps = tuple(
        LabelStep(
            in_words(question.arenas[answer.arena]),
            answer,
            sure.get(answer.arena),
            _with_settings(results, answer.arena, answer.best),
        )
        for answer in poor
    )
    if gains:
        answer, tone = _use_or_drop(poor, list(gains.values()))
        asked = _question(question)
    else:
        answer, tone = _best_methods(steps), "open"
        asked = "which method for poor labels?"
    if tone == "no":  # the methods of the steps use the coarse labels
        use, why = "", ""
    elif len(steps) == 1:
        use, why = steps[0].best, steps[0].why
    else:
        use, why = "; ".join(dict.fromkeys(f"{step.best} for {step.state}" for step in steps)), "."
    return Verdict(
        where,
        answer,
        tone,
        steps=steps,
        use=use,
        why=why,
        doubts=tuple(doubts(results, spoken)),
        question=asked,
        spoken=tuple(dict.fromkeys(answer.best for answer in poor)),
    )


def _best_methods(steps: Sequence[LabelStep]) -> str:
    best = list(dict.fromkeys(method_title(step.answer.best) for step in steps))
    if not best:
        return "No result yet."
    if len(best) == 1:
        return f"{best[0]} is the best method here."
    return f"It depends on the labels: {', '.join(best[:-1])} or {best[-1]}."


def _use_or_drop(poor: Sequence[Answer], gains: Sequence[Interval]) -> tuple[str, Tone]:
    shown = [gain for gain in gains if gain.excludes_zero]
    if not shown:
        return (
            "No difference shown. These runs cannot tell using the coarse labels from dropping them.",
            "open",
        )
    if len(shown) < len(gains) or len({gain.value > 0 for gain in shown}) > 1:
        return "In part. Whether to use the coarse labels depends on how many there are.", "part"
    if shown[0].value < 0:
        return "No. Drop the coarse labels.", "no"
    best = dict.fromkeys(method_title(answer.best) for answer in poor if answer.dropping is not None)
    return f"Yes. Use the coarse labels, with {' or '.join(best)}.", "yes"


def _question(question: LabelQuestion) -> str:
    if question.mixed is None:
        return "are coarse labels worth using?"
    coarse, samples = question.mixed
    return f"{coarse:,} of {samples:,} training samples are labelled above the leaves. Are they worth using?"


def points(gap: Interval) -> str:
    """A difference of accuracies: "+6.0 points [+4.4, +7.5]"."""
    ends = "" if gap.low != gap.low else f" {bracketed(100 * gap.low, 100 * gap.high, 1)}"
    return f"{signed(100 * gap.value, 1)} points{ends}"
