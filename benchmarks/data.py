"""Batches a second of CIFAR-100-sized data: ours from memory against torchvision's per-sample transforms in a DataLoader.

    python benchmarks/data.py            50,000 random images, a minute
    python benchmarks/data.py --quick    a tenth of the passes

Both do the same work: shuffle, random crop with 4 pixels around, random flip, normalise. torchvision's images are PIL images
made from an array, as its own CIFAR100 class has them, in a DataLoader without workers and with two; the faster one counts.
Rounds are interleaved and medians taken. The bar: at least 5 times as many.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

import hace
from hace.data.batches import IMAGENET_MEAN, IMAGENET_STD, MemoryBatches

BATCH = 256
BAR = 5.0


class PerSample(torch.utils.data.Dataset[Any]):
    """What torchvision's CIFAR100 does when it is asked for an image."""

    def __init__(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        from PIL import Image
        from torchvision import transforms as t

        self.array = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels, self.image = labels.tolist(), Image
        self.transform = t.Compose(
            [
                t.RandomCrop(32, 4),
                t.RandomHorizontalFlip(),
                t.ToTensor(),
                t.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.image.fromarray(self.array[index])), self.labels[index]


def rate(batches: Iterable[Any], count: int) -> float:
    """Batches a second, after one to warm up."""
    iterator: Iterator[Any] = iter(batches)
    next(iterator)
    start = time.perf_counter()
    done = sum(1 for _ in itertools.islice(iterator, count))
    return done / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the passes")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    h = hace.cifar100_hierarchy()
    count = 50_000
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % h.num_leaves
    samples = hace.Samples(h, h.leaf_nodes[labels.numpy()], [str(i) for i in range(count)], pixels)
    ours = MemoryBatches(samples, BATCH, shuffle=True, pad=4, flip=True)
    dataset = PerSample(pixels, labels)

    def loader(workers: int) -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)

    ways: dict[str, tuple[Callable[[], Iterable[Any]], int]] = {
        "hace, from memory": (lambda: ours.epoch(0), 190),
        "torchvision, no workers": (lambda: loader(0), 20),
        "torchvision, 2 workers": (lambda: loader(2), 40),
    }
    result: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 if quick else 5):
        for name, (make, batches) in ways.items():
            result[name].append(rate(make(), batches // (5 if quick else 1)))
    medians = {name: statistics.median(rates) for name, rates in result.items()}
    for name, value in medians.items():
        print(f"{name:<24} {value:8.1f} batches/s  {value * BATCH:10,.0f} images/s")
    first, *others = medians.values()
    ratio = first / max(others)
    print(f"{'ratio':<24} {ratio:8.1f}x (bar {BAR:g}x)")
    if not np.isfinite(ratio) or ratio < BAR:
        sys.exit(f"the ratio is {ratio:.1f}, below {BAR:g}")


if __name__ == "__main__":
    main()
