"""The model of a finished run, rebuilt exactly as it was: a head on features, or a network trained on images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hace.data import Samples
from hace.data.batches import Preprocessing, make_batches
from hace.errors import ConfigError, DataError, FormatError
from hace.files.weights import fill
from hace.hierarchy import Hierarchy
from hace.lab.features.backbones import Backbone, load_backbone, load_encoder
from hace.lab.features.store import manifest_differences
from hace.lab.probe import Scaling, check_width, head_outputs
from hace.lab.runs.config import ProbeConfig, TrainConfig
from hace.lab.runs.process import choose_device, choose_workers
from hace.lab.runs.run import WEIGHTS, Run, read_run
from hace.lab.train.loop import DTYPES, initial_model
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall


def open_finished(folder: str | Path) -> Run:
    """A run that has a model."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FormatError(f"{folder} does not exist. Give a run that `hace probe` or `hace train` wrote.")
    run = read_run(folder)
    if run.status == "unfinished":
        raise FormatError(f"{folder} is not finished. Run the command that started it again to resume.")
    if run.status == "diverged":
        raise FormatError(f"{folder} has no model: its training diverged. Take a run with a lower rate.")
    return run


def check_same_features(run: Run, about: Mapping[str, Any] | None) -> None:
    """Refuse features that were made in another way than those of a run, as far as both say how."""
    source = run.about["data"].get("source")
    if about is None or source is None:
        return
    made = {key: source.get(key) for key in ("model", "preprocessing")}
    now = {key: about.get(key) for key in ("model", "preprocessing")}
    different = "\n  ".join(manifest_differences(made, now))
    if different:
        raise DataError(f"Features must be made as in training. They differ:\n  {different}")


@dataclass(frozen=True, eq=False)
class Vision:
    """How a model sees images."""

    transform: Callable[[Any], Any]  # from a PIL image to (3, H, W); texts stay as they are
    outputs: Callable[[Any], Tensor]  # from a batch of them to the raw outputs (B, C) of the model's head
    batch_size: int  # that of the run's own features or evaluation, which gives the same bits


@dataclass(frozen=True, eq=False)
class ProbeHead:
    """The last layer of a finished probe."""

    run: Run
    loss: HierarchicalLoss  # on the tree it was trained with
    weights: Mapping[str, Tensor]  # "weight" (C, d), and "bias" (C,) if it has one
    scaling: Scaling  # of the features, before the layer
    ball: PoincareBall | None = None  # of a hyperbolic layer

    def outputs(self, x: np.ndarray, what: str = "given", first: int = 0) -> Iterable[Tensor]:
        """Chunks (B, C) of raw outputs for features (M, d); `what` and `first` name them in messages, as in `Scaling`."""
        check_width(x.shape[1], self.weights)
        return head_outputs(self.scaling(x, what, first), self.weights, self.ball)

    def vision(self, checkpoint: str | Path | None, device: torch.device) -> Vision:
        """The frozen model behind the features, followed by this head; arguments as of :func:`backbone_of`."""
        backbone = backbone_of(self.run, checkpoint, device)

        def outputs(images: Tensor) -> Tensor:
            return torch.cat(list(self.outputs(backbone(images).cpu().numpy())))

        return Vision(backbone.transform, outputs, self.run.about["data"]["source"]["compute"]["batch_size"])


def load_probe(run: Run) -> ProbeHead:
    """The model of a finished probe."""
    assert isinstance(run.config, ProbeConfig)
    weights = run.weights()
    loss = run.config.loss.build(run.tree)
    shape = tuple(weights["weight"].shape) if "weight" in weights else ()
    if len(shape) != 2 or shape[0] != loss.num_outputs:
        raise FormatError(
            f"{run.folder / WEIGHTS} does not fit the run: its loss has {loss.num_outputs} outputs, the weights have shape "
            f"{shape}."
        )
    scaling = Scaling.stored(run.config.normalize, weights, run.folder / WEIGHTS)
    return ProbeHead(run, loss, weights, scaling, run.config.head.ball)


