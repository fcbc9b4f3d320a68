"""Frozen backbones: functions from images or texts to vectors, which `extract`, probes and predictors take.

Images go through any timm model, from the hub or a file; texts through a sentence-transformers model, or through scikit-learn's
TF-IDF, fitted on the training texts.

    backbone = load_backbone("vit_large_patch14_dinov2.lvd142m", checkpoint="dinov2_large.safetensors")
    backbone.transform(image)                        # the model's own preprocessing: (3, size, size)
    backbone(batch)                                  # (B, dims) float32
    encoder = load_encoder("minilm")                 # or a folder, or any model of sentence-transformers
    encoder = tfidf_encoder(fit_tfidf(texts), "encoder.json")
    encoder(["a red shoe", "a blue hat"])            # (2, dims) float32
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hace.checks import check_choice, require
from hace.errors import ConfigError, DataError, FormatError, HaceError, nearest
from hace.files.documents import read_json
from hace.files.reading import as_rgb, optional
from hace.files.weights import check_weights_file, fill, first_line, read_state_dict, weights_hash
from hace.lab.features.hub import hub_or_cache, unreachable
from hace.linear.model_files import POOLS

_DTYPES = ("float32", "bf16")

# Models whose authors evaluate them at another size than timm's configuration. timm has DINOv2 at the 518 px of its last
# training steps, 5.4 times the work; the authors' linear evaluation resizes to 256 px and crops 224.
EVALUATED_AT: dict[str, dict[str, Any]] = {"dinov2": {"image_size": 224, "crop_pct": 0.875}}


@dataclass(frozen=True)
class Backbone:
    """A frozen model with its preprocessing. Call it with a batch of preprocessed images to get their features."""

    name: str  # of timm's
    model: nn.Module  # in evaluation mode, without a classifier
    transform: Callable[[Any], Tensor]  # from a PIL image to (3, size, size)
    preprocessing: dict[str, Any]  # what it does: input_size, interpolation, mean, std, crop_pct, crop_mode
    pool: str  # one of POOLS
    dtype: str  # "float32", or "bf16" for autocast
    dims: int  # the length of a feature vector
    weights: str  # sha256, see `weights_hash`
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    checkpoint: str | None = None  # the file the weights came from; None for the hub

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """The features of preprocessed images: (B, 3, size, size) to (B, dims), float32, on the model's device."""
        images = images.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bf16"):
            return pooled(self.model, images, self.pool).float()


def load_backbone(
    name: str,
    *,
    checkpoint: str | Path | None = None,
    pool: str = "auto",
    dtype: str = "float32",
    image_size: int | None = None,
    crop_pct: float | None = None,
    device: str | torch.device = "cpu",
) -> Backbone:
    """Load a timm model for feature extraction.

    Args:
        name: Name of a timm model.
        checkpoint: File of weights; by default the pretrained ones of the hub.
        pool: How tokens become one vector: ``auto`` (the model's own way), ``token`` or ``avg``.
        dtype: Precision of the model: ``float32`` or ``bf16``.
        image_size: Side of the images in pixels, by default the model's.
        crop_pct: Share of the shorter side that is kept, by default the model's.
        device: Where it runs.
    """
    timm = timm_models()
    check_choice("pool", pool, POOLS)
    check_choice("dtype", dtype, _DTYPES)
    fits = image_size is None or image_size >= 1
    require("image_size", image_size, "a positive number of pixels", fits)
    require("crop_pct", crop_pct, "above 0 and at most 1", crop_pct is None or 0 < crop_pct <= 1)
    check_backbone_name(name, timm)
    if checkpoint is not None:
        check_weights_file(checkpoint)  # before the model is built, which takes seconds
    family = next((values for word, values in EVALUATED_AT.items() if word in name), {})
    image_size = image_size or family.get("image_size")
    model = bare_model(timm, name, image_size, pretrained=checkpoint is None)
    if checkpoint is not None:
        fill(model, read_state_dict(checkpoint), checkpoint)
    model = model.to(device).eval().requires_grad_(False)
    config = timm.data.resolve_model_data_config(model)
    if image_size:
        config["input_size"] = (3, image_size, image_size)
    config["crop_pct"] = crop_pct or family.get("crop_pct", config["crop_pct"])
    seen = optional("torchvision.transforms", "Transforming images", "train")
    preprocessing = {key: list(v) if isinstance(v, tuple) else v for key, v in sorted(config.items())}
    with torch.inference_mode():
        try:
            probe = pooled(model, torch.zeros(1, *config["input_size"], device=device), pool)
        except (AssertionError, RuntimeError) as error:  # a size that the model's patches do not divide
            size = config["input_size"][1]
            raise ConfigError(f"{name} cannot take images of {size} px: {error}") from error
    if probe.ndim != 2:
        raise ConfigError(
            f"{name} gives an output of shape {tuple(probe.shape[1:])} for an image, not a vector. Use --readout avg (pool=)."
        )
    return Backbone(
        name=name,
        model=model,
        transform=seen.Compose([as_rgb, timm.data.create_transform(**config, is_training=False)]),
        preprocessing=preprocessing,
        pool=pool,
        dtype=dtype,
        dims=probe.shape[1],
        weights=weights_hash(model.state_dict()),
        device=torch.device(device),
        checkpoint=None if checkpoint is None else str(Path(checkpoint).resolve()),
    )


