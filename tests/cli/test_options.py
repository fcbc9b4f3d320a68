"""Options made from a configuration: names, values, and what is said about wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from hace.cli import main
from hace.cli.entry import COMMANDS


def read(name: str, line: str) -> Any:
    (command,) = (command for command in COMMANDS if command.name == name)
    return command.parser().parse_args(line.split())


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("--epochs 2 --batch-size 8 --lr 1e-3", {"epochs": 2, "batch_size": 8, "lr": 0.001}),
        ("--epochs=2 --batch_size=8", {"epochs": 2, "batch_size": 8}),
        ("--loss hxe --loss.options.alpha 0.2", {"loss": {"name": "hxe", "options": {"alpha": 0.2}}}),
        ("--loss.options.label_smoothing .1", {"loss": {"options": {"label_smoothing": 0.1}}}),
        ("--data cifar100 --root 010", {"data": {"name": "cifar100", "root": "010"}}),
        ("--data.labels.to 2 --data.labels.drop", {"data": {"labels": {"to": 2, "drop": True}}}),
        ("--data.labels.to genus --no-keep", {"data": {"labels": {"to": "genus"}}, "keep": False}),
        ("--tensorboard --channels-last no --lr -1", {"tensorboard": True, "channels_last": False, "lr": -1}),
        ("--no-root-node --validation split", {"data": {"root_node": False}, "validation": "split"}),
        ("--workers null --seed 10", {"workers": None, "seed": 10}),
        ("--epochs two --model 1e3", {"epochs": "two", "model": "1e3"}),  # the configuration refuses the text
    ],
)
def test_options_of_a_training(line: str, given: dict[str, Any]) -> None:
    args = read("train", line)
    assert (args.given, args.problems) == (given, [])


def test_options_of_the_command_are_not_the_configurations() -> None:
    args = read("train", "--out x --epochs 2")
    assert (args.out, args.restart, args.preset, args.given) == ("x", False, None, {"epochs": 2})
    args = read("probe", "--features f.npz --lr 4 8 --loss hace hxe --head poincare --seeds 2")
    assert (args.lr, args.loss, args.seeds, args.threads) == ([4.0, 8.0], ["hace", "hxe"], 2, 1)
    assert args.given == {"data": {"root": "f.npz"}, "head": {"name": "poincare"}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--epoch_count=3", "'--epoch_count=3' is not an option of hace train."),
        ("epochs=2", "'epochs=2' is not an option of hace train. Did you mean '--epochs'"),
        ("--epochs 2 lr=0.1", "'lr=0.1' is not an option of hace train. Did you mean '--lr'"),
        ("--epochs", "--epochs must have a value."),
        ("--keep perhaps", "keep must be true or false. Got 'perhaps'."),
        ("--epochs 1.5", "epochs must be an integer. Got '1.5'."),
        ("--seed 010", "seed must be an integer. Got '010'."),
        ("--epochs 1:30", "epochs must be an integer. Got '1:30'."),
        ("--lr=1_000", "lr must be"),
        ("--data.options 3", "data.options must be a mapping. Got '3'."),
    ],
)
def test_wrong_options(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *line.split(), "--print-config"]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_option_of_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--data", "synthetic-features", "--threads", "two"]) == 2
    assert "--threads must be an integer. Got 'two'." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["study", "demo", "--thread", "1", "--worker", "2", "--retires", "2"])
    assert "'--retires' is not an option of hace study. Did you mean '--retries'" in capsys.readouterr().err
