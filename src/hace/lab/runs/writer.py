"""Writing a run directory: started, continued, or redone if damaged; by one process at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hace import environment
from hace.errors import ConfigError, FormatError, HaceError
from hace.files.locks import only_process
from hace.files.writing import TEMPORARY, json_bytes, write_whole, writing
from hace.formats import render_hierarchy
from hace.hierarchy import Hierarchy
from hace.lab.runs.config import RunConfig
from hace.lab.runs.integrity import VERIFIED, mark_verified, sealed
from hace.lab.runs.run import (
    CALIBRATION,
    CHECKPOINTS,
    CONFIG,
    HIERARCHY,
    LOG,
    PREDICTIONS,
    RESULT,
    RUN,
    RUN_FORMAT,
    TENSORBOARD,
    TREE,
    WEIGHTS,
    DataPrint,
    Run,
    known_format,
    open_run,
    read_object,
    read_run,
)
from hace.lab.runs.settings import differences

_OWN = {
    RUN,
    CONFIG,
    HIERARCHY,
    LOG,
    WEIGHTS,
    PREDICTIONS,
    TREE,
    RESULT,
    CALIBRATION,
    CHECKPOINTS,
    TENSORBOARD,
}
_BEFORE_RUN = {CONFIG, HIERARCHY}  # written before run.json


class RunWriter:
    """A run directory, open for writing by this process alone. Made by :func:`start_run`.

    Args:
        run: The run; its `result` is None unless it is finished and whole.
        damage: What was wrong with a run that is made again; "" otherwise.
    """

    def __init__(self, run: Run, damage: str = "") -> None:
        self.run, self.damage = run, damage

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self.run.folder

    def write_log(self, entries: list[Mapping[str, Any]]) -> None:
        """Write the whole log, in place of what an earlier attempt may have left."""
        write_whole(self.folder / LOG, _lines(entries).encode())

    def log(self, entries: list[Mapping[str, Any]]) -> None:
        """Append lines to the log."""
        text = _lines(entries)
        with writing(self.folder), (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(text)

    def finish(
        self,
        result: Mapping[str, Any],
        weights: Mapping[str, Tensor] | None = None,
        predictions: Mapping[str, np.ndarray] | None = None,
        config: RunConfig | None = None,
        tree: Hierarchy | None = None,
    ) -> Run:
        """Write weights and predictions, then the result with their hashes, which makes the run a finished one.

        Args:
            result: The document.
            weights: The model, if it is kept.
            predictions: A few numbers per sample, if they are kept.
            config: The configuration, where settings that do not decide the result have changed.
            tree: The tree of the loss, where it was made from the training samples and the model is kept.
        """
        files = [self.folder / HIERARCHY]
        data = self.run.about["data"]
        if weights is not None:
            from safetensors.torch import save

            tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
            files.append(self.folder / WEIGHTS)
            write_whole(files[-1], save(tensors, {"hierarchy": data["hierarchy"]}))
        if predictions is not None:
            from safetensors.numpy import save as save_arrays

            files.append(self.folder / PREDICTIONS)
            write_whole(files[-1], save_arrays(dict(predictions)))
        if tree is not None:
            files.append(self.folder / TREE)
            write_whole(files[-1], render_hierarchy(tree, "json").encode())
        if config is not None:
            write_whole(self.folder / CONFIG, json_bytes(config.to_dict()))
        document = sealed({"id": self.run.id, **result}, data, files)
        mark_verified(self.folder, document["files"])
        write_whole(self.folder / RESULT, json_bytes(document))
        return read_run(self.folder)


@contextmanager
def start_run(
    folder: str | Path, config: RunConfig, data: DataPrint, hierarchy: Hierarchy
) -> Iterator[RunWriter]:
    """Start a run, or open the one that the same configuration started on the same data.

    A finished run whose files are not as written is unfinished again.

    Args:
        folder: Made if it is missing; empty, or the same run.
        config: What to do.
        data: The data it will see.
        hierarchy: The hierarchy of the result.

    Raises:
        ConfigError: Another run is there (with the differences), its data have changed, or a process is at work there.
        FormatError: A damaged run is there, and nothing tells whether it is this one.
        HaceError: The folder cannot be written.
    """
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder):
        for place in (folder, folder / CHECKPOINTS):
            for half in place.glob(f"{TEMPORARY}*"):  # of a process that was killed while it wrote
                shutil.rmtree(half, ignore_errors=True)
        fresh, damage = _begun(folder, config, data)
        if fresh:
            with writing(folder):  # the result first: unfinished from here on
                for name in (RESULT, VERIFIED, WEIGHTS, PREDICTIONS, TREE, CALIBRATION):
                    (folder / name).unlink(missing_ok=True)
            write_whole(folder / CONFIG, json_bytes(config.to_dict()))
            write_whole(folder / HIERARCHY, render_hierarchy(hierarchy, "json").encode())
            write_whole(folder / RUN, json_bytes(_about(config, data)))
        yield RunWriter(read_run(folder), damage)


def _begun(folder: Path, config: RunConfig, data: DataPrint) -> tuple[bool, str]:
    """Whether a run has to start afresh, and what is wrong with one that was there.

    Raises:
        ConfigError: The folder belongs to another run, or to something else.
        FormatError: It is damaged, and not known to be this run's.
    """
    found = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    if RUN not in found:
        if found <= _BEFORE_RUN:
            return True, ""
        if found <= _OWN and _is_this(folder, config, data):
            return True, f"{folder / RUN} is missing."
        raise ConfigError(
            f"{folder} must be empty, new, or a run directory. It holds other files: {min(found - _BEFORE_RUN)}."
        )
    try:
        run = open_run(folder)
    except FormatError as error:
        if not _is_this(folder, config, data):
            raise
        return True, str(error)
    _check_same(run, config, data)
    try:
        run.verify()
    except HaceError as error:
        return True, str(error)
    return False, ""


def _is_this(folder: Path, config: RunConfig, data: DataPrint) -> bool:
    """Whether a damaged run directory is this run's: by the folder's name, the id in run.json, or else its settings."""
    run_id = config.identity(data.fingerprint)
    about = _read(folder / RUN)
    if about and not known_format(about):
        return False  # of another version, which may read it
    if run_id in (folder.name, about.get("id")):
        return True
    return not about and _read(folder / CONFIG) == json.loads(json_bytes(config.to_dict()))


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FormatError:
        return {}


def _about(config: RunConfig, data: DataPrint) -> dict[str, Any]:
    return {
        "format": RUN_FORMAT,
        "id": config.identity(data.fingerprint),
        "kind": config.kind,
        "data": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "hierarchy": data.hierarchy,
            "source": data.source,
            "model": data.model,
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
