"""`hace features`: the features of images or texts, computed once and stored."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from hace.cli.engine import With, Without, more
from hace.cli.options import DataOptions, Device
from hace.errors import ConfigError, DataError, amount

_IMAGES = With("--model", example="--model resnet50")
_TEXTS = With("--text", example="--text titles.csv")


def features(
    *,
    out: Path,
    data: Annotated[str | None, _IMAGES, Without("--text")] = None,
    model: Annotated[str | None, With("--data", example="--data folders --data-root photos")] = None,
    dataset: DataOptions = DataOptions(),
    text: Annotated[Path | None, With("--encoder", example="--encoder minilm")] = None,
    encoder: Annotated[str | None, _TEXTS] = None,
    column: Annotated[str, _TEXTS] = "text",
    checkpoint: Path | None = None,
    readout: Annotated[Literal["auto", "token", "avg"], _IMAGES, more] = "auto",
    image_size: Annotated[int | None, _IMAGES, more] = None,
    crop_pct: Annotated[float | None, _IMAGES, more] = None,
    dtype: Annotated[Literal["float32", "bf16"], _IMAGES, more] = "float32",
    batch_size: int = 64,
    shard_size: Annotated[int, more] = 1024,
    skip_broken: Annotated[bool, _IMAGES] = False,
    on: Device = Device(),
) -> None:
    """Compute the features of a dataset's images with a frozen timm model, or of texts with a sentence encoder, and store them
    for linear probes. After a stop, the same command resumes and ends with the same bytes.

    Examples
      hace features --data cifar100 --data-root data --model vit_large_patch14_dinov2.lvd142m --out features/cifar100
      hace features --data cifar100 --data-root data --model vit_large_patch14_dinov2 --checkpoint dinov2.safetensors --out F
      hace features --data folders --data-root photos --hierarchy tree.csv --model resnet50 --out F
      hace features --data creatures --model edges_and_colours --out F        needs no files and no download
      hace features --text titles.csv --column title --encoder minilm --hierarchy categories.csv --out F
      torchrun --nproc-per-node 4 -m hace features --data nabirds --data-root data --model resnet50 --dtype bf16 --out F

    Features are stored raw; choose their normalisation (none, unit, standard) when reading them. Without --checkpoint the
    weights come from the model hub. F/manifest.json records what F was made from; a different model, weights or preprocessing
    is refused, and the message says what differs. If the data grow, only new images are computed. Images are preprocessed as
    the model's authors do.

    Texts come in a column of a .csv or .tsv table, which also has the columns label and, for several splits, split.

    Args:
        out: Folder for the features: a new one, or one to resume.
        data: Dataset of images that `hace data` reads: cifar100, folders, creatures, ...
        model: timm model, with or without the tag of its weights.
        text: Table of texts in place of images, .csv or .tsv.
        encoder: Text encoder: minilm, tfidf (learns its words from the training texts), or a sentence-transformers model.
        column: Column of the texts.
        checkpoint: Weights: .safetensors, a torch file of tensors, or a folder of sentence-transformers (default: the hub).
        readout: Features to take: class token (token), mean over positions (avg), or the classifier's input (auto).
        image_size: Input size in pixels (default: the model's own; DINOv2: 224).
        crop_pct: Share of the image that the centre crop keeps (default: the model's own).
        dtype: Precision; bf16 uses autocast.
        batch_size: Images per batch.
        shard_size: Images per file; at most this many are computed again after a kill.
        skip_broken: Leave out images that cannot be read, and list them at the end.
    """
    from hace.files.weights import check_weights_file
    from hace.lab.runs.process import keep_freed_memory, processes

    keep_freed_memory()

    rank, world, local_rank = processes()
    device, workers = on.pick(local_rank)
    sizes: dict[str, Any] = {"batch_size": batch_size, "shard_size": shard_size}
    if text is not None and encoder is not None:
        texts = dataset.load("texts", data_root=text, column=column)
        return _encode_texts(texts, encoder, checkpoint, device, out, sizes)
    if data is None or model is None:
        raise ConfigError(
            "hace features must have images (--data and --model) or texts (--text and --encoder). Got neither."
        )
    if checkpoint is not None:
        check_weights_file(checkpoint)  # before images are looked for
    images = _images(data, dataset, out, skip_broken)
    about = {"readout": readout, "dtype": dtype, "image_size": image_size, "crop_pct": crop_pct}
    _encode_images(
        images, model, checkpoint, device, out, about, {**sizes, "workers": workers}, (rank, world)
    )


def _images(name: str, options: DataOptions, out: Path, skip_broken: bool) -> Any:
    """The images of a dataset; broken ones are refused, or left out, before an hour of work and not after it."""
    from hace.data import DATASETS, Features
    from hace.data.dataset import without_broken
    from hace.data.own_lists import Texts
    from hace.lab.features.store import known_images

    dataset = options.load(name)
    if any(isinstance(split, Features) for split in dataset.splits.values()):
        raise ConfigError(
            f"--data must hold images. {dataset.name} holds features already: give it to `hace probe`."
        )
    if any(isinstance(split, Texts) for split in dataset.splits.values()):
        raise ConfigError(f"--data must hold images. {dataset.name} holds texts: give it to `hace fit`.")
    if skip_broken or not DATASETS[name].official:
        dataset = without_broken(dataset, known_images(out, aside=False))
        if dataset.broken and not skip_broken:
            lines = [f"{amount(len(dataset.broken), 'image')} cannot be read:", *dataset.broken]
            raise DataError("\n  ".join(lines) + "\n`--skip-broken` leaves such images out.")
    return dataset


def _encode_images(
    dataset: Any,
    model: str,
    checkpoint: Path | None,
    device: str,
    out: Path,
    about: dict[str, Any],
    sizes: dict[str, Any],
    process: tuple[int, int],
) -> None:
    """The features of images, by all processes of a job."""
    from hace.data.dataset import broken_text
    from hace.lab.features.backbones import load_backbone
    from hace.lab.features.extraction import extract
    from hace.lab.features.store import FeatureStore, stored
    from hace.lab.runs.process import progress

    rank, world = process
    pool = about.pop("readout")
    backbone = load_backbone(model, checkpoint=checkpoint, device=device, pool=pool, **about)
    if rank == 0:
        size = backbone.preprocessing["input_size"][1]
        parameters = sum(p.numel() for p in backbone.model.parameters())
        print(
            f"{backbone.name}: {parameters / 1e6:,.1f} M parameters, {backbone.dims} features, {size} px, "
            f"{about['dtype']} on {device}, weights {backbone.weights[:12]}"
        )
    try:
        with progress("features", "images", sys.stderr if rank == 0 else None) as start:
            shown = start if rank == 0 else None
            complete = extract(dataset, backbone, out, **sizes, rank=rank, world=world, progress=shown)
    except KeyboardInterrupt:
        there, shards = stored(out)
        print(f"\n{there} of {shards} shards are in {out}. Run the same command to resume.", file=sys.stderr)
        raise
    if rank == 0 and dataset.broken:
        print(broken_text(dataset), file=sys.stderr)
    if complete:
        print(f"{FeatureStore(out)!r} is in {out}")
    else:
        print(f"rank {rank} of {world} is done; other processes still have shards to write", file=sys.stderr)


def _encode_texts(
    dataset: Any, encoder: str, checkpoint: Path | None, device: str, out: Path, sizes: dict[str, Any]
) -> None:
    """The features of a table of texts."""
    from hace.files.writing import json_bytes, write_whole
    from hace.lab.features.backbones import ENCODER, TFIDF, fit_tfidf, load_encoder, tfidf_encoder
    from hace.lab.features.extraction import extract
    from hace.lab.features.store import FeatureStore
    from hace.lab.runs.process import progress

    words = fit_tfidf(dataset["train"].texts) if encoder == TFIDF and checkpoint is None else None
    if words is not None:
        model = tfidf_encoder(words, out / ENCODER)
    else:
        model = load_encoder(encoder, checkpoint=checkpoint, device=device)
    with progress("features", "texts") as start:
        extract(dataset, model, out, **sizes, progress=start)
    if words is not None:
        write_whole(out / ENCODER, json_bytes(words))
    print(f"{FeatureStore(out)!r} is in {out}")
