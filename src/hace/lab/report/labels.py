"""Studies that differ in what is known of the training labels: whether to use coarse labels, and with which method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from hace.hierarchy import Hierarchy
from hace.lab.report.compare import Pair
from hace.lab.report.document import WORDS, Table
from hace.lab.report.metric import ACCURACY, HEADLINES, WITH_SIBLINGS, Metric, level_names
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition, drops_labels, may_be_used, method_title, tried_text
from hace.lab.report.scores import MethodScores
from hace.lab.report.sentences import say
from hace.lab.report.tables import MEANS, score_column
from hace.lab.runs.config import LabelsConfig
from hace.lab.runs.samples import has_siblings

ALL_KNOWN = "all labels"
AS_THEY_ARE = "labels as they are"


@dataclass(frozen=True, eq=False)
class LabelState:
    """One state of the training labels, and the methods that its card compares."""

    scores: MethodScores
    words: str  # the state
    best: str  # the best method of those that use all labels and are no controls
    # These methods and their accuracy on the samples that choose, the best first.
    ranking: Mapping[str, float]
    chosen_on: str  # "held-out" samples or, without any, "test" samples
    accuracy: float  # of the best on test samples
    known: float | None  # the same where all labels are known
    against_dropping: Pair | None  # the best, and the best method that drops coarse labels
    against_reference: Pair | None  # the best, and the reference with the same labels

    @property
    def condition(self) -> Condition:
        """Where its runs are."""
        return self.scores.condition

    @property
    def dropper(self) -> str:
        """The best method that drops coarse labels; "" without one."""
        return "" if self.against_dropping is None else self.against_dropping.second


@dataclass(frozen=True, eq=False)
class LabelQuestion:
    """The conditions of one dataset, model and protocol, by what is known of the labels."""

    results: Results
    conditions: Mapping[Condition, LabelsConfig]  # in the order of the study

    @property
    def title(self) -> str:
        """Dataset and model."""
        return ", ".join(next(iter(self.conditions)).place)

    @property
    def slug(self) -> str:
        """For file names."""
        some = next(iter(self.conditions))
        return Condition(some.protocol, some.dataset, some.model).slug

    @cached_property
    def hierarchy(self) -> Hierarchy | None:
        """That of the results."""
        trees = (self.results.scores[condition].hierarchy for condition in self.conditions)
        return next((tree for tree in trees if tree is not None), None)

    @cached_property
    def whole(self) -> Condition | None:
        """The condition where all labels are known; None where the data have coarse ones as they are."""
        whole = [condition for condition, labels in self.conditions.items() if labels == LabelsConfig()]
        return whole[0] if whole and not self.droppers(whole[0]) else None

    @cached_property
    def mixed(self) -> tuple[int, int] | None:
        """Of labels that are mixed already: training samples labelled above the leaves, and all; None where not known."""
        used = {True: 0, False: 0}  # most training samples of a run that drops labels, or does not
        for condition in (c for c, labels in self.conditions.items() if labels == LabelsConfig()):
            scores = self.results.scores[condition]
            for method in scores.done:
                results = [run.result or {} for run in scores.finished(method)["run"]]
                samples = [result.get("train", {}).get("samples") or 0 for result in results]
                drops = drops_labels(method)
                used[drops] = max(used[drops], *samples)
        return (used[False] - used[True], used[False]) if 0 < used[True] < used[False] else None

    @cached_property
    def states(self) -> list[LabelState]:
        """The states that leave something unknown, each with a finished method that uses all labels."""
        states = [self._state(condition) for condition in self.conditions if condition != self.whole]
        return [state for state in states if state is not None]

    def pairs(self) -> list[Pair]:
        """All comparisons of its card."""
        pairs = [pair for state in self.states for pair in (state.against_dropping, state.against_reference)]
        return [pair for pair in pairs if pair is not None]

    def heading(self, condition: Condition) -> str:
        """What is known of a condition's labels, for a column."""
        return condition.labels or (AS_THEY_ARE if self.droppers(condition) else ALL_KNOWN)

    def words(self, condition: Condition) -> str:
        """What is known of a condition's labels, for a sentence."""
        return in_words(self.conditions[condition], self.hierarchy)

    def droppers(self, condition: Condition) -> list[str]:
        """The methods of a condition that drop coarse labels."""
        return [method for method in self.results.scores[condition].methods.index if drops_labels(method)]

    def ranking(self, condition: Condition) -> dict[str, float]:
        """Every method with a result by its accuracy on held-out samples or, without any, on test samples; best first."""
        means = self.results.scores[condition].means(ACCURACY)
        held_out = self.results.held_out(condition)
        values = {method: held_out.get(method, -1.0) if held_out else mean for method, mean in means.items()}
        return dict(sorted(values.items(), key=lambda item: -item[1]))

    def _state(self, condition: Condition) -> LabelState | None:
        """What came of one state of the labels; None where no method is finished."""
        scores = self.results.scores[condition]
        ranking = self.ranking(condition)
        reference = self.results.second
        droppers = self.droppers(condition)
        using = [m for m in ranking if may_be_used(m)] or [m for m in ranking if m not in droppers]
        if not using:
            return None
        best = using[0]
        drops = self._dropping(condition)
        compared = reference in scores.done and best != reference
        return LabelState(
            scores,
            words=self.words(condition),
            best=best,
            ranking={method: ranking[method] for method in using},
            chosen_on="held-out" if self.results.held_out(condition) else "test",
            accuracy=scores.means(ACCURACY)[best],
            known=None if self.whole is None else self.results.scores[self.whole].means(ACCURACY).get(best),
            against_dropping=None if drops is None else Pair(ACCURACY, scores, best, *drops),
            against_reference=Pair(ACCURACY, scores, best, scores, reference) if compared else None,
        )

    def _dropping(self, condition: Condition) -> tuple[MethodScores, str] | None:
        """The best method that drops coarse labels: here, or where the same number of labels is known and nothing else."""
        labels = self.conditions[condition]
        there = condition
        droppers = self.droppers(condition)
        if not droppers and labels.fine is not None and not labels.drop:
            same = [c for c, other in self.conditions.items() if other.drop and other.fine == labels.fine]
            if not same:
                return None
            there = same[0]
            droppers = list(self.results.scores[there].methods.index)
        ranked = [method for method in self.ranking(there) if method in droppers]
        return (self.results.scores[there], ranked[0]) if ranked else None


