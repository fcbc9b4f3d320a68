"""One pass of a frozen backbone over a data set, into shards on disk.

    extract(dataset, backbone, "features/cifar100")
    FeatureStore("features/cifar100").load("train", normalize="unit")

Stopped at any point, the same call resumes at the next missing shard and ends with the same bytes: a batch never crosses the
border of a shard, so a shard does not depend on where a run began.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.data import Dataset, Samples
from hace.environment import config
from hace.errors import ConfigError, DataError, HaceError
from hace.files.locks import shared_lock
from hace.files.writing import array_bytes, json_bytes, sha256, write_whole, writing
from hace.formats import render_hierarchy
from hace.lab.features import store
from hace.lab.features.backbones import Backbone
from hace.lab.features.store import FeaturePlan, Shard


def plan_features(
    dataset: Dataset[Samples], backbone: Backbone, batch_size: int = 64, shard_size: int = 1024
) -> FeaturePlan:
    """The manifest of the features that `extract` writes."""
    for option, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        if value < 1:
            raise ConfigError(f"{option} must be positive. Got {value}.")
    store.check_splits(dataset.splits)
    versions = config()
    return FeaturePlan(
        {
            "format": store.PLAN_FORMAT,
            "model": {name: getattr(backbone, name) for name in ("name", "weights", "pool", "dims")},
            "preprocessing": backbone.preprocessing,
            # The last bits of a product depend on its batch.
            "compute": {"dtype": backbone.dtype, "batch_size": batch_size},
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "hierarchy": dataset.hierarchy.fingerprint,
                "counts": {split: len(samples) for split, samples in dataset.splits.items()},
            },
            "dtype": "float32",
            "shard_size": shard_size,
            "checkpoint": backbone.checkpoint,
            "made_with": {name: versions[name] for name in ("hace", "torch", "timm")},
        }
    )


def extract(
    dataset: Dataset[Samples],
    backbone: Backbone,
    out: str | Path,
    *,
    batch_size: int = 64,
    shard_size: int = 1024,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    progress: Callable[[int, int], Callable[[int], None]] | None = None,
) -> bool:
    """Compute the features of all images that are not stored yet."""
    if not 0 <= rank < world:
        raise ConfigError(f"rank must be from 0 to world - 1 = {world - 1}. Got {rank}.")
    out = Path(out)
    plan = plan_features(dataset, backbone, batch_size, shard_size)
    store.refuse_other_folders(out)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with shared_lock(out, clean=lambda: store.remove_unfinished(out)):
        plan = store.claim(out, plan)
        mine = plan.shards[rank::world]
        due = [shard for shard in mine if not plan.has(shard, out)]
        _check_space(out, sum(map(len, due)) * plan.dims * 4)
        write_whole(out / store.STORED_HIERARCHY, render_hierarchy(dataset.hierarchy, "json").encode())
        for split, samples in dataset.splits.items():
            write_whole(out / store.labels_file(split), array_bytes(samples.nodes.astype("<i8")))
            write_whole(out / store.names_file(split), json_bytes(list(samples.names)))
        total = sum(map(len, mine))
        step = progress(total, total - sum(map(len, due))) if progress else lambda count: None
        batches = iter(_loader(dataset, backbone, due, batch_size, workers))
        for shard in due:
            parts: list[Tensor] = []
            for _ in range(0, len(shard), batch_size):
                parts.append(backbone(next(batches)))  # stays on the device: a copy would wait for it
                step(len(parts[-1]))
            rows = torch.cat(parts).cpu().numpy()
            _check_finite(rows, shard, dataset, backbone)
            write_whole(out / shard.file, array_bytes(rows.astype("<f4", copy=False)))
        return _finish(out, plan, set(due))


def _finish(out: Path, plan: FeaturePlan, written: set[Shard]) -> bool:
    """Write the table of files once all are there. The last process does it; two at once do no harm."""
    if not all(shard in written or plan.has(shard, out) for shard in plan.shards):
        return False
    files = {name: {"rows": rows, "sha256": sha256(out / name)} for name, rows in plan.files().items()}
    write_whole(out / store.MANIFEST, json_bytes({**plan.manifest, "files": files}))
    return True


class _Images(torch.utils.data.Dataset[Any]):
    """Preprocessed images by (split, index). Errors are returned, so that they cross from a worker unchanged."""

    def __init__(self, dataset: Dataset[Samples], transform: Callable[[Any], Tensor]) -> None:
        self.splits = dict(dataset.splits)
        self.transform = transform

    def __getitem__(self, key: tuple[str, int]) -> Tensor | HaceError:
        split, index = key
        try:
            return self.transform(self.splits[split].image(index))
        except HaceError as error:
            return error


def _loader(
    dataset: Dataset[Samples], backbone: Backbone, due: list[Shard], batch_size: int, workers: int
) -> Iterator[Tensor]:
    """The batches of the shards, in order; each is within one shard."""
    batches = [
        [(shard.split, i) for i in range(start, min(start + batch_size, shard.stop))]
        for shard in due
        for start in range(shard.start, shard.stop, batch_size)
    ]
    loader = torch.utils.data.DataLoader(
        _Images(dataset, backbone.transform),
        batch_sampler=batches,
        num_workers=workers if batches else 0,
        collate_fn=_collate,
        pin_memory=backbone.device.type == "cuda",
    )
    for batch in loader:
        if isinstance(batch, HaceError):
            raise batch
        yield batch


def _collate(images: list[Tensor | HaceError]) -> Tensor | HaceError:
    error = next((image for image in images if isinstance(image, HaceError)), None)
    return error or torch.stack(images)  # type: ignore[arg-type]


def _check_space(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out).free
    if needed > free:
        raise HaceError(
            f"{out} must have {needed / 1e6:,.1f} MB free for the missing features. Got {free / 1e6:,.1f} MB. "
            "Free some space, or give an --out on another disk."
        )


def _check_finite(rows: np.ndarray, shard: Shard, dataset: Dataset[Samples], backbone: Backbone) -> None:
    broken = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(broken):
        name = dataset.splits[shard.split].names[shard.start + int(broken[0])]
        raise DataError(
            f"Features must be finite. {backbone.name} gives others for {len(broken)} images; the first is {name!r} of "
            f"{shard.split!r}. Try --dtype float32, and check the weights."
        )
