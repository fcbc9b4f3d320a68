"""The answer of a study in plain words: does the hierarchy help, in what, by how much, how certain, and what to use.

Words follow from intervals by fixed rules. The question is asked of two methods named beforehand (HACE and cross-entropy, or
those of `--compare`), so nothing was picked by its test results; the method to use is the one that was best on held-out
samples. Caveats name what weakens an answer: poor searches, few seeds, small classes, unequal budgets, missing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hace.lab.report.comparisons import (
    PROTOCOLS,
    TOP1,
    Choice,
    Comparison,
    comparison_of,
    may_be_used,
    method_title,
    unseen_classes,
)
from hace.lab.report.findings import Finding, certainties, findings, points
from hace.lab.report.labels import Answer, LabelQuestion, label_questions
from hace.lab.report.results import Results
from hace.lab.study.cells import Record, coarse_searches, searched_at
from hace.metrics.evaluation import wilson
from hace.metrics.intervals import Interval

Tone = Literal["yes", "part", "no", "open"]
QUESTION = "does the hierarchy help?"
FEW_SEEDS = 5  # the fair protocol's number for probes
FEW_SAMPLES = 10  # test samples of a class
WEAK_SEARCH = 0.05  # half the interval of an accuracy on held-out samples
LEGEND = (
    (
        "Differences",
        "of means over seeds, with their 95% interval over seeds and test samples; ↓: less is better.",
    ),
    ("Clear", "the difference remains after Holm's correction for all lines of a card."),
    ("Likely", "the interval excludes 0, as one in twenty does by chance."),
    ("Unclear", "the interval includes 0."),
)
EXPLAINED = {  # by the beginning of their key
    "hace": "hierarchy-aware cross-entropy, which trains the nodes above a class as well.",
    "sce_paths": "cross-entropy whose classes share the weights of the nodes above them.",
    "sce_soft": "cross-entropy with part of the target on related classes.",
    "sce": "plain softmax cross-entropy over the classes.",
    "hxe": "hierarchical cross-entropy: one term per level, which counts less the deeper it is.",
    "hce": "cross-entropy over all nodes.",
    "conditional": "a softmax among the children of each node.",
}
COARSE = "cross-entropy learns from one by the summed probability of the classes below it."


@dataclass(frozen=True)
class Verdict:
    """What a study says about one question."""

    where: str  # data set, model, and what is known of the labels
    answer: str  # in a sentence or two
    tone: Tone  # for the colour of the card
    findings: tuple[Finding, ...] = ()  # by aspect; empty for a question about labels
    pair: tuple[str, str] = ("", "")  # the two methods of the findings
    steps: tuple[Answer, ...] = ()  # by state of the labels, for a question about them
    lines: tuple[str, ...] = ()  # more sentences
    use: str = ""  # the method to use, with its settings; "" where nothing was held out
    why: str = ""  # on what evidence, from the punctuation after `use` on
    caveats: tuple[str, ...] = ()
    question: str = ""
    spoken: tuple[str, ...] = ()  # the methods that it speaks of

    @property
    def compares_dropping(self) -> bool:
        """Whether a state of the labels is compared with dropping coarse ones."""
        return any(step.dropping for step in self.steps)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the card says outside its tables."""
        return (*(() if self.compares_dropping else (step.line for step in self.steps)), *self.lines)


def verdicts(results: Results) -> list[Verdict]:
    """One for each data set and model with all labels known, and one for each question about labels.

    Where a data set and model were run under both protocols, the fair one answers.
    """
    questions = label_questions(results)
    asked = {
        comparison
        for question in questions
        for comparison in question.comparisons
        if comparison != question.whole
    }
    found = [comparison for comparison in results.choices if comparison not in asked]
    fair = {(comparison.dataset, comparison.model) for comparison in found if comparison.protocol == "fair"}
    kept = [a for a in found if a.protocol == "fair" or (a.dataset, a.model) not in fair]
    return [*(comparison_verdict(results, comparison) for comparison in kept), *map(label_verdict, questions)]


