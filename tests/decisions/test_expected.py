"""The best answer for a metric against the definition, for every node and every truth."""

from __future__ import annotations

from math import log2

import pytest
import torch

from hace import HierarchyError, predict
from hace.decisions.expected import ANSWER_METRICS, expected_scores
from hace.errors import ConfigError
from tests.hierarchies import ANIMALS, DIAMOND, NAMED, Plain, random_plain
from tests.reference import structure

TREES = {name: plain for name, plain in NAMED.items() if plain.is_tree} | {
    f"{kind}{seed}": random_plain(kind, seed, 12)
    for kind in ("ragged", "forest", "unary")
    for seed in range(8)
}


def score(plain: Plain, metric: str, beta: float, answer: str, truth: str) -> float:
    """The metric of one answer, by its definition."""
    above = {v: structure.ancestors(plain, v) for v in (answer, truth)}
    common = above[answer] & above[truth]
    if metric == "information_f1":

        def information(v: str) -> float:
            return log2(len(plain.leaves)) - log2(len(structure.leaves_below(plain, v)))

        shared = max((information(v) for v in common), default=0.0)
        return 2 * shared / (information(answer) + information(truth)) if shared else 0.0
    if metric == "wu_palmer":
        depth = structure.depths(plain)
        lowest = max((depth[v] for v in common), default=0) + 1
        return 2 * lowest / (depth[answer] + 1 + depth[truth] + 1)
    root = set(plain.tops) if plain.rooted else set()
    shared = len(common - root)
    if not shared:
        return 0.0
    precision, recall = shared / len(above[answer] - root), shared / len(above[truth] - root)
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


@pytest.mark.parametrize("metric", ANSWER_METRICS)
def test_expected_scores_are_those_of_an_exhaustive_search(metric: str) -> None:
    for seed, plain in enumerate(TREES.values()):
        h = plain.build()
        z = (
            torch.randn(3, h.num_leaves, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            * 2
        )
        for beta in (0.5, 1.0, 2.0) if metric == "hierarchical_f" else (1.0,):
            values, masses = expected_scores(z.softmax(1), h, metric, beta)
            nodes = predict(z, h, "expected", metric=metric, beta=beta, outputs="leaves")
            leaves = predict(
                z, h, "expected", metric=metric, beta=beta, candidates="leaves", outputs="leaves"
            )
            for i, p in enumerate(z.softmax(1).tolist()):
                expected = {
                    v: sum(x * score(plain, metric, beta, v, c) for x, c in zip(p, h.leaves, strict=True))
                    for v in h.nodes
                }
                assert values[i].tolist() == pytest.approx(list(expected.values()), abs=1e-12)
                below = [
                    sum(x for x, c in zip(p, h.leaves, strict=True) if c in structure.leaves_below(plain, v))
                    for v in h.nodes
                ]
                assert masses[i].tolist() == pytest.approx(below, abs=1e-12)
                assert expected[nodes.ids[i]] == pytest.approx(max(expected.values()), abs=1e-10)
                assert expected[leaves.ids[i]] == pytest.approx(max(expected[c] for c in h.leaves), abs=1e-10)
                assert nodes.costs is not None
                assert float(nodes.costs[i]) == pytest.approx(1 - max(expected.values()), abs=1e-10)


def test_recall_asks_for_deeper_answers() -> None:
    h = ANIMALS.build()
    p = torch.tensor([[0.35, 0.2, 0.3, 0.15]])  # husky, persian, beagle, siamese
    assert predict(p, h, "expected", metric="hierarchical_f", beta=0.3, kind="probs").ids == ["dog"]
    assert predict(p, h, "expected", metric="hierarchical_f", beta=3, kind="probs").ids == ["husky"]


def test_what_is_refused() -> None:
    h, z = ANIMALS.build(), torch.zeros(2, 4)
    with pytest.raises(ConfigError, match="needs metric"):
        predict(z, h, "expected")
    with pytest.raises(ConfigError, match="metric must be one of hierarchical_f, wu_palmer"):
        predict(z, h, "expected", metric="accuracy")
    with pytest.raises(ConfigError, match="beta must be"):
        predict(z, h, "expected", metric="hierarchical_f", beta=0)
    with pytest.raises(ConfigError, match="beta must be"):
        predict(z, h, "expected", metric="wu_palmer", beta=2)
    with pytest.raises(ConfigError, match="candidates must be"):
        predict(z, h, "expected", metric="wu_palmer", candidates="all")
    with pytest.raises(HierarchyError, match="needs a tree or forest"):
        predict(torch.zeros(1, 3), DIAMOND.build(), "expected", metric="wu_palmer")
