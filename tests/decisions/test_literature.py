"""Hedging, and the rules that are here for comparison only, against exhaustive search on hundreds of random hierarchies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.literature import most_probable_informative, plurality
from hace import Hierarchy, HierarchyError, predict
from hace.decisions.scores import Scores
from hace.decisions.threshold_rules import hedge_steps
from hace.errors import ConfigError
from tests.hierarchies import ANIMALS, DIAMOND, NAMED, Plain, random_plain
from tests.reference import decisions as oracle

CASES = {
    **NAMED,
    **{
        f"{kind}{seed}": random_plain(kind, seed, 6 + seed % 20)
        for kind in ("ragged", "forest", "unary", "dag")
        for seed in range(50)
    },
}


def samples(plain: Plain, number: int = 2) -> tuple[Hierarchy, torch.Tensor, list[dict[str, float]]]:
    """A head over nodes: the hierarchy, logits, and q* of each sample by the oracle."""
    h = plain.build()
    z = torch.from_numpy(np.random.default_rng(h.num_nodes).normal(size=(number, h.num_nodes)) * 2)
    logits = [dict(zip(h.nodes, row, strict=True)) for row in z.tolist()]
    return h, z, [oracle.node_masses(plain, row) for row in logits]


@pytest.mark.slow
def test_the_rules_equal_exhaustive_search() -> None:
    for name, plain in CASES.items():
        h, z, masses = samples(plain)
        log_q = Scores(z, h, outputs="nodes").log_q()
        for i, q in enumerate(masses):
            for t in (0.0, 0.3, 0.8, 1.0):
                values = oracle.hedge_values(plain, q, t)
                answer = predict(z, h, "hedge", threshold=t, outputs="nodes").ids[i]
                assert values[answer] == pytest.approx(max(values.values()), abs=1e-12), (name, t)
                result = most_probable_informative(log_q, h, t).ids[i]
                assert result == oracle.informative(plain, q, t, h.nodes), (name, t)
            if plain.is_tree:
                assert plurality(log_q, h).ids[i] == oracle.plurality(plain, q, h.nodes), name


@pytest.mark.slow
def test_the_ladder_of_hedging_has_every_answer() -> None:
    """Between two thresholds of the ladder the answer is that of the rule."""
    for name, plain in CASES.items():
        h, z, masses = samples(plain)
        nodes, reached = hedge_steps(Scores(z, h, outputs="nodes").log_q(), h)
        assert (reached[:, 1:] <= reached[:, :-1]).all()
        for i, q in enumerate(masses):
            for t in (*np.random.default_rng(i).random(5).tolist(), 0.0):
                last = int((reached[i] >= t).sum()) - 1
                answer = None if nodes[i, last] < 0 else h.nodes[nodes[i, last]]
                values = oracle.hedge_values(plain, q, t)
                assert values[answer] == pytest.approx(max(values.values()), abs=1e-8), (name, t)


def test_hedging_is_the_reward_of_its_paper() -> None:
    """argmax (I(v) + lambda) q*[v] with lambda = log2 n t / (1 - t)."""
    h = ANIMALS.build()
    p = torch.tensor(
        [[0.4, 0.1, 0.35, 0.15]], dtype=torch.float64
    )  # husky, persian, beagle, siamese; I = 2, dog has 1
    for reward, answer in ((0.0, "husky"), (0.1, "husky"), (0.2, "dog"), (2.9, "dog"), (3.1, "animal")):
        t = reward / (reward + 2)
        assert predict(p, h, "hedge", threshold=t, kind="probs").ids == [answer]


@pytest.mark.parametrize("kind", ["dag", "ragged", "forest"])
@pytest.mark.parametrize(
    ("rule", "options"), [("hedge", {}), ("threshold", {}), ("threshold", {"constrained": False})]
)
def test_ties_are_decided_alike_in_both_precisions(kind: str, rule: str, options: dict) -> None:
    """Few values of scores: nodes with the same leaves, or equally many alike, are tied but for rounding."""
    for seed in range(25):
        h = random_plain(kind, seed, 20).build()
        rng = np.random.default_rng(seed)
        z = torch.from_numpy((rng.normal(size=(40, h.num_leaves)) * 0.7).round() * 1.37)
        for t in (0.05, 0.21, 0.63):
            answers = [
                predict(x, h, rule, threshold=t, outputs="leaves", **options).nodes for x in (z, z.float())
            ]
            assert answers[0].tolist() == answers[1].tolist(), (seed, t)


def test_what_is_refused() -> None:
    h, z = ANIMALS.build(), torch.zeros(1, 4)
    with pytest.raises(HierarchyError, match="siblings do not exclude each other"):
        plurality(torch.zeros(1, 4), DIAMOND.build())
    with pytest.raises(ConfigError, match="threshold must be one number from 0 to 1"):
        predict(z, h, "hedge", threshold=[0.5, 0.5])
