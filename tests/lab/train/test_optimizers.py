"""Optimisers and schedules: what is decayed, torch's own schedules as oracles, and runs that go on bit for bit."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from hace.lab.models import ARCHITECTURES, build_model
from hace.lab.train.loop import build_optimizer, schedule_factor
from hace.paper.recipes import RECIPES
from tests.train_cases import tiny

SPECIAL = ("pos_embed", "cls_token", "relative_position_bias_table", "gamma")


def names_by_decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The decay of every parameter by its name; each is in one group only."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    result: dict[str, float] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert name_of[id(parameter)] not in result
            result[name_of[id(parameter)]] = group["weight_decay"]
    return result


def undecayed(model: nn.Module) -> set[str]:
    """What the authors leave out, by the kind of module instead of the number of dimensions."""
    names = set()
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            norm = isinstance(module, nn.LayerNorm | nn.BatchNorm2d)
            if norm or name == "bias" or name in SPECIAL:
                names.add(f"{path}.{name}".removeprefix("."))
    return names


@pytest.mark.parametrize("key", list(ARCHITECTURES))
def test_decay_of_the_paper_s_models(key: str) -> None:
    with torch.device("meta"):
        model = build_model(key, 120, image_size=32)
    row = RECIPES[key]
    config = tiny(optimizer=row.optimizer, lr=row.lr, weight_decay=row.weight_decay, momentum=row.momentum)
    optimizer = build_optimizer(model, config)
    decay = names_by_decay(model, optimizer)
    assert set(decay) == {name for name, _ in model.named_parameters()}
    left_out = {name for name, value in decay.items() if value == 0}
    assert set(decay.values()) <= {0.0, row.weight_decay}
    assert left_out == (set() if row.optimizer == "sgd" else undecayed(model))
    if row.optimizer == "adamw":
        assert left_out
        assert optimizer.defaults["betas"] == (0.9, 0.999)
    else:
        assert optimizer.defaults["momentum"] == 0.9
        assert not optimizer.defaults["nesterov"]
    assert {group["lr"] for group in optimizer.param_groups} == {row.lr}


def test_frozen_parameters_are_not_decayed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    optimizer = build_optimizer(model, tiny(optimizer="adamw", lr=0.1, weight_decay=0.1))
    assert set(names_by_decay(model, optimizer)) == {"1.weight", "1.bias"}


def test_sgd_by_hand() -> None:
    """v = m v + g + decay w; w = w - lr v."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    optimizer = build_optimizer(model, tiny(lr=0.1, weight_decay=0.01, momentum=0.9))
    w, v = 2.0, 0.0
    for g in (1.0, -0.5, 0.25):
        model.weight.grad = torch.full((1, 1), g)
        optimizer.step()
        v = 0.9 * v + g + 0.01 * w
        w -= 0.1 * v
        assert model.weight.item() == pytest.approx(w, rel=1e-6)


def lambda_lr(
    optimizer: torch.optim.Optimizer, name: str, *, total_steps: int, warmup_steps: int = 0
) -> LambdaLR:
    """Torch's own way to follow a factor."""
    return LambdaLR(optimizer, lambda step: schedule_factor(name, step, total_steps, warmup_steps))


@pytest.mark.parametrize("total", [1, 7, 100])
def test_cosine_is_torch_s(total: int) -> None:
    ours = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.3)
    theirs = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.3)
    schedules = [lambda_lr(ours, "cosine", total_steps=total), CosineAnnealingLR(theirs, T_max=total)]
    for _ in range(total + 1):
        a, b = (schedule.get_last_lr()[0] for schedule in schedules)
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)
        for optimizer, schedule in zip((ours, theirs), schedules, strict=True):
            optimizer.step()
            schedule.step()


def test_warm_up_is_torch_s_linear_then_cosine() -> None:
    total, warm = 50, 9
    ours = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.3)
    theirs = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.3)
    linear = LinearLR(theirs, start_factor=1 / (warm + 1), end_factor=1.0, total_iters=warm)
    cosine = CosineAnnealingLR(theirs, T_max=total - warm)
    theirs_schedule = SequentialLR(theirs, [linear, cosine], milestones=[warm])
    ours_schedule = lambda_lr(ours, "warmup_cosine", total_steps=total, warmup_steps=warm)
    for step in range(total):
        a, b = (schedule.get_last_lr()[0] for schedule in (ours_schedule, theirs_schedule))
        assert a == pytest.approx(b, rel=1e-9), step
        assert step != warm or a == 0.3
        for optimizer, schedule in ((ours, ours_schedule), (theirs, theirs_schedule)):
            optimizer.step()
            schedule.step()


def test_factors_at_the_ends() -> None:
    assert [schedule_factor("constant", step, 10) for step in (0, 9, 50)] == [1, 1, 1]
    assert schedule_factor("cosine", 0, 10) == 1
    assert schedule_factor("cosine", 10, 10) == schedule_factor("cosine", 25, 10) == 0  # and it stays there
    assert schedule_factor("warmup_cosine", 0, 10, 4) == pytest.approx(0.2)
    assert schedule_factor("warmup_cosine", 4, 10, 4) == 1
    factors = [schedule_factor("warmup_cosine", step, 1000, 100) for step in range(1000)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors.index(max(factors)) == 100
    assert [schedule_factor("warmup_cosine", t, 9) for t in range(9)] == [
        schedule_factor("cosine", t, 9) for t in range(9)
    ]


def train(steps: int, name: str, saved: bytes | None = None, stop: int | None = None) -> tuple[list, bytes]:
    """Rates and final state of a small run of `steps`, or of its part from a saved state or up to a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2))
    optimizer = build_optimizer(model, tiny(optimizer=name, lr=0.05, weight_decay=0.01))
    schedule = lambda_lr(optimizer, "warmup_cosine", total_steps=steps, warmup_steps=3)
    start, rates = 0, []
    if saved is not None:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        start = state["step"]
    for step in range(start, steps if stop is None else stop):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        rates.append(schedule.get_last_lr())
        optimizer.step()
        schedule.step()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    file = io.BytesIO()
    torch.save(
        {key: part.state_dict() for key, part in parts.items()} | {"step": steps if stop is None else stop},
        file,
    )
    return rates, file.getvalue()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("stop", [0, 2, 3, 11])
def test_a_resumed_run_goes_on_bit_for_bit(name: str, stop: int) -> None:
    rates, whole = train(12, name)
    first, half = train(12, name, stop=stop)
    rest, end = train(12, name, saved=half)
    assert first + rest == rates  # not almost
    a, b = (torch.load(io.BytesIO(file), weights_only=True) for file in (whole, end))
    assert all(torch.equal(a["model"][key], b["model"][key]) for key in a["model"])
    assert a["schedule"] == b["schedule"]
