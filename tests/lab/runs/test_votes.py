"""Several opinions about training samples, as soft targets of probes and trainings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hace
from hace.data import Features, load_dataset
from hace.data.consensus import consensus
from hace.errors import ConfigError, DataError
from hace.formats import write_hierarchy
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LabelsConfig, LossConfig, ProbeConfig, TrainConfig
from hace.lab.runs.samples import data_of, make_task
from hace.lab.train.train import train
from hace.linear import Optimization, Trial, fit_heads
from hace.losses.registry import build_loss

H = hace.Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "manx")])


@pytest.fixture
def features(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y = np.repeat(np.array(H.leaves), 6)
    x = np.eye(8)[np.repeat(np.arange(4), 6)] + 0.3 * rng.normal(size=(24, 8))
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    write_hierarchy(H, tmp_path / "tree.csv")
    return tmp_path


def votes(folder: Path, rows: list[tuple[str, str]]) -> str:
    path = folder / "votes.csv"
    path.write_text("sample,label\n" + "".join(f"{sample},{label}\n" for sample, label in rows))
    return str(path)


def config(folder: Path, rows: list[tuple[str, str]] | None, **settings: object) -> ProbeConfig:
    data = DataConfig(
        "features",
        str(folder / "x.npz"),
        hierarchy=str(folder / "tree.csv"),
        votes=None if rows is None else votes(folder, rows),
    )
    about: dict = {
        "optimizer": "lbfgs",
        "weight_decay": 1e-3,
        "loss": LossConfig("cross_entropy"),
        **settings,
    }
    return ProbeConfig(data=data, **about)


def test_targets_are_the_shares_of_votes(features: Path) -> None:
    rows = [("train/000000", "husky"), ("train/000000", "beagle"), ("train/000000", "husky")]
    asked = config(features, rows)
    task = make_task(data_of(asked.data), asked)
    assert task.labels == "leaves"
    assert task.targets(task.train)[0].tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0])  # beagle, husky, ...
    assert task.targets(task.train)[23].tolist() == np.eye(4)[H.leaves.index("tabby")].tolist()

    coarse = config(features, [*rows, ("train/000001", "dog")])
    task = make_task(data_of(coarse.data), coarse)
    assert task.labels == "nodes"
    assert task.targets(task.train)[1, H.index("dog")] == 1
    assert task.train.soft is not None
    assert task.evaluated.soft is None


def test_a_table_decides_the_run(features: Path) -> None:
    plain, one = config(features, None), config(features, [("train/000000", "beagle")])
    first = one.identity(data_of(one.data).fingerprint)
    other = config(features, [("train/000000", "manx")])
    assert len({first, plain.identity(data_of(plain.data).fingerprint),
                other.identity(data_of(other.data).fingerprint)}) == 3  # fmt: skip


@pytest.mark.parametrize("optimizer", ["lbfgs", "sgd", "adamw"])
def test_soft_targets_are_rows_with_weights(optimizer: str) -> None:
    """A sample with three opinions trains as three samples that share its weight, coarse opinions included."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(10, 3)).astype(np.float32)
    opinions = [[H.index("husky"), H.index("husky"), H.index("dog")]] + [[v] for v in rng.integers(0, 6, 9)]
    soft = consensus(
        {str(i): [H.nodes[v] for v in own] for i, own in enumerate(opinions)}, H, alone=True
    ).node_shares
    row = [i for i, own in enumerate(opinions) for _ in own]
    target = [v for own in opinions for v in own]
    weight = [1 / len(own) for own in opinions for _ in own]
    loss = build_loss("hace", H, labels="nodes")
    options = Optimization(optimizer, start="zeros", epochs=20, batch_size=64, momentum=0.0)
    trials = [Trial(loss, 0.1, 1e-2)] * (1 if optimizer == "lbfgs" else 2)
    heads = fit_heads(x, soft, trials, options)
    again = fit_heads(x[row], target, trials, options, sample_weight=weight)
    for one, other in zip(heads, again, strict=True):
        # A mini-batch of rows divides by their weights: the same objective.
        assert torch.allclose(one.weight, other.weight, atol=2e-4)


def test_probes_train_on_opinions(features: Path) -> None:
    # Everybody calls huskies beagles, and beagles huskies.
    swap = {"husky": "beagle", "beagle": "husky", "tabby": "tabby", "manx": "manx"}
    labels = np.repeat(np.array(H.leaves), 6)
    rows = [(f"train/{i:06d}", swap[label]) for i, label in enumerate(labels)]
    run = probe(config(features, rows), features / "runs")
    plain = probe(config(features, None), features / "runs")
    assert run.result is not None and plain.result is not None  # noqa: PT018
    assert run.result["metrics"]["leaves"]["top-1"] == pytest.approx(0.5)
    assert plain.result["metrics"]["leaves"]["top-1"] == 1.0


def test_training_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    data = load_dataset("synthetic", classes=4, train=4, test=2)
    names, nodes = data["train"].names, data.hierarchy.nodes
    rows = [(name, nodes[v]) for name, v in zip(names, data["train"].nodes, strict=True)]
    rows += [(names[0], data.hierarchy.parents(nodes[data["train"].nodes[0]])[0])]
    asked = TrainConfig(
        data=DataConfig(
            "synthetic", options={"classes": 4, "train": 4, "test": 2}, votes=votes(tmp_path, rows)
        ),
        model="test_vit",
        epochs=1,
        batch_size=8,
        mixup_alpha=0.2,
        device="cpu",
        workers=0,
    )
    assert train(asked, tmp_path / "run").status == "finished"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("train/9", "husky")], "samples must be in the data. 1 of 1 are not; the first is 'train/9'"),
        ([("test/000000", "husky")], "must have opinions about training samples. Got none"),
        ([("train/000000", "wolf")], "votes must be nodes of the hierarchy. Got 'wolf'"),
    ],
)
def test_votes_that_do_not_fit(features: Path, rows: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        data_of(config(features, rows).data)


def test_what_votes_exclude(features: Path) -> None:
    asked = config(features, [("train/000000", "husky")])
    with pytest.raises(ConfigError, match="votes must come without labels"):
        replace(asked.data, labels=LabelsConfig(coarse=0.5))
    shuffled = replace(asked, data=replace(asked.data, shuffle=1))
    with pytest.raises(DataError, match="omit shuffle and induce"):
        make_task(data_of(asked.data), shuffled)


def test_shapes_are_checked() -> None:
    with pytest.raises(DataError, match=r"soft must be \(M, 6\)"):
        Features(H, np.zeros(2, int), ["a", "b"], np.zeros((2, 3), np.float32), soft=np.ones((2, 4)))
    loss = build_loss("cross_entropy", H)
    with pytest.raises(DataError, match=r"target must be \(2, 4\)"):
        fit_heads(np.ones((2, 3)), np.ones((2, 6)), [Trial(loss)], Optimization())
    with pytest.raises(DataError, match="target must hold finite shares"):
        fit_heads(np.ones((2, 3)), np.full((2, 4), np.nan), [Trial(loss)], Optimization())
