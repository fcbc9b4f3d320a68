"""The answer of a study in plain words: does the hierarchy help, in what, by how much, how certain, and what to use.

Words follow from intervals by fixed rules. The question is asked of two methods named beforehand (HACE and cross-entropy, or
those of `--difference`), so nothing was picked by its test results; the method to use is the one that was best on held-out
samples. Caveats name what weakens an answer: poor searches, few seeds, small classes, unequal budgets, missing runs.

Comparisons of one dataset and model that differ in what is known of the training labels are one question: whether coarse
labels are worth using, which method uses them best, and what it gains.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from hace.lab.report.conformal import DERIVED, SIBLINGS
from hace.lab.report.document import WORDS, Entry, ReportTable
from hace.lab.report.findings import Certainty, Finding, certainties, certainty_word, findings, points
from hace.lab.report.method_tables import MEANS, score_column
from hace.lab.report.results import (
    HEADLINES,
    PROTOCOLS,
    TOP1,
    Choice,
    Comparison,
    Metric,
    Results,
    budget_of,
    comparison_of,
    may_be_used,
    method_title,
    unseen_classes,
)
from hace.lab.runs.config import LabelsConfig
from hace.lab.runs.run import Run
from hace.lab.runs.samples import has_siblings
from hace.lab.study.presets import METHODS
from hace.lab.study.records import Record, coarse_searches, searched_at
from hace.metrics.intervals import Interval, share_interval

Tone = Literal["yes", "part", "no", "open"]
QUESTION = "does the hierarchy help?"
FEW_SEEDS = 5  # the fair protocol's number for probes
FEW_SAMPLES = 10  # test samples of a class
WEAK_SEARCH = 0.05  # half the interval of an accuracy on held-out samples
ALL_KNOWN, AS_THEY_ARE = "all labels", "labels as they are"


class Answer(NamedTuple):
    """What a study says of one state of the labels. Other methods come with how far the best is ahead of them.

    The best is the best on held-out samples, where there are any, of the methods that use all labels and are no controls.
    """

    comparison: Comparison
    best: str
    accuracy: float  # its mean top-1 on test samples
    second: tuple[str, Interval] | None
    dropping: tuple[str, Interval] | None  # the best method that drops coarse labels
    dropped: float | None  # its mean top-1
    whole: float | None  # the best method's mean top-1 where all labels are known
    held_out: bool  # whether held-out samples chose the best method
    against: tuple[str, Interval] | None  # the method that others are compared with, unless it is the best
    state: str  # of the labels, in words
    overruled: bool = False  # the test samples show the reference ahead of the second, which was chosen
    certainty: Certainty | None = None  # of the gain over dropping

    @property
    def closed(self) -> float | None:
        """The share of the gap between dropping and knowing all labels that the best method closes, where a gain is shown."""
        gained = self.dropping is not None and self.dropping[1].low > 0
        if not gained or self.dropped is None or self.whole is None or self.whole <= self.dropped:
            return None
        return (self.accuracy - self.dropped) / (self.whole - self.dropped)

    @property
    def word(self) -> str:
        """How certain the gain is, and which way: "clear gain"."""
        known = self.certainty is not None and self.dropping is not None
        return certainty_word(self.certainty, self.dropping[1].value > 0) if known else ""  # pyright: ignore

    @property
    def line(self) -> str:
        """The best method, its gain over dropping, and how far that is to knowing all labels."""
        said = f"{self.state}: {method_title(self.best)} reaches {100 * self.accuracy:.1f}%"
        if self.dropping is not None and self.word:
            without = method_title(self.dropping[0]).removesuffix(", coarse labels dropped")
            said += f", {points(self.dropping[1])} against dropping the coarse labels"
            said += f" ({self.word}; best without them: {without})"
        elif self.dropping is None and self.against is not None:
            said += f", {points(self.against[1])} against {method_title(self.against[0])}"
            said += " with the same labels"
        if self.closed is None or self.whole is None:
            return f"{said}."
        way = f"{100 * self.closed:.0f}% of the way from dropping them to knowing all labels"
        return f"{said}. That is {way} ({100 * self.whole:.1f}%)."

    @property
    def why(self) -> str:
        """On what evidence the best method is the best."""
        if self.second is None:
            return "."
        name, gap = self.second
        chosen = f"best on {'held-out' if self.held_out else 'test'} samples"
        if self.overruled:
            return f": {points(gap)} on test samples against {method_title(name)}, the {chosen}."
        word = "tied with" if not gap.excludes_zero else "ahead of" if gap.value > 0 else "behind"
        against = f"{word} {method_title(name)}, the next there, on test samples"
        return f": {chosen}; {against} ({points(gap)})."


@dataclass(frozen=True, eq=False)
class LabelQuestion:
    """The comparisons of one dataset, model and protocol, by what is known of the labels."""

    results: Results
    comparisons: Mapping[Comparison, LabelsConfig]  # in the order of the study

    @property
    def title(self) -> str:
        """Dataset and model."""
        return ", ".join(next(iter(self.comparisons)).place)

    @property
    def slug(self) -> str:
        """For file names."""
        return next(iter(self.comparisons))._replace(labels="").slug

    @cached_property
    def whole(self) -> Comparison | None:
        """The comparison where all labels are known; None where the data have coarse ones as they are."""
        found = [comparison for comparison, labels in self.comparisons.items() if labels == LabelsConfig()]
        return found[0] if found and not self._droppers(found[0]) else None

    @cached_property
    def mixed(self) -> tuple[int, int] | None:
        """Of labels that are mixed already: training samples labelled above the leaves, and all; None where not known."""
        used = {True: 0, False: 0}  # most training samples of a run that drops labels, or does not
        for comparison in (a for a, labels in self.comparisons.items() if labels == LabelsConfig()):
            for method, choice in self.results.choices[comparison].items():
                samples = [r.result.get("train", {}).get("samples") or 0 for r in choice.finished]
                drops = method in self._droppers(comparison)
                used[drops] = max(used[drops], *samples, 0)
        return (used[False] - used[True], used[False]) if 0 < used[True] < used[False] else None

    @cached_property
    def answers(self) -> list[Answer]:
        """One for each state of the labels with a finished method."""
        return [answer for comparison in self.comparisons if (answer := self._answer(comparison)) is not None]

    def state(self, comparison: Comparison) -> str:
        """What is known of a comparison's labels, in words."""
        return comparison.labels or (AS_THEY_ARE if self._droppers(comparison) else ALL_KNOWN)

    def scores(self, comparison: Comparison) -> dict[str, float]:
        """The mean top-1 of every method with a result, best first: on held-out samples, or on test samples without any."""
        known = self.results.arrays[comparison].means(TOP1)
        held = self.results.held_out(comparison)
        return dict(sorted(known.items(), key=lambda item: -held.get(item[0], -1.0) if held else -item[1]))

    def _droppers(self, comparison: Comparison) -> list[str]:
        return [m for m in self.results.choices[comparison] if m in METHODS and METHODS[m].drops]

    def _answer(self, comparison: Comparison) -> Answer | None:
        drops = self._droppers(comparison)
        scores = self.scores(comparison)
        using = [m for m in scores if may_be_used(m)] or [m for m in scores if m not in drops]
        if not using:
            return None
        best, plain, gain, dropped = using[0], self.results.second, None, None
        behind = self._gap(comparison, best, comparison, plain) if plain in using[1:] else None
        overruled = behind is not None and behind[1].high < 0
        if overruled:  # the reference was named beforehand
            best, using = plain, [plain, best]
        second = self._gap(comparison, best, comparison, using[1]) if len(using) > 1 else None
        whole = None if self.whole in (None, comparison) else self.scores(self.whole).get(best)  # type: ignore[arg-type]
        if (dropping := self._dropping(comparison)) is not None:
            gain = self._gap(comparison, best, *dropping)
            dropped = self.scores(dropping[0])[dropping[1]]
        held_out, against = bool(self.results.held_out(comparison)), None
        if plain in scores and plain != best:
            against = self._gap(comparison, best, comparison, plain)
        words = in_words(self.comparisons[comparison])
        found = (best, scores[best], second, gain, dropped, whole, held_out, against, words, overruled)
        return Answer(comparison, *found)

    def _dropping(self, comparison: Comparison) -> tuple[Comparison, str] | None:
        """Where coarse labels are dropped, and the best method there."""
        labels, there = self.comparisons[comparison], comparison
        drops = self._droppers(comparison)
        if not drops and labels.fine is not None and not labels.drop:
            same = [a for a, other in self.comparisons.items() if other.drop and other.fine == labels.fine]
            if not same:
                return None
            there, drops = same[0], list(self.results.choices[same[0]])
        found = [m for m in self.scores(there) if m in drops]
        return (there, found[0]) if found else None

    def _gap(
        self, here: Comparison, first: str, there: Comparison, second: str
    ) -> tuple[str, Interval] | None:
        arrays = self.results.arrays
        found = arrays[here].difference(first, second, TOP1, arrays[there])
        return None if found is None else (second, found[0])