def backbone_of(run: Run, checkpoint: str | Path | None, device: torch.device) -> Backbone:
    """The frozen model behind a probe's features, exactly as it was, or an error that says what differs."""
    source = run.about["data"].get("source")
    if source is None:
        raise ConfigError(
            f"{run.folder} was trained on features whose model is not known, so it cannot see images. Give it features from "
            "the same model: a file with X (M, d). Probes on a folder of `hace features` remember their model."
        )
    recorded = source.get("checkpoint")
    if checkpoint is None and recorded is not None:
        if not Path(recorded).exists():
            raise ConfigError(
                f"The features of {run.folder} come from {source['model']['name']} with weights from {recorded}, which is not "
                "here. Give that file: --checkpoint FILE (checkpoint=)."
            )
        checkpoint = recorded
    model = source["model"]
    seen = source["preprocessing"]
    if seen.get("text"):
        backbone = load_encoder(model["name"], checkpoint=checkpoint, device=device)
    else:
        sizes = {"image_size": seen["input_size"][1], "crop_pct": seen["crop_pct"]}
        how = {"pool": model["pool"], "dtype": source["compute"]["dtype"], "device": device}
        backbone = load_backbone(model["name"], checkpoint=checkpoint, **sizes, **how)
    if backbone.weights != model["weights"]:
        where = f"--checkpoint {checkpoint}" if checkpoint else "the model hub"
        raise ConfigError(
            f"The features of {run.folder} come from {model['name']} with the weights {model['weights'][:12]}, and "
            f"{where} has {backbone.weights[:12]}. Give the file they were made with: --checkpoint FILE (checkpoint=)."
        )
    different = "\n  ".join(manifest_differences(seen, backbone.preprocessing))
    if different:
        library, what = ("sentence-transformers", "texts") if seen.get("text") else ("timm", "images")
        here = f"This version of {library} preprocesses {what} for {model['name']}"
        raise ConfigError(f"{here} differently:\n  {different}")
    return backbone


@dataclass(frozen=True, eq=False)
class Trained:
    """A network trained on images, with everything needed to use it."""

    run: Run  # the run it comes from
    model: nn.Module  # in evaluation mode: images (B, 3, size, size) to outputs (B, loss.num_outputs)
    loss: HierarchicalLoss  # the loss, which defines the outputs: `loss.node_log_probs(z)`, `loss.leaf_logits(z)`
    hierarchy: Hierarchy  # of the results; the loss's own differs after training on a shuffled tree
    preprocessing: Preprocessing  # sizes and statistics
    transform: Callable[[Any], Tensor]  # from a PIL image of any size to the tensor that the model sees
    device: torch.device  # where the model is

    def __call__(self, images: Tensor) -> Tensor:
        """Outputs (B, num_outputs) of transformed images, on the CPU, computed as in the run's own evaluation."""
        dtype = DTYPES[self.config.precision]
        images = images.to(self.device)
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            return self.model(images).float().cpu()

    @property
    def config(self) -> TrainConfig:
        """What it was trained by."""
        assert isinstance(self.run.config, TrainConfig)
        return self.run.config

    def outputs(self, samples: Samples) -> Iterator[Tensor]:
        """Outputs of all samples, batch by batch, in order: those of the run's own evaluation, bit for bit."""
        size = self.config.batch_size
        workers = choose_workers(self.config.workers, self.device)
        view = self.preprocessing
        batches = make_batches(samples, size, view, labels="nodes", workers=workers, device=self.device)
        for x, _ in batches.epoch(0):
            yield self(x)


def load_trained(run: Run | str | Path, device: str = "cpu") -> Trained:
    """The model of a finished run of `hace train`.

    Args:
        run: The run, or its directory.
        device: As of `TrainConfig`.

    Raises:
        ConfigError: A run of another kind.
        FormatError: The run is not finished, kept no weights, or they do not belong to it.
    """
    run = run if isinstance(run, Run) else read_run(run)
    config = run.config
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"{run.folder} is a run of kind {config.kind!r}, not a model trained on images.")
    if run.status != "finished":
        raise FormatError(f"{run.folder} has no trained model: it is {run.status}.")
    weights = run.weights()
    loss = run.config.loss.build(run.tree)
    view = Preprocessing.from_dict(run.about["data"]["source"]["preprocessing"])
    chosen = choose_device(device)
    model = initial_model(config, loss, view, chosen).eval()
    fill(model, weights, run.folder / WEIGHTS)
    return Trained(run, model, loss, run.hierarchy, view, view.transform(), chosen)
