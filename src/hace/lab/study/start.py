"""Starting a study: look at its data and write down its cells, or compare them with those of the study that is there."""

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
from hace.hierarchy import Hierarchy
from hace.lab.runs.config import DataConfig
from hace.lab.runs.labels import coarse_nodes
from hace.lab.runs.samples import Source, load_source
from hace.lab.runs.settings import differences
from hace.lab.study.cells import HELD_OUT, Cell
from hace.lab.study.plans import Choices, StudyPlan
from hace.lab.study.study import RUNS, STUDY, STUDY_FORMAT, Study, read_study

_SHOWN = 8  # differences
DINOV2_FEATURES = 1024


class DataSize(NamedTuple):
    """The size of a public data set: enough to price a study of it."""

    classes: int
    nodes: int
    train: int


SIZES = {
    "cifar100": DataSize(100, 120, 50_000),
    "aircraft": DataSize(100, 201, 6_667),
    "nabirds": DataSize(555, 1_011, 23_929),
}


class Survey:
    """The data of a plan: what a study records of each data set, and why others cannot be used.

    Attributes:
        usable: What study.json says of a data set, by name and kind of runs.
        sources: Of features, the data with one sample per split: enough to see which runs share a pass.
        trees: The hierarchies of the data sets, by name.
        problems: Why a data set cannot be used, by name.
    """

    def __init__(self, data: Mapping[tuple[str, str], DataConfig]) -> None:
        self.usable: dict[tuple[str, str], dict[str, Any]] = {}
        self.sources: dict[str, Source[Any]] = {}
        self.trees: dict[str, Hierarchy] = {}
        self.problems: dict[str, str] = {}
        for (name, kind), config in data.items():
            try:
                self.usable[name, kind] = self._look(name, kind, config)
            except HaceError as error:
                self.problems[name] = str(error)

    def document(self) -> dict[str, dict[str, Any]]:
        """The "data" of study.json: by name; the second kind of a data set that has both is "also" there."""
        found: dict[str, dict[str, Any]] = {}
        for (name, _), about in self.usable.items():
            found[name] = {**found[name], "also": about} if name in found else about
        return found

    def resolved(self, cell: Cell) -> Cell:
        """A cell that says what its search holds out: the data's validation split if there is one, else a share."""
        if cell.validation is not None:
            return cell
        about = self.usable[cell.key.dataset, cell.config.kind]
        return replace(cell, validation="split" if "val" in about["samples"] else HELD_OUT)

    def asked(self, plan: StudyPlan) -> StudyPlan:
        """The plan with the questions that its data leave open.

        Where training labels are at mixed levels already, it is whether to use or drop those, as they are. Elsewhere there is
        nothing to drop while all labels are known, and another tree, shuffled or induced, has no place for coarse labels.

        Raises:
            ConfigError: The data have no such level, or coarse labels of their own in place of those of `--shares`.
            DataError: No training sample is labelled with a class.
        """
        for cell in plan.cells:
            if (tree := self.trees.get(cell.key.dataset)) is not None:
                coarse_nodes(tree, cell.config.data.labels.to)
        for (name, _), about in self.usable.items():
            if about.get("coarse") and about["coarse"] == about["samples"]["train"]:
                raise DataError(
                    f"{name} must have training samples labelled with a class. All are labelled above the leaves."
                )
        cells = []
        for cell in plan.cells:
            labels = cell.config.data.labels
            known = not (labels.coarse or labels.fine is not None)
            other = cell.config.data.shuffle is not None or cell.config.data.induce is not None
            if labels.coarse if self._mixed(cell) else known and labels.drop:
                continue
            if other and not (known or labels.drop):
                continue
            cells.append(cell)
        left = {cell.key.dataset for cell in cells}
        for cell in plan.cells:
            if cell.key.dataset not in left and self._mixed(cell):
                raise ConfigError(
                    f"--shares must hold 0, the labels as they are: some training samples of {cell.key.dataset} are labelled "
                    f"above the leaves already, and the study asks whether to use or drop those. Got no 0."
                )
        return plan._replace(cells=cells)

    def _mixed(self, cell: Cell) -> bool:
        """Whether some training samples of a cell's data are labelled above the leaves."""
        return bool(self.usable.get((cell.key.dataset, cell.config.kind), {}).get("coarse"))

    def notes(self) -> list[str]:
        """Notes for the user: the data sets whose validation split chooses, and those with labels at mixed levels."""
        sizes = {name: about["samples"].get("val") for (name, _), about in self.usable.items()}
        return [
            f"{name}: its validation split ({count:,} samples) chooses under the fair protocol"
            for name, count in sizes.items()
            if count
        ] + [
            f"{name}: {about['coarse']:,} of {about['samples']['train']:,} training samples are labelled above the leaves"
            for (name, _), about in self.usable.items()
            if about.get("coarse")
        ]

    def _look(self, name: str, kind: str, config: DataConfig) -> dict[str, Any]:
        if config.root is None and name in SIZES:
            return _expected(name, kind, config)
        source = load_source(config)
        data = source.dataset
        data["test"]  # refused here rather than after the search
        self.trees[name] = data.hierarchy
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
            "coarse": len(data["train"]) - len(data["train"].leaf_only()),
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
    """The content of study.json."""
    return {
        "format": STUDY_FORMAT,
        "preset": plan.preset,
        "choices": {
            "only": dict(choices.only),
            "methods": choices.methods and list(choices.methods),
            "models": choices.models and list(choices.models),
            "rates": choices.rates and list(choices.rates),
            "decays": choices.decays and list(choices.decays),
            "widen": choices.widen,
            "search_once": choices.search_once,
            "shares": choices.shares and list(choices.shares),
            "fine": choices.fine and list(choices.fine),
            "coarse_to": choices.coarse_to,
            "seeds": choices.seeds,
            "epochs_scale": choices.epochs_scale,
            "settings": dict(choices.settings),
        },
        "runs": RUNS if runs is None else str(Path(runs).resolve()),
        "data": survey.document(),
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
    """Start a study, or open the one that the same choices started on the same data.

    Args:
        folder: A new folder, or the study's.
        plan: Its cells.
        choices: The user's.
        survey: Its data.
        runs: The folder of run directories; by default `folder/runs`.
        update: Whether to accept a changed study.

    Raises:
        ConfigError: The folder holds something else, or the study has changed; with the differences.
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
                f"{folder} holds another study. Changed:\n"
                + "\n".join(f"  - {line}" for line in shown)
                + "\nGive another --out, or --update to go on with the new one; runs that both have are kept."
            )
        if not changed:  # but the data may have moved, and other choices may give the same cells
            document |= {key: old.document[key] for key in ("choices", "began", "made_with")}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / STUDY, json_bytes(document))
    return read_study(folder)


@contextmanager
def locked_study(folder: str | Path, survey: Survey) -> Iterator[None]:
    """Lock a study's folder for this process, before :func:`start_study` writes to it: no one changes a running study.

    Args:
        folder: As in :func:`start_study`.
        survey: As in :func:`start_study`.

    Raises:
        ConfigError: The folder holds something else, or another process is using it.
    """
    folder = Path(folder)
    _refuse(folder, survey)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder):
        yield


def _refuse(folder: Path, survey: Survey) -> None:
    """Refuse data that cannot be used, and a folder that holds something else."""
    if survey.problems:
        raise DataError([f"{name}: {problem}" for name, problem in survey.problems.items()])
    if (folder / STUDY).is_file() or not folder.exists():
        return
    if not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir()):
        raise ConfigError(
            f"--out must be a study, a new or an empty folder. Got {folder}, which holds other files."
        )


def _changes(old: Study, new: Study) -> list[str]:
    """What differs between two studies, in words; nothing where different choices give the same cells."""
    found = differences({"runs": old.document["runs"]}, {"runs": new.document["runs"]})
    for name, kind in dict.fromkeys([*old.sets, *new.sets]):
        before, after = (
            d.get((name, kind), {}).get("fingerprint", "none")[:12] for d in (old.sets, new.sets)
        )
        if before != after:
            found.append(f"data {name}: fingerprint {before} -> {after}")
    ours, theirs = ({cell.key: cell for cell in grid} for grid in (old.cells, new.cells))
    for what, here, there in (("gone", ours, theirs), ("new", theirs, ours)):
        gone = [key for key in here if key not in there]
        if gone:
            first = f"{gone[0]}, seed {gone[0].seed}"
            found.append(f"{what} cells: {len(gone)}, the first is {first}")
    for key, cell in ours.items():
        lines = differences(cell.deciding(), theirs[key].deciding()) if key in theirs else []
        found += [f"{key}, seed {key.seed}: {line}" for line in lines]
    said = [
        line
        for part in ("preset", "choices")
        for line in differences({part: old.document[part]}, {part: new.document[part]})
    ]
    return [*said, *found] if found else []
