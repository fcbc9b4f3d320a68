"""CIFAR-100 as published: the Python version (pickles) or the binary version, unpacked or as an archive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hace.data.dataset import Dataset, HierarchyLike, Samples, chosen_hierarchy, nodes_of
from hace.errors import DataError, FormatError
from hace.files.archives import Archive, fetch, read_members, unpack
from hace.files.reading import read_bytes
from hace.files.weights import read_cifar_pickle
from hace.formats import cifar100_hierarchy

CIFAR100_ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"
)
COUNTS = {"train": 50_000, "test": 10_000}
PIXELS = 3 * 32 * 32
MAX_FILE = 1 << 28  # bytes; the largest has 155 million
# Where each version keeps its splits and the names of its classes.
VERSIONS = {
    "python": {"train": "train", "test": "test", "names": "meta"},
    "binary": {"train": "train.bin", "test": "test.bin", "names": "fine_label_names.txt"},
}
_REMEDY = (
    "Give the folder that holds cifar-100-python/ (files train, test, meta) or cifar-100-binary/ (train.bin, test.bin), or "
    f"the archive itself, from {CIFAR100_ARCHIVE.url}; or fetch it: `hace data cifar100 --root R --download` (download=True)."
)


class Records(NamedTuple):
    """A split as the files hold it: uint8 (M, 3072), and labels (M,)."""

    pixels: np.ndarray
    fine: np.ndarray
    coarse: np.ndarray


def load_cifar100(
    root: Path, hierarchy: HierarchyLike = None, root_node: bool | None = None, download: bool = False
) -> Dataset[Samples]:
    """CIFAR-100 in memory: 50,000 training and 10,000 test images of 32 x 32 pixels.

    A hierarchy in place of its own finds its nodes by the names of the classes; by default there is no root, as in the paper.
    """
    if download and _place(root) is None:
        unpack(fetch(CIFAR100_ARCHIVE, root), root)
    place = _place(root)
    if place is None:
        raise DataError(
            f"{root}: it {'holds no CIFAR-100' if root.exists() else 'does not exist'}. {_REMEDY}"
        )
    version, files = place
    own = cifar100_hierarchy()
    h = chosen_hierarchy(hierarchy, root_node, lambda: own, default=False)
    class_nodes = nodes_of(own.leaves, h, "the classes of CIFAR-100")
    splits = {}
    for split, count in COUNTS.items():
        name = VERSIONS[version][split]
        read = _read_pickle if version == "python" else _read_binary
        records = read(files[name], f"{root}: {name}")
        _check(records, count, f"{root}: {name}")
        pixels = torch.from_numpy(records.pixels.reshape(-1, 3, 32, 32).copy())
        names = [f"{split}/{i:05d}" for i in range(count)]
        splits[split] = Samples(h, class_nodes[records.fine], names, pixels)
    _check_names(version, files, root)
    return Dataset("cifar100", h, splits)


def _place(root: Path) -> tuple[str, Mapping[str, bytes]] | None:
    """The version found, and the contents of its files."""
    for version, parts in VERSIONS.items():
        for folder in (root, root / f"cifar-100-{version}"):
            if all((folder / parts[split]).is_file() for split in COUNTS):
                found = [name for name in parts.values() if (folder / name).is_file()]
                return version, {name: read_bytes(folder / name, MAX_FILE) for name in found}
    archives = [root] if root.is_file() else [root / f"cifar-100-{v}.tar.gz" for v in VERSIONS]
    for archive in archives:
        if archive.is_file():
            wanted = {name for parts in VERSIONS.values() for name in parts.values()}
            files = read_members(archive, wanted, MAX_FILE)
            for version, parts in VERSIONS.items():
                if all(parts[split] in files for split in COUNTS):
                    return version, files
            raise DataError(f"{archive}: must hold the files train and test. {_REMEDY}")
    return None


def _read_pickle(data: bytes, source: str) -> Records:
    found = read_cifar_pickle(data, source)
    pixels = found.get("data")
    if not isinstance(pixels, np.ndarray):
        raise FormatError(f"{source}: must have an array 'data'. Is this a file of CIFAR-100?")
    labels = [np.asarray(_integers(found, key, source)) for key in ("fine_labels", "coarse_labels")]
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or any(len(v) != len(pixels) for v in labels):
        shapes = f"{pixels.shape} pixels, {len(labels[0])} fine and {len(labels[1])} coarse labels"
        raise DataError(f"{source}: must have M x {PIXELS} pixels and M labels of each kind. Got {shapes}.")
    return Records(pixels, *labels)


def _read_binary(data: bytes, source: str) -> Records:
    """Records of one byte coarse label, one byte fine label, 3,072 bytes of pixels."""
    if not data or len(data) % (PIXELS + 2):
        raise FormatError(
            f"{source}: must be whole records of {PIXELS + 2} bytes. Got {len(data):,} bytes. It is cut off: fetch it again."
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, PIXELS + 2)
    return Records(rows[:, 2:], rows[:, 1].astype(np.int64), rows[:, 0].astype(np.int64))


def _integers(found: Mapping[str, object], key: str, source: str) -> list[int]:
    values = found.get(key)
    if not isinstance(values, list) or not all(type(v) is int for v in values):
        raise FormatError(f"{source}: {key!r} must be a list of integers. Is this a file of CIFAR-100?")
    return values


def _check(records: Records, count: int, source: str) -> None:
    """Compare with CIFAR-100 as published: the count, equally many of each class, and the superclasses."""
    if len(records.fine) != count:
        raise DataError(f"{source}: must have {count:,} images. Got {len(records.fine):,}. Fetch it again.")
    own = cifar100_hierarchy()
    n, groups = own.num_leaves, sorted(own.tops)  # the official numbers follow the alphabet
    for what, labels, limit in (("fine", records.fine, n), ("coarse", records.coarse, len(groups))):
        if labels.min() < 0 or labels.max() >= limit:
            raise DataError(
                f"{source}: {what} labels must be from 0 to {limit - 1}. Got {labels.min()} to {labels.max()}."
            )
    counts = np.bincount(records.fine, minlength=n)
    if counts.min() != counts.max():
        few = int(counts.argmin())
        words = f"{counts[few] or 'no'} images"
        raise DataError(
            f"{source}: every class must have {count // n} images. {own.leaves[few]!r} has {words}. Fetch it again."
        )
    above = np.array([groups.index(own.parents(leaf)[0]) for leaf in own.leaves])
    wrong = np.flatnonzero(above[records.fine] != records.coarse)
    if len(wrong):
        i = wrong[0]
        raise DataError(
            f"{source}: superclasses must be those of the classes. {len(wrong):,} are not; the first is image {i}: "
            f"{own.leaves[records.fine[i]]!r} in {groups[records.coarse[i]]!r}."
        )


def _check_names(version: str, files: Mapping[str, bytes], root: Path) -> None:
    """If the files name their classes, the names must be the known ones."""
    data = files.get(VERSIONS[version]["names"])
    if data is None:
        return
    if version == "python":
        names = read_cifar_pickle(data, f"{root}: meta").get("fine_label_names")
    else:
        names = data.decode("ascii", "replace").split()
    if names != list(cifar100_hierarchy().leaves):
        raise DataError(f"{root}: the classes must be named as in CIFAR-100, in its order. Fetch it again.")
