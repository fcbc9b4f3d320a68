"""The best answer for a metric against the definition, for every node and every truth."""

from __future__ import annotations

from math import log2

import pytest
import torch

from hace import HierarchyError, predict
from hace.decisions.cost_rules import ANSWER_METRICS
from hace.errors import ConfigError
from tests.hierarchies import ANIMALS, DIAMOND, NAMED, Plain, random_plain
from tests.reference import structure

TREES = {name: plain for name, plain in NAMED.items() if plain.is_tree} | {
    f"{kind}{seed}": random_plain(kind, seed, 6 + seed % 12)
    for kind in ("ragged", "forest", "unary")
    for seed in range(20)
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
    depth = structure.depths(plain)
    if metric == "hamming":
        return -float(len(above[answer] ^ above[truth]))
    lowest = max((depth[v] for v in common), default=0) + 1
    if metric == "wu_palmer":
        return 2 * lowest / (depth[answer] + 1 + depth[truth] + 1)
    if metric == "zhao":
        return lowest / (max(depth[answer], depth[truth]) + 1)
    root = set(plain.tops) if plain.rooted else set()
    shared = len(common - root)
    if not shared:
        return 0.0
    precision, recall = shared / len(above[answer] - root), shared / len(above[truth] - root)
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ANSWER_METRICS)
def test_answers_are_those_of_an_exhaustive_search(metric: str) -> None:
    for seed, plain in enumerate(TREES.values()):
        h = plain.build()
        draw = torch.Generator().manual_seed(seed)
        z = torch.randn(3, h.num_leaves, generator=draw, dtype=torch.float64) * (0.3, 1.0, 3.0)[seed % 3]
        for beta in [(0.5, 1.0, 2.0)[seed % 4 % 3] if metric == "hierarchical_f" else 1.0]:
            form = {"metric": metric, "beta": beta, "outputs": "leaves"}
            nodes = predict(z, h, "expected", **form)
            leaves = predict(z, h, "expected", candidates="leaves", **form)
            for i, p in enumerate(z.softmax(1).tolist()):
                expected = {
                    v: sum(x * score(plain, metric, beta, v, c) for x, c in zip(p, h.leaves, strict=True))
                    for v in h.nodes
                }
                mass = {
                    v: sum(
                        x for x, c in zip(p, h.leaves, strict=True) if c in structure.leaves_below(plain, v)
                    )
                    for v in h.nodes
                }
                best = 0.0 if metric == "hamming" else 1.0
                for result, choices in ((nodes, h.nodes), (leaves, h.leaves)):
                    answer, top = result.ids[i], max(expected[v] for v in choices)
                    assert expected[answer] == pytest.approx(top, abs=1e-10)
                    assert result.costs is not None
                    assert float(result.costs[i]) == pytest.approx(best - top, abs=1e-10)
                    assert float(result.probabilities[i]) == pytest.approx(mass[answer], abs=1e-12)
                    tied = [v for v in choices if expected[v] > top - 1e-9]
                    assert answer in tied
                    assert mass[answer] == pytest.approx(max(mass[v] for v in tied), abs=1e-9)


@pytest.mark.parametrize("metric", ANSWER_METRICS)
def test_constant_scores_and_extremes(metric: str) -> None:
    """All answers of a level tie: the first; a certain leaf wins; half precision and empty batches pass."""
    h = ANIMALS.build()
    assert predict(torch.zeros(1, 4), h, "expected", metric=metric, candidates="leaves").ids == [h.leaves[0]]
    sure = torch.tensor([[-1e4, 1e4, -1e4, -1e4]])
    for z in (sure, sure.bfloat16(), sure.double()):
        assert predict(z, h, "expected", metric=metric).ids == [h.leaves[1]]
    assert len(predict(torch.zeros(0, 4), h, "expected", metric=metric)) == 0


def test_a_crowded_search_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    h = TREES["ragged3"].build()
    z = torch.randn(30, h.num_leaves, generator=torch.Generator().manual_seed(0)) * 0.1
    whole = predict(z, h, "expected", metric="zhao", outputs="leaves")
    monkeypatch.setattr("hace.decisions.cost_rules._ENTRIES", 20)
    parts = predict(z, h, "expected", metric="zhao", outputs="leaves")
    assert parts.ids == whole.ids
    assert torch.equal(parts.costs, whole.costs)  # type: ignore[arg-type]


def test_recall_asks_for_deeper_answers() -> None:
    h = ANIMALS.build()
    p = torch.tensor([[0.35, 0.2, 0.3, 0.15]])  # husky, persian, beagle, siamese
    assert predict(p, h, "expected", metric="hierarchical_f", beta=0.3, kind="probs").ids == ["dog"]
    assert predict(p, h, "expected", metric="hierarchical_f", beta=3, kind="probs").ids == ["husky"]


def test_what_is_refused() -> None:
    h, z = ANIMALS.build(), torch.zeros(2, 4)
    with pytest.raises(ConfigError, match="needs metric"):
        predict(z, h, "expected")
    with pytest.raises(ConfigError, match="metric must be one of 'hierarchical_f', 'wu_palmer'"):
        predict(z, h, "expected", metric="accuracy")
    with pytest.raises(ConfigError, match="beta must be"):
        predict(z, h, "expected", metric="hierarchical_f", beta=0)
    with pytest.raises(ConfigError, match="beta must be"):
        predict(z, h, "expected", metric="wu_palmer", beta=2)
    with pytest.raises(ConfigError, match="candidates must be"):
        predict(z, h, "expected", metric="wu_palmer", candidates="all")
    with pytest.raises(HierarchyError, match="needs a tree or forest"):
        predict(torch.zeros(1, 3), DIAMOND.build(), "expected", metric="wu_palmer")
