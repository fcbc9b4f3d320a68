"""Logits of 1e4, outputs of -inf, degenerate and enormous hierarchies, half precision: finite and right.

The reference is mpmath with sixty digits, fed the very numbers that the loss gets. Float32 must come within 1e-5
relative (2e-6 absolute) of it, in value and gradient, at every magnitude; nothing is allowed for the gap.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import hace
from hace import ClassEmbeddingLoss, CrossEntropyLoss, HACELoss, HCELoss, Hierarchy, HXELoss, SimLoss
from hace.losses import kernels
from tests.hierarchies import NAMED, plain
from tests.loss_cases import (
    CASES,
    KERNEL,
    PURE,
    Form,
    each_loss,
    every_case,
    in_each_form,
    logits,
    with_gradient,
)
from tests.reference import losses as oracle
from tests.reference import structure

HARD = {
    "ragged": NAMED["ragged"],  # a leaf below the root beside leaves six levels down
    "unary": NAMED["unary"],
    "chain": NAMED["chain"],
    "one_leaf": NAMED["one_leaf"],
    "one_node": NAMED["one_node"],
    "forest": NAMED["forest"],
    "flat": NAMED["flat"],
    "dag_forest": NAMED["dag_forest"],
    "wide": plain(["root: a b", f"a: {' '.join(f'a{i}' for i in range(18))}", "b: b1 b2"]),
}
SMOOTH = {case for case in CASES if "smooth" in case or "soft_" in case or case.endswith("_soft")}
SMOOTH |= {"class_embedding"}  # which has no use for an output of -inf


def rows_of(pattern: str, ids: tuple[str, ...], path: set[str], seed: int) -> Tensor:
    """One row of extreme logits that float32 holds exactly."""
    on_path = torch.tensor([v in path for v in ids])
    noise = logits(1, len(ids), seed, scale=1.0)[0]
    turns = torch.tensor([1e4 if i % 2 else -1e4 for i in range(len(ids))]).double()
    return {
        "plus_and_minus_1e4": turns,
        "against_the_path": torch.where(on_path, -1e4, noise),
        "for_the_path": torch.where(on_path, 1e4, noise),
        "path_apart_from_itself": torch.where(on_path, turns, noise),
        "far_from_zero": (1e4 + noise).float().double(),
        "far_below_zero": (noise - 1e4).float().double(),
        "range_of_50": noise * 16,
        "range_of_100": (noise * 40).float().double(),
        "range_of_1e4": (noise * 4000).float().double(),
        "others_out": torch.where(on_path | (noise > 0), noise, -torch.inf),
        "others_out_far_below_zero": torch.where(on_path | (noise > 0), noise - 300, -torch.inf)
        .float()
        .double(),
        "all_others_out": torch.where(on_path, noise, -torch.inf),
    }[pattern]


PATTERNS = [
    "plus_and_minus_1e4",
    "against_the_path",
    "for_the_path",
    "path_apart_from_itself",
    "far_from_zero",
    "far_below_zero",
    "range_of_50",
    "range_of_100",
    "range_of_1e4",
]
OUT = ["others_out", "others_out_far_below_zero", "all_others_out"]


@cache
def expected(
    case: str, name: str, pattern: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, list[float], list[list[float]]]:
    """(logits, labels, values, gradients) for the first and the last class."""
    h, graph = HARD[name].build(), HARD[name]
    ids = CASES[case].columns(h)
    chosen = sorted({0, h.num_leaves - 1})
    rows, values, gradients = [], [], []
    for y in chosen:
        row = rows_of(pattern, ids, structure.ancestors(graph, h.leaves[y]), seed=3 * y + len(name))
        value, gradient = CASES[case].precise(graph, ids, row, h.leaves[y], dtype)
        rows.append(row)
        values.append(value)
        gradients.append(gradient)
    return torch.stack(rows), torch.tensor(chosen), values, gradients


def cases_for(case: str, patterns: list[str], part: int) -> list[tuple[str, str]]:
    """A sixth of all pairs of hierarchy and pattern, in which each of them has its share."""
    pairs = enumerate(itertools.product(HARD, patterns))
    chosen = (pair for i, pair in pairs if (i + i // len(patterns)) % 6 == part)
    return [(name, pattern) for name, pattern in chosen if CASES[case].fits(HARD[name])]


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.long) for i in range(1, 6))])
@every_case
@in_each_form
def test_extreme_logits(case: str, form: Form, part: int) -> None:
    for name, pattern in cases_for(case, PATTERNS if case in SMOOTH else PATTERNS + OUT, part):
        z, y, values, gradients = expected(case, name, pattern, form.dtype)
        loss = CASES[case].build(HARD[name].build(), reduction="none")
        z = z.to(form.dtype).requires_grad_()
        value = loss(z, y)
        form.close(value, values, name, pattern)
        (gradient,) = torch.autograd.grad(value.sum(), z)
        form.close(gradient, gradients, name, pattern)
        soft = loss(z, torch.eye(loss.num_labels, dtype=form.dtype)[y])
        form.close(soft, values, name, pattern, "soft")
        (gradient,) = torch.autograd.grad(soft.sum(), z)
        form.close(gradient, gradients, name, pattern, "soft")


@pytest.mark.parametrize("name", HARD)
@in_each_form
def test_extreme_log_probs(name: str, form: Form) -> None:
    graph, h = HARD[name], HARD[name].build()
    for outputs in ("nodes", "leaves"):
        ids = h.nodes if outputs == "nodes" else h.leaves
        for pattern in PATTERNS + OUT:
            row = rows_of(pattern, ids, structure.ancestors(graph, h.leaves[0]), seed=1)
            result = oracle.node_log_probs(graph, oracle.columns(ids, row.tolist()))
            z = row[None].to(form.dtype)
            wanted = [[result[v] for v in h.nodes]]
            form.close(hace.node_log_probs(z, h, outputs), wanted, outputs, pattern)
            z.requires_grad_()
            log_q = hace.node_log_probs(z, h, outputs)
            form.close(log_q, wanted, outputs, pattern, "with gradient")
            (gradient,) = torch.autograd.grad(log_q[log_q > -torch.inf].sum(), z)
            assert gradient.isfinite().all(), (outputs, pattern)


@pytest.mark.slow
@every_case
def test_half_precision(case: str) -> None:
    """Logits in half precision, by themselves and under autocast: computed in float32, gradient in half."""
    graph, h = HARD["ragged"], HARD["ragged"].build()
    ids = CASES[case].columns(h)
    loss = CASES[case].build(h, reduction="none")
    patterns = PATTERNS if case in SMOOTH else PATTERNS + OUT
    for pattern, dtype in itertools.product(patterns, (torch.bfloat16, torch.float16)):
        row = rows_of(pattern, ids, structure.ancestors(graph, h.leaves[0]), seed=2).to(dtype)
        value, gradient = CASES[case].precise(graph, ids, row, h.leaves[0], torch.float32)
        for autocast in (False, True):
            for used in (KERNEL.used, PURE.used):
                with used(), torch.autocast("cpu", dtype=dtype, enabled=autocast):
                    z = row[None].clone().requires_grad_()
                    result = loss(z, torch.tensor([0]))
                    log_q = loss.node_log_probs(z.detach())
                assert result.dtype == log_q.dtype == torch.float32
                PURE.close(result, [value], pattern, autocast)
                (slope,) = torch.autograd.grad(result.sum(), z)
                assert slope.dtype == dtype
                wanted = torch.tensor([gradient], dtype=torch.float64)
                rtol = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
                torch.testing.assert_close(slope.double(), wanted, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_step_under_autocast(dtype: torch.dtype, form: Form) -> None:
    h = HARD["ragged"].build()
    loss = HACELoss(h, 0.5, 0.1)
    model = torch.nn.Linear(4, loss.num_outputs)
    x, y = logits(7, 4).float(), torch.arange(7)
    with torch.autocast("cpu", dtype=dtype):
        z = model(x)
        value = loss(z, y)
    assert z.dtype == dtype
    torch.testing.assert_close(value, loss(z.float(), y))
    value.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.isfinite().all()


# ------------------------------------------------------------------ nan in, nan out


@pytest.mark.slow
@each_loss
@in_each_form
def test_nan_shows(case: str, form: Form) -> None:
    for name in ("ragged", "wide"):
        h = HARD[name].build()
        loss = CASES[case].build(h, reduction="none")
        # Other groups of siblings, or the root's output, do not matter: take one on the path.
        inert = case in ("conditional_softmax", "levelwise")
        for column in [h.leaf_nodes[0]] if inert else range(loss.num_outputs):
            z = logits(2, loss.num_outputs).to(form.dtype).clone()
            z[0, int(column)] = torch.nan
            value, gradient = with_gradient(loss, z, torch.tensor([0, 0]))
            assert value.isnan().tolist() == [True, False], (name, column)
            assert gradient[0].isnan().any()
            assert gradient[1].isfinite().all()
            if not inert:
                assert loss.node_log_probs(z).isnan().any(dim=1).tolist() == [True, False]
            soft = loss(z, torch.eye(h.num_leaves)[[0, 0]])
            assert soft.isnan().tolist() == [True, False], (name, column)


def test_an_impossible_label_costs_infinity(form: Form) -> None:
    h = HARD["ragged"].build()
    for loss in (HCELoss(h), HACELoss(h, 0.5), CrossEntropyLoss(h), HXELoss(h, 0.0), SimLoss(h, 0.0)):
        z = torch.zeros(1, loss.num_outputs, dtype=form.dtype)
        z[0, 0 if loss.num_outputs == h.num_leaves else h.leaf_nodes[0]] = -torch.inf
        assert loss(z, torch.tensor([0])).item() == torch.inf, loss


@pytest.mark.parametrize("name", ["ragged", "forest"])
@in_each_form
def test_class_embeddings_of_infinite_outputs_are_limits(name: str, form: Form) -> None:
    """Infinite outputs alone give the direction, so the distance is that of enormous ones and its gradient 0."""
    h = HARD[name].build()
    labels = torch.arange(h.num_nodes)
    for sign, column in itertools.product((1, -1), range(h.num_nodes)):
        far, infinite = (
            logits(1, h.num_nodes).to(form.dtype).expand(h.num_nodes, -1).clone() for _ in range(2)
        )
        far[:, column], infinite[:, column] = sign * 1e25, sign * torch.inf
        loss = ClassEmbeddingLoss(h, labels="nodes", reduction="none")
        wanted = loss(far, labels)
        value, gradient = with_gradient(loss, infinite, labels)
        form.close(value, wanted.double(), column)
        inert = h.rooted and column == 0
        assert gradient.isfinite().all()
        assert inert or (gradient == 0).all()
    z = logits(1, h.num_nodes).to(form.dtype).clone()
    z[0, 1] = -torch.inf
    loss = ClassEmbeddingLoss(h, 0.5, labels="nodes", reduction="sum")
    assert with_gradient(loss, z, labels[-1:])[1].isfinite().all()


def test_simloss_of_a_far_class_does_not_underflow() -> None:
    """0.01 ** 50 is below what float32 holds; its logarithm is not."""
    deep = plain([f"v{i}: v{i + 1}" for i in range(50)] + ["v0: w"])
    h = deep.build()
    z = torch.tensor([[0.0, 0.0]])
    z[0, h.label("w")] = -torch.inf
    loss = SimLoss(h, 0.01)(z, torch.tensor([h.label("w")]))
    assert loss.item() == pytest.approx(50 * np.log(100.0), rel=1e-6)


# ------------------------------------------------------------------ enormous hierarchies


def random_tree(size: int, reach: int) -> Hierarchy:
    """A ragged tree: the parent of node i is one of the `reach` nodes before it."""
    above = np.arange(size) - np.random.default_rng(0).integers(1, reach + 1, size)
    return Hierarchy.from_parents(np.where(np.arange(size) == 0, -1, np.maximum(above, 0)))


def by_hand(z: Tensor, h: Hierarchy, y: int, d: float) -> float:
    """HACE of one sample from its path alone, in float64: sums over slices of the preorder."""
    row = z.double()
    value, step = 0.0, 0
    at = int(h.leaf_nodes[y])
    everything = row.logsumexp(0)
    while True:
        above = int(h.parent_nodes[at])
        keep = (1 - d) ** step * (1.0 if above < 0 else d)
        if keep > 1e-12:
            value -= keep * (row[at : h.subtree_ends[at]].logsumexp(0) - everything).item()
        if above < 0:
            return value
        at, step = above, step + 1


@pytest.mark.slow
def test_a_chain_of_100_000_nodes(form: Form) -> None:
    size = 100_000
    h = Hierarchy.from_parents(np.arange(-1, size - 1))
    z = logits(2, size).to(form.dtype)
    for d in (0.5, 1e-4):
        value, gradient = with_gradient(HACELoss(h, d, reduction="none"), z, torch.tensor([0, 0]))
        reached = torch.stack([row.double().flip(0).logcumsumexp(0) for row in z])  # of the leaf, and upward
        keep = d * (1 - d) ** torch.arange(size, dtype=torch.float64)
        keep[-1] = (1 - d) ** (size - 1)
        wanted = -((reached - reached[:, -1:]) * keep).sum(dim=1)
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
        assert gradient.isfinite().all()
        assert gradient.double().sum(dim=1).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "used",
    [pytest.param(KERNEL.used, id="kernel"), pytest.param(PURE.used, id="pure", marks=pytest.mark.long)],
)
def test_a_million_nodes(used) -> None:
    size = 1_000_000
    h = random_tree(size, 200_000)
    z = torch.randn(8, size, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) * (h.num_leaves // 8)
    with used():
        for smoothing in (0.0, 0.1):
            loss = HACELoss(h, 0.5, smoothing, reduction="none")
            value, gradient = with_gradient(loss, z, y)
            assert value.isfinite().all()
            assert gradient.isfinite().all()
            assert gradient.double().sum(dim=1).abs().max() < 1e-4
            if not smoothing:
                wanted = [by_hand(row, h, label, 0.5) for row, label in zip(z, y.tolist(), strict=True)]
                torch.testing.assert_close(value, torch.tensor(wanted), rtol=1e-5, atol=1e-5)
        del loss, gradient
        log_q = hace.node_log_probs(z[:2], h, "nodes")
        assert log_q[:, 0].abs().max() < 1e-5
        assert (log_q <= 1e-5).all()


@pytest.mark.slow
def test_a_dag_of_20_000_nodes_needs_no_dense_matrix() -> None:
    size, rng = 20_000, np.random.default_rng(0)
    edges = [(int(rng.integers(i // 2, i)), i) for i in range(1, size)]
    edges += [(int(rng.integers(i // 3, i)), i) for i in range(1, size, 7)]
    h = Hierarchy.from_edges(sorted(set(edges)))
    assert not h.is_tree
    loss = HACELoss(h, 0.5, reduction="none")
    assert max(buffer.numel() for buffer in loss.buffers()) < 100 * size
    z = logits(2, size).float()
    value, gradient = with_gradient(loss, z, torch.tensor([0, h.num_leaves - 1]))
    table = loss.table().to_dense() if loss.num_labels * size < 1e7 else None
    assert table is None
    row = loss.table()[0].to_dense()
    wanted = -(row * hace.node_log_probs(z[:1].double(), h)).sum()
    torch.testing.assert_close(value[0].double(), wanted, rtol=1e-5, atol=1e-5)
    assert gradient.isfinite().all()


def test_the_kernel_takes_the_careful_path_where_it_must() -> None:
    """Just inside and just outside the range within which one shift serves a whole row."""
    h = HARD["wide"].build()
    loss = HACELoss(h, 0.5, 0.1, reduction="none")
    for span in (59.0, 60.0, 60.5, 61.0, 88.0, 103.0, 200.0):
        z = torch.linspace(0.0, span, loss.num_outputs)[None]
        for row in (z, z.flip(1)):
            with KERNEL.used():
                value, gradient = with_gradient(loss, row, torch.tensor([3]))
            with kernels.disabled():
                wanted, wanted_gradient = with_gradient(loss, row.double(), torch.tensor([3]))
            KERNEL.close(value, wanted, span)
            KERNEL.close(gradient, wanted_gradient, span)
