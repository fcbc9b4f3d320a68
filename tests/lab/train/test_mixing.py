"""Mixup and CutMix against loops over pixels, at their extremes, and as a function of the generator alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hace import HACELoss, Hierarchy
from hace.errors import ConfigError, DataError
from hace.lab.train.mixing import Mixing, mix

HEIGHT, WIDTH, CLASSES = 6, 8, 5


def batch(size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose pixels tell where they come from: image number, then a place within it."""
    place = torch.arange(3 * HEIGHT * WIDTH).view(1, 3, HEIGHT, WIDTH) / 1000
    images = torch.arange(size).view(-1, 1, 1, 1) + place
    return images, torch.arange(size) % CLASSES


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(8))
def test_mixup_by_loops(seed: int) -> None:
    """With a class for every image, the targets say of what each image is made."""
    images, _ = batch()
    size = len(images)
    x, targets = mix(images, torch.arange(size), size, Mixing(mixup_alpha=1.0), seeded(seed))
    expected = torch.zeros_like(images)
    for i, j in itertools.product(range(size), range(size)):
        expected[i] += targets[i, j] * images[j]
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(targets.sum(0), torch.ones(size))  # each is a partner once
    mixed = [i for i in range(size) if targets[i, i] < 1]
    assert mixed
    assert len({round(targets[i, i].item(), 5) for i in mixed}) == 1  # one share for the batch
    assert all((targets[i] > 0).sum() == 2 for i in mixed)


@pytest.mark.parametrize("seed", range(12))
def test_cutmix_by_loops(seed: int) -> None:
    images, labels = batch()
    x, targets = mix(images, labels, CLASSES, Mixing(cutmix_alpha=1.0), seeded(seed))
    origin = x.floor().long()  # the image that each pixel came from
    torch.testing.assert_close(x - origin, images - images.floor())  # and it kept its place
    expected = torch.zeros(len(images), CLASSES)
    boxes = set()
    for i in range(len(images)):
        for c, h, w in itertools.product(range(3), range(HEIGHT), range(WIDTH)):
            expected[i, labels[origin[i, c, h, w]]] += 1 / (3 * HEIGHT * WIDTH)
        foreign = (origin[i] != i).nonzero()
        assert len(origin[i].unique()) <= 2
        if len(foreign):
            low, high = foreign.amin(0), foreign.amax(0)
            assert len(foreign) == (high - low + 1).prod()  # a whole box, through all channels
            boxes.add((*low.tolist(), *high.tolist()))
    assert len(boxes) <= 1  # the same for every image of the batch
    torch.testing.assert_close(targets, expected)


def test_partners_are_a_permutation() -> None:
    images, labels = batch()
    for seed in range(20):
        x, _ = mix(images, labels, CLASSES, Mixing(cutmix_alpha=1.0), seeded(seed))
        for h, w in itertools.product(range(HEIGHT), range(WIDTH)):
            assert sorted(x[:, 0, h, w].floor().tolist()) == list(range(len(images)))


@pytest.mark.slow
def test_shares_follow_the_beta_distribution() -> None:
    """Beta(a, a) has mean 1/2 and variance 1 / (4 (2a + 1)): here 1/12 and 1/36."""
    images, labels = torch.zeros(2, 1, 1, 1), torch.tensor([0, 1])
    for alpha, variance in ((1.0, 1 / 12), (4.0, 1 / 36)):
        generator = seeded(0)
        mixed = (mix(images, labels, 2, Mixing(mixup_alpha=alpha), generator)[1] for _ in range(3000))
        share = torch.stack([target[0, 0] for target in mixed if target[0, 0] < 1])  # 1: its own partner
        assert 1400 < len(share) < 1600
        assert share.mean().item() == pytest.approx(0.5, abs=0.02)
        assert share.var().item() == pytest.approx(variance, rel=0.1)


@pytest.mark.slow
def test_probability_and_switch() -> None:
    images, labels = batch()
    generator = seeded(0)
    mixing = Mixing(mixup_alpha=1.0, cutmix_alpha=1.0, probability=0.6, switch=0.25)
    counts = {"same": 0, "mixup": 0, "cutmix": 0}
    for _ in range(2000):
        x, _ = mix(images, labels, CLASSES, mixing, generator)
        whole = torch.allclose(x - x.floor(), images - images.floor(), atol=1e-4)
        counts["same" if x is images else "cutmix" if whole else "mixup"] += 1
    assert counts["same"] == pytest.approx(800, abs=90)
    assert counts["cutmix"] == pytest.approx(300, abs=70)
    assert counts["mixup"] == pytest.approx(900, abs=90)


