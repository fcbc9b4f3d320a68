"""`hace demo`: from nothing to a page."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from hace import ConfigError, load
from hace.cli import main
from hace.data.creatures import drawn_again, write_creatures


@pytest.mark.slow
def test_a_small_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few photos of each species: a model that is right more often than chance, and a page with what it should show."""
    pytest.importorskip("timm")
    from hace.fitting.demo import make_demo

    monkeypatch.setenv("HACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    made = make_demo(tmp_path / "demo", {"fine": 3, "coarse": 3, "val": 2, "test": 2})
    findings = made.model.findings
    assert findings.samples == {"train": 390, "calibration": 130, "test": 130}
    assert 0.3 < findings.accuracy[0] < 0.95
    assert load(tmp_path / "demo" / "creatures.hace").hierarchy.level_names == (
        "realm",
        "group",
        "family",
        "species",
    )
    page = made.page.read_text(encoding="utf-8")
    assert "drawn by a program" in page
    assert "says nothing about real photos" in page
    assert (
        page.index('id="examples"')
        < page.index('id="sure-of"')
        < page.index('id="strangers"')
        < page.index('id="questions"')
    )
    assert page.count("data:image/jpeg") == 12 + 5
    assert "Did coarse labels help?" in page
    assert re.search(
        r"\d+% of the photos of species that are not in its list get a true group", made.strangers
    )


def test_the_photos_and_their_listing(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    listing = write_creatures(tmp_path, fine=1, coarse=1, val=1, test=1, side=16)
    with listing.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(list(tmp_path.rglob("*.jpg"))) == 4 * 65
    assert {row["split"] for row in rows} == {"train", "val", "test"}
    coarse = [row for row in rows if not row["species"]]
    assert len(coarse) == 65
    assert all(row["split"] == "train" and row["family"] and row["path"].count("/") == 3 for row in coarse)
    assert len({Path(row["path"]).name for row in rows}) == len(rows)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    assert write_creatures(tmp_path, fine=1, coarse=1, val=1, test=1, side=16) == listing
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")} == written
    with pytest.raises(ConfigError, match="must be a realm, group or family"):
        write_creatures(tmp_path / "none", below="unicorn")
    assert not (tmp_path / "none").exists()
    assert drawn_again(rows[0]["path"], 32).shape == (32, 32, 3)


def test_the_demo_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm")
    (tmp_path / "hace-demo").mkdir()
    (tmp_path / "hace-demo" / "thesis.txt").write_text("years of work")
    assert main(["demo", "--out", str(tmp_path / "hace-demo")]) == 2
    assert "--out must be the folder of a demo, a new or an empty one." in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "hace-demo").iterdir()] == ["thesis.txt"]
