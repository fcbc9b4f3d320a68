"""End-to-end training: check, set up, epochs, evaluation. Killed at any moment, the same call ends with the same bits.

run = train(TrainConfig(model="resnet18", data=DataConfig("cifar100", "data")), "runs/first")
run.result["metrics"]["leaves"]["top-1"]
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hace.data import Dataset, Samples
from hace.data.batches import Preprocessing
from hace.data.dataset import broken_text
from hace.errors import ConfigError, DataError, FormatError, HaceError, install
from hace.files.reading import optional
from hace.files.weights import read_torch
from hace.files.writing import atomic_path, own_folder, sha256, write_whole
from hace.hierarchy import Hierarchy
from hace.lab.models import load_weights
from hace.lab.runs.config import TrainConfig
from hace.lab.runs.process import (
    SIGNAL_NAMES,
    DivergedError,
    SignalFlag,
    Start,
    Stopped,
    catch_signals,
    fallback_note,
)
from hace.lab.runs.result import Outcome, diverged_result, evaluate_outputs, evaluate_run, scored_splits
from hace.lab.runs.run import CHECKPOINTS, TENSORBOARD, DataPrint, Run, RunWriter, read_run, start_run
from hace.lab.runs.samples import (
    Task,
    advised_loss_note,
    data_of,
    make_task,
    own_split_note,
    with_advised_loss,
    with_own_split,
)
from hace.lab.train.loop import ProcessGroup, Training, join_processes

LAST = 2  # checkpoints that stay
HASH_DIGITS = 16
_FORMAT = 2

# Okabe and Ito's colours, which are distinct for any colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
PANELS = (("loss", "loss"), ("accuracy", "accuracy of the most probable leaf"))

Say = Callable[[str], None]
Report = Callable[[Mapping[str, Any]], None]


def train(
    config: TrainConfig,
    folder: str | Path,
    *,
    resume: bool = True,
    own_split: bool = False,
    advised_loss: bool = False,
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
        own_split: Whether to hold out the data's own validation split, where there is one and `config` holds out nothing.
        advised_loss: Whether to take the loss that is advised for the labels in place of that of `config`.
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
    with join_processes(config.device, config.timeout) as group:
        say = (say or _to_stderr) if group.main else lambda message: None
        dataset = data_of(config.data)
        if own_split:
            config = with_own_split(dataset, config)
        notes = [own_split_note(dataset, config.validation)]
        if advised_loss:
            config = with_advised_loss(dataset, config)
            notes.append(advised_loss_note(config.loss))
        for note in filter(None, notes):
            say(f"hace: {note}")
        _train_together(
            group, config, dataset, Path(folder), resume, progress if group.main else None, report, say
        )
        return read_run(folder)


def _train_together(
    group: ProcessGroup,
    config: TrainConfig,
    dataset: Dataset[Any],
    folder: Path,
    resume: bool,
    progress: Start | None,
    report: Report | None,
    say: Say,
) -> None:
    """Train, evaluate and write. What talks to the group lives here, so that it is gone before the group is."""
    with ExitStack() as stack:
        if note := fallback_note(config.device, group.device):
            say(note)
        task = training_task(dataset, config, group)
        view = Preprocessing.of(task.train, config.image_size)
        data = replace(DataPrint.of(dataset), source={"preprocessing": view.to_dict()})
        writer, finished = stack.enter_context(_opened(group, folder, config, data, task.hierarchy))
        log = RunLog(config, folder, data, writer, say, report)
        if writer is not None and writer.damage:
            say(f"Making the run in {folder} again. {writer.damage}")
        if finished:
            log.tidy()
        else:
            stack.enter_context(own_random_numbers(group.device))
            loss = config.loss.build(task.tree, task.labels).to(group.device)
            training = Training(config, task, view, group, loss)
            _restore(training, log, resume)
            try:
                with catch_signals() as stop:
                    _train(training, log, stop, progress)
                    _finish(training, log, stop)
            except DivergedError as error:
                log.diverged(training, error)
        if dataset.broken:
            say(broken_text(dataset))
        group.share(b"")  # the others read what the first has written


def training_task(data: Dataset[Any], config: TrainConfig, group: ProcessGroup) -> Task[Samples]:
    """The samples of the run."""
    if config.batch_size < group.world:
        raise ConfigError(
            f"batch_size is the batch of all processes: {config.batch_size} images cannot be shared by {group.world}."
        )
    return make_task(data, config)


@contextmanager
def _opened(
    group: ProcessGroup, folder: Path, config: TrainConfig, data: DataPrint, hierarchy: Hierarchy
) -> Iterator[tuple[RunWriter | None, bool]]:
    """The run directory, for the first process; and whether the run is finished. What is wrong with it stops all."""
    with ExitStack() as stack:
        writer = None
        problem = None
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
    config = training.config
    each = len(training.task.train)
    total = config.epochs * each
    done = training.epoch * each + training.samples
    advance = progress(total, done) if progress else None
    while training.epoch < config.epochs:
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
        entry = training.end_epoch()
        if config.curve_epochs is not None and training.epoch % config.curve_epochs == 0:
            entry["curve"] = _point_of_curve(training)  # the log of the checkpoints has the same entry
        log.entry(entry)
    log.save(training)


def _point_of_curve(training: Training) -> dict[str, Any]:
    """How the model is on the evaluated samples so far."""
    task = training.task
    rows = list(training.outputs(task.evaluated))  # every process takes part
    report = evaluate_outputs(training.loss.cpu(), rows, task.evaluated.nodes, task.hierarchy).report
    training.loss.to(training.group.device)
    values = report.to_dict()["metrics"]["leaves"]
    levels = report.samples.level_correct.mean(axis=0).tolist()
    return {"leaves": values, "levels": levels}


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
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """The caller's generators are as they were afterwards; convolutions on a GPU choose the reproducible algorithms."""
    devices = [device.index or 0] if device.type == "cuda" else []
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    # Not by cudnn.flags(): it resets what it is not given, and without `enabled=True` it turns cuDNN off.
    cudnn.benchmark = False
    cudnn.deterministic = True
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class RunLog:
    """The run directory during a training: its log, checkpoints, TensorBoard and result.

    Only the first process writes; in the others `writer` is None. The last two checkpoints stay, each whole and verified by
    the hash in its name.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        data: DataPrint,
        writer: RunWriter | None,
        say: Say,
        report: Report | None,
    ) -> None:
        self.config = config
        self.writer = writer
        self.say = say
        self._folder = folder / CHECKPOINTS
        run = config.identity(data.fingerprint)
        self._about = {"format": _FORMAT, "run": run, "hierarchy": data.hierarchy}
        self._report = report
        self._board: Any = None
        self._saved = time.monotonic()
        self._saved_step = 0

    def tidy(self) -> None:
        """Remove the checkpoints of a finished run that was killed before it could; say that a diverged one is over."""
        if self.writer is None or self.writer.run.result is None:
            return
        if self.writer.run.status == "finished":
            self.clear()
            return
        where = self.writer.run.result["diverged"]
        self.say(
            f"The run in {self.writer.run.folder} has diverged, at step {where['step']} (epoch {where['epoch']}, rate "
            f"{where['lr']:g}): nothing is left to do. For another lr or clip_norm, give a new folder."
        )

    def begin(self, training: Training) -> None:
        """Write the log as the checkpoint has it: later lines will come again."""
        if self.writer is None:
            return
        self.writer.write_log(training.log)
        if self.config.tensorboard:
            self._board = _summary_writer(self.writer.run.folder / TENSORBOARD, training.epoch)

    def entry(self, entry: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        if self.writer is None:
            return
        self.writer.log([entry])
        if self._board is not None:
            for name, value in {**entry, **entry["time"]}.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, entry["epoch"])
            self._board.flush()
        if self._report is not None:
            self._report(entry)

    def due(self, step: int) -> bool:
        """Whether it is time for a checkpoint."""
        steps = self.config.checkpoint_steps
        return time.monotonic() - self._saved >= self.config.checkpoint_seconds or (
            steps is not None and step - self._saved_step >= steps
        )

    def save(self, training: Training) -> None:
        """Write a checkpoint and remove the oldest, unless weights are not finite: the last one is always good."""
        self._saved = time.monotonic()
        self._saved_step = training.step
        if self.writer is None or not training.finite():
            return
        buffer = io.BytesIO()
        torch.save({**self._about, **training.state()}, buffer)
        content = buffer.getvalue()
        own_folder(self._folder)
        digits = hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
        name = f"step-{training.step:09d}"
        path = self._folder / f"{name}-{digits}.pt"
        write_whole(path, content)
        others = [p for p in checkpoints(self._folder.parent) if p != path]
        # After a damaged checkpoint, the run passes its step again: it must not replace a good one.
        earlier = [p for p in others if p.name < name]
        for old in set(others) - set(earlier[: LAST - 1]):
            old.unlink()

    def newest(self, resume: bool) -> bytes:
        """The newest checkpoint that is whole, to resume from; damaged ones are passed over."""
        if self.writer is None:
            return b""
        if not resume:
            self.clear()
        saved = checkpoints(self._folder.parent)
        for path in saved:
            content = path.read_bytes()
            if path.stem.split("-")[-1] == hashlib.sha256(content).hexdigest()[:HASH_DIGITS]:
                self.say(f"Going on from {path}.")
                return content
            rest = "going back to the one before it"
            if path == saved[-1]:
                rest = "there is none before it, so the run starts again"
            self.say(f"The checkpoint {path} is damaged; {rest}.")
        return b""

    def read(self, content: bytes) -> dict[str, Any]:
        """What a checkpoint holds: tensors and plain values, nothing that could run."""
        try:
            document = read_torch(io.BytesIO(content))
        except FormatError as error:
            raise FormatError(
                f"A checkpoint in {self._folder} holds more than tensors and numbers, and is not loaded. "
                "Delete it, or the folder, and run the same command again."
            ) from error
        for key, value in self._about.items():
            given = document.get(key) if isinstance(document, dict) else None
            if given != value:
                raise FormatError(
                    f"A checkpoint in {self._folder} does not belong to this run: its {key} is {given!r}, the run's "
                    f"{value!r}. Delete the folder to start again."
                )
        return document

    def clear(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def stopped(self, training: Training, signal: int) -> str:
        """The message for a training that a signal stopped."""
        last = next(iter(checkpoints(self._folder.parent)), None)
        return (
            f"Stopped by {SIGNAL_NAMES.get(signal, 'a signal to another process')} after step {training.step}, in epoch "
            f"{min(training.epoch + 1, self.config.epochs)} of {self.config.epochs}. The same command resumes from {last}."
        )

    def finish(self, training: Training, outcome: Outcome) -> None:
        """Write the result, with weights and predictions if they are kept, and remove the checkpoints."""
        assert self.writer is not None  # the first process evaluates
        self._close()
        result = outcome.result(self.config.evaluate, training.about(), training.seconds)
        weights = {name: value.detach().cpu() for name, value in training.result.state_dict().items()}
        if self.config.keep:
            self.writer.finish(result, weights=weights, predictions=outcome.predictions())
        else:
            self.writer.finish(result)
        self.clear()

    def diverged(self, training: Training, error: DivergedError) -> None:
        """Write how far a diverged run came, and say where the last good weights are."""
        if self.writer is None:
            return
        self._close()
        about = training.about()
        self.writer.finish(diverged_result(self.config.evaluate, error.where, about, training.seconds))
        last = next(iter(checkpoints(self._folder.parent)), None)
        good = f"The last good checkpoint is {last}." if last else "There was no checkpoint yet."
        self.say(f"{error} The run is marked as diverged. {good} Try a smaller lr, or clip_norm=1.")

    def _close(self) -> None:
        if self._board is not None:
            self._board.close()


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((run / CHECKPOINTS).glob("step-*.pt"), reverse=True)


def saved_step(run: Path) -> int:
    """The step of a run's newest checkpoint; 0 without one."""
    return max((int(path.name.split("-")[1]) for path in checkpoints(run)), default=0)


