"""A model to try at once: what `hace serve --demo` shows."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from hace.data import load_dataset
from hace.files.reading import optional
from hace.lab.features.backbones import bare_model, load_backbone
from hace.lab.features.extraction import extract
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.serve.calibrate_run import calibrate_run
from hace.lab.serve.page import Sample, some_samples


def train_demo(folder: Path) -> tuple[Path, list[Sample]]:
    """A small calibrated model of synthetic pictures: a linear head on features of an untrained network; and some pictures."""
    weights, features = folder / "untrained.safetensors", folder / "features"
    torch.manual_seed(0)
    save_file(
        bare_model(optional("timm", "The demo", "train"), "test_resnet", 32, pretrained=False).state_dict(),
        weights,
    )
    pictures = load_dataset("synthetic", hierarchy="animals", train=40, test=2)
    extract(pictures, load_backbone("test_resnet", checkpoint=weights, image_size=32), features)
    data = DataConfig("features", root=str(features))
    how = {"validation": 0.3, "normalize": "standard", "epochs": 30, "lr": 4}
    (made,) = probe([ProbeConfig(data=data, loss=LossConfig("hace"), **how)], folder)
    calibrate_run(made.folder)
    return made.folder, some_samples(pictures["test"])
