"""One training by two processes: the same curve as by one, every sample evaluated once, a lost process, one that writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch

from hace.cli import main
from hace.data.batches import LoaderBatches, MemoryBatches, share_of
from hace.data.synthetic import synthetic_images
from hace.errors import ConfigError
from hace.files.writing import only_process
from hace.lab.runs.run import read_run
from hace.lab.runs.samples import data_of
from hace.lab.train.loop import ProcessGroup, counted
from hace.lab.train.train import training_task
from tests.processes import free_port, run_ranks
from tests.train_cases import arguments, end_state, log_of, tiny

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
# 33 images in batches of 16: the last batch is a single image, and the second process has none of it.
ODD = arguments(classes=3, train=11, test=7, epochs=4)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shares_of_a_batch_are_a_partition(world: int) -> None:
    for size in range(1, 20):
        counts = [counted(size, rank, world) for rank in range(world)]
        assert sum(counts) == size
        assert max(counts) - min(counts) <= 1
        shares = [share_of(size, rank, world) for rank in range(world)]
        assert sorted(
            i for s, c in zip(shares, counts, strict=True) if c for i in range(s.start, s.stop)
        ) == list(range(size))
        assert all(s.stop > s.start for s in shares)  # everybody has something to take part with


@pytest.mark.parametrize("kind", ["memory", "loader"])
def test_parts_and_later_starts_are_those_of_the_whole_pass(kind: str) -> None:
    samples = synthetic_images(classes=3, train=7, test=1)["train"]

    def batches(part: tuple[int, int]) -> MemoryBatches | LoaderBatches:
        if kind == "memory":
            return MemoryBatches(samples, 8, shuffle=True, pad=4, flip=True, seed=2, part=part)
        return LoaderBatches(
            samples,
            8,
            lambda image: torch.rand(3) + np.asarray(image)[0, 0, 0],
            shuffle=True,
            seed=2,
            part=part,
        )

    whole = list(batches((0, 1)).epoch(3))
    parts = [list(batches((rank, 2)).epoch(3)) for rank in range(2)]
    assert [len(x) for x, _ in whole] == [8, 8, 5]
    for i, (x, y) in enumerate(whole):
        assert torch.equal(torch.cat([part[i][0] for part in parts]), x)
        assert torch.equal(torch.cat([part[i][1] for part in parts]), y)
    later = list(batches((0, 1)).epoch(3, start=2))
    assert len(later) == 1
    assert torch.equal(later[0][0], whole[2][0])


def test_a_batch_smaller_than_the_team() -> None:
    config = tiny(batch_size=2)
    with pytest.raises(
        ConfigError, match="batch_size is the batch of all processes: 2 images cannot be shared by 3"
    ):
        training_task(data_of(config.data), config, ProcessGroup(0, 3, torch.device("cpu")))


def job(folder: Path, settings: list[str]) -> list[str]:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hace", "train"]
    return [sys.executable, *run, *settings, "--out", str(folder)]


def train_as(rank: int, words: list[str], port: int, said: Path) -> None:
    """One of two processes, as torchrun starts them."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    warnings.simplefilter("ignore")  # torch's, about strides of gradients
    with said.with_suffix(f".{rank}").open("w") as file, redirect_stdout(file):
        assert main(words) == 0
    tasks = Path("/proc/self/task")
    threads = [task.read_text() for task in tasks.glob("*/comm")] if tasks.is_dir() else []
    assert not [name for name in threads if "gloo" in name], "one that outlives the interpreter aborts it"


@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one(tmp_path: Path) -> None:
    settings = ["train", *ODD, "--accumulate=2", "--clip_norm=1.0", "--precision=fp32", "--out"]
    assert main([*settings, str(tmp_path / "one")]) == 0
    run_ranks(train_as, [*settings, str(tmp_path / "two")], free_port(), tmp_path / "said")
    said = [(tmp_path / f"said.{rank}").read_text() for rank in range(2)]
    assert [text.count("epoch 1, loss") for text in said] == [1, 0]  # the first process alone speaks
    one_log, two_log = log_of(tmp_path / "one"), log_of(tmp_path / "two")
    assert [line["step"] for line in two_log] == [3, 6, 9, 12]
    np.testing.assert_allclose([e["loss"] for e in two_log], [e["loss"] for e in one_log], rtol=1e-5)
    one_run, two_run = read_run(tmp_path / "one"), read_run(tmp_path / "two")
    assert one_run.id == two_run.id
    for name, tensor in one_run.weights().items():
        torch.testing.assert_close(two_run.weights()[name], tensor, atol=1e-5, rtol=1e-4)
    first, second = one_run.predictions(), two_run.predictions()
    assert len(second["truth"]) == 21
    assert np.array_equal(first["truth"], second["truth"])
    np.testing.assert_allclose(second["confidence"], first["confidence"], atol=1e-5)


def workers(parent: int) -> list[int]:
    """The processes that torchrun has started, in the order of their ranks."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    return sorted(int(pid) for pid in children.read_text().split())


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the processes in /proc")
def test_a_lost_process_ends_the_job_and_the_same_command_goes_on(tmp_path: Path) -> None:
    settings = [
        *arguments(model="test_resnet", epochs=20, checkpoint_steps=2, validation=0.2),
        "--timeout=300",
    ]
    subprocess.run(job(tmp_path / "whole", settings), check=True, env=ENVIRONMENT, capture_output=True)
    log = tmp_path / "parts" / "log.jsonl"
    child = subprocess.Popen(
        job(tmp_path / "parts", settings), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    while child.poll() is None and not (log.exists() and log.stat().st_size):
        time.sleep(0.05)
    os.kill(workers(child.pid)[-1], signal.SIGKILL)
    _, message = child.communicate()
    assert child.returncode != 0
    assert not (tmp_path / "parts" / "result.json").exists()
    assert list((tmp_path / "parts" / "checkpoints").glob("step-*.pt")), message
    subprocess.run(job(tmp_path / "parts", settings), check=True, env=ENVIRONMENT, capture_output=True)
    assert end_state(tmp_path / "parts") == end_state(tmp_path / "whole")


@pytest.mark.long
def test_what_stops_the_first_process_stops_all_and_is_said_once(tmp_path: Path) -> None:
    with only_process(tmp_path):
        done = subprocess.run(job(tmp_path, arguments()), env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.count("hace: Another process is at work in") == 1
