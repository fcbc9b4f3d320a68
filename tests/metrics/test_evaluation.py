"""All metrics of a model at once, and two models compared."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import hace
from hace import ConfigError, DataError, Hierarchy, compare, evaluate, metrics
from hace.decisions import predict
from hace.metrics.comparison import draws
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
            found = [
                v["ancestors and information", f"{letter}{n} ({average})"]
                for n in ("Precision", "Recall", "F1")
            ]
            assert found == pytest.approx([float(x) for x in expected])
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
    assert v["least cost", "distance"] == pytest.approx(
        metrics.distances(predict(z, h, "cost"), y, h).double().mean().item()
    )
    if h.is_tree:
        expected = metrics.level_accuracy(z, y, h)
        found = [v["accuracy by level, answer carried up", t] for t in level_titles(h)]
        assert found == pytest.approx(expected.tolist())
        ece = [r.ece for r in metrics.level_calibration(z, y, h)]
        found = [v["calibration error (ECE) by level", t] for t in level_titles(h)]
        assert found == pytest.approx(ece, abs=1e-6)
        ece = [r.ece for r in metrics.level_calibration(z, y, h, binning="mass")]
        found = [v["calibration error (ECE, bins of equal mass) by level", t] for t in level_titles(h)]
        assert found == pytest.approx(ece, abs=1e-6)
        for heading, function in (
            ("Brier score", metrics.brier_score),
            ("log-likelihood", metrics.log_likelihood),
        ):
            found = [v[f"{heading} by level", t] for t in level_titles(h)]
            assert found == pytest.approx(function(z, y, h).tolist())
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
        found = evaluate(np.zeros((0, h.num_leaves)), np.zeros(0, dtype=int), h)
        assert all(math.isnan(v) for v in found.values.values())
        assert found.mistakes == 0
        assert "no mistakes" in found.to_text()
        json.dumps(found.to_dict(), allow_nan=False)


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
    found = evaluate(z, y, h, labels="nodes")
    assert found.values["leaves", "top-1"] == 0
    assert found.values["accuracy by level, answer carried up", "level 1"] == 0.5  # husky and beagle


def test_every_loss_can_be_evaluated() -> None:
    h = ANIMALS.build()
    y = np.arange(4)
    for name in hace.LOSSES:
        loss = hace.build_loss(name, h)
        z = torch.randn(4, loss.num_outputs, generator=torch.Generator().manual_seed(0))
        found = evaluate(loss.node_log_probs(z), y, h, kind="node_log_probs")
        expected = float((loss.leaf_logits(z).argmax(1).numpy() == y).mean())
        assert found.values["leaves", "top-1"] == expected


# ---------------------------------------------------------------------- comparison


def test_bootstrap_of_equal_weights_is_the_point_estimate() -> None:
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
    found = compare(first, second, replicates=200, seed=1)
    d = found["leaves", "top-1"]
    assert d.value == pytest.approx(second.values["leaves", "top-1"] - first.values["leaves", "top-1"])
    assert 0 < d.low < d.value < d.high
    assert found == compare(first, second, replicates=200, seed=1)
    assert found != compare(first, second, replicates=200, seed=2)
    same = compare(first, evaluate(z, y, h), replicates=20)
    assert all(s.low == s.high == s.value == 0 for s in same.values())
    # the interval is that of the plain bootstrap of the mean difference
    gap = (better.argmax(1) == y).astype(float) - (z.argmax(1) == y)
    means = [(w @ gap) / 300 for block in draws(300, 200, 1) for w in block]
    assert (d.low, d.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


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
def test_curves_with_intervals_against_repeated_rows(curve: str) -> None:
    h = random_plain("ragged", 3, 20).build()
    z, y = sample(h, 25)
    band = metrics.curve_band(evaluate(z, y, h), curve, replicates=7, seed=3)
    assert len(band.x) == 101

    def at(rows: np.ndarray) -> np.ndarray:
        found = evaluate(z[rows], y[rows], h)
        if curve == "operating":
            points = {0.0: 1.0}
            points |= dict(
                zip(found.operating_curve.specificity, found.operating_curve.precision, strict=True)
            )
        elif curve == "risk":
            points = dict(zip(found.risk_coverage.coverage, found.risk_coverage.risk, strict=True))
        else:
            both = found.hierarchical_risk_coverage
            points = dict(zip(both.coverage, both.risk, strict=True))
        x = np.array(sorted(points))
        return np.interp([0.3, 0.6, 0.9], x, [points[v] for v in x])

    (weights,) = draws(25, 7, 3)
    each = np.stack([at(np.repeat(np.arange(25), w.astype(int))) for w in weights])
    places = [30, 60, 90]
    np.testing.assert_allclose(band.y[places], at(np.arange(25)), atol=0.02)
    np.testing.assert_allclose(band.low[places], np.quantile(each, 0.025, axis=0), atol=0.02)
    np.testing.assert_allclose(band.high[places], np.quantile(each, 0.975, axis=0), atol=0.02)
    with pytest.raises(ConfigError, match="curve must be one of"):
        metrics.curve_band(evaluate(z, y, h), "other")
    with pytest.raises(DataError, match="at least one sample"):
        metrics.curve_band(evaluate(z[:0], y[:0], h))
