"""`hace data`: the table of the paper from the files, with footnotes; and --check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hace import cli
from hace.data import published
from hace.paper.printed import read_document
from tests.data_layouts import (
    cifar_binary,
    copied,
    small_aircraft,
    small_cifar,
    small_nabirds,
    touch,
    write_image,
)

AIRCRAFT = """\
FGVC-Aircraft

                        files      paper
  training samples      6,667      6,800 a
  test samples          3,333      3,400 a
  leaf classes            100        102 a
  nodes                   201        201 b
  hierarchical depth        3          3
  cropped image size  224 x 224  224 x 224

hierarchy: tree with the root 'root', 1 + 30 + 70 + 100 nodes by depth
train: 6,667 samples, 66 to 67 per class
test: 3,333 samples, 33 to 34 per class

a {fgvc_counts}
b {fgvc_nodes}
"""


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["data", *map(str, words)])
    output = capsys.readouterr()
    return code, output.out, output.err


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.slow
def test_the_table_of_the_real_aircraft(
    real_data: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(real_data("fgvc_aircraft"), tmp_path / "data")
    for part in ("train", "val", "test"):
        touch(folder / "images", (f"{i}.jpg" for i in (folder / f"images_{part}.txt").read_text().split()))
    code, out, _ = run(capsys, "aircraft", "--data-root", tmp_path)
    assert code == 0
    texts = {e["id"].replace("-", "_"): e["text"] for e in read_document("errata.json")}
    assert squeezed(out) == squeezed(AIRCRAFT.format(**texts))


def test_tables_stand_beside_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published, "COUNTS", {"train": 300, "test": 100})
    cifar_binary(tmp_path / "cifar", small_cifar())
    _, out, _ = run(capsys, "cifar100", "--data-root", tmp_path / "cifar")
    assert "training samples 300 50,000" in squeezed(out)
    assert "nodes 120 120 c" in squeezed(out)
    assert "hierarchical depth 2 2" in squeezed(out)
    _, rooted, _ = run(capsys, "cifar100", "--data-root", tmp_path / "cifar", "--root-node")
    assert "nodes 121 120 c" in squeezed(rooted)
    assert "hierarchical depth 2 2" in squeezed(rooted)
    small_nabirds(tmp_path / "nabirds")
    _, out, _ = run(capsys, "nabirds", "--data-root", tmp_path, "-o", "crop=true", "--no-root-node")
    assert "leaf classes 3 555" in squeezed(out)
    assert "hierarchy: forest without a root, 2 + 3 nodes by depth" in squeezed(out)
    assert "hierarchical depth 2 3 or 4" in squeezed(out)
    assert "Passeriformes hold 205 of the 404 species" in out


def test_check_of_official_images_notes_what_stands_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_aircraft(tmp_path)  # all images are alike
    code, out, _ = run(capsys, "aircraft", "--data-root", tmp_path, "--check")
    assert code == 0
    assert (
        "18 images can be read; 6 in two splits, such as train: images/1000001.jpg and test: images/1000013.jpg"
        in out
    )
    assert "\nfingerprint " in out


def test_check_of_ones_own_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, place in enumerate(("train/husky", "train/cat", "test/husky", "test/cat")):
        write_image(tmp_path / "photos" / place / "a.png", colour=(i, i, i))
    arguments = ("folders", "--data-root", tmp_path / "photos", "--check")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "photos (your images, a folder for each class)" in out
    assert "4 images can be read\n" in out
    write_image(tmp_path / "photos/test/cat/b.png", colour=(0, 0, 0))
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert "in one split. Got 1 in two: 'train: train/husky/a.png' and 'test: test/cat/b.png'" in error
    (tmp_path / "photos/test/cat/b.png").write_bytes(b"no image")
    code, out, error = run(capsys, *arguments)
    assert code == 2
    assert "Every image must be readable. 1 of 5 cannot be read; they are listed above" in error
    assert "test/cat/b.png: the image cannot be read" in out


def test_synthetic_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "synthetic-features", "-o", "classes=12", "-o", "signal=0.5", "-o", "dim=8", "--check"
    )
    assert code == 0
    lines = squeezed(out)
    assert lines[0] == "synthetic-features (synthetic features)"
    assert {"leaf classes 12", "features 8", "training samples 600"} <= set(lines)
    assert lines[-1].startswith("fingerprint ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar"], "dataset must be one of 'cifar100', 'aircraft'"),
        (
            ["nabirds", "--data-root", "nowhere"],
            "nowhere: the folder does not exist. NABirds cannot be fetched for you",
        ),
        (["synthetic", "-o", "clases=3"], "An option of 'synthetic' must be one of"),
        (["synthetic", "--hierarchy", "nowhere.csv"], "nowhere.csv: cannot be read: No such file"),
    ],
)
def test_refusals_are_words(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = run(capsys, *words)
    assert (code, out) == (2, "")
    assert error.startswith("hace: ")
    assert message in error
