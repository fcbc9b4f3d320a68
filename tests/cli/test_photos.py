"""The path of somebody with folders of photos: odd and broken ones, the same one twice, and a second visit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hace import cli
from hace.data import load_dataset
from hace.files.reading import ORIENTATION
from hace.lab.features.store import FeatureStore
from hace.lab.runs.run import read_run
from tests.backbone_files import SIZE, VIT, save_weights

CLASSES = ("crow", "rook", "robin")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of eight photos, as noise of different colours."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 90, (40, 48, 3), dtype=np.uint8)
            pixels[..., k] += 120
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def broken(photos: Path) -> list[str]:
    """Two photos cut short and one that is none."""
    for name in ("crow/1.png", "robin/7.png"):
        (photos / name).write_bytes((photos / name).read_bytes()[:300])
    (photos / "rook/3.png").write_text("not a photo")
    return ["crow/1.png", "robin/7.png", "rook/3.png"]


DATA = "-o test=0.25"


def test_check_lists_all_broken_photos(
    photos: Path, broken: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"data folders --data-root {photos} {DATA} --check".split()
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert "3 of 24 cannot be read; they are listed above" in said.err
    assert all(said.out.count(name) == 1 for name in broken)
    assert cli.main([*words, "--skip-broken"]) == 0
    said = capsys.readouterr()
    assert "21 of 24 images can be read" in said.out
    assert all(name in said.out for name in broken)


def test_check_tells_what_is_odd(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    with Image.open(photos / "crow/0.png") as image:
        image.save(photos / "crow/0.png", exif=exif)
    (photos / "jay").mkdir()
    for name in (
        "jay/0.png",
        "crow/9.png",
        "robin/9.png",
    ):  # one photo in three classes, one of which has no other
        (photos / name).write_bytes((photos / "rook/5.png").read_bytes())
    assert cli.main(f"data folders --data-root {photos} --check".split()) == 0
    said = capsys.readouterr().out
    assert "turned by EXIF orientation: 1" in said
    assert "classes with one image, which cannot both train and test: 'jay'" in said
    assert "one image is in 4 classes ('crow', 'jay', 'robin', 'rook') in train" in said


def test_check_finds_photos_in_two_splits_under_other_names(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "train").mkdir()
    for name in CLASSES:
        (photos / name).rename(photos / "train" / name)
        (photos / "test" / name).mkdir(parents=True)
        copied = (photos / "train" / name / "4.png").read_bytes()
        (photos / "test" / name / "IMG_1.png").write_bytes(copied)
    assert cli.main(f"data folders --data-root {photos} --check".split()) == 2
    said = capsys.readouterr().err
    assert "Got 3 in two: 'train: train/crow/4.png' and 'test: test/crow/IMG_1.png'" in said


def test_features_skip_broken_photos_and_a_second_visit_is_short(
    photos: Path, broken: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = save_weights(VIT, tmp_path / "vit.safetensors", img_size=SIZE)
    words = f"features --data folders --data-root {photos} {DATA} --model {VIT} --checkpoint {weights} --image-size 32"
    words += f" --out {tmp_path / 'features'}"
    assert cli.main(words.split()) == 2
    said = capsys.readouterr().err
    assert "3 images cannot be read:" in said
    assert all(name in said for name in broken)  # before the model is even loaded
    assert "`--skip-broken` leaves such images out" in said
    assert not (tmp_path / "features").exists()
    assert cli.main([*words.split(), "--skip-broken"]) == 0
    said = capsys.readouterr()
    assert "3 of 24 images cannot be read and are left out:" in said.err
    assert all(name in said.err for name in broken)
    assert sum(FeatureStore(tmp_path / "features").counts.values()) == 21
    with Image.open(photos / "rook/0.png") as image:  # one mended, one moved to another class
        image.rotate(180).save(photos / "crow/1.png")
    (photos / "rook/0.png").rename(photos / "crow/0b.png")
    assert cli.main([*words.split(), "--skip-broken"]) == 0
    assert sum(FeatureStore(tmp_path / "features").counts.values()) == 22
    assert "2 of 24 images cannot be read" in capsys.readouterr().err


def test_training_skips_broken_photos(
    photos: Path, broken: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"train --data folders --data-root {photos} {DATA} --model test_vit --image-size 32 --epochs 1 --batch-size 8"
    assert cli.main(f"{words} --out {tmp_path / 'run'}".split()) == 2
    assert "the image cannot be read" in capsys.readouterr().err
    assert cli.main(f"{words} --skip-broken --out {tmp_path / 'skipped'}".split()) == 0
    said = capsys.readouterr()
    assert all(name in said.err for name in broken)
    assert cli.main(f"evaluate {tmp_path / 'skipped'}".split()) == 0


@pytest.mark.parametrize(
    ("asked", "says", "trained", "validation"),
    [
        ("", "hace: the val split, 6 samples, is held out; --validation 0 trains on it too", 12, "split"),
        ("--validation 0", "hace: the val split, 6 samples, is trained on too", 18, 0.0),
        (
            "--validation 0.5",
            "hace: 50% of the 12 training samples are held out; the val split, 6 samples, is neither trained on nor held out",
            6,
            0.5,
        ),
    ],
)
def test_training_leaves_a_val_split_alone_unless_asked(
    asked: str,
    says: str,
    trained: int,
    validation: object,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A share was held out of both together, and what remained of the val split trained."""
    for split, places in (("train", range(4)), ("val", (4, 5)), ("test", (6, 7))):
        for name in CLASSES:
            (photos / split / name).mkdir(parents=True)
            for i in places:
                (photos / name / f"{i}.png").rename(photos / split / name / f"{i}.png")
    for name in CLASSES:
        (photos / name).rmdir()
    words = f"train --data folders --data-root {photos} --model test_vit --image-size 32 --epochs 1 --batch-size 4"
    assert cli.main([*words.split(), *asked.split(), "--out", str(tmp_path / "run")]) == 0
    assert says in capsys.readouterr().err
    run = read_run(tmp_path / "run")
    assert run.result is not None
    assert run.result["train"]["samples"] == trained
    assert run.config.validation == validation


