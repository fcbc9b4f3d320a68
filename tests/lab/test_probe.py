"""Linear probes as runs: alone or side by side, finished once, honest about what does not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hace
from hace.errors import ConfigError, DataError, HaceError
from hace.hierarchy import Hierarchy
from hace.lab.probe import (
    HEADS_PER_PASS,
    Scaling,
    head_outputs,
    load_sources,
    optimization_of,
    passes,
    probe,
)
from hace.lab.runs.config import DataConfig, HeadConfig, LossConfig, ProbeConfig
from hace.lab.runs.run import Run, read_run
from hace.lab.runs.samples import make_task
from hace.lab.serve.rescore import rescored
from hace.settings import from_dict
from hace.study import Study

DATA = DataConfig("synthetic-features", options={"classes": 8, "dim": 12, "train": 12, "test": 6})
BASE = ProbeConfig(data=DATA, loss=LossConfig("hace"), epochs=3, batch_size=16, lr=2.0)
LOSSES = [
    LossConfig("hace"),
    LossConfig("hace", {"dilution": 0.2, "label_smoothing": 0.1}),
    LossConfig("hce"),
    LossConfig("ancestral_smoothing"),
]


def comparable(run: Run) -> dict[str, Any]:
    """All that a run has kept, but for its times."""
    result = {k: v for k, v in (run.result or {}).items() if k != "seconds"}
    files = {p.name: p.read_bytes() for p in run.folder.iterdir() if p.suffix in (".safetensors", ".jsonl")}
    return {"result": result, "files": files, "config": run.config}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_side_by_side_equals_alone(tmp_path: Path, optimizer: str) -> None:
    lr = 2.0 if optimizer == "sgd" else 0.01
    configs = [
        replace(BASE, loss=loss, lr=lr * factor, weight_decay=decay, optimizer=optimizer)
        for loss in LOSSES
        for factor, decay in ((1, 0.0), (0.5, 0.01))
    ]
    together = probe(configs, tmp_path / "together")
    assert len(passes(configs, load_sources(configs))) == 1
    for config, run in zip(configs, together, strict=True):
        (alone,) = probe([config], tmp_path / "alone")
        assert comparable(alone) == comparable(run)
        assert alone.status == "finished"


def test_passes_split_what_cannot_share_one() -> None:
    sources = load_sources([BASE])

    def count(configs: Sequence[ProbeConfig]) -> int:
        return len(passes(configs, sources))

    assert count([replace(BASE, lr=rate) for rate in (1.0, 2.0, 4.0)]) == 1
    assert count([BASE, BASE]) == 1
    assert len(passes([BASE, BASE], sources)[0]) == 1
    shuffled = replace(BASE, data=replace(DATA, shuffle=3))
    assert count([BASE, shuffled]) == 1  # another tree of the same size
    different = ["seed", "epochs", "batch_size", "normalize", "bias", "schedule", "validation"]
    values = [1, 4, 8, "none", False, "constant", 0.2]
    for name, value in zip(different, values, strict=True):
        assert count([BASE, replace(BASE, **{name: value})]) == 2, name
    assert count([BASE, replace(BASE, loss=LossConfig("cross_entropy"))]) == 2  # fewer outputs
    many = [replace(BASE, lr=0.1 * (i + 1)) for i in range(HEADS_PER_PASS + 1)]
    assert [len(p) for p in passes(many, sources)] == [HEADS_PER_PASS, 1]
    newton = [replace(c, optimizer="lbfgs") for c in many[:3]]
    assert [len(p) for p in passes(newton, sources)] == [1, 1, 1]


def test_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    (first,) = probe([BASE], tmp_path)
    before = {p: p.stat().st_mtime_ns for p in first.folder.iterdir()}
    epochs: list[int] = []
    again = probe([BASE, replace(BASE, lr=1.0)], tmp_path, on_epoch=epochs.append)
    assert {p: p.stat().st_mtime_ns for p in first.folder.iterdir()} == before
    assert [run.config.lr for run in again] == [2.0, 1.0]
    assert sum(epochs) == 2 * BASE.epochs  # the finished one counts as done


def test_a_run_that_was_killed_is_done_again_and_ends_the_same(tmp_path: Path) -> None:
    (whole,) = probe([BASE], tmp_path / "whole")
    (killed,) = probe([BASE], tmp_path / "killed")
    for name in ("result.json", "weights.safetensors"):
        (killed.folder / name).unlink()
    (again,) = probe([BASE], tmp_path / "killed")
    assert comparable(again) == comparable(whole)


def test_a_diverged_head_is_recorded_and_disturbs_nobody(tmp_path: Path) -> None:
    wild = replace(BASE, lr=32.0, weight_decay=10.0, epochs=4)  # every step grows the weights 319-fold
    calm = replace(BASE, epochs=4)
    runs = probe([wild, calm], tmp_path / "both")
    (alone,) = probe([calm], tmp_path / "alone")
    assert runs[0].status == "diverged"
    assert runs[0].result is not None
    assert runs[0].result["metrics"] is None
    assert set(runs[0].result["diverged"]) >= {"epoch", "step", "lr"}
    assert comparable(runs[1]) == comparable(alone)


def test_the_result_speaks_of_the_weights(tmp_path: Path) -> None:
    (run,) = probe([BASE], tmp_path)
    source = load_sources([BASE])[next(iter(load_sources([BASE])))]
    test = source["test"]
    x = torch.from_numpy(test.x / np.linalg.norm(test.x, axis=1, keepdims=True))
    z = torch.cat(list(head_outputs(x, run.weights())))
    loss = BASE.loss.build(source.hierarchy)
    answers = loss.leaf_logits(z).argmax(1).numpy()
    assert run.result is not None
    assert run.result["metrics"]["leaves"]["top-1"] == (answers == test.labels).mean()
    predictions = run.predictions()
    assert predictions["answer"].tolist() == source.hierarchy.leaf_nodes[answers].tolist()
    assert predictions["truth"].tolist() == test.nodes.tolist()
    assert predictions["top5"].mean() == run.result["metrics"]["leaves"]["top-5"]
    assert predictions["distance"].mean() == pytest.approx(run.result["metrics"]["leaves"]["HD@1"])
    assert run.result["train"]["outputs"] == source.hierarchy.num_nodes
    assert len(run.log()) == BASE.epochs


def test_a_search_keeps_its_result_only(tmp_path: Path) -> None:
    (run,) = probe([replace(BASE, keep=False)], tmp_path)
    names = {p.name for p in run.folder.iterdir()}
    assert "result.json" in names
    assert not names & {"weights.safetensors", "predictions.safetensors"}


def test_a_run_of_a_search_can_be_kept_later(tmp_path: Path) -> None:
    (thin,) = probe([replace(BASE, keep=False)], tmp_path)
    (whole,) = probe([BASE], tmp_path)
    assert whole.id == thin.id
    assert set(whole.weights()) == {"weight", "bias"}
    assert (whole.result or {})["metrics"] == (thin.result or {})["metrics"]
    before = whole.folder.joinpath("weights.safetensors").stat().st_mtime_ns
    for keep in (True, False):  # either finds what it wants
        (again,) = probe([replace(BASE, keep=keep)], tmp_path)
        assert again.config == whole.config
    assert whole.folder.joinpath("weights.safetensors").stat().st_mtime_ns == before


def test_two_processes_do_not_train_one_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes the run between the first look and the lock."""
    from hace.lab import probe as module

    def finished_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(module, "make_task", make_task)
        monkeypatch.setattr(module, "fit_heads", trained)
        probe([BASE], tmp_path)
        monkeypatch.setattr(module, "fit_heads", refused)
        return make_task(*args)

    def refused(*args: Any, **options: Any) -> Any:
        raise AssertionError("it was trained already")

    trained = module.fit_heads
    monkeypatch.setattr(module, "make_task", finished_meanwhile)
    (run,) = probe([BASE], tmp_path)
    assert run.status == "finished"


