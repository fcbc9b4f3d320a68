"""Exported models at work: files of `hace export`, opened without the run and, but for safetensors, without timm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.optional import optional
from hace.files.reading import open_regular
from hace.files.weights import fill, first_line, read_safetensors
from hace.lab.features.backbones import bare_model, check_backbone_name
from hace.lab.models import build_model
from hace.lab.probe.scaling import finite
from hace.lab.runs.config import HeadConfig
from hace.lab.runs.settings import from_dict
from hace.lab.serve.calibration import Calibration
from hace.lab.serve.export import DOCUMENT, OUTPUTS, SUFFIX_OF
from hace.lab.serve.export_document import hierarchy_of, parse_document, stored_calibration
from hace.lab.serve.inputs import FeatureRows
from hace.lab.serve.networks import ProbeNetwork, ScoredModel
from hace.lab.serve.predictor import Predictor
from hace.lab.serve.vision import Vision
from hace.losses.cross_entropy import CrossEntropyLoss
from hace.losses.hace import HCELoss
from hace.losses.registry import build_loss

_BATCH = 64


class Program(NamedTuple):
    """An opened file.

    Attributes:
        document: What it holds beside the model.
        run: From inputs to scores, probabilities of the classes, and probabilities of the nodes.
    """

    document: dict[str, Any]
    run: Callable[[Tensor], tuple[Tensor, ...]]


def open_program(path: str | Path, form: str) -> Program:
    """Open a file of `hace export`.

    Args:
        path: The file.
        form: "onnx", "torch" or "safetensors".

    Raises:
        FormatError: It is missing, damaged, or not of `hace export`.
    """
    with open_regular(path):  # refuses what is not a regular file
        pass
    try:
        return {"onnx": _open_onnx, "torch": _open_torch, "safetensors": _open_safetensors}[form](str(path))
    except HaceError:
        raise
    except Exception as error:  # each library has its own kinds
        raise FormatError(f"{path} cannot be opened as {form}: {first_line(error)}") from error


def _open_onnx(path: str) -> Program:
    runtime = optional("onnxruntime", "Reading ONNX", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    document = parse_document(session.get_modelmeta().custom_metadata_map.get(DOCUMENT), path)
    (taken, *more), given = session.get_inputs(), [output.name for output in session.get_outputs()]
    if more or taken.shape[1:] != document["input"]["shape"][1:] or given != list(OUTPUTS):
        raise FormatError(
            f"{path} is damaged: its graph must have the input and the outputs of its document."
        )

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(a) for a in session.run(list(OUTPUTS), {taken.name: x.float().numpy()}))

    return Program(document, run)


def _open_torch(path: str) -> Program:
    extra: dict[str, Any] = {DOCUMENT: ""}
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the message about a damaged file is ours
    try:
        with open_regular(path) as file:
            module = torch.export.load(file, extra_files=extra).module()
    finally:
        logger.setLevel(level)
    return Program(parse_document(extra[DOCUMENT], path), lambda x: tuple(module(x)))


def _open_safetensors(path: str) -> Program:
    tensors, metadata = read_safetensors(path)
    document = parse_document(metadata.get(DOCUMENT), path)
    h = hierarchy_of(document, path)
    network = _network(document, tensors, path)
    named = document["head"]["loss"]
    loss = None if named is None else build_loss(named["name"], h, **named["options"])
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


class ExportedPredictor(Predictor):
    """A :class:`hace.Predictor` from a file of `hace export`, or from a folder with config.json and model.safetensors.

    Args:
        path: The file or folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        file = self.path / "model.safetensors" if self.path.is_dir() else self.path
        form = {suffix: form for form, suffix in SUFFIX_OF.items()}.get(file.suffix.lower())
        if form is None:
            raise FormatError(
                f"{path} must be a run, or a file of `hace export`: {', '.join(SUFFIX_OF.values())}."
            )
        self.program = open_program(file, form)
        self.document = self.program.document
        self.hierarchy = hierarchy_of(self.document, path)
        over = self.document["outputs"]["scores"]
        # The file's scores are logits whose softmax is over the leaves or the nodes: these losses read them as they are.
        self.loss = CrossEntropyLoss(self.hierarchy) if over == "leaves" else HCELoss(self.hierarchy)

    def __repr__(self) -> str:
        return f"<Predictor: {self.path.name} over {self.hierarchy!r}>"

    @property
    def _calibrate(self) -> str:
        return f"hace calibrate RUN and hace export RUN again, for the run {self.document['run']},"

    @cached_property
    def calibration(self) -> Calibration:
        """What `hace calibrate` had found when the run was exported."""
        if self.document["calibration"] is None:
            raise ConfigError(
                f"{self.path} must be calibrated before it can promise an accuracy. Run `hace calibrate RUN` and `hace export "
                f"RUN` again, for the run {self.document['run']}."
            )
        return stored_calibration(self.document, self.hierarchy, self.path)

    @cached_property
    def vision(self) -> Vision:
        """How the model sees images."""
        view = self.document["preprocessing"]
        if view is None:
            raise ConfigError(f"{self.path} takes features, and cannot see images.")
        return Vision(image_view(view), lambda images: self.program.run(images)[0], _BATCH)

    def _features(self, x: np.ndarray, first: int) -> Tensor:
        """Scores of features."""
        width = self.document["input"]["shape"][1]
        if self.document["preprocessing"] is not None:
            raise ConfigError(f"{self.path} takes images, and no features.")
        if x.shape[1] != width:
            raise DataError(f"Features must have {width} columns, as in training. Got {x.shape[1]}.")
        return self.program.run(torch.from_numpy(finite(x.astype(np.float32), "given", first)))[0]

    def _head_for(self, given: FeatureRows) -> Any:
        return _Rows(self._features)


class _Rows(NamedTuple):
    """Stands where a probe's head does: features in, chunks of outputs out."""

    scores: Callable[[np.ndarray, int], Tensor]

    def outputs(self, x: np.ndarray, what: str = "given", first: int = 0) -> list[Tensor]:
        return [self.scores(x, first)]


def image_view(view: Mapping[str, Any]) -> Callable[[Any], Tensor]:
    """From a PIL image to the tensor that a model sees, by the preprocessing of a document."""
    t = optional("torchvision.transforms", "Transforming images")
    return t.Compose(
        [
            t.Resize(view["resize"], interpolation=t.InterpolationMode(view["interpolation"])),
            t.CenterCrop(view["size"]),
            t.ToTensor(),
            t.Normalize(view["mean"], view["std"]),
        ]
    )
