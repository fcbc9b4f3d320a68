"""What a report says of a study, computed once: chosen runs, scores, differences between methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from hace.errors import ConfigError, DataError, nearest
from hace.lab.report.arenas import TOP1, TOP5, Arena, Choice, arena_of, chosen_runs, method_title
from hace.lab.report.scores import ArenaScores, Store
from hace.lab.study.cells import Record
from hace.metrics.intervals import Compared, Interval, compared_together
from hace.metrics.sample_statistics import MetricKey

DEFAULT_PAIR = ("hace", "sce")


class Gap(NamedTuple):
    """The difference between two methods in an arena."""

    arena: Arena
    interval: Interval
    seeds: int


class Wins(NamedTuple):
    """Differences over several arenas, summed up."""

    won: int
    of: int
    mean: float
    median: float


class Results:
    """A study's records, with what tables and figures take from them.

    Args:
        records: All records.
        compare: The two methods whose difference is shown: first minus second.
        question: What their difference answers.
        names: A file with one line "id name" per node, where the runs have only ids.

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
        question: str = "does the hierarchy help?",
        names: str | Path | None = None,
    ) -> None:
        self.records, self.question = list(records), question
        if not any(r.status == "finished" for r in self.records):
            raise DataError(_nothing(self.records))
        self.choices = chosen_runs(self.records)
        stores = {arena: Store(names) for arena in self.choices}
        if names is not None:
            _check_names(self.records, names)
        fair = [arena for arena in self.choices if arena.protocol == "fair"]
        paper = [arena for arena in self.choices if arena.protocol == "paper"]
        self.arrays = {arena: ArenaScores(choices, stores[arena]) for arena, choices in self.choices.items()}
        by_top5 = chosen_runs(self.records, TOP5)
        self.best_top5 = {arena: ArenaScores(by_top5[arena], stores[arena]) for arena in paper}
        self.matched = {arena: ArenaScores(_matched(self.records, arena), stores[arena]) for arena in paper}
        self.dilutions = {
            arena: ArenaScores(_by_dilution(self.records, arena), stores[arena]) for arena in fair
        }
        self.methods = list(dict.fromkeys(m for choices in self.choices.values() for m in choices))
        self.first, self.second = _pair(self.methods, compare)

    @property
    def problems(self) -> list[str]:
        """Finished runs that could not be read in full."""
        return [problem for arrays in self.arrays.values() for problem in arrays.store.problems]

    @cached_property
    def _searched(self) -> dict[Arena, dict[str, dict[int, list[float]]]]:
        """The held-out accuracies of all candidates, by arena, method and seed; a candidate that diverged counts as 0."""
        found: dict[Arena, dict[str, dict[int, list[float]]]] = {}
        for record in self.records:
            if record.stage == "search":
                by_seed = found.setdefault(arena_of(record.key), {}).setdefault(record.key.method, {})
                by_seed.setdefault(record.key.seed, []).append(record.top1 or 0.0)
        return found

    def held_out(self, arena: Arena) -> dict[str, float]:
        """Methods with a result by their accuracy on held-out samples, the best first: mean over seeds of the best candidate.

        This is what a choice between methods may look at; the test samples are not.
        """
        done = [m for m, choice in self.choices[arena].items() if choice.finished]
        found = {
            m: mean(map(max, by.values())) for m, by in self._searched.get(arena, {}).items() if m in done
        }
        order = {m: i for i, m in enumerate(self.choices[arena])}
        return dict(sorted(found.items(), key=lambda item: (-item[1], order[item[0]])))

    def arenas(self, protocol: str) -> list[Arena]:
        """The arenas of a protocol."""
        return [arena for arena in self.choices if arena.protocol == protocol]

    def gap(self, arena: Arena, first: str, second: str, key: MetricKey = TOP1) -> Gap | None:
        """The difference between two methods in an arena; None if it lacks one."""
        difference = self.arrays[arena].difference(first, second, key)
        return None if difference is None else Gap(arena, *difference)

    def gaps(self, first: str, second: str, protocol: str, key: MetricKey = TOP1) -> list[Gap]:
        """The difference between two methods in each arena that has both."""
        found = (self.gap(arena, first, second, key) for arena in self.arenas(protocol))
        return [gap for gap in found if gap is not None]

    def compared(
        self, protocol: str, key: MetricKey = TOP1, reference: str | None = None
    ) -> dict[tuple[Arena, str], Compared]:
        """Every method minus the reference in every arena of a protocol: one family, corrected together.

        Args:
            protocol: Whose arenas.
            key: The metric.
            reference: By default the second of the compared pair.
        """
        against = reference or self.second
        gaps = {
            (gap.arena, method): gap.interval
            for method in self.methods
            if method != against
            for gap in self.gaps(method, against, protocol, key)
        }
        return compared_together(gaps)


