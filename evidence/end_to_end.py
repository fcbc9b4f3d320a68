"""End to end on the pixels of CIFAR-100: python evidence/end_to_end.py STUDY --data FOLDER --work FOLDER [--dry-run]

    python evidence/end_to_end.py clean --data data --work work      # all labels known, 11 methods
    python evidence/end_to_end.py mixed --data data --work work      # 90% of the labels known only to their superclass
    python evidence/end_to_end.py mixed-100 --data data --work work  # the same with fewer images, for more epochs

A ResNet-10 of width 16 instead of 64 whose first convolution has stride 2, from random weights, trained by the engine of `hace
study`: three rates for every method, chosen on a tenth of the training images at the first seed, then three seeds. A run takes
one to three minutes of one core.

- clean: 100 images of each class, 8 epochs.
- mixed: all images, 2 epochs; the tenth of them that has fine labels alone, 20 epochs, so dropping the others costs no steps.
- mixed-100: the first 100 training images of each class, ten of them with fine labels, 12 epochs; those ten alone, 120 epochs.

With coarse labels, last layers start from zeros. Stopped at any point, a study resumes with the same command, and its tables go
to evidence/results. FOLDER holds cifar-100-binary or cifar-100-python as published, or sheets of 32 px tiles per class
(cifar100/train/NN_name.webp), from which the binary files are made first.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from reduce import first_of_each
from run import RESULTS, keep, sha256
from torch import Tensor, nn

from hace.data import DATASETS, Dataset, Samples, load_dataset
from hace.data.catalog import DatasetKind
from hace.formats import cifar100_hierarchy
from hace.lab.runs.config import DataConfig, TrainConfig
from hace.lab.study.presets import LabelGrid, Preset
from hace.study import Study

WIDTH = 16
RATE, TIMES = 0.12, (1 / 3, 1.0, 3.0)  # every method has these three rates
FILES = ("train.bin", "test.bin", "train", "test")  # of the binary and of the Python version
CLEAN = (
    "cross_entropy",
    "hace",
    "cross_entropy_paths",
    "hace_paths",
    "hace_0.9",
    "cross_entropy_smooth",
    "hace_smooth",
    "soft_label_10",
    "hxe_0.2",
    "hace_shuffled",
    "cross_entropy_paths_shuffled",
)
MIXED = ("cross_entropy", "cross_entropy_paths", "hace", "hce", "conditional_softmax")
FIRST = "cifar100_100"  # the dataset of `load_first`


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        out = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(out)) + self.shortcut(x))


class NarrowResNet(nn.Module):
    """For 32 px: a first convolution of stride 2, no pooling, then one block each of 16, 32, 64 and 128 channels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        widths = [WIDTH * 2**k for k in range(4)]
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
        blocks = [Block(widths[max(k - 1, 0)], width, 2 if k else 1) for k, width in enumerate(widths)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def get_classifier(self) -> nn.Module:
        """The last layer, as timm's models have it."""
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 32, 32) to (B, num_classes)."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


@timm.models.register_model
def resnet10_width16(pretrained: bool = False, num_classes: int = 1000, **_: Any) -> nn.Module:
    """The model by its name in runs."""
    assert not pretrained
    return NarrowResNet(num_classes)


def recipe(dataset: str, model: str) -> TrainConfig:
    """SGD with momentum and a cosine: the rates of the study are times this one."""
    return TrainConfig(
        data=DataConfig(dataset),
        model=model,
        epochs=8,
        batch_size=64,
        lr=RATE,
        weight_decay=5e-4,
        per_class=100,
        channels_last=True,
        checkpoint_seconds=120.0,
    )


def load_first(root: Path, hierarchy: Any = None, root_node: bool | None = None) -> Dataset[Samples]:
    """CIFAR-100 with the first 100 training images of each class; all test images."""
    whole = load_dataset("cifar100", root, hierarchy=hierarchy, root_node=root_node)
    first = first_of_each(whole["train"].nodes, 100)
    return Dataset(FIRST, whole.hierarchy, {"train": whole["train"].select(first), "test": whole["test"]})


