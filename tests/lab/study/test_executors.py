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
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hace.cli import main
from hace.errors import HaceError
from hace.lab.probe import load_sources, run_folder
from hace.lab.report.study_report import report_text
from hace.lab.runs.config import DataConfig, ProbeConfig
from hace.lab.runs.process import Stopped, catch_signals
from hace.lab.study.clusters import RayCluster
from hace.lab.study.executors import Cluster, Job, JobResult, Processes
from hace.lab.study.folder import read_study
from hace.lab.study.presets import METHODS
from tests.data_layouts import write_image
from tests.lab.study.fake_slurm import FakeSlurm
from tests.processes import free_port
from tests.study_files import outcomes, plants_study, study_options
from tests.train_cases import tiny

SECONDS = 600  # the machine may be busy

OPTIONS = {
    "local": ["--workers", "2"],
    "ray": ["--executor", "ray", "--workers", "2"],
    "slurm": ["--executor", "slurm", "--workers", "2", "--hours", "1"],
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


@pytest.fixture
def start(short: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run `hace` in another process. It hears Ctrl-C even if this one was started to ignore it, as by `nohup`."""
    started: list[subprocess.Popen[str]] = []

    def start_hace(options: list[str], slurm: FakeSlurm | None = None) -> subprocess.Popen[str]:
        # Ray's workers are nice: on a busy machine they would hardly run.
        more = {"TMPDIR": str(short), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "hace", *options],
                env={**os.environ, **more, **(slurm.environment if slurm else {})},
                stderr=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        )
        return started[-1]

    yield start_hace
    for child in started:
        child.kill()
        child.communicate()


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
def test_every_method_trains(tmp_path: Path) -> None:
    methods = ["--methods", ",".join(METHODS), "--only", "dilution=0.5,None"]
    options = [
        *plants_study(tmp_path),
        *methods,
        "--rates",
        "4",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "study"),
    ]
    assert main(options) == 0
    records = read_study(tmp_path / "study").records()
    assert {record.status for record in records if record.stage == "final"} == {"finished"}
    assert {record.key.method for record in records} == {
        name
        for name in METHODS
        if not name.endswith("_drop")  # which need coarse labels
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor", ["local", *(pytest.param(name, marks=pytest.mark.long) for name in ("ray", "slurm"))]
)
def test_killed_and_obstructed_a_study_ends_with_the_same_bytes(
    executor: str, reference: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    out = tmp_path / "study"
    options = study_options(reference, *OPTIONS[executor], "--out", str(out))
    slurm = FakeSlurm(tmp_path / "slurm") if executor == "slurm" else None
    first = start(options, slurm)
    wait_for(lambda: results(out) or first.poll() is not None, "a first result")
    first.kill()
    first.communicate()
    assert 0 < len(results(out)) < len(results(reference / "study"))

    # Something that is not a run occupies the place of one: that run fails until it is cleared away.
    finals = [r.run.id for r in read_study(reference / "study").records() if r.stage == "final" and r.run]
    obstacle = next(out / "runs" / run for run in finals if not (out / "runs" / run).exists()) / "note.txt"
    obstacle.parent.mkdir()
    obstacle.write_text("not a run")
    done_before = {path: path.stat().st_mtime_ns for path in results(out)}
    second = start(options, slurm)
    failures = out / "failures.json"
    wait_for(lambda: failures.exists() or second.poll() is not None, "a failure")
    attempt = json.loads(failures.read_text())
    obstacle.unlink()
    _, errors = second.communicate(timeout=SECONDS)

    assert second.returncode == 0, errors
    assert list(attempt) == [obstacle.parent.name]
    assert "It holds other files: note.txt" in attempt[obstacle.parent.name]["error"]
    assert "attempt 1 failed, will be tried again: plants features" in errors
    assert not failures.exists()
    assert {path: path.stat().st_mtime_ns for path in done_before} == done_before  # nothing is repeated
    assert outcomes(out / "runs") == outcomes(reference / "study" / "runs")
    ours, theirs = (report_text(read_study(f).records()) for f in (out, reference / "study"))
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("executor", "number", "code"),
    [("local", signal.SIGINT, 130), pytest.param("ray", signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_a_signal_ends_a_study_and_its_trainings_save(
    executor: str, number: int, code: int, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    for split, name in [(s, n) for s in ("train", "test") for n in ("dog/husky", "dog/pug", "cat/tabby")]:
        write_image(tmp_path / "pets" / split / name / "1.png")
    options = ["study", "fair-end-to-end", "--data-root", f"pets={tmp_path / 'pets'}", "--seeds", "1"]
    options += ["--only", "model=resnet18", "method=sce", "--rates", "0.05", "--set", "image_size=32"]
    study = start([*options, *OPTIONS[executor], "--out", str(tmp_path / "study")])
    wait_for(lambda: logged(tmp_path / "study") or study.poll() is not None, "a first epoch")
    children = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
    study.send_signal(number)
    _, errors = study.communicate(timeout=SECONDS)
    assert study.returncode == code, errors
    assert "Stopped: 0 of 1 runs are done, 1 running. The same command resumes from there." in errors
    assert "Traceback" not in errors
    assert list(tmp_path.glob("study/runs/*/checkpoints/step-*.pt"))
    assert children
    wait_for(
        lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children), "the children to end"
    )


def logged(out: Path) -> bool:
    return any(path.stat().st_size for path in out.glob("runs/*/log.jsonl"))


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_job_only_and_another_takes_its_gpu(
    reference: Path, tmp_path: Path
) -> None:
    record = next(r for r in read_study(reference / "study").records() if r.run is not None)
    assert record.run is not None
    done = Job((record.run.id,), (record.run.config,), str(reference / "study" / "runs"))
    with Processes(2) as executor:
        for name in ("first", "second"):
            executor.submit(Job((name,), (tiny(epochs=100_000),), str(tmp_path)))
        assert local_ranks(executor) == ["0", "1"]
        executor._workers[0].process.kill()
        result = executor.next()
        assert result is not None
        assert result.job.runs == ("first",)
        assert result.lost == "its process was ended by SIGKILL (out of memory?)."
        executor.submit(done)
        assert local_ranks(executor) == ["1", "0"]
        assert executor.next() == JobResult(done)
    assert "LOCAL_RANK" not in os.environ


def local_ranks(executor: Processes) -> list[str]:
    """What the environment of each process says, as soon as it is there."""

    def found() -> list[str]:
        paths = [Path(f"/proc/{worker.process.pid}/environ") for worker in executor._workers]
        entries = [entry for path in paths for entry in path.read_text().split("\0")]
        return [entry.partition("=")[2] for entry in entries if entry.startswith("LOCAL_RANK=")]

    wait_for(lambda: len(found()) == len(executor._workers), "the processes to start")
    return found()


def test_an_address_where_nothing_answers() -> None:
    with pytest.raises(
        HaceError, match=r"--address 127.0.0.1:9: no Ray cluster can be used there: .*Connection refused"
    ):
        RayCluster(Cluster(address="127.0.0.1:9")).__enter__()


@pytest.fixture
def guarded_cluster(short: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray cluster that wants a token: its address, and the environment that has it."""
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token-for-this-test-only-0123456789"}
    nice = {"RAY_worker_niceness": "0"}
    port = free_port()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus", "2"]
    command += ["--port", str(port), "--include-dashboard", "false", "--temp-dir", str(short / "r")]
    head = subprocess.Popen(
        command,
        env={**os.environ, **secret, **nice},
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
    words = rf"--address {address}: no Ray cluster can be used there: (?s:.*)token is missing or incorrect"
    with pytest.raises(HaceError, match=words):
        RayCluster(Cluster(address=address)).__enter__()
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
    assert left == []  # the token stays out of every file
    assert outcomes(tmp_path / "study" / "runs").items() <= outcomes(reference / "study" / "runs").items()


def test_a_signal_during_the_start_of_ray_stops_the_study_as_any_other() -> None:
    class Starting:
        """`ray.init` as far as signals see it: its own handler of SIGTERM, which exits."""

        @staticmethod
        def init(**_: object) -> None:
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
            signal.raise_signal(signal.SIGTERM)

    cluster = RayCluster.__new__(RayCluster)
    cluster._ray = Starting
    with catch_signals(interrupt=True) as caught, pytest.raises(Stopped):
        cluster._connect()
    assert caught.signal == signal.SIGTERM


@pytest.mark.slow
def test_a_worker_of_ray_loads_its_data_once(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    features, tree, out = tmp_path / "f.npz", tmp_path / "tree.csv", tmp_path / "runs"
    tree.write_text("parent,child\ng,a\ng,b\ng2,c\n")
    y = np.arange(30) % 3
    np.savez(features, x_train=np.eye(3)[y], y_train=y, x_test=np.eye(3), y_test=np.arange(3))
    data = DataConfig("features", str(features), hierarchy=str(tree))
    configs = [ProbeConfig(data, epochs=1, seed=seed) for seed in range(2)]
    sources = load_sources(configs)
    jobs = [Job((run_folder(config, out, sources).name,), (config,), str(out)) for config in configs]
    with RayCluster(Cluster(), workers=1) as cluster:
        cluster.submit(jobs[0])
        first = cluster.next()
        features.unlink()  # whoever reads it again fails
        cluster.submit(jobs[1])
        second = cluster.next()
    assert first is not None
    assert second is not None
    assert (first.errors, first.lost, second.errors, second.lost) == ({}, "", {}, "")
    assert len(list(out.glob("*/result.json"))) == 2
