"""Probes on features that stay on disk: the same bits as in memory, little memory, and resumed after a kill."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from hace.data import load_dataset
from hace.errors import FormatError
from hace.files import arrays
from hace.hierarchy import Hierarchy
from hace.lab.features import store
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.runs.run import CHECKPOINTS, Run
from hace.linear import Optimization, Trial, features, fit, fit_heads
from hace.linear.features import RowsOnDisk
from hace.losses.registry import build_loss

CLASSES, WIDTH = 6, 9


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array counts as one that does not fit into memory."""
    for module in (features, store):
        monkeypatch.setattr(module, "max_memory", lambda: 0)


def tree(folder: Path) -> Path:
    path = folder / "tree.csv"
    path.write_text("parent,child\n" + "".join(f"g{i % 2},c{i}\n" for i in range(CLASSES)))
    return path


def arrays_of(splits: dict[str, int], dtype: Any = np.float16) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    results = {}
    for split, count in splits.items():
        y = np.arange(count) % CLASSES
        results[f"x_{split}"] = (rng.normal(size=(count, WIDTH)) + y[:, None]).astype(dtype)
        results[f"y_{split}"] = y
    return results


def contents(run: Run) -> dict[str, Any]:
    result = {k: v for k, v in (run.result or {}).items() if k != "seconds"}
    return {"result": result, "log": run.log(), "weights": {k: v.tolist() for k, v in run.weights().items()}}


def config(path: Path, **options: Any) -> ProbeConfig:
    data = DataConfig("features", str(path), hierarchy=str(tree(path.parent)))
    return ProbeConfig(data, LossConfig("hace"), epochs=3, batch_size=16, lr=0.5, **options)


@pytest.mark.parametrize("normalize", ["none", "unit", "standard"])
@pytest.mark.parametrize("layout", ["splits", "column"])
def test_the_same_bits_as_in_memory(
    tmp_path: Path, normalize: str, layout: str, request: pytest.FixtureRequest
) -> None:
    result = arrays_of({"train": 101, "val": 30, "test": 40})
    if layout == "column":  # rows of all splits, shuffled: no split is a slice of the file
        order = np.random.default_rng(1).permutation(171)
        split = np.repeat([0, 1, 2], [101, 30, 40])  # safetensors has no text
        parts = {
            key: np.concatenate([result[f"{key}_{s}"] for s in ("train", "val", "test")]) for key in "xy"
        }
        result = {"X": parts["x"][order], "y": parts["y"][order], "split": split[order]}
    path = tmp_path / "f.safetensors"
    save_file(result, path)
    settings = config(path, normalize=normalize, validation=0.2, patience=2)
    in_memory = probe(settings, tmp_path / "memory")
    request.getfixturevalue("on_disk")
    data = load_dataset("features", path, hierarchy=tree(tmp_path))
    assert isinstance(data["train"].x, RowsOnDisk)
    streamed = probe(settings, tmp_path / "disk")
    assert streamed.id == in_memory.id
    assert contents(streamed) == contents(in_memory)


@pytest.mark.usefixtures("on_disk")
def test_rows_are_those_of_the_arrays(tmp_path: Path) -> None:
    results = [
        np.random.default_rng(i).normal(size=(n, 600)).astype(np.float16) for i, n in enumerate((40, 3, 70))
    ]
    maps = []
    for i, array in enumerate(results):
        np.save(tmp_path / f"{i}.npy", array)
        maps.append(arrays.read_array(tmp_path / f"{i}.npy"))
    whole, rows = np.concatenate(results), np.random.default_rng(3).permutation(113)[:50]
    several = RowsOnDisk.joined([RowsOnDisk(maps[:2]), maps[2]])[rows]
    assert several.shape == (50, 600)
    assert several.index_select(0, torch.tensor([7, 0, 0])).equal(
        torch.from_numpy(whole[rows[[7, 0, 0]]]).float()
    )
    assert torch.cat(list(several.split(7))).equal(torch.from_numpy(whole[rows]).float())
    assert (several[3] == whole[rows[3]]).all()


def test_only_views_of_large_arrays_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((300, 4), np.float16)
    assert RowsOnDisk.of(x[:200]).shape == (200, 4)
    assert isinstance(RowsOnDisk.of(x[:200]), np.ndarray)
    monkeypatch.setenv("HACE_MAX_MEMORY", str(200 * 4 * 4 - 1))
    assert isinstance(RowsOnDisk.of(x[:200]), RowsOnDisk)
    assert isinstance(RowsOnDisk.of(x), np.ndarray)  # it is in memory anyway
    monkeypatch.setenv("HACE_MAX_MEMORY", "1K")
    with pytest.raises(FormatError, match=r"200 rows must take at most .* HACE_MAX_MEMORY"):
        np.asarray(RowsOnDisk.of(x[:200]))


