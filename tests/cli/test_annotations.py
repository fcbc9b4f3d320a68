"""Boxes and annotations from the command line: fit, features, train, predict, next, and back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hace import cli
from hace.lab.features.store import FeatureStore
from hace.lab.runs.run import read_run
from tests.backbone_files import SIZE, VIT, save_weights

COLOURS = {"red": (200, 40, 30), "orange": (230, 140, 20), "blue": (30, 60, 200), "green": (30, 170, 70)}
GROUPS = {"red": "warm", "orange": "warm", "blue": "cold", "green": "cold"}
IMAGES = 60


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(VIT, tmp_path_factory.mktemp("weights") / "vit.safetensors", img_size=SIZE)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 photos with a patch of each of four colours, in COCO's format."""
    folder, rng = tmp_path_factory.mktemp("boxes"), np.random.default_rng(0)
    categories = [{"id": k, "name": c, "supercategory": GROUPS[c]} for k, c in enumerate(COLOURS)]
    images, annotations = [], []
    for i in range(IMAGES):
        pixels = rng.normal(110, 25, (32, 128, 3))
        for k, colour in enumerate(COLOURS.values()):
            pixels[6:26, 32 * k + 6 : 32 * k + 26] += np.array(colour) - 110
            box = {"image_id": i, "category_id": k, "bbox": [32 * k + 6, 6, 20, 20]}
            annotations.append({"id": len(annotations), **box})
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 128, "height": 32})
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "boxes.json").write_text(json.dumps(content))
    return folder / "boxes.json"


def test_fit_and_predict_boxes(
    boxes: Path,
    weights: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HACE_CACHE", str(tmp_path / "cache"))
    words = f"fit {boxes} --model {VIT} --checkpoint {weights} --out colours.hace"
    assert cli.main(words.split()) == 0
    shown = capfd.readouterr().out
    assert "Groups must be at least 19" in shown  # the guarantee counts images, not boxes
    assert cli.main(f"predict colours.hace {boxes} --to jsonl --out answers.jsonl --padding 0".split()) == 0
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [a["sample"] for a in answers[:3]] == ["0.png", "0.png#2", "0.png#3"]
    right = [a["answer"]["id"] == list(COLOURS)[i % 4] for i, a in enumerate(answers)]
    assert np.mean(right) > 0.8
    # The same boxes as labelled samples of another season.
    capfd.readouterr()
    assert cli.main(f"evaluate colours.hace --samples {boxes} --json".split()) == 0
    assert json.loads(capfd.readouterr().out)["samples"] == 4 * IMAGES


def test_features_of_boxes(boxes: Path, weights: Path, tmp_path: Path) -> None:
    words = f"features --data coco --data-root {boxes} -o test=0.25 --model {VIT} --checkpoint {weights}"
    assert cli.main([*words.split(), "--image-size", str(SIZE), "--out", str(tmp_path / "F")]) == 0
    store = FeatureStore(tmp_path / "F")
    train, test = store.load("train", "none"), store.load("test", "none")
    assert len(train) + len(test) == 4 * IMAGES
    assert train.groups is not None and test.groups is not None  # noqa: PT018
    assert set(train.groups).isdisjoint(test.groups)


def test_train_on_boxes(boxes: Path, tmp_path: Path) -> None:
    words = f"train --data coco --data-root {boxes} -o test=0.25 --model {VIT} --image-size {SIZE} --epochs 1"
    assert (
        cli.main([*words.split(), "--batch-size", "32", "--device", "cpu", "--out", str(tmp_path / "run")])
        == 0
    )
    assert read_run(tmp_path / "run").status == "finished"


def test_fit_an_export_of_label_studio(
    boxes: Path,
    weights: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two annotators per photo; of some photos one only says warm or cold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HACE_CACHE", str(tmp_path / "cache"))
    rng, tasks = np.random.default_rng(1), []
    for i in range(120):
        colour = list(COLOURS)[i % 4]
        pixels = rng.normal(0, 25, (32, 32, 3)) + COLOURS[colour]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(f"{i}.png")
        paths = [[GROUPS[colour], colour], [GROUPS[colour]] if i % 10 == 0 else [GROUPS[colour], colour]]
        annotations = [
            {
                "completed_by": who,
                "result": [{"from_name": "t", "type": "taxonomy", "value": {"taxonomy": [path]}}],
            }
            for who, path in enumerate(paths)
        ]
        tasks.append({"id": i, "data": {"image": f"{i}.png"}, "annotations": annotations})
    Path("export.json").write_text(json.dumps(tasks))
    assert cli.main(f"fit export.json --model {VIT} --checkpoint {weights}".split()) == 0
    shown = capfd.readouterr().out
    assert "wrote export.hace" in shown
    assert "from 12% of the labels" in shown  # photos of which one annotator said the group alone
