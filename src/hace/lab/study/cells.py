"""The cells of a study: what each number in a table is about, the runs behind it, and how one run is chosen among several.

A cell is one number: dataset, model, method, dilution, pairing, seed, labels. A cell with one candidate is one run. With
several, every candidate is tried on part of the training samples, the best one on the held-out rest is trained again on all
of them, and the test samples are used once. A seed repeats the whole procedure, unless the cells of all seeds share the
search of one (`search_seed`), which halves the runs of a study with three rates and three seeds.

Methods that compete at a seed form a :class:`Contest`, in which all have the same number of candidates. Where the best
candidate of any method has the smallest or the largest rate of its grid, every method gets one more rate on that side, at
most `Cell.widen` times. Only finished searches decide, so a study that was killed widens as it would have done.

All choices are made here: :func:`select` among the candidates of a cell, :func:`best_record` among the cells of a method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, get_type_hints

import numpy as np

from hace.errors import ConfigError, DataError, nearest
from hace.lab.runs.config import RunConfig, Validation
from hace.lab.runs.result import KNOWN_TOP1
from hace.lab.runs.run import KINDS, Run
from hace.settings import fits, from_dict, merged

FAIR_RATES = tuple(0.25 * 2**k for k in range(8))  # 0.25 to 32; on unit vectors the best are 8 to 20
HELD_OUT = 0.1  # share of the training samples, where the data have no validation split
Candidate = Mapping[str, Any]  # settings of a run, nested as in its configuration: {"lr": 8.0}
Stage = Literal["search", "final"]
PENDING = ("to be retried", "not run")
NO_RESULT = ("diverged", "failed", *PENDING)  # statuses without a number


@dataclass(frozen=True)
class CellKey:
    """What a number in a table is about."""

    # "paper" (fixed rates, the best of them on the test set), "fair" (the same candidates for all, chosen on held-out
    # samples, then trained again on all) or "single" (as given)
    protocol: Literal["paper", "fair", "single"]
    dataset: str  # its name in the study: "cifar100", "aircraft", "nabirds", or another
    model: str  # the architecture, or the backbone behind the features
    method: str  # a key of `hace.lab.study.presets.METHODS`, or the spelling of another loss
    dilution: float | None  # d, where the method has one
    pairing: str | None  # of the paper's protocol: "standard" or "adjusted"; None otherwise
    seed: int  # of the run
    labels: str = ""  # what is known of the training labels: "80% parent"; "" for labels as they are

    def __str__(self) -> str:
        """In words, without the seed."""
        dilution = "" if self.dilution is None else f"d={self.dilution:g}"
        labels = self.labels and f"({self.labels})"
        parts = (self.dataset, self.model, self.method, dilution, self.pairing, labels)
        return " ".join(part for part in parts if part)


KEYS = tuple(field.name for field in fields(CellKey))


@dataclass(frozen=True)
class Cell:
    """A cell and the runs that fill it."""

    key: CellKey  # what it is about
    config: RunConfig  # the final run, without what the candidates set
    candidates: tuple[Candidate, ...]  # several: the best on held-out samples is searched first
    validation: Validation | None = None  # what the search holds out; None: the data's own split, or 10%
    widen: tuple[int, int] = (0, 0)  # rates that the search may add below its smallest and above its largest
    search_seed: int | None = None  # the seed whose search chooses, for all seeds; None: this cell's own
    choose_by: Literal["truth", "labels"] = "truth"  # what judges held-out samples: true or known labels

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of each candidate."""
        return tuple(candidate.get("lr", self.config.lr) for candidate in self.candidates)

    def search(self, begun: int = 0) -> list[RunConfig]:
        """A run for each candidate but the first `begun`, judged on held-out samples; none where there is a single one."""
        if len(self.candidates) == 1:
            return []
        held = {"validation": self.validation or HELD_OUT, "evaluate": "val", "keep": False}
        config = self.config if self.search_seed is None else _reseeded(self.config, self.search_seed)
        return [_with_settings(config, {**candidate, **held}) for candidate in self.candidates[begun:]]

    def final(self, candidate: Candidate) -> RunConfig:
        """The run that tables show: trained on all training samples, judged on the test samples."""
        return _with_settings(self.config, {**candidate, "validation": 0.0, "evaluate": "test"})

    def edge(self, candidate: Candidate) -> str:
        """Where a candidate is at the edge of its grid: "largest rate", say; "" inside. 0 is no edge, nor are two values."""
        for name, title in (("lr", "rate"), ("weight_decay", "weight decay")):
            tried = {c[name] for c in self.candidates if name in c}
            value = candidate.get(name)
            if len(tried) > 2 and value and value in (min(tried), max(tried)):
                return f"{'largest' if value == max(tried) else 'smallest'} {title}"
        return ""

    def wider(self, below: bool, above: bool) -> Cell:
        """The cell with one more rate on some sides, in the steps of its grid; settings that go by turns go on doing so."""
        rates = sorted(set(self.rates))
        if len(rates) < 2:
            return self
        others = [[{**c, "lr": None} for c in self.candidates if c["lr"] == rate] for rate in rates]
        turns = next(k for k in range(1, len(rates) + 1) if others[k:] == others[:-k])
        less, more = self.widen
        new = []
        if below and less:
            new += [{**c, "lr": rates[0] ** 2 / rates[1]} for c in others[turns - 1]]
            less -= 1
        if above and more:
            new += [{**c, "lr": rates[-1] ** 2 / rates[-2]} for c in others[-turns]]
            more -= 1
        return replace(self, candidates=(*self.candidates, *new), widen=(less, more))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; :func:`cell_from_dict` reads them back."""
        return {
            "key": asdict(self.key),
            "kind": self.config.kind,
            "config": self.config.to_dict(),
            "candidates": [dict(candidate) for candidate in self.candidates],
            "validation": self.validation,
            "widen": list(self.widen),
            "search_seed": self.search_seed,
            "choose_by": self.choose_by,
        }

    def deciding(self) -> dict[str, Any]:
        """The same without what does not decide results, such as paths of data."""
        return {**self.to_dict(), "config": self.config.deciding()}


def _with_settings(config: RunConfig, values: Candidate) -> RunConfig:
    """A configuration with some settings replaced; a nested mapping replaces settings of a part, such as the loss."""
    if any(isinstance(value, Mapping) for value in values.values()):
        return from_dict(type(config), merged(config.to_dict(), values))
    return replace(config, **values)


def _reseeded(config: RunConfig, seed: int) -> RunConfig:
    """A configuration as it is at another seed, which also shuffles a shuffled hierarchy."""
    shuffle = config.data.shuffle if config.data.shuffle != config.seed else seed
    return replace(config, seed=seed, data=replace(config.data, shuffle=shuffle))


def cell_from_dict(document: Mapping[str, Any]) -> Cell:
    """A cell from plain values."""
    try:
        values = {**document["key"], **document}
        config = from_dict(KINDS[document["kind"]], document["config"])
        below, above = document["widen"]
        candidates = tuple(document["candidates"])
        key, seed = CellKey(**document["key"]), document["search_seed"]
        wrong = [name for name, hint in _cell_hints().items() if not fits(values[name], hint)]
        known = {field.name for field in fields(config)}
        if not all(fits(c, Mapping[str, Any]) and known.issuperset(c) for c in candidates):
            wrong.append("candidates")
        elif not all(fits(candidate.get("lr", 1.0), float) for candidate in candidates):
            wrong.append("lr")
        if not candidates or not (fits(below, int) and fits(above, int)):
            wrong.append("candidates or widen")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"A cell of the study does not fit this version: {error!r}.") from error
    if wrong:
        raise ConfigError(f"A cell of the study does not fit this version: its {', '.join(wrong)}.")
    return Cell(key, config, candidates, document["validation"], (below, above), seed, document["choose_by"])


@cache
def _cell_hints() -> dict[str, Any]:
    more = {name: get_type_hints(Cell)[name] for name in ("validation", "search_seed", "choose_by")}
    return {**get_type_hints(CellKey), **more}


def rate_candidates(rates: Sequence[float], decays: Sequence[float] = ()) -> tuple[Candidate, ...]:
    """Candidates that differ in their learning rate and, where several are given, in their weight decay."""
    if not decays:
        return tuple({"lr": rate} for rate in rates)
    return tuple({"lr": rate, "weight_decay": decay} for rate in rates for decay in decays)


def dealt_candidates(candidates: Sequence[Candidate], dilutions: Sequence[float]) -> tuple[Candidate, ...]:
    """As many candidates, each rate with one of the dilutions in turn: a tuned dilution costs rates."""
    rates = sorted({candidate["lr"] for candidate in candidates})
    turn = {rate: dilutions[place % len(dilutions)] for place, rate in enumerate(rates)}
    return tuple({**c, "loss": {"options": {"dilution": turn[c["lr"]]}}} for c in candidates)


@dataclass(frozen=True, eq=False)
class Record:
    """A run of a study."""

    key: CellKey  # the cell it belongs to
    stage: Stage  # "search": a candidate, judged on held-out samples; "final": the run that tables show
    lr: float  # its learning rate; NaN while it is not chosen
    run: Run | None  # the run; None while there is none
    error: str = ""  # why there is none: the last error of a run that failed, or "" if it was not tried
    again: bool = False  # whether the study tries it again by itself
    candidates: int = 1  # how many candidates its cell has searched, of a final run; 1 without a search
    edge: str = ""  # where the chosen candidate is at the edge of its grid: "largest rate", say
    id: str = ""  # of the run, which several cells may share; "" while it is not chosen
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


# What is known of a run by its id: the fields `run`, `error` and `again` of its record.
Look = Callable[[str], Mapping[str, Any]]


class Contest:
    """Methods that compete at one seed, as cells: searches, wider ones while any chooses the edge, then final runs."""

    def __init__(self, cells: Iterable[Cell], identity: Callable[[Cell, RunConfig], str]) -> None:
        self._cells, self._identity = list(cells), identity
        self._planned: dict[CellKey, list[Record]] = {}

    def records(self, look: Look) -> list[Record]:
        """Every run that is decided, and a final one for each cell; the rate of one that is not chosen yet is NaN."""
        searched = self._searched(look)
        # A search that failed for good counts as finished.
        while not (pending := any(record.status in PENDING for records in searched for record in records)):
            if not (wider := widened(self._cells, searched)):
                break
            self._cells = wider
            searched = self._searched(look)
        found = []
        for cell, records in zip(self._cells, searched, strict=True):
            candidate, why = (None, "") if pending else choose(cell, records)
            if candidate is not None:
                final = self._record(cell, "final", cell.final(candidate))
                final = replace(final, edge=cell.edge(candidate), **look(final.id))
            else:  # where every candidate diverged, so did the method
                diverged = records and all(record.status == "diverged" for record in records)
                final = Record(cell.key, "final", math.nan, records[0].run if diverged else None, why)
            found += [*records, replace(final, candidates=len(cell.candidates))]
        return found

    def _searched(self, look: Look) -> list[list[Record]]:
        for cell in self._cells:
            known = self._planned.setdefault(cell.key, [])
            known += [self._record(cell, "search", config) for config in cell.search(len(known))]
        planned = [self._planned[cell.key] for cell in self._cells]
        return [[replace(record, **look(record.id)) for record in records] for records in planned]

    def _record(self, cell: Cell, stage: Stage, config: RunConfig) -> Record:
        return Record(cell.key, stage, config.lr, None, id=self._identity(cell, config), config=config)


def contests(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells by contest: those that differ in their method alone. One that cannot widen waits for no other."""
    found: dict[CellKey, list[Cell]] = {}
    for cell in cells:
        key = replace(cell.key, method="", dilution=None) if any(cell.widen) else cell.key
        found.setdefault(key, []).append(cell)
    return list(found.values())


