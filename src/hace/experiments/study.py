"""A study on disk: its grid, where its runs lie, and what failed. A report reads it without the data.

study.json      preset, choices, data with their fingerprints, cells; written once, whole
failures.json   runs that failed, with the error and the number of attempts
runs/<id>       run directories, unless --runs says where; several studies may share them
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from hace import environment
from hace.data import Dataset, Features
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.experiments.config import DataConfig, RunConfig
from hace.experiments.durable import json_bytes, write_whole, writing
from hace.experiments.grid import Cell, cell_from_dict, name_of
from hace.experiments.presets import Choices, Plan
from hace.experiments.protocol import select
from hace.experiments.records import Record
from hace.experiments.runs import RUN, Run, read_run
from hace.experiments.settings import differences
from hace.experiments.splits import Source, load_source

FORMAT = 1
STUDY, FAILURES, RUNS = "study.json", "failures.json", "runs"
_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Study:
    """A study, open for reading.

    Attributes:
        folder: Where it lies.
        document: The content of study.json.
    """

    folder: Path
    document: Mapping[str, Any]

    @property
    def preset(self) -> str:
        """The name of its preset."""
        return self.document["preset"]

    @property
    def runs(self) -> Path:
        """The folder of its run directories."""
        return self.folder / self.document["runs"]

    @property
    def data(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of its data sets, by their names in the study."""
        return self.document["data"]

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The grid."""
        return tuple(map(cell_from_dict, self.document["cells"]))

    def identity(self, cell: Cell, config: RunConfig) -> str:
        """The id of a run of a cell."""
        return config.identity(self.data[cell.key.dataset]["fingerprint"])

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of runs that failed, by their ids."""
        path = self.folder / FAILURES
        return dict(_read(path)) if path.is_file() else {}

    def records(self) -> list[Record]:
        """Every run of the grid, as it stands: those of the searches and the final ones.

        A final run whose rate is not chosen yet has the rate NaN.
        """
        failures = self.failures()
        opened: dict[str, tuple[Run | None, str]] = {}

        def look(cell: Cell, config: RunConfig, stage: Any) -> Record:
            run_id = self.identity(cell, config)
            if run_id not in opened:
                opened[run_id] = self._open(run_id, failures)
            run, error = opened[run_id]
            return Record(cell.key, stage, config.lr, run, error)

        found = []
        for cell in self.cells:
            searched = [look(cell, config, "search") for config in cell.search()]
            lr, why = chosen(cell, searched)
            final = Record(cell.key, "final", math.nan, None, why) if lr is None else None
            found += [*searched, final or look(cell, cell.final(lr or 0.0), "final")]
        return found

    def _open(self, run_id: str, failures: Mapping[str, Mapping[str, Any]]) -> tuple[Run | None, str]:
        folder = self.runs / run_id
        error = failures.get(run_id, {}).get("error", "")
        if not (folder / RUN).is_file():
            return None, error
        try:
            run = read_run(folder)
        except HaceError as problem:
            return None, str(problem)
        return (run, "") if run.result is not None else (None, error)


def chosen(cell: Cell, searched: list[Record]) -> tuple[float | None, str]:
    """The rate of a cell's final run; or None, and why there is none: "" while the search is not finished."""
    if not searched:
        return cell.rates[0], ""
    failed = [record for record in searched if record.status == "failed"]
    if failed:
        words = f"{len(failed)} of the {len(searched)} runs that choose its rate failed"
        return None, f"{words}, at {failed[0].lr:g}: {failed[0].error}"
    runs = [record.run for record in searched if record.run is not None]
    if len(runs) < len(searched):
        return None, ""
    try:
        return select(runs), ""
    except DataError as error:
        return None, str(error)


def read_study(folder: str | Path) -> Study:
    """Open a study.

    Raises:
        FormatError: There is none, or it is damaged.
    """
    folder = Path(folder)
    path = folder / STUDY
    if not path.is_file():
        raise FormatError(
            f"{folder} is no study: it has no {STUDY}. `hace study PRESET --out FOLDER` makes one."
        )
    document = _read(path)
    lacking = [key for key in ("preset", "choices", "runs", "data", "cells") if key not in document]
    if document.get("format") != FORMAT or lacking:
        raise FormatError(
            f"{path} is not of this version: format {document.get('format')!r}, without {lacking}."
        )
    return Study(folder, document)


