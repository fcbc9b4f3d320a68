"""The model of a finished run, rebuilt exactly as it was: a head on features, or a network trained on images.

    rescored("runs/4cd033b43672ca23").report().values["leaves", "top-1"]

scores a run on its own data again, with any evaluation. The data must be those of the run, to the byte: their fingerprint, which
covers the content of every file, and that of their hierarchy are compared. `calibrate_run` calibrates it on the samples it held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hace.checks import check_choice
from hace.data import Dataset, Features, Samples, load_dataset
from hace.data.batches import Preprocessing, make_batches
from hace.data.split import Split
from hace.decisions.calibration import Calibration, calibrate_scores, read_calibration
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.weights import fill
from hace.files.writing import sha256
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import label_nodes
from hace.lab.features.backbones import Backbone, load_backbone, load_encoder
from hace.lab.features.store import MANIFEST, FeatureStore, manifest_differences
from hace.lab.probe import Scaling, check_width, head_outputs
from hace.lab.runs.config import DataConfig, ProbeConfig, TrainConfig
from hace.lab.runs.process import choose_device, choose_workers
from hace.lab.runs.result import ScoreView, evaluate_outputs
from hace.lab.runs.run import CALIBRATION, CONFIG, HIERARCHY, WEIGHTS, DataPrint, Run, read_run
from hace.lab.runs.samples import data_of, make_task
from hace.lab.train.loop import DTYPES, initial_model
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall
from hace.metrics.evaluation import Evaluation


def open_finished(folder: str | Path) -> Run:
    """A run that has a model."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FormatError(f"{folder} does not exist. Give a run that `hace probe` or `hace train` wrote.")
    run = read_run(folder)
    if run.status == "unfinished":
        raise FormatError(f"{folder} is not finished. Run the command that started it again to resume.")
    if run.status == "diverged":
        raise FormatError(f"{folder} has no model: its training diverged. Take a run with a lower rate.")
    return run


@dataclass(frozen=True, eq=False)
class Vision:
    """How a model sees images."""

    transform: Callable[[Any], Any]  # from a PIL image to (3, H, W); texts stay as they are
    outputs: Callable[[Any], Tensor]  # from a batch of them to the raw outputs (B, C) of the model's head
    batch_size: int  # that of the run's own features or evaluation, which gives the same bits


@dataclass(frozen=True, eq=False)
class ProbeHead:
    """The last layer of a finished probe."""

    run: Run
    loss: HierarchicalLoss  # on the tree it was trained with
    weights: Mapping[str, Tensor]  # "weight" (C, d), and "bias" (C,) if it has one
    scaling: Scaling  # of the features, before the layer
    ball: PoincareBall | None = None  # of a hyperbolic layer

    def outputs(self, x: np.ndarray, what: str = "given", first: int = 0) -> Iterable[Tensor]:
        """Chunks (B, C) of raw outputs for features (M, d); `what` and `first` name them in messages, as in `Scaling`."""
        check_width(x.shape[1], self.weights)
        return head_outputs(self.scaling(x, what, first), self.weights, self.ball)

    def vision(self, checkpoint: str | Path | None, device: torch.device) -> Vision:
        """The frozen model behind the features, followed by this head; arguments as of :func:`backbone_of`."""
        backbone = backbone_of(self.run, checkpoint, device)

        def outputs(images: Tensor) -> Tensor:
            return torch.cat(list(self.outputs(backbone(images).cpu().numpy())))

        return Vision(backbone.transform, outputs, self.run.about["data"]["source"]["compute"]["batch_size"])


