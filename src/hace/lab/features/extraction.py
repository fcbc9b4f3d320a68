"""One pass of a frozen backbone over a dataset, into shards on disk.

    extract(dataset, backbone, "features/cifar100")
    FeatureStore("features/cifar100").load("train", normalize="unit")

Stopped at any point, the same call resumes at the next missing shard and ends with the same bytes: a batch never crosses the
border of a shard, so a shard does not depend on where a run began.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace.checks import require
from hace.data import Dataset, Samples
from hace.data.batches import Attempts
from hace.environment import config
from hace.errors import DataError, HaceError, amount
from hace.files.writing import array_bytes, beside_others, json_bytes, sha256, write_whole, writing
from hace.formats import render_hierarchy
from hace.lab.features import store
from hace.lab.features.backbones import Backbone
from hace.lab.features.store import FeaturePlan, Shard


def plan_features(
    dataset: Dataset[Samples],
    backbone: Backbone,
    digests: Mapping[str, np.ndarray],
    batch_size: int = 64,
    shard_size: int = 1024,
) -> FeaturePlan:
    """The manifest of the features that `extract` writes."""
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
                **({"groups": True} if any(s.groups is not None for s in dataset.splits.values()) else {}),
                "images": hashlib.sha256(b"".join(d.tobytes() for d in digests.values())).hexdigest(),
            },
            "dtype": "float32",
            "shard_size": shard_size,
            "checkpoint": backbone.checkpoint,
            **(dataset.source or {}),  # the column of texts
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
    """Compute the features of all images that are not stored yet.

    A folder that holds features of other data by the same model is brought up to date: only images that it does not know, by
    their bytes, go through the model, whatever their labels, names, splits or order were.

    Args:
        dataset: The images.
        backbone: The model.
        out: A new folder, or one to resume or bring up to date.
        batch_size: Images at once.
        shard_size: Images per file.
        workers: Processes that read images; 0: this one.
        rank: This process's number, of `world` that share the work.
        world: The number of processes.
        progress: Called with all images and those done before; what it returns is called with the images of every step.

    Returns:
        Whether all features are there; False while other processes still have some to compute.
    """
    require("rank", rank, f"from 0 to world - 1 = {world - 1}", 0 <= rank < world)
    out = Path(out)
    for option, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        require(option, value, "positive", value >= 1)
    store.refuse_other_folders(out)
    digests = {split: samples.digests() for split, samples in dataset.splits.items()}
    plan = plan_features(dataset, backbone, digests, batch_size, shard_size)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with beside_others(out, clean=lambda: store.tidy(out, plan)):
        plan = store.claim(out, plan)
        known = store.known_images(out)
        mine = plan.shards[rank::world]
        due = [shard for shard in mine if not plan.has(shard, out)]
        new = {shard: _unknown_places(shard, digests, known) for shard in due}
        _check_space(out, sum(map(len, due)) * plan.dims * 4)
        _write_about_samples(out, dataset, digests)
        total = sum(map(len, mine))
        already_done = total - sum(map(len, new.values()))
        step = progress(total, already_done) if progress else lambda count: None
        batches = iter(_loader(dataset, backbone, new, batch_size, workers))
        for shard in due:
            rows = np.empty((len(shard), plan.dims), np.float32)
            outputs: list[Tensor] = []
            for _ in range(0, len(new[shard]), batch_size):
                outputs.append(backbone(next(batches)))  # stays on the device: a copy would wait for it
                step(len(outputs[-1]))
            if outputs:
                rows[np.array(new[shard]) - shard.start] = torch.cat(outputs).cpu().numpy()
            for i in sorted(set(shard.places) - set(new[shard])):
                old, row = known[digests[shard.split][i].tobytes()]
                rows[i - shard.start] = old[row]
            _check_finite(rows, shard, dataset, backbone)
            write_whole(out / shard.file, array_bytes(rows.astype("<f4", copy=False)))
        return _finish(out, plan, set(due))


def _unknown_places(shard: Shard, digests: Mapping[str, np.ndarray], known: Container[bytes]) -> list[int]:
    """The places of a shard's images whose features no earlier run has stored."""
    of_split = digests[shard.split]
    return [i for i in shard.places if of_split[i].tobytes() not in known]


def _write_about_samples(out: Path, dataset: Dataset[Samples], digests: Mapping[str, np.ndarray]) -> None:
    """Write the hierarchy, and what is known of each split's samples besides their features."""
    write_whole(out / store.STORED_HIERARCHY, render_hierarchy(dataset.hierarchy, "json").encode())
    for split, samples in dataset.splits.items():
        files = {
            "images": array_bytes(digests[split]),
            "labels": array_bytes(samples.nodes.astype("<i8")),
            "names": json_bytes(list(samples.names)),
        }
        if samples.groups is not None:
            files["groups"] = json_bytes(samples.groups.tolist())
        for kind, content in files.items():
            write_whole(out / store.split_file(split, kind), content)


def _finish(out: Path, plan: FeaturePlan, written: set[Shard]) -> bool:
    """Write the table of files once all are there. The last process does it; two at once do no harm."""
    if not all(shard in written or plan.has(shard, out) for shard in plan.shards):
        return False
    files = {name: {"rows": rows, "sha256": sha256(out / name)} for name, rows in plan.files().items()}
    write_whole(out / store.MANIFEST, json_bytes({**plan.manifest, "files": files}))
    for aside in out.glob(f"{store.ASIDE}*"):
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _seen(dataset: Dataset[Samples], transform: Callable[[Any], Tensor], key: tuple[str, int]) -> Tensor:
    """The preprocessed image of (split, index)."""
    split, index = key
    return transform(dataset[split].item(index))


def _loader(
    dataset: Dataset[Samples],
    backbone: Backbone,
    new: Mapping[Shard, list[int]],
    batch_size: int,
    workers: int,
) -> Iterator[Tensor]:
    """The batches of the shards' new images, in order; each is within one shard."""
    batches = [
        [(shard.split, i) for i in places[start : start + batch_size]]
        for shard, places in new.items()
        for start in range(0, len(places), batch_size)
    ]
    loader = torch.utils.data.DataLoader(
        Attempts(partial(_seen, dataset, backbone.transform), HaceError),
        batch_sampler=batches,
        num_workers=workers if batches else 0,
        collate_fn=_collate,
        pin_memory=backbone.device.type == "cuda",
    )
    for batch in loader:
        if isinstance(batch, HaceError):
            raise DataError(
                f"{batch} `--skip-broken` leaves such images out; `hace data --check` lists them all."
            )
        yield batch


def _collate(images: list[Tensor | HaceError]) -> Tensor | HaceError:
    error = next((image for image in images if isinstance(image, HaceError)), None)
    return error or (torch.stack(images) if isinstance(images[0], Tensor) else images)  # type: ignore[arg-type]


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
            f"Features must be finite. {backbone.name} gives NaN or infinite values for "
            f"{amount(len(broken), 'image')}; the first is {name!r} of {shard.split!r}. "
            "Try --dtype float32, and check the weights."
        )
