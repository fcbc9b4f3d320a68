"""A fitted classifier as one file, in the format of :mod:`hace.linear.model_files`: `hace predict`, `serve`, `calibrate` and
`export` take it as they take an exported run. Nothing in it can run.

Beside what every such file has, the document holds under "estimator"

    version        version of hace that wrote it
    params         parameters of the estimator but the hierarchy; "given" says if that was one
    classes        dtype of the labels, what integers are, and the values where they are not ids
    loss_name      the loss, where "auto" chose it
    ...            labels of the loss, seen labels, names of features, temperature of single samples, iterations, history

and the arrays are "head.weight" (outputs, features) and "head.bias" (outputs,), both double, "order" (classes,), the label of
each class, and "near.mean", "near.axes" and "near.rows" of :class:`hace.decisions.nearness.Nearness`, where calibrate had the
training samples. Guarantees are the usual ones and those that were asked for, not the samples behind them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hace.checks import check_choice
from hace.decisions.answering import Use
from hace.decisions.nearness import Nearness
from hace.errors import ConfigError, FormatError
from hace.files.weights import first_line, read_safetensors_arrays
from hace.files.writing import without_nan
from hace.hierarchy import Hierarchy
from hace.linear import model_files as files
from hace.linear.labels import LabelReading, read_classes, reading_of
from hace.linear.model_files import DOCUMENT, ScoredModel

if TYPE_CHECKING:
    from hace.linear.estimator import HACEClassifier

# Types of labels, by the kind of their dtype.
_TYPES = {"U": str, "O": object, "i": int, "u": int, "f": float, "b": bool}
_PAIRS = "pairs"
_NEAR = "near"  # arrays of the training samples, for the similarity to the nearest one


SUFFIXES = (".safetensors", ".hace")


def save_classifier(clf: HACEClassifier, path: str | Path) -> None:
    """See :meth:`hace.HACEClassifier.save`."""
    _check_suffix(path, *SUFFIXES)
    files.write_tensors(*classifier_parts(clf), Path(path))


def classifier_parts(clf: HACEClassifier) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the document of a classifier's file."""
    model, document = _model(clf)
    document["estimator"] = _record(clf)
    tensors = {**model.network.state_dict(), "order": torch.from_numpy(clf._label_reading.order)}
    if clf._nearness is not None:
        tensors |= {name: torch.from_numpy(array) for name, array in clf._nearness.arrays(_NEAR).items()}
    return tensors, document


def _check_suffix(path: str | Path, *suffixes: str) -> None:
    if Path(path).suffix.lower() not in suffixes:
        raise ConfigError(f"path must end in {' or '.join(suffixes)}: readers go by it. Got {str(path)!r}.")


def save_onnx(clf: HACEClassifier, path: str | Path) -> None:
    """See :meth:`hace.HACEClassifier.to_onnx`."""
    _check_suffix(path, ".onnx")
    files.write_checked(path, *for_onnx(*_model(clf)), files.open_onnx)


def for_onnx(model: ScoredModel, document: Mapping[str, Any]) -> tuple[ScoredModel, dict[str, Any]]:
    """The model in single precision, with path sums collapsed, and its document without what only the estimator needs."""
    network = copy.deepcopy(model.network).float()
    loss = model.loss
    head = dict(document["head"])
    if loss is not None and loss.head.outputs == "paths" and files.collapse(network, loss):
        head |= {"num_outputs": model.hierarchy.num_leaves, "loss": None}
        loss = None
    model = ScoredModel(network, loss, model.hierarchy, model.outputs, model.temperature)
    exported = {key: value for key, value in document.items() if key != "estimator"}
    exported |= {"head": head, "input": {**document["input"], "dtype": "float32"}}
    return model, exported


def _model(clf: HACEClassifier) -> tuple[ScoredModel, dict[str, Any]]:
    """The classifier as a model of files, with its document."""
    loss = clf.loss_
    pool = clf._answers.default.pool
    calibration = clf._answers.record(loss.score_outputs, Use.of(clf.subset, clf.prior, pool))
    needed = files.loss_of_scores(loss, loss.score_outputs)
    temperature = clf.temperature_ if calibration is None else calibration.temperature
    layer = files.last_layer(torch.from_numpy(clf.coef_), torch.from_numpy(clf.intercept_))
    network = nn.Sequential()
    network.add_module("head", layer)
    model = ScoredModel(network, needed, clf.hierarchy_, loss.score_outputs, float(temperature))
    options = {name: _json_value(value, "loss_params") for name, value in clf._loss_params().items()}
    named = None if needed is None else {"name": clf.loss_name_, "options": options}
    document = files.new_document(
        model,
        {"name": "features", "shape": ["batch", int(clf.n_features_in_)], "dtype": "float64"},
        calibration,
        preprocessing=None,
        run=None,
        loss=clf.loss_name_,
        head={"num_outputs": loss.num_outputs, "loss": named, "tree": "own"},
        model=None,
        architecture={"kind": "probe", "model": None, "scaling": "none"},
    )
    return model, document