def tally(values: Sequence[float], higher: bool = True) -> Wins | None:
    """Wins, mean and median of differences.

    Example:
        >>> tally([2.0, -1.0, 0.5])
        Wins(won=2, of=3, mean=0.5, median=0.5)
    """
    if not values:
        return None
    won = sum(v > 0 if higher else v < 0 for v in values)
    return Wins(won, len(values), mean(values), median(values))


def _matched(records: Iterable[Record], arena: Arena) -> dict[str, Choice]:
    """Runs at fixed rates, by :func:`matched_key`; a run shared by several pairs is in each of them."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        key = record.key
        if record.stage == "final" and key.pairing and arena_of(key) == arena:
            found.setdefault(matched_key(key.method, key.dilution, key.pairing), {})[key.seed] = record
    return {name: Choice(arena, name, tuple(by[seed] for seed in sorted(by))) for name, by in found.items()}


def _by_dilution(records: Iterable[Record], arena: Arena) -> dict[str, Choice]:
    """The final runs of methods with several dilutions, by "HACE, d = 0.2"."""
    found: dict[str, dict[float, dict[int, Record]]] = {}
    for record in records:
        key = record.key
        if record.stage == "final" and key.dilution is not None and arena_of(key) == arena:
            found.setdefault(key.method, {}).setdefault(key.dilution, {})[key.seed] = record
    return {
        f"{method_title(method)}, d = {d:g}": Choice(
            arena, method, tuple(by[d][seed] for seed in sorted(by[d]))
        )
        for method, by in found.items()
        if len(by) > 1
        for d in sorted(by)
    }


def matched_key(method: str, dilution: float | None, pairing: str) -> str:
    """The name of a run within a pair: "hace 0.2 adjusted"."""
    return f"{method} {'any' if dilution is None else f'{dilution:g}'} {pairing}"


def _pair(methods: Sequence[str], compare: Sequence[str] | None) -> tuple[str, str]:
    if compare is not None:
        if len(compare) != 2 or compare[0] == compare[1]:
            raise ConfigError(f"compare must name two methods, as in hace,sce. Got {','.join(compare)!r}.")
        for name in compare:
            if name not in methods:
                has = ", ".join(methods)
                raise ConfigError(
                    f"compare: the study has no results of {name!r}. It has {has}.{nearest(name, methods)}"
                )
        return compare[0], compare[1]
    second = DEFAULT_PAIR[1] if DEFAULT_PAIR[1] in methods else methods[0]
    others = [m for m in methods if m != second] or [second]
    return (DEFAULT_PAIR[0] if DEFAULT_PAIR[0] in others else others[0]), second


def _check_names(records: Iterable[Record], names: str | Path) -> None:
    """Refuse names that do not fit the hierarchies."""
    finished = [r.run for r in records if r.status == "finished" and r.run is not None]
    for run in {run.about["data"]["hierarchy"]: run for run in finished}.values():
        run.named_hierarchy(names)


def _nothing(records: Sequence[Record]) -> str:
    if not records:
        return "There is nothing to report: the study has no runs. Start it with `hace study`."
    errors = [r.error for r in records if r.status == "failed"]
    diverged = sum(r.status == "diverged" for r in records)
    parts = [f"{len(errors)} failed"] if errors else []
    parts += [f"{diverged} diverged"] if diverged else []
    said = f" ({', '.join(parts)})" if parts else ""
    first = f" The first error: {errors[0]}" if errors else " Let the study run first."
    return f"There is nothing to report: none of {len(records)} runs has finished{said}.{first}"
