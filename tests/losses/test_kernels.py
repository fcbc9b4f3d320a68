"""The compiled kernel beside plain PyTorch: the same numbers, an honest status, and a switch."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hace
from hace import DataError, HACELoss, HXELoss, build_loss
from hace.losses import kernels
from hace.losses.kernels import extension
from tests.hierarchies import ANIMALS, DIAMOND, KINDS, dags, forests, random_plain, trees
from tests.loss_cases import CASES, KERNEL, examples, logits, with_gradient

# What the kernel computes in float32, by hierarchy.
OF_DAGS = ["hce", "hace", "hace_smooth", "hace_soft", "hace_soft_depth"]
OF_LABELS = [
    *("conditional_softmax", "soft_label", "soft_label_edges"),
    *("simloss", "simloss_zero", "expected_distance", "expected_edges"),
]
SUPPORTED = [
    *(
        "hxe",
        "hxe_height",
        "hxe_tree",
        "hxe_height_tree",
        "hace_leaves",
        "hace_paths",
        "hxe_paths",
        "hce_unseen",
    ),
    *(*OF_DAGS, *OF_LABELS),
]
WIDE_CASES = ["hce", "hace", "hace_smooth", "hxe", "hace_leaves", "hace_paths", "soft_label", "simloss"]
SUMS = ["ce_paths", "soft_label_paths", "simloss_paths"]  # of which it computes the path sums alone


@pytest.fixture(autouse=True)
def kernel() -> Iterator[None]:
    with KERNEL.used():
        yield


def agree(case: str, h: hace.Hierarchy, z: torch.Tensor, target: torch.Tensor, **shared) -> None:
    loss = CASES[case].build(h, **shared)
    value, gradient = with_gradient(loss, z, target)
    with kernels.disabled():
        wanted, wanted_gradient = with_gradient(loss, z.double(), target)
    assert value.dtype == gradient.dtype == torch.float32
    KERNEL.close(value, wanted, case)
    KERNEL.close(gradient, wanted_gradient, case)


# ------------------------------------------------------------------ the same numbers


@examples(60)
@given(
    plain=st.one_of(trees(40), forests(40)),
    case=st.sampled_from(SUPPORTED + SUMS),
    labels=st.sampled_from(["leaves", "nodes"]),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    scale=st.sampled_from([1.0, 30.0, 1000.0]),
    weighted=st.booleans(),
)
def test_kernel_equals_pure(plain, case, labels, reduction, scale, weighted) -> None:
    h = plain.build()
    size = h.num_leaves if labels == "leaves" else h.num_nodes
    columns = len(CASES[case].columns(h))
    z = logits(size + 1, columns, seed=size, scale=scale).float()
    target = torch.cat([torch.arange(size), torch.tensor([-100])])
    weight = torch.linspace(0.5, 2.0, size).tolist() if weighted else None
    shared = {"labels": labels, "reduction": reduction, "weight": weight}
    agree(case, h, z, target, **shared)
    agree(case, h, z, logits(size + 1, size, seed=1).softmax(dim=1).float(), **shared)


@examples(30)
@given(
    plain=dags(40),
    case=st.sampled_from(OF_DAGS),
    reduction=st.sampled_from(["none", "mean"]),
    scale=st.sampled_from([1.0, 30.0, 1e4]),
)
def test_kernel_equals_pure_on_dags(plain, case, reduction, scale) -> None:
    h = plain.build()
    z = logits(h.num_nodes + 1, h.num_nodes, seed=h.num_nodes, scale=scale).float()
    if h.num_nodes > 1:
        z[0, -1] = -torch.inf  # a class that is masked out
    target = torch.cat([torch.arange(h.num_nodes), torch.tensor([-100])])
    weight = torch.linspace(0.5, 2.0, h.num_nodes).tolist()
    agree(case, h, z, target, labels="nodes", reduction=reduction, weight=weight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_equals_pure_at_every_width(kind: str) -> None:
    for size in (15, 16, 17, 31, 33, 600, 1100):  # around vectors of 16 and blocks of 512
        agree_at_width(kind, size, (*WIDE_CASES, *OF_LABELS))


def agree_at_width(kind: str, size: int, cases: Iterable[str], rows: tuple[int, ...] = (4,)) -> None:
    plain = random_plain(kind, size, max_nodes=size)
    h = plain.build()
    for case in cases:
        if not CASES[case].fits(plain) or (case in OF_LABELS and not h.is_tree):
            continue
        columns = len(CASES[case].columns(h))
        for scale, batch in itertools.product((1.0, 40.0), rows):
            y = torch.arange(batch) % h.num_leaves
            agree(case, h, logits(batch, columns, seed=size, scale=scale).float(), y, reduction="none")
    if not h.is_tree:
        return
    z = logits(max(rows), h.num_nodes, seed=size).float()
    with kernels.disabled():
        wanted = hace.node_log_probs(z.double(), h, "nodes")
    KERNEL.close(hace.node_log_probs(z, h, "nodes"), wanted)


@pytest.fixture
def levels() -> Iterator[int]:
    """How many kinds of vectors this processor has; the best one is used again afterwards."""
    yield len(extension.module.levels())
    extension.module.use_level(0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ragged", "star", "forest", "unary", "dag"])
def test_every_kind_of_vectors_computes_the_same(kind: str, levels: int) -> None:
    """Loops are compiled for several kinds of processors; each is used on the oldest, and in tests."""
    for level in range(levels):
        extension.module.use_level(level)
        for size in (5, 33, 120, 600):
            agree_at_width(kind, size, WIDE_CASES, rows=(3, 9, 17))


def test_levels_are_chosen_by_their_place(levels: int) -> None:
    assert extension.module.levels()[-1] == "portable"
    assert kernels.status() == f"compiled kernel (float32 on CPU, {extension.module.levels()[0]})"
    extension.module.use_level(levels - 1)
    assert kernels.status() == "compiled kernel (float32 on CPU, portable)"
    for none in (-1, levels, 2**40):
        with pytest.raises(ValueError, match="no such level"):
            extension.module.use_level(none)


@examples(40)
@given(plain=st.one_of(trees(40), forests(40)))
def test_each_column_knows_the_widest_subtree_around_it(plain) -> None:
    h = plain.build()
    head = HXELoss(h).head
    if head.column is None or head.branch is None:
        assert head.column is head.branch is None
        return
    ranges = list(zip(head.low.tolist(), head.high.tolist(), strict=True))
    for position, column in enumerate(head.column.tolist()):
        around = [
            (high - low, low) for low, high in ranges if low <= position < high and high - low < h.num_leaves
        ]
        assert head.branch[column] == max(around)[1]


def functions_of(value: torch.Tensor) -> set[str]:
    """Names of the autograd functions behind a value."""
    names, waiting = set(), [value.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is not None:
            names.add(type(function).__name__)
            waiting += [before for before, _ in function.next_functions]
    return names


def compiled_functions(case: str, plain=ANIMALS, dtype: torch.dtype = torch.float32) -> set[str]:
    h = plain.build()
    loss = CASES[case].build(h)
    z = logits(3, loss.num_outputs).to(dtype).requires_grad_()
    return functions_of(loss(z, torch.arange(3))) & {"_KernelLossBackward", "_PathSumsBackward"}


def test_the_kernel_is_what_computes() -> None:
    """Float32 goes through it; float64, and path sums and distances on DAGs, do not."""
    for case in SUPPORTED:
        assert compiled_functions(case) == {"_KernelLossBackward"}, case
    for case in SUMS:
        assert compiled_functions(case) == {"_PathSumsBackward"}, case
    for case in OF_DAGS:
        assert compiled_functions(case, DIAMOND) == {"_KernelLossBackward"}, case
    for case in ("hace_paths", "simloss", "hace_leaves"):
        assert compiled_functions(case, DIAMOND) == set(), case
    for case in ("ce_paths", "hace"):
        assert compiled_functions(case, dtype=torch.float64) == set(), case
    with kernels.disabled():
        assert compiled_functions("hace") == set()


# ------------------------------------------------------------------ status and switch


def test_status_and_switch() -> None:
    assert kernels.status().startswith("compiled kernel (float32 on CPU, ")
    with kernels.disabled():
        assert kernels.status() == "pure PyTorch: kernel switched off"
        with kernels.disabled():
            pass
        assert kernels.status() == "pure PyTorch: kernel switched off"
    assert kernels.status().startswith("compiled")
    with pytest.raises(KeyError), kernels.disabled():
        raise KeyError
    assert kernels.status().startswith("compiled"), "an error within the block switches it on again"


def run(code: str, **environment: str) -> str:
    source = str(Path(hace.__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": source, **environment}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, check=True, text=True, env=variables, timeout=120)
    return result.stdout.strip()


@pytest.mark.slow
def test_the_environment_switches_it_off() -> None:
    code = "import hace; print(hace.losses.kernels.status()); hace.show_config()"
    off = run(code, HACE_KERNEL="0")
    assert off.count("pure PyTorch: kernel switched off") == 2
    assert run(code, HACE_KERNEL="1").count("compiled kernel") == 2


@pytest.mark.slow
def test_without_a_built_kernel_everything_works() -> None:
    code = (
        "import sys; sys.modules['hace.losses.kernels._kernels'] = None\n"
        "import hace, torch\n"
        "print(hace.losses.kernels.status())\n"
        "loss = hace.HACELoss(hace.Hierarchy.flat(['a', 'b']))\n"
        "print(round(loss(torch.zeros(1, 2), torch.tensor([0])).item(), 4))"
    )
    status, value = run(code).splitlines()
    assert status.startswith("pure PyTorch: kernel not built")
    assert value == "0.6931"


# What the package uses of torch's private names: a version that lacks one leaves plain PyTorch.
PRIVATE = (
    "torch._C._dispatch_keys",
    "torch._C._dispatch_tls_local_include_set",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.function._SingleLevelFunction",
)
WITHOUT = """
import operator, torch, torch.autograd.forward_ad, torch.autograd.function
owner, _, name = {private!r}.removeprefix("torch.").rpartition(".")
delattr(operator.attrgetter(owner)(torch), name)
import hace
print(hace.losses.kernels.status())
h = hace.Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "persian")])
for loss in ("hace", "hxe", "simloss", "cross_entropy_paths"):
    loss = hace.build_loss(loss, h)
    layer = torch.nn.Linear(2, loss.num_outputs)
    z = layer(torch.ones(3, 2))
    loss(z, torch.tensor([0, 1, 2])).backward()
    loss(z.detach(), torch.eye(3))
    loss.linear(torch.ones(3, 2), layer.weight, layer.bias, torch.tensor([0, 1, 2])).backward()
    assert layer.weight.grad.isfinite().all()