def _record(clf: HACEClassifier) -> dict[str, Any]:
    """What the estimator needs beyond the model."""
    from hace import __version__

    kind = clf.classes_.dtype.kind
    if kind not in _TYPES or (kind == "O" and not all(isinstance(c, str) for c in clf.classes_)):
        raise ConfigError(
            f"Labels must be strings, numbers or booleans to be saved. Got {clf.classes_.dtype}."
        )
    params = clf.get_params(deep=False)
    positions = clf.hierarchy is not None and not any(
        isinstance(label, str) for label in clf._label_reading.nodes
    )
    return {
        "version": __version__,
        "params": {name: _json_value(value, name) for name, value in params.items() if name != "hierarchy"},
        "given": clf.hierarchy is not None,
        "classes": {
            "dtype": clf.classes_.dtype.str,
            "are": "positions" if positions else "ids",
            "values": clf.classes_.tolist() if clf.hierarchy is None else None,
        },
        "loss_name": clf.loss_name_,
        "labels": clf.loss_.labels,
        "coarse_labels": clf.coarse_labels_,
        "seen": clf._seen.tolist(),
        "feature_names": list(map(str, clf.feature_names_in_)) if hasattr(clf, "feature_names_in_") else None,
        "temperature": float(clf.temperature_),
        "iterations": int(clf.n_iter_),
        "calls": int(clf._calls),
        "history": _json_value(without_nan(clf.history_), "history"),
    }


def load_classifier(kind: type[HACEClassifier], path: str | Path) -> HACEClassifier:
    """See :meth:`hace.HACEClassifier.load`."""
    path = Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)
    arrays, metadata = read_safetensors_arrays(path)
    document = files.parse_document(metadata.get(DOCUMENT), str(path))
    files.check_seal(path, document.get("sha256"))
    h = files.hierarchy_of(document, path)
    if "estimator" not in document:
        document, arrays = _of_run(document, arrays, path)
    try:
        return _restored(kind, document, arrays, h)
    except KeyError as error:
        raise FormatError(f"{path} is damaged: {error.args[0]!r} is missing.") from error
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {first_line(error)}") from error


