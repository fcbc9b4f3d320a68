"""End-to-end training: check, set up, epochs, evaluation. Killed at any moment, the same call ends with the same bits.

run = run_train(TrainConfig(model="resnet18", data=DataConfig("cifar100", "data")), "runs/first")
run.result["metrics"]["leaves"]["top-1"]
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hace.data import DATASETS, Samples
from hace.data.batches import Preprocessing
from hace.errors import ConfigError, HaceError
from hace.files.writing import sha256
from hace.hierarchy import Hierarchy
from hace.lab.models import load_weights
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.process import (
    DivergedError,
    SignalFlag,
    Start,
    Step,
    Stopped,
    catch_signals,
    fallback_note,
)
from hace.lab.runs.result import evaluate_run, scored_splits
from hace.lab.runs.run import DataPrint, Run, RunWriter, read_run, start_run
from hace.lab.runs.samples import Source, Task, load_source, make_task
from hace.lab.train.distributed import ProcessGroup, join_processes
from hace.lab.train.loop import Training
from hace.lab.train.run_log import Report, RunLog, Say


def run_train(
    config: TrainConfig,
    folder: str | Path,
    *,
    resume: bool = True,
    progress: Start | None = None,
    report: Report | None = None,
    say: Say | None = None,
) -> Run:
    """Train a model and evaluate it, or read the run if it is finished.

    Under torchrun all processes call it; they train one model, and the first one alone writes.

    Args:
        config: What to do.
        folder: The run directory: new, or the same run. Several hosts must all see it.
        resume: Whether to resume from a checkpoint; otherwise an unfinished run starts over.
        progress: Called with the images of the whole run and those done before; what it returns is called with the images
            of every step and a note with epoch and loss.
        report: Called with every line of the log.
        say: Called with messages for the user; by default they go to stderr.

    Returns:
        The run, "finished" or "diverged".

    Raises:
        ConfigError: Settings that do not fit, or another run or process in the folder.
        DataError: Data that are missing or do not fit.
        Stopped: By Ctrl-C or SIGTERM, after the step was finished and saved.
    """
    with ExitStack() as stack:
        group = stack.enter_context(join_processes(config.device, config.timeout))
        say = (say or _to_stderr) if group.main else _nothing
        if note := fallback_note(config.device, group.device):
            say(note)
        source = load_source(config.data)
        task = training_task(source, config, group)
        view = Preprocessing.of(task.train, image_size(config, task.train))
        data = replace(source.data_print(), source={"preprocessing": view.to_dict()})
        writer, finished = stack.enter_context(_opened(group, Path(folder), config, data, task.hierarchy))
        log = RunLog(config, Path(folder), data, writer, say, report)
        if writer is not None and writer.damage:
            say(f"Making the run in {folder} again. {writer.damage}")
        if finished:
            log.tidy()
        else:
            stack.enter_context(_own_random_numbers(group.device))
            loss = config.loss.build(task.tree, task.labels).to(group.device)
            training = Training(config, task, view, group, loss)
            _restore(training, log, resume)
            try:
                with catch_signals() as stop:
                    _train(training, log, stop, progress if group.main else None)
                    _finish(training, log, stop)
            except DivergedError as error:
                log.diverged(training, error)
        group.share(b"")  # the others read what the first has written
        return read_run(folder)


train = run_train  # its name at the front door


def training_task(source: Source[Any], config: TrainConfig, group: ProcessGroup) -> Task[Samples]:
    """The samples of the run."""
    if not isinstance(source.dataset["train"], Samples):
        raise ConfigError(f"data.name {config.data.name!r} must hold images. It holds features.")
    if config.batch_size < group.world:
        raise ConfigError(
            f"batch_size is the batch of all processes: {config.batch_size} images cannot be shared by {group.world}."
        )
    return make_task(source, config)


def image_size(config: TrainConfig, samples: Samples) -> int | None:
    """The side of what the model sees: as asked, of the images in memory, or of the data set."""
    own = None if samples.pixels is None else samples.pixels.shape[-1]
    return config.image_size or own or DATASETS[config.data.name].size


@contextmanager
def _opened(
    group: ProcessGroup, folder: Path, config: TrainConfig, data: DataPrint, hierarchy: Hierarchy
) -> Iterator[tuple[RunWriter | None, bool]]:
    """The run directory, for the first process; and whether the run is finished. What is wrong with it stops all."""
    with ExitStack() as stack:
        writer, problem = None, None
        if group.main:
            try:
                writer = stack.enter_context(start_run(folder, config, data, hierarchy))
            except HaceError as error:
                problem = error
        finished = writer is not None and writer.run.result is not None
        message = {"problem": str(problem) if problem else None, "finished": finished}
        message = json.loads(group.share(json.dumps(message).encode()))
        if problem is not None:
            raise problem
        if message["problem"] is not None:
            raise HaceError(message["problem"])
        yield writer, message["finished"]


def _restore(training: Training, log: RunLog, resume: bool) -> None:
    """Go on from the newest checkpoint; without one, from the weights that the configuration names, or from random ones."""
    config = training.config
    content = training.group.share(log.newest(resume))
    if content:
        training.restore(log.read(content))
    elif config.init_from is not None:
        if not Path(config.init_from).is_file():
            raise ConfigError(f"init_from {config.init_from} is gone: give the file of weights again.")
        if sha256(Path(config.init_from)) != config.init_hash:
            raise ConfigError(
                f"init_from {config.init_from} has changed: its sha256 is not the {config.init_hash} of the configuration."
            )
        log.say(load_weights(training.model, config.init_from, head=config.init_head))
        training.reset_average()


def _train(training: Training, log: RunLog, stop: SignalFlag, progress: Start | None) -> None:
    """Do the epochs that are left, and save what they end with until the evaluation is done."""
    log.begin(training)
    each = len(training.task.train)
    total, done = training.config.epochs * each, training.epoch * each + training.samples
    advance: Step | None = progress(total, done) if progress else None
    while training.epoch < training.config.epochs:
        training.tick()
        for x, y in training.batches.epoch(training.epoch, training.batch):
            if not training.advance(x, y):
                continue
            before = training.samples
            asked = training.flush_metrics(bool(stop.signal))
            if advance:
                advance(training.samples - before, _note(training))
            if asked or log.due(training.step):
                log.save(training)
            if asked:
                raise Stopped(log.stopped(training, stop.signal), stop.signal or signal.SIGTERM)
        log.entry(training.end_epoch())
    log.save(training)


def _note(training: Training) -> str:
    """How it goes, for the progress bar."""
    t = training
    accuracy = f", acc {t.correct / t.counted:.1%}" if t.counted else ""
    return f"epoch {t.epoch + 1}/{t.config.epochs}, loss {t.loss_sum / t.samples:.3f}{accuracy}"


def _finish(training: Training, log: RunLog, stop: SignalFlag) -> None:
    """Evaluate, and write what a finished run has. A signal stops it, unless other processes count on this one."""

    def until_stopped(samples: Samples) -> Iterator[Tensor]:
        for rows in training.outputs(samples):
            if stop.signal and training.group.world == 1:
                raise Stopped(log.stopped(training, stop.signal), stop.signal)
            yield rows

    if not training.group.main:
        for samples in scored_splits(training.task):
            for _ in until_stopped(samples):  # it takes part, and the first process counts
                pass
        return
    outcome = evaluate_run(training.config, training.task, training.loss.cpu(), until_stopped)
    training.tick()
    log.finish(training, outcome)


@contextmanager
def _own_random_numbers(device: torch.device) -> Iterator[None]:
    """The caller's generators are as they were afterwards; convolutions on a GPU choose the reproducible algorithms."""
    devices = [device.index or 0] if device.type == "cuda" else []
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    # Not by cudnn.flags(): it resets what it is not given, and without `enabled=True` it turns cuDNN off.
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _nothing(message: str) -> None:
    pass