DATASETS[FIRST] = DatasetKind("CIFAR-100, the first 100 training images of each class", load_first, 32)

_CLEAN = Preset(
    "end to end, narrow: 100 images of each class",
    "train",
    CLEAN,
    ("cifar100",),
    models=("resnet10_width16",),
    seeds=3,
    rates=TIMES,
    search_once=True,
    recipe=recipe,
)


def coarse(title: str, dataset: str, methods: tuple[str, ...], epochs: int) -> Preset:
    """Nine labels in ten known to their superclass only; heads start from zeros."""
    return replace(
        _CLEAN,
        title=f"end to end, narrow: {title}",
        datasets=(dataset,),
        methods=methods,
        labels=LabelGrid(coarse=(0.9,)),
        recipe=lambda dataset, model: replace(
            recipe(dataset, model), per_class=None, epochs=epochs, start="zeros"
        ),
    )


DROP = ("cross_entropy_drop",)
STUDIES = {
    "clean": {"clean": _CLEAN},
    "mixed": {
        "mixed": coarse("90% of the labels known to their superclass", "cifar100", MIXED, 2),
        "dropped": coarse("the other 10%, as many steps", "cifar100", DROP, 20),
    },
    "mixed-100": {
        "mixed": coarse("100 images of each class, 90 of them known to their superclass", FIRST, MIXED, 12),
        "dropped": coarse("the other ten images of each class, as many steps", FIRST, DROP, 120),
    },
}


def from_sheets(source: Path, target: Path) -> None:
    """The binary files of CIFAR-100 from one sheet of tiles per class and split."""
    from PIL import Image

    h = cifar100_hierarchy()
    tops = sorted(h.nodes[parent] for parent in set(h.parent_nodes[h.leaf_nodes].tolist()))
    target.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        parts = []
        for fine, leaf in enumerate(h.leaf_nodes):
            (sheet,) = (source / split).glob(f"{fine:02d}_*")
            a = np.array(Image.open(sheet).convert("RGB"))
            tiles = (
                a.reshape(a.shape[0] // 32, 32, a.shape[1] // 32, 32, 3)
                .transpose(0, 2, 4, 1, 3)
                .reshape(-1, 3072)
            )
            labels = np.array([tops.index(h.nodes[h.parent_nodes[leaf]]), fine], np.uint8)
            parts.append(np.concatenate([np.tile(labels, (len(tiles), 1)), tiles], axis=1))
        (target / f"{split}.bin").write_bytes(np.concatenate(parts).tobytes())
    (target / "fine_label_names.txt").write_text("\n".join(h.leaves) + "\n")


def main() -> None:
    """Make the data ready, run what is missing, keep the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("evidence-work"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="show what would run, and how long it takes")
    args = parser.parse_args()
    title = f"cifar100-end-to-end-{args.study}"
    (name,) = {name for preset in STUDIES[args.study].values() for name in preset.datasets}
    root = args.data
    if (args.data / "cifar100" / "train").is_dir():
        root = args.work / "cifar100"
        if not (root / "cifar-100-binary" / "test.bin").exists():
            from_sheets(args.data / "cifar100", root / "cifar-100-binary")
    study = Study(
        STUDIES[args.study],
        data_root={name: str(root)},
        widen=0,
        out=str(args.work / title),
        runs=str(args.work / "runs"),
    )
    if args.dry_run:
        return study.price()
    study.run(workers=args.workers)
    files = sorted(path for path in root.rglob("*") if path.name in FILES and path.is_file())
    inputs = {path.name: {"file": path.name, "sha256": sha256(path)} for path in files}
    command = f"python evidence/end_to_end.py {args.study}"
    keep(args.work / title, RESULTS / title, command, inputs, [RATE * times for times in TIMES])


if __name__ == "__main__":
    main()
