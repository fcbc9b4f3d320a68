"""Losses among torch's tools: compile, export, second derivatives, DDP, torch.func, threads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import hace
from hace import HACELoss, Hierarchy, build_loss
from hace.losses import kernels
from tests.hierarchies import NAMED
from tests.loss_cases import (
    CASES,
    KERNEL,
    ONE_OF_EACH,
    PURE,
    Form,
    each_loss,
    fitting,
    in_each_form,
    logits,
    with_gradient,
)
from tests.processes import run_ranks


@pytest.fixture(params=[KERNEL, PURE], ids=["kernel", "pure"])
def form(request: pytest.FixtureRequest) -> Iterator[Form]:
    with request.param.used():
        yield request.param


# ------------------------------------------------------------------ compile


def compiled_equals_eager(loss: nn.Module, z: Tensor, target: Tensor, backend: str) -> None:
    torch.compiler.reset()
    fast = torch.compile(loss, fullgraph=True, backend=backend)
    value, gradient = with_gradient(loss, z, target)  # type: ignore[arg-type]
    z = z.clone().requires_grad_()
    result = fast(z, target)
    (slope,) = torch.autograd.grad(result, z)
    torch.testing.assert_close(result.detach(), value, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slope, gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast(z.detach(), target), value, rtol=1e-6, atol=1e-6)


# By the kernel; the others compile to the same graph without it.
SUPPORTED = ("hxe", "hce", "hace", "ce_paths", "simloss", "expected_distance", "conditional_softmax")
COMPILED = [(case, PURE) for case in ONE_OF_EACH] + [
    (case, KERNEL) for case in ONE_OF_EACH if case.startswith(SUPPORTED)
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "used"), COMPILED, ids=[f"{case}-{form.name}" for case, form in COMPILED])
def test_compiled_equals_eager(case: str, used: Form) -> None:
    with used.used():
        check_compiled(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tree", "dag"])
@pytest.mark.parametrize("case", ["hace", "hace_smooth", "simloss", "conditional_softmax", "ce"])
def test_a_graph_holds_the_kernel_as_one_operator(case: str, name: str) -> None:
    plain = NAMED["ragged" if name == "tree" else "dag_forest"]
    if not CASES[case].fits(plain) or not kernels.status().startswith("compiled"):
        pytest.skip("nothing to hold")
    loss, held = CASES[case].build(plain.build()), []

    def look(graph: Any, inputs: Any) -> Any:
        held.extend(str(node.target) for node in graph.graph.nodes if "hace." in str(node.target))
        return graph.forward

    torch.compiler.reset()
    z = logits(3, loss.num_outputs).float()
    torch.compile(loss, fullgraph=True, backend=look)(z, torch.arange(3))
    by_torch = case == "ce" or (case == "simloss" and name == "dag")
    assert held == ([] if by_torch else ["hace.loss.default"])


def check_compiled(case: str) -> None:
    h = NAMED["ragged"].build()
    loss = CASES[case].build(h, weight=[0.5, 1, 2, 1, 1, 3, 1])
    y = torch.tensor([0, 1, 2, -100, 4, 5, 6])
    compiled_equals_eager(loss, logits(7, loss.num_outputs).float(), y, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["hace_smooth", "hace_soft"])
def test_compiled_soft_targets_and_dags(case: str, form: Form) -> None:
    soft = logits(4, 7, seed=1).softmax(dim=1).float()
    loss = CASES[case].build(NAMED["ragged"].build())
    compiled_equals_eager(loss, logits(4, loss.num_outputs).float(), soft, "aot_eager")
    loss = CASES[case].build(NAMED["dag_forest"].build())
    compiled_equals_eager(loss, logits(5, loss.num_outputs).float(), torch.arange(5), "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    ("case", "used"),
    [
        pytest.param(
            case,
            used,
            id=f"{case}-{used.name}",
            marks=[] if (case, used) == ("hace", PURE) else pytest.mark.long,
        )
        for case in ("hace", "hace_smooth", "hxe")
        for used in (PURE, KERNEL)
    ],
)
def test_compiled_to_machine_code(case: str, used: Form) -> None:
    """Plain PyTorch alone has something to compile: the kernel stays one operator."""
    loss = CASES[case].build(NAMED["ragged"].build())
    with used.used():
        compiled_equals_eager(loss, logits(7, loss.num_outputs).float(), torch.arange(7), "inductor")


@pytest.mark.slow
def test_a_compiled_training_step(form: Form) -> None:
    h = NAMED["ragged"].build()
    loss = HACELoss(h, 0.5)

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.loss = nn.Linear(3, loss.num_outputs), loss

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(self.layer(x), y)

    torch.manual_seed(0)
    step = Step()
    x, y = logits(7, 3).float(), torch.arange(7)
    step(x, y).backward()
    wanted = step.layer.weight.grad
    step.layer.weight.grad = None
    torch.compiler.reset()
    torch.compile(step, fullgraph=True, backend="aot_eager")(x, y).backward()
    torch.testing.assert_close(step.layer.weight.grad, wanted)


# ------------------------------------------------------------------ export


class Answers(nn.Module):
    """What a deployed model gives: log q* of the nodes and logits of the classes."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss.node_log_probs(z), self.loss.leaf_logits(z)