class Survey:
    """The data of a plan, looked at: what a study remembers of each, and what is wrong with the others.

    Attributes:
        known: What study.json says of a data set.
        sources: Of features, the data with one sample a split: enough to see which runs share a pass.
        problems: Why a data set cannot be used.
    """

    def __init__(self, data: Mapping[str, DataConfig]) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, Source[Any]] = {}
        self.problems: dict[str, str] = {}
        for name, config in data.items():
            try:
                self._add(name, config)
            except HaceError as error:
                self.problems[name] = str(error)

    def _add(self, name: str, config: DataConfig) -> None:
        source = load_source(config)
        data = source.dataset
        first = next(iter(data.splits.values()))
        self.known[name] = {
            "config": config.to_dict(),
            "fingerprint": data.fingerprint,
            "hierarchy": data.hierarchy.fingerprint,
            "classes": data.hierarchy.num_leaves,
            "nodes": data.hierarchy.num_nodes,
            "samples": {split: len(samples) for split, samples in data.splits.items()},
            "features": int(first.x.shape[1]) if isinstance(first, Features) else None,
        }
        small = {split: samples.select([0]) for split, samples in data.splits.items()}
        self.sources[name] = replace(source, dataset=Dataset(data.name, data.hierarchy, small))


def draft(plan: Plan, choices: Choices, survey: Survey, runs: str | None) -> dict[str, Any]:
    """The content of study.json."""
    return {
        "format": FORMAT,
        "preset": plan.preset,
        "choices": {
            "only": dict(choices.only),
            "methods": choices.methods and list(choices.methods),
            "rates": choices.rates and list(choices.rates),
            "seeds": choices.seeds,
            "epochs_scale": choices.epochs_scale,
        },
        "runs": RUNS if runs is None else str(Path(runs).resolve()),
        "data": survey.known,
        "cells": [cell.to_dict() for cell in plan.cells],
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "made_with": environment.config(),
    }


def start_study(
    folder: str | Path,
    plan: Plan,
    choices: Choices,
    survey: Survey,
    *,
    runs: str | None = None,
    update: bool = False,
) -> Study:
    """Begin a study, or open the one that was begun by the same choices on the same data.

    Args:
        folder: New, or the study's.
        plan: The grid.
        choices: What the user said.
        survey: The data.
        runs: The folder of run directories; by default `folder/runs`.
        update: Whether the study may have changed.

    Raises:
        ConfigError: Something else lies there, or the study has changed; with the differences.
        DataError: Data cannot be used.
    """
    folder = Path(folder)
    if survey.problems:
        raise DataError("\n".join(f"{name}: {problem}" for name, problem in survey.problems.items()))
    document = draft(plan, choices, survey, runs)
    if (folder / STUDY).is_file():
        old = read_study(folder)
        if runs is None:
            document["runs"] = old.document["runs"]
        changed = list(_changes(old, document, plan.cells))
        if changed and not update:
            shown = changed[:_SHOWN] + (
                [f"and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
            )
            raise ConfigError(
                f"{folder} holds another study than this one. Changed:\n"
                + "\n".join(f"  - {line}" for line in shown)
                + "\nGive another --out, or --update to go on with the new one: runs that both have are kept."
            )
        if not changed:
            return old
    elif folder.exists() and (
        not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir())
    ):
        raise ConfigError(f"{folder} exists and is no study. Give --out a new or an empty folder.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / STUDY, json_bytes(document))
    return read_study(folder)


def _changes(old: Study, new: Mapping[str, Any], cells: list[Cell]) -> Iterator[str]:
    """What differs in what decides a study, in words."""
    for part in ("preset", "choices", "runs"):
        yield from differences({part: old.document[part]}, {part: new[part]})
    for name in dict.fromkeys([*old.data, *new["data"]]):
        before, after = (d.get(name, {}).get("fingerprint", "none")[:12] for d in (old.data, new["data"]))
        if before != after:
            yield f"data {name}: fingerprint {before} -> {after}"
    ours = {(name_of(c.key), c.key.seed): c.deciding() for c in old.cells}
    theirs = {(name_of(c.key), c.key.seed): c.deciding() for c in cells}
    for what, gone in (
        ("no longer there", ours.keys() - theirs.keys()),
        ("new", theirs.keys() - ours.keys()),
    ):
        for name, seed in sorted(gone)[:1]:
            yield f"{len(gone)} cells are {what}, the first is {name}, seed {seed}"
    for key in ours.keys() & theirs.keys():
        for line in differences(ours[key], theirs[key]):
            yield f"{key[0]}, seed {key[1]}: {line}"


def write_failures(study: Study, failures: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace failures.json; without failures there is none."""
    path = study.folder / FAILURES
    if failures:
        write_whole(path, json_bytes(failures))
    elif path.exists():
        with writing(study.folder):
            path.unlink()


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read: {error}.") from error
    if not isinstance(document, dict):
        raise FormatError(f"{path} is damaged: it should hold an object.")
    return document
