"""The datasets by name, and what loads them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hace.checks import check_choice
from hace.data.camera_traps import load_camera_traps
from hace.data.class_folders import load_cars, load_cub200
from hace.data.coco import load_coco
from hace.data.creatures import creatures
from hace.data.dataset import Dataset
from hace.data.feature_files import load_features
from hace.data.folders import load_folders
from hace.data.label_studio import load_label_studio
from hace.data.loading import HierarchyLike
from hace.data.own_lists import load_manifest, load_texts
from hace.data.published import load_aircraft, load_cifar100, load_nabirds
from hace.data.synthetic import synthetic_features, synthetic_images
from hace.errors import ConfigError, DataError, FormatError, nearest
from hace.formats import read_hierarchy


@dataclass(frozen=True)
class DatasetKind:
    """A dataset that `load_dataset` can load."""

    title: str
    load: Callable[..., Dataset[Any]]
    size: int | None = None  # side of the images that models see
    official: bool = False  # published by others: oddities are noted, not refused

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        parameters = inspect.signature(self.load).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def takes(self, name: str) -> bool:
        """Whether its loader has this parameter: "root" if it has files, "download" if it can be fetched."""
        return name in inspect.signature(self.load).parameters


DATASETS: dict[str, DatasetKind] = {
    "cifar100": DatasetKind("CIFAR-100", load_cifar100, 32, official=True),
    "aircraft": DatasetKind("FGVC-Aircraft", load_aircraft, 224, official=True),
    "nabirds": DatasetKind("NABirds", load_nabirds, 224, official=True),
    "cub200": DatasetKind("CUB-200-2011", load_cub200, 224),
    "cars": DatasetKind("Stanford Cars", load_cars, 224),
    "folders": DatasetKind("your images, a folder for each class", load_folders, 224),
    "manifest": DatasetKind("your images, by a CSV list", load_manifest, 224),
    "texts": DatasetKind("your texts, a column of a CSV table", load_texts),
    "camera-traps": DatasetKind("your camera traps, by their table", load_camera_traps, 224),
    "coco": DatasetKind("your boxes, by COCO annotations", load_coco, 224),
    "label-studio": DatasetKind("your annotations, an export of Label Studio", load_label_studio, 224),
    "features": DatasetKind("your features, from a file", load_features),
    "creatures": DatasetKind("photos of drawn creatures", creatures, 64),
    "synthetic": DatasetKind("synthetic images", synthetic_images, 32),
    "synthetic-features": DatasetKind("synthetic features", synthetic_features),
}


def given_path(path: str) -> str:
    """The rule, the value and the remedy for a path in place of the name of a dataset."""
    suffix = os.path.splitext(path)[1].lower()
    name = (
        "folders" if os.path.isdir(path) else "features" if suffix in (".npz", ".safetensors") else "manifest"
    )
    return (
        f"must be a name, such as {name!r}. Got the path {path!r}. "
        f"Give --data {name} --data-root {path} (load_dataset({name!r}, {path!r}))."
    )


def load_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    download: bool = False,
    **options: Any,
) -> Dataset[Any]:
    """A dataset by name.

    Args:
        name: A name in `DATASETS`.
        root: Its folder, or for lists, annotations and features the file. Omit it for synthetic data.
        hierarchy: The classes, or the file that holds them; by default the dataset's own.
        root_node: Whether the hierarchy has a root; by default as published with the three official datasets, and as the
            hierarchy has it for all others.
        download: Fetch the dataset into `root` first if it is missing.
        **options: Options of the dataset; `DATASETS[name].options` lists them. Others are for the reader of a `hierarchy` that
            is a file, as of `read_hierarchy`.

    Returns:
        `Dataset[Samples]` for images, `Dataset[Features]` for features.

    Raises:
        ConfigError: The name or an option is unknown.
        DataError: The dataset is missing or incomplete.
        FormatError: A file is damaged.

    Example:
        >>> data = load_dataset("synthetic", classes=10)
        >>> print(data.summary())
        synthetic: 10 classes, 16 nodes, tree
        train: 500 samples, 50 to 50 per class
        test: 200 samples, 20 to 20 per class
    """
    if isinstance(name, str) and name not in DATASETS and os.path.exists(name):
        raise ConfigError(f"The dataset {given_path(name)}")
    check_choice("The dataset", name, DATASETS)
    kind = DATASETS[name]
    reader = {option: options.pop(option) for option in [*options] if option not in kind.options}
    shared = {option: options[option] for option in ("encoding", "delimiter") if option in options}
    if isinstance(hierarchy, str | os.PathLike) and (reader or shared):
        try:
            hierarchy = read_hierarchy(hierarchy, **reader)
        except FormatError:  # perhaps written by the same spreadsheet as the list
            if not shared:
                raise
            hierarchy = read_hierarchy(hierarchy, **reader, **shared)
    elif reader:
        option = next(iter(reader))
        known = ", ".join(kind.options) or "none"
        raise ConfigError(
            f"An option of {name!r} must be one of {known}. Got {option!r}.{nearest(option, kind.options)}"
        )
    arguments: dict[str, Any] = {"hierarchy": hierarchy, "root_node": root_node, **options}
    if kind.takes("root"):
        if root is None:
            raise ConfigError(f"The dataset {name!r} needs its folder or file. Give --data-root (root=).")
        arguments["root"] = Path(root)
    elif root is not None:
        raise ConfigError(f"The dataset {name!r} is made by a program. Omit --data-root (root=).")
    if kind.takes("download"):
        arguments["download"] = download
    elif download:
        raise ConfigError(f"The dataset {name!r} cannot be downloaded. Omit --download.")
    try:
        return kind.load(**arguments)
    except OSError as error:  # mostly a folder that may not be looked into
        raise DataError(f"{error.filename or root}: cannot be read: {error.strerror or error}.") from error
