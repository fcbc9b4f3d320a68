"""The loop: against a hand-written one, bit by bit; what each setting does; resumed in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hace.data.batches import MemoryBatches, Preprocessing, channel_stats
from hace.errors import ConfigError, FormatError
from hace.lab.models import build_model
from hace.lab.runs.config import DataConfig, HeadConfig, LossConfig, TrainConfig
from hace.lab.runs.result import evaluate_outputs
from hace.lab.runs.samples import data_of, make_task
from hace.lab.serve.load_run import load_trained
from hace.lab.train import loop
from hace.lab.train.loop import ProcessGroup, Training, build_optimizer, schedule_factor, update_average
from hace.lab.train.train import train
from tests.run_files import edit_json, rehash
from tests.train_cases import OPTIONS, end_state, log_of, tiny


def by_hand(config: TrainConfig) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The loop as anybody would write it: weights, and the mean loss of each epoch."""
    task = make_task(data_of(config.data), config)
    assert task.train.pixels is not None
    mean, std = channel_stats(task.train.pixels)
    augment = config.augment == "standard"
    batches = MemoryBatches(
        task.train,
        config.batch_size,
        shuffle=True,
        pad=4 if augment else 0,
        flip=augment,
        mean=mean,
        std=std,
        seed=config.seed,
    )
    loss = config.loss.build(task.tree)
    ball = config.head.ball
    model = build_model(config.model, loss.num_outputs, image_size=32, ball=ball, seed=config.seed)
    optimizer = build_optimizer(model, config)
    steps = len(batches)
    all_steps, warm = config.epochs * steps, config.warmup_epochs * steps
    schedule = LambdaLR(optimizer, lambda step: schedule_factor(config.schedule, step, all_steps, warm))
    losses = []
    for epoch in range(config.epochs):
        total = 0.0
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            if config.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            optimizer.step()
            schedule.step()
            total += value.item() * len(x)
        losses.append(total / len(task.train))
    return model.state_dict(), losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "test_resnet", "loss": LossConfig("cross_entropy"), "augment": "none"},
        {"optimizer": "adamw", "lr": 1e-3, "schedule": "warmup_cosine", "warmup_epochs": 1, "clip_norm": 0.5},
        {"head": HeadConfig("poincare", curvature=0.5)},
    ],
    ids=["sgd", "batch norm", "adamw, warm-up, clipping", "hyperbolic head"],
)
def test_the_loop_is_the_one_that_anybody_would_write(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(**changes)
    weights, losses = by_hand(config)
    run = train(config, tmp_path)
    assert run.status == "finished"
    for name, tensor in run.weights().items():
        assert torch.equal(tensor, weights[name]), name
    np.testing.assert_allclose([line["loss"] for line in run.log()], losses, rtol=1e-6)


def test_what_a_run_leaves(tmp_path: Path) -> None:
    config = tiny(validation=0.25, tensorboard=True)
    lines: list[Any] = []
    run = train(config, tmp_path, report=lines.append)
    assert [line["epoch"] for line in run.log()] == [1, 2]
    assert run.log() == lines
    assert list(lines[0]) == "epoch step lr loss accuracy val_loss val_accuracy time".split()
    assert lines[0]["time"]["images_per_second"] > 0
    assert run.log()[-1]["step"] == 2 * 2  # 30 images, 16 a step
    assert run.result is not None
    assert run.result["train"] == {
        "samples": 30,
        "epochs": 2,
        "steps": 4,
        "parameters": sum(t.numel() for t in run.weights().values()),
        "unseen_classes": [],
    }
    assert len(run.predictions()["truth"]) == 20
    assert sorted(p.name for p in (tmp_path / "tensorboard").iterdir())
    assert not (tmp_path / "checkpoints").exists()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    again = train(config, tmp_path, report=lines.append)  # finished: read, not repeated
    assert again.id == run.id
    assert len(lines) == 2
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_points_of_a_learning_curve_change_nothing_and_end_at_the_result(tmp_path: Path) -> None:
    plain = train(tiny(epochs=4), tmp_path / "plain")
    followed = train(tiny(epochs=4, curve_epochs=2), tmp_path / "followed")
    assert followed.id == plain.id
    points = [entry.get("curve") for entry in followed.log()]
    assert [point is not None for point in points] == [False, True, False, True]
    assert followed.result is not None
    assert plain.result is not None
    assert followed.result["metrics"] == plain.result["metrics"]
    assert points[-1]["leaves"] == followed.result["metrics"]["leaves"]
    levels = followed.result["metrics"]["accuracy by level, best node of the level"]
    assert points[-1]["levels"] == pytest.approx(list(levels.values()))


def test_the_seed_decides_and_the_callers_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny(seed=seed, dropout=0.1), tmp_path / name)
        torch.rand(1)  # the second run finds another state
    torch.random.set_rng_state(before)
    train(tiny(), tmp_path / "d")
    assert torch.equal(torch.random.get_rng_state(), before)
    first, same, other = (end_state(tmp_path / name) for name in "abc")
    assert first == same
    assert first["weights.safetensors"] != other["weights.safetensors"]


