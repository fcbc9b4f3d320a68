"""Decisions against exhaustive search over the definitions, and what they refuse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hace import DataError, Hierarchy, HierarchyError
from hace.decisions import Decisions
from hace.decisions.rules import all_levels, predict
from hace.decisions.scores import Scores, rank_leaves, subset_mask
from hace.decisions.threshold_rules import walk_down
from hace.errors import ConfigError
from hace.hierarchy.distances import DISTANCES
from tests.hierarchies import (
    ANIMALS,
    DIAMOND,
    FLAT,
    FOREST,
    NAMED,
    NAMED_TREES,
    ONE_LEAF,
    RAGGED,
    UNARY,
    Plain,
    random_plain,
)
from tests.reference import decisions as oracle
from tests.reference.losses import leaf_probs, node_log_probs

RANDOM = {
    f"{kind}{seed}": random_plain(kind, seed, 14)
    for kind in ("ragged", "forest", "dag", "dag_forest")
    for seed in range(2)
}
EVERY = NAMED | RANDOM
TREES = {name: plain for name, plain in EVERY.items() if plain.is_tree}


def scores_for(h: Hierarchy, outputs: str, rows: int = 6, seed: int = 0) -> torch.Tensor:
    width = h.num_leaves if outputs == "leaves" else h.num_nodes
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def as_rows(h: Hierarchy, z: torch.Tensor, outputs: str) -> list[dict[str, float]]:
    """Logits as the oracles take them: a dict over the outputs' ids for each sample."""
    keys = h.leaves if outputs == "leaves" else h.nodes
    return [dict(zip(keys, row, strict=True)) for row in z.tolist()]


def heads(h: Hierarchy, rows: int = 6) -> Iterator[tuple[str, torch.Tensor, list[dict[str, float]]]]:
    """Both kinds of head: the name, scores, and the scores as the oracles take them."""
    for outputs in ("leaves", "nodes"):
        z = scores_for(h, outputs, rows)
        yield outputs, z, as_rows(h, z, outputs)


def masses(plain: Plain, logits: dict[str, float]) -> dict[str, float]:
    return oracle.node_masses(plain, logits)


@pytest.mark.parametrize("name", EVERY)
def test_log_q_is_the_oracles(name: str) -> None:
    h = EVERY[name].build()
    for outputs, z, samples in heads(h):
        for row, logits in zip(Scores(z, h, outputs=outputs).log_q().tolist(), samples, strict=True):
            expected = node_log_probs(EVERY[name], logits)
            assert row == pytest.approx([expected[v] for v in h.nodes], abs=1e-9), outputs


