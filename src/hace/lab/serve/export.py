"""A finished run as one file for deployment, ONNX or safetensors, or as a folder as model hubs have them.

    export_run("runs/4cd033b43672ca23", "birds.onnx")
    Predictor.from_run("birds.onnx").predict("photos", threshold=0.9)       # needs onnxruntime, and neither timm nor the run

A file gives three outputs: ``scores`` (logits, before any temperature), ``leaf_probabilities`` (B, n) in label order and
``node_probabilities`` (B, N) in node order, both at the run's temperature. Beside them it holds one JSON document, described
in docs/deployment.md: preprocessing, ids of classes and nodes, hierarchy, temperature, and thresholds that keep promises.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hace.checks import check_choice, is_number
from hace.decisions.calibration import Calibration, parse_calibration
from hace.draw import templates
from hace.errors import ConfigError, FormatError, HaceError, shorten
from hace.files.documents import parse_json
from hace.files.reading import as_rgb, open_regular, optional
from hace.files.weights import fill, first_line, read_safetensors
from hace.files.writing import atomic_folder, atomic_path, json_bytes, writing
from hace.formats import parse_hierarchy, render_hierarchy
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import node_titles
from hace.lab.features.backbones import POOLS, bare_model, check_backbone_name, pooled
from hace.lab.features.text import encoder_record
from hace.lab.models import build_model
from hace.lab.runs.config import HeadConfig
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, Run
from hace.lab.serve.load_run import backbone_of, load_probe, load_trained, open_finished
from hace.lab.serve.run_calibration import calibration_of
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall, PoincareHead
from hace.losses.registry import build_loss
from hace.metrics.evaluation import CARRIED_UP
from hace.settings import from_dict

EXPORT_FORMAT = "hace.export.1"
DOCUMENT = "hace"  # the key of the document in a file's metadata
OUTPUTS = ("scores", "leaf_probabilities", "node_probabilities")
LARGEST_IMAGE = 8192  # the side in pixels that a file may ask for
_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
FILES = ("onnx", "safetensors")  # each also the suffix of its files
TOLERANCE = 1e-4  # between a written file and the model, in probability
_CARD = {  # heading of the results: metrics of the model card; None: all
    "leaves": ("top-1", "top-5", "severity", "HD@1"),
    CARRIED_UP: None,
    "calibration error (ECE) by level": None,
}
_ABSENT = object()


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
        self.network, self.loss, self.outputs, self.temperature = network, loss, outputs, temperature
        self.num_nodes = hierarchy.num_nodes
        ancestor, below = hierarchy.reachability()
        if outputs == "leaves":
            kept = hierarchy.labels[below] >= 0
            ancestor, below = ancestor[kept], hierarchy.labels[below[kept]]
        for name, array in (("ancestor", ancestor), ("column", below), ("leaf_nodes", hierarchy.leaf_nodes)):
            self.register_buffer(name, torch.tensor(np.array(array, dtype=np.int64)), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (B, C), probabilities of the classes (B, n) and of the nodes (B, N)."""
        z = self.network(x)
        scores = z if self.loss is None else self.loss.leaf_logits(z)
        q = (scores / self.temperature).softmax(dim=1)
        leaves = q
        if self.outputs == "nodes":
            leaves = (scores.index_select(1, self.leaf_nodes) / self.temperature).softmax(dim=1)
        nodes = q.new_zeros(q.shape[0], self.num_nodes)
        return scores, leaves, nodes.index_add(1, self.ancestor, q.index_select(1, self.column))