# A loss of each kind of outputs; the others give the same answers by the same code.
EXPORTED = ("hace", "ce", "ce_paths", "conditional_softmax", "levelwise", "class_embedding")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(*pair, marks=[] if pair[0] in EXPORTED else pytest.mark.long)
        for pair in fitting("ragged", "dag_forest")
        if pair[0] in ONE_OF_EACH
    ],
)
def test_export_of_the_answers(case: str, name: str) -> None:
    module = Answers(CASES[case].build(NAMED[name].build())).eval()
    z = logits(3, module.loss.num_outputs).float()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (z,), dynamic_shapes=({0: batch},))
    assert not any("hace" in str(node.target) for node in program.graph.nodes), "plain torch operators only"
    more = logits(5, module.loss.num_outputs, seed=1).float()
    for result, wanted in zip(program.module()(more), module(more), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ derivatives


@pytest.mark.parametrize(
    ("case", "name"), [pair for pair in fitting("animals", "diamond") if pair[0] in ONE_OF_EACH]
)
def test_second_derivatives_in_double_precision(case: str, name: str) -> None:
    h = NAMED[name].build()
    loss = CASES[case].build(h)
    z = logits(h.num_leaves, loss.num_outputs, scale=1.0).clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z: loss(z, torch.arange(h.num_leaves)), z)


@each_loss
@in_each_form
def test_learnt_sample_weights(case: str, form: Form) -> None:
    """Learning to reweight: weights of 0 and 1, and how a step with them would move another loss."""
    dtype = form.dtype
    h = NAMED["ragged"].build()
    loss = CASES[case].build(h, reduction="none")
    z = logits(7, loss.num_outputs).to(dtype).requires_grad_()
    weight = torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0, 1.0, 1.0], dtype=dtype, requires_grad=True)
    value = loss(z, torch.arange(7))
    (gradient,) = torch.autograd.grad((weight * value).sum(), z, create_graph=True)
    direction = logits(7, loss.num_outputs, seed=1).to(dtype)
    (result,) = torch.autograd.grad((gradient * direction).sum(), weight)
    (each,) = torch.autograd.grad(loss(z, torch.arange(7)).sum(), z)
    torch.testing.assert_close(result, (each * direction).sum(dim=1), rtol=1e-4, atol=1e-5)


@each_loss
@in_each_form
def test_second_derivatives_in_single_precision(case: str, form: Form) -> None:
    """A penalty on the gradient, as some regularisers have it, against float64."""
    h = NAMED["ragged"].build()
    for target in (torch.arange(7), logits(7, 7, seed=1).softmax(dim=1)):
        slopes = []
        for dtype in (torch.float32, torch.float64):
            loss = CASES[case].build(h, reduction="sum")
            z = logits(7, loss.num_outputs).to(dtype).requires_grad_()
            (gradient,) = torch.autograd.grad(loss(z, target), z, create_graph=True)
            (slope,) = torch.autograd.grad(gradient.square().sum(), z)
            slopes.append(slope.double())
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


