"""`hace predict` on a folder of photos, beside a bare torchvision and timm loop over the same files.

    python benchmarks/predict.py --photos 2000

Both run in one process on one thread, in turns, with the same network, from JPEG files to a CSV file: the bare loop writes the
best class and its probability, `hace predict` also the answer, its path and the five best classes. Seconds are those of the
processor, so other work on the machine matters little. The goal is a ratio of at least 0.9. Both must agree on every photo.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

from hace import cli
from hace.lab.runs.config import DataConfig, TrainConfig
from hace.lab.serve.load_run import load_trained
from hace.lab.train.train import train


def make_photos(folder: Path, count: int) -> None:
    """JPEG files of 500 x 375 pixels, as data sets have them, of smooth colours with some noise."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = (smooth + rng.integers(-12, 12, smooth.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{i:05d}.jpg", quality=90)


def bare_loop(run: Path, photos: Path, out: Path) -> None:
    """What a person writes in a notebook."""
    trained = load_trained(run)
    view, network, loss = trained.preprocessing, trained.model.eval(), trained.loss
    transform = transforms.Compose(
        [
            transforms.Resize(view.resize),
            transforms.CenterCrop(view.size),
            transforms.ToTensor(),
            transforms.Normalize(view.mean, view.std),
        ]
    )
    files, rows, size = sorted(photos.iterdir()), [], trained.config.batch_size
    with torch.inference_mode():
        for start in range(0, len(files), size):
            part = files[start : start + size]
            x = torch.stack([transform(Image.open(file).convert("RGB")) for file in part])
            best = loss.leaf_logits(network(x)).softmax(1).max(1)
            names = [trained.hierarchy.leaves[i] for i in best.indices]
            rows += zip(map(str, part), names, best.values.tolist(), strict=True)
    with out.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["resnet10t", "resnet18"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = [
        "| model | photos | bare loop: photos per s | `hace predict`: photos per s | ratio |\n"
        + "| --- " * 5
        + "|"
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_photos(folder / "photos", args.photos)
        for model in args.models:
            data = DataConfig("synthetic", options={"classes": 40, "train": 2, "test": 1})
            run = folder / model
            train(TrainConfig(data=data, model=model, epochs=1, image_size=128, batch_size=32), run)
            spent: dict[str, list[float]] = {"bare": [], "hace": []}
            for _ in range(args.rounds):
                start = time.process_time()
                bare_loop(run, folder / "photos", folder / "bare.csv")
                spent["bare"].append(time.process_time() - start)
                start = time.process_time()
                command = ["predict", run, folder / "photos", "--out", folder / "hace.csv", "--device", "cpu"]
                assert cli.main([str(word) for word in command]) == 0
                spent["hace"].append(time.process_time() - start)
            with (folder / "bare.csv").open() as bare, (folder / "hace.csv").open() as hace:
                results = [(row["sample"], row["leaf_1"]) for row in csv.DictReader(hace)]
                assert results == [(row[0], row[1]) for row in csv.reader(bare)], "the answers must agree"
            rates = {side: args.photos / min(seconds) for side, seconds in spent.items()}
            ratio = float(np.median(np.divide(spent["bare"], spent["hace"])))
            table.append(
                f"| {model} | {args.photos:,} | {rates['bare']:.1f} | {rates['hace']:.1f} | {ratio:.2f} |"
            )
    print("\n".join(table))


if __name__ == "__main__":
    main()