def comparison_verdict(results: Results, comparison: Comparison) -> Verdict:
    """The verdict of a comparison."""
    where = " · ".join(filter(None, (*comparison.place, comparison.labels)))
    if comparison.protocol == "paper":
        where += f" · {PROTOCOLS[comparison.protocol]}"
    first, second = results.first, results.second
    arrays = results.arrays[comparison]
    found = findings(arrays, first, second) if first != second else []
    if not found:
        there = [method_title(m) for m, choice in results.choices[comparison].items() if choice.finished]
        said = f"No comparison yet: finished are {', '.join(there)}." if there else "No run has finished."
        notes = tuple(caveats(results, {comparison: ()}))
        return Verdict(where, said, "open", caveats=notes, question=QUESTION)
    held = [m for m in results.held_out(comparison) if may_be_used(m)]
    best = held[0] if held else None
    answer, tone = _answer(results, comparison, found, best)
    if comparison.protocol == "paper":
        answer += " Rates were chosen on the test set, as in the paper: compare with its numbers, not with other studies."
    use, why = _use(results, comparison, held) if held else ("", "")
    spoken = [first, second] if best is None or best in (first, second) else [first, second, best]
    more = {"use": use, "why": why, "question": QUESTION, "spoken": tuple(spoken)}
    notes = tuple(caveats(results, {comparison: spoken}))
    return Verdict(where, answer, tone, tuple(found), (first, second), caveats=notes, **more)


def _answer(
    results: Results, comparison: Comparison, found: Sequence[Finding], best: str | None
) -> tuple[str, Tone]:
    """The headline. Unless the first method wins, a better one that was chosen on held-out samples is named."""
    ours, theirs = method_title(results.first), method_title(results.second)
    better, worse = [f for f in found if f.better], [f for f in found if f.worse]
    other = "" if best is None or best in (results.first, results.second) else best
    theirs_too = findings(results.arrays[comparison], other, results.second) if other else []
    gains = [f for f in theirs_too if f.better]
    if better and worse:
        also = f" {method_title(other)} beats {theirs} in {_names(gains)}." if gains else ""
        parts = f"{ours} beats {theirs} in {_names(better)} and loses in {_names(worse)}"
        return f"In part. {parts}.{also}", "part"
    if better:
        sure = "Yes." if any(f.certainty == "clear" for f in better) else "Probably."
        tied = [f for f in found if not f.better]
        rest = f" No difference is shown in {_names(tied)}." if tied else ""
        return f"{sure} {ours} beats {theirs} in {_names(better)}.{rest}", "yes"
    if gains:
        place = f"loses to {theirs} in {_names(worse)}" if worse else f"is tied with {theirs}"
        return f"Not by {ours}, which {place}; {method_title(other)} is better in {_names(gains)}.", "part"
    if worse:
        sure = "No." if any(f.certainty == "clear" for f in worse) else "Probably not."
        return f"{sure} {ours} loses to {theirs} in {_names(worse)}.", "no"
    return f"No difference shown. {ours} and {theirs} are tied in every aspect.", "open"


def _names(found: Sequence[Finding]) -> str:
    """The names of aspects: "accuracy, mistakes and confidence"."""
    names = [f.aspect.name for f in found]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _use(results: Results, comparison: Comparison, held: Sequence[str]) -> tuple[str, str]:
    """What to use and why: the best on held-out samples, unless the test samples show no gain over the reference.

    Then it is the method that was to be compared, where it shows a gain, or else the reference: both were named beforehand.
    """
    best, reference = held[0], results.second
    scores = results.held_out(comparison)

    def title(method: str) -> str:
        return _with_settings(results, comparison, method)

    def gain(method: str) -> Interval | None:
        gap = None if method == reference else results.gap(comparison, method, reference, TOP1)
        return None if gap is None else gap.interval

    why = f": best of {len(held)} on held-out samples ({100 * scores[best]:.1f}%"
    if len(held) > 1:
        tied = f"{scores[best]:.3f}" == f"{scores[held[1]]:.3f}"
        after = f"; next {method_title(held[1])}, {100 * scores[held[1]]:.1f}%"
        why += f"; tied with {method_title(held[1])}" if tied else after
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


