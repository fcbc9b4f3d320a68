"""Answers of a finished run on new images, for deployment.

    predictor = Predictor.from_run("runs/latest")
    predictions = predictor.predict("photos", threshold=0.9)
    predictions.answers.names, predictions.leaves.ids, predictions.to_frame()

A run that was trained end to end sees images by itself. A probe sees them through the frozen model that made its features,
which is rebuilt as `hace features` recorded it: the same model, weights, pooling and preprocessing, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import is_number, require
from hace.data import Features, Samples
from hace.data.own_lists import Texts
from hace.data.split import Split
from hace.decisions import Decisions, GuaranteedThreshold
from hace.decisions.answering import Use, answer, deepest_labelled, stopped
from hace.decisions.bounds import group_places
from hace.decisions.calibration import (
    Calibration,
    calibrate_scores,
    check_guarantee,
    read_calibration,
)
from hace.decisions.node_sets import common_ancestors
from hace.decisions.rules import top_k
from hace.decisions.scores import Scores, subset_leaves
from hace.errors import ConfigError, DataError, amount
from hace.hierarchy import Hierarchy
from hace.lab.features.backbones import recorded_encoder
from hace.lab.probe import finite
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, RUN, Run
from hace.lab.serve.calibrate_run import calibration_of
from hace.lab.serve.export import image_view, open_program
from hace.lab.serve.inputs import EMPTY, Broken, Crop, FeatureRows, ImageList, TextList, as_inputs, as_texts
from hace.lab.serve.load_run import (
    Trained,
    Vision,
    check_same_features,
    load_probe,
    load_trained,
    open_finished,
)
from hace.lab.serve.rescore import other_samples
from hace.linear.model_files import hierarchy_of, stored_calibration
from hace.losses.base import HierarchicalLoss
from hace.losses.hace import CrossEntropyLoss, HCELoss

if TYPE_CHECKING:
    import pandas as pd

# From a total and 0 to what is called with each batch's samples.
Start = Callable[[int, int], Callable[[int], object]]
_ROWS = 1024  # features per batch
_IMAGES = 64  # images per batch of an exported file
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
        accuracy: The answer keeps a guarantee: at most 1 - accuracy of all samples get a false one. The run must be calibrated.
        of: "samples": the guarantee is about all samples. "answers": of the answers that say something, so many are true.
        pool: "log" or "mean": one answer per group; see :meth:`Predictor.predict`.
        prior: Prior weights of nodes, which apply to all below: how much likelier here than in training.
        nodes: With a threshold: the answer is at most so many nodes, "the truth is under one of these", that have this
            probability together and the fewest classes below. A calibration of sets names its own number.

    With accuracy, pool, subset and prior must be those of the calibration. Without threshold and level the answer is the best
    leaf.
    """

    top_k: int = 5
    threshold: float | Sequence[float] | None = None
    level: int | str | None = None
    subset: Sequence[str] | None = None
    accuracy: float | None = None
    of: str = "samples"
    pool: str | None = None
    prior: Mapping[str, float] | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        require("top_k", self.top_k, "at least 1", self.top_k >= 1)
        ways = {"threshold": self.threshold, "level": self.level, "accuracy": self.accuracy}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are ways to choose the rank of the answer: give one.")
        if self.nodes is not None and (self.threshold is None or not is_number(self.threshold)):
            raise ConfigError(
                f"nodes must come with one threshold. Got nodes={self.nodes} with threshold={self.threshold!r}. A guarantee of "
                "sets names its own number: hace calibrate --rule set --nodes 3."
            )
        if self.accuracy is not None:
            check_guarantee(self.accuracy, self.of)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Answers, one row per sample that could be read.

    Attributes:
        names: The samples: paths of images, names of features.
        leaves: (M, k) the most probable leaves, best first; their probabilities are among the leaves alone.
        answers: (M,) the answer: the best leaf, or the node that a threshold or a level asks for; of sets (M, K) their nodes.
        broken: The images that could not be read, with their place among all samples given.
        start: The place of the first sample.
        guarantee: What the answers guarantee, where an accuracy was asked for.
    """

    names: Sequence[str]
    leaves: Decisions
    answers: Decisions
    broken: Sequence[Broken] = ()
    start: int = 0
    guarantee: GuaranteedThreshold | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"<Predictions: {len(self):,} samples{broken} over {self.hierarchy!r}>"

    @property
    def hierarchy(self) -> Hierarchy:
        """The classes."""
        return self.answers.hierarchy

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """The predictions of several batches as one."""
        return cls(
            [name for part in parts for name in part.names],
            Decisions.joined([part.leaves for part in parts]),
            Decisions.joined([part.answers for part in parts]),
            [broken for part in parts for broken in part.broken],
            parts[0].start,
            parts[0].guarantee,
        )

    def documents(self) -> Iterator[dict[str, Any]]:
        """One document per sample, in the order given; a broken image has its reason as "error"."""
        reasons = {b.place: b for b in self.broken}
        single = self.answers if self.answers.nodes.dim() == 1 else common_ancestors(self.answers)
        answers = single.columns()
        paths = single.paths
        sets = self._sets()
        ids = self.leaves.ids
        names = self.leaves.names
        probabilities = self.leaves.probabilities.tolist()
        row = 0
        for place in range(self.start, self.start + len(self) + len(reasons)):
            if place in reasons:
                name, reason = reasons[place][1:]
                yield {"sample": name, **({"empty": True} if reason == EMPTY else {"error": reason})}
                continue
            best = zip(ids[row], names[row], probabilities[row], strict=True)
            yield {
                "sample": self.names[row],
                "answer": {
                    **{key: answers[key][row] for key in answers if key not in ("sample", "path")},
                    "path": list(paths[row]),
                    **({} if sets is None else {"nodes": sets[row]}),
                    **({} if self.guarantee is None else {"guarantee": self.guarantee.guarantee}),
                },
                "leaves": [{"id": node, "name": name, "probability": p} for node, name, p in best],
            }
            row += 1

    def _sets(self) -> list[list[dict[str, Any]]] | None:
        """The nodes of each answer, where answers are sets."""
        if self.answers.nodes.dim() == 1:
            return None
        columns = zip(self.answers.ids, self.answers.names, self.answers.probabilities.tolist(), strict=True)
        keys = ("id", "name", "probability")
        return [
            [dict(zip(keys, node, strict=True)) for node in zip(*answer, strict=True) if node[0] is not None]
            for answer in columns
        ]

    def row_columns(self) -> list[str]:
        """The columns of :meth:`rows`."""
        named = ["level_name"] if self.hierarchy.level_names is not None else []
        guaranteed = ["guarantee"] if self.guarantee is not None else []
        several = ["nodes"] if self.answers.nodes.dim() == 2 else []
        answer = ["name", "level", *named, "probability", "path", *several, *guaranteed]
        count = self.leaves.nodes.shape[1]
        leaves = [f"leaf_{i}{what}" for i in range(1, count + 1) for what in ("", "_name", "_probability")]
        return ["sample", "answer", *(f"answer_{key}" for key in answer), *leaves, "error"]

    def rows(self) -> Iterator[dict[str, Any]]:
        """:meth:`documents` as flat rows of a table, all with the same columns."""
        columns = self.row_columns()
        for document in self.documents():
            row = dict.fromkeys(columns) | {"sample": document["sample"], "error": document.get("error")}
            row |= {"answer_name": "empty"} if "empty" in document else {}
            leaves = {f"leaf_{i}": leaf for i, leaf in enumerate(document.get("leaves", ()), 1)}
            for what, node in {"answer": document.get("answer", {}), **leaves}.items():
                for key, value in node.items():
                    text = " > ".join(value) if key == "path" else value
                    text = " | ".join(one["id"] for one in value) if key == "nodes" else text
                    row[what if key == "id" else f"{what}_{key}"] = text
            yield row

    def to_frame(self) -> pd.DataFrame:
        """:meth:`rows` as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows()))


