"""A study's runs, with what tables, figures and cards take from them: chosen runs, scores, comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path

import pandas as pd

from hace.errors import ConfigError, DataError, nearest
from hace.lab.report.compare import Pair, compare
from hace.lab.report.metric import HEADLINES, TOP1, TOP5, Metric
from hace.lab.report.runs import Condition, chosen_runs, matched_runs, metric_values, runs_table
from hace.lab.report.scores import MethodScores, PredictionStore
from hace.lab.study.records import Record

DEFAULT_PAIR = ("hace", "cross_entropy")


class Results:
    """A study's runs.

    Args:
        records: All records.
        compare: The two methods whose difference is shown: first minus second.
        names: A file with one line "id name" per node, where the runs have only ids.

    Attributes:
        records: The records.
        runs: One row per run, of :func:`hace.lab.report.runs.runs_table`.
        chosen: The runs that tables show: one row per condition, method and seed.
        scores: The methods' scores in each condition, in the order of tables.
        best_top5: The same under the paper's protocol with each seed's best run in top-5 accuracy.
        matched: The same under the paper's protocol of all runs at fixed rates.
        methods: All methods.
        first: The method in question.
        second: The reference.

    Raises:
        DataError: No run has finished.
        FormatError: `names` cannot be read.
        HierarchyError: `names` has other nodes.
        ConfigError: A compared method is not in the study.
    """

    def __init__(
        self,
        records: Iterable[Record],
        compare: Sequence[str] | None = None,
        names: str | Path | None = None,
    ) -> None:
        self.records = list(records)
        if not any(record.status == "finished" for record in self.records):
            raise DataError(_nothing(self.records))
        self.runs = runs_table(self.records)
        if names is not None:
            self._check_names(names)
        self.chosen = chosen_runs(self.runs)
        stores = {condition: PredictionStore(names) for condition in self.chosen["condition"]}
        in_paper = self.runs[self.runs["protocol"] == "paper"]
        self.methods = list(dict.fromkeys(self.chosen["method"]))
        self.first, self.second = _pair(self.methods, compare)
        self.scores = _by_condition(self.chosen, stores, (self.first, self.second))
        self.best_top5 = _by_condition(chosen_runs(in_paper, TOP5), stores)
        self.matched = _by_condition(matched_runs(in_paper), stores)
        self.against_reference = cache(self._against_reference)

    def _check_names(self, names: str | Path) -> None:
        """Refuse names that do not fit a hierarchy of the study."""
        finished = self.runs.loc[self.runs["status"] == "finished", "run"]
        for run in {run.about["data"]["hierarchy"]: run for run in finished}.values():
            run.named_hierarchy(names)

    @property
    def problems(self) -> list[str]:
        """Finished runs that could not be read in full."""
        return [problem for scores in self.scores.values() for problem in scores.store.problems]

    def conditions(self, protocol: str) -> list[Condition]:
        """The conditions of a protocol."""
        return [condition for condition in self.scores if condition.protocol == protocol]

    def in_condition(self, condition: Condition) -> pd.DataFrame:
        """All runs of a condition, searches too."""
        return self.runs[self.runs["condition"] == condition]

    @cached_property
    def _held_out(self) -> dict[tuple[Condition, str], float]:
        """Of each condition and method the mean over seeds of the best candidate's accuracy on held-out samples."""
        searched = self.runs[self.runs["stage"] == "search"]
        accuracy = metric_values(searched, TOP1).fillna(0.0)  # a candidate that diverged counts as 0
        best = accuracy.groupby(
            [searched[name] for name in ("condition", "method", "seed")], sort=False
        ).max()
        means = best.groupby(level=[0, 1], sort=False).mean()
        return dict(zip(means.index, means.tolist(), strict=True))

    def held_out(self, condition: Condition) -> dict[str, float]:
        """Methods by their best candidates' mean accuracy on held-out samples, which alone may choose; the best first."""
        known = [
            (method, self._held_out[condition, method])
            for method in self.scores[condition].done
            if (condition, method) in self._held_out
        ]
        return dict(sorted(known, key=lambda item: -item[1]))

    def pairs(
        self, condition: Condition, methods: Iterable[str], metrics: Iterable[Metric]
    ) -> Iterator[Pair]:
        """Each of some methods against the reference, in each of some metrics."""
        scores = self.scores[condition]
        metrics = list(metrics)
        for method in methods:
            if method != self.second:
                yield from (Pair(metric, scores, method, scores, self.second) for metric in metrics)

    def _against_reference(self, protocol: str) -> pd.DataFrame:
        """Every method minus the reference in top-1 accuracy, in every condition of a protocol: one family."""
        conditions = self.conditions(protocol)
        return compare(pair for c in conditions for pair in self.pairs(c, self.methods, HEADLINES[:1]))


def _by_condition(
    chosen: pd.DataFrame, stores: dict[Condition, PredictionStore], compared: Sequence[str] = ()
) -> dict[Condition, MethodScores]:
    groups = chosen.groupby("condition", sort=False)
    return {condition: MethodScores(runs, stores[condition], compared) for condition, runs in groups}  # pyright: ignore


def _pair(methods: Sequence[str], compare: Sequence[str] | None) -> tuple[str, str]:
    """The two methods to compare: those asked for, or else HACE and cross-entropy as far as the study has them."""
    if compare is not None:
        if len(compare) != 2 or compare[0] == compare[1]:
            raise ConfigError(
                f"compare must name two methods, as in hace,cross_entropy. Got {','.join(compare)!r}."
            )
        for name in (name for name in compare if name not in methods):
            known = f"It has {', '.join(methods)}.{nearest(name, methods)}"
            raise ConfigError(f"compare must name methods of the study. Got {name!r}. {known}")
        return compare[0], compare[1]
    second = DEFAULT_PAIR[1] if DEFAULT_PAIR[1] in methods else methods[0]
    others = [method for method in methods if method != second] or [second]
    return (DEFAULT_PAIR[0] if DEFAULT_PAIR[0] in others else others[0]), second


def _nothing(records: Sequence[Record]) -> str:
    """Why there is nothing to report."""
    if not records:
        return "There is nothing to report: the study has no runs. Start it with `hace study`."
    errors = [record.error for record in records if record.status == "failed"]
    counts = {"failed": len(errors), "diverged": sum(record.status == "diverged" for record in records)}
    parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    ended = f" ({parts})" if parts else ""
    more = f" The first error: {errors[0]}" if errors else " Let the study run first."
    return f"There is nothing to report: none of {len(records)} runs has finished{ended}.{more}"
