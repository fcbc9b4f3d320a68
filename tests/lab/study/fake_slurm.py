"""A SLURM for tests: sbatch, srun, squeue, sacct and scancel that run jobs on this machine and end them on request.

    slurm = FakeSlurm(folder, fates=[Fate("timeout", "study/runs/*/log.jsonl")])
    subprocess.run([...], env={**os.environ, **slurm.environment})
    slurm.jobs()  # [Submitted(id=1, state="COMPLETED", options={"job-name": ...}, gone=True)]

The n-th job submitted meets the n-th fate; further jobs run to their end. A fate acts as soon as the job has written a file, so
no test depends on a clock. A signal reaches all processes of a job, as SLURM's do.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scancel")
HOME = "FAKE_SLURM"
STATES = {  # how a job ends: the signals that it gets, and the state that SLURM reports if they end it
    "timeout": ((signal.SIGUSR2, signal.SIGKILL), "TIMEOUT"),
    "preempt": ((signal.SIGTERM, signal.SIGKILL), "PREEMPTED"),
    "oom": ((signal.SIGKILL,), "OUT_OF_MEMORY"),
    "node_fail": ((signal.SIGKILL,), "NODE_FAIL"),
    "cancel": ((signal.SIGTERM, signal.SIGKILL), "CANCELLED"),
}
GRACE_SECONDS = 120.0  # between two signals; a job that ends earlier is not waited for


@dataclass(frozen=True)
class Fate:
    """What happens to a job.

    Attributes:
        end: A key of `STATES`.
        when: A glob relative to the parent of the fake's folder; the fate acts once a matching file has been written since the
            job began. "" acts at once.
    """

    end: str
    when: str = ""


@dataclass(frozen=True)
class Submitted:
    """A job that was submitted: its id, its state, the options of its script, and whether it has left the queue."""

    id: int
    state: str
    options: dict[str, str]
    gone: bool


class FakeSlurm:
    """Write the commands, and a place for their jobs.

    Args:
        folder: New or empty.
        fates: Of the first jobs, in order.
        accounting: Whether sacct answers; many small clusters have none.
        refusals: Which calls of sbatch are refused, counted from 1.
    """

    def __init__(
        self,
        folder: Path,
        fates: Sequence[Fate] = (),
        *,
        accounting: bool = True,
        refusals: Collection[int] = (),
    ) -> None:
        self.folder = folder.resolve()
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "jobs").mkdir()
        (self.folder / "calls").mkdir()
        (self.folder / "fates.json").write_text(json.dumps([asdict(fate) for fate in fates]))
        (self.folder / "refusals.json").write_text(json.dumps(sorted(refusals)))
        for name in COMMANDS:
            path = self.folder / "bin" / name
            command = shlex.join([sys.executable, str(Path(__file__).resolve()), name])
            refusal = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
            works = name != "sacct" or accounting
            path.write_text(f'#!/bin/sh\n{f"exec {command}" if works else refusal} "$@"\n')
            path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What to add to the environment of its users."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", HOME: str(self.folder)}

    def jobs(self) -> list[Submitted]:
        """All jobs, in the order of their submission."""
        return [read_job(path) for path in job_folders(self.folder)]


def job_folders(home: Path) -> list[Path]:
    """The folders of all jobs, in order."""
    return sorted((home / "jobs").iterdir(), key=lambda path: int(path.name))


def read_job(folder: Path) -> Submitted:
    """A job as its folder tells it."""
    script = (folder / "script").read_text() if (folder / "script").exists() else ""
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH --")]
    words = [shlex.split(line.removeprefix("#SBATCH --"))[0].partition("=") for line in lines]
    options = {name: value for name, _, value in words}
    state = folder / "state"
    text = state.read_text() if state.exists() else "PENDING"
    return Submitted(int(folder.name), text, options, text not in ("PENDING", "RUNNING"))


def put(path: Path, text: str) -> None:
    """Write a file whole."""
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(text)
    half.replace(path)


def sbatch(home: Path, arguments: list[str]) -> None:
    """Take a script, give it a number and start it; or refuse it."""
    if next_number(home / "calls") in json.loads((home / "refusals.json").read_text()):
        print("sbatch: error: QOSMaxSubmitJobPerUserLimit", file=sys.stderr)
        sys.exit(1)
    number = next_number(home / "jobs")
    folder = home / "jobs" / str(number)
    put(folder / "script", Path(arguments[-1]).read_text())
    with (folder / "controller.log").open("w") as log:
        command = [sys.executable, __file__, "control", str(number)]
        subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    print(f"Submitted batch job {number}")


def next_number(folder: Path) -> int:
    """The next free number, taken by a folder of its name."""
    number = 1 + len(list(folder.iterdir()))
    while True:
        try:
            (folder / str(number)).mkdir()
            return number
        except FileExistsError:
            number += 1


def control(home: Path, arguments: list[str]) -> None:
    """The life of a job: run its script, let its fate act, write its state."""
    (number,) = arguments
    folder = home / "jobs" / number
    options = read_job(folder).options
    tasks = int(options.get("ntasks-per-node", 1))
    nodes = int(options.get("nodes", 1))
    environment = {
        **os.environ,
        "SLURM_JOB_ID": number,
        "SLURM_NTASKS": str(tasks * nodes),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": "localhost",
    }
    fates = [Fate(**fate) for fate in json.loads((home / "fates.json").read_text())]
    fate = fates[int(number) - 1] if int(number) <= len(fates) else None
    job = subprocess.Popen(["/bin/bash", str(folder / "script")], env=environment, start_new_session=True)
    put(folder / "state", "RUNNING")
    began = time.time()
    cancelled = folder / "cancelled"
    while job.poll() is None:
        if cancelled.exists():
            fate = Fate("cancel")
        if fate is not None and (not fate.when or any(written(home.parent, fate.when, began))):
            put(folder / "state", ending(job, fate))
            return
        time.sleep(0.05)
    put(folder / "state", "COMPLETED" if job.returncode == 0 else "FAILED")


def written(folder: Path, pattern: str, since: float) -> Iterator[bool]:
    """Whether files that match were written since then."""
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            yield path.stat().st_mtime > since


def ending(job: subprocess.Popen[bytes], fate: Fate) -> str:
    """Send a fate's signals until the job has ended; the state it then has."""
    signals, state = STATES[fate.end]
    for number in signals:
        for process in group(job.pid, shell=number == signal.SIGKILL):
            os.kill(process, number)
        try:
            code = job.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return "COMPLETED" if code == 0 and fate.end != "cancel" else state
    return state