def widened(cells: Sequence[Cell], searched: Sequence[Sequence[Record]]) -> list[Cell]:
    """The cells of a contest with another rate on each side where one of them chose the edge; none if they are settled."""
    sides = {_side(cell, records) for cell, records in zip(cells, searched, strict=True) if records}
    below = "smallest" in sides and any(cell.widen[0] for cell in cells)
    above = "largest" in sides and any(cell.widen[1] for cell in cells)
    return [cell.wider(below, above) for cell in cells] if below or above else []


def _side(cell: Cell, searched: Sequence[Record]) -> str:
    """The edge that a search chose, "smallest" or "largest"; where all its rates diverged, smaller ones may not."""
    if all(record.status == "diverged" for record in searched):
        return "smallest"
    candidate, _ = choose(cell, searched)
    side, _, what = ("" if candidate is None else cell.edge(candidate)).partition(" ")
    return side if what == "rate" else ""


def choose(cell: Cell, searched: Sequence[Record]) -> tuple[Candidate | None, str]:
    """The candidate of a cell's final run, with the temperature that its search fitted; or None and why ("" while it runs)."""
    if not searched:
        return cell.candidates[0], ""
    failed = [record for record in searched if record.status == "failed"]
    if failed:
        words = f"{len(failed)} of the {len(searched)} runs that choose its rate failed"
        return None, f"{words}, at {failed[0].lr:g}: {failed[0].error}"
    runs = [record.run for record in searched if record.run is not None]
    if len(runs) < len(searched):
        return None, ""
    try:
        chosen = select(runs, "top-1" if cell.choose_by == "truth" else KNOWN_TOP1)
    except DataError as error:
        return None, str(error)
    fitted = ((runs[chosen].result or {}).get("temperature") or {}).get("value")
    return {**cell.candidates[chosen], **({} if fitted is None else {"temperature": fitted})}, ""