@pytest.mark.usefixtures("on_disk")
def test_memory_stays_below_the_size_of_the_features(tmp_path: Path) -> None:
    rows, width = 24_576, 1024
    path = tmp_path / "f.safetensors"
    x = np.random.default_rng(0).random((rows, width), np.float32).astype(np.float16)
    test = np.zeros((CLASSES, width), np.float16) + 1
    labels = np.arange(CLASSES)
    save_file({"x_train": x, "y_train": np.arange(rows) % CLASSES, "x_test": test, "y_test": labels}, path)
    del x
    settings = replace(config(path, normalize="standard"), epochs=1, batch_size=256)
    tracemalloc.start()
    try:
        probe(settings, tmp_path / "runs")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < rows * width * 2  # in memory, the features alone take twice as much as in the file


def trials() -> list[Trial]:
    h = Hierarchy.from_paths([(f"g{i % 2}", f"c{i}") for i in range(CLASSES)])
    soft = build_loss("hace", h, label_smoothing=0.1)
    # Nineteen heads are two blocks; one of them diverges.
    rates = [0.5, 1e36, *np.linspace(0.01, 0.4, 17).tolist()]
    return [Trial(build_loss("hace", h), 0.5), *(Trial(soft, rate) for rate in rates)]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("stop", [1, 3, 7, 8, 20])  # 7: at the end of an epoch
def test_a_training_resumes_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, stop: int
) -> None:
    result = arrays_of({"train": 101, "val": 30})
    data = (result["x_train"].astype(np.float32), result["y_train"], trials())
    options = Optimization(optimizer=optimizer, epochs=4, batch_size=16, patience=1)
    call = {"validation": (result["x_val"], result["y_val"]), "seed": 3}
    whole = fit_heads(*data, options, **call)
    monkeypatch.setattr(fit, "CHECKPOINT_SECONDS", 0.0)
    saves, save, folder = [], fit._EpochLoop._save, tmp_path / "state"

    def killed(loop: Any, path: Path, epoch: int, step: int) -> None:
        save(loop, path, epoch, step)
        saves.append((epoch, step))
        if len(saves) == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(fit._EpochLoop, "_save", killed)
    with pytest.raises(KeyboardInterrupt):
        fit_heads(*data, options, **call, checkpoints=folder)
    resumed = fit_heads(*data, options, **call, checkpoints=folder)
    assert saves[stop:][0] != (1, 1), "it started again"
    for one, other in zip(whole, resumed, strict=True):
        assert one.weight.equal(other.weight)
        assert torch.equal(one.bias, other.bias)  # type: ignore[arg-type]
        assert (one.history, one.diverged, one.epochs) == (other.history, other.diverged, other.epochs)
    assert sum(head.diverged is not None for head in whole) == 1


def test_a_checkpoint_of_another_training_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "CHECKPOINT_SECONDS", 0.0)
    result = arrays_of({"train": 40}, np.float32)
    data = (result["x_train"], result["y_train"])
    for trial, options in product(trials()[:2], (Optimization(epochs=1), Optimization(epochs=2))):
        (expected,) = fit_heads(*data, [trial], options)
        (head,) = fit_heads(*data, [trial], options, checkpoints=tmp_path)
        assert head.weight.equal(expected.weight)
    assert len(list(tmp_path.iterdir())) == 4


_KILLED = """
import os, signal, sys
from pathlib import Path
from hace.lab.probe import probe
from hace.linear import fit
from tests.lab.test_rows_on_disk import config
fit.CHECKPOINT_SECONDS, save, saves = 0.0, fit._EpochLoop._save, []
def killed(*arguments):
    save(*arguments)
    saves.append(1)
    if len(saves) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
fit._EpochLoop._save = killed
probe(config(Path(sys.argv[1])), sys.argv[2])
"""


def test_a_killed_probe_resumes_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "f.npz", **arrays_of({"train": 101, "test": 30}))
    settings, out = config(tmp_path / "f.npz"), tmp_path / "runs"
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "f.npz"), str(out)]
    assert subprocess.run(command, timeout=300, check=False).returncode == -9
    (left,) = out.glob(f"*/{CHECKPOINTS}/*.pt")
    steps, step = [], fit.Heads.step

    def counted(*arguments: Any) -> Any:
        steps.append(1)
        return step(*arguments)

    monkeypatch.setattr(fit.Heads, "step", counted)
    resumed = probe(settings, out)
    assert len(steps) == 3 * 7 - 10
    assert not left.parent.exists()
    assert contents(resumed) == contents(probe(settings, tmp_path / "whole"))
