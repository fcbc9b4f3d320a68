"""What a training writes while it runs: the log, checkpoints, TensorBoard, the result. Only the first process writes.

The last two checkpoints are kept, each whole and verified by the hash in its name.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hace.errors import ConfigError, FormatError
from hace.files.weights import read_torch
from hace.files.writing import own_folder, write_whole
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.process import WORDS, DivergedError
from hace.lab.runs.result import Outcome, diverged_result
from hace.lab.runs.run import CHECKPOINTS, TENSORBOARD, DataPrint, RunWriter
from hace.lab.train.loop import Training

KEPT = 2  # checkpoints
HASH_DIGITS = 16
_FORMAT = 2

Say = Callable[[str], None]
Report = Callable[[Mapping[str, Any]], None]


class RunLog:
    """The run directory during a training.

    Args:
        config: The configuration.
        folder: The run directory.
        data: What the run sees.
        writer: The run, open for writing; None in all processes but the first.
        say: Called with messages for the user.
        report: Called with every line of the log.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        data: DataPrint,
        writer: RunWriter | None,
        say: Say,
        report: Report | None,
    ) -> None:
        self.config, self.writer, self.say = config, writer, say
        self._folder = folder / CHECKPOINTS
        self._about = {
            "format": _FORMAT,
            "run": config.identity(data.fingerprint),
            "hierarchy": data.hierarchy,
        }
        self._report = report
        self._board: Any = None
        self._saved, self._saved_step = time.monotonic(), 0

    def tidy(self) -> None:
        """Remove the checkpoints of a finished run that was killed before it could; say that a diverged one is over."""
        if self.writer is None or self.writer.run.result is None:
            return
        if self.writer.run.status == "finished":
            self.clear()
            return
        where = self.writer.run.result["diverged"]
        self.say(
            f"The run in {self.writer.folder} has diverged, at step {where['step']} (epoch {where['epoch']}, rate "
            f"{where['lr']:g}): nothing is left to do. For another lr or clip_norm, give a new folder."
        )

    def begin(self, training: Training) -> None:
        """Write the log as the checkpoint has it: later lines will come again."""
        if self.writer is None:
            return
        self.writer.write_log(training.log)
        if self.config.tensorboard:
            self._board = _summary_writer(self.writer.folder / TENSORBOARD, training.epoch)

    def entry(self, entry: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        if self.writer is None:
            return
        self.writer.log([entry])
        if self._board is not None:
            for name, value in {**entry, **entry["time"]}.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, entry["epoch"])
            self._board.flush()
        if self._report is not None:
            self._report(entry)

    def due(self, step: int) -> bool:
        """Whether it is time for a checkpoint."""
        steps = self.config.checkpoint_steps
        return time.monotonic() - self._saved >= self.config.checkpoint_seconds or (
            steps is not None and step - self._saved_step >= steps
        )

    def save(self, training: Training) -> None:
        """Write a checkpoint and remove the oldest, unless weights are not finite: the last one is always good."""
        self._saved, self._saved_step = time.monotonic(), training.step
        if self.writer is None or not training.finite():
            return
        buffer = io.BytesIO()
        torch.save({**self._about, **training.state()}, buffer)
        content = buffer.getvalue()
        own_folder(self._folder)
        digits = hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
        name = f"step-{training.step:09d}"
        path = self._folder / f"{name}-{digits}.pt"
        write_whole(path, content)
        others = [p for p in checkpoints(self._folder.parent) if p != path]
        # After a damaged checkpoint, the run passes its step again: it must not replace a good one.
        earlier = [p for p in others if p.name < name]
        for old in set(others) - set(earlier[: KEPT - 1]):
            old.unlink()

    def newest(self, resume: bool) -> bytes:
        """The newest checkpoint that is whole, to resume from; damaged ones are passed over."""
        if self.writer is None:
            return b""
        if not resume:
            self.clear()
        found = checkpoints(self._folder.parent)
        for i, path in enumerate(found):
            content = path.read_bytes()
            if path.stem.split("-")[-1] == hashlib.sha256(content).hexdigest()[:HASH_DIGITS]:
                self.say(f"Going on from {path}.")
                return content
            last = i == len(found) - 1
            remedy = (
                "there is none before it, so the run starts again"
                if last
                else "going back to the one before it"
            )
            self.say(f"The checkpoint {path} is damaged; {remedy}.")
        return b""

    def read(self, content: bytes) -> dict[str, Any]:
        """What a checkpoint holds: tensors and plain values, nothing that could run."""
        try:
            document = read_torch(io.BytesIO(content))
        except FormatError as error:
            raise FormatError(
                f"A checkpoint in {self._folder} holds more than tensors and numbers, and is not loaded. "
                "Delete it, or the folder, and run the same command again."
            ) from error
        for key, value in self._about.items():
            found = document.get(key) if isinstance(document, dict) else None
            if found != value:
                raise FormatError(
                    f"A checkpoint in {self._folder} does not belong to this run: its {key} is {found!r}, the run's "
                    f"{value!r}. Delete the folder to start again."
                )
        return document

    def clear(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def stopped(self, training: Training, signal: int) -> str:
        """The message for a training that a signal stopped."""
        last = next(iter(checkpoints(self._folder.parent)), None)
        return (
            f"Stopped by {WORDS.get(signal, 'a signal to another process')} after step {training.step}, in epoch "
            f"{min(training.epoch + 1, self.config.epochs)} of {self.config.epochs}. The same command resumes from {last}."
        )

    def finish(self, training: Training, outcome: Outcome) -> None:
        """Write the result, with weights and predictions if they are kept, and remove the checkpoints."""
        assert self.writer is not None  # the first process evaluates
        self._close()
        result = outcome.result(self.config.evaluate, training.about(), training.seconds)
        weights = {name: value.detach().cpu() for name, value in training.result.state_dict().items()}
        kept = {"weights": weights, "predictions": outcome.predictions()} if self.config.keep else {}
        self.writer.finish(result, **kept)
        self.clear()

    def diverged(self, training: Training, error: DivergedError) -> None:
        """Write how far a diverged run came, and say where the last good weights are."""
        if self.writer is None:
            return
        self._close()
        about = training.about()
        self.writer.finish(diverged_result(self.config.evaluate, error.where, about, training.seconds))
        last = next(iter(checkpoints(self._folder.parent)), None)
        good = f"The last good checkpoint is {last}." if last else "There was no checkpoint yet."
        self.say(f"{error} The run is marked as diverged. {good} Try a smaller lr, or clip_norm=1.")

    def _close(self) -> None:
        if self._board is not None:
            self._board.close()


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((run / CHECKPOINTS).glob("step-*.pt"), reverse=True)


def saved_step(run: Path) -> int:
    """The step of a run's newest checkpoint; 0 without one."""
    return max((int(path.name.split("-")[1]) for path in checkpoints(run)), default=0)


def _summary_writer(folder: Path, epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "tensorboard=true needs the package tensorboard: pip install 'hace[train]'."
        ) from None
    return SummaryWriter(str(folder), purge_step=epoch + 1)