def label_questions(results: Results) -> list[LabelQuestion]:
    """The questions of a study about labels; none in other studies."""
    groups: dict[Comparison, dict[Comparison, LabelsConfig]] = {}
    for comparison, choices in results.choices.items():
        using = [c for m, c in choices.items() if not (m in METHODS and METHODS[m].drops)]
        runs = [record.run for choice in using for record in choice.finished if record.run is not None]
        if runs:
            groups.setdefault(comparison._replace(labels=""), {})[comparison] = runs[0].config.data.labels
    found = [LabelQuestion(results, comparisons) for comparisons in groups.values()]
    return [q for q in found if len(q.comparisons) > 1 or any(map(q._droppers, q.comparisons))]


def label_blocks(results: Results, draw: bool) -> list[Any]:
    """Table and figure of every question; none in other studies."""
    blocks, questions = [], label_questions(results)
    for question in questions:
        blocks += label_tables(question)
        if draw and (found := panels(question)):
            from hace.lab.report.figures import labels_picture

            blocks.append(labels_picture(question, found))
    held_out = any(answer.held_out for question in questions for answer in question.answers)
    return [*blocks, WORDS["how_chosen" if held_out else "not_chosen"]] if blocks else []


def in_words(labels: LabelsConfig) -> str:
    """A state of the labels, for a sentence."""
    to = {"parent": "their parent", "top": "the top level"}.get(str(labels.to), f"level {labels.to}")
    parts = []
    if labels.coarse:
        known = "dropped" if labels.drop else f"known only to {to}"
        parts.append(f"{100 * labels.coarse:g}% of the labels {known}")
    if labels.fine is not None:
        count = f"{labels.fine} {'label' if labels.fine == 1 else 'labels'} per class"
        parts.append(count if labels.drop else f"{count}, the others known only to {to}")
    if labels.wrong:
        where = "but within their parent" if labels.within == "parent" else "anywhere"
        parts.append(f"{100 * labels.wrong:g}% of the labels wrong, {where}")
    return " and ".join(parts) or AS_THEY_ARE


