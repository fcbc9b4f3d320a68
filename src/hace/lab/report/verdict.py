"""The answer of a study in plain words: does the hierarchy help, in what, by how much, how certain, and what to use.

Words follow from intervals by fixed rules. The question is asked of two methods named beforehand (HACE and cross-entropy, or
those of `--compare`), so nothing was picked by its test results; the method to use is the one that was best on held-out
samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hace.lab.report.arenas import PROTOCOLS, TOP1, Arena, may_be_used, method_title, shown
from hace.lab.report.aspects import Certainty, Finding, certainties, findings, signed
from hace.lab.report.doubts import doubts
from hace.lab.report.labels import Answer, LabelQuestion, in_words, label_questions
from hace.lab.report.results import Results
from hace.metrics.intervals import Interval

Tone = Literal["yes", "part", "no", "open"]


@dataclass(frozen=True)
class Verdict:
    """What a study says about one question.

    Attributes:
        where: Data set, model, and what is known of the labels.
        answer: In a sentence or two.
        tone: "yes", "part", "no" or "open", for the colour of the card.
        findings: By aspect; empty for a question about labels.
        pair: The two methods of the findings.
        lines: More sentences.
        use: What to use, and on what evidence; "" where nothing was held out.
        doubts: What is in doubt.
        question: What is asked.
    """

    where: str
    answer: str
    tone: Tone
    findings: tuple[Finding, ...] = ()
    pair: tuple[str, str] = ("", "")
    lines: tuple[str, ...] = ()
    use: str = ""
    doubts: tuple[str, ...] = field(default=())
    question: str = ""


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
    where = " · ".join(filter(None, (shown(arena.dataset), shown(arena.model), arena.labels)))
    if arena.protocol != "fair":
        where += f" · {PROTOCOLS[arena.protocol]}"
    first, second = results.first, results.second
    arrays = results.arrays[arena]
    found = findings(arrays, first, second) if first != second else []
    if not found:
        there = [method_title(m) for m, choice in results.choices[arena].items() if choice.finished]
        said = f"No comparison yet: finished are {', '.join(there)}." if there else "No run has finished."
        return Verdict(
            where, said, "open", doubts=tuple(doubts(results, arena, ())), question=results.question
        )
    held = [m for m in results.held_out(arena) if may_be_used(m)]
    best = held[0] if held else None
    answer, tone = _answer(results, arena, found, best)
    if arena.protocol == "paper":
        answer += " Rates were chosen on the test set, as in the paper: compare with its numbers, not with other studies."
    spoken = [first, second] if best is None or best in (first, second) else [first, second, best]
    return Verdict(
        where,
        answer,
        tone,
        tuple(found),
        (first, second),
        use="" if best is None else _use(results, arena, held),
        doubts=tuple(doubts(results, arena, spoken)),
        question=results.question,
    )


def _answer(results: Results, arena: Arena, found: Sequence[Finding], best: str | None) -> tuple[str, Tone]:
    """The headline. Where the two methods are level, a better method that was chosen on held-out samples is named."""
    ours, theirs = method_title(results.first), method_title(results.second)
    better, worse = [f for f in found if f.better], [f for f in found if f.worse]
    if better and worse:
        return f"In part. {ours} beats {theirs} in {_names(better)} and loses in {_names(worse)}.", "part"
    if better:
        sure = "Yes." if any(f.certainty == "clear" for f in better) else "Probably."
        level = [f for f in found if not f.better]
        rest = f" No difference is shown in {_names(level)}." if level else ""
        return f"{sure} {ours} beats {theirs} in {_names(better)}.{rest}", "yes"
    if worse:
        sure = "No." if any(f.certainty == "clear" for f in worse) else "Probably not."
        return f"{sure} {ours} loses to {theirs} in {_names(worse)}.", "no"
    answer: tuple[str, Tone] = f"No difference shown. {ours} and {theirs} are level in every aspect.", "open"
    if best is not None and best not in (results.first, results.second):
        other = [f for f in findings(results.arrays[arena], best, results.second) if f.better]
        if other:
            return (
                f"Not by {ours}, which is level with {theirs}; {method_title(best)} is better in {_names(other)}.",
                "part",
            )
    return answer


def _names(found: Sequence[Finding]) -> str:
    """The names of aspects: "accuracy, mistakes and confidence"."""
    names = [f.aspect.name for f in found]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _use(results: Results, arena: Arena, held: Sequence[str]) -> str:
    """What to use: the best on held-out samples, unless the test samples show no gain over the reference.

    Then it is the method that was to be compared, where it shows a gain, or else the reference: both were named beforehand.
    """
    best, reference = held[0], results.second
    scores = results.held_out(arena)

    def title(method: str) -> str:
        settings = results.choices[arena][method].settings if method in results.choices[arena] else ""
        return method_title(method) + (f" ({settings})" if settings else "")

    def gain(method: str) -> Interval | None:
        gap = None if method == reference else results.gap(arena, method, reference, TOP1)
        return None if gap is None else gap.interval

    said = f"{title(best)}: best of {len(held)} on held-out samples, {100 * scores[best]:.1f} %"
    said += f" before {method_title(held[1])}, {100 * scores[held[1]]:.1f} %." if len(held) > 1 else "."
    found = gain(best)
    if found is None:
        return said
    if found.low > 0:
        return f"{said} On test samples {_points(found)} against {method_title(reference)}."
    less = f"{title(best)} was the best of {len(held)} on held-out samples, but the test samples show "
    less += f"{'a loss' if found.high < 0 else 'no gain'}: {_points(found)}."
    ours = gain(results.first)
    if ours is not None and ours.low > 0 and may_be_used(results.first):
        return f"{title(results.first)}: {_points(ours)} against {method_title(reference)} on test samples. {less}"
    return f"{title(reference)}. {less}"


def label_verdict(question: LabelQuestion) -> Verdict:
    """The verdict of a question about labels."""
    results, where = question.results, question.title.replace(", ", " · ")
    poor = [answer for answer in question.answers if answer.arena != question.whole]
    gains = {a.arena: a.dropping[1] for a in poor if a.dropping is not None}
    seeds = {a: min(len(c.finished) for c in results.choices[a].values() if c.finished) for a in gains}
    sure = certainties({arena: (gain, seeds[arena]) for arena, gain in gains.items()})
    notes: dict[str, None] = {}
    for answer in poor:
        spoken = [answer.best, *([answer.dropping[0]] if answer.dropping else [])]
        notes |= dict.fromkeys(doubts(results, answer.arena, spoken))
    lines = tuple(
        _label_line(answer, in_words(question.arenas[answer.arena]), sure.get(answer.arena))
        for answer in poor
    )
    if not gains:
        answer, tone = "See the best method for each state of the labels.", "open"
        return Verdict(
            where, answer, tone, lines=lines, doubts=tuple(notes), question="which method for poor labels?"
        )
    answer, tone = _use_or_drop(poor, list(gains.values()))
    asked = "are coarse labels worth using?"
    if question.mixed is not None:
        coarse, samples = question.mixed
        asked = f"{coarse:,} of {samples:,} training samples are labelled above the leaves. Use or drop them?"
    return Verdict(where, answer, tone, lines=lines, doubts=tuple(notes), question=asked)


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


def _label_line(answer: Answer, state: str, sure: Certainty | None) -> str:
    """What a state of the labels says: the best method, its gain over dropping, and how much of the gap it closes."""
    said = f"{state}: {method_title(answer.best)} reaches {100 * answer.accuracy:.1f} %"
    if answer.dropping is not None and sure is not None:
        without, gain = answer.dropping
        word = "unclear" if sure == "open" else f"{sure} {'gain' if gain.value > 0 else 'loss'}"
        word += f"; best without them: {method_title(without).removesuffix(', coarse labels dropped')}"
        said += f", {_points(gain)} against dropping the coarse labels ({word})"
    if answer.closed is not None:
        said += f": {100 * answer.closed:.0f} % of the way to knowing all labels"
    said += "."
    if answer.second is not None:
        name, gap = answer.second
        place = (
            "level"
            if not gap.excludes_zero
            else "ahead of it"
            if gap.value > 0
            else "behind it on test samples"
        )
        chosen = "held-out" if answer.held_out else "test"
        said += f" Next on {chosen} samples: {method_title(name)}; {method_title(answer.best)} is {place}, {_points(gap)}."
    return said


def _points(gap: Interval) -> str:
    ends = "" if gap.low != gap.low else f" [{signed(100 * gap.low, 1)}, {signed(100 * gap.high, 1)}]"
    return f"{signed(100 * gap.value, 1)} points{ends}"
