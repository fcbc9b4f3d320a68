"""A training that is killed, stopped, damaged or started twice: it goes on with the same bits, or says what is wrong."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hace import cli
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.writing import only_process
from hace.lab.runs.config import DataConfig, TrainConfig
from hace.lab.runs.process import Stopped
from hace.lab.train.loop import Training
from hace.lab.train.train import own_random_numbers, train
from tests.train_cases import arguments, end_state, tiny

CAREFUL = tiny(checkpoint_steps=1, epochs=3)  # nine steps


def signal_after(steps: int, number: int) -> Callable[[int, int], Any]:
    """A progress bar that sends this process a signal after some steps."""
    done = 0

    def step(count: int, note: str) -> None:
        nonlocal done
        done += 1
        if done == steps:
            os.kill(os.getpid(), number)

    return lambda total, done: step


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    train(CAREFUL, folder)
    return end_state(folder)


def interrupted(folder: Path, steps: int = 5, config: TrainConfig = CAREFUL) -> Stopped:
    with pytest.raises(Stopped) as stopped:
        train(config, folder, progress=signal_after(steps, signal.SIGTERM), say=print)
    return stopped.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "word"),
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGUSR2, "SIGUSR2")],
)
def test_signals_finish_the_step_and_save(
    number: int, word: str, tmp_path: Path, whole: dict[str, Any]
) -> None:
    before = signal.getsignal(number)
    config = tiny(epochs=3)  # it would save every five minutes only
    with pytest.raises(Stopped) as stopped:
        train(config, tmp_path, progress=signal_after(5, number))
    assert signal.getsignal(number) is before
    assert stopped.value.number == number
    # The signal comes while step 5 is shown, so step 6 is the one that is finished.
    assert f"Stopped by {word} after step 6, in epoch 2 of 3. The same command resumes from" in str(
        stopped.value
    )
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert saved.name in str(stopped.value)
    assert saved.name.startswith("step-000000006-")
    said: list[str] = []
    train(config, tmp_path, say=said.append)
    assert said == [f"Going on from {saved}."]
    assert end_state(tmp_path) == whole


@pytest.mark.slow
def test_a_signal_in_the_evaluation_stops_it_and_loses_nothing(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = Training.outputs

    def signalled(training: Training, samples: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return outputs(training, samples)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "outputs", signalled)
        with pytest.raises(Stopped, match="Stopped by SIGTERM after step 9, in epoch 3 of 3"):
            train(CAREFUL, tmp_path, say=print)
    assert not (tmp_path / "result.json").exists()
    train(CAREFUL, tmp_path, say=print)
    assert end_state(tmp_path) == whole


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    damage: str, tmp_path: Path, whole: dict[str, Any]
) -> None:
    interrupted(tmp_path)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    content = bytearray(newer.read_bytes())
    content[len(content) // 2] ^= 1
    newer.write_bytes({"flip": bytes(content), "cut": bytes(content[:-100]), "empty": b""}[damage])
    said: list[str] = []
    train(CAREFUL, tmp_path, say=said.append)
    assert said == [
        f"The checkpoint {newer} is damaged; going back to the one before it.",
        f"Going on from {older}.",
    ]
    assert end_state(tmp_path) == whole


def test_a_damaged_checkpoint_takes_no_good_ones_place(tmp_path: Path) -> None:
    interrupted(tmp_path, steps=3)  # saved after steps 3 and 4
    (tmp_path / "checkpoints" / f"step-{8:09d}-{'0' * 16}.pt").write_bytes(b"nothing")
    interrupted(tmp_path, steps=1)
    checkpoints = sorted(path.name.split("-")[1] for path in (tmp_path / "checkpoints").iterdir())
    assert checkpoints == [f"{5:09d}", f"{6:09d}"]


@pytest.mark.slow
def test_with_both_damaged_it_starts_again(tmp_path: Path, whole: dict[str, Any]) -> None:
    interrupted(tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"nothing")
    said: list[str] = []
    train(CAREFUL, tmp_path, say=said.append)
    assert [line.split("; ")[1] for line in said] == [
        "going back to the one before it.",
        "there is none before it, so the run starts again.",
    ]
    assert end_state(tmp_path) == whole


def test_what_a_killed_process_leaves_behind_is_removed(tmp_path: Path, whole: dict[str, Any]) -> None:
    interrupted(tmp_path)
    for folder in (tmp_path / ".hace-abc", tmp_path / "checkpoints" / ".hace-def"):
        folder.mkdir()
        (folder / "half").write_text("half")
    with (tmp_path / "log.jsonl").open("a") as log:  # lines after the checkpoint, the last one cut off
        log.write('{"epoch": 2}\n{"epo')
    train(CAREFUL, tmp_path, say=print)
    assert end_state(tmp_path) == whole


@pytest.mark.slow
def test_a_restart_forgets_the_checkpoints(tmp_path: Path, whole: dict[str, Any]) -> None:
    interrupted(tmp_path)
    said: list[str] = []
    train(CAREFUL, tmp_path, resume=False, say=said.append)
    assert said == []
    assert end_state(tmp_path) == whole


def renamed(path: Path, document: Any) -> None:
    """Another content under a name that fits it: no accident, but an attempt."""
    path.unlink()
    torch.save(document, path)
    digits = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    path.rename(path.with_name(f"step-000000009-{digits}.pt"))


class Bomb:
    """Runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    renamed(newest, {"model": Bomb(tmp_path / "exploded")})
    with pytest.raises(FormatError, match="holds more than tensors and numbers, and is not loaded"):
        train(CAREFUL, tmp_path / "run", say=print)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("key", ["hierarchy", "run"])