def label_tables(question: LabelQuestion) -> list[ReportTable]:
    """The table of a question; and, where some classes have no siblings and keep their labels, the same over the others."""
    h = next((a.hierarchy for c in question.comparisons if (a := question.results.arrays[c]).hierarchy), None)
    kept = 0 if h is None else int(has_siblings(h)[h.leaf_nodes].sum())
    tables = [labels_table(question)]
    if h is not None and 0 < kept < h.num_leaves:
        only = f"over the {kept:,} of {h.num_leaves:,} classes that have siblings"
        tables.append(labels_table(question, Metric((DERIVED, SIBLINGS), "top-1"), only))
    return tables


def labels_table(question: LabelQuestion, metric: Metric = HEADLINES[0], only: str = "") -> ReportTable:
    """Methods by states of the labels, in top-1 accuracy over all classes, or those that `only` names."""
    results = question.results
    methods = [m for m in results.methods if any(m in results.choices[a] for a in question.comparisons)]
    columns = [score_column(results.arrays[c], metric, methods, states=True) for c in question.comparisons]
    rows = []
    for i, m in enumerate(methods):
        tried = budget_of(c[m] for place in question.comparisons if m in (c := results.choices[place]))
        rows.append((Entry(method_title(m)), *(column[i] for column in columns), Entry(tried)))
    heads = ("method", *map(question.state, question.comparisons), "tried")
    states = [f"{a.labels}: {in_words(known)}" for a, known in question.comparisons.items() if a.labels]
    over = f" {only}" if only else ""
    title = f"{question.title}: top-1 accuracy{over} by what is known of the training labels, %"
    tried = f"{MEANS} Tried: candidates of each method's search, rates and decays, per seed."
    remarks = (*([f"{'; '.join(states)}."] if states else []), tried, WORDS["dropping"])
    name = f"labels-{question.slug}{only and '-siblings'}"
    return ReportTable(name, title, (heads,), tuple(rows), remarks=remarks)