class ProbeNetwork(nn.Module):
    """A frozen timm model, the scaling of its features ("mean", "std") and a head; without the model it takes features."""

    def __init__(
        self,
        model: nn.Module | None,
        pool: str,
        scaling: str,
        weights: Mapping[str, Tensor],
        ball: PoincareBall | None = None,
    ) -> None:
        super().__init__()
        self.model, self.pool, self.scaling = model, pool, scaling
        self.head = last_layer(weights["weight"], weights.get("bias"), ball)
        for name in ("mean", "std") if scaling == "standard" else ():
            self.register_buffer(name, weights[name])

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs (B, C)."""
        x = x if self.model is None else pooled(self.model, x, self.pool)
        if self.scaling == "standard":
            x = (x - self.get_buffer("mean")) / self.get_buffer("std")
        elif self.scaling == "unit":
            largest = x.abs().amax(dim=1, keepdim=True)  # first, so that no square over- or underflows
            x = x / torch.where(largest > 0, largest, 1.0)
            norms = x.norm(dim=1, keepdim=True)
            x = x / torch.where(norms > 0, norms, 1.0)
        return self.head(x)


def last_layer(
    weight: Tensor, bias: Tensor | None, ball: PoincareBall | None = None
) -> nn.Linear | PoincareHead:
    """A layer with these weights, hyperbolic where there is a ball."""
    outputs, inputs = weight.shape
    if ball is None:
        layer = nn.Linear(inputs, outputs, bias=bias is not None)
    else:
        layer = PoincareHead(inputs, outputs, curvature=ball.curvature, clip=ball.clip)
        bias = weight.new_zeros(outputs) if bias is None else bias
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer


# --- the checksum: the document holds the sha256 of the whole file, computed with zeros in its own place

UNSEALED = "0" * 64


def seal(path: str | Path) -> None:
    """Put the checksum of a file whose document has `UNSEALED` as its sha256 into its place."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = content.find(UNSEALED.encode())
        content[place : place + 64] = hashlib.sha256(content).hexdigest().encode()


def _check_seal(path: str, recorded: Any) -> None:
    """Refuse a file that changed since it was written."""
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        place = content.find(str(recorded).encode(errors="replace"))
        if 0 <= place <= len(content) - 64:
            content[place : place + 64] = UNSEALED.encode()
        found = hashlib.sha256(content).hexdigest()
    if place < 0 or found != recorded:
        raise FormatError(
            f"{path} is damaged: its bytes are not those that `hace export` wrote. Copy it again, or export the run again."
        )


# --- writing


@dataclass(frozen=True, eq=False)
class Export:
    """A run, ready to be written: its model, from images or features to `OUTPUTS`, its document, and an example input."""

    run: Run
    model: ScoredModel
    document: dict[str, Any]
    example: Tensor


def prepare(folder: str | Path, *, checkpoint: str | Path | None = None) -> Export:
    """The model of a finished run with its document; arguments as of :func:`export_run`."""
    run = open_finished(folder)
    network, loss, view, made = _parts(run, checkpoint)
    h = run.hierarchy
    scored = ScoreView(loss, h, temperature=1.0)
    flat = run.config.head.ball is None  # sums of distances to hyperplanes are no such distances
    collapsed = loss.head.outputs == "paths" and flat and _collapse(network, loss)
    over_leaves = loss.head.outputs == "leaves" and type(loss).leaf_logits is HierarchicalLoss.leaf_logits
    needed = None if collapsed or over_leaves or scored.outputs == "nodes" else loss
    calibration = calibration_of(run) if (run.folder / CALIBRATION).is_file() else None
    fitted = ((run.result or {}).get("temperature") or {}).get("value") or 1.0
    temperature = fitted if calibration is None else calibration.temperature
    model = ScoredModel(network, needed, h, scored.outputs, temperature).eval().requires_grad_(False)
    shape = (network.head.in_features,) if view is None else (3, view["size"], view["size"])
    document = {
        "format": EXPORT_FORMAT,
        "sha256": UNSEALED,
        "input": {
            "name": "features" if view is None else "images",
            "shape": ["batch", *shape],
            "dtype": "float32",
        },
        "outputs": {"scores": scored.outputs, "leaf_probabilities": "leaves", "node_probabilities": "nodes"},
        "preprocessing": view,
        "temperature": temperature,
        "calibration": None if calibration is None else calibration.to_dict(),
        "classes": list(h.leaves),
        "nodes": list(h.nodes),
        "hierarchy": json.loads(render_hierarchy(h, "json")),
        "run": run.id,
        "loss": run.config.loss.name,
        "head": {
            "num_outputs": h.num_leaves if collapsed else loss.num_outputs,
            "loss": None if needed is None else run.config.loss.to_dict(),
            "tree": "own" if loss.hierarchy.fingerprint == h.fingerprint else "another",
            **({} if flat else {"layer": run.config.head.to_dict()}),
        },
        "model": made["model"],
        "architecture": made,
    }
    return Export(run, model, document, torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))


