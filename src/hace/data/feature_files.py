"""Frozen features from files: .npz, .safetensors or .parquet. Nothing is unpickled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hace.data.dataset import Dataset
from hace.data.loading import LABEL_OPTION, HierarchyLike, check_classes, chosen_hierarchy, group_column
from hace.data.split import Features
from hace.data.splitting import ordered_splits, split_name
from hace.errors import DataError, FormatError, listed
from hace.files.arrays import Arrays, Parquet, native, read_array
from hace.files.reading import check_memory, optional
from hace.files.weights import read_safetensors, read_safetensors_arrays
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import natural_key
from hace.hierarchy.names import label_nodes
from hace.linear.features import RowsOnDisk

_LAYOUT = (
    "Expected the arrays X (M, d), y (M,) and, if there are several splits, split (M,); or x_train, y_train, x_test and "
    "y_test (and x_val, y_val)."
)
LABEL_KEYS = ("y", "label")
PARQUET_ROWS = 1024
MAX_MODEL = 200


def load_features(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    label_kind: str = "auto",
    allow_empty: bool = False,
    groups: str | None = None,
) -> Dataset[Features]:
    """Features and labels computed elsewhere: an .npz, .safetensors or .parquet file.

    It holds the arrays X, y and split, or x_train, y_train, x_test and y_test; .parquet the columns y (or label), split, and
    either x (a list of numbers in each row) or a column for each feature. Without split all is "train". X of .safetensors is
    memory-mapped. `model`, an array of text in .npz, metadata in the others, names the model behind the features.

    `label_kind` "index": y counts the leaves from 0; "id": y holds ids or unique names of nodes at any level; "auto": numbers
    are the former, text the latter, and what could be both is refused. `groups` names the array or column with each sample's
    group, such as its site; arrays called groups, or groups_train and so on, need no option.
    """
    h = chosen_hierarchy(hierarchy, root_node)
    arrays, model = read_feature_arrays(root, groups), feature_model(root)
    splits = {}
    for split, (x, y, group) in feature_splits(arrays, root, groups).items():
        nodes = label_nodes(y, h, label_kind, f"{root}: labels of {split}", LABEL_OPTION)
        splits[split] = _features(h, x, nodes, split, root, group)
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    return Dataset(root.stem, h, splits, model)


def training_features(
    root: Path, hierarchy: Hierarchy | None = None, *, label_kind: str = "auto"
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Features, labels and classes of the training samples that have a class; by default the labels in natural order."""
    if hierarchy is None:
        labels = [y for _, y, _ in feature_splits(read_feature_arrays(root), root).values()]
        for y in labels:
            if y.dtype.kind not in "iuU" or (y.dtype.kind == "i" and (y < 0).any()):
                got = f"{y.min()}" if y.dtype.kind == "i" else f"{y.dtype}"
                raise DataError(f"{root}: labels must be integers from 0 on, or text. Got {got}.")
        found = {str(value) for y in labels for value in np.unique(y).tolist()}
        hierarchy, label_kind = Hierarchy.flat(sorted(found, key=natural_key)), "id"
    train = load_features(root, hierarchy, label_kind=label_kind, allow_empty=True)["train"]
    label = hierarchy.labels[train.nodes]
    return train.x[label >= 0], label[label >= 0], hierarchy.leaves


def feature_groups(path: Path, groups: str, parts: Sequence[str]) -> list[str]:
    """The groups of all rows of a feature file, part by part as :func:`feature_parts` has them."""
    arrays = read_feature_arrays(path, groups)
    found = {key.lower(): key for key in arrays}
    keys = [f"{groups}_{part}".lower() if part else groups.lower() for part in parts]
    missing = [key for key in keys if key not in found]
    if missing:
        raise DataError(f"{path}: must have an array {missing[0]!r} of groups. Got {listed(arrays, 30)}.")
    return [str(name) for key in keys for name in _column(arrays[found[key]], key, path).tolist()]


