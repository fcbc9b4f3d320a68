"""The paper's recipes: every number typed again from the paper, the pairings by their formula, the cost by counting."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hace import Hierarchy, build_loss
from hace.data import published
from hace.data.published import load_nabirds
from hace.errors import ConfigError
from hace.lab.features.backbones import EVALUATED_AT
from hace.lab.models import ARCHITECTURES, build_model
from hace.lab.study.presets import METHODS
from hace.lab.study.prices import GMACS
from hace.paper import ASSUMPTIONS, STUDIES, paper_tables
from hace.paper.recipes import (
    IMAGE_SIZES,
    PAPER_DATASETS,
    RECIPES,
    describe,
    fixed_runs,
    learning_rates,
    training_cost,
)

# The table as a person reads it: model, batch, rate, decay, momentum, dropout, epochs, scheduler, optimiser.
TABLE = """
ResNet-18  | 128 | 0.1      | 0.0001 | 0.9 | --- | 450/750/750 | CosineAnnealing | SGD
ResNet-34  | 128 | 0.1      | 0.0001 | 0.9 | --- | 450/750/750 | CosineAnnealing | SGD
ResNet-50  | 128 | 0.1      | 0.0001 | 0.9 | --- | 450/750/750 | CosineAnnealing | SGD
ConvNeXt-T | 128 | 0.000125 | 0.05   | 0.9 | --- | 400/400/500 | CosineAnnealing | AdamW
Swin-T     | 128 | 0.000125 | 0.05   | 0.9 | --- | 500/500/500 | Lambda          | AdamW
ViT-B/16   | 64  | 0.003    | 0.3    | 0.9 | 0.1 | 300/300/300 | Lambda          | AdamW
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]

# Top-1 of the best-of table, rows as above: CIFAR-100, FGVC-Aircraft, NABirds, each with HACE and cross-entropy.
TOP1 = """
77.93 76.52 78.88 68.29 67.93 62.94
78.01 78.30 77.32 77.74 69.44 71.01
80.53 79.86 80.62 69.88 67.90 59.07
44.48 43.30 38.82 30.45 50.74 30.35
59.44 56.72 44.34 38.16 44.01 41.51
64.45 63.56 20.67 15.72 29.16 27.44
"""


def titles() -> dict[str, str]:
    return {architecture.title: key for key, architecture in ARCHITECTURES.items()}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_number_of_the_table(row: list[str]) -> None:
    title, batch, lr, decay, momentum, dropout, epochs, scheduler, optimizer = row
    result = RECIPES[titles()[title]]
    assert result.model == titles()[title]
    assert result.batch_size == int(batch)
    assert result.lr == float(lr)
    assert result.weight_decay == float(decay)
    assert result.momentum == float(momentum)
    assert result.dropout == (0.0 if dropout == "---" else float(dropout))
    values = [int(value) for value in epochs.split("/")]
    assert dict(result.epochs) == dict(zip(("cifar100", "aircraft", "nabirds"), values, strict=True))
    assert result.schedule == {"CosineAnnealing": "cosine", "Lambda": "warmup_cosine"}[scheduler]
    assert result.optimizer == optimizer.lower()
    assert (result.warmup_epochs > 0) == (scheduler == "Lambda")
    assert result.warmup_epochs < min(values)


def test_the_table_has_no_further_rows() -> None:
    assert list(RECIPES) == list(ARCHITECTURES) == [titles()[row[0]] for row in ROWS]
    assert set(GMACS) == set(RECIPES)


@pytest.mark.parametrize(
    ("row", "line"), list(zip(ROWS, TOP1.strip().splitlines(), strict=True)), ids=lambda x: x[0]
)
def test_every_description_has_the_printed_accuracies(row: list[str], line: str) -> None:
    for dataset, hace, cross_entropy in zip(
        PAPER_DATASETS, line.split()[::2], line.split()[1::2], strict=True
    ):
        text = describe(titles()[row[0]], dataset)
        assert f"top-1 {hace}% with HACE (best of 6" in text
        assert f"{cross_entropy}% with cross-entropy (best of 4)" in text