def load_probe(run: Run) -> ProbeHead:
    """The model of a finished probe."""
    assert isinstance(run.config, ProbeConfig)
    weights, loss = run.weights(), run.config.loss.build(run.tree)
    shape = tuple(weights["weight"].shape) if "weight" in weights else ()
    if len(shape) != 2 or shape[0] != loss.num_outputs:
        raise FormatError(
            f"{run.folder / WEIGHTS} does not fit the run: its loss has {loss.num_outputs} outputs, the weights have shape "
            f"{shape}."
        )
    scaling = Scaling.stored(run.config.normalize, weights, run.folder / WEIGHTS)
    return ProbeHead(run, loss, weights, scaling, run.config.head.ball)


def backbone_of(run: Run, checkpoint: str | Path | None, device: torch.device) -> Backbone:
    """The frozen model behind a probe's features, exactly as it was, or an error that says what differs."""
    source = run.about["data"].get("source")
    if source is None:
        raise ConfigError(
            f"{run.folder} was trained on features whose model is not known, so it cannot see images. Give it features from "
            "the same model: a file with X (M, d). Probes on a folder of `hace features` remember their model."
        )
    recorded = source.get("checkpoint")
    if checkpoint is None and recorded is not None:
        if not Path(recorded).exists():
            raise ConfigError(
                f"The features of {run.folder} come from {source['model']['name']} with weights from {recorded}, which is not "
                "here. Give that file: --checkpoint FILE (checkpoint=)."
            )
        checkpoint = recorded
    model, seen = source["model"], source["preprocessing"]
    if seen.get("text"):
        backbone = load_encoder(model["name"], checkpoint=checkpoint, device=device)
    else:
        sizes = {"image_size": seen["input_size"][1], "crop_pct": seen["crop_pct"]}
        how = {"pool": model["pool"], "dtype": source["compute"]["dtype"], "device": device}
        backbone = load_backbone(model["name"], checkpoint=checkpoint, **sizes, **how)
    if backbone.weights != model["weights"]:
        where = f"--checkpoint {checkpoint}" if checkpoint else "the model hub"
        raise ConfigError(
            f"The features of {run.folder} come from {model['name']} with the weights {model['weights'][:12]}, and "
            f"{where} has {backbone.weights[:12]}. Give the file they were made with: --checkpoint FILE (checkpoint=)."
        )
    different = "\n  ".join(manifest_differences(seen, backbone.preprocessing))
    if different:
        library, what = ("sentence-transformers", "texts") if seen.get("text") else ("timm", "images")
        here = f"This version of {library} preprocesses {what} for {model['name']}"
        raise ConfigError(f"{here} differently:\n  {different}")
    return backbone


@dataclass(frozen=True, eq=False)
class Trained:
    """A network trained on images, with everything needed to use it."""

    run: Run  # the run it comes from
    model: nn.Module  # in evaluation mode: images (B, 3, size, size) to outputs (B, loss.num_outputs)
    loss: HierarchicalLoss  # the loss, which defines the outputs: `loss.node_log_probs(z)`, `loss.leaf_logits(z)`
    hierarchy: Hierarchy  # of the results; the loss's own differs after training on a shuffled tree
    preprocessing: Preprocessing  # sizes and statistics
    transform: Callable[[Any], Tensor]  # from a PIL image of any size to the tensor that the model sees
    device: torch.device  # where the model is

    def __call__(self, images: Tensor) -> Tensor:
        """Outputs (B, num_outputs) of transformed images, on the CPU, computed as in the run's own evaluation."""
        dtype, images = DTYPES[self.config.precision], images.to(self.device)
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            return self.model(images).float().cpu()

    @property
    def config(self) -> TrainConfig:
        """What it was trained by."""
        assert isinstance(self.run.config, TrainConfig)
        return self.run.config

    def outputs(self, samples: Samples) -> Iterator[Tensor]:
        """Outputs of all samples, batch by batch, in order: those of the run's own evaluation, bit for bit."""
        size, workers = self.config.batch_size, choose_workers(self.config.workers, self.device)
        view = self.preprocessing
        batches = make_batches(samples, size, view, labels="nodes", workers=workers, device=self.device)
        for x, _ in batches.epoch(0):
            yield self(x)


