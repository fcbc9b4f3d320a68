"""Two studies or two runs in one report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hace.cli import main
from hace.errors import ConfigError, FormatError
from hace.lab.report.side_by_side import Side, pairs_table, read_side, side_by_side
from tests.report_studies import animals, fair_records


def sides(folder: Path) -> tuple[Side, Side]:
    """Two sides with HACE and SCE; the second is better, and has a method of its own."""
    h, prints = animals(), {"pets": "tree"}
    one = fair_records(folder / "one", h, {"hace": 1.0, "sce": 1.0}, seeds=(0,))
    two = fair_records(
        folder / "two", h, {"hace": 3.0, "sce": 1.2, "hxe_0.2": 2.0}, rates=(2.0, 8.0), seeds=(0,)
    )
    return Side("one", one, prints), Side("two", two, prints)


def test_methods_of_both_are_compared_with_themselves(tmp_path: Path) -> None:
    first, second = sides(tmp_path)
    results = side_by_side(first, second)
    assert (results.first, results.second) == ("HACE · two", "HACE · one")
    assert results.question == "is two better than one?"
    (arena,) = results.choices
    table = pairs_table(results, arena, ("one", "two"))
    assert table is not None
    assert [row[0].text for row in table.rows] == ["HACE", "SCE"]

    def mean(side: Side, method: str) -> float:
        found = [r.top1 for r in side.records if r.stage == "final" and r.key.method == method]
        return 100 * sum(x for x in found if x is not None) / len(found)

    for row, method in zip(table.rows, ("hace", "sce"), strict=True):
        ours, theirs = mean(first, method), mean(second, method)
        assert [row[1].text, row[2].text] == [f"{ours:.2f}", f"{theirs:.2f}"]
        assert float(row[3].text) == pytest.approx(theirs - ours, abs=0.006)


def test_models_may_differ_and_data_may_not(tmp_path: Path) -> None:
    first, second = sides(tmp_path)
    other = [replace(r, key=replace(r.key, model="resnet50")) for r in second.records]
    (arena,) = side_by_side(first, second._replace(records=other)).choices
    assert arena.model == "different models"
    for changed in (
        second._replace(prints={"pets": "another tree"}),
        second._replace(records=[replace(r, key=replace(r.key, dataset="birds")) for r in second.records]),
    ):
        with pytest.raises(ConfigError, match="one and two must share a data set, its hierarchy, a protocol"):
            side_by_side(first, changed)


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [
        next(r.run.folder for r in side.records if r.stage == "final" and r.key.method == "hace" and r.run)
        for side in sides(tmp_path)
    ]
    results = side_by_side(*map(read_side, folders))
    assert results.question == "is HACE d=0.5, lr 8 better than HACE d=0.5, lr 4?"
    assert (results.first, results.second) == ("HACE d=0.5, lr 8", "HACE d=0.5, lr 4")
    assert main(["report", *map(str, folders), "--out", str(tmp_path / "both")]) == 0
    page = (tmp_path / "both" / "report.html").read_text()
    assert page.index('id="verdict"') < page.index("is HACE d=0.5, lr 8 better than HACE d=0.5, lr 4?")
    assert str(tmp_path / "both" / "report.html") in capsys.readouterr().out
    assert main(["report", *map(str, folders), "--compare", "a,b"]) == 2
    assert "--compare must be left out with two folders" in capsys.readouterr().err
    with pytest.raises(FormatError, match="must be a study or a run"):
        read_side(tmp_path)
