"""A finished run as one file for deployment, ONNX or safetensors, or as a folder as model hubs have them.

    export_run("runs/4cd033b43672ca23", "birds.onnx")
    Predictor.from_run("birds.onnx").predict("photos", threshold=0.9)       # needs onnxruntime, and neither timm nor the run

A file gives three outputs: ``scores`` (logits, before any temperature), ``leaf_probabilities`` (B, n) in label order and
``node_probabilities`` (B, N) in node order, both at the run's temperature. Beside them it holds one JSON document, described
in docs/deployment.md: preprocessing, ids of classes and nodes, hierarchy, temperature, and thresholds that keep promises.
"""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hace.checks import check_choice
from hace.draw import templates
from hace.errors import ConfigError
from hace.files.reading import optional
from hace.files.writing import atomic_folder, atomic_path, json_bytes, writing
from hace.formats import render_hierarchy
from hace.hierarchy.names import node_titles
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, Run
from hace.lab.serve.exported import (
    DOCUMENT,
    EXPORT_FORMAT,
    OUTPUTS,
    SUFFIX_OF,
    UNSEALED,
    ProbeNetwork,
    ScoredModel,
    last_layer,
    open_program,
    seal,
)
from hace.lab.serve.finished_models import backbone_of, load_probe, load_trained, open_finished
from hace.lab.serve.run_calibration import calibration_of, parse_calibration
from hace.losses.base import HierarchicalLoss
from hace.metrics.evaluation import CARRIED_UP

FORMS = (*SUFFIX_OF, "huggingface")
TOLERANCE = 1e-4  # between a written file and the model, in probability
_CARD = {  # heading of the results: metrics of the model card; None: all
    "leaves": ("top-1", "top-5", "severity", "HD@1"),
    CARRIED_UP: None,
    "calibration error (ECE) by level": None,
}


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
    if view is None:
        assert isinstance(network, ProbeNetwork)
        shape, what = (network.head.in_features,), "features"
    else:
        shape, what = (3, view["size"], view["size"]), "images"
    document = {
        "format": EXPORT_FORMAT,
        "sha256": UNSEALED,
        "input": {"name": what, "shape": ["batch", *shape], "dtype": "float32"},
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
) -> tuple[nn.Module, HierarchicalLoss, dict[str, Any] | None, dict[str, Any]]:
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
    size = seen["input_size"][1]
    if seen["crop_mode"] != "center" or size != seen["input_size"][2]:
        raise ConfigError(
            f"The preprocessing of {backbone.name} must be a resized square cut from the middle. Got {seen}."
        )
    view = _view(int(size / seen["crop_pct"]), size, seen["interpolation"], seen["mean"], seen["std"])
    network = ProbeNetwork(backbone.model, backbone.pool, head.scaling.how, head.weights, head.ball)
    return network, head.loss, view, made | {"model": backbone.name, "pool": backbone.pool}


def _view(resize: int, size: int, interpolation: str, mean: Any, std: Any) -> dict[str, Any]:
    steps = (
        "RGB; resize the shorter side; cut out the middle; scale to 0..1; subtract mean, divide by std; NCHW"
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
        program: Any = torch.onnx.export(
            export.model,
            (export.example,),
            dynamo=True,
            input_names=[export.document["input"]["name"]],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
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
    suffix = "" if path is None else Path(path).suffix.lower()
    if to is None:
        named = {suffix: form for form, suffix in SUFFIX_OF.items()}
        if suffix not in named:
            raise ConfigError(
                f"path must end in {', '.join(named)}, or to= must be given. Got {str(path)!r}."
            )
        to = named[suffix]
    check_choice("to", to, FORMS)
    if path is not None and suffix != SUFFIX_OF.get(to, suffix):  # before the run and its model are read
        raise ConfigError(
            f"The name of a file for {to} must end in {SUFFIX_OF[to]}: readers go by it. Got {str(path)!r}."
        )
    export = prepare(folder, checkpoint=checkpoint)
    name = f"model{SUFFIX_OF[to]}" if to in SUFFIX_OF else to
    out = export.run.folder / name if path is None else Path(path)
    if path is None and out.is_symlink():
        raise ConfigError(
            f"{out} must be of the run. Got a link. Remove it, or say where to write: --out (path=)."
        )
    difference = write_hub_folder(export, out) if to == "huggingface" else write_export(export, out, to)
    return out, export, difference


def write_hub_folder(export: Export, folder: str | Path) -> float:
    """Write config.json, model.safetensors and a model card, README.md: whole or not at all; as :func:`write_export`."""
    if export.run.config.head.ball is not None:  # whose weights timm would read as those of a linear layer
        raise ConfigError(
            "A model for a hub must end in a linear layer. Got a hyperbolic head: use --to safetensors or onnx."
        )
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
    return (
        templates("hace.lab.serve")
        .get_template("model_card.txt")
        .render(
            name=name,
            document=document,
            view=document["preprocessing"],
            h=run.hierarchy,
            data=run.about["data"]["name"],
            result=result,
            metrics=metrics,
            calibration=None if stored is None else parse_calibration(stored, name),
        )
    )