def select(runs: Sequence[Run], metric: str = "top-1") -> int:
    """The position of the run with the best accuracy. Ties go to the smaller rate, then to the first run."""
    found = []
    for position, run in enumerate(runs):
        if run.status == "finished" and run.result is not None:
            found.append((-run.result["metrics"]["leaves"][metric], run.config.lr, position))
    if not found:
        rates = ", ".join(f"{run.config.lr:g}" for run in runs)
        raise DataError(f"No rate can be chosen: all of {rates} have diverged. Try smaller ones.")
    return min(found)[2]


def best_record(records: Sequence[Record], merit: Callable[[Record], float | None]) -> Record:
    """The final run that represents a method at a seed: finished, with the highest merit, which is the accuracy on held-out
    samples in the fair protocol and on the test set in the paper's. Ties go to d = 0.5, then to the first.
    """

    def rank(record: Record) -> tuple[bool, float, bool]:
        value = merit(record)
        return record.status == "finished", -1.0 if value is None else value, record.key.dilution == 0.5

    return max(records, key=rank)


def only(cells: Sequence[Cell], wanted: Mapping[str, str]) -> list[Cell]:
    """The cells that match: method="hace,sce" and dataset="cifar100", say."""
    for key, text in wanted.items():
        if key not in KEYS:
            raise ConfigError(f"only must name one of {', '.join(KEYS)}. Got {key!r}.{nearest(key, KEYS)}")
        known = list(dict.fromkeys(_shown(getattr(cell.key, key)) for cell in cells))
        values = text.split(",")
        for value in values:
            if value not in known:
                raise ConfigError(
                    f"only: {key} must be among {', '.join(known)}. Got {value!r}.{nearest(value, known)}"
                )
        cells = [cell for cell in cells if _shown(getattr(cell.key, key)) in values]
    return list(cells)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def each_run(records: Iterable[Record]) -> list[Record]:
    """The records without those of a run that is there already, such as a search that all seeds share."""
    # Data that are not here have no fingerprint: ids alone would be equal.
    seen: dict[tuple[str, str], Record] = {}
    return [r for r in records if not r.id or seen.setdefault((r.key.dataset, r.id), r) is r]


