"""What evaluation asks of the compiled kernel, against loops over the definitions: ranks, levels, walks and spreading."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hace import DataError, Hierarchy
from hace.decisions.rules import all_levels
from hace.decisions.scores import Scores, rank_leaves
from hace.decisions.threshold_rules import walk_down
from hace.hierarchy.derived import layout
from hace.losses import kernels
from hace.losses.head import node_log_probs
from hace.losses.kernels import best_columns, best_of_levels, level_squares, spread, walk
from hace.metrics.evaluator import Evaluator, evaluate
from hace.metrics.metric_batch import MetricBatch
from tests.hierarchies import KINDS, Plain, dags, forests, random_plain, trees

pytestmark = pytest.mark.skipif(not kernels.status().startswith("compiled"), reason=kernels.status())

FORMS = ("random", "few values", "mostly -inf", "all equal", "all -inf")


def rows_of(form: str, rows: int, columns: int, seed: int) -> torch.Tensor:
    """Scores, most of them with many ties."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, columns, generator=g)
    if form == "few values":
        z = z.round()
    elif form == "mostly -inf":
        z[torch.rand(rows, columns, generator=g) < 0.9] = -torch.inf
    elif form.startswith("all"):
        z.fill_(1.5 if form == "all equal" else -torch.inf)
    return z


def layouts(z: torch.Tensor) -> list[torch.Tensor]:
    """The same numbers, transposed in memory, and every other column of a wider table."""
    wide = torch.full((len(z), 2 * z.shape[1] + 1), 99.0)
    wide[:, 1::2] = z
    return [z, z.t().contiguous().t(), wide[:, 1::2]]


# Around the kernel's sets of 64, blocks of 32, vectors of 8 and groups of 8 samples.
@pytest.mark.parametrize("columns", [1, 2, 7, 31, 32, 33, 63, 64, 65, 97, 128, 129, 700])
@pytest.mark.parametrize("form", FORMS)
def test_best_columns(form: str, columns: int) -> None:
    for rows in (0, 1, 9):
        for z in layouts(rows_of(form, rows, columns, columns)):
            for k in {1, 5, 20, 64, columns} & set(range(1, min(columns, 64) + 1)):
                result = best_columns(z, k)
                assert result is not None
                expected = [
                    sorted(range(columns), key=lambda c, row=row: (-row[c], c))[:k] for row in z.tolist()
                ]
                assert result[0].tolist() == expected
                assert result[1].tolist() == [max(row) for row in z.tolist()]


@pytest.mark.parametrize("columns", [1, 64, 65, 200])
def test_a_row_with_nan_says_so(columns: int) -> None:
    z = torch.randn(columns, columns).fill_diagonal_(torch.nan)  # at each column once
    z = torch.cat([z, torch.full((1, columns), torch.nan), torch.zeros(1, columns)])
    result = best_columns(z, min(20, columns))
    assert result is not None
    assert result[1].isnan().tolist() == [True] * (columns + 1) + [False]
    assert bool(((result[0] >= 0) & (result[0] < columns)).all())


def test_ranks_beyond_the_kernel() -> None:
    z = torch.randn(3, 100)
    assert best_columns(z, 65) is None
    assert best_columns(z[:, :10], 11) is None
    assert best_columns(z, 0) is None
    assert best_columns(z.double(), 5) is None
    assert best_columns(z.half(), 5) is None
    assert torch.equal(rank_leaves(z.double(), 65), z.argsort(dim=1, descending=True, stable=True)[:, :65])
    with kernels.disabled():
        assert best_columns(z, 5) is None


def level_oracle(h: Hierarchy, row: list[float]) -> list[tuple[int, float, float]]:
    """Node, log q* and sum of squares of each level."""
    results = []
    for level in range(1, h.max_depth + 1):
        depth, leaf = h.depths.tolist(), (h.labels >= 0).tolist()
        nodes = [v for v in range(h.num_nodes) if depth[v] == level or (leaf[v] and depth[v] < level)]
        best = max(nodes, key=lambda v: (row[v], -v))
        results.append((best, row[best], math.fsum(math.exp(2 * row[v]) for v in nodes)))
    return results


def check_levels(h: Hierarchy, z: torch.Tensor) -> None:
    expected = [level_oracle(h, row) for row in z.tolist()]
    for given_z in layouts(z):
        depth = layout(h).short_depths
        best, squares = (
            best_of_levels(given_z, depth, h.max_depth),
            level_squares(given_z, depth, h.max_depth),
        )
        if h.max_depth == 0:
            assert best is squares is None
            return
        assert best is not None
        assert squares is not None
        assert best[0].tolist() == [[level[0] for level in row] for row in expected]
        assert best[1].tolist() == [[level[1] for level in row] for row in expected]
        sums = np.array([[level[2] for level in row] for row in expected]).reshape(squares.shape)
        np.testing.assert_allclose(squares.numpy(), sums, rtol=1e-5, atol=1e-37)
        with kernels.disabled():
            assert torch.equal(all_levels(given_z, h).nodes, best[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "dag" not in kind])
def test_levels(kind: str, form: str) -> None:
    for size, rows in ((4, 1), (40, 0), (63, 7), (130, 8), (200, 17)):
        h = random_plain(kind, size, max_nodes=size).build()
        check_levels(h, rows_of(form, rows, h.num_nodes, size) - 2)


