"""What is this data: one table of kinds, each with how it looks and how it is read into :class:`Given`.

A caller may say what columns mean (:class:`Columns`). What they leave open is taken from names and contents, and listed in
the notes; what names and contents leave open is asked in one message that names the option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.data import Dataset, Samples
from hace.data.coco import is_coco, load_coco
from hace.data.feature_files import feature_splits, read_feature_arrays
from hace.data.folders import load_folders
from hace.data.label_studio import is_export, load_label_studio
from hace.data.loading import IMAGE_SUFFIXES, OWN_PATHS, check_exist, image_files
from hace.errors import ConfigError, DataError, FormatError
from hace.files.arrays import Parquet
from hace.files.documents import read_json, read_rows
from hace.files.reading import max_memory, optional
from hace.files.weights import first_line
from hace.fitting import tables
from hace.fitting.labels import labels_of, within_labels
from hace.formats.given import as_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.assembly import IntArray
from hace.linear.features import RowsOnDisk

FEATURE_FILES = (".npz", ".safetensors")
TABLE_FILES = (".csv", ".tsv", ".parquet")
CELL_TYPES = ("cell_type", "celltype", "cell_ontology_class", "cell_label", "annotation", "label", "labels")
_ROWS = 65_536  # of a table that are read at once
_AT_ONCE = 1_024  # features on disk that are checked at once


@dataclass(frozen=True)
class Columns:
    """What the caller says about columns; None: found by name and content.

    Attributes:
        label: column of labels, or one column per rank, from the top down.
        split: column of splits, train, val and test; or an array of them.
        groups: column of groups that no split may cut, such as sites; or an array of them.
        features: columns of features.
        image: column of paths of photos.
        text: column of texts.
        layer: layer of an AnnData with the features.
        obsm: key of an AnnData's embeddings with the features.
    """

    label: str | Sequence[str] | None = None
    split: Any = None
    groups: Any = None
    features: Sequence[str] | None = None
    image: str | None = None
    text: str | None = None
    layer: str | None = None
    obsm: str | None = None


@dataclass(frozen=True, eq=False)
class Given:
    """Samples with labels, as they were found.

    Attributes:
        kind: "features", "table", "cells", "photos" or "texts".
        x: (M, d) features, dense or sparse; of photos and texts None until they are encoded.
        nodes: (M,) node indices of labels.
        hierarchy: the taxonomy.
        names: what each sample is called.
        features: names of the features, or None.
        split: (M,) the user's splits, or None.
        groups: (M,) the user's groups, or None.
        items: paths of photos, or texts, which an encoder makes features of.
        boxes: (M, 4) the part of each photo to use, as shares of its sides; None for all of it.
        source: where photos or texts come from.
        column: the column of texts, for new tables.
        standardised: whether columns are measurements in units of their own, to be standardised.
        layer: layer of an AnnData that the features are in, or None.
        notes: what was decided, and what is odd, one sentence each.
    """

    kind: str
    x: Any
    nodes: IntArray
    hierarchy: Hierarchy
    names: Sequence[str]
    features: Sequence[str] | None = None
    split: np.ndarray | None = None
    groups: np.ndarray | None = None
    items: Sequence[Any] | None = None
    boxes: np.ndarray | None = None
    source: str = ""
    column: str | None = None
    standardised: bool = False
    layer: str | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.nodes)

    def rows(self, chosen: IntArray) -> Given:
        """Some of the samples."""
        part: dict[str, Any] = {"nodes": self.nodes[chosen]}
        for name in ("x", "split", "groups", "boxes"):
            values = getattr(self, name)
            part[name] = None if values is None else values[chosen]
        places = chosen.tolist()
        items = None if self.items is None else [self.items[i] for i in places]
        return replace(self, names=[self.names[i] for i in places], items=items, **part)


class Kind(NamedTuple):
    """A kind of data; ``takes``: the columns that a caller may name."""

    name: str
    looks_like: Callable[[Any], bool]
    read: Callable[[Any, Any, Any, Columns], Given]
    takes: frozenset[str]


def read(data: Any, y: Any = None, hierarchy: Any = None, columns: Columns | None = None) -> Given:
    """The samples that have a label, checked.

    Args:
        data: what :data:`KINDS` lists.
        y: labels of arrays; None: they are in the data.
        hierarchy: the taxonomy, or what makes one; None: what labels spell out.
        columns: what columns mean.
    """
    kind = kind_of(data)
    columns = columns or Columns()
    _check_columns(kind, columns)
    if y is not None and columns.label is not None:
        raise ConfigError("label must come without y: both say what the labels are. Leave one of them out.")
    return _labelled(kind.read(data, y, hierarchy, columns))


def kind_of(data: Any) -> Kind:
    """The kind of what is given."""
    if isinstance(data, (str, Path)) and not Path(data).exists():
        raise FormatError(f"{data} does not exist. Give a file or folder that does.")
    kind = next((kind for kind in KINDS if kind.looks_like(data)), None)
    if kind is None:
        raise ConfigError(_not_data(data))
    return kind


def _check_columns(kind: Kind, columns: Columns) -> None:
    """Refuse columns that a kind of data does not have."""
    problems = []
    for field in fields(Columns):
        value = getattr(columns, field.name)
        if value is None or value is False or field.name in kind.takes:
            continue
        name = "columns" if field.name == "features" else field.name
        others = " or ".join(kind.name for kind in KINDS if field.name in kind.takes)
        problems.append(f"{name} must come with {others}. Got {kind.name}. Leave it out.")
    if problems:
        raise ConfigError(problems)


def _not_data(data: Any) -> str:
    """Why something is no data: what would be, and for a file what it is good for."""
    if not isinstance(data, (str, Path)):
        return (
            f"Data must be one of these: {', '.join(kind.name for kind in KINDS)}. Got {type(data).__name__}."
        )
    path = Path(data)
    known = ", ".join(kind.name for kind in KINDS if "." in kind.name or "folder" in kind.name)
    remedy = _REMEDIES.get("photo" if path.suffix.lower() in IMAGE_SUFFIXES else path.suffix.lower(), "")
    return f"Data must be one of these: {known}. Got {path.name}.{remedy.format(path=path)}"


_REMEDIES = {
    ".hace": " A model is used by `hace predict {path} NEW`.",
    ".xlsx": " Save the sheet as CSV.",
    ".xls": " Save the sheet as CSV.",
    ".npy": " An array holds no labels: save both, np.savez('features.npz', X=X, y=y).",
    "photo": " Give the folder with the photos, or a table with their paths.",
}


def check_enough(given: Given) -> Given:
    """The samples, if they are enough to learn from, with a note about classes that have one."""
    h = given.hierarchy
    counts = np.bincount(given.nodes, minlength=h.num_nodes)[h.leaf_nodes]
    if (counts > 0).sum() < 2:
        one = h.names[h.leaf_nodes[int(counts.argmax())]] if counts.any() else "none"
        raise DataError(
            f"Labels must be of two classes or more. Got samples of {(counts > 0).sum()}: {one!r}. Add samples of another "
            "class."
        )
    single = int((counts == 1).sum())
    if single == (counts > 0).sum():
        raise DataError(
            f"Labels must be of classes with two samples or more. Got {single:,} classes with one sample each, such as "
            f"{h.names[h.leaf_nodes[int(counts.argmax())]]!r}. If these are measurements or names of samples, name the "
            "column of classes: label= (--label)."
        )
    if not single:
        return given
    has = "has" if single == 1 else "have"
    note = f"{single:,} of {h.num_leaves:,} classes {has} a single sample, which trains and is never tested."
    return replace(given, notes=(*given.notes, note))


def _labelled(given: Given) -> Given:
    """The samples that have a label, if their features are finite."""
    labelled = np.flatnonzero(given.nodes >= 0)
    notes = list(given.notes)
    if len(labelled) < len(given):
        notes.append(
            f"{len(given) - len(labelled):,} of {len(given):,} samples have no label and are left out."
        )
        given = given.rows(labelled)
    if given.x is not None:
        check_finite(given.x, given.names, given.features)
    return replace(given, notes=tuple(notes))


def check_finite(x: Any, names: Sequence[str], features: Sequence[str] | None) -> None:
    """Refuse features (M, d) that are NaN or infinite; messages name a sample and, where they have names, a feature."""
    if isinstance(x, RowsOnDisk):
        for first in range(0, len(names), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            check_finite(np.asarray(x[part]), names[part], features)
        return
    values = x.data if hasattr(x, "tocsr") else x
    if not values.size or np.isfinite(values.sum(dtype=np.float64)):
        return
    if values.ndim == 1:
        if not np.isfinite(values).all():
            raise DataError("Features must be finite. Some are NaN or infinite. Drop or fill them.")
        return
    bad = ~np.isfinite(values).all(axis=1)
    if not bad.any():
        return
    row = int(np.flatnonzero(bad)[0])
    column = int(np.flatnonzero(~np.isfinite(values[row]))[0])
    what = f"column {column}" if features is None else repr(str(features[column]))
    raise DataError(
        f"Features must be finite. {int(bad.sum()):,} of {len(values):,} samples hold NaN or infinite values; the first is "
        f"{names[row]}, in {what}. Fill or drop them."
    )


# --- arrays


def _is_array(data: Any) -> bool:
    """Whether data are an array, or rows of numbers in lists."""
    if isinstance(data, (list, tuple)):
        return len(data) > 0 and all(isinstance(row, (list, tuple)) or hasattr(row, "shape") for row in data)
    return hasattr(data, "shape") and hasattr(data, "dtype")


def _read_array(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    """Samples from an array of features and labels."""
    if y is None:
        raise ConfigError("y must hold the labels of an array of features. Got None.")
    if isinstance(data, (list, tuple)):
        data = _of_rows(data)
    if len(data.shape) != 2:
        raise DataError(f"X must be (M, d), one row per sample. Got shape {tuple(data.shape)}.")
    if hasattr(data, "detach"):
        data = data.detach().cpu().numpy()
    if not hasattr(data, "tocsr"):
        data = RowsOnDisk.of(np.asarray(data))
    else:
        data = data.tocsr()
    if data.dtype.kind not in "biuf":
        raise DataError(
            f"X must hold numbers. Got {data.dtype}. Give a DataFrame where some columns are text."
        )
    if not data.shape[1]:
        raise DataError(f"X must have at least one column. Got shape {data.shape}.")
    labels = labels_of(y, hierarchy, "y")
    _check_length(labels.nodes, data.shape[0], "y")
    return Given(
        "features",
        data,
        labels.nodes,
        labels.hierarchy,
        numbered(data.shape[0]),
        split=_of_samples(columns.split, data.shape[0], "split"),
        groups=_of_samples(columns.groups, data.shape[0], "groups"),
        notes=labels.notes,
    )


def _of_rows(rows: Sequence[Any]) -> np.ndarray:
    """Rows in lists as one array."""
    try:
        return np.array([np.asarray(row) for row in rows])
    except ValueError as error:  # rows of different lengths
        raise DataError(
            f"X must be (M, d), one row per sample. Got rows of different shapes: {first_line(error)}"
        ) from error


def numbered(count: int) -> list[str]:
    """Names of rows without names."""
    return [f"row {i}" for i in range(count)]


def _check_length(values: Any, samples: int, name: str) -> None:
    if len(values) != samples:
        raise DataError(
            f"{name} must have one entry for each of the {samples:,} samples. Got {len(values):,}."
        )


def _of_samples(values: Any, samples: int, name: str) -> np.ndarray | None:
    """An array with an entry for each sample; None for none."""
    if values is None or values is False:
        return None
    if isinstance(values, str):
        raise ConfigError(
            f"{name} must be an array with an entry for each sample, because these data have no columns. Got {values!r}."
        )
    entries = np.asarray(values)
    if entries.ndim != 1:
        raise DataError(f"{name} must be one-dimensional. Got shape {entries.shape}.")
    _check_length(entries, samples, name)
    return entries.astype(str)


# --- tables


def is_frame(data: Any) -> bool:
    """Whether data are a DataFrame."""
    return hasattr(data, "columns") and (hasattr(data, "itertuples") or hasattr(data, "iter_rows"))


def _read_frame(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    frame = data.copy(deep=False) if hasattr(data, "itertuples") else data.to_pandas()
    names = [str(i) for i in frame.index] if frame.index.dtype == object else numbered(len(frame))
    return _of_table(frame, y, hierarchy, columns, names)


def is_table_file(data: Any) -> bool:
    """Whether data are a file of a table, or of features as .parquet."""
    return isinstance(data, (str, Path)) and Path(data).suffix.lower() in TABLE_FILES


def _read_table_file(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    path = Path(data)
    frame = frame_of(path)
    return _of_table(frame, y, hierarchy, columns, numbered(len(frame)), path)


def frame_of(path: Path) -> Any:
    """The pandas DataFrame of a table file."""
    pd = optional("pandas", "Reading a table", "data")
    if path.suffix.lower() == ".parquet":
        table = Parquet(path)
        parts = [batch.to_pandas() for batch in table.batches(table.names, _ROWS)]
        if not parts:
            raise DataError(f"{path} must have rows. Got none.")
        return pd.concat(parts, ignore_index=True)
    header, rows = read_rows(path)
    if not rows:
        raise DataError(f"{path} must have rows below its header. Got none.")
    frame = pd.DataFrame([row for _, row in rows], columns=list(header))
    return frame.mask(frame == "", None)


def _of_table(
    frame: Any, y: Any, hierarchy: Any, columns: Columns, names: Sequence[str], path: Path | None = None
) -> Given:
    """Samples from a DataFrame: its columns say what each is, unless the caller does."""
    source = "The table" if path is None else path.name
    roles = tables.roles_of(frame, columns, hierarchy, labelled=y is not None, source=source)
    labels = labels_of(frame[roles.label] if y is None else y, hierarchy, f"{source}: labels")
    _check_length(labels.nodes, len(frame), "y")
    x = None
    notes = ()
    items = None
    features = None
    if roles.items is None:
        x, notes = tables.numbers(frame, roles.features, source)
        features = roles.features
    else:
        items = [str(item).strip() for item in frame[roles.items].fillna("")]
        if empty := [i for i, item in enumerate(items) if not item]:
            raise DataError(
                f"{source}: {roles.items!r} must not be empty. {len(empty):,} rows are; the first is {empty[0]}."
            )
    if roles.kind == "photos":
        assert items is not None
        folder = Path() if path is None else path.parent
        names = items
        items = [folder / image for image in check_exist(folder, items, OWN_PATHS)]
    return Given(
        roles.kind,
        x,
        labels.nodes,
        labels.hierarchy,
        names,
        features=features,
        items=items,
        source=str(path or ""),
        column=roles.items if roles.kind == "texts" else None,
        split=column_of(frame, roles.split, len(frame), "split"),
        groups=column_of(frame, roles.groups, len(frame), "groups"),
        standardised=roles.items is None,
        notes=(*roles.notes, *labels.notes, *notes),
    )


def column_of(frame: Any, values: Any, samples: int, name: str) -> np.ndarray | None:
    """The entries of a column, or of an array that was given in its place; None where there is neither."""
    if not isinstance(values, str):
        return _of_samples(values, samples, name)
    column = frame[values]
    if column.isna().any():
        raise DataError(
            f"{values!r} must name the {name} of every sample. {int(column.isna().sum()):,} of {samples:,} are empty."
        )
    return column.astype(str).to_numpy()


# --- feature files


def _is_feature_file(data: Any) -> bool:
    if not isinstance(data, (str, Path)):
        return False
    path = Path(data)
    suffix = path.suffix.lower()
    return suffix in FEATURE_FILES or (suffix == ".parquet" and Parquet(path).holds_lists)


def _read_feature_file(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    """Samples from a file of features, which holds labels, and perhaps splits and groups."""
    path = Path(data)
    if y is not None:
        raise ConfigError(f"y must be None: {path.name} holds its labels.")
    named = columns.groups if isinstance(columns.groups, str) else None
    if named is None and columns.groups is not None and columns.groups is not False:
        kind = type(columns.groups).__name__
        raise ConfigError(f"groups must be the name of an array in {path.name}. Got {kind}.")
    parts = feature_splits(read_feature_arrays(path, named), path, named)
    splits = np.repeat(list(parts), [len(part.y) for part in parts.values()])
    x = _joined([part.x for part in parts.values()])
    labels = labels_of(np.concatenate([part.y for part in parts.values()]), hierarchy, f"{path.name}: labels")
    groups = [part.groups for part in parts.values() if part.groups is not None]
    has_groups = len(groups) == len(parts) and columns.groups is not False
    grouped = np.concatenate(groups).astype(str) if has_groups else None
    return Given(
        "features",
        x,
        labels.nodes,
        labels.hierarchy,
        [f"{name}/{i:06d}" for name, part in parts.items() for i in range(len(part.y))],
        split=splits if len(parts) > 1 else None,
        groups=grouped,
        notes=labels.notes,
    )


def _joined(parts: Sequence[Any]) -> Any:
    """Features of one part after another: float32 in memory, or on disk where that would exceed HACE_MAX_MEMORY."""
    if 4 * sum(x.shape[0] * x.shape[1] for x in parts) > max_memory():
        return RowsOnDisk.joined(parts)
    return np.concatenate([np.asarray(x, dtype=np.float32) for x in parts])


def in_memory(x: Any) -> Any:
    """Features as they are, or rows on disk read into memory."""
    return np.asarray(x) if isinstance(x, RowsOnDisk) else x


# --- photos and texts


def _is_folder(data: Any) -> bool:
    return isinstance(data, (str, Path)) and Path(data).is_dir()


def _read_folder(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    """Photos in folders named after what they show."""
    if y is not None:
        raise ConfigError("y must be None for a folder of photos: its folders are the labels.")
    if not image_files(Path(data)):
        raise DataError(
            f"{data} must hold photos, in folders named after what they show, such as gull/1.jpg. Got none. A table, a "
            "feature file or an .h5ad is given by the name of the file."
        )
    h = None if hierarchy is None else as_hierarchy(hierarchy)
    return _of_dataset(load_folders(Path(data), h, allow_empty=True), str(data), columns)


def _of_dataset(data: Dataset[Any], source: str, columns: Columns) -> Given:
    """Photos or texts of a dataset, over the part of the hierarchy that has labels."""
    parts = data.splits
    every = type(next(iter(parts.values()))).joined(list(parts.values()))
    labels = within_labels(every.nodes, data.hierarchy)
    splits = np.repeat(list(parts), [len(part) for part in parts.values()])
    photos = isinstance(every, Samples)
    groups = every.groups if columns.groups is None else _of_samples(columns.groups, len(every), "groups")
    return Given(
        "photos" if photos else "texts",
        None,
        labels.nodes,
        labels.hierarchy,
        every.names,
        split=splits if len(parts) > 1 else None,
        groups=groups,
        items=list((every.paths if photos else every.texts) or ()),
        boxes=every.boxes if photos else None,
        source=source,
        column=(data.source or {}).get("column"),
        notes=labels.notes,
    )


# --- annotations


# How a document looks, and what reads it.
ANNOTATIONS = (
    (is_coco, load_coco),
    (is_export, load_label_studio),
)


def _is_annotations(data: Any) -> bool:
    return isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".json"


def _read_annotations(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    """Boxes or answers of annotators, told apart by what the document holds."""
    if y is not None:
        raise ConfigError("y must be None for annotations: they hold the labels.")
    path = Path(data)
    document = read_json(data)
    load = next((load for fits, load in ANNOTATIONS if fits(document)), None)
    if load is None:
        raise FormatError(
            f"{path} must be COCO annotations (images, annotations, categories) or an export of Label Studio. Got neither."
        )
    h = None if hierarchy is None else as_hierarchy(hierarchy)
    return _of_dataset(load(path, h, allow_empty=True), str(path), columns)


def _is_list_of_words(data: Any) -> bool:
    """Whether data are words in a list, a column or an array."""
    in_a_row = isinstance(data, Sequence) or hasattr(data, "to_list") or getattr(data, "ndim", 0) == 1
    if isinstance(data, (str, bytes)) or not in_a_row:
        return False
    return len(data) > 0 and all(isinstance(item, (str, Path)) for item in data)


def _read_words(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    """Paths of photos, or texts."""
    if y is None:
        raise ConfigError("y must hold the labels of a list of photos or texts. Got None.")
    items = [str(item) for item in data]
    photos = all(item.lower().endswith(tuple(IMAGE_SUFFIXES)) for item in items)
    labels = labels_of(y, hierarchy, "y")
    _check_length(labels.nodes, len(items), "y")
    return Given(
        "photos" if photos else "texts",
        None,
        labels.nodes,
        labels.hierarchy,
        items if photos else numbered(len(items)),
        split=_of_samples(columns.split, len(items), "split"),
        groups=_of_samples(columns.groups, len(items), "groups"),
        items=[Path(item) for item in check_exist(Path(), items, OWN_PATHS)] if photos else items,
        notes=labels.notes,
    )


# --- cells


def is_cells(data: Any) -> bool:
    """Whether data are an AnnData or its file."""
    path = isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".h5ad"
    return path or type(data).__name__ == "AnnData"


def _read_cells(data: Any, y: Any, hierarchy: Any, columns: Columns) -> Given:
    """Samples from annotated cells: the genes or an embedding, and the types in a column of obs."""
    from hace.anndata import feature_names, features_of, read_cells

    adata: Any = read_cells(data) if isinstance(data, (str, Path)) else data
    known = {str(name).casefold(): name for name in adata.obs.columns}
    label = columns.label
    if y is None and label is None:
        label = next((known[name] for name in CELL_TYPES if name in known), None)
        if label is None:
            raise ConfigError(
                f"obs must have a column of cell types. Got {', '.join(map(repr, adata.obs.columns))}. Name it: label='...' "
                "(--label)."
            )
    values = y
    if values is None:
        named = [label] if isinstance(label, str) else list(label or ())
        values = adata.obs[[tables.column_named(name, known, "label", "obs") for name in named]].astype(
            object
        )
    labels = labels_of(values, hierarchy, f"obs[{label!r}]")
    split, groups, found = tables.splits_and_groups(adata.obs, columns, "obs")
    x = features_of(adata, np.arange(adata.n_obs), columns.layer, columns.obsm)
    return Given(
        "cells",
        x,
        labels.nodes,
        labels.hierarchy,
        [str(name) for name in adata.obs_names],
        features=feature_names(adata, columns.obsm),
        split=column_of(adata.obs, split, adata.n_obs, "split"),
        groups=column_of(adata.obs, groups, adata.n_obs, "groups"),
        layer=columns.layer,
        notes=(*found, *labels.notes),
    )


_TABLE_COLUMNS = frozenset({"label", "split", "groups", "features", "image", "text"})

KINDS: tuple[Kind, ...] = (
    Kind(
        "AnnData or .h5ad",
        is_cells,
        _read_cells,
        frozenset({"label", "split", "groups", "layer", "obsm"}),
    ),
    Kind("a folder of photos", _is_folder, _read_folder, frozenset({"groups"})),
    Kind(
        "annotations of COCO or Label Studio (.json)",
        _is_annotations,
        _read_annotations,
        frozenset({"groups"}),
    ),
    Kind("a DataFrame", is_frame, _read_frame, _TABLE_COLUMNS),
    Kind(
        "a feature file (.npz, .safetensors, .parquet)",
        _is_feature_file,
        _read_feature_file,
        frozenset({"groups"}),
    ),
    Kind("a table (.csv, .tsv, .parquet)", is_table_file, _read_table_file, _TABLE_COLUMNS),
    Kind("a list of photos or texts", _is_list_of_words, _read_words, frozenset({"split", "groups"})),
    Kind("an array of features", _is_array, _read_array, frozenset({"split", "groups"})),
)
"""What `hace.fit` takes, by how it looks; the first that fits reads it."""
