"""A training in memory: one step, its statistics, and the model's outputs on other samples.

Nothing here reads or writes a file; :mod:`hace.lab.train.train` does the epochs and the run directory.
"""

from __future__ import annotations

import copy
import gc
import math
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hace.data import Samples
from hace.data.batches import LoaderBatches, MemoryBatches, Preprocessing, make_batches, share_of
from hace.errors import ConfigError, HaceError
from hace.files.reading import optional
from hace.lab.models import build_model, zero_head
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.process import DivergedError, choose_device, choose_workers, processes
from hace.lab.runs.samples import Task
from hace.losses.base import HierarchicalLoss

LOST = (
    "A process of this job was lost, or did not answer in time ({reason}). The job ends here; the same command resumes from "
    "the last checkpoint."
)


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a job."""

    rank: int  # of this one; 0 alone writes
    world: int  # how many there are
    device: torch.device  # where this one computes

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model to train: with one process itself, with several one that averages their gradients."""
        if self.world == 1:
            return model
        ids = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)

    def unsynced(self, model: nn.Module, last: bool) -> Any:
        """A context for one part of a batch: gradients go around with the last one only."""
        if isinstance(model, nn.parallel.DistributedDataParallel) and not last:
            return model.no_sync()
        return nullcontext()

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def share(self, content: bytes | None) -> bytes:
        """What the main process gives, in every process."""
        if self.world == 1:
            return content or b""
        length = torch.tensor([len(content or b"")], device=self.device)
        dist.broadcast(length, 0)
        buffer = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        if self.main and content:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        if len(buffer):
            dist.broadcast(buffer, 0)
        return content or b"" if self.main else buffer.cpu().numpy().tobytes()

    def same_buffers(self, model: nn.Module) -> None:
        """Give all processes the main one's statistics of batch norms, which each computes on its own share."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def rows(self, mine: Tensor, size: int) -> Tensor:
        """All rows of a batch, each once and in order, from the rows that each process has of it."""
        if self.world == 1:
            return mine
        padded = mine.new_zeros(share_of(size, 0, self.world).stop, *mine.shape[1:])  # the first has most
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded)
        return torch.cat([part[: counted(size, r, self.world)] for r, part in enumerate(parts)])


def counted(size: int, rank: int, world: int) -> int:
    """How many samples of a batch count for one process: as many as its share has, or 0 where that is a stand-in."""
    share = share_of(size, rank, world)
    return share.stop - share.start if rank < size else 0


@contextmanager
def join_processes(device: str = "auto", timeout: float = 600.0) -> Iterator[ProcessGroup]:
    """Join the other processes of a job that torchrun has started; alone without it."""
    rank, world, local_rank = processes()
    chosen = choose_device(device, local_rank)
    joined = world > 1 and not dist.is_initialized()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    try:
        if joined:
            backend = "nccl" if chosen.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        yield ProcessGroup(rank, world, chosen)
    except (dist.DistError, RuntimeError) as error:
        if world == 1 or isinstance(error, HaceError) or not _lost(error):
            raise
        raise HaceError(LOST.format(reason=str(error).strip().splitlines()[0].split(". ")[0])) from error
    finally:
        if joined and dist.is_initialized():
            # The model goes first: then destroying the group waits for its threads with the interpreter's lock released. A
            # thread that has yet to let go of a tensor would deadlock a model that waits for it, and abort an interpreter
            # that ends without waiting.
            error = sys.exc_info()[1]
            while error is not None:  # its frames hold the model
                traceback.clear_frames(error.__traceback__)
                error = error.__context__
            gc.collect()
            dist.destroy_process_group()


def _lost(error: Exception) -> bool:
    words = ("connection", "gloo", "timed out", "socket")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Steps between looks at the loss. A look waits for a GPU, so there every few steps will do.
STEPS_PER_LOOK = {"cpu": 1}
STEPS_PER_LOOK_ELSEWHERE = 16
STEP = 0x57E9  # separates the seeds of steps from others
OF_THE_EPOCH = ("batch", "loss_sum", "correct", "counted", "samples", "epoch_seconds")
COUNTERS = ("epoch", "step", "seconds", *OF_THE_EPOCH)


class Training:
    """A training: all its parts, how far it is, and its steps.

    Order, crops, mixing and dropout of a step follow from seed, epoch and step, and the rate from the step: a checkpoint needs
    no state of random generators.
    """

    # How far it is, and the sums of its epoch; a checkpoint has them.
    epoch: int = 0  # that is going on
    batch: int = 0  # the next one of the epoch
    step: int = 0  # of the optimiser, so far
    loss_sum: float = 0.0  # over the samples of the epoch
    correct: float = 0.0  # samples whose most probable leaf is their label,
    counted: float = 0.0  # of those labelled with a leaf
    samples: int = 0
    seconds: float = 0.0  # of the whole run, over all its starts
    epoch_seconds: float = 0.0

    def __init__(
        self,
        config: TrainConfig,
        task: Task[Samples],
        view: Preprocessing,
        group: ProcessGroup,
        loss: HierarchicalLoss,
    ) -> None:
        self.config = config
        self.task = task
        self.view = view
        self.group = group
        self.loss = loss
        self.model = initial_model(config, loss, view, group.device, config.seed)
        zeros = config.start == "zeros" or (config.start == "auto" and loss.labels == "nodes")
        if zeros and not zero_head(self.model) and config.start == "zeros":
            raise ConfigError(
                f"start must be random or auto with {config.model}, which does not end in one linear layer. Got zeros."
            )
        self.optimizer = build_optimizer(self.model, config)
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=config.precision == "fp16")
        self.average = self._copied() if config.ema_decay else None
        self.sizes = batch_sizes(len(task.train), config.batch_size)  # over all processes
        augment = config.augment == "standard"
        self.batches = self._batches(task.train, shuffle=True, augment=augment, seed=config.seed)
        self.parallel = group.wrapped(self.model)
        self.log: list[Mapping[str, Any]] = []
        self._pending: list[Tensor] = []  # (3,) for each step that was not looked at: loss, correct, counted
        self._clock = time.monotonic()
        self._mix = batch_mixer(config, loss.num_labels)

    @property
    def result(self) -> nn.Module:
        """The model that is evaluated and written."""
        return self.model if self.average is None else self.average

    def state(self) -> dict[str, Any]:
        """All that changes between steps, as tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "log": self.log,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        vars(self).update(state["counters"])
        self.log = list(state["log"])

    def reset_average(self) -> None:
        """Start the average from the model's weights, as they are now."""
        if self.average is not None:
            self.average = self._copied()

    def finite(self) -> bool:
        """Whether all weights are numbers."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        c = self.config
        epoch = len(self.sizes)
        return c.lr * schedule_factor(c.schedule, step, c.epochs * epoch, c.warmup_epochs * epoch)

    def advance(self, x: Tensor, y: Tensor) -> bool:
        """One step of the optimiser on this process's share of a batch; whether it is time to :meth:`flush_metrics`."""
        config = self.config
        group = self.group
        size = self.sizes[self.batch]
        is_real = counted(size, group.rank, group.world) > 0  # else a sample stands in for an empty share
        torch.manual_seed(step_seed(config.seed, self.step, group.rank))  # of mixing, dropout, depth
        x, y = self._mix(x, y)
        x = self._laid_out(x)
        for part in self.optimizer.param_groups:
            part["lr"] = self.rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(3, device=group.device)  # loss, right answers, labels that are classes
        parts = list(zip(x.chunk(config.accumulate), y.chunk(config.accumulate), strict=True))
        for i, (images, targets) in enumerate(parts):
            with group.unsynced(self.parallel, last=i == len(parts) - 1):
                with self._autocast():
                    z = self._outputs(images)
                    value = self.loss(z, targets) * (len(images) * is_real)
                # The processes' gradients are averaged: the sum over all samples, divided by their number.
                self.scaler.scale(value * (group.world / size)).backward()
            with torch.no_grad():
                sums += torch.stack(
                    [value.detach(), *(count * is_real for count in self._correct(z, targets))]
                )
        if config.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            update_average(self.average, self.model, config.ema_decay, self.step)
        self.step = self.step + 1
        self.batch = self.batch + 1
        self._pending.append(sums)
        enough = STEPS_PER_LOOK.get(group.device.type, STEPS_PER_LOOK_ELSEWHERE)
        return len(self._pending) >= enough or self.batch == len(self.sizes)

    def flush_metrics(self, stop: bool) -> bool:
        """Add the losses of the last steps to the epoch's."""
        flag = torch.full((1, 3), float(stop), device=self.group.device)
        *rows, asked = self.group.add_up(torch.cat([torch.stack(self._pending), flag])).cpu().tolist()
        first = self.step - len(rows)
        for i, (loss, correct, count) in enumerate(rows):
            if not np.isfinite(loss):
                raise DivergedError(self.epoch + 1, first + i + 1, self.rate(first + i))
            self.loss_sum = self.loss_sum + loss
            self.correct = self.correct + correct
            self.counted += count
            self.samples += self.sizes[self.batch - len(rows) + i]
        self._pending.clear()
        self.epoch_seconds += self.tick()
        return asked[0] > 0

    def tick(self) -> float:
        """Seconds since the last tick, which are added to the run's."""
        before = self._clock
        self._clock = time.monotonic()
        self.seconds += self._clock - before
        return self._clock - before

    def end_epoch(self) -> dict[str, Any]:
        """The line of the log for the epoch that is complete; all that depends on the clock is under "time"."""
        entry: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "lr": self.rate(self.step - 1),
            "loss": self.loss_sum / self.samples,
            "accuracy": self.correct / self.counted if self.counted else None,
        }
        speed = round(self.samples / max(self.epoch_seconds, 1e-9), 1)
        clock = {"seconds": round(self.epoch_seconds, 3), "images_per_second": speed}
        if self.task.val is not None:
            entry |= self.validate(self.task.val)
        entry["time"] = clock
        self.log.append(entry)
        vars(self).update(dict.fromkeys(OF_THE_EPOCH, 0), epoch=self.epoch + 1)
        return entry

    def validate(self, samples: Samples) -> dict[str, float | None]:
        """Loss and accuracy on held-out samples."""
        sums = torch.zeros(3, device=self.group.device)
        for size, z, y in self._forward(samples):
            is_real = counted(size, self.group.rank, self.group.world) > 0
            terms = [self.loss(z, y) * len(y), *self._correct(z, y)]
            sums += torch.stack([term * is_real for term in terms])
        loss, correct, count = self.group.add_up(sums).tolist()
        self._check_finite(np.isfinite(loss), self.epoch + 1)
        return {"val_loss": loss / len(samples), "val_accuracy": correct / count if count else None}

    def outputs(self, samples: Samples) -> Iterator[Tensor]:
        """The outputs on all samples, each once and in order, in every process."""
        for size, z, _ in self._forward(samples):
            rows = self.group.rows(z, size).cpu()
            self._check_finite(bool(rows.isfinite().all()), self.config.epochs)
            yield rows

    def about(self) -> dict[str, Any]:
        """What a result says about the training."""
        return {
            "samples": len(self.task.train),
            "epochs": self.config.epochs,
            "steps": self.step,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "unseen_classes": self.task.unseen,
        }

    def _outputs(self, images: Tensor) -> Tensor:
        try:
            return self.parallel(images)
        except ValueError as error:
            norms = (isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())
            if len(images) > 1 or not any(norms):
                raise
            raise ConfigError(
                f"Batch norms of {self.config.model} need two or more images at a time. The last batch of an epoch has "
                f"{self.sizes[-1]}, over all processes and parts (accumulate). Choose a batch_size that leaves more for it."
            ) from error

    def _check_finite(self, holds: bool, epoch: int) -> None:
        if not holds:
            raise DivergedError(epoch, self.step, self.rate(self.step - 1))

    @torch.no_grad()
    def _forward(self, samples: Samples) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Batch by batch its size over all processes, and of this process's share the outputs and targets."""
        self.group.same_buffers(self.result)
        model = self.result.eval()
        sizes = batch_sizes(len(samples), self.config.batch_size)
        for size, (x, y) in zip(sizes, self._batches(samples).epoch(0), strict=True):
            with self._autocast():
                z = model(self._laid_out(x))
            yield size, z.float(), y
        self.model.train()

    def _batches(self, samples: Samples, **options: Any) -> MemoryBatches | LoaderBatches:
        """Of every batch this process's share."""
        group = self.group
        config = self.config
        workers = choose_workers(config.workers, group.device)
        options |= {"labels": self.task.labels, "workers": workers, "device": group.device}
        return make_batches(samples, config.batch_size, self.view, part=(group.rank, group.world), **options)

    def _copied(self) -> nn.Module:
        return copy.deepcopy(self.model).requires_grad_(False).eval()

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self.config.channels_last else x

    def _autocast(self) -> torch.autocast:
        dtype = DTYPES[self.config.precision]
        return torch.autocast(self.group.device.type, dtype, enabled=dtype != torch.float32)

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


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """The sizes of an epoch's batches, over all processes."""
    return [min(batch_size, count - start) for start in range(0, count, batch_size)]


