"""Features on disk, ready for a probe: checked against their manifest, normalised while they are read."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hace.data import Dataset, Features
from hace.errors import ConfigError, DataError, FormatError, nearest
from hace.files.arrays import read_array
from hace.files.documents import read_json
from hace.files.reading import check_memory
from hace.files.writing import sha256
from hace.formats import read_hierarchy
from hace.hierarchy import Hierarchy
from hace.lab.features.plan import STORED_HIERARCHY, Shard, labels_file, names_file, read_plan, stored
from hace.linear.features import unit_rows

NORMALIZE = ("none", "unit", "standard")


class FeatureStore:
    """The features that `hace features` wrote.

    Features are stored raw and normalised when read: "unit" scales each vector to length 1; "standard" subtracts the
    training mean of every column and divides by its standard deviation; "none" leaves them as they are.

    Args:
        folder: The `--out` of `hace features`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._plan = read_plan(self.folder)
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
    def manifest(self) -> dict[str, Any]:
        """Everything that decides the features: model, weights, preprocessing, data, files."""
        return self._plan.manifest

    @property
    def counts(self) -> dict[str, int]:
        """Samples by split."""
        return self._plan.counts

    @property
    def dims(self) -> int:
        """The length of a feature vector."""
        return self._plan.dims

    @property
    def about(self) -> dict[str, Any]:
        """What decides the features of an image: the model, its weights and the preprocessing, without the data."""
        return {
            key: value for key, value in self.manifest.items() if key not in ("files", "data", "made_with")
        }

    def names(self, split: str) -> list[str]:
        """The names of a split's samples."""
        path = self._verified(names_file(self._known(split)))
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
        """A split in memory.

        Args:
            split: Its name.
            normalize: "none", "unit" or "standard".

        Returns:
            Labels, names and features (M, dims), float32.

        Raises:
            ConfigError: No such split or normalisation.
            FormatError: A file has changed, or does not fit the manifest.
        """
        if normalize not in NORMALIZE:
            raise ConfigError(f"normalize must be one of {', '.join(NORMALIZE)}. Got {normalize!r}.")
        shape = (self.counts[self._known(split)], self.dims)
        stored = sum(self._verified(shard.file).stat().st_size for shard in self._of(split))
        check_memory(self.folder, 4 * shape[0] * shape[1], f"the split {split!r}", stored=stored)
        x = np.empty(shape, np.float32)
        for shard in self._of(split):
            rows = x[shard.start : shard.stop]
            rows[:] = unit_rows(self._map(shard)) if normalize == "unit" else self._map(shard)
            if normalize == "standard":
                mean, std = self._moments
                rows -= mean
                rows /= std
        path = self._verified(labels_file(split))
        nodes = np.array(read_array(path))
        if nodes.shape != shape[:1] or nodes.dtype != np.dtype("<i8"):
            raise FormatError(
                f"{path} must be {shape[0]:,} labels, int64. Got {nodes.dtype} {nodes.shape}. {_REPAIR}"
            )
        return Features(self.hierarchy, nodes, self.names(split), x)

    def dataset(self, normalize: str = "unit") -> Dataset[Features]:
        """All splits in memory, as a data set."""
        splits = {split: self.load(split, normalize) for split in self.counts}
        return Dataset(self.manifest["data"]["name"], self.hierarchy, splits, self.manifest["model"]["name"])

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the training features' columns; a constant column is divided by 1."""
        if "train" not in self.counts:
            raise DataError(
                f"normalize='standard' needs a split 'train' for mean and deviation. {self.folder} has "
                f"{', '.join(self.counts)}. Use 'unit' or 'none'."
            )
        shards, count = self.shards("train"), self.counts["train"]
        mean = sum(rows.sum(0, dtype=np.float64) for rows in shards) / count
        squares = sum(((rows - mean) ** 2).sum(0) for rows in shards)
        std = np.sqrt(squares / count)
        return np.asarray(mean, np.float32), np.where(std > 0, std, 1).astype(np.float32)

    def _of(self, split: str) -> list[Shard]:
        self._known(split)
        return [shard for shard in self._plan.shards if shard.split == split]

    def _known(self, split: str) -> str:
        if split not in self.counts:
            raise ConfigError(
                f"The split must be one of {', '.join(self.counts)}. Got {split!r}.{nearest(split, self.counts)}"
            )
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
                found = sha256(path)
            except FormatError as error:
                raise FormatError(f"{error} {_REPAIR}") from error
            if found != self.manifest["files"][name]["sha256"]:
                raise FormatError(f"{path} has changed since it was written: its sha256 differs. {_REPAIR}")
            self._checked.add(name)
        return path


_REPAIR = "Run the same `hace features` command again: it computes only what is missing or broken."
