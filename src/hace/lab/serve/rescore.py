"""A finished run on its own data again, or on other labelled data: any evaluation of its model.

    rescored("runs/latest").report().values["leaves", "top-1"]

The data must be those of the run, to the byte: their fingerprint, which covers the content of every file, and that of their
hierarchy are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice
from hace.data import Dataset, Features, load_dataset
from hace.data.split import Split
from hace.errors import ConfigError, DataError, HaceError
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import label_nodes
from hace.lab.features.store import MANIFEST, FeatureStore
from hace.lab.probe import check_width
from hace.lab.runs.config import DataConfig
from hace.lab.runs.process import choose_device
from hace.lab.runs.result import evaluate_outputs
from hace.lab.runs.run import HIERARCHY, DataPrint, Run
from hace.lab.runs.samples import data_of, make_task
from hace.lab.serve.load_run import (
    ProbeHead,
    Trained,
    check_same_features,
    load_probe,
    load_trained,
    open_finished,
)
from hace.losses.base import HierarchicalLoss
from hace.metrics.evaluation import Evaluation

SPLITS = ("test", "val", "train")


@dataclass(frozen=True, eq=False)
class Rescored:
    """A model and the samples to evaluate it on."""

    run: Run  # the run
    split: str  # which samples: "test", "val" or "train"; of other data, their name
    samples: Split  # the samples
    loss: HierarchicalLoss  # what the model was trained with
    outputs: Callable[[], Iterable[Tensor]]  # chunks of the model's raw outputs, anew at every call
    passed_over: int = 0  # samples labelled above the leaves that the run would have held out, were they not

    @property
    def hierarchy(self) -> Hierarchy:
        """The tree of the results."""
        return self.run.hierarchy

    @property
    def temperature(self) -> float | None:
        """The temperature of the run's result; None where it has none, or was fitted on these samples."""
        fitted = (self.run.result or {}).get("temperature") or {}
        return None if fitted.get("source") == self.split else fitted.get("value")

    def check_comparable(self, other: Rescored) -> None:
        """Refuse to compare with a run on other samples.

        Raises:
            DataError: The hierarchies or the samples differ.
        """
        runs = f"{self.run.folder} and {other.run.folder}"
        own = self.samples
        theirs = other.samples
        if self.hierarchy.fingerprint != other.hierarchy.fingerprint:
            raise DataError(f"{runs} have different hierarchies, so they do not compare.")
        if list(own.names) != list(theirs.names) or not np.array_equal(own.nodes, theirs.nodes):
            raise DataError(
                f"{runs} have different {self.split} samples: {len(own):,} and {len(theirs):,}. Compare runs on the same "
                "samples."
            )

    def report(self, *, temperature: float | None = None, **options: Any) -> Evaluation:
        """All metrics; options as of :func:`hace.evaluate`, by default those of the run's result."""
        options["temperature"] = self.temperature if temperature is None else temperature
        options.setdefault("groups", self.samples.groups)
        options.setdefault("names", self.samples.names)
        samples = self.outputs(), self.samples.nodes
        return evaluate_outputs(self.loss, *samples, self.hierarchy, **options).report


def rescored(
    folder: str | Path,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    device: str = "cpu",
    data: str | Path | None = None,
    checkpoint: str | Path | None = None,
    coarse: bool = False,
) -> Rescored:
    """A finished run on its data again, or on other labelled data: a new year, a new site.

    Args:
        folder: The run directory.
        root: Where its data are now, if they were moved.
        split: "test", "val" (the samples it held out) or "train"; by default that of its result. Of other data one of their
            splits; by default "test" if they have it, else all.
        device: Where the model computes.
        data: Other data, labelled with classes of the run's hierarchy: a folder of class folders, a CSV list of images, a file
            of features or a folder of `hace features`.
        checkpoint: For a probe on images: weights of the model behind its features, where they are not in their old place.
        coarse: Whether "val" includes samples labelled above the leaves, where the data have a split of that name.

    Raises:
        FormatError: Not a finished run with a model.
        ConfigError: The run has no such samples.
        DataError: The data are not those of the run, or cannot be found.
    """
    run = open_finished(folder)
    model = load_trained(run, device) if run.config.kind == "train" else load_probe(run)
    if data is not None:
        samples = other_samples(run.hierarchy, Path(data), split, run)
        outputs = _outputs_on(model, samples, checkpoint, device)
        return Rescored(run, Path(data).name, samples, model.loss, outputs)
    split = split or run.config.evaluate
    check_choice("split", split, SPLITS)
    source = _load_data(run, root)
    if isinstance(model, ProbeHead):
        features = source["train"]
        if not isinstance(features, Features):
            raise DataError(f"{source.name} holds images, and {run.folder} was trained on features.")
        check_width(features.num_features, model.weights)  # before the fingerprint, because it says more
    _check_same_data(run, source)
    samples, passed_over = _samples_of(run, source, split, coarse)
    outputs = _outputs_on(model, samples, checkpoint, device, split)
    return Rescored(run, split, samples, model.loss, outputs, passed_over)


