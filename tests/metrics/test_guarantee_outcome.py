"""How a guarantee is said to have turned out on labelled samples: by what was guaranteed, and rarely wrong."""

from __future__ import annotations

import numpy as np
import pytest

from hace import Hierarchy, evaluate, guaranteed_threshold, metrics
from hace.errors import ConfigError

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])


def samples(rng: np.random.Generator, number: int, hard: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Class 1 is hard."""
    y = rng.integers(4, size=number)
    z = 2 * rng.normal(size=(number, 4))
    z[np.arange(number), y] += np.array([5.0, hard, 5.0, 5.0])[y]
    return z, y


def under(node: int) -> set[str]:
    """The leaves at or below a node; all of them below -1."""
    if node < 0:
        return {*TREE.leaves}
    return {*TREE.descendants(TREE.nodes[node], include_self=True)} & {*TREE.leaves}


def test_a_guarantee_within_classes_is_judged_within_each() -> None:
    """One class breaks it, while the average over all samples is far below what is guaranteed."""
    rng = np.random.default_rng(0)
    z, y = samples(rng, 800)
    sure = guaranteed_threshold(z, y, TREE, 0.8, by="class")
    new, truth = samples(rng, 800, hard=2.0)
    outcome = evaluate(new, truth, TREE, guarantee=sure).guarantee_outcome()
    assert "was kept here: at most that in each of 4 classes, most in husky: " in outcome
    new, truth = samples(rng, 800, hard=-6.0)
    evaluation = evaluate(new, truth, TREE, guarantee=sure)
    husky = truth == TREE.leaves.index("husky")
    answers = sure.predict(new, TREE)
    false = np.array([v is not None and v not in ("husky", "dog") for v in answers.ids])[husky].mean()
    assert false > 0.3
    said = evaluation.guarantee_outcome()
    assert said.startswith("The guarantee was not kept here: ")
    assert f"more in 1 of 4 classes, most in husky: {false:.1%} of samples are false" in said


def test_a_guaranteed_distance_is_judged_as_a_distance() -> None:
    rng = np.random.default_rng(1)
    z, y = samples(rng, 400)
    new, truth = samples(rng, 400)
    site = np.arange(400) // 8
    for groups in (None, site):
        sure = guaranteed_threshold(z, y, TREE, distance="edges", at_most=0.8, groups=groups)
        evaluation = evaluate(new, truth, TREE, guarantee=sure, groups=groups)
        decided = sure.predict(new, TREE).nodes.numpy()
        false = np.array([TREE.leaves[t] not in under(v) for v, t in zip(decided, truth, strict=True)])
        far = np.zeros(400)
        far[false] = TREE.distances(decided[false], TREE.leaf_nodes[truth[false]], "edges", labels="nodes")
        said = evaluation.guarantee_outcome()
        assert f"the mean distance of false answers is {far.mean():.3g}, " in said  # groups are of one size
        assert said.endswith("guaranteed: at most 0.8.")
        assert "guarantee, edges at most 0.8" in evaluation.to_text()
        far_off = evaluate(new, (truth + 2) % 4, TREE, guarantee=sure, groups=groups)
        assert "was not kept here" in far_off.guarantee_outcome()


def test_a_set_of_nodes_is_judged_by_all_of_them() -> None:
    rng = np.random.default_rng(2)
    z, y = samples(rng, 400)
    sure = guaranteed_threshold(z, y, TREE, 0.9, rule="set", nodes=2)
    new, truth = samples(rng, 300)
    sets = sure.predict(new, TREE).nodes.numpy()
    leaves = [set().union(*(under(v) for v in nodes if v >= 0 or nodes.max() < 0)) for nodes in sets]
    false = np.mean([TREE.leaves[t] not in each for t, each in zip(truth, leaves, strict=True)])
    specific = np.mean([1 - np.log2(len(each)) / 2 for each in leaves])
    evaluation = evaluate(new, truth, TREE, guarantee=sure)
    assert evaluation.guarantee_measured()["false"] == pytest.approx(false)
    assert evaluation.guarantee_measured()["specificity"] == pytest.approx(specific)
    assert f"{false:.1%} of samples are false" in evaluation.guarantee_outcome()
    measured = metrics.guaranteed_answers(new, truth, TREE, sure)
    assert float(measured.false) == pytest.approx(false)
    assert float(measured.specificity) == pytest.approx(specific)


def test_a_valid_calibration_is_seldom_said_to_break_its_guarantee() -> None:
    """With 100 calibration samples a threshold that is valid on average is above 20% in about half of all calibrations."""
    rng = np.random.default_rng(3)
    above, alarms = 0, 0
    for _ in range(60):
        z, y = samples(rng, 100)
        sure = guaranteed_threshold(z, y, TREE, 0.8)
        evaluation = evaluate(*samples(rng, 3000), TREE, guarantee=sure)
        said = evaluation.guarantee_outcome()
        above += evaluation.guarantee_measured()["false"] > 0.2 + 0.02
        alarms += "not kept" in said
        if "may have" in said:
            assert "missed here, within sampling error: " in said
            assert "on average over calibrations; one on 100 samples may have up to " in said
    assert above > 10
    assert alarms <= 3


def test_samples_in_groups_have_wider_intervals() -> None:
    rng = np.random.default_rng(4)
    z, y = samples(rng, 400)
    sure = guaranteed_threshold(z, y, TREE, 0.8)
    new, truth = (np.repeat(part, 20, axis=0) for part in samples(rng, 30))
    ends = [
        evaluate(new, truth, TREE, guarantee=sure, groups=groups)
        .guarantee_outcome()
        .split("interval ")[1]
        .split("%")[0]
        for groups in (None, np.arange(600) // 20)
    ]
    assert float(ends[1]) < float(ends[0])


def test_what_these_samples_cannot_judge() -> None:
    rng = np.random.default_rng(5)
    z, y = samples(rng, 200)
    by_site = guaranteed_threshold(z, y, TREE, 0.8, groups=np.arange(200) // 5)
    assert "name no groups" in evaluate(z, y, TREE, guarantee=by_site).guarantee_outcome()
    given = guaranteed_threshold(z, y, TREE, 0.8, by=np.arange(200) % 2)
    with pytest.raises(ConfigError, match="evaluate the samples of each group by themselves"):
        evaluate(z, y, TREE, guarantee=given)
