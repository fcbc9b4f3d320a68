"""Frozen features from files: .npz, .safetensors or .parquet. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hace.data.dataset import Dataset, check_classes
from hace.data.files import HierarchyLike, chosen_hierarchy
from hace.data.samples import Features
from hace.errors import DataError, FormatError, HaceError
from hace.files.optional import optional
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import label_nodes

LAYOUT = (
    "Expected the arrays X (M, d), y (M,) and, if there are several splits, split (M,); or x_train, y_train, x_test and "
    "y_test (and x_val, y_val)."
)
LABELS = ("y", "label")


def load_features(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    label_kind: str = "auto",
    allow_empty: bool = False,
) -> Dataset[Features]:
    """Features and labels that somebody has computed.

    Args:
        root: An .npz or .safetensors file with the arrays X, y and split, or x_train, y_train, x_test and y_test; or a
            .parquet file with the columns y (or label), split, and either x (a list of numbers in each row) or a column for
            each feature. Without split all is "train". X of an uncompressed .npz and of .safetensors is memory-mapped.
        hierarchy: The classes.
        root_node: Whether to have a root; by default as the hierarchy has it.
        label_kind: "index": y counts the leaves from 0; "id": y holds ids or unique names of nodes of any level; "auto":
            numbers are the former, text the latter, and what could be both is refused.
        allow_empty: Whether classes may be without any sample.

    Raises:
        FormatError: If the file is missing, damaged or laid out otherwise.
        DataError: If labels are not in the hierarchy, lengths differ, or features are NaN.
    """
    h = chosen_hierarchy(hierarchy, root_node)
    arrays = read_arrays(root)
    splits = {}
    for split, (x, y) in _splits(arrays, root).items():
        nodes = label_nodes(y, h, label_kind, f"{root}: labels of {split}")
        splits[split] = _features(h, x, nodes, split, root)
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    return Dataset(root.stem, h, splits)


def _features(h: Hierarchy, x: np.ndarray, nodes: np.ndarray, split: str, root: Path) -> Features:
    if x.ndim != 2 or len(x) != len(nodes):
        raise DataError(
            f"{root}: features of {split} must be (M, d) with a label for each row, got {x.shape} and {len(nodes)} labels."
        )
    if not np.issubdtype(x.dtype, np.floating):
        raise DataError(f"{root}: features must be float32 or float16, got {x.dtype}.")
    if x.dtype not in (np.float32, np.float16):
        x = x.astype(np.float32)
    step = max(1, (1 << 22) // max(1, x.shape[1]))
    for start in range(0, len(x), step):  # a memory map is never in memory as a whole
        bad = np.flatnonzero(~np.isfinite(x[start : start + step]).all(axis=1))
        if len(bad):
            raise DataError(f"{root}: features must be finite, and row {start + bad[0]} of {split} is not.")
    return Features(h, nodes, [f"{split}/{i:06d}" for i in range(len(x))], x)


def _splits(arrays: Mapping[str, Any], root: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features and labels of every split, from either layout."""
    found = {key.lower(): key for key in arrays}
    parts = [key[2:] for key in found if key.startswith("x_")]
    if parts:
        lonely = [part for part in parts if f"y_{part}" not in found]
        if lonely:
            raise FormatError(f"{root}: there is x_{lonely[0]} without y_{lonely[0]}. {LAYOUT}")
        order = sorted(parts, key=lambda part: (part != "train", part))
        return {part: (arrays[found[f"x_{part}"]], arrays[found[f"y_{part}"]]) for part in order}
    label = next((found[key] for key in LABELS if key in found), None)
    if "x" not in found or label is None:
        raise FormatError(f"{root}: it holds {', '.join(arrays) or 'nothing'}. {LAYOUT}")
    x, y = arrays[found["x"]], arrays[label]
    if len(x) != len(y):
        raise DataError(
            f"{root}: {len(x)} rows of features and {len(y)} labels. There must be one label a row."
        )
    if "split" not in found:
        return {"train": (x, y)}
    split = np.array([_split_name(value) for value in arrays[found["split"]].tolist()])
    if len(split) != len(y):
        raise DataError(f"{root}: {len(split)} splits and {len(y)} labels. There must be one split a row.")
    names = sorted(set(split.tolist()), key=lambda name: (name != "train", name))
    return {name: (_rows(x, np.flatnonzero(split == name)), y[split == name]) for name in names}


