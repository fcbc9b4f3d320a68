"""A study on disk: its cells, its runs, and what failed. A report needs nothing else, not even the data.

study.json      preset, choices, data with their fingerprints, cells; written once, whole
failures.json   failed runs, with the error and the number of attempts
runs/<id>       run directories, or wherever --runs puts them; studies can share them
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hace.errors import FormatError, HaceError
from hace.files.documents import read_mapping
from hace.files.writing import json_bytes, write_whole, writing
from hace.lab.runs.config import RunConfig
from hace.lab.runs.run import RUN, Run, read_run
from hace.lab.study.cells import Cell, CellKey, Record, Stage, cell_from_dict, choose
from hace.lab.study.contests import contests, is_pending, widened

STUDY_FORMAT = 1
STUDY, FAILURES, RUNS = "study.json", "failures.json", "runs"
_PARTS = {"preset": str, "choices": dict, "runs": str, "data": dict, "cells": list}


@dataclass(frozen=True, eq=False)
class Study:
    """A study, open for reading.

    Attributes:
        folder: Its folder.
        document: The content of study.json.
        saved: Whether it has its own folder; an ad-hoc study keeps its failures in memory.
    """

    folder: Path
    document: Mapping[str, Any]
    saved: bool = True

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
        """Facts about its data sets, by name; of one with both images and features the second is "also" there."""
        return self.document["data"]

    @cached_property
    def sets(self) -> Mapping[tuple[str, str], Mapping[str, Any]]:
        """The same, by name and kind of runs."""
        found = [(name, part) for name, about in self.data.items() for part in (about, about.get("also"))]
        return {(name, part["kind"]): part for name, part in found if part is not None}

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Its cells."""
        return tuple(map(cell_from_dict, self.document["cells"]))

    def identity(self, cell: Cell, config: RunConfig) -> str:
        """The id of a run of a cell."""
        return config.identity(self.sets[cell.key.dataset, config.kind]["fingerprint"])

    def failures(self) -> dict[str, dict[str, Any]]:
        """What is known of failed runs, by id."""
        path = self.folder / FAILURES
        return read_mapping(path) if self.saved and path.is_file() else {}

    def records(self) -> list[Record]:
        """Every run of the study, searches and final ones. A final run that is not chosen yet has the rate NaN."""
        failures = self.failures()
        opened: dict[str, tuple[Run | None, str, bool]] = {}

        def look(cell: Cell, config: RunConfig, stage: Stage) -> Record:
            run_id = self.identity(cell, config)
            if run_id not in opened:
                opened[run_id] = self._open(run_id, failures)
            return Record(cell.key, stage, config.lr, *opened[run_id], id=run_id)

        def search(cells: Sequence[Cell]) -> list[list[Record]]:
            return [[look(cell, config, "search") for config in cell.search()] for cell in cells]

        found: dict[CellKey, list[Record]] = {}
        for cells in contests(self.cells):
            searched = search(cells)
            pending = is_pending(searched)
            while not pending and (wider := widened(cells, searched)):
                cells, searched = wider, search(wider)
                pending = is_pending(searched)
            for cell, records in zip(cells, searched, strict=True):
                candidate, why = (None, "") if pending else choose(cell, records)
                if candidate is not None:
                    final = look(cell, cell.final(candidate), "final")
                    final = replace(final, edge=cell.edge(candidate))
                else:  # where every candidate diverged, so did the method
                    diverged = all(record.status == "diverged" for record in records)
                    run = records[0].run if diverged else None
                    final = Record(cell.key, "final", math.nan, run, why)
                found[cell.key] = [*records, replace(final, candidates=len(cell.candidates))]
        return [record for cell in self.cells for record in found[cell.key]]

    def _open(self, run_id: str, failures: Mapping[str, Mapping[str, Any]]) -> tuple[Run | None, str, bool]:
        """A run, or its last error and whether it will be tried again."""
        folder, failure = self.runs / run_id, failures.get(run_id, {})
        failed = None, failure.get("error", ""), failure.get("again", False)
        if not (folder / RUN).is_file():
            return failed
        try:
            run = read_run(folder)
            run.verify()
        except HaceError as problem:
            return None, str(problem), False
        return (run, "", False) if run.result is not None else failed


def read_study(folder: str | Path) -> Study:
    """Open a study.

    Raises:
        FormatError: The folder holds no study, or a damaged one.
    """
    folder = Path(folder)
    path = folder / STUDY
    if not path.is_file():
        found = f"a folder without {STUDY}" if folder.is_dir() else "no such folder"
        raise FormatError(
            f"{folder} must be a study. Got {found}: `hace study PRESET --out FOLDER` makes one."
        )
    document = read_mapping(path)
    lacking = [key for key, kind in _PARTS.items() if not isinstance(document.get(key), kind)]
    sets = [] if "data" in lacking else document["data"].values()
    for key in ("kind", "fingerprint", "samples"):
        lacking += [key] if any(not isinstance(about, dict) or key not in about for about in sets) else []
    if document.get("format") != STUDY_FORMAT or lacking:
        what = f"format {document.get('format')!r}" + (f", without {', '.join(lacking)}" if lacking else "")
        raise FormatError(
            f"{path} must be a study of format {STUDY_FORMAT}. Got {what}: it is damaged, or of another version."
        )
    return Study(folder, document)


def write_failures(study: Study, failures: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace failures.json; without failures, remove it."""
    path = study.folder / FAILURES
    if not study.saved:
        return
    if failures:
        write_whole(path, json_bytes(failures))
    elif path.exists():
        with writing(study.folder):
            path.unlink()
