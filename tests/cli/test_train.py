"""`hace train` as a user meets it: help, presets, the printed configuration, messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hace import cli
from hace.errors import DataError
from hace.lab.runs import process
from hace.lab.runs.run import read_run
from hace.lab.train import train
from hace.lab.train.train import plot_log
from hace.paper import TRAIN_PRESETS
from tests.train_cases import arguments


def run(*arguments: str) -> int:
    try:
        return cli.main(["train", *arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_help_teaches_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help-all") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in (
        "hace train --preset cifar100/resnet18/hace",
        "torchrun --nproc-per-node 4 -m hace train",
        "--option -o",
        "Loss of hace.LOSSES, with parameters as in hace:dilution=0.3:label_smoothing=0.1",
        "--data-root",
        "[choices: fp32, bf16, fp16]",
        "--checkpoint-seconds",
        "Seconds between checkpoints. [default: 300.0]",
        "143 stopped by Ctrl-C or SIGTERM",
    ):
        assert part in shown, part


def test_presets_and_the_printed_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    shown = capsys.readouterr().out
    assert all(f"{name}\n" in shown for name in TRAIN_PRESETS)
    assert "methods, as in cifar100/resnet18/cross_entropy: cross_entropy, cross_entropy_smooth," in shown
    assert run("--preset", "aircraft/swin_tiny/cross_entropy", "--seed", "4", "--print-config") == 0
    printed = capsys.readouterr().out
    assert "warmup_epochs: 20" in printed
    (tmp_path / "again.yaml").write_text(printed)
    assert run("--config", str(tmp_path / "again.yaml"), "--print-config") == 0
    assert capsys.readouterr().out == printed


def test_a_cpu_that_multiplies_bf16_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*options: str) -> str:
        device = () if "--device" in options else ("--device", "cpu")
        assert run(*device, "--print-config", *options) == 0
        return capsys.readouterr().out

    # Tests run on processors of both kinds.
    monkeypatch.setattr(process, "_multiplies_bf16", lambda: True)
    shown = printed("--preset", "cifar100/resnet18")
    assert "precision: bf16\n" in shown
    assert "channels_last: true\n" in shown
    assert "precision: fp32\n" in printed("--precision", "fp32")
    assert "precision: fp32\n" in printed("--device", "cuda")
    monkeypatch.setattr(process, "_multiplies_bf16", lambda: False)
    assert "precision: fp32\n" in printed()


@pytest.mark.slow
def test_a_run_and_the_same_run_from_its_own_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments(), "--out", str(tmp_path / "a")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == ["epoch 1", "epoch 2"]
    assert "images/s" in lines[0]
    assert lines[2].startswith("test: top-1 ")
    assert lines[3].endswith(f"is in {tmp_path / 'a'}")
    assert run("--config", str(tmp_path / "a" / "config.json"), "--out", str(tmp_path / "b")) == 0
    first, second = read_run(tmp_path / "a"), read_run(tmp_path / "b")
    assert first.id == second.id
    assert (tmp_path / "a" / "weights.safetensors").read_bytes() == (
        tmp_path / "b" / "weights.safetensors"
    ).read_bytes()
    plot_log({"first": first, "second": second}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="no run has no epoch"):
        plot_log({}, tmp_path / "none.png")


def test_bad_input_is_a_message_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    for given, words in (
        (["--lr", "-1", "--epochs", "0", "--out", out], "2 problems:"),
        (arguments(), "--out must be given: the folder for the run."),
        (["--config", str(tmp_path / "none.yaml"), "--out", out], "none.yaml: cannot be read: No such file"),
        (["--preset", "cifar100/resnet81", "--out", out], "Did you mean 'cifar100/resnet18'"),
        (["--data", "cifar100", "--out", out], "needs its folder or file"),
        (["--data", "cifar100", "--data-root", str(tmp_path), "--out", out], "it holds no CIFAR-100"),
        ([*arguments(image_size=33), "--out", out], "image_size must be a multiple of 16"),
    ):
        assert run(*given) == 2, given
        message = capsys.readouterr().err
        assert message.splitlines()[-1].startswith("hace: ") or message.startswith("hace: 2 problems:")
        assert words in message, message


def test_only_the_first_process_of_a_machine_complains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run("--lr", "-1", "--out", "x") == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_its_code_and_a_message(
    number: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    note: Any = train._note

    def noted(training: Any) -> str:
        if training.step == 2:
            os.kill(os.getpid(), number)
        return note(training)

    monkeypatch.setattr(train, "_note", noted)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__ if sys.stderr is None else sys.stderr)
    assert run(*arguments(), "--out", str(tmp_path)) == code
    assert "The same command resumes from" in capsys.readouterr().err
    assert run(*arguments(), "--out", str(tmp_path)) == 0


def test_options_of_the_data_set_leave_it_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """One setting of a part used to bring another default for its name, and the images became features."""
    for words in (["-o", "classes=12"], ["--option", "classes=12"], ["--option=classes=12"]):
        assert run(*words, "--print-config") == 0
        shown = capsys.readouterr().out
        assert "  name: synthetic\n" in shown
        assert "  options:\n    classes: 12\n" in shown
    assert run("-o", "clases=12", "--print-config") == 2
    assert "options.clases is not an option of 'synthetic'" in capsys.readouterr().err
