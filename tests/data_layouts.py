"""Builds datasets in their official layouts, small or from the real annotation files, with generated images."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import hace

SUPERCLASSES = sorted(hace.cifar100_hierarchy().tops)


def superclass_labels(fine: np.ndarray) -> np.ndarray:
    h = hace.cifar100_hierarchy()
    above = np.array([SUPERCLASSES.index(h.parents(leaf)[0]) for leaf in h.leaves])
    return above[fine]


def python2_pickle(value: Any) -> bytes:
    """A pickle as Python 2 wrote it, with byte strings for text and numpy's old module name, like the official files."""

    class Pickler(pickle._Pickler):  # type: ignore[name-defined]
        def save_string(self, text: str | bytes) -> None:
            data = text.encode("latin-1") if isinstance(text, str) else text
            self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
            self.memoize(text)

    text_as_bytes = {str: Pickler.save_string, bytes: Pickler.save_string}
    Pickler.dispatch = {**Pickler.dispatch, **text_as_bytes}
    file = io.BytesIO()
    Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def cifar_python(folder: Path, splits: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    """The Python version: pixels uint8 (M, 3072) and fine labels of each split."""
    place = folder / "cifar-100-python"
    place.mkdir(parents=True)
    for split, (pixels, fine) in splits.items():
        content = {
            "filenames": [f"image_{i}.png" for i in range(len(fine))],
            "batch_label": f"{split}ing batch 1 of 1",
            "fine_labels": fine.tolist(),
            "coarse_labels": superclass_labels(fine).tolist(),
            "data": np.ascontiguousarray(pixels),
        }
        (place / split).write_bytes(python2_pickle(content))
    names = {"fine_label_names": list(hace.cifar100_hierarchy().leaves), "coarse_label_names": SUPERCLASSES}
    (place / "meta").write_bytes(python2_pickle(names))
    return folder


def cifar_binary(folder: Path, splits: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    """The binary version of the same."""
    place = folder / "cifar-100-binary"
    place.mkdir(parents=True)
    for split, (pixels, fine) in splits.items():
        coarse = superclass_labels(fine)
        rows = np.concatenate([np.stack([coarse, fine], axis=1).astype(np.uint8), pixels], axis=1)
        (place / f"{split}.bin").write_bytes(rows.tobytes())
    (place / "fine_label_names.txt").write_text("\n".join(hace.cifar100_hierarchy().leaves) + "\n")
    return folder


def small_cifar(train: int = 300, test: int = 100, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Random pixels, every class equally often."""
    rng = np.random.default_rng(seed)
    return {
        split: (
            rng.integers(0, 256, (count, 3072), dtype=np.uint8),
            rng.permutation(np.arange(count) % 100),
        )
        for split, count in (("train", train), ("test", test))
    }


def write_image(path: Path, size: tuple[int, int] = (60, 50), colour: Sequence[int] = (200, 30, 60)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, tuple(colour)).save(path)
    return path


def touch(folder: Path, images: Iterable[str]) -> None:
    """Empty files: what a reader lists and never opens."""
    made = set()
    for image in images:
        place = os.path.join(folder, os.path.dirname(image))
        if place not in made:
            os.makedirs(place, exist_ok=True)
            made.add(place)
        os.close(os.open(os.path.join(folder, image), os.O_CREAT | os.O_WRONLY))


def small_aircraft(folder: Path) -> Path:
    """Three variants of two families of one manufacturer, two images each in train, val and test."""
    place = folder / "fgvc-aircraft-2013b" / "data"
    place.mkdir(parents=True)
    families = {"717": "Boeing 717", "737-200": "Boeing 737", "737-300": "Boeing 737"}
    (place / "variants.txt").write_text("\n".join(families) + "\n")
    number = 1000000
    for part in ("train", "val", "test"):
        rows = []
        for variant in families:
            for _ in range(2):
                number += 1
                rows.append((str(number), variant))
                write_image(place / "images" / f"{number}.jpg")
        (place / f"images_{part}.txt").write_text("".join(f"{image}\n" for image, _ in rows))
        for level, name in (
            ("variant", dict(zip(families, families, strict=True))),
            ("family", families),
            ("manufacturer", dict.fromkeys(families, "Boeing")),
        ):
            text = "".join(f"{image} {name[variant]}\n" for image, variant in rows)
            (place / f"images_{level}_{part}.txt").write_text(text)
    return folder


def small_nabirds(folder: Path) -> Path:
    """Two orders, three classes, four images each, of which two are for training."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.txt").write_text("0 Birds\n1 Ducks\n2 Owls\n10 Mallard\n11 Teal\n12 Barn Owl\n")
    (folder / "hierarchy.txt").write_text("1 0\n2 0\n10 1\n11 1\n12 2\n")
    rows = [
        (f"{label:04d}-{i}", f"{label:04d}/{i}.jpg", label, i % 2) for label in (10, 11, 12) for i in range(4)
    ]
    for _, path, label, i in rows:
        write_image(folder / "images" / path, colour=(label * 20, i * 100, 0))
    (folder / "images.txt").write_text("".join(f"{image} {path}\n" for image, path, _, _ in rows))
    (folder / "image_class_labels.txt").write_text("".join(f"{image} {c}\n" for image, _, c, _ in rows))
    (folder / "train_test_split.txt").write_text("".join(f"{image} {s}\n" for image, _, _, s in rows))
    (folder / "bounding_boxes.txt").write_text("".join(f"{image} 10 5 30 40\n" for image, *_ in rows))
    return folder


def copied(files: Path, folder: Path) -> Path:
    """The annotation files of a real dataset, in a folder of the test's own."""
    folder.mkdir(parents=True)
    for path in files.glob("*.txt"):
        shutil.copyfile(path, folder / path.name)
    return folder
