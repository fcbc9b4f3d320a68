"""Kill, fill up and corrupt whatever writes results, run the same command again, and compare bytes with an undisturbed run.

    python tests/torture.py --kills 100
    python tests/torture.py --kills 12 --only "train;study, Ray" --seed 3

Each command runs in a child forked from this process, so it starts in milliseconds and a signal meets work, not imports. It is
struck at a random moment after its first file appears. A full disk is a small tmpfs (with root's rights; otherwise a limit on
the size of files). A corrupted file is a flipped byte, a cut, or a missing file of a finished result. Prints one row per
workload and blow; exits 1 if anything differs, leaves a traceback, or ends with a code that is not the blow's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hace import cli
from tests.backbone_files import COMMAND, SIZE, VIT, save_weights
from tests.lab.study.fake_slurm import FakeSlurm
from tests.study_files import outcomes, plants_study
from tests.train_cases import arguments, end_state

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
# Commands that have nothing to save die of SIGTERM itself, which a shell shows as 143, too.
CODES = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130,)}
BLOWS = (*SIGNALS, "disk full", "corrupted file")
LIMIT = 900.0  # seconds for one command


@dataclass(frozen=True)
class Workload:
    """A command that makes results.

    Attributes:
        words: From the folder for results to the arguments of `hace`.
        state: From that folder to all that two runs must have in common.
        precious: A glob of the files whose damage must be noticed.
        environment: What the command needs.
        small: Bytes of a disk on which it cannot end.
    """

    words: Callable[[Path], list[str]]
    state: Callable[[Path], Any]
    precious: str
    environment: dict[str, str] = field(default_factory=dict)
    small: int = 256 << 10


def workloads(place: Path) -> dict[str, Workload]:
    """All of them, with their inputs written below a folder."""
    weights = save_weights(VIT, place / "vit.safetensors", img_size=SIZE)
    settings = arguments(epochs=30, checkpoint_steps=4, validation=0.2, ema_decay=0.9, mixup_alpha=0.3)
    loader = arguments(epochs=2, checkpoint_steps=1, image_size=48, workers=2)
    study = [*plants_study(place), "--methods", "cross_entropy,hace", "--rates", "1,8", "--seeds", "1"]
    study += ["--only", "dilution=0.5,None"]
    probe = "probe --data synthetic-features --loss cross_entropy,hace --lr 1,2,4 --epochs 40".split()
    # The sockets of Ray must have short names.
    ray, slurm = Path(tempfile.mkdtemp(prefix="hace-", dir="/tmp")), FakeSlurm(place / "slurm")

    def studied(*more: str) -> Callable[[Path], list[str]]:
        return lambda out: [*study, "--out", str(out), *more]

    def runs(out: Path) -> Any:
        return outcomes(out / "runs")

    finished = "**/[rwph][eri]*.*"  # result, run, weights, predictions, hierarchy
    return {
        "train": Workload(lambda out: ["train", *settings, "--out", str(out)], end_state, finished, small=2 << 20),
        "train, 2 loaders": Workload(
            lambda out: ["train", *loader, "--out", str(out)], end_state, finished, small=2 << 20
        ),
        "features": Workload(
            lambda out: [*COMMAND.split(), "--checkpoint", str(weights), "--out", str(out)], files_of, "*-0*.npy",
            small=12 << 10,
        ),
        "probe": Workload(lambda out: [*probe, "--out", str(out)], outcomes, finished, small=96 << 10),
        "study": Workload(studied("--workers", "2"), runs, finished, small=64 << 10),
        "study, Ray": Workload(
            studied("--executor", "ray", "--workers", "2"), runs, finished, {"TMPDIR": str(ray)}, small=64 << 10
        ),
        "study, SLURM": Workload(
            studied("--executor", "slurm", "--workers", "2", "--hours", "1"), runs, finished, slurm.environment,
            small=64 << 10,
        ),
    }  # fmt: skip


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file but locks; a folder that a killed writer left behind shows as well."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != ".lock"]
    return {path.name: path.read_bytes() if path.is_file() else b"folder" for path in paths}


class Child:
    """`hace` in a forked process, in its own session."""

    def __init__(
        self, words: list[str], environment: dict[str, str], log: Path, limit: int | None = None
    ) -> None:
        self.log, self.code = log, None
        self.pid = os.fork()
        if self.pid == 0:
            self._live(words, environment, limit)

    def _live(self, words: list[str], environment: dict[str, str], limit: int | None) -> None:
        code = 70
        try:
            os.setsid()
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.update(environment)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            code = cli.main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self) -> int:
        """Its exit code, or an error after `LIMIT` seconds."""
        end = time.monotonic() + LIMIT
        while self.poll() is None:
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
                raise TimeoutError(f"no end after {LIMIT:g} s; see {self.log}")
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    def began(self, out: Path) -> bool:
        """Wait until there is a file of its work; False if it has ended before."""
        while self.poll() is None:
            if out.is_dir() and any(path.name != ".lock" for path in out.rglob("*")):
                return True
            time.sleep(0.002)
        return False


@dataclass
class Row:
    """What came of one workload under one blow."""

    tried: int = 0
    hit: int = 0
    wrong: list[str] = field(default_factory=list)


class Torture:
    """One workload, its undisturbed result, and the blows against it.

    Args:
        name: Of the workload.
        work: The workload.
        place: A folder for everything.
        rng: Chooses moments and bytes.
    """

    def __init__(self, name: str, work: Workload, place: Path, rng: random.Random) -> None:
        self.name, self.work, self.rng = name, work, rng
        self.folder = place / name.replace(", ", "-").replace(" ", "-")
        self.folder.mkdir()
        self.log = self.folder / "log.txt"
        began = time.monotonic()
        child = self.start(self.folder / "whole")
        child.began(self.folder / "whole")
        self.seconds = -time.monotonic()
        self.finish(child)
        self.seconds += time.monotonic()  # of work, after its first file
        self.whole = work.state(self.folder / "whole")
        print(
            f"{name}: {time.monotonic() - began:.1f} s undisturbed, {self.seconds:.1f} s of work", flush=True
        )

    def start(self, out: Path, limit: int | None = None) -> Child:
        """Start the command."""
        return Child(self.work.words(out), self.work.environment, self.log, limit)

    def finish(self, child: Child) -> None:
        """Let a command end well."""
        if child.wait() != 0:
            raise RuntimeError(f"exit code {child.code}: {self.log.read_text()[-2000:]}")

    def blow(self, name: str, row: Row) -> None:
        """One blow, the same command again, and the comparison."""
        row.tried += 1
        out = self.folder / "struck"
        try:
            with self.on_disk(out) if name == "disk full" else contextlib.nullcontext():
                row.hit += {"disk full": self.fill, "corrupted file": self.corrupt}.get(
                    name, self.strike(name)
                )(out)
                self.finish(self.start(out))
                if self.work.state(out) != self.whole:
                    row.wrong.append("other bytes")
        except (RuntimeError, TimeoutError, OSError) as error:
            row.wrong.append(f"{type(error).__name__}: {error}")
        shutil.rmtree(out, ignore_errors=True)

    def strike(self, name: str) -> Callable[[Path], bool]:
        """Send a signal at a random moment of the work; a command that ends before is not hit."""
        number = SIGNALS.get(name, signal.SIGKILL)

        def send(out: Path) -> bool:
            child = self.start(out)
            if child.began(out):
                time.sleep(self.rng.uniform(0, 0.8 * self.seconds))
            if child.poll() is not None:
                return False
            (os.killpg if name == "SIGINT" else os.kill)(child.pid, number)  # Ctrl-C reaches the whole group
            code = child.wait()
            text = self.log.read_text()
            has_traceback = name != "SIGKILL" and "Traceback" in text  # of SIGKILL only orphans could tell
            if code not in (*CODES[number], 0) or has_traceback:
                raise RuntimeError(f"exit code {code} after {name}: {text[-2000:]}")
            return code != 0

        return send

    def fill(self, out: Path) -> bool:
        """Run on a disk that is too small, then make room."""
        if not out.is_mount():
            child = self.start(out, limit=self.work.small)
        else:
            child = self.start(out)
        code, text = child.wait(), self.log.read_text()
        if code not in (0, 2) or "Traceback" in text or (code == 2 and "space" not in text.lower()):
            raise RuntimeError(f"exit code {code} on a full disk: {text[-2000:]}")
        if out.is_mount():
            subprocess.run(["mount", "-o", "remount,size=256m", str(out)], check=True)
        return code != 0

    @contextlib.contextmanager
    def on_disk(self, out: Path) -> Iterator[None]:
        """A small tmpfs at a folder; without the right to mount one, an ordinary folder."""
        out.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={self.work.small}", "hace-torture", str(out)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        try:
            yield
        finally:
            if mounted:
                subprocess.run(["umount", "-l", str(out)], check=True)

    def corrupt(self, out: Path) -> bool:
        """Damage one file of a finished result."""
        shutil.copytree(self.folder / "whole", out)
        path = self.rng.choice([p for p in sorted(out.glob(self.work.precious)) if p.is_file()])
        content = bytearray(path.read_bytes())
        kind = self.rng.choice(["flip", "cut", "missing"])
        if kind == "missing":
            path.unlink()
        elif kind == "cut":
            path.write_bytes(content[: self.rng.randrange(len(content))])
        else:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
            path.write_bytes(content)
        return True


def torture(kills: int, only: list[str], seed: int) -> int:
    """Strike every workload in turn until there were enough kills; the exit code."""
    rng = random.Random(seed)
    place = Path(tempfile.mkdtemp(prefix="hace-torture-"))
    rows: dict[tuple[str, str], Row] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that mounts and folders go away
    try:
        victims = [Torture(name, work, place, rng) for name, work in workloads(place).items() if name in only]
        plan = [(victim, blow) for blow in BLOWS for victim in victims]
        killed = 0
        for turn in range(10 * kills):
            for victim, blow in plan:
                if turn and (killed >= kills or blow not in SIGNALS):
                    continue
                row = rows.setdefault((victim.name, blow), Row())
                before = row.hit
                victim.blow(blow, row)
                killed += blow in SIGNALS and row.hit > before
                print(
                    f"{victim.name}, {blow}: {row.hit} of {row.tried} hit, {len(row.wrong)} wrong", flush=True
                )
            if killed >= kills:
                break
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return report(rows)


def report(rows: dict[tuple[str, str], Row]) -> int:
    """Print the table and what went wrong."""
    print(f"\n{'workload':<18} {'blow':<15} {'tried':>5} {'hit':>5}  result")
    for (name, blow), row in rows.items():
        verdict = "identical" if not row.wrong else f"{len(row.wrong)} WRONG"
        print(f"{name:<18} {blow:<15} {row.tried:>5} {row.hit:>5}  {verdict}")
    killed = sum(row.hit for (_, blow), row in rows.items() if blow in SIGNALS)
    print(f"{killed} kills, {sum(len(row.wrong) for row in rows.values())} wrong")
    for (name, blow), row in rows.items():
        for text in row.wrong:
            print(f"\n{name}, {blow}: {text}")
    return int(any(row.wrong for row in rows.values()))


def main() -> int:
    """The command line."""
    names = ["train", "train, 2 loaders", "features", "probe", "study", "study, Ray", "study, SLURM"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="signals that must hit (default: 100)")
    parser.add_argument(
        "--only", default=";".join(names), help=f"workloads, by semicolons: {'; '.join(names)}"
    )
    parser.add_argument("--seed", type=int, default=0, help="of moments and bytes")
    options = parser.parse_args()
    chosen = [name.strip() for name in options.only.split(";")]
    if not set(chosen) <= set(names):
        parser.error(f"--only must list workloads, by semicolons: {'; '.join(names)}. Got {options.only!r}.")
    if options.kills < 1:
        parser.error(f"--kills must be at least 1. Got {options.kills}.")
    # Loaded once, here: children start at once.
    import hace.lab.serve.predictor
    import hace.lab.study.scheduler
    import hace.lab.train.train  # noqa: F401

    return torture(options.kills, chosen, options.seed)


if __name__ == "__main__":
    raise SystemExit(main())