def _with_settings(results: Results, comparison: Comparison, method: str) -> str:
    """A method and the settings that were chosen for it: "HACE (d 0.5, rate 8)"."""
    settings = results.choices[comparison][method].settings if method in results.choices[comparison] else ""
    return method_title(method) + (f" ({settings})" if settings else "")


def label_verdict(question: LabelQuestion) -> Verdict:
    """The verdict of a question about labels."""
    results, where = question.results, question.title.replace(", ", " · ")
    poor = [answer for answer in question.answers if answer.comparison != question.whole]
    gains = {a.comparison: a.dropping[1] for a in poor if a.dropping is not None}
    seeds = {c: [len(x.finished) for x in results.choices[c].values() if x.finished] for c in gains}
    sure = certainties({comparison: (gain, min(seeds[comparison])) for comparison, gain in gains.items()})
    steps = tuple(answer._replace(certainty=sure.get(answer.comparison)) for answer in poor)
    best = [f"{method_title(a.best)}{f' ({a.settings})' if a.settings else ''}" for a in poor]
    if gains:
        (answer, tone), asked = _use_or_drop(poor, list(gains.values())), _question(question)
    else:
        answer, tone, asked = _best_methods(poor), "open", "which method for poor labels?"
    use, why = "; ".join(dict.fromkeys(f"{b} for {a.state}" for a, b in zip(poor, best, strict=True))), "."
    if tone == "no":  # the best methods use the coarse labels
        use, why = "", ""
    elif len(steps) == 1:
        use, why = best[0], steps[0].why
    spoken = {a.comparison: [a.best, *([a.dropping[0]] if a.dropping else [])] for a in poor}
    notes = tuple(caveats(results, spoken))
    named = tuple(dict.fromkeys(a.best for a in poor))
    return Verdict(
        where, answer, tone, steps=steps, use=use, why=why, caveats=notes, question=asked, spoken=named
    )


def _best_methods(poor: Sequence[Answer]) -> str:
    best = list(dict.fromkeys(method_title(answer.best) for answer in poor))
    if not best:
        return "No result yet."
    if len(best) == 1:
        return f"{best[0]} is the best method here."
    return f"It depends on the labels: {', '.join(best[:-1])} or {best[-1]}."


def _use_or_drop(poor: Sequence[Answer], gains: Sequence[Interval]) -> tuple[str, Tone]:
    shown = [gain for gain in gains if gain.excludes_zero]
    if not shown:
        return "No difference shown. These runs cannot tell using coarse labels from dropping them.", "open"
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


def glossary(verdicts: Sequence[Verdict]) -> list[list[tuple[str, str]]]:
    """What the words of the cards mean, in lines of terms: aspects, methods, and how certain a difference is."""
    aspects = {f.aspect.name: f"{f.aspect.meaning}." for v in verdicts for f in v.findings}
    spoken = dict.fromkeys(m for v in verdicts for m in v.spoken)
    known = {m: next((text for key, text in EXPLAINED.items() if m.startswith(key)), "") for m in spoken}
    methods = {method_title(m): text for m, text in known.items() if text}
    if any(step.dropping for v in verdicts for step in v.steps):
        methods["Coarse label"] = COARSE
    shown = any(v.findings or v.steps for v in verdicts)
    return [[*methods.items()], [*aspects.items()], [*LEGEND] if shown else []]


def caveats(results: Results, spoken: Mapping[Comparison, Sequence[str]]) -> list[str]:
    """Notes on the methods that a verdict speaks of, by comparison, in short sentences."""
    found = [*_edges(results, spoken), *_coarse(results, spoken)]
    for comparison, methods in spoken.items():
        records = [r for r in results.records if comparison_of(r.key) == comparison]
        found += [
            *_searches(results.choices[comparison], records, methods),
            *_seeds(results, comparison, methods),
        ]
        found += [*_samples(results, comparison), *_missing(records)]
    return list(dict.fromkeys(found))


