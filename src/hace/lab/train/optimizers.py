"""Optimisers and learning-rate schedules of end-to-end training.

optimizer = build_optimizer(model, "sgd", lr=0.1, weight_decay=1e-4, momentum=0.9)
for group in optimizer.param_groups:             # before every step of the optimiser, not every epoch
    group["lr"] = 0.1 * schedule_factor("cosine", step, epochs * steps)

A schedule is a function of the step alone, so a resumed run has the very rates of one that was never stopped.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from hace.errors import ConfigError, nearest

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "warmup_cosine", "constant")
DECAYS = ("auto", "all", "weights")


def build_optimizer(
    model: nn.Module,
    name: str = "sgd",
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    beta2: float = 0.999,
    nesterov: bool = False,
    decay: str = "auto",
) -> torch.optim.Optimizer:
    """An optimiser over the parameters of a model that are to be trained.

    Args:
        model: The model.
        name: "sgd" or "adamw".
        lr: The learning rate, before the schedule.
        weight_decay: Added to the gradient by SGD, apart from it by AdamW.
        momentum: Of SGD; AdamW's first beta.
        beta2: AdamW's second beta; SGD has none.
        nesterov: Whether SGD's momentum looks ahead.
        decay: What is decayed. "all": every parameter. "weights": no bias, no norm, nothing else of one dimension, and
            nothing that the model itself excludes (positions, class token, biases of relative positions). "auto": "all"
            with SGD and "weights" with AdamW, as the models' authors do.

    Returns:
        The optimiser, with one group of parameters, or two: decayed and not.

    Raises:
        ConfigError: An unknown name, a value out of range, or nothing to train.

    Example:
        >>> optimizer = build_optimizer(nn.Linear(4, 3), "adamw", lr=1e-3, weight_decay=0.05)
        >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.05), (1, 0.0)]
    """
    _check_choice("optimizer", name, OPTIMIZERS)
    _check_choice("decay", decay, DECAYS)
    _check_range("lr", lr, 0 < lr < math.inf, "a number above 0")
    _check_range("weight_decay", weight_decay, 0 <= weight_decay < math.inf, "a number of at least 0")
    _check_range("momentum", momentum, 0 <= momentum < 1, "at least 0 and below 1")
    _check_range("beta2", beta2, 0 <= beta2 < 1, "at least 0 and below 1")
    if nesterov and (name != "sgd" or not momentum):
        raise ConfigError(f"nesterov needs sgd with a momentum above 0. Got {name} with {momentum}.")
    if decay == "auto":
        decay = "all" if name == "sgd" else "weights"
    groups = parameter_groups(model, weight_decay, decay)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    return torch.optim.AdamW(groups, lr=lr, betas=(momentum, beta2))


def parameter_groups(model: nn.Module, weight_decay: float, decay: str) -> list[dict[str, Any]]:
    """The parameters to train, in the model's order, decayed ones first; see `build_optimizer`."""
    exclude: Any = getattr(model, "no_weight_decay", None)
    excluded: set[str] = set(exclude()) if exclude else set()
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim <= 1 or name in excluded
            (others if plain and decay == "weights" else decayed).append(parameter)
    groups = ((decayed, weight_decay), (others, 0.0))
    found = [{"params": parameters, "weight_decay": value} for parameters, value in groups if parameters]
    if not found:
        raise ConfigError("The model has no parameter to train: set requires_grad on some of them.")
    return found


def schedule_factor(name: str, step: int, total_steps: int, warmup_steps: int = 0) -> float:
    """What the learning rate is multiplied with at a step, which counts from 0.

    cosine: (1 + cos(pi t / T)) / 2. warmup_cosine: (t + 1) / (w + 1) below step w, and from there a cosine over the T - w
    steps that are left, so that no step has a rate of 0 and step w has the whole one. constant: 1.

    Example:
        >>> [schedule_factor("warmup_cosine", t, 6, 2) for t in (0, 1, 2, 4)]
        [0.3333333333333333, 0.6666666666666666, 1.0, 0.5]
    """
    if name == "constant":
        return 1.0
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    done = min((step - warmup_steps) / (total_steps - warmup_steps), 1.0)
    return (1 + math.cos(math.pi * done)) / 2


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"{option} must be one of {', '.join(known)}. Got {value!r}.{nearest(value, known)}"
        )


def _check_range(option: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{option} must be {rule}. Got {value!r}.")
