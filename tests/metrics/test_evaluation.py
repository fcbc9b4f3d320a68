"""All metrics of a model at once, and two models compared."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import hace
from hace import ConfigError, DataError, Hierarchy, compare, evaluate, metrics
from hace.decisions import predict
from hace.metrics.comparison import left_out_places
from hace.metrics.curves import THRESHOLDS
from hace.metrics.measures import level_titles
from tests.hierarchies import ANIMALS, DAG_FOREST, FOREST, RAGGED, random_plain


def sample(h: Hierarchy, rows: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(h.num_leaves, size=rows)
    z = rng.normal(size=(rows, h.num_leaves))
    z[np.arange(rows), y] += 1.2
    return z, y


@pytest.mark.parametrize("plain", [ANIMALS, RAGGED, FOREST, DAG_FOREST, random_plain("ragged", 1, 40)])
def test_an_evaluation_holds_the_values_of_the_functions(plain: Any) -> None:
    h = plain.build()
    z, y = sample(h)
    v = evaluate(z, y, h, rules={"sure": {"rule": "threshold", "threshold": 0.6}}).values
    best = torch.from_numpy(z).argmax(1)
    assert v["leaves", "top-1"] == pytest.approx(float(metrics.top_k_accuracy(z, y, h)))
    assert v["leaves", "severity"] == pytest.approx(float(metrics.mistake_severity(z, y, h).value))
    for average in ("micro", "macro"):
        for letter, function in (("h", metrics.hierarchical_prf), ("i", metrics.information_prf)):
            expected = function(z, y, h, average=average)
            results = [
                v["ancestors and information", f"{letter}{n} ({average})"]
                for n in ("Precision", "Recall", "F1")
            ]
            assert results == pytest.approx([float(x) for x in expected])
    p = torch.from_numpy(z).softmax(1).max(1).values
    assert v["selection", "AURC"] == pytest.approx(metrics.risk_coverage(p, best.numpy() != y).area)
    far = metrics.distances(best, y, h)
    assert v["selection", "AURC of the distance"] == pytest.approx(metrics.risk_coverage(p, far).area)
    area = metrics.operating_curve(z, y, h, thresholds=THRESHOLDS).area
    assert v["selection", "area under the operating curve"] == pytest.approx(area, abs=1e-6)
    sure = predict(z, h, "threshold", threshold=0.6)
    f1 = metrics.hierarchical_prf(sure, y, h).f1
    assert v["sure", "hF1"] == pytest.approx(float(f1))
    truths = [set(h.ancestors(h.leaves[i], include_self=True)) | {None} for i in y.tolist()]
    true = np.mean([a in t for a, t in zip(sure.ids, truths, strict=True)])
    assert v["sure", "true (right or above)"] == pytest.approx(true)
    cheap = evaluate(z, y, h, rules={"cheap": {"rule": "cost"}}).values
    assert cheap["cheap", "distance"] == pytest.approx(
        metrics.distances(predict(z, h, "cost"), y, h).double().mean().item()
    )
    if h.is_tree:
        expected = metrics.level_accuracy(z, y, h)
        results = [v["accuracy by level, answer carried up", t] for t in level_titles(h)]
        assert results == pytest.approx(expected.tolist())
        ece = [r.ece for r in metrics.level_calibration(z, y, h)]
        results = [v["calibration error (ECE) by level", t] for t in level_titles(h)]
        assert results == pytest.approx(ece, abs=1e-6)
        ece = [r.ece for r in metrics.level_calibration(z, y, h, binning="mass")]
        results = [v["calibration error (ECE, bins of equal mass) by level", t] for t in level_titles(h)]
        assert results == pytest.approx(ece, abs=1e-6)
        for heading, function in (
            ("Brier score", metrics.brier_score),
            ("log-likelihood", metrics.log_likelihood),
        ):
            results = [v[f"{heading} by level", t] for t in level_titles(h)]
            assert results == pytest.approx(function(z, y, h).tolist())
        area = metrics.hierarchical_risk_coverage(z, y, h).area
        assert v["selection", "hAURC"] == pytest.approx(area)
    else:
        assert not any("level" in heading for heading, _ in v)


def test_chunks_change_nothing() -> None:
    h = RAGGED.build()
    z, y = sample(h)
    whole = evaluate(z, y, h)
    parts = evaluate(iter(np.split(z, [1, 7, 30])), y, h)
    assert list(whole.values.values()) == pytest.approx(list(parts.values.values()), nan_ok=True)
    assert whole.to_dict()["mistakes_by_lca_level"] == parts.to_dict()["mistakes_by_lca_level"]


def test_no_samples() -> None:
    for plain in (ANIMALS, DAG_FOREST):
        h = plain.build()
        evaluation = evaluate(np.zeros((0, h.num_leaves)), np.zeros(0, dtype=int), h)
        assert all(math.isnan(v) for v in evaluation.values.values())
        assert evaluation.mistakes == 0
        assert "no mistakes" in evaluation.to_text()
        json.dumps(evaluation.to_dict(), allow_nan=False)


def test_few_classes_omit_large_ranks() -> None:
    h = ANIMALS.build()
    z, y = sample(h)
    assert [n for g, n in evaluate(z, y, h).values if g == "leaves"] == ["top-1", "severity", "HD@1"]
    values = evaluate(z, y, h, subset=["husky", "persian"]).values
    assert 0 < values["leaves", "top-1"] < 1


def test_truth_outside_the_subset_counts_as_a_mistake() -> None:
    h = ANIMALS.build()
    z, y = np.eye(4)[[0, 1]] * 9, np.array([0, 1])
    assert evaluate(z, y, h, subset=["husky"]).values["leaves", "top-1"] == 0.5


def test_inner_nodes_as_truths() -> None:
    h = ANIMALS.build()
    z = np.eye(4) * 9
    y = np.array([h.index("dog")] * 4)
    evaluation = evaluate(z, y, h, labels="nodes")
    assert evaluation.values["leaves", "top-1"] == 0
    assert evaluation.values["accuracy by level, answer carried up", "level 1"] == 0.5  # husky and beagle


def test_every_loss_can_be_evaluated() -> None:
    h = ANIMALS.build()
    y = np.arange(4)
    for name in hace.LOSSES:
        loss = hace.build_loss(name, h)
        z = torch.randn(4, loss.num_outputs, generator=torch.Generator().manual_seed(0))
        evaluation = evaluate(loss.node_log_probs(z), y, h, kind="node_log_probs")
        expected = float((loss.leaf_logits(z).argmax(1).numpy() == y).mean())
        assert evaluation.values["leaves", "top-1"] == expected


# ---------------------------------------------------------------------- comparison


def test_weights_of_samples_are_repeated_samples() -> None:
    """Weights of 2 everywhere, and repeated samples: the same numbers from weights and from rows."""
    h = random_plain("ragged", 3, 30).build()
    z, y = sample(h)
    table = evaluate(z, y, h).samples
    once = table.values()[0]
    assert table.values(np.full((1, len(y)), 2.0))[0] == pytest.approx(once, nan_ok=True)
    weights = np.random.default_rng(0).integers(0, 4, len(y))
    rows = np.repeat(np.arange(len(y)), weights)
    repeated = evaluate(z[rows], y[rows], h).samples.values()[0]
    assert table.values(weights[None])[0] == pytest.approx(repeated, nan_ok=True, abs=1e-6)


def test_comparison() -> None:
    h = ANIMALS.build()
    z, y = sample(h, 300)
    better = z.copy()
    better[np.arange(300), y] += 1
    first, second = evaluate(z, y, h), evaluate(better, y, h)
    comparison = compare(first, second)
    d = comparison["leaves", "top-1"]
    assert d.value == pytest.approx(second.values["leaves", "top-1"] - first.values["leaves", "top-1"])
    assert 0 < d.low < d.value < d.high
    assert comparison == compare(first, second)
    same = compare(first, evaluate(z, y, h))
    assert all(s.low == s.high == s.value == 0 for s in same.values())
    # the interval is Student's of the mean difference
    gap = (better.argmax(1) == y).astype(float) - (z.argmax(1) == y)
    assert (d.low, d.high) == pytest.approx(stats.t.interval(0.95, 299, gap.mean(), stats.sem(gap)))


def test_every_interval_over_groups_is_that_of_the_jackknife() -> None:
    """One group after the other is left out of the data, and both models are evaluated anew."""
    h = random_plain("ragged", 3, 20).build()
    z, y = sample(h, 60)
    other = z + np.random.default_rng(1).normal(size=z.shape)
    group = np.repeat(np.arange(12), 5)
    comparison = compare(evaluate(z, y, h, groups=group), evaluate(other, y, h, groups=group))
    gaps = []
    for g in range(12):
        rest = group != g
        one, two = (evaluate(scores[rest], y[rest], h).values for scores in (z, other))
        gaps.append([two[key] - one[key] for key in comparison])
    left_out = np.array(gaps)
    error = np.sqrt(11 / 12 * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    for (key, d), expected in zip(comparison.items(), error, strict=True):
        half = stats.t.ppf(0.975, 11) * expected  # groups of one size
        ratio_of_sums = "micro" in key[1] or key[1] in ("severity",)
        assert (d.high - d.low) / 2 == pytest.approx(half, rel=0.35 if ratio_of_sums else 1e-4, abs=1e-9), key


def test_many_samples_are_left_out_in_blocks() -> None:
    places = left_out_places(1001)
    assert sorted(set(np.bincount(places))) == [10, 11]
    assert len(np.bincount(places)) == 100
    group = np.repeat(np.arange(450), 2)
    dealt = left_out_places(900, group)
    assert (dealt[::2] == dealt[1::2]).all()  # groups stay whole
    assert left_out_places(3).tolist() == [0, 1, 2]


def test_comparison_of_what_cannot_be_compared() -> None:
    h = ANIMALS.build()
    z, y = sample(h)
    first = evaluate(z, y, h)
    with pytest.raises(DataError, match=r"over the same samples. Got different truths"):
        compare(first, evaluate(z, (y + 1) % 4, h))
    with pytest.raises(DataError, match=r"over the same hierarchy. Got two"):
        compare(first, evaluate(z, y, h.shuffled(3)))
    with pytest.raises(DataError, match="hold the same metrics"):
        compare(first, evaluate(z, y, h, rules={"sure": {"rule": "threshold", "threshold": 0.5}}))


@pytest.mark.parametrize("curve", ["operating", "risk", "hierarchical"])
def test_curves_with_intervals_against_rows_left_out(curve: str) -> None:
    h = random_plain("ragged", 3, 20).build()
    z, y = sample(h, 25)
    band = metrics.curve_band(evaluate(z, y, h), curve)
    assert len(band.x) == 101

    def at(rows: np.ndarray) -> np.ndarray:
        evaluation = evaluate(z[rows], y[rows], h)
        if curve == "operating":
            points = {0.0: 1.0}
            points |= dict(
                zip(evaluation.operating_curve.specificity, evaluation.operating_curve.precision, strict=True)
            )
        elif curve == "risk":
            points = dict(zip(evaluation.risk_coverage.coverage, evaluation.risk_coverage.risk, strict=True))
        else:
            both = evaluation.hierarchical_risk_coverage
            points = dict(zip(both.coverage, both.risk, strict=True))
        x = np.array(sorted(points))
        return np.interp([0.3, 0.6, 0.9], x, [points[v] for v in x])

    every = np.arange(25)
    each = np.stack([at(np.delete(every, i)) for i in every])
    error = np.sqrt(24 / 25 * ((each - each.mean(axis=0)) ** 2).sum(axis=0))
    half = stats.t.ppf(0.975, 24) * error
    places = [30, 60, 90]
    np.testing.assert_allclose(band.y[places], at(every), atol=0.02)
    np.testing.assert_allclose(band.low[places], np.clip(at(every) - half, 0, 1), atol=0.02)
    np.testing.assert_allclose(band.high[places], np.clip(at(every) + half, 0, 1), atol=0.02)
    with pytest.raises(ConfigError, match="curve must be one of"):
        metrics.curve_band(evaluate(z, y, h), "other")
    with pytest.raises(DataError, match="at least one sample"):
        metrics.curve_band(evaluate(z[:0], y[:0], h))


def test_samples_have_names_and_groups() -> None:
    h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)])
    group = np.repeat(["a", "b"], 3)
    names = [f"photo {i}" for i in range(6)]
    evaluation = evaluate(np.eye(6, 3), [0, 1, 2, 0, 1, 2], h, groups=group, names=names)
    assert evaluation.groups is not None
    assert evaluation.groups.tolist() == group.tolist()
    assert evaluation.names is not None
    assert evaluation.names.tolist() == names
    assert evaluate(np.eye(6, 3), [0, 1, 2, 0, 1, 2], h, groups=group).names is None
