"""A folder of features: what it will hold, decided before the first image is read, and the features ready for a probe.

The plan is `manifest.json`: everything that decides a byte of the result. Splits are cut into shards of fixed size, so a
stopped run resumes at the next missing shard, and several processes share the shards without talking.

    manifest.json      model, weights, preprocessing, data, shards with their sha256 once all are there
    hierarchy.json     the classes
    train-labels.npy   int64 (M,), indices into the hierarchy's nodes
    train-names.json   a name for each sample
    train-images.npy   uint8 (M, 32), a digest of each image: features of images that are known are not computed again
    train-00000.npy    float32 (shard_size, dims): raw features, the first shard of the split "train"
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hace.checks import check_choice
from hace.data import Dataset, Features
from hace.errors import ConfigError, DataError, FormatError
from hace.files.arrays import read_array
from hace.files.documents import differences, read_json
from hace.files.reading import check_memory, max_memory
from hace.files.writing import TEMPORARY, json_bytes, own_folder, sha256, write_whole
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.linear.features import RowsOnDisk, unit_rows

NORMALIZE = ("none", "unit", "standard")
PLAN_FORMAT = 2
_REPAIR = "Run the same `hace features` command again: it computes only what is missing or broken."
MANIFEST = "manifest.json"
_ROWS = 1 << 11  # whose moments are added up at once
ASIDE = ".before-"  # folders with the features of earlier visits, until a new one is complete
STORED_HIERARCHY = "hierarchy.json"
MAX_SHARDS = 1_000_000
MAX_DIMS = 1_000_000
# Recorded, but no reason to refuse: they say who made the folder, and what has come of it.
NOT_COMPARED = ("made_with", "files", "checkpoint")


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

    @property
    def places(self) -> range:
        """The positions of its images in the split."""
        return range(self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start


class FeaturePlan:
    """The content of a manifest: plain values, the same in every process and every attempt."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest
        self.counts: dict[str, int] = manifest["data"]["counts"]  # samples by split
        self.dims: int = manifest["model"]["dims"]

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
        rows = {STORED_HIERARCHY: 0}
        for split, count in self.counts.items():
            groups = ["groups"] if self.manifest["data"].get("groups") else []
            rows |= {split_file(split, what): count for what in ("labels", "names", "images", *groups)}
        return rows | {shard.file: len(shard) for shard in self.shards}

    def has(self, shard: Shard, folder: Path) -> bool:
        """Whether a shard is in the folder, whole; with a finished manifest, also unchanged."""
        path = folder / shard.file
        try:
            rows = read_array(path)
            known = self.manifest.get("files", {}).get(shard.file)
            return self.fits(rows, shard) and (known is None or known["sha256"] == sha256(path))
        except FormatError:
            return False

    def fits(self, rows: np.ndarray, shard: Shard) -> bool:
        """Whether an array has the shape and type of a shard."""
        return rows.shape == (len(shard), self.dims) and rows.dtype == np.dtype("<f4")


def split_file(split: str, what: str) -> str:
    """The name of the file with the "labels", "names", "images" (their digests) or "groups" of a split's samples."""
    return f"{split}-{what}.{'npy' if what in ('labels', 'images') else 'json'}"


def check_splits(splits: Mapping[str, Any]) -> None:
    """Refuse names of splits that cannot begin the name of a file."""
    for split in splits:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]{0,99}", split):
            raise DataError(
                f"The name of a split must be letters, digits and underscores, since it names files. Got {split!r}."
            )


def read_plan(folder: Path) -> FeaturePlan:
    """The manifest of a folder."""
    path = folder / MANIFEST
    if not path.exists():
        raise FormatError(f"{folder} has no {MANIFEST}: make features with `hace features`.")
    document = read_json(path)
    problem = _problem(document)
    if problem:
        raise FormatError(f"{path} is not a manifest of features: {problem}. Make the features again.")
    check_splits(document["data"]["counts"])
    return FeaturePlan(document)


