"""The simplest candidate within one standard error of the best, whatever the scale of the features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from hace import HACEClassifier, Hierarchy
from hace.data import Dataset, Features
from hace.fitting.choice import DROP, USE, Choice, Trial, choose, simplest
from hace.lab.runs.config import DataConfig, LabelsConfig, LossConfig, ProbeConfig, TrainConfig
from hace.lab.runs.samples import with_advised_loss
from hace.lab.study.presets import METHODS, PRESETS
from hace.lab.study.processes import Processes
from hace.linear.selection import USUAL, Candidate, CrossValidation, Judged, leading, spread, standard_error
from hace.losses.advice import ADVICE, COARSE, FINE, MILD, SPECIFIC, WRONG, advised_for, recommended_loss
from hace.losses.registry import LOSSES, loss_parameters
from hace.metrics.intervals import interval

ROOT = Path(__file__).parents[2]
TREE = Hierarchy.from_paths([(f"group {c // 3}", str(c)) for c in range(9)])


def trial(place: int, right: np.ndarray) -> Trial:
    return Trial(
        ADVICE[place], Judged(Candidate(ADVICE[place].loss), -5.0, right, np.ones(len(right)), 1.0, {})
    )


def blobs(samples: int = 450, seed: int = 0, width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(9, width)) + 2 * np.repeat(
        np.random.default_rng(8).normal(size=(3, width)), 3, axis=0
    )
    y = np.arange(samples) % 9
    return (centres[y] + rng.normal(size=(samples, width)) * 1.5).astype(np.float32), TREE.leaf_nodes[y]


def test_one_standard_error_decides_for_the_simpler_one() -> None:
    right = np.zeros(1000, dtype=bool)
    right[:700] = True
    better, much_better = right.copy(), right.copy()
    better[:30], better[700:735] = False, True  # 5 of 65 that differ: 0.6 standard errors
    much_better[:30], much_better[700:800] = False, True
    assert simplest([trial(0, right), trial(1, better)], None).advice is ADVICE[0]
    assert simplest([trial(0, right), trial(1, much_better)], None).advice is ADVICE[1]
    assert simplest([trial(0, right), trial(1, better), trial(2, much_better)], None).advice is ADVICE[2]
    pairs = np.repeat(np.arange(10), 100)  # all in one group: no more than chance
    together = np.where(
        np.arange(1000) < 30, 0, np.where((np.arange(1000) >= 700) & (np.arange(1000) < 800), 1, pairs + 2)
    )
    assert simplest([trial(0, right), trial(1, much_better)], together).advice is ADVICE[0]


def test_the_standard_error_counts_groups() -> None:
    values = np.repeat([0.0, 1.0], 50)
    assert standard_error(values) == pytest.approx(0.5 / np.sqrt(99))
    assert standard_error(values, np.repeat(np.arange(10), 10)) == pytest.approx(0.5 / np.sqrt(9))
    assert standard_error(values, np.zeros(100)) == np.inf


@pytest.mark.parametrize("samples", [7, 90, 272, 1000])
def test_one_sample_more_is_no_reason_for_more_than_cross_entropy(samples: int) -> None:
    right = np.arange(samples) < samples // 2
    one = right | (np.arange(samples) == samples - 1)
    two = one | (np.arange(samples) == samples - 2)
    assert simplest([trial(0, right), trial(1, one)], None).advice is ADVICE[0]
    assert simplest([trial(0, right), trial(1, two)], None).advice is ADVICE[1]


@pytest.mark.parametrize("cached", [False, True])
def test_candidates_judged_side_by_side_are_the_same(tmp_path: Path, cached: bool) -> None:
    x, nodes = blobs(300)
    alone = choose(x, nodes, TREE, None)
    cache = tmp_path if cached else None
    with Processes(2) as pool:
        together = choose(x, nodes, TREE, None, executor=pool, cache=cache)
    assert together.chosen.advice is alone.chosen.advice
    for one, other in zip(alone.trials, together.trials, strict=True):
        assert one.judged.exponent == other.judged.exponent
        np.testing.assert_array_equal(one.judged.right, other.judged.right)
    if cached:  # nothing is left to do

        def refuse() -> None:
            raise AssertionError("a head was trained")

        again = choose(x, nodes, TREE, None, on_fit=refuse, cache=cache)
        assert again.chosen.judged.tried == together.chosen.judged.tried


def test_the_choice_does_not_depend_on_the_scale_of_features() -> None:
    x, nodes = blobs()
    scale = 1e-3
    one, other = choose(x, nodes, TREE, None), choose(x * scale, nodes, TREE, None)
    assert one.chosen.advice is other.chosen.advice
    assert other.weight_decay == pytest.approx(one.weight_decay * scale**2, rel=1e-3)
    np.testing.assert_array_equal(one.chosen.judged.right, other.chosen.judged.right)


def test_the_judgement_is_that_of_classifiers_trained_outside_each_fold() -> None:
    x, nodes = blobs()
    fold = np.arange(len(x)) // 9 % 3
    cross = CrossValidation(x, nodes, TREE, fold)
    for advice in ADVICE[:2]:
        judged = cross.judge(Candidate(advice.loss, dict(advice.params)))
        decay = 10.0**judged.exponent / cross.scale**2
        ids = np.array(TREE.nodes)[nodes]
        right = np.zeros(len(x), dtype=bool)
        for i in range(3):
            clf = HACEClassifier(TREE, loss=advice.loss, loss_params=dict(advice.params), weight_decay=decay)
            clf.fit(x[fold != i], ids[fold != i])
            right[fold == i] = clf.predict(x[fold == i]) == ids[fold == i]
        assert (right != judged.right).mean() < 0.01
        assert judged.accuracy == pytest.approx(right.mean(), abs=0.01)
        assert 0.5 < judged.accuracy < 1


def recordings(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """45 recordings of ten samples, with their groups: samples of one differ less than recordings do."""
    rng = np.random.default_rng(seed)
    centres, nodes = blobs(45, seed)
    x = np.repeat(centres, 10, axis=0) + 0.3 * rng.normal(size=(450, 12)).astype(np.float32)
    return x, np.repeat(nodes, 10), np.repeat(np.arange(45), 10)


def test_few_groups_hardly_move_the_decay() -> None:
    """What 450 samples seem to say is chance where they come from 45 recordings."""
    moves = []
    for seed in range(4):
        x, nodes, group = recordings(seed)
        judged = [
            CrossValidation(x, nodes, TREE, group // 9 % 3, groups).judge(Candidate("cross_entropy"))
            for groups in (None, group)
        ]
        moves.append([abs(own.exponent - USUAL) for own in judged])
    alone, grouped = np.array(moves).mean(axis=0)
    assert grouped < alone


def test_many_samples_find_the_best_decay() -> None:
    """Noise in most of 200 features asks for much decay."""
    x, nodes = blobs(900, width=200)
    x = x * np.float32(0.2)
    x[:, 12:] = np.random.default_rng(3).normal(size=(900, 188)) * 0.5
    cross = CrossValidation(x, nodes, TREE, np.arange(900) // 9 % 3)
    judged = cross.judge(Candidate("cross_entropy"))
    assert judged.exponent > USUAL
    assert judged.tried[judged.exponent] >= max(judged.tried.values()) - 0.02


def test_coarse_samples_count_no_more_in_all_than_fine_ones() -> None:
    x, nodes = blobs(450)
    parents = np.array([TREE.index(TREE.parents(TREE.nodes[v])[0]) for v in nodes])
    few = np.where(np.arange(450) < 90, nodes, parents)
    judged = CrossValidation(x, few, TREE, np.arange(450) // 9 % 3).judge(Candidate("cross_entropy"))
    fine = np.arange(450) < 90
    assert judged.weight[fine].sum() == pytest.approx(judged.weight[~fine].sum())
    assert judged.accuracy == pytest.approx((judged.right[fine].mean() + judged.right[~fine].mean()) / 2)


def test_coarse_labels_are_used_where_they_help() -> None:
    x, nodes = blobs(450)
    parents = np.array([TREE.index(TREE.parents(TREE.nodes[v])[0]) for v in nodes])
    few = np.where(np.arange(450) < 27, nodes, parents)
    result = choose(x, few, TREE, None)
    assert result.coarse_gain is not None
    assert {t.coarse for t in result.trials} >= {"drop", "balanced"}
    shuffled = np.random.default_rng(0).permutation(parents)
    misleading = choose(x, np.where(np.arange(450) < 225, nodes, shuffled), TREE, None)
    assert misleading.chosen.coarse == "drop"


def test_what_learns_from_coarse_labels_is_not_plain_logistic_regression() -> None:
    right = np.ones(4, dtype=bool)
    trials = tuple(
        Trial(ADVICE[0], Judged(Candidate("cross_entropy", {}, how), USUAL, right, np.ones(4), 1.0, {}))
        for how in (DROP, USE)
    )
    gain = interval(np.zeros((1, 4)))
    plain, coarse = (Choice(chosen, trials, 1.0, 1.0, gain, gain, 4) for chosen in trials)
    assert plain.is_flat
    assert not coarse.is_flat


def test_a_flat_hierarchy_leaves_nothing_but_logistic_regression_to_try() -> None:
    x, nodes = blobs()
    flat = Hierarchy.flat([str(c) for c in range(9)])
    result = choose(x, TREE.labels[nodes], flat, None)
    assert result.is_flat
    assert len(result.trials) == 1


def test_sparse_features_are_judged_as_dense_ones() -> None:
    x, nodes = blobs(270)
    dense, thin = (
        CrossValidation(v, nodes, TREE, np.arange(270) // 9 % 3) for v in (x, sparse.csr_matrix(x))
    )
    one, other = dense.judge(Candidate("cross_entropy")), thin.judge(Candidate("cross_entropy"))
    assert one.exponent == other.exponent
    assert (one.right != other.right).mean() < 0.01


def test_leading_axes_keep_what_heads_see() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(300, 5)) @ rng.normal(size=(5, 40))).astype(np.float32)  # 5 dimensions in 40
    short = leading(x, 5)
    assert short.shape == (300, 5)
    assert spread(short) == pytest.approx(spread(x), rel=1e-4)
    assert leading(x, 40) is x


# --- the one recommendation


def table_of(page: str) -> dict[str, str]:
    """The rows of the table of a page that says what to use for your labels."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| your labels | use"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = " ".join(cells[1:])
    return rows


