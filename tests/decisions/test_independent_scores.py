"""Scores that stand by themselves, of detectors: nothing sums to 1, and a node's score is that of any column below it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hace
from hace import ConfigError, DataError, Hierarchy, calibrate_scores, evaluate, guaranteed_threshold, predict
from hace.decisions import Scores

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "manx"), ("cat", "tabby")])
DAG = Hierarchy.from_edges([("pet", "dog"), ("wolf", "husky"), ("dog", "husky"), ("dog", "pug")])


def any_below(p: np.ndarray, h: Hierarchy, outputs: str) -> np.ndarray:
    """The definition, by loops."""
    expected = np.empty((len(p), h.num_nodes))
    columns = h.leaf_nodes if outputs == "leaves" else np.arange(h.num_nodes)
    for v, node in enumerate(h.nodes):
        below = {h.index(d) for d in h.descendants(node, include_self=True)}
        inside = [c for c, u in enumerate(columns) if u in below]
        expected[:, v] = 1 - np.prod(1 - p[:, inside], axis=1)
    return expected


@pytest.mark.parametrize("h", [TREE, DAG], ids=["tree", "dag"])
@pytest.mark.parametrize("outputs", ["leaves", "nodes"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_node_has_the_score_of_any_column_below_it(h: Hierarchy, outputs: str, dtype: Any) -> None:
    width = h.num_leaves if outputs == "leaves" else h.num_nodes
    p = np.random.default_rng(0).random((50, width)).astype(dtype) ** 3
    p[0], p[1], p[2, 0], p[3, 0] = 0, 1, 1, 1e-12
    q = Scores(p, h, "sigmoid", outputs).log_q().exp().numpy()
    np.testing.assert_allclose(q, any_below(p.astype(float), h, outputs), atol=2e-6)
    assert bool(Scores(p, h, "sigmoid", outputs).log_q().isfinite().all())


def test_rules_and_what_they_refuse() -> None:
    p = np.array([[0.5, 0.5, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0], [0.95, 0.9, 0.2, 0.9]])
    options: dict[str, Any] = {"kind": "sigmoid"}
    assert predict(p, TREE, "threshold", threshold=0.7, **options).ids == ["dog", None, "beagle"]
    assert predict(p, TREE, "climb", threshold=0.7, **options).ids[0] == "dog"
    assert predict(p, TREE, "level", level=1, **options).ids[2] == "dog"
    assert predict(p, TREE, "leaf", **options).ids[2] == predict(p[2:], TREE, kind="sigmoid").ids[0]
    only_cats = predict(p, TREE, "threshold", threshold=0.7, subset=["cat"], **options)
    assert only_cats.ids == [None, None, "tabby"]
    for rule, more in (("hedge", {"threshold": 0.5}), ("cost", {}), ("expected", {"metric": "hamming"})):
        with pytest.raises(ConfigError, match=f"rule '{rule}' must come with probabilities that sum to 1"):
            predict(p, TREE, rule, **more, **options)
    with pytest.raises(ConfigError, match="rule 'hedge' must come with probabilities"):
        guaranteed_threshold(p, [0, 1, 2], TREE, 0.5, rule="hedge", kind="sigmoid")
    with pytest.raises(ConfigError, match="prior must come with"):
        Scores(p, TREE, "sigmoid").weighted({"dog": 2.0})
    with pytest.raises(ConfigError, match="temperature must come with"):
        Scores(p, TREE, "sigmoid").cooled(2.0)
    with pytest.raises(ConfigError, match="to fit a temperature"):
        hace.fit_temperature(p, [0, 1, 2], TREE, kind="sigmoid")
    for bad, words in (
        (1.5, "must be at most 1"),
        (-0.1, "must not be negative"),
        (np.nan, "NaN"),
        (np.inf, "at most 1"),
    ):
        broken = p.copy()
        broken[1, 2] = bad
        with pytest.raises(DataError, match=words):
            predict(broken, TREE, **options)


def test_groups_are_pooled_by_score() -> None:
    p = np.random.default_rng(1).random((6, 4))
    place = np.array([0, 1, 0, 2, 2, 2])
    mean = Scores(p, TREE, "sigmoid").pooled(place, "mean")
    log = Scores(p, TREE, "sigmoid").pooled(place, "log")
    for g in range(3):
        np.testing.assert_allclose(mean.data[g], p[place == g].mean(axis=0))
        np.testing.assert_allclose(log.data[g], np.exp(np.log(p[place == g]).mean(axis=0)))
    assert mean.kind == "sigmoid"


def detections(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Each class has a detector; that of a near relative often fires, too."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, number)
    z = rng.normal(-3, 1, (number, 4))
    z[np.arange(number), y] += rng.normal(4, 2, number)
    z[np.arange(number), y ^ 1] += rng.normal(2, 1.5, number)
    return 1 / (1 + np.exp(-z)), y


def test_a_guarantee_is_calibrated_on_the_score_and_evaluated() -> None:
    calibration = calibrate_scores(*_with_nodes(detections(500, 0)), TREE, 0.9, of="samples", kind="sigmoid")
    assert (calibration.temperature, calibration.temperature_samples, calibration.samples) == (1.0, 0, 500)
    (sure,) = calibration.thresholds
    shares = []
    for seed in range(1, 30):
        p, y = detections(500, seed)
        (rough,) = calibrate_scores(
            *_with_nodes(detections(100, seed + 100)), TREE, 0.9, of="samples", kind="sigmoid"
        ).thresholds
        ids = rough.predict(p, TREE, kind="sigmoid").ids
        truth = [TREE.leaves[label] for label in y]
        shares.append(
            np.mean(
                [
                    a is not None and a != t and a not in TREE.ancestors(t)
                    for a, t in zip(ids, truth, strict=True)
                ]
            )
        )
    assert 0.05 < np.mean(shares) < 0.1 + 3 * np.std(shares) / 29**0.5
    p, y = detections(400, 99)
    evaluation = evaluate(p, y, TREE, kind="sigmoid", guarantee=sure)
    assert evaluation.values["leaves", "top-1"] == np.mean(p.argmax(axis=1) == y)
    groups = {group for group, _ in evaluation.values}
    assert not any("Brier" in group or "likelihood" in group for group in groups)
    np.testing.assert_allclose(evaluation.samples.confidence, p.max(axis=1), atol=1e-6)
    checked = calibration.check(Scores(p, TREE, "sigmoid"), 0.9, truth=TREE.leaf_nodes[y])
    assert checked is not None
    with pytest.raises(ConfigError, match="temperature must be left out"):
        evaluate(p, y, TREE, kind="sigmoid", temperature=2.0)
    with pytest.raises(ConfigError, match="rule 'cost' must come with"):
        evaluate(p, y, TREE, kind="sigmoid", price=0.5)


def _with_nodes(made: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return made[0], TREE.leaf_nodes[made[1]]


def test_the_commands_take_them(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from hace import cli, write_hierarchy

    p, y = detections(300, 5)
    write_hierarchy(TREE, tmp_path / "tree.csv")
    np.save(tmp_path / "p.npy", p.astype("f"))
    np.save(tmp_path / "y.npy", y)
    files = ["--hierarchy", str(tmp_path / "tree.csv"), "--scores", str(tmp_path / "p.npy")]
    files += ["--labels", str(tmp_path / "y.npy"), "--label-kind", "index", "--kind", "sigmoid"]
    out = str(tmp_path / "c.json")
    assert cli.main(["calibrate", *files, "--accuracy", "0.9", "--of", "samples", "--out", out]) == 0
    assert "temperature 1" in capsys.readouterr().out
    assert cli.main(["evaluate", *files, "--calibration", out]) == 0
    assert "top-1" in capsys.readouterr().out
