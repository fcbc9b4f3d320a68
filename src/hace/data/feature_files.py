"""Frozen features from files: .npz, .safetensors or .parquet. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.data.dataset import Dataset
from hace.data.loading import LABEL_OPTION, HierarchyLike, check_classes, chosen_hierarchy, group_column
from hace.data.split import Features, ordered_splits, split_name
from hace.errors import DataError, FormatError, listed
from hace.files.arrays import INDEX_COLUMN, Arrays, Parquet, native, read_array
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
    arrays = read_feature_arrays(root, groups)
    model = feature_model(root)
    splits = {}
    for split, part in feature_splits(arrays, root, groups).items():
        nodes = label_nodes(part.y, h, label_kind, f"{root}: labels of {split}", LABEL_OPTION)
        splits[split] = _features(h, part.x, nodes, split, root, part.groups)
    if not allow_empty:
        check_classes(str(root), h, splits.values())
    return Dataset(root.stem, h, splits, model)


def training_features(
    root: Path, hierarchy: Hierarchy | None = None, *, label_kind: str = "auto"
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Features, labels and classes of the training samples that have a class; by default the labels in natural order."""
    if hierarchy is None:
        labels = [part.y for part in feature_splits(read_feature_arrays(root), root).values()]
        for y in labels:
            if y.dtype.kind not in "iuU" or (y.dtype.kind == "i" and (y < 0).any()):
                got = f"{y.min()}" if y.dtype.kind == "i" else f"{y.dtype}"
                raise DataError(f"{root}: labels must be integers from 0 on, or text. Got {got}.")
        classes = {str(value) for y in labels for value in np.unique(y).tolist()}
        hierarchy = Hierarchy.flat(sorted(classes, key=natural_key))
        label_kind = "id"
    train = load_features(root, hierarchy, label_kind=label_kind, allow_empty=True)["train"]
    label = hierarchy.labels[train.nodes]
    return train.x[label >= 0], label[label >= 0], hierarchy.leaves


def feature_groups(path: Path, groups: str, parts: Sequence[str]) -> list[str]:
    """The groups of all rows of a feature file, part by part as :func:`feature_parts` has them."""
    arrays = read_feature_arrays(path, groups)
    lower = {name.lower(): array for name, array in arrays.items()}
    wanted = [f"{groups}_{part}".lower() if part else groups.lower() for part in parts]
    missing = next((name for name in wanted if name not in lower), None)
    if missing is not None:
        raise DataError(f"{path}: must have an array {missing!r} of groups. Got {listed(arrays, 30)}.")
    return [str(group) for name in wanted for group in _column(lower[name], name, path).tolist()]


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


class Part(NamedTuple):
    """The features of a split, their labels and, where there are any, the groups of the samples."""

    x: Any
    y: np.ndarray
    groups: np.ndarray | None


def feature_splits(
    arrays: Mapping[str, np.ndarray], root: Path, groups: str | None = None
) -> dict[str, Part]:
    """The splits of a feature file's arrays, from either layout."""
    lower = {name.lower(): array for name, array in arrays.items()}
    splits = [name[2:] for name in lower if name.startswith("x_")]
    names_groups = any(name == "groups" or name.startswith("groups_") for name in lower)
    if groups is not None or not names_groups:
        columns = {name.rpartition("_")[0] if splits else name for name in lower}
        group_column(columns, groups, str(root))
    grouped = "groups" if groups is None else groups.lower()
    if splits:
        return _splits_by_name(lower, splits, grouped, root)
    return _splits_by_column(lower, grouped, root)


def _splits_by_name(
    arrays: Mapping[str, np.ndarray], splits: Sequence[str], grouped: str, root: Path
) -> dict[str, Part]:
    """From x_train, y_train, x_test, y_test and so on."""
    alone = next((split for split in splits if f"y_{split}" not in arrays), None)
    if alone is not None:
        raise FormatError(f"{root}: every x_ must have its y_. Got x_{alone} alone. {_LAYOUT}")
    own_names = {split_name(split): split for split in splits}
    if len(own_names) < len(splits):
        raise FormatError(f"{root}: every split must occur once. Got {', '.join(splits)}.")
    parts = {}
    for name in ordered_splits(own_names):
        split = own_names[name]
        parts[name] = _part(arrays, f"x_{split}", f"y_{split}", f"{grouped}_{split}", root)
    return parts


def _splits_by_column(arrays: Mapping[str, np.ndarray], grouped: str, root: Path) -> dict[str, Part]:
    """From X, y and, if there are several splits, split."""
    label = next((key for key in LABEL_KEYS if key in arrays), None)
    if "x" not in arrays or label is None:
        raise FormatError(f"{root}: must hold X and y. Got {listed(arrays, 30) or 'nothing'}. {_LAYOUT}")
    whole = _part(arrays, "x", label, grouped, root)
    if "split" not in arrays:
        return {"train": whole}
    column = _column(arrays["split"], "split", root)
    split_of = np.array([split_name(_split_text(value)) for value in column.tolist()])
    if len(split_of) != len(whole.y):
        raise DataError(
            f"{root}: every row must have a split. Got {len(split_of)} splits and {len(whole.y)} labels."
        )
    parts = {}
    for name in ordered_splits(split_of.tolist()):
        rows = np.flatnonzero(split_of == name)
        groups = None if whole.groups is None else whole.groups[rows]
        parts[name] = Part(_rows(whole.x, rows), whole.y[rows], groups)
    return parts


def _part(arrays: Mapping[str, np.ndarray], x_key: str, y_key: str, group_key: str, root: Path) -> Part:
    """Features with their labels and groups, of the same length."""
    x = arrays[x_key]
    y = _column(arrays[y_key], y_key, root)
    _check_rows(x, root, y)
    if group_key not in arrays:
        return Part(x, y, None)
    groups = _column(arrays[group_key], group_key, root)
    has_empty = groups.dtype.kind == "U" and bool((groups == "").any())
    if len(groups) != len(y) or groups.dtype.kind not in "iuU" or has_empty:
        got = f"{len(groups):,} entries of {groups.dtype}{', some empty' if has_empty else ''}"
        raise DataError(
            f"{root}: {group_key} must name a group for each of {len(y):,} samples, text or integers. Got {got}."
        )
    return Part(x, y, groups)


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
    are_consecutive = len(chosen) and chosen[-1] - chosen[0] + 1 == len(chosen)
    return x[chosen[0] : chosen[-1] + 1] if are_consecutive else RowsOnDisk.of(x)[chosen]


def read_feature_arrays(path: Path, groups: str | None = None) -> Mapping[str, np.ndarray]:
    """The arrays of a file by name, as the file has them; ``groups``: a column of .parquet that is no feature."""
    parquet = path.suffix.lower() == ".parquet"
    arrays = _read_parquet(path, groups) if parquet else _formats(path)[0](path)
    _check_names(arrays, path)
    return arrays


def _check_names(names: Iterable[str], path: Path) -> None:
    lower: dict[str, str] = {}
    for name in names:
        other = lower.setdefault(name.lower(), name)
        if other != name:
            raise FormatError(f"{path}: names must differ by more than case. Got {other!r} and {name!r}.")
    if "x" in lower and any(name.startswith("x_") for name in lower):
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
    """The columns of a table: "x", (M, d) features in rows, and those of labels, splits and groups."""
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
    index = [name for name in columns if INDEX_COLUMN.fullmatch(name)]
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
