"""Samples, features and datasets as types: what they refuse, select and identify."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hace
from hace.data import Dataset, Features, Samples
from hace.data.dataset import duplicates
from hace.errors import DataError
from tests.data_layouts import write_image

H = hace.Hierarchy.from_edges([("dog", "husky"), ("dog", "beagle")])  # nodes dog, beagle, husky


def samples(count: int = 4, start: int = 0, **changes: object) -> Samples:
    pixels = torch.arange(start, start + count, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, 4, 5)
    fields = {
        "nodes": np.arange(count) % 2 + 1,
        "names": [f"{start + i}" for i in range(count)],
        "pixels": pixels,
    }
    return Samples(H, **(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"nodes": np.array([0, 1, 2, 3])},
            r"nodes must be from 0 to 2, the nodes of the hierarchy. Sample 3 has 3",
        ),
        ({"nodes": np.array([0, -1, 2, 0])}, r"Sample 1 has -1"),
        ({"nodes": np.zeros(4)}, r"one-dimensional array of integers. Got float64 \(4,\)"),
        ({"nodes": np.zeros((4, 1), int)}, r"Got int64 \(4, 1\)"),
        ({"names": ["a"]}, r"names must have one entry for each of 4 samples. Got 1"),
        ({"pixels": torch.zeros(4, 3, 2, 2)}, r"pixels must be uint8 \(M, 3, H, W\). Got torch.float32"),
        ({"pixels": torch.zeros(4, 1, 2, 2, dtype=torch.uint8)}, r"Got torch.uint8 \(4, 1, 2, 2\)"),
        (
            {"pixels": torch.zeros(3, 3, 2, 2, dtype=torch.uint8)},
            r"pixels must have one entry for each of 4 samples",
        ),
        ({"pixels": None}, r"either pixels or paths"),
        ({"paths": [Path("a")] * 4}, r"either pixels or paths"),
        ({"pixels": None, "paths": [Path("a")]}, r"paths must have one entry"),
        ({"boxes": np.zeros((4, 3))}, r"boxes must be \(M, 4\)"),
        ({"boxes": np.zeros((3, 4))}, r"boxes must have one entry"),
    ],
)
def test_samples_refuse(changes: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        samples(**changes)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((2, 3)), "x must be float32 or float16"),
        (np.zeros(2, np.float32), r"\(M, d\). Got float32 \(2,\)"),
        (np.zeros((3, 2), np.float32), "x must have one entry for each of 2 samples. Got 3"),
    ],
)
def test_features_refuse(x: np.ndarray, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Features(H, np.array([1, 2]), ["a", "b"], x)


def test_select_keeps_everything_together(tmp_path: Path) -> None:
    chosen = samples().select([3, 0])
    assert chosen.names == ["3", "0"]
    assert chosen.nodes.tolist() == [2, 1]
    assert chosen.pixels is not None
    assert chosen.pixels[:, 0, 0, 0].tolist() == [3, 0]
    assert chosen.labels.tolist() == [1, 0]
    paths = [write_image(tmp_path / f"{i}.png", (10 + i, 10)) for i in range(3)]
    boxes = np.array([[0, 0, 2 + i, 3] for i in range(3)])
    on_disk = Samples(
        H, np.array([1, 2, 1]), ["a", "b", "c"], paths=paths, boxes=boxes, trim_bottom=1
    ).select([2])
    assert (on_disk.names, on_disk.image(0).size, on_disk.trim_bottom) == (["c"], (4, 3), 1)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_image_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new(mode, (6, 5)).save(path)
    image = Samples(H, np.array([1]), ["a"], paths=[path]).image(0)
    assert (image.mode, image.size) == ("RGB", (6, 5))


def test_data_sets_refuse() -> None:
    with pytest.raises(DataError, match="x: must have at least one split"):
        Dataset("x", H, {})
    with pytest.raises(DataError, match="x: the split 'test' must have samples"):
        Dataset("x", H, {"train": samples(), "test": samples(0)})
    with pytest.raises(DataError, match="'train' must have the hierarchy"):
        Dataset("x", hace.Hierarchy.flat(["husky", "beagle"]), {"train": samples()})


def test_the_fingerprint_is_of_what_matters() -> None:
    base = Dataset("x", H, {"train": samples()}).fingerprint
    assert Dataset("other name", H, {"train": samples()}).fingerprint == base
    assert pickle.loads(pickle.dumps(Dataset("x", H, {"train": samples()}))).fingerprint == base
    pixels = samples().pixels
    assert pixels is not None
    brighter = pixels.clone()
    brighter[2, 1, 3, 4] += 1
    others = [
        Dataset("x", H, {"test": samples()}),
        Dataset("x", H, {"train": samples(3)}),
        Dataset("x", H, {"train": samples(pixels=brighter)}),
        Dataset("x", H, {"train": samples(nodes=np.array([1, 2, 1, 1]))}),
        Dataset("x", H, {"train": samples(names=["0", "1", "2", "4"])}),
        Dataset("x", H, {"train": samples(boxes=np.ones((4, 4)))}),
        Dataset("x", H, {"train": samples(trim_bottom=1)}),
        Dataset("x", H, {"train": Features(H, np.array([1]), ["0"], np.zeros((1, 2), np.float32))}),
        Dataset("x", H, {"train": Features(H, np.array([1]), ["0"], np.ones((1, 2), np.float32))}),
    ]
    assert len({base, *(data.fingerprint for data in others)}) == 10


def test_the_same_image_in_two_splits(tmp_path: Path) -> None:
    assert duplicates({"train": samples(4), "test": samples(3, start=4)}) == []
    assert duplicates({"train": samples(4), "test": samples(3, start=3)}) == [("train: 3", "test: 3")]
    red, blue = ((255, 0, 0), (0, 0, 255))
    paths = [
        write_image(tmp_path / f"{i}.bmp", colour=colour) for i, colour in enumerate((red, blue, red, red))
    ]
    assert len({path.stat().st_size for path in paths}) == 1
    train = Samples(H, np.array([1, 2]), ["0", "1"], paths=paths[:2])
    test = Samples(H, np.array([1, 1]), ["2", "3"], paths=paths[2:])
    assert duplicates({"train": train, "test": test}) == [("train: 0", "test: 2"), ("train: 0", "test: 3")]
    assert duplicates({"train": test}) == []
    paths[2].unlink()
    with pytest.raises(DataError, match=r"2.bmp: cannot be reached"):
        duplicates({"train": train, "test": test})


def test_summary_counts_labels_above_the_leaves() -> None:
    data = Dataset("x", H, {"train": samples(nodes=np.array([0, 1, 1, 2]))})
    assert data.summary() == (
        "x: 2 classes, 3 nodes, tree\ntrain: 4 samples, 1 to 2 per class, 1 labelled above the leaves"
    )
