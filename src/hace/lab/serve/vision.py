"""How the model of a finished run sees images: rebuilt exactly as it was, or an error that says what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hace.errors import ConfigError
from hace.lab.features.backbones import Backbone, load_backbone
from hace.lab.features.plan import manifest_differences
from hace.lab.runs.run import Run
from hace.lab.serve.rescoring import ProbeHead
from hace.lab.serve.trained_model import Trained


@dataclass(frozen=True, eq=False)
class Vision:
    """How a model sees images.

    Attributes:
        transform: From a PIL image to a tensor (3, H, W).
        outputs: From a batch of them to the raw outputs (B, C) of the model's head.
        batch_size: Of the run's own features or evaluation, which gives the same bits.
    """

    transform: Callable[[Any], Tensor]
    outputs: Callable[[Tensor], Tensor]
    batch_size: int


def probe_vision(run: Run, head: ProbeHead, checkpoint: str | Path | None, device: torch.device) -> Vision:
    """The frozen model behind a probe's features, and the probe's head."""
    backbone = backbone_of(run, checkpoint, device)

    def outputs(images: Tensor) -> Tensor:
        return torch.cat(list(head.outputs(backbone(images).cpu().numpy())))

    return Vision(backbone.transform, outputs, run.about["data"]["source"]["compute"]["batch_size"])


def trained_vision(trained: Trained) -> Vision:
    """A model that was trained on images."""
    return Vision(trained.transform, trained, trained.config.batch_size)


def backbone_of(run: Run, checkpoint: str | Path | None, device: torch.device) -> Backbone:
    """The frozen model behind a probe's features, exactly as it was.

    Args:
        run: The probe.
        checkpoint: A file with the weights; by default those that `hace features` used, from a file or the hub.
        device: Where to compute.

    Raises:
        ConfigError: The model is unknown or has changed, or its weights came from a file that is gone.
        HaceError: It cannot be loaded.
    """
    source = run.about["data"].get("source")
    if source is None:
        raise ConfigError(
            f"{run.folder} was trained on features whose model is not known, so it cannot see images. Give it features from "
            "the same model: a file with X (M, d). Probes on a folder of `hace features` remember their model."
        )
    recorded = source.get("checkpoint")
    if checkpoint is None and recorded is not None:
        if not Path(recorded).is_file():
            raise ConfigError(
                f"The features of {run.folder} come from {source['model']['name']} with weights from {recorded}, which is not "
                "here. Give that file: --checkpoint FILE (checkpoint=)."
            )
        checkpoint = recorded
    model, seen = source["model"], source["preprocessing"]
    backbone = load_backbone(
        model["name"],
        checkpoint=checkpoint,
        pool=model["pool"],
        dtype=source["compute"]["dtype"],
        image_size=seen["input_size"][1],
        crop_pct=seen["crop_pct"],
        device=device,
    )
    if backbone.weights != model["weights"]:
        where = f"--checkpoint {checkpoint}" if checkpoint else "the model hub"
        raise ConfigError(
            f"The features of {run.folder} come from {model['name']} with the weights {model['weights'][:12]}, and "
            f"{where} has {backbone.weights[:12]}. Give the file they were made with: --checkpoint FILE (checkpoint=)."
        )
    different = manifest_differences(seen, backbone.preprocessing)
    if different:
        raise ConfigError(
            f"{model['name']} is preprocessed otherwise by this version of timm:\n  " + "\n  ".join(different)
        )
    return backbone
