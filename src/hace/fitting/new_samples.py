"""New samples for a model, with labels or without, from any form of data that `hace.fit` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.anndata import feature_names, features_of, read_cells
from hace.data import Features, Samples
from hace.data.feature_files import feature_parts
from hace.data.own_lists import Texts
from hace.data.split import Split
from hace.errors import DataError, listed
from hace.files.arrays import Parquet
from hace.fitting import tables
from hace.fitting.encoding import Encoder
from hace.fitting.inputs import (
    Columns,
    check_finite,
    column_of,
    frame_of,
    is_cells,
    is_frame,
    is_table_file,
    kind_of,
    numbered,
    read,
)
from hace.lab.serve.inputs import FeatureRows, ImageList
from hace.lab.serve.predictor import ExportedPredictor, Predictor


def new_features(
    new: Any, encoder: Encoder | None, known: Sequence[str] | None, width: int, layer: str | None = None
) -> tuple[Any, list[str], dict[int, str]]:
    """The features of new samples that can be read, what all are called, and why some cannot be read, by their place.

    Args:
        new: samples in any form that `hace.fit` takes, labels not needed.
        encoder: what makes features of photos or texts; None: new data are features.
        known: the names of the features in training; None where they have none.
        width: how many features there were.
        layer: layer of an AnnData that they are in.
    """
    if encoder is not None:
        x, names, broken = encoder(new)
        return x, names, {place: reason for place, _, reason in broken}
    samples = read_unlabelled(new, None if known is None else list(known), layer)
    return aligned(samples.x, samples.features, known, width), list(samples.names), {}


def aligned(
    x: Any, names: Sequence[str] | None, known: Sequence[str] | None, width: int, source: str = "New data"
) -> Any:
    """Features in the order of the training."""
    if known is not None and names is not None and list(names) != list(known):
        place = {name: i for i, name in enumerate(names)}
        missing = [name for name in known if name not in place]
        if missing:
            raise DataError(
                f"{source} must have the {len(known):,} features of the training. Missing: {listed(missing)}."
            )
        x = x[:, [place[name] for name in known]]
    if x.shape[1] != width:
        raise DataError(f"{source} must have {width:,} features, as in training. Got {x.shape[1]:,}.")
    return x


class Unlabelled(NamedTuple):
    """New samples."""

    x: Any
    names: Sequence[str]
    features: Sequence[str] | None = None


def read_unlabelled(data: Any, wanted: Sequence[str] | None, layer: str | None = None) -> Unlabelled:
    """The features of new samples; ``wanted``: the columns of a table that the model knows, or None for all numbers."""
    if is_cells(data):
        adata = read_cells(data) if isinstance(data, (str, Path)) else data
        obsm = _embedding(wanted, adata)
        x = features_of(adata, np.arange(adata.n_obs), layer, obsm)
        samples = Unlabelled(x, [str(name) for name in adata.obs_names], feature_names(adata, obsm))
    elif is_table_file(data):
        samples = _frame_rows(frame_of(Path(data)), wanted, Path(data).name)
    elif is_frame(data):
        frame = data.copy(deep=False) if hasattr(data, "itertuples") else data.to_pandas()
        samples = _frame_rows(frame, wanted, "The table")
    elif isinstance(data, (str, Path)):
        parts = feature_parts(Path(data))
        names = [
            f"{part}/{i:06d}" if part else f"row {i}" for part, x in parts.items() for i in range(len(x))
        ]
        samples = Unlabelled(np.concatenate([np.asarray(x, np.float32) for x in parts.values()]), names)
    else:
        x = data.detach().cpu().numpy() if hasattr(data, "detach") else data
        x = x if hasattr(x, "tocsr") else np.asarray(x)
        if x.ndim == 1:
            x = x[None]
        if x.ndim != 2 or x.dtype.kind not in "biuf":
            raise DataError(f"New data must be numbers (M, d). Got {x.dtype} {x.shape}.")
        samples = Unlabelled(x, numbered(x.shape[0]))
    check_finite(samples.x, samples.names, samples.features)
    return samples


def columns_for(
    data: Any, known: Sequence[str] | None, layer: str | None, label: str | Sequence[str] | None = None
) -> Columns:
    """How labelled samples are read for a model: with the features of the training, where their kind names features."""
    kind = kind_of(data)
    obsm = None
    if "obsm" in kind.takes and known:
        obsm = _embedding(known, read_cells(data) if isinstance(data, (str, Path)) else data)
    return Columns(
        label=label,
        features=known if "features" in kind.takes else None,
        layer=layer if "layer" in kind.takes else None,
        obsm=obsm,
    )


def _embedding(wanted: Sequence[str] | None, adata: Any) -> str | None:
    """The key of the embedding whose features have these names; None: they are genes."""
    key = wanted[0].rpartition(":")[0] if wanted else ""
    return key if key in adata.obsm else None


def _frame_rows(frame: Any, wanted: Sequence[str] | None, source: str) -> Unlabelled:
    frame.columns = [str(name) for name in frame.columns]
    if wanted is None:
        wanted = [name for name in frame.columns if frame[name].dtype.kind in "biuf"]
        if not wanted:
            raise DataError(
                f"{source} must have columns of numbers. Got {listed(list(frame.columns), 30) or 'none'}."
            )
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise DataError(
            f"{source} must have the {len(wanted):,} columns of the training. Missing: {listed(missing)}."
        )
    names = [str(i) for i in frame.index] if frame.index.dtype == object else numbered(len(frame))
    return Unlabelled(tables.numbers(frame, wanted, source)[0], names, wanted)


def opened(
    predictor: Predictor,
    paths: Sequence[str],
    column: str | None = None,
    boxes: Mapping[str, Any] | None = None,
    groups: str | None = None,
) -> ImageList | FeatureRows:
    """What :meth:`Predictor.inputs` opens; for a model of features also a table of them, or cells.

    Args:
        predictor: the model.
        paths: what to read.
        column: column of texts, for a model of texts.
        boxes: how to crop photos.
        groups: column of groups.
    """
    if predictor.kinds != ["features"] or len(paths) > 1 or not _is_table(Path(paths[0])):
        return predictor.inputs(list(paths), column, boxes, groups)
    path = Path(paths[0])
    known = predictor.feature_names
    samples = read_unlabelled(path, known, predictor.layer)
    x = aligned(samples.x, samples.features, known, predictor.width, path.name)
    rows = [(samples.names, x.toarray() if hasattr(x, "toarray") else x)]
    return FeatureRows(rows, groups=None if groups is None else _groups(path, groups))


def labelled_samples(predictor: ExportedPredictor, path: Path) -> Split:
    """Labelled samples of a file or folder, over the hierarchy of a model and with its features."""
    h = predictor.hierarchy
    known = predictor.feature_names
    given = read(path, None, h, columns_for(path, known, predictor.layer))
    place = np.array([h.index(node) for node in given.hierarchy.nodes])
    nodes = place[given.nodes]
    names = list(given.names)
    groups = given.groups
    if given.x is not None:
        x = aligned(given.x, given.features, known, predictor.width, path.name)
        x = x.toarray() if hasattr(x, "tocsr") else np.asarray(x)
        return Features(h, nodes, names, x.astype(np.float32), groups=groups)
    if given.kind == "photos":
        about: Any = {"boxes": given.boxes, "relative": given.boxes is not None}
        return Samples(h, nodes, names, paths=given.items, groups=groups, **about)
    return Texts(h, nodes, names, texts=list(given.items or ()), groups=groups)


def _is_table(path: Path) -> bool:
    """Whether a file is a table with a column for each feature, or cells."""
    if not path.is_file() or not is_table_file(path):
        return is_cells(path)
    return path.suffix.lower() != ".parquet" or not Parquet(path).holds_lists


def _groups(path: Path, name: str) -> list[str]:
    """The group of each row, from a column."""
    table = read_cells(path).obs if is_cells(path) else frame_of(path)
    known = {str(column).casefold(): str(column) for column in table.columns}
    column = tables.column_named(name, known, "groups", path.name)
    return np.asarray(column_of(table, column, len(table), "groups")).tolist()
