"""One small backbone, and its features of a few images, for all tests of this folder."""

from pathlib import Path

import pytest

from hace.lab.features.backbones import Backbone, load_backbone
from hace.lab.features.extraction import extract
from tests.backbone_files import SIZE, SIZES, VIT, save_weights, toy_images


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(VIT, tmp_path_factory.mktemp("weights") / "vit.safetensors", img_size=SIZE)


@pytest.fixture(scope="module")
def backbone(weights: Path) -> Backbone:
    return load_backbone(VIT, checkpoint=weights, image_size=SIZE)


@pytest.fixture(scope="module")
def whole(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of an undisturbed run; tests only read them."""
    folder = tmp_path_factory.mktemp("features") / "whole"
    assert extract(toy_images(), backbone, folder, **SIZES)
    return folder
