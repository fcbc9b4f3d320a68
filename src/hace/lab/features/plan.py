"""What a folder of features will hold, decided before the first image is read.

The plan is `manifest.json`: everything that decides a byte of the result. Splits are cut into shards of fixed rows, so a
run that was stopped goes on at the next missing shard, and several processes share the shards without talking.

    manifest.json      model, weights, preprocessing, data, shards with their sha256 once all are there
    hierarchy.json     the classes
    train-labels.npy   int64 (M,), indices into the hierarchy's nodes
    train-names.json   a name a sample
    train-00000.npy    float32 (shard_size, dims): raw features, the first shard of the split "train"
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hace.errors import ConfigError, DataError, FormatError
from hace.files.writing import json_bytes, sha256, write_whole, writing

FORMAT = 1
MANIFEST = "manifest.json"
HIERARCHY = "hierarchy.json"
# Recorded, and no reason to refuse: they say who made the folder, and what has come of it.
NOT_COMPARED = ("made_with", "files")


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a split: one file."""

    split: str
    index: int
    start: int
    stop: int

    @property
    def file(self) -> str:
        """Its name in the folder."""
        return f"{self.split}-{self.index:05d}.npy"

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Plan:
    """The content of a manifest.

    Attributes:
        manifest: The document: plain values, the same for every process and every attempt.
    """

    manifest: dict[str, Any]

    @property
    def counts(self) -> dict[str, int]:
        """Samples by split."""
        return self.manifest["data"]["counts"]

    @property
    def dims(self) -> int:
        """The length of a feature vector."""
        return self.manifest["model"]["dims"]

    @property
    def shards(self) -> list[Shard]:
        """All shards, split by split."""
        size = self.manifest["shard_size"]
        return [
            Shard(split, i, start, min(start + size, count))
            for split, count in self.counts.items()
            for i, start in enumerate(range(0, count, size))
        ]

    def files(self) -> dict[str, int]:
        """Every file beside the manifest, with its rows."""
        found = {HIERARCHY: 0}
        for split, count in self.counts.items():
            found |= {labels_file(split): count, names_file(split): count}
        return found | {shard.file: len(shard) for shard in self.shards}

    def has(self, shard: Shard, folder: Path) -> bool:
        """Whether a shard lies in the folder, whole; with a finished manifest, also unchanged."""
        path = folder / shard.file
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        if rows.shape != (len(shard), self.dims) or rows.dtype != np.float32:
            return False
        known = self.manifest.get("files", {}).get(shard.file)
        return known is None or known["sha256"] == sha256(path)


def labels_file(split: str) -> str:
    """The name of the file with a split's labels."""
    return f"{split}-labels.npy"


def names_file(split: str) -> str:
    """The name of the file with the names of a split's samples."""
    return f"{split}-names.json"


def check_splits(splits: Mapping[str, Any]) -> None:
    """Refuse names of splits that cannot begin the name of a file."""
    for split in splits:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]*", split):
            raise DataError(
                f"The name of a split must be letters, digits and underscores to name its files, got {split!r}."
            )


def read_plan(folder: Path) -> Plan:
    """The manifest of a folder.

    Raises:
        FormatError: There is none, or it is not one of this version.
    """
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{folder} has no {MANIFEST}: make features with `hace features`.") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read as JSON: {error}.") from error
    problem = _problem(document)
    if problem:
        raise FormatError(f"{path} is no manifest of features: {problem}. Make the features anew.")
    check_splits(document["data"]["counts"])
    return Plan(document)


def stored(folder: Path) -> tuple[int, int]:
    """How many shards of a folder are there, and how many there will be; 0, 0 before the manifest is there."""
    if not (folder / MANIFEST).exists():
        return 0, 0
    plan = read_plan(folder)
    return sum(plan.has(shard, folder) for shard in plan.shards), len(plan.shards)


def _problem(document: Any) -> str:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return f"'format' must be {FORMAT}"
    try:
        counts, dims = document["data"]["counts"], document["model"]["dims"]
        numbers = [dims, document["shard_size"], *counts.values()]
    except (KeyError, TypeError, AttributeError) as error:
        return f"'data.counts', 'model.dims' and 'shard_size' must be there ({error})"
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return "counts, dims and shard_size must be positive numbers"
    files = document.get("files")
    if files is not None and set(files) != set(Plan(document).files()):
        return "'files' does not list what the counts promise"
    return ""


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What two manifests disagree about, a line each.

    Example:
        >>> differences({"model": {"name": "a", "dims": 8}}, {"model": {"name": "b", "dims": 8}})
        ['model.name: there a, here b']
    """
    a, b = _flat(there), _flat(here)
    return [
        f"{key}: there {a.get(key, 'nothing')}, here {b.get(key, 'nothing')}"
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key) and key.split(".")[0] not in NOT_COMPARED
    ]


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {key: value}
    return {k: v for name in value for k, v in _flat(value[name], f"{key}.{name}" if key else name).items()}


def claim(folder: Path, plan: Plan, clean: bool) -> Plan:
    """Make a folder that of a plan: a new one, or one that was begun with the same plan.

    Safe to call from several processes at once: they write the same bytes, the manifest before anything else.

    Args:
        folder: Made, with its parents, where it does not exist.
        plan: What is to be there.
        clean: Remove what a killed writer left; only for a process that is alone.

    Returns:
        The plan as it stands in the folder, with the table of files if it is complete.

    Raises:
        ConfigError: The folder holds something else; what differs is shown.
        HaceError: It cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out must be a folder, and {folder} is a file.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    found = sorted(
        path.name for path in folder.iterdir()
    )  # before the manifest is looked for: others may be writing
    if (folder / MANIFEST).exists():
        old = read_plan(folder)
        different = differences(old.manifest, plan.manifest)
        if not different:
            plan = old
        elif any((folder / shard.file).exists() for shard in old.shards):
            raise ConfigError(
                f"{folder} holds other features:\n  "
                + "\n  ".join(different)
                + "\nGive the options it was made with to go on there, or another --out."
            )
        else:
            write_whole(folder / MANIFEST, json_bytes(plan.manifest))
    elif any(not name.startswith(".") for name in found):
        raise ConfigError(f"--out must be a new or empty folder, and {folder} holds {found[-1]!r}.")
    else:
        write_whole(folder / MANIFEST, json_bytes(plan.manifest))
    if clean:
        for name in found:
            if name.startswith(".hace-"):
                shutil.rmtree(folder / name, ignore_errors=True)
    return plan
