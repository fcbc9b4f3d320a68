"""A run on disk. Every file appears whole or not at all, and the result comes last: a run with a result is finished.

run.json             id, kind, versions, when it began, fingerprints of data and hierarchy
config.json          the resolved configuration; `hace probe --config` or `hace train --config` runs it again
hierarchy.json       the hierarchy of the result
log.jsonl            one JSON object per epoch
weights.safetensors  the model
tree.json            the tree of the loss, where that was made from the training samples
predictions.safetensors   a few numbers per sample of the evaluated split
result.json          how it ended, all metrics, and the hashes of the files above
calibration.json     what `hace calibrate` found: a temperature, thresholds, and what they are good for

:mod:`hace.lab.runs.writer` makes runs, this module reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hace.errors import ConfigError, FormatError, HaceError
from hace.files.documents import parse_json, read_json
from hace.files.reading import read_text
from hace.files.weights import read_safetensors, read_safetensors_arrays
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.lab.runs.config import ProbeConfig, RunConfig
from hace.lab.runs.integrity import AGAIN, check_file, check_files, check_seal
from hace.lab.runs.settings import from_dict
from hace.lab.runs.train_config import TrainConfig

RUN_FORMAT = 2
UNSEALED_FORMAT = 1  # results without hashes
KINDS: dict[str, type[RunConfig]] = {config.kind: config for config in (ProbeConfig, TrainConfig)}
RUN, CONFIG, HIERARCHY, LOG, RESULT = "run.json", "config.json", "hierarchy.json", "log.jsonl", "result.json"
WEIGHTS, PREDICTIONS = "weights.safetensors", "predictions.safetensors"
CALIBRATION, TREE = "calibration.json", "tree.json"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"


@dataclass(frozen=True)
class DataPrint:
    """What a run remembers of its data.

    Attributes:
        name: The data set's name.
        fingerprint: Of hierarchy, names, labels and content.
        hierarchy: The fingerprint of the hierarchy of the result.
        source: How images become what the run sees: the model and preprocessing of `hace features`, or the preprocessing of a
            training. None where it is unknown.
        model: The name of the model behind frozen features, where the data say it.
    """

    name: str
    fingerprint: str
    hierarchy: str
    source: Mapping[str, Any] | None = None
    model: str | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory, open for reading.

    Attributes:
        folder: The directory.
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
        """The content of result.json; None while the run is not finished.

        Raises:
            FormatError: It is damaged, was edited, or belongs to another run; or a file is missing or has another size.
        """
        path = self.folder / RESULT
        if not path.is_file():
            return None
        result = read_object(path)
        if result.get("id") != self.id or result.get("status") not in ("finished", "diverged"):
            raise FormatError(f"{path} belongs to another run, or is damaged. {AGAIN}")
        if "seal" in result or self.about["format"] != UNSEALED_FORMAT:
            check_seal(path, result, self.about["data"])
        else:
            self._check_unsealed(result)
        return result

    @property
    def status(self) -> str:
        """How it ended: "finished" or "diverged"; or "unfinished"."""
        return "unfinished" if self.result is None else self.result["status"]

    @property
    def keeps(self) -> bool:
        """Whether weights and predictions are beside the result; a search keeps neither."""
        result = self.result or {}
        return (
            bool({WEIGHTS, PREDICTIONS} & set(result["files"])) if "files" in result else self._meant_to_keep
        )

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The hierarchy of the result, checked against its fingerprint."""
        path = self.folder / HIERARCHY
        hierarchy = read_hierarchy(path)
        if hierarchy.fingerprint != self.about["data"]["hierarchy"]:
            raise FormatError(f"{path} is not the hierarchy that the run was made with. {AGAIN}")
        return hierarchy

    def named_hierarchy(self, names: str | Path) -> Hierarchy:
        """The same with the names of its nodes from a file, one line "id name" each."""
        return read_hierarchy(self.folder / HIERARCHY, names=names)

    @cached_property
    def tree(self) -> Hierarchy:
        """The tree of the loss: that of the result, its shuffled control, or one made from the training samples."""
        data = self.config.data
        if data.induce is not None:
            return self._load(TREE, read_hierarchy)
        return self.hierarchy if data.shuffle is None else self.hierarchy.shuffled(data.shuffle)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log; a last line that was cut off is dropped."""
        path = self.folder / LOG
        lines = read_text(path).split("\n")[:-1] if path.is_file() else []
        entries = [parse_json(line, f"{path}, line {i}") for i, line in enumerate(lines, 1)]
        if not all(isinstance(entry, dict) for entry in entries):
            raise FormatError(f"{path} must hold one JSON object per line.")
        return entries

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors.

        Raises:
            FormatError: There are none, they are damaged, or were trained on another hierarchy.
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
        """A few numbers per sample of the evaluated split, see :meth:`hace.lab.runs.result.Outcome.predictions`.

        Raises:
            FormatError: There are none, or they are damaged.
        """
        return self._load(PREDICTIONS, read_safetensors_arrays)[0]

    def verify(self) -> None:
        """Check every file of a finished run against the hashes in its result.

        Raises:
            FormatError: Says what is missing or changed.
        """
        if self.result is not None and "files" in self.result:
            check_files(self.folder, self.result["files"])

    def _load(self, name: str, load: Callable[[Path], Any]) -> Any:
        path = self.folder / name
        if not path.is_file():
            state = "it kept only its result" if self.result is not None else "it is not finished"
            raise FormatError(f"{self.folder} has no {name}: {state}.")
        known = (self.result or {}).get("files", {}).get(name)
        if known is not None:
            check_file(path, known)
        try:
            return load(path)
        except FormatError as error:
            raise FormatError(f"{error} {AGAIN}") from error

    def _check_unsealed(self, result: Mapping[str, Any]) -> None:
        """What can be checked of a run made before results had hashes."""
        metrics = result.get("metrics")
        if metrics is not None and not (
            isinstance(metrics, dict) and all(isinstance(part, dict) for part in metrics.values())
        ):
            raise FormatError(f"{self.folder / RESULT} is damaged: its metrics must be a mapping. {AGAIN}")
        names = [HIERARCHY]
        if result["status"] == "finished" and self._meant_to_keep:
            names += [WEIGHTS, PREDICTIONS]
        for name in names:
            if not (self.folder / name).is_file():
                raise FormatError(f"{self.folder / name} is missing. {AGAIN}")

    @property
    def _meant_to_keep(self) -> bool:
        return isinstance(self.config, (ProbeConfig, TrainConfig)) and self.config.keep


def read_run(folder: str | Path) -> Run:
    """Open a run directory.

    The result's seal and the sizes of files are checked at once, hashes when a file is loaded or by :meth:`Run.verify`.

    Raises:
        FormatError: Not a run, or a damaged one; the message says what is wrong.
    """
    run = open_run(Path(folder))
    _ = run.result
    return run


def open_run(folder: Path) -> Run:
    """A run directory whose result is not looked at yet.

    Raises:
        FormatError: Not a run, or its configuration is not the one of its id.
    """
    if not (folder / RUN).is_file():
        raise FormatError(f"{folder} must be a run directory. It has no {RUN}.")
    about = read_object(folder / RUN)
    kind = about.get("kind")
    if not known_format(about) or not isinstance(kind, str) or kind not in KINDS:
        raise FormatError(
            f"{folder / RUN} is not of this version: format {about.get('format')!r}, kind {kind!r}."
        )
    data = about.get("data")
    if not isinstance(data, dict) or not all(
        isinstance(data.get(key), str) for key in ("fingerprint", "hierarchy")
    ):
        raise FormatError(f"{folder / RUN} does not say which data the run saw. {AGAIN}")
    if not isinstance(data.get("source"), (dict, type(None))):
        raise FormatError(f"{folder / RUN} is damaged: the source of its data must be a mapping. {AGAIN}")
    try:
        config = from_dict(KINDS[kind], read_object(folder / CONFIG))
    except ConfigError as error:
        raise FormatError(f"{folder / CONFIG} does not fit this version: {error}") from error
    if about.get("id") != config.identity(data["fingerprint"]):
        raise FormatError(
            f"{folder}: its configuration or data are not those of its id {about.get('id')}. {AGAIN}"
        )
    return Run(folder, about, config)


def known_format(about: Mapping[str, Any]) -> bool:
    """Whether this version can read a run."""
    return about.get("format") in (UNSEALED_FORMAT, RUN_FORMAT)


def finished_run(folder: Path, say: Callable[[str], None] | None = None) -> Run | None:
    """The run in a folder if it is finished and every file is as written; None if it is missing or must be redone.

    Args:
        folder: The run directory; it may be missing.
        say: Told what is wrong with a run that has a result.
    """
    if not (folder / RESULT).is_file():
        return None
    try:
        run = read_run(folder)
        run.verify()
    except HaceError as error:
        if say is not None:
            say(str(error))
        return None
    return run


def scan_runs(folder: str | Path) -> tuple[list[Run], dict[Path, str]]:
    """All runs directly below a folder, in the order of their names; and all else, with the reason."""
    runs: list[Run] = []
    skipped: dict[Path, str] = {}
    for path in sorted(p for p in Path(folder).iterdir() if not p.name.startswith(".")):
        try:
            runs.append(read_run(path))
        except HaceError as error:
            skipped[path] = str(error)
    return runs, skipped


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run.

    Raises:
        FormatError: It cannot be read, or holds something else.
    """
    try:
        document = read_json(path)
    except FormatError as error:
        raise FormatError(f"{error} {AGAIN}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{path} must hold a JSON object. Got a {type(document).__name__}. {AGAIN}")
    return document