def stored(folder: Path) -> tuple[int, int]:
    """How many shards of a folder are there, and how many there will be; 0, 0 before the manifest is there."""
    if not (folder / MANIFEST).exists():
        return 0, 0
    plan = read_plan(folder)
    return sum(plan.has(shard, folder) for shard in plan.shards), len(plan.shards)


def _problem(document: Any) -> str:
    """What is wrong with a manifest; "" if nothing is."""
    if not isinstance(document, dict) or document.get("format") != PLAN_FORMAT:
        return f"'format' must be {PLAN_FORMAT}"
    parts = (document.get(key) for key in ("data", "model", "preprocessing"))
    data, model, view = (part if isinstance(part, dict) else {} for part in parts)
    counts = data.get("counts")
    if not isinstance(counts, dict) or not counts or not model:
        return "'data.counts', 'model.dims' and 'shard_size' must be there"
    numbers: list[Any] = [model.get("dims"), document.get("shard_size"), *counts.values()]
    if not all(type(number) is int and number > 0 for number in numbers):
        return "counts, dims and shard_size must be positive numbers"
    texts = (data.get("name"), data.get("hierarchy"), model.get("name"))
    if not view or not all(isinstance(text, str) for text in texts):
        return "'data.name', 'data.hierarchy', 'model.name' and 'preprocessing' must be there"
    if not re.fullmatch("[0-9a-f]{64}", str(data.get("images"))):
        return "'data.images' must be a sha256"
    dims, size, *rows = numbers
    if dims > MAX_DIMS or sum(-(-count // size) for count in rows) > MAX_SHARDS:
        return f"at most {MAX_SHARDS:,} shards and {MAX_DIMS:,} dims are possible"
    files = document.get("files")
    if files is None:
        return ""
    if not isinstance(files, dict) or set(files) != set(FeaturePlan(document).files()):
        return "'files' does not list as many files as the counts need"
    if not all(isinstance(entry, dict) and isinstance(entry.get("sha256"), str) for entry in files.values()):
        return "every file must have its sha256"
    return ""


def manifest_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What two manifests disagree about, one line per key."""
    compared = [{k: v for k, v in m.items() if k not in NOT_COMPARED} for m in (there, here)]
    return differences(*compared, form="{}: there {}, here {}", missing="nothing")


def refuse_other_folders(folder: Path) -> None:
    """Refuse a folder that holds something other than features."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out must be a folder. Got the file {folder}.")
    if folder.is_dir():
        # Listed before the manifest is looked for: another process may be writing it.
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if names and not (folder / MANIFEST).exists():
            raise ConfigError(
                f"--out must be a new or empty folder. Got {folder}, which holds {names[-1]!r}."
            )


def claim(folder: Path, plan: FeaturePlan) -> FeaturePlan:
    """Make a folder that of a plan: a new one, or one begun with the same plan.

    Safe to call from several processes at once: they write the same bytes, the manifest before anything else.
    """
    if (folder / MANIFEST).exists():
        old = read_plan(folder)
        different = manifest_differences(old.manifest, plan.manifest)
        if not different:
            return old
        if any((folder / shard.file).exists() for shard in old.shards):
            raise ConfigError(
                f"{folder} holds other features:\n  "
                + "\n  ".join(different)
                + "\nGive the options it was made with to resume, or another --out."
            )
    write_whole(folder / MANIFEST, json_bytes(plan.manifest))
    return plan


def tidy(folder: Path, plan: FeaturePlan) -> None:
    """Make room for a plan, while no other process writes: files of killed writers go, features of other data are set aside."""
    for path in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
    if not (folder / MANIFEST).exists():
        return
    old = read_plan(folder)
    different = manifest_differences(old.manifest, plan.manifest)
    if different and all(line.startswith("data.") for line in different):
        aside = folder / f"{ASIDE}{old.manifest['data']['images'][:16]}"
        own_folder(aside)
        for name in (*old.files(), MANIFEST):  # the manifest last: a process killed meanwhile goes on with it
            if (folder / name).exists():
                os.replace(folder / name, aside / name)


def known_images(folder: Path, *, aside: bool = True) -> dict[bytes, tuple[np.ndarray, int]]:
    """By the digests of images their features, a memory map and the row in it; with `aside` of earlier visits alone."""
    images: dict[bytes, tuple[np.ndarray, int]] = {}
    for place in (*sorted(folder.glob(f"{ASIDE}*")), *(() if aside else (folder,))):
        try:
            plan = read_plan(place)
            files = {split: place / split_file(split, "images") for split in plan.counts}
            digests = {split: np.array(read_array(path)) for split, path in files.items()}
        except FormatError:  # not a whole visit: its images are computed again
            continue
        for shard in plan.shards:
            if plan.has(shard, place):
                rows = read_array(place / shard.file)
                keys = digests[shard.split][shard.start : shard.stop]
                images |= {key.tobytes(): (rows, i) for i, key in enumerate(keys)}
    return images


def column_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; the deviation of a constant column is 1."""
    parts = [slice(first, first + _ROWS) for first in range(0, len(x), _ROWS)]  # x may be on disk
    mean = np.sum([np.asarray(x[part]).sum(axis=0, dtype=np.float64) for part in parts], axis=0) / len(x)
    squares = [np.square(np.asarray(x[part]) - mean).sum(axis=0) for part in parts]
    std = np.sqrt(np.sum(squares, axis=0) / len(x))
    return mean.astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files for so many more, as far as the system lets us."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            wanted = soft + count if hard == resource.RLIM_INFINITY else min(soft + count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class FeatureStore:
    """The features that `hace features` wrote.

    Features are stored raw and normalised when read: "unit" scales each vector to length 1; "standard" subtracts the
    training mean of every column and divides by its standard deviation; "none" leaves them as they are.

    Args:
        folder: The `--out` of `hace features`.

    Attributes:
        manifest: Everything that decides the features: model, weights, preprocessing, data, files.
        counts: Samples by split.
        dims: The length of a feature vector.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._plan = plan = read_plan(self.folder)
        self.manifest = plan.manifest
        self.counts = plan.counts
        self.dims = plan.dims
        self._checked: set[str] = set()
        if "files" not in self.manifest:
            there, shards = stored(self.folder)
            raise FormatError(
                f"{self.folder} is not finished: {there} of {shards} shards are there. Run the same "
                "`hace features` command again to resume."
            )

    def __repr__(self) -> str:
        counts = ", ".join(f"{split} {count:,}" for split, count in self.counts.items())
        return f"FeatureStore({self.manifest['model']['name']}, {self.dims} features, {counts})"

    @property
    def about(self) -> dict[str, Any]:
        """What decides the features of an image: the model, its weights and the preprocessing, without the data."""
        return {k: v for k, v in self.manifest.items() if k not in ("files", "data", "made_with")}

    def names(self, split: str) -> list[str]:
        """The names of a split's samples."""
        return self._words(split_file(self._known(split), "names"), split)

    def _words(self, file: str, split: str) -> list[str]:
        """A text for each sample of a split."""
        path = self._verified(file)
        names = read_json(path)
        wanted = self.counts[split]
        if not isinstance(names, list) or len(names) != wanted or not all(isinstance(n, str) for n in names):
            raise FormatError(f"{path} must be a list of {wanted:,} names. {_REPAIR}")
        return names

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The classes."""
        hierarchy = read_hierarchy(self._verified(STORED_HIERARCHY))
        if hierarchy.fingerprint != self.manifest["data"]["hierarchy"]:
            raise FormatError(
                f"{self.folder / STORED_HIERARCHY} is not the hierarchy that the manifest names."
            )
        return hierarchy

    def shards(self, split: str) -> list[np.ndarray]:
        """The raw features of a split as memory maps (rows, dims), which take no memory until they are read."""
        return [self._map(shard) for shard in self._of(split)]

    def load(self, split: str, normalize: str = "unit") -> Features:
        """A split in memory; without normalisation, one beyond HACE_MAX_MEMORY stays on disk.

        Args:
            split: Its name.
            normalize: "none", "unit" or "standard".

        Returns:
            Labels, names and features (M, dims), float32.

        Raises:
            ConfigError: No such split or normalisation.
            FormatError: A file has changed, or does not fit the manifest.
        """
        check_choice("normalize", normalize, NORMALIZE)
        shape = (self.counts[self._known(split)], self.dims)
        stored = sum(self._verified(shard.file).stat().st_size for shard in self._of(split))
        if normalize == "none" and 4 * shape[0] * shape[1] > max_memory():
            _allow_open_files(len(self._plan.shards))  # a map keeps its file open
            x = RowsOnDisk(self.shards(split))
        else:
            check_memory(self.folder, 4 * shape[0] * shape[1], f"the split {split!r}", stored=stored)
            x = np.empty(shape, np.float32)
            for shard in self._of(split):
                rows = x[shard.start : shard.stop]
                rows[:] = unit_rows(self._map(shard)) if normalize == "unit" else self._map(shard)
                if normalize == "standard":
                    mean, std = self._moments
                    rows -= mean
                    rows /= std
        path = self._verified(split_file(split, "labels"))
        nodes = np.array(read_array(path))
        if nodes.shape != shape[:1] or nodes.dtype != np.dtype("<i8"):
            raise FormatError(
                f"{path} must be {shape[0]:,} labels, int64. Got {nodes.dtype} {nodes.shape}. {_REPAIR}"
            )
        grouped = self.manifest["data"].get("groups")
        groups = np.array(self._words(split_file(split, "groups"), split)) if grouped else None
        return Features(self.hierarchy, nodes, self.names(split), x, groups=groups)

    def dataset(self, normalize: str = "unit") -> Dataset[Features]:
        """All splits, as a dataset."""
        splits = {split: self.load(split, normalize) for split in self.counts}
        data = self.manifest["data"]["name"]
        model = self.manifest["model"]["name"]
        return Dataset(data, self.hierarchy, splits, model, self.about)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Those of the training features."""
        if "train" not in self.counts:
            raise DataError(
                f"normalize='standard' needs a split 'train' for mean and deviation. {self.folder} has "
                f"{', '.join(self.counts)}. Use 'unit' or 'none'."
            )
        return column_moments(np.concatenate(self.shards("train")))

    def _of(self, split: str) -> list[Shard]:
        self._known(split)
        return [shard for shard in self._plan.shards if shard.split == split]

    def _known(self, split: str) -> str:
        check_choice("The split", split, self.counts)
        return split

    def _map(self, shard: Shard) -> np.ndarray:
        path = self._verified(shard.file)
        rows = read_array(path)
        if not self._plan.fits(rows, shard):
            raise FormatError(
                f"{path} must be float32 ({len(shard)}, {self.dims}), as the manifest says. Got {rows.dtype} {rows.shape}. "
                f"{_REPAIR}"
            )
        if not np.isfinite(rows).all():
            raise FormatError(f"{path} must hold finite numbers. Got NaN or infinity. {_REPAIR}")
        return rows

    def _verified(self, name: str) -> Path:
        """The path of a file whose hash is the manifest's; each file is checked once."""
        path = self.folder / name
        if name not in self._checked:
            try:
                digest = sha256(path)
            except FormatError as error:
                raise FormatError(f"{error} {_REPAIR}") from error
            if digest != self.manifest["files"][name]["sha256"]:
                raise FormatError(f"{path} has changed since it was written: its sha256 differs. {_REPAIR}")
            self._checked.add(name)
        return path