def searched_at(records: Iterable[Record]) -> int | None:
    """The seed whose searches choose for others as well; None where every seed searches for itself."""
    searches = [(r.run.config.seed, r.key.seed) for r in records if r.stage == "search" and r.run is not None]
    return next((made for made, seed in searches if made != seed), None)


def chosen_on(records: Sequence[Record]) -> str:
    """What the searches among these runs are judged on, in words."""
    held = {r.run.config.validation for r in records if r.stage == "search" and r.run is not None}
    words = "the data's own validation split" if held == {"split"} else "held-out training samples"
    seed = searched_at(records)
    return words if seed is None else f"{words}, once for all seeds, at seed {seed}"


def at_the_edge(records: Sequence[Record]) -> tuple[int, int]:
    """How many searches chose the edge of their grid, and how many there are; those among one or two candidates have none."""
    final = [r for r in records if r.stage == "final" and r.status == "finished" and r.candidates > 2]
    if searched_at(records) is not None:  # the seeds of a method share a search
        final = list({replace(r.key, seed=0): r for r in final}.values())
    return sum(bool(r.edge) for r in final), len(final)


def coarse_searches(records: Sequence[Record]) -> list[CellKey]:
    """The searches, without their seed, whose grid of rates is too coarse to show what the method can do.

    A parabola through the held-out accuracy, by the logarithm of the rate, at the best rate and its two neighbours predicts
    the peak between them. A grid is coarse where that peak is higher than the best rate by more than the standard error of a
    difference of two of these rates over the seeds. One seed tells nothing of its noise.
    """
    found: dict[CellKey, dict[float, dict[int, float]]] = {}
    for r in records:
        if r.stage == "search" and r.top1 is not None:
            by_seed = found.setdefault(replace(r.key, seed=0), {}).setdefault(r.lr, {})
            by_seed[r.key.seed] = max(r.top1, by_seed.get(r.key.seed, 0.0))
    return [key for key, by_rate in found.items() if _is_coarse(by_rate)]


def _is_coarse(by_rate: Mapping[float, Mapping[int, float]]) -> bool:
    """Whether accuracy by rate and seed peaks between rates, by more than its noise."""
    seeds = sorted(max(by_rate.values(), key=len))
    # Others widened one seed's grid.
    rates = sorted(rate for rate, found in by_rate.items() if len(found) == len(seeds))
    values = np.array([[by_rate[rate][seed] for seed in seeds] for rate in rates])
    best = int(values.mean(1).argmax())
    if len(seeds) < 2 or not 0 < best < len(rates) - 1:
        return False
    near = values[best - 1 : best + 2]
    a, b, c = np.polyfit(np.log2(rates[best - 1 : best + 2]), near.mean(1), 2)
    gain = c - b * b / (4 * a) - near[1].mean() if a < 0 else 0.0
    # Without a seed's luck at every rate.
    noise = near - near.mean(0) - near.mean(1, keepdims=True) + near.mean()
    error = np.sqrt(2 * (noise**2).sum() / (2 * (len(seeds) - 1)) / len(seeds))
    return bool(gain > error)
