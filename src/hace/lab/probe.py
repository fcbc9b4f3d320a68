"""Linear probes: from configurations to run directories.

Runs that differ only in loss, rate or decay share one pass over the features and give the same bits as alone; runs that
know other labels do not. A pass is the unit of work: :func:`passes` groups runs into passes, :func:`run_pass` does one.
Finished runs are never repeated.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from hace.data import Dataset, Features
from hace.errors import ConfigError, DataError, FormatError
from hace.lab.features.store import column_moments
from hace.lab.runs.config import DataConfig, LabelsConfig, ProbeConfig
from hace.lab.runs.result import diverged_result, evaluate_run, search_result
from hace.lab.runs.run import CHECKPOINTS, DataPrint, Run, RunWriter, finished_run, read_run, start_run
from hace.lab.runs.samples import Task, data_of, make_task
from hace.linear import FittedHead, Optimization, Trial, fit_heads
from hace.linear.features import RowsOnDisk, unit_rows
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall

_ROWS = 4096  # scored at once
HEADS_PER_PASS = 16  # trained side by side; more gain nothing and cost memory

Sources = dict[str, Dataset[Features]]
# They train side by side: other losses, rates and decays, as many outputs.
ProbePass = tuple[ProbeConfig, ...]
ProbeRun = tuple[ProbeConfig, HierarchicalLoss, RunWriter]  # one of a pass, and where it goes


@overload
def probe(configs: ProbeConfig, out: str | Path, *, on_epoch: Callable[[int], None] | None = None) -> Run: ...
@overload
def probe(
    configs: Sequence[ProbeConfig], out: str | Path, *, on_epoch: Callable[[int], None] | None = None
) -> list[Run]: ...
def probe(configs: Any, out: str | Path, *, on_epoch: Callable[[int], None] | None = None) -> Any:
    """Train probes side by side; finished ones are read.

    Args:
        configs: What to train: one configuration, or several in any order.
        out: The folder of run directories; a run is in `out/<id>`.
        on_epoch: Called with the number of heads that finished another epoch.

    Returns:
        The run, or the runs in the order of `configs`.

    Raises:
        ConfigError, DataError, FormatError: Something does not fit; runs finished before are kept.
    """
    if isinstance(configs, ProbeConfig):
        return probe([configs], out, on_epoch=on_epoch)[0]
    sources = load_sources(configs)
    for work in passes(configs, sources):
        run_pass(work, out, sources, on_epoch=on_epoch)
    return [read_run(run_folder(config, out, sources)) for config in configs]


def load_sources(configs: Iterable[ProbeConfig]) -> Sources:
    """The data of configurations, each loaded once, whatever they train on: shuffled trees and other labels come later."""
    sources: Sources = {}
    for config in configs:
        key = data_key(config)
        if key not in sources:
            source = data_of(_as_loaded(config.data))
            if not isinstance(source["train"], Features):
                raise ConfigError(
                    f"data.name of a probe must be a dataset of features. Got {config.data.name!r}, which has images: compute "
                    "features with `hace features` first."
                )
            sources[key] = source
    return sources


def data_key(config: ProbeConfig) -> str:
    """The key of a configuration's data in `load_sources`."""
    return json.dumps(_as_loaded(config.data).to_dict(), sort_keys=True, default=str)


def _as_loaded(data: DataConfig) -> DataConfig:
    return replace(data, shuffle=None, labels=LabelsConfig(), induce=None)


def run_folder(config: ProbeConfig, out: str | Path, sources: Sources) -> Path:
    """The folder of a run."""
    return Path(out) / config.identity(sources[data_key(config)].fingerprint)


def passes(configs: Sequence[ProbeConfig], sources: Sources) -> list[ProbePass]:
    """Group configurations that can train side by side, at most `HEADS_PER_PASS` together, in a stable order.

    L-BFGS trains each head alone, so its passes hold one run.
    """
    groups: dict[str, dict[str, ProbeConfig]] = {}
    widths: dict[str, tuple[int, str]] = {}  # building a loss for each of thousands of runs takes minutes
    for config in configs:
        loss = json.dumps([data_key(config), config.loss.to_dict()], sort_keys=True, default=str)
        if loss not in widths:
            built = config.loss.build(sources[data_key(config)].hierarchy)
            widths[loss] = (built.num_outputs, built.head.outputs)
        num_outputs, kind = widths[loss]
        outputs = num_outputs if config.data.induce is None else kind  # an induced tree has other numbers
        group = groups.setdefault(_shared_settings(config, outputs), {})
        # A run given twice is one run.
        group.setdefault(json.dumps(config.deciding(), sort_keys=True), config)
    work: list[ProbePass] = []
    for group in groups.values():
        members = list(group.values())
        step = 1 if members[0].optimizer == "lbfgs" else HEADS_PER_PASS
        work += [tuple(members[first : first + step]) for first in range(0, len(members), step)]
    return work