def feature_parts(path: Path, groups: str | None = None) -> dict[str, np.ndarray]:
    """The features (M, d) of an .npy or a feature file, with labels or without: by split, or as one part called ""."""
    if path.suffix.lower() == ".npy":
        parts = {"": read_array(path)}
    else:
        arrays = read_feature_arrays(path, groups)
        parts = {key[2:]: arrays[key] for key in arrays if key.lower().startswith("x_")}
        parts |= {key[1:]: arrays[key] for key in arrays if key.lower() == "x"}
        if not parts:
            raise FormatError(f"{path}: must hold features. Got {listed(arrays, 30) or 'nothing'}. {_LAYOUT}")
    for x in parts.values():
        _check_rows(x, path)
    return parts


def _check_rows(x: np.ndarray, path: Path, y: np.ndarray | None = None) -> None:
    if x.ndim != 2 or not x.shape[1] or x.dtype.kind != "f":
        raise DataError(f"{path}: features must be floating-point numbers (M, d). Got {x.dtype} {x.shape}.")
    if y is not None and len(x) != len(y):
        raise DataError(
            f"{path}: features must be (M, d) with one label per row. Got {x.shape} and {len(y)} labels."
        )


def _features(
    h: Hierarchy, x: Any, nodes: np.ndarray, split: str, root: Path, groups: np.ndarray | None
) -> Features:
    if x.dtype not in (np.float32, np.float16):
        x = np.asarray(x).astype(np.float32)
    step = max(1, (1 << 22) // x.shape[1])
    for start in range(0, len(x), step):  # a memory map is never in memory as a whole
        bad = np.flatnonzero(~np.isfinite(x[start : start + step]).all(axis=1))
        if len(bad):
            raise DataError(f"{root}: features must be finite. Row {start + bad[0]} of {split} is not.")
    return Features(h, nodes, [f"{split}/{i:06d}" for i in range(len(x))], RowsOnDisk.of(x), groups=groups)


_INDEX_COLUMN = re.compile(r"__index_level_\d+__|Unnamed: \d+|")  # as pandas names them
_Part = tuple[Any, np.ndarray, "np.ndarray | None"]


def feature_splits(
    arrays: Mapping[str, np.ndarray], root: Path, groups: str | None = None
) -> dict[str, _Part]:
    """Features, labels and groups (or None) of every split of a feature file's arrays, from either layout."""
    found = {key.lower(): key for key in arrays}
    keys = [key[2:] for key in found if key.startswith("x_")]
    grouped = "groups" if groups is None else groups.lower()
    if groups is not None or not any(key == "groups" or key.startswith("groups_") for key in found):
        group_column({key.rpartition("_")[0] if keys else key for key in found}, groups, str(root))

    def part(x_key: str, y_key: str, key: str) -> _Part:
        x, y = arrays[found[x_key]], _column(arrays[found[y_key.lower()]], y_key, root)
        _check_rows(x, root, y)
        if key not in found:
            return x, y, None
        named = _column(arrays[found[key]], key, root)
        empty = named.dtype.kind == "U" and bool((named == "").any())
        if len(named) != len(y) or named.dtype.kind not in "iuU" or empty:
            got = f"{len(named):,} entries of {named.dtype}{', some empty' if empty else ''}"
            raise DataError(
                f"{root}: {key} must name a group for each of {len(y):,} samples, text or integers. Got {got}."
            )
        return x, y, named

    if keys:
        lonely = [key for key in keys if f"y_{key}" not in found]
        if lonely:
            raise FormatError(f"{root}: every x_ must have its y_. Got x_{lonely[0]} alone. {_LAYOUT}")
        named = {split_name(key): key for key in keys}
        if len(named) < len(keys):
            raise FormatError(f"{root}: every split must occur once. Got {', '.join(keys)}.")
        ordered = {name: named[name] for name in ordered_splits(named)}
        return {name: part(f"x_{key}", f"y_{key}", f"{grouped}_{key}") for name, key in ordered.items()}
    label = next((found[key] for key in LABEL_KEYS if key in found), None)
    if "x" not in found or label is None:
        raise FormatError(f"{root}: must hold X and y. Got {listed(arrays, 30) or 'nothing'}. {_LAYOUT}")
    x, y, named = part("x", label, grouped)
    if "split" not in found:
        return {"train": (x, y, named)}
    column = _column(arrays[found["split"]], "split", root)
    split = np.array([split_name(_split_text(value)) for value in column.tolist()])
    if len(split) != len(y):
        raise DataError(f"{root}: every row must have a split. Got {len(split)} splits and {len(y)} labels.")
    parts = {}
    for name in ordered_splits(split.tolist()):
        rows = np.flatnonzero(split == name)
        parts[name] = _rows(x, rows), y[rows], None if named is None else named[rows]
    return parts


def _column(values: np.ndarray, name: str, root: Path) -> np.ndarray:
    """Labels or splits: one-dimensional, in memory."""
    if values.ndim != 1:
        raise DataError(f"{root}: {name} must be one-dimensional. Got shape {values.shape}.")
    if values.dtype.kind == "S":
        return np.array([value.decode("utf-8", "replace") for value in values.tolist()])
    return native(np.array(values))


def _split_text(value: Any) -> str:
    """The name of a split; 0 is train, 1 val, 2 test, for formats without text."""
    if isinstance(value, str):
        return value
    if type(value) not in (int, float) or value not in (0, 1, 2):
        raise DataError(f"split must be a name, or 0 (train), 1 (val) or 2 (test). Got {value!r}.")
    return ("train", "val", "test")[int(value)]


def _rows(x: np.ndarray, chosen: np.ndarray) -> Any:
    """Rows of x: a view if they are consecutive, so that a memory map stays one."""
    together = len(chosen) and chosen[-1] - chosen[0] + 1 == len(chosen)
    return x[chosen[0] : chosen[-1] + 1] if together else RowsOnDisk.of(x)[chosen]


def read_feature_arrays(path: Path, groups: str | None = None) -> Mapping[str, np.ndarray]:
    """The arrays of a file by name, as the file has them; ``groups``: a column of .parquet that is no feature."""
    parquet = path.suffix.lower() == ".parquet"
    arrays = _read_parquet(path, groups) if parquet else _formats(path)[0](path)
    _check_names(arrays, path)
    return arrays


def _check_names(names: Iterable[str], path: Path) -> None:
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(name.lower(), name)) != name:
            raise FormatError(f"{path}: names must differ by more than case. Got {other!r} and {name!r}.")
    if "x" in found and any(name.startswith("x_") for name in found):
        raise FormatError(f"{path}: must hold X or x_train and so on. Got both. {_LAYOUT}")


