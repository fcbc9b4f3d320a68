"""COCO annotations: a sample per box, images as groups, and what hostile files are refused for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import hace
from hace.cli import main
from hace.data import load_dataset
from hace.data.dataset import without_broken
from hace.errors import DataError, DataWarning, FormatError, HaceError
from hace.fitting.inputs import read
from hace.lab.serve.inputs import ImageList, as_inputs

COLOURS = {"husky": (200, 30, 30), "beagle": (30, 200, 30), "tabby": (30, 30, 200)}


def document(images: int = 6) -> dict[str, Any]:
    """Three boxes on each image, one of each category."""
    categories = [
        {"id": 7, "name": "husky", "supercategory": "dog"},
        {"id": 8, "name": "beagle", "supercategory": "dog"},
        {"id": 9, "name": "tabby", "supercategory": "cat"},
    ]
    pictures = [{"id": i, "file_name": f"p{i}.png", "width": 90, "height": 40} for i in range(images)]
    boxes = [
        {
            "id": 10 * i + k,
            "image_id": i,
            "category_id": 7 + k,
            "bbox": [30 * k + 5, 10, 20, 20],
            "iscrowd": 0,
        }
        for i in range(images)
        for k in range(3)
    ]
    return {"info": {}, "images": pictures, "annotations": boxes, "categories": categories}


def photos(folder: Path, images: int = 6) -> None:
    folder.mkdir(exist_ok=True)
    for i in range(images):
        pixels = np.full((40, 90, 3), 110, np.uint8)
        for k, colour in enumerate(COLOURS.values()):
            pixels[10:30, 30 * k + 5 : 30 * k + 25] = colour
        pixels[0, 0] = i
        Image.fromarray(pixels).save(folder / f"p{i}.png")


def written(folder: Path, content: Any, name: str = "boxes.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    photos(tmp_path)
    return written(tmp_path, document())


def test_a_sample_for_each_box(boxes: Path) -> None:
    data = load_dataset("coco", boxes, padding=0.0)
    assert data.hierarchy.nodes == ("dog", "beagle", "husky", "cat", "tabby")
    train = data["train"]
    assert len(train) == 18
    assert train.names[:3] == ["p0.png", "p0.png#2", "p0.png#3"]
    assert train.groups is not None
    assert train.groups[:4].tolist() == ["p0.png"] * 3 + ["p1.png"]
    for i, colour in enumerate(COLOURS.values()):
        crop = train.image(i)
        assert crop.size == (20, 20)
        assert crop.getpixel((10, 10)) == colour
    assert load_dataset("coco", boxes)["train"].image(0).size == (
        24,
        24,
    )  # with a tenth of its sides around it


def test_images_are_groups_of_splits(boxes: Path) -> None:
    data = load_dataset("coco", boxes, test=0.3)
    assert data["train"].groups is not None and data["test"].groups is not None  # noqa: PT018
    assert set(data["train"].groups).isdisjoint(data["test"].groups)
    assert without_broken(data) is data


def test_splits_in_folders(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        photos(tmp_path / split, 2)
        written(tmp_path / split, document(2), "_annotations.coco.json")
    data = load_dataset("coco", tmp_path)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 6, "test": 6, "val": 6}


def test_a_given_hierarchy_and_images_elsewhere(tmp_path: Path) -> None:
    photos(tmp_path / "pictures")
    (tmp_path / "annotations").mkdir()
    path = written(tmp_path / "annotations", document())
    wide = hace.Hierarchy.from_paths(
        [("pet", "dog", "husky"), ("pet", "dog", "beagle"), ("pet", "cat", "tabby")]
    )
    data = load_dataset("coco", path, hierarchy=wide, images=str(tmp_path / "pictures"))
    assert data.hierarchy.max_depth == 2
    with pytest.raises(DataError, match=r"6 of 6 are missing.*-o images=FOLDER"):
        load_dataset("coco", path)
    small = hace.Hierarchy.from_paths([("dog", "husky")])
    with pytest.raises(DataError, match="beagle"):
        load_dataset("coco", path, hierarchy=small, images=str(tmp_path / "pictures"))


@pytest.mark.parametrize("place", ["annotations", "annotations/images", "val2017", "images", "."])
def test_usual_places_of_images(place: str, tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    photos(tmp_path / place)
    path = written(tmp_path / "annotations", document(), "instances_val2017.json")
    assert len(load_dataset("coco", path)["train"]) == 18
    assert as_inputs(str(path)).images[0].path.is_file()  # pyright: ignore[reportAttributeAccessIssue]


def test_supercategories_as_people_write_them(tmp_path: Path) -> None:
    """COCO's person is its own supercategory; Roboflow's first category is a group; others have none."""
    photos(tmp_path)
    content = document()
    content["categories"] = [
        {"id": 7, "name": "person", "supercategory": "person"},
        {"id": 8, "name": "animal", "supercategory": "none"},
        {"id": 9, "name": "dog", "supercategory": "animal"},
    ]
    data = load_dataset("coco", written(tmp_path, content))
    assert data.hierarchy.leaves == ("dog", "person")
    assert data.hierarchy.children("animal") == ("dog",)
    labels = [data.hierarchy.nodes[v] for v in data["train"].nodes[:3]]
    assert labels == ["person", "animal", "dog"]  # a coarse label


def test_odd_boxes_are_counted(tmp_path: Path) -> None:
    photos(tmp_path)
    content = document()
    odd = [
        {"bbox": [80, 10, 20, 20]},  # beyond the right side
        {"bbox": [95, 10, 20, 20]},  # outside
        {"bbox": [5, 10, 0, 20]},  # no area
        {"bbox": [5, 10, 20, 20], "iscrowd": 1},
        {"segmentation": []},
        {"bbox": [-0.4, 0, 20, 20]},  # rounding
    ]
    content["annotations"] += [
        {"id": 900 + i, "image_id": 0, "category_id": 7, **row} for i, row in enumerate(odd)
    ]
    path = written(tmp_path, content)
    expected = (
        r"of 24 annotations, 1 outside their image are left out, 1 without area are left out, 1 of crowds are left out, "
        r"1 without a box are left out, 1 reach beyond their image and are clipped"
    )
    with pytest.warns(DataWarning, match=expected):
        data = load_dataset("coco", path, padding=0.0)
    train = data["train"]
    assert len(train) == 20
    assert train.image(train.names.index("p0.png#4")).size == (10, 20)


def test_sizes_that_the_file_does_not_say(tmp_path: Path) -> None:
    photos(tmp_path)
    content = document()
    for image in content["images"]:
        del image["width"]
    assert load_dataset("coco", written(tmp_path, content), padding=0.0)["train"].image(2).size == (20, 20)


def test_fit_and_predict_read_boxes(boxes: Path) -> None:
    given = read(boxes)
    assert given.kind == "photos"
    assert given.boxes is not None and given.groups is not None  # noqa: PT018
    assert len(given.rows(np.array([0, 4])).boxes) == 2  # pyright: ignore[reportArgumentType]
    listed = as_inputs(str(boxes), {"confidence": 0.2, "padding": 0.0, "all": False})
    assert isinstance(listed, ImageList)
    assert list(listed.names[:3]) == ["p0.png", "p0.png#2", "p0.png#3"]
    (_, x, broken), *_ = listed.batches(lambda image: torch_pixels(image), 3)
    assert not broken
    assert x is not None and x.shape == (3, 3, 20, 20)  # noqa: PT018


def torch_pixels(image: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def test_accuracy_by_rank_of_matched_boxes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Boxes that a detector's were matched with, in one table: true and predicted category, and the image."""
    tree = written(tmp_path, "parent,child\ndog,husky\ndog,beagle\ncat,tabby\n", "tree.csv")
    rows = ["a.jpg,husky,husky", "a.jpg,husky,beagle", "b.jpg,tabby,husky", "b.jpg,beagle,dog"]
    table = written(tmp_path, "image,true,predicted\n" + "\n".join(rows) + "\n", "boxes.csv")
    command = f"evaluate --hierarchy {tree} --answers {table} --answer-column predicted --labels {table}"
    assert main([*command.split(), "--label-column", "true", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metrics"]["accuracy at level 1"] == 0.75
    assert report["metrics"]["accuracy at level 2"] == 0.25


# ---------------------------------------------------------------- hostile files


def changed(**parts: Any) -> dict[str, Any]:
    return {**document(), **parts}


def first(part: str, **fields: Any) -> dict[str, Any]:
    content = document()
    content[part][0] |= fields
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "must be COCO annotations: an object with the lists images, annotations, categories. Got list"),
        ('{"images": [], "annotations": {}}', "must be COCO annotations.*Got 'images', 'annotations'"),
        (changed(annotations=[]), "must have boxes that can be used. Got none"),
        (changed(images=[7]), "image 0 must be an object with an id"),
        (changed(categories=[{"id": True, "name": "x"}]), "category 0 must be an object with an id"),
        (changed(annotations=["box"]), "annotation 0 must be an object. Got a str"),
        (changed(images=[*document()["images"], {"id": 0}]), "ids must be unique. Got two of the image 0"),
        (changed(categories=[{"id": 7, "name": "a"}] * 2), "ids must be unique. Got two of the category 7"),
        (changed(categories=[{"id": 7}]), "category 7 must have a name"),
        (first("categories", supercategory=["dog"]), "category 7 must have a name, and text"),
        (first("categories", name="beagle", supercategory="cat"), "one supercategory. Got 'beagle' twice"),
        (first("categories", supercategory="x" * 9, name="y"), None),
        (first("images", file_name=None), "image 0 must have a file_name. Got None"),
        (first("images", file_name="../../etc/passwd"), "every image must be inside .* Got '../../etc/passwd'"),
        (first("images", file_name="/etc/passwd"), "every image must be inside .* Got '/etc/passwd'"),
        (first("images", file_name="a/../../x.png"), "every image must be inside"),
        (first("images", file_name="..\\x.png"), "every image must be inside"),
        (first("images", file_name="a\0.png"), "every image must be inside"),
        (first("images", width="90"), "width and height must be 2 numbers"),
        (first("images", width=0), "must have a width and height above 0"),
        (first("annotations", image_id=99), "annotation 0: image_id must be an image of the file. Got 99"),
        (first("annotations", image_id=[0]), r"image_id must be an image of the file. Got \[0\]"),
        (first("annotations", category_id=None), "category_id must be a category of the file. Got None"),
        (first("annotations", bbox=[1, 2, 3]), r"annotation 0: bbox must be 4 numbers. Got \[1, 2, 3\]"),
        (first("annotations", bbox="wide"), "bbox must be 4 numbers. Got wide"),
        (first("annotations", bbox=[1, 2, True, 4]), "bbox must be 4 numbers"),
        (json.dumps(first("annotations", bbox=[0, 0, 1, 1])).replace("[0, 0, 1, 1]", "[0, 0, NaN, 1]"), "finite. Got NaN"),
        (json.dumps(first("annotations", bbox=[0, 0, 1, 1])).replace("[0, 0, 1, 1]", "[0, 0, 1e999, 1]"), "must be finite"),
        (first("annotations", bbox=[0, 0, 10**400, 1]), "must be finite"),
        ("[" * 100_000, "it nests too deep|not valid JSON"),
        ('{"images": [], "images": []}', "the key 'images' must occur once"),
    ],
)  # fmt: skip
def test_hostile_files_are_refused(content: Any, words: str | None, tmp_path: Path) -> None:
    photos(tmp_path)
    path = written(tmp_path, content)
    if words is None:
        assert len(load_dataset("coco", path)["train"]) == 18
        return
    with pytest.raises(HaceError, match=words):
        load_dataset("coco", path)


def test_a_cycle_of_categories_is_refused(tmp_path: Path) -> None:
    photos(tmp_path)
    content = document()
    content["categories"] = [
        {"id": 7, "name": "a", "supercategory": "b"},
        {"id": 8, "name": "b", "supercategory": "a"},
        {"id": 9, "name": "c"},
    ]
    with pytest.raises(HaceError, match="cycle"):
        load_dataset("coco", written(tmp_path, content))


def test_a_file_beyond_the_limit(boxes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HACE_MAX_MEMORY", "1K")
    with pytest.raises(FormatError, match="HACE_MAX_MEMORY"):
        load_dataset("coco", boxes)


def test_a_folder_without_annotations(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be a file of annotations, or have one in train/"):
        load_dataset("coco", tmp_path)
    (tmp_path / "train").mkdir()
    written(tmp_path / "train", document(), "a.json")
    written(tmp_path / "train", document(), "b.json")
    with pytest.raises(
        DataError, match=r"each split must have one file of annotations. Got several for train"
    ):
        load_dataset("coco", tmp_path)