def test_a_checkpoint_of_another_hierarchy_or_run_is_refused(key: str, tmp_path: Path) -> None:
    interrupted(tmp_path)
    newest = max((tmp_path / "checkpoints").iterdir())
    document = torch.load(newest, weights_only=True)
    assert len(document["hierarchy"]) == 64
    renamed(newest, {**document, key: "other"})
    with pytest.raises(FormatError, match=f"does not belong to this run: its {key} is 'other'"):
        train(CAREFUL, tmp_path, say=print)


def test_a_loss_that_is_lost_ends_the_run_and_names_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(lr=1e30, epochs=3, checkpoint_steps=1)
    run = train(config, tmp_path / "run")
    assert run.status == "diverged"
    assert run.result is not None
    where = run.result["diverged"]
    assert where["step"] >= 1
    message = capsys.readouterr().err
    assert f"The loss is not finite at step {where['step']}" in message
    assert f"rate {where['lr']:g}" in message
    (good,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert f"The last good checkpoint is {good}." in message
    weights = torch.load(good, weights_only=True)["model"]
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    again = train(config, tmp_path / "run")
    assert again.result == run.result
    assert f"has diverged, at step {where['step']} " in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *arguments(lr=1e30), "--out", str(tmp_path / "command")])
    assert end.value.code == 1


def test_lost_weights_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Training.advance

    def losing(training: Training, x: Any, y: Any) -> bool:
        look = advance(training, x, y)
        if training.step == 5:
            with torch.no_grad():
                next(training.model.parameters()).fill_(torch.nan)
        return look

    monkeypatch.setattr(Training, "advance", losing)
    assert train(CAREFUL, tmp_path, say=print).status == "diverged"
    assert max((tmp_path / "checkpoints").iterdir()).name.startswith("step-000000004-")


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_weights_lost_in_the_very_last_step_are_noticed(validation: float, tmp_path: Path) -> None:
    config = tiny(lr=1e38, epochs=1, batch_size=40, momentum=0.0, validation=validation)
    run = train(config, tmp_path, say=print)
    assert run.status == "diverged"
    assert run.result is not None
    assert run.result["diverged"] == {"epoch": 1, "step": 1, "lr": 1e38}


def test_an_image_alone_in_a_batch_norm_is_explained(tmp_path: Path) -> None:
    config = tiny(
        model="resnet10t", batch_size=39
    )  # 40 images: the last batch has one, of one pixel in the last stage
    with pytest.raises(ConfigError, match="The last batch of an epoch has 1,"):
        train(config, tmp_path)


def test_weights_to_start_from_that_are_gone(tmp_path: Path) -> None:
    config = tiny(init_from=str(tmp_path / "gone.safetensors"), init_hash="0" * 64)
    with pytest.raises(ConfigError, match=r"init_from .*gone\.safetensors is gone"):
        train(config, tmp_path / "run")


def test_the_libraries_settings_stay_but_for_two() -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32
    with own_random_numbers(torch.device("cpu")):
        assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (before[0], False, True)
    assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32) == before
    assert before[0]


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    with only_process(tmp_path), pytest.raises(ConfigError, match="Another process is at work in"):
        train(tiny(), tmp_path)


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HaceError, match=r"Cannot write to .*Not a directory"):
        train(tiny(), tmp_path / "file" / "run")
    train(tiny(), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"holds another run \(train\). Changed: lr: 0.05 -> 0.1"):
        train(tiny(lr=0.1), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"It holds other files: thesis\.tex"):
        train(tiny(), tmp_path / "other")
    with pytest.raises(DataError, match="it holds no CIFAR-100"):
        train(tiny(data=DataConfig("cifar100", str(tmp_path))), tmp_path / "missing")
    with pytest.raises(ConfigError, match="device cuda:77 cannot be used here"):
        train(tiny(device="cuda:77"), tmp_path / "device")
