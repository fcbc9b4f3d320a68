"""Mixup and CutMix as trainings use them: targets say what images are made of, and the step's seed decides."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from hace import HACELoss, Hierarchy
from hace.lab.train.loop import batch_mixer
from tests.train_cases import tiny

HEIGHT, WIDTH, CLASSES = 6, 8, 5
KINDS: tuple[dict[str, float], ...] = (
    {"mixup_alpha": 1.0},
    {"cutmix_alpha": 1.0},
    {"mixup_alpha": 0.4, "cutmix_alpha": 0.4},
)


def batch(size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose pixels tell where they come from: image number, then a place within it."""
    place = torch.arange(3 * HEIGHT * WIDTH).view(1, 3, HEIGHT, WIDTH) / 1000
    images = torch.arange(size).view(-1, 1, 1, 1) + place
    return images, torch.arange(size) % CLASSES


def mixed(seed: int, images: torch.Tensor, labels: torch.Tensor, num_labels: int, **alphas: Any) -> Any:
    torch.manual_seed(seed)
    return batch_mixer(tiny(**alphas), num_labels)(images, labels)


@pytest.mark.parametrize("seed", range(6))
def test_mixup_by_loops(seed: int) -> None:
    """With a class for every image, the targets say of what each image is made."""
    images, _ = batch()
    size = len(images)
    x, targets = mixed(seed, images, torch.arange(size), size, mixup_alpha=1.0)
    expected = torch.zeros_like(images)
    for i, j in itertools.product(range(size), range(size)):
        expected[i] += targets[i, j] * images[j]
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(targets.sum(0), torch.ones(size))  # each is a partner once


@pytest.mark.parametrize("seed", range(6))
def test_cutmix_by_loops(seed: int) -> None:
    images, labels = batch()
    x, targets = mixed(seed, images, labels, CLASSES, cutmix_alpha=1.0)
    origin = x.floor().long()  # the image that each pixel came from
    torch.testing.assert_close(x - origin, images - images.floor())  # and it kept its place
    expected = torch.zeros(len(images), CLASSES)
    for i in range(len(images)):
        for c, h, w in itertools.product(range(3), range(HEIGHT), range(WIDTH)):
            expected[i, labels[origin[i, c, h, w]]] += 1 / (3 * HEIGHT * WIDTH)
    torch.testing.assert_close(targets, expected)


@pytest.mark.parametrize("alphas", KINDS)
def test_the_seed_decides_and_nothing_else(alphas: dict[str, float]) -> None:
    images, labels = batch()
    original = images.clone()
    first, again = (mixed(3, images, labels, CLASSES, **alphas) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(first[0], mixed(s, images, labels, CLASSES, **alphas)[0]) for s in range(4, 8))
    assert torch.equal(images, original)


def test_without_mixing_labels_stay_labels_and_one_image_stays_itself() -> None:
    images, labels = batch()
    x, y = mixed(0, images, labels, CLASSES)
    assert x is images
    assert y is labels
    for alphas in KINDS:
        x, targets = mixed(0, *batch(1), CLASSES, **alphas)
        torch.testing.assert_close(x, batch(1)[0])
        torch.testing.assert_close(targets, torch.eye(CLASSES)[:1])


def test_hace_takes_the_targets() -> None:
    """The loss of a mixed target is the mixture of the losses of its labels."""
    hierarchy = Hierarchy.from_edges([("a", "b"), ("a", "c"), ("r", "a"), ("r", "d")], leaves=["b", "c", "d"])
    loss = HACELoss(hierarchy, dilution=0.5, reduction="none")
    labels = torch.tensor([0, 1, 2, 2])
    _, targets = mixed(1, torch.rand(4, 3, 4, 4), labels, 3, mixup_alpha=1.0)
    z = torch.randn(4, loss.num_outputs)
    each = torch.stack([loss(z, torch.full((4,), c)) for c in range(3)], 1)
    torch.testing.assert_close(loss(z, targets), (targets * each).sum(1))