def panels(question: LabelQuestion) -> list[tuple[str, str, list[tuple[float, Comparison]]]]:
    """The parts of the figure: title, name of the horizontal axis, and its points."""
    found: dict[tuple[str, str], list[tuple[float, Comparison]]] = {}
    for comparison, labels in question.comparisons.items():
        if labels.coarse:
            title, axis, x = "", "training labels known only coarsely, %", 100 * labels.coarse
        elif labels.fine is not None:
            title = "fine labels alone" if labels.drop else "and coarse labels for the others"
            axis, x = "known labels per class", float(labels.fine)
        elif labels.wrong:
            title = f"wrong {'within the parent' if labels.within == 'parent' else 'anywhere'}"
            axis, x = "wrong labels, %", 100 * labels.wrong
        else:
            continue
        start = [(0.0, question.whole)] if question.whole is not None and "%" in axis else []
        found.setdefault((title, axis), start).append((x, comparison))
    return [(*place, sorted(xs, key=lambda at: at[0])) for place, xs in found.items() if len(xs) > 1]


@dataclass(frozen=True)
class Verdict:
    """What a study says about one question."""

    where: str  # dataset, model, and what is known of the labels
    answer: str  # in a sentence or two
    tone: Tone  # for the colour of the card
    findings: tuple[Finding, ...] = ()  # by aspect; empty for a question about labels
    pair: tuple[str, str] = ("", "")  # the two methods of the findings
    steps: tuple[Answer, ...] = ()  # by state of the labels, for a question about them
    lines: tuple[str, ...] = ()  # more sentences
    use: str = ""  # the method to use, with its settings; "" where nothing was held out
    why: str = ""  # on what evidence, from the punctuation after `use` on
    commands: tuple[str, ...] = ()  # to paste: train it with samples held out, calibrate it, ask it
    caveats: tuple[str, ...] = ()
    question: str = ""
    spoken: tuple[str, ...] = ()  # the methods that it speaks of


