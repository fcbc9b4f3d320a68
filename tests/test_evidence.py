"""The tables in README and docs are those of the kept results."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evidence import reduce, write

ROOT = Path(__file__).parents[1]


def test_pages_show_the_kept_results() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "evidence" / "write.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_table_is_rewritten_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "RESULTS", tmp_path)
    (tmp_path / "t.csv").write_text(
        'method,top-1,top-1 (detail),seeds\nSCE,70.0,"[69, 71]",5\nA|B,71.0,,5\n', encoding="utf-8"
    )
    assert write.table("t.csv") == (
        "| method | top-1 | seeds |\n| --- | --- | --- |\n| SCE | 70.0 [69, 71] | 5 |\n| A\\|B | 71.0 | 5 |\n"
    )
    assert write.table('t.csv columns="method, top-1" rows="SCE" intervals="no"') == (
        "| method | top-1 |\n| --- | --- |\n| SCE | 70.0 |\n"
    )
    with pytest.raises(SystemExit, match="'HACE'"):
        write.table('t.csv rows="HACE"')


def test_reduced_features_keep_the_largest_variance() -> None:
    rng = np.random.default_rng(0)
    train = rng.normal(size=(200, 6)) * [9, 1, 7, 1, 1, 1] + 3
    few, _ = reduce.reduced(train, train[:5], 2)
    assert few.var(axis=0) == pytest.approx([train[:, 0].var(), train[:, 2].var()], rel=0.05)
    assert np.abs(few.mean(axis=0)).max() < 1e-5
