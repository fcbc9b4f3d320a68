"""From a folder of images to a report: features of a frozen model, a fair study, one page. These are three `hace` commands."""

import os
import tempfile
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from hace import load_dataset
from hace.cli import main as hace

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    data = load_dataset(
        "synthetic", classes=6, train=20, test=10
    )  # your images: photos/train/dog/husky/1.jpg, ...
    for split in ("train", "test"):
        for i, node in enumerate(data[split].nodes.tolist()):
            path = Path(
                "photos", split, *reversed(data.hierarchy.path(data.hierarchy.nodes[node])), f"{i}.png"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            data[split].image(i).save(path)
    torch.manual_seed(0)
    weights = timm.create_model(
        "test_vit", img_size=32
    ).state_dict()  # your model: a name of timm and its weights
    save_file(weights, "weights.safetensors")

    model = ["--model", "test_vit", "--checkpoint", "weights.safetensors", "--image-size", "32"]
    hace(["features", "--data", "folders", "--data-root", "photos", *model, "--out", "features"])
    small = [
        "--methods",
        "cross_entropy,hace",
        "--seeds",
        "1",
        "--rates",
        "4,16",
        "--widen",
        "0",
    ]  # leave out for a real study
    hace(["study", "fair-probe", "--features", "photos=features", *small, "--out", "study"])
    hace(["report", "study"])
    print(f"the page has {Path('study/report/report.html').stat().st_size / 1e6:.1f} MB")
    os.chdir("/")
