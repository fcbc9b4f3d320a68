"""The runs of a study as records, and what they tell about its searches.

A :class:`Record` is a run that a study wants, made or not; :mod:`hace.lab.study.comparison` makes them. Reports read nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hace.lab.runs.config import RunConfig
from hace.lab.runs.run import Run
from hace.lab.study.configurations import ConfigurationKey

Stage = Literal["search", "final"]
PENDING = ("to be retried", "not run")
NO_RESULT = ("diverged", "failed", *PENDING)  # statuses without a number


@dataclass(frozen=True, eq=False)
class Record:
    """A run of a study."""

    key: ConfigurationKey  # of the configuration it belongs to
    stage: Stage  # "search": a candidate, judged on held-out samples; "final": the run that tables show
    lr: float  # its learning rate; NaN while it is not chosen
    run: Run | None  # the run; None while there is none
    error: str = ""  # why there is none: the last error of a run that failed, or "" if it was not tried
    again: bool = False  # whether the study tries it again by itself
    candidates: int = 1  # of a final run: how many candidates were searched; 1 without a search
    edge: str = ""  # where the chosen candidate is at the edge of its grid: "largest rate", say
    id: str = ""  # of the run, which several configurations may share; "" while it is not chosen
    config: RunConfig | None = None  # of the run, where a study wants it made

    @property
    def result(self) -> Mapping[str, Any]:
        """What result.json holds; nothing while there is none."""
        return (self.run.result if self.run is not None else None) or {}

    @property
    def status(self) -> str:
        """Either "finished" or one of `NO_RESULT`."""
        if self.run is not None and self.run.result is not None:
            return self.run.status
        if self.error:
            return "to be retried" if self.again else "failed"
        return "not run"

    def metric(self, heading: str, name: str) -> float | None:
        """A metric of the result; None where there is none."""
        return (self.result.get("metrics") or {}).get(heading, {}).get(name)

    @property
    def top1(self) -> float | None:
        """The accuracy of the most probable leaf, from 0 to 1."""
        return self.metric("leaves", "top-1")


def each_run(records: Iterable[Record]) -> list[Record]:
    """Each run once: without the records of a run that is there already, such as a search that all seeds share."""
    # Data that are not here have no fingerprint: ids alone would be equal.
    seen: dict[tuple[str, str], Record] = {}
    return [r for r in records if not r.id or seen.setdefault((r.key.dataset, r.id), r) is r]


def searched_at(records: Iterable[Record]) -> int | None:
    """The seed whose searches choose for others as well; None where every seed searches for itself."""
    for record in records:
        if record.stage == "search" and record.run is not None and record.run.config.seed != record.key.seed:
            return record.run.config.seed
    return None


def chosen_on(records: Sequence[Record]) -> str:
    """What the searches among these runs are judged on, in words."""
    held_out = {r.run.config.validation for r in records if r.stage == "search" and r.run is not None}
    words = "the data's own validation split" if held_out == {"split"} else "held-out training samples"
    seed = searched_at(records)
    return words if seed is None else f"{words}, once for all seeds, at seed {seed}"


def at_the_edge(records: Sequence[Record]) -> tuple[int, int]:
    """How many searches chose the edge of their grid, and how many there are; those among one or two candidates have none."""
    final = [r for r in records if r.stage == "final" and r.status == "finished" and r.candidates > 2]
    if searched_at(records) is not None:  # the seeds of a method share a search
        final = list({replace(r.key, seed=0): r for r in final}.values())
    return sum(bool(r.edge) for r in final), len(final)


def coarse_searches(records: Sequence[Record]) -> list[ConfigurationKey]:
    """The searches, without their seed, whose grid of rates is too coarse to show what the method can do.

    A parabola through the held-out accuracy, by the logarithm of the rate, at the best rate and its two neighbours predicts
    the peak between them. A grid is coarse where that peak is higher than the best rate by more than the standard error of a
    difference of two of these rates over the seeds. One seed tells nothing of its noise.
    """
    searches: dict[ConfigurationKey, dict[float, dict[int, float]]] = {}  # accuracy by search, rate and seed
    for record in records:
        if record.stage == "search" and record.top1 is not None:
            by_rate = searches.setdefault(replace(record.key, seed=0), {})
            by_seed = by_rate.setdefault(record.lr, {})
            by_seed[record.key.seed] = max(record.top1, by_seed.get(record.key.seed, 0.0))
    return [key for key, by_rate in searches.items() if _is_coarse(by_rate)]


def _is_coarse(by_rate: Mapping[float, Mapping[int, float]]) -> bool:
    """Whether accuracy by rate and seed peaks between rates, by more than its noise."""
    seeds = sorted(max(by_rate.values(), key=len))
    # A rate without some of the seeds was added to the grids of the others alone.
    rates = sorted(rate for rate, by_seed in by_rate.items() if len(by_seed) == len(seeds))
    values = np.array([[by_rate[rate][seed] for seed in seeds] for rate in rates])
    best = int(values.mean(1).argmax())
    if len(seeds) < 2 or not 0 < best < len(rates) - 1:
        return False
    near = values[best - 1 : best + 2]
    a, b, c = np.polyfit(np.log2(rates[best - 1 : best + 2]), near.mean(1), 2)
    peak = c - b * b / (4 * a) if a < 0 else near[1].mean()
    # What is left of each value without its rate's mean and its seed's luck at every rate.
    noise = near - near.mean(0) - near.mean(1, keepdims=True) + near.mean()
    error = np.sqrt(2 * (noise**2).sum() / (2 * (len(seeds) - 1)) / len(seeds))
    return bool(peak - near[1].mean() > error)
