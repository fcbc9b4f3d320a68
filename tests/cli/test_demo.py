"""`hace demo`: from nothing to a page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hace.cli import main
from hace.lab.report.conformal import run_ladder, sure_places
from hace.lab.report.demo import write_demo
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition
from hace.lab.study.folder import read_study
from hace.lab.study.presets import PRESETS


def demo(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-m", "hace", "demo"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_demo(tmp_path: Path) -> None:
    said = demo(tmp_path)
    study = tmp_path / "hace-demo"
    assert [path.name for path in tmp_path.iterdir()] == ["hace-demo"]
    finals = [record for record in read_study(study).records() if record.stage == "final"]
    assert all(record.status == "finished" for record in finals)
    keys = [record.key for record in finals]
    assert {key.seed for key in keys} == {0, 1, 2, 3, 4}
    assert {key.labels for key in keys} == {"", "80% parent"}
    assert {key.method for key in keys if not key.labels} >= {"hace", "cross_entropy", "hace_shuffled"}
    assert {key.method for key in keys if key.labels} >= {"hace", "cross_entropy", "cross_entropy_drop"}
    assert all(0.5 < (record.top1 or 0) < 0.9 for record in finals)  # neither too hard nor too easy
    errors = [record.metric("calibration error (ECE) by level", "animal") for record in finals]
    assert (
        sum(error or 1 for error in errors) / len(errors) < 0.15
    )  # trained long enough to know what they know

    assert "Coarse labels: use or drop?\n  Yes. Use the coarse labels, with" in said
    assert "A guarantee: is it kept, and how specific are the answers?\n  Kept. At most 10%" in said
    assert "Something not in the list: what does it say?\n  True or silent." in said
    assert not re.search(r"SCE|rate \d|d 0\.|by construction", said)
    assert max(map(len, said.splitlines())) <= 100 or str(study) in max(said.splitlines(), key=len)
    page = re.search(r"The page: (.*)\n", said)
    assert page is not None
    assert Path(page[1]) == (study / "report" / "report.html").resolve()
    assert Path(page[1]).is_file()

    times = {p: p.stat().st_mtime_ns for p in study.glob("runs/*/*")}
    assert demo(tmp_path) == said
    assert {p: p.stat().st_mtime_ns for p in study.glob("runs/*/*")} == times


@pytest.mark.slow
def test_a_small_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo's study with two seeds and few methods: what it asks, its answers and its page."""
    out = tmp_path / "demo"
    options = [
        "--seeds",
        "2",
        "--only",
        "method=cross_entropy,hace,cross_entropy_drop",
        "--rates",
        "4",
        "--workers",
        "1",
    ]
    assert main(["study", "demo", *options, "--out", str(out)]) == 0
    assert main(["report", str(out)]) == 0
    said = capsys.readouterr().out
    assert "animals: does the hierarchy help?" in said
    assert "animals: are coarse labels worth using?" in said
    finals = [record for record in read_study(out).records() if record.stage == "final"]
    assert {(record.key.method, record.key.labels) for record in finals} == {
        *(("cross_entropy", ""), ("hace", "")),
        *(("cross_entropy", "80% parent"), ("hace", "80% parent"), ("cross_entropy_drop", "80% parent")),
    }
    assert all(record.status == "finished" for record in finals)
    assert (out / "report" / "report.html").is_file()
    study = read_study(out)
    text, page = write_demo(study, PRESETS["demo"].data["animals"])
    assert [line for line in text.splitlines() if line.endswith("?")] == [
        "Coarse labels: use or drop?",
        "A guarantee: is it kept, and how specific are the answers?",
        "Something not in the list: what does it say?",
    ]
    written = page.read_text()
    assert written.count('<article class="card ') == 3
    assert written.index('<section id="labels"') < written.index('<details id="results-')  # details come last
    scores = Results(study.records()).scores[Condition("fair", "animals", "features", "80% parent")]
    h, answered = scores.hierarchy, []
    assert h is not None
    for run in scores.finished("cross_entropy")[
        "run"
    ]:  # the guarantee, by loops: half of the samples answer for the others
        ladder = run_ladder(run.predictions(), h)
        assert ladder is not None
        (place,) = sure_places(ladder, (0.9,))
        answered += [bool(ladder.is_true[i, k]) for i, k in enumerate(place)]
    if "with cross-entropy" in text:
        assert f"{1 - sum(answered) / len(answered):.1%} did, over 2 seeds" in text


def test_the_demo_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hace-demo").mkdir()
    (tmp_path / "hace-demo" / "thesis.txt").write_text("years of work")
    assert main(["demo", "--out", str(tmp_path / "hace-demo")]) == 2
    assert "out must be a study, a new or an empty folder" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "hace-demo").iterdir()] == ["thesis.txt"]


def test_what_the_demo_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "demo"), "--dry-run"]) == 0
    assert "40 configurations, 200 runs, 0 done" in capsys.readouterr().out
    assert not (tmp_path / "demo").exists()