@pytest.mark.parametrize(
    ("mixing", "size"),
    [
        (Mixing(), 7),
        (Mixing(mixup_alpha=1.0, probability=0.0), 7),
        (Mixing(mixup_alpha=1.0), 1),
        (Mixing(cutmix_alpha=1.0), 1),
        (Mixing(mixup_alpha=1.0), 0),
        (Mixing(cutmix_alpha=1.0), 0),
    ],
)
def test_nothing_to_mix_gives_one_hot_targets(mixing: Mixing, size: int) -> None:
    images, labels = batch(size)
    x, targets = mix(images, labels, CLASSES, mixing, seeded(0))
    assert torch.equal(x, images)
    assert targets.shape == (size, CLASSES)
    assert targets.dtype == torch.float32
    assert torch.equal(targets, torch.eye(CLASSES)[labels])


@pytest.mark.parametrize(
    "mixing", [Mixing(mixup_alpha=1e-3), Mixing(cutmix_alpha=1e-3), Mixing(mixup_alpha=1e4)]
)
def test_extreme_shares_are_finite_and_sum_to_one(mixing: Mixing) -> None:
    images, labels = batch()
    for seed in range(20):
        x, targets = mix(images, labels, CLASSES, mixing, seeded(seed))
        assert x.isfinite().all()
        torch.testing.assert_close(targets.sum(1), torch.ones(len(images)))
        assert (targets >= 0).all()


@pytest.mark.parametrize("mixing", [Mixing(mixup_alpha=0.4), Mixing(cutmix_alpha=0.4), Mixing(0.4, 0.4)])
def test_the_generator_decides_and_nothing_else(mixing: Mixing) -> None:
    images, labels = batch()
    kept, state = images.clone(), torch.get_rng_state()
    first = mix(images, labels, CLASSES, mixing, seeded(3))
    np.random.rand()
    torch.rand(1)
    again = mix(images, labels, CLASSES, mixing, seeded(3))
    other = [mix(images, labels, CLASSES, mixing, seeded(seed))[0] for seed in range(4, 8)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(first[0], x) for x in other)
    assert torch.equal(images, kept)
    torch.set_rng_state(state)
    mix(images, labels, CLASSES, mixing, seeded(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_every_call_moves_the_generator_alike() -> None:
    """So that the batches after one do not depend on what was done with it."""
    states = []
    for mixing, size in (
        (Mixing(), 7),
        (Mixing(mixup_alpha=1.0), 7),
        (Mixing(1.0, 1.0, 0.5), 3),
        (Mixing(), 0),
    ):
        generator = seeded(0)
        mix(*batch(size), CLASSES, mixing, generator)
        states.append(generator.get_state())
    assert all(torch.equal(states[0], state) for state in states)
    assert not torch.equal(states[0], seeded(0).get_state())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_of_images_are_kept(dtype: torch.dtype) -> None:
    images, labels = batch()
    for mixing in (Mixing(mixup_alpha=1.0), Mixing(cutmix_alpha=1.0)):
        x, targets = mix(images.to(dtype), labels, CLASSES, mixing, seeded(0))
        assert (x.dtype, targets.dtype) == (dtype, torch.float32)


def test_channels_last_is_kept() -> None:
    images, labels = batch()
    for mixing in (Mixing(mixup_alpha=1.0), Mixing(cutmix_alpha=1.0)):
        x, _ = mix(images.contiguous(memory_format=torch.channels_last), labels, CLASSES, mixing, seeded(0))
        assert x.is_contiguous(memory_format=torch.channels_last)


def test_hace_takes_the_targets() -> None:
    """The loss of a mixed target is the mixture of the losses of its labels."""
    hierarchy = Hierarchy.from_edges([("a", "b"), ("a", "c"), ("r", "a"), ("r", "d")], leaves=["b", "c", "d"])
    loss = HACELoss(hierarchy, dilution=0.5, reduction="none")
    labels = torch.tensor([0, 1, 2, 2])
    _, targets = mix(torch.rand(4, 3, 4, 4), labels, 3, Mixing(mixup_alpha=1.0), seeded(1))
    z = torch.randn(4, loss.num_outputs)
    each = torch.stack([loss(z, torch.full((4,), c)) for c in range(3)], 1)
    torch.testing.assert_close(loss(z, targets), (targets * each).sum(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixup_alpha": -1.0}, "mixup_alpha must be a number of at least 0. Got -1.0"),
        ({"cutmix_alpha": float("nan")}, "cutmix_alpha must be a number of at least 0. Got nan"),
        ({"probability": 1.5}, "probability must be between 0 and 1. Got 1.5"),
        ({"switch": -0.1}, "switch must be between 0 and 1. Got -0.1"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixing(**options)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int64),
            "floating point images",
        ),
        (torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.int64), r"shape \(2, 3, 4\)"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(3, dtype=torch.int64), "one int64 label for each of 2 images"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2), "one int64 label"),
        (torch.zeros(2, 3, 4, 4), torch.tensor([0, 5]), "labels from 0 to 4. Got 0 to 5"),
        (torch.zeros(2, 3, 4, 4), torch.tensor([-100, 1]), "labels from 0 to 4. Got -100 to 1"),
    ],
)
def test_bad_batches(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        mix(images, labels, CLASSES, Mixing(mixup_alpha=1.0), seeded(0))
