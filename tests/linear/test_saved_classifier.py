"""Classifiers in files: what is written comes back, and what is not a classifier is an error that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError

from hace import ConfigError, FormatError, HACEClassifier, Hierarchy, cli
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.serve.export import export_run
from hace.lab.serve.predictor import Predictor
from hace.linear.model_files import UNSEALED, seal

IRIS = load_iris()
X: np.ndarray = IRIS.data
NAMES: np.ndarray = IRIS.target_names[IRIS.target]
TREE = Hierarchy.from_paths(
    [("small", "setosa"), ("large", "virginica"), ("large", "versicolor")],
    leaves=["virginica", "setosa", "versicolor"],
)
NUMBERED = Hierarchy.from_paths([("a", "5"), ("b", "6"), ("b", "7"), ("b", "8")])

CASES: dict[str, tuple[HACEClassifier, Any]] = {
    "names": (HACEClassifier(TREE), NAMES),
    "objects, other loss": (HACEClassifier(TREE, loss="hace", dilution=0.7), NAMES.astype(object)),
    "coarse": (
        HACEClassifier(TREE, class_weight={"large": 2.0}),
        np.where(np.arange(150) % 3, NAMES, np.where(IRIS.target, "large", "small")),
    ),
    "ids as integers": (HACEClassifier(NUMBERED), IRIS.target + 5),
    "positions": (HACEClassifier(TREE, labels=TREE.leaves), np.array([1, 2, 0])[IRIS.target]),
    "flat names": (HACEClassifier(), NAMES),
    "flat floats": (HACEClassifier(), IRIS.target + 1.0),
    "flat booleans": (HACEClassifier(class_weight={True: 2.0}), IRIS.target == 1),
    "loss_params": (HACEClassifier(TREE, loss="hxe", loss_params={"alpha": 0.3}, subset=["large"]), NAMES),
    "batches": (HACEClassifier(TREE, optimizer="sgd", epochs=2, random_state=0), NAMES),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_is_saved_comes_back(case: str, tmp_path: Path) -> None:
    clf, y = CASES[case]
    clf.fit(X, y)
    clf.save(tmp_path / "clf.safetensors")
    back = HACEClassifier.load(tmp_path / "clf.safetensors")
    np.testing.assert_array_equal(back.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_array_equal(back.predict(X), clf.predict(X))
    assert back.predict(X).dtype == clf.predict(X).dtype
    assert back.classes_.dtype.kind == clf.classes_.dtype.kind
    assert back.hierarchy == clf.hierarchy
    assert back.score(X, y) == clf.score(X, y)
    assert back.unseen_classes_.tolist() == clf.unseen_classes_.tolist()
    assert back.history_ == clf.history_
    for name in ("loss", "weight_decay", "class_weight", "loss_params", "dilution", "random_state"):
        assert back.get_params()[name] == clf.get_params()[name]
    back.fit(X, y)  # it is an estimator like any other
    np.testing.assert_allclose(back.predict_proba(X), clf.predict_proba(X), atol=1e-12)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 7, 200], dtype=np.uint8),
        np.array([1, 2, 3], dtype=np.float32),
        np.array([1, 2, 2**63 + 5], dtype=np.uint64),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_keep_their_dtype(labels: np.ndarray, tmp_path: Path) -> None:
    clf = HACEClassifier(optimizer="sgd", epochs=1, random_state=0).fit(
        X, labels[IRIS.target].astype(labels.dtype)
    )
    clf.save(tmp_path / "clf.safetensors")
    back = HACEClassifier.load(tmp_path / "clf.safetensors")
    assert back.classes_.dtype == back.predict(X).dtype == labels.dtype
    assert back.classes_.tolist() == clf.classes_.tolist()
    assert not len(back.unseen_classes_)


def test_files_of_flat_classifiers_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "clf.safetensors"
    HACEClassifier().fit(X, IRIS.target).save(path)
    classes: dict[str, Any] = {"dtype": "<i8", "are": "ids", "values": [0, 1, 2]}

    def flat(path: Path, record: dict[str, Any]) -> Path:
        """The record's own classes, not the document's."""
        with safe_open(path, "numpy") as file:
            estimator = json.loads(file.metadata()["hace"])["estimator"]
        return changed(path, {"estimator": estimator | record})

    for values in ([2, 1, 0], [0, 1, 1]):
        with pytest.raises(FormatError, match="values of classes must increase strictly"):
            HACEClassifier.load(flat(path, {"classes": classes | {"values": values}}))
    with pytest.raises(FormatError, match="hierarchy must be the flat one"):
        HACEClassifier.load(flat(path, {"classes": classes | {"values": [0, 1, 3]}}))
    for dtype in ("V8", "i4,f4", "datetime64[s]"):
        with pytest.raises(FormatError, match="dtype of classes must be of strings, numbers or booleans"):
            HACEClassifier.load(flat(path, {"classes": classes | {"dtype": dtype}}))
    with pytest.raises(FormatError, match="is damaged"):
        HACEClassifier.load(flat(path, {"classes": classes | {"dtype": "no such"}}))


def test_calibration_names_of_features_and_batches_come_back(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=IRIS.feature_names)
    rows = np.random.default_rng(0).permutation(150)
    clf = HACEClassifier(TREE, optimizer="sgd", lr=0.01, random_state=0)
    clf.partial_fit(frame.iloc[rows[:50]], NAMES[rows[:50]])
    clf.calibrate(frame.iloc[rows[50:]], NAMES[rows[50:]])
    asked = clf.guarantee(0.87)
    clf.save(tmp_path / "clf.safetensors")
    back = HACEClassifier.load(tmp_path / "clf.safetensors")
    assert back.feature_names_in_.tolist() == IRIS.feature_names
    assert back.temperature_ == clf.temperature_ != 1
    assert back.guarantee(0.9) == clf.guarantee(0.9)
    assert back.guarantee(0.87) == asked
    assert back.predict_node(frame, accuracy=0.9).tolist() == clf.predict_node(frame, accuracy=0.9).tolist()
    np.testing.assert_array_equal(back.partial_fit(frame, NAMES).coef_, clf.partial_fit(frame, NAMES).coef_)


def test_only_a_fitted_classifier_of_plain_parameters_is_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        HACEClassifier(TREE).save(tmp_path / "clf.safetensors")
    clf = HACEClassifier(TREE, random_state=np.random.RandomState(0)).fit(X, NAMES)
    clf.save(tmp_path / "clf.safetensors")
    assert HACEClassifier.load(tmp_path / "clf.safetensors").random_state is None
    clf.set_params(loss_params={"alpha": object()})
    with pytest.raises(ConfigError, match="loss_params must hold numbers, strings, lists and dicts"):
        clf.save(tmp_path / "other.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["clf.safetensors"]


def changed(path: Path, record: Any = None, **arrays: np.ndarray | None) -> Path:
    """The file with some entries of the estimator's record or, by keys that it lacks, of its document replaced, or some arrays,
    and a new checksum; None or "gone" removes."""
    with safe_open(path, "numpy") as file:
        document = json.loads(file.metadata()["hace"]) | {"sha256": UNSEALED}
    for key, value in (record or {}).items():
        place = document if key in document else document["estimator"]
        if value == "gone":
            del place[key]
        else:
            place[key] = value
    tensors = load_file(path) | {name.replace("head_", "head."): a for name, a in arrays.items()}
    other = path.with_name("changed.safetensors")
    save_file(
        {name: a for name, a in tensors.items() if a is not None}, other, {"hace": json.dumps(document)}
    )
    seal(other)
    return other


def test_a_flipped_bit_is_an_error(tmp_path: Path) -> None:
    """Of weights, order, document or checksum: never another answer."""
    path, other = tmp_path / "clf.safetensors", tmp_path / "flipped.safetensors"
    HACEClassifier(TREE, loss="cross_entropy_paths").fit(X, NAMES).save(path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    weights = len(content) - 8 * (5 * 4 + 5 + 3)  # of what follows the document
    for place in [*rng.integers(weights, len(content), 30), *rng.integers(0, len(content), 100)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        other.write_bytes(flipped)
        with pytest.raises(FormatError):
            HACEClassifier.load(other)


def test_files_that_are_not_classifiers_say_so(tmp_path: Path) -> None:
    path = tmp_path / "clf.safetensors"
    clf = HACEClassifier(TREE, loss="cross_entropy_paths").fit(X, NAMES)
    clf.calibrate(X, NAMES, temperature=1).save(path)
    bad = np.full((5, 4), np.nan)
    cases: list[tuple[Path, str]] = []
    for i, (document, arrays, words) in enumerate(
        [
            ({"format": "other"}, {}, "must be written by `hace export` or HACEClassifier.save"),
            ({"hierarchy": "gone"}, {}, "hierarchy must be a mapping. Got nothing"),
            ({"hierarchy": {"nodes": 3}}, {}, "is damaged"),
            ({"loss_name": "__import__('os')"}, {}, "loss must be one of"),
            ({"params": {"no_such": 1}}, {}, "no_such"),
            ({"params": [1]}, {}, "is damaged"),
            ({"labels": "roots"}, {}, "labels must be one of 'leaves', 'nodes'. Got 'roots'"),
            (
                {"input": {"name": "features", "shape": ["batch", 9], "dtype": "float64"}},
                {},
                r"head.weight must be finite float64 of shape \(5, 9\)",
            ),
            ({"temperature": -1}, {}, "temperature must be a number above 0"),
            ({"seen": [9]}, {}, "seen must be from 0 to 4"),
            ({"classes": ["a"]}, {}, "its classes and nodes do not match its hierarchy"),
            ({"feature_names": ["a"]}, {}, "feature_names must be 4 names"),
            ({}, {"head_weight": None}, "'head.weight' is missing"),
            ({}, {"head_weight": bad}, "head.weight must be finite float64"),
            ({}, {"head_weight": bad.astype(np.float32)}, "head.weight must be finite float64"),
            ({}, {"order": np.array([0, 1, 7])}, "order must hold labels from 0 to 2, each once"),
            ({}, {"order": np.array([0, 1, 1])}, "order must hold labels from 0 to 2, each once"),
            ({"history": json.loads("[" * 900 + "]" * 900)}, {}, "is damaged: its document nests too deep"),
            ({"calibration": {"format": "other"}}, {}, "must be a calibration that `hace calibrate` wrote"),
        ]
    ):
        other = changed(path, document, **arrays)
        cases.append((other.rename(tmp_path / f"{i}.safetensors"), words))
    (tmp_path / "text.safetensors").write_text("no such thing")
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-9])
    save_file({"a": np.zeros(2)}, tmp_path / "plain.safetensors")
    cases += [
        (tmp_path / "text.safetensors", "is not a .safetensors file, or is damaged"),
        (tmp_path / "cut.safetensors", "is not a .safetensors file, or is damaged"),
        (tmp_path / "plain.safetensors", "must be written by `hace export` or HACEClassifier.save"),
        (tmp_path / "missing.safetensors", "missing.safetensors"),
    ]
    for file, words in cases:
        with pytest.raises(FormatError, match=words):
            HACEClassifier.load(file)


@pytest.mark.parametrize(
    "loss",
    [
        "cross_entropy_paths",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("hace", "conditional_softmax", "cross_entropy")
        ),
    ],
)
def test_commands_answer_as_the_classifier_does(loss: str, tmp_path: Path) -> None:
    """From the file of `save`, from ONNX, and from ONNX that `hace export` made of the file."""
    pytest.importorskip("onnxruntime")
    rows = np.random.default_rng(0).permutation(150)
    y = np.where(rows % 5, NAMES[rows], np.where(IRIS.target[rows] > 0, "large", "small"))
    y[y == "setosa"] = "small"  # nothing is known below "small": answers stop there
    clf = HACEClassifier(TREE, loss=loss).fit(X[rows[:60]], y[:60]).calibrate(X[rows[60:]], y[60:])
    file, onnx, made = (tmp_path / name for name in ("a.safetensors", "a.onnx", "b.onnx"))
    clf.save(file)
    clf.to_onnx(onnx)
    export_run(file, made)
    best = clf.predict_proba(X).max(axis=1)
    for path in (file, onnx, made):
        predictions = Predictor.from_run(path).predict(X, accuracy=0.8)
        np.testing.assert_allclose(predictions.leaves.probabilities[:, 0], best, atol=1e-5)
        assert predictions.guarantee is not None
        assert predictions.guarantee.guarantee == clf.guarantee(0.8).guarantee
        if path is file:
            assert predictions.answers.ids == clf.predict_node(X, accuracy=0.8).tolist()
            assert "small" in predictions.answers.ids
            at = [TREE.index(node) for node in predictions.answers.ids if node is not None]
            said = [i for i, node in enumerate(predictions.answers.ids) if node is not None]
            np.testing.assert_allclose(
                predictions.answers.probabilities[said],
                np.exp(clf.predict_node_log_proba(X)[said, at]),
                atol=1e-9,
            )


def test_a_file_is_calibrated_by_the_command_and_read_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).permutation(150)
    HACEClassifier(TREE).fit(X[rows[:50]], NAMES[rows[:50]]).save("a.safetensors")
    np.savez("val.npz", x=X[rows[50:]], y=NAMES[rows[50:]])
    np.save("new.npy", X)
    assert cli.main(["predict", "a.safetensors", "new.npy", "--accuracy", "0.9", "--out", "o.csv"]) == 2
    assert cli.main(["calibrate", "a.safetensors"]) == 2
    assert cli.main(["calibrate", "a.safetensors", "--samples", "val.npz", "--accuracy", "0.9"]) == 0
    assert cli.main(["predict", "a.safetensors", "new.npy", "--accuracy", "0.9", "--out", "o.csv"]) == 0
    clf = HACEClassifier.load("a.safetensors")
    assert clf.temperature_ != 1
    answers = pd.read_csv("o.csv", keep_default_na=False)["answer"].tolist()
    assert answers == [node or "" for node in clf.predict_node(X, accuracy=0.9)]
    with pytest.raises(
        ConfigError, match=r"must be one that the file holds: 0.9 of samples, 0.9 of answers. Got 0.5"
    ):
        clf.guarantee(0.5)
    clf.save("again.safetensors")
    assert HACEClassifier.load("again.safetensors").guarantee(0.9) == clf.guarantee(0.9)
    clf.to_onnx("a.onnx")
    assert cli.main(["calibrate", "a.onnx", "--samples", "val.npz"]) == 2  # it cannot be written into ONNX
    assert cli.main(["calibrate", "a.onnx", "--samples", "val.npz", "--out", "c.json"]) == 0


@pytest.mark.parametrize("scaling", ["none", "standard", "unit"])
def test_an_exported_run_is_a_classifier(scaling: str, tmp_path: Path) -> None:
    data = DataConfig("synthetic-features", options={"classes": 5, "dim": 8, "train": 40, "test": 5})
    config = ProbeConfig(data=data, epochs=2, normalize=scaling, loss=LossConfig("cross_entropy_paths"))
    (run,) = probe([config], tmp_path)
    file, _, _ = export_run(run.folder, to="safetensors")
    if scaling == "unit":
        with pytest.raises(FormatError, match="must be a linear model of features as they are"):
            HACEClassifier.load(file)
        return
    clf, predictor = HACEClassifier.load(file), Predictor.from_run(run.folder)
    x = np.random.default_rng(0).normal(size=(20, 8))
    predictions = predictor.predict(x.astype(np.float32), top_k=1)
    assert predictions.answers.ids == clf.predict(x).tolist()
    np.testing.assert_allclose(clf.predict_proba(x).max(axis=1), predictions.answers.probabilities, atol=1e-5)