def _parts(
    run: Run, checkpoint: str | Path | None
) -> tuple[Any, HierarchicalLoss, dict[str, Any] | None, dict[str, Any]]:
    """The network, its loss, how images become its input (None: it takes features), and its architecture."""
    if run.config.kind == "train":
        trained = load_trained(run)
        seen = trained.preprocessing
        view = _view(seen.resize, seen.size, "bilinear", seen.mean, seen.std)
        return trained.model.float(), trained.loss, view, {"kind": "train", "model": trained.config.model}
    head = load_probe(run)
    made: dict[str, Any] = {"kind": "probe", "model": None, "scaling": head.scaling.how}
    if run.about["data"].get("source") is None:
        return ProbeNetwork(None, "auto", head.scaling.how, head.weights, head.ball), head.loss, None, made
    backbone = backbone_of(run, checkpoint, torch.device("cpu"))
    seen = backbone.preprocessing
    if seen.get("text"):  # the head alone: it takes what the encoder that is named here makes of texts
        made["encoder"] = encoder_record(backbone, run.about["data"]["source"])
        return ProbeNetwork(None, "auto", head.scaling.how, head.weights, head.ball), head.loss, None, made
    size = seen["input_size"][1]
    if seen["crop_mode"] != "center" or size != seen["input_size"][2]:
        raise ConfigError(f"{backbone.name} must see a resized square cut from the middle. Got {seen}.")
    view = _view(int(size / seen["crop_pct"]), size, seen["interpolation"], seen["mean"], seen["std"])
    network = ProbeNetwork(backbone.model, backbone.pool, head.scaling.how, head.weights, head.ball)
    return network, head.loss, view, made | {"model": backbone.name, "pool": backbone.pool}


def _view(resize: int, size: int, interpolation: str, mean: Any, std: Any) -> dict[str, Any]:
    steps = (
        "turn as EXIF says; RGB; resize with Pillow's filter so that the shorter side is `resize` and the longer one "
        "int(resize * longer / shorter); cut size x size with its left edge at round((width - size) / 2) and its top edge at "
        "round((height - size) / 2), halves rounded to even; scale to 0..1; subtract mean, divide by std; NCHW"
    )
    sizes = {"resize": resize, "interpolation": interpolation, "size": size}
    return {"steps": steps, **sizes, "mean": list(mean), "std": list(std)}


def _collapse(network: nn.Module, loss: HierarchicalLoss) -> bool:
    """Make the last layer of path sums an ordinary layer over the classes; False where it is not a linear layer."""
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not layers or layers[-1][1].out_features != loss.num_outputs:
        return False
    name, layer = layers[-1]
    weight, bias = loss.collapse(layer.weight.data, None if layer.bias is None else layer.bias.data)
    network.set_submodule(name, last_layer(weight, bias))
    return True


def write_export(export: Export, path: str | Path, to: str) -> float:
    """Write a file, whole or not at all, and give the largest difference of its probabilities from the model's."""
    with writing(Path(path).resolve().parent), atomic_path(path) as temporary:
        {"onnx": _write_onnx, "safetensors": _write_safetensors}[to](export, temporary)
        seal(temporary)
        # Another number of samples than the example.
        x = torch.cat([export.example, export.example.flip(0) * 2])
        with torch.no_grad():
            expected = export.model(x)
        found = open_program(temporary).run(x)
        difference = max(float((a - b).abs().max()) for a, b in zip(found[1:], expected[1:], strict=True))
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"The file must compute what the model computes. Its probabilities differ by {difference:.2g}: this format "
                "does not suit the model. Try another --to."
            )
        return difference


def _write_onnx(export: Export, path: Path) -> None:
    optional("onnx", "Writing ONNX", "export")
    optional("onnxscript", "Writing ONNX", "export")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": [export.document["input"]["name"]], "output_names": list(OUTPUTS)}
        shapes = ({0: torch.export.Dim("batch")},)
        program: Any = torch.onnx.export(
            export.model, (export.example,), dynamo=True, dynamic_shapes=shapes, verbose=False, **names
        )
    program.model.metadata_props[DOCUMENT] = json.dumps(export.document)
    program.save(str(path), external_data=False)


def _write_safetensors(export: Export, path: Path) -> None:
    save = optional("safetensors.torch", "Writing .safetensors").save
    if export.document["head"]["loss"] is not None and export.document["head"]["tree"] == "another":
        raise ConfigError("to must be onnx for a run that was trained on a shuffled tree. Got 'safetensors'.")
    tensors = {name: tensor.contiguous() for name, tensor in export.model.network.state_dict().items()}
    # save_file would leave the file readable by its owner only
    path.write_bytes(save(tensors, metadata={DOCUMENT: json.dumps(export.document), "format": "pt"}))


