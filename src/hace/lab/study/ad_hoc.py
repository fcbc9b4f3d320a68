"""Ad-hoc studies of probes: losses, parameters, rates and seeds given by hand, and no folder but that of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from hace.errors import ConfigError, DataError, HaceError, nearest
from hace.lab.probe.probe import run_probes
from hace.lab.runs.config import LossConfig, ProbeConfig
from hace.lab.study.cells import FAIR_RATES, CellKey, Record
from hace.lab.study.executors import InProcess
from hace.lab.study.folder import StudyFolder, draft
from hace.lab.study.methods import Method, behind
from hace.lab.study.plan import Choices, StudyPlan, Survey, _method_cells
from hace.lab.study.presets import WIDEN, FixedRun, Preset
from hace.lab.study.progress import Watch
from hace.lab.study.scheduler import Scheduler
from hace.losses.registry import loss_parameters

RunRule = Callable[
    [bool, float], Iterable[FixedRun]
]  # from whether a method has a dilution, and the base rate


def loss_grid(
    losses: Sequence[str], parameters: Mapping[str, Sequence[Any]], base: LossConfig | None = None
) -> dict[str, LossConfig]:
    """Every loss with every combination of its parameters, by a title such as "hace, dilution 0.5".

    Args:
        losses: Names in `hace.LOSSES`.
        parameters: Values to try of each parameter. Parameters a loss does not take are ignored for it.
        base: A loss whose other parameters are kept, where it is among the losses.

    Raises:
        ConfigError: An unknown loss, a parameter that no loss takes, a value out of range.

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


def single_runs(
    base: ProbeConfig,
    losses: Mapping[str, LossConfig],
    rates: Sequence[float],
    seeds: Sequence[int],
    out: str | Path,
    on_epoch: Callable[[int], None] | None = None,
) -> list[Record]:
    """Train every loss at every rate and seed; nothing is chosen.

    Args:
        base: Everything but loss, rate and seed.
        losses: By title.
        rates: Learning rates; several become part of the titles.
        seeds: Of the runs.
        out: The folder of run directories.
        on_epoch: As of :func:`hace.lab.probe.probe.run_probes`.
    """
    dataset, model = _names(base)
    cells = [
        (title if len(rates) == 1 else f"{title}, lr {rate:g}", replace(base, loss=loss, lr=rate, seed=seed))
        for title, loss in losses.items()
        for rate in rates
        for seed in seeds
    ]
    runs = run_probes([config for _, config in cells], out, on_epoch=on_epoch)
    return [
        Record(CellKey("single", dataset, model, title, None, None, config.seed), "final", config.lr, run)
        for (title, config), run in zip(cells, runs, strict=True)
    ]


def probe_plan(
    base: ProbeConfig,
    losses: Mapping[str, LossConfig],
    seeds: Sequence[int],
    *,
    rates: Sequence[float] | None = None,
    widen: int = WIDEN,
    fixed: RunRule | None = None,
) -> StudyPlan:
    """The cells of an ad-hoc study.

    Args:
        base: Everything but loss, rate and seed. Its `validation` is what the search holds out (0: the data's own split, or
            10 % of the training samples); its rate is the base rate of `fixed`.
        losses: By title.
        seeds: Each repeats the whole procedure.
        rates: Searched for every loss; by default those of the fair protocol.
        widen: How many rates the search may add on each side, for all losses alike.
        fixed: Runs at fixed rates in place of a search, as of `Preset`.

    Raises:
        ConfigError: An early stop: the chosen rate is trained again on all samples.
    """
    if base.patience is not None:
        raise ConfigError(
            "patience must be left out under a protocol: the chosen rate is trained again on all samples, which leaves none to "
            "stop by. Choose epochs."
        )
    dataset, model = _names(base)
    preset = Preset("ad hoc", "probe", (), fixed=fixed)
    choices = Choices(rates=tuple(rates or FAIR_RATES), widen=widen)
    start = replace(base, validation=0.0, evaluate="test")
    found = []
    for title, loss in losses.items():
        diluted = fixed is not None and "dilution" in loss.options
        method = Method(title, title, loss, diluted=diluted)
        for seed in seeds:
            cells = _method_cells(preset, choices, dataset, model, method, seed, start)
            found += [replace(cell, validation=base.validation or None) for cell in cells]
    return StudyPlan("probe", found, {(dataset, "probe"): replace(base.data, shuffle=None, induce=None)}, ())


class _Unsaved(StudyFolder):
    """A study that keeps nothing but its runs."""

    def failures(self) -> dict[str, dict[str, Any]]:
        """None are kept."""
        return {}

    def write_failures(self, failures: Mapping[str, Mapping[str, Any]]) -> None:
        """They are errors."""


def run_plan(
    plan: StudyPlan, out: str | Path, *, threads: int = 1, watch: Watch | None = None
) -> list[Record]:
    """Make the runs of an ad-hoc study in this process, and read them.

    Args:
        plan: Its cells.
        out: The folder of run directories.
        threads: Of torch; bits repeat at 1.
        watch: Told whenever something changes.

    Raises:
        DataError: Data cannot be used.
        HaceError: A run failed; what was finished before stays.
    """
    survey = Survey(plan.data)
    for problem in survey.problems.values():
        raise DataError(problem)
    out = Path(out)
    study = _Unsaved(out, draft(out, plan, Choices(), survey, out).document)
    scheduler = Scheduler(study, survey.sources, retries=0, threads=threads, watch=watch)
    with InProcess() as executor:
        scheduler.run(executor)
    for failure in scheduler.failures.values():
        raise HaceError(failure["error"])
    return study.records()


def _names(base: ProbeConfig) -> tuple[str, str]:
    """What tables call the data set and the model behind it."""
    data = base.data
    return data.name if data.root is None else Path(data.root).stem, behind(data)