hace.predict(torch.randn(3, 3), h, "cost")
print(round(hace.HACELoss(h)(torch.zeros(1, 5), torch.tensor([0])).item(), 4))
"""


@pytest.mark.slow
@pytest.mark.parametrize("private", PRIVATE)
def test_without_a_private_name_of_torch_everything_works(private: str) -> None:
    status, value = run(WITHOUT.format(private=private)).splitlines()
    assert status.startswith(f"pure PyTorch: kernel cannot check tensors with torch {torch.__version__}")
    assert private.rpartition(".")[2] in status
    assert value == "1.0601"


# ------------------------------------------------------------------ what must not reach C


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bad", [4, -1, 2**40, -(2**40)])
def test_a_bad_label_is_an_error_and_not_a_crash(smoothing: float, bad: int) -> None:
    loss = HACELoss(ANIMALS.build(), 0.5, smoothing)
    target = torch.tensor([0, 1, bad])
    with pytest.raises(DataError, match=rf"labels from 0 to 3 \(or ignore_index=-100\). Got {bad}"):
        loss(torch.zeros(3, 7, requires_grad=True), target)
    if not hasattr(torch.compiler, "is_exporting"):  # before torch 2.7 the kernel is in no graph
        return
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    with pytest.raises(DataError, match=f"Got {bad}"):
        compiled(torch.zeros(3, 7), target)


def test_wrong_calls_of_the_extension_are_python_errors() -> None:
    names = ("path_loss", "path_sum_loss", "path_sums", "dense_loss", "node_log_probs")
    for name in (*names, "dag_loss", "sibling_loss", "lca_group_loss"):
        with pytest.raises(TypeError, match=f"{name} takes"):
            getattr(extension.module, name)(1, 2)


def test_a_batch_is_independent_of_its_neighbours() -> None:
    """Rows with small and large ranges, ignored ones and nan in one batch, each as if alone."""
    h = ANIMALS.build()
    z = logits(6, 7).float().clone()
    z[1] *= 1e4
    z[2] = torch.nan
    z[4, 3] = -300.0
    y = torch.tensor([0, 1, 2, -100, 3, 0])
    for loss in (
        HACELoss(h, 0.5, reduction="none"),
        HACELoss(h, 0.5, 0.1, reduction="none"),
        HACELoss(h, 0.5, outputs="paths", reduction="none"),
    ):
        value, gradient = with_gradient(loss, z, y)
        for i in range(6):
            alone = z[i : i + 1].clone().requires_grad_()
            result = loss(alone, y[i : i + 1])
            upstream = torch.linspace(1.0, 2.0, 6)[i : i + 1]
            (slope,) = torch.autograd.grad(result, alone, upstream)
            torch.testing.assert_close(value[i : i + 1], result.detach(), rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(gradient[i : i + 1], slope, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_logits_are_not_written_to() -> None:
    for loss in (
        build_loss("hace", ANIMALS.build()),
        HXELoss(ANIMALS.build()),
        HACELoss(ANIMALS.build(), 0.5, 0.1),
        HACELoss(ANIMALS.build(), outputs="paths"),
    ):
        z = logits(4, loss.num_outputs).float().clone()
        before = z.clone()
        with_gradient(loss, z, torch.arange(4))
        loss.node_log_probs(z)
        assert torch.equal(z, before)


FORKED = """
import os, torch
import hace

h = hace.Hierarchy.from_parents([-1] + [v // 3 for v in range(9_000)])
loss, z, target = hace.HACELoss(h, 0.5), torch.randn(64, h.num_nodes), torch.arange(64)
torch.set_num_threads(1)
alone = loss(z, target).item()
torch.set_num_threads(2)
assert loss(z, target).item() == alone
child = os.fork()
if child == 0:
    os._exit(0 if loss(z, target).item() == alone else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert loss(z, target).item() == alone
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_computes_without_its_parents_threads() -> None:
    run(FORKED)