def verdicts(results: Results) -> list[Verdict]:
    """One for each dataset and model with all labels known, by the fair protocol if there is one, and each label question."""
    questions = label_questions(results)
    asked = {c for question in questions for c in question.comparisons if c != question.whole}
    found = [comparison for comparison in results.choices if comparison not in asked]
    fair = {(c.dataset, c.model) for c in found if c.protocol == "fair"}
    kept = [c for c in found if c.protocol == "fair" or (c.dataset, c.model) not in fair]
    return [*(comparison_verdict(results, c) for c in kept), *map(label_verdict, questions)]


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
    best = held[0] if held else ""
    answer, tone = _answer(results, comparison, found, best)
    if comparison.protocol == "paper":
        answer += " Rates were chosen on the test set, as in the paper: compare with its numbers, not with other studies."
    method, why = _use(results, comparison, held) if held else ("", "")
    spoken = list(dict.fromkeys(filter(None, (first, second, best))))
    use, notes = method_title(method) if method else "", tuple(caveats(results, {comparison: spoken}))
    more: dict[str, Any] = {"use": use, "why": why, "commands": _commands(results, comparison, method)}
    more |= {"caveats": notes, "question": QUESTION, "spoken": tuple(spoken)}
    return Verdict(where, answer, tone, tuple(found), (first, second), **more)


def _answer(
    results: Results, comparison: Comparison, found: Sequence[Finding], best: str
) -> tuple[str, Tone]:
    """The headline. Unless the first method wins, a better one that was chosen on held-out samples is named."""
    ours, theirs = method_title(results.first), method_title(results.second)
    better, worse = [f for f in found if f.better], [f for f in found if f.worse]
    other = "" if best in (results.first, results.second) else best
    theirs_too = findings(results.arrays[comparison], other, results.second) if other else []
    gains = [f for f in theirs_too if f.better and _helps(theirs_too)]
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
    return " and ".join(", ".join(f.aspect.name for f in found).rsplit(", ", 1))


def _helps(found: Sequence[Finding]) -> bool:
    """Whether a method is better than the reference: in accuracy, the first aspect, or in others and worse in none."""
    return any(f.better for f in found) and (found[0].better or not any(f.worse for f in found))


def _use(results: Results, comparison: Comparison, held: Sequence[str]) -> tuple[str, str]:
    """What to use and why: the best on held-out samples, or else the method that was to be compared, if the test samples show
    that it helps; or else the reference. If another method is the first of the table, that is said.
    """
    arrays, scores = results.arrays[comparison], results.held_out(comparison)
    best, reference = held[0], results.second
    named = [m for m in dict.fromkeys((best, results.first)) if m != reference and may_be_used(m)]
    found = {m: findings(arrays, m, reference) for m in named}
    method = next((m for m in named if _helps(found[m])), reference)
    was = f"best of {len(held)} on held-out samples"
    if method == best:
        why = f": {was} ({100 * scores[best]:.1f}%"
        if len(held) > 1:
            tied = f"{scores[best]:.3f}" == f"{scores[held[1]]:.3f}"
            after = f"next {method_title(held[1])}, {100 * scores[held[1]]:.1f}%"
            why += f"; {f'tied with {method_title(held[1])}' if tied else after}"
        why += ")."
        why += f" On test samples {_against(found[best], reference)}." if method != reference else ""
    else:
        why = f": {_against(found[method], reference)} on test samples" if method != reference else ""
        why += f". {method_title(best)} was the {was}"
        if best != reference:
            gap = found[best][0].gap
            why += f", but the test samples show {'a loss' if gap.high < 0 else 'no gain'}: {points(gap)}"
        why += "."
    known = {m: v for m, v in arrays.means(TOP1).items() if may_be_used(m)}
    top = max(known, key=lambda m: known[m])
    if top not in (method, best, reference) and (gap := arrays.difference(top, method, TOP1)) is not None:
        word = "ahead" if gap[0].excludes_zero else "tied with it"
        why += f" On test samples {method_title(top)} is {word} ({points(gap[0])}); held-out samples did not choose it."
    return method, why


def _against(found: Sequence[Finding], reference: str) -> str:
    """The gain in accuracy; and in what else it helps, where that is not shown."""
    more = "" if found[0].better else f", better in {_names([f for f in found if f.better])}"
    return f"{points(found[0].gap)} against {method_title(reference)}{more}"


