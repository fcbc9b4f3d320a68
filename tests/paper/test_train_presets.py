"""The paper's recipes as configurations of training."""

from __future__ import annotations

import pytest

from hace.errors import ConfigError
from hace.lab.runs.config import DataConfig
from hace.paper.recipes import RECIPES, TRAIN_PRESETS, describe, train_preset


def test_presets_are_the_papers_recipes() -> None:
    for name in TRAIN_PRESETS:
        dataset, model = name.split("/")
        row, config = RECIPES[model], train_preset(name)
        assert config == train_preset(f"{name}/hace")
        assert config.data == DataConfig(dataset)
        for (
            key
        ) in "model batch_size lr weight_decay momentum dropout schedule warmup_epochs optimizer".split():
            assert getattr(config, key) == getattr(row, key), (name, key)
        assert config.epochs == row.epochs[dataset]
        for words in ("as the paper's table of hyperparameters has it", "Cost:", "Expect: top-1"):
            assert words in describe(model, dataset)


def test_the_four_rates_of_the_papers_pairs() -> None:
    base = RECIPES["resnet18"].lr
    results = {
        (method, pairing): train_preset(f"cifar100/resnet18/{method}", dilution=0.2, pairing=pairing).lr
        for method in ("hace", "cross_entropy")
        for pairing in ("standard", "adjusted")
    }
    assert results == {
        ("hace", "standard"): base,
        ("hace", "adjusted"): base / 0.2,
        ("cross_entropy", "standard"): base * 0.2,
        ("cross_entropy", "adjusted"): base,
    }
    assert train_preset("cifar100/resnet18/hace_shuffled", seed=3).data.shuffle == 3
    for call, words in (
        (lambda: train_preset("cifar100/resnet19"), "Did you mean 'cifar100/resnet18'"),
        (lambda: train_preset("cifar100/resnet18/hacee"), "method must be one of 'cross_entropy',"),
        (lambda: train_preset("cifar10/resnet18"), "preset must be one of 'cifar100/resnet18', "),
        (
            lambda: train_preset("cifar100/resnet18/cross_entropy", dilution=0.2),
            "left out for the method 'cross_entropy'",
        ),
        (lambda: train_preset("cifar100/resnet18/hxe_0.2", pairing="standard"), "loss must be one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
