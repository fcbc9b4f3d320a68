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

from hace.data import Samples
from hace.errors import ConfigError, HaceError
from hace.files.writing import sha256
from hace.hierarchy import Hierarchy
from hace.lab.models import load_weights
from hace.lab.runs.devices import fallback_note
from hace.lab.runs.progress import Start, Step
from hace.lab.runs.result import diverged_result, evaluate_run, scored_splits
from hace.lab.runs.run import DataPrint, Run, read_run
from hace.lab.runs.samples import Source, Task, load_source, make_task
from hace.lab.runs.stopping import DivergedError, Ear, Stopped, listening
from hace.lab.runs.train_config import TrainConfig
from hace.lab.runs.writer import RunWriter, start_run
from hace.lab.train.batches import few_of_each, preprocessing
from hace.lab.train.distributed import Team, join_team
from hace.lab.train.journal import Journal, Report, Say
from hace.lab.train.loop import Training, new_state, set_up
from hace.lab.train.state import State, start_average, tensors

_ALONE = (
    "Batch norms of {model} need two or more images at a time. The last batch of an epoch has {last}, over all processes and "
    "parts (accumulate). Choose a batch_size that leaves more for it."
)


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
        team = stack.enter_context(join_team(config.device, config.timeout))
        say = (say or _to_stderr) if team.main else _nothing
        if note := fallback_note(config.device, team.device):
            say(note)
        source = load_source(config.data)
        task = training_task(source, config, team)
        view = preprocessing(config, task)
        data = replace(source.data_print(), source={"preprocessing": view.to_dict()})
        writer, finished = stack.enter_context(_opened(team, Path(folder), config, data, task.hierarchy))
        journal = Journal(config, Path(folder), data, writer, say, report)
        if writer is not None and writer.damage:
            say(f"Making the run in {folder} again. {writer.damage}")
        if finished:
            journal.tidy()
        else:
            stack.enter_context(_own_random_numbers(team.device))
            loss = config.loss.build(task.tree, task.labels).to(team.device)
            state = new_state(config, loss, view, team.device)
            _restore(state, config, team, journal, resume)
            training = set_up(config, task, view, team, loss, state)
            try:
                with listening() as ear:
                    _train(training, journal, ear, progress if team.main else None)
                    _finish(training, journal, ear)
            except DivergedError as error:
                _mark_diverged(training, journal, error)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise ConfigError(_ALONE.format(model=config.model, last=training.sizes[-1])) from error
        team.share(b"")  # the others read what the first has written
        return read_run(folder)


def training_task(source: Source[Any], config: TrainConfig, team: Team) -> Task[Samples]:
    """The samples of the run."""
    if not isinstance(source.dataset["train"], Samples):
        raise ConfigError(f"data.name {config.data.name!r} must hold images. It holds features.")
    if config.batch_size < team.world:
        raise ConfigError(
            f"batch_size is the batch of all processes: {config.batch_size} images cannot be shared by {team.world}."
        )
    task = make_task(source, config)
    if config.per_class is None:
        return task
    return replace(
        task, train=task.train.select(few_of_each(task.train.nodes, config.per_class, config.seed))
    )


@contextmanager
def _opened(
    team: Team, folder: Path, config: TrainConfig, data: DataPrint, hierarchy: Hierarchy
) -> Iterator[tuple[RunWriter | None, bool]]:
    """The run directory, for the first process; and whether the run is finished. What is wrong with it stops all."""
    with ExitStack() as stack:
        writer, problem = None, None
        if team.main:
            try:
                writer = stack.enter_context(start_run(folder, config, data, hierarchy))
            except HaceError as error:
                problem = error
        finished = writer is not None and writer.run.result is not None
        message = {"problem": str(problem) if problem else None, "finished": finished}
        message = json.loads(team.share(json.dumps(message).encode()))
        if problem is not None:
            raise problem
        if message["problem"] is not None:
            raise HaceError(message["problem"])
        yield writer, message["finished"]


def _restore(state: State, config: TrainConfig, team: Team, journal: Journal, resume: bool) -> None:
    """Go on from the newest checkpoint; without one, from the weights that the configuration names, or from random ones."""
    content = team.share(journal.newest(resume))
    if content:
        state.load(journal.checkpoints.read(content))
    elif config.init_from is not None:
        if not Path(config.init_from).is_file():
            raise ConfigError(f"init_from {config.init_from} is gone: give the file of weights again.")
        if sha256(Path(config.init_from)) != config.init_hash:
            raise ConfigError(
                f"init_from {config.init_from} has changed: its sha256 is not the {config.init_hash} of the configuration."
            )
        journal.say(load_weights(state.model, config.init_from, head=config.init_head))
        if state.average is not None:
            state.average = start_average(state.model)


def _train(training: Training, journal: Journal, ear: Ear, progress: Start | None) -> None:
    """Do the epochs that are left, and save what they end with until the evaluation is done."""
    state, position, each = training.state, training.state.position, len(training.task.train)
    journal.rewrite(state.log, position.epoch)
    total, done = training.config.epochs * each, position.epoch * each + position.samples
    _epochs(training, journal, ear, progress(total, done) if progress else None)
    journal.save(state)


def _epochs(training: Training, journal: Journal, ear: Ear, advance: Step | None) -> None:
    position = training.state.position
    while position.epoch < training.config.epochs:
        training.tick()
        for x, y in training.batches.epoch(position.epoch, position.batch):
            if not training.step(x, y):
                continue
            before = position.samples
            asked = training.settle(bool(ear.heard))
            if advance:
                advance(position.samples - before, _note(training))
            if asked or journal.due(position):
                journal.save(training.state)
            if asked:
                raise Stopped(journal.stopped(position, ear.heard), ear.heard or signal.SIGTERM)
        entry = training.epoch_entry()
        training.state.log.append(entry)
        journal.entry(entry)
        position.next_epoch()


def _note(training: Training) -> str:
    """How it goes, for the progress bar."""
    p = training.state.position
    accuracy = f", acc {p.correct / p.counted:.1%}" if p.counted else ""
    return f"epoch {p.epoch + 1}/{training.config.epochs}, loss {p.loss / p.samples:.3f}{accuracy}"


def _finish(training: Training, journal: Journal, ear: Ear) -> None:
    """Evaluate, and write what a finished run has. A signal stops it, unless other processes count on this one."""
    task, state = training.task, training.state

    def until_stopped(samples: Samples) -> Iterator[Tensor]:
        for rows in training.outputs(samples):
            if ear.heard and training.team.world == 1:
                raise Stopped(journal.stopped(state.position, ear.heard), ear.heard)
            yield rows

    if not training.team.main:
        for samples in scored_splits(task):
            for _ in until_stopped(samples):  # it takes part, and the first process counts
                pass
        return
    outcome = evaluate_run(training.config, task, training.loss.cpu(), until_stopped)
    training.tick()
    result = outcome.result(training.config.evaluate, _about(training), state.position.seconds)
    journal.finish(result, tensors(state.result), outcome.predictions())


def _mark_diverged(training: Training, journal: Journal, error: DivergedError) -> None:
    """Write how far it came; the last good checkpoint stays."""
    seconds = training.state.position.seconds
    journal.diverged(error, diverged_result(training.config.evaluate, error.where, _about(training), seconds))


def _about(training: Training) -> dict[str, Any]:
    return {
        "samples": len(training.task.train),
        "epochs": training.config.epochs,
        "steps": training.state.position.step,
        "parameters": sum(p.numel() for p in training.state.model.parameters()),
        "unseen_classes": training.task.unseen,
    }


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
