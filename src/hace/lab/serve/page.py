"""What the page of a model shows, for a server and for a folder of static files: the model, the hierarchy, samples to try."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.data import Features
from hace.decisions.calibration import Calibration
from hace.decisions.scores import prior_weights
from hace.draw import templates
from hace.errors import ConfigError, HaceError
from hace.files.reading import read_image
from hace.files.writing import atomic_folder
from hace.hierarchy import Hierarchy
from hace.lab.runs.result import ScoreView
from hace.lab.serve.export import prepare, write_export
from hace.lab.serve.inputs import FeatureRows, ImageList, TextList, read_inputs
from hace.lab.serve.predictor import Predictor
from hace.lab.serve.rescore import rescored

SHOWN = 12  # samples
# ONNX Runtime for browsers: the files a page needs, of a release whose checksum is known.
RUNTIME = "https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-1.30.0.tgz"
RUNTIME_SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
RUNTIME_FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")


class Sample(NamedTuple):
    """Something to try: a PNG file, or a row of features."""

    name: str
    truth: str
    content: bytes | list[float]

    @property
    def about(self) -> dict[str, str]:
        """What the page says of it."""
        kind = "images" if isinstance(self.content, bytes) else "features"
        return {"name": self.name, "truth": self.truth, "kind": kind}


_RULES = ("threshold", "climb", "set")  # that the page knows


def own_calibration(predictor: Predictor) -> Calibration | None:
    """The calibration of a model, if it is about single samples, as the page and the API show them."""
    try:
        calibration = predictor.calibration
    except HaceError:  # it has none
        return None
    return None if calibration.pool else calibration


def model_document(predictor: Predictor) -> dict[str, Any]:
    """What the page and GET /model say of a model."""
    h = predictor.hierarchy
    calibration = own_calibration(predictor)
    guarantees = calibration.thresholds if calibration else []
    prior = calibration.prior if calibration else None
    return {
        "kinds": predictor.kinds,
        "input": {
            "features": predictor.width if "features" in predictor.kinds else None,
            "names": predictor.feature_names if "features" in predictor.kinds else None,
        },
        "outputs": ScoreView(predictor.loss, h, restricted=True).outputs,
        "classes": h.num_leaves,
        "nodes": h.num_nodes,
        "hierarchy": h.fingerprint,
        "temperature": predictor.temperature or 1.0,
        "guarantees": [
            {
                key: getattr(t, key)
                for key in ("accuracy", "of", "threshold", "rule", "nodes", "confidence", "guarantee")
            }
            for t in guarantees
            if t.accuracy is not None and t.groups is None and t.constrained and t.rule in _RULES
        ],
        "region": list(calibration.subset) if calibration and calibration.subset else None,
        "prior": None if prior is None else dict(prior),
        "weights": None if prior is None else prior_weights(h, prior).tolist(),  # of each node
        "broken": calibration.broken if calibration else "",
        "note": "It knows only these classes: whatever you show it, it answers with one of them or a group of them. "
        "A guarantee holds for samples from the same source as the calibration samples."
        + (" Classes are weighted by how common they are here, as in the calibration." if prior else ""),
    }


def hierarchy_document(h: Hierarchy) -> dict[str, Any]:
    """The nodes in node order with their parents, and the node of each label."""
    places = {node: v for v, node in enumerate(h.nodes)}
    parents = [[places[p] for p in h.parents(node)] for node in h.nodes]
    ranks = h.ranks or [""] * h.num_nodes
    nodes: list[dict[str, Any]] = [
        {"id": node, "name": h.name(node), "parents": up, "level": int(level), "rank": rank}
        for node, up, level, rank in zip(h.nodes, parents, h.depths, ranks, strict=True)
    ]
    if any(node["name"] != node["id"] for node in nodes):  # the page can show either
        nodes = [node | {"names": {"ids": node["id"]}} for node in nodes]
    return {
        "rooted": h.rooted,
        "level_names": None if h.level_names is None else list(h.level_names),
        "nodes": nodes,
        "leaves": h.leaf_nodes.tolist(),
    }


def run_samples(folder: str | Path, root: str | Path | None = None) -> list[Sample]:
    """Test samples of a run, of as many classes as there is room for."""
    return some_samples(rescored(folder, root=root, split="test").samples)


def some_samples(split: Any) -> list[Sample]:
    """Samples of a split, of as many classes as there is room for."""
    h = split.hierarchy
    _, first = np.unique(split.nodes, return_index=True)
    chosen = np.sort(first)[_spread(len(first))]
    return [
        Sample(
            Path(split.names[i]).name,
            h.name(h.nodes[split.nodes[i]]),
            split.x[i].tolist() if isinstance(split, Features) else png(split.image(i)),
        )
        for i in chosen.tolist()
    ]


def read_samples(path: str | Path) -> list[Sample]:
    """Some samples at a path of photos or features, with their file names alone."""
    return samples_among(read_inputs(path))


def samples_among(given: ImageList | FeatureRows) -> list[Sample]:
    """Some of the samples that `hace predict` opened, spread evenly: neighbours in a folder are often of one class."""
    if isinstance(given, TextList):
        raise ConfigError("Samples must be photos or features. Got texts: type them on the page.")
    if isinstance(given, FeatureRows):
        names, x = given.parts[0]
        return [Sample(Path(names[i]).name, "", x[i].tolist()) for i in _spread(len(names))]
    return [
        Sample(Path(given.names[i]).name, "", png(read_image(given.images[i]))) for i in _spread(len(given))
    ]


def _spread(count: int) -> list[int]:
    """Positions of as many samples as there is room for, from the first to the last."""
    return np.linspace(0, count - 1, min(SHOWN, count)).astype(int).tolist()


def png(image: Any) -> bytes:
    """An image as a PNG file."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG")
    return file.getvalue()