class Predictor:
    """A trained model with its hierarchy, ready for new images.

    Args:
        run: A finished run.
        checkpoint: For a probe: the weights of the model behind its features, where they do not come from the hub.
        device: Where to compute.
        calibration: A file of `hace calibrate` to use instead of the run's own.

    Attributes:
        hierarchy: The classes.
        loss: The loss it was trained with, which defines the model's outputs.

    Example:
        >>> import tempfile
        >>> from hace.lab.runs.config import DataConfig, ProbeConfig
        >>> from hace.lab.probe import probe
        >>> data = DataConfig("synthetic-features", options={"classes": 4, "dim": 8})
        >>> (run,) = probe([ProbeConfig(data=data, epochs=3)], tempfile.mkdtemp())
        >>> predictions = Predictor.from_run(run.folder).predict(torch.zeros(2, 8), threshold=0.9)
        >>> predictions.answers.ids  # features of zeros are uninformative, so there is no answer
        ['root', 'root']
    """

    hierarchy: Hierarchy
    loss: HierarchicalLoss

    def __init__(
        self,
        run: Run,
        *,
        checkpoint: str | Path | None = None,
        device: str | torch.device = "cpu",
        calibration: str | Path | None = None,
    ) -> None:
        self.run = run
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        self._calibrated_by = calibration
        self._has_calibration = calibration is not None or (run.folder / CALIBRATION).is_file()
        self.hierarchy = run.hierarchy
        trained = run.config.kind == "train"
        if trained and checkpoint is not None:
            raise ConfigError(f"checkpoint belongs to probes: {run.folder} was trained end to end.")
        self.model = load_trained(run, str(device)) if trained else load_probe(run)
        self.loss = self.model.loss
        self._calibrate = f"hace calibrate {run.folder}"

    @classmethod
    def from_run(
        cls,
        folder: str | Path,
        *,
        checkpoint: str | Path | None = None,
        device: str | torch.device = "cpu",
        calibration: str | Path | None = None,
    ) -> Predictor:
        """The model of a run directory, or of a file that `hace export` wrote; arguments as of the class.

        Raises:
            FormatError: Not a finished run, or a damaged one.
        """
        if is_exported(folder):
            if checkpoint is not None:
                raise ConfigError(f"checkpoint must come with a run: {folder} has its weights.")
            return ExportedPredictor(folder, calibration)
        return cls(open_finished(folder), checkpoint=checkpoint, device=device, calibration=calibration)

    def __repr__(self) -> str:
        return f"<Predictor: {self.run.config.kind} {self.run.id} over {self.hierarchy!r}>"

    @property
    def title(self) -> str:
        """What people call the model: the name of its data."""
        data = self.run.config.data
        return Path(data.root).stem if data.root else data.name

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
        prior: Mapping[str, float] | None = None,
        nodes: int | None = None,
        groups: Sequence[Any] | np.ndarray | None = None,
        pool: str = "mean",
        batch_size: int | None = None,
        workers: int = 0,
        skip_broken: bool = False,
    ) -> Predictions:
        """Answers for all samples at once; see :meth:`stream` for more than fit into memory.

        Args:
            inputs: A path as `hace predict` takes it; a PIL image or a uint8 array (H, W, 3); several paths or images; or,
                for a probe, features (M, d).
            top_k, threshold, level, subset, accuracy, of, prior, nodes: See :class:`Question`.
            groups: The burst, observation or recording of each sample: one answer for each group, named after it.
            pool: How the answers to a group become one: "mean", the mean of probabilities, which was better
                calibrated on frog calls, or "log", of log-probabilities.
            batch_size: Samples at once.
            workers: Processes that read images; 0: this one.
            skip_broken: Leave out images that cannot be read; `predictions.broken` lists them.

        Raises:
            DataError: Images that cannot be read, listed; features that do not fit.
        """
        chosen = None if subset is None else list(subset)
        how = None if groups is None else pool
        asked = Question(top_k, threshold, level, chosen, accuracy, of, how, prior, nodes)
        if groups is not None:
            predictions = self.pooled(
                self.inputs(inputs), asked, groups, batch_size=batch_size, workers=workers
            )
        else:
            nothing = Predictions(
                [], *self.decide(self.nothing(), asked), guarantee=self.threshold_for(asked)
            )
            parts = self.stream(inputs, asked, batch_size=batch_size, workers=workers)
            predictions = Predictions.joined([nothing, *parts])
        broken = [image for image in predictions.broken if image.reason != EMPTY]
        if broken and not skip_broken:
            raise DataError(broken_message(broken, len(predictions) + len(predictions.broken)))
        return predictions

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
        given = self.inputs(inputs)
        asked = question or Question()
        require("batch_size", batch_size, "at least 1", batch_size is None or batch_size >= 1)
        require("workers", workers, "0 or more", workers >= 0)
        self.decide(self.nothing(), asked)  # what does not fit the hierarchy shows before any image is read
        start = 0
        for names, z, broken in self._outputs(given, batch_size, workers):
            leaves, answers = self.decide(z, asked)
            yield Predictions(names, leaves, answers, broken, start, self.threshold_for(asked))
            start += len(names) + len(broken)
        if isinstance(given, ImageList) and given.empty:
            none = [Broken(start + i, name, EMPTY) for i, name in enumerate(given.empty)]
            yield Predictions([], *self.decide(self.nothing(), asked), none, start, self.threshold_for(asked))

    @property
    def _encoder(self) -> Mapping[str, Any] | None:
        """What the record says of the encoder of texts behind the features; None where there is none."""
        source = self.run.about["data"].get("source") or {}
        return source if (source.get("preprocessing") or {}).get("text") else None

    @property
    def reads_text(self) -> bool:
        """Whether it takes texts in place of images."""
        return self._encoder is not None

    def inputs(
        self,
        given: Any,
        column: str | None = None,
        boxes: Mapping[str, Any] | None = None,
        groups: str | None = None,
    ) -> ImageList | FeatureRows:
        """What :meth:`predict` takes, opened; `column` names the texts of a table, by default that of the training."""
        if self._encoder is None:
            return as_inputs(given, boxes, groups)
        return as_texts(given, column or self._encoder["column"])

    def pooled(
        self,
        given: ImageList | FeatureRows,
        asked: Question,
        groups: Sequence[Any] | np.ndarray,
        *,
        batch_size: int | None = None,
        workers: int = 0,
    ) -> Predictions:
        """One answer per group, in the order of their first samples; broken images are left out of theirs."""
        names, place = group_places(groups, len(given))
        self.decide(self.nothing(), asked)
        readable = []
        scores = []
        lost = []
        start = 0
        for names_of_batch, z, broken in self._outputs(given, batch_size, workers):
            scores.append(self._scores(z, asked).data)
            size = len(names_of_batch) + len(broken)
            out = {b.place for b in broken}
            readable += [i for i in range(start, start + size) if i not in out]
            lost += broken
            start += size
        view = self._scores(self.nothing(), asked)
        seen, first, at = np.unique(place[readable], return_index=True, return_inverse=True)
        order = np.argsort(first)
        every = replace(view, data=torch.cat([view.data, *scores]))
        asked = replace(asked, pool=asked.pool or "mean")
        decided = self._decided(every, asked, np.argsort(order)[at])
        pooled_names = [str(names[g]) for g in seen[order]]
        return Predictions(pooled_names, *decided, lost, guarantee=self.threshold_for(asked))

    def _outputs(
        self, given: ImageList | FeatureRows, batch_size: int | None, workers: int
    ) -> Iterator[tuple[list[str], Tensor, list[Broken]]]:
        """Names, raw outputs and broken images, batch by batch."""
        if isinstance(given, FeatureRows):
            self._check_features(given)
            first = 0
            for names, x in given.batches(batch_size or _ROWS):
                yield names, self.feature_outputs(x, first), []
                first += len(x)
            return
        vision = self.vision
        batches = given.batches(vision.transform, batch_size or vision.batch_size, workers)
        for names, images, broken in batches:
            yield names, self.nothing() if images is None else vision.outputs(images), broken

    def scores(self, given: ImageList | FeatureRows, progress: Start | None = None) -> tuple[Tensor, str]:
        """Scores (M, C) before any temperature, and what their columns are: "leaves" or "nodes".

        Args:
            given: Samples, opened by :meth:`inputs`.
            progress: Called with their number and 0; what it returns is called with the samples of every batch.
        """
        step = progress(len(given), 0) if progress is not None else lambda count: None
        view = ScoreView(self.loss, self.hierarchy, temperature=1.0)
        scores = [view(self.nothing())]
        broken = []
        for _, z, unread in self._outputs(given, None, 0):
            scores.append(view(z))
            broken += unread
            step(len(z) + len(unread))
        if broken:
            raise DataError(broken_message(broken, len(given)))
        return torch.cat(scores), view.outputs

    def decide(self, z: Tensor, asked: Question) -> tuple[Decisions, Decisions]:
        """The best leaves (B, k) and the answers (B,) from the model's raw outputs (B, C)."""
        return self._decided(self._scores(z, asked), asked)

    @cached_property
    def temperature(self) -> float | None:
        """That of its calibration, which calibrates every probability; None, so raw, where there is none for single samples."""
        calibration = self.calibration if self._has_calibration else None
        return None if calibration is None or calibration.pool else calibration.temperature

    def _scores(self, z: Tensor, asked: Question) -> Scores:
        """The scores of samples, as the model gives them."""
        use = any(x is not None for x in (asked.subset, asked.prior, asked.pool, self.temperature))
        view = ScoreView(self.loss, self.hierarchy, restricted=use)
        return Scores(view(z.cpu()), self.hierarchy, view.kind, view.outputs)

    def _decided(
        self, scores: Scores, asked: Question, places: np.ndarray | None = None
    ) -> tuple[Decisions, Decisions]:
        """The best leaves and the answers from raw scores; ``places``: the number of each sample's group."""
        h = self.hierarchy
        guarantee = self.threshold_for(asked)
        choices = h.num_leaves if asked.subset is None else len(subset_leaves(h, asked.subset))
        temperature = self.temperature or 1.0
        if asked.pool is not None:  # that of groups acts on pooled scores
            temperature = 1.0 if guarantee is None else self.calibration.temperature
            places = np.arange(len(scores)) if places is None else places
        scores = Use.of(asked.subset, asked.prior, asked.pool).prepared(scores, temperature, places)
        q = scores.log_q()
        leaves = top_k(q, h, min(asked.top_k, choices))
        if leaves.nodes.dim() == 1:  # a single leaf comes without the second dimension
            leaves = Decisions(h, leaves.nodes[:, None], leaves.probabilities[:, None])
        answers = answer(
            scores, guarantee=guarantee, threshold=asked.threshold, level=asked.level, nodes=asked.nodes
        )
        if guarantee is None and asked.threshold is None and asked.level is None:
            return leaves, answers
        return leaves, stopped(answers, scores, self.deepest)

    @cached_property
    def deepest(self) -> np.ndarray | None:
        """Deepest allowed answer per node; None if unrestricted."""
        return None

    def threshold_for(self, asked: Question) -> GuaranteedThreshold | None:
        """What the answers to a question guarantee; None if it asks for no accuracy."""
        if asked.accuracy is None:
            return None
        self.calibration.check_use(asked.pool, asked.subset, asked.prior, self._calibrate)
        return self.calibration.threshold_for(asked.accuracy, asked.of, self._calibrate)

    @cached_property
    def calibration(self) -> Calibration:
        """What `hace calibrate` wrote into the run; an error says the command to run."""
        return calibration_of(self.run, self._calibrated_by)

    @property
    def kinds(self) -> list[str]:
        """What it takes: "images" or "texts", "features", or both."""
        if isinstance(self.model, Trained):
            return ["images"]
        known = self.run.about["data"].get("source") is not None
        return [*([("texts" if self.reads_text else "images")] if known else []), "features"]

    @property
    def feature_names(self) -> list[str] | None:
        """The names of the features, in order; None where they have none."""
        return None

    @property
    def layer(self) -> str | None:
        """The layer of an AnnData that the features are in; None: its X."""
        return None

    @property
    def width(self) -> int:
        """The number of features, for models that take them."""
        assert not isinstance(self.model, Trained)
        return self.model.weights["weight"].shape[1]

    def nothing(self) -> Tensor:
        """Outputs of no sample."""
        return torch.zeros(0, self.loss.num_outputs)

    @cached_property
    def vision(self) -> Vision:
        """How the model sees images; made when the first ones come, since features need none of it."""
        if isinstance(self.model, Trained):
            return Vision(self.model.transform, self.model, self.model.config.batch_size)
        return self.model.vision(self.checkpoint, self.device)

    def _check_features(self, given: FeatureRows) -> None:
        """Refuse features that the model cannot take."""
        if isinstance(self.model, Trained):
            raise ConfigError(f"{self.run.folder} was trained on images, and cannot take features.")
        check_same_features(self.run, given.about)

    def feature_outputs(self, x: np.ndarray, first: int = 0) -> Tensor:
        """Raw outputs (B, C) of features (B, d); `first` is the number of their first row, for messages."""
        assert not isinstance(self.model, Trained)  # refused by _check_features
        return torch.cat(list(self.model.outputs(x, first=first)))


