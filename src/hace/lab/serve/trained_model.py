"""The model of a finished training: for predictions, and for scores of other samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hace.data import Samples
from hace.errors import ConfigError, FormatError
from hace.files.weights import fill
from hace.hierarchy import Hierarchy
from hace.lab.runs.devices import choose_device
from hace.lab.runs.run import WEIGHTS, Run, read_run
from hace.lab.runs.train_config import TrainConfig
from hace.lab.train.batches import Preprocessing, ordered_batches
from hace.lab.train.distributed import Team
from hace.lab.train.loop import DTYPES, initial_model, placed
from hace.losses.base import HierarchicalLoss


@dataclass(frozen=True, eq=False)
class Trained:
    """A model with everything needed to use it.

    Attributes:
        run: The run it comes from.
        model: In evaluation mode: images (B, 3, size, size) to outputs (B, loss.num_outputs).
        loss: The loss, which defines the outputs: `loss.node_log_probs(z)`, `loss.leaf_logits(z)`.
        hierarchy: The tree of the results. The loss's own differs where the run trained on a shuffled one.
        preprocessing: Sizes and statistics.
        transform: From a PIL image of any size to the tensor that the model sees.
        device: Where the model is.
    """

    run: Run
    model: nn.Module
    loss: HierarchicalLoss
    hierarchy: Hierarchy
    preprocessing: Preprocessing
    transform: Callable[[Any], Tensor]
    device: torch.device

    def __call__(self, images: Tensor) -> Tensor:
        """Outputs (B, num_outputs) of transformed images, on the CPU, computed as in the run's own evaluation."""
        dtype, images = DTYPES[self.config.precision], images.to(self.device)
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            return self.model(images).float().cpu()

    @property
    def config(self) -> TrainConfig:
        """What it was trained by."""
        assert isinstance(self.run.config, TrainConfig)
        return self.run.config

    def outputs(self, samples: Samples, batch_size: int | None = None) -> Iterator[Tensor]:
        """Outputs of all samples, batch by batch, in order; `evaluate_outputs` takes them.

        With the batch size of the run, the default, they equal those of its evaluation, bit for bit.
        """
        config = replace(self.config, batch_size=batch_size or self.config.batch_size)
        alone = Team(rank=0, world=1, device=self.device)
        for x, _ in ordered_batches(config, samples, self.preprocessing, "nodes", alone).epoch(0):
            yield self(x)


def load_trained(run: Run | str | Path, device: str = "cpu") -> Trained:
    """The model of a finished run of `hace train`.

    Args:
        run: The run, or its directory.
        device: As of `TrainConfig`.

    Raises:
        ConfigError: A run of another kind.
        FormatError: The run is not finished, kept no weights, or they do not belong to it.

    Example:
        >>> import tempfile
        >>> from hace.lab.runs.config import DataConfig
        >>> from hace.lab.train.train import run_train
        >>> data = DataConfig("synthetic", options={"classes": 4, "train": 4, "test": 2})
        >>> run = run_train(TrainConfig(data=data, model="test_vit", epochs=1), tempfile.mkdtemp())
        >>> trained = load_trained(run)
        >>> trained.loss.leaf_logits(trained(torch.zeros(2, 3, 32, 32))).shape
        torch.Size([2, 4])
    """
    run = run if isinstance(run, Run) else read_run(run)
    config = run.config
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            f"{run.folder} is a run of kind {config.kind!r}, and has no model trained on images."
        )
    if run.status != "finished":
        raise FormatError(f"{run.folder} has no trained model: it is {run.status}.")
    hierarchy = run.hierarchy
    weights = run.weights()
    loss = config.loss.build(run.tree)
    view = Preprocessing.from_dict(run.about["data"]["source"]["preprocessing"])
    model = initial_model(config, loss, view, seed=0)
    fill(model, weights, run.folder / WEIGHTS)
    chosen = choose_device(device)
    model = placed(model.eval(), config, chosen)
    return Trained(run, model, loss, hierarchy, view, view.transform(), chosen)
