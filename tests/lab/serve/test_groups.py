"""Groups in runs, calibrations and answers: a guarantee for recordings not yet heard, and one answer per recording."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hace import Hierarchy, Predictor, cli, guaranteed_threshold
from hace.decisions.calibration import calibrate_scores, read_calibration
from hace.decisions.scores import Scores, prior_weights
from hace.errors import ConfigError, DataError
from hace.lab.runs.run import Run
from hace.lab.serve.calibrate_run import calibrate_run

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])


def samples(seed: int, groups: int, size: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features that share their recording's offset, labels, and recordings."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    y = (np.arange(groups) % 4)[group]
    x = np.eye(4)[y] * 3 + rng.normal(size=(groups, 4))[group] + rng.normal(size=(len(y), 4))
    return x.astype("f"), y, np.array([f"r{seed}-{g}" for g in group])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    from hace.lab.probe import probe
    from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig

    folder = tmp_path_factory.mktemp("groups")
    parts = {"train": samples(0, 120), "test": samples(1, 40)}
    arrays = {
        f"{what}_{name}": part[i]
        for name, part in parts.items()
        for i, what in enumerate(("x", "y", "groups"))
    }
    np.savez(folder / "calls.npz", **arrays)
    (folder / "tree.csv").write_text("parent,child\n" + "\n".join(",".join((a, b)) for a, b in _edges()))
    data = DataConfig(
        "features",
        root=str(folder / "calls.npz"),
        hierarchy=str(folder / "tree.csv"),
        options={"label_kind": "index"},
    )
    (run,) = probe(
        [ProbeConfig(data=data, loss=LossConfig("hace"), epochs=5, validation=0.3)], folder / "runs"
    )
    return run


def _edges() -> list[tuple[str, str]]:
    return [(TREE.nodes[a], TREE.nodes[b]) for a, b in TREE.edges.tolist()]


def test_a_run_keeps_recordings_together_and_its_intervals_are_over_them(run: Run) -> None:
    from hace.lab.serve.rescore import rescored

    val, train = (set(rescored(run.folder, split=split).samples.groups) for split in ("val", "train"))  # type: ignore[arg-type]
    assert val
    assert not val & train
    assert len(np.unique(run.predictions()["group"])) == 40
    assert "samples in 40 groups [" in rescored(run.folder).report().to_text()


def test_a_calibrated_run_guarantees_for_new_recordings(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["calibrate", str(run.folder), "--accuracy", "0.8", "--of", "samples", "--temperature", "1"]
    assert cli.main(words) == 0
    assert "about new groups" in capsys.readouterr().out
    assert cli.main([*words, "--group-share", "0.8"]) == 0
    assert "in at least 0.8 of new groups, at most 1 - accuracy" in capsys.readouterr().out
    answers = Predictor.from_run(run.folder).predict(samples(1, 40)[0], accuracy=0.8)
    assert answers.guarantee is not None
    assert answers.guarantee.guarantee.startswith("In at least 80% of new groups at most 20% of its samples")


def test_groups_of_samples_that_are_dropped_go_with_them(run: Run, tmp_path: Path) -> None:
    """Samples labelled above the classes were dropped, and their groups stayed: lengths that do not fit."""
    x, y, group = samples(3, 40)
    labels = np.array(TREE.leaves)[y]
    labels[::5] = "dog"
    np.savez(tmp_path / "new.npz", X=x, y=labels, groups=group)
    calibration = calibrate_run(
        run.folder,
        0.8,
        of="samples",
        temperature=1.0,
        data=tmp_path / "new.npz",
        coarse="drop",
        out=tmp_path / "c.json",
    )
    assert any("64 of 320 new.npz samples are labelled above" in note for note in calibration.notes)


def test_one_answer_per_recording(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y, group = samples(2, 30)
    order = np.random.default_rng(0).permutation(len(y))
    x, y, group = x[order], y[order], group[order]
    predictor = Predictor.from_run(run.folder)
    answers = predictor.predict(x, groups=group, threshold=0.5)
    assert answers.names == list(dict.fromkeys(group.tolist()))
    alone = predictor.predict(x)
    assert len(alone) == len(y)  # each sample keeps its own answer
    truth = {g: TREE.leaves[label] for g, label in zip(group, y, strict=True)}
    single = np.mean([leaf == truth[g] for leaf, g in zip(alone.answers.ids, group, strict=True)])
    together = np.mean(
        [leaves[0] == truth[g] for leaves, g in zip(answers.leaves.ids, answers.names, strict=True)]
    )
    assert together >= single
    np.savez(tmp_path / "new.npz", X=x, burst=group)
    assert (
        cli.main(
            ["predict", str(run.folder), str(tmp_path / "new.npz"), "--groups", "burst", "--to", "jsonl"]
        )
        == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["sample"] for line in lines] == list(answers.names)
    assert [line["leaves"][0]["id"] for line in lines] == [leaves[0] for leaves in answers.leaves.ids]
    assert cli.main(["predict", str(run.folder), str(tmp_path / "new.npz"), "--groups", "site"]) == 2
    assert "must have an array 'site'" in capsys.readouterr().err


def test_guarantees_about_pooled_answers(run: Run) -> None:
    calibrate_run(run.folder, 0.8, of="samples", temperature=1.0, pool="mean")
    predictor = Predictor.from_run(run.folder)
    x, _, group = samples(3, 30)
    answers = predictor.predict(x, groups=group, pool="mean", accuracy=0.8)
    assert len(answers) == 30
    with pytest.raises(
        ConfigError, match=r"with the pool that it was calibrated with: it was made with a pool"
    ):
        predictor.predict(x, accuracy=0.8)
    with pytest.raises(ConfigError, match="made with another pool"):
        predictor.predict(x, groups=group, pool="log", accuracy=0.8)


@pytest.mark.parametrize("how", ["log", "mean"])
def test_pooled_scores_are_the_means_they_say(how: str) -> None:
    z = np.random.default_rng(0).normal(size=(7, 4))
    place = np.array([0, 1, 0, 2, 2, 2, 1])
    pooled = Scores(z, TREE, outputs="leaves").pooled(place, how).data.softmax(1).numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    for g in range(3):
        mean = np.exp(np.log(p[place == g]).mean(0)) if how == "log" else p[place == g].mean(0)
        assert pooled[g] == pytest.approx(mean / mean.sum())
    with pytest.raises(ConfigError, match="pool must be one of 'log', 'mean'"):
        Scores(z, TREE, outputs="leaves").pooled(place, "max")
    log_q = Scores(z, TREE, outputs="leaves").log_q()
    with pytest.raises(ConfigError, match="pool needs logits or probabilities"):
        Scores(log_q, TREE, "node_log_probs").pooled(place)


def test_a_guarantee_within_a_region_and_with_a_prior(tmp_path: Path) -> None:
    z, y, _ = samples(4, 400, 1)
    truth = TREE.leaf_nodes[y]
    dogs = ["husky", "beagle"]
    calibration = calibrate_scores(z, truth, TREE, 0.9, of="samples", temperature=1.0, subset=dogs)
    assert calibration.samples == 200
    assert calibration.notes[0].startswith("200 samples of classes outside the subset were left out")
    calibration.write(tmp_path / "c.json")
    assert read_calibration(tmp_path / "c.json") == calibration
    calibration.check_use(None, ["beagle", "husky"], None, "again")
    with pytest.raises(ConfigError, match="with the subset that it was calibrated with"):
        calibration.check_use(None, None, None, "again")
    inside = np.isin(y, [TREE.leaves.index(name) for name in dogs])
    columns = [TREE.leaves.index(name) for name in dogs]
    bare = np.full_like(z, -np.inf)
    bare[:, columns] = z[:, columns]
    slow = guaranteed_threshold(bare[inside], y[inside], TREE, 0.9)
    assert calibration.thresholds[0].threshold == pytest.approx(slow.threshold)
    prior = {"dog": 4.0, "husky": 1.0}
    weights = prior_weights(TREE, prior)
    assert [float(weights[TREE.index(name)]) for name in ("dog", "husky", "beagle", "tabby")] == [
        4.0,
        1.0,
        4.0,
        1.0,
    ]
    moved = Scores(z, TREE, outputs="leaves").weighted(prior).data.numpy() - z
    assert moved[0] == pytest.approx(np.log([weights[v] for v in TREE.leaf_nodes]), abs=1e-6)
    with pytest.raises(DataError, match=r"prior must name nodes of the hierarchy\. Got 'wolf'"):
        prior_weights(TREE, {"wolf": 1.0})
    with pytest.raises(DataError, match="prior must be numbers above 0"):
        prior_weights(TREE, {"dog": 0.0})


def test_a_calibration_without_groups_has_the_keys_it_had() -> None:
    z, y, _ = samples(5, 200, 1)
    calibration = calibrate_scores(z, TREE.leaf_nodes[y], TREE, 0.9, of="samples")
    later = {"pool", "subset", "prior", "groups"}
    assert not later & set(calibration.to_dict())
    assert not {"num_groups", "group_share"} & set(calibration.to_dict()["thresholds"][0])
    with pytest.raises(ConfigError, match="pool needs groups"):
        calibrate_scores(z, TREE.leaf_nodes[y], TREE, pool="log")
