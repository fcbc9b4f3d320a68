"""Photos and texts as features: one frozen backbone per kind, cached by content.

The cache is a folder of `hace features` in the user's cache folder (HACE_CACHE), one for each source and backbone. What it
knows by its bytes is not computed again, whatever its name, label or place; a pass that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hace.data import Dataset, Samples
from hace.data.dataset import without_broken
from hace.data.own_lists import Texts
from hace.errors import ConfigError, FormatError
from hace.files.hashes import cache_folder
from hace.files.weights import fill, weights_hash
from hace.fitting.inputs import Given
from hace.lab.features.backbones import (
    TFIDF,
    Backbone,
    bare_model,
    check_backbone_name,
    encoder_record,
    fit_tfidf,
    load_backbone,
    load_encoder,
    recorded_encoder,
    tfidf_encoder,
    timm_models,
)
from hace.lab.features.extraction import extract
from hace.lab.features.store import FeatureStore, known_images
from hace.lab.serve.export import image_view, view_of
from hace.lab.serve.inputs import Broken, FeatureRows, as_inputs, as_texts
from hace.linear.features import RowsOnDisk

PHOTOS = "photos"
TEXTS = "texts"
DEFAULTS = {PHOTOS: "vit_small_patch14_dinov2.lvd142m", TEXTS: "minilm"}
_SPLIT = "all"
_BATCH = 32


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen backbone of photos or texts, and how a document records it.

    Attributes:
        kind: "photos" or "texts".
        backbone: the model with its preprocessing.
        view: how photos become its input, as a document says it; None for texts.
        record: how a document names an encoder of texts; None for photos.
    """

    kind: str
    backbone: Backbone
    view: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None

    def __call__(self, new: Any) -> tuple[np.ndarray, list[str], list[Broken]]:
        """The features of new photos or texts that can be read, the names of all, and what cannot be read."""
        column = None if self.record is None else self.record["column"]
        given = as_inputs(new) if self.kind == PHOTOS else as_texts(new, column)
        if isinstance(given, FeatureRows):
            raise ConfigError(f"New data must be {self.kind}, as in training. Got features.")
        names: list[str] = []
        rows: list[np.ndarray] = []
        broken: list[Broken] = []
        for _, batch, unread in given.batches(self.backbone.transform, _BATCH):
            broken += unread
            if batch is not None:
                rows.append(self.backbone(batch).cpu().numpy())
        names = list(given.names)
        x = np.concatenate(rows) if rows else np.zeros((0, self.backbone.dims), np.float32)
        return x, names, broken


def load(given: Given, model: str | None = None, checkpoint: str | Path | None = None) -> Encoder:
    """The encoder of samples: the default of their kind, or the one named."""
    name = model or DEFAULTS[given.kind]
    if given.kind == PHOTOS:
        backbone = load_backbone(name, checkpoint=checkpoint)
        return Encoder(PHOTOS, backbone, view=view_of(backbone))
    if name == TFIDF:
        assert given.items is not None
        held = {"test", "val"} if given.split is not None else set()
        split = np.full(len(given), "train") if given.split is None else given.split
        own = [text for text, part in zip(given.items, split, strict=True) if part not in held]
        state = fit_tfidf(own)
        backbone = tfidf_encoder(state, "tfidf")
        record = {"name": TFIDF, "weights": backbone.weights, "column": given.column, "tfidf": state}
        return Encoder(TEXTS, backbone, record=record)
    backbone = load_encoder(name, checkpoint=checkpoint)
    return Encoder(TEXTS, backbone, record=encoder_record(backbone, {"column": given.column}))