# --- the page as static files


def export_page(
    folder: str | Path,
    out: str | Path,
    *,
    samples: str | Path | None = None,
    runtime: str | Path | None = None,
    checkpoint: str | Path | None = None,
) -> Path:
    """Write the page of a finished run as static files: the model runs in the browser, on any web server or from the disk."""
    code, wasm = runtime_files(runtime)
    export = prepare(folder, checkpoint=checkpoint)
    view = export.document["preprocessing"]
    if view is not None and view["interpolation"] in ("nearest", "nearest-exact"):
        raise ConfigError("A page must resize photos smoothly. Got a model with interpolation 'nearest'.")
    try:
        shown = run_samples(folder) if samples is None else read_samples(samples)
    except HaceError:
        if samples is not None:
            raise
        shown = []  # its data are elsewhere
    shown = [sample for sample in shown if sample.about["kind"] == export.document["input"]["name"]]
    with tempfile.TemporaryDirectory() as temporary:
        write_export(export, Path(temporary) / "model.onnx")
        model = (Path(temporary) / "model.onnx").read_bytes()
        about = model_document(Predictor.from_run(Path(temporary) / "model.onnx"))
    about["input"] |= {**export.document["input"], "shape": export.document["input"]["shape"][1:]}
    about["input"]["preprocessing"] = view
    about["kinds"] = [export.document["input"]["name"]]  # an encoder of texts stays behind
    tree = hierarchy_document(export.model.hierarchy)
    listed = [s.about for s in shown]
    contents = [
        s.content if isinstance(s.content, list) else f"data:image/png;base64,{_text(s.content)}"
        for s in shown
    ]
    page = {"model": about, "tree": tree, "samples": listed}
    stored = {"page": page, "contents": contents, "onnx": _text(model)}
    assets = templates("hace.lab.serve")
    with atomic_folder(out) as made:
        title = f"Try the model {export.document['run'] or Path(folder).stem}"
        html = assets.get_template("try.html").render(title=title, scripts=("runtime.js", "model.js"))
        files = {
            "index.html": html,
            "try.css": assets.globals["asset"]("try.css"),
            "try.js": assets.globals["asset"]("try.js"),
            "model.js": f"const MODEL = {json.dumps(stored)};\n",
            "runtime.js": f"const RUNTIME = {json.dumps({'source': _text(code), 'wasm': _text(wasm)})};\n",
        }
        for name, text in files.items():
            (made / name).write_text(text, encoding="utf-8")
    return Path(out) / "index.html"


def runtime_files(folder: str | Path | None = None) -> list[bytes]:
    """ONNX Runtime Web: its code and its WebAssembly, from a folder or from the npm registry."""
    wanted = f"{' and '.join(RUNTIME_FILES)} of the npm package onnxruntime-web"
    if folder is not None:
        places = [next(iter(sorted(Path(folder).rglob(name))), None) for name in RUNTIME_FILES]
        if None in places:
            raise ConfigError(f"--runtime must be a folder with {wanted}. Got {str(folder)!r}.")
        return [place.read_bytes() for place in places if place is not None]
    try:
        with urllib.request.urlopen(RUNTIME, timeout=60) as reply:
            content = reply.read(100_000_000)
    except OSError as error:
        raise ConfigError(
            f"The page needs {wanted}, and {RUNTIME} cannot be fetched ({error}). Fetch and unpack it elsewhere (npm pack "
            "onnxruntime-web), then give the folder: --runtime FOLDER."
        ) from error
    if _text(hashlib.sha512(content).digest()) != RUNTIME_SHA512:
        raise ConfigError(
            f"{RUNTIME} must have its known checksum. Got another: it may be damaged. Try again."
        )
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return [archive.extractfile(f"package/dist/{name}").read() for name in RUNTIME_FILES]  # type: ignore[union-attr]


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