def initial_model(
    config: TrainConfig, loss: HierarchicalLoss, view: Preprocessing, device: torch.device, seed: int = 0
) -> nn.Module:
    """The model of a configuration with random weights, on a device, in its memory format."""
    parts: Any = {"dropout": config.dropout, "drop_path": config.drop_path, "ball": config.head.ball}
    model = build_model(config.model, loss.num_outputs, image_size=view.size, seed=seed, **parts)
    return model.to(device, memory_format=torch.channels_last if config.channels_last else None)  # pyright: ignore[reportCallIssue, reportArgumentType]


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """SGD decays every parameter; AdamW no bias, no norm and nothing the model excludes, as the models' authors do."""
    timm = optional("timm.optim", "Training", "train")
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "adamw":
        return timm.create_optimizer_v2(model, "adamw", betas=(config.momentum, 0.999), **options)
    # timm's "sgd" looks ahead (Nesterov), its "momentum" does not.
    return timm.create_optimizer_v2(
        model, "momentum", momentum=config.momentum, filter_bias_and_bn=False, **options
    )


def schedule_factor(name: str, step: int, total_steps: int, warmup_steps: int = 0) -> float:
    """What the learning rate is multiplied with at a step, which counts from 0.

    A function of the step alone, so a resumed run has the very rates of one that was never stopped. cosine:
    (1 + cos(pi t / T)) / 2. warmup_cosine: (t + 1) / (w + 1) below step w, and from there a cosine over the T - w steps that
    are left, so that no step has a rate of 0 and step w has the whole one. constant: 1.
    """
    if name == "constant":
        return 1.0
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    done = min((step - warmup_steps) / (total_steps - warmup_steps), 1.0)
    return (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """average = decay average + (1 - decay) model; in the first steps with less decay. Buffers are copied."""
    decay = min(decay, (1 + step) / (10 + step))
    get_ema_multi_avg_fn(decay)(list(average.parameters()), list(model.parameters()), step)
    for mine, its in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(its)


def batch_mixer(config: TrainConfig, num_labels: int) -> Any:
    """Mixup, CutMix, or one of them by chance for each batch: soft targets over the labels, which every loss takes."""
    if not (config.mixup_alpha or config.cutmix_alpha):
        return lambda x, y: (x, y)
    v2 = optional("torchvision.transforms.v2", "Mixing images", "train")
    kinds = ((v2.MixUp, config.mixup_alpha), (v2.CutMix, config.cutmix_alpha))
    mixers = [kind(alpha=alpha, num_classes=num_labels) for kind, alpha in kinds if alpha]
    return v2.RandomChoice(mixers) if len(mixers) > 1 else mixers[0]