def load_trained(run: Run | str | Path, device: str = "cpu") -> Trained:
    """The model of a finished run of `hace train`.

    Args:
        run: The run, or its directory.
        device: As of `TrainConfig`.

    Raises:
        ConfigError: A run of another kind.
        FormatError: The run is not finished, kept no weights, or they do not belong to it.
    """
    run = run if isinstance(run, Run) else read_run(run)
    config = run.config
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"{run.folder} is a run of kind {config.kind!r}, not a model trained on images.")
    if run.status != "finished":
        raise FormatError(f"{run.folder} has no trained model: it is {run.status}.")
    weights, loss = run.weights(), run.config.loss.build(run.tree)
    view = Preprocessing.from_dict(run.about["data"]["source"]["preprocessing"])
    chosen = choose_device(device)
    model = initial_model(config, loss, view, chosen).eval()
    fill(model, weights, run.folder / WEIGHTS)
    return Trained(run, model, loss, run.hierarchy, view, view.transform(), chosen)


# --- a run on its own data again

SPLITS = ("test", "val", "train")


@dataclass(frozen=True, eq=False)
class Rescored:
    """A model and the samples to evaluate it on."""

    run: Run  # the run
    split: str  # which samples: "test", "val" or "train"; of other data, their name
    samples: Split  # the samples
    loss: HierarchicalLoss  # what the model was trained with
    outputs: Callable[[], Iterable[Tensor]]  # chunks of the model's raw outputs, anew at every call
    passed_over: int = 0  # samples labelled above the leaves that the run would have held out, were they not

    @property
    def hierarchy(self) -> Hierarchy:
        """The tree of the results."""
        return self.run.hierarchy

    @property
    def temperature(self) -> float | None:
        """The temperature of the run's result; None where it has none, or was fitted on these samples."""
        fitted = (self.run.result or {}).get("temperature") or {}
        return None if fitted.get("source") == self.split else fitted.get("value")

    def check_comparable(self, other: Rescored) -> None:
        """Refuse to compare with a run on other samples.

        Raises:
            DataError: The hierarchies or the samples differ.
        """
        runs = f"{self.run.folder} and {other.run.folder}"
        a, b = self.samples, other.samples
        if self.hierarchy.fingerprint != other.hierarchy.fingerprint:
            raise DataError(f"{runs} have different hierarchies, so they do not compare.")
        if list(a.names) != list(b.names) or not np.array_equal(a.nodes, b.nodes):
            raise DataError(
                f"{runs} have different {self.split} samples: {len(a):,} and {len(b):,}. Compare runs on the same samples."
            )

    def report(self, *, temperature: float | None = None, **options: Any) -> Evaluation:
        """All metrics; options as of :func:`hace.evaluate`, by default those of the run's result."""
        options["temperature"] = self.temperature if temperature is None else temperature
        options.setdefault("groups", self.samples.groups)
        samples = self.outputs(), self.samples.nodes
        return evaluate_outputs(self.loss, *samples, self.hierarchy, **options).report