CALLS = {
    "cross_entropy": "cross-entropy",
    "cross_entropy_paths": 'CrossEntropyLoss(h, outputs="paths"',
    "soft_margin": "SoftMarginLoss",
    "hace": "HACELoss",
}


@pytest.mark.parametrize("page", ["README.md", "docs/which-loss.md"])
def test_pages_advise_what_the_table_of_advice_says(page: str) -> None:
    rows = table_of(page)
    for labels in (FINE, MILD, WRONG, SPECIFIC):
        assert CALLS[advised_for(labels).loss] in rows[labels], labels
    coarse = next(text for labels, text in rows.items() if labels.startswith(COARSE))
    assert CALLS[advised_for(COARSE).loss] in coarse
    assert f"sharing={advised_for(MILD).params['sharing']:g}" in rows[MILD]


def test_the_classifier_follows_the_advice() -> None:
    x, nodes = blobs()
    y = np.array(TREE.nodes, dtype=object)[nodes]
    assert HACEClassifier(TREE).fit(x, y).loss_name_ == recommended_loss(coarse=False).loss == "cross_entropy"
    y[::3] = [TREE.parents(v)[0] for v in y[::3]]
    assert (
        HACEClassifier(TREE).fit(x, y).loss_name_
        == recommended_loss(coarse=True).loss
        == "cross_entropy_paths"
    )


