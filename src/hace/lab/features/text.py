"""Texts as features: a sentence-transformers model, or scikit-learn's TF-IDF fitted on the training texts.

    encoder = load_encoder("minilm")                 # or a folder, or any model of sentence-transformers
    encoder = tfidf_encoder(fit_tfidf(texts), "encoder.json")
    encoder(["a red shoe", "a blue hat"])            # (2, dims) float32

An encoder is a :class:`hace.lab.features.backbones.Backbone` of texts, so `extract`, probes and predictors take it as such.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.errors import ConfigError, DataError, FormatError
from hace.files.documents import read_json
from hace.files.reading import optional
from hace.files.weights import first_line, weights_hash
from hace.lab.features.backbones import Backbone

TFIDF = "tfidf"
MODELS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
ENCODER = "encoder.json"  # of TF-IDF, in the folder of its features
WORDS = 4096  # most words and pairs of words that TF-IDF counts
_OPTIONS: dict[str, Any] = {"sublinear_tf": True, "ngram_range": [1, 2], "strip_accents": "unicode"}


@dataclass(frozen=True)
class TextEncoder(Backbone):
    """A frozen encoder of texts. Call it with texts to get their features."""

    model: Any  # of sentence-transformers or scikit-learn
    transform: Any  # leaves texts as they are

    def __call__(self, images: Any) -> Tensor:
        """The features of texts: (B, dims), float32."""
        texts = list(images)
        if self.name == TFIDF:
            rows = self.model.transform(texts).toarray()
        else:
            rows = self.model.encode(texts, batch_size=max(len(texts), 1), show_progress_bar=False)
        return torch.from_numpy(np.asarray(rows, dtype=np.float32))


def load_encoder(
    name: str, *, checkpoint: str | Path | None = None, device: str | torch.device = "cpu"
) -> TextEncoder:
    """Load "minilm", another model of sentence-transformers (`checkpoint`: its folder), or "tfidf" (its encoder.json)."""
    if name == TFIDF and checkpoint is None:
        wanted = f"tfidf needs the file {ENCODER} that `hace features` wrote"
        raise ConfigError(f"{wanted}. Give it: --checkpoint FILE.")
    if name == TFIDF:
        return tfidf_encoder(read_json(Path(str(checkpoint))), str(checkpoint))
    library = optional("sentence_transformers", "Encoding texts", "text")
    where = str(checkpoint or MODELS.get(name, name))
    try:
        model = library.SentenceTransformer(where, device=str(device))
    except (OSError, ValueError) as error:
        rule = "must be a model of sentence-transformers: a folder, or a name on the model hub"
        raise ConfigError(f"{where} {rule}. Got: {first_line(error)}") from error
    view = {"text": True, "max_length": str(model.max_seq_length)}  # "inf" of models that read everything
    dims = model.encode(["text"], show_progress_bar=False).shape[1]
    weights = weights_hash(model.state_dict())
    folder = None if checkpoint is None else str(Path(checkpoint).resolve())
    more = {"dims": dims, "weights": weights, "device": torch.device(device), "checkpoint": folder}
    return TextEncoder(name, model, str, view, "text", "float32", **more)


def fit_tfidf(texts: Sequence[str], words: int = WORDS) -> dict[str, Any]:
    """What TF-IDF learns from the training texts: words and their weights, for a JSON file."""
    text = optional("sklearn.feature_extraction.text", "TF-IDF", "text")
    options = {**_OPTIONS, "ngram_range": tuple(_OPTIONS["ngram_range"])}
    counter = text.TfidfVectorizer(max_features=words, **options)
    try:
        counter.fit(texts)
    except ValueError as error:  # only stop words, or nothing
        raise DataError(f"The training texts must hold words. Got: {first_line(error)}") from error
    vocabulary = counter.get_feature_names_out().tolist()
    return {"encoder": TFIDF, **_OPTIONS, "words": vocabulary, "idf": counter.idf_.tolist()}


def tfidf_encoder(state: Any, path: str | Path) -> TextEncoder:
    """The encoder of what :func:`fit_tfidf` learned; `path` is the file that holds it."""
    text = optional("sklearn.feature_extraction.text", "TF-IDF", "text")
    try:
        words, idf = list(map(str, state["words"])), np.array(state["idf"], dtype=np.float64)
        options = {name: state[name] for name in _OPTIONS}
        options["ngram_range"] = tuple(options["ngram_range"])
        model = text.TfidfVectorizer(vocabulary={word: i for i, word in enumerate(words)}, **options)
        model.idf_ = idf
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} is damaged: make it again with `hace features --encoder tfidf`."
        ) from error
    weights = hashlib.sha256(json.dumps([words, idf.tolist()]).encode()).hexdigest()
    view = {"text": True, **{name: state[name] for name in _OPTIONS}}
    more = {"dims": len(words), "weights": weights, "checkpoint": str(Path(path).resolve())}
    return TextEncoder(TFIDF, model, str, view, "text", "float32", **more)


def encoder_record(encoder: Backbone, source: Mapping[str, Any]) -> dict[str, Any]:
    """What an exported model says of its encoder: its name and weights, the column of texts, and all of TF-IDF."""
    record = {"name": encoder.name, "weights": encoder.weights, "column": source.get("column")}
    return record | ({"tfidf": read_json(Path(str(encoder.checkpoint)))} if encoder.name == TFIDF else {})


def recorded_encoder(record: Mapping[str, Any], path: Path) -> TextEncoder:
    """The encoder that an exported model names."""
    if record["name"] == TFIDF:
        return tfidf_encoder(record["tfidf"], path)
    encoder = load_encoder(record["name"])
    if encoder.weights != record["weights"]:
        raise ConfigError(f"{path} was trained with other weights of {encoder.name} than those of the hub.")
    return encoder
