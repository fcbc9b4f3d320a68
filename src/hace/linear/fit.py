"""The gate of :mod:`hace.linear`: checks, then epochs over the features or L-BFGS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.errors import ConfigError, DataError
from hace.linear.epochs import EpochLoop, OnEpoch
from hace.linear.labelled_features import HeldOut, LabelledFeatures, as_features
from hace.linear.lbfgs import converge
from hace.linear.trials import FittedHead, Optimization, Trial
from hace.losses.poincare_head import layer_logits

_CHUNK = 8192  # rows scored at once


def head_scores(x: Any, head: FittedHead) -> Tensor:
    """(M, C) logits of a head.

    Args:
        x: (M, d) features, a tensor or an array; an array is read in pieces.
        head: the head.
    """
    width = head.weight.shape[1]
    if getattr(x, "ndim", 0) != 2 or x.shape[1] != width:
        raise DataError(
            f"x must have the {width} columns that the head was trained on. Got shape {tuple(np.shape(x))}."
        )
    out = torch.empty(len(x), len(head.weight))
    for first in range(0, len(x), _CHUNK):
        part = slice(first, first + _CHUNK)
        rows = as_features(x[part], f"x[{first}:]" if first else "x")
        out[part] = layer_logits(rows, head.weight, head.bias, head.ball)
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
) -> list[FittedHead]:
    """Train heads side by side; each comes out as if trained alone.

    The same arguments give the same bits at one thread. The seed fixes the initial weights (distributed as in
    torch.nn.Linear, unless ``optimization`` says zeros; they depend on seed and shape only) and the order of the batches (on
    seed and epoch only). The global random states of torch and numpy stay untouched.

    Args:
        x: (M, d) features, float32; a sparse matrix of scipy stays sparse.
        target: (M,) labels as the losses take them: leaf labels, or node indices with ``labels="nodes"``.
        trials: the heads, all with the same number of outputs.
        optimization: what they share.
        seed: seed of initialisation and order. "lbfgs" starts from zeros and needs none.
        validation: features and targets to measure top-1 on after each epoch (any leaf below a coarse label
            counts as right).
        sample_weight: (M,) weights. The loss of a batch is sum w l / sum w, as with torch's class weights, which multiply
            with these; so a weight of 2 counts a sample twice if all data are one batch.
        on_epoch: called after each epoch with its number and, for each trial, its new record or None where it has ended.
            "lbfgs" has no epochs and does not call it.
        start: initial weights, in place of those that ``optimization`` asks for.

    Returns:
        The heads, in the order of the trials.

    Example:
        >>> from hace import Hierarchy, build_loss
        >>> x, y = torch.eye(4).repeat(8, 1), torch.arange(4).repeat(8)
        >>> loss = build_loss("hace", Hierarchy.from_paths([("a", "0"), ("a", "1"), ("b", "2"), ("b", "3")]))
        >>> grid = [Trial(loss, lr) for lr in (0.01, 1.0, 10.0)]
        >>> heads = fit_heads(x, y, grid, Optimization(epochs=5, batch_size=8))
        >>> [bool((loss.leaf_logits(head_scores(x, head)).argmax(1) == y).all()) for head in heads]
        [False, True, True]
    """
    _check_group(trials, optimization, seed, validation)
    full = optimization.optimizer == "lbfgs"
    rows = LabelledFeatures(
        x, target, trials[0].loss, sample_weight, dtype=torch.float64 if full else torch.float32
    )
    held_out = None
    if validation is not None:
        held_out = HeldOut(LabelledFeatures(*validation, trials[0].loss, what="validation "))
        if held_out.rows.x.shape[1] != rows.x.shape[1]:
            raise DataError(
                f"validation must have the {rows.x.shape[1]} columns of x. Got {held_out.rows.x.shape[1]}."
            )
    if start is not None and start.weight.shape != (trials[0].loss.num_outputs, rows.x.shape[1]):
        raise DataError(
            f"start must have weights ({trials[0].loss.num_outputs}, {rows.x.shape[1]}). "
            f"Got {tuple(start.weight.shape)}."
        )
    if full:
        return [converged_head(rows, trial, optimization, held_out=held_out, start=start) for trial in trials]
    single = {id(trial.loss): trial.loss.reduced_by("none") for trial in trials}
    losses = [single[id(trial.loss)] for trial in trials]
    return EpochLoop(rows, trials, losses, optimization, seed, held_out, start).run(on_epoch)


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
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed must be a whole number from 0. Got {seed!r}.")
    if optimization.patience is not None and validation is None:
        raise ConfigError("patience needs validation data. Give validation=(features, targets).")


@torch.no_grad()
def converged_head(
    rows: LabelledFeatures,
    trial: Trial,
    optimization: Optimization,
    *,
    held_out: HeldOut | None = None,
    start: FittedHead | None = None,
    dtype: torch.dtype = torch.float32,
) -> FittedHead:
    """One head by L-BFGS, in any precision."""
    found = converge(rows, trial.loss.reduced_by("none"), trial.weight_decay, optimization, start)
    if not found.finite:
        diverged = {"epoch": found.iterations, "step": found.iterations, "lr": None}
        return FittedHead.zeros(*rows.shape_of(trial.loss), optimization.bias, [], diverged, converged=False)
    record = {
        "epoch": found.iterations,
        "lr": None,
        "loss": found.loss,
        "gradient": found.steepest,
        "converged": found.converged,
    }
    bias = found.bias.to(dtype) if optimization.bias else None
    head = FittedHead(
        found.weight.T.to(dtype).contiguous(), bias, [record], None, found.iterations, found.converged
    )
    if held_out is not None:
        record["val_top1"] = held_out.top1(lambda x: head_scores(x, head), trial.loss)
    return head
