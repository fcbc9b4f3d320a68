"""The beginning of a study: its data are looked at, its grid is written down; or an old one is found, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from hace import environment
from hace.data import Dataset, Features
from hace.errors import ConfigError, DataError, HaceError
from hace.files.locks import only_process
from hace.files.writing import json_bytes, write_whole, writing
from hace.lab.runs.config import DataConfig
from hace.lab.runs.samples import Source, load_source
from hace.lab.runs.settings import differences
from hace.lab.study.cells import HELD_OUT, Cell
from hace.lab.study.plans import Choices, StudyPlan
from hace.lab.study.study import FORMAT, RUNS, STUDY, Study, read_study

_SHOWN = 8  # differences
DINOV2_FEATURES = 1024


class DataSize(NamedTuple):
    """How large a public data set is: enough to say what a study of it would cost."""

    classes: int
    nodes: int
    train: int


SIZES = {
    "cifar100": DataSize(100, 120, 50_000),
    "aircraft": DataSize(100, 201, 6_667),
    "nabirds": DataSize(555, 1_011, 23_929),
}


class Survey:
    """The data of a plan, looked at: what a study remembers of each, and what is wrong with the others.

    Attributes:
        known: What study.json says of data sets, by name.
        usable: Names and kinds of runs of all of them.
        sources: Of features, the data with one sample a split: enough to see which runs share a pass.
        problems: Why a data set cannot be used.
    """

    def __init__(self, data: Mapping[tuple[str, str], DataConfig]) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.usable: set[tuple[str, str]] = set()
        self.sources: dict[str, Source[Any]] = {}
        self.problems: dict[str, str] = {}
        for (name, kind), config in data.items():
            try:
                about = self._look(name, kind, config)
            except HaceError as error:
                self.problems[name] = str(error)
                continue
            self.usable.add((name, kind))
            if name in self.known:
                self.known[name]["also"] = about
            else:
                self.known[name] = about

    def resolved(self, cell: Cell) -> Cell:
        """A cell that says what its search holds out: the data's validation split if there is one, else a share."""
        if cell.validation is not None:
            return cell
        about = self.known[cell.key.dataset]
        parts = [part for part in (about, about.get("also")) if part and part["kind"] == cell.config.kind]
        return replace(cell, validation="split" if "val" in parts[0]["samples"] else HELD_OUT)

    def _look(self, name: str, kind: str, config: DataConfig) -> dict[str, Any]:
        if config.root is None and name in SIZES:
            return _expected(name, kind, config)
        source = load_source(config)
        data = source.dataset
        first = next(iter(data.splits.values()))
        if kind == "probe":
            small = {split: samples.select([0]) for split, samples in data.splits.items()}
            self.sources[name] = replace(source, dataset=Dataset(data.name, data.hierarchy, small))
        return {
            "kind": kind,
            "config": config.to_dict(),
            "fingerprint": data.fingerprint,
            "hierarchy": data.hierarchy.fingerprint,
            "classes": data.hierarchy.num_leaves,
            "nodes": data.hierarchy.num_nodes,
            "samples": {split: len(samples) for split, samples in data.splits.items()},
            "features": int(first.x.shape[1]) if isinstance(first, Features) else None,
        }


def _expected(name: str, kind: str, config: DataConfig) -> dict[str, Any]:
    """What study.json would say of a public data set that is not here."""
    size = SIZES[name]
    return {
        "kind": kind,
        "config": config.to_dict(),
        "fingerprint": "",
        "hierarchy": "",
        "classes": size.classes,
        "nodes": size.nodes,
        "samples": {"train": size.train},
        "features": DINOV2_FEATURES if kind == "probe" else None,
    }


def draft(plan: StudyPlan, choices: Choices, survey: Survey, runs: str | None) -> dict[str, Any]:
    """The content of study.json. Where data have a validation split, it chooses."""
    return {
        "format": FORMAT,
        "preset": plan.preset,
        "choices": {
            "only": dict(choices.only),
            "methods": choices.methods and list(choices.methods),
            "rates": choices.rates and list(choices.rates),
            "seeds": choices.seeds,
            "epochs_scale": choices.epochs_scale,
            "settings": dict(choices.settings),
        },
        "runs": RUNS if runs is None else str(Path(runs).resolve()),
        "data": survey.known,
        "cells": [survey.resolved(cell).to_dict() for cell in plan.cells],
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "made_with": environment.config(),
    }


def start_study(
    folder: str | Path,
    plan: StudyPlan,
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
    _refuse(folder, survey)
    document = draft(plan, choices, survey, runs)
    if (folder / STUDY).is_file():
        old = read_study(folder)
        if runs is None:
            document["runs"] = old.document["runs"]
        changed = _changes(old, Study(folder, document))
        if changed and not update:
            shown = changed[:_SHOWN] + (
                [f"and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
            )
            raise ConfigError(
                f"{folder} holds another study than this one. Changed:\n"
                + "\n".join(f"  - {line}" for line in shown)
                + "\nGive another --out, or --update to go on with the new one: runs that both have are kept."
            )
        if not changed:  # but the data may have moved, and how it is said may differ
            document |= {key: old.document[key] for key in ("choices", "began", "made_with")}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / STUDY, json_bytes(document))
    return read_study(folder)


@contextmanager
def started_study(
    folder: str | Path,
    plan: StudyPlan,
    choices: Choices,
    survey: Survey,
    *,
    runs: str | None = None,
    update: bool = False,
) -> Iterator[Study]:
    """The same, held for this process before anything is written: a study at work is not changed under its feet.

    Raises:
        ConfigError: As of :func:`start_study`, or another process is at work there.
        DataError: Data cannot be used.
    """
    folder = Path(folder)
    _refuse(folder, survey)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder):
        yield start_study(folder, plan, choices, survey, runs=runs, update=update)


def _refuse(folder: Path, survey: Survey) -> None:
    """Data that cannot be used, and a folder that holds something else."""
    if survey.problems:
        raise DataError("\n".join(f"{name}: {problem}" for name, problem in survey.problems.items()))
    if (folder / STUDY).is_file() or not folder.exists():
        return
    if not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir()):
        raise ConfigError(f"{folder} exists and is no study. Give --out a new or an empty folder.")


def _changes(old: Study, new: Study) -> list[str]:
    """What differs in what decides a study, in words; choices that lead to the same grid are the same."""
    found = differences({"runs": old.document["runs"]}, {"runs": new.document["runs"]})
    for name, kind in dict.fromkeys([*old.sets, *new.sets]):
        before, after = (
            d.get((name, kind), {}).get("fingerprint", "none")[:12] for d in (old.sets, new.sets)
        )
        if before != after:
            found.append(f"data {name}: fingerprint {before} -> {after}")
    ours, theirs = ({cell.key: cell for cell in grid} for grid in (old.cells, new.cells))
    for what, here, there in (("no longer there", ours, theirs), ("new", theirs, ours)):
        gone = [key for key in here if key not in there]
        if gone:
            first = f"{gone[0]}, seed {gone[0].seed}"
            found.append(f"cells that are {what}: {len(gone)}, the first is {first}")
    for key, cell in ours.items():
        lines = differences(cell.deciding(), theirs[key].deciding()) if key in theirs else []
        found += [f"{key}, seed {key.seed}: {line}" for line in lines]
    said = [
        line
        for part in ("preset", "choices")
        for line in differences({part: old.document[part]}, {part: new.document[part]})
    ]
    return [*said, *found] if found else []
