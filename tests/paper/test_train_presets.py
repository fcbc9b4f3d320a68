"""The paper's recipes as configurations of training."""

from __future__ import annotations

import pytest

from hace.errors import ConfigError
from hace.lab.runs.config import DataConfig
from hace.paper.recipes import recipe
from hace.paper.train_presets import TRAIN_PRESETS, paper_config, train_preset


def test_presets_are_the_papers_recipes() -> None:
    for name, build in TRAIN_PRESETS.items():
        dataset, model = name.split("/")
        row, config = recipe(model), build()
        assert config == train_preset(name) == train_preset(f"{name}/hace")
        assert config.data == DataConfig(dataset)
        for (
            key
        ) in "model batch_size lr weight_decay momentum dropout schedule warmup_epochs optimizer".split():
            assert getattr(config, key) == getattr(row, key), (name, key)
        assert config.epochs == row.epochs[dataset]
        for words in ("as the paper's table of hyperparameters has it", "Cost:", "Expect: top-1"):
            assert words in (build.__doc__ or "")


def test_the_four_rates_of_the_papers_pairs() -> None:
    base = recipe("resnet18").lr
    found = {
        (method, pairing): paper_config("cifar100", "resnet18", method, dilution=0.2, pairing=pairing).lr
        for method in ("hace", "sce")
        for pairing in ("standard", "adjusted")
    }
    assert found == {
        ("hace", "standard"): base,
        ("hace", "adjusted"): base / 0.2,
        ("sce", "standard"): base * 0.2,
        ("sce", "adjusted"): base,
    }
    assert paper_config("cifar100", "resnet18", "hace_shuffled", seed=3).data.shuffle == 3
    for call, words in (
        (lambda: train_preset("cifar100/resnet19"), "Did you mean 'cifar100/resnet18'"),
        (lambda: train_preset("cifar100/resnet18/hacee"), "method must be one of sce,"),
        (lambda: paper_config("cifar10", "resnet18"), "dataset must be one of cifar100, aircraft, nabirds"),
        (lambda: paper_config("cifar100", "resnet18", "sce", dilution=0.2), "left out for the method 'sce'"),
        (lambda: paper_config("cifar100", "resnet18", "hxe_0.2", pairing="standard"), "loss must be one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
