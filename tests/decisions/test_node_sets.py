"""Sets of a few nodes: against every subset, what they guarantee, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hace import Hierarchy, guaranteed_threshold, predict
from hace.decisions import GuaranteedThreshold
from hace.decisions.check import check
from hace.decisions.scores import Scores
from hace.decisions.shift import Profile
from hace.errors import ConfigError, HierarchyError
from hace.hierarchy.derived import is_above, leaf_counts
from tests.hierarchies import NAMED_TREES, random_plain
from tests.reference.decisions import best_node_set

TREES = NAMED_TREES | {
    f"{kind}{s}": random_plain(kind, s, 11) for kind in ("ragged", "forest") for s in range(3)
}
H = Hierarchy.from_paths(
    [("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese"), ("fox",)]
)


@pytest.mark.parametrize("outputs", ["leaves", "nodes"])
@pytest.mark.parametrize("name", TREES)
def test_no_other_set_loses_less_information(name: str, outputs: str) -> None:
    plain = TREES[name]
    h = plain.build()
    width = h.num_leaves if outputs == "leaves" else h.num_nodes
    if h.num_nodes > 16 or (outputs == "nodes" and h.num_leaves == h.num_nodes):
        pytest.skip("every subset is tried: only small trees, whose outputs can be told apart")
    z = 2 * torch.randn(4, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = Scores(z, h, outputs=outputs).log_q().exp()
    counts = leaf_counts(h)
    for nodes in (1, 2, 3):
        for threshold in (0.3, 0.6, 0.9):
            answers = predict(z, h, "set", outputs=outputs, nodes=nodes, threshold=threshold)
            for row, chosen in enumerate(answers.nodes.tolist()):
                some = [v for v in chosen if v >= 0]
                exact = best_node_set(
                    plain, dict(zip(h.nodes, q[row].tolist(), strict=True)), nodes, threshold
                )
                leaves = int(sum(counts[v] for v in some))
                if exact is None:
                    assert leaves in (0, h.num_leaves)
                else:
                    assert leaves == exact[0]
                    assert float(q[row, some].sum()) == pytest.approx(exact[1])


def samples(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(5, size=number)
    z = 2 * rng.normal(size=(number, 5))
    z[np.arange(number), y] += 2.0
    return z, y


def test_three_nodes_keep_the_guarantee_and_say_more_than_one() -> None:
    rng = np.random.default_rng(0)
    counts = np.append(leaf_counts(H), 5)
    false, leaves = {1: [], 3: []}, {1: [], 3: []}
    for _ in range(40):
        (z, y), (new, truth) = samples(rng, 200), samples(rng, 200)
        for nodes in (1, 3):
            sure = guaranteed_threshold(z, y, H, 0.9, rule="set", nodes=nodes)
            chosen = sure.predict(new, H).nodes.numpy()
            each = np.repeat(H.leaf_nodes[truth], nodes)
            true = (
                (is_above(H, chosen.ravel(), each) & (chosen.ravel() >= 0)).reshape(chosen.shape).any(axis=1)
            )
            silent = (chosen < 0).all(axis=1)
            false[nodes].append((~true & ~silent).mean())
            size = np.where(chosen >= 0, counts[chosen], 0).sum(axis=1)
            leaves[nodes].append(np.where(silent, 5, size).mean())
    for shares in false.values():
        assert np.mean(shares) < 0.1 + 3 * np.std(shares) / np.sqrt(40)
    assert np.mean(leaves[3]) < np.mean(leaves[1]) - 0.3


def test_a_record_of_sets_is_stored_and_checked() -> None:
    rng = np.random.default_rng(1)
    z, y = samples(rng, 300)
    sure = guaranteed_threshold(z, y, H, 0.9, rule="set", nodes=2)
    assert GuaranteedThreshold.from_dict(json.loads(json.dumps(sure.to_dict()))) == sure
    new, truth = samples(rng, 300)
    seen = Profile.of(z, H)
    assert check(sure, seen, new, H, target=truth).state != "broken"
    assert check(sure, seen, new, H, target=rng.permutation(truth)).state == "broken"
    silent = guaranteed_threshold(z, rng.permutation(y), H, 0.99, rule="set", nodes=2)
    assert silent.predict(new, H).nodes.shape == (300, 2)


def test_what_sets_refuse() -> None:
    z, y = samples(np.random.default_rng(2), 100)
    dag = Hierarchy.from_edges([("a", "x"), ("b", "x"), ("b", "y")])
    with pytest.raises(HierarchyError, match="needs a tree or forest"):
        predict(torch.zeros(1, 2), dag, "set", nodes=2, threshold=0.5)
    with pytest.raises(ConfigError, match="nodes must be a whole number from 1 to 8"):
        predict(z, H, "set", nodes=9, threshold=0.5)
    with pytest.raises(ConfigError, match="needs nodes"):
        predict(z, H, "set", threshold=0.5)
    with pytest.raises(ConfigError, match="must come together"):
        guaranteed_threshold(z, y, H, 0.9, nodes=3)
    with pytest.raises(ConfigError, match="rule of one node"):
        guaranteed_threshold(z, y, H, distance="edges", at_most=0.5, rule="set", nodes=3)


def test_an_only_child_is_the_answer_and_one_node_beats_its_children() -> None:
    leaves = ["husky", "beagle", "tabby", "siamese", "red fox"]
    tops = ["dog", "dog", "cat", "cat", "fox"]
    h = Hierarchy.from_paths(list(zip(tops, leaves, strict=True)), leaves=leaves)
    p = torch.tensor([[0.3, 0.3, 0.1, 0.0, 0.3]])
    assert set(predict(p, h, "set", kind="probs", nodes=2, threshold=0.85).ids[0]) == {"dog", "red fox"}
    p = torch.tensor([[0.1, 0.6, 0.1, 0.1, 0.1]])
    assert predict(p, h, "set", kind="probs", nodes=3, threshold=0.5).ids == [["beagle", None, None]]
