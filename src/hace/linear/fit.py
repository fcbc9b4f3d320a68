"""Heads trained side by side: checks, then epochs over the features, or L-BFGS for each head."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hace.checks import MOST_SEED, check_count
from hace.errors import ConfigError, DataError
from hace.files.reading import open_regular
from hace.files.weights import read_torch
from hace.files.writing import atomic_path, own_folder
from hace.linear.features import LabelledFeatures, as_features
from hace.linear.heads import EpochRecord, FittedHead, Heads, Optimization, Trial
from hace.linear.lbfgs import converged_head
from hace.losses.base import HierarchicalLoss

OnEpoch = Callable[[int, list[EpochRecord | None]], None]

CHECKPOINT_SECONDS = 300.0
_CHUNK = 8192  # rows scored at once
_BLOCK = 16  # heads per call of a loss: more gain nothing and overflow the cache
_DENORMAL = 1e-40


def head_scores(x: Any, head: FittedHead) -> Tensor:
    """(M, C) logits of a head; an array of features is read in pieces."""
    width = head.weight.shape[1]
    if getattr(x, "ndim", 0) != 2 or x.shape[1] != width:
        raise DataError(
            f"x must have the {width} columns that the head was trained on. Got shape {tuple(np.shape(x))}."
        )
    out = torch.empty(len(x), len(head.weight))
    for first in range(0, len(x), _CHUNK):
        part = slice(first, first + _CHUNK)
        rows = as_features(x[part], f"x[{first}:]" if first else "x")
        layer = nn.functional.linear if head.ball is None else head.ball.logits
        out[part] = layer(rows, head.weight, head.bias)
    return out


@torch.no_grad()
def fit_heads(
    x: Any,
    target: Any,
    trials: Sequence[Trial],
    optimization: Optimization,
    *,
    seed: int = 0,
    validation: tuple[Any, Any] | None = None,
    sample_weight: Any = None,
    on_epoch: OnEpoch | None = None,
    start: FittedHead | None = None,
    checkpoints: Path | None = None,
) -> list[FittedHead]:
    """Train heads side by side; each comes out as if trained alone.

    The same arguments give the same bits at one thread.

    Args:
        x: Features (M, d): a tensor, an array, or a sparse matrix of scipy, which stays sparse. A memory map whose float32 copy
            would exceed HACE_MAX_MEMORY is read from disk a batch at a time.
        target: Labels, as the losses take them.
        trials: One loss, rate and weight decay per head.
        optimization: What all heads share.
        seed: Fixes the initial weights (distributed as in torch.nn.Linear, unless ``optimization`` says zeros; they depend on
            seed and shape only) and the order of the batches (on seed and epoch only). The global random states of torch and
            numpy stay untouched.
        validation: Features and targets to measure top-1 on after each epoch; any leaf below a coarse label counts as right.
        sample_weight: Weights w: the loss of a batch is sum w l / sum w.
        on_epoch: Called with each epoch's number and, for each trial, its new record, or None where it has ended.
        start: A fitted head to start from.
        checkpoints: Folder that gets the state every five minutes. The same call on the same data resumes from it, with the
            same bits; "lbfgs" has no such state.

    Returns:
        A head for each trial. One whose loss is no longer finite has diverged: `head.diverged` gives the epoch, step and rate,
        its weights are zeros, and the other heads continue unaffected.
    """
    _check_group(trials, optimization, seed, validation)
    full = optimization.optimizer == "lbfgs"
    precision = torch.float64 if full else torch.float32
    rows = LabelledFeatures(x, target, trials[0].loss, sample_weight, dtype=precision)
    held_out = None
    if validation is not None:
        held_out = LabelledFeatures(*validation, trials[0].loss, what="validation ")
        if held_out.x.shape[1] != rows.x.shape[1]:
            raise DataError(
                f"validation must have the {rows.x.shape[1]} columns of x. Got {held_out.x.shape[1]}."
            )
    if start is not None and start.weight.shape != (trials[0].loss.num_outputs, rows.x.shape[1]):
        raise DataError(
            f"start must have weights ({trials[0].loss.num_outputs}, {rows.x.shape[1]}). "
            f"Got {tuple(start.weight.shape)}."
        )
    if full:
        heads = [converged_head(rows, trial, optimization, start) for trial in trials]
        for head, trial in zip(heads, trials, strict=True):
            if held_out is not None and head.diverged is None:
                head.history[0]["val_top1"] = held_out.top1(partial(head_scores, head=head), trial.loss)
        return heads
    single = {id(trial.loss): trial.loss.reduced_by("none") for trial in trials}
    losses = [single[id(trial.loss)] for trial in trials]
    return _EpochLoop(rows, trials, losses, optimization, seed, held_out, start, checkpoints).run(on_epoch)


def _check_group(
    trials: Sequence[Trial], optimization: Optimization, seed: int, validation: tuple[Any, Any] | None
) -> None:
    if not trials:
        raise ConfigError("trials must hold at least one Trial. Got none.")
    shapes = {(t.loss.num_outputs, t.loss.labels, t.loss.num_labels) for t in trials}
    if len(shapes) > 1:
        shown = sorted(f"{outputs} outputs for {count} {labels}" for outputs, labels, count in shapes)
        raise ConfigError(
            f"trials must have the same number of outputs and take the same labels. Got {'; '.join(shown)}. "
            "Call fit_heads once for each."
        )
    check_count("seed", seed, MOST_SEED, least=0)
    if optimization.patience is not None and validation is None:
        raise ConfigError("patience needs validation data. Give validation=(features, targets).")


class _EpochLoop:
    """Heads that see the same batches in the same order. ``losses``: one of each trial, with ``reduction="none"``."""

    def __init__(
        self,
        rows: LabelledFeatures,
        trials: Sequence[Trial],
        losses: Sequence[HierarchicalLoss],
        options: Optimization,
        seed: int,
        held_out: LabelledFeatures | None,
        start: FittedHead | None,
        checkpoints: Path | None,
    ) -> None:
        self._rows = rows
        self._trials = trials
        self._losses = losses
        self._options = options
        self._seed = seed
        self._held_out = held_out
        self._saved = time.monotonic()
        settings = [(repr(trial.loss), trial.lr, trial.weight_decay) for trial in trials]
        name = hashlib.sha256(repr((settings, options, seed, rows.x.shape)).encode()).hexdigest()[:16]
        self._checkpoint = None if checkpoints is None else checkpoints / f"{name}.pt"
        self._steps = -(-len(rows) // options.batch_size)  # of an epoch
        self._history: list[list[EpochRecord]] = [[] for _ in trials]
        self._diverged: dict[int, EpochRecord] = {}
        self._best: dict[int, tuple[float, int, Tensor, Tensor]] = {}  # top-1, epoch, weight, bias
        weight, bias = self._initial(start)
        first = {id(loss): place for place, loss in reversed(list(enumerate(losses)))}
        places = sorted(range(len(trials)), key=lambda place: first[id(losses[place])])
        blocks = [places[i : i + _BLOCK] for i in range(0, len(places), _BLOCK)]
        self._blocks = [Heads(trials, block, losses, weight, bias, options) for block in blocks]

    def _initial(self, start: FittedHead | None) -> tuple[Tensor, Tensor]:
        """(d, C) and (C,): given, zeros, or uniform within 1 / sqrt(d) as in torch.nn.Linear, from a separate generator."""
        columns, width = self._rows.shape_of(self._losses[0])
        if start is not None:
            bias = start.bias if start.bias is not None and self._options.bias else torch.zeros(columns)
            return start.weight.T.contiguous().to(self._rows.like), bias.to(self._rows.like)
        if self._options.start == "zeros":
            return self._rows.like.new_zeros(width, columns), self._rows.like.new_zeros(columns)
        generator = torch.Generator().manual_seed(self._seed)
        bound = width**-0.5
        weight = torch.empty(columns, width).uniform_(-bound, bound, generator=generator)
        bias = torch.empty(columns).uniform_(-bound, bound, generator=generator)
        bias = bias if self._options.bias else torch.zeros_like(bias)
        return weight.T.contiguous().to(self._rows.like), bias.to(self._rows.like)

    def run(self, on_epoch: OnEpoch | None) -> list[FittedHead]:
        """Train to the end, or until no head is left."""
        begun, step = self._resumed()
        for epoch in range(begun, self._options.epochs + 1):
            self._train(epoch, step if epoch == begun else 0)
            records: list[EpochRecord | None] = [None] * len(self._trials)
            for block in self._blocks:
                for place, record in self._close(block, epoch).items():
                    self._history[place].append(record)
                    records[place] = record
            self._blocks = [block for block in self._blocks if block.places]
            if on_epoch is not None:
                on_epoch(epoch, records)
            if not self._blocks:
                break
        return self._fitted()

    def _resumed(self) -> tuple[int, int]:
        """The epoch to go on with and how many of its steps are done."""
        if self._checkpoint is None or not self._checkpoint.exists():
            return 1, 0
        with open_regular(self._checkpoint) as file:
            state = read_torch(file)
        self._history = state["history"]
        self._diverged = state["diverged"]
        self._best = state["best"]
        self._blocks = self._blocks[: len(state["blocks"])]
        for block, saved in zip(self._blocks, state["blocks"], strict=True):
            block.resume(saved)
        return state["epoch"], state["step"]

    def _save(self, path: Path, epoch: int, step: int) -> None:
        state = {"epoch": epoch, "step": step, "history": self._history, "diverged": self._diverged}
        state |= {"best": self._best, "blocks": [block.state() for block in self._blocks]}
        own_folder(path.parent)
        with atomic_path(path) as temporary:
            torch.save(state, temporary)
        self._saved = time.monotonic()

    def _train(self, epoch: int, done: int) -> None:
        # The order of hace.data.batches.EpochOrder: seed and epoch alone decide it.
        order = torch.from_numpy(np.random.default_rng([self._seed, epoch - 1]).permutation(len(self._rows)))
        for block in self._blocks if not done else ():
            block.restart()
        size = self._options.batch_size
        batches = self._rows.batches(order[done * size :].to(self._rows.like.device), size)
        for i, batch in enumerate(batches, done):
            step = (epoch - 1) * self._steps + i
            factor = self._factor(step)
            with _flushed_denormals():
                for block in self._blocks:
                    for place in block.step(*batch, factor) if block.places else ():
                        self._diverged[place] = self._divergence_record(place, epoch, step)
            if self._checkpoint is not None and time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
                self._save(self._checkpoint, epoch, i + 1)

    def _close(self, block: Heads, epoch: int) -> dict[int, EpochRecord]:
        """Finish an epoch: a record for each head; heads that are done leave the block."""
        last = epoch * self._steps - 1
        for place in block.drop(block.not_finite()):
            self._diverged[place] = self._divergence_record(place, epoch, last)
        records: dict[int, EpochRecord] = {}
        done = []
        factor = self._factor(last - self._steps + 1)
        for h, (place, loss) in enumerate(zip(block.places, block.mean_losses(), strict=True)):
            record: EpochRecord = {"epoch": epoch, "lr": self._trials[place].lr * factor, "loss": loss}
            if self._held_out is not None:
                top1 = self._held_out.top1(partial(block.scores, h), self._losses[place])
                record["val_top1"] = top1
                if self._options.patience is not None:
                    if place not in self._best or top1 > self._best[place][0]:
                        self._best[place] = (top1, epoch, block.weight[h].clone(), block.bias[h].clone())
                    if epoch - self._best[place][1] >= self._options.patience:
                        done.append(h)
            records[place] = record
        block.drop(done)
        return records

    def _fitted(self) -> list[FittedHead]:
        final = {
            place: (len(self._history[place]), block.weight[h], block.bias[h])
            for block in self._blocks
            for h, place in enumerate(block.places)
        }
        final |= {place: best[1:] for place, best in self._best.items()}
        heads = []
        for place, history in enumerate(self._history):
            diverged = self._diverged.get(place)
            ball = self._options.ball
            if diverged is None:
                epochs, weight, bias = final[place]
            else:
                columns, width = self._rows.shape_of(self._losses[place])
                epochs = 0
                weight = torch.zeros(width, columns)
                bias = torch.zeros(columns)
                ball = None
            copied_bias = bias.flatten().clone() if self._options.bias else None
            heads.append(FittedHead(weight.T.contiguous(), copied_bias, history, diverged, epochs, ball=ball))
        return heads

    def _factor(self, step: int) -> float:
        return self._options.factor(step, self._options.epochs * self._steps)

    def _divergence_record(self, place: int, epoch: int, step: int) -> EpochRecord:
        return {"epoch": epoch, "step": step + 1, "lr": self._trials[place].lr * self._factor(step)}


@contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Treat numbers below float32's normal range as 0 on this thread, where the processor can.

    A head that is sure of its answer has gradients of such numbers. They slow a matrix product down a hundredfold and change
    no weight.
    """
    before = not (torch.tensor(_DENORMAL) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