@pytest.mark.parametrize("name", EVERY)
def test_top_k(name: str) -> None:
    h = EVERY[name].build()
    k = min(3, h.num_leaves)
    for outputs, z, samples in heads(h):
        predictions = predict(z, h, k=k, outputs=outputs)
        for i, logits in enumerate(samples):
            p = leaf_probs(EVERY[name], logits)
            expected = oracle.top_k(p, k, h.leaves)
            ids, probabilities = predictions.ids[i], predictions.probabilities[i]
            assert (ids if k > 1 else [ids]) == expected, outputs
            assert probabilities.tolist() == pytest.approx(
                [p[c] for c in expected] if k > 1 else p[expected[0]]
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by the kernel, and by torch
@pytest.mark.parametrize("columns", [50, 333])
def test_equal_scores_come_in_label_order(columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randint(0, 3, (40, columns), generator=generator).to(dtype)
    z[0] = torch.arange(columns)  # no ties
    z[1] = -torch.inf
    z[1, 40] = 1.0
    z[2:9] = torch.randn(7, columns, generator=generator, dtype=dtype)
    for k in (1, 2, 7, 49, 50, 64, 65, columns):
        if k <= columns:
            expected = np.argsort(-z.numpy(), axis=1, kind="stable")[:, :k]
            assert rank_leaves(z, k).tolist() == expected.tolist()
            assert rank_leaves(z.t().contiguous().t(), k).tolist() == expected.tolist()


@pytest.mark.parametrize("name", TREES)
def test_node_at_every_level(name: str) -> None:
    h = TREES[name].build()
    for (outputs, z, samples), mass in itertools.product(heads(h), ("all", "leaves")):
        together = all_levels(Scores(z, h, outputs=outputs).log_q(), h, mass)
        for level in range(1, h.max_depth + 1):
            predictions = predict(z, h, "level", level=level, mass=mass, outputs=outputs)
            for i, logits in enumerate(samples):
                q = oracle.node_masses(TREES[name], logits, leaves_only=mass == "leaves")
                expected = oracle.node_at_level(TREES[name], q, level, h.nodes)
                assert predictions.ids[i] == expected, (outputs, mass, level)
                assert float(predictions.probabilities[i]) == pytest.approx(q[expected])
                assert together.ids[i][level - 1] == expected


def test_level_by_name() -> None:
    h = Hierarchy.from_paths(
        [("dog", "husky"), ("dog", "pug"), ("cat", "manx")], level_names=["genus", "breed"]
    )
    z = torch.tensor([[1.0, 1.2, 0.9]])  # leaves in natural order: husky, manx, pug
    assert predict(z, h, "leaf").ids == ["manx"]
    assert predict(z, h, "level", level="genus").ids == ["dog"]


@pytest.mark.parametrize("name", EVERY)
def test_deepest_above_threshold(name: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    per_level = np.random.default_rng(0).uniform(0, 0.9, h.max_depth).tolist()
    thresholds = (0.0, 0.3, 0.6, 0.95, 0.999999, per_level)
    for (outputs, z, samples), constrained in itertools.product(heads(h, rows=12), (True, False)):
        decide = oracle.walk_down if constrained else oracle.deepest_above
        sample_masses = [masses(plain, logits) for logits in samples]
        for threshold in thresholds:
            predictions = predict(
                z, h, "threshold", threshold=threshold, constrained=constrained, outputs=outputs
            )
            for i, q in enumerate(sample_masses):
                expected = decide(plain, q, threshold, h.nodes)
                assert predictions.ids[i] == expected, (outputs, constrained, threshold)
                assert float(predictions.probabilities[i]) == pytest.approx(
                    1.0 if expected is None else q[expected]
                )
                assert int(predictions.levels[i]) == (0 if expected is None else h.depth(expected))


@pytest.mark.parametrize("name", TREES)
def test_climb(name: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    per_level = np.random.default_rng(0).uniform(0, 0.9, h.max_depth).tolist()
    for outputs, z, samples in heads(h, rows=12):
        for threshold in (0.0, 0.3, 0.6, 0.95, per_level):
            predictions = predict(z, h, "climb", threshold=threshold, outputs=outputs)
            for i, logits in enumerate(samples):
                q = masses(plain, logits)
                expected = oracle.climb(plain, leaf_probs(plain, logits), q, threshold, h.leaves)
                assert predictions.ids[i] == expected, (outputs, threshold)
                assert float(predictions.probabilities[i]) == pytest.approx(
                    1.0 if expected is None else q[expected]
                )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ragged", "forest", "unary", "dag"])
def test_the_rules_equal_exhaustive_search(kind: str) -> None:
    """Sixty random hierarchies of each kind, heads over leaves and over nodes in turn."""
    for seed in range(60):
        plain = random_plain(kind, seed, 5 + seed % 9)
        h, rng = plain.build(), np.random.default_rng(seed)
        outputs = ("leaves", "nodes")[seed % 2]
        z = scores_for(h, outputs, rows=1, seed=seed)
        (logits,) = as_rows(h, z, outputs)
        p, q = leaf_probs(plain, logits), masses(plain, logits)

        def result(
            rule: str, z: torch.Tensor = z, outputs: str = outputs, h: Hierarchy = h, **options
        ) -> str:
            return predict(z, h, rule, outputs=outputs, **options).ids[0]

        assert result("leaf") == oracle.top_k(p, 1, h.leaves)[0]
        for t in (0.0, float(rng.random()), rng.uniform(0, 0.9, h.max_depth).tolist()):
            assert result("threshold", threshold=t) == oracle.walk_down(plain, q, t, h.nodes)
            assert result("threshold", threshold=t, constrained=False) == oracle.deepest_above(
                plain, q, t, h.nodes
            )
            if h.is_tree:
                assert result("climb", threshold=t) == oracle.climb(plain, p, q, t, h.leaves)
        if h.is_tree:
            level = int(rng.integers(1, h.max_depth + 1))
            assert result("level", level=level) == oracle.node_at_level(plain, q, level, h.nodes)
        price, distance = float(rng.random()), str(rng.choice(DISTANCES))
        for candidates in ("leaves", "nodes"):
            answers = h.leaves if candidates == "leaves" else h.nodes
            options = {"distance": distance, "price": price, "candidates": answers}
            expected = oracle.expected_costs(plain, p, **options)
            answer = result("cost", **options | {"candidates": candidates})
            assert expected[answer] == pytest.approx(min(expected.values()), abs=1e-9)


def test_of_all_nodes_that_pass_the_most_informative_answers() -> None:
    """Depth says nothing on a ragged tree: at t = 0 the rule is the best leaf, however shallow."""
    h = RAGGED.build()
    z = torch.zeros(1, h.num_leaves)
    z[0, h.leaves.index("near")] = 2.0
    assert predict(z, h, "threshold", threshold=0.0, constrained=False).ids == ["near"]
    z = scores_for(h, "leaves", rows=50)
    assert predict(z, h, "threshold", threshold=0.0, constrained=False).ids == predict(z, h).ids
    h = UNARY.build()  # c, c1 and leaf3 have one leaf; a head over nodes gives c the most mass of the three
    z = torch.full((1, h.num_nodes), -9.0)
    z[0, [h.index(v) for v in ("c", "c1", "leaf3")]] = torch.tensor([0.0, 1.0, 1.0])
    for threshold, answer in ((0.0, "leaf3"), (0.4, "leaf3"), (0.6, "c1"), (0.9, "c")):
        assert predict(z, h, "threshold", threshold=threshold, constrained=False).ids == [answer]
    silent = torch.tensor([[1.0, 0.0]])  # no mass on the only leaf, which passes t = 0 all the same
    assert predict(
        silent, ONE_LEAF.build(), "threshold", threshold=0.0, constrained=False, kind="probs"
    ).ids == ["only"]


def test_a_mass_equal_to_the_threshold_passes() -> None:
    h = Hierarchy.flat(["a", "b"])
    z = torch.zeros(1, 2, dtype=torch.float64)
    assert predict(z, h, "threshold", threshold=0.5).ids == ["a"]
    assert predict(z, h, "threshold", threshold=0.5, constrained=False).ids == ["a"]
    assert predict(z, h, "threshold", threshold=math.nextafter(0.5, 1)).ids == [None]


def test_a_root_passes_every_threshold() -> None:
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for constrained in (True, False):
        assert (
            predict(z, ANIMALS.build(), "threshold", threshold=1.0, constrained=constrained).ids
            == ["animal"] * 5
        )


def test_walk_takes_the_first_of_equal_children() -> None:
    h = FOREST.build()
    nodes, masses = walk_down(torch.zeros(2, h.num_nodes), h)
    start = h.nodes[0]
    assert nodes[:, 0].tolist() == [-1, -1]
    assert masses[:, 0].tolist() == [0, 0]
    assert [h.nodes[v] for v in nodes[0, 1:3].tolist()] == [start, h.children(start)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_expected_costs(name: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    z = scores_for(h, "leaves", rows=3)
    samples = as_rows(h, z, "leaves")
    for distance, candidates, price in itertools.product(
        DISTANCES, ("leaves", "nodes"), (0.0, 0.5, 0.8, 1.0)
    ):
        answers = h.leaves if candidates == "leaves" else h.nodes
        options = {"candidates": candidates, "distance": distance, "price": price}
        best = predict(z, h, "cost", outputs="leaves", **options)
        for i, logits in enumerate(samples):
            p = leaf_probs(plain, logits)
            expected = oracle.expected_costs(plain, p, distance=distance, price=price, candidates=answers)
            q = oracle.node_masses(plain, logits)
            assert float(best.probabilities[i]) == pytest.approx(q[best.ids[i]], abs=1e-12), options
            answer = oracle.least_cost(expected, {v: round(q[v], 12) for v in q}, answers, 1e-9)
            assert expected[best.ids[i]] == pytest.approx(min(expected.values()), abs=1e-9)
            if len([v for v in expected if expected[v] <= min(expected.values()) + 1e-9]) == 1:
                assert best.ids[i] == answer
            assert best.costs is not None
            assert float(best.costs[i]) == pytest.approx(expected[answer], abs=1e-9)


def test_equal_costs_go_to_the_more_probable_answer() -> None:
    """With price 0 every ancestor-or-self of all mass is free: the tie goes to the most probable, then the first."""
    h = ANIMALS.build()
    z = torch.tensor([[9.0, 0.0, 0.0, 0.0]])
    assert predict(z, h, "cost", candidates="nodes", price=0.0).ids == ["animal"]
    p = torch.tensor(
        [[0.5, 0.0, 0.5, 0.0]]
    )  # husky, persian, beagle, siamese: siblings tie, label order decides
    assert predict(p, h, "cost", kind="probs").ids == ["husky"]
    h = Hierarchy.from_paths([("dog", "husky"), ("dog", "pug"), ("cat",)], leaves=["husky", "pug", "cat"])
    p = torch.tensor([[3.0, 2.0, 4.0]], dtype=torch.float64) / 9  # 2 - 3/9 - 5/9 = 2 - 2 x 4/9
    assert predict(p, h, "cost", kind="probs").ids == ["cat"]


def test_price_is_the_share_a_leaf_needs() -> None:
    """With lca_height a leaf beats its parent when its share of the parent's mass is above 1 - price."""
    h = Hierarchy.from_paths([("dog", "husky"), ("dog", "pug")], leaves=["husky", "pug"]).with_root()
    for price in (0.2, 0.5, 0.7):
        for share in (1 - price - 0.01, 1 - price + 0.01):
            if share < 0.5:  # then the other leaf is the better one
                continue
            p = torch.tensor([[share, 1 - share]], dtype=torch.float64)
            expected = "husky" if share > 1 - price else "dog"
            assert predict(p, h, "cost", candidates="nodes", price=price, kind="probs").ids == [expected]


def test_expected_cost_prefers_the_crowd_over_the_lonely_best() -> None:
    h = ANIMALS.build()
    p = torch.tensor(
        [[0.3, 0.4, 0.3, 0.0]]
    )  # husky, persian, beagle: persian is the best leaf, dogs have more mass
    assert predict(p, h, kind="probs").ids == ["persian"]
    assert predict(p, h, "cost", kind="probs").ids == ["husky"]


@pytest.mark.parametrize("name", EVERY)
def test_subset(name: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    subset = h.leaves[::2]
    for outputs, z, samples in heads(h):
        restricted = Scores(z, h, outputs=outputs).restricted(subset_mask(h, subset)).log_q().exp()
        for i, logits in enumerate(samples):
            own = oracle.restrict(plain, logits, subset)
            for v, result in zip(h.nodes, restricted[i].tolist(), strict=True):
                below = set(h.descendants(v, include_self=True))
                assert result == pytest.approx(sum(x for u, x in own.items() if u in below), abs=1e-12), (
                    outputs
                )
        assert set(predict(z, h, outputs=outputs, subset=subset).ids) <= set(subset)


def test_subset_of_all_leaves_changes_nothing() -> None:
    h = ANIMALS.build()
    z = scores_for(h, "nodes")
    assert torch.equal(Scores(z, h).restricted(subset_mask(h, h.leaves)).log_q(), Scores(z, h).log_q())


@pytest.mark.parametrize("rule", ["leaf", "level", "threshold", "cost"])
def test_kinds_agree(rule: str) -> None:
    h = ANIMALS.build()
    options = {"level": {"level": 1}, "threshold": {"threshold": 0.6}}.get(rule, {})
    for _, z, _ in heads(h):
        expected = predict(z, h, rule, **options)
        for kind, scores in (
            ("probs", z.softmax(1)),
            ("log_probs", z.log_softmax(1)),
            ("node_log_probs", Scores(z, h).log_q()),
        ):
            predictions = predict(scores, h, rule, kind=kind, **options)
            assert predictions.ids == expected.ids
            torch.testing.assert_close(predictions.probabilities, expected.probabilities)


def test_decisions_convert() -> None:
    h = Hierarchy.from_paths([("dog", "husky"), ("dog", "pug"), ("cat",)], level_names=["genus", "breed"])
    z = torch.tensor([[0.1, 3.0, 3.1], [4.0, 0.0, 0.0]])  # cat, husky, pug
    d = predict(z, h, "threshold", threshold=0.8)
    frame = d.to_frame()
    assert list(frame.columns) == ["sample", "id", "name", "level", "level_name", "probability", "path"]
    assert frame["id"].tolist() == ["dog", "cat"]
    assert frame["level_name"].tolist() == ["genus", "genus"]
    assert d.labels.tolist() == [-1, 0]
    ranked = predict(z, h, k=2)
    table = ranked.to_frame()
    assert table["sample"].tolist() == [0, 0, 1, 1]
    assert table["rank"].tolist() == [1, 2, 1, 2]
    assert table["path"].tolist()[:2] == ["dog > pug", "dog > husky"]
    assert ranked.paths[0][0] == ("dog", "pug")
    assert repr(ranked) == "<Decisions: 2 samples x 2 over <Hierarchy forest: 4 nodes, 3 leaves, depth 2>>"
    assert predict(z, h, "cost").to_frame()["cost"].notna().all()


def test_no_answer_below_a_virtual_root() -> None:
    d = predict(torch.zeros(1, 3), FLAT.build(), "threshold", threshold=0.9)
    assert (d.ids, d.names, d.paths, d.levels.tolist(), d.labels.tolist()) == (
        [None],
        [None],
        [()],
        [0],
        [-1],
    )
    assert d.probabilities.tolist() == [1.0]
    assert d.columns()["path"] == [""]


@pytest.mark.parametrize("name", ["animals", "one_leaf", "one_node", "flat", "diamond"])
def test_extremes(name: str) -> None:
    """One leaf, empty batches, logits of 1e4, half precision."""
    h = NAMED[name].build()
    rules: list[tuple[str, dict]] = [
        ("leaf", {}),
        ("threshold", {"threshold": 0.5}),
        ("cost", {"candidates": "nodes"}),
    ]
    if h.is_tree:
        rules.append(("level", {"level": 1}))
    for rule, options in rules:
        empty = predict(torch.zeros(0, h.num_leaves), h, rule, **options)
        assert len(empty) == 0
        assert empty.columns()["id"] == []
        z = torch.full((2, h.num_leaves), -1e4)
        z[:, 0] = 1e4
        sure = predict(z, h, rule, **options)
        assert sure.probabilities.tolist() == [1.0, 1.0]
        assert predict(z.bfloat16(), h, rule, **options).ids == sure.ids
        if rule == "leaf" or (rule == "threshold" and h.is_tree):
            assert sure.ids == [h.leaves[0]] * 2


def test_large_batches_are_worked_on_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    h = ANIMALS.build()
    z = scores_for(h, "nodes", rows=23)
    whole = predict(z, h, "cost", candidates="nodes")
    monkeypatch.setattr("hace.decisions.scores._BLOCK", 5 * h.num_nodes)
    parts = predict(z, h, "cost", candidates="nodes")
    assert parts.ids == whole.ids
    assert torch.equal(parts.costs, whole.costs)  # type: ignore[arg-type]


def test_no_dense_matrix_on_a_wide_tree() -> None:
    """20,000 leaves: n x n would be 3.2 GB of int64."""
    h = Hierarchy.from_parents([-1] + [0] * 200 + [1 + i % 200 for i in range(20_000)])
    p = torch.rand(2, h.num_leaves).softmax(1)
    d = predict(p, h, "cost", kind="probs")
    mass = torch.zeros(2, h.num_nodes, dtype=torch.float64)
    mass.index_add_(1, torch.from_numpy(h.parent_nodes[h.leaf_nodes]), p.double())
    expected = (
        2 - mass[:, torch.from_numpy(h.parent_nodes[h.leaf_nodes])] - p
    )  # height 2, 1 for siblings, 0 itself
    assert d.costs is not None
    torch.testing.assert_close(d.costs, expected.amin(dim=1))


# ---------------------------------------------------------------------- what is refused, and in which words


def refused(error: type[Exception], *parts: str, **options: object) -> None:
    arguments = {"scores": torch.zeros(3, 4), "hierarchy": ANIMALS.build()} | options
    with pytest.raises(error) as caught:
        predict(**arguments)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


def test_shapes_that_do_not_fit() -> None:
    refused(
        DataError, "each of the 4 leaves or each of the 7 nodes", "Got 5 columns", scores=torch.zeros(3, 5)
    )
    refused(
        DataError, "each of the 7 nodes", "That is the number of leaves", "outputs='leaves'", outputs="nodes"
    )
    refused(DataError, "two dimensions", "Got shape (4,)", scores=torch.zeros(4))
    refused(DataError, "floating-point", "int64", scores=torch.zeros(3, 4, dtype=torch.long))


def test_nan_is_counted_and_placed() -> None:
    z = torch.zeros(5, 4)
    z[2, 1] = z[4, 0] = z[4, 3] = math.nan
    refused(DataError, "NaN", "2 of 5 rows", "the first is row 2", scores=z)
    z = torch.zeros(5, 4)
    z[3] = math.inf
    refused(DataError, "+inf", "row 3", scores=z)
    refused(DataError, "-inf throughout", "row 0", scores=torch.full((2, 4), -math.inf))


def test_probabilities_must_sum_to_one() -> None:
    p = torch.full((4, 4), 0.25)
    p[1] *= 2
    refused(DataError, "1 of 4 do not", "row 1 sums to 2", "kind='logits'", scores=p, kind="probs")
    refused(DataError, "negative", "row 0", scores=-p, kind="probs")
    refused(DataError, "at most 0", scores=torch.ones(2, 7), kind="node_log_probs")


def test_bad_subsets() -> None:
    refused(DataError, "subset must name at least one class", subset=[])
    refused(DataError, "'huskey'", "Did you mean 'husky'", subset=["huskey"])
    refused(
        ConfigError,
        "subset needs logits or probabilities",
        scores=torch.zeros(3, 7),
        kind="node_log_probs",
        subset=["husky"],
    )
    certain = torch.tensor([[1.0, 0, 0, 0]])
    refused(
        DataError,
        "must have some mass in the subset. 1 of 1 rows break this rule",
        scores=certain,
        kind="probs",
        subset=["persian"],
    )


def test_bad_options() -> None:
    refused(ConfigError, "rule must be one of 'leaf', 'level'", rule="best")
    refused(ConfigError, "rule 'leaf' takes no threshold", "rule='threshold'", threshold=0.5)
    refused(ConfigError, "needs threshold", rule="threshold")
    refused(ConfigError, "levels 1 to 2", "Got 3", rule="threshold", threshold=[0.1, 0.2, 0.3])
    refused(ConfigError, "from 0 to 1", rule="threshold", threshold=1.5)
    refused(ConfigError, "price", rule="cost", price=2.0)
    refused(ConfigError, "candidates", rule="cost", candidates="all")
    refused(ConfigError, "mass", rule="level", level=1, mass="own")
    refused(ConfigError, "kind", kind="scores")
    refused(ConfigError, "outputs", outputs="columns")
    refused(ConfigError, "k must be from 1 to the number of leaves, 4", k=5)
    refused(HierarchyError, "level must be", rule="level", level=9)
    refused(HierarchyError, "distance", rule="cost", distance="hops")


def test_levels_of_a_dag_are_refused() -> None:
    with pytest.raises(HierarchyError, match="several ways up"):
        predict(torch.zeros(1, 3), DIAMOND.build(), "climb", threshold=0.5)
    with pytest.raises(HierarchyError, match="need a tree or forest"):
        predict(torch.zeros(1, 3), DIAMOND.build(), "level", level=1)


def test_leaf_rule_needs_mass_on_a_leaf() -> None:
    h = ONE_LEAF.build()
    with pytest.raises(DataError, match="must have some mass on the leaves"):
        predict(torch.tensor([[1.0, 0.0]]), h, kind="probs")


def test_decisions_join() -> None:
    h = ANIMALS.build()
    parts = [predict(scores_for(h, "leaves", rows=2, seed=s), h) for s in (0, 1)]
    joined = Decisions.joined(parts)
    assert joined.ids == parts[0].ids + parts[1].ids
    assert NAMED_TREES["animals"].leaves[0] == h.leaves[0]
