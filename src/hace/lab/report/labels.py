"""Studies of labels: whether coarse ones are worth using, which method uses them best, and what it gains.

Comparisons of one data set and model that differ in what is known of the training labels are one question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from hace.lab.report.comparisons import (
    HEADLINES,
    TOP1,
    Comparison,
    Metric,
    budget_of,
    may_be_used,
    method_title,
)
from hace.lab.report.document import Entry, ReportTable
from hace.lab.report.findings import Certainty, certainty_word, points
from hace.lab.report.method_tables import MEANS, score_column
from hace.lab.report.results import MethodScores, Results
from hace.lab.report.sure_answers import DERIVED, SIBLINGS
from hace.lab.runs.config import LabelsConfig
from hace.lab.runs.samples import has_siblings
from hace.lab.study.methods import METHODS
from hace.metrics.intervals import Interval

ALL_KNOWN, AS_THEY_ARE = "all labels", "labels as they are"
HOW_CHOSEN = (
    "Rates and decays are chosen on held-out training samples by their true labels, for every method alike; the final run "
    "trains on what is known of them. The best method is the best on held-out samples, so no test result chose it."
)
NOT_CHOSEN = (
    "Every method has one candidate, so nothing was held out. The best method is the best on test samples, which flatters "
    "it."
)


class Answer(NamedTuple):
    """What a study says of one state of the labels.

    The best method is the best on held-out samples, of those that use all labels they are given; controls do not count.
    Where nothing was held out, it is the best on test samples. The other methods come with how far the best is ahead of them.
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
    settings: str  # of the best method
    certainty: Certainty | None = None  # of the gain over dropping

    @property
    def closed(self) -> float | None:
        """The share of the gap between dropping and knowing all labels that the best method closes."""
        if self.dropped is None or self.whole is None or self.whole <= self.dropped:
            return None
        return (self.accuracy - self.dropped) / (self.whole - self.dropped)

    @property
    def gain(self) -> tuple[str, str]:
        """The gain over dropping coarse labels: "+6.0" and "points [+4.4, +7.5]"."""
        number, _, ends = points(self.dropping[1]).partition(" ") if self.dropping else ("", "", "")
        return number, ends

    @property
    def look(self) -> str:
        """How the page shows it: "better", "worse" or "level"."""
        if self.dropping is None or not self.dropping[1].excludes_zero:
            return "level"
        return "better" if self.dropping[1].value > 0 else "worse"

    @property
    def word(self) -> str:
        """How certain the gain is, and which way: "clear gain"."""
        if self.certainty is None or self.dropping is None:
            return ""
        return certainty_word(self.certainty, self.dropping[1].value > 0)

    @property
    def line(self) -> str:
        """The best method, its gain over dropping, and how far that is to knowing all labels."""
        said = f"{self.state}: {method_title(self.best)} reaches {100 * self.accuracy:.1f}%"
        if self.dropping is not None and self.word:
            without = method_title(self.dropping[0]).removesuffix(", coarse labels dropped")
            said += f", {points(self.dropping[1])} against dropping the coarse labels"
            said += f" ({self.word}; best without them: {without})"
        elif self.dropping is None and self.against is not None:
            said += (
                f", {points(self.against[1])} against {method_title(self.against[0])} with the same labels"
            )
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
        word = "tied with" if not gap.excludes_zero else "ahead of" if gap.value > 0 else "behind"
        against = f"{word} {method_title(name)}, the next there, on test samples"
        return f": best on {'held-out' if self.held_out else 'test'} samples; {against} ({points(gap)})."


@dataclass(frozen=True, eq=False)
class LabelQuestion:
    """The comparisons of one data set, model and protocol, by what is known of the labels."""

    results: Results
    comparisons: Mapping[Comparison, LabelsConfig]  # in the order of the study

    @property
    def title(self) -> str:
        """Data set and model."""
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
        """Of labels that are mixed already: training samples labelled above the leaves, and all training samples.

        None where all labels are leaves, or no run that drops the others has finished.
        """
        for comparison in (a for a, labels in self.comparisons.items() if labels == LabelsConfig()):
            drops = self._droppers(comparison)
            dropping = [samples for m in drops for samples in self._training_samples(comparison, m)]
            others = [m for m in self.results.choices[comparison] if m not in drops]
            using = [samples for m in others for samples in self._training_samples(comparison, m)]
            if using and dropping and max(using) > max(dropping):
                return max(using) - max(dropping), max(using)
        return None

    def _training_samples(self, comparison: Comparison, method: str) -> list[int]:
        runs = [record.run for record in self.results.choices[comparison][method].finished]
        about = [run.result.get("train", {}) for run in runs if run is not None and run.result is not None]
        return [part["samples"] for part in about if part.get("samples")]

    @cached_property
    def answers(self) -> list[Answer]:
        """One for each state of the labels with a finished method."""
        return [answer for comparison in self.comparisons if (answer := self._answer(comparison)) is not None]

    def state(self, comparison: Comparison) -> str:
        """What is known of a comparison's labels, in words."""
        return comparison.labels or (AS_THEY_ARE if self._droppers(comparison) else ALL_KNOWN)

    def scores(self, comparison: Comparison) -> dict[str, float]:
        """The mean top-1 of every method with a result, the best on held-out samples first.

        No test result chooses: of methods that are tied there the study's first one leads. Only where nothing was held out
        the best on test samples is first.
        """
        arrays = self.results.arrays[comparison]
        found = {m: arrays.score(m, TOP1).value for m in arrays.choices}
        known = {m: value for m, value in found.items() if value is not None}
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
        best, ours = using[0], self.results.arrays[comparison]
        second = self._gap(ours, best, ours, using[1]) if len(using) > 1 else None
        dropping = self._dropping(comparison)
        gain, dropped = None, None
        whole = None if self.whole in (None, comparison) else self.scores(self.whole).get(best)  # type: ignore[arg-type]
        if dropping is not None:
            there, name = dropping
            gain = self._gap(ours, best, self.results.arrays[there], name)
            dropped = self.scores(there)[name]
        held_out = bool(self.results.held_out(comparison))
        plain = self.results.second
        against = self._gap(ours, best, ours, plain) if plain in scores and plain != best else None
        words, settings = (
            in_words(self.comparisons[comparison]),
            self.results.choices[comparison][best].settings,
        )
        found = (best, scores[best], second, gain, dropped, whole, held_out, against, words, settings)
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
        self, ours: MethodScores, first: str, theirs: MethodScores, second: str
    ) -> tuple[str, Interval] | None:
        found = ours.difference(first, second, TOP1, theirs)
        return None if found is None else (second, found[0])


