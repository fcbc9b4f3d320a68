"""What an exported model's document says of its preprocessing, done by Pillow alone, is what the model sees, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from hace.data.batches import Preprocessing
from hace.lab.serve.export import image_view, view_document

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def by_pillow(image: Image.Image, view: dict[str, Any]) -> np.ndarray:
    """The steps of docs/predict.md."""
    image = ImageOps.exif_transpose(image).convert("RGB")
    resize, size = view["resize"], view["size"]
    width, height = image.size
    if width <= height:
        width, height = resize, int(resize * height / width)
    else:
        width, height = int(resize * width / height), resize
    image = image.resize((width, height), FILTERS[view["interpolation"]])
    left, top = round((width - size) / 2), round((height - size) / 2)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), np.float32) / 255
    mean, std = (np.array(view[key], np.float32) for key in ("mean", "std"))
    return ((pixels - mean) / std).transpose(2, 0, 1)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("shape", [(37, 61), (61, 37), (40, 40), (33, 95), (224, 225), (31, 32)])
def test_pillow_torchvision_and_the_document_agree(shape: tuple[int, int], interpolation: str) -> None:
    pixels = np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)
    seen = Preprocessing(28, 32)
    view = view_document(seen.resize, seen.size, interpolation, seen.mean, seen.std)
    for turn in (1, 6):
        image = Image.fromarray(pixels)
        image.getexif()[0x0112] = turn
        expected = by_pillow(image, view)
        np.testing.assert_allclose(image_view(view)(image).numpy(), expected, rtol=0, atol=1e-6)
        if interpolation == "bilinear":
            np.testing.assert_allclose(seen.transform()(image).numpy(), expected, rtol=0, atol=1e-6)
