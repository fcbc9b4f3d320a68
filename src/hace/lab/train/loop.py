"""A training in memory: one step, its statistics, and the model's outputs on other samples.

Nothing here reads or writes a file; :mod:`hace.lab.train.train` does the epochs and keeps the run directory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hace.data import Samples
from hace.errors import ConfigError
from hace.lab.models import build_model, zero_head
from hace.lab.runs.samples import Task
from hace.lab.runs.stopping import DivergedError
from hace.lab.runs.train_config import TrainConfig
from hace.lab.train.batches import (
    Batches,
    Preprocessing,
    batch_sizes,
    ordered_batches,
    training_batches,
)
from hace.lab.train.distributed import Team, counted
from hace.lab.train.mixing import Mixing, mix
from hace.lab.train.optimizers import build_optimizer, schedule_factor
from hace.lab.train.state import State, start_average, update_average
from hace.losses.base import HierarchicalLoss

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
UNSETTLED = {
    "cpu": 1
}  # steps before the loss is looked at; on a GPU a look waits for it, so every few steps will do
UNSETTLED_ELSEWHERE = 16
STEP = 0x57E9  # separates the seeds of steps from others


@dataclass
class Training:
    """All parts of a training, put together by :func:`set_up`.

    Attributes:
        config: The configuration.
        task: The samples.
        view: How images become inputs.
        team: The processes that take part.
        loss: The loss, which defines the outputs.
        state: All that changes.
        model: The model as it is trained: the state's, or around it what averages gradients between processes.
        batches: The training batches.
        sizes: Images of each batch of an epoch, over all processes.
    """

    config: TrainConfig
    task: Task[Samples]
    view: Preprocessing
    team: Team
    loss: HierarchicalLoss
    state: State
    model: nn.Module
    batches: Batches
    sizes: list[int]
    _unsettled: list[Tensor] = field(default_factory=list)  # (3,) for each step: loss, correct, counted
    _clock: float = field(default_factory=time.monotonic)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        c, epoch = self.config, len(self.sizes)
        return c.lr * schedule_factor(c.schedule, step, c.epochs * epoch, c.warmup_epochs * epoch)

    def step(self, x: Tensor, y: Tensor) -> bool:
        """One step of the optimiser on this process's share of a batch.

        Returns:
            Whether it is time to :meth:`settle`.
        """
        config, team, state, position = self.config, self.team, self.state, self.state.position
        size = self.sizes[position.batch]
        counts = counted(size, team.rank, team.world) > 0
        torch.manual_seed(step_seed(config.seed, position.step, team.rank))  # of mixing, dropout, depth
        x, y = self._mixed(x, y)
        for group in state.optimizer.param_groups:
            group["lr"] = self.rate(position.step)
        state.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(3, device=team.device)
        parts = list(zip(x.chunk(config.accumulate), y.chunk(config.accumulate), strict=True))
        for i, (images, targets) in enumerate(parts):
            with team.unsynced(self.model, last=i == len(parts) - 1):
                with self._autocast():
                    z = self.model(images)
                    value = self.loss(z, targets) * (len(images) * counts)
                # The processes' gradients are averaged: the sum over all samples, divided by their number.
                state.scaler.scale(value * (team.world / size)).backward()
            with torch.no_grad():
                sums += torch.stack([value.detach(), *(c * counts for c in self._correct(z, targets))])
        if config.clip_norm is not None:
            state.scaler.unscale_(state.optimizer)
            nn.utils.clip_grad_norm_(state.model.parameters(), config.clip_norm)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.average is not None:
            update_average(state.average, state.model, config.ema_decay, position.step)
        position.step, position.batch = position.step + 1, position.batch + 1
        self._unsettled.append(sums)
        enough = UNSETTLED.get(team.device.type, UNSETTLED_ELSEWHERE)
        return len(self._unsettled) >= enough or position.batch == len(self.sizes)

    def settle(self, heard: bool) -> bool:
        """Look at the losses of the last steps and add them to the epoch's.

        Args:
            heard: Whether this process was asked to stop.

        Returns:
            Whether any process was.

        Raises:
            DivergedError: A loss is not finite.
        """
        position = self.state.position
        flag = torch.full((1, 3), float(heard), device=self.team.device)
        *rows, asked = self.team.add_up(torch.cat([torch.stack(self._unsettled), flag])).cpu().tolist()
        first = position.step - len(rows)
        for i, (loss, correct, count) in enumerate(rows):
            if not np.isfinite(loss):
                raise DivergedError(position.epoch + 1, first + i + 1, self.rate(first + i))
            position.loss, position.correct = position.loss + loss, position.correct + correct
            position.counted += count
            position.samples += self.sizes[position.batch - len(rows) + i]
        self._unsettled.clear()
        position.epoch_seconds += self.tick()
        return asked[0] > 0

    def tick(self) -> float:
        """Seconds since the last tick, which are added to the run's."""
        before, self._clock = self._clock, time.monotonic()
        self.state.position.seconds += self._clock - before
        return self._clock - before

    def epoch_entry(self) -> dict[str, Any]:
        """The line of the log for the epoch that is complete; all that depends on the clock is under "time"."""
        p = self.state.position
        entry = {
            "epoch": p.epoch + 1,
            "step": p.step,
            "lr": self.rate(p.step - 1),
            "loss": p.loss / p.samples,
            "accuracy": p.correct / p.counted if p.counted else None,
        }
        speed = {
            "seconds": round(p.epoch_seconds, 3),
            "images_per_second": round(p.samples / max(p.epoch_seconds, 1e-9), 1),
        }
        if self.task.val is not None:
            entry |= self.validate(self.task.val)
        return {**entry, "time": speed}

    def validate(self, samples: Samples) -> dict[str, float | None]:
        """Loss and accuracy on held-out samples."""
        self.team.same_buffers(self.state.result)
        sums = torch.zeros(3, device=self.team.device)
        for size, z, y in self._forward(samples):
            counts = counted(size, self.team.rank, self.team.world) > 0
            terms = [self.loss(z, y) * len(y), *self._correct(z, y)]
            sums += torch.stack([term * counts for term in terms])
        loss, correct, count = self.team.add_up(sums).tolist()
        self._check_finite(np.isfinite(loss), self.state.position.epoch + 1)
        return {"val_loss": loss / len(samples), "val_accuracy": correct / count if count else None}

    def outputs(self, samples: Samples) -> Iterator[Tensor]:
        """The outputs on all samples, each once and in order, in every process.

        Raises:
            DivergedError: They are not finite: the last steps have lost the weights.
        """
        self.team.same_buffers(self.state.result)
        for size, z, _ in self._forward(samples):
            rows = self.team.rows(z, size).cpu()
            self._check_finite(bool(rows.isfinite().all()), self.config.epochs)
            yield rows

    def _check_finite(self, holds: bool, epoch: int) -> None:
        step = self.state.position.step
        if not holds:
            raise DivergedError(epoch, step, self.rate(step - 1))

    @torch.no_grad()
    def _forward(self, samples: Samples) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Batch by batch its size over all processes, and of this process's share the outputs and targets."""
        model = self.state.result.eval()
        batches = ordered_batches(self.config, samples, self.view, self.task.labels, self.team)
        sizes = batch_sizes(len(samples), self.config.batch_size)
        for size, (x, y) in zip(sizes, batches.epoch(0), strict=True):
            with self._autocast():
                z = model(self._laid_out(x))
            yield size, z.float(), y
        self.state.model.train()

    def _mixed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mixing = Mixing(self.config.mixup_alpha, self.config.cutmix_alpha)
        if mixing.active:
            x, y = mix(x, y, self.loss.num_labels, mixing, torch.default_generator)
        return self._laid_out(x), y

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self.config.channels_last else x

    def _autocast(self) -> torch.autocast:
        dtype = DTYPES[self.config.precision]
        return torch.autocast(self.team.device.type, dtype, enabled=dtype != torch.float32)

    def _correct(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """How many samples have their label as the most probable leaf, and how many are labelled with a leaf."""
        answers = self.loss.leaf_logits(z.detach()).argmax(1)
        labels = y.argmax(1) if y.is_floating_point() else y
        if self.task.labels == "leaves":
            return (answers == labels).sum(), torch.tensor(len(y), device=z.device)
        leaf_of = torch.tensor(self.task.tree.labels, device=z.device)[labels]
        return (answers == leaf_of).sum(), (leaf_of >= 0).sum()


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of all that is random within a step."""
    return int(np.random.SeedSequence([seed, STEP, step, rank]).generate_state(1, np.uint64)[0])


def initial_model(config: TrainConfig, loss: HierarchicalLoss, view: Preprocessing, seed: int) -> nn.Module:
    """The model of a configuration, with random weights."""
    return build_model(
        config.model,
        loss.num_outputs,
        image_size=view.size,
        dropout=config.dropout,
        drop_path=config.drop_path,
        ball=config.head.ball,
        seed=seed,
    )


def placed(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    """The model on a device, in the memory format of its configuration."""
    return model.to(device, memory_format=torch.channels_last if config.channels_last else None)  # pyright: ignore[reportCallIssue, reportArgumentType]


def new_state(
    config: TrainConfig, loss: HierarchicalLoss, view: Preprocessing, device: torch.device
) -> State:
    """A model with its initial weights, its optimiser, and nothing done."""
    model = initial_model(config, loss, view, config.seed)
    zeros = config.start == "zeros" or (config.start == "auto" and loss.labels == "nodes")
    if zeros and not zero_head(model) and config.start == "zeros":
        raise ConfigError(
            f"start must be random or auto with {config.model}, which does not end in one linear layer. Got zeros."
        )
    model = placed(model, config, device)
    optimizer = build_optimizer(
        model,
        config.optimizer,
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
    )
    scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
    return State(model, optimizer, scaler, start_average(model) if config.ema_decay else None)


def set_up(
    config: TrainConfig,
    task: Task[Samples],
    view: Preprocessing,
    team: Team,
    loss: HierarchicalLoss,
    state: State,
) -> Training:
    """Put the parts together; the state is complete by now, loaded or new."""
    batches = training_batches(config, task.train, view, task.labels, team)
    sizes = batch_sizes(len(task.train), config.batch_size)
    return Training(config, task, view, team, loss, state, team.wrapped(state.model), batches, sizes)