def _commands(results: Results, comparison: Comparison, method: str) -> tuple[str, ...]:
    there = results.choices[comparison].get(method)
    run = there.finished[0].run if there is not None and there.finished else None
    return () if run is None else commands(run)


def commands(run: Run) -> tuple[str, ...]:
    """Commands that train a run's model with samples held out, calibrate it and ask it about photos."""
    config = replace(run.config, validation=run.config.validation or 0.1, temperature=None, keep=True)
    short = {"head.name": "head", "data.name": "data", "data.hierarchy": "hierarchy"}
    short["data.root"] = "features" if config.kind == "probe" else "data-root"
    base = {**type(config)().to_dict(), "loss": config.loss.to_dict()}
    changed = {k: v for k, v in flattened(config.to_dict(), base).items() if v is not None}
    if changed.get("data.name") == "features":
        del changed["data.name"]
    if getattr(config, "optimizer", "") == "lbfgs":
        changed.pop("lr", None)  # it has none
    options = {key: _option(short.get(key, key), value) for key, value in changed.items()}
    data = [option for key, option in options.items() if key.startswith("data.")]
    others = [option for key, option in options.items() if not key.startswith("data.")]
    words = [f"hace {config.kind}", *data, f"--loss {shlex.quote(config.loss.text)}", *others]
    run_id = config.identity(run.about["data"]["fingerprint"])
    folder, out = ("runs/best",) * 2 if config.kind == "train" else (f"runs/{run_id}", "runs")
    ask = f"hace predict {folder} photos --accuracy 0.9"
    python = f'hace.Predictor.from_run("{folder}").predict("photos", accuracy=0.9)  # in Python'
    lines = words[:1]
    for word in (*words[1:], f"--out {out}"):  # whole words, so that paths with spaces stay in one line
        if len(lines[-1]) + len(word) > 84:
            lines.append("   ")
        lines[-1] += f" {word}"
    return (" \\\n".join(lines), f"hace calibrate {folder}", ask, python)


def _option(name: str, value: Any) -> str:
    """A setting as the command line has it."""
    if name.startswith("data.options."):
        option = name.removeprefix("data.options.")
        return f"-o {shlex.quote(f'{option}={value}')}"
    name = name.removeprefix("data.").replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {shlex.quote(str(value))}"