class KilledError(Exception):
    """Stands for the end of a process; nothing is saved."""


FORMS: dict[str, dict[str, Any]] = {
    "batch norm, average, mixing": {
        "model": "test_resnet",
        "ema_decay": 0.8,
        "mixup_alpha": 0.4,
        "cutmix_alpha": 1.0,
        "dropout": 0.2,
        "validation": 0.2,
    },
    "adamw, bf16, parts": {
        "optimizer": "adamw",
        "lr": 1e-3,
        "precision": "bf16",
        "accumulate": 3,
        "clip_norm": 1.0,
    },
    "fp16, channels last": {"model": "test_resnet", "precision": "fp16", "channels_last": True},
    "labels above the leaves": {"data": DataConfig("synthetic", options={**OPTIONS, "coarse": 0.4})},
}


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=() if form == next(iter(FORMS)) else pytest.mark.slow) for form in FORMS],
)
def test_resumed_anywhere_it_ends_with_the_same_bits(form: str, tmp_path: Path) -> None:
    train(tiny(**FORMS[form], epochs=3), tmp_path / "whole")

    def killed_after(steps: int) -> Any:
        left = iter(range(steps))

        def step(count: int, note: str) -> None:
            if next(left, None) is None:
                raise KilledError

        return lambda total, done: step

    careful = tiny(**FORMS[form], epochs=3, checkpoint_steps=2)
    for steps in (1, 2, 1, 2):  # before any checkpoint, then from one, within an epoch and across its end
        with pytest.raises(KilledError):
            train(careful, tmp_path / "parts", progress=killed_after(steps), say=print)
    train(careful, tmp_path / "parts", say=print)
    assert end_state(tmp_path / "parts") == end_state(tmp_path / "whole")


def first_head(config: TrainConfig) -> nn.Linear:
    """The last layer before the first step."""
    task = make_task(data_of(config.data), config)
    loss = config.loss.build(task.tree, task.labels)
    group = ProcessGroup(0, 1, torch.device("cpu"))
    model: Any = Training(config, task, Preprocessing.of(task.train), group, loss).model
    return model.get_classifier()


def test_heads_on_coarse_labels_start_from_zeros() -> None:
    coarse = DataConfig("synthetic", options={**OPTIONS, "coarse": 0.4})
    assert not first_head(tiny(data=coarse)).weight.any()
    assert not first_head(tiny(start="zeros")).weight.any()
    for config in (tiny(), tiny(data=coarse, start="random")):
        assert first_head(config).weight.any()
    hyperbolic = HeadConfig("poincare")
    assert not isinstance(first_head(tiny(data=coarse, head=hyperbolic)), nn.Linear)
    with pytest.raises(ConfigError, match=r"start random or auto\. Got zeros"):
        tiny(head=hyperbolic, start="zeros")
    assert tiny().identity("") == tiny(start="auto").identity("") != tiny(start="zeros").identity("")


