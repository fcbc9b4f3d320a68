"""DINOv2-Large: the whole model by its shapes, and two of its blocks from a file to stored features."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from hace import cli
from hace.lab.features.store import FeatureStore

MODEL = "vit_large_patch14_dinov2"


@pytest.mark.slow
def test_dinov2_large_has_its_parameters_and_features() -> None:
    with torch.device("meta"):
        model = timm.create_model(MODEL, num_classes=0, img_size=224)
        assert 302e6 < sum(p.numel() for p in model.parameters()) < 304e6
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1024)


@pytest.mark.slow
def test_a_shallow_dinov2_large_from_its_file_to_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two blocks of 24: names, widths and the positions for 518 px, which timm interpolates, are those of the hub's file."""
    shallow = partial(timm.create_model, depth=2)
    monkeypatch.setattr(timm, "create_model", shallow)
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in shallow(MODEL, num_classes=0).state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    weights, out = tmp_path / "model.safetensors", tmp_path / "out"
    save_file({key: torch.randn(shape, generator=generator) * 0.05 for key, shape in shapes.items()}, weights)
    words = f"features --data synthetic -o classes=3 -o train=2 -o test=1 --model {MODEL} --batch-size 4"
    assert cli.main([*words.split(), "--checkpoint", str(weights), "--out", str(out)]) == 0

    assert "M parameters, 1024 features, 224 px" in capsys.readouterr().out
    store = FeatureStore(out)
    assert store.manifest["preprocessing"]["input_size"] == [3, 224, 224]
    assert shapes["pos_embed"] == (1, 1 + 37 * 37, 1024)
    for split, count in (("train", 6), ("test", 3)):
        samples = store.load(split, normalize="unit")
        assert samples.x.shape == (count, 1024)
        np.testing.assert_allclose(np.linalg.norm(samples.x, axis=1), 1, rtol=1e-5)
        assert len(np.unique(samples.x.round(4), axis=0)) == count  # every image has its own vector
