"""A finished run as one file for deployment: ONNX, a program of torch, or safetensors; or a folder as model hubs have them.

    export_run("runs/4cd033b43672ca23", "birds.onnx")
    Predictor.from_run("birds.onnx").predict("photos", threshold=0.9)       # needs onnxruntime, and neither timm nor the run

A file gives three outputs: ``scores`` (logits, before any temperature), ``leaf_probabilities`` (B, n) in label order and
``node_probabilities`` (B, N) in node order, both at the run's temperature. Beside them it holds one JSON document, described
in docs/deployment.md: preprocessing, ids of classes and nodes, hierarchy, temperature, and thresholds that keep promises.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hace.errors import ConfigError
from hace.files.optional import optional
from hace.files.writing import atomic_path, writing
from hace.formats import render_hierarchy
from hace.lab.runs.result import ScoreView
from hace.lab.runs.run import CALIBRATION, Run
from hace.lab.serve.calibration import Calibration, calibration_of
from hace.lab.serve.export_document import EXPORT_FORMAT
from hace.lab.serve.networks import ProbeNetwork, ScoredModel, last_layer
from hace.lab.serve.rescoring import load_probe, open_finished
from hace.lab.serve.trained_model import load_trained
from hace.lab.serve.vision import backbone_of
from hace.losses.base import HierarchicalLoss

OUTPUTS = ("scores", "leaf_probabilities", "node_probabilities")
SUFFIX_OF = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
DOCUMENT = "hace"  # the key of the document in a file's metadata
TOLERANCE = 1e-4  # between a written file and the model, in probability


@dataclass(frozen=True, eq=False)
class Export:
    """A run, ready to be written.

    Attributes:
        run: The run.
        model: From images or features to :data:`OUTPUTS`.
        document: What a file holds beside the model.
        example: An input of the right shape.
    """

    run: Run
    model: ScoredModel
    document: dict[str, Any]
    example: Tensor


def prepare(folder: str | Path, *, checkpoint: str | Path | None = None) -> Export:
    """The model of a finished run with its document.

    Args:
        folder: The run directory.
        checkpoint: For a probe: the weights of the model behind its features, where they do not come from the hub.

    Raises:
        FormatError: Not a finished run with a model.
        ConfigError: Its preprocessing cannot be described.
    """
    run = open_finished(folder)
    network, loss, view, about = _parts(run, checkpoint)
    h = run.hierarchy
    scored = ScoreView(loss, h, temperature=1.0)
    flat = run.config.head.ball is None  # sums of distances to hyperplanes are no such distances
    collapsed = loss.head.outputs == "paths" and flat and _collapse(network, loss)
    over_leaves = loss.head.outputs == "leaves" and type(loss).leaf_logits is HierarchicalLoss.leaf_logits
    needed = None if collapsed or over_leaves or scored.outputs == "nodes" else loss
    calibration = calibration_of(run) if (run.folder / CALIBRATION).is_file() else None
    temperature = _temperature(run, calibration)
    model = ScoredModel(network, needed, h, scored.outputs, temperature).eval().requires_grad_(False)
    if view is None:
        assert isinstance(network, ProbeNetwork)
        shape, what = (network.head.in_features,), "features"
    else:
        shape, what = (3, view["size"], view["size"]), "images"
    document = {
        "format": EXPORT_FORMAT,
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
            "loss": None
            if needed is None
            else {"name": run.config.loss.name, "options": run.config.loss.options},
            "tree": "own" if loss.hierarchy.fingerprint == h.fingerprint else "another",
            **({} if flat else {"layer": run.config.head.to_dict()}),
        },
        **about,
    }
    return Export(run, model, document, torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))


def _parts(
    run: Run, checkpoint: str | Path | None
) -> tuple[nn.Module, HierarchicalLoss, dict[str, Any] | None, dict[str, Any]]:
    """The network, its loss, how images become its input (None: it takes features), and what else to record."""
    if run.config.kind == "train":
        trained = load_trained(run)
        seen = trained.preprocessing
        view = _described(seen.resize, seen.size, "bilinear", seen.mean, seen.std)
        about = {
            "model": trained.config.model,
            "architecture": {"kind": "train", "model": trained.config.model},
        }
        return trained.model.float(), trained.loss, view, about
    head = load_probe(run)
    source = run.about["data"].get("source")
    how = head.scaling.how
    if source is None:
        about = {"model": None, "architecture": {"kind": "probe", "model": None, "scaling": how}}
        return ProbeNetwork(None, "auto", how, head.weights, head.ball), head.loss, None, about
    backbone = backbone_of(run, checkpoint, torch.device("cpu"))
    seen = backbone.preprocessing
    if seen["crop_mode"] != "center" or seen["input_size"][1] != seen["input_size"][2]:
        raise ConfigError(
            f"The preprocessing of {backbone.name} must be a resized square cut from the middle. Got {seen}."
        )
    size = seen["input_size"][1]
    view = _described(int(size / seen["crop_pct"]), size, seen["interpolation"], seen["mean"], seen["std"])
    made = {"kind": "probe", "model": backbone.name, "pool": backbone.pool, "scaling": how}
    network = ProbeNetwork(backbone.model, backbone.pool, how, head.weights, head.ball)
    return network, head.loss, view, {"model": backbone.name, "architecture": made}


def _described(resize: int, size: int, interpolation: str, mean: Any, std: Any) -> dict[str, Any]:
    return {
        "steps": "RGB; resize the shorter side; cut out the middle; scale to 0..1; subtract mean, divide by std; NCHW",
        "resize": resize,
        "interpolation": interpolation,
        "size": size,
        "mean": list(mean),
        "std": list(std),
    }


def _temperature(run: Run, calibration: Calibration | None) -> float:
    """That of the calibration, else that of the run's result, else 1."""
    if calibration is not None:
        return calibration.temperature
    return ((run.result or {}).get("temperature") or {}).get("value") or 1.0