@pytest.mark.slow
@given(st.one_of(trees(), forests()), st.integers(0, 1000), st.sampled_from(FORMS))
def test_levels_of_any_tree(plain: Plain, seed: int, form: str) -> None:
    h = plain.build()
    check_levels(h, rows_of(form, 3, h.num_nodes, seed))


def test_squares_of_a_batch_are_torchs() -> None:
    h = random_plain("ragged", 3, max_nodes=90).build()
    z = torch.randn(11, h.num_leaves, generator=torch.Generator().manual_seed(0))
    truth = h.leaf_nodes[np.arange(11) % h.num_leaves]
    masses = MetricBatch(h, truth, scores=Scores(z, h)).level_masses
    with kernels.disabled():
        for mine, theirs in zip(masses, MetricBatch(h, truth, scores=Scores(z, h)).level_masses, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


def walk_oracle(h: Hierarchy, row: list[float]) -> list[int]:
    """Nodes from the top to a leaf."""
    below: dict[int, list[int]] = {}
    for parent, child in h.edges.tolist():
        below.setdefault(parent, []).append(child)
    tops = sorted(set(range(h.num_nodes)) - set(h.edges[:, 1].tolist()))
    steps = [0 if h.rooted else -1]
    while choices := tops if steps[-1] < 0 else sorted(below.get(steps[-1], [])):
        steps.append(max(choices, key=lambda v: (row[v], -v)))
    return steps


@pytest.mark.slow
@given(st.one_of(trees(), forests(), dags()), st.integers(0, 1000), st.sampled_from(FORMS))
def test_walks(plain: Plain, seed: int, form: str) -> None:
    h = plain.build()
    z = rows_of(form, 4, h.num_nodes, seed)
    expected = [walk_oracle(h, row) for row in z.tolist()]
    length = max(map(len, expected))
    padded = [steps + steps[-1:] * (length - len(steps)) for steps in expected]
    for given_z in layouts(z):
        place = layout(h)
        assert walk(given_z, place.children, place.walk_start, h.max_depth) is not None
        nodes, masses = walk_down(given_z, h)
        assert nodes.tolist() == padded
        assert masses.tolist() == [
            [0.0 if v < 0 else row[v] for v in steps] for row, steps in zip(z.tolist(), padded, strict=True)
        ]
        with kernels.disabled():
            for mine, theirs in zip((nodes, masses), walk_down(given_z, h), strict=True):
                assert torch.equal(mine, theirs)


def test_a_walk_of_no_samples() -> None:
    h = random_plain("ragged", 0).build()
    assert walk_down(torch.zeros(0, h.num_nodes), h)[0].shape == (0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_spread(kind: str) -> None:
    h = random_plain(kind, 1, max_nodes=50).build()
    for rows in (0, 1, 5):
        for z in layouts(torch.randn(rows, h.num_leaves)):
            expected = torch.full((rows, h.num_nodes), -torch.inf)
            for label, node in enumerate(h.leaf_nodes.tolist()):
                expected[:, node] = z[:, label]
            result = spread(z, layout(h).leaf_nodes, h.num_nodes)
            assert result is not None
            assert torch.equal(result, expected)


def test_gradients_take_the_way_of_torch() -> None:
    """What has a gradient is computed by torch, which records it."""
    h = random_plain("ragged", 1, max_nodes=50).build()
    z = torch.randn(3, h.num_leaves, requires_grad=True)
    q = node_log_probs(z, h)
    q.sum().backward()
    assert z.grad is not None
    assert walk_down(node_log_probs(z, h), h)[1].requires_grad


@pytest.mark.parametrize("metrics", ["all", "leaves"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_torchs(kind: str, metrics: str) -> None:
    h = random_plain(kind, 5, max_nodes=60).build()
    truth = np.arange(23) % h.num_leaves
    for form in ("random", "few values")[
        : 1 + (metrics == "leaves")
    ]:  # rounding decides between equal masses
        for z in layouts(rows_of(form, 23, h.num_leaves, 2)):
            evaluation = evaluate(z, truth, h, metrics=metrics).values
            with kernels.disabled():
                expected = evaluate(z, truth, h, metrics=metrics).values
            assert list(evaluation) == list(expected)
            assert list(evaluation.values()) == pytest.approx(
                list(expected.values()), nan_ok=True, rel=1e-4, abs=1e-5
            )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bad_scores_are_refused_in_the_same_words(value: float) -> None:
    """The kernel checks scores while it ranks them, torch in a pass of its own."""
    h = random_plain("ragged", 5, max_nodes=60).build()
    z = torch.randn(9, h.num_leaves)
    z[4, 0 if value > 0 or value != value else slice(None)] = value
    words = []
    for mode in (nullcontext, kernels.disabled):
        evaluator, truth = Evaluator(h, metrics="leaves"), np.zeros(9, dtype=np.int64)
        evaluator.add(torch.zeros(3, h.num_leaves), truth[:3])
        with mode(), pytest.raises(DataError) as error:
            evaluator.add(z, truth)
        words.append(str(error.value))
    assert words[0] == words[1]
    assert "1 of 9 rows break this rule; the first is row 7." in words[0]
