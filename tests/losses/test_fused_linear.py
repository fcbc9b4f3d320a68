"""`loss.linear`, the last layer and the loss in one, against the plain form: values, gradients, memory.

Chunks are tiny here, so that small hierarchies have many of them and paths are cut wherever they can be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hace import CrossEntropyLoss, DataError, HACELoss, Hierarchy, HXELoss
from hace.losses import fused_linear
from hace.losses.base import HierarchicalLoss
from tests.hierarchies import KINDS, NAMED, random_plain
from tests.loss_cases import CASES, each_loss, every_case, examples, fitting, logits
from tests.losses.test_extremes import HARD, OUT, PATTERNS, rows_of
from tests.reference import structure

SHAPES = ("ragged", "forest", "flat", "chain", "one_node", "dag_forest")


@pytest.fixture(autouse=True)
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_linear, "_ENTRIES", 8)
    monkeypatch.setattr(fused_linear, "_NARROWEST", 2)
    monkeypatch.setattr(fused_linear, "_SAMPLE_ENTRIES", 40)


def layer(loss: HierarchicalLoss, dtype: torch.dtype, batch: int = 6, width: int = 4) -> list[Tensor]:
    """(features, weight, bias) that want gradients."""
    shapes = ((batch, width), (loss.num_outputs, width), (1, loss.num_outputs))
    made = [logits(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes)]
    return [made[0].requires_grad_(), made[1].requires_grad_(), made[2][0].clone().requires_grad_()]


def gradients(value: Tensor, given: Sequence[Tensor]) -> list[Tensor]:
    """The value, and the gradients of a sum that weights every entry differently."""
    upstream = torch.linspace(1.0, 2.0, value.numel(), dtype=value.dtype).reshape(value.shape)
    return [value.detach(), *torch.autograd.grad((value * upstream).sum(), given)]


def same(loss: HierarchicalLoss, given: Sequence[Tensor], target: Tensor, **tolerance: Any) -> None:
    x, w, b = given
    gradients_of = gradients(loss.linear(x, w, b, target), given)
    wanted = gradients(loss(F.linear(x, w, b), target), given)
    for one, other in zip(gradients_of, wanted, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.slow
@every_case
def test_equals_the_plain_form(case: str) -> None:
    """Labels and soft targets, class weights, ignored samples, every reduction."""
    for name in (name for fits, name in fitting(*SHAPES) if fits == case):
        h = NAMED[name].build()
        y = torch.arange(6) % h.num_leaves
        soft = logits(6, h.num_leaves, seed=3).softmax(dim=1)
        for reduction in ("mean", "sum", "none"):
            weight = 0.5 + torch.arange(h.num_leaves)
            loss = CASES[case].build(h, reduction=reduction, weight=weight, ignore_index=-1)
            given = layer(loss, torch.float64)
            for target in (y, torch.where(torch.arange(6) == 2, -1, y), soft):
                same(loss, given, target, rtol=1e-9, atol=1e-9)
        same(CASES[case].build(h), layer(CASES[case].build(h), torch.float32), y, rtol=1e-4, atol=1e-5)


@examples(40)
@given(st.sampled_from(KINDS), st.integers(0, 10_000), st.integers(2, 5))
def test_random_hierarchies_and_chunks(kind: str, seed: int, narrowest: int) -> None:
    h = random_plain(kind, seed).build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_linear, "_NARROWEST", narrowest)
        for outputs in ("nodes", "leaves"):
            loss = HACELoss(h, 0.3, outputs=outputs, labels="nodes", reduction="none")
            y = torch.randint(h.num_nodes, (6,), generator=torch.Generator().manual_seed(seed))
            same(loss, layer(loss, torch.float64), y, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ce", "hce", "hace", "hace_leaves", "hxe"])
def test_extreme_logits(case: str) -> None:
    """A feature of 1 makes the weights the logits; the plain form is held to sixty digits elsewhere."""
    for name in (n for n in HARD if CASES[case].fits(HARD[n])):
        h = HARD[name].build()
        loss, ids = CASES[case].build(h, reduction="none"), CASES[case].columns(h)
        for label, pattern in itertools.product((0, h.num_leaves - 1), PATTERNS + OUT):
            z = rows_of(pattern, ids, structure.ancestors(HARD[name], h.leaves[label]), seed=label).float()
            weight, bias = z.clamp(min=-1e5), torch.where(z.isinf(), -torch.inf, 0.0)  # a class that is out
            weight.requires_grad_()
            y = torch.tensor([label])
            gradients_of = gradients(loss.linear(torch.ones(1, 1), weight[:, None], bias, y), [weight])
            wanted = gradients(loss((weight + bias)[None], y), [weight])
            for one, other in zip(gradients_of, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@each_loss
def test_first_and_second_derivatives(case: str) -> None:
    loss = CASES[case].build(NAMED["animals"].build())
    given, y = layer(loss, torch.float64, batch=3, width=2), torch.tensor([0, -100, 3])
    assert torch.autograd.gradcheck(lambda *t: loss.linear(*t, y), given)
    assert torch.autograd.gradgradcheck(lambda *t: loss.linear(*t, y), given)


@pytest.mark.parametrize("case", ["ce", "hace", "hace_smooth", "hxe"])
def test_autocast_and_half_precision(case: str) -> None:
    loss = CASES[case].build(NAMED["ragged"].build())
    given, y = layer(loss, torch.float32), torch.tensor([0, 1, 2, 3, -100, 5])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(loss, given, y, rtol=2e-2, atol=2e-2)
        assert loss.linear(*given, y).dtype is torch.float32
    narrow = [t.detach().bfloat16().requires_grad_() for t in given]
    same(loss, narrow, y, rtol=2e-2, atol=2e-2)


def test_shapes_parts_and_empty_batches() -> None:
    h = NAMED["ragged"].build()
    for loss in (HACELoss(h, 0.5, reduction="none"), HACELoss(h, 0.5, 0.1, reduction="none")):
        x, w, b = layer(loss, torch.float64)
        y = torch.arange(6)
        wanted = loss(F.linear(x, w), y)
        result = loss.linear(x.view(2, 3, 4), w, None, y.view(2, 3))
        torch.testing.assert_close(result, wanted.view(2, 3))
        torch.testing.assert_close(loss.linear(x[0], w, None, y[0]), wanted[0])
        transposed = w.detach().t().contiguous().t().requires_grad_()
        (slope,) = torch.autograd.grad(loss.linear(x.detach(), transposed, None, y).sum(), transposed)
        torch.testing.assert_close(slope, torch.autograd.grad(wanted.sum(), w)[0])
        empty = loss.linear(x[:0], w, b, y[:0])
        assert empty.shape == (0,)
        assert torch.autograd.grad(empty.sum(), w)[0].abs().sum() == 0


def test_nan_stays_in_its_sample() -> None:
    loss = HACELoss(NAMED["ragged"].build(), reduction="none")
    x, w, b = layer(loss, torch.float32)
    x = x.detach().index_fill(0, torch.tensor([2]), torch.nan)
    assert loss.linear(x, w, b, torch.arange(6)).isnan().tolist() == [False, False, True, False, False, False]


def test_wrong_shapes_and_labels() -> None:
    loss = CrossEntropyLoss(Hierarchy.flat(["a", "b", "c"]))
    x, w = torch.zeros(2, 4), torch.zeros(3, 4)
    with pytest.raises(DataError, match=r"weight \(3, d\), one row per output. Got \(2, 4\) and \(4, 4\)"):
        loss.linear(x, torch.zeros(4, 4), None, torch.zeros(2, dtype=torch.long))
    with pytest.raises(DataError, match=r"bias must be \(3,\) or None. Got \(4,\)"):
        loss.linear(x, w, torch.zeros(4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(DataError, match="labels from 0 to 2"):
        loss.linear(x, w, None, torch.tensor([0, 3]))
    with pytest.raises(DataError, match="shape of input without its class dimension"):
        loss.linear(x, w, None, torch.tensor([0, 1, 2]))


@pytest.mark.slow
def test_compiled_it_is_the_plain_form() -> None:
    loss = HXELoss(NAMED["ragged"].build())
    given, y = layer(loss, torch.float32), torch.arange(6)
    torch.compiler.reset()
    fast = torch.compile(lambda *t: loss.linear(*t, y), fullgraph=True, backend="aot_eager")
    for one, other in zip(
        gradients(fast(*given), given), gradients(loss.linear(*given, y), given), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.fixture
def usual_chunks(tiny_chunks: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_linear, "_ENTRIES", 1 << 14)
        patch.setattr(fused_linear, "_NARROWEST", 128)
        patch.setattr(fused_linear, "_SAMPLE_ENTRIES", 1 << 14)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_memory_of_the_size_of_the_logits(usual_chunks: None, smoothing: float) -> None:
    h = Hierarchy.from_paths([(f"g{i // 64}", str(i)) for i in range(4096)])
    loss = HACELoss(h, 0.5, smoothing)
    x, w, b = layer(loss, torch.float32, batch=256, width=2)
    y = torch.arange(256)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        loss.linear(x, w, b, y).backward()
    largest = max(event.self_cpu_memory_usage for event in seen.events())
    assert largest < 0.1 * 4 * 256 * loss.num_outputs, "bytes that one operation took"
