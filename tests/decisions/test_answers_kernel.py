"""The compiled search for the best answer against the one in plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from hace import DataError, predict
from hace.decisions.cost_rules import least_cost
from hace.hierarchy.derived import leaf_ranges
from hace.losses import kernels
from tests.hierarchies import ANIMALS, NAMED, random_plain

TREES = [plain for plain in NAMED.values() if plain.is_tree] + [
    random_plain(kind, seed, 5 + 3 * seed) for kind in ("ragged", "forest", "unary") for seed in range(12)
]
RULES = [
    {"rule": "cost", "distance": distance, "candidates": candidates, "price": price}
    for distance in ("lca_height", "lca_depth", "edges")
    for candidates, price in (("leaves", 0.5), ("nodes", 0.2), ("nodes", 1.0))
] + [{"rule": "expected", "metric": "information_f1"}, {"rule": "expected", "metric": "hamming"}]

needs_kernel = pytest.mark.skipif(not kernels.status().startswith("compiled"), reason=kernels.status())


def logits(rows: int, columns: int, form: str, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    if form == "ties":
        return torch.randint(3, (rows, columns), generator=draw).float()
    z = 2 * torch.randn(rows, columns, generator=draw)
    if form == "impossible":
        z[:, torch.randperm(columns, generator=draw)[: columns // 2]] = -torch.inf
    return z * (1e4 if form == "extreme" else 1)


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("form", ["plain", "ties", "impossible", "extreme"])
def test_the_kernel_gives_the_answers_of_the_search(form: str) -> None:
    for seed, plain in enumerate(TREES):
        h = plain.build()
        outputs = "leaves" if seed % 2 and form == "plain" else "nodes"
        z = logits(11, h.num_leaves if outputs == "leaves" else h.num_nodes, form, seed)
        z[:, h.leaf_nodes[0] if outputs == "nodes" else 0] = 0.0  # some mass on the leaves
        options = RULES[seed % len(RULES)]
        fast = predict(z, h, outputs=outputs, **options)
        with kernels.disabled():
            slow = predict(z, h, outputs=outputs, **options)
        # Of inner nodes with equal masses rounding chooses; a node and its only child are always equal.
        low, high = leaf_ranges(h)
        same = (low[fast.nodes] == low[slow.nodes]) & (high[fast.nodes] == high[slow.nodes])
        if form != "ties" or options.get("candidates") == "leaves":
            assert same.all(), (plain, options)
        torch.testing.assert_close(fast.probabilities, slow.probabilities, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(fast.costs, slow.costs, rtol=1e-5, atol=1e-5)


@needs_kernel
def test_a_sample_without_mass_on_the_leaves_is_refused() -> None:
    h = ANIMALS.build()
    z = torch.zeros(9, h.num_nodes)
    z[4, torch.tensor(h.leaf_nodes)] = -torch.inf
    with pytest.raises(DataError, match=r"some mass on the leaves.* the first is row 4"):
        predict(z, h, "cost", outputs="nodes")


@needs_kernel
def test_a_score_that_is_no_number_is_refused() -> None:
    h = ANIMALS.build()
    q = torch.zeros(9, h.num_nodes)
    q[4, h.leaf_nodes[0]] = torch.nan
    with pytest.raises(DataError, match=r"the first is row 4"):
        least_cost(q, h)
