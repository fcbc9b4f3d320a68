"""Metrics as plain functions against loops over the definitions."""

from __future__ import annotations

import ast
import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hace import DataError, Hierarchy, HierarchyError, evaluate, guaranteed_threshold, metrics
from hace.decisions import Decisions
from hace.decisions.rules import all_levels, predict
from hace.decisions.scores import Scores
from hace.errors import ConfigError
from hace.hierarchy.distances import DISTANCES
from hace.metrics import Evaluator, operating_curve, risk_coverage
from tests.hierarchies import ANIMALS, DIAMOND, FOREST, NAMED, RAGGED, random_plain
from tests.reference import decisions as decided
from tests.reference import metrics as oracle
from tests.reference.losses import leaf_probs

RANDOM = {
    f"random {kind}": random_plain(kind, 1, 14) for kind in ("ragged", "unary", "forest", "dag", "dag_forest")
}
EVERY = NAMED | RANDOM
TREES = {name: plain for name, plain in EVERY.items() if plain.is_tree}
SAMPLES = 12


def sample(h: Hierarchy, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores over leaves and labels, right more often than chance."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(h.num_leaves, (SAMPLES,), generator=g)
    z = torch.randn(SAMPLES, h.num_leaves, generator=g, dtype=torch.float64)
    z[torch.arange(SAMPLES), y] += 1.0
    return z, y


def answers(h: Hierarchy, seed: int = 0) -> tuple[Decisions, list[str | None]]:
    """Answers of any rank, none included where there is no root."""
    low = 0 if h.rooted else -1
    g = torch.Generator().manual_seed(seed)
    nodes = torch.randint(low, h.num_nodes, (SAMPLES,), generator=g)
    d = Decisions(h, nodes, torch.rand(SAMPLES, generator=g))
    return d, d.ids


def truths(h: Hierarchy, y: torch.Tensor) -> list[str]:
    return [h.leaves[i] for i in y.tolist()]


def rows(plain: object, h: Hierarchy, z: torch.Tensor) -> list[dict[str, float]]:
    return [leaf_probs(plain, dict(zip(h.leaves, row, strict=True))) for row in z.tolist()]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EVERY)