def _shared_settings(config: ProbeConfig, outputs: int | str) -> str:
    """What runs must have in common to share a pass."""
    settings: dict[str, Any] = config.to_dict()
    for key in ("loss", "lr", "weight_decay", "keep", "temperature"):
        del settings[key]
    settings["data"] = {**settings["data"], "shuffle": None}
    settings["outputs"] = outputs
    return json.dumps(settings, sort_keys=True, default=str)


def run_pass(
    work: ProbePass,
    out: str | Path,
    sources: Sources,
    *,
    on_epoch: Callable[[int], None] | None = None,
) -> None:
    """Train the unfinished runs of a pass, evaluate and write them."""
    report = on_epoch or (lambda heads: None)
    missing: list[ProbeConfig] = []
    for config in work:
        run = finished_run(run_folder(config, out, sources))
        if run is not None and has_all(run, config):
            report(config.epochs)
        else:
            missing.append(config)
    if missing:
        _make_runs(missing, out, sources, report)


def _make_runs(
    missing: Sequence[ProbeConfig], out: str | Path, sources: Sources, report: Callable[[int], None]
) -> None:
    """Make the runs of a pass, each in its folder."""
    source = sources[data_key(missing[0])]
    # Before any folder is made: data or losses that do not fit leave nothing behind.
    trees = {config.data.shuffle: config for config in missing}
    tasks = {shuffle: make_task(source, config) for shuffle, config in trees.items()}
    losses = _losses(missing, tasks)
    task = next(iter(tasks.values()))  # the others differ in the loss's tree only
    rows = _scaled_rows(missing[0], task)
    with ExitStack() as stack:
        todo: list[ProbeRun] = []
        for config, loss in zip(missing, losses, strict=True):
            folder = run_folder(config, out, sources)
            writer = stack.enter_context(start_run(folder, config, DataPrint.of(source), source.hierarchy))
            if has_all(writer.run, config):  # another process finished it a moment ago
                report(config.epochs)
            else:
                todo.append((config, loss, writer))
        if not todo:
            return
        began = time.monotonic()
        checkpoints = todo[0][2].run.folder / CHECKPOINTS  # of the pass, in the folder of its first run
        heads = _fit(todo, task, rows, report, checkpoints)
        seconds = (time.monotonic() - began) / len(heads)
        for (config, loss, writer), head in zip(todo, heads, strict=True):
            _finish(writer, config, loss, head, task, rows, seconds)
        shutil.rmtree(checkpoints, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The features of a pass, scaled."""

    scaling: Scaling
    train: Tensor
    evaluated: Tensor
    val: Tensor | None  # held out


def _scaled_rows(config: ProbeConfig, task: Task[Features]) -> _Rows:
    scaling = Scaling.fitted(config.normalize, task.train.x)
    train = scaling(task.train.x, "training")
    evaluated = scaling(task.evaluated.x, "evaluated")
    if task.val is None:
        val = None
    elif task.val is task.evaluated:
        val = evaluated
    else:
        val = scaling(task.val.x, "held-out")
    return _Rows(scaling, train, evaluated, val)


def _fit(
    todo: Sequence[ProbeRun],
    task: Task[Features],
    rows: _Rows,
    report: Callable[[int], None],
    checkpoints: Path,
) -> list[FittedHead]:
    """The trained heads of the runs, one each."""
    shared = todo[0][0]
    left = len(todo) * shared.epochs

    def epoch_done(*_: object) -> None:
        nonlocal left
        if left > 0:  # a number of steps may take more epochs
            left -= len(todo)
            report(len(todo))

    heads = fit_heads(
        rows.train,
        task.targets(task.train),
        [Trial(loss, config.lr, config.weight_decay) for config, loss, _ in todo],
        optimization_of(shared, task.labels, len(task.train)),
        seed=shared.seed,
        validation=None if rows.val is None or task.val is None else (rows.val, task.targets(task.val)),
        on_epoch=epoch_done,
        checkpoints=checkpoints,
    )
    report(left)  # epochs that were not needed: an early stop, or L-BFGS, which has none
    return heads


def has_all(run: Run, config: ProbeConfig) -> bool:
    """Whether a run is finished and kept what a configuration asks for: a search keeps its result only."""
    return run.status == "diverged" or (run.status == "finished" and (run.keeps or not config.keep))


def optimization_of(config: ProbeConfig, labels: Literal["leaves", "nodes"], samples: int) -> Optimization:
    """The settings that all heads of a pass share, for a number of training samples."""
    ball = config.head.ball
    start = config.start
    if start == "auto":
        start = "zeros" if labels == "nodes" and ball is None else "random"
    epochs = config.epochs
    if config.steps is not None:
        epochs = max(1, round(config.steps / -(-samples // config.batch_size)))
    return Optimization(
        start=start,
        ball=ball,
        epochs=epochs,
        optimizer=config.optimizer,
        schedule=config.schedule,
        batch_size=config.batch_size,
        momentum=config.momentum,
        bias=config.bias,
        patience=config.patience,
        tolerance=config.tolerance,
        max_iter=config.max_iter,
    )


def _losses(
    configs: Sequence[ProbeConfig], tasks: Mapping[int | None, Task[Features]]
) -> list[HierarchicalLoss]:
    """A loss for each run; runs with equal losses share the object, so that one call computes them all."""
    built: dict[str, HierarchicalLoss] = {}
    losses = []
    for config in configs:
        task = tasks[config.data.shuffle]
        key = json.dumps([config.loss.to_dict(), config.data.shuffle], sort_keys=True)
        if key not in built:
            built[key] = config.loss.build(task.tree, task.labels)
        losses.append(built[key])
    return losses


def _finish(
    writer: RunWriter,
    config: ProbeConfig,
    loss: HierarchicalLoss,
    head: FittedHead,
    task: Task[Features],
    rows: _Rows,
    seconds: float,
) -> None:
    """Evaluate a trained head and write its run."""
    began = time.monotonic()
    about = {
        "samples": len(task.train),
        "features": int(rows.evaluated.shape[1]),
        "outputs": loss.num_outputs,
        "epochs": head.epochs,
        "unseen_classes": task.unseen,
        **({} if head.converged is None else {"converged": head.converged}),
    }
    writer.write_log(list(head.history))
    if head.diverged is not None:
        writer.finish(diverged_result(config.evaluate, head.diverged, about, seconds))
        return
    weights = {"weight": head.weight, **({} if head.bias is None else {"bias": head.bias})}
    weights |= rows.scaling.tensors()

    def outputs(split: Features) -> Iterable[Tensor]:
        x = rows.evaluated if split is task.evaluated or rows.val is None else rows.val
        return head_outputs(x, weights, config.head.ball)

    def elapsed() -> float:
        return seconds + time.monotonic() - began

    keeps_weights = config.keep or writer.run.keeps
    if not keeps_weights and config.evaluate == "val":
        writer.finish(search_result(task, loss, outputs(task.evaluated), about, elapsed))
        return
    outcome = evaluate_run(config, task, loss, outputs)
    result = outcome.result(config.evaluate, about, elapsed())
    if keeps_weights:
        tree = None if config.data.induce is None else loss.hierarchy
        writer.finish(result, weights, outcome.predictions(), config if config.keep else None, tree)
    else:
        writer.finish(result)


@dataclass(frozen=True, eq=False)
class Scaling:
    """How features are scaled before the head."""

    how: str  # as in `ProbeConfig.normalize`
    mean: np.ndarray | None = None  # (d,) float32, with "standard": of the training samples
    std: np.ndarray | None = None

    @classmethod
    def fitted(cls, how: str, x: np.ndarray) -> Scaling:
        """The scaling for a head that trains on these features."""
        return cls(how, *column_moments(x)) if how == "standard" else cls(how)

    @classmethod
    def stored(cls, how: str, weights: Mapping[str, Tensor], source: object) -> Scaling:
        """The scaling of a trained head, from its weights."""
        if how != "standard":
            return cls(how)
        if "mean" not in weights or "std" not in weights:
            raise FormatError(
                f"{source} must hold mean and std of the training features, which normalize='standard' needs. Got "
                "neither: train the run again."
            )
        return cls(how, weights["mean"].numpy(), weights["std"].numpy())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to store beside the weights."""
        if self.mean is None or self.std is None:
            return {}
        return {"mean": torch.from_numpy(self.mean), "std": torch.from_numpy(self.std)}

    def __call__(self, x: Any, what: str = "given", first: int = 0) -> Any:
        """(M, d) float32, scaled: a tensor, or rows that stay on disk."""
        if isinstance(x, RowsOnDisk):
            return x.scaled(self)
        if self.how == "unit":
            return torch.from_numpy(finite(unit_rows(x), what, first))
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are reported
            x = finite(x.astype(np.float32), what, first)
        return torch.from_numpy(x if self.mean is None else (x - self.mean) / self.std)


def finite(x: np.ndarray, what: str, first: int = 0) -> np.ndarray:
    """The features, if all are finite."""
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(bad):
        raise DataError(
            f"Features must be finite. Got NaN or infinite values in {len(bad):,} of {len(x):,} {what} samples, the first of "
            f"them sample {first + bad[0]}. Drop these samples, or compute their features again."
        )
    return x


def check_width(width: int, weights: Mapping[str, Tensor]) -> None:
    """Refuse features of another width than the head's."""
    expected = weights["weight"].shape[1]
    if width != expected:
        raise DataError(
            f"Features must have {expected} columns, as in training. Got {width}: they come from another model, or from "
            "another layer of it."
        )


def head_outputs(
    x: Tensor | RowsOnDisk, weights: Mapping[str, Tensor], ball: PoincareBall | None = None
) -> Iterator[Tensor]:
    """Chunks (B, C) of a head's raw outputs."""
    check_width(x.shape[1], weights)
    layer = nn.functional.linear if ball is None else ball.logits
    for rows in x.split(_ROWS):
        yield layer(rows, weights["weight"], weights.get("bias"))