@pytest.fixture
def seasons(tmp_path: Path) -> tuple[Path, str]:
    """Photos of two years with some labelled only to the family, features of the first, and a calibrated probe on them."""
    rng = np.random.default_rng(1)
    tree = "id,parent\ncrows,\nthrushes,\nrobin,thrushes\ncrow,crows\nrook,crows\n"
    (tmp_path / "tree.csv").write_text(tree)
    for year, count in (("2026", 30), ("2027", 20)):
        for k, name in enumerate((*CLASSES, "crows")):
            folder = tmp_path / year / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, (32, 32, 3), dtype=np.uint8)
                pixels[..., k % 3] += 120
                Image.fromarray(pixels).save(folder / f"{i}.png")
    weights = save_weights(VIT, tmp_path / "vit.safetensors", img_size=SIZE)
    words = f"features --data folders --data-root {tmp_path}/2026 --hierarchy {tmp_path}/tree.csv -o test=0.2 --model {VIT}"
    assert cli.main(f"{words} --checkpoint {weights} --image-size 32 --out {tmp_path}/features".split()) == 0
    words = f"probe --features {tmp_path}/features --validation 0.3 --epochs 20 --out {tmp_path}/runs"
    assert cli.main(words.split()) == 0
    (run,) = (
        path
        for path in (tmp_path / "runs").iterdir()
        if (path / "run.json").is_file() and not path.is_symlink()
    )
    return tmp_path, str(run)