def feature_model(path: Path) -> str | None:
    """The name of the model behind the features of a file, if it says so; reads nothing else."""
    model = _formats(path)[1](path)
    if model is not None and not 0 < len(model) <= MAX_MODEL:
        raise FormatError(
            f"{path}: the model name must have 1 to {MAX_MODEL} characters. Got {len(model):,}."
        )
    return model


def _formats(path: Path) -> tuple[Callable[[Path], Mapping[str, np.ndarray]], Callable[[Path], str | None]]:
    """How to read the arrays of a file, and its model."""
    known = {
        ".npz": (_read_npz, _npz_model),
        ".safetensors": (
            lambda path: read_safetensors_arrays(path)[0],
            lambda path: read_safetensors(path)[1].get("model"),
        ),
        ".parquet": (_read_parquet, lambda path: Parquet(path).metadata.get("model")),
    }
    if path.suffix.lower() not in known:
        raise FormatError(f"{path}: a feature file must be {', '.join(known)}. Got {path.suffix!r}.")
    return known[path.suffix.lower()]


def _read_npz(path: Path) -> Mapping[str, np.ndarray]:
    arrays = Arrays(path)
    return {key: arrays[key] for key in arrays if key != "model"}


def _npz_model(path: Path) -> str | None:
    arrays = Arrays(path)
    if "model" not in arrays:
        return None
    model = arrays["model"]
    if model.dtype.kind != "U" or model.size != 1:
        raise FormatError(
            f"{path}: 'model' must be text, the name of a model. Got {model.dtype} {model.shape}."
        )
    return str(model.reshape(-1)[0])