def _of_run(
    document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], path: Path
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The head of an exported run as a classifier of the features it was trained on, with their scaling in its weights."""
    made = document["architecture"]
    head = document["head"]
    if made["kind"] != "probe" or made["model"] is not None or made["scaling"] == "unit" or "layer" in head:
        raise FormatError(
            f"{path} must be a linear model of features as they are, to be an estimator. Its features are images, or scaled to "
            "length 1. Use hace.Predictor.from_run, which does that."
        )
    weight = arrays["head.weight"].astype(np.float64)
    bias = arrays["head.bias"].astype(np.float64) if "head.bias" in arrays else np.zeros(len(weight))
    if made["scaling"] == "standard":
        weight = weight / arrays["std"]
        bias = bias - weight @ arrays["mean"]
    known = head["loss"] or {"name": "hce" if document["outputs"]["scores"] == "nodes" else "cross_entropy"}
    params = {"loss": known["name"], "loss_params": _json_value(known.get("options", {}), "loss_params")}
    leaves = len(document["classes"])
    record = {"params": params, "given": True, "classes": {"dtype": "<U1", "are": "ids"}, "labels": "leaves"}
    record |= {"loss_name": known["name"]}
    record |= {"coarse_labels": "auto", "seen": list(range(len(document["nodes"]))), "feature_names": None}
    record |= {"temperature": document["temperature"], "iterations": 0, "calls": 0, "history": []}
    converted = {"head.weight": weight, "head.bias": bias, "order": np.arange(leaves)}
    return {**document, "estimator": record}, converted


def _restored(
    kind: Any, document: Mapping[str, Any], arrays: Mapping[str, Any], h: Hierarchy
) -> HACEClassifier:
    """A classifier with the fitted attributes that a file holds."""
    record = document["estimator"]
    params = {name: _restored_param(value) for name, value in record["params"].items()}
    clf = kind(h if record["given"] else None, **params)
    clf._label_reading = _reading(record, np.array(arrays["order"], dtype=np.int64), h)
    clf.hierarchy_ = clf._label_reading.hierarchy
    clf.classes_ = clf._label_reading.classes
    clf._given = clf.hierarchy
    clf.loss_name_ = str(record["loss_name"])
    check_choice("labels", record["labels"], ("leaves", "nodes"))
    clf.loss_ = clf._build_loss(record["labels"])
    clf.coarse_labels_ = str(record["coarse_labels"])
    shown = document["input"]["name"] == "images"  # the head sees what the model in front of it makes of them
    width = np.shape(arrays["head.weight"])[1] if shown else document["input"]["shape"][1]
    clf.n_features_in_ = int(width)
    if record["feature_names"] is not None:
        clf.feature_names_in_ = np.array(record["feature_names"], dtype=object)
        if clf.feature_names_in_.shape != (clf.n_features_in_,):
            raise FormatError(f"feature_names must be {clf.n_features_in_} names.")
    outputs = clf.loss_.num_outputs
    precision = np.float32 if shown else np.float64
    clf.coef_ = _array(arrays, "head.weight", (outputs, clf.n_features_in_), precision)
    clf.intercept_ = _array(arrays, "head.bias", (outputs,), precision)
    clf.n_iter_ = int(record["iterations"])
    clf.history_ = _restored_param(record["history"])
    clf._calls = int(record["calls"])
    seen = np.array(record["seen"], dtype=np.int64)
    if len(seen) and not 0 <= seen.min() <= seen.max() < h.num_nodes:
        raise FormatError(f"seen must be from 0 to {h.num_nodes - 1}.")
    clf._take_seen(seen)
    clf._nearness = Nearness.from_arrays(arrays, _NEAR)
    clf.temperature_ = float(record["temperature"])
    if document["calibration"] is not None:
        clf._answers.take(files.stored_calibration(document, h, "its document"))
    return clf


def _reading(record: Mapping[str, Any], order: np.ndarray, h: Hierarchy) -> LabelReading:
    """How labels were read when the classifier was fitted."""
    classes = record["classes"]
    if not record["given"]:
        values = np.array(classes["values"], dtype=_dtype(classes["dtype"]))
        if not all(a < b for a, b in pairwise(values.tolist())):
            raise FormatError("values of classes must increase strictly.")
        reading = read_classes(values)
        if reading.hierarchy != h:
            raise FormatError("hierarchy must be the flat one over the values of classes if none was given.")
        return reading
    labels = set(order.tolist())
    if not labels or not labels <= set(range(h.num_leaves)) or len(labels) < len(order):
        raise FormatError(f"order must hold labels from 0 to {h.num_leaves - 1}, each once.")
    type_ = _TYPES[_dtype(classes["dtype"]).kind]
    return reading_of(h, order, type_, positions=classes["are"] == "positions")


def _dtype(name: Any) -> np.dtype:
    """The dtype of labels; of text, whose width its words decide, without a width."""
    dtype = np.dtype(str(name))
    if dtype.kind not in _TYPES:
        raise FormatError(f"dtype of classes must be of strings, numbers or booleans. Got {dtype}.")
    return np.dtype(str) if dtype.kind == "U" else dtype


def _array(
    arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], precision: type
) -> np.ndarray:
    """An array of a file, checked; a copy, since the file stays open behind it."""
    array = arrays[name]
    if array.shape != shape or array.dtype != precision or not np.isfinite(array).all():
        rule = f"finite {np.dtype(precision)} of shape {shape}"
        raise FormatError(f"{name} must be {rule}. Got {array.dtype} {array.shape}.")
    return array.astype(np.float64)


def _json_value(value: Any, name: str) -> Any:
    """A parameter as JSON can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.random.RandomState):
        return None  # a state is not part of a fitted model
    if isinstance(value, Mapping):
        return {_PAIRS: [[_json_value(key, name), _json_value(entry, name)] for key, entry in value.items()]}
    if hasattr(value, "tolist"):  # arrays, and what pandas has
        value = value.tolist()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json_value(entry, name) for entry in value]
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
