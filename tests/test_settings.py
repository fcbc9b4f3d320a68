"""Configurations: rules, types, all problems at once, and the id of a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest

from hace.errors import ConfigError
from hace.files.documents import differences
from hace.lab.runs.config import DataConfig, HeadConfig, LossConfig, ProbeConfig
from hace.settings import (
    AT_LEAST_ONE,
    SHARE,
    Config,
    from_dict,
    setting,
)


@dataclasses.dataclass(frozen=True)
class Part(Config):
    share: float = setting(0.5, SHARE)
    words: tuple[str, ...] = setting(("a",))


@dataclasses.dataclass(frozen=True)
class Whole(Config):
    name: str = setting()
    count: int = setting(1, AT_LEAST_ONE)
    part: Part = dataclasses.field(default_factory=Part)
    mode: Literal["x", "y"] = setting("x")
    extra: int | None = setting(None)
    options: Mapping[str, Any] = setting({})
    folder: str | None = setting(None, decides=False)


def test_plain_values_come_back_as_the_same_configuration() -> None:
    whole = Whole("n", 3, Part(0.25, ("b", "c")), "y", 7, {"k": [1, 2]}, "/somewhere")
    assert from_dict(Whole, json.loads(json.dumps(whole.to_dict()))) == whole


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "name is missing."),
        ({"name": 3}, "name must be text. Got 3."),
        ({"name": "n", "count": 0}, "count must be at least 1. Got 0."),
        ({"name": "n", "count": 1.5}, "count must be an integer. Got 1.5."),
        ({"name": "n", "count": True}, "count must be an integer. Got True."),
        ({"name": "n", "mode": "z"}, "mode must be one of 'x', 'y'. Got 'z'."),
        ({"name": "n", "extra": "1"}, "extra must be an integer or nothing. Got '1'."),
        ({"name": "n", "part": {"share": float("nan")}}, "part.share must be a number. Got nan."),
        ({"name": "n", "part": {"share": 1}}, "part.share must be at least 0 and less than 1. Got 1.0."),
        ({"name": "n", "part": 3}, "part must be a mapping. Got 3."),
        ({"name": "n", "part": {"words": [1]}}, "part.words must be a list of texts. Got (1,)."),
        ({"name": "n", "options": [1]}, "options must be a mapping. Got [1]."),
        ([], "the configuration must be a mapping. Got []."),
        ({"name": "n", "cuont": 2}, "cuont is not a setting"),
    ],
)
def test_one_problem(document: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Whole, document)
    assert message in str(caught.value)


def test_all_problems_come_together() -> None:
    document = {"count": 0, "mode": "z", "part": {"share": 2, "word": "w"}, "cuont": 1, "name": "n"}
    with pytest.raises(ConfigError) as caught:
        from_dict(Whole, document)
    problems = list(caught.value.problems)
    assert len(problems) == 5
    assert sum("Did you mean" in p for p in problems) == 2
    starts = ("part.word is not a setting", "part.share must", "cuont is not", "count must", "mode must")
    for start in starts:
        assert any(p.startswith(start) for p in problems), start


def test_numbers_are_tidied_where_nothing_is_lost() -> None:
    assert (
        from_dict(Whole, {"name": "n", "part": {"share": "1e-3"}}).part.share == 0.001
    )  # as YAML reads 1e-3
    assert isinstance(ProbeConfig(lr=1).lr, float)
    assert ProbeConfig(lr=1).identity("f") == ProbeConfig(lr=1.0).identity("f")


def test_differences_name_the_place() -> None:
    old, new = Whole("n").to_dict(), Whole("n", part=Part(0.25), mode="y").to_dict()
    assert differences(old, new) == ["part.share: 0.5 -> 0.25", "mode: 'x' -> 'y'"]


def test_defaults_are_not_shared() -> None:
    first = Whole("n")
    assert first.options is not Whole("n").options


# ------------------------------------------------------------------ the id of a run

CHANGES: dict[str, Any] = {
    "data": DataConfig("synthetic-features", options={"classes": 7}),
    "loss": LossConfig("hace", {"dilution": 0.2}),
    "seed": 3,
    "validation": 0.2,
    "evaluate": "val",
    "epochs": 5,
    "steps": 7,
    "batch_size": 32,
    "lr": 0.5,
    "weight_decay": 0.1,
    "momentum": 0.5,
    "normalize": "none",
    "optimizer": "adamw",
    "schedule": "constant",
    "bias": False,
    "patience": 2,
    "tolerance": 1e-3,
    "max_iter": 7,
    "start": "zeros",
    "head": HeadConfig("poincare"),
}


def test_every_deciding_setting_changes_the_id() -> None:
    base = ProbeConfig(validation=0.1)
    fields = {f.name for f in dataclasses.fields(ProbeConfig) if f.metadata.get("decides", True)}
    assert set(CHANGES) == fields  # a new setting needs its line here
    ids = {name: dataclasses.replace(base, **{name: value}).identity("f") for name, value in CHANGES.items()}
    assert len({base.identity("f"), *ids.values()}) == len(CHANGES) + 1


def test_what_does_not_decide_does_not_change_the_id() -> None:
    base = ProbeConfig(data=DataConfig("features", root="here/f.npz", hierarchy="here/h.csv"))
    moved = dataclasses.replace(base, data=DataConfig("features", root="/there", hierarchy="/h"), keep=False)
    assert base.identity("f") == moved.identity("f")
    assert base.identity("f") != base.identity("g")  # the data themselves do
    assert len(base.identity("f")) == 16


def test_a_change_of_the_algorithm_makes_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ProbeConfig().identity("f")
    monkeypatch.setattr("hace.lab.runs.config.ALGORITHM", 0)
    assert ProbeConfig().identity("f") != before


def test_the_kind_of_run_is_part_of_the_id() -> None:
    class Other(ProbeConfig):
        kind = "other"

    assert Other().identity("f") != ProbeConfig().identity("f")


def test_a_loss_says_all_its_parameters() -> None:
    assert LossConfig("hace") == LossConfig("hace", {"dilution": 0.5})
    assert LossConfig("hace").options["label_smoothing"] == 0.0
    assert LossConfig("hxe").options["alpha"] == LossConfig("hxe").build(small()).alpha


@pytest.mark.parametrize("one", [1, 1.0, np.float32(1), np.int64(1)], ids=repr)
def test_a_number_is_the_same_run_however_it_is_written(one: Any) -> None:
    written = ProbeConfig(loss=LossConfig("hace", {"dilution": one}))
    assert written.identity("f") == ProbeConfig(loss=LossConfig("hace", {"dilution": 1.0})).identity("f")
    assert from_dict(ProbeConfig, json.loads(json.dumps(written.to_dict()))) == written


def small() -> Any:
    import hace

    return hace.Hierarchy.from_edges([("r", "a"), ("r", "b")])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LossConfig("hxee"), "Did you mean 'hxe'"),
        (lambda: LossConfig("hace", {"dilutoin": 0.5}), "Did you mean 'dilution'"),
        (lambda: LossConfig("hace", {"dilution": 0}).build(small()), r"dilution must be in \(0, 1\]"),
        (lambda: LossConfig("hace", {"weight": [1, 2]}), "is not a parameter"),
        (lambda: DataConfig("cifar10"), "Did you mean 'cifar100'"),
        (lambda: DataConfig("synthetic", options={"clases": 3}), "Did you mean 'classes'"),
        (lambda: ProbeConfig(evaluate="val"), "needs held-out samples"),
        (lambda: ProbeConfig(patience=2), "patience needs held-out samples"),
        (lambda: ProbeConfig(validation=1.0), "less than 1"),
        (lambda: ProbeConfig(lr=0), "more than 0"),
        (lambda: ProbeConfig(seed=-1), "at least 0"),
    ],
)
def test_bad_configurations(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