def rescored(
    folder: str | Path,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    device: str = "cpu",
    data: str | Path | None = None,
    checkpoint: str | Path | None = None,
    coarse: bool = False,
) -> Rescored:
    """A finished run on its data again, or on other labelled data: a new year, a new site.

    Args:
        folder: The run directory.
        root: Where its data are now, if they were moved.
        split: "test", "val" (the samples it held out) or "train"; by default that of its result. Of other data one of their
            splits; by default "test" if they have it, else all.
        device: Where the model computes.
        data: Other data, labelled with classes of the run's hierarchy: a folder of class folders, a CSV list of images, a file
            of features or a folder of `hace features`.
        checkpoint: For a probe on images: weights of the model behind its features, where they are not in their old place.
        coarse: Whether "val" includes samples labelled above the leaves, where the data have a split of that name.

    Raises:
        FormatError: Not a finished run with a model.
        ConfigError: The run has no such samples.
        DataError: The data are not those of the run, or cannot be found.
    """
    run = open_finished(folder)
    model = load_trained(run, device) if run.config.kind == "train" else load_probe(run)
    if data is not None:
        samples = other_samples(run.hierarchy, Path(data), split, run)
        outputs = _outputs_on(model, samples, checkpoint, device)
        return Rescored(run, Path(data).name, samples, model.loss, outputs)
    split = split or run.config.evaluate
    check_choice("split", split, SPLITS)
    source = _load_data(run, root)
    if isinstance(model, ProbeHead):
        features = source["train"]
        if not isinstance(features, Features):
            raise DataError(f"{source.name} holds images, and {run.folder} was trained on features.")
        check_width(features.num_features, model.weights)  # before the fingerprint, because it says more
    _check_same_data(run, source)
    samples, passed_over = _samples_of(run, source, split, coarse)
    outputs = _outputs_on(model, samples, checkpoint, device, split)
    return Rescored(run, split, samples, model.loss, outputs, passed_over)


def _outputs_on(
    model: ProbeHead | Trained, samples: Any, checkpoint: str | Path | None, device: str, what: str = "given"
) -> Callable[[], Iterable[Tensor]]:
    """From nothing to chunks of a model's raw outputs on samples, features or images."""
    if isinstance(model, Trained):
        if isinstance(samples, Features):
            raise ConfigError(f"{model.run.folder} was trained on images, and cannot take features.")
        return lambda: model.outputs(samples)
    if isinstance(samples, Features):
        return lambda: model.outputs(samples.x, what)
    vision = model.vision(checkpoint, choose_device(device))

    def seen() -> Iterator[Tensor]:
        for start in range(0, len(samples), vision.batch_size):
            rows = range(start, min(start + vision.batch_size, len(samples)))
            yield vision.outputs(torch.stack([vision.transform(samples.image(i)) for i in rows]))

    return seen


def other_samples(h: Hierarchy, path: Path, split: str | None = None, run: Run | None = None) -> Any:
    """Labelled samples over a hierarchy that a run, or the model of a file, was not made with."""
    if (path / MANIFEST).is_file():
        store = FeatureStore(path)
        if run is not None:
            check_same_features(run, store.about)
        found = store.dataset("none")
        known = {}
        for name, part in found.splits.items():
            ids = np.array([found.hierarchy.nodes[v] for v in part.nodes], dtype=str)
            known[name] = replace(part, hierarchy=h, nodes=label_nodes(ids, h, "id", f"{path}, {name}"))
        found = replace(found, hierarchy=h, splits=known)
    else:
        lists = path.suffix.lower() in (".csv", ".tsv")
        kind = "folders" if path.is_dir() else "manifest" if lists else "features"
        found = load_dataset(kind, path, hierarchy=h, allow_empty=True)
    if split is None and "test" not in found.splits:
        parts = list(found.splits.values())
        return type(parts[0]).joined(parts)
    return found[split or "test"]


def check_same_features(run: Run, about: Mapping[str, Any] | None) -> None:
    """Refuse features that were made in another way than those of a run, as far as both say how."""
    source = run.about["data"].get("source")
    if about is None or source is None:
        return
    made, now = ({key: d.get(key) for key in ("model", "preprocessing")} for d in (source, about))
    different = "\n  ".join(manifest_differences(made, now))
    if different:
        raise DataError(f"Features must be made as those of the training were. They differ:\n  {different}")


def _load_data(run: Run, root: str | Path | None = None) -> Dataset[Any]:
    """The data of a run, from their original place or another one, not compared yet."""
    config: DataConfig = run.config.data
    if root is not None:
        config = replace(config, root=str(root))
    if config.hierarchy is not None:  # the run keeps it, with or without a root as it was asked for
        config = replace(config, hierarchy=str(run.folder / HIERARCHY), root_node=None)
    try:
        return data_of(config)
    except HaceError as error:
        raise DataError(
            f"The data of {run.folder} cannot be loaded: {error} If they were moved, say where they are: "
            "--data-root (root=)."
        ) from error


