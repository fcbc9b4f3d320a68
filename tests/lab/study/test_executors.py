"""One study, several executors: killed in the middle, with a run that fails once, they end with the same bytes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hace.cli import main
from hace.errors import ConfigError, HaceError
from hace.lab.report.text import report_text
from hace.lab.runs.config import DataConfig
from hace.lab.study.clusters import RayCluster, Submitit
from hace.lab.study.executors import InProcess, Processes, Resources, make_executor
from hace.lab.study.jobs import Job, JobResult
from hace.lab.study.study import read_study
from tests.study_files import outcomes, study_options
from tests.train_cases import tiny

RUNS = 51
SECONDS = 240  # the machine may be busy

# `hace study` with submitit's own processes in place of SLURM.
WITH_SUBMITIT = """
import sys
from hace.lab.study import executors
from hace.lab.study.clusters import Submitit
executors.EXECUTORS["slurm"] = lambda resources: Submitit(resources, cluster="local")
from hace.cli import main
sys.exit(main(sys.argv[1:]))
"""
COMMANDS = {
    "local": (["-m", "hace"], ["--workers", "2"]),
    "ray": (["-m", "hace"], ["--executor", "ray", "--workers", "2"]),
    "submitit": (["-c", WITH_SUBMITIT], ["--executor", "slurm", "--workers", "2", "--hours", "1"]),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was done in one go, in this process."""
    folder = tmp_path_factory.mktemp("reference")
    assert main(study_options(folder, "--out", str(folder / "study"))) == 0
    return folder


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for temporary files with a short path, as sockets need it; its name tells whose a process is."""
    with tempfile.TemporaryDirectory(prefix="hs", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        wait_for(lambda: not processes_of(Path(folder)), "its processes to end")


def start(executor: str, data: Path, out: Path, short: Path, *more: str) -> subprocess.Popen[str]:
    python, options = COMMANDS[executor]
    arguments = [sys.executable, *python, *study_options(data, *options, "--out", str(out), *more)]
    environment = {**os.environ, "TMPDIR": str(short), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen(
        arguments, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def processes_of(folder: Path) -> list[str]:
    """The command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def wait_for(condition, what: str, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.02)


def results(out: Path) -> list[Path]:
    return list(out.glob("runs/*/result.json"))


@pytest.mark.slow
@pytest.mark.parametrize("executor", COMMANDS)
def test_killed_and_obstructed_a_study_ends_with_the_same_bytes(
    executor: str, reference: Path, tmp_path: Path, short: Path
) -> None:
    out = tmp_path / "study"
    first = start(executor, reference, out, short)
    wait_for(lambda: results(out) or first.poll() is not None, "a first result")
    first.kill()
    first.communicate()
    assert 0 < len(results(out)) < RUNS

    # Something that is no run lies where one shall be: that run fails, until somebody clears it away.
    finals = [r.run.id for r in read_study(reference / "study").records() if r.stage == "final" and r.run]
    obstacle = next(out / "runs" / run for run in finals if not (out / "runs" / run).exists()) / "note.txt"
    obstacle.parent.mkdir()
    obstacle.write_text("not a run")
    done_before = {path: path.stat().st_mtime_ns for path in results(out)}
    second = start(executor, reference, out, short)
    failures = out / "failures.json"
    wait_for(lambda: failures.exists() or second.poll() is not None, "a failure")
    attempt = json.loads(failures.read_text())
    obstacle.unlink()
    _, errors = second.communicate(timeout=SECONDS)

    assert second.returncode == 0, errors
    assert list(attempt) == [obstacle.parent.name]
    assert "holds other files (note.txt)" in attempt[obstacle.parent.name]["error"]
    assert "attempt 1 failed: plants features" in errors
    assert not failures.exists()
    assert {path: path.stat().st_mtime_ns for path in done_before} == done_before  # nothing is repeated
    assert outcomes(out / "runs") == outcomes(reference / "study" / "runs")
    ours, theirs = (report_text(read_study(f).records()) for f in (out, reference / "study"))
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_workers_and_says_how_to_go_on(
    number: int, code: int, reference: Path, tmp_path: Path, short: Path
) -> None:
    out = tmp_path / "study"
    study = start("local", reference, out, short)
    wait_for(lambda: results(out) or study.poll() is not None, "a first result")
    workers = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
    study.send_signal(number)
    _, errors = study.communicate(timeout=60)
    assert study.returncode == code
    assert "Stopped: " in errors
    assert "The same command goes on from there." in errors
    assert "Traceback" not in errors
    assert workers
    wait_for(lambda: not any(Path(f"/proc/{w}/exe").exists() for w in workers), "the workers to end", 20)