def export_run(
    folder: str | Path,
    path: str | Path | None = None,
    to: str | None = None,
    *,
    checkpoint: str | Path | None = None,
) -> tuple[Path, Export, float]:
    """Write a finished run as one file, or as a folder for a model hub; see the module.

    Args:
        folder: The run directory.
        path: The file or folder to write; None: model.onnx, model.safetensors or huggingface in the run directory.
        to: "onnx", "safetensors" or "huggingface"; None: by the suffix of `path`.
        checkpoint: For a probe: the weights of the model behind its features, where they do not come from the hub.

    Returns:
        Where it was written, what was written, and by how much its probabilities differ from the run's on random inputs.

    Raises:
        ConfigError: An unknown format, or a file whose results differ from the model's.
    """
    suffix = "" if path is None else Path(path).suffix.lower()[1:]
    if to is None and suffix not in FILES:
        raise ConfigError(f"path must end in .onnx or .safetensors, or to= be given. Got {str(path)!r}.")
    to = suffix if to is None else to
    check_choice("to", to, (*FILES, "huggingface"))
    if path is not None and to in FILES and suffix != to:  # before the run and its model are read
        raise ConfigError(f"a file for {to} must end in .{to}: readers go by it. Got {str(path)!r}.")
    export = prepare(folder, checkpoint=checkpoint)
    name = f"model.{to}" if to in FILES else to
    out = export.run.folder / name if path is None else Path(path)
    if path is None and out.is_symlink():
        raise ConfigError(f"{out} must be of the run. Got a link. Remove it, or name another --out (path=).")
    difference = write_hub_folder(export, out) if to == "huggingface" else write_export(export, out, to)
    return out, export, difference


def write_hub_folder(export: Export, folder: str | Path) -> float:
    """Write config.json, model.safetensors and a model card, README.md: whole or not at all; as :func:`write_export`."""
    if export.run.config.head.ball is not None:  # whose weights timm would read as those of a linear layer
        raise ConfigError("A model for a hub must end in a linear layer. Got a hyperbolic head.")
    with atomic_folder(folder) as temporary:
        difference = write_export(export, temporary / "model.safetensors", "safetensors")
        (temporary / "config.json").write_bytes(json_bytes(hub_config(export)))
        (temporary / "README.md").write_text(model_card(export, Path(folder).name), encoding="utf-8")
    return difference


def hub_config(export: Export) -> dict[str, Any]:
    """config.json: the keys that timm and transformers use, and the whole document under "hace"."""
    document, h = export.document, export.run.hierarchy
    titles, view = node_titles(h), document["preprocessing"]
    names = titles if document["outputs"]["scores"] == "nodes" else [titles[v] for v in h.leaf_nodes.tolist()]
    count = {"num_classes": document["head"]["num_outputs"]}
    seen = {}
    if view is not None:
        seen = {key: view[key] for key in ("interpolation", "mean", "std")} | {
            "input_size": [3, view["size"], view["size"]],
            "crop_pct": view["size"] / view["resize"],
            "crop_mode": "center",
        }
    return {
        "architecture": document["model"],
        **count,
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
        "pretrained_cfg": seen | count,
        "hace": document,
    }


def model_card(export: Export, name: str) -> str:
    """README.md: what the model is, how good it is and on what, how to use it, and what it cannot do."""
    run, document = export.run, export.document
    result: dict[str, Any] = {"samples": 0, "split": None, "metrics": None, **(run.result or {})}
    metrics = [
        (metric if heading == "leaves" else f"{heading}: {metric}", value)
        for heading, shown in _CARD.items()
        for metric, value in (result["metrics"] or {}).get(heading, {}).items()
        if (shown is None or metric in shown) and value is not None
    ]
    stored = document["calibration"]
    calibration = None if stored is None else parse_calibration(stored, name)
    card = templates("hace.lab.serve").get_template("model_card.txt")
    return card.render(
        name=name, run=run, document=document, result=result, metrics=metrics, calibration=calibration
    )


# --- the document


def _whole(value: Any, largest: int = 10**9) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest


