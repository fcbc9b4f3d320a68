"""Grids of probes under a protocol, and the table that sums them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hace.errors import ConfigError, nearest
from hace.lab.probe.probe import run_probes
from hace.lab.runs.config import LossConfig, ProbeConfig
from hace.lab.runs.run import Run
from hace.lab.study.protocol import FAIR_RATES, FAIR_VALIDATION, final_config, search_configs, select
from hace.losses.registry import loss_parameters
from hace.metrics.intervals import Interval, interval, paired_interval, stacked

Rule = Callable[[bool, float], Iterable[tuple[float | None, str | None, float]]]
Epochs = Callable[[int], None]
METRICS = ("top-1", "top-5", "severity", "HD@1")


@dataclass(frozen=True, eq=False)
class Chosen:
    """A final run, and the search that led to its rate.

    Attributes:
        method: What the table calls it: the loss and the parameters that were asked for.
        run: The final run.
        search: The runs that it was chosen from; none where the rate was given.
    """

    method: str
    run: Run
    search: tuple[Run, ...] = ()


def loss_grid(
    losses: Sequence[str], parameters: Mapping[str, Sequence[Any]], base: LossConfig | None = None
) -> dict[str, LossConfig]:
    """Every loss with every combination of the parameters that it has, by a title such as "hace, dilution 0.5".

    Args:
        losses: Names in `hace.LOSSES`.
        parameters: Values to try of each parameter; a loss that has no such parameter is not multiplied by it.
        base: A loss whose other parameters stay as they are, where it is among the losses.

    Raises:
        ConfigError: An unknown loss, a parameter that none of them has, a value out of range.

    Example:
        >>> list(loss_grid(["cross_entropy", "hace"], {"dilution": [0.2, 0.5]}))
        ['cross_entropy', 'hace, dilution 0.2', 'hace, dilution 0.5']
    """
    found: dict[str, LossConfig] = {}
    used: set[str] = set()
    for name in losses:
        LossConfig(name)  # refuses unknown names
        own = [p for p in parameters if p in loss_parameters(name)]
        used.update(own)
        for values in product(*(parameters[p] for p in own)):
            options = dict(zip(own, values, strict=True))
            words = [
                f"{p.replace('_', ' ')} {v:g}" if isinstance(v, float) else f"{p} {v}"
                for p, v in options.items()
            ]
            rest = base.options if base is not None and base.name == name else {}
            found[", ".join([name, *words])] = LossConfig(name, {**rest, **options})
    stray = [p for p in parameters if p not in used]
    if stray:
        known = {p for name in losses for p in loss_parameters(name)}
        raise ConfigError(
            f"None of {', '.join(losses)} has a parameter {stray[0]!r}.{nearest(stray[0], known)}"
        )
    return found


def single_probes(
    base: ProbeConfig,
    losses: Mapping[str, LossConfig],
    rates: Sequence[float],
    seeds: Sequence[int],
    out: str | Path,
    on_epoch: Epochs | None = None,
) -> list[Chosen]:
    """Every loss at every rate and seed, as it is."""
    cells = [
        (title if len(rates) == 1 else f"{title}, lr {rate:g}", replace(base, loss=loss, lr=rate, seed=seed))
        for title, loss in losses.items()
        for rate in rates
        for seed in seeds
    ]
    runs = run_probes([config for _, config in cells], out, on_epoch=on_epoch)
    return [Chosen(title, run) for (title, _), run in zip(cells, runs, strict=True)]


def fair_probes(
    base: ProbeConfig,
    losses: Mapping[str, LossConfig],
    rates: Sequence[float],
    seeds: Sequence[int],
    out: str | Path,
    on_epoch: Epochs | None = None,
) -> list[Chosen]:
    """The fair protocol: the same rates for every loss, each seed's rate chosen on held-out samples, then a refit.

    Args:
        base: Everything but loss, rate and seed; its `validation` is the share held out, 0.1 if it says 0.
        losses: By title.
        rates: For every loss; none for the default of 0.25 to 32.
        seeds: Each a replicate of the whole procedure.
        out: The folder of run directories.
        on_epoch: As of `run_probes`.

    Raises:
        ConfigError: An early stop, which the refit has no held-out samples for.
    """
    if base.patience is not None:  # said before the search, not after it
        raise ConfigError(
            "patience does not go with the fair protocol: the chosen rate is trained again on all samples, and none are held "
            "out to stop by. Leave it away, and choose epochs."
        )
    share = base.validation or FAIR_VALIDATION
    cells = [(title, replace(base, loss=loss, seed=seed)) for title, loss in losses.items() for seed in seeds]
    searches = [search_configs(config, rates or FAIR_RATES, share) for _, config in cells]
    runs = run_probes([config for search in searches for config in search], out, on_epoch=on_epoch)
    size = len(searches[0])
    tried = [tuple(runs[i * size : (i + 1) * size]) for i in range(len(cells))]
    finals = [
        final_config(config, select(search)) if any(run.status == "finished" for run in search) else None
        for (_, config), search in zip(cells, tried, strict=True)
    ]
    last = iter(run_probes([config for config in finals if config is not None], out, on_epoch=on_epoch))
    return [
        # Where every rate diverged there is nothing to train again: a diverged run stands for the method.
        Chosen(title, search[0] if final is None else next(last), search)
        for (title, _), final, search in zip(cells, finals, tried, strict=True)
    ]


def fixed_probes(
    base: ProbeConfig,
    losses: Mapping[str, LossConfig],
    rule: Rule,
    seeds: Sequence[int],
    out: str | Path,
    on_epoch: Epochs | None = None,
) -> list[Chosen]:
    """Fixed rates around `base.lr`; the best run *on the test set* counts.

    Args:
        base: Everything but loss, rate and seed; its rate is the base rate.
        losses: By title.
        rule: From whether a loss has a dilution and the base rate to its runs: dilution, pairing and rate of each. That of
            the paper is `hace.paper.recipes.fixed_runs`.
        seeds: Each a replicate.
        out: The folder of run directories.
        on_epoch: As of `run_probes`.
    """
    cells: list[tuple[str, ProbeConfig]] = []
    for title, loss in losses.items():
        diluted = "dilution" in loss.options
        for d, _, rate in rule(diluted, base.lr):
            own = LossConfig(loss.name, {**loss.options, "dilution": d}) if diluted else loss
            config = replace(base, loss=own, lr=rate, evaluate="test")
            cells += [(title, replace(config, seed=seed)) for seed in seeds]
    runs = run_probes([config for _, config in cells], out, on_epoch=on_epoch)
    found = []
    for title in losses:
        for seed in seeds:
            tried = tuple(
                run for (t, c), run in zip(cells, runs, strict=True) if t == title and c.seed == seed
            )
            best = max(tried, key=lambda run: _top1(run))
            found.append(Chosen(title, best, tried))
    return found


def _top1(run: Run) -> float:
    return run.result["metrics"]["leaves"]["top-1"] if run.result and run.status == "finished" else -1.0


@dataclass(frozen=True)
class Row:
    """A line of the table: a method over its seeds."""

    method: str
    seeds: int
    diverged: int
    rates: tuple[float, ...]
    values: Mapping[str, Interval]
    changes: Mapping[str, Interval]  # against the first method, on the same seeds and samples


def summary(chosen: Sequence[Chosen]) -> list[Row]:
    """A line for each method: the headline metrics with 95 % intervals over seeds and test samples, and how they differ
    from the first method's, on the same seeds and samples.
    """
    groups: dict[str, list[Chosen]] = {}
    for one in chosen:
        groups.setdefault(one.method, []).append(one)
    rows, first = [], None
    for method, members in groups.items():
        fine = {c.run.config.seed: c.run.predictions() for c in members if c.run.status == "finished"}
        values, changes = {}, {}
        if fine:
            values = {m: interval(*stacked(list(fine.values()), m)) for m in METRICS}
            if first is None:
                first = fine
            elif shared := [seed for seed in fine if seed in first]:
                pair = [[of[s] for s in shared] for of in (fine, first)]
                changes = {m: _change(*(stacked(runs, m) for runs in pair)) for m in METRICS}
        rates = tuple(sorted({c.run.config.lr for c in members}))
        rows.append(Row(method, len(members), len(members) - len(fine), rates, values, changes))
    return rows


Columns = tuple[np.ndarray, np.ndarray | None]


def _change(ours: Columns, theirs: Columns) -> Interval:
    below = None if ours[1] is None or theirs[1] is None else (ours[1], theirs[1])
    return paired_interval(ours[0], theirs[0], below)


def summary_text(rows: Sequence[Row]) -> str:
    """The table for the terminal: percentages for accuracies, the rate or range of rates, and the differences."""
    head = ["method", "seeds", "lr", "top-1 %", "top-5 %", "severity", "HD@1", "Δ top-1", "Δ severity"]
    lines = [head]
    for row in rows:
        rates = f"{row.rates[0]:g}" if len(row.rates) == 1 else f"{row.rates[0]:g} to {row.rates[-1]:g}"
        seeds = f"{row.seeds}" + (f" ({row.diverged} diverged)" if row.diverged else "")
        cells = [_shown(row.values.get(m), 100 if m.startswith("top") else 1) for m in METRICS]
        apart = [(row.changes.get("top-1"), 100), (row.changes.get("severity"), 1)]
        cells += [_shown(change, scale, sign=True) if change else "" for change, scale in apart]
        lines.append([row.method, seeds, rates, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _shown(value: Interval | None, scale: float, sign: bool = False) -> str:
    if value is None:
        return "diverged"
    text = f"{value.value * scale:{'+' if sign else ''}.2f}"
    return f"{text} [{value.low * scale:.2f}, {value.high * scale:.2f}]"