def timm_models() -> Any:
    """timm, with the model of our own that needs no weights."""
    timm = optional("timm", "A model of photos", "train")
    from hace.lab.features import edges  # registers itself

    assert edges.NAME == EDGES
    return timm


def check_backbone_name(name: str, timm: Any) -> None:
    """Refuse a model that is not timm's, without building it: timm would look for some names on the network."""
    architecture, dot, tag = name.partition(".")
    if not timm.is_model(architecture):
        hint = nearest(architecture, timm.list_models())
        raise ConfigError(
            f"--model must be a model of timm. Got {architecture!r}.{hint} timm.list_models('*vit*') lists them."
        )
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
    if dot and tag not in tags:
        known = ", ".join(tags) or "none"
        hint = nearest(tag, tags)
        raise ConfigError(f"The weights of {architecture} must be one of {known}. Got {tag!r}.{hint}")


def bare_model(timm: Any, name: str, image_size: int | None, pretrained: bool) -> nn.Module:
    """The model without classifier. Its random initialisation, overwritten later, leaves the global generator alone."""
    fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
    size = {"img_size": image_size} if image_size and fixed else {}
    with torch.random.fork_rng(devices=[]):
        try:
            with hub_or_cache() if pretrained else nullcontext():
                return timm.create_model(name, pretrained=pretrained, num_classes=0, **size)
        except (TypeError, AssertionError) as error:
            raise ConfigError(f"{name} cannot be built for images of {image_size} px: {error}") from error
        except Exception as error:
            if not pretrained:
                raise
            if "No pretrained weights" in str(error):
                raise ConfigError(
                    f"timm has no weights for {name}. Give a file with --checkpoint, or another model."
                ) from error
            raise HaceError(_unreachable(name, timm, error)) from error


def _unreachable(name: str, timm: Any, error: Exception) -> str:
    hub = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None)
    hub = f"{hub}{name if str(hub).endswith('/') else ''}" if hub else None
    remedy = "fetch model.safetensors from {}, copy it here and give it with --checkpoint model.safetensors"
    return unreachable(name, hub, _why_not(error), remedy)


def _why_not(error: Exception) -> str:
    """Why weights could not be fetched."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "they are not in the cache, and HF_HUB_OFFLINE is set."
    if type(error).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled"):
        return "they are not in the cache, and the hub does not answer."
    return f"{first_line(error).rstrip('.')}."


def pooled(model: Any, images: Tensor, pool: str) -> Tensor:
    """(B, 3, s, s) to (B, dims) by the model's own pooling, its class token, or the mean over positions."""
    if pool == "auto":
        return model(images)
    x = model.forward_features(images)
    prefix = getattr(model, "num_prefix_tokens", 0)
    if pool == "token":
        if x.ndim != 3 or not prefix or getattr(model, "cls_token", None) is None:
            raise ConfigError(
                f"{type(model).__name__} has no class token. Use --readout avg or auto (pool=)."
            )
        return x[:, 0]
    if x.ndim == 3:
        return x[:, prefix:].mean(1)
    # Convolutions give (B, C, h, w), Swin and its kin (B, h, w, C).
    return x.mean((2, 3)) if x.shape[1] == model.num_features else x.mean((1, 2))


TFIDF = "tfidf"
EDGES = "edges_and_colours"  # the model of hace.lab.features.edges, for photos
_ENCODERS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
ENCODER = "encoder.json"  # of TF-IDF, in the folder of its features
MOST_WORDS = 4096  # most words and pairs of words that TF-IDF counts
_TFIDF_OPTIONS: dict[str, Any] = {"sublinear_tf": True, "ngram_range": [1, 2], "strip_accents": "unicode"}


@dataclass(frozen=True)
class TextEncoder(Backbone):
    """A frozen encoder of texts. Call it with texts to get their features."""

    model: Any  # of sentence-transformers or scikit-learn
    transform: Any  # leaves texts as they are

    def __call__(self, images: Any) -> Tensor:
        """The features of texts: (B, dims), float32."""
        texts = list(images)
        if self.name == TFIDF:
            rows = self.model.transform(texts).toarray()
        else:
            rows = self.model.encode(texts, batch_size=max(len(texts), 1), show_progress_bar=False)
        return torch.from_numpy(np.asarray(rows, dtype=np.float32))


