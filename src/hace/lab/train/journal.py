"""What a training writes while it runs: log, checkpoints, TensorBoard. Only the first process writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hace.errors import ConfigError
from hace.lab.runs.run import TENSORBOARD, DataPrint
from hace.lab.runs.stopping import WORDS, DivergedError
from hace.lab.runs.train_config import TrainConfig
from hace.lab.runs.writer import RunWriter
from hace.lab.train.state import Checkpoints, Position, State

Say = Callable[[str], None]
Report = Callable[[Mapping[str, Any]], None]


class Journal:
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
        self.checkpoints = Checkpoints(folder, config.identity(data.fingerprint), data.hierarchy)
        self._report = report
        self._board: Any = None
        self._saved, self._saved_step = time.monotonic(), 0

    def tidy(self) -> None:
        """Remove the checkpoints of a finished run that was killed before it could; say that a diverged one is over."""
        if self.writer is None or self.writer.run.result is None:
            return
        if self.writer.run.status == "finished":
            self.checkpoints.clear()
            return
        where = self.writer.run.result["diverged"]
        self.say(
            f"The run in {self.writer.folder} has diverged, at step {where['step']} (epoch {where['epoch']}, rate "
            f"{where['lr']:g}): nothing is left to do. For another lr or clip_norm, give a new folder."
        )

    def newest(self, resume: bool) -> bytes:
        """The checkpoint to resume from, if there is one."""
        if self.writer is None:
            return b""
        if not resume:
            self.checkpoints.clear()
        path, content = self.checkpoints.newest(self.say)
        if path is not None:
            self.say(f"Going on from {path}.")
        return content

    def rewrite(self, log: list[Mapping[str, Any]], epoch: int) -> None:
        """The log as the checkpoint has it: later lines will come again."""
        if self.writer is None:
            return
        self.writer.write_log(log)
        if self.config.tensorboard:
            self._board = _summary_writer(self.writer.folder / TENSORBOARD, epoch)

    def entry(self, entry: Mapping[str, Any]) -> None:
        """A line of the log."""
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

    def due(self, position: Position) -> bool:
        """Whether it is time for a checkpoint."""
        steps = self.config.checkpoint_steps
        return time.monotonic() - self._saved >= self.config.checkpoint_seconds or (
            steps is not None and position.step - self._saved_step >= steps
        )

    def save(self, state: State) -> None:
        """Write a checkpoint, unless weights are not finite: the last one is always good."""
        self._saved, self._saved_step = time.monotonic(), state.position.step
        if self.writer is not None and state.finite():
            self.checkpoints.save(state)

    def stopped(self, position: Position, heard: int) -> str:
        """The message for a training that a signal stopped."""
        last = next(iter(self.checkpoints.all()), None)
        return (
            f"Stopped by {WORDS.get(heard, 'a signal to another process')} after step {position.step}, in epoch "
            f"{min(position.epoch + 1, self.config.epochs)} of {self.config.epochs}. The same command resumes from {last}."
        )

    def finish(
        self, result: Mapping[str, Any], weights: Mapping[str, Tensor], predictions: Mapping[str, np.ndarray]
    ) -> None:
        """Write the result, with weights and predictions if they are kept, and remove the checkpoints."""
        if self.writer is None:
            return
        self._close()
        keep = self.config.keep
        self.writer.finish(result, weights if keep else None, predictions if keep else None)
        self.checkpoints.clear()

    def diverged(self, error: DivergedError, result: Mapping[str, Any]) -> None:
        """Write the result of a diverged run, and say where the last good weights are."""
        if self.writer is None:
            return
        self._close()
        self.writer.finish(result)
        last = next(iter(self.checkpoints.all()), None)
        good = f"The last good checkpoint is {last}." if last else "There was no checkpoint yet."
        self.say(f"{error} The run is marked as diverged. {good} Try a smaller lr, or clip_norm=1.")

    def _close(self) -> None:
        if self._board is not None:
            self._board.close()


def _summary_writer(folder: Path, epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "tensorboard=true needs the package tensorboard: pip install 'hace[train]'."
        ) from None
    return SummaryWriter(str(folder), purge_step=epoch + 1)
