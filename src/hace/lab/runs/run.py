"""A run on disk: read, written by one process at a time, verified by hashes.

run.json             id, kind, versions, when it began, fingerprints of data and hierarchy
config.json          the resolved configuration; `hace probe --config` or `hace train --config` runs it again
hierarchy.json       the hierarchy of the result
log.jsonl            one JSON object per epoch
weights.safetensors  the model
tree.json            the tree of the loss, where that was made from the training samples
predictions.safetensors   a few numbers per sample of the evaluated split
result.json          how it ended, all metrics, size and sha256 of the files above, and a seal: the sha256 of itself and of what
                     run.json says about the data
calibration.json     what `hace calibrate` found: a temperature, thresholds, and what they are good for

Every file appears whole or not at all, and the result comes last: a run with a result is finished. The run's id covers the
configuration. The log is not checked; `seconds` are not sealed, so that the results of two machines differ in nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hace import environment
from hace.data import Dataset
from hace.errors import ConfigError, FormatError, HaceError
from hace.files.documents import differences, parse_json, read_json
from hace.files.reading import read_text
from hace.files.weights import read_safetensors, read_safetensors_arrays
from hace.files.writing import (
    TEMPORARY,
    append_text,
    json_bytes,
    only_process,
    own_folder,
    sha256,
    write_whole,
    writing,
)
from hace.formats import read_hierarchy, render_hierarchy
from hace.hierarchy import Hierarchy
from hace.lab.runs.config import ProbeConfig, RunConfig, TrainConfig
from hace.settings import from_dict

RUN_FORMAT = 3
KINDS: dict[str, type[RunConfig]] = {config.kind: config for config in (ProbeConfig, TrainConfig)}
RUN, CONFIG, HIERARCHY, LOG, RESULT = "run.json", "config.json", "hierarchy.json", "log.jsonl", "result.json"
WEIGHTS, PREDICTIONS = "weights.safetensors", "predictions.safetensors"
CALIBRATION, TREE = "calibration.json", "tree.json"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
AGAIN = "The command that made the run makes it again."
_FILES = (RUN, CONFIG, HIERARCHY, LOG, WEIGHTS, PREDICTIONS, TREE, RESULT, CALIBRATION)
_OWN = {*_FILES, CHECKPOINTS, TENSORBOARD}
_BEFORE_RUN = {CONFIG, HIERARCHY}  # written before run.json
_UNSEALED = ("seal", "seconds")


@dataclass(frozen=True)
class DataPrint:
    """What a run remembers of its data."""

    name: str
    fingerprint: str  # of hierarchy, names, labels and content
    hierarchy: str  # the fingerprint of the hierarchy of the result
    source: Mapping[str, Any] | None = None  # how images become what the run sees, where that is known
    model: str | None = None  # behind frozen features, where the data say it

    @classmethod
    def of(cls, data: Dataset[Any]) -> DataPrint:
        """That of a dataset."""
        return cls(data.name, data.fingerprint, data.hierarchy.fingerprint, data.source, data.model)


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
        """The content of result.json; None while the run is not finished."""
        path = self.folder / RESULT
        if not path.is_file():
            return None
        result = _read_object(path)
        if result.get("id") != self.id or result.get("status") not in ("finished", "diverged"):
            raise FormatError(f"{path} belongs to another run, or is damaged. {AGAIN}")
        if result.get("seal") != _seal(result, self.about["data"]):
            rule = "its seal must be the hash of its content"
            raise FormatError(f"{path} was changed after it was written: {rule}. {AGAIN}")
        for name, known in result["files"].items():
            _check_size(self.folder / name, known)
        return result

    @property
    def status(self) -> str:
        """How it ended: "finished" or "diverged"; or "unfinished"."""
        return "unfinished" if self.result is None else self.result["status"]

    @property
    def keeps(self) -> bool:
        """Whether weights and predictions are beside the result; a search keeps neither."""
        return bool({WEIGHTS, PREDICTIONS} & set((self.result or {}).get("files", ())))

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
        """The model's tensors."""
        tensors, metadata = self._load(WEIGHTS, read_safetensors)
        found, own = str(metadata.get("hierarchy")), self.about["data"]["hierarchy"]
        if found != own:
            raise FormatError(
                f"{self.folder / WEIGHTS} was trained on another hierarchy: its fingerprint is {found[:12]}, the run's "
                f"{own[:12]}."
            )
        return tensors

    def predictions(self) -> dict[str, np.ndarray]:
        """A few numbers per sample of the evaluated split, see :meth:`hace.lab.runs.result.Outcome.predictions`."""
        return self._load(PREDICTIONS, read_safetensors_arrays)[0]

    def verify(self) -> None:
        """Check every file of a finished run against the hashes in its result."""
        for name, known in (self.result or {}).get("files", {}).items():
            _check_hash(self.folder / name, known)

    def _load(self, name: str, load: Callable[[Path], Any]) -> Any:
        path = self.folder / name
        if not path.is_file():
            state = "it kept only its result" if self.result is not None else "it is not finished"
            raise FormatError(f"{self.folder} has no {name}: {state}.")
        known = (self.result or {}).get("files", {}).get(name)
        if known is not None:
            _check_hash(path, known)
        try:
            return load(path)
        except FormatError as error:
            raise FormatError(f"{error} {AGAIN}") from error


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
    """A run directory whose result is not looked at yet."""
    if not (folder / RUN).is_file():
        raise FormatError(f"{folder} must be a run directory. It has no {RUN}.")
    refuse_links(folder)
    about = _read_object(folder / RUN)
    kind = about.get("kind")
    if about.get("format") != RUN_FORMAT or not isinstance(kind, str) or kind not in KINDS:
        found = f"format {about.get('format')!r}, kind {kind!r}"
        raise FormatError(f"{folder / RUN} is not of this version: {found}.")
    data = about.get("data")
    prints = [data.get(key) for key in ("fingerprint", "hierarchy")] if isinstance(data, dict) else [None]
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in prints):
        raise FormatError(f"{folder / RUN} does not say which data the run saw. {AGAIN}")
    for part, found in (("source of its data", data.get("source")), ("versions", about.get("made_with"))):
        if not isinstance(found, (dict, type(None))):
            raise FormatError(f"{folder / RUN} is damaged: the {part} must be a mapping. {AGAIN}")
    try:
        config = from_dict(KINDS[kind], _read_object(folder / CONFIG))
    except ConfigError as error:
        raise FormatError(f"{folder / CONFIG} does not fit this version: {error}") from error
    if about.get("id") != config.identity(data["fingerprint"]):
        found = about.get("id")
        raise FormatError(f"{folder}: its configuration or data are not those of its id {found}. {AGAIN}")
    return Run(folder, about, config)