def flattened(values: Mapping[str, Any], base: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """What differs from the defaults, by dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            below = base.get(key)
            found |= flattened(value, below if isinstance(below, Mapping) else {}, f"{where}{key}.")
        elif value != base.get(key):
            found[where + key] = value
    return found


def label_verdict(question: LabelQuestion) -> Verdict:
    """The verdict of a question about labels."""
    results, where = question.results, question.title.replace(", ", " · ")
    poor = [answer for answer in question.answers if answer.comparison != question.whole]
    gains = {a.comparison: a.dropping[1] for a in poor if a.dropping is not None}
    seeds = {c: [len(x.finished) for x in results.choices[c].values() if x.finished] for c in gains}
    sure = certainties({comparison: (gain, min(seeds[comparison])) for comparison, gain in gains.items()})
    steps = tuple(answer._replace(certainty=sure.get(answer.comparison)) for answer in poor)
    if gains:
        (answer, tone), asked = _use_or_drop(poor, list(gains.values())), "are coarse labels worth using?"
        if question.mixed is not None:
            coarse = "{:,} of {:,} training samples are labelled above the leaves".format(*question.mixed)
            asked = f"{coarse}. Are they worth using?"
    else:
        answer, tone, asked = _best_methods(poor), "open", "which method for poor labels?"
    use, why = "; ".join(dict.fromkeys(f"{method_title(a.best)} for {a.state}" for a in poor)), "."
    # The best methods use the coarse labels, and no gain by that is shown.
    if tone == "no" or (gains and tone == "open"):
        use, why = "", ""
    elif len(steps) == 1:
        use, why = method_title(steps[0].best), steps[0].why
    paste: tuple[str, ...] = ()
    if question.mixed is not None and len(poor) == 1:  # labels that were made poor are no one's to train with
        method = poor[0].dropping[0] if tone == "no" and poor[0].dropping else poor[0].best
        paste = _commands(results, poor[0].comparison, method)
    spoken = {a.comparison: [a.best, *([a.dropping[0]] if a.dropping else [])] for a in poor}
    more: dict[str, Any] = {"commands": paste, "caveats": tuple(caveats(results, spoken)), "question": asked}
    named = tuple(dict.fromkeys(a.best for a in poor))
    return Verdict(where, answer, tone, steps=steps, use=use, why=why, spoken=named, **more)


def _best_methods(poor: Sequence[Answer]) -> str:
    best = list(dict.fromkeys(method_title(answer.best) for answer in poor))
    if len(best) > 1:
        return f"It depends on the labels: {', '.join(best[:-1])} or {best[-1]}."
    chosen = "held-out" if poor and poor[0].held_out else "test"
    return f"{best[0]} is the best method on {chosen} samples." if best else "No result yet."


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


def glossary(verdicts: Sequence[Verdict]) -> list[list[tuple[str, str]]]:
    """What the words of the cards mean, in lines of terms: aspects, methods, and how certain a difference is."""
    aspects = {f.aspect.name: f"{f.aspect.meaning}." for v in verdicts for f in v.findings}
    spoken = dict.fromkeys(m for v in verdicts for m in v.spoken)
    texts = WORDS["methods"].items()
    known = {m: next((text for key, text in texts if m.startswith(key)), "") for m in spoken}
    methods = {method_title(m): text for m, text in known.items() if text}
    if any(step.dropping for v in verdicts for step in v.steps):
        methods["Coarse label"] = WORDS["coarse"]
    shown = any(v.findings or v.steps for v in verdicts)
    return [[*methods.items()], [*aspects.items()], [*WORDS["legend"].items()] if shown else []]


def caveats(results: Results, spoken: Mapping[Comparison, Sequence[str]]) -> list[str]:
    """Notes on the methods that a verdict speaks of, by comparison, in short sentences."""
    found = [*_edges(results, spoken), *_coarse(results, spoken)]
    for comparison, methods in spoken.items():
        records = [r for r in results.records if comparison_of(r.key) == comparison]
        found += _searches(results.choices[comparison], records, methods)
        found += [*_seeds(results, comparison, methods), *_samples(results, comparison), *_missing(records)]
    return list(dict.fromkeys(found))


def _edges(results: Results, spoken: Mapping[Comparison, Sequence[str]]) -> Iterator[str]:
    """One sentence for all methods and comparisons."""
    counts: dict[str, Counter[str]] = {}
    for comparison, methods in spoken.items():
        for method in methods:
            choice = results.choices[comparison].get(method)
            for record in choice.finished if choice is not None else ():
                counts.setdefault(method_title(method), Counter()).update([record.edge])
    names = []
    for name, ends in counts.items():
        if at := ", ".join(f"{n} of {ends.total()} at the {edge}" for edge, n in ends.items() if edge):
            names.append(f"{name} ({at})")
    if names:
        said = "Searches that ended at the edge of their grid, so that another value may do better"
        yield f"{said}: {', '.join(names)}. Widen `--rates`."


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
    searched = [(r.result["samples"], r.top1) for r in found if r.top1 is not None]
    if not searched:
        return
    samples, accuracy = min(searched, key=lambda one: (one[0], -one[1]))
    low, high = share_interval(round(accuracy * samples), samples)
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
        known = arrays.store.truth is not None or arrays.predictions(method)
        if known and (h := arrays.hierarchy) is not None:
            count = np.bincount(arrays.store.truth, minlength=h.num_nodes)[h.leaf_nodes]  # type: ignore[arg-type]
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
