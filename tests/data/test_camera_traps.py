"""Camera traps: three kinds of tables in and out, MegaDetector's boxes, empty images, sites and bursts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hace
from hace import cli
from hace.data import load_dataset
from hace.data.camera_traps import burst_names, read_detections, read_shots
from hace.errors import DataError, FormatError

H = hace.Hierarchy.from_paths(
    [
        ("Cervidae", "Capreolus", "Capreolus capreolus"),
        ("Cervidae", "Cervus", "Cervus elaphus"),
        ("Suidae", "Sus", "Sus scrofa"),
    ]
)
FILES = [f"site{s}/{i}.jpg" for s in "ABC" for i in range(4)]
COLOURS = {"Capreolus capreolus": (200, 30, 30), "Cervus elaphus": (30, 200, 30), "Sus scrofa": (30, 30, 200)}


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """Photos of three sites: an animal in the middle, in the colour of its species; the last of each site is empty."""
    for place, name in enumerate(FILES):
        pixels = np.full((60, 80, 3), 110, np.uint8)
        if place % 4 < 3:
            pixels[20:40, 30:60] = list(COLOURS.values())[place % 4]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[0x0132] = f"2026:05:01 10:0{place % 4}:00"
        Image.fromarray(pixels).save(tmp_path / name, quality=95, exif=exif)
    boxes = [
        [
            {"category": "1", "conf": 0.9, "bbox": [0.375, 1 / 3, 0.375, 1 / 3]},
            {"category": "2", "conf": 0.9, "bbox": [0, 0, 1, 1]},
        ],
        [],
    ]
    boxes[0].append({"category": "1", "conf": 0.5, "bbox": [0.4, 0.4, 0.1, 0.1]})
    images = [{"file": name, "detections": boxes[place % 4 == 3]} for place, name in enumerate(FILES)]
    kinds = {"1": "animal", "2": "person", "3": "vehicle"}
    (tmp_path / "md.json").write_text(
        json.dumps({"images": images, "detection_categories": kinds, "info": {}})
    )
    return tmp_path


def species(place: int) -> str:
    return "" if place % 4 == 3 else list(COLOURS)[place % 4]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def timelapse(folder: Path) -> Path:
    rows = [
        {
            "RootFolder": "x",
            "File": Path(name).name,
            "RelativePath": str(Path(name).parent),
            "DateTime": f"2026-05-01 10:0{i % 4}:00",
            "DeleteFlag": "false",
            "Species": species(i) or "Empty",
        }
        for i, name in enumerate(FILES)
    ]
    return write(folder / "timelapse.csv", rows)


def insights(folder: Path) -> Path:
    rows = []
    for i, name in enumerate(FILES):
        genus, _, epithet = species(i).partition(" ")
        coarse = i == 0  # one is known to its genus only
        rows.append(
            {
                "deployment_id": name[:5],
                "filename": name,
                "is_blank": str(int(not genus)),
                "class": "Mammalia" if genus else "",
                "order": "",
                "family": "",
                "genus": genus,
                "species": "" if coarse else epithet,
                "common_name": "Blank" if not genus else "",
                "timestamp": f"2026-05-01 10:0{i % 4}:00",
            }
        )
    return write(folder / "images.csv", rows)


def camtrap(folder: Path) -> Path:
    media = [
        {
            "mediaID": f"m{i}",
            "deploymentID": name[:5],
            "timestamp": f"2026-05-01T10:0{i % 4}:00Z",
            "filePath": name,
        }
        for i, name in enumerate(FILES)
    ]
    observations = [
        {
            "observationID": f"o{i}",
            "mediaID": f"m{i}",
            "observationLevel": "media",
            "observationType": "animal" if species(i) else "blank",
            "scientificName": species(i),
            "eventID": f"{name[:5]}-1",
            "bboxX": "0.375" if species(i) else "",
            "bboxY": "0.3334" if species(i) else "",
            "bboxWidth": "0.375" if species(i) else "",
            "bboxHeight": "0.3333" if species(i) else "",
        }
        for i, name in enumerate(FILES)
    ]
    write(folder / "media.csv", media)
    write(folder / "observations.csv", observations)
    return folder


@pytest.mark.parametrize("table", [timelapse, insights, camtrap], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:.*left out")
def test_tables_give_labels_sites_and_empty_images(traps: Path, table) -> None:
    data = load_dataset("camera-traps", table(traps), hierarchy=H)
    train = data["train"]
    assert len(train) == 9
    expected = [species(i) for i in range(len(FILES)) if species(i)]
    if table is insights:
        expected[0] = "Capreolus"
    assert [H.nodes[v] for v in train.nodes] == expected
    assert train.groups is not None
    assert sorted(set(train.groups)) == ["siteA", "siteB", "siteC"]
    both = load_dataset("camera-traps", table(traps), hierarchy=H, empty="empty")
    assert len(both["train"]) == 12
    assert both.hierarchy.leaves[-1] == "empty"
    assert "empty" in both.hierarchy.tops
    held = load_dataset("camera-traps", table(traps), hierarchy=H, test=0.34, empty="empty")
    assert not set(held["train"].groups) & set(held["test"].groups)  # type: ignore[arg-type]


def test_crops_follow_the_detector(traps: Path) -> None:
    with pytest.warns(UserWarning, match=r"3 of 12 images are left out: 3 blank"):
        data = load_dataset(
            "camera-traps", timelapse(traps), hierarchy=H, detections=str(traps / "md.json"), padding=0.0
        )
    colours = [np.asarray(data["train"].image(i)).reshape(-1, 3).mean(0) for i in range(3)]
    assert all(
        np.abs(result - want).max() < 12 for result, want in zip(colours, COLOURS.values(), strict=True)
    )
    with pytest.warns(UserWarning, match="left out"):
        every = load_dataset(
            "camera-traps", timelapse(traps), hierarchy=H, detections=str(traps / "md.json"), boxes="all"
        )
    assert len(every["train"]) == 18
    assert every["train"].names[1] == "siteA/0.jpg#2"
    assert [len(b) for b in read_detections(traps / "md.json", 0.6).values()][:4] == [1, 1, 1, 0]
    (x, y, w, h), *_ = read_detections(traps / "md.json", padding=10.0)["siteA/0.jpg"]
    assert (x, y, w, h) == (0, 0, 1, 1)


@pytest.mark.filterwarnings("ignore:.*left out")
def test_bursts_by_time_of_the_table_or_of_the_photos(traps: Path) -> None:
    def groups(burst: float) -> list[str]:
        data = load_dataset("camera-traps", timelapse(traps), hierarchy=H, groups="burst", burst=burst)
        return list(data["train"].groups)  # type: ignore[arg-type]

    assert len(set(groups(60))) == 3
    assert len(set(groups(59))) == 9
    table = timelapse(traps)
    table.write_text(table.read_text().replace("DateTime", "Other"))
    assert len(set(groups(60))) == 3  # EXIF
    with pytest.raises(DataError, match="A time must be like 2026-05-01"):
        burst_names(["a"], ["yesterday"], 60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na,b\n", "must be a table of Wildlife Insights"),
        ("RelativePath,File\na,b\n", "must have a column 'species'"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FormatError, match=message):
        read_shots(tmp_path / "t.csv")
    (tmp_path / "md.json").write_text(
        '{"images": [{"file": "a", "detections": [{"bbox": [0, 0, 0, 1]}]}], "detection_categories": {}}'
    )
    with pytest.raises(FormatError, match="image 0 must have a file and detections"):
        read_detections(tmp_path / "md.json")


def test_answers_in_the_columns_of_each_format(traps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train on crops, answer new ones; empty images come out as empty."""
    hace.write_hierarchy(H, traps / "tree.json")
    words = f"train --data camera-traps --data-root {timelapse(traps)}"
    words += f" --hierarchy {traps}/tree.json -o detections={traps}/md.json"
    words += f" -o test=0.34 --model test_vit --image-size 32 --epochs 1 --batch-size 4 --out {traps}/run"
    with pytest.warns(UserWarning, match="left out"):
        assert cli.main(words.split()) == 0
    for form, columns in {
        "camtrap": {"mediaID": "siteA/0.jpg", "observationType": "animal", "classificationMethod": "machine"},
        "wildlife-insights": {"filename": "siteA/0.jpg", "is_blank": "0"},
        "timelapse": {"RelativePath": "siteA", "File": "0.jpg"},
        "csv": {"sample": "siteA/0.jpg"},
    }.items():
        out = traps / f"{form}.csv"
        assert cli.main(["predict", f"{traps}/run", f"{traps}/md.json", "--to", form, "--out", str(out)]) == 0
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 12
        assert columns.items() <= rows[0].items()
        last = rows[-1]
        assert (
            "blank" in (last.get("observationType"),)
            or last.get("is_blank") == "1"
            or "empty" in (last.get("Species"), last.get("answer_name"))
        )
    capsys.readouterr()
    assert cli.main(["predict", f"{traps}/run", f"{traps}/md.json", "--boxes", "all", "--to", "jsonl"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == 18 + 3
    assert documents[-1] == {"sample": "siteC/3.jpg", "empty": True}
