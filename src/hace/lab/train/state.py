"""The state of a training between two steps, and the checkpoints that hold it.

A checkpoint has weights, optimiser, average, scaler, the position in the epoch with its sums, and the log. It needs no state of
random generators: order, crops, mixing and dropout of a step follow from seed, epoch and step, the learning rate from the step.
"""

from __future__ import annotations

import copy
import hashlib
import io
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hace.errors import FormatError
from hace.files.weights import read_torch
from hace.files.writing import write_whole, writing
from hace.lab.runs.run import CHECKPOINTS

_FORMAT = 1
KEPT = 2
HASH_DIGITS = 16


@dataclass
class Position:
    """How far a training is, and the sums of its epoch.

    Attributes:
        epoch: The epoch that is going on, from 0.
        batch: Its next batch, from 0.
        step: Steps of the optimiser so far.
        loss: The sum of the losses of the epoch's samples.
        correct: Of those that count, the samples whose most probable leaf was their label.
        counted: Samples that the accuracy counts: those labelled with a leaf.
        samples: Samples of the epoch so far.
        seconds: Of the whole run, over all its starts.
        epoch_seconds: Of this epoch.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss: float = 0.0
    correct: float = 0.0
    counted: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0

    def next_epoch(self) -> None:
        """Begin the next one."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss = self.correct = self.counted = self.epoch_seconds = 0.0
        self.samples = 0


@dataclass
class State:
    """All that changes during a training.

    Attributes:
        model: The bare model.
        optimizer: Its optimiser.
        scaler: Scales the loss for fp16; does nothing otherwise.
        average: The average of the weights, if there is one.
        position: How far the training is.
        log: The lines of the log.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: nn.Module | None
    position: Position = field(default_factory=Position)
    log: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def result(self) -> nn.Module:
        """The model that is evaluated and kept."""
        return self.model if self.average is None else self.average

    def to_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "position": asdict(self.position),
            "log": self.log,
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` gave."""
        self.model.load_state_dict(document["model"])
        self.optimizer.load_state_dict(document["optimizer"])
        self.scaler.load_state_dict(document["scaler"])
        if self.average is not None:
            self.average.load_state_dict(document["average"])
        self.position = Position(**document["position"])
        self.log = list(document["log"])

    def finite(self) -> bool:
        """Whether all weights are numbers."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())


def start_average(model: nn.Module) -> nn.Module:
    """A copy of a model, to average its weights in."""
    return copy.deepcopy(model).requires_grad_(False).eval()


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """average = decay average + (1 - decay) model; in the first steps with less decay. Buffers are copied."""
    decay = min(decay, (1 + step) / (10 + step))
    get_ema_multi_avg_fn(decay)(list(average.parameters()), list(model.parameters()), step)
    for mine, its in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(its)


class Checkpoints:
    """The last two checkpoints of a run, each whole and verified by the hash in its name.

    Args:
        run: The run directory.
        run_id: The run's id.
        hierarchy: The fingerprint of the hierarchy.
    """

    def __init__(self, run: Path, run_id: str, hierarchy: str) -> None:
        self.folder = run / CHECKPOINTS
        self._about = {"format": _FORMAT, "run": run_id, "hierarchy": hierarchy}

    def all(self) -> list[Path]:
        """The files, the newest first."""
        return sorted(self.folder.glob("step-*.pt"), reverse=True)

    def save(self, state: State) -> Path:
        """Write a checkpoint, and remove the oldest."""
        buffer = io.BytesIO()
        torch.save({**self._about, **state.to_dict()}, buffer)
        content = buffer.getvalue()
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        digits = hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
        path = self.folder / f"step-{state.position.step:09d}-{digits}.pt"
        write_whole(path, content)
        others = [p for p in self.all() if p != path]
        # After a damaged checkpoint, the run passes its step again: it must not replace a good one.
        earlier = [p for p in others if p.name < f"step-{state.position.step:09d}"]
        for old in set(others) - set(earlier[: KEPT - 1]):
            old.unlink()
        return path

    def newest(self, warn: Callable[[str], None]) -> tuple[Path | None, bytes]:
        """The newest checkpoint that is whole, and its content; nothing if there is none.

        Args:
            warn: Told of damaged ones, which are passed over.
        """
        found = self.all()
        for i, path in enumerate(found):
            content = path.read_bytes()
            if path.stem.split("-")[-1] == hashlib.sha256(content).hexdigest()[:HASH_DIGITS]:
                return path, content
            last = i == len(found) - 1
            remedy = (
                "there is none before it, so the run starts again"
                if last
                else "going back to the one before it"
            )
            warn(f"The checkpoint {path} is damaged; {remedy}.")
        return None, b""

    def read(self, content: bytes) -> dict[str, Any]:
        """What a checkpoint holds: tensors and plain values, nothing that could run.

        Raises:
            FormatError: It is of another version, another run or another hierarchy.
        """
        try:
            document = read_torch(io.BytesIO(content))
        except FormatError as error:
            raise FormatError(
                f"A checkpoint in {self.folder} holds more than tensors and numbers, and is not loaded. "
                "Delete it, or the folder, and run the same command again."
            ) from error
        for key, value in self._about.items():
            found = document.get(key) if isinstance(document, dict) else None
            if found != value:
                raise FormatError(
                    f"A checkpoint in {self.folder} does not belong to this run: its {key} is {found!r}, the run's "
                    f"{value!r}. Delete the folder to start again."
                )
        return document

    def clear(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """The weights to keep, on the CPU."""
    return {name: value.detach().cpu() for name, value in module.state_dict().items()}


def saved_step(run: Path) -> int:
    """The step of a run's newest checkpoint; 0 without one."""
    return max((int(path.name.split("-")[1]) for path in (run / CHECKPOINTS).glob("step-*.pt")), default=0)
