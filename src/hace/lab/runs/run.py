"""A run on disk: read, written by one process at a time, verified by hashes.

run.json             id, kind, versions, when it began, fingerprints of data and hierarchy
config.json          the resolved configuration; `hace probe --config` or `hace train --config` runs it again
hierarchy.json       the hierarchy of the result
log.jsonl            one JSON object per epoch
weights.safetensors  the model
tree.json            the tree of the loss, where that was made from the training samples
predictions.safetensors   a few numbers per sample of the evaluated split
result.json          how it ended, and all metrics
manifest.json        the sha256 of every file above but the log
calibration.json     what `hace calibrate` found: a temperature, thresholds, and what they are good for

Every file appears whole or not at all, and the manifest comes last: a run with a manifest is finished. A file whose hash is
another is an error for whoever reads it, and a reason to make the run again for whoever starts it. The id covers the
configuration.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

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

_T = TypeVar("_T")
RUN_FORMAT = 3
KINDS: dict[str, type[RunConfig]] = {config.kind: config for config in (ProbeConfig, TrainConfig)}
RUN = "run.json"
CONFIG = "config.json"
HIERARCHY = "hierarchy.json"
LOG = "log.jsonl"
WEIGHTS = "weights.safetensors"
TREE = "tree.json"
PREDICTIONS = "predictions.safetensors"
RESULT = "result.json"
MANIFEST = "manifest.json"
CALIBRATION = "calibration.json"
CHECKPOINTS = "checkpoints"
LATEST = "latest"  # beside runs: a link to the last one
TENSORBOARD = "tensorboard"
AGAIN = "The command that made the run makes it again."
_FINGERPRINTS = ("fingerprint", "hierarchy")
_ALWAYS = (RUN, CONFIG, HIERARCHY, RESULT)  # in every manifest
_SOMETIMES = (WEIGHTS, PREDICTIONS, TREE)
_WRITTEN_AT_THE_END = (MANIFEST, RESULT, *_SOMETIMES, CALIBRATION)
_WRITTEN_BEFORE_RUN = {CONFIG, HIERARCHY}
_OWN = {*_ALWAYS, *_WRITTEN_AT_THE_END, LOG, CHECKPOINTS, TENSORBOARD}


@dataclass(frozen=True)
class DataPrint:
    """What a run remembers of its data."""

    name: str
    fingerprint: str  # of hierarchy, names, labels and content
    hierarchy: str  # the fingerprint of the hierarchy of the result
    source: Mapping[str, Any] | None = None  # how images become what the run sees, where that is known
    model: str | None = None  # behind frozen features, where the data say it
    own_validation: bool = False  # whether the data have a validation split

    @classmethod
    def of(cls, data: Dataset[Any]) -> DataPrint:
        """That of a dataset."""
        return cls(
            data.name,
            data.fingerprint,
            data.hierarchy.fingerprint,
            data.source,
            data.model,
            "val" in data.splits,
        )


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
    def files(self) -> Mapping[str, str]:
        """The sha256 of each file by name, from the manifest; empty while the run is not finished."""
        path = self.folder / MANIFEST
        if not path.is_file():
            return {}
        manifest = _read_object(path)
        files = manifest.get("files")
        names = set(files) if isinstance(files, dict) else set()
        if manifest.get("id") != self.id or not set(_ALWAYS) <= names <= {*_ALWAYS, *_SOMETIMES}:
            raise FormatError(f"{path} belongs to another run, or is damaged. {AGAIN}")
        return dict(files or {})

    @cached_property
    def result(self) -> Mapping[str, Any] | None:
        """The content of result.json; None while the run is not finished."""
        if not self.files:
            return None
        for name in (RUN, CONFIG):  # they were read before the manifest
            self._check(name)
        result = self._load(RESULT, _read_object)
        if result.get("status") not in ("finished", "diverged"):
            raise FormatError(f"{self.folder / RESULT} does not say how the run ended. {AGAIN}")
        return result

    @property
    def status(self) -> str:
        """How it ended: "finished" or "diverged"; or "unfinished"."""
        return "unfinished" if self.result is None else self.result["status"]

    @property
    def keeps(self) -> bool:
        """Whether weights and predictions are beside the result; a search keeps neither."""
        return WEIGHTS in self.files or PREDICTIONS in self.files

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
        theirs = str(metadata.get("hierarchy"))
        own = self.about["data"]["hierarchy"]
        if theirs != own:
            raise FormatError(
                f"{self.folder / WEIGHTS} was trained on another hierarchy: its fingerprint is {theirs[:12]}, the run's "
                f"{own[:12]}."
            )
        return tensors

    def predictions(self) -> dict[str, np.ndarray]:
        """A few numbers per sample of the evaluated split, see :meth:`hace.lab.runs.result.Outcome.predictions`."""
        return self._load(PREDICTIONS, read_safetensors_arrays)[0]

    def verify(self) -> None:
        """Compare every file of a finished run with the manifest."""
        for name in self.files:
            self._check(name)

    def _check(self, name: str) -> None:
        """Compare a file with the manifest."""
        path = self.folder / name
        if not path.is_file():
            raise FormatError(f"{path} is missing. {AGAIN}")
        status = path.stat()
        if _hash_of(path, status.st_size, status.st_mtime_ns) != self.files[name]:
            raise FormatError(f"{path} was changed after it was written: its sha256 is another. {AGAIN}")

    def _load(self, name: str, load: Callable[[Path], _T]) -> _T:
        """What a reader makes of a file in the manifest."""
        if name not in self.files:
            state = "it kept only its result" if self.files else "it is not finished"
            raise FormatError(f"{self.folder} has no {name}: {state}.")
        self._check(name)
        try:
            return load(self.folder / name)
        except FormatError as error:
            raise FormatError(f"{error} {AGAIN}") from error


class OtherVersionError(FormatError):
    """A run of another version of hace, which may read it."""


def read_run(folder: str | Path) -> Run:
    """Open a run directory.

    The result is compared with its hash at once, other files when they are loaded or by :meth:`Run.verify`.

    Raises:
        FormatError: Not a run, or a damaged one; the message says what is wrong.
    """
    run = _open_run(Path(folder))
    _ = run.result
    return run


def _open_run(folder: Path) -> Run:
    """A run directory whose result is not looked at yet."""
    if not (folder / RUN).is_file():
        raise FormatError(f"{folder} must be a run directory. It has no {RUN}.")
    about = _read_object(folder / RUN)
    kind = about.get("kind")
    if about.get("format") != RUN_FORMAT or not isinstance(kind, str) or kind not in KINDS:
        got = f"format {about.get('format')!r}, kind {kind!r}"
        raise OtherVersionError(f"{folder / RUN} is not of this version: {got}.")
    data = about.get("data")
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in _FINGERPRINTS):
        raise FormatError(f"{folder / RUN} does not say which data the run saw. {AGAIN}")
    for part, value in (("source of its data", data.get("source")), ("versions", about.get("made_with"))):
        if not isinstance(value, (dict, type(None))):
            raise FormatError(f"{folder / RUN} is damaged: the {part} must be a mapping. {AGAIN}")
    try:
        config = from_dict(KINDS[kind], _read_object(folder / CONFIG))
    except ConfigError as error:
        raise FormatError(f"{folder / CONFIG} does not fit this version: {error}") from error
    if about.get("id") != config.identity(data["fingerprint"]):
        raise FormatError(
            f"{folder}: its configuration or data do not match its id {about.get('id')}. {AGAIN}"
        )
    return Run(folder, about, config)


def finished_run(folder: Path, say: Callable[[str], None] | None = None) -> Run | None:
    """The run in a folder if it is finished and every file is as written; None if it is missing or must be redone."""
    if not (folder / MANIFEST).is_file():
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
        folder = self.run.folder
        contents: dict[str, bytes] = {}
        if weights is not None:
            from safetensors.torch import save

            tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
            contents[WEIGHTS] = save(tensors, {"hierarchy": self.run.about["data"]["hierarchy"]})
        if predictions is not None:
            from safetensors.numpy import save as save_arrays

            contents[PREDICTIONS] = save_arrays(dict(predictions))
        if tree is not None:
            contents[TREE] = render_hierarchy(tree, "json").encode()
        if config is not None:
            contents[CONFIG] = json_bytes(config.to_dict())
        contents[RESULT] = json_bytes({"id": self.run.id, **result})
        with writing(folder):  # unfinished until all is there
            (folder / MANIFEST).unlink(missing_ok=True)
        for name, content in contents.items():
            write_whole(folder / name, content)
        write_manifest(folder, self.run.id, {*_ALWAYS, *contents})
        return read_run(folder)


def write_manifest(folder: Path, run_id: str, names: Iterable[str]) -> None:
    """Write the hashes of a run's files, which makes it a finished one."""
    files = {name: sha256(folder / name) for name in sorted(names)}
    write_whole(folder / MANIFEST, json_bytes({"id": run_id, "files": files}))


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
    with only_process(folder):
        _remove_half_written(folder)
        damage = _damage(folder, config, data)
        if damage is not None:
            _begin(folder, config, data, hierarchy)
        yield RunWriter(read_run(folder), damage or "")


