"""Answers that climb until a guarantee holds, and the noise of their threshold."""

from __future__ import annotations

import numpy as np
import pytest

from hace import Hierarchy
from hace.hierarchy.distances import relations
from hace.lab.report.conformal import (
    AnswerLadder,
    confidence_columns,
    conformal_limits,
    detail_draws,
    detail_parts,
    run_ladder,
    sure_places,
)
from hace.metrics.intervals import resampled_interval
from tests.report_studies import animals


def test_guaranteed_answers_by_loops() -> None:
    h = Hierarchy.from_paths([("a", "b", "1"), ("a", "b", "2"), ("a", "3"), ("c", "4"), ("c", "5"), ("6",)])
    rng = np.random.default_rng(0)
    samples = 400
    truth = h.leaf_nodes[rng.integers(h.num_leaves, size=samples)]
    answer = np.where(
        rng.random(samples) < 0.6, truth, h.leaf_nodes[rng.integers(h.num_leaves, size=samples)]
    )
    mass = np.sort(rng.random((samples, h.max_depth + 1)), axis=1)[:, ::-1].astype(np.float32)
    run = {"truth": truth, "answer": answer, "path_confidence": mass}
    ladder = run_ladder(run, h)
    assert ladder is not None
    for i in range(samples):
        path = list(h.path(h.nodes[answer[i]]))[::-1]
        path = [None] * (h.max_depth + 1 - len(path)) + path
        above = set(h.path(h.nodes[truth[i]])) | {None}
        assert [None if v < 0 else h.nodes[v] for v in ladder.nodes[i]] == path
        assert ladder.is_true[i].tolist() == [node in above for node in path]
    rows = np.arange(100)
    limits = [
        max([m for m, t in zip(mass[i], ladder.is_true[i], strict=True) if not t], default=0.0) for i in rows
    ]
    assert limit_of(limits, 0.9) == sorted(limits)[91 - 1]  # ceil(101 * 0.9)
    places, strict = sure_places(ladder, (0.9, 0.95))
    order = np.random.default_rng(0).permutation(samples)
    for half, other in ((order[:200], order[200:]), (order[200:], order[:200])):
        theta = sorted(max([0.0, *mass[i][~ladder.is_true[i]]]) for i in other)
        for i in half:  # ceil(201 * 0.9)
            assert places[i] == max([0, *(k for k in range(1, 4) if mass[i, k] > theta[181 - 1])])
    wrong = [not ladder.is_true[i, places[i]] for i in range(samples)]
    assert 0.03 < np.mean(wrong) < 0.17  # guaranteed is 0.1
    share = relations(h).specificity
    columns = confidence_columns(run, h)
    expected = [share[ladder.nodes[i, k]] for i, k in enumerate(strict)]
    assert columns["sure_detail"][0] == pytest.approx(np.mean(expected), rel=1e-5)
    assert share[h.index("1")] == pytest.approx(1)
    assert share[-1] == 0
    assert share[h.index("b")] == pytest.approx(np.log(3) / np.log(6))


def limit_of(false_up_to: list[float], guarantee: float) -> float:
    """The limit of samples, each drawn once."""
    return float(conformal_limits(np.array(false_up_to), np.ones((len(false_up_to), 1), int), guarantee)[0])


def drawn(ladder: AnswerLadder, worth: np.ndarray, guarantee: float) -> np.ndarray:
    """(DRAWS,) the mean worth on each draw."""
    parts = np.hstack([0.0, *detail_parts(ladder, worth, guarantee)])
    return detail_draws(parts[None], ladder.groups)[0, 1:]


