"""Answers of a finished run on new images, for deployment.

    predictor = Predictor.from_run("runs/4cd033b43672ca23")
    predictions = predictor.predict("photos", threshold=0.9)
    predictions.answers.names, predictions.leaves.ids, predictions.to_frame()

A run that was trained end to end sees images by itself. A probe sees them through the frozen model that made its features,
which is rebuilt as `hace features` recorded it: the same model, weights, pooling and preprocessing, or an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hace.decisions import Decisions, GuaranteedThreshold
from hace.decisions.rules import at_level, deepest_above, top_k
from hace.decisions.scores import log_q, subset_leaves
from hace.errors import ConfigError, DataError
from hace.hierarchy import Hierarchy
from hace.lab.features.plan import manifest_differences
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import Run
from hace.lab.serve.calibration import Calibration, calibration_of, check_promise
from hace.lab.serve.inputs import Broken, FeatureRows, ImageList, as_inputs
from hace.lab.serve.predictions import Predictions
from hace.lab.serve.rescoring import ProbeHead, load_probe, open_finished
from hace.lab.serve.trained_model import Trained, load_trained
from hace.lab.serve.vision import Vision, probe_vision, trained_vision
from hace.losses.base import HierarchicalLoss

_ROWS = 1024  # features per batch
SHOWN = 20  # broken images


@dataclass(frozen=True)
class Question:
    """The options of a prediction, the same for every sample.

    Attributes:
        top_k: How many leaves to give, best first; fewer where there are not as many.
        threshold: The answer is the deepest node of at least this probability; one number, or one per level.
        level: The answer is the best node of a level, by depth or name.
        subset: Ids of classes, or of inner nodes for all classes below, to restrict answers to; their probabilities are
            renormalised.
        accuracy: The answer keeps a promise: at most 1 - accuracy of all samples get a false one. The run must be calibrated.
        of: "samples": the promise is about all samples. "answers": of the answers that say something, so many are true.

    Without threshold and level the answer is the best leaf.
    """

    top_k: int = 5
    threshold: float | Sequence[float] | None = None
    level: int | str | None = None
    subset: Sequence[str] | None = None
    accuracy: float | None = None
    of: str = "samples"

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1. Got {self.top_k}.")
        ways = {"threshold": self.threshold, "level": self.level, "accuracy": self.accuracy}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are ways to choose the rank of the answer: give one.")
        if self.accuracy is not None:
            check_promise(self.accuracy, self.of)
            if self.subset is not None:
                raise ConfigError(
                    "accuracy must come without subset: the promise is about answers among all classes."
                )


class Predictor:
    """A trained model with its hierarchy, ready for new images.

    Args:
        run: A finished run.
        checkpoint: For a probe: the weights of the model behind its features, where they do not come from the hub.
        device: Where to compute.

    Attributes:
        hierarchy: The classes.
        loss: The loss it was trained with, which defines the model's outputs.

    Example:
        >>> import tempfile
        >>> from hace.lab.runs.config import DataConfig, ProbeConfig
        >>> from hace.lab.probe.probe import run_probes
        >>> data = DataConfig("synthetic-features", options={"classes": 4, "dim": 8})
        >>> (run,) = run_probes([ProbeConfig(data=data, epochs=3)], tempfile.mkdtemp())
        >>> predictions = Predictor.from_run(run.folder).predict(torch.zeros(2, 8), threshold=0.9)
        >>> predictions.answers.ids  # features of zeros are uninformative, so there is no answer
        ['root', 'root']
    """

    hierarchy: Hierarchy
    loss: HierarchicalLoss

    def __init__(
        self, run: Run, *, checkpoint: str | Path | None = None, device: str | torch.device = "cpu"
    ) -> None:
        self.run, self.checkpoint, self.device = run, checkpoint, torch.device(device)
        self.hierarchy = run.hierarchy
        self.model: Trained | ProbeHead
        if run.config.kind == "train":
            if checkpoint is not None:
                raise ConfigError(
                    f"checkpoint belongs to probes: {run.folder} was trained end to end, and has its weights."
                )
            self.model = load_trained(run, str(device))
        else:
            self.model = load_probe(run)
        self.loss = self.model.loss

    @classmethod
    def from_run(
        cls, folder: str | Path, *, checkpoint: str | Path | None = None, device: str | torch.device = "cpu"
    ) -> Predictor:
        """The model of a run directory, or of a file that `hace export` wrote.

        Raises:
            FormatError: Not a finished run, or a damaged one.
        """
        if is_exported(folder):
            from hace.lab.serve.exported import ExportedPredictor

            if checkpoint is not None:
                raise ConfigError(f"checkpoint must come with a run: {folder} has its weights.")
            return ExportedPredictor(folder)
        return cls(open_finished(folder), checkpoint=checkpoint, device=device)

    def __repr__(self) -> str:
        return f"<Predictor: {self.run.config.kind} {self.run.id} over {self.hierarchy!r}>"

    def predict(
        self,
        inputs: Any,
        *,
        top_k: int = 5,
        threshold: float | Sequence[float] | None = None,
        level: int | str | None = None,
        subset: Iterable[str] | None = None,
        accuracy: float | None = None,
        of: str = "samples",
        batch_size: int | None = None,
        workers: int = 0,
        skip_broken: bool = False,
    ) -> Predictions:
        """Answers for all samples at once; see :meth:`stream` for more than fit into memory.

        Args:
            inputs: A path as `hace predict` takes it; a PIL image or a uint8 array (H, W, 3); several paths or images; or,
                for a probe, features (M, d).
            top_k: See :class:`Question`.
            threshold: See :class:`Question`.
            level: See :class:`Question`.
            subset: See :class:`Question`.
            accuracy: See :class:`Question`.
            of: See :class:`Question`.
            batch_size: Samples at once.
            workers: Processes that read images; 0: this one.
            skip_broken: Leave out images that cannot be read; `predictions.broken` lists them.

        Raises:
            DataError: Images that cannot be read, listed; features that do not fit.
        """
        asked = Question(top_k, threshold, level, None if subset is None else list(subset), accuracy, of)
        parts = list(self.stream(inputs, asked, batch_size=batch_size, workers=workers))
        nothing = self.decide(self._nothing(), asked)
        found = Predictions.joined(parts) if parts else Predictions([], *nothing, promise=self.promise(asked))
        if found.broken and not skip_broken:
            raise DataError(broken_message(found.broken, len(found) + len(found.broken)))
        return found

    def stream(
        self,
        inputs: Any,
        question: Question | None = None,
        *,
        batch_size: int | None = None,
        workers: int = 0,
    ) -> Iterator[Predictions]:
        """Answers batch by batch, in constant memory; broken images are listed in the batch that they belong to.

        Args:
            inputs: As of :meth:`predict`.
            question: The options of a prediction, the same for every sample.
            batch_size: Samples at once.
            workers: Processes that read images; 0: this one.
        """
        given, asked = as_inputs(inputs), question or Question()
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1. Got {batch_size}.")
        if workers < 0:
            raise ConfigError(f"workers must be 0 or more. Got {workers}.")
        self.decide(self._nothing(), asked)  # what does not fit the hierarchy shows before any image is read
        start = 0
        for names, z, broken in self._outputs(given, batch_size, workers):
            leaves, answers = self.decide(z, asked)
            yield Predictions(names, leaves, answers, broken, start, self.promise(asked))
            start += len(names) + len(broken)

    def _outputs(
        self, given: ImageList | FeatureRows, batch_size: int | None, workers: int
    ) -> Iterator[tuple[list[str], Tensor, list[Broken]]]:
        """Names, raw outputs and broken images, batch by batch."""
        if isinstance(given, FeatureRows):
            head, first = self._head_for(given), 0
            for names, x in given.batches(batch_size or _ROWS):
                yield names, torch.cat(list(head.outputs(x, first=first))), []
                first += len(x)
            return
        vision = self.vision
        for names, images, broken in given.batches(
            vision.transform, batch_size or vision.batch_size, workers
        ):
            yield names, self._nothing() if images is None else vision.outputs(images), broken

    def decide(self, z: Tensor, asked: Question) -> tuple[Decisions, Decisions]:
        """The best leaves (B, k) and the answers (B,) from the model's raw outputs (B, C)."""
        h = self.hierarchy
        promise = self.promise(asked)
        temperature = None if promise is None else self.calibration.temperature
        view = ScoreView(self.loss, h, asked.subset is not None, temperature)
        scores = view(z.cpu())
        q = log_q(scores, h, kind=view.kind, outputs=view.outputs, subset=asked.subset)
        choices = h.num_leaves if asked.subset is None else len(subset_leaves(h, asked.subset))
        leaves = top_k(q, h, min(asked.top_k, choices))
        if promise is not None:
            answers = promise.predict(scores, h, kind=view.kind, outputs=view.outputs)
        elif asked.threshold is not None:
            answers = deepest_above(q, h, asked.threshold)
        elif asked.level is not None:
            answers = at_level(q, h, asked.level)
        else:
            answers = top_k(q, h)
        return leaves, answers

    def promise(self, asked: Question) -> GuaranteedThreshold | None:
        """What the answers to a question promise; None if it asks for no accuracy.

        Raises:
            ConfigError: The run is not calibrated for it; says the command to run.
        """
        if asked.accuracy is None:
            return None
        return self.calibration.promise(asked.accuracy, asked.of, self._calibrate)

    @property
    def _calibrate(self) -> str:
        """The command that calibrates it."""
        return f"hace calibrate {self.run.folder}"

    @cached_property
    def calibration(self) -> Calibration:
        """What `hace calibrate` wrote into the run.

        Raises:
            ConfigError: It is missing, or made for another hierarchy or other weights; says the command to run.
        """
        return calibration_of(self.run)

    def _nothing(self) -> Tensor:
        return torch.zeros(0, self.loss.num_outputs)

    @cached_property
    def vision(self) -> Vision:
        """How the model sees images; made when the first ones come, since features need none of it.

        Raises:
            ConfigError: The run cannot see images, or its model cannot be rebuilt as it was.
        """
        if isinstance(self.model, Trained):
            return trained_vision(self.model)
        return probe_vision(self.run, self.model, self.checkpoint, self.device)

    def _head_for(self, given: FeatureRows) -> ProbeHead:
        """The head, if it can take these features."""
        if isinstance(self.model, Trained):
            raise ConfigError(f"{self.run.folder} was trained on images, and cannot take features.")
        source = self.run.about["data"].get("source")
        if given.about is not None and source is not None:
            different = manifest_differences(
                *({k: d.get(k) for k in ("model", "preprocessing")} for d in (source, given.about))
            )
            if different:
                raise DataError(
                    "The features were made otherwise than those that the run was trained on:\n  "
                    + "\n  ".join(different)
                )
        return self.model


def is_exported(path: str | Path) -> bool:
    """Whether a path is that of an exported model: a file, or a folder with config.json and model.safetensors."""
    path = Path(path)
    return path.is_file() or ((path / "config.json").is_file() and (path / "model.safetensors").is_file())


def broken_message(broken: Sequence[Broken], total: int) -> str:
    """What is said of images that cannot be read: their names and reasons, up to twenty."""
    shown = [f"  {b.name}: {b.reason}" for b in broken[:SHOWN]]
    more = [f"  ... and {len(broken) - SHOWN:,} more"] if len(broken) > SHOWN else []
    return "\n".join([f"{len(broken):,} of {total:,} images cannot be read:", *shown, *more])