def name_latest(run: Path) -> None:
    """Let the link `latest` beside a run lead to it; where the system has no links, there is none."""
    link = run.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    with suppress(OSError), TemporaryDirectory(prefix=TEMPORARY, dir=run.parent) as folder:
        made = Path(folder) / LATEST
        made.symlink_to(run.name, target_is_directory=True)
        made.replace(link)


def _remove_half_written(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote."""
    for place in (folder, folder / CHECKPOINTS):
        if not place.is_symlink():
            for half in place.glob(f"{TEMPORARY}*"):
                shutil.rmtree(half, ignore_errors=True)


def _damage(folder: Path, config: RunConfig, data: DataPrint) -> str | None:
    """What is wrong with the run in a folder, so that it starts again; "" where there is none yet, None to go on with it.

    Only a folder that is named by the run's id is known to be this run's, whatever is damaged in it.
    """
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if names <= _WRITTEN_BEFORE_RUN:
        return ""
    is_own = folder.name == config.identity(data.fingerprint)
    foreign = names - _OWN
    if RUN not in names and (foreign or not is_own):
        other = min(foreign or names - _WRITTEN_BEFORE_RUN)
        raise ConfigError(f"{folder} must be empty, new, or a run directory. It holds other files: {other}.")
    try:
        run = _open_run(folder)
    except OtherVersionError:
        raise
    except FormatError as error:
        if is_own:
            return str(error)
        raise FormatError(f"{error} Remove the folder first.") from error
    _refuse_other_run(run, config, data)
    try:
        if run.files:
            run.verify()
        else:
            _ = run.hierarchy
    except HaceError as error:
        return str(error)
    return None


def _refuse_other_run(run: Run, config: RunConfig, data: DataPrint) -> None:
    """Refuse a folder in which another configuration, or the same on other data, was begun."""
    changed = differences(run.config.deciding(), config.deciding())
    if run.config.kind != config.kind or changed:
        raise ConfigError(
            f"{run.folder} holds another run ({run.config.kind}). Changed: {'; '.join(changed) or 'its kind'}. "
            "Give another folder, or the same settings."
        )
    before = run.about["data"]["fingerprint"]
    if before != data.fingerprint:
        raise ConfigError(
            f"{data.name}: the data have changed since {run.folder} was started: their fingerprint was {before[:12]} and "
            f"is {data.fingerprint[:12]}. Bring the old files back, or start a new run."
        )


def _begin(folder: Path, config: RunConfig, data: DataPrint, hierarchy: Hierarchy) -> None:
    """Write what a run begins with, in place of whatever an earlier one left."""
    with writing(folder):  # the manifest first: unfinished from here on
        for name in _WRITTEN_AT_THE_END:
            (folder / name).unlink(missing_ok=True)
    about = {
        "format": RUN_FORMAT,
        "id": config.identity(data.fingerprint),
        "kind": config.kind,
        "data": asdict(data),
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "made_with": environment.config(),
    }
    write_whole(folder / CONFIG, json_bytes(config.to_dict()))
    write_whole(folder / HIERARCHY, render_hierarchy(hierarchy, "json").encode())
    write_whole(folder / RUN, json_bytes(about))


def _lines(entries: list[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n" for entry in entries)


@lru_cache(100_000)  # a study asks for its finished runs again and again
def _hash_of(path: Path, size: int, modified: int) -> str:
    return sha256(path)
