"""A model as one file, ONNX or safetensors: what `hace export` and :class:`hace.HACEClassifier` write, and every command reads.

A file gives three outputs: ``scores`` (logits, before any temperature), ``leaf_probabilities`` (B, n) in label order and
``node_probabilities`` (B, N) in node order, both at the model's temperature. Beside them it holds one JSON document, described
in docs/predict.md: preprocessing, ids of classes and nodes, hierarchy, temperature, and thresholds that keep guarantees.

A file that is opened comes from anywhere: its bytes are compared with its checksum, and every value of its document is
checked, so that what uses it can trust it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hace.checks import is_number
from hace.decisions.calibration import Calibration, parse_calibration
from hace.errors import ConfigError, FormatError, HaceError, shorten
from hace.files.documents import parse_json
from hace.files.reading import open_regular, optional
from hace.files.weights import write_safetensors
from hace.files.writing import atomic_path, json_bytes, writing
from hace.formats import parse_hierarchy, render_hierarchy
from hace.hierarchy import Hierarchy
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall, PoincareHead

EXPORT_FORMAT = "hace.export.1"
DOCUMENT = "hace"  # the key of the document in a file's metadata
OUTPUTS = ("scores", "leaf_probabilities", "node_probabilities")
TOLERANCE = 1e-4  # between a written file and the model, in probability
_ABSENT = object()
POOLS = ("auto", "token", "avg")  # how a model of images makes one row of features
LARGEST_IMAGE = 8192  # the side in pixels that a file may ask for
_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")


class Program(NamedTuple):
    """An opened file: its document, and a function from inputs to scores, probabilities of classes and of nodes."""

    document: dict[str, Any]
    run: Callable[[Tensor], tuple[Tensor, ...]]
    model: ScoredModel | None = None  # of a .safetensors file


class ScoredModel(nn.Module):
    """A network and the steps to probabilities: its loss makes scores of its outputs; without one they are scores already."""

    column: Tensor
    ancestor: Tensor
    leaf_nodes: Tensor

    def __init__(
        self,
        network: nn.Module,
        loss: HierarchicalLoss | None,
        hierarchy: Hierarchy,
        outputs: str,
        temperature: float,
    ) -> None:
        super().__init__()
        self.network = network
        self.loss = loss
        self.hierarchy = hierarchy
        self.outputs = outputs
        self.temperature = temperature
        ancestor, below = hierarchy.reachability()
        if outputs == "leaves":
            is_leaf = hierarchy.labels[below] >= 0
            ancestor = ancestor[is_leaf]
            below = hierarchy.labels[below[is_leaf]]
        for name, array in (("ancestor", ancestor), ("column", below), ("leaf_nodes", hierarchy.leaf_nodes)):
            self.register_buffer(name, torch.tensor(np.array(array, dtype=np.int64)), persistent=False)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (B, C), probabilities of the classes (B, n) and of the nodes (B, N)."""
        z = self.network(x)
        scores = z if self.loss is None else self.loss.leaf_logits(z)
        q = (scores / self.temperature).softmax(dim=1)
        leaves = q
        if self.outputs == "nodes":
            leaves = (scores.index_select(1, self.leaf_nodes) / self.temperature).softmax(dim=1)
        nodes = q.new_zeros(q.shape[0], self.hierarchy.num_nodes)
        return scores, leaves, nodes.index_add(1, self.ancestor, q.index_select(1, self.column))


def last_layer(
    weight: Tensor, bias: Tensor | None, ball: PoincareBall | None = None
) -> nn.Linear | PoincareHead:
    """A layer with these weights, hyperbolic where there is a ball."""
    outputs, inputs = weight.shape
    if ball is None:
        layer = nn.Linear(inputs, outputs, bias=bias is not None, dtype=weight.dtype)
    else:
        layer = PoincareHead(inputs, outputs, curvature=ball.curvature, clip=ball.clip)
        bias = weight.new_zeros(outputs) if bias is None else bias
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer


def loss_of_scores(loss: HierarchicalLoss, scores: str) -> HierarchicalLoss | None:
    """The loss, unless a network's outputs are its scores over "leaves" or "nodes" already."""
    plain = loss.head.outputs == "leaves" and type(loss).leaf_logits is HierarchicalLoss.leaf_logits
    return None if plain or scores == "nodes" else loss


def collapse(network: nn.Module, loss: HierarchicalLoss) -> bool:
    """Make the last layer of path sums an ordinary layer over the classes; False where it is not a linear layer."""
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not layers or layers[-1][1].out_features != loss.num_outputs:
        return False
    name, layer = layers[-1]
    weight, bias = loss.collapse(layer.weight.data, None if layer.bias is None else layer.bias.data)
    network.set_submodule(name, last_layer(weight, bias))
    return True


# --- the checksum: the document holds the sha256 of the whole file, computed with zeros in its own place

UNSEALED = "0" * 64