@pytest.mark.slow
def test_a_training_that_is_stopped_with_its_study_saves_its_state(tmp_path: Path) -> None:
    data = DataConfig("synthetic", options={"classes": 5, "train": 200, "test": 4})
    config = tiny(data=data, batch_size=1000, epochs=100_000)  # its steps take a while
    with Processes(2) as executor:
        executor.submit(Job(("waiting",), (config,), str(tmp_path), delay=600))  # it ends at once
        executor.submit(Job(("training",), (config,), str(tmp_path)))
        log = tmp_path / "training" / "log.jsonl"
        wait_for(lambda: log.exists() and log.stat().st_size, "a first epoch")
    assert list(tmp_path.glob("training/checkpoints/step-*.pt"))


def test_workers_take_the_accelerators_in_turn(tmp_path: Path) -> None:
    job = Job(("waiting",), (tiny(),), str(tmp_path), delay=600)
    with Processes(2) as executor:
        executor.submit(job)
        executor.submit(job)
        assert local_ranks(executor) == ["0", "1"]
        executor._workers[0].process.kill()
        assert "SIGKILL" in executor.next().lost
        executor.submit(job)  # another takes its place
        assert local_ranks(executor) == ["1", "0"]
    assert "LOCAL_RANK" not in os.environ


def local_ranks(executor: Processes) -> list[str]:
    """What the environment of each process says, as soon as it has one of its own."""

    def found() -> list[str]:
        paths = [Path(f"/proc/{worker.process.pid}/environ") for worker in executor._workers]
        entries = [entry for path in paths for entry in path.read_text().split("\0")]
        return [entry.partition("=")[2] for entry in entries if entry.startswith("LOCAL_RANK=")]

    wait_for(lambda: len(found()) == len(executor._workers), "the processes to start", 20)
    return found()


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_job_only(reference: Path) -> None:
    record = next(r for r in read_study(reference / "study").records() if r.run is not None)
    assert record.run is not None
    job = Job((record.run.id,), (record.run.config,), str(reference / "study" / "runs"))
    with Processes(2) as executor:
        executor.submit(Job(job.runs, job.configs, job.out, delay=60))
        pid = executor._workers[0].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert executor.next().lost == "the process that made it was ended by SIGKILL (out of memory?)."
        executor.submit(job)
        assert executor.next() == JobResult(job)


def test_an_executor_that_there_is_not() -> None:
    with pytest.raises(
        ConfigError, match=r"--executor must be one of local, ray, slurm, got 'rya'\. Did you mean 'ray'"
    ):
        make_executor("rya", Resources())
    assert isinstance(make_executor("local", Resources()), InProcess)
    with pytest.raises(ConfigError, match="--workers must be 0 or more, got -1"):
        Resources(workers=-1)


def test_slurm_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(HaceError, match=r"--executor slurm: .*Run it where `sbatch` is"):
        Submitit(Resources(logs=tmp_path))


def test_an_address_where_nothing_answers() -> None:
    with pytest.raises(
        HaceError, match=r"--address 127.0.0.1:9: no Ray cluster can be used there: .*Connection refused"
    ):
        RayCluster(Resources(address="127.0.0.1:9")).__enter__()


@pytest.fixture
def guarded_cluster(short: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray cluster that wants a token: its address, and the environment that has it."""
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-for-this-test-only-0123456789"}
    port = free_port()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus", "2"]
    command += ["--port", str(port), "--include-dashboard", "false", "--temp-dir", str(short / "r")]
    head = subprocess.Popen(
        command,
        env={**os.environ, **secret},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"127.0.0.1:{port}"
        wait_for(
            lambda: is_open(port) and list((short / "r").glob("session_*/sockets/raylet")), "the cluster"
        )
        yield address, secret
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_cluster_that_runs_already_and_wants_a_token(
    guarded_cluster: tuple[str, dict[str, str]], reference: Path, tmp_path: Path
) -> None:
    address, secret = guarded_cluster
    options = study_options(reference, "--only", "method=sce", "--out", str(tmp_path / "study"))
    command = [sys.executable, "-m", "hace", *options, "--executor", "ray", "--address", address]
    refused = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=SECONDS)
    assert refused.returncode == 2
    assert f"--address {address}: no Ray cluster can be used there: " in refused.stderr
    assert "token is missing or incorrect" in refused.stderr
    accepted = subprocess.run(
        command, env={**os.environ, **secret}, capture_output=True, text=True, timeout=SECONDS
    )
    assert accepted.returncode == 0, accepted.stderr
    assert "3 of 3 runs are done" in accepted.stdout
    left = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and secret["RAY_AUTH_TOKEN"].encode() in path.read_bytes()
    ]
    assert left == []  # the token is Ray's own business
    assert outcomes(tmp_path / "study" / "runs").items() <= outcomes(reference / "study" / "runs").items()
