"""Scoring a finished run on its own data again: the same model, the same samples, any evaluation.

    rescored("runs/4cd033b43672ca23").report().values["leaves", "top-1"]

The data must be those of the run, to the byte: their fingerprint and that of their hierarchy are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hace.checks import check_choice
from hace.data import Features
from hace.data.dataset import Split
from hace.errors import ConfigError, DataError, HaceError
from hace.hierarchy import Hierarchy
from hace.lab.probe.probe import check_width
from hace.lab.runs.config import DataConfig
from hace.lab.runs.result import evaluate_outputs
from hace.lab.runs.run import HIERARCHY, Run
from hace.lab.runs.samples import Source, load_source, make_task
from hace.lab.serve.finished_models import load_probe, load_trained, open_finished
from hace.losses.base import HierarchicalLoss
from hace.metrics.evaluation import Evaluation

SPLITS = ("test", "val", "train")


@dataclass(frozen=True, eq=False)
class Rescored:
    """A model and the samples to evaluate it on.

    Attributes:
        run: The run.
        split: Which samples: "test", "val" or "train".
        samples: The samples.
        loss: What the model was trained with.
        outputs: Gives chunks of the model's raw outputs on the samples, anew at every call.
    """

    run: Run
    split: str
    samples: Split
    loss: HierarchicalLoss
    outputs: Callable[[], Iterable[Tensor]]

    @property
    def hierarchy(self) -> Hierarchy:
        """The tree of the results."""
        return self.run.hierarchy

    @property
    def temperature(self) -> float | None:
        """The temperature of the run's result; None where it has none, or was fitted on these samples."""
        fitted = (self.run.result or {}).get("temperature") or {}
        return None if fitted.get("source") == self.split else fitted.get("value")

    def report(self, *, temperature: float | None = None, **options: Any) -> Evaluation:
        """All metrics; without options those of the run's result.

        Args:
            temperature: By which scores are divided for the calibrated metrics; by default that of the run's result.
            **options: Further options of :func:`hace.evaluate`.
        """
        value = self.temperature if temperature is None else temperature
        outputs, truth = self.outputs(), self.samples.nodes
        return evaluate_outputs(
            self.loss, outputs, truth, self.hierarchy, temperature=value, **options
        ).report


def rescored(
    folder: str | Path,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    device: str = "cpu",
) -> Rescored:
    """A finished run on its data again.

    Args:
        folder: The run directory.
        root: Where its data are now, if they were moved.
        split: "test", "val" (the samples it held out) or "train"; by default that of its result.
        device: Where a model that was trained end to end computes.

    Raises:
        FormatError: Not a finished run with a model.
        ConfigError: The run has no such samples.
        DataError: The data are not those of the run, or cannot be found.
    """
    run = open_finished(folder)
    split = split or run.config.evaluate
    check_choice("split", split, SPLITS)
    if run.config.kind == "train":
        trained = load_trained(run, device)
        source = load_data(run, root)
        check_same_data(run, source)
        images = samples_of(run, source, split)
        return Rescored(run, split, images, trained.loss, lambda: trained.outputs(images))
    head = load_probe(run)
    source = load_data(run, root)
    features = source.dataset["train"]
    if not isinstance(features, Features):
        raise DataError(f"{source.dataset.name} holds images, and {run.folder} was trained on features.")
    check_width(features.num_features, head.weights)  # before the fingerprint, because it says more
    check_same_data(run, source)
    samples = samples_of(run, source, split)
    return Rescored(run, split, samples, head.loss, lambda: head.outputs(samples.x, split))


def load_data(run: Run, root: str | Path | None = None) -> Source[Any]:
    """The data of a run, from their original place or another one, not compared yet."""
    config: DataConfig = run.config.data
    if root is not None:
        config = replace(config, root=str(root))
    if config.hierarchy is not None:  # the run keeps it, with or without a root as it was asked for
        config = replace(config, hierarchy=str(run.folder / HIERARCHY), root_node=None)
    try:
        return load_source(config)
    except HaceError as error:
        raise DataError(
            f"The data of {run.folder} cannot be loaded: {error} If they were moved, say where they are: "
            "--data-root (root=)."
        ) from error


def check_same_data(run: Run, source: Source[Any]) -> None:
    """Refuse data that are not those of the run."""
    here = source.data_print()
    for what, before, now in (
        ("hierarchy", run.about["data"]["hierarchy"], here.hierarchy),
        ("data", run.about["data"]["fingerprint"], here.fingerprint),
    ):
        if before != now:
            raise DataError(
                f"{here.name}: the {what} changed since the run {run.folder}: the fingerprint was {before[:12]} and is "
                f"{now[:12]}. Bring the old files back, or train again."
            )


def samples_of(run: Run, source: Source[Any], split: str) -> Any:
    """The samples of a run by name: its test samples, those it held out, or those it trained on."""
    if split == "test":
        return source.dataset["test"]
    config = run.config
    task = make_task(source, config)
    samples = task.val if split == "val" else task.train
    if samples is None:
        raise ConfigError(f"{run.folder} held out no validation samples. Take the split test or train.")
    return samples