def test_every_epoch_is_counted_once(tmp_path: Path) -> None:
    early = replace(BASE, patience=1, validation=0.2, epochs=40)
    for config in (BASE, early, replace(BASE, optimizer="lbfgs", weight_decay=0.01)):
        epochs: list[int] = []
        probe([config], tmp_path, on_epoch=epochs.append)
        assert sum(epochs) == config.epochs


def test_what_cannot_be_trained_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds out none"):
        probe([replace(BASE, validation=0.01)], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_induced_tree_comes_from_the_training_samples_and_is_judged_by_the_given_one(
    tmp_path: Path,
) -> None:
    """It is kept beside the weights, so that the model answers again with the same numbers."""
    data = replace(DATA, induce=1)
    losses = [LossConfig("hace"), LossConfig("cross_entropy")]
    configs = [replace(BASE, data=data, loss=loss) for loss in losses]
    assert len(passes([*configs, BASE], load_sources(configs))) == 3
    run, flat = probe(configs, tmp_path)
    task = make_task(next(iter(load_sources(configs).values())), configs[0])
    made = Hierarchy.from_features(task.train.x, task.train.labels, task.hierarchy.leaves, levels=1)
    assert run.tree == task.tree == made.with_root()  # the given one has a root
    assert run.tree != run.hierarchy == task.hierarchy
    assert run.weights()["weight"].shape == (run.tree.num_nodes, 12)
    held = make_task(next(iter(load_sources(configs).values())), replace(configs[0], validation=0.5))
    assert (len(held.train), held.tree.leaves) == (len(task.train) // 2, task.tree.leaves)
    given = probe([replace(BASE, loss=losses[1])], tmp_path)[0]
    assert flat.id != given.id
    metrics = [(r.result or {})["metrics"]["leaves"]["top-1"] for r in (flat, given)]
    assert metrics[0] == metrics[1]  # no tree in the loss
    with pytest.raises(ConfigError, match="a run trains on one tree"):
        replace(data, shuffle=1)
    (run.folder / "tree.json").write_text("{}")
    with pytest.raises(HaceError, match=r"tree\.json"):
        _ = read_run(run.folder).tree


def test_a_hyperbolic_head_is_scored_again_as_it_was_trained(tmp_path: Path) -> None:
    config = replace(BASE, head=HeadConfig("poincare", clip=0.5), epochs=8)
    bent, flat = probe([config, replace(config, head=HeadConfig())], tmp_path)
    assert bent.id != flat.id
    for run in (bent, flat):
        assert run.result is not None
        top1 = rescored(run.folder).report().values["leaves", "top-1"]
        assert top1 == run.result["metrics"]["leaves"]["top-1"] > 0.4
    weights = bent.weights()
    x = torch.randn(3, 12)
    (linear,), (curved,) = head_outputs(x, weights), head_outputs(x, weights, config.head.ball)
    assert (linear - curved).abs().max() > 0.1


def test_settings_of_a_head_that_do_not_fit() -> None:
    for settings, message in (
        ({"head": {"clip": 2.0}}, "clip must come with head.name=poincare"),
        ({"head": {"name": "poincare", "clip": 6.0}}, "at most 5 / sqrt"),
        ({"head": {"name": "poincare"}, "start": "zeros"}, "start random or auto. Got sgd and zeros"),
        ({"head": {"name": "poincare"}, "optimizer": "lbfgs"}, "optimizer sgd or adamw"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_dict(ProbeConfig, settings)
    assert BASE.identity("x") == replace(BASE, head=HeadConfig()).identity("x")


def test_the_shuffled_control_is_judged_by_the_true_tree(tmp_path: Path) -> None:
    shuffled = replace(BASE, data=replace(DATA, shuffle=3))
    control, true = probe([shuffled, BASE], tmp_path)
    assert control.id != true.id
    assert control.hierarchy == true.hierarchy
    assert not torch.equal(control.weights()["weight"], true.weights()["weight"])
    assert control.result is not None
    assert control.result["hierarchy"] == (true.result or {})["hierarchy"]
    predictions, h = control.predictions(), true.hierarchy
    nodes = [predictions[name].astype(int) for name in ("answer", "truth")]
    assert predictions["distance"].tolist() == h.distances(*nodes, labels="nodes").tolist()
    assert predictions["distance"].tolist() != h.shuffled(3).distances(*nodes, labels="nodes").tolist()


def test_labels_above_the_leaves(tmp_path: Path) -> None:
    coarse = DataConfig("synthetic-features", options={"classes": 8, "dim": 12, "train": 12, "coarse": 0.5})
    (run,) = probe([replace(BASE, data=coarse)], tmp_path)
    assert run.status == "finished"


@pytest.mark.parametrize("subset", [False, True])
def test_a_run_with_path_sums_is_scored_by_its_classes(tmp_path: Path, subset: bool) -> None:
    """Its N outputs are not taken for those of a head over nodes, also where classes are left out."""
    loss = LossConfig("hace_paths", {"sharing": 0.5})
    (run,) = probe([replace(BASE, loss=loss)], tmp_path)
    again = rescored(run.folder)
    region = again.hierarchy.leaves[:3] if subset else None
    result = again.report(subset=region).values
    z = torch.cat(list(again.outputs()))
    h = again.hierarchy
    assert z.shape[1] == h.num_nodes
    logits = hace.leaf_logits(z, h, "paths", 0.5)
    wanted = hace.evaluate(
        logits, again.samples.nodes, h, labels="nodes", outputs="leaves", subset=region
    ).values
    assert result == pytest.approx(wanted, abs=1e-5, nan_ok=True)
    if not subset:
        assert run.result is not None
        assert result["leaves", "top-1"] == run.result["metrics"]["leaves"]["top-1"]


def test_lbfgs_says_whether_it_converged(tmp_path: Path) -> None:
    newton = replace(BASE, optimizer="lbfgs", weight_decay=0.01)
    runs = probe([newton, replace(newton, max_iter=2), BASE], tmp_path)
    assert [(run.result or {})["train"].get("converged") for run in runs] == [True, False, None]


@pytest.mark.parametrize(
    ("optimizer", "normalize"), [("sgd", "unit"), ("adamw", "standard"), ("lbfgs", "none")]
)
def test_every_optimiser_learns(tmp_path: Path, optimizer: str, normalize: str) -> None:
    lr = {"sgd": 0.5, "adamw": 0.05, "lbfgs": 1.0}[optimizer]
    config = replace(BASE, optimizer=optimizer, normalize=normalize, lr=lr, epochs=20, weight_decay=1e-4)
    (run,) = probe([config], tmp_path)
    assert run.result is not None
    assert run.result["metrics"]["leaves"]["top-1"] > 0.5  # 1 / 8 by chance
    if normalize == "standard":
        train = next(iter(load_sources([config]).values()))["train"]
        assert torch.allclose(run.weights()["mean"], torch.from_numpy(train.x.mean(0)), atol=1e-6)


def test_normalisation_uses_training_samples_alone() -> None:
    source = next(iter(load_sources([BASE]).values()))
    task = make_task(source, replace(BASE, validation=0.25, evaluate="val"))
    scaling = Scaling.fitted("standard", task.train.x)
    assert task.val is not None
    x, val = scaling(task.train.x), scaling(task.val.x)
    mean, std = task.train.x.mean(0), task.train.x.std(0)
    assert torch.allclose(x, torch.from_numpy((task.train.x - mean) / std), atol=1e-5)
    assert torch.allclose(val, torch.from_numpy((task.val.x - mean) / std), atol=1e-5)
    unit = Scaling("unit")(task.train.x)
    assert torch.allclose(unit.norm(dim=1), torch.ones(len(unit)))
    assert Scaling("unit")(np.zeros((1, 3), np.float32)).tolist() == [[0, 0, 0]]
    assert torch.equal(Scaling("none")(task.train.x), torch.from_numpy(task.train.x))


# ------------------------------------------------------------------ what does not fit


def feature_file(path: Path, x: np.ndarray | None = None, y: Sequence[int] | None = None) -> DataConfig:
    rng = np.random.default_rng(0)
    y_train = np.array([0, 1, 2] * 6 if y is None else y)
    x_train = rng.standard_normal((len(y_train), 4)).astype(np.float32) if x is None else x
    np.savez(path / "f.npz", x_train=x_train, y_train=y_train, x_test=x_train[:6], y_test=y_train[:6])
    (path / "h.csv").write_text("child,parent\nhusky,dog\nbeagle,dog\ntabby,cat\n")
    return DataConfig("features", root=str(path / "f.npz"), hierarchy=str(path / "h.csv"))


def test_other_features_after_the_run_are_another_run(tmp_path: Path) -> None:
    config = replace(BASE, data=feature_file(tmp_path))
    (first,) = probe([config], tmp_path / "runs")
    feature_file(tmp_path, np.ones((18, 4), np.float32))
    (second,) = probe([config], tmp_path / "runs")
    assert first.id != second.id


def test_unseen_classes_are_reported(tmp_path: Path) -> None:
    (run,) = probe([replace(BASE, data=feature_file(tmp_path, y=[0, 1] * 9))], tmp_path / "runs")
    assert run.result is not None
    assert run.result["train"]["unseen_classes"] == ["tabby"]


@pytest.mark.parametrize("y", [[0], [1] * 7])
@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs"])
def test_one_sample_or_one_class(tmp_path: Path, y: list[int], optimizer: str) -> None:
    config = replace(BASE, data=feature_file(tmp_path, y=y), optimizer=optimizer, weight_decay=0.01)
    (run,) = probe([config], tmp_path / "runs")
    assert run.result is not None
    assert run.result["metrics"]["leaves"]["top-1"] == 1.0


def test_features_that_are_no_numbers(tmp_path: Path) -> None:
    x = np.ones((18, 4), np.float32)
    x[[3, 5], 2] = np.nan, np.inf
    with pytest.raises(DataError, match="Row 3 of train"):
        probe([replace(BASE, data=feature_file(tmp_path, x))], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_labels_outside_the_hierarchy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3"):
        probe([replace(BASE, data=feature_file(tmp_path, y=[0, 1, 3]))], tmp_path / "runs")


def test_features_of_another_width() -> None:
    weights = {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}
    with pytest.raises(DataError, match=r"must have 4 columns.* Got 5"):
        list(head_outputs(torch.zeros(2, 5), weights))


def test_images_are_no_features(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hace features"):
        probe([replace(BASE, data=DataConfig("synthetic"))], tmp_path)


def test_configurations_run_again_as_they_are(tmp_path: Path) -> None:
    from hace.settings import from_dict

    (run,) = probe([BASE], tmp_path / "a")
    config = from_dict(ProbeConfig, json.loads((run.folder / "config.json").read_text()))
    (again,) = probe([config], tmp_path / "b")
    assert comparable(read_run(again.folder)) == comparable(run)


# ------------------------------------------------------------------ real data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "hierarchy", "rate", "expected"),  # the rate is the best of 8 and 16 on held-out samples
    [
        (
            "cub200_features_lite0/cub200_lite0_224px_fp16.npz",
            "cub200_hierarchy/cub_flat.parent-child.txt",
            16.0,
            0.715,
        ),
        pytest.param(
            *("cifar100_features_lite0/cifar100_lite0_128px_pca256_fp16.npz", None, 8.0, 0.672),
            marks=pytest.mark.long,
        ),
    ],
    ids=["cub200", "cifar100"],
)
def test_real_features(
    real_data: Any, tmp_path: Path, features: str, hierarchy: str | None, rate: float, expected: float
) -> None:
    if hierarchy is None:
        h = tmp_path / "cifar100.json"
        hace.write_hierarchy(hace.cifar100_hierarchy(), h)
    else:
        h = real_data(hierarchy)
    study = Study(
        "methods",
        features={"real": str(real_data(features))},
        hierarchy={"real": str(h)},
        methods=("cross_entropy", "hace"),
        rates=(rate,),
        seeds=1,
        out=str(tmp_path / "study"),
    )
    top1 = {record.key.method: record.top1 for record in study.run().records}
    assert top1["cross_entropy"] >= expected
    assert top1["hace"] >= expected - 0.01


@pytest.mark.parametrize("loss", ["cross_entropy", "hace", "hace_paths", "conditional_softmax"])
def test_a_run_is_calibrated_on_the_samples_it_holds_out(tmp_path: Path, loss: str) -> None:
    config = replace(BASE, loss=LossConfig(loss), validation=0.3)
    search, alone, final, plain = probe(
        [
            replace(config, evaluate="val"),
            config,
            replace(BASE, loss=config.loss, temperature=0.7),
            replace(BASE, loss=config.loss, lr=3.0),
        ],
        tmp_path,
    )
    results = [run.result or {} for run in (search, alone, final, plain)]
    held = rescored(alone.folder, split="val")
    z = torch.cat(list(held.outputs()))
    leaf = held.loss.leaf_logits(z) if loss != "hace" else z
    best = hace.fit_temperature(leaf, held.samples.nodes, held.hierarchy, labels="nodes")
    assert results[0]["temperature"] == results[1]["temperature"]
    assert results[1]["temperature"]["value"] == pytest.approx(best, rel=1e-6)
    assert results[2]["temperature"] == {"value": 0.7, "source": "config", "problem": None}
    assert not any(heading.startswith("calibrated") for heading in results[0]["metrics"])  # their own samples
    assert "temperature" not in results[3]
    for result, scored, value in ((results[1], alone, best), (results[2], final, 0.7)):
        tested = rescored(scored.folder)
        z = torch.cat(list(tested.outputs()))
        leaf = tested.loss.leaf_logits(z) if loss != "hace" else z
        truth = tested.samples.nodes
        for scale, prefix in ((1.0, ""), (value, "calibrated: ")):
            evaluation = hace.evaluate(leaf / scale, truth, tested.hierarchy, labels="nodes")
            assert set(result["metrics"]) >= {
                prefix + heading for heading in ("selection", "levels together")
            }
            for (heading, name), number in evaluation.values.items():
                if prefix + heading in result["metrics"]:
                    assert result["metrics"][prefix + heading][name] == pytest.approx(number, abs=2e-5), (
                        heading
                    )


def test_a_temperature_changes_neither_the_id_nor_the_raw_result(tmp_path: Path) -> None:
    warm = replace(BASE, temperature=2.0)
    assert warm.identity("x") == BASE.identity("x")
    (one,), (two,) = probe([BASE], tmp_path / "one"), probe([warm], tmp_path / "two")
    assert one.result is not None
    assert two.result is not None
    for heading, values in one.result["metrics"].items():
        assert two.result["metrics"][heading] == values
    assert one.result["operating_curve"] == two.result["operating_curve"]
    assert one.result["operating_curve"] != two.result["calibrated"]["operating_curve"]


def test_the_final_run_of_a_search_has_its_temperature(tmp_path: Path) -> None:
    study = Study(
        "methods", methods=("hace",), rates=(1, 4), seeds=1, epochs_scale=0.1, out=str(tmp_path / "study")
    )
    records = study.run().records
    final = next(r.run for r in records if r.stage == "final" and r.run)
    chosen = next(r.run for r in records if r.stage == "search" and r.run and r.lr == final.config.lr)
    assert chosen.result is not None
    assert final.result is not None
    assert final.config.temperature == chosen.result["temperature"]["value"]
    assert "calibrated: selection" in final.result["metrics"]


def test_heads_start_from_zeros_where_labels_are_coarse() -> None:
    config = ProbeConfig()
    assert optimization_of(config, "leaves", 100).start == "random"
    assert optimization_of(config, "nodes", 100).start == "zeros"
    assert optimization_of(replace(config, start="random"), "nodes", 100).start == "random"
    assert ProbeConfig().identity("data") != replace(config, start="zeros").identity("data")


@pytest.mark.parametrize("factor", [1.0, 2.0**-60, 1e-23, 1e-37, 2.0**60, 1e19, 1e37])
def test_unit_scaling_neither_over_nor_underflows(factor: float) -> None:
    """Squares of such features are 0 or infinite in single precision: every row had the same answer."""
    x = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    plain = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    result = Scaling("unit")(x * np.float32(factor)).numpy()
    np.testing.assert_allclose(result, plain, rtol=1e-5 if factor == 1e-37 else 2e-7)
    assert factor != 1 or (result == plain).all()  # ordinary features keep their bits