def _summary_writer(folder: Path, epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(f"tensorboard=true needs the package tensorboard. {install('train')}") from None
    return SummaryWriter(str(own_folder(folder)), purge_step=epoch + 1)


def plot_log(runs: Mapping[str, Run], path: str | Path) -> None:
    """Draw loss and accuracy by epoch: dashed in training, solid on held-out samples.

    Args:
        runs: By the names that the legend gives them.
        path: The picture; the suffix says which kind.

    Raises:
        DataError: No runs, or one without a finished epoch.
        ConfigError: matplotlib is missing.
    """
    figures = optional("matplotlib.figure", "Drawing pictures", "report")
    logs = {name: run.log() for name, run in runs.items()}
    empty = ", ".join(name for name, log in logs.items() if not log)
    if empty or not logs:
        raise DataError(f"There is nothing to draw: {empty or 'no run'} has no epoch in its log yet.")
    figure = figures.Figure(figsize=(9.5, 3.8), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for colour, (name, log) in zip(COLOURS * len(logs), logs.items(), strict=False):
            held_out = _draw(axes, log, f"val_{key}", color=colour, label=f"{name}, held-out")
            label = f"{name}, training" if held_out else name
            _draw(axes, log, key, color=colour, linestyle="--" if held_out else "-", label=label)
        axes.set(xlabel="epoch", title=title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[1].set_ylim(bottom=0)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _draw(axes: Any, log: list[dict[str, Any]], key: str, **style: str) -> bool:
    """Draw one line, if the log has it."""
    points = [(entry["epoch"], entry[key]) for entry in log if entry.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, **style)
    return bool(points)