def group(leader: int, *, shell: bool) -> list[int]:
    """The processes of a job: those of its session; the script itself only if it is to be killed."""
    results = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
            command = (path.parent / "cmdline").read_text()
        except OSError:
            continue
        pid, session = int(path.parent.name), int(text.rpartition(")")[2].split()[3])
        if session == leader and (shell or not (pid == leader or f"{Path(__file__).name}\0srun" in command)):
            results.append(pid)
    return results


def srun(home: Path, arguments: list[str]) -> None:
    """Run a command once per task."""
    files: dict[str, str] = {}
    while arguments and arguments[0].startswith("--"):
        option = arguments.pop(0)
        if option in ("--output", "--error"):
            files[option] = arguments.pop(0)
    job, count = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_NTASKS"])
    each = int(os.environ["SLURM_NTASKS_PER_NODE"])
    running = []
    for task in range(count):
        names = {o: Path(f.replace("%j", job).replace("%t", str(task))) for o, f in files.items()}
        environment = {
            **os.environ,
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % each),
            "SLURM_NODEID": str(task // each),
        }
        with names["--output"].open("a") as output, names["--error"].open("a") as errors:
            running.append(subprocess.Popen(arguments, env=environment, stdout=output, stderr=errors))
    codes = [process.wait() for process in running]
    sys.exit(next((128 - code if code < 0 else code for code in codes if code), 0))


def squeue(home: Path, arguments: list[str]) -> None:
    """The ids of the jobs that wait or run."""
    for job in map(read_job, job_folders(home)):
        if not job.gone:
            print(job.id)


def sacct(home: Path, arguments: list[str]) -> None:
    """The state of a job."""
    wanted = arguments[arguments.index("--jobs") + 1]
    for job in map(read_job, job_folders(home)):
        if str(job.id) == wanted:
            print(job.state)


def scancel(home: Path, arguments: list[str]) -> None:
    """Ask for the end of jobs."""
    for number in arguments:
        (home / "jobs" / number / "cancelled").touch()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(os.environ[HOME]), sys.argv[2:])
