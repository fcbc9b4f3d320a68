"""How one run is chosen among several: searches, wider ones while the edge of a grid wins, then the final runs.

Methods that are compared at a seed form a :class:`MethodComparison`, in which all have the same number of candidates. Where the
best candidate of any method has the smallest or the largest rate of its grid, every method gets one more rate on that side, at
most `Configuration.widen` times. Only finished searches decide, so a study that was killed widens as it would have done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hace.errors import DataError
from hace.lab.runs.config import RunConfig
from hace.lab.runs.result import KNOWN_TOP1
from hace.lab.runs.run import Run
from hace.lab.study.configurations import Candidate, Configuration, ConfigurationKey
from hace.lab.study.records import PENDING, Record, Stage

# What is known of a run by its id: the fields `run`, `error` and `again` of its record.
Look = Callable[[str], Mapping[str, Any]]


class MethodComparison:
    """The configurations of the methods that are compared at one seed.

    Args:
        configurations: One or several for each method.
        identity: The id of a run of a configuration.
    """

    def __init__(
        self,
        configurations: Iterable[Configuration],
        identity: Callable[[Configuration, RunConfig], str],
    ) -> None:
        self._configurations = list(configurations)
        self._identity = identity
        self._planned: dict[ConfigurationKey, list[Record]] = {}  # the searches so far

    def records(self, look: Look) -> list[Record]:
        """Every run that is decided, and a final one for each configuration; the rate of one that is not chosen yet is NaN."""
        searches = self._searches(look)
        # A search that failed for good counts as finished.
        while not (pending := any(record.status in PENDING for search in searches for record in search)):
            wider = widened(self._configurations, searches)
            if not wider:
                break
            self._configurations = wider
            searches = self._searches(look)
        records = []
        for configuration, search in zip(self._configurations, searches, strict=True):
            records += [*search, self._final(configuration, search, look, pending)]
        return records

    def _searches(self, look: Look) -> list[list[Record]]:
        """The searches of each configuration, as they are now."""
        for configuration in self._configurations:
            planned = self._planned.setdefault(configuration.key, [])
            more = configuration.search(begun=len(planned))
            planned += [self._record(configuration, "search", config) for config in more]
        by_configuration = [self._planned[configuration.key] for configuration in self._configurations]
        return [[replace(record, **look(record.id)) for record in planned] for planned in by_configuration]

    def _final(
        self, configuration: Configuration, search: Sequence[Record], look: Look, pending: bool
    ) -> Record:
        """The final run of a configuration; without an id while it cannot be chosen."""
        candidate, why = (None, "") if pending else choose(configuration, search)
        if candidate is not None:
            record = self._record(configuration, "final", configuration.final(candidate))
            record = replace(record, edge=configuration.edge(candidate), **look(record.id))
        else:  # where every candidate diverged, so did the method
            diverged = search and all(record.status == "diverged" for record in search)
            record = Record(configuration.key, "final", math.nan, search[0].run if diverged else None, why)
        return replace(record, candidates=len(configuration.candidates))

    def _record(self, configuration: Configuration, stage: Stage, config: RunConfig) -> Record:
        run = self._identity(configuration, config)
        return Record(configuration.key, stage, config.lr, None, id=run, config=config)


def comparisons(configurations: Iterable[Configuration]) -> list[list[Configuration]]:
    """Configurations by comparison: those that differ in their method alone. One that cannot widen waits for no other."""
    groups: dict[ConfigurationKey, list[Configuration]] = {}
    for configuration in configurations:
        key = configuration.key
        if any(configuration.widen):
            key = replace(key, method="", dilution=None)
        groups.setdefault(key, []).append(configuration)
    return list(groups.values())


def widened(
    configurations: Sequence[Configuration], searches: Sequence[Sequence[Record]]
) -> list[Configuration]:
    """The configurations of a comparison with another rate on each side where one of them chose the edge; none if they are
    settled.
    """
    pairs = zip(configurations, searches, strict=True)
    sides = {_side(configuration, search) for configuration, search in pairs if search}
    below = "smallest" in sides and any(configuration.widen[0] for configuration in configurations)
    above = "largest" in sides and any(configuration.widen[1] for configuration in configurations)
    if not below and not above:
        return []
    return [configuration.wider(below, above) for configuration in configurations]


def _side(configuration: Configuration, search: Sequence[Record]) -> str:
    """The edge that a search chose, "smallest" or "largest"; where all its rates diverged, smaller ones may not."""
    if all(record.status == "diverged" for record in search):
        return "smallest"
    candidate, _ = choose(configuration, search)
    side, _, what = ("" if candidate is None else configuration.edge(candidate)).partition(" ")
    return side if what == "rate" else ""


def choose(configuration: Configuration, search: Sequence[Record]) -> tuple[Candidate | None, str]:
    """The candidate of the final run, with the temperature that its search fitted; or None and why ("" while it runs)."""
    if not search:
        return configuration.candidates[0], ""
    failed = [record for record in search if record.status == "failed"]
    if failed:
        words = f"{len(failed)} of the {len(search)} runs that choose its rate failed"
        return None, f"{words}, at {failed[0].lr:g}: {failed[0].error}"
    runs = [record.run for record in search if record.run is not None]
    if len(runs) < len(search):
        return None, ""
    try:
        chosen = select(runs, "top-1" if configuration.choose_by == "truth" else KNOWN_TOP1)
    except DataError as error:
        return None, str(error)
    candidate = configuration.candidates[chosen]
    temperature = ((runs[chosen].result or {}).get("temperature") or {}).get("value")
    return candidate if temperature is None else {**candidate, "temperature": temperature}, ""


def select(runs: Sequence[Run], metric: str = "top-1") -> int:
    """The position of the run with the best accuracy. Ties go to the smaller rate, then to the first run."""
    ranked = []
    for position, run in enumerate(runs):
        if run.status == "finished" and run.result is not None:
            ranked.append((-run.result["metrics"]["leaves"][metric], run.config.lr, position))
    if not ranked:
        rates = ", ".join(f"{run.config.lr:g}" for run in runs)
        raise DataError(f"No rate can be chosen: all of {rates} have diverged. Try smaller ones.")
    return min(ranked)[2]