def refuse_links(folder: Path) -> None:
    """Refuse links among the files of a run: whoever reads or writes a run must not reach files elsewhere."""
    links = [entry.name for entry in os.scandir(folder) if entry.is_symlink()]
    checkpoints = folder / CHECKPOINTS
    if CHECKPOINTS not in links and checkpoints.is_dir():
        links += [f"{CHECKPOINTS}/{entry.name}" for entry in os.scandir(checkpoints) if entry.is_symlink()]
    own = sorted(name for name in links if name.split("/")[0] in _OWN or name.startswith("."))
    if own:
        raise FormatError(f"{folder / own[0]} must be a file of the run. Got a link. Remove it. {AGAIN}")


def finished_run(folder: Path, say: Callable[[str], None] | None = None) -> Run | None:
    """The run in a folder if it is finished and every file is as written; None if it is missing or must be redone."""
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


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run."""
    try:
        document = read_json(path)
    except FormatError as error:
        raise FormatError(f"{error} {AGAIN}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{path} must hold a JSON object. Got a {type(document).__name__}. {AGAIN}")
    return document


@dataclass
class RunWriter:
    """A run directory, open for writing by this process alone. Made by :func:`start_run`."""

    run: Run  # its `result` is None unless it is finished and whole
    damage: str = ""  # what was wrong with a run that is made again

    def write_log(self, entries: list[Mapping[str, Any]]) -> None:
        """Write the whole log, in place of what an earlier attempt may have left."""
        write_whole(self.run.folder / LOG, _lines(entries).encode())

    def log(self, entries: list[Mapping[str, Any]]) -> None:
        """Append lines to the log."""
        append_text(self.run.folder / LOG, _lines(entries))

    def finish(
        self,
        result: Mapping[str, Any],
        weights: Mapping[str, Tensor] | None = None,
        predictions: Mapping[str, np.ndarray] | None = None,
        config: RunConfig | None = None,
        tree: Hierarchy | None = None,
    ) -> Run:
        """Write weights and predictions, then the result with their hashes, which makes the run a finished one.

        Of `config`, settings that do not decide the result may have changed; `tree` is one made from the training samples.
        """
        folder, data = self.run.folder, self.run.about["data"]
        contents: dict[str, bytes] = {}
        if weights is not None:
            from safetensors.torch import save

            tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
            contents[WEIGHTS] = save(tensors, {"hierarchy": data["hierarchy"]})
        if predictions is not None:
            from safetensors.numpy import save as save_arrays

            contents[PREDICTIONS] = save_arrays(dict(predictions))
        if tree is not None:
            contents[TREE] = render_hierarchy(tree, "json").encode()
        for name, content in contents.items():
            write_whole(folder / name, content)
        if config is not None:
            write_whole(folder / CONFIG, json_bytes(config.to_dict()))
        document = sealed({"id": self.run.id, **result}, data, [folder / n for n in (HIERARCHY, *contents)])
        write_whole(folder / RESULT, json_bytes(document))
        return read_run(folder)


@contextmanager
def start_run(
    folder: str | Path, config: RunConfig, data: DataPrint, hierarchy: Hierarchy
) -> Iterator[RunWriter]:
    """Start a run in a new or empty folder, or open the one that the same configuration started on the same data.

    A finished run whose files are not as written is unfinished again; another run, or a process at work there, is an error.
    """
    folder = Path(folder)
    with writing(folder):
        own_folder(folder)
    refuse_links(folder)
    with only_process(folder):
        for place in (folder, folder / CHECKPOINTS):
            for half in place.glob(f"{TEMPORARY}*"):  # of a process that was killed while it wrote
                shutil.rmtree(half, ignore_errors=True)
        fresh, damage = _begun(folder, config, data)
        if fresh:
            with writing(folder):  # the result first: unfinished from here on
                for name in (RESULT, WEIGHTS, PREDICTIONS, TREE, CALIBRATION):
                    (folder / name).unlink(missing_ok=True)
            write_whole(folder / CONFIG, json_bytes(config.to_dict()))
            write_whole(folder / HIERARCHY, render_hierarchy(hierarchy, "json").encode())
            about = {
                "format": RUN_FORMAT,
                "id": config.identity(data.fingerprint),
                "kind": config.kind,
                "data": asdict(data),
                "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "made_with": environment.config(),
            }
            write_whole(folder / RUN, json_bytes(about))
        yield RunWriter(read_run(folder), damage)


def _begun(folder: Path, config: RunConfig, data: DataPrint) -> tuple[bool, str]:
    """Whether a run has to start afresh, and what is wrong with one that was there."""
    found = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    if found <= _BEFORE_RUN:
        return True, ""
    if RUN not in found and not (found <= _OWN and _is_this(folder, config, data)):
        raise ConfigError(
            f"{folder} must be empty, new, or a run directory. It holds other files: {min(found - _BEFORE_RUN)}."
        )
    try:
        run = open_run(folder)
    except FormatError as error:
        if not _is_this(folder, config, data):
            raise
        return True, str(error)
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
    try:
        run.verify()
    except HaceError as error:
        return True, str(error)
    return False, ""


def _is_this(folder: Path, config: RunConfig, data: DataPrint) -> bool:
    """Whether a damaged run directory is this run's: by the folder's name, the id in run.json, or else its settings."""

    def read(name: str) -> dict[str, Any]:
        try:
            return _read_object(folder / name)
        except FormatError:
            return {}

    about = read(RUN)
    if about and about.get("format") != RUN_FORMAT:
        return False  # of another version, which may read it
    if config.identity(data.fingerprint) in (folder.name, about.get("id")):
        return True
    return not about and read(CONFIG) == json.loads(json_bytes(config.to_dict()))


def _lines(entries: list[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(e, ensure_ascii=False, allow_nan=False) + "\n" for e in entries)


def sealed(result: Mapping[str, Any], data: Mapping[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """A result with the prints of its run's files and its seal."""
    prints = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
    document = json.loads(json_bytes({**result, "files": prints}))  # as it will be read
    return {**document, "seal": _seal(document, data)}


def _seal(result: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in result.items() if key not in _UNSEALED}
    return hashlib.sha256(json.dumps([rest, data], sort_keys=True).encode()).hexdigest()


def _check_size(path: Path, known: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise FormatError(f"{path} is missing. {AGAIN}")
    if path.stat().st_size != known["bytes"]:
        raise FormatError(f"{path} must have {known['bytes']:,} bytes. Got {path.stat().st_size:,}. {AGAIN}")


def _check_hash(path: Path, known: Mapping[str, Any]) -> None:
    _check_size(path, known)
    if _hash_of(path, path.stat().st_mtime_ns) != known["sha256"]:
        raise FormatError(f"{path} was changed after it was written: its sha256 is another. {AGAIN}")


@lru_cache(100_000)  # a study asks for its finished runs again and again
def _hash_of(path: Path, _: int) -> str:
    return sha256(path)