def _edges(results: Results, spoken: Mapping[Comparison, Sequence[str]]) -> Iterator[str]:
    """One sentence for all methods and comparisons."""
    counts: dict[str, Counter[str]] = {}
    for comparison, methods in spoken.items():
        for method in methods:
            choice = results.choices[comparison].get(method)
            for record in choice.finished if choice is not None else ():
                counts.setdefault(method_title(method), Counter()).update([record.edge])
    at_edge = {name: ends for name, ends in counts.items() if any(ends)}
    if at_edge:
        names = ", ".join(
            f"{name} ({', '.join(f'{n} of {ends.total()} at the {edge}' for edge, n in ends.items() if edge)})"
            for name, ends in at_edge.items()
        )
        yield f"Searches that ended at the edge of their grid, so that another value may do better: {names}. Widen `--rates`."


def _coarse(results: Results, spoken: Mapping[Comparison, Sequence[str]]) -> Iterator[str]:
    """One sentence for all methods whose grid of rates may miss their best one."""
    keys = coarse_searches(results.records)
    coarse = {method_title(k.method) for k in keys if k.method in spoken.get(comparison_of(k), ())}
    if coarse:
        yield (
            "Coarse grids: between neighbouring rates accuracy changes by more than a seed's noise, so that a rate in between "
            f"may do better: {', '.join(sorted(coarse))}. Use smaller steps of `--rates`."
        )


def _searches(
    choices: Mapping[str, Choice], records: Sequence[Record], methods: Sequence[str]
) -> Iterator[str]:
    """Unequal budgets, one choice for all seeds, and searches on few samples, which rank their candidates partly by chance."""
    tried = {m: choices[m].budget for m in methods if m in choices}
    if len(set(tried.values())) > 1:
        words = ", ".join(f"{method_title(m)} {count}" for m, count in tried.items())
        yield f"Unequal search: candidates per seed are {words}."
    if (seed := searched_at(records)) is not None:
        yield f"Rates were chosen once, at seed {seed}, for all seeds: the intervals leave out how that choice varies."
    found = [r for r in records if r.stage == "search" and r.key.method in methods]
    searched = [
        (r.run.result["samples"], r.top1)
        for r in found
        if r.run is not None and r.run.result and r.top1 is not None
    ]
    if not searched:
        return
    samples, accuracy = min(searched, key=lambda one: (one[0], -one[1]))
    low, high = wilson(round(accuracy * samples), samples)
    if high - low > 2 * WEAK_SEARCH:
        yield (
            f"Rates were chosen on {samples:,} held-out samples, where an accuracy is uncertain by about "
            f"{50 * (high - low):.0f} points: chance has a say in the choice."
        )


def _seeds(results: Results, comparison: Comparison, methods: Sequence[str]) -> Iterator[str]:
    counts = [len(c.finished) for m, c in results.choices[comparison].items() if m in methods and c.finished]
    if counts and min(counts) < FEW_SEEDS:
        seeds = "One seed" if min(counts) == 1 else f"{min(counts)} seeds"
        remedy = "" if comparison.protocol == "single" else " Raise `--seeds`."
        yield f"{seeds}: the intervals say little about how other seeds would turn out.{remedy}"


def _samples(results: Results, comparison: Comparison) -> Iterator[str]:
    """Classes without training samples or with few test samples, by the first method that knows."""
    arrays = results.arrays[comparison]
    for method, choice in results.choices[comparison].items():
        if unseen := unseen_classes(choice.finished):
            yield f"{unseen}."
            return
        read = arrays.predictions(method)
        if read and (h := arrays.hierarchy) is not None:
            count = np.bincount(next(iter(read.values()))["truth"], minlength=h.num_nodes)[h.leaf_nodes]
            if few := int((count < FEW_SAMPLES).sum()):
                small = f"{few:,} of {h.num_leaves:,} classes have fewer than {FEW_SAMPLES} test samples"
                yield f"{small}: single classes say little."
            return


def _missing(records: Sequence[Record]) -> Iterator[str]:
    final = [r for r in records if r.stage == "final"]
    lost = [r for r in final if r.status != "finished"]
    if lost:
        names = ", ".join(dict.fromkeys(method_title(r.key.method) for r in lost))
        yield f"{len(lost):,} of {len(final):,} final runs have no result: {names}."
