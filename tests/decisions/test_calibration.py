"""The temperature against a dense grid over the definition, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hace import DataError, Hierarchy, fit_temperature
from hace.errors import ConfigError
from tests.hierarchies import ANIMALS, ONE_LEAF, Plain, random_plain
from tests.reference import structure

GRID = np.logspace(-4, 4, 1601)  # of 1/T


def curve(
    plain: Plain, h: Hierarchy, z: np.ndarray, truth: np.ndarray, outputs: str, inverse: np.ndarray
) -> np.ndarray:
    """Mean -log q*[truth] at every 1/T, from the definition."""
    columns = h.leaves if outputs == "leaves" else h.nodes
    below = np.array([[u in structure.descendants(plain, h.nodes[v]) for u in columns] for v in truth])
    scaled = inverse[:, None, None] * (z - z.max(axis=1, keepdims=True))
    whole = np.logaddexp.reduce(scaled, axis=2)
    return (whole - np.logaddexp.reduce(np.where(below, scaled, -np.inf), axis=2)).mean(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ragged", "forest", "unary", "dag", "dag_forest"])
@pytest.mark.parametrize("labels", ["leaves", "nodes"])
def test_no_temperature_of_a_dense_grid_is_likelier(kind: str, labels: str) -> None:
    fitted = 0
    for seed in range(25):
        plain = random_plain(kind, seed, 12)
        h, rng = plain.build(), np.random.default_rng(seed)
        outputs = ("leaves", "nodes")[seed % 2]
        z = rng.normal(size=(9, h.num_leaves if outputs == "leaves" else h.num_nodes)) * rng.choice(
            [0.1, 1, 30]
        )
        target = rng.integers(0, h.num_leaves if labels == "leaves" else h.num_nodes, len(z))
        truth = h.leaf_nodes[target] if labels == "leaves" else target
        values = curve(plain, h, z, truth, outputs, GRID)
        refusal = ""
        try:
            temperature = fit_temperature(z, target, h, labels=labels, outputs=outputs)
        except DataError as error:
            refusal, temperature = str(error), np.nan
        if refusal:  # then the curve is best at one of its ends
            assert values[0 if "something about" in refusal else -1] <= values.min() + 1e-3
            continue
        fitted += 1
        at = curve(plain, h, z, truth, outputs, np.array([1 / temperature * x for x in (1, 0.999, 1.001)]))
        assert at[0] <= values.min() + 1e-12
        assert at[0] <= at[1:].min()
    assert fitted >= 8


@pytest.mark.parametrize(
    ("rows", "times", "truths", "best", "other"),
    [
        (
            [[-0.05, -0.15, 0, -0.2], [-40, -40, 0, -60], [-50, 0, -10, -50], [-20, 0, -10, 0]],
            [1, 1, 2, 3],
            ["a1", "a", "a", "a"],
            0.0467,
            9.0,
        ),
        (
            [[-0.2, 0, -0.15, -0.15], [-70, 0, -70, -80], [0, -1, -3, -1]],
            [2, 4, 3],
            ["b", "a2", "a"],
            3.42,
            0.119,
        ),
    ],
)
def test_several_minima_are_compared(
    rows: list, times: list, truths: list, best: float, other: float
) -> None:
    """Truths at inner nodes: the curve has two dips, of which the lower may come first or last."""
    plain = Plain(
        {"a": [], "a1": ["a"], "a2": ["a"], "a3": ["a"], "b": []}, ["a1", "a2", "a3", "b"], rooted=False
    )
    h = plain.build()
    z = np.repeat(np.array(rows, dtype=float), times, axis=0)
    truth = np.repeat([h.index(v) for v in truths], times)
    for dip in (best, other):
        left, at, right = curve(plain, h, z, truth, "leaves", dip * np.array([0.8, 1, 1.25]))
        assert at < min(left, right)
    assert 1 / fit_temperature(z, truth, h, labels="nodes") == pytest.approx(best, rel=0.02)


def test_a_known_temperature_comes_back() -> None:
    h = ANIMALS.build()
    rng = np.random.default_rng(0)
    z = rng.normal(size=(5_000, 7)) * 2
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    truth = (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)  # inner nodes among them
    assert fit_temperature(3 * z, truth, h, labels="nodes") == pytest.approx(3, rel=0.1)


def test_forms_of_scores_agree_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    h, rng = ANIMALS.build(), np.random.default_rng(1)
    z = torch.from_numpy(rng.normal(size=(40, 4)))
    y = np.where(rng.random(40) < 0.5, z.argmax(1).numpy(), rng.integers(0, 4, 40))
    whole = fit_temperature(z, y, h)
    assert fit_temperature(z.softmax(1), y, h, kind="probs") == pytest.approx(whole, rel=1e-9)
    assert fit_temperature(z.float().numpy(), y.tolist(), h) == pytest.approx(whole, rel=1e-5)
    assert fit_temperature(7 * z - 100, y, h) == pytest.approx(7 * whole, rel=1e-9)
    monkeypatch.setattr("hace.decisions.scores._BLOCK", 20)
    assert fit_temperature(z, y, h) == pytest.approx(whole, rel=1e-12)
    masked = torch.cat([z[:, :3], torch.full((40, 1), -1e9)], dim=1)
    hidden = torch.cat([z[:, :3], torch.full((40, 1), -torch.inf)], dim=1)
    assert fit_temperature(masked, y % 3, h) == pytest.approx(fit_temperature(hidden, y % 3, h), rel=1e-9)


def test_one_class_is_enough() -> None:
    z = torch.tensor([[2.0, 0, 0, 0], [0.0, 2.0, 0, 0], [2.0, 0, 0, 0]])
    assert 0 < fit_temperature(z, [0, 0, 0], ANIMALS.build()) < np.inf


@pytest.mark.parametrize(
    ("scores", "target", "options", "words"),
    [
        (torch.zeros(3, 4), [0, 1, 2], {}, "scores must say something about the truths"),
        (-torch.eye(4), [0, 1, 2, 3], {}, "no better than chance"),
        (2 * torch.eye(4), [0, 1, 2, 3], {}, "In all 4 the truth comes first"),
        (2 * torch.eye(4), [0] * 4, {"labels": "nodes"}, "scores must say something"),  # all at the root
        (torch.zeros(0, 4), [], {}, "scores must hold at least one sample"),
        (2 * torch.eye(4), [0, 1, 2], {}, "one truth for each of the 4 samples"),
        (2 * torch.eye(4), [0, 1, 2, 4], {}, "from 0 to 3"),
        (torch.eye(4) * torch.nan, [0, 1, 2, 0], {}, "must not hold NaN"),
        (torch.eye(4), [1, 1, 2, 3], {"kind": "probs"}, "1 of 4 truths have none"),
    ],
)
def test_what_is_refused(scores: torch.Tensor, target: list[int], options: dict, words: str) -> None:
    target_array = np.array(target, dtype=np.int64)
    with pytest.raises(DataError) as caught:
        fit_temperature(scores, target_array, ANIMALS.build(), **options)
    assert words in str(caught.value)


def test_log_q_and_a_single_class_are_refused() -> None:
    with pytest.raises(ConfigError, match="acts on the outputs"):
        fit_temperature(torch.zeros(1, 7), [0], ANIMALS.build(), kind="node_log_probs")
    with pytest.raises(DataError, match="say something"):
        fit_temperature(torch.zeros(2, 1), [0, 0], ONE_LEAF.build(), outputs="leaves")


@pytest.mark.parametrize("value", [1e201, 9e307, 1.7e308, -9e307, -1.7e308])
@pytest.mark.parametrize("inner", [False, True])
def test_one_enormous_score_is_refused(value: float, inner: bool) -> None:
    """Sums that overflow gave slopes that are no numbers, and a search without an end."""
    h, rng = ANIMALS.build(), np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(60, 4)) * 3)
    truth = h.leaf_nodes[(z.argmax(1).numpy() + (rng.random(60) < 0.3)) % 4]
    z[5, 0] = value
    if inner:
        truth[::7] = h.parent_nodes[truth[::7]]
    with pytest.raises(DataError, match="within 1e\\+200 of each other"):
        fit_temperature(z, truth, h, labels="nodes")
