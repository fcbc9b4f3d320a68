"""Exported files that were damaged or made up: one message that names the file, never another answer."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hace import Predictor
from hace.errors import FormatError, HaceError
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.serve.calibrate_run import calibrate_run
from hace.lab.serve.export import export_run
from hace.linear.model_files import UNSEALED, parse_document, seal

FEATURES = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
IMAGES = {
    "input": {"name": "images", "shape": ["batch", 3, 32, 32], "dtype": "float32"},
    "preprocessing": {
        "resize": 32,
        "size": 32,
        "interpolation": "bilinear",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.2, 0.2, 0.2],
    },
    "architecture": {"kind": "train", "model": "test_vit"},
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated probe as one file."""
    folder = tmp_path_factory.mktemp("export")
    data = DataConfig("synthetic-features", options={"classes": 5, "dim": 8, "train": 40, "test": 5})
    (run,) = probe([ProbeConfig(data=data, loss=LossConfig("hace"), epochs=2, validation=0.5)], folder)
    calibrate_run(run.folder, 0.6)
    export_run(run.folder, folder / "a.safetensors")
    return folder / "a.safetensors"


def document_of(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["hace"])


def changed(document: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy with another value at a place; `...` removes it."""
    *parts, last = place.split(".")
    result = inner = copy.deepcopy(document)
    for part in parts:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return result


def rewritten(exported: Path, path: Path, document: dict[str, Any]) -> Path:
    """The same weights with another document, and a checksum that fits: as an attacker would write it."""
    metadata = {"hace": json.dumps({**document, "sha256": UNSEALED})}
    save_file(load_file(exported), path, metadata=metadata)
    seal(path)
    return path


def use(path: Path) -> list[str | None]:
    predictor = Predictor.from_run(path)
    predictor.predict(FEATURES, accuracy=0.6)
    return predictor.predict(FEATURES).answers.ids


@pytest.mark.parametrize(
    "place", ["input", "outputs", "temperature", "calibration", "head", "architecture", "run"]
)
@pytest.mark.parametrize("value", [..., "x", -1, [], {}, True], ids=repr)
def test_every_part_is_checked_when_the_file_is_opened(
    exported: Path, tmp_path: Path, place: str, value: Any
) -> None:
    if (place, value) == ("run", "x"):
        return  # an id like any other
    document = changed(document_of(exported), place, value)
    path = rewritten(exported, tmp_path / "b.safetensors", document)
    with pytest.raises(FormatError, match=r"b\.safetensors"):
        use(path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("temperature", 0, r"temperature must be a number above 0\. Got 0\."),
        (
            "temperature",
            2.0,
            r"calibration must be for this model\. Its temperature is .*, the model's 2\.0\.",
        ),
        (
            "architecture.scaling",
            "x",
            r"architecture\.scaling must be one of unit, standard, none\. Got 'x'\.",
        ),
        (
            "architecture.model",
            "hf-hub:a/b",
            r"architecture\.model cannot be built\. --model must be a model",
        ),
        ("input.shape", ["batch"], r"input\.shape must be a list of the batch and sizes of at least 1"),
        ("input.shape", ["batch", 3, 8, 8], r"input\.shape must be the batch and the number of features"),
        (
            "architecture.kind",
            "train",
            r"architecture\.kind must be 'probe', because the model takes features",
        ),
        ("classes", ["a"], "its classes and nodes do not match its hierarchy"),
        ("hierarchy", {"nodes": 3}, "its hierarchy cannot be read"),
        ("head.num_outputs", True, r"head\.num_outputs must be a whole number of at least 1\. Got True\."),
        ("head.loss", {}, r"head\.loss\.name must be text\. Got nothing\."),
    ],
)
def test_the_message_names_the_value(
    exported: Path, tmp_path: Path, place: str, value: Any, message: str
) -> None:
    document = changed(document_of(exported), place, value)
    path = rewritten(exported, tmp_path / "b.safetensors", document)
    with pytest.raises(FormatError, match=message):
        use(path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("preprocessing.resize", 10**9, r"preprocessing\.resize must be a whole number from 1 to 8,192"),
        ("preprocessing.size", 16, r"input\.shape must be that of images of preprocessing\.size, 16"),
        (
            "preprocessing.interpolation",
            "x",
            r"preprocessing\.interpolation must be one of nearest, .*lanczos",
        ),
        ("preprocessing.std", [0.2, 0.0, 0.2], r"preprocessing\.std must be three numbers above 0"),
        ("preprocessing.mean", [0.2, 0.2], r"preprocessing\.mean must be three numbers"),
        ("preprocessing", None, r"preprocessing\.resize must be .* Got nothing"),
    ],
)
def test_how_images_are_seen(exported: Path, place: str, value: Any, message: str) -> None:
    whole = {**document_of(exported), **IMAGES}
    assert parse_document(json.dumps(whole), "a.onnx") == whole
    with pytest.raises(FormatError, match=message):
        parse_document(json.dumps(changed(whole, place, value)), "a.onnx")


OUTPUTS_OF = ["scores", "leaf_probabilities", "node_probabilities"]


def graph(path: Path, document: dict[str, Any], names: list[str], width: int) -> Path:
    """An ONNX file with a graph of nothing, and a checksum that fits."""
    onnx, _ = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Identity", ["features"], [name]) for name in names]
    inputs = [value("features", onnx.TensorProto.FLOAT, ["batch", width])]
    outputs = [value(name, onnx.TensorProto.FLOAT, ["batch", width]) for name in names]
    made = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", inputs, outputs),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.helper.set_model_props(made, {"hace": json.dumps({**document, "sha256": UNSEALED})})
    onnx.save(made, path)
    seal(path)
    return path


@pytest.mark.parametrize(("names", "width"), [(OUTPUTS_OF[::-1], 8), (OUTPUTS_OF, 9)])
def test_a_graph_that_is_not_of_its_document(
    exported: Path, tmp_path: Path, names: list[str], width: int
) -> None:
    path = graph(tmp_path / "a.onnx", document_of(exported), names, width)
    with pytest.raises(FormatError, match="graph must have the input and the outputs of its document"):
        use(path)


def test_half_a_surrogate_pair_in_an_onnx_file(exported: Path, tmp_path: Path) -> None:
    document = document_of(exported)
    nodes = json.loads(json.dumps(document["hierarchy"]).replace(document["nodes"][1], "\\ud800"))
    path = graph(tmp_path / "a.onnx", {**document, "hierarchy": nodes}, OUTPUTS_OF, 8)
    with pytest.raises(FormatError, match="Got half a surrogate pair"):
        use(path)


@pytest.mark.parametrize("where", [lambda n: 0, lambda n: 7, lambda n: n // 2, lambda n: n - 1])
def test_a_file_that_was_cut_off(exported: Path, tmp_path: Path, where: Callable[[int], int]) -> None:
    content = exported.read_bytes()
    (tmp_path / "b.safetensors").write_bytes(content[: where(len(content))])
    with pytest.raises(HaceError, match=r"b\.safetensors"):
        use(tmp_path / "b.safetensors")


def test_a_program_of_torch_is_refused_by_name(exported: Path, tmp_path: Path) -> None:
    """Opening one may run code, so not even its first byte is read."""
    for content in (b"", exported.read_bytes()):
        (tmp_path / "a.pt2").write_bytes(content)
        with pytest.raises(
            FormatError, match=r"\.pt2 file can run code when it is opened, so it is never read"
        ):
            Predictor.from_run(tmp_path / "a.pt2")


def test_flipped_bits_are_noticed(exported: Path, tmp_path: Path) -> None:
    content = bytearray(exported.read_bytes())
    weights = range(len(content) - sum(t.nbytes for t in load_file(exported).values()), len(content))
    path = tmp_path / "b.safetensors"
    for place in (weights[0], weights[len(weights) // 2], weights[-1]):
        for bit in (0, 4, 7):
            content[place] ^= 1 << bit
            path.write_bytes(content)
            with pytest.raises(FormatError, match="its bytes have changed since hace wrote it"):
                use(path)
            content[place] ^= 1 << bit
    path.write_bytes(content)
    assert use(path) == use(exported)


def test_a_checksum_of_another_file_or_of_none(exported: Path, tmp_path: Path) -> None:
    document, path = document_of(exported), tmp_path / "b.safetensors"
    for sha256 in (document["sha256"][::-1], UNSEALED, "", None, 3, ..., document["run"]):
        metadata = {"hace": json.dumps(changed(document, "sha256", sha256))}
        save_file(load_file(exported), path, metadata=metadata)
        with pytest.raises(FormatError, match="its bytes have changed since hace wrote it"):
            use(path)


def test_a_head_larger_than_the_weights(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    whole = changed({**document_of(exported), **IMAGES}, "head.num_outputs", 10**9)
    path = rewritten(exported, tmp_path / "b.safetensors", whole)
    with pytest.raises(FormatError, match=r"no tensor of it has head\.num_outputs rows"):
        Predictor.from_run(path)