class ExportedPredictor(Predictor):
    """A :class:`Predictor` from a file of `hace export`, or from a folder with config.json and model.safetensors.

    Args:
        path: The file or folder.
        calibration: A file of `hace calibrate` to use instead of the one inside.
    """

    def __init__(self, path: str | Path, calibration: str | Path | None = None) -> None:
        self.path = Path(path)
        self.program = open_program(path)
        self._calibrated_by = calibration
        self.device = torch.device("cpu")
        self.document = self.program.document
        self._has_calibration = calibration is not None or self.document["calibration"] is not None
        self._calibrate = f"hace calibrate {path} --samples PATH"
        self.hierarchy = hierarchy_of(self.document, path)
        over = self.document["outputs"]["scores"]
        # The file's scores are logits whose softmax is over the leaves or the nodes: these losses read them as they are.
        self.loss = CrossEntropyLoss(self.hierarchy) if over == "leaves" else HCELoss(self.hierarchy)

    def __repr__(self) -> str:
        return f"<Predictor: {self.path.name} over {self.hierarchy!r}>"

    @property
    def title(self) -> str:
        """What people call the model: the name of its file."""
        return self.path.stem

    @cached_property
    def calibration(self) -> Calibration:
        """What `hace calibrate` had found when the run was exported, or wrote later."""
        if self._calibrated_by is not None:
            calibration = read_calibration(self._calibrated_by)
            calibration.check_hierarchy(self.hierarchy, self._calibrated_by, self._calibrate)
            return calibration
        if self.document["calibration"] is None:
            raise ConfigError(
                f"{self.path} must be calibrated before it can guarantee an accuracy. Run: {self._calibrate}; or calibrate the "
                "run and export it again."
            )
        return stored_calibration(self.document, self.hierarchy, self.path)

    @property
    def _encoder(self) -> Mapping[str, Any] | None:
        return self.document["architecture"].get("encoder")

    @cached_property
    def vision(self) -> Vision:
        """How the model sees images, or texts."""
        if self._encoder is not None:
            encoder = recorded_encoder(self._encoder, self.path)
            return Vision(str, lambda texts: self.program.run(encoder(texts))[0], _IMAGES)
        view = self.document["preprocessing"]
        if view is None:
            raise ConfigError(f"{self.path} takes features, and cannot see images.")
        return Vision(image_view(view), lambda images: self.program.run(images)[0], _IMAGES)

    @property
    def kinds(self) -> list[str]:
        """What it takes."""
        return [*(["texts"] if self.reads_text else []), self.document["input"]["name"]]

    @property
    def feature_names(self) -> list[str] | None:
        """The names of the features, in order; None where they have none."""
        return (self.document.get("estimator") or {}).get("feature_names")

    @property
    def layer(self) -> str | None:
        """The layer of an AnnData that the features are in; None: its X."""
        return (self.document.get("fit") or {}).get("layer")

    @property
    def width(self) -> int:
        """The number of features."""
        return self.document["input"]["shape"][1]

    def _check_features(self, given: FeatureRows) -> None:
        if self.document["preprocessing"] is not None:
            raise ConfigError(f"{self.path} takes images, and no features.")

    def feature_outputs(self, x: np.ndarray, first: int = 0) -> Tensor:
        """Raw outputs (B, C) of features (B, d)."""
        if x.shape[1] != self.width:
            raise DataError(f"Features must have {self.width} columns, as in training. Got {x.shape[1]}.")
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are reported
            x = finite(x.astype(self.document["input"]["dtype"]), "given", first)
        return self.program.run(torch.from_numpy(x))[0]

    @cached_property
    def deepest(self) -> np.ndarray | None:
        """A classifier goes no deeper than its labels."""
        record = self.document.get("estimator")
        if record is None or record["params"].get("unlabelled") != "stop":
            return None
        return deepest_labelled(np.array(record["seen"], dtype=np.int64), self.hierarchy)

    def labelled_scores(self, samples: Split, progress: Start | None = None) -> tuple[Tensor, str]:
        """:meth:`scores` of labelled samples."""
        if isinstance(samples, Features):
            given: Any = as_inputs(np.asarray(samples.x))
        elif isinstance(samples, Texts):
            given = TextList(samples.names, samples.texts)
        elif isinstance(samples, Samples) and samples.paths is not None:
            given = ImageList(samples.names, images_of(samples))
        else:
            raise ConfigError(
                f"Samples must be features, photos on disk or texts. Got {type(samples).__name__}."
            )
        return self.scores(given, progress)

    def calibrate(
        self,
        data: str | Path | Split,
        accuracy: float | Sequence[float] | None = None,
        *,
        coarse: str = "auto",
        scored: tuple[Tensor, str] | None = None,
        **options: Any,
    ) -> Calibration:
        """Calibrate the model on labelled samples that it was not trained on.

        Args:
            data: These samples, or where they are.
            accuracy: The share to guarantee, or several.
            coarse: "drop": leave out samples labelled above the classes.
            scored: what :meth:`labelled_scores` says of these samples, where that is known.
            **options: Others of :func:`hace.calibrate_scores`.
        """
        samples = data if isinstance(data, Split) else other_samples(self.hierarchy, Path(data))
        scores, outputs = self.labelled_scores(samples) if scored is None else scored
        used = samples.leaf_only() if coarse == "drop" else np.arange(len(samples))
        groups = None if samples.groups is None else np.asarray(samples.groups)[used]
        source = "samples" if isinstance(data, Split) else Path(data).name
        named: Any = {"outputs": outputs, "split": source, "groups": groups, **options}
        return calibrate_scores(scores[used], samples.nodes[used], self.hierarchy, accuracy, **named)


def images_of(samples: Samples) -> list[Any]:
    """The files of images on disk, or the parts of them that are used."""
    paths = list(samples.paths or ())
    if samples.boxes is None:
        return paths
    boxes = [(x, y, w, h) for x, y, w, h in samples.boxes.tolist()]
    return [Crop(path, box, samples.relative) for path, box in zip(paths, boxes, strict=True)]


def is_exported(path: str | Path) -> bool:
    """Whether a path is an exported model: a file, or a folder with config.json and model.safetensors that is not a run."""
    path = Path(path)
    held = all((path / name).is_file() for name in ("config.json", "model.safetensors"))
    return path.is_file() or (held and not (path / RUN).is_file())


def broken_message(broken: Sequence[Broken], total: int) -> str:
    """What is said of images that cannot be read: their names and reasons, up to twenty."""
    shown = [f"  {b.name}: {b.reason}" for b in broken[:SHOWN]]
    more = [f"  ... and {len(broken) - SHOWN:,} more"] if len(broken) > SHOWN else []
    return "\n".join([f"{len(broken):,} of {amount(total, 'image')} cannot be read:", *shown, *more])