@pytest.mark.parametrize("model", list(RECIPES))
def test_the_printed_table_is_the_recipe(model: str) -> None:
    """The paper's numbers as data, transcribed apart from the recipes, agree with them."""
    table, row = paper_tables()["architectures"], RECIPES[model]
    printed = {cell.metric: cell for cell in table.select(model=model) if cell.dataset is None}
    numbers = {"batch_size": row.batch_size, "learning_rate": row.lr, "weight_decay": row.weight_decay}
    for metric, value in {**numbers, "momentum": row.momentum}.items():
        assert printed[metric].value == value
    for dataset in PAPER_DATASETS:
        assert table.value(model=model, dataset=dataset, metric="epochs") == row.epochs[dataset]
    assert printed["params"].value == pytest.approx(ARCHITECTURES[model].params * 1e6)
    assert printed["type"].printed == ARCHITECTURES[model].kind


def test_the_ten_runs_of_a_pair() -> None:
    results = [
        (run.dilution, run.pairing, round(run.lr, 12))
        for diluted in (True, False)
        for run in fixed_runs(diluted, 0.1)
    ]
    assert results == [
        (0.2, "standard", 0.1),
        (0.5, "standard", 0.1),
        (0.7, "standard", 0.1),
        (0.2, "adjusted", 0.5),
        (0.5, "adjusted", 0.2),
        (0.7, "adjusted", round(0.1 / 0.7, 12)),
        (0.2, "standard", 0.02),
        (0.5, "standard", 0.05),
        (0.7, "standard", 0.07),
        (None, "adjusted", 0.1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "place"), [(model, i % 2) for i, model in enumerate(RECIPES)])
def test_operations_as_torch_counts_them(model: str, place: int) -> None:
    size = (32, 224)[place]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        net = build_model(model, 1000, image_size=size)
        before = counter.get_total_flops()  # of the trial inside build_model
        net.eval()(torch.zeros(1, 3, size, size))
    assert (counter.get_total_flops() - before) / 2e9 == pytest.approx(GMACS[model][place], rel=5e-3)


@pytest.mark.parametrize(("model", "dataset"), [("resnet18", "cifar100"), ("vit_base", "nabirds")])
def test_a_description_says_what_to_expect(model: str, dataset: str) -> None:
    text, row = describe(model, dataset), RECIPES[model]
    for value in (
        ARCHITECTURES[model].title,
        f"{row.epochs[dataset]} epochs",
        f"{IMAGE_SIZES[dataset]} px",
        f"batches of {row.batch_size}",
        f"rate {row.lr:g}",
        f"{training_cost(dataset, model):.1e} operations",
    ):
        assert value in text
    assert ("warm-up" in text) == (row.warmup_epochs > 0)


def test_recipes_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["resnet18"].lr = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        RECIPES["resnet18"].epochs["cifar100"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        RECIPES["other"] = RECIPES["resnet18"]  # type: ignore[index]


def test_what_the_paper_leaves_open_is_listed() -> None:
    topics = (
        "Augmentation|Warm-up|Selection|Early stopping|Image sizes|Weight decay|Seeds|Lambda|first beta|32 px|Normalisation|"
        "banner|NABirds boxes|Label smoothing|lca_height|HXE|carried up|DINOv2-Large: images are resized|base rate of 3e-3"
    )
    assert [topic for topic in topics.split("|") if not any(topic in text for text in ASSUMPTIONS)] == []
    assert (STUDIES["paper-probe"].lr, STUDIES["paper-probe"].optimizer) == (3e-3, "adamw")
    assert STUDIES["paper-probe"].epochs == 30


def test_assumptions_are_what_the_code_does() -> None:
    loss = build_loss("hxe", Hierarchy.flat(["a", "b"]))
    assert loss.settings() == {"alpha": 0.2, "decay": "depth", "normalize": None}
    assert build_loss("soft_label", Hierarchy.flat(["a", "b"])).settings()["distance"] == "lca_height"
    smooth = {
        METHODS[name].loss.options["label_smoothing"] for name in ("hace_smooth", "cross_entropy_smooth")
    }
    assert smooth == {0.1}
    assert published.BANNER == 20
    assert inspect.signature(load_nabirds).parameters["crop"].default is False
    assert EVALUATED_AT["dinov2"] == {"image_size": 224, "crop_pct": 0.875}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: learning_rates("ce", 0.1, 0.5, "standard"),
            "loss must be one of 'hace', 'cross_entropy'. Got 'ce'",
        ),
        (
            lambda: learning_rates("cross_entropy", 0.1, 0.5, "adj"),
            "pairing must be one of 'standard', 'adjusted'. Got 'adj'",
        ),
        (
            lambda: learning_rates("cross_entropy", 0.1, 0.0, "standard"),
            "dilution must be above 0 and at most 1. Got 0.0",
        ),
        (
            lambda: learning_rates("cross_entropy", 0.1, float("nan"), "standard"),
            "dilution must be .* Got nan",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