def label_questions(results: Results) -> list[LabelQuestion]:
    """The questions of a study about labels; none in other studies."""
    groups: dict[Comparison, dict[Comparison, LabelsConfig]] = {}
    for comparison, choices in results.choices.items():
        for choice in choices.values():
            runs = [record.run for record in choice.finished if record.run is not None]
            if runs and not (choice.method in METHODS and METHODS[choice.method].drops):
                groups.setdefault(comparison._replace(labels=""), {})[comparison] = runs[0].config.data.labels
                break
    found = [LabelQuestion(results, comparisons) for comparisons in groups.values()]
    return [
        q
        for q in found
        if len(q.comparisons) > 1 or any(q._droppers(comparison) for comparison in q.comparisons)
    ]


def label_blocks(results: Results, draw: bool) -> list[Any]:
    """Table and figure of every question; none in other studies."""
    blocks: list[Any] = []
    for question in label_questions(results):
        blocks += label_tables(question)
        if draw and (found := panels(question)):
            from hace.lab.report.figures import labels_picture

            blocks.append(labels_picture(question, found))
    if not blocks:
        return []
    held_out = any(answer.held_out for question in label_questions(results) for answer in question.answers)
    return [*blocks, HOW_CHOSEN if held_out else NOT_CHOSEN]


def in_words(labels: LabelsConfig) -> str:
    """A state of the labels, for a sentence.

    Example:
        >>> in_words(LabelsConfig(0.8)), in_words(LabelsConfig(fine=1)), in_words(LabelsConfig(wrong=0.4))
        ('80% of the labels known only to their parent', '1 label per class, the others known only to their parent', \
'40% of the labels wrong, but within their parent')
    """
    to = {"parent": "their parent", "top": "the top level"}.get(str(labels.to), f"level {labels.to}")
    parts = []
    if labels.coarse:
        parts.append(
            f"{100 * labels.coarse:g}% of the labels {'dropped' if labels.drop else f'known only to {to}'}"
        )
    if labels.fine is not None:
        count = f"{labels.fine} {'label' if labels.fine == 1 else 'labels'} per class"
        parts.append(count if labels.drop else f"{count}, the others known only to {to}")
    if labels.wrong:
        where = "but within their parent" if labels.within == "parent" else "anywhere"
        parts.append(f"{100 * labels.wrong:g}% of the labels wrong, {where}")
    return " and ".join(parts) or AS_THEY_ARE


def label_tables(question: LabelQuestion) -> list[ReportTable]:
    """The table of a question; and the same over the classes that have siblings, where some have none: made coarse or wrong,
    the labels of these stay what they were.
    """
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
    title = (
        f"{question.title}: top-1 accuracy {only and only + ' '}by what is known of the training labels, %"
    )
    remarks = (
        *([f"{'; '.join(states)}."] if states else []),
        f"{MEANS} Tried: candidates of each method's search, rates and decays, per seed.",
        "Rows that drop coarse labels train on the samples known to a class alone.",
    )
    return ReportTable(
        f"labels-{question.slug}{only and '-siblings'}", title, (heads,), tuple(rows), remarks=remarks
    )


def panels(question: LabelQuestion) -> list[tuple[str, str, list[tuple[float, Comparison]]]]:
    """The parts of the figure: title, name of the horizontal axis, and its points."""
    found: dict[tuple[str, str], list[tuple[float, Comparison]]] = {}
    for comparison, labels in question.comparisons.items():
        if labels.coarse:
            place = ("", "training labels known only coarsely, %"), 100 * labels.coarse
        elif labels.fine is not None:
            title = "fine labels alone" if labels.drop else "and coarse labels for the others"
            place = (title, "known labels per class"), float(labels.fine)
        elif labels.wrong:
            place = (f"wrong {'within the parent' if labels.within == 'parent' else 'anywhere'}", "wrong labels, %"), (
                100 * labels.wrong
            )  # fmt: skip
        else:
            continue
        found.setdefault(place[0], []).append((place[1], comparison))
    whole = question.whole
    drawn = []
    for (title, axis), places in found.items():
        start = [(0.0, whole)] if whole is not None and "%" in axis else []
        drawn.append((title, axis, sorted([*start, *places], key=lambda point: point[0])))
    return [panel for panel in drawn if len(panel[2]) > 1]
