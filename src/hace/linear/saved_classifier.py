"""A fitted classifier as one .safetensors file: arrays, and a JSON document in the file's metadata. Nothing in it can run.

The document, under the key "hace":

    format         "hace.classifier.1"
    version        version of hace that wrote it
    params         parameters of the estimator but the hierarchy
    hierarchy      the fitted hierarchy, as `hace hierarchy --to json` writes it; "given" says if it was a parameter
    classes        dtype of the labels, what integers are, and the values where they are not ids
    ...            labels of the loss, seen labels, features and their names, temperature, iterations, history

Under the key "sha256" stands the checksum of document and arrays: a flipped bit is an error, not another answer.

The arrays are "coef" (outputs, features), "intercept" (outputs,), "order" (classes,), the label of each class, and, of a
calibrated classifier, "promised_log_probs" (samples, nodes) and "promised_nodes" (samples,).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hace.checks import check_choice
from hace.errors import ConfigError, FormatError
from hace.files.documents import parse_json
from hace.files.weights import first_line, read_safetensors_arrays, weights_hash, write_safetensors
from hace.files.writing import json_bytes, without_nan
from hace.formats import parse_hierarchy, render_hierarchy
from hace.hierarchy import Hierarchy
from hace.linear.labels import LabelReading, read_classes, reading_of

if TYPE_CHECKING:
    from hace.linear.estimator import HACEClassifier

_FORMAT = "hace.classifier.1"
_DOCUMENT, _CHECKSUM = "hace", "sha256"  # keys of the metadata
# Types of labels, by the kind of their dtype.
_TYPES = {"U": str, "O": object, "i": int, "u": int, "f": float, "b": bool}
_PAIRS = "pairs"


def save_classifier(clf: HACEClassifier, path: str | Path) -> None:
    """See :meth:`hace.HACEClassifier.save`."""
    from hace import __version__

    kind = clf.classes_.dtype.kind
    if kind not in _TYPES or (kind == "O" and not all(isinstance(c, str) for c in clf.classes_)):
        raise ConfigError(
            f"Labels must be strings, numbers or booleans to be saved. Got {clf.classes_.dtype}."
        )
    params = clf.get_params(deep=False)
    reading = clf._reading
    positions = clf.hierarchy is not None and not any(isinstance(label, str) for label in reading.nodes)
    arrays = {"coef": clf.coef_, "intercept": clf.intercept_, "order": reading.order}
    pool, subset = clf._promises_about
    about = {} if pool is None else {"pooled": {"how": pool, "temperature": clf._pooled_temperature}}
    if clf._promised_on is not None and subset == clf.subset:  # promises are about the answers of this subset
        arrays |= {"promised_log_probs": clf._promised_on[0], "promised_nodes": clf._promised_on[1]}
        if clf._promised_groups is not None:
            arrays["promised_groups"] = clf._promised_groups
    document = {
        "format": _FORMAT,
        "version": __version__,
        **about,
        "params": {name: _plain(value, name) for name, value in params.items() if name != "hierarchy"},
        "hierarchy": json.loads(render_hierarchy(clf.hierarchy_, "json")),
        "given": clf.hierarchy is not None,
        "classes": {
            "dtype": clf.classes_.dtype.str,
            "are": "positions" if positions else "ids",
            "values": clf.classes_.tolist() if clf.hierarchy is None else None,
        },
        "labels": clf.loss_.labels,
        "coarse_labels": clf.coarse_labels_,
        "seen": clf._seen.tolist(),
        "features": int(clf.n_features_in_),
        "feature_names": list(map(str, clf.feature_names_in_)) if hasattr(clf, "feature_names_in_") else None,
        "temperature": float(clf.temperature_),
        "iterations": int(clf.n_iter_),
        "calls": int(clf._calls),
        "history": _plain(without_nan(clf.history_), "history"),
    }
    text = json.dumps(document, allow_nan=False)
    write_safetensors(path, arrays, {_DOCUMENT: text, _CHECKSUM: _checksum(text, arrays)})


def load_classifier(kind: type[HACEClassifier], path: str | Path) -> HACEClassifier:
    """See :meth:`hace.HACEClassifier.load`."""
    arrays, metadata = read_safetensors_arrays(path)
    document = parse_json(metadata.get(_DOCUMENT, "null"), str(path))
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise FormatError(f"{path} must be written by HACEClassifier.save. It holds no document {_FORMAT!r}.")
    if metadata.get(_CHECKSUM) != _checksum(metadata[_DOCUMENT], arrays):
        raise FormatError(
            f"{path} is damaged: its content does not match its checksum. Save the classifier again, or get another copy."
        )
    try:
        return _restored(kind, document, arrays)
    except KeyError as error:
        raise FormatError(f"{path} is damaged: {error.args[0]!r} is missing.") from error
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {first_line(error)}") from error


def _checksum(document: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of what a file holds."""
    state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    return hashlib.sha256((document + weights_hash(state)).encode()).hexdigest()


