"""`hace features` and `hace predict` on photos, beside bare loops of timm and torchvision with the same allocator settings.

    python evidence/keep.py bare-loops/ratios benchmarks/bare_loops.py

Both sides take the same JPEG files through the same network on one thread: to features, or to a CSV file with the best class,
where `hace predict` also writes the answer, its path and the five best classes. Every measurement is a process of its own, all
in turn; seconds are those of the processor, without the imports of this file. "keeps" is the allocator as the commands set it
(`keep_freed_memory`), "returns" as glibc has it; the bare loop gets the same. The goal is a ratio of 0.95. Both sides of
`predict` must agree on every photo.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from torchvision import transforms

from hace import cli
from hace.data.folders import load_folders
from hace.lab.features.backbones import load_backbone
from hace.lab.features.extraction import extract
from hace.lab.runs.config import DataConfig, TrainConfig
from hace.lab.runs.process import KEEP_MEMORY, keep_freed_memory
from hace.lab.serve.load_run import load_trained
from hace.lab.train.train import train

BATCH, PHOTOS, WEIGHTS, RUN = 32, "photos", "weights.safetensors", "run"


def make_photos(folder: Path, count: int) -> None:
    """JPEG files of 500 x 375 pixels, as data sets have them, of smooth colours with some noise."""
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = (smooth + rng.integers(-12, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
        inside = folder / f"class{i % 8}"
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(inside / f"{i:05d}.jpg", quality=90)


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / PHOTOS).rglob("*.jpg"))


def bare_features(folder: Path, model: str) -> None:
    """What a person writes in a notebook."""
    network = timm.create_model(model, num_classes=0, checkpoint_path=str(folder / WEIGHTS)).eval()
    transform = create_transform(**resolve_model_data_config(network))
    files, rows = files_of(folder), []
    with torch.inference_mode():
        for start in range(0, len(files), BATCH):
            part = [transform(Image.open(file).convert("RGB")) for file in files[start : start + BATCH]]
            rows.append(network(torch.stack(part)))
    np.save(folder / "features.npy", torch.cat(rows).numpy())


def hace_features(folder: Path, model: str) -> None:
    backbone = load_backbone(model, checkpoint=folder / WEIGHTS)
    extract(
        load_folders(folder / PHOTOS), backbone, folder / f"features-{time.monotonic_ns()}", batch_size=BATCH
    )


def bare_predict(folder: Path, model: str) -> None:
    """What a person writes in a notebook."""
    trained = load_trained(folder / RUN)
    view, network, loss = trained.preprocessing, trained.model.eval(), trained.loss
    steps = (transforms.Resize(view.resize), transforms.CenterCrop(view.size), transforms.ToTensor())
    transform = transforms.Compose([*steps, transforms.Normalize(view.mean, view.std)])
    files, rows = files_of(folder), []
    with torch.inference_mode():
        for start in range(0, len(files), BATCH):
            part = files[start : start + BATCH]
            x = torch.stack([transform(Image.open(file).convert("RGB")) for file in part])
            best = loss.leaf_logits(network(x)).softmax(1).max(1)
            names = [trained.hierarchy.leaves[i] for i in best.indices]
            rows += zip(map(str, part), names, best.values.tolist(), strict=True)
    with (folder / "bare.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def hace_predict(folder: Path, model: str) -> None:
    command = ["predict", folder / RUN, folder / PHOTOS, "--out", folder / "hace.csv", "--device", "cpu"]
    assert cli.main([str(word) for word in command]) == 0


WORK: dict[str, tuple[Callable[[Path, str], None], Callable[[Path, str], None]]] = {
    "features": (bare_features, hace_features),
    "predict": (bare_predict, hace_predict),
}


def one(what: str, side: int, folder: Path, model: str) -> None:
    """Prints the processor seconds of one side, in this process."""
    torch.set_num_threads(1)
    keep_freed_memory()  # unless the environment says otherwise
    began = time.process_time()
    WORK[what][side](folder, model)
    print(f"seconds {time.process_time() - began}")


def seconds(what: str, side: int, folder: Path, model: str, keeps: bool) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", what, str(side), str(folder), "--model", model]
    environment = {**os.environ, KEEP_MEMORY: str(int(keeps))}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.split("seconds ")[-1])


def agree(folder: Path) -> None:
    with (folder / "bare.csv").open() as bare, (folder / "hace.csv").open() as hace:
        answers = sorted((Path(row["sample"]).name, row["leaf_1"]) for row in csv.DictReader(hace))
        assert answers == sorted((Path(row[0]).name, row[1]) for row in csv.reader(bare)), (
            "the answers must agree"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="resnet10t", help="a timm model (default: %(default)s)")
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "SIDE", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one[0], int(args.one[1]), Path(args.one[2]), args.model)
        return
    print("| command | network | allocator | bare loop: photos per s | hace: photos per s | ratio | goal |")
    print("| --- " * 7 + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_photos(folder / PHOTOS, args.photos)
        save_file(timm.create_model(args.model, num_classes=0).state_dict(), folder / WEIGHTS)
        data = DataConfig("synthetic", options={"classes": 40, "train": 2, "test": 1})
        train(
            TrainConfig(data=data, model=args.model, epochs=1, image_size=128, batch_size=BATCH), folder / RUN
        )
        for what in WORK:
            spent: dict[tuple[bool, int], list[float]] = {}
            for _ in range(args.rounds):
                for keeps in (True, False):
                    for side in (0, 1):
                        took = seconds(what, side, folder, args.model, keeps)
                        spent.setdefault((keeps, side), []).append(took)
            if what == "predict":
                agree(folder)
            for keeps in (True, False):
                bare, own = spent[keeps, 0], spent[keeps, 1]
                ratio = statistics.median(b / o for b, o in zip(bare, own, strict=True))
                rates = [args.photos / min(times) for times in (bare, own)]
                print(
                    f"| `hace {what}` | {args.model} | {'keeps' if keeps else 'returns'} | {rates[0]:.1f} | {rates[1]:.1f} | "
                    f"{ratio:.2f} | 0.95 |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