def _read_parquet(path: Path, groups: str | None = None) -> Mapping[str, np.ndarray]:
    table = Parquet(path)
    _check_names(table.names, path)
    plain = {name: name.lower() for name in table.names}
    known = (*LABEL_KEYS, "split", "groups" if groups is None else groups.lower())
    special = [name for name in plain if plain[name] in known]
    lists = [name for name in plain if plain[name] == "x"]
    columns = lists or [name for name in plain if plain[name] not in (*known, "name", "path")]
    if not columns:
        raise FormatError(f"{path}: must have columns of features. Got {listed(table.names, 30)}. {_LAYOUT}")
    _reject_index_columns(columns, path)
    _check_types(table, columns, bool(lists))
    parts: list[np.ndarray] = []
    values: dict[str, list[Any]] = {name: [] for name in special}
    for batch in table.batches([*columns, *special], PARQUET_ROWS):
        for name in special:
            values[name] += batch.column(name).to_pylist()
        part = _batch_features(batch, columns, bool(lists), path)
        check_memory(path, 4 * table.rows * part.shape[1], "its features", stored=path.stat().st_size)
        if parts and part.shape[1] != parts[0].shape[1]:
            raise FormatError(
                f"{path}: rows of x must have {parts[0].shape[1]} numbers. Got {part.shape[1]}."
            )
        parts.append(part)
    if not parts:
        raise FormatError(f"{path}: must have rows. Got none.")
    arrays = {name: _uniform(column, name, path) for name, column in values.items()}
    return {"x": np.concatenate(parts), **arrays}


def _reject_index_columns(columns: Sequence[str], path: Path) -> None:
    """Refuse the row numbers that pandas writes beside the columns: they would be a feature that tells the order of rows."""
    index = [name for name in columns if _INDEX_COLUMN.fullmatch(name)]
    if index:
        raise FormatError(
            f"{path}: columns of features must not be the index of a DataFrame. Got {listed(index)}. Save it with index=False."
        )


def _check_types(table: Parquet, columns: Sequence[str], as_lists: bool) -> None:
    """Refuse dates, text and the like, which numpy would make numbers of."""
    types = optional("pyarrow.types", "Reading .parquet")
    for name in columns:
        kind = table.types[name]
        nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        inside = kind.value_type if as_lists and nested else kind
        if (as_lists and not nested) or not (types.is_floating(inside) or types.is_integer(inside)):
            rule = "numbers, a list of them in each row" if as_lists else "numbers"
            raise FormatError(f"{table.path}: features must be {rule}. Got {kind} in {name!r}.")


def _batch_features(batch: Any, columns: Sequence[str], as_lists: bool, path: Path) -> np.ndarray:
    """float32 (rows, d) of a record batch: one column of lists, or one column per feature."""
    try:
        if as_lists:
            return np.stack([np.asarray(row, np.float32) for row in batch.column(columns[0]).to_pylist()])
        return np.stack([np.asarray(batch.column(name), dtype=np.float32) for name in columns], axis=1)
    except (TypeError, ValueError) as error:
        raise FormatError(
            f"{path}: features must be numbers, as many in every row. Got other values in {columns[0]!r}."
        ) from error


def _uniform(values: list[Any], name: str, path: Path) -> np.ndarray:
    """A column of integers or of text."""
    for kind, dtype in ((int, np.int64), (str, str)):
        if all(type(value) is kind for value in values):
            try:
                return np.array(values, dtype=dtype)
            except OverflowError:
                break
    raise FormatError(f"{path}: {name} must be integers or text in every row. Got other or missing values.")