def encoded(
    given: Given,
    encoder: Encoder,
    cache: Path | None = None,
    progress: Callable[[str, int], object] | None = None,
) -> Given:
    """The samples with their features; photos that cannot be read are left out, and a note says so."""
    assert given.items is not None
    h = given.hierarchy
    names = list(given.names)
    folder = _folder(given, encoder, cache)
    notes = given.notes
    if given.kind == PHOTOS:
        about: Any = {"boxes": given.boxes, "relative": given.boxes is not None}
        samples: Any = Samples(h, given.nodes, names, paths=given.items, **about)
        dataset: Any = Dataset(given.source or PHOTOS, h, {_SPLIT: samples})
        whole = without_broken(dataset, known_images(folder, aside=False) if folder.exists() else ())
        if whole.broken:
            readable = set(whole.splits[_SPLIT].names)
            rows = np.array([i for i, name in enumerate(names) if name in readable], dtype=np.int64)
            note = f"{len(whole.broken):,} of {len(names):,} photos cannot be read and are left out: {whole.broken[0]}"
            given = given.rows(rows)
            dataset = whole
            notes = (*notes, note)
    else:
        dataset = Dataset(given.source or TEXTS, h, {_SPLIT: Texts(h, given.nodes, names, texts=given.items)})

    def start(total: int, done: int) -> Callable[[int], None]:
        count = [done]

        def step(more: int) -> None:
            count[0] += more
            if progress is not None:
                progress(f"Features of {total:,} {given.kind}", count[0])

        return step

    extract(dataset, encoder.backbone, folder, batch_size=_BATCH, progress=start)
    return replace(given, x=_features(folder), notes=notes)


def document_parts(encoder: Encoder) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the entries of a document by which a file of a model holds its encoder."""
    backbone = encoder.backbone
    if encoder.kind == TEXTS:
        made = {"kind": "probe", "model": None, "scaling": "none", "encoder": dict(encoder.record or {})}
        return {}, {"architecture": made}
    assert encoder.view is not None
    size = encoder.view["size"]
    made = {"kind": "probe", "model": backbone.name, "scaling": "none", "pool": backbone.pool}
    tensors = {f"model.{name}": t.detach().cpu() for name, t in backbone.model.state_dict().items()}
    return tensors, {
        "input": {"name": "images", "shape": ["batch", 3, size, size], "dtype": "float32"},
        "preprocessing": dict(encoder.view),
        "architecture": made,
        "model": backbone.name,
    }


def encoder_of(
    document: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], path: Path
) -> Encoder | None:
    """The encoder in a file; None where the model takes features."""
    made = document["architecture"]
    view = document["preprocessing"]
    if made.get("encoder") is not None:
        return Encoder(TEXTS, recorded_encoder(made["encoder"], path), record=made["encoder"])
    if view is None:
        return None
    timm = timm_models()
    try:
        check_backbone_name(made["model"], timm)
    except ConfigError as error:
        raise FormatError(f"{path} is damaged: architecture.model cannot be built. {error}") from error
    model = bare_model(timm, made["model"], view["size"], pretrained=False).eval().requires_grad_(False)
    own = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    for name, value in model.state_dict().items():
        if value.ndim == 0 and name in own and own[name].numel() == 1:
            own[name] = own[name].reshape(())  # counters of batch norms, which files hold as one-dimensional
    fill(model, own, path)
    backbone = Backbone(
        name=made["model"],
        model=model,
        transform=image_view(view),
        preprocessing=dict(view),
        pool=made["pool"],
        dtype="float32",
        dims=tensors["head.weight"].shape[1],
        weights=weights_hash(model.state_dict()),
    )
    return Encoder(PHOTOS, backbone, view=view)


def _folder(given: Given, encoder: Encoder, cache: Path | None) -> Path:
    """Where features are cached: one place for each source and backbone."""
    source = str(Path(given.source).resolve()) if given.source else f"memory of {given.kind}"
    key = hashlib.sha256(
        f"{source}\0{encoder.backbone.name}\0{encoder.backbone.weights}".encode()
    ).hexdigest()
    return (cache or cache_folder()) / "features" / key[:24]


def _features(folder: Path) -> Any:
    x = FeatureStore(folder).load(_SPLIT, "none").x
    return np.asarray(x) if isinstance(x, RowsOnDisk) else x
