"""A finished run as one file (:mod:`hace.linear.model_files`), or as a folder as model hubs have them.

export_run("runs/latest", "birds.onnx")
Predictor.from_run("birds.onnx").predict("photos", threshold=0.9)       # needs onnxruntime, and neither timm nor the run
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hace.checks import check_choice
from hace.decisions.calibration import Calibration, parse_calibration
from hace.draw import templates
from hace.errors import ConfigError, FormatError, HaceError
from hace.files.reading import as_rgb, open_regular, optional
from hace.files.weights import fill, first_line, read_safetensors
from hace.files.writing import atomic_folder, json_bytes
from hace.hierarchy.names import node_titles
from hace.lab.features.backbones import (
    Backbone,
    bare_model,
    check_backbone_name,
    encoder_record,
    pooled,
    timm_models,
)
from hace.lab.models import build_model
from hace.lab.runs.config import HeadConfig
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, Run
from hace.lab.serve.calibrate_run import calibration_of
from hace.lab.serve.load_run import backbone_of, load_probe, load_trained, open_finished
from hace.linear import model_files as files
from hace.linear.model_files import DOCUMENT, UNSEALED, Program, ScoredModel
from hace.linear.saved_classifier import SUFFIXES, for_onnx
from hace.losses.base import HierarchicalLoss
from hace.losses.poincare_head import PoincareBall
from hace.losses.registry import build_loss
from hace.metrics.measures import CARRIED_UP
from hace.settings import from_dict

FILES = ("hace", "onnx", "safetensors")  # each also the suffix of its files
_CARD = {  # heading of the results: metrics of the model card; None: all
    "leaves": ("top-1", "top-5", "severity", "HD@1"),
    CARRIED_UP: None,
    "calibration error (ECE) by level": None,
}


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
        self.model = model
        self.pool = pool
        self.scaling = scaling
        self.head = files.last_layer(weights["weight"], weights.get("bias"), ball)
        for name in ("mean", "std") if scaling == "standard" else ():
            self.register_buffer(name, weights[name])

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs (B, C)."""
        x = x.to(self.head.weight.dtype) if self.model is None else pooled(self.model, x, self.pool)
        if self.scaling == "standard":
            x = (x - self.get_buffer("mean")) / self.get_buffer("std")
        elif self.scaling == "unit":
            largest = x.abs().amax(dim=1, keepdim=True)  # first, so that no square over- or underflows
            x = x / torch.where(largest > 0, largest, 1.0)
            norms = x.norm(dim=1, keepdim=True)
            x = x / torch.where(norms > 0, norms, 1.0)
        return self.head(x)


# --- writing


class Export(NamedTuple):
    """A run, ready to be written: its model, from images or features to `OUTPUTS`, and its document."""

    run: Run | None  # None for the model of a file
    model: ScoredModel
    document: dict[str, Any]


def prepare(folder: str | Path, *, checkpoint: str | Path | None = None) -> Export:
    """The model of a finished run, or of a .safetensors file, with its document; arguments as of :func:`export_run`."""
    if Path(folder).is_file():
        program = open_program(folder)
        if program.model is None or checkpoint is not None:
            raise ConfigError(f"{folder} must be a run, or a .safetensors file (without --checkpoint).")
        model, document = for_onnx(program.model, program.document)
        return Export(None, model, document | {"sha256": UNSEALED})
    run = open_finished(folder)
    network, loss, view, made = _parts(run, checkpoint)
    h = run.hierarchy
    outputs = ScoreView(loss, run.hierarchy, temperature=1.0).outputs
    flat = run.config.head.ball is None  # sums of distances to hyperplanes are no such distances
    collapsed = loss.head.outputs == "paths" and flat and files.collapse(network, loss)
    needed = None if collapsed else files.loss_of_scores(loss, outputs)
    calibration = calibration_of(run) if (run.folder / CALIBRATION).is_file() else None
    fitted = ((run.result or {}).get("temperature") or {}).get("value") or 1.0
    temperature = fitted if calibration is None else calibration.temperature
    model = ScoredModel(network, needed, h, outputs, temperature)
    shape = (network.head.in_features,) if view is None else (3, view["size"], view["size"])
    document = files.new_document(
        model,
        {"name": "features" if view is None else "images", "shape": ["batch", *shape]},
        calibration,
        preprocessing=view,
        run=run.id,
        loss=run.config.loss.name,
        head={
            "num_outputs": h.num_leaves if collapsed else loss.num_outputs,
            "loss": None if needed is None else run.config.loss.to_dict(),
            "tree": "own" if loss.hierarchy.fingerprint == h.fingerprint else "another",
            **({} if flat else {"layer": run.config.head.to_dict()}),
        },
        model=made["model"],
        architecture=made,
    )
    return Export(run, model, document)