def label_questions(results: Results) -> list[LabelQuestion]:
    """The questions of a study about labels; none in other studies."""
    groups: dict[Condition, dict[Condition, LabelsConfig]] = {}
    for condition, scores in results.scores.items():
        runs = [run for m in scores.done if not drops_labels(m) for run in scores.finished(m)["run"]]
        if runs:
            group = groups.setdefault(Condition(condition.protocol, condition.dataset, condition.model), {})
            group[condition] = runs[0].config.data.labels
    questions = [LabelQuestion(results, conditions) for conditions in groups.values()]
    return [q for q in questions if len(q.conditions) > 1 or any(map(q.droppers, q.conditions))]


def in_words(labels: LabelsConfig, hierarchy: Hierarchy | None = None) -> str:
    """A state of the labels, for a sentence."""
    ranks = {"parent": _parents_rank(hierarchy), "top": "the top level"}
    return say(
        "labels_state",
        coarse=f"{100 * labels.coarse:g}" if labels.coarse else "",
        fine=labels.fine,
        wrong=f"{100 * labels.wrong:g}" if labels.wrong else "",
        drop=labels.drop,
        rank=ranks.get(str(labels.to), f"level {labels.to}"),
        within_parent=labels.within == "parent",
    )


def _parents_rank(hierarchy: Hierarchy | None) -> str:
    """What the parents of classes are called: the rank above, where all classes are on one level that has a name."""
    names = level_names(hierarchy)
    if hierarchy is None or len(names) < 2 or names[-2].startswith("level "):
        return "their parent"
    depths = hierarchy.depths[hierarchy.leaf_nodes]
    return names[-2] if (depths == depths[0]).all() else "their parent"