def _shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (2, 4) and all(map(_whole, value[1:]))


def _triple(value: Any, above: float) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(is_number(v) and v > above for v in value)


_SIDE = (f"a whole number from 1 to {LARGEST_IMAGE:,}", lambda v: _whole(v, LARGEST_IMAGE))
_IDS = ("a list of ids", lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v))
_OR_NULL = ("a mapping or null", lambda v: v is None or isinstance(v, dict))
# The place of a value, and what it must be: one of some words, a type, or a test with its rule in words.
_ALWAYS: dict[str, Any] = {
    "input.name": ("images", "features"),
    "input.shape": ("a list of the batch and sizes of at least 1", _shape),
    "outputs.scores": ("leaves", "nodes"),
    "temperature": ("a number above 0", lambda v: is_number(v) and v > 0),
    "calibration": _OR_NULL,
    "classes": _IDS,
    "nodes": _IDS,
    "hierarchy": dict,
    "run": str,
    "head.num_outputs": ("a whole number of at least 1", _whole),
    "head.loss": _OR_NULL,
    "architecture.kind": ("train", "probe"),
    "architecture.model": ("a name or null", lambda v: v is None or isinstance(v, str)),
}
_OF_IMAGES: dict[str, Any] = {
    "preprocessing.resize": _SIDE,
    "preprocessing.size": _SIDE,
    "preprocessing.interpolation": _INTERPOLATIONS,
    "preprocessing.mean": ("three numbers", lambda v: _triple(v, -float("inf"))),
    "preprocessing.std": ("three numbers above 0", lambda v: _triple(v, 0)),
    "architecture.model": str,
}
_OF_FEATURES: dict[str, Any] = {
    "preprocessing": ("null, because the model takes features", lambda v: v is None),
    "architecture.kind": ("'probe', because the model takes features", lambda v: v == "probe"),
    "input.shape": ("the batch and the number of features", lambda v: _shape(v) and len(v) == 2),
}
_OF_PROBES: dict[str, Any] = {
    "architecture.scaling": ("unit", "standard", "none"),
    "architecture.pool": (f"one of {', '.join(POOLS)}", lambda v: v is _ABSENT or v in POOLS),
}
_OF_LOSSES: dict[str, Any] = {"head.loss.name": str, "head.loss.options": dict}


def _problem(place: str, rule: Any, value: Any) -> str | None:
    """What is wrong with the value at a place."""
    if isinstance(rule, type):
        words, fits = {str: "text", dict: "a mapping"}[rule], isinstance(value, rule)
    elif callable(rule[1]):
        words, fits = rule[0], rule[1](value)
    else:
        words, fits = f"one of {', '.join(rule)}", isinstance(value, str) and value in rule
    got = "nothing" if value is _ABSENT else shorten(repr(value), 60)
    return None if fits else f"{place} must be {words}. Got {got}."


def parse_document(text: str | None, path: str) -> dict[str, Any]:
    """The document in a file's metadata; an error lists every value that is wrong."""
    document = parse_json(text, path) if text else None
    if not isinstance(document, dict) or document.get("format") != EXPORT_FORMAT:
        raise FormatError(f"{path} must be written by `hace export`. It holds no document {EXPORT_FORMAT!r}.")
    parts = [_ALWAYS, _OF_IMAGES if _at(document, "input.name") == "images" else _OF_FEATURES]
    parts += [_OF_PROBES] if _at(document, "architecture.kind") == "probe" else []
    parts += [_OF_LOSSES] if _at(document, "head.loss") is not None else []
    found = [_problem(place, rule, _at(document, place)) for part in parts for place, rule in part.items()]
    problems = [problem for problem in found if problem is not None]
    if not problems and document["preprocessing"] is not None:
        size, shape = document["preprocessing"]["size"], document["input"]["shape"][1:]
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
        raise FormatError(f"{path} is damaged: its classes and nodes are not those of its hierarchy.")
    return h


def stored_calibration(document: Mapping[str, Any], hierarchy: Hierarchy, path: Any) -> Calibration:
    """The calibration of a document that has one, if it was made for this model."""
    found = parse_calibration(document["calibration"], path)
    for name, theirs, ours in (
        ("hierarchy", found.hierarchy, hierarchy.fingerprint),
        ("outputs", found.outputs, document["outputs"]["scores"]),
        ("temperature", found.temperature, document["temperature"]),
    ):
        if theirs != ours:
            raise FormatError(
                f"{path} is damaged: its calibration must be for this model. Its {name} is {theirs}, the model's {ours}. "
                "Export the run again."
            )
    return found