def test_leaf_metrics(name: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    z, y = sample(h)
    p, ids = rows(plain, h, z), truths(h, y)
    best = [decided.top_k(row, 1, h.leaves)[0] for row in p]
    for k in {1, min(2, h.num_leaves), h.num_leaves}:
        accuracy = metrics.top_k_accuracy(z, y, h, k)
        assert float(accuracy) == pytest.approx(oracle.top_k_accuracy(p, ids, k, h.leaves))
        for distance in DISTANCES:
            accuracy = metrics.hierarchical_distance_at(z, y, h, k, distance=distance)
            expected = oracle.hierarchical_distance_at(plain, p, ids, k, h.leaves, distance)
            assert float(accuracy) == pytest.approx(expected)
    for distance in DISTANCES:
        severity, count = oracle.mistake_severity(plain, best, ids, distance)
        mean_severity = metrics.mistake_severity(z, y, h, distance=distance)
        assert int(mean_severity.mistakes) == count
        assert float(mean_severity.value) == pytest.approx(severity, nan_ok=True)
        if count:  # the identity: HD@1 = severity x error rate
            hd1 = float(metrics.hierarchical_distance_at(z, y, h, 1, distance=distance))
            assert hd1 == pytest.approx(float(mean_severity.value) * count / SAMPLES)


@pytest.mark.parametrize("name", EVERY)
def test_precision_and_recall(name: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    _, y = sample(h)
    d, ids = answers(h)
    for average in ("micro", "macro"):
        scores = metrics.hierarchical_prf(d, y, h, average=average)
        expected = oracle.hierarchical_prf(plain, ids, truths(h, y), average)
        assert [float(x) for x in scores] == pytest.approx(expected), average
        scores = metrics.information_prf(d, y, h, average=average)
        expected = oracle.information_prf(plain, ids, truths(h, y), average)
        assert [float(x) for x in scores] == pytest.approx(expected), average
    # Truths at any rank.
    y = torch.randint(h.num_nodes, (SAMPLES,), generator=torch.Generator().manual_seed(3))
    answered = [h.nodes[v] for v in y.tolist()]
    scores = metrics.hierarchical_prf(d, y, h, labels="nodes")
    assert [float(x) for x in scores] == pytest.approx(oracle.hierarchical_prf(plain, ids, answered, "micro"))


@pytest.mark.parametrize("name", TREES)
def test_levels(name: str) -> None:
    plain, h = TREES[name], TREES[name].build()
    z, y = sample(h)
    ids = truths(h, y)
    d, answered = answers(h)
    levels = range(1, h.max_depth + 1)
    expected = [oracle.level_accuracy(plain, answered, ids, k) for k in levels]
    assert metrics.level_accuracy(d, y, h).tolist() == pytest.approx(expected)
    for k in levels:
        table = metrics.class_accuracy(d, y, h, k)
        classes = oracle.class_accuracy(plain, answered, ids, k)
        assert set(table.columns()["id"]) == set(classes)
        for node, accuracy, count in zip(table.columns()["id"], table.accuracy, table.counts, strict=True):
            assert (accuracy, count) == pytest.approx(classes[node], nan_ok=True)
    chosen = all_levels(Scores(z, h).log_q(), h)
    assert float(metrics.full_path_accuracy(z, y, h)) == pytest.approx(
        oracle.full_path_accuracy(plain, chosen.ids, ids)
    )
    assert float(metrics.tree_inconsistency(z, y, h)) == pytest.approx(
        oracle.tree_inconsistency(plain, chosen.ids)
    )
    for k, diagram in zip(levels, metrics.level_calibration(z, y, h, bins=5), strict=True):
        correct = [
            a[k - 1] == oracle.structure.carried(plain, t, k) for a, t in zip(chosen.ids, ids, strict=True)
        ]
        confidences = chosen.probabilities[:, k - 1].tolist()
        assert diagram.ece == pytest.approx(
            oracle.ece([min(c, 1.0) for c in confidences], correct, 5), abs=1e-9
        )
        equal = metrics.reliability(confidences, correct, 5, "mass")
        assert equal.ece == pytest.approx(oracle.mass_ece(confidences, correct, 5), abs=1e-9)
        rounded = np.round(confidences, 1)  # many are equal
        assert metrics.expected_calibration_error(rounded, correct, 4, "mass") == pytest.approx(
            oracle.mass_ece(rounded.tolist(), correct, 4), abs=1e-9
        )
    with pytest.raises(ConfigError, match="binning must be one of 'width', 'mass'"):
        metrics.level_calibration(z, y, h, binning="size")


@pytest.mark.parametrize("of", ["samples", "answers"])
@pytest.mark.parametrize("name", EVERY)
def test_specificity_at_a_guaranteed_accuracy(name: str, of: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    z, y = sample(h)
    confidence = 0.5 if of == "answers" else None
    try:
        sure = guaranteed_threshold(z, y, h, 0.5, confidence, of)
    except DataError:  # a hierarchy whose answers are never sure enough
        sure = guaranteed_threshold(z * 0, y, h, 0.05)
    z, y = sample(h, seed=9)
    answered = sure.predict(z, h).ids
    most = max(decided.information(plain, v) for v in h.leaves)
    root = {None, *(h.nodes[:1] if h.rooted else ())}
    below = [a not in root for a in answered]
    true = [a is None or a == v or a in h.ancestors(v) for a, v in zip(answered, truths(h, y), strict=True)]
    result = metrics.guaranteed_answers(z, y, h, sure)
    specific = [decided.information(plain, a) / most if most else 1.0 for a in answered]
    assert result.specificity.item() == pytest.approx(np.mean(specific))
    assert result.false.item() == pytest.approx(1 - np.mean(true))
    assert result.answered.item() == pytest.approx(np.mean(below))
    below_root = [t for t, b in zip(true, below, strict=True) if b]
    assert result.true_answers.item() == pytest.approx(
        np.mean(below_root) if below_root else math.nan, nan_ok=True
    )


@pytest.mark.parametrize("labels", ["leaves", "nodes"])
@pytest.mark.parametrize("name", TREES)
def test_proper_scores_and_hierarchical_risk(name: str, labels: str) -> None:
    """Heads over leaves with truths at leaves; heads over nodes, whose inner nodes have mass, with truths at any rank."""
    plain, h = TREES[name], TREES[name].build()
    z, y = sample(h)
    if labels == "nodes":
        g = torch.Generator().manual_seed(8)
        z = torch.randn(SAMPLES, h.num_nodes, generator=g, dtype=torch.float64)
        y = torch.randint(h.num_nodes, (SAMPLES,), generator=g)
    forms = {"labels": labels, "outputs": labels}
    ids = [h.nodes[v] for v in y.tolist()] if labels == "nodes" else truths(h, y)
    q = Scores(z, h, outputs=labels).log_q().exp()
    masses = [dict(zip(h.nodes, row, strict=True)) for row in q.tolist()]
    leaf = [{v: row[v] for v in h.leaves} for row in masses]
    levels = range(1, h.max_depth + 1)
    expected = [oracle.brier_score(plain, masses, ids, k) for k in levels]
    assert metrics.brier_score(z, y, h, **forms).tolist() == pytest.approx(expected, nan_ok=True)
    expected = [oracle.log_likelihood(plain, masses, ids, k) for k in levels]
    assert metrics.log_likelihood(z, y, h, **forms).tolist() == pytest.approx(expected, nan_ok=True)
    curve = metrics.hierarchical_risk_coverage(z, y, h, **forms)
    area = oracle.hierarchical_risk_area(plain, leaf, masses, ids, h.leaves)
    assert curve.area == pytest.approx(area, abs=1e-9)
    for t, risk in list(zip(curve.threshold, curve.risk, strict=True))[:: max(1, len(curve.risk) // 5)]:
        if t < 1:  # a point is the answers at its threshold
            answered = predict(z, h, "climb", threshold=float(t), outputs=labels).ids
            false = [
                a is not None and a != v and a not in h.ancestors(v)
                for a, v in zip(answered, ids, strict=True)
            ]
            assert risk == pytest.approx(np.mean(false))


def test_answers_at_levels_that_break() -> None:
    """Explicit answers, not on one path: only samples whose answers hang together are consistent."""
    h = ANIMALS.build()
    at = h.index
    given = torch.tensor([[at("dog"), at("husky")], [at("cat"), at("husky")], [at("cat"), at("siamese")]])
    y = torch.tensor([0, 0, 0])
    assert float(metrics.tree_inconsistency(given, y, h, labels="nodes")) == pytest.approx(1 / 3)
    truth = torch.tensor([at("husky")] * 3)
    assert float(metrics.full_path_accuracy(given, truth, h, labels="nodes")) == pytest.approx(1 / 3)


def test_leaves_above_a_level_are_carried() -> None:
    h = RAGGED.build()  # 'near' ends at level 1
    y = torch.tensor([h.label("near"), h.label("deep1")])
    same = metrics.level_accuracy(y, y, h)
    assert same.tolist() == [1.0] * h.max_depth
    swapped = metrics.level_accuracy(y.flip(0), y, h)
    assert swapped.tolist() == [0.0] * h.max_depth


@pytest.mark.parametrize("name", EVERY)
def test_operating_curve(name: str) -> None:
    plain, h = EVERY[name], EVERY[name].build()
    z, y = sample(h)
    thresholds = [0.0, 0.2, 0.45, 0.6, 0.8, 0.97]
    masses = [decided.node_masses(plain, dict(zip(h.leaves, row, strict=True))) for row in z.tolist()]
    for constrained in (True, False):
        points = decided.operating_points(
            plain, masses, truths(h, y), thresholds, h.nodes, constrained=constrained
        )
        curve = operating_curve(z, y, h, thresholds=thresholds, constrained=constrained)
        result = list(zip(curve.specificity, curve.precision, strict=True))
        assert [x for point in result for x in point] == pytest.approx([x for point in points for x in point])
        assert curve.area == pytest.approx(decided.operating_area(points)), constrained
        exact = operating_curve(z, y, h, constrained=constrained)
        apart = np.diff(exact.thresholds, prepend=-1) > 1e-8  # others differ by rounding
        just_below = np.maximum(exact.thresholds[apart] - 1e-9, 0).tolist()
        points = decided.operating_points(
            plain, masses, truths(h, y), just_below, h.nodes, constrained=constrained
        )
        result = np.stack([exact.specificity, exact.precision], axis=1)[apart]
        assert result.ravel().tolist() == pytest.approx([x for point in points for x in point])
        again = operating_curve(z, y, h, thresholds=just_below, constrained=constrained)
        for part in ("answered", "answer_precision"):
            assert getattr(exact, part)[apart] == pytest.approx(getattr(again, part), nan_ok=True)


@pytest.mark.parametrize("name", TREES)
def test_the_exact_curve_is_that_of_published_answers(name: str) -> None:
    """The most informative node above a threshold, at every score: the sequence of answers of Valmadre 2022."""
    plain, h = TREES[name], TREES[name].build()
    z, y = sample(h)
    masses = [decided.node_masses(plain, dict(zip(h.leaves, row, strict=True))) for row in z.tolist()]
    sequences = [decided.informative_sequence(plain, q) for q in masses]
    most = math.log2(h.num_leaves) or 1.0
    points = []
    for t in sorted({q for answers in sequences for _, q in answers}):
        answers = [[v for v, q in each if q >= t - 1e-9][-1] for each in sequences]
        true = [
            v is None or v in decided.structure.ancestors(plain, c)
            for v, c in zip(answers, truths(h, y), strict=True)
        ]
        specific = [decided.information(plain, v) / most for v in answers]
        points.append((float(np.mean(specific)), float(np.mean(true))))
    if h.num_leaves > 1:
        curve = operating_curve(z, y, h, constrained=False)
        assert curve.area == pytest.approx(decided.operating_area(points), abs=1e-9)


def test_threshold_for_a_precision() -> None:
    h = ANIMALS.build()
    z, y = sample(h, seed=5)
    curve = operating_curve(z, y, h)
    for of in ("answers", "samples"):
        t = curve.threshold_for(0.9, of)
        assert true_share(z, y, h, t, of) >= 0.9
        deeper = curve.specificity > curve.specificity[np.searchsorted(curve.thresholds, t)]
        assert all(not true_share(z, y, h, u, of) >= 0.9 for u in curve.thresholds[deeper])
    assert curve.threshold_for(0.9) > curve.threshold_for(0.9, "samples")
    assert math.isnan(operating_curve(-z, y, h, thresholds=[0.0]).threshold_for(1.0))
    with pytest.raises(ConfigError, match=r"of must be one of 'answers', 'samples'. Got 'all'."):
        curve.threshold_for(0.9, "all")
    with pytest.raises(ConfigError, match=r"precision must be a number from 0 to 1. Got 95."):
        curve.threshold_for(95)


def true_share(z: torch.Tensor, y: torch.Tensor, h: Hierarchy, threshold: float, of: str) -> float:
    """The share of true answers of the threshold rule, among answers below the root or among all samples."""
    d = predict(z, h, "threshold", threshold=float(threshold))
    counted = [(a, h.leaves[t]) for a, t in zip(d.ids, y.tolist(), strict=True)]
    if of == "answers":
        counted = [(a, t) for a, t in counted if a not in (None, "animal")]
    true = [a is None or a in h.ancestors(t, include_self=True) for a, t in counted]
    return sum(true) / len(true) if true else math.nan


def test_bins_are_bounded() -> None:
    rule = "bins must be a whole number from 1 to 100,000. Got "
    h = ANIMALS.build()
    uses: list[Callable[[Any], object]] = [
        lambda bins: metrics.reliability([0.5], [1], bins),
        lambda bins: metrics.LevelCalibration(h, bins),
        lambda bins: evaluate(torch.zeros(1, 4), [0], h, bins=bins),
    ]
    for bins in (0, -1, 10**9, 1.5, True, "15", None):
        for use in uses:
            with pytest.raises(ConfigError) as caught:
                use(bins)
            assert str(caught.value) == f"{rule}{bins!r}."


def test_rules_are_checked_before_any_score_is_read() -> None:
    h = ANIMALS.build()
    for options, words in (
        ({}, "rule must be one of 'leaf', 'level', 'threshold', 'climb', "),
        ({"rule": "threshold"}, "rule 'threshold' needs threshold."),
        ({"rule": "cost", "k": 2}, "rule 'cost' takes no k. It belongs to rule='leaf'."),
        ({"rule": "level", "depth": 2}, "rule 'level' takes no depth. It takes level, mass."),
    ):
        with pytest.raises(ConfigError) as caught:
            Evaluator(h, rules={"mine": options})
        assert words in str(caught.value)


def test_risk_coverage_with_ties() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 17, 60):
        confidence = rng.integers(0, 6, size) / 6
        risk = rng.integers(0, 4, size)
        points = decided.risk_coverage(confidence.tolist(), risk.tolist())
        curve = risk_coverage(confidence, risk)
        assert curve.coverage.tolist() == pytest.approx([coverage for coverage, _ in points])
        assert curve.risk.tolist() == pytest.approx([mean for _, mean in points])
        assert curve.area == pytest.approx(decided.risk_coverage_area(points))


@pytest.mark.parametrize("bins", [1, 3, 15])
def test_calibration_on_the_edges_of_bins(bins: int) -> None:
    confidence = [i / 30 for i in range(31)]
    correct = [i % 3 == 0 for i in range(31)]
    error = metrics.expected_calibration_error(confidence, correct, bins)
    assert error == pytest.approx(oracle.ece(confidence, correct, bins))
    assert metrics.reliability(confidence, correct, bins).counts.sum() == 31


@pytest.mark.parametrize("name", EVERY)
def test_confusion_counts_every_mistake_once(name: str) -> None:
    h = EVERY[name].build()
    d, ids = answers(h)
    _, y = sample(h)
    truth = truths(h, y)
    c = metrics.confusion(d, y, h)
    wrong = [(t, a) for a, t in zip(ids, truth, strict=True) if a != t]
    assert (c.samples, c.mistakes) == (SAMPLES, len(wrong))
    assert c.by_level.sum() == c.meeting[:, 1].sum() == c.pairs[:, 2].sum() == len(wrong)
    table = c.pair_columns()
    for true, answer, count, lca in zip(
        table["truth"], table["answer"], table["count"], table["lca"], strict=True
    ):
        assert wrong.count((true, answer)) == count
        assert lca == (None if answer is None else h.lca(true, answer))
    depth = [0 if a is None or (v := h.lca(t, a)) is None else h.depth(v) for t, a in wrong]
    assert c.by_level.tolist() == np.bincount(depth, minlength=h.max_depth + 1).tolist()
    assert table["count"] == sorted(table["count"], reverse=True)
    assert len(c.to_frame()) == len(c.pairs)


def test_no_answer_stands_at_the_virtual_root() -> None:
    """As far from a truth as the root of the same hierarchy with a root."""
    for name, plain in EVERY.items():
        h = plain.build()
        if h.rooted:
            continue
        rooted = h.with_root("the root")
        y = torch.arange(h.num_leaves)
        nothing = Decisions(h, torch.full_like(y, -1), torch.ones(len(y)))
        root = Decisions(rooted, torch.full_like(y, rooted.index("the root")), torch.ones(len(y)))
        for distance in DISTANCES:
            result = metrics.distances(nothing, y, h, distance=distance).tolist()
            assert result == metrics.distances(root, y, rooted, distance=distance).tolist(), (
                name,
                distance,
            )
        assert [float(x) for x in metrics.hierarchical_prf(nothing, y, h)] == [1.0, 0.0, 0.0]


def test_no_mistakes_and_no_samples() -> None:
    h = ANIMALS.build()
    y = torch.arange(4)
    severity = metrics.mistake_severity(y, y, h)
    assert math.isnan(severity.value)
    assert severity.mistakes == 0
    none, z = torch.zeros(0, dtype=torch.long), torch.zeros(0, 4)
    assert math.isnan(metrics.mistake_severity(none, none, h).value)
    values = [
        metrics.top_k_accuracy(z, none, h, 2),
        metrics.hierarchical_distance_at(z, none, h, 2),
        *metrics.level_accuracy(none, none, h),
        *metrics.hierarchical_prf(none, none, h),
        *metrics.information_prf(none, none, h),
        metrics.full_path_accuracy(z, none, h),
        metrics.tree_inconsistency(z, none, h),
        *[r.ece for r in metrics.level_calibration(z, none, h)],
        metrics.risk_coverage([], []).area,
        metrics.operating_curve(z, none, h).area,
    ]
    assert all(math.isnan(v) for v in values)
    assert metrics.confusion(none, none, h).mistakes == 0
    assert np.isnan(metrics.class_accuracy(none, none, h, 1).accuracy).all()


@pytest.mark.parametrize("name", ["one_leaf", "one_node"])
def test_one_leaf(name: str) -> None:
    h = NAMED[name].build()
    y = torch.zeros(3, dtype=torch.long)
    z = torch.zeros(3, 1)
    assert float(metrics.top_k_accuracy(z, y, h)) == 1
    assert [float(x) for x in metrics.information_prf(z, y, h)] == [1, 1, 1]
    assert set(metrics.operating_curve(z, y, h).specificity.tolist()) == {1.0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_extreme_logits_in_every_precision(dtype: torch.dtype) -> None:
    h = ANIMALS.build()
    z = torch.full((2, 4), -1e4, dtype=dtype)
    z[:, 1] = 1e4
    y = torch.tensor([1, 0])
    assert float(metrics.top_k_accuracy(z, y, h)) == 0.5
    assert float(metrics.mistake_severity(z, y, h).value) == 2
    assert [r.ece for r in metrics.level_calibration(z, y, h)] == [0.5, 0.5]
    assert metrics.operating_curve(z, y, h, thresholds=[0.0, 0.5, 1.0]).precision.tolist() == [0.5] * 3
    assert metrics.operating_curve(z, y, h).precision[-1] == 0.5


def test_levels_of_a_dag_are_refused() -> None:
    h = DIAMOND.build()
    for function in (metrics.level_accuracy, metrics.full_path_accuracy, metrics.tree_inconsistency):
        with pytest.raises(HierarchyError, match="tree or forest"):
            function(torch.zeros(1, 3), torch.zeros(1, dtype=torch.long), h)
    with pytest.raises(HierarchyError, match="tree or forest"):
        metrics.class_accuracy(torch.zeros(1, 3), torch.zeros(1, dtype=torch.long), h, 1)


def test_bad_input() -> None:
    h = ANIMALS.build()
    z, y = torch.zeros(3, 4), torch.tensor([0, 1, 2])
    cases = [
        (
            DataError,
            "target must hold labels of leaves from 0 to 3. 1 of 3 do not; the first is 4 at position 1",
            z,
            [0, 4, 1],
        ),
        (DataError, "the first is -1 at position 2", z, [0, 1, -1]),
        (DataError, "target must hold integers. Got torch.float32", z, [0.0, 1.0, 2.0]),
        (DataError, "target must have one dimension", z, [[0], [1], [2]]),
        (DataError, "Got 3 and 2 rows", z, [0, 1]),
        (DataError, "preds must hold labels", torch.tensor([0, 9, 1]), y),
    ]
    for error, text, preds, target in cases:
        with pytest.raises(error) as caught:
            metrics.top_k_accuracy(preds, target, h)
        assert text in str(caught.value)
    with pytest.raises(DataError, match="must be scores"):
        metrics.hierarchical_distance_at(y, y, h, 2)
    with pytest.raises(DataError, match="another hierarchy"):
        metrics.level_accuracy(predict(z, h), y, FOREST.build())
    with pytest.raises(DataError, match="one answer per sample"):
        metrics.level_accuracy(predict(z, h, k=2), y, h)
    with pytest.raises(DataError, match="levels 1 to 2"):
        metrics.full_path_accuracy(y, y, h)
    with pytest.raises(ConfigError, match=r"k must be a whole number from 1 to 4. Got 9."):
        metrics.top_k_accuracy(z, y, h, 9)
    with pytest.raises(ConfigError, match="'micro', 'macro'"):
        metrics.hierarchical_prf(z, y, h, average="weighted")
    with pytest.raises(ConfigError, match="labels must be"):
        metrics.level_accuracy(z, y, h, labels="classes")
    with pytest.raises(TypeError, match="unexpected keyword argument 'kinds'"):
        metrics.level_accuracy(z, y, h, kinds="probs")  # type: ignore[call-arg]
    with pytest.raises(DataError, match="equally long"):
        metrics.risk_coverage([0.5], [])
    with pytest.raises(DataError, match="equally long"):
        metrics.reliability([0.5], [])
    with pytest.raises(AttributeError, match="no attribute 'TopThree'"):
        metrics.TopThree  # noqa: B018


@pytest.mark.slow
def test_functions_work_without_torchmetrics() -> None:
    code = (
        "import sys; sys.modules['torchmetrics'] = None\n"
        "from hace import Hierarchy, metrics\n"
        "h = Hierarchy.flat(['a', 'b'])\n"
        "print(float(metrics.top_k_accuracy([0, 1], [0, 0], h)))\n"
        "try: metrics.TopKAccuracy\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0.5"
    assert 'pip install ".[metrics]"' in done.stdout


def test_what_type_checkers_read_is_what_the_table_of_metrics_makes() -> None:
    pytest.importorskip("torchmetrics")
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("metrics_stub", root / "tools" / "metrics_stub.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    written, made = (
        ast.dump(ast.parse(text)) for text in (tool.STUB.read_text(encoding="utf-8"), tool.stub())
    )
    assert written == made, "run python tools/metrics_stub.py"


def test_a_new_row_is_a_function_a_class_and_a_line_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchmetrics")
    from hace.metrics import functional, measures, streaming

    row = measures.Metric(
        lambda hierarchy: measures.Measure(("sure",), lambda batch: measures.mean_of(batch.confidence > 0.5)),
        function="sure_share",
        streaming="SureShare",
        heading="new",
    )
    monkeypatch.setattr(measures, "METRICS", [*measures.METRICS, row])
    for module in (functional, streaming):
        monkeypatch.setattr(module, "METRICS", measures.METRICS)
    h = ANIMALS.build()
    z = torch.eye(4) * torch.tensor([[9.0], [9.0], [0.1], [9.0]])
    share = functional.function_of("sure_share")(z, [0, 1, 2, 3], h)
    assert share == 0.75
    result = streaming.class_of("SureShare")(h)
    result.update(z[:2], [0, 1])
    result.update(z[2:], [2, 3])
    assert result.compute() == 0.75
    assert evaluate(z, [0, 1, 2, 3], h).values["new", "sure"] == 0.75