def label_tables(question: LabelQuestion) -> list[Table]:
    """The table of a question; and, where some classes have no siblings and keep their labels, the same over the others."""
    h = question.hierarchy
    with_siblings = 0 if h is None else int(has_siblings(h)[h.leaf_nodes].sum())
    tables = [labels_table(question)]
    if h is not None and 0 < with_siblings < h.num_leaves:
        only = f"over the {with_siblings:,} of {h.num_leaves:,} classes that have siblings"
        tables.append(labels_table(question, WITH_SIBLINGS, only))
    return tables


def labels_table(question: LabelQuestion, metric: Metric = HEADLINES[0], only: str = "") -> Table:
    """Methods by states of the labels, in top-1 accuracy over all classes, or those that `only` names."""
    scores = {condition: question.results.scores[condition] for condition in question.conditions}
    methods = [m for m in question.results.methods if any(m in s.methods.index for s in scores.values())]
    columns: dict[str, list[Any]] = {"method": [method_title(method) for method in methods]}
    for condition, there in scores.items():
        columns[question.heading(condition)] = score_column(there, metric, methods, states=True)
    chosen = pd.concat([there.runs for there in scores.values()])
    columns["settings tried"] = [tried_text(chosen[chosen["method"] == method]) for method in methods]
    states = [f"{c.labels}: {question.words(c)}" for c in question.conditions if c.labels]
    remarks = (
        *([f"{'; '.join(states)}."] if states else []),
        f"{MEANS} {WORDS['tried']}",
        WORDS["dropping"],
    )
    over = f" {only}" if only else ""
    title = f"{question.title}: top-1 accuracy{over} by what is known of the training labels, %"
    name = f"labels-{question.slug}{only and '-siblings'}"
    return Table(name, title, pd.DataFrame(columns), remarks=remarks)


def label_blocks(results: Results, draw: bool) -> list[Any]:
    """Table and figure of every question; none in other studies."""
    blocks: list[Any] = []
    questions = label_questions(results)
    for question in questions:
        blocks += label_tables(question)
        if draw and (drawn := panels(question)):
            from hace.lab.report.figures import labels_picture

            blocks.append(labels_picture(question, drawn))
    held_out = any(state.chosen_on == "held-out" for question in questions for state in question.states)
    return [*blocks, WORDS["how_chosen" if held_out else "not_chosen"]] if blocks else []


class Panel(NamedTuple):
    """A part of the figure: its title, the name of the horizontal axis, and the conditions along it."""

    title: str
    axis: str
    points: list[tuple[float, Condition]]


def panels(question: LabelQuestion) -> list[Panel]:
    """The parts of the figure: those with several points."""
    points: dict[tuple[str, str], list[tuple[float, Condition]]] = {}
    for condition, labels in question.conditions.items():
        place = _place_on_axis(labels)
        if place is not None:
            title, axis, x = place
            start = [(0.0, question.whole)] if question.whole is not None and "%" in axis else []
            points.setdefault((title, axis), start).append((x, condition))
    return [
        Panel(*names, sorted(xs, key=lambda point: point[0])) for names, xs in points.items() if len(xs) > 1
    ]


def _place_on_axis(labels: LabelsConfig) -> tuple[str, str, float] | None:
    """The panel, its horizontal axis and the place of a state; None where all labels are as they are."""
    if labels.coarse:
        return "", "training labels known only coarsely, %", 100 * labels.coarse
    if labels.fine is not None:
        title = "fine labels alone" if labels.drop else "and coarse labels for the others"
        return title, "known labels per class", float(labels.fine)
    if labels.wrong:
        where = "within the parent" if labels.within == "parent" else "anywhere"
        return f"wrong {where}", "wrong labels, %", 100 * labels.wrong
    return None
