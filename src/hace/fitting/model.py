"""A fitted model: a classifier, what was found about it, and how new data become its features.

    model = hace.fit(X, y, hierarchy)
    model.predict(new, accuracy=0.95)
    model.save("birds.hace")
    hace.load("birds.hace")

The file is that of :meth:`hace.HACEClassifier.save`, with the findings under "fit" in its document and, for photos, the weights
of the frozen model in front of it: `hace predict`, `serve`, `evaluate`, `calibrate` and `export` take it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hace.decisions.calibration import CONFIDENCE
from hace.decisions.check import Check
from hace.decisions.decisions import Decisions
from hace.decisions.node_sets import common_ancestors
from hace.decisions.rules import top_k
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.reading import optional
from hace.files.weights import read_safetensors
from hace.fitting import inputs
from hace.fitting.encoding import PHOTOS, Encoder, document_parts, encoded, encoder_of
from hace.fitting.evaluation import ACCURACY, rank_names
from hace.fitting.findings import Findings
from hace.fitting.new_samples import aligned, columns_for, new_features
from hace.hierarchy import Hierarchy
from hace.linear.estimator import HACEClassifier
from hace.linear.model_files import DOCUMENT, parse_document, write_tensors
from hace.linear.saved_classifier import classifier_parts
from hace.metrics import evaluate
from hace.metrics.evaluation import Evaluation
from hace.settings import from_dict

if TYPE_CHECKING:
    import pandas as pd

SUFFIX = ".hace"
_PART = "fit"  # of the document
_TESTED = ("fit.truth", "fit.answer")  # arrays


@dataclass(frozen=True, eq=False)
class Tested:
    """Node indices of the labels of test samples (M,), and of their most probable classes (M,)."""

    truth: np.ndarray
    answer: np.ndarray

    @classmethod
    def of(cls, clf: HACEClassifier, x: Any, nodes: np.ndarray) -> Tested:
        """What a classifier says about test samples."""
        h = clf.hierarchy_
        return cls(nodes, np.array([h.index(node) for node in clf.predict(x)], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted model.

    Attributes:
        classifier: what answers; a :class:`hace.HACEClassifier` of the features.
        findings: what the fit found.
        encoder: what makes features of photos or texts; None where new data are features themselves.
        tested: labels and answers of the test samples, for the page; None where there are none.
    """

    classifier: HACEClassifier
    findings: Findings
    encoder: Encoder | None = None
    tested: Tested | None = None

    def __repr__(self) -> str:
        return f"<Model of {self.findings.kind}: {self.findings.chosen} over {self.hierarchy!r}>"

    def __str__(self) -> str:
        return "\n".join(self.findings.lines())

    @property
    def hierarchy(self) -> Hierarchy:
        """The classes and what is above them."""
        return self.classifier.hierarchy_

    @property
    def feature_names(self) -> list[str] | None:
        """The names of the features; None where they have none."""
        names = getattr(self.classifier, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    def predict(
        self, new: Any, accuracy: float | None = ACCURACY, *, threshold: float | None = None
    ) -> pd.DataFrame:
        """An answer for every sample, with its rank and confidence; all three are None where the model abstains.

        Where photos cannot be read, a column "error" says why. After `hace calibrate --rule set`, a column "nodes" has the
        nodes that the truth is under one of, and the answer is the group that holds them all.

        Args:
            new: samples in any form that `hace.fit` takes, labels not needed.
            accuracy: guarantee: at most 1 - accuracy of all samples get a false answer, and answers are as specific as that
                allows. None: the best class, or what the threshold says.
            threshold: instead of a guarantee: the deepest node of at least this probability.
        """
        pd = optional("pandas", "A table of answers", "data")
        x, names, broken = self.features(new)
        answers = self.decide(x, None if threshold is not None else accuracy, threshold)
        decided = answers if answers.nodes.dim() == 1 else common_ancestors(answers)
        nodes = decided.nodes.tolist()
        ranks = rank_names(self.hierarchy, nodes)
        silent = [rank is None for rank in ranks]
        table = {
            "answer": [None if s else node for s, node in zip(silent, decided.ids, strict=True)],
            "rank": ranks,
            "confidence": [
                None if s else p for s, p in zip(silent, decided.probabilities.tolist(), strict=True)
            ],
        }
        if answers.nodes.dim() == 2:
            table["nodes"] = [[node for node in several if node is not None] for several in answers.ids]
        read = [name for i, name in enumerate(names) if i not in broken]
        frame = pd.DataFrame(table, index=read, dtype=object)
        if broken:
            frame = frame.assign(error=None).reindex(names)
            frame = frame.astype(object).where(frame.notna(), None)
            frame["error"] = [broken.get(i) for i in range(len(names))]
        return frame

    def decide(self, x: Any, accuracy: float | None = ACCURACY, threshold: float | None = None) -> Decisions:
        """Answers from features, as of :meth:`predict`."""
        with _names_compared():
            if accuracy is None and threshold is None:
                log_q = torch.from_numpy(self.classifier.predict_node_log_proba(x))
                return top_k(log_q, self.hierarchy)
            if accuracy is not None:
                self._check_guarantee(accuracy)
            return self.classifier.decide(x, threshold, accuracy=accuracy)

    def _check_guarantee(self, accuracy: float) -> None:
        try:
            self.classifier.guarantee(accuracy)
        except HaceError as error:
            why = self.findings.no_guarantee if self.findings.guarantee is None else str(error)
            raise ConfigError(
                f"accuracy={accuracy:g} cannot be guaranteed. {why[0].upper()}{why[1:]} Ask for less, give a threshold "
                "(threshold=0.9), or take the best class (accuracy=None)."
            ) from error

    def check(
        self,
        new: Any,
        y: Any = None,
        accuracy: float = ACCURACY,
        groups: Any = None,
        *,
        of: str = "samples",
        level: float = 0.05,
    ) -> Check:
        """Check on new samples whether the guarantee still holds; see :func:`hace.check`.

        Args:
            new: samples in any form that `hace.fit` takes, in the order of arrival.
            y: their labels, None where unknown; those known must be of a random part of the samples. None: all unknown.
            accuracy: the guarantee.
            groups: the group of each sample, where the guarantee is about new groups.
            of: "samples" or "answers": what the guarantee is about.
            level: the probability of a false alarm.
        """
        x, names, broken = self.features(new)
        readable = [place for place in range(len(names)) if place not in broken]
        for what, given in (("y", y), ("groups", groups)):
            if given is not None and len(given) != len(names):
                raise DataError(
                    f"{what} must have one entry for each of the {len(names):,} samples. Got {len(given):,}."
                )
        y = None if y is None else np.asarray(y)[readable]
        groups = None if groups is None else np.asarray(groups)[readable]
        confidence = CONFIDENCE if of == "answers" else None
        with _names_compared():
            return self.classifier.check(x, y, groups, accuracy, of=of, confidence=confidence, level=level)

    def evaluate(
        self, data: Any, y: Any = None, *, label: str | Sequence[str] | None = None, **options: Any
    ) -> Evaluation:
        """All metrics on other labelled data; options as of :func:`hace.evaluate`."""
        known = self.feature_names
        given = inputs.read(data, y, self.hierarchy, columns_for(data, known, self.findings.layer, label))
        if given.x is None:
            if self.encoder is None:
                raise ConfigError(f"New data must be features, as in training. Got {given.kind}.")
            given = encoded(given, self.encoder)
        nodes = _same_nodes(given.nodes, given.hierarchy, self.hierarchy)
        x = aligned(given.x, given.features, known, self.classifier.n_features_in_)
        with _names_compared():
            log_q = self.classifier.predict_node_log_proba(x)
        forms: dict[str, Any] = {"kind": "node_log_probs", "labels": "nodes", "groups": given.groups}
        return evaluate(log_q, nodes, self.hierarchy, **{**forms, **options})

    def features(self, new: Any) -> tuple[Any, list[str], dict[int, str]]:
        """The features of new samples that can be read, what all are called, and why some cannot be read, by their place."""
        width = self.classifier.n_features_in_
        layer = self.findings.layer
        return new_features(new, self.encoder, self.feature_names, width, layer)

    def similarity(self, new: Any) -> np.ndarray:
        """(M,) how near new samples are to the training samples: the cosine to the nearest one, for all that can be read.

        Args:
            new: samples in any form that `hace.fit` takes, labels not needed.
        """
        if self.classifier._nearness is None:
            raise ConfigError(
                "similarity needs the training samples, which the model does not have: its features are sparse."
            )
        return self.classifier._nearness.similarity(self.features(new)[0])

    def named(self, file: str) -> Model:
        """The same model; lines, page and commands name this file."""
        return replace(self, findings=replace(self.findings, path=file))

    def report(self, path: str | Path) -> Path:
        """Write the page: test samples with their answers, how specific the answers are, and one sentence per question.

        Args:
            path: an .html file, or a folder in which index.html is written.
        """
        from hace.fitting.page import write_page

        return write_page(self, Path(path))

    def card(self) -> str:
        """The model card, in Markdown: what it is for, what it learned from, how good it is and what to watch."""
        from hace.fitting.card import card_of

        return card_of(self)

    def save(self, path: str | Path) -> None:
        """Write the model to one file, from which no code can run; :func:`hace.load` reads it."""
        if Path(path).suffix.lower() != SUFFIX:
            raise ConfigError(f"path must end in {SUFFIX}. Got {str(path)!r}.")
        tensors, document = classifier_parts(self.classifier)
        document[_PART] = self.named(Path(path).name).findings.to_dict()
        if document["calibration"] is not None and self.findings.broken:
            document["calibration"]["broken"] = self.findings.broken
        if self.encoder is not None:
            more, changes = document_parts(self.encoder)
            if self.encoder.kind == PHOTOS:  # images and their features are in single precision
                tensors |= {name: t.float() for name, t in tensors.items() if name.startswith("head.")}
            tensors |= more
            document |= changes
        if self.tested is not None:
            columns = (self.tested.truth, self.tested.answer)
            tensors |= {
                name: torch.from_numpy(v.astype(np.int64)) for name, v in zip(_TESTED, columns, strict=True)
            }
        write_tensors(tensors, document, Path(path))


@contextmanager
def _names_compared() -> Iterator[None]:
    """The names of features were compared already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield


def is_fitted(path: str | Path) -> bool:
    """Whether a path is a file of :meth:`Model.save`: other models have no findings."""
    if Path(path).suffix.lower() != SUFFIX or not Path(path).is_file():
        return False
    _, metadata = read_safetensors(path)
    return _PART in parse_document(metadata.get(DOCUMENT), str(path))


def load(path: str | Path) -> Model:
    """The model in a file of :meth:`Model.save`.

    Args:
        path: such as "birds.hace".
    """
    if not Path(path).is_file():
        raise FormatError(f"{path} does not exist. Give a file that Model.save or `hace fit` wrote.")
    tensors, metadata = read_safetensors(path)
    document = parse_document(metadata.get(DOCUMENT), str(path))
    if _PART not in document:
        raise FormatError(
            f"{path} must be written by Model.save. Use HACEClassifier.load for files of HACEClassifier.save, and "
            "hace.Predictor.from_run for what `hace export` wrote."
        )
    classifier = HACEClassifier.load(path)
    try:
        findings = from_dict(Findings, document[_PART])
    except ConfigError as error:
        raise FormatError(f"{path} is damaged: {error}") from error
    return Model(
        classifier,
        findings,
        encoder_of(document, tensors, Path(path)),
        _tested(tensors, classifier.hierarchy_),
    )


def _tested(tensors: Mapping[str, torch.Tensor], h: Hierarchy) -> Tested | None:
    """Labels and answers of test samples in a file; None where there are none, or they are no nodes."""
    if not set(_TESTED) <= set(tensors):
        return None
    truth, answer = (tensors[name].numpy().copy() for name in _TESTED)
    both = np.concatenate([truth, answer])
    fits = truth.ndim == 1 and truth.shape == answer.shape and both.dtype == np.int64 and len(both)
    return Tested(truth, answer) if fits and both.min() >= 0 and both.max() < h.num_nodes else None


def _same_nodes(nodes: np.ndarray, other: Hierarchy, h: Hierarchy) -> np.ndarray:
    """Node indices of one hierarchy as those of another that has the same ids."""
    if other.fingerprint == h.fingerprint:
        return nodes
    place = np.array([h.index(node) for node in other.nodes])
    return place[nodes]