def _check_same_data(run: Run, source: Dataset[Any]) -> None:
    """Refuse data that are not those of the run."""
    here, was = DataPrint.of(source), run.about["data"]
    prints = {"hierarchy": (was["hierarchy"], here.hierarchy), "data": (was["fingerprint"], here.fingerprint)}
    for what, (before, now) in prints.items():
        if before != now:
            raise DataError(
                f"{here.name}: the {what} changed since the run {run.folder}: the fingerprint was {before[:12]} and is "
                f"{now[:12]}. Bring the old files back, or train again."
            )


def _samples_of(run: Run, source: Dataset[Any], split: str, coarse: bool) -> tuple[Any, int]:
    """The samples of a run by name, and how many it would have held out, were they not labelled above the leaves."""
    if split == "test":
        return source["test"], 0
    task = make_task(source, run.config)
    if split == "train":
        return task.train, 0
    if task.val is None:
        raise ConfigError(f"{run.folder} held out no validation samples. Take the split test or train.")
    if not coarse:
        return task.val, task.passed_over
    if run.config.validation == "split":
        return source["val"], 0
    raise ConfigError(
        f"--coarse count must come with samples that the run was not trained on. Got {run.folder}, which "
        f"{_fate(source['train'])} those labelled above the classes. Calibrate on other data: --samples PATH (data=)."
    )


def _fate(samples: Split) -> str:
    """What a run that holds out a share does with samples of it that are labelled above the classes."""
    return "was trained on" if samples.groups is None else "has no use for"


_ABOUT_CLASSES = (
    "the guarantee is about samples that can be told to a class. To include such samples, calibrate on labelled data with both: "
    "--samples PATH --coarse count."
)


def _coarse_note(scored: Rescored, counted: bool, held_out: bool) -> str | None:
    """What became of samples labelled above the classes, of those the run `held_out` or of others."""
    samples = scored.samples
    above = len(samples) - len(samples.leaf_only())
    all_of_them = (
        f"of {len(samples) + scored.passed_over:,} {scored.split} samples are labelled above the classes"
    )
    if counted and above:
        return (
            f"{above:,} {all_of_them} and count: an answer below such a label counts as false, which is the safe reading. "
            "--coarse drop leaves them out."
        )
    if held_out and scored.passed_over and scored.run.config.validation != "split":
        return (
            f"The run held out {len(samples):,} samples; {scored.passed_over:,} more were chosen, are labelled above the classes, "
            f"and it {_fate(samples)} them instead: {_ABOUT_CLASSES}"
        )
    dropped = above + scored.passed_over
    return f"{dropped:,} {all_of_them} and are left out: {_ABOUT_CLASSES}" if dropped else None


