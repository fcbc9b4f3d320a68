"""The paper's studies: which data and models they are about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hace.lab.study.plan import Choices, make_plan
from hace.lab.study.presets import find_presets
from hace.paper import STUDIES
from hace.paper.recipes import PAPER_DATASETS


@pytest.mark.parametrize(
    ("said", "model"),
    [
        ("vit_large_patch14_dinov2.lvd142m", "dinov2_large"),
        ("DINOv2-Large", "dinov2_large"),
        ("resnet50", "resnet50"),
        (None, "features"),
    ],
)
def test_a_features_file_that_names_its_model_fills_the_papers_cells(
    said: str | None, model: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.npz"
    arrays = {"X": np.zeros((2, 3), np.float32), "y": np.arange(2)}
    np.savez(path, **arrays, **({} if said is None else {"model": np.array(said)}))
    plan = make_plan(
        find_presets("paper-probe", STUDIES),
        Choices(features={"aircraft": str(path)}, only={"method": "cross_entropy"}),
    )
    assert {
        (configuration.key.dataset, configuration.key.model) for configuration in plan.configurations
    } == {("aircraft", model)}


def test_a_damaged_features_file_is_left_to_the_survey(tmp_path: Path) -> None:
    (tmp_path / "f.npz").write_bytes(b"PK\x03\x04 nothing")
    plan = make_plan(
        find_presets("fair-probe", STUDIES), Choices(features={"aircraft": str(tmp_path / "f.npz")})
    )
    assert {configuration.key.model for configuration in plan.configurations} == {"features"}


def test_the_papers_other_data_sets_never_count_as_the_users_own() -> None:
    everything = Choices(
        features=dict.fromkeys((*PAPER_DATASETS, "pets"), "f.npz"),
        data_root=dict.fromkeys((*PAPER_DATASETS, "pets"), "r"),
        only={"model": "resnet18"},
    )
    plan = make_plan(find_presets("paper-nabirds", STUDIES), everything)
    assert {configuration.key.dataset for configuration in plan.configurations} == {"nabirds", "pets"}
