"""What weakens an answer: poor or unequal searches, few seeds, small classes, missing runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from hace.decisions.trust import right_share, why_broken
from hace.errors import HaceError
from hace.hierarchy.derived import is_above
from hace.lab.report.metric import TOP1
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition, condition_of, method_title, metric_values, unseen_classes
from hace.lab.report.scores import MethodScores
from hace.lab.report.sentences import say
from hace.lab.study.records import coarse_searches, searched_at
from hace.metrics.intervals import share_interval

FEW_SEEDS = 5  # the fair protocol's number for probes
FEW_SAMPLES = 10  # test samples of a class
WEAK_SEARCH = 0.05  # half the interval of an accuracy on held-out samples


def caveats(results: Results, named: Mapping[Condition, Sequence[str]]) -> list[str]:
    """Notes on the methods that a card names, by condition, in short sentences."""
    notes = [*_edges(results, named), *_coarse_grids(results, named)]
    for condition, methods in named.items():
        notes += _searches(results, condition, methods)
        notes += _seeds(results.scores[condition], methods)
        notes += _samples(results.scores[condition])
        notes += _missing(results.in_condition(condition))
    return list(dict.fromkeys(notes))


def guarantee_alarm(results: Results, condition: Condition, method: str) -> str:
    """Why guarantees from held-out samples must not be trusted: a method is not right as often on test samples."""
    finals = results.scores[condition].finished(method)
    runs = results.in_condition(condition)
    searched = runs[(runs["stage"] == "search") & (runs["method"] == method)]
    if condition.protocol == "paper" or searched.empty or finals.empty:
        return ""
    final = finals.iloc[0]
    own = searched[(searched["seed"] == final["seed"]) & (searched["lr"] == final["lr"])]
    accuracy = metric_values(own, TOP1).dropna()
    try:
        known = final["run"].predictions()
    except HaceError:  # reported where intervals are missing
        return ""
    if accuracy.empty or "group" in known:  # runs of a search do not record their groups
        return ""
    held_out = int(own.loc[accuracy.idxmax(), "samples"])
    on_held_out = right_share(np.arange(held_out) < round(accuracy.max() * held_out))
    on_test = right_share(is_above(final["run"].hierarchy, known["truth"], known["answer"]))
    return why_broken(on_held_out, on_test)


def _edges(results: Results, named: Mapping[Condition, Sequence[str]]) -> Iterator[str]:
    """One sentence for all methods and conditions."""
    searches: dict[str, list[str]] = {}
    for condition, methods in named.items():
        for method in methods:
            ends = results.scores[condition].finished(method)["edge"]
            searches.setdefault(method_title(method), []).extend(ends)
    at_edge = {
        method: [(edge, ends.count(edge), len(ends)) for edge in dict.fromkeys(ends) if edge]
        for method, ends in searches.items()
    }
    at_edge = {method: ends for method, ends in at_edge.items() if ends}
    if at_edge:
        yield say("at_the_edge", searches=at_edge)


def _coarse_grids(results: Results, named: Mapping[Condition, Sequence[str]]) -> Iterator[str]:
    """One sentence for all methods whose grid of rates may miss their best one."""
    searches = coarse_searches(results.records)
    coarse = {method_title(key.method) for key in searches if key.method in named.get(condition_of(key), ())}
    if coarse:
        yield say("coarse_grids", methods=sorted(coarse))


def _searches(results: Results, condition: Condition, methods: Sequence[str]) -> Iterator[str]:
    """Unequal budgets, one choice for all seeds, and searches on few samples, which rank their candidates partly by chance."""
    known = results.scores[condition].methods
    tried = {method_title(m): known["tried"][m] for m in methods if m in known.index}
    if len(set(tried.values())) > 1:
        yield say("unequal_search", tried=tried)
    if (seed := searched_at(r for r in results.records if condition_of(r.key) == condition)) is not None:
        yield say("searched_once", seed=seed)
    runs = results.in_condition(condition)
    searched = runs[(runs["stage"] == "search") & runs["method"].isin(list(methods))]
    accuracy = metric_values(searched, TOP1).dropna()
    if accuracy.empty:
        return
    samples = searched.loc[accuracy.index, "samples"].min()
    best = accuracy[searched.loc[accuracy.index, "samples"] == samples].max()
    low, high = share_interval(round(best * samples), samples)
    if high - low > 2 * WEAK_SEARCH:
        yield say("few_held_out", samples=samples, points=50 * (high - low))


def _seeds(scores: MethodScores, methods: Sequence[str]) -> Iterator[str]:
    finished = [len(scores.finished(method)) for method in methods if method in scores.done]
    if finished and min(finished) < FEW_SEEDS:
        yield say("few_seeds", seeds=min(finished), raise_them=scores.condition.protocol != "single")


def _samples(scores: MethodScores) -> Iterator[str]:
    """Classes without training samples or with few test samples, by the first method that knows."""
    for method in scores.methods.index:
        if unseen := unseen_classes(scores.finished(method)["run"]):
            yield f"{unseen}."
            return
        known = scores.store.truth is not None or scores.predictions(method)
        h = scores.hierarchy
        truth = scores.store.truth
        if known and h is not None and truth is not None:
            count = np.bincount(truth, minlength=h.num_nodes)[h.leaf_nodes]
            if small := int((count < FEW_SAMPLES).sum()):
                yield say("small_classes", small=small, classes=h.num_leaves, least=FEW_SAMPLES)
            return


def _missing(runs: pd.DataFrame) -> Iterator[str]:
    final = runs[runs["stage"] == "final"]
    missing = final[final["status"] != "finished"]
    if len(missing):
        methods = [method_title(method) for method in dict.fromkeys(missing["method"])]
        yield say("missing_runs", missing=len(missing), runs=len(final), methods=methods)