def _collapse(network: nn.Module, loss: HierarchicalLoss) -> bool:
    """Make the last layer of path sums an ordinary layer over the classes; False where it is not a linear layer."""
    layers = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not layers or layers[-1][1].out_features != loss.num_outputs:
        return False
    name, layer = layers[-1]
    weight, bias = loss.collapse(layer.weight.data, None if layer.bias is None else layer.bias.data)
    network.set_submodule(name, last_layer(weight, bias))
    return True


def check_suffix(path: str | Path, to: str) -> None:
    """Refuse a name that readers would take for another format."""
    if Path(path).suffix.lower() != SUFFIX_OF[to]:
        raise ConfigError(
            f"The name of a file for {to} must end in {SUFFIX_OF[to]}: readers go by it. Got {str(path)!r}."
        )


def write_export(export: Export, path: str | Path, to: str) -> float:
    """Write a file, whole or not at all, and compare what it computes with the model.

    Args:
        export: What :func:`prepare` gave.
        path: The file.
        to: "onnx", "torch" or "safetensors".

    Returns:
        The largest difference of a probability on random inputs.

    Raises:
        ConfigError: An unknown format, packages that it needs are missing, or the file computes something else.
    """
    if to not in SUFFIX_OF:
        raise ConfigError(f"to must be one of {', '.join(SUFFIX_OF)}. Got {to!r}.")
    check_suffix(path, to)
    with writing(Path(path).resolve().parent), atomic_path(path) as temporary:
        {"onnx": _write_onnx, "torch": _write_torch, "safetensors": _write_safetensors}[to](export, temporary)
        difference = _difference(export, temporary, to)
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"The file must compute what the model computes. Its probabilities differ by {difference:.2g}: this format "
                "does not suit the model. Try another --to."
            )
        return difference


def _write_onnx(export: Export, path: Path) -> None:
    optional("onnx", "Writing ONNX", "export")
    optional("onnxscript", "Writing ONNX", "export")
    import logging
    import warnings

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


def _write_torch(export: Export, path: Path) -> None:
    dynamic = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(export.model, (export.example,), dynamic_shapes=dynamic)
    with path.open("wb") as file:  # torch insists on its own suffix for paths
        torch.export.save(program, file, extra_files={DOCUMENT: json.dumps(export.document)})


def _write_safetensors(export: Export, path: Path) -> None:
    save = optional("safetensors.torch", "Writing .safetensors").save
    if export.document["head"]["loss"] is not None and export.document["head"]["tree"] == "another":
        raise ConfigError(
            "to must be onnx or torch for a run that was trained on a shuffled tree. Got 'safetensors'."
        )
    tensors = {name: tensor.contiguous() for name, tensor in export.model.network.state_dict().items()}
    # save_file would leave the file readable by its owner only
    path.write_bytes(save(tensors, metadata={DOCUMENT: json.dumps(export.document), "format": "pt"}))


def _difference(export: Export, path: Path, to: str) -> float:
    """The largest difference of a probability between a file and the model."""
    from hace.lab.serve.exported import open_program

    x = torch.cat([export.example, export.example.flip(0) * 2])  # another number of samples than the example
    with torch.no_grad():
        expected = export.model(x)
    found = open_program(path, to).run(x)
    return max(float((a - b).abs().max()) for a, b in zip(found[1:], expected[1:], strict=True))


def export_run(
    folder: str | Path, path: str | Path, to: str | None = None, *, checkpoint: str | Path | None = None
) -> Export:
    """Write a finished run as one file; see the module.

    Args:
        folder: The run directory.
        path: The file to write.
        to: "onnx", "torch" or "safetensors"; None: by the suffix of `path`, .onnx, .pt2 or .safetensors.
        checkpoint: For a probe: the weights of the model behind its features, where they do not come from the hub.

    Raises:
        ConfigError: An unknown format, or a file whose results differ from the model's.
    """
    named = {suffix: form for form, suffix in SUFFIX_OF.items()}
    form = to or named.get(Path(path).suffix.lower())
    if form is None:
        raise ConfigError(f"path must end in {', '.join(named)}, or to= must be given. Got {str(path)!r}.")
    export = prepare(folder, checkpoint=checkpoint)
    write_export(export, path, form)
    return export
