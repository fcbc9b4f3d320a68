"""Streaming metrics: any split into batches, any number of processes, the value of the plain function."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hace import Hierarchy, guaranteed_threshold, metrics
from hace.decisions import GuaranteedThreshold
from hace.errors import ConfigError, HierarchyError
from hace.metrics.curves import THRESHOLDS
from hace.metrics.measures import level_titles
from tests.hierarchies import ANIMALS, DAG_FOREST, RAGGED
from tests.processes import SPAWN, run_ranks

torchmetrics = pytest.importorskip("torchmetrics")

# Each streaming class beside the plain function whose value it must have.
PAIRS: dict[str, tuple[Callable[[Hierarchy], Any], Callable[..., Any]]] = {
    "top-1": (lambda h: metrics.TopKAccuracy(h), lambda z, y, h: metrics.top_k_accuracy(z, y, h)),
    "top-2": (lambda h: metrics.TopKAccuracy(h, 2), lambda z, y, h: metrics.top_k_accuracy(z, y, h, 2)),
    "severity": (
        lambda h: metrics.MistakeSeverity(h),
        lambda z, y, h: metrics.mistake_severity(z, y, h).value,
    ),
    "severity by edges": (
        lambda h: metrics.MistakeSeverity(h, "edges"),
        lambda z, y, h: metrics.mistake_severity(z, y, h, distance="edges").value,
    ),
    "HD@3": (
        lambda h: metrics.HierarchicalDistance(h, 3),
        lambda z, y, h: metrics.hierarchical_distance_at(z, y, h, 3),
    ),
    "hPRF micro": (
        lambda h: metrics.HierarchicalPRF(h),
        lambda z, y, h: metrics.hierarchical_prf(z, y, h)._asdict(),
    ),
    "hPRF macro": (
        lambda h: metrics.HierarchicalPRF(h, "macro"),
        lambda z, y, h: metrics.hierarchical_prf(z, y, h, average="macro")._asdict(),
    ),
    "iPRF": (
        lambda h: metrics.InformationPRF(h),
        lambda z, y, h: metrics.information_prf(z, y, h)._asdict(),
    ),
    "AURC": (lambda h: metrics.RiskCoverageArea(h), lambda z, y, h: aurc(z, y, h, None)),
    "AURC by distance": (
        lambda h: metrics.RiskCoverageArea(h, "lca_depth"),
        lambda z, y, h: aurc(z, y, h, "lca_depth"),
    ),
    "operating area": (
        lambda h: metrics.OperatingArea(h),
        lambda z, y, h: metrics.operating_curve(z, y, h, thresholds=THRESHOLDS).area,
    ),
    "global operating area": (
        lambda h: metrics.OperatingArea(h, (0.1, 0.5, 0.9), False),
        lambda z, y, h: metrics.operating_curve(z, y, h, thresholds=(0.1, 0.5, 0.9), constrained=False).area,
    ),
    "specificity at a guarantee": (
        lambda h: metrics.GuaranteedAnswers(h, guaranteed(h)),
        lambda z, y, h: metrics.guaranteed_answers(z, y, h, guaranteed(h))._asdict(),
    ),
    "balanced accuracy": (
        lambda h: metrics.BalancedAccuracy(h),
        lambda z, y, h: metrics.balanced_accuracy(z, y, h),
    ),
    "macro-F1": (lambda h: metrics.MacroF1(h), lambda z, y, h: metrics.macro_f1(z, y, h)),
    "macro-F1 over nodes": (
        lambda h: metrics.MacroF1(h, "nodes"),
        lambda z, y, h: metrics.macro_f1(z, y, h, over="nodes"),
    ),
    "mistakes": (lambda h: metrics.Mistakes(h), lambda z, y, h: metrics.confusion(z, y, h).by_level),
}
ON_LEVELS: dict[str, tuple[Callable[[Hierarchy], Any], Callable[..., Any]]] = {
    "levels": (lambda h: metrics.LevelAccuracy(h), lambda z, y, h: metrics.level_accuracy(z, y, h)),
    "full path": (lambda h: metrics.FullPathAccuracy(h), lambda z, y, h: metrics.full_path_accuracy(z, y, h)),
    "inconsistency": (
        lambda h: metrics.TreeInconsistency(h),
        lambda z, y, h: metrics.tree_inconsistency(z, y, h),
    ),
    "calibration": (
        lambda h: metrics.LevelCalibration(h, 7),
        lambda z, y, h: [r.ece for r in metrics.level_calibration(z, y, h, bins=7)],
    ),
    "calibration of equal mass": (
        lambda h: metrics.LevelCalibration(h, 7, "mass"),
        lambda z, y, h: [r.ece for r in metrics.level_calibration(z, y, h, bins=7, binning="mass")],
    ),
    "Brier score": (lambda h: metrics.BrierScore(h), lambda z, y, h: metrics.brier_score(z, y, h)),
    "log-likelihood": (lambda h: metrics.LogLikelihood(h), lambda z, y, h: metrics.log_likelihood(z, y, h)),
    "hAURC": (
        lambda h: metrics.HierarchicalRiskArea(h),
        lambda z, y, h: metrics.hierarchical_risk_coverage(z, y, h).area,
    ),
    "classes": (
        lambda h: metrics.ClassAccuracy(h, 1),
        lambda z, y, h: metrics.class_accuracy(z, y, h, 1).accuracy,
    ),
}
SHAPES = {"ragged": RAGGED, "dag": DAG_FOREST}


def guaranteed(h: Hierarchy) -> GuaranteedThreshold:
    z, y = sample(h, rows=60)
    return guaranteed_threshold(z, y, h, 0.3)


def aurc(z: torch.Tensor, y: torch.Tensor, h: Hierarchy, distance: str | None) -> float:
    confidence, best = z.double().softmax(1).float().max(1)  # the same for the same numbers in another order
    risk = best != y if distance is None else metrics.distances(best, y, h, distance=distance)
    return metrics.risk_coverage(confidence, risk).area


def sample(h: Hierarchy, rows: int = 37) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(4)
    return (
        torch.randn(rows, h.num_leaves, generator=g, dtype=torch.float64),
        torch.randint(h.num_leaves, (rows,), generator=g),
    )


def numbers(value: Any) -> list[float]:
    """A scalar, a list, a tensor or a dict of scalars as a flat list."""
    if isinstance(value, dict):
        return [float(v) for v in value.values()]
    return np.atleast_1d(np.asarray(value, dtype=np.float64)).tolist()


def pairs_for(h: Hierarchy) -> dict[str, tuple[Callable[[Hierarchy], Any], Callable[..., Any]]]:
    return PAIRS | ON_LEVELS if h.is_tree else PAIRS


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["ragged", "dag"])
def test_any_split_equals_one_shot(shape: str) -> None:
    h = SHAPES[shape].build()
    z, y = sample(h)
    for name, (build, function) in pairs_for(h).items():
        metric = build(h)
        expected = pytest.approx(numbers(function(z, y, h)), nan_ok=True, abs=1e-12)
        for sizes in ([37], [1] * 37, [5, 0, 30, 2], [36, 1]):
            for part, labels in zip(z.split(sizes), y.split(sizes), strict=True):
                metric.update(part, labels)
            assert numbers(metric.compute()) == expected, (name, sizes)
            metric.reset()
        revived = pickle.loads(pickle.dumps(metric))
        revived.update(z, y)
        assert numbers(revived.compute()) == expected, name


def test_forward_gives_the_value_of_the_batch_and_keeps_the_sum() -> None:
    h = ANIMALS.build()
    z, y = sample(h)
    metric = metrics.MistakeSeverity(h)
    first = metric(z[:10], y[:10])
    assert float(first) == pytest.approx(float(metrics.mistake_severity(z[:10], y[:10], h).value))
    metric(z[10:], y[10:])
    whole = metrics.mistake_severity(z, y, h)
    assert float(metric.compute()) == pytest.approx(float(whole.value))
    assert metric.mistakes == int(whole.mistakes)


def test_nothing_seen_is_nan() -> None:
    h = ANIMALS.build()
    for name, (build, _) in pairs_for(h).items():
        metric = build(h)
        metric.update(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
        values = numbers(metric.compute())
        assert all(v == 0 for v in values) if name == "mistakes" else all(math.isnan(v) for v in values), name


def test_collection_keeps_metrics_apart() -> None:
    """A collection merges metrics whose states agree after one batch. Here they agree by chance, and then no more."""
    h = ANIMALS.build()
    y = torch.tensor([0, 1])
    right = torch.eye(4)[:2] * 9
    close = torch.tensor(
        [[0.0, 0.0, 9.0, 0.0], [0.0, 0.0, 0.0, 9.0]]
    )  # the sibling: right at level 1, wrong below
    members = {name: build(h) for name, (build, _) in pairs_for(h).items()}
    collection = torchmetrics.MetricCollection(members)
    collection.update(right, y)
    collection.update(close, y)
    result = collection.compute()
    z, labels = torch.cat([right, close]), torch.cat([y, y])
    for name, (_, function) in pairs_for(h).items():
        mine = {key: value for key, value in result.items() if key == name or key.startswith(f"{name}_")}
        expected = numbers(function(z, labels, h))
        got = numbers(next(iter(mine.values()))) if len(mine) == 1 else numbers(mine)
        assert got == pytest.approx(expected, nan_ok=True), name


def test_tables_behind_the_numbers() -> None:
    h = RAGGED.build()
    z, y = sample(h)
    classes, where, calibration = (
        metrics.ClassAccuracy(h, 1),
        metrics.Mistakes(h),
        metrics.LevelCalibration(h),
    )
    for metric in (classes, where, calibration):
        metric.update(z, y)
    assert classes.table().columns() == metrics.class_accuracy(z, y, h, 1).columns()
    assert where.summary().pair_columns() == metrics.confusion(z, y, h).pair_columns()
    assert calibration.diagrams()[0].counts.sum() == len(y)
    curve, risk = metrics.OperatingArea(h), metrics.RiskCoverageArea(h)
    curve.update(z, y)
    risk.update(z, y)
    assert curve.curve().precision.tolist() == pytest.approx(
        metrics.operating_curve(z, y, h, thresholds=THRESHOLDS).precision.tolist()
    )
    assert risk.curve().coverage[-1] == 1


def test_options_are_refused_when_the_metric_is_built() -> None:
    with pytest.raises(HierarchyError, match="distance must be one of"):
        metrics.RiskCoverageArea(ANIMALS.build(), "hops")
    with pytest.raises(TypeError, match=r"TopKAccuracy\(\) got an unexpected keyword argument 'label'"):
        metrics.TopKAccuracy(ANIMALS.build(), label="nodes")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="average"):
        metrics.HierarchicalPRF(ANIMALS.build(), "none")


def test_one_level_or_one_value_is_a_scalar_and_states_stay_shared() -> None:
    h = ANIMALS.build()
    z, y = sample(h)
    titles = level_titles(h)
    for build in (
        metrics.LevelAccuracy,
        metrics.BrierScore,
        metrics.LogLikelihood,
        metrics.LevelCalibration,
    ):
        every, single = build(h), build(h, level=2)
        every.update(z, y)
        single.update(z, y)
        assert single.compute().ndim == 0
        assert single.compute() == every.compute()[titles[1]]
        with pytest.raises(HierarchyError, match="level must be"):
            build(h, level=99)
    for build in (metrics.HierarchicalPRF, metrics.InformationPRF):
        every, single = build(h), build(h, value="recall")
        every.update(z, y)
        single.update(z, y)
        assert single.compute() == every.compute()["recall"]
        with pytest.raises(ConfigError, match="value must be one of"):
            build(h, value="f2")
    both = torchmetrics.MetricCollection(
        {"one": metrics.LevelAccuracy(h, level=1), "two": metrics.LevelAccuracy(h, level=2)}
    )
    both.update(z, y)
    both.update(z, y)
    assert len(both.compute_groups) == 1
    alone = metrics.level_accuracy(z, y, h)
    assert [float(v) for v in both.compute().values()] == pytest.approx(alone[:2].tolist())


def test_keywords_of_torchmetrics_and_plots() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    h = ANIMALS.build()
    z, y = sample(h)
    metric = metrics.LevelAccuracy(h, sync_on_compute=False, compute_with_cache=False, labels="leaves")
    assert not metric.sync_on_compute
    assert not metric.compute_with_cache
    metric.update(z, y)
    for shown in (metric, metrics.TopKAccuracy(h), metrics.ClassAccuracy(h, 1)):
        shown.update(z, y)
        figure, axes = shown.plot()
        assert axes.has_data()
        pyplot.close(figure)


def _one_of_two(rank: int, meeting: str, shape: str, results: Any) -> None:
    """Every second sample, uneven shares: what the processes hold differs in size."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        h = SHAPES[shape].build()
        z, y = sample(h)
        mine = slice(0, 11) if rank == 0 else slice(11, None)
        result = {}
        for name, (build, _) in pairs_for(h).items():
            metric = build(h)
            metric.update(z[mine], y[mine])
            result[name] = numbers(metric.compute())
        results[rank] = result
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    shape = "ragged"
    h = SHAPES[shape].build()
    z, y = sample(h)
    with SPAWN.Manager() as manager:
        results = manager.dict()
        run_ranks(_one_of_two, str(tmp_path / "meeting"), shape, results)
        for rank in (0, 1):
            for name, (_, function) in pairs_for(h).items():
                expected = numbers(function(z, y, h))
                assert results[rank][name] == pytest.approx(expected, nan_ok=True, abs=1e-12), (rank, name)