def test_probes_and_trainings_follow_the_advice() -> None:
    fine, coarse = (LossConfig(a.loss, dict(a.params)) for a in map(advised_for, (FINE, COARSE)))
    assert ProbeConfig().loss == TrainConfig().loss == fine
    x, nodes = blobs()
    samples = Features(TREE, nodes, [str(i) for i in range(len(nodes))], x)
    known = Dataset("known", TREE, {"train": samples})
    above = [TREE.index(TREE.parents(TREE.nodes[v])[0]) for v in nodes[:5]]
    partly = Dataset("partly", TREE, {"train": replace(samples, nodes=np.concatenate([above, nodes[5:]]))})
    for config in (ProbeConfig(loss=LossConfig("hxe")), TrainConfig(loss=LossConfig("hxe"))):
        assert with_advised_loss(known, config).loss == fine
        assert with_advised_loss(partly, config).loss == coarse
    made_coarse = ProbeConfig(data=DataConfig(labels=LabelsConfig(coarse=0.5)))
    assert with_advised_loss(known, made_coarse).loss == coarse


def test_the_demo_compares_what_is_advised_for_its_labels() -> None:
    assert {advised_for(FINE).loss, advised_for(COARSE).loss} <= {
        METHODS[key].loss.name for key in PRESETS["animals"].methods
    }


def test_every_advice_is_a_loss_with_its_parameters_and_flat_cross_entropy_is_the_simplest() -> None:
    for advice in ADVICE:
        assert advice.loss in LOSSES
        assert set(advice.params) <= set(loss_parameters(advice.loss))
    assert ADVICE[0].loss == "cross_entropy"
    assert len({advice.key for advice in ADVICE}) == len(ADVICE)
