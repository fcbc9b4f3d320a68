"""A run on disk. Every file appears whole or not at all, and the result comes last: a run with a result is finished.

run.json             id, kind, versions, when it began, fingerprints of data and hierarchy
config.json          the resolved configuration; `hace probe --config` or `hace train --config` runs it again
hierarchy.json       the hierarchy that the result speaks of
log.jsonl            one JSON object an epoch
weights.safetensors  the model
predictions.safetensors   a few numbers a sample of the evaluated split
result.json          how it ended, all metrics
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hace import environment
from hace.errors import ConfigError, FormatError, HaceError
from hace.files.documents import parse_json, read_json
from hace.files.locks import only_process
from hace.files.reading import read_text
from hace.files.weights import read_safetensors, read_safetensors_arrays
from hace.files.writing import TEMPORARY, json_bytes, write_whole, writing
from hace.formats import read_hierarchy, render_hierarchy
from hace.hierarchy import Hierarchy
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.settings import differences, from_dict
from hace.lab.runs.train_config import TrainConfig

FORMAT = 1
KINDS: dict[str, type[RunConfig]] = {config.kind: config for config in (ProbeConfig, TrainConfig)}
RUN, CONFIG, HIERARCHY, LOG, RESULT = "run.json", "config.json", "hierarchy.json", "log.jsonl", "result.json"
WEIGHTS, PREDICTIONS = "weights.safetensors", "predictions.safetensors"


@dataclass(frozen=True)
class DataPrint:
    """What a run remembers of its data.

    Attributes:
        name: The data set's name.
        fingerprint: Of hierarchy, names, labels and content.
        hierarchy: The fingerprint of the hierarchy that results speak of.
        source: Of features that `hace features` wrote: the model and the preprocessing behind them, for predictions.
    """

    name: str
    fingerprint: str
    hierarchy: str
    source: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory, open for reading.

    Attributes:
        folder: Where it lies.
        about: The content of run.json.
        config: Its configuration.
    """

    folder: Path
    about: Mapping[str, Any]
    config: RunConfig

    @property
    def id(self) -> str:
        """The hash of what decides its result."""
        return self.about["id"]

    @cached_property
    def result(self) -> Mapping[str, Any] | None:
        """The content of result.json; None while the run is not finished."""
        path = self.folder / RESULT
        return _read_json(path) if path.is_file() else None

    @property
    def status(self) -> str:
        """How it stands: "finished", "diverged" or "unfinished"."""
        return "unfinished" if self.result is None else self.result["status"]

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The hierarchy that the result speaks of, checked against its fingerprint."""
        hierarchy = read_hierarchy(self.folder / HIERARCHY)
        if hierarchy.fingerprint != self.about["data"]["hierarchy"]:
            raise FormatError(f"{self.folder / HIERARCHY} is not the hierarchy that the run was made with.")
        return hierarchy

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log; a last line that was cut off is left out."""
        path = self.folder / LOG
        lines = read_text(path).split("\n")[:-1] if path.is_file() else []
        entries = [parse_json(line, f"{path}, line {i}") for i, line in enumerate(lines, 1)]
        if not all(isinstance(entry, dict) for entry in entries):
            raise FormatError(f"{path} must hold one JSON object per line.")
        return entries

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors.

        Raises:
            FormatError: There are none, they are damaged, or were trained on another hierarchy than the run's.
        """
        tensors, metadata = self._load(WEIGHTS, read_safetensors)
        found = metadata.get("hierarchy")
        if found != self.about["data"]["hierarchy"]:
            raise FormatError(
                f"{self.folder / WEIGHTS} was trained on another hierarchy: its fingerprint is {str(found)[:12]}, the run's "
                f"{self.about['data']['hierarchy'][:12]}."
            )
        return tensors

    def predictions(self) -> dict[str, np.ndarray]:
        """A few numbers a sample of the evaluated split, see :func:`hace.lab.runs.result.predictions_of`."""
        return self._load(PREDICTIONS, read_safetensors_arrays)[0]

    def _load(self, name: str, load: Any) -> Any:
        path = self.folder / name
        if not path.is_file():
            state = "it kept only its result" if self.result is not None else "it is not finished"
            raise FormatError(f"{self.folder} has no {name}: {state}.")
        try:
            return load(path)
        except FormatError as error:
            raise FormatError(f"{error} Delete the folder and run it again.") from error


def read_run(folder: str | Path) -> Run:
    """Open a run directory.

    Raises:
        FormatError: It is no run, or a damaged one; the message says what is wrong.
    """
    folder = Path(folder)
    if not (folder / RUN).is_file():
        raise FormatError(f"{folder} is no run: it has no {RUN}.")
    about = _read_json(folder / RUN)
    kind = about.get("kind")
    if about.get("format") != FORMAT or kind not in KINDS:
        raise FormatError(
            f"{folder / RUN} is not of this version: format {about.get('format')!r}, kind {kind!r}."
        )
    data = about.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("fingerprint"), str):
        raise FormatError(f"{folder / RUN} does not say which data the run saw.")
    try:
        config = from_dict(KINDS[kind], _read_json(folder / CONFIG))
    except ConfigError as error:
        raise FormatError(f"{folder / CONFIG} does not fit this version: {error}") from error
    run = Run(folder, about, config)
    if about.get("id") != config.identity(data["fingerprint"]):
        raise FormatError(
            f"{folder}: its configuration or data are not those that its id {about.get('id')} stands for."
        )
    result = run.result
    if result is not None and (
        result.get("id") != run.id or result.get("status") not in ("finished", "diverged")
    ):
        raise FormatError(f"{folder / RESULT} belongs to another run, or is damaged.")
    return run


def scan_runs(folder: str | Path) -> tuple[list[Run], dict[Path, str]]:
    """All runs directly below a folder, in the order of their names; and what is none or is broken, with the reason."""
    runs: list[Run] = []
    skipped: dict[Path, str] = {}
    for path in sorted(p for p in Path(folder).iterdir() if not p.name.startswith(".")):
        try:
            runs.append(read_run(path))
        except HaceError as error:
            skipped[path] = str(error)
    return runs, skipped


class RunWriter:
    """A run directory, open for writing by this process alone. Made by :func:`start_run`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.run.folder

    def write_log(self, entries: list[Mapping[str, Any]]) -> None:
        """Write the whole log, in place of what an earlier attempt may have left."""
        write_whole(self.folder / LOG, _lines(entries).encode())

    def log(self, entries: list[Mapping[str, Any]]) -> None:
        """Append lines to the log."""
        text = _lines(entries)
        with writing(self.folder), (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(text)

    def write_config(self, config: RunConfig) -> None:
        """Write the configuration again: that of this run, where what does not decide the result has changed."""
        write_whole(self.folder / CONFIG, json_bytes(config.to_dict()))

    def finish(
        self,
        result: Mapping[str, Any],
        weights: Mapping[str, Tensor] | None = None,
        predictions: Mapping[str, np.ndarray] | None = None,
    ) -> Run:
        """Write weights and predictions, then the result, which makes the run a finished one."""
        if weights is not None:
            from safetensors.torch import save

            tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
            write_whole(
                self.folder / WEIGHTS, save(tensors, {"hierarchy": self.run.about["data"]["hierarchy"]})
            )
        if predictions is not None:
            from safetensors.numpy import save as save_arrays

            write_whole(self.folder / PREDICTIONS, save_arrays(dict(predictions)))
        write_whole(self.folder / RESULT, json_bytes({"id": self.run.id, **result}))
        return read_run(self.folder)


@contextmanager
def start_run(
    folder: str | Path, config: RunConfig, data: DataPrint, hierarchy: Hierarchy
) -> Iterator[RunWriter]:
    """Begin a run, or open one that was begun by the same configuration on the same data.

    Args:
        folder: Made if it is missing; empty, or the same run.
        config: What to do.
        data: The data it will see.
        hierarchy: The hierarchy that results speak of.

    Raises:
        ConfigError: Another run lies there (with the differences), its data have changed, or a process is at work there.
        HaceError: The folder cannot be written.
    """
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder):
        for half in folder.glob(
            f"{TEMPORARY}*"
        ):  # of a process that was killed while it wrote; nobody else writes here
            shutil.rmtree(half, ignore_errors=True)
        if (folder / RUN).is_file():
            run = read_run(folder)
            _check_same(run, config, data)
        else:
            foreign = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
            if foreign and not set(foreign) <= {CONFIG, HIERARCHY}:  # these two are written before run.json
                raise ConfigError(
                    f"{folder} holds other files ({foreign[0]}) and no run. Give an empty or a new folder."
                )
            write_whole(folder / CONFIG, json_bytes(config.to_dict()))
            write_whole(folder / HIERARCHY, render_hierarchy(hierarchy, "json").encode())
            write_whole(folder / RUN, json_bytes(_about(config, data)))
            run = read_run(folder)
        yield RunWriter(run)


def _about(config: RunConfig, data: DataPrint) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "id": config.identity(data.fingerprint),
        "kind": config.kind,
        "data": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "hierarchy": data.hierarchy,
            "source": data.source,
        },
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "made_with": environment.config(),
    }


def _check_same(run: Run, config: RunConfig, data: DataPrint) -> None:
    changed = differences(run.config.deciding(), config.deciding())
    if run.config.kind != config.kind or changed:
        raise ConfigError(
            f"{run.folder} holds another run ({run.config.kind}). Changed: {'; '.join(changed) or 'its kind'}. "
            "Give another folder, or the same settings."
        )
    if run.about["data"]["fingerprint"] != data.fingerprint:
        raise ConfigError(
            f"{data.name}: the data are not those that {run.folder} was started with: their fingerprint was "
            f"{run.about['data']['fingerprint'][:12]} and is {data.fingerprint[:12]}. Bring the old files back, or start a "
            "new run."
        )


def _lines(entries: list[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(e, ensure_ascii=False, allow_nan=False) + "\n" for e in entries)


def _read_json(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise FormatError(f"{path} must hold a JSON object. Got a {type(document).__name__}.")
    return document
