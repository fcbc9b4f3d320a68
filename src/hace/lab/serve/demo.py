"""A model to try at once: what `hace serve --demo` shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hace.data.creatures import creatures, drawing, individual, png
from hace.lab.features.backbones import EDGES, load_backbone
from hace.lab.features.extraction import extract
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.serve.calibrate_run import calibrate_run
from hace.lab.serve.page import SHOWN, Sample

_SIDE = 128  # pixels of every photo: guarantees are about photos like those of the training, so the ones to try have as many


def train_demo(folder: Path) -> tuple[Path, list[Sample]]:
    """A small calibrated model of drawn creatures, a linear head on edges and colours; and some photos to try."""
    features = folder / "features"
    extract(creatures(train=20, test=1, side=_SIDE), load_backbone(EDGES), features)
    data = DataConfig("features", root=str(features))
    how = {"validation": 0.3, "normalize": "standard", "epochs": 30, "lr": 0.1}
    (made,) = probe([ProbeConfig(data=data, loss=LossConfig("hace"), **how)], folder)
    calibrate_run(made.folder)
    return made.folder, samples()


def samples() -> list[Sample]:
    """Photos that the model has not seen, of species from all over the hierarchy."""
    species = drawing().SPECIES
    chosen = np.linspace(0, len(species) - 1, SHOWN).astype(int)
    return [
        Sample(
            f"{i + 1}.png",
            species[place].name,
            png(drawing().draw_creature(species[place], individual("test", i), _SIDE)),
        )
        for i, place in enumerate(chosen.tolist())
    ]
