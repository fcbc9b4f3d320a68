"""One study, several executors: killed in the middle, with a run that fails once, they end with the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from hace.cli import main
from hace.errors import ConfigError, HaceError
from hace.files.writing import is_held
from hace.lab.probe import load_sources, run_folder
from hace.lab.report import report_text
from hace.lab.runs.config import DataConfig, ProbeConfig
from hace.lab.study.executors import Cluster, open_executor
from hace.lab.study.folder import read_study
from hace.lab.study.jobs import Job, run_job
from hace.lab.study.presets import METHODS
from hace.lab.study.processes import Processes
from hace.lab.study.ray_tasks import RayExecutor
from hace.study import Study
from tests.data_layouts import write_image
from tests.lab.study.fake_slurm import FakeSlurm
from tests.processes import free_port
from tests.study_files import outcomes, plants_study, study_options, write_features

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
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            results.append(line)
    return results


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
    options += [
        "--only",
        "model=resnet18",
        "--only",
        "method=cross_entropy",
        "--rates",
        "0.05",
        "--set",
        "image_size=32",
    ]
    study = start([*options, *OPTIONS[executor], "--out", str(tmp_path / "study")])
    wait_for(lambda: logged(tmp_path / "study") or study.poll() is not None, "a first epoch")
    children = children_of(study.pid)
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
def test_workers_that_are_killed_cost_their_runs_only(
    reference: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """As the system kills them for lack of memory."""
    out = tmp_path / "study"
    study = start(study_options(reference, *OPTIONS["local"], "--out", str(out)))
    wait_for(lambda: stopped_at_work(study.pid, out) or study.poll() is not None, "workers at work")
    for worker in workers_of(study.pid):
        os.kill(worker, signal.SIGKILL)
    _, errors = study.communicate(timeout=SECONDS)
    assert study.returncode == 0, errors
    assert "was ended by SIGKILL (out of memory?)" in errors
    assert outcomes(out / "runs") == outcomes(reference / "study" / "runs")


def workers_of(pid: int) -> list[int]:
    """The children of a study that train."""
    return [child for child in children_of(pid) if b"spawn_main" in of_process(child, "cmdline")]


def of_process(pid: int, file: str) -> bytes:
    """What a file of /proc says of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def stopped_at_work(pid: int, out: Path) -> bool:
    """Stop a study's workers where they are; unless one of them is in the middle of a run, they go on."""
    workers = workers_of(pid)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    for worker in workers:
        wait_for(lambda worker=worker: b"(stopped)" in of_process(worker, "status"), "a worker to stop")
    at_work = any(is_held(folder) for folder in out.glob("runs/*"))
    if not at_work:
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
    return at_work


def children_of(pid: int) -> list[int]:
    """The children of a process, whichever of its threads started them."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(number) for thread in threads for number in (thread / "children").read_text().split()]


def report_and_sleep(path: Path, seconds: float) -> None:
    """Write the process and its number among the processes of this machine."""
    path.write_text(f"{os.getpid()} {os.environ['LOCAL_RANK']}\n")
    time.sleep(seconds)


def reported(path: Path) -> tuple[int, str]:
    """What :func:`report_and_sleep` writes."""
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} to start")
    process, number = path.read_text().split()
    return int(process), number


@pytest.mark.slow
def test_another_process_takes_the_gpu_of_one_that_died(tmp_path: Path) -> None:
    executor = Processes(2)
    first = executor.submit(report_and_sleep, tmp_path / "first", SECONDS)
    second = executor.submit(report_and_sleep, tmp_path / "second", SECONDS)
    process, number = reported(tmp_path / "first")
    assert {number, reported(tmp_path / "second")[1]} == {"0", "1"}
    os.kill(process, signal.SIGKILL)
    with pytest.raises(HaceError, match=r"its process was ended by SIGKILL \(out of memory\?\)"):
        first.result()
    executor.submit(report_and_sleep, tmp_path / "third", 0.0).result()
    assert reported(tmp_path / "third")[1] == number
    assert not second.done()
    executor.shutdown(cancel_futures=True)
    assert second.exception() is not None
    assert "LOCAL_RANK" not in os.environ


def ignore_signals(path: Path) -> None:
    """As a step that takes long."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report_and_sleep(path, SECONDS)


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_what_is_running(tmp_path: Path) -> None:
    executor = Processes(1)
    future = executor.submit(ignore_signals, tmp_path / "first")
    reported(tmp_path / "first")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            executor.shutdown(cancel_futures=True)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "was ended by SIGKILL" in str(future.exception(timeout=20))  # it would wait for 30 s