def seal(path: Path) -> None:
    """Put the checksum of a file whose document has `UNSEALED` as its sha256 into its place."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = content.find(UNSEALED.encode())
        content[place : place + 64] = hashlib.sha256(content).hexdigest().encode()


def check_seal(path: str | Path, recorded: Any) -> None:
    """Refuse a file that changed since it was written."""
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        place = content.find(str(recorded).encode(errors="replace"))
        if 0 <= place <= len(content) - 64:
            content[place : place + 64] = UNSEALED.encode()
        actual = hashlib.sha256(content).hexdigest()
    if place < 0 or actual != recorded:
        raise FormatError(
            f"{path} is damaged: its bytes have changed since hace wrote it. Copy it again, or write it again."
        )


# --- writing


def new_document(
    scored: ScoredModel, input: Mapping[str, Any], calibration: Calibration | None, **more: Any
) -> dict[str, Any]:
    """The document of a model; `more` has its head and architecture."""
    h = scored.hierarchy
    return {
        "format": EXPORT_FORMAT,
        "sha256": UNSEALED,
        "input": {"dtype": "float32", **input},
        "outputs": {"scores": scored.outputs, "leaf_probabilities": "leaves", "node_probabilities": "nodes"},
        "temperature": scored.temperature,
        "calibration": None if calibration is None else calibration.to_dict(),
        "classes": list(h.leaves),
        "nodes": list(h.nodes),
        "hierarchy": json.loads(render_hierarchy(h, "json")),
        **more,
    }


def write_checked(
    path: str | Path, model: ScoredModel, document: Mapping[str, Any], open_: Callable[[Path], Program]
) -> float:
    """Write a file, whole or not at all, and give the largest difference of its probabilities from the model's."""
    example = torch.randn(2, *document["input"]["shape"][1:], generator=torch.Generator().manual_seed(0))
    with writing(Path(path).resolve().parent), atomic_path(path) as temporary:
        if temporary.suffix.lower() == ".onnx":
            _write_onnx(model, document, example, temporary)
        else:
            write_tensors(model.network.state_dict(), document, temporary)
        x = torch.cat([example, example.flip(0) * 2])  # another number of samples than the example
        with torch.no_grad():
            expected = model(x)
        written = open_(temporary).run(x)
        pairs = zip(written[1:], expected[1:], strict=True)  # probabilities of classes and of nodes
        difference = max(float((a - b).abs().max()) for a, b in pairs)
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"The file must compute what the model computes. Its probabilities differ by {difference:.2g}: this format "
                "does not suit the model. Try another --to."
            )
        return difference


def _write_onnx(model: ScoredModel, document: Mapping[str, Any], example: Tensor, path: Path) -> None:
    """Write a model as ONNX, with the document among its metadata."""
    optional("onnx", "Writing ONNX", "export")
    optional("onnxscript", "Writing ONNX", "export")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": [document["input"]["name"]], "output_names": list(OUTPUTS)}
        shapes = ({0: torch.export.Dim("batch")},)
        program: Any = torch.onnx.export(
            model, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False, **names
        )
    program.model.metadata_props[DOCUMENT] = json.dumps(document)
    program.save(str(path), external_data=False)
    seal(path)


def write_tensors(tensors: Mapping[str, Tensor], document: Mapping[str, Any], path: Path) -> None:
    """Write weights and a document as .safetensors."""
    with writing(path.resolve().parent), atomic_path(path) as temporary:
        arrays = {name: t.numpy() for name, t in tensors.items()}
        write_safetensors(temporary, arrays, {DOCUMENT: json.dumps(document), "format": "pt"})
        seal(temporary)


# --- the document


def _is_whole(value: Any, largest: int = 10**9) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest


def _shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (2, 4) and all(map(_is_whole, value[1:]))


def _triple(value: Any, above: float) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(is_number(v) and v > above for v in value)


_IDS = ("a list of ids", lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v))
_TEXT = ("text", lambda v: isinstance(v, str))
_MAPPING = ("a mapping", lambda v: isinstance(v, dict))
_OR_NULL = ("a mapping or null", lambda v: v is None or isinstance(v, dict))
_SIDE = (f"a whole number from 1 to {LARGEST_IMAGE:,}", lambda v: _is_whole(v, LARGEST_IMAGE))
# The place of a value, and what it must be: one of some words, or a test with its rule in words.
_ALWAYS: dict[str, Any] = {
    "input.name": ("images", "features"),
    "input.dtype": ("float32", "float64"),
    "input.shape": ("a list of the batch and sizes of at least 1", _shape),
    "outputs.scores": ("leaves", "nodes"),
    "temperature": ("a number above 0", lambda v: is_number(v) and v > 0),
    "calibration": _OR_NULL,
    "classes": _IDS,
    "nodes": _IDS,
    "hierarchy": _MAPPING,
    "run": ("text or null", lambda v: v is None or isinstance(v, str)),
    "head.num_outputs": ("a whole number of at least 1", _is_whole),
    "head.loss": _OR_NULL,
    "architecture.kind": ("train", "probe"),
    "architecture.model": ("a name or null", lambda v: v is None or isinstance(v, str)),
}
_OF_FEATURES: dict[str, Any] = {
    "preprocessing": ("null, because the model takes features", lambda v: v is None),
    "architecture.kind": ("'probe', because the model takes features", lambda v: v == "probe"),
    "input.shape": ("the batch and the number of features", lambda v: _shape(v) and len(v) == 2),
}
_OF_IMAGES: dict[str, Any] = {
    "preprocessing.resize": _SIDE,
    "preprocessing.size": _SIDE,
    "preprocessing.interpolation": _INTERPOLATIONS,
    "preprocessing.mean": ("three numbers", lambda v: _triple(v, -float("inf"))),
    "preprocessing.std": ("three numbers above 0", lambda v: _triple(v, 0)),
    "architecture.model": _TEXT,
}
_OF_PROBES: dict[str, Any] = {
    "architecture.scaling": ("unit", "standard", "none"),
    "architecture.pool": (f"one of {', '.join(POOLS)}", lambda v: v is _ABSENT or v in POOLS),
}
_OF_LOSSES: dict[str, Any] = {"head.loss.name": _TEXT, "head.loss.options": _MAPPING}