def _restored(
    kind: type[HACEClassifier], document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> HACEClassifier:
    h = parse_hierarchy(json_bytes(document["hierarchy"]), "json")
    params = {name: _restored_param(value) for name, value in document["params"].items()}
    clf = kind(h if document["given"] else None, **params)
    clf._reading = _reading(document, _array(arrays, "order", np.int64, (None,)), h)
    clf.hierarchy_, clf.classes_ = clf._reading.hierarchy, clf._reading.classes
    check_choice("labels", document["labels"], ("leaves", "nodes"), FormatError)
    clf.loss_, clf.coarse_labels_ = clf._build_loss(document["labels"]), str(document["coarse_labels"])
    clf.n_features_in_ = int(document["features"])
    if document["feature_names"] is not None:
        clf.feature_names_in_ = np.array(document["feature_names"], dtype=object)
        if clf.feature_names_in_.shape != (clf.n_features_in_,):
            raise FormatError(f"feature_names must be {clf.n_features_in_} names.")
    outputs = clf.loss_.num_outputs
    clf.coef_ = _array(arrays, "coef", np.float64, (outputs, clf.n_features_in_))
    clf.intercept_ = _array(arrays, "intercept", np.float64, (outputs,))
    clf.temperature_ = float(document["temperature"])
    if not 0 < clf.temperature_ < np.inf:
        raise FormatError(f"temperature must be a number above 0. Got {clf.temperature_}.")
    clf.n_iter_, clf.history_ = int(document["iterations"]), _restored_param(document["history"])
    clf._calls = int(document["calls"])
    clf._take_seen(np.array(document["seen"], dtype=np.int64))
    clf._promised_on, clf._promised_groups = None, None
    pooled = document.get("pooled", {"how": None, "temperature": clf.temperature_})
    clf._promises_about, clf._pooled_temperature = (pooled["how"], clf.subset), float(pooled["temperature"])
    clf._promises, clf._deepest = {}, None
    if "promised_nodes" in arrays:
        nodes = _array(arrays, "promised_nodes", np.int64, (None,))
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < h.num_nodes:
            raise FormatError(f"promised_nodes must be from 0 to {h.num_nodes - 1}.")
        sure = _array(arrays, "promised_log_probs", np.float64, (len(nodes), h.num_nodes), finite=False)
        clf._promised_on = sure, nodes
        if "promised_groups" in arrays:
            clf._promised_groups = _array(arrays, "promised_groups", np.int64, (len(nodes),))
    return clf


def _reading(document: Mapping[str, Any], order: np.ndarray, h: Hierarchy) -> LabelReading:
    classes = document["classes"]
    if not document["given"]:
        values = np.array(classes["values"], dtype=_dtype(classes["dtype"]))
        if not all(a < b for a, b in pairwise(values.tolist())):
            raise FormatError("values of classes must increase strictly.")
        reading = read_classes(values)
        if reading.hierarchy != h:
            raise FormatError("hierarchy must be the flat one over the values of classes if none was given.")
        return reading
    if len(order) == 0 or not 0 <= order.min() <= order.max() < h.num_leaves:
        raise FormatError(f"order must hold labels from 0 to {h.num_leaves - 1}.")
    if len(np.unique(order)) < len(order):
        raise FormatError("order must hold each label once.")
    type_ = _TYPES[_dtype(classes["dtype"]).kind]
    return reading_of(h, order, type_, positions=classes["are"] == "positions")


def _dtype(name: Any) -> np.dtype:
    """The dtype of labels; of text, whose width its words decide, without a width."""
    dtype = np.dtype(str(name))
    if dtype.kind not in _TYPES:
        raise FormatError(f"dtype of classes must be of strings, numbers or booleans. Got {dtype}.")
    return np.dtype(str) if dtype.kind == "U" else dtype


def _array(
    arrays: Mapping[str, np.ndarray],
    name: str,
    dtype: type,
    shape: tuple[int | None, ...],
    finite: bool = True,
) -> np.ndarray:
    """An array of a file, checked; a copy, since the file stays open behind it."""
    array = arrays[name]
    wanted = tuple(got if want is None else want for got, want in zip(array.shape, shape, strict=False))
    if array.ndim != len(shape) or array.shape != wanted or array.dtype != dtype:
        wanted = tuple("any" if size is None else size for size in shape)
        raise FormatError(
            f"{name} must be {np.dtype(dtype).name} of shape {wanted}. Got {array.dtype} {array.shape}."
        )
    if (finite and not np.isfinite(array).all()) or np.isnan(array).any():
        raise FormatError(f"{name} must be finite.")
    return array.copy()


def _plain(value: Any, name: str) -> Any:
    """A parameter as JSON can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.random.RandomState):
        return None  # a state is not part of a fitted model
    if isinstance(value, Mapping):
        return {_PAIRS: [[_plain(key, name), _plain(entry, name)] for key, entry in value.items()]}
    if hasattr(value, "tolist"):  # arrays, and what pandas has
        value = value.tolist()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(entry, name) for entry in value]
    raise ConfigError(
        f"{name} must hold numbers, strings, lists and dicts to be saved. Got {type(value).__name__}."
    )


def _restored_param(value: Any, levels: int = 20) -> Any:
    """A parameter from its plain form. How deep Python itself can go differs from version to version."""
    if levels == 0:
        raise FormatError("its document nests too deep.")
    if isinstance(value, dict):
        return {key: _restored_param(entry, levels - 1) for key, entry in value[_PAIRS]}
    return [_restored_param(entry, levels - 1) for entry in value] if isinstance(value, list) else value
