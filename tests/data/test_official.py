"""FGVC-Aircraft and NABirds: the real lists with generated images, and what is wrong with incomplete copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hace
from hace.data import loading, published
from hace.errors import DataError, FormatError
from tests.data_layouts import copied, small_aircraft, small_nabirds, touch, write_image


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.slow
def test_aircraft_on_the_real_lists(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(real_data("fgvc_aircraft"), tmp_path / "fgvc-aircraft-2013b" / "data")
    listed = {
        part: [
            line.split(" ", 1) for line in (folder / f"images_variant_{part}.txt").read_text().splitlines()
        ]
        for part in ("train", "val", "test")
    }
    touch(folder / "images", (f"{image}.jpg" for part in listed.values() for image, _ in part))
    first = write_image(folder / "images" / f"{listed['test'][0][0]}.jpg", (300, 220))
    data = hace.load_dataset("aircraft", tmp_path)
    h = data.hierarchy
    assert (len(data["train"]), len(data["test"]), h.num_leaves, h.num_nodes, h.rooted) == (
        6667,
        3333,
        100,
        201,
        True,
    )
    assert [len(h.level(k)) for k in (1, 2, 3)] == [30, 70, 100]
    assert data["train"].names == [f"images/{image}.jpg" for image, _ in listed["train"] + listed["val"]]
    assert [h.leaves[i] for i in data["test"].labels] == [variant for _, variant in listed["test"]]
    assert data["test"].paths is not None
    assert data["test"].paths[0] == first
    assert data["test"].image(0).size == (300, 200)  # without the line of credits
    with pytest.raises(DataError, match=r"images/\d+.jpg: the image cannot be read .*truncated"):
        data["test"].image(1)
    assert hace.load_dataset("aircraft", tmp_path, root_node=False).hierarchy.num_nodes == 200


@pytest.mark.slow
def test_nabirds_on_the_real_lists(
    real_data: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(real_data("nabirds"), tmp_path / "nabirds")
    rows = [line.split() for line in (folder / "images.txt").read_text().splitlines()]
    there: dict[Path, set[str]] = {}
    for _, path in rows:
        there.setdefault((folder / "images" / path).parent, set()).add(Path(path).name)
    monkeypatch.setattr(
        loading, "_names_in", there.__getitem__
    )  # making 48,562 files would take longer than all else
    write_image(folder / "images" / rows[0][1], (400, 300))
    data = hace.load_dataset("nabirds", tmp_path, crop=True)
    h = data.hierarchy
    assert (len(data["train"]), len(data["test"])) == (23_929, 24_633)
    assert (h.num_leaves, h.num_nodes, h.rooted) == (555, 1011, True)
    image, path = rows[0]  # of the test split
    assert data["test"].names[0] == f"images/{path}"
    labels = dict(line.split() for line in (folder / "image_class_labels.txt").read_text().splitlines())
    assert h.leaves[data["test"].labels[0]] == labels[image] == "817"
    assert data["test"].image(0).size == (128, 228)  # its box is 83 59 128 228
    per_class = np.bincount(data["train"].labels)
    assert (len(per_class), per_class.min()) == (555, 4)


def test_places_where_aircraft_may_lie(tmp_path: Path) -> None:
    small_aircraft(tmp_path)
    prints = {
        hace.load_dataset("aircraft", tmp_path / place).fingerprint
        for place in ("", "fgvc-aircraft-2013b", "fgvc-aircraft-2013b/data")
    }
    assert len(prints) == 1


def test_a_fingerprint_sees_names_labels_and_contents(tmp_path: Path) -> None:
    prints = []
    for i in range(5):
        folder = small_aircraft(tmp_path / str(i)) / "fgvc-aircraft-2013b" / "data"
        if i == 1:
            write_image(folder / "images" / "1000001.jpg", (160, 150))
        if i == 2:
            replace(folder / "images_variant_test.txt", "1000015 737-200", "1000015 737-300")
        if i == 3:
            (folder / "images" / "1000018.jpg").rename(folder / "images" / "1000019.jpg")
            for path in folder.glob("images*_test.txt"):
                replace(path, "1000018", "1000019")
        prints.append(hace.load_dataset("aircraft", tmp_path / str(i)).fingerprint)
    assert prints[0] == prints[4]
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda f: (f / "images" / "1000003.jpg").unlink(),
            "1 of 18 are missing; the first is images/1000003.jpg",
        ),
        (
            lambda f: replace(f / "images_test.txt", "1000018\n", ""),
            "images_variant_test.txt has 6 images and images_test.txt 5: 1 are in images_variant_test.txt only; the "
            "first is '1000018'",
        ),
        (
            lambda f: [replace(path, "1000013", "1000001") for path in f.glob("images*_test.txt")],
            "1 are in two; the first is 'images/1000001.jpg', in 'train' and 'test'",
        ),
        (
            lambda f: [replace(path, "1000007", "1000001") for path in f.glob("images*_val.txt")],
            "Got '1000001' in images_variant_val.txt and in an earlier one",
        ),
    ],
    ids=["image missing", "counts", "two splits", "train and val"],
)
def test_incomplete_aircraft(spoil: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    spoil(small_aircraft(tmp_path) / "fgvc-aircraft-2013b" / "data")
    with pytest.raises(DataError) as caught:
        hace.load_dataset("aircraft", tmp_path)
    assert words in str(caught.value)


def test_aircraft_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"nowhere: the folder does not exist. Give the folder that holds fgvc-aircraft-2013b"
    ):
        hace.load_dataset("aircraft", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"must hold variants.txt.*robots.ox.ac.uk.*--download"):
        hace.load_dataset("aircraft", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"must be a folder\. Got a file"):
        hace.load_dataset("aircraft", tmp_path / "file")


def test_a_variant_that_is_in_no_list(tmp_path: Path) -> None:
    folder = small_aircraft(tmp_path) / "fgvc-aircraft-2013b" / "data"
    replace(folder / "images_variant_test.txt", "737-300", "737-400")
    flat = hace.Hierarchy.flat(["717", "737-200", "737-300"])
    with pytest.raises(DataError, match=r"every variant must be in variants.txt. Got '737-400'"):
        hace.load_dataset("aircraft", tmp_path, hierarchy=flat)


def test_small_nabirds(tmp_path: Path) -> None:
    data = hace.load_dataset("nabirds", small_nabirds(tmp_path / "nabirds"))
    assert [data.hierarchy.leaves[i] for i in data["train"].labels] == ["10", "10", "11", "11", "12", "12"]
    assert data["train"].image(0).size == (60, 50)
    cropped = hace.load_dataset("nabirds", tmp_path, crop=True)
    assert cropped["train"].image(0).size == (30, 40)
    assert cropped.fingerprint != data.fingerprint


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda f: (f / "images" / "0010" / "1.jpg").unlink(), DataError, "1 of 12 are missing"),
        (
            lambda f: replace(f / "image_class_labels.txt", "0010-0 10\n", ""),
            DataError,
            "images.txt has 12 images and image_class_labels.txt 11",
        ),
        (
            lambda f: replace(f / "image_class_labels.txt", "0010-0 10", "0010-0 101"),
            DataError,
            "1 of 12 are not; the first is '101' in row 0.",
        ),
        (
            lambda f: (f / "image_class_labels.txt").write_text(
                (f / "image_class_labels.txt").read_text().replace(" 12\n", " 11\n")
            ),
            DataError,
            "1 of 3 have none: '12'",
        ),
        (
            lambda f: replace(f / "images.txt", "0010/0.jpg", "0010/1.jpg"),
            DataError,
            "1 are in two; the first is 'images/0010/1.jpg'",
        ),
        (
            lambda f: replace(f / "train_test_split.txt", "0010-0 0", "0010-0 2"),
            FormatError,
            "a split must be 1 (train) or 0",
        ),
        (lambda f: replace(f / "bounding_boxes.txt", "10 5 30 40", "10 5 30"), FormatError, "four integers"),
        (
            lambda f: replace(f / "images.txt", "0010-1 ", "0010-0 "),
            FormatError,
            "line 2: every image must occur once. Got '0010-0' again",
        ),
        (
            lambda f: replace(f / "images.txt", "0010-0 0010/0.jpg", "0010-0"),
            FormatError,
            "line 1: must be an image and its file",
        ),
        (
            lambda f: (f / "train_test_split.txt").unlink(),
            FormatError,
            "train_test_split.txt: cannot be read: No such file",
        ),
        (lambda f: (f / "image_class_labels.txt").write_text(" \n"), FormatError, "must not be empty"),
        (
            lambda f: (f / "image_class_labels.txt").write_bytes(b"\xff1 2"),
            FormatError,
            "the text must be UTF-8",
        ),
    ],
)
def test_incomplete_nabirds(
    spoil: Callable[[Path], object], kind: type[Exception], words: str, tmp_path: Path
) -> None:
    spoil(small_nabirds(tmp_path))
    with pytest.raises(kind) as caught:
        hace.load_dataset("nabirds", tmp_path, crop=True)
    assert words in str(caught.value)


def test_nabirds_has_to_be_asked_for(tmp_path: Path) -> None:
    for download in (False, True):
        with pytest.raises(
            DataError, match=r"https://dl.allaboutbirds.org/nabirds.*images.txt, image_class_labels.txt"
        ):
            hace.load_dataset("nabirds", tmp_path, download=download)


def test_boxes_outside_the_image(tmp_path: Path) -> None:
    small_nabirds(tmp_path)
    replace(tmp_path / "bounding_boxes.txt", "0010-1 10 5 30 40", "0010-1 70 5 30 40")
    with pytest.raises(DataError, match=r"images/0010/1.jpg: the box must overlap the image of 60 x 50"):
        hace.load_dataset("nabirds", tmp_path, crop=True)["train"].image(0)


def test_reading_lists_decodes_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr(Image, "open", lambda path: pytest.fail(f"opened {path}"))
    small_aircraft(tmp_path)
    assert len(hace.load_dataset("aircraft", tmp_path).fingerprint) == 64


def test_the_banner_is_what_the_data_set_says(tmp_path: Path) -> None:
    samples = hace.load_dataset("aircraft", small_aircraft(tmp_path))["train"]
    assert samples.trim_bottom == published.BANNER == 20
    path = write_image(tmp_path / "low.png", (9, 6))
    low = hace.Samples(samples.hierarchy, samples.nodes[:1], ["low"], paths=[path], trim_bottom=20)
    assert low.image(0).size == (9, 1)  # never nothing
    assert torch.is_tensor(torch.as_tensor(np.array(low.image(0))))
