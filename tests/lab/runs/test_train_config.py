"""The configuration of a training: what it refuses, all at once; files, layers, presets, and what its id covers."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hace.cli.options import print_yaml
from hace.cli.train import configuration
from hace.errors import ConfigError, FormatError
from hace.lab.runs.config import LossConfig, TrainConfig
from hace.lab.study.presets import METHODS
from hace.settings import from_dict, merged
from tests.cli.parsing import given_to
from tests.train_cases import tiny


def built(*words: str) -> TrainConfig:
    """The configuration that `hace train` makes of options."""
    return configuration(**given_to("train", shlex.join(words)))


def test_all_problems_come_in_one_message() -> None:
    """Wrong types first, then broken rules and unknown losses."""
    with pytest.raises(ConfigError) as error:
        built("--epochs", "0", "--lr", "fast", "--precision", "fp8", "--labels.fine", "few")
    message = str(error.value)
    assert message.startswith("3 problems:\n")
    for part in (
        "--lr must be a number. Got 'fast'.",
        "--precision must be one of 'fp32', 'bf16', 'fp16'. Got 'fp8'.",
        "--labels.fine must be an integer. Got 'few'.",
    ):
        assert part in message, part
    with pytest.raises(ConfigError) as error:
        built("--epochs", "0", "--drop-path", "1.5", "--labels.coarse", "2")
    message = str(error.value)
    assert message.startswith("3 problems:\n")
    assert "data.labels.coarse must be at least 0 and less than 1. Got 2.0." in message
    assert "epochs must be at least 1. Got 0." in message
    with pytest.raises(ConfigError, match=r"name must be one of cross_entropy,.* Did you mean 'hace'"):
        built("--loss", "hacee")


def test_settings_that_do_not_fit_each_other_come_together_too() -> None:
    options = (
        "--model resnet19 --warmup-epochs 5 --epochs 3 --evaluate val --batch-size 2 --accumulate 4 --init-from nowhere.pt "
        "--data synthetic-features"
    )
    with pytest.raises(ConfigError) as error:
        built(*options.split())
    message = str(error.value)
    assert message.startswith("7 problems:")
    assert "evaluate='val' needs held-out samples. Got validation=0" in message
    assert "data.name 'synthetic-features' must hold images. It holds features." in message
    assert "Got 'resnet19'. Did you mean 'resnet18'" in message
    assert "the schedule 'cosine' has no warm-up" in message
    assert "warmup_epochs must be fewer than epochs. Got 5 of 3." in message
    assert "accumulate must be at most batch_size. Got 4 parts of 2." in message
    assert "init_from must be a file of weights, and nowhere.pt is not one." in message


def test_a_configuration_cannot_name_code(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text("model: {class_path: os.system, init_args: {command: 'touch /tmp/x'}}\nlr: 0.1\n")
    with pytest.raises(ConfigError, match=r"model must be text. Got \{'class_path': 'os.system'"):
        built("--config", str(path))
    path.write_text("model: !!python/object/apply:os.system ['touch /tmp/x']\n")
    with pytest.raises(FormatError, match=r"evil\.yaml is not YAML of plain values"):
        built("--config", str(path))


def test_layers_go_over_each_other(tmp_path: Path) -> None:
    """Preset, file, settings; and another loss takes none of the options of the one before."""
    file = tmp_path / "mine.yaml"
    file.write_text("lr: 5e-2\nloss: {options: {dilution: 0.2}}\nepochs: 7\n")
    config = built(
        "--preset", "cifar100/resnet18/hace", "--config", str(file), "--epochs", "9", "--data-root", "/data"
    )
    assert (config.lr, config.epochs, config.batch_size) == (0.05, 9, 128)
    assert (config.loss.options["dilution"], config.data.root, config.data.name) == (0.2, "/data", "cifar100")
    other = built("--preset", "cifar100/resnet18/hace", "--loss", "hxe:alpha=0.3")
    assert other.loss == LossConfig("hxe", {"alpha": 0.3})
    assert merged({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


def test_a_configuration_runs_again_as_it_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(loss=METHODS["hace_smooth"].loss, clip_norm=0.5, per_class=2)
    assert from_dict(TrainConfig, json.loads(json.dumps(config.to_dict()))) == config
    path = tmp_path / "again.yaml"
    print_yaml(config)
    path.write_text(capsys.readouterr().out)
    assert built("--config", str(path)) == config


def test_what_decides_the_result_is_in_the_id_and_the_rest_is_not() -> None:
    config = tiny()
    same = replace(
        config,
        device="cuda",
        workers=3,
        checkpoint_seconds=1.0,
        checkpoint_steps=5,
        tensorboard=True,
        keep=False,
        timeout=3.0,
        data=replace(config.data, root="/elsewhere"),
    )
    assert same.identity("f") == config.identity("f")
    changes = {
        "model": "test_resnet",
        "image_size": 64,
        "dropout": 0.1,
        "drop_path": 0.1,
        "per_class": 3,
        "optimizer": "adamw",
        "schedule": "constant",
        "accumulate": 2,
        "clip_norm": 1.0,
        "augment": "none",
        "mixup_alpha": 0.1,
        "cutmix_alpha": 0.1,
        "precision": "bf16",
        "ema_decay": 0.9,
        "channels_last": True,
        "seed": 1,
        "lr": 0.01,
        "epochs": 3,
    }
    ids = {config.identity("f"), *(replace(config, **{k: v}).identity("f") for k, v in changes.items())}
    assert len(ids) == len(changes) + 1
