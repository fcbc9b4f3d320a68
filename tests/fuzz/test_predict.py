"""`hace predict` under mutated files of features: answers or a message, never an exit code of 70."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from hace.cli import main
from hace.errors import HaceError
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from tests.fuzz.driver import fuzz, mutate_bytes
from tests.fuzz.test_scores import array_bytes, bomb, saved

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    data = DataConfig("synthetic-features", options={"classes": 4, "dim": 3, "train": 10, "test": 4})
    (run,) = probe(
        [ProbeConfig(data=data, loss=LossConfig("hace"), epochs=1)], tmp_path_factory.mktemp("runs")
    )
    return str(run.folder)


def parquet_bytes(columns: Any) -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(columns) if isinstance(columns, dict) else pa.Table.from_arrays(*columns)
    return saved(lambda buffer: pq.write_table(table, buffer))


def feature_case(random: Random) -> tuple[str, bytes]:
    suffix = random.choice((".npy", ".npz", ".parquet"))
    if suffix != ".parquet":
        return suffix, bomb(random) if random.random() < 0.02 else array_bytes(random, X, "X")
    odd = (
        list(X),
        X[:, 0],
        ["a"] * 6,
        [b"x"] * 6,
        [None] * 6,
        [True] * 6,
        [[1.0]] * 5 + [[1.0, 2.0]],
        [{"a": 1}] * 6,
    )
    columns = (
        {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]} if random.random() < 0.3 else {"x": random.choice(odd)}
    )
    data = parquet_bytes(columns)
    return suffix, mutate_bytes(random, data) if random.random() < 0.6 else data


@pytest.mark.slow
def test_mutated_features(run_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def predict(case: tuple[str, bytes]) -> None:
        path = tmp_path / f"new{case[0]}"
        path.write_bytes(case[1])
        code = main(["predict", run_folder, str(path)])
        said = capsys.readouterr().err
        assert code in (0, 2), said

    fuzz(feature_case, 300, predict, allowed=(HaceError,))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scalar.npy", lambda: saved(np.save, np.float32(1)), "must be floating-point numbers (M, d)"),
        ("a.npy", lambda: saved(np.savez, X=X), "must be an .npy file with one array. Got an .npz file"),
        ("a.npz", lambda: saved(np.save, X), "must hold features"),
        ("a.npy", lambda: saved(np.save, X)[:20], "a.npy"),
        ("both.npz", lambda: saved(np.savez, X=X, x=X + 1), "names must differ by more than case"),
        ("text.npy", lambda: saved(np.save, np.array([["a"]])), "must be floating-point numbers (M, d)"),
        ("dates.npy", lambda: saved(np.save, np.zeros((2, 3), "M8[D]")), "must be floating-point numbers"),
        ("flags.npy", lambda: saved(np.save, np.zeros((2, 3), bool)), "must be floating-point numbers"),
        ("scalar.parquet", lambda: parquet_bytes({"x": [1.0, 2.0]}), "scalar.parquet"),
        ("binary.parquet", lambda: parquet_bytes({"x": [b"1", b"2"]}), "binary.parquet"),
        ("twice.parquet", lambda: parquet_bytes(([X[:, 0], X[:, 1]], ["a", "a"])), "twice.parquet"),
    ],
)
def test_files_that_hold_no_features(
    run_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: Any, message: str
) -> None:
    (tmp_path / name).write_bytes(content())
    assert main(["predict", run_folder, str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err
