"""DINOv2-Large for real in shape: all its parameters, its input size and its features, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from hace import cli
from hace.lab.features.store import FeatureStore

MODEL = "vit_large_patch14_dinov2"
CLASSES = {"aquatic_mammals": ("04_beaver", "30_dolphin"), "flowers": ("54_orchid", "70_rose")}


def random_weights(path: Path) -> int:
    """A file as the hub has it, positions for 518 px; gives the number of parameters at 224 px."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {
            key: value.shape for key, value in timm.create_model(MODEL, num_classes=0).state_dict().items()
        }
        small = timm.create_model(MODEL, num_classes=0, img_size=224)
    save_file({key: torch.randn(shape, generator=generator) * 0.05 for key, shape in shapes.items()}, path)
    return sum(p.numel() for p in small.parameters())


def real_images(sheets: Path, folder: Path) -> None:
    """The first four training and test images of four classes of CIFAR-100, as files in class folders."""
    for split in ("train", "test"):
        for sheet in (name for names in CLASSES.values() for name in names):
            place = folder / split / sheet[3:]
            place.mkdir(parents=True)
            with Image.open(sheets / split / f"{sheet}.webp") as image:
                for i in range(4):  # tiles of 32 px in rows
                    image.crop((32 * i, 0, 32 * i + 32, 32)).save(place / f"{i}.png")


@pytest.mark.slow
def test_dinov2_large_on_real_images(
    real_data: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real_images(real_data("cifar100"), tmp_path / "images")
    edges = "".join(f"{top},{sheet[3:]}\n" for top, sheets in CLASSES.items() for sheet in sheets)
    (tmp_path / "tree.csv").write_text(f"parent,child\n{edges}")
    weights, out = tmp_path / "model.safetensors", tmp_path / "out"
    parameters = random_weights(weights)
    words = f"features --data folders --root {tmp_path / 'images'} --hierarchy {tmp_path / 'tree.csv'} --model {MODEL}"
    assert (
        cli.main([*words.split(), "--checkpoint", str(weights), "--out", str(out), "--batch-size", "8"]) == 0
    )
    weights.unlink()  # 1.2 GB

    assert 302e6 < parameters < 304e6
    assert f"{MODEL}: {parameters / 1e6:.1f} M parameters, 1024 features, 224 px" in capsys.readouterr().out
    store = FeatureStore(out)
    assert store.manifest["preprocessing"]["input_size"] == [3, 224, 224]
    for split in ("train", "test"):
        found = store.load(split, normalize="unit")
        assert found.x.shape == (16, 1024)
        np.testing.assert_allclose(np.linalg.norm(found.x, axis=1), 1, rtol=1e-5)
        assert len(np.unique(found.x.round(4), axis=0)) == 16  # every image has its own vector
        assert [found.hierarchy.nodes[v] for v in found.nodes[::4]] == ["beaver", "dolphin", "orchid", "rose"]