def calibrate_run(
    folder: str | Path,
    accuracy: float | Sequence[float] | None = None,
    *,
    of: str | Sequence[str] | None = None,
    confidence: float | None = None,
    rule: str = "threshold",
    group_share: float | None = None,
    split: str = "val",
    root: str | Path | None = None,
    temperature: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    data: str | Path | None = None,
    checkpoint: str | Path | None = None,
    coarse: str = "auto",
    out: str | Path | None = None,
    pool: str | None = None,
    subset: Sequence[str] | None = None,
    prior: Mapping[str, float] | None = None,
) -> Calibration:
    """Calibrate a finished run on samples it was not trained on, and write calibration.json into it.

    Args:
        folder: The run directory.
        accuracy, of, confidence, rule, group_share: What to guarantee; as of :func:`calibrate_scores`.
        split: "val", the samples the run held out. "test" spends the test samples: accuracy on them is no longer a test.
        root: Where its data are now, if they were moved.
        temperature: Fitted on other samples. None: that of the run, if it has it from its configuration; otherwise it is
            fitted on a third of the samples.
        seed: Chooses that third.
        device: Where the model computes.
        data: Other labelled data instead, and
        checkpoint: the weights behind the features of a probe on images; both as of :func:`hace.rescored`.
        coarse: What becomes of samples labelled above the leaves: "drop", or "count": an answer below such a label counts as
            false, which is the safe reading. "auto" drops them from samples that the run held out, and counts others.
        out: Where to write the calibration instead.
        pool, subset, prior: As of :func:`calibrate_scores`. Groups are those of the data, where they have any.

    Raises:
        ConfigError: The run held out no samples.
        DataError: Too few samples for what was asked, or other data than the run's.
    """
    run = open_finished(folder)
    check_choice("split", split, ("val", "test"))
    check_choice("coarse", coarse, ("auto", "drop", "count"))
    if data is None and split == "val" and not run.config.validation:
        raise ConfigError(
            f"{folder} held out no samples to calibrate on: it was trained on all of them. Train the same with some held out: "
            f"hace {run.config.kind} --config {run.folder / CONFIG} --validation 0.1; or calibrate scores of other samples: "
            "hace calibrate --hierarchy FILE --scores FILE --labels FILE. --split test spends the test samples."
        )
    count = coarse == "count" or (coarse == "auto" and (data is not None or split == "test"))
    given = {"data": data, "checkpoint": checkpoint, "coarse": count}
    scored = rescored(folder, root=root, split=None if data is not None else split, device=device, **given)
    used = np.arange(len(scored.samples)) if count else scored.samples.leaf_only()
    view = ScoreView(scored.loss, scored.hierarchy, temperature=1.0)
    found = calibrate_scores(
        torch.cat([view(z) for z in scored.outputs()])[used],
        scored.samples.nodes[used],
        scored.hierarchy,
        accuracy,
        of=of,
        confidence=confidence,
        rule=rule,
        group_share=group_share,
        outputs=view.outputs,
        temperature=temperature if temperature is not None else run.config.temperature,
        split=scored.split,
        seed=seed,
        groups=scored.samples.groups,
        pool=pool,
        subset=subset,
        prior=prior,
    )
    notes = found.notes
    note = _coarse_note(scored, count, held_out=data is None and split == "val")
    if note is not None:
        notes += (note,)
    if data is None and split == "test":
        notes += ("The test samples were used for calibration: accuracy on them is no longer a fair test.",)
    elif data is None and isinstance(run.config, ProbeConfig) and run.config.patience is not None:
        notes += (
            "The calibration samples chose the epoch (patience), so guarantees are slightly optimistic.",
        )
    found = replace(found, weights=_weights_hash(run), notes=notes)
    found.write(run.folder / CALIBRATION if out is None else out)
    return found


def _weights_hash(run: Run) -> str:
    return run.files.get(WEIGHTS) or sha256(run.folder / WEIGHTS)


def calibration_of(run: Run, given: str | Path | None = None) -> Calibration:
    """The calibration in a run directory, or in a file made for this run or from its scores."""
    path, again = Path(given or run.folder / CALIBRATION), f"hace calibrate {run.folder}"
    if not path.is_file():
        raise ConfigError(
            f"{run.folder} must be calibrated before it can guarantee an accuracy: it has no {CALIBRATION}. Run: {again}"
        )
    found = read_calibration(path, f" Calibrate again: {again}")
    found.check_hierarchy(run.hierarchy, path, again)
    weights = _weights_hash(run)
    if found.weights != weights and not (given and found.weights is None):
        raise ConfigError(
            f"{path} must be made with the weights of the run. It was made with {str(found.weights)[:12]}, and the run has "
            f"{weights[:12]}. Calibrate again: {again}"
        )
    return found
