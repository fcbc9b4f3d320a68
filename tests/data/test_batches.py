"""Batches: the transforms against slow ones, the same bits for the same seed and epoch, and nothing dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hace
from hace.data import Samples, synthetic_images
from hace.data.batches import (
    LoaderBatches,
    MemoryBatches,
    Preprocessing,
    channel_stats,
    make_batches,
    normalisation,
)
from hace.errors import ConfigError, DataError
from tests.data_layouts import write_image

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@pytest.fixture(scope="module")
def train() -> Samples:
    return synthetic_images(classes=6, train=10, test=1)["train"]


def plain(samples: Samples) -> torch.Tensor:
    assert samples.pixels is not None
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    return (samples.pixels / 255 - mean) / std


def test_without_augmentation_everything_comes_once_in_order(train: Samples) -> None:
    batches = MemoryBatches(train, 16, mean=MEAN, std=STD)
    result = list(batches.epoch(0))
    assert [len(x) for x, _ in result] == [16, 16, 16, 12]
    assert len(batches) == 4
    torch.testing.assert_close(torch.cat([x for x, _ in result]), plain(train), atol=1e-5, rtol=1e-5)
    assert torch.cat([y for _, y in result]).tolist() == train.labels.tolist()


def test_each_image_is_a_crop_or_a_mirrored_one(train: Samples) -> None:
    """Every image of a batch is found among the 81 crops and their mirror images, computed one by one."""
    assert train.pixels is not None
    batches = MemoryBatches(
        train, 60, shuffle=True, pad=4, flip=True, mean=(0, 0, 0), std=(1, 1, 1), labels="nodes", seed=3
    )
    x, y = next(batches.epoch(5))
    x = (x * 255).round().byte()
    order = np.random.default_rng([3, 5]).permutation(60)
    assert y.tolist() == train.nodes[order].tolist()
    places, mirrored = set(), 0
    for image, i in zip(x, order, strict=True):
        big = torch.zeros(3, 40, 40, dtype=torch.uint8)
        big[:, 4:36, 4:36] = train.pixels[i]
        results = [
            (dy, dx, flipped)
            for dy in range(9)
            for dx in range(9)
            for flipped in (False, True)
            if torch.equal(
                big[:, dy : dy + 32, dx : dx + 32].flip(2) if flipped else big[:, dy : dy + 32, dx : dx + 32],
                image,
            )
        ]
        assert len(results) == 1
        places.add(results[0][:2])
        mirrored += results[0][2]
    assert len(places) > 30
    assert 15 < mirrored < 45


def test_seed_and_epoch_decide_alone(train: Samples) -> None:
    def passes(seed: int, epochs: list[int]) -> list[torch.Tensor]:
        batches = MemoryBatches(train, 16, shuffle=True, pad=4, flip=True, seed=seed)
        return [torch.cat([x for x, _ in batches.epoch(e)]) for e in epochs]

    state = torch.random.get_rng_state()
    first, second, again = passes(0, [0, 1, 0])
    resumed = passes(0, [1])[0]
    other = passes(1, [0])[0]
    assert torch.equal(first, again)
    assert torch.equal(second, resumed)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_torch_and_numpy_cut_the_same(train: Samples) -> None:
    """What runs on a GPU, run here, gives the same bits."""
    batches = MemoryBatches(train, 16, shuffle=True, pad=4, flip=True)
    expected = [x for x, _ in batches.epoch(0)]
    windows = batches._windows
    assert isinstance(windows, np.ndarray)
    batches._windows = torch.nn.functional.pad(train.pixels, (4,) * 4).unfold(2, 32, 1).unfold(3, 32, 1)  # type: ignore[arg-type]
    for (x, _), y in zip(batches.epoch(0), expected, strict=True):
        assert torch.equal(x, y)


def test_labels_of_leaves_and_of_nodes() -> None:
    coarse = synthetic_images(classes=6, train=10, test=1, coarse=0.5)["train"]
    with pytest.raises(DataError, match="Every label must be a leaf"):
        MemoryBatches(coarse, 16)
    y = torch.cat([y for _, y in MemoryBatches(coarse, 16, labels="nodes").epoch(0)])
    assert y.tolist() == coarse.nodes.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1. Got 0"),
        ({"pad": -1}, "pad must be 0 or more. Got -1"),
        ({"seed": -1}, "seed must be 0 or more. Got -1"),
        ({"labels": "leafs"}, "labels must be one of 'leaves', 'nodes'. Got 'leafs'"),
        ({"std": (1, 1, 0)}, "std above 0"),
    ],
)
def test_options_that_do_not_fit(options: dict, words: str, train: Samples) -> None:
    with pytest.raises(ConfigError, match=words):
        MemoryBatches(train, **({"batch_size": 16} | options))


def test_channel_stats_are_those_of_the_pixels(train: Samples) -> None:
    assert train.pixels is not None
    x = train.pixels.double() / 255
    mean, std = channel_stats(train.pixels)
    assert mean == pytest.approx(x.mean((0, 2, 3)).tolist())
    assert std == pytest.approx(x.std((0, 2, 3), correction=0).tolist())
    scale, shift = normalisation(mean, std)
    normal = train.pixels * scale + shift
    assert normal.mean((0, 2, 3)).abs().max() < 1e-4
    assert (normal.std((0, 2, 3)) - 1).abs().max() < 1e-3


@pytest.fixture
def on_disk(tmp_path: Path) -> Samples:
    h = hace.Hierarchy.flat(["a", "b"])
    paths = [write_image(tmp_path / f"{i}.png", (40 + i, 30), (i * 20, 0, 0)) for i in range(7)]
    return Samples(h, np.arange(7) % 2, [path.name for path in paths], paths=paths)


def test_images_from_disk_without_augmentation(on_disk: Samples) -> None:
    batches = make_batches(on_disk, 3, Preprocessing(24, 27, (0, 0, 0), (1, 1, 1)))
    assert isinstance(batches, LoaderBatches)
    result = list(batches.epoch(0))
    assert [tuple(x.shape) for x, _ in result] == [(3, 3, 24, 24), (3, 3, 24, 24), (1, 3, 24, 24)]
    assert len(batches) == 3
    red = torch.cat([x[:, 0].mean((1, 2)) for x, _ in result]) * 255
    assert red.round().tolist() == [0, 20, 40, 60, 80, 100, 120]
    assert torch.cat([y for _, y in result]).tolist() == on_disk.labels.tolist()


def test_workers_change_nothing(on_disk: Samples) -> None:
    transform = Preprocessing(8, 9).transform(augment=True)
    state = torch.random.get_rng_state()

    def epochs(workers: int, numbers: list[int]) -> list[torch.Tensor]:
        batches = LoaderBatches(on_disk, 2, transform, shuffle=True, seed=1, workers=workers)
        return [torch.cat([x for x, _ in batches.epoch(e)]) for e in numbers]

    alone = epochs(0, [0, 1, 0])
    helped = epochs(2, [0, 1])
    assert torch.equal(alone[0], alone[2])
    assert torch.equal(alone[0], helped[0])
    assert torch.equal(alone[1], helped[1])
    assert not torch.equal(alone[0], alone[1])
    assert torch.equal(state, torch.random.get_rng_state())


def test_every_epoch_has_its_own_crops(on_disk: Samples) -> None:
    batches = LoaderBatches(on_disk, 7, Preprocessing(8, 9, (0, 0, 0), (1, 1, 1)).transform(augment=True))
    pictures = [Image.effect_noise((40, 30), 60).convert("RGB") for _ in range(7)]
    assert on_disk.paths is not None
    for path, picture in zip(on_disk.paths, pictures, strict=True):
        picture.save(path)
    first, second, again = (next(batches.epoch(e))[0] for e in (0, 1, 0))
    assert torch.equal(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_truncated_image_is_named(workers: int, on_disk: Samples) -> None:
    assert on_disk.paths is not None
    path = on_disk.paths[4]
    path.write_bytes(path.read_bytes()[:40])
    batches = LoaderBatches(on_disk, 2, Preprocessing(8, 9).transform(), workers=workers)
    with pytest.raises(DataError) as caught:
        list(batches.epoch(0))
    assert str(caught.value).startswith(f"{path}: the image cannot be read")


@pytest.mark.slow
def test_the_way_that_suits(train: Samples, on_disk: Samples) -> None:
    small = make_batches(train, 16, Preprocessing.of(train), shuffle=True, augment=True)
    assert isinstance(small, MemoryBatches)
    assert (small.pad, small.flip, small.order.shuffle) == (4, True, True)
    plain = make_batches(train, 16, Preprocessing.of(train, 32))
    assert isinstance(plain, MemoryBatches)
    assert (plain.pad, plain.flip, plain.order.shuffle) == (0, False, False)
    large = make_batches(train, 16, Preprocessing.of(train, 48), augment=True)
    assert isinstance(large, LoaderBatches)
    assert next(iter(large.epoch(0)))[0].shape == (16, 3, 48, 48)
    with pytest.raises(ConfigError, match="samples must have pixels in memory"):
        MemoryBatches(on_disk, 2)
    with pytest.raises(ConfigError, match=r"workers must be 0 or more. Got -1"):
        make_batches(on_disk, 2, Preprocessing(8, 9), workers=-1)