@pytest.mark.slow
def test_a_run_is_tested_on_another_year(
    seasons: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = seasons
    capsys.readouterr()
    assert cli.main(["calibrate", run, "--accuracy", "0.8", "--temperature", "1"]) == 0
    said = capsys.readouterr().out
    assert "The run held out 21 samples; 9 more were chosen, are labelled above the classes" in said
    assert "and it was trained on them instead" in said
    assert "left out" not in said
    assert cli.main(["evaluate", run, "--samples", f"{folder}/2027", "--accuracy", "0.8"]) == 0
    said = capsys.readouterr().out
    assert "80 samples" in said
    assert "The guarantee was" in said
    assert "guaranteed: at most 20.0%" in said
    words = ["calibrate", run, "--samples", f"{folder}/2027", "--accuracy", "0.8", "--temperature", "1"]
    words += ["--out", f"{folder}/2027.json"]
    assert cli.main(words) == 0
    assert "20 of 80 2027 samples are labelled above the classes and count" in capsys.readouterr().out
    assert cli.main([*words, "--coarse", "drop"]) == 0
    assert "20 of 80 2027 samples are labelled above the classes and are left out" in capsys.readouterr().out
    for command in (["predict", run, f"{folder}/2027/robin"], ["evaluate", run]):
        assert cli.main([*command, "--accuracy", "0.8", "--calibration", f"{folder}/2027.json"]) == 0
    shown = ["--samples", f"{folder}/2027", "--calibration", f"{folder}/2027.json", "--out", f"{folder}/page"]
    assert cli.main(["evaluate", run, "--accuracy", "0.8", *shown]) == 0
    page = (folder / "page" / "report.html").read_text()
    assert "These samples do not test the guarantee: the run was calibrated on them." in page


def test_other_data_must_fit_the_run(seasons: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = seasons
    (folder / "2027" / "jay").mkdir()
    (folder / "2027" / "robin" / "0.png").rename(folder / "2027" / "jay" / "0.png")
    for words, said in (
        (["--samples", f"{folder}/2027"], "jay: the folder must be a class of the hierarchy"),
        (["--samples", f"{folder}/2027", "--data-root", "x"], "Leave one of them out"),
        (["--calibration", "c.json"], "--calibration must come with --scores or --accuracy"),
    ):
        assert cli.main(["evaluate", run, *words]) == 2
        assert said in capsys.readouterr().err
    assert cli.main(["evaluate", run, "--samples", f"{folder}/features"]) == 0
    assert cli.main(["calibrate", run, "--coarse", "count"]) == 2
    assert "which was trained on its samples labelled above the classes" in capsys.readouterr().err


COMPOSED, TWO = "Rabenkr\u00e4he", "Rabenkra\u0308he"  # as a list has it, and as a Mac names a folder


@pytest.mark.parametrize(("folder", "listed"), [(COMPOSED, TWO), (TWO, COMPOSED), (TWO, TWO)])
def test_accented_names_match_however_they_are_written(tmp_path: Path, folder: str, listed: str) -> None:
    (tmp_path / "photos" / folder).mkdir(parents=True)
    (tmp_path / "photos" / "robin").mkdir()
    for name in (folder, "robin"):
        Image.new("RGB", (8, 8), "red" if name == "robin" else "blue").save(
            tmp_path / "photos" / name / f"{folder}.png"
        )
    (tmp_path / "tree.csv").write_text(f"id,parent\nbirds,\nrobin,birds\n{listed},birds\n", encoding="utf-8")
    data = load_dataset("folders", tmp_path / "photos", hierarchy=tmp_path / "tree.csv")
    assert sorted(data.hierarchy.nodes[v] for v in data["train"].nodes) == sorted([listed, "robin"])
    text = f"path,label\n{listed}/{listed}.png,{listed}\nrobin/{listed}.png,robin\n"
    (tmp_path / "photos" / "list.csv").write_text(
        text.replace(f"\n{listed}/", f"\n{folder}/"), encoding="utf-8"
    )
    data = load_dataset("manifest", tmp_path / "photos" / "list.csv", hierarchy=tmp_path / "tree.csv")
    assert data["train"].image(0).getpixel((0, 0)) == (0, 0, 255)


def test_lists_as_spreadsheets_write_them(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "Bläßhuhn").mkdir()
    (photos / "crow" / "0.png").rename(photos / "Bläßhuhn" / "0.png")
    rows = ["path;label", "Bläßhuhn/0.png;Bläßhuhn", "rook/1.png;rook", "rook/2.png;rock"]
    (photos / "list.csv").write_bytes("\r\n".join(rows).encode("latin-1"))
    (photos / "tree.csv").write_bytes("id;parent\nbirds;\nrook;birds\nBläßhuhn;birds\n".encode("latin-1"))
    words = f"data manifest --data-root {photos}/list.csv --hierarchy {photos}/tree.csv".split()
    assert cli.main(words) == 2
    assert "-o encoding=latin-1" in capsys.readouterr().err
    words += ["-o", "encoding=latin-1"]  # semicolons need no word
    assert cli.main(words) == 2
    assert "the first is 'rock' in line 4. Did you mean 'rook'?" in capsys.readouterr().err
    (photos / "list.csv").write_bytes("\r\n".join([*rows[:-1], "rook/2.png;rook"]).encode("latin-1"))
    assert cli.main(words) == 0


def test_hints_about_a_hierarchy_work_where_they_are_printed(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "tree.csv").write_text("group\tkind\ncrows\tcrow\ncrows\trook\nthrushes\trobin\n")
    words = f"data folders --data-root {photos} --hierarchy {photos}/tree.csv".split()
    assert cli.main(words) == 2
    assert "-o columns=group,kind" in capsys.readouterr().err
    assert cli.main([*words, "-o", "columns=group,kind"]) == 0
    assert "24" in capsys.readouterr().out