def _outputs_on(
    model: ProbeHead | Trained, samples: Any, checkpoint: str | Path | None, device: str, what: str = "given"
) -> Callable[[], Iterable[Tensor]]:
    """From nothing to chunks of a model's raw outputs on samples, features or images."""
    if isinstance(model, Trained):
        if isinstance(samples, Features):
            raise ConfigError(f"{model.run.folder} was trained on images, and cannot take features.")
        return lambda: model.outputs(samples)
    if isinstance(samples, Features):
        return lambda: model.outputs(samples.x, what)
    vision = model.vision(checkpoint, choose_device(device))

    def seen() -> Iterator[Tensor]:
        for start in range(0, len(samples), vision.batch_size):
            rows = range(start, min(start + vision.batch_size, len(samples)))
            yield vision.outputs(torch.stack([vision.transform(samples.image(i)) for i in rows]))

    return seen


def other_samples(h: Hierarchy, path: Path, split: str | None = None, run: Run | None = None) -> Any:
    """Labelled samples over a hierarchy that a run, or the model of a file, was not made with."""
    data = _stored_features(path, h, run) if (path / MANIFEST).is_file() else _other_data(path, h)
    if split is None and "test" not in data.splits:
        parts = list(data.splits.values())
        return type(parts[0]).joined(parts)
    return data[split or "test"]


def _stored_features(path: Path, h: Hierarchy, run: Run | None) -> Dataset[Features]:
    """What `hace features` wrote, with labels of another hierarchy."""
    store = FeatureStore(path)
    if run is not None:
        check_same_features(run, store.about)
    data = store.dataset("none")
    splits = {}
    for name, part in data.splits.items():
        ids = np.array([data.hierarchy.nodes[node] for node in part.nodes], dtype=str)
        splits[name] = replace(part, hierarchy=h, nodes=label_nodes(ids, h, "id", f"{path}, {name}"))
    return replace(data, hierarchy=h, splits=splits)


def _other_data(path: Path, h: Hierarchy) -> Dataset[Any]:
    """A folder of class folders, a list of images or a file of features."""
    if path.is_dir():
        kind = "folders"
    else:
        kind = "manifest" if path.suffix.lower() in (".csv", ".tsv") else "features"
    return load_dataset(kind, path, hierarchy=h, allow_empty=True)


def _load_data(run: Run, root: str | Path | None = None) -> Dataset[Any]:
    """The data of a run, from their original place or another one, not compared yet."""
    config: DataConfig = run.config.data
    if root is not None:
        config = replace(config, root=str(root))
    if config.hierarchy is not None:  # the run keeps it, with or without a root as it was asked for
        config = replace(config, hierarchy=str(run.folder / HIERARCHY), root_node=None)
    try:
        return data_of(config)
    except HaceError as error:
        raise DataError(
            f"The data of {run.folder} cannot be loaded: {error} If they were moved, say where they are: "
            "--data-root (root=)."
        ) from error


def _check_same_data(run: Run, source: Dataset[Any]) -> None:
    """Refuse data that are not those of the run."""
    was = run.about["data"]
    now_is = DataPrint.of(source)
    prints = {
        "hierarchy": (was["hierarchy"], now_is.hierarchy),
        "data": (was["fingerprint"], now_is.fingerprint),
    }
    for what, (before, now) in prints.items():
        if before != now:
            raise DataError(
                f"{now_is.name}: the {what} changed since the run {run.folder}: the fingerprint was {before[:12]} and is "
                f"{now[:12]}. Bring the old files back, or train again."
            )


def _samples_of(run: Run, source: Dataset[Any], split: str, coarse: bool) -> tuple[Any, int]:
    """The samples of a run by name, and how many it would have held out, were they not labelled above the leaves."""
    if split == "test":
        return source["test"], 0
    task = make_task(source, run.config)
    if split == "train":
        return task.train, 0
    if task.val is None:
        raise ConfigError(f"{run.folder} held out no validation samples. Take the split test or train.")
    if not coarse:
        return task.val, task.passed_over
    if run.config.validation == "split":
        return source["val"], 0
    raise ConfigError(
        f"--coarse count must come with samples that the run was not trained on. Got {run.folder}, which "
        f"{fate_of_coarse(source['train'])} its samples labelled above the classes. Calibrate on other "
        "data: --samples PATH (data=)."
    )


def fate_of_coarse(samples: Split) -> str:
    """What a run that holds out a share does with samples of it that are labelled above the classes."""
    return "was trained on" if samples.groups is None else "has no use for"
