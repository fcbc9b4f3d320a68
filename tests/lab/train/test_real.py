"""Real pixels: the paper's ResNet-18 begins to learn CIFAR-100, with HACE as with cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hace.lab.train.train import train
from hace.paper import train_preset
from tests.data_layouts import cifar_binary


@pytest.mark.long
def test_resnet18_learns_real_images(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    from PIL import Image

    splits = {}
    for split in ("train", "test"):
        tiles = []
        for sheet in sorted((real_data("cifar100") / split).glob("*.webp")):
            array = np.array(Image.open(sheet).convert("RGB"))
            rows, columns = array.shape[0] // 32, array.shape[1] // 32
            tiles.append(array.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3072))
        splits[split] = (np.concatenate(tiles), np.repeat(np.arange(len(tiles)), len(tiles[0])))
    root = str(cifar_binary(tmp_path / "data", splits))
    for method, columns in (("cross_entropy", 100), ("hace", 120)):
        config = replace(
            train_preset(f"cifar100/resnet18/{method}", root=root),
            per_class=2,
            epochs=2,
            batch_size=25,
            lr=0.02,
            validation=0.002,
            evaluate="val",
            device="cpu",
        )
        run = train(config, tmp_path / method)
        assert run.status == "finished"
        assert run.weights()["fc.weight"].shape == (columns, 512)
        first, last = run.log()
        assert last["loss"] < first["loss"]
