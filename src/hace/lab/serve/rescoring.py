"""Scoring a finished run on its own data again: the same model, the same samples, any evaluation.

    rescored("runs/4cd033b43672ca23").report().values["leaves", "top-1"]

The data must be those of the run, to the byte: their fingerprint and that of their hierarchy are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hace.data import Features
from hace.data.samples import Split
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.hierarchy import Hierarchy
from hace.lab.probe.scaling import Scaling, check_width, head_outputs
from hace.lab.runs.config import DataConfig, ProbeConfig
from hace.lab.runs.result import evaluate_outputs
from hace.lab.runs.run import HIERARCHY, WEIGHTS, Run, read_run
from hace.lab.runs.samples import Source, load_source, make_task
from hace.lab.runs.train_config import TrainConfig
from hace.lab.serve.trained_model import load_trained
from hace.lab.train.batches import few_of_each
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall
from hace.metrics.evaluation import Evaluation

SPLITS = ("test", "val", "train")


@dataclass(frozen=True, eq=False)
class ProbeHead:
    """The last layer of a finished probe.

    Attributes:
        loss: The loss it was trained with, on the tree it was trained with.
        weights: "weight" (C, d), and "bias" (C,) if it has one.
        scaling: What is done to features before.
        ball: Of a hyperbolic layer.
    """

    loss: HierarchicalLoss
    weights: Mapping[str, Tensor]
    scaling: Scaling
    ball: PoincareBall | None = None

    def outputs(self, x: np.ndarray, what: str = "given", first: int = 0) -> Iterable[Tensor]:
        """Chunks (B, C) of raw outputs for features (M, d).

        Args:
            x: The features.
            what, first: As of `Scaling`, for messages.

        Raises:
            DataError: Another width than that of the training, or features that are not finite.
        """
        check_width(x.shape[1], self.weights)
        return head_outputs(self.scaling(x, what, first), self.weights, self.ball)


def open_finished(folder: str | Path) -> Run:
    """A run that has a model.

    Raises:
        FormatError: No run, a damaged one, or one that has no model: unfinished or diverged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FormatError(
            f"{folder} does not exist. Give the folder of a run that `hace probe` or `hace train` wrote."
        )
    run = read_run(folder)
    if run.status == "unfinished":
        raise FormatError(f"{folder} is not finished. Run the command that started it again to resume.")
    if run.status == "diverged":
        raise FormatError(f"{folder} has no model: its training diverged. Take a run with a lower rate.")
    return run


def loss_of(run: Run) -> HierarchicalLoss:
    """The loss of a run, on the tree that it was trained with."""
    return run.config.loss.build(run.tree)


def load_probe(run: Run) -> ProbeHead:
    """The model of a finished probe.

    Raises:
        FormatError: Weights that are missing, damaged, or of another run.
    """
    assert isinstance(run.config, ProbeConfig)
    weights = run.weights()
    loss = loss_of(run)
    shape = tuple(weights["weight"].shape) if "weight" in weights else ()
    if len(shape) != 2 or shape[0] != loss.num_outputs:
        raise FormatError(
            f"{run.folder / WEIGHTS} does not fit the run: its loss has {loss.num_outputs} outputs, the weights have shape "
            f"{shape}."
        )
    scaling = Scaling.stored(run.config.normalize, weights, run.folder / WEIGHTS)
    return ProbeHead(loss, weights, scaling, run.config.head.ball)


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

    def report(
        self,
        *,
        subset: Sequence[str] | None = None,
        distance: str = "lca_height",
        rules: Mapping[str, Mapping[str, Any]] | None = None,
        bins: int = 15,
        temperature: float | None = None,
        promises: Mapping[str, Mapping[str, Any]] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Evaluation:
        """All metrics; without options those of the run's result.

        Args:
            subset: See :class:`hace.metrics.evaluator.Evaluator`.
            distance: See :class:`hace.metrics.evaluator.Evaluator`.
            rules: See :class:`hace.metrics.evaluator.Evaluator`.
            bins: See :class:`hace.metrics.evaluator.Evaluator`.
            temperature: By which scores are divided for the calibrated metrics; by default that of the run's result.
            promises: Further rules, for the calibrated scores alone.
            progress: Called with the number of samples scored since the last call.
        """

        def chunks() -> Iterable[Tensor]:
            for z in self.outputs():
                yield z
                if progress is not None:
                    progress(len(z))

        return evaluate_outputs(
            self.loss,
            chunks(),
            self.samples.nodes,
            self.hierarchy,
            subset=subset,
            distance=distance,
            rules=rules,
            bins=bins,
            temperature=self.temperature if temperature is None else temperature,
            promises=promises,
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
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}. Got {split!r}.")
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
    """The data of a run, from their original place or another one, not compared yet.

    Raises:
        DataError: They cannot be loaded.
    """
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
    """Refuse data that are not those of the run.

    Raises:
        DataError: With both fingerprints.
    """
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
    """The samples of a run by name: its test samples, those it held out, or those it trained on.

    Raises:
        ConfigError: It held out none.
    """
    if split == "test":
        return source.dataset["test"]
    config = run.config
    task = make_task(source, config)
    samples = task.val if split == "val" else task.train
    if split == "train" and isinstance(config, TrainConfig) and config.per_class is not None:
        samples = task.train.select(few_of_each(task.train.nodes, config.per_class, config.seed))
    if samples is None:
        raise ConfigError(f"{run.folder} held out no validation samples. Take the split test or train.")
    return samples