def load_encoder(
    name: str, *, checkpoint: str | Path | None = None, device: str | torch.device = "cpu"
) -> TextEncoder:
    """Load "minilm", another model of sentence-transformers (`checkpoint`: its folder), or "tfidf" (its encoder.json)."""
    if name == TFIDF and checkpoint is None:
        wanted = f"tfidf needs the file {ENCODER} that `hace features` wrote"
        raise ConfigError(f"{wanted}. Give it: --checkpoint FILE.")
    if name == TFIDF:
        return tfidf_encoder(read_json(Path(str(checkpoint))), str(checkpoint))
    library = optional("sentence_transformers", "Encoding texts", "text")
    where = str(checkpoint or _ENCODERS.get(name, name))
    try:
        with hub_or_cache() if checkpoint is None else nullcontext():
            model = library.SentenceTransformer(where, device=str(device))
    except (OSError, ValueError) as error:
        if checkpoint is None and "/" in where:
            remedy = "fetch the folder from {}, copy it here and give it with --checkpoint FOLDER"
            raise HaceError(unreachable(name, where, _why_not(error), remedy)) from error
        rule = "must be a model of sentence-transformers: a folder, or a name on the model hub"
        raise ConfigError(f"{where} {rule}. Got: {first_line(error)}") from error
    view = {"text": True, "max_length": str(model.max_seq_length)}  # "inf" of models that read everything
    dims = model.encode(["text"], show_progress_bar=False).shape[1]
    weights = weights_hash(model.state_dict())
    folder = None if checkpoint is None else str(Path(checkpoint).resolve())
    more = {"dims": dims, "weights": weights, "device": torch.device(device), "checkpoint": folder}
    return TextEncoder(name, model, str, view, "text", "float32", **more)


def fit_tfidf(texts: Sequence[str], words: int = MOST_WORDS) -> dict[str, Any]:
    """What TF-IDF learns from the training texts: words and their weights, for a JSON file."""
    text = optional("sklearn.feature_extraction.text", "TF-IDF", "text")
    options = {**_TFIDF_OPTIONS, "ngram_range": tuple(_TFIDF_OPTIONS["ngram_range"])}
    counter = text.TfidfVectorizer(max_features=words, **options)
    try:
        counter.fit(texts)
    except ValueError as error:  # only stop words, or nothing
        raise DataError(f"The training texts must hold words. Got: {first_line(error)}") from error
    vocabulary = counter.get_feature_names_out().tolist()
    return {"encoder": TFIDF, **_TFIDF_OPTIONS, "words": vocabulary, "idf": counter.idf_.tolist()}


def tfidf_encoder(state: Any, path: str | Path) -> TextEncoder:
    """The encoder of what :func:`fit_tfidf` learned; `path` is the file that holds it."""
    text = optional("sklearn.feature_extraction.text", "TF-IDF", "text")
    try:
        words = list(map(str, state["words"]))
        idf = np.array(state["idf"], dtype=np.float64)
        options = {name: state[name] for name in _TFIDF_OPTIONS}
        options["ngram_range"] = tuple(options["ngram_range"])
        model = text.TfidfVectorizer(vocabulary={word: i for i, word in enumerate(words)}, **options)
        model.idf_ = idf
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} is damaged: make it again with `hace features --encoder tfidf`."
        ) from error
    weights = hashlib.sha256(json.dumps([words, idf.tolist()]).encode()).hexdigest()
    view = {"text": True, **{name: state[name] for name in _TFIDF_OPTIONS}}
    more = {"dims": len(words), "weights": weights, "checkpoint": str(Path(path).resolve())}
    return TextEncoder(TFIDF, model, str, view, "text", "float32", **more)


def encoder_record(encoder: Backbone, source: Mapping[str, Any]) -> dict[str, Any]:
    """What an exported model says of its encoder: its name and weights, the column of texts, and all of TF-IDF."""
    record = {"name": encoder.name, "weights": encoder.weights, "column": source.get("column")}
    record["checkpoint"] = encoder.checkpoint
    return record | ({"tfidf": read_json(Path(str(encoder.checkpoint)))} if encoder.name == TFIDF else {})


def recorded_encoder(record: Mapping[str, Any], path: Path) -> TextEncoder:
    """The encoder that an exported model names."""
    if record["name"] == TFIDF:
        return tfidf_encoder(record["tfidf"], path)
    folder = record.get("checkpoint")
    here = folder if folder is not None and Path(folder).is_dir() else None
    encoder = load_encoder(record["name"], checkpoint=here)
    if encoder.weights != record["weights"]:
        where = "the hub" if here is None else here
        raise ConfigError(f"{path} was trained with other weights of {encoder.name} than {where} has.")
    return encoder
