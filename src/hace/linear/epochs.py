"""The loop over epochs and batches, and the history of each head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from hace.linear.denormals import flushed_denormals
from hace.linear.heads import Heads
from hace.linear.labelled_features import HeldOut, LabelledFeatures
from hace.linear.trials import EpochRecord, FittedHead, Optimization, Trial
from hace.losses.base import HierarchicalLoss

OnEpoch = Callable[[int, list[EpochRecord | None]], None]

_BLOCK = 16  # heads per call of a loss: more gain nothing and overflow the cache


class EpochLoop:
    """Heads that see the same batches in the same order.

    Args:
        rows: training data.
        trials: the heads.
        losses: the loss of each trial, with ``reduction="none"``; one object for trials that share theirs.
        options: what the heads share.
        seed: seed of initialisation and order.
        held_out: validation data.
        start: initial weights.
    """

    def __init__(
        self,
        rows: LabelledFeatures,
        trials: Sequence[Trial],
        losses: Sequence[HierarchicalLoss],
        options: Optimization,
        seed: int,
        held_out: HeldOut | None,
        start: FittedHead | None,
    ) -> None:
        self._rows, self._trials, self._losses, self._options = rows, trials, losses, options
        self._seed, self._held_out = seed, held_out
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
        for epoch in range(1, self._options.epochs + 1):
            self._train(epoch)
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

    def _train(self, epoch: int) -> None:
        # The order of hace.data.batches.EpochOrder: seed and epoch alone decide it.
        order = torch.from_numpy(np.random.default_rng([self._seed, epoch - 1]).permutation(len(self._rows)))
        for block in self._blocks:
            block.restart()
        for i, rows in enumerate(order.to(self._rows.like.device).split(self._options.batch_size)):
            step = (epoch - 1) * self._steps + i
            factor = self._factor(step)
            batch = self._rows.batch(rows)
            with flushed_denormals():
                for block in self._blocks:
                    for place in block.step(*batch, factor) if block.places else ():
                        self._diverged[place] = self._told(place, epoch, step)

    def _close(self, block: Heads, epoch: int) -> dict[int, EpochRecord]:
        """Finish an epoch: a record for each head; heads that are done leave the block."""
        last = epoch * self._steps - 1
        for place in block.drop(block.not_finite()):
            self._diverged[place] = self._told(place, epoch, last)
        records: dict[int, EpochRecord] = {}
        done = []
        factor = self._factor(last - self._steps + 1)
        for h, (place, loss) in enumerate(zip(block.places, block.mean_losses(), strict=True)):
            record: EpochRecord = {"epoch": epoch, "lr": self._trials[place].lr * factor, "loss": loss}
            if self._held_out is not None:
                record["val_top1"] = top1 = self._top1(block, h)
                if self._options.patience is not None and self._rests(block, h, epoch, top1):
                    done.append(h)
            records[place] = record
        block.drop(done)
        return records

    def _top1(self, block: Heads, h: int) -> float:
        assert self._held_out is not None
        return self._held_out.top1(lambda x: block.scores(h, x), self._losses[block.places[h]])

    def _rests(self, block: Heads, h: int, epoch: int, top1: float) -> bool:
        """Keep the best weights; whether the patience with this head is exhausted."""
        place, patience = block.places[h], self._options.patience
        assert patience is not None
        if place not in self._best or top1 > self._best[place][0]:
            self._best[place] = (top1, epoch, block.weight[h].clone(), block.bias[h].clone())
        return epoch - self._best[place][1] >= patience

    def _fitted(self) -> list[FittedHead]:
        final = {
            place: (len(self._history[place]), block.weight[h], block.bias[h])
            for block in self._blocks
            for h, place in enumerate(block.places)
        }
        final |= {place: best[1:] for place, best in self._best.items()}
        heads = []
        for place, history in enumerate(self._history):
            if place in self._diverged:
                shape = self._rows.shape_of(self._losses[place])
                lost = FittedHead.zeros(*shape, self._options.bias, history, self._diverged[place])
                heads.append(lost)
                continue
            epochs, weight, bias = final[place]
            kept = bias.flatten().clone() if self._options.bias else None
            heads.append(
                FittedHead(weight.T.contiguous(), kept, history, None, epochs, ball=self._options.ball)
            )
        return heads

    def _factor(self, step: int) -> float:
        return self._options.factor(step, self._options.epochs * self._steps)

    def _told(self, place: int, epoch: int, step: int) -> EpochRecord:
        return {"epoch": epoch, "step": step + 1, "lr": self._trials[place].lr * self._factor(step)}
