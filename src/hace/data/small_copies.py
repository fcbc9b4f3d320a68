"""Small copies of photos in memory, so that a training at 64 px neither reads nor decodes files: made once, then cached."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hace.checks import require
from hace.data.split import Samples
from hace.errors import FormatError
from hace.files.arrays import Arrays
from hace.files.reading import optional
from hace.files.writing import atomic_path


def small_copies(splits: Mapping[str, Samples], side: int, root: Path) -> dict[str, Samples]:
    """The splits with square copies of their photos in memory: the shorter side at `side` px, the middle cut out.

    The copies are cached in `root` as small-SIDE.npz, which is made again if photos were added, removed or changed.
    """
    require("pixels", side, "a whole number of at least 1", isinstance(side, int) and side >= 1)
    cache = root / f"small-{side}.npz"
    expected = {name: _listing(samples) for name, samples in splits.items()}
    cached = _cached(cache, expected)
    if cached is None:
        cached = {name: _shrunk(samples, side) for name, samples in splits.items()}
        arrays = {f"files_{name}": listing for name, listing in expected.items()}
        arrays |= {f"pixels_{name}": pixels for name, pixels in cached.items()}
        with atomic_path(cache) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    return {
        name: replace(samples, paths=None, pixels=torch.from_numpy(np.array(cached[name])))
        for name, samples in splits.items()
    }


def _listing(samples: Samples) -> np.ndarray:
    """Names of the files and hashes of what is used of them, as bytes: an array without objects."""
    digests = samples.digests()
    lines = (f"{name}\t{digest.tobytes().hex()}" for name, digest in zip(samples.names, digests, strict=True))
    return np.frombuffer("\n".join(lines).encode(errors="surrogateescape"), np.uint8)


def _cached(cache: Path, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The copies, if the file has those of exactly these photos."""
    if not cache.is_file():
        return None
    try:
        arrays = Arrays(cache)
        if all(np.array_equal(arrays[f"files_{name}"], listing) for name, listing in expected.items()):
            return {name: arrays[f"pixels_{name}"] for name in expected}
    except (FormatError, KeyError):  # cut off, or of other splits: made again
        pass
    return None


def _shrunk(samples: Samples, side: int) -> np.ndarray:
    """uint8 (M, 3, side, side)."""
    image = optional("PIL.Image", "Shrinking images")
    ops = optional("PIL.ImageOps", "Shrinking images")

    def one(index: int) -> Any:
        small = ops.fit(samples.image(index), (side, side), image.Resampling.BICUBIC)
        return np.asarray(small).transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:  # decoders release the interpreter's lock
        return np.stack(list(pool.map(one, range(len(samples)))))