def _parts(
    run: Run, checkpoint: str | Path | None
) -> tuple[Any, HierarchicalLoss, dict[str, Any] | None, dict[str, Any]]:
    """The network, its loss, how images become its input (None: it takes features), and its architecture."""
    if run.config.kind == "train":
        trained = load_trained(run)
        seen = trained.preprocessing
        view = view_document(seen.resize, seen.size, "bilinear", seen.mean, seen.std)
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
    view = view_of(backbone)
    network = ProbeNetwork(backbone.model, backbone.pool, head.scaling.how, head.weights, head.ball)
    return network, head.loss, view, made | {"model": backbone.name, "pool": backbone.pool}


def view_of(backbone: Backbone) -> dict[str, Any]:
    """How images become the input of a backbone, as a document says it."""
    seen = backbone.preprocessing
    size = seen["input_size"][1]
    if seen["crop_mode"] != "center" or size != seen["input_size"][2]:
        raise ConfigError(f"{backbone.name} must see a resized square cut from the middle. Got {seen}.")
    return view_document(int(size / seen["crop_pct"]), size, seen["interpolation"], seen["mean"], seen["std"])


def view_document(resize: int, size: int, interpolation: str, mean: Any, std: Any) -> dict[str, Any]:
    """How a photo becomes an input, as an export's document has it: in words, and the numbers in them."""
    steps = (
        "turn as EXIF says; RGB; resize with Pillow's filter so that the shorter side is `resize` and the longer one "
        "int(resize * longer / shorter); cut size x size with its left edge at round((width - size) / 2) and its top edge at "
        "round((height - size) / 2), halves rounded to even; scale to 0..1; subtract mean, divide by std; NCHW"
    )
    sizes = {"resize": resize, "interpolation": interpolation, "size": size}
    return {"steps": steps, **sizes, "mean": list(mean), "std": list(std)}


def write_export(export: Export, path: str | Path) -> float:
    """Write a file, whole or not at all, and give the largest difference of its probabilities from the model's."""
    head = export.document["head"]
    if Path(path).suffix.lower() in SUFFIXES and head["loss"] is not None and head["tree"] == "another":
        raise ConfigError(
            f"to must be onnx for a run that was trained on a shuffled tree. Got {Path(path).suffix[1:]!r}."
        )
    return files.write_checked(path, export.model, export.document, open_program)


def export_run(
    folder: str | Path,
    path: str | Path | None = None,
    to: str | None = None,
    *,
    checkpoint: str | Path | None = None,
) -> tuple[Path, Export, float]:
    """Write a finished run as one file, or as a folder for a model hub; or a .safetensors file as ONNX.

    Args:
        folder: The run directory, or a file of `export_run` or :meth:`hace.HACEClassifier.save`.
        path: The file or folder to write; None: in the run, named after `to`; of a file, FILE.onnx.
        to: "hace" (what :func:`hace.fit` writes too), "onnx", "safetensors" or "huggingface"; None: by the suffix of `path`.
        checkpoint: For a probe: the weights of the model behind its features, where they do not come from the hub.

    Returns:
        Where it was written, what was written, and by how much its probabilities differ from the run's on random inputs.

    Raises:
        ConfigError: An unknown format, or a file whose results differ from the model's.
    """
    suffix = "" if path is None else Path(path).suffix.lower()[1:]
    if to is None and suffix not in FILES:
        ends = ", ".join(f".{kind}" for kind in FILES)
        raise ConfigError(f"--out (path=) must end in {ends}, unless --to (to=) is given. Got {str(path)!r}.")
    to = suffix if to is None else to
    check_choice("to", to, (*FILES, "huggingface"))
    if path is not None and to in FILES and suffix != to:  # before the run and its model are read
        raise ConfigError(f"a file for {to} must end in .{to}: readers go by it. Got {str(path)!r}.")
    if Path(folder).is_file() and to != "onnx":
        raise ConfigError(f"to must be onnx for a file. Got {to!r}. Give the run for other formats.")
    export = prepare(folder, checkpoint=checkpoint)
    name = f"model.{to}" if to in FILES else to
    home = Path(folder).with_suffix(".onnx") if export.run is None else export.run.folder / name
    out = home if path is None else Path(path)
    if path is None and out.is_symlink():
        raise ConfigError(f"{out} must be of the run. Got a link. Remove it, or name another --out (path=).")
    difference = write_hub_folder(export, out) if to == "huggingface" else write_export(export, out)
    return out, export, difference