# --- opening a file


class Program(NamedTuple):
    """An opened file: its document, and a function from inputs to scores, probabilities of classes and of nodes."""

    document: dict[str, Any]
    run: Callable[[Tensor], tuple[Tensor, ...]]


def open_program(path: str | Path) -> Program:
    """Open a file of `hace export`, or a folder of it with config.json and model.safetensors."""
    file = Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)
    suffix = file.suffix.lower()
    opens = {".onnx": _open_onnx, ".safetensors": _open_safetensors}
    if suffix not in opens:
        why = " A .pt2 file can run code when it is opened, so it is never read." * (suffix == ".pt2")
        raise FormatError(f"{path} must be a run, or a file of `hace export`: {', '.join(opens)}.{why}")
    with open_regular(file):  # refuses what is not a regular file
        pass
    try:
        return opens[suffix](str(file))
    except HaceError:
        raise
    except Exception as error:  # each library has its own kinds
        raise FormatError(f"{path} cannot be opened as {suffix[1:]}: {first_line(error)}") from error


def _open_onnx(path: str) -> Program:
    runtime = optional("onnxruntime", "Reading ONNX", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # idle threads burn no processor time
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    document = parse_document(session.get_modelmeta().custom_metadata_map.get(DOCUMENT), path)
    _check_seal(path, document.get("sha256"))
    (taken, *more), given = session.get_inputs(), [output.name for output in session.get_outputs()]
    if more or taken.shape[1:] != document["input"]["shape"][1:] or given != list(OUTPUTS):
        raise FormatError(
            f"{path} is damaged: its graph must have the input and the outputs of its document."
        )

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(a) for a in session.run(list(OUTPUTS), {taken.name: x.float().numpy()}))

    return Program(document, run)


def _open_safetensors(path: str) -> Program:
    tensors, metadata = read_safetensors(path)
    document = parse_document(metadata.get(DOCUMENT), path)
    _check_seal(path, document.get("sha256"))
    h = hierarchy_of(document, path)
    named = document["head"]["loss"]
    loss = None if named is None else build_loss(named["name"], h, **named["options"])
    network = _network(document, tensors, path)
    model = ScoredModel(network, loss, h, document["outputs"]["scores"], document["temperature"]).eval()
    return Program(document, torch.no_grad()(lambda x: model(x)))


def _network(document: Mapping[str, Any], tensors: dict[str, Tensor], path: str) -> nn.Module:
    """The network of a document, filled with its weights."""
    made, view, head = document["architecture"], document["preprocessing"], document["head"]
    ball = from_dict(HeadConfig, head.get("layer", {})).ball
    if made["kind"] == "train":
        if not any(len(tensor) == head["num_outputs"] for tensor in tensors.values() if tensor.ndim):
            raise FormatError(f"{path} is damaged: no tensor of it has head.num_outputs rows.")
        network = build_model(made["model"], head["num_outputs"], image_size=view["size"], ball=ball)
        fill(network, tensors, path)
        return network
    model = None
    if made["model"] is not None:
        timm = optional("timm", "A model stored as .safetensors", "train")
        try:
            check_backbone_name(made["model"], timm)
        except ConfigError as error:
            raise FormatError(f"{path} is damaged: architecture.model cannot be built. {error}") from error
        model = bare_model(timm, made["model"], view["size"], pretrained=False)
    weights = {name.removeprefix("head."): tensor for name, tensor in tensors.items()}
    network = ProbeNetwork(model, made.get("pool", "auto"), made["scaling"], weights, ball)
    network.load_state_dict(tensors)
    return network


def image_view(view: Mapping[str, Any]) -> Callable[[Any], Tensor]:
    """From a PIL image to the tensor that a model sees, by the preprocessing of a document."""
    t = optional("torchvision.transforms", "Transforming images")
    resize = t.Resize(view["resize"], interpolation=t.InterpolationMode(view["interpolation"]))
    cut, normalize = t.CenterCrop(view["size"]), t.Normalize(view["mean"], view["std"])
    return t.Compose([as_rgb, resize, cut, t.ToTensor(), normalize])