def _problem(place: str, rule: Any, value: Any) -> str | None:
    """What is wrong with the value at a place."""
    if callable(rule[1]):
        words = rule[0]
        fits = rule[1](value)
    else:
        words = f"one of {', '.join(rule)}"
        fits = isinstance(value, str) and value in rule
    got = "nothing" if value is _ABSENT else shorten(repr(value), 60)
    return None if fits else f"{place} must be {words}. Got {got}."


def parse_document(text: str | None, path: str) -> dict[str, Any]:
    """The document in a file's metadata; an error lists every value that is wrong."""
    document = parse_json(text, path) if text else None
    if not isinstance(document, dict) or document.get("format") != EXPORT_FORMAT:
        raise FormatError(
            f"{path} must be written by `hace export` or HACEClassifier.save. It holds no document {EXPORT_FORMAT!r}."
        )
    parts = [_ALWAYS, _OF_IMAGES if _at(document, "input.name") == "images" else _OF_FEATURES]
    parts += [_OF_PROBES] if _at(document, "architecture.kind") == "probe" else []
    parts += [_OF_LOSSES] if _at(document, "head.loss") is not None else []
    rules = [rule for part in parts for rule in part.items()]
    checked = [_problem(place, rule, _at(document, place)) for place, rule in rules]
    problems = [problem for problem in checked if problem is not None]
    if not problems and document["preprocessing"] is not None:
        size = document["preprocessing"]["size"]
        shape = document["input"]["shape"][1:]
        if shape != [3, size, size]:
            problems = [f"input.shape must be that of images of preprocessing.size, {size}. Got {shape}."]
    if problems:
        raise FormatError([f"{path} is damaged: {problem}" for problem in problems])
    return document


def _at(document: Mapping[str, Any], place: str) -> Any:
    """The value at a place such as "input.name"; `_ABSENT` where there is none."""
    value: Any = document
    for key in place.split("."):
        value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
    return value


def hierarchy_of(document: Mapping[str, Any], path: Any) -> Hierarchy:
    """The hierarchy of a document, if its ids are those of the columns."""
    try:
        h = parse_hierarchy(json_bytes(document["hierarchy"]), "json")
    except HaceError as error:
        raise FormatError(f"{path} is damaged: its hierarchy cannot be read. {error}") from error
    if list(h.leaves) != document["classes"] or list(h.nodes) != document["nodes"]:
        raise FormatError(f"{path} is damaged: its classes and nodes do not match its hierarchy.")
    return h


def stored_calibration(document: Mapping[str, Any], hierarchy: Hierarchy, path: Any) -> Calibration:
    """The calibration of a document that has one, if it was made for this model."""
    calibration = parse_calibration(document["calibration"], path)
    for name, theirs, ours in (
        ("hierarchy", calibration.hierarchy, hierarchy.fingerprint),
        ("outputs", calibration.outputs, document["outputs"]["scores"]),
        ("temperature", calibration.temperature, document["temperature"]),
    ):
        if theirs != ours:
            raise FormatError(
                f"{path} is damaged: its calibration must be for this model. Its {name} is {theirs}, the model's {ours}. "
                "Export the run again."
            )
    return calibration


# --- opening


def open_onnx(path: str | Path) -> Program:
    """Open a file with onnxruntime."""
    runtime = optional("onnxruntime", "Reading ONNX", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Idle threads burn no processor time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    document = parse_document(session.get_modelmeta().custom_metadata_map.get(DOCUMENT), str(path))
    check_seal(path, document.get("sha256"))
    taken, *more = session.get_inputs()
    given = [output.name for output in session.get_outputs()]
    if more or taken.shape[1:] != document["input"]["shape"][1:] or given != list(OUTPUTS):
        raise FormatError(
            f"{path} is damaged: its graph must have the input and the outputs of its document."
        )

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(a) for a in session.run(list(OUTPUTS), {taken.name: x.float().numpy()}))

    return Program(document, run)