def test_how_often_the_loss_is_looked_at_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a look waits for it, so several steps go by before one."""
    train(tiny(model="test_resnet"), tmp_path / "every")
    monkeypatch.setattr(loop, "STEPS_PER_LOOK", {})
    monkeypatch.setattr(loop, "STEPS_PER_LOOK_ELSEWHERE", 3)
    train(tiny(model="test_resnet"), tmp_path / "third")
    assert end_state(tmp_path / "every") == end_state(tmp_path / "third")


@pytest.mark.slow
def test_images_on_disk_resume_too_whatever_the_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog", "oak"):
            for i in range(count):
                folder = tmp_path / "photos" / split / name
                folder.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "tree.csv").write_text("parent,child\nanimal,cat\nanimal,dog\nplant,oak\n")
    data = DataConfig("folders", str(tmp_path / "photos"), str(tmp_path / "tree.csv"))
    config = tiny(data=data, image_size=32, batch_size=4, checkpoint_steps=1)
    train(config, tmp_path / "whole")

    def stop_at_seven(total: int, done: int) -> Any:
        def step(count: int, note: str) -> None:
            nonlocal done
            done += count
            if done >= 28:
                raise KilledError

        return step

    with pytest.raises(KilledError):
        train(config, tmp_path / "parts", progress=stop_at_seven)
    train(tiny(data=data, image_size=32, batch_size=4, workers=1), tmp_path / "parts", say=print)
    assert end_state(tmp_path / "parts") == end_state(tmp_path / "whole")


@pytest.mark.slow
def test_parts_of_a_batch_add_up_to_the_batch(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "whole")
    train(tiny(accumulate=5), tmp_path / "parts")
    whole, parts = log_of(tmp_path / "whole"), log_of(tmp_path / "parts")
    np.testing.assert_allclose([e["loss"] for e in parts], [e["loss"] for e in whole], rtol=1e-5)
    assert [e["accuracy"] for e in parts] == [e["accuracy"] for e in whole]


def test_the_average_of_the_weights_follows_its_equation() -> None:
    torch.manual_seed(0)
    average, model = (
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
    )
    model[1].running_mean += 1  # pyright: ignore
    expected = 0.9 * average[0].weight + 0.1 * model[0].weight
    early = (2 / 11) * expected + (9 / 11) * model[0].weight
    update_average(average, model, 0.9, step=1000)
    torch.testing.assert_close(average[0].weight, expected)
    assert torch.equal(average[1].running_mean, model[1].running_mean)  # pyright: ignore
    update_average(average, model, 0.9, step=1)  # in the beginning it forgets faster
    torch.testing.assert_close(average[0].weight, early)


def test_a_few_of_each_class(tmp_path: Path) -> None:
    run = train(tiny(per_class=3), tmp_path / "few")
    assert run.result is not None
    assert run.result["train"]["samples"] == 15
    with pytest.raises(ConfigError, match="per_class is 9, and a class has only 8 training samples"):
        train(tiny(per_class=9), tmp_path / "many")


def test_seed_step_and_process_have_random_numbers_of_their_own() -> None:
    assert len({loop.step_seed(*key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}) == 4


@pytest.mark.parametrize("head", ["linear", "poincare"])
def test_a_trained_model_gives_the_runs_own_numbers(head: Any, tmp_path: Path) -> None:
    data = DataConfig("synthetic", options=OPTIONS, shuffle=1)
    config = tiny(model="test_resnet", data=data, head=HeadConfig(head))
    run = train(config, tmp_path)
    trained = load_trained(tmp_path)
    task = make_task(data_of(config.data), config)
    outputs = trained.outputs(task.evaluated)
    outcome = evaluate_outputs(trained.loss, outputs, task.evaluated.nodes, trained.hierarchy)
    assert run.result is not None
    assert outcome.report.to_dict()["metrics"]["leaves"] == run.result["metrics"]["leaves"]
    np.testing.assert_allclose(
        outcome.predictions()["confidence"], run.predictions()["confidence"], atol=1e-5
    )
    edit_json(tmp_path / "run.json", data={**run.about["data"], "hierarchy": "0" * 64})
    rehash(tmp_path)
    with pytest.raises(FormatError, match="was trained on another hierarchy"):
        load_trained(tmp_path)


@pytest.mark.slow
def test_fine_tuning_from_a_model_with_another_head(tmp_path: Path) -> None:
    first = train(tiny(), tmp_path / "first")
    file = str(tmp_path / "first" / "weights.safetensors")
    data = DataConfig("synthetic", options={**OPTIONS, "classes": 7})
    said: list[str] = []
    config = tiny(data=data, init_from=file, lr=1e-12, weight_decay=0.0)
    tuned = train(config, tmp_path / "tuned", say=said.append)
    assert "the file has one of 7" in said[0]
    old, new = first.weights(), tuned.weights()
    assert old["head.weight"].shape != new["head.weight"].shape
    torch.testing.assert_close(
        new["blocks.0.attn.qkv.weight"], old["blocks.0.attn.qkv.weight"], atol=1e-8, rtol=0
    )
    with pytest.raises(ConfigError, match="a head of 7 outputs, and the model one of 10"):
        train(tiny(data=data, init_from=file, init_head="fit"), tmp_path / "fit")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(Path(file).read_bytes())
    elsewhere = tiny(data=data, init_from=str(copy), lr=1e-12, weight_decay=0.0)
    assert elsewhere.identity("x") == config.identity("x")  # the content decides, not the place
    assert tiny(data=data).identity("x") != tiny(data=data, init_from=file).identity("x")
    copy.write_bytes((tmp_path / "tuned" / "weights.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="has changed: its sha256 is not"):
        train(elsewhere, tmp_path / "changed")