def _split_name(value: Any) -> str:
    """The name of a split; numbers are 0 train, 1 val, 2 test, as a format without text has to say it."""
    if isinstance(value, str):
        return value
    if value not in (0, 1, 2):
        raise DataError(f"split must be a name, or 0 (train), 1 (val) or 2 (test), got {value!r}.")
    return ("train", "val", "test")[int(value)]


def _rows(x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Rows of x: a view where they stand together, so that a memory map stays one."""
    together = len(chosen) and chosen[-1] - chosen[0] + 1 == len(chosen)
    return x[chosen[0] : chosen[-1] + 1] if together else x[chosen]


def read_arrays(path: Path) -> Mapping[str, np.ndarray]:
    """The arrays of a file by name, as the file has them.

    Raises:
        FormatError: If it is missing, damaged or of another kind.
    """
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FormatError(f"{path}: a feature file must be {', '.join(readers)}, got {path.suffix!r}.")
    if not path.is_file():
        raise FormatError(f"{path}: the file does not exist.")
    try:
        return reader(path)
    except HaceError:
        raise
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # the libraries raise their own kinds about damaged files
        raise FormatError(f"{path}: damaged, or not what its name says ({error}).") from error


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as packed, path.open("rb") as raw:
        for info in packed.infolist():
            with packed.open(info) as member:
                shape, columns_first, dtype = _header(member)
                if dtype.hasobject:
                    raise FormatError(
                        f"{path}: {info.filename} holds Python objects, which would have to be unpickled. Save plain arrays."
                    )
                key = info.filename.removesuffix(".npy")
                order = "F" if columns_first else "C"
                if info.compress_type == zipfile.ZIP_STORED and len(shape) == 2 and min(shape):
                    raw.seek(
                        info.header_offset + 26
                    )  # the lengths of name and extra field, after which data begin
                    lengths = np.frombuffer(raw.read(4), "<u2")
                    start = info.header_offset + 30 + int(lengths.sum()) + member.tell()
                    if start + dtype.itemsize * int(np.prod(shape)) > path.stat().st_size:
                        raise FormatError(f"{path}: {info.filename} is cut off.")
                    arrays[key] = np.memmap(path, dtype, "r", start, shape, order)
                    continue
                data = np.frombuffer(member.read(), dtype)
                arrays[key] = data.reshape(shape, order=order)
    return arrays


def _header(member: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    return np.lib.format.read_array_header_2_0(member)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    safetensors = optional("safetensors", "Reading .safetensors")
    with safetensors.safe_open(
        path, framework="pt"
    ) as file:  # of torch, because its tensors are memory-mapped
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return {key: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for key, t in tensors.items()}


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    table = optional("pyarrow.parquet", "Reading .parquet").read_table(path)
    names: Sequence[str] = table.column_names
    special = [name for name in names if name.lower() in (*LABELS, "split", "name", "path")]
    arrays = {name: table[name].to_numpy() for name in special if name.lower() in (*LABELS, "split")}
    lists = [name for name in names if name.lower() == "x"]
    if lists:
        rows = table[lists[0]].to_pylist() if table.num_rows < 2 else table[lists[0]].to_numpy()
        arrays["x"] = np.stack([np.asarray(row, dtype=np.float32) for row in rows])
    else:
        columns = [table[name].to_numpy() for name in names if name not in special]
        if not columns:
            raise FormatError(
                f"{path}: it has the columns {', '.join(names)}, and none of features. {LAYOUT}"
            )
        arrays["x"] = np.stack(columns, axis=1).astype(np.float32)
    return {key: v.astype(str) if v.dtype == object else v for key, v in arrays.items()}
