"""A finished run as a folder that model hubs take: config.json, model.safetensors, and a model card with results and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hace.errors import ConfigError
from hace.files.writing import atomic_folder, json_bytes
from hace.hierarchy.names import node_titles
from hace.lab.serve.calibration import parse_calibration
from hace.lab.serve.export import Export, write_export
from hace.metrics.evaluation import CARRIED_UP

_SHOWN = {  # heading of the results: metrics of the card
    "leaves": ("top-1", "top-5", "severity", "HD@1"),
    CARRIED_UP: None,  # all of them
    "calibration error (ECE) by level": None,
}


def write_hub_folder(export: Export, folder: str | Path) -> None:
    """Write the folder, whole or not at all.

    Args:
        export: What :func:`hace.lab.serve.export.prepare` gave.
        folder: The new folder.

    Raises:
        ConfigError: A hyperbolic head, whose weights timm would read as those of a linear layer.
    """
    if export.run.config.head.ball is not None:
        raise ConfigError(
            "A model for a hub must end in a linear layer. Got a hyperbolic head: use --to safetensors, onnx or torch."
        )
    with atomic_folder(folder) as temporary:
        write_export(export, temporary / "model.safetensors", "safetensors")
        (temporary / "config.json").write_bytes(json_bytes(hub_config(export)))
        (temporary / "README.md").write_text(model_card(export, Path(folder).name), encoding="utf-8")


def hub_config(export: Export) -> dict[str, Any]:
    """config.json: the keys that timm and transformers use, and the whole document under "hace"."""
    document, h = export.document, export.run.hierarchy
    titles, nodes = node_titles(h), h.leaf_nodes.tolist()
    over_nodes = document["outputs"]["scores"] == "nodes"
    names = titles if over_nodes else [titles[v] for v in nodes]
    view = document["preprocessing"]
    seen = (
        {}
        if view is None
        else {
            "input_size": [3, view["size"], view["size"]],
            "interpolation": view["interpolation"],
            "crop_pct": view["size"] / view["resize"],
            "crop_mode": "center",
            "mean": view["mean"],
            "std": view["std"],
        }
    )
    return {
        "architecture": document["model"],
        "num_classes": document["head"]["num_outputs"],
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
        "pretrained_cfg": {**seen, "num_classes": document["head"]["num_outputs"]},
        "hace": document,
    }


def model_card(export: Export, name: str) -> str:
    """README.md: what the model is, how good it is and on what, how to use it, and what it cannot do."""
    return "\n".join(_lines(export, name)) + "\n"


def _lines(export: Export, name: str) -> Iterator[str]:
    run, document = export.run, export.document
    h, result = run.hierarchy, run.result or {}
    images = document["preprocessing"] is not None
    yield from ("---", "library_name: hace", "tags:", "- hierarchical-classification")
    if images:
        yield "- image-classification"
    yield from ("---", "", f"# {name}", "")
    taken = document["model"] or "features"
    yield f"A classifier of {h.num_leaves:,} classes in a hierarchy of {h.num_nodes:,} nodes ({h.kind}, depth {h.max_depth})."
    yield f"Model: {taken}. Loss: {document['loss']}. Data: {run.about['data']['name']}. Run: {document['run']}."
    yield from ("", "## Results", "")
    yield f"On the {result.get('samples', 0):,} samples of the {result.get('split')} split, one run, no interval:"
    yield from ("", "| metric | value |", "| --- | --- |")
    metrics = result.get("metrics") or {}
    for heading, shown in _SHOWN.items():
        for metric, value in metrics.get(heading, {}).items():
            if (shown is None or metric in shown) and value is not None:
                title = metric if heading == "leaves" else f"{heading}: {metric}"
                yield f"| {title} | {value:.4f} |"
    yield from (
        "",
        "## Confidence",
        "",
        f"Scores are divided by the temperature {document['temperature']:.4g}.",
    )
    if document["calibration"] is None:
        yield "The model was not calibrated with `hace calibrate`, so no threshold keeps a promise."
    else:
        found = parse_calibration(document["calibration"], name)
        yield f"Promises, from {found.samples:,} samples of the split {found.split}:"
        yield ""
        yield from (f"- threshold {t.threshold:.4g}: {t.promise}" for t in found.thresholds)
    source = "photos" if images else "features.npy"
    yield from ("", "## Use", "", f"    hace predict {name} {source} --threshold 0.9", "", "```python")
    yield from ("from hace import Predictor", "", f'predictor = Predictor.from_run("{name}")')
    yield from (f'print(predictor.predict("{source}", threshold=0.9).to_frame())', "```", "", "## Limits", "")
    yield from (
        f"- It knows {h.num_leaves:,} classes and no others: whatever it is shown, it answers with one of them or a group.",
        "- Results and promises hold for samples from the same source as those it was evaluated and calibrated on. On other "
        "cameras, places or times it may be worse, and surer than it should be.",
        "- A low probability is the only sign that something is new to it, and not a reliable one.",
        "- The groups are those of the given hierarchy: a mistake within a group may matter more than one across groups.",
    )
    if images:
        view = document["preprocessing"]
        yield f"- Images are resized to {view['resize']} pixels and cut to {view['size']}: what lies outside is not seen."