def write_hub_folder(export: Export, folder: str | Path) -> float:
    """Write config.json, model.safetensors and a model card, README.md: whole or not at all; as :func:`write_export`."""
    assert export.run is not None
    if export.run.config.head.ball is not None:  # whose weights timm would read as those of a linear layer
        raise ConfigError("A model for a hub must end in a linear layer. Got a hyperbolic head.")
    with atomic_folder(folder) as temporary:
        difference = write_export(export, temporary / "model.safetensors")
        (temporary / "config.json").write_bytes(json_bytes(hub_config(export)))
        (temporary / "README.md").write_text(model_card(export, Path(folder).name), encoding="utf-8")
    return difference


def hub_config(export: Export) -> dict[str, Any]:
    """config.json: the keys that timm and transformers use, and the whole document under "hace"."""
    document = export.document
    h = export.model.hierarchy
    titles = node_titles(h)
    view = document["preprocessing"]
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
    run = export.run
    document = export.document
    assert run is not None
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


# --- opening a file


def open_program(path: str | Path) -> Program:
    """Open a file of `hace export`, or a folder of it with config.json and model.safetensors."""
    file = Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)
    suffix = file.suffix.lower()
    opens = {".onnx": files.open_onnx, **dict.fromkeys(SUFFIXES, _open_safetensors)}
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


def _open_safetensors(path: str) -> Program:
    tensors, metadata = read_safetensors(path)
    document = files.parse_document(metadata.get(DOCUMENT), path)
    files.check_seal(path, document.get("sha256"))
    h = files.hierarchy_of(document, path)
    named = document["head"]["loss"]
    loss = None if named is None else build_loss(named["name"], h, **named["options"])
    network = _network(document, tensors, path)
    model = ScoredModel(network, loss, h, document["outputs"]["scores"], document["temperature"])
    return Program(document, torch.no_grad()(lambda x: model(x)), model)


def store_calibration(path: str | Path, calibration: Calibration, **parts: Any) -> None:
    """Write a calibration into a .safetensors or .hace file, in place of its own, with other parts of its document."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"A calibration can be written into {' or '.join(SUFFIXES)} only. Got {path}. Give --out FILE."
        )
    tensors, metadata = read_safetensors(path)
    changed = {"calibration": calibration.to_dict(), "temperature": calibration.temperature, **parts}
    document = files.parse_document(metadata.get(DOCUMENT), str(path)) | changed | {"sha256": UNSEALED}
    copies = {name: t.clone() for name, t in tensors.items()}
    files.write_tensors(copies, document, Path(path))


def _network(document: Mapping[str, Any], tensors: dict[str, Tensor], path: str) -> nn.Module:
    """The network of a document, filled with its weights."""
    made = document["architecture"]
    view = document["preprocessing"]
    head = document["head"]
    ball = from_dict(HeadConfig, head.get("layer", {})).ball
    if made["kind"] == "train":
        if not any(len(tensor) == head["num_outputs"] for tensor in tensors.values() if tensor.ndim):
            raise FormatError(f"{path} is damaged: no tensor of it has head.num_outputs rows.")
        network = build_model(made["model"], head["num_outputs"], image_size=view["size"], ball=ball)
        fill(network, tensors, path)
        return network
    model = None
    if made["model"] is not None:
        timm = timm_models()
        try:
            check_backbone_name(made["model"], timm)
        except ConfigError as error:
            raise FormatError(f"{path} is damaged: architecture.model cannot be built. {error}") from error
        model = bare_model(timm, made["model"], view["size"], pretrained=False)
    weights = {name.removeprefix("head."): tensor for name, tensor in tensors.items()}
    network = ProbeNetwork(model, made.get("pool", "auto"), made["scaling"], weights, ball)
    network.load_state_dict({name: tensors[name] for name in network.state_dict()})
    return network


def image_view(view: Mapping[str, Any]) -> Callable[[Any], Tensor]:
    """From a PIL image to the tensor that a model sees, by the preprocessing of a document."""
    t = optional("torchvision.transforms", "Transforming images")
    resize = t.Resize(view["resize"], interpolation=t.InterpolationMode(view["interpolation"]))
    cut = t.CenterCrop(view["size"])
    normalize = t.Normalize(view["mean"], view["std"])
    return t.Compose([as_rgb, resize, cut, t.ToTensor(), normalize])