CTRL_C = """
import os, signal, time
from pathlib import Path
from hace.lab.study.processes import Processes
from tests.lab.study.test_executors import report_and_sleep

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)
    executor = Processes(1)
    future = executor.submit(report_and_sleep, Path({path!r}), 0.0)
    while not future.done():
        os.killpg(0, signal.SIGINT)
        time.sleep(0.05)
    future.result()
    executor.shutdown()
"""


@pytest.mark.slow
def test_a_process_that_starts_does_not_hear_ctrl_c(tmp_path: Path) -> None:
    """It reaches the whole group, and loading takes seconds; the parent ends its processes itself."""
    (tmp_path / "study.py").write_text(CTRL_C.format(path=str(tmp_path / "first")))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "study.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd() / "src"), str(Path.cwd())])},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "first").exists()


@pytest.mark.slow
def test_an_executor_of_ones_own(reference: Path, tmp_path: Path) -> None:
    """One that breaks costs nothing but time: its jobs are reported, and the next one makes them."""
    study = plants(reference, tmp_path / "study")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), initializer=os.abort) as broken:
        results = study.run(broken, retries=0)
    assert results.failed
    assert all("BrokenProcessPool" in failure["error"] for failure in results.failures.values())
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        results = study.run(executor=pool)
    assert not results.failures
    assert outcomes(results.study.runs) == outcomes(reference / "study" / "runs")


def plants(folder: Path, out: Path) -> Study:
    """The study of `study_options`."""
    return Study(
        "fair-probe",
        features={"plants": str(folder / "plants.npz")},
        hierarchy={"plants": str(folder / "plants.csv")},
        methods=("cross_entropy", "hace", "cross_entropy_paths", "conditional_softmax"),
        rates=(1.0, 8.0),
        seeds=1,
        only={"dilution": "0.5,None"},
        out=str(out),
    )


def test_an_executor_of_threads_is_refused(tmp_path: Path) -> None:
    study = Study("animals", out=str(tmp_path / "study"))
    with (
        ThreadPoolExecutor(2) as threads,
        pytest.raises(ConfigError, match="executor must run its calls in processes"),
    ):
        study.run(threads)
    with (
        ProcessPoolExecutor(2) as pool,
        pytest.raises(ConfigError, match="gpus must come with executor ray or slurm"),
    ):
        study.run(pool, cluster=Cluster(gpus=1))
    assert not (tmp_path / "study").exists()


def test_an_address_where_nothing_answers() -> None:
    with pytest.raises(
        HaceError, match=r"--address 127.0.0.1:9: no Ray cluster can be used there: .*Connection refused"
    ):
        RayExecutor(Cluster(address="127.0.0.1:9"))


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
    options = study_options(reference, "--only", "method=cross_entropy", "--out", str(tmp_path / "study"))
    command = [sys.executable, "-m", "hace", *options, "--executor", "ray", "--address", address]
    words = rf"--address {address}: no Ray cluster can be used there: (?s:.*)token is missing or incorrect"
    with pytest.raises(HaceError, match=words):
        RayExecutor(Cluster(address=address))
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


@pytest.mark.slow
def test_features_go_to_ray_once(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    features, hierarchy = write_features(tmp_path)
    data = DataConfig("features", root=str(features), hierarchy=str(hierarchy))
    configs = [ProbeConfig(data, epochs=1, seed=seed) for seed in range(4)]
    out, sources = tmp_path / "runs", load_sources(configs)
    jobs = [Job((run_folder(config, out, sources).name,), (config,), str(out)) for config in configs]
    before = signal.getsignal(signal.SIGTERM)
    with open_executor("ray", 2, Cluster(), tmp_path) as (executor, workers):
        assert workers == 2
        assert signal.getsignal(signal.SIGTERM) is before  # Ray would exit on it
        first = executor.submit(run_job, jobs[0])
        features.unlink()  # whoever reads it again fails
        futures = [first, *(executor.submit(run_job, job) for job in jobs[1:])]
        assert [future.result() for future in futures] == [{}, {}, {}, {}]
    assert len(list(out.glob("*/result.json"))) == 4