@each_loss
@in_each_form
def test_a_graph_kept_and_used_twice(case: str, form: Form) -> None:
    h = NAMED["ragged"].build()
    loss = CASES[case].build(h, reduction="none")
    for target in (torch.arange(7), torch.eye(7)):
        z = logits(7, loss.num_outputs).float().requires_grad_()
        value = loss(z, target)
        upstream = torch.linspace(0.5, 2.0, 7)
        (first,) = torch.autograd.grad(value, z, upstream, retain_graph=True)
        (second,) = torch.autograd.grad(value, z, 2 * upstream, retain_graph=True)
        (third,) = torch.autograd.grad(value, z, torch.ones(7))
        torch.testing.assert_close(second, 2 * first)
        torch.testing.assert_close(third * upstream[:, None], first, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning"
)  # torch's own, in its first forward derivative
@each_loss
@in_each_form
def test_torch_func(case: str, form: Form) -> None:
    h = NAMED["ragged"].build()
    loss = CASES[case].build(h, reduction="sum")
    z, y = logits(7, loss.num_outputs).float(), torch.arange(7)
    _, wanted = with_gradient(loss, z, y)
    torch.testing.assert_close(torch.func.grad(loss)(z, y), wanted, rtol=1e-5, atol=1e-6)
    tangent = logits(7, loss.num_outputs, seed=1).float()
    _, slope = torch.func.jvp(lambda z: loss(z, y), (z,), (tangent,))
    torch.testing.assert_close(slope, (wanted * tangent).sum(), rtol=1e-4, atol=1e-5)


def test_inputs_that_are_views(form: Form) -> None:
    h = NAMED["ragged"].build()
    loss = HACELoss(h, 0.5, reduction="none")
    z, y = logits(7, loss.num_outputs).float(), torch.arange(7)
    wanted, gradient = with_gradient(loss, z, y)
    wide = torch.zeros(7, 2 * loss.num_outputs)
    wide[:, ::2] = z
    views = [(wide[:, ::2], y), (z.t().contiguous().t(), y), (z, y.repeat_interleave(2)[::2])]
    for view, labels in views:
        value, slope = with_gradient(loss, view, labels)
        assert torch.equal(value, wanted)
        assert torch.equal(slope, gradient)


# ------------------------------------------------------------------ threads and processes


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_results_do_not_depend_on_threads(smoothing: float, form: Form) -> None:
    above = np.arange(3000) - np.random.default_rng(0).integers(1, 300, 3000)
    h = Hierarchy.from_parents(np.where(np.arange(3000) == 0, -1, np.maximum(above, 0)))
    loss = HACELoss(h, 0.5, smoothing, reduction="none")
    z = logits(64, 3000).float()  # enough work for a second thread
    y = torch.arange(64)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append((*with_gradient(loss, z, y), hace.node_log_probs(z, h, "nodes")))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


class Model(nn.Module):
    """A layer and its loss in one module, as trainers have it."""

    def __init__(self, loss: nn.Module, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss = nn.Linear(3, columns), loss

    def forward(self, x: Tensor, y: Tensor, at_once: bool = False) -> Tensor:
        if at_once:
            return self.loss.linear(x, self.layer.weight, self.layer.bias, y)  # type: ignore[operator]
        return self.loss(self.layer(x), y)


def _save_gradients(rank: int, folder: str, case: str) -> None:
    loss = CASES[case].build(NAMED["ragged"].build())
    model = nn.parallel.DistributedDataParallel(Model(loss, loss.num_outputs))
    x, y = logits(8, 3).float(), torch.arange(8) % 7
    model(x[rank::2], y[rank::2]).backward()
    if rank == 0:
        torch.save(model.module.layer.weight.grad, f"{folder}/{case}.pt")
    model.zero_grad()
    model(x[rank::2], y[rank::2], at_once=True).backward()
    if rank == 0:
        torch.save(model.module.layer.weight.grad, f"{folder}/{case}_linear.pt")


def train_in_two_processes(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        for case in ONE_OF_EACH:
            _save_gradients(rank, folder, case)
    finally:
        # The models' hold on the group ends here, so that destroying it waits for its threads. One that still holds a
        # tensor while the interpreter ends would abort the process.
        gc.collect()
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    run_ranks(train_in_two_processes, str(tmp_path))
    for case in ONE_OF_EACH:
        loss = CASES[case].build(NAMED["ragged"].build())
        model = Model(loss, loss.num_outputs)
        model(logits(8, 3).float(), torch.arange(8) % 7).backward()
        for file in (f"{case}.pt", f"{case}_linear.pt"):
            torch.testing.assert_close(
                torch.load(tmp_path / file, weights_only=True), model.layer.weight.grad
            )


def test_build_loss_gives_modules_that_move(form: Form) -> None:
    loss = build_loss("hace", NAMED["ragged"].build(), label_smoothing=0.1)
    on_meta = loss.to("meta")
    assert {buffer.device.type for buffer in on_meta.buffers()} == {"meta"}
