"""Small real timm models with random weights, saved to files as users have them."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from hace.data import Dataset, Samples, synthetic_images

VIT = "test_vit"  # a real ViT of timm's, 0.4 M parameters; 32 px are four patches
SIZE = 32
SIZES = {"batch_size": 3, "shard_size": 8}  # a batch does not divide a shard

# `toy_images` and sizes at the command line, where a batch does not divide a shard.
COMMAND = (
    "features --data synthetic -o classes=6 -o train=5 -o test=2 --model test_vit --image-size 32 "
    "--batch-size 3 --shard-size 8"
)


def save_weights(name: str, path: Path, seed: int = 0, **options: object) -> Path:
    """The random weights of a timm model, by the file's suffix as safetensors or in torch's format."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        state = timm.create_model(name, **options).state_dict()
        if path.suffix == ".safetensors":
            save_file({key: value.contiguous() for key, value in state.items()}, path)
        else:
            torch.save(state, path)
    return path


def toy_images() -> Dataset[Samples]:
    """30 training and 12 test images of six classes: with shards of 8 rows four and two, none a multiple of a batch."""
    return synthetic_images(classes=6, train=5, test=2)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its name; a leftover folder of a killed writer shows as well."""
    return {
        path.name: path.read_bytes() if path.is_file() else b"folder" for path in sorted(folder.iterdir())
    }
