"""Compute the features of all images of a dataset with a frozen timm model, or of texts with a sentence encoder, once, and
store them for linear probes. Stopped at any point, the same command resumes and ends with the same bytes.

Examples:
  hace features --data cifar100 --root data --model vit_large_patch14_dinov2.lvd142m --out features/cifar100
  hace features --data cifar100 --root data --model vit_large_patch14_dinov2 --checkpoint dinov2.safetensors --out F
  hace features --data folders --root photos --hierarchy tree.csv --model resnet50 --out F
  hace features --data synthetic -o classes=12 --model resnet10t --checkpoint weights.pt --image-size 64 --out F
  hace features --text titles.csv --column title --encoder minilm --hierarchy categories.csv --out F
  torchrun --nproc-per-node 4 -m hace features --data nabirds --root data --model resnet50 --dtype bf16 --out F

Features are stored raw; choose their normalisation (none, unit, standard) when reading them. Without --checkpoint the weights
come from the model hub. F/manifest.json records what F was made from; another model, other weights or preprocessing are
refused, with the difference. Of other data, only images that F does not know are computed. Images are preprocessed as the
model's authors do.
Texts are a column of a .csv or .tsv table with the columns label and, if there are several splits, split. --encoder is minilm,
a model of sentence-transformers (--checkpoint: its folder), or tfidf, which learns its words from the training texts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hace.cli.options import Parser, add_dataset, add_device, dataset_of, pick_device
from hace.errors import ConfigError, DataError


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("--data", "NAME", "what `hace data` reads: cifar100, synthetic, a folder, ...")
    add_dataset(parser)
    add("--model", "NAME", "a timm model, with or without the tag of its weights")
    add("--text", "FILE", "texts in place of images: a .csv or .tsv table")
    add("--column", "NAME", "the column of the texts (default: text)", default="text")
    add("--encoder", "NAME", "minilm, tfidf, or a model of sentence-transformers")
    add("--out", "FOLDER", "where to store the features: a new folder, or one to resume", required=True)
    add("--checkpoint", "FILE", "weights: .safetensors, or a torch file of tensors (default: the hub)")
    about = "class token, mean over positions, or what the model's classifier sees (default: auto)"
    add("--pool", ("auto", "token", "avg"), about, default="auto")
    add("--image-size", "PIXELS", "input size (default: the model's own; DINOv2: 224)", type=int)
    add("--crop-pct", "P", "share that the centre crop keeps (default: the model's own)", type=float)
    add("--dtype", ("float32", "bf16"), "bf16 computes under autocast", default="float32")
    add("--batch-size", "N", "images per batch (default: 64)", type=int, default=64)
    about = "images per file, the most to compute again after a kill (default: 1024)"
    add("--shard-size", "N", about, type=int, default=1024)
    parser.flag("--skip-broken", "leave out images that cannot be read, and list them at the end")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Load data and model, extract, and print what is stored."""
    from hace.data import DATASETS, Features
    from hace.data.dataset import broken_text, without_broken
    from hace.lab.features.backbones import load_backbone
    from hace.lab.features.extraction import extract
    from hace.lab.features.store import FeatureStore, known_images, stored
    from hace.lab.runs.process import processes, progress

    rank, world, local_rank = processes()
    device, workers = pick_device(args, local_rank)
    named = [option for option in ("data", "model", "text", "encoder") if getattr(args, option) is not None]
    if named not in (["data", "model"], ["text", "encoder"]):
        said = ", ".join(f"--{option}" for option in named) or "neither"
        raise ConfigError(f"Give images (--data and --model) or texts (--text and --encoder). Got {said}.")
    if args.text is not None:
        return encode_texts(args, device)
    dataset = dataset_of(args.data, args)
    if any(isinstance(split, Features) for split in dataset.splits.values()):
        said = f"{dataset.name} holds features already: give it to `hace probe`."
        raise ConfigError(f"--data must hold images. {said}")
    if args.skip_broken or not DATASETS[args.data].official:  # before an hour of work, not after it
        dataset = without_broken(dataset, known_images(Path(args.out), aside=False))
        if dataset.broken and not args.skip_broken:
            lines = [f"{len(dataset.broken):,} images cannot be read:", *dataset.broken]
            raise DataError("\n  ".join(lines) + "\n`--skip-broken` leaves such images out.")
    names = ("checkpoint", "pool", "dtype", "image_size", "crop_pct")
    backbone = load_backbone(args.model, device=device, **{name: getattr(args, name) for name in names})
    out = Path(args.out)
    if rank == 0:
        size = backbone.preprocessing["input_size"][1]
        parameters = sum(p.numel() for p in backbone.model.parameters())
        print(
            f"{backbone.name}: {parameters / 1e6:,.1f} M parameters, {backbone.dims} features, {size} px, "
            f"{args.dtype} on {device}, weights {backbone.weights[:12]}"
        )
    try:
        with progress("features", "images", sys.stderr if rank == 0 else None) as start:
            sizes = {"batch_size": args.batch_size, "shard_size": args.shard_size, "workers": workers}
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


def encode_texts(args: argparse.Namespace, device: str) -> None:
    """The features of a table of texts."""
    from hace.files.writing import json_bytes, write_whole
    from hace.lab.features.backbones import ENCODER, TFIDF, fit_tfidf, load_encoder, tfidf_encoder
    from hace.lab.features.extraction import extract
    from hace.lab.features.store import FeatureStore
    from hace.lab.runs.process import progress

    args.root, args.option = args.text, [*args.option, f"column={args.column}"]
    dataset, out, state = dataset_of("texts", args), Path(args.out), None
    if args.encoder == TFIDF and args.checkpoint is None:
        state = fit_tfidf(dataset["train"].texts)
        encoder = tfidf_encoder(state, out / ENCODER)
    else:
        encoder = load_encoder(args.encoder, checkpoint=args.checkpoint, device=device)
    with progress("features", "texts") as start:
        extract(dataset, encoder, out, batch_size=args.batch_size, shard_size=args.shard_size, progress=start)
    if state is not None:
        write_whole(out / ENCODER, json_bytes(state))
    print(f"{FeatureStore(out)!r} is in {out}")