def test_the_detail_at_a_guarantee_knows_the_noise_of_its_threshold() -> None:
    """Fresh samples, with calibration and evaluation drawn together, vary as much as the interval of one draw says."""
    h = Hierarchy.from_paths(
        [(f"a{i}", f"a{i}b{j}", f"a{i}b{j}c{k}") for i in range(3) for j in range(3) for k in range(3)]
    )
    rng = np.random.default_rng(0)
    samples, means, naive, stated = 1000, [], [], []
    for _ in range(150):
        leaf = h.leaf_nodes[rng.integers(h.num_leaves, size=samples)]
        family = h.parent_nodes[leaf]
        masses = [rng.beta(4, 1.2, size=samples)]
        for _ in range(2):
            masses.append(masses[-1] + (1 - masses[-1]) * rng.uniform(0.3, 0.9, size=samples))
        luck = rng.random(samples)
        true = [np.ones(samples, dtype=bool), *(luck < mass for mass in masses[::-1])]
        nodes = np.stack([np.full(samples, -1), h.parent_nodes[family], family, leaf], axis=1)
        reached = np.stack([np.full(samples, np.inf), *masses[::-1]], axis=1)
        ladder = AnswerLadder(h, nodes, reached, np.stack(true, axis=1))
        worth = relations(h).specificity[nodes]
        said = np.take_along_axis(worth, sure_places(ladder, (0.95,))[0][:, None], axis=1)[:, 0]
        draws = drawn(ladder, worth, 0.95)
        means.append(said.mean())
        naive.append(said.std() / samples**0.5)
        stated.append(resampled_interval(np.append(said.mean(), draws)[None], samples).error)
    assert np.mean(stated) == pytest.approx(np.std(means), rel=0.25)
    assert np.mean(naive) < 0.5 * np.std(means)  # of the evaluated samples alone


def test_draws_choose_their_thresholds_as_the_samples_do() -> None:
    """A draw of samples gives what samples repeated that often would; groups are drawn, and halved, whole."""
    rng = np.random.default_rng(0)
    samples = 120
    mass = np.sort(rng.random((samples, 4)).round(2), axis=1)[:, ::-1].copy()  # with ties
    true = np.sort(rng.random((samples, 4)) < 0.7, axis=1)[:, ::-1].copy()
    worth = np.broadcast_to(np.array([0.0, 0.3, 0.6, 1.0]), mass.shape)
    mass[:, 0], true[:, 0] = np.inf, True  # the root
    nothing = np.zeros((samples, 4), dtype=int)
    flat = Hierarchy.flat(["a", "b"])
    alone, own = (AnswerLadder(flat, nothing, mass, true, names) for names in (None, np.arange(samples)))
    halves = zip(alone.resampled.halves, own.resampled.halves, strict=True)
    assert all(np.array_equal(a, b) for a, b in halves)
    assert np.array_equal(drawn(alone, worth, 0.9), drawn(own, worth, 0.9))
    for groups in (None, rng.integers(17, size=samples)):
        ladder = AnswerLadder(flat, nothing, mass, true, groups)
        halves, counts, _, _ = ladder.resampled
        result = drawn(ladder, worth, 0.9)
        if groups is not None:
            assert set(groups[halves[0]]).isdisjoint(groups[halves[1]])
            for group in range(17):
                assert (counts[groups == group] == counts[groups == group][:1]).all()
        for draw in range(0, 300, 29):
            total = 0.0
            for rows, others in (halves, halves[::-1]):
                theta = [max([0.0, *mass[i][~true[i]]]) for i in np.repeat(others, counts[others, draw])]
                limit = limit_of(theta, 0.9)
                for i in np.repeat(rows, counts[rows, draw]):
                    total += worth[i, max([0, *(k for k in range(1, 4) if mass[i, k] > limit)])]
            assert result[draw] == pytest.approx(total / counts[:, draw].sum())


def test_a_guarantee_that_too_few_samples_can_keep_answers_nothing() -> None:
    reached = np.column_stack([np.full(5, np.inf), np.ones(5)])
    flat = Hierarchy.flat(["a", "b"])
    ladder = AnswerLadder(flat, np.zeros((5, 2), dtype=int), reached, np.ones((5, 2), dtype=bool))
    assert limit_of([0.0] * 5, 0.99) == np.inf
    assert limit_of([], 0.5) == np.inf  # a half without a group
    assert sure_places(ladder, (0.99,))[0].tolist() == [0] * 5


def test_no_ladder_without_a_tree_or_kept_confidences() -> None:
    dag = Hierarchy.from_edges([("r", "a"), ("r", "b"), ("a", "1"), ("a", "2"), ("b", "2")])
    assert confidence_columns({"path_confidence": np.ones((3, 0))}, dag) == {}
    assert confidence_columns({}, animals()) == {}
