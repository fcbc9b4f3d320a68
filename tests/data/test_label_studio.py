"""Label Studio: configurations and pre-annotations out, exports in, with several annotators; and FiftyOne's labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import hace
from hace.data import load_dataset
from hace.data.fiftyone import classification, level_fields
from hace.data.label_studio import annotation_task
from hace.data.own_lists import Texts
from hace.errors import DataError, DataWarning, FormatError, HaceError, HierarchyError
from hace.fitting.inputs import read
from hace.formats import parse_hierarchy, read_hierarchy, render_hierarchy, write_hierarchy
from hace.hierarchy import Hierarchy

H = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")], names={"husky": "Siberian husky"}
).with_root("animal")

# ---------------------------------------------------------------- configurations


def test_a_configuration_of_nested_choices(tmp_path: Path) -> None:
    write_hierarchy(H, tmp_path / "labels.xml")
    view = ElementTree.parse(tmp_path / "labels.xml").getroot()
    image, taxonomy = view
    assert (image.tag, image.attrib) == ("Image", {"name": "sample", "value": "$image"})
    assert (taxonomy.tag, taxonomy.attrib) == ("Taxonomy", {"name": "taxonomy", "toName": "sample"})
    assert [choice.attrib for choice in taxonomy.iter("Choice")] == [
        {"value": "dog"},
        {"value": "beagle"},
        {"value": "Siberian husky", "alias": "husky"},  # results have the id
        {"value": "cat"},
        {"value": "tabby"},
    ]
    back = read_hierarchy(tmp_path / "labels.xml", leaves=H.leaves)
    assert back == H.without_root()


def test_whatever_nodes_are_called() -> None:
    """Marks of XML, line breaks, one name twice below a parent: choices of one value would hide each other."""
    nodes = ["<\"&'>", "a\nb\tc", "x", "y", "ä→"]
    h = Hierarchy.from_edges(
        [("top", node) for node in nodes], names={"x": "same", "y": "same"}, rooted=False
    )
    text = render_hierarchy(h, "label-studio")
    values = [c.attrib["value"] for c in ElementTree.fromstring(text).iter("Choice")]
    assert len(set(values)) == len(values)
    assert parse_hierarchy(text, "label-studio", rooted=False).nodes == h.nodes
    deep = Hierarchy.from_edges([(f"n{i}", f"n{i + 1}") for i in range(20_000)], rooted=False)
    assert parse_hierarchy(render_hierarchy(deep, "label-studio"), "label-studio", rooted=False) == deep


@pytest.mark.parametrize("bad", ["bell\a", "half\ud800"])
def test_what_xml_cannot_hold(bad: str) -> None:
    with pytest.raises(HierarchyError, match="holds a character that XML cannot hold"):
        render_hierarchy(Hierarchy.from_edges([("a", bad)]), "label-studio")
    with pytest.raises(HierarchyError, match="trees and forests only"):
        render_hierarchy(Hierarchy.from_edges([("a", "x"), ("b", "x")]), "label-studio")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<View><Image/></View>", "must have a Taxonomy tag with Choice tags inside"),
        ("<View><Choices><Choice value='a'/></Choices></View>", "must have a Taxonomy tag"),
        ("<View><Taxonomy><Choice value='a'></Taxonomy></View>", "line 1: must be XML. Got an error: mismatched tag"),
        ("<View><Taxonomy><Choice value=' '/></Taxonomy></View>", "line 1: a Choice must have a value"),
        ("<View><Taxonomy><Choice value='a'/><Choice value='a'/></Taxonomy></View>", "'a' is there twice"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><View/>', "the DOCTYPE must not define anything"),
        ("<View><Taxonomy>&a;</Taxonomy></View>", "undefined entity"),
    ],
)  # fmt: skip
def test_broken_configurations(text: str, words: str) -> None:
    with pytest.raises(HaceError, match=words):
        parse_hierarchy(text, "label-studio")


# ---------------------------------------------------------------- exports


def annotation(path: list[Any], who: Any = 1, kind: str = "taxonomy", **fields: Any) -> dict[str, Any]:
    paths = path if path and isinstance(path[0], list) else [path]
    result = {"from_name": "taxonomy", "to_name": "sample", "type": kind, "value": {kind: paths}, "id": "x"}
    return {"id": 1, "completed_by": who, "was_cancelled": False, "result": [result], **fields}


def task(image: str, *annotations: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {"id": 1, "data": {"image": image, **data}, "annotations": list(annotations), "predictions": []}


def record(image: str, path: list[Any], who: Any = 1, **data: Any) -> dict[str, Any]:
    """A line of JSON-MIN."""
    paths = path if path and isinstance(path[0], list) else [path]
    about = {
        "id": 1,
        "annotator": who,
        "annotation_id": 5,
        "created_at": "",
        "updated_at": "",
        "lead_time": 1.5,
    }
    return {"image": image, **data, "taxonomy": [{"taxonomy": paths}], **about}


def written(folder: Path, content: Any) -> Path:
    path = folder / "export.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for i, name in enumerate(["a.png", "b.png", "c.png", "in/d e.png"]):
        Image.fromarray(np.full((8, 8, 3), 20 * i, np.uint8)).save(tmp_path / name)
    return tmp_path


TASKS = [
    task("a.png", annotation(["dog", "husky"])),
    task("b.png", annotation(["dog"])),  # a coarse choice
    task("/data/upload/3/0a1b2c3d-c.png", annotation(["cat", "tabby"], 1), annotation(["cat"], 2)),
    task(
        "/data/local-files/?d=in%2Fd%20e.png",
        annotation(["dog", "husky"], 1),
        annotation(["dog", "beagle"], {"id": 2, "email": "b@x.org"}),
    ),
]
RECORDS = [
    record("a.png", ["dog", "husky"]),
    record("b.png", ["dog"]),
    record("/data/upload/3/0a1b2c3d-c.png", ["cat", "tabby"], 1),
    record("/data/upload/3/0a1b2c3d-c.png", ["cat"], 2),
    record("/data/local-files/?d=in/d e.png", ["dog", "husky"], "a@x.org"),
    record("/data/local-files/?d=in/d e.png", ["dog", "beagle"], {"email": "b@x.org"}),
]


@pytest.mark.parametrize("content", [TASKS, RECORDS], ids=["JSON", "JSON-MIN"])
@pytest.mark.parametrize("given", [H, None], ids=["given", "own"])
def test_exports_of_both_kinds(content: Any, given: Hierarchy | None, photos: Path) -> None:
    data = load_dataset("label-studio", written(photos, content), hierarchy=given, allow_empty=True)
    train = data["train"]
    assert list(train.names) == ["a.png", "b.png", "c.png", "in/d e.png"]
    labels = [data.hierarchy.nodes[v] for v in train.nodes]
    # Both annotators of c support the cat, one the tabby; those of d agree on the dog.
    assert labels == ["husky", "dog", "cat", "dog"]
    assert train.image(3).getpixel((0, 0)) == (60, 60, 60)
    assert train.soft is None


def test_opinions_as_soft_labels(photos: Path) -> None:
    data = load_dataset("label-studio", written(photos, TASKS), hierarchy=H, soft=True, allow_empty=True)
    shares = data["train"].soft
    assert shares is not None
    assert shares[3, [H.index("husky"), H.index("beagle")]].tolist() == [0.5, 0.5]
    assert shares[1, H.index("dog")] == 1


def test_names_in_place_of_ids_and_a_root(photos: Path) -> None:
    content = [
        task("a.png", annotation(["animal", "dog", "Siberian husky"])),
        task("b.png", annotation(["husky"])),
    ]
    data = load_dataset("label-studio", written(photos, content), hierarchy=H, allow_empty=True)
    assert [H.nodes[v] for v in data["train"].nodes] == ["husky", "husky"]


def test_which_answers_count(photos: Path) -> None:
    """The last of an annotator, none that was cancelled; several choices mean one of these."""
    content = [
        task("a.png", annotation(["cat"], 1), annotation(["dog", "husky"], 1)),
        task("b.png", annotation(["dog"], 1, was_cancelled=True), annotation(["cat", "tabby"], 2)),
        task("c.png", annotation([["dog", "husky"], ["dog", "beagle"]])),
        task("in/d e.png", annotation([["dog"], ["dog", "husky"]])),  # both were ticked
    ]
    data = load_dataset("label-studio", written(photos, content), hierarchy=H, allow_empty=True)
    assert [H.nodes[v] for v in data["train"].nodes] == ["husky", "tabby", "dog", "husky"]


def test_samples_without_agreement_are_left_out(photos: Path) -> None:
    content = [*TASKS, task("in/../b.png"), task("a.png", annotation(["cat", "tabby"], 7)), task("x.png")]
    with pytest.warns(DataWarning, match="2 of 5 samples have no answer that annotators agree on"):
        data = load_dataset("label-studio", written(photos, content), hierarchy=H, allow_empty=True)
    assert list(data["train"].names) == ["b.png", "c.png", "in/d e.png"]


def test_splits_prefixes_and_other_folders(photos: Path) -> None:
    address = "https://photos.example.org/x/"
    content = [
        task(f"{address}{name}", annotation(["dog", kind]), split=split)
        for name, kind, split in [("a.png", "husky", "train"), ("b.png", "beagle", "validation")]
    ]
    (photos / "elsewhere").mkdir()
    path = written(photos / "elsewhere", content)
    about: dict[str, Any] = {"hierarchy": H, "allow_empty": True}
    data = load_dataset("label-studio", path, images=str(photos), prefix=address, **about)
    assert {name: list(split.names) for name, split in data.splits.items()} == {
        "train": ["a.png"],
        "val": ["b.png"],
    }
    with pytest.raises(
        FormatError, match=r"a photo must be a file below a folder.*-o prefix=https://photos.example.org/"
    ):
        load_dataset("label-studio", path, images=str(photos), **about)


def test_texts_and_plain_choices(tmp_path: Path) -> None:
    content = [
        {"id": i, "data": {"text": text, "source": "web"}, "annotations": [annotation(["dog", kind])]}
        for i, (text, kind) in enumerate([("a husky howls.", "husky"), ("it sniffs", "beagle")])
    ]
    data = load_dataset("label-studio", written(tmp_path, content), hierarchy=H, allow_empty=True)
    assert isinstance(data["train"], Texts)
    assert data["train"].texts == ["a husky howls.", "it sniffs"]
    given = read(tmp_path / "export.json", hierarchy=H)
    assert (given.kind, list(given.items or ())) == ("texts", ["a husky howls.", "it sniffs"])
    flat = [
        {**row, "annotations": [annotation(["husky"], kind="choices") | {"result": [
            {"from_name": "kind", "to_name": "t", "type": "choices", "value": {"choices": ["husky"]}}]}]}
        for row in content
    ]  # fmt: skip
    data = load_dataset("label-studio", written(tmp_path, flat), hierarchy=H, allow_empty=True)
    assert [H.nodes[v] for v in data["train"].nodes] == ["husky", "husky"]


def test_fit_reads_photos_of_an_export(photos: Path) -> None:
    given = read(written(photos, TASKS), hierarchy=H)
    assert given.kind == "photos"
    assert given.boxes is None
    assert [given.hierarchy.nodes[v] for v in given.nodes] == ["husky", "dog", "cat", "dog"]


# ---------------------------------------------------------------- hostile exports


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "must be an export of Label Studio, JSON or JSON-MIN.*Got dict"),
        ("[]", "Got a list of 0"),
        ([{"data": {}}], "must be an export of Label Studio"),
        ([7], "must be an export of Label Studio"),
        ("[" * 100_000, "not valid JSON"),
        ([task("a.png")], "must have answers of a Taxonomy tag. Got none"),
        ([task("a.png", {"result": "x"}), *TASKS], None),
        ([task("a.png", annotation([7]))], "a choice that is no path of names"),
        ([task("a.png", annotation([""]))], "a choice that is no path of names"),
        ([task("a.png", annotation([["dog"], {}]))], "a choice that is no path of names"),
        ([task("a.png", annotation(["wolf"]))], "choices must be nodes of the hierarchy. Got 'wolf'"),
        ([task("../../etc/passwd", annotation(["dog"]))], "every image must be inside"),
        ([task("/data/local-files/?d=../x.png", annotation(["dog"]), k=".png")], "every image must be inside"),
        ([task("/data/local-files/?d=%2e%2e/x.png", annotation(["dog"]))], "every image must be inside"),
        ([task("nothing.png", annotation(["dog"]))], "every listed image must exist"),
        ([{"data": {"a": "x", "b": "y"}, "annotations": [annotation(["dog"])]}], "Got 'a', 'b'. Say which: -o key=NAME"),
        ([{"data": {"a": 7}, "annotations": [annotation(["dog"])]}], "Got none that every task has"),
        ([{"data": {"image": " "}, "annotations": [annotation(["dog"])]}], "task 0 must have 'image', a photo or text"),
        ([task("a.png", annotation(["dog"], result=[{"from_name": "taxonomy", "type": "taxonomy"}]))], "task 0 must have data"),
        (
            [task("a.png", annotation(["dog"]), annotation(["dog"], result=[
                {"from_name": "other", "type": "taxonomy", "value": {"taxonomy": [["dog"]]}}]))],
            "must have answers of one tag. Got answers of 'taxonomy', 'other'",
        ),
    ],
)  # fmt: skip
def test_hostile_exports(content: Any, words: str | None, photos: Path) -> None:
    path = written(photos, content)
    about: dict[str, Any] = {"hierarchy": H, "allow_empty": True}
    if words is None:
        assert len(load_dataset("label-studio", path, **about)["train"]) == 4
        return
    with pytest.raises(HaceError, match=words):
        load_dataset("label-studio", path, **about)


def test_an_export_beyond_the_limit(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(photos, TASKS)
    monkeypatch.setenv("HACE_MAX_MEMORY", "1K")
    with pytest.raises(FormatError, match="HACE_MAX_MEMORY"):
        load_dataset("label-studio", path, hierarchy=H)


def test_a_json_that_fit_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"must be COCO annotations .* or an export of Label Studio. Got neither"
    ):
        read(written(tmp_path, {"a": 1}))
    with pytest.raises(DataError, match="must have an answer for some sample"):
        content = [task("a.png", annotation(["dog"], was_cancelled=True)), task("a.png", annotation(["dog"]))]
        content[1]["annotations"][0]["result"][0]["value"]["taxonomy"] = []
        read(written(tmp_path, content))


# ---------------------------------------------------------------- out, and back


def answer(sample: str, node: str | None) -> dict[str, Any]:
    about = {"id": node, "name": node and H.name(node), "level": node and H.depth(node), "probability": 0.75}
    return {"sample": sample, "answer": {**about, "path": []}, "leaves": []}


def test_a_task_with_its_pre_annotation() -> None:
    made = annotation_task(answer("in/d e.png", "husky"), H, "image", "hace 1", "/data/local-files/?d=")
    assert made == {
        "data": {"image": "/data/local-files/?d=in/d%20e.png"},
        "predictions": [
            {
                "model_version": "hace 1",
                "score": 0.75,
                "result": [
                    {
                        "id": "hace",
                        "from_name": "taxonomy",
                        "to_name": "sample",
                        "type": "taxonomy",
                        "value": {"taxonomy": [["dog", "husky"]]},
                    }
                ],
            }
        ],
    }
    assert annotation_task(answer("a.png", None), H, "image", "m")["predictions"] == []
    assert (
        annotation_task(answer("a.png", "animal"), H, "image", "m")["predictions"] == []
    )  # the root says nothing
    broken = annotation_task({"sample": "a.png", "error": "truncated"}, H, "image", "m")
    assert broken == {"data": {"image": "a.png", "error": "truncated"}, "predictions": []}


def test_accepted_pre_annotations_come_back(photos: Path) -> None:
    """What an annotator submits without a change is the model's answer."""
    tasks = [annotation_task(answer(name, node), H, "image", "m", "/data/local-files/?d=")
             for name, node in [("a.png", "husky"), ("b.png", "dog"), ("in/d e.png", "tabby")]]  # fmt: skip
    for made in tasks:
        made["annotations"] = [{"completed_by": 1, "result": made["predictions"][0]["result"]}]
    data = load_dataset("label-studio", written(photos, tasks), hierarchy=H, allow_empty=True)
    assert [(name, H.nodes[v]) for name, v in zip(data["train"].names, data["train"].nodes, strict=True)] == [
        ("a.png", "husky"), ("b.png", "dog"), ("in/d e.png", "tabby")]  # fmt: skip


def test_labels_of_fiftyone() -> None:
    named = hace.Hierarchy.from_paths([("dog", "husky"), ("cat", "tabby")], level_names=["class", "breed"])
    assert level_fields(named) == ["level_1", "breed"]
    key, label = classification(answer("/photos/a.png", "husky"), H, level_fields(H))
    assert key == "/photos/a.png"
    assert label == {
        "label": "husky",
        "confidence": 0.75,
        "attributes": {"level_1": "dog", "level_2": "husky", "name": "Siberian husky", "rank": 2},
    }
    assert classification(answer("a.png", None), H, level_fields(H)) == (str(Path.cwd() / "a.png"), None)
