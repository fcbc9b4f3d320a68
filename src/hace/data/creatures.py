"""Photos of the drawn creatures of `hace.draw.creatures`: as a dataset in memory, or as files for tutorials and the demo."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hace.checks import require
from hace.data.dataset import Dataset
from hace.data.loading import HierarchyLike, chosen_hierarchy
from hace.data.split import Samples
from hace.errors import ConfigError
from hace.files.reading import optional
from hace.files.writing import write_whole, writing
from hace.hierarchy import Hierarchy

if TYPE_CHECKING:
    from hace.draw.creatures import Species

LISTING = "photos.csv"
_FIRST = {"train": 0, "val": 100_000, "test": 200_000}  # individuals of each split


def drawing() -> Any:
    """The module that draws, or an error that says what it needs."""
    optional("PIL.Image", "Drawing creatures")
    from hace.draw import creatures

    return creatures


def creature_hierarchy() -> Hierarchy:
    """The species and what is above them.

    Example:
        >>> creature_hierarchy()
        <Hierarchy forest: 93 nodes, 65 leaves, depth 4>
        >>> creature_hierarchy().path("striped dune beetle")
        ('striped dune beetle', 'dune beetle', 'beetle', 'insect')
    """
    return Hierarchy.from_paths(drawing().creature_paths(), level_names=drawing().RANKS)


def creatures(
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    train: int = 30,
    test: int = 10,
    side: int = 64,
    seed: int = 0,
) -> Dataset[Samples]:
    """Photos of drawn creatures, in memory.

    Args:
        hierarchy: The classes; by default all species.
        root_node: Whether to have a root; by default as the hierarchy has it.
        train: Training photos per species.
        test: Test photos per species.
        side: Pixels of a side.
        seed: Seed of everything.

    Example:
        >>> data = creatures(train=1, test=1)
        >>> tuple(data["train"].pixels.shape), data["test"].names[0]
        ((65, 3, 64, 64), 'test/banded angelfish/200000')
    """
    for name, count in (("train", train), ("test", test), ("side", side)):
        require(name, count, "at least 1", count >= 1)
    require("seed", seed, "from 0 to 999", 0 <= seed < 1000)
    h = chosen_hierarchy(hierarchy, root_node, creature_hierarchy)
    known = [species for species in drawing().SPECIES if species.name in h.leaves]
    splits = {}
    for split, count in (("train", train), ("test", test)):
        shown = [(species, individual(split, i, seed)) for species in known for i in range(count)]
        pixels = np.stack([drawing().draw_creature(species, one, side) for species, one in shown])
        nodes = np.array([h.index(species.name) for species, _ in shown])
        names = [f"{split}/{species.name}/{one}" for species, one in shown]
        splits[split] = Samples(h, nodes, names, torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()))
    return Dataset("creatures", h, splits)


def individual(split: str, number: int, seed: int = 0) -> int:
    """Which individual a photo shows: no two splits share one."""
    return 1_000_000 * seed + _FIRST[split] + number


def write_creatures(
    folder: str | Path,
    *,
    fine: int = 14,
    coarse: int = 14,
    val: int = 12,
    test: int = 8,
    below: str | None = None,
    seed: int = 0,
    side: int = 64,
    on_photo: Callable[[int], object] = lambda done: None,
) -> Path:
    """Write photos to folders named after realm, group, family and species, and photos.csv, which lists them.

    Photos labelled only to family are in the family's folder. What is there already is not drawn again.

    Args:
        folder: A folder; it is made where there is none.
        fine: Training photos per species.
        coarse: Further ones that are labelled with the family alone.
        val: Photos per species for calibration.
        test: Test photos per species.
        below: Only the species of this realm, group or family; by default all.
        seed: Seed of everything.
        side: Pixels of a side.
        on_photo: Called with the number of photos that are there.

    Returns:
        The listing: columns path, split and one per rank.
    """
    counts = {"fine": fine, "coarse": coarse, "val": val, "test": test}
    for name, count in (*counts.items(), ("side", side)):
        require(name, count, "0 or more", count >= 0)
    root = Path(folder)
    chosen = [species for species in drawing().SPECIES if below is None or below in species.path]
    if not chosen:
        raise ConfigError(f"below must be a realm, group or family. Got {below!r}.")
    rows = [row for species in chosen for row in _rows(species, counts, seed)]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["path", "split", *drawing().RANKS])
    table.writerows([row.path, row.split, *row.label] for row in rows)
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        write_whole(root / LISTING, text.getvalue().encode())
        for done, row in enumerate(rows):
            path = root / row.path
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, jpeg(drawing().draw_creature(row.species, row.individual, side)))
            on_photo(done + 1)
    return root / LISTING


class _Row(NamedTuple):
    species: Species
    individual: int
    split: str
    label: Sequence[str]

    @property
    def path(self) -> str:
        known = [rank for rank in self.label if rank]
        return "/".join([*known, photo_name(self.species, self.individual)])


def _rows(species: Species, counts: Mapping[str, int], seed: int) -> list[_Row]:
    known = species.path
    family = (*species.path[:-1], "")
    fine = counts["fine"]
    parts = [("train", i, known if i < fine else family) for i in range(fine + counts["coarse"])]
    parts += [(split, i, known) for split in ("val", "test") for i in range(counts[split])]
    return [_Row(species, individual(split, i, seed), split, label) for split, i, label in parts]


def photo_name(species: Species, number: int) -> str:
    """The name of a file; :func:`drawn_again` reads it."""
    return f"{species.name} {number:06d}.jpg"


def drawn_again(name: str, side: int) -> np.ndarray:
    """The photo of a name or path that :func:`write_creatures` gave, at another size."""
    species_name, _, number = Path(name).stem.rpartition(" ")
    species = next(one for one in (*drawing().SPECIES, *drawing().UNLISTED) if one.name == species_name)
    return drawing().draw_creature(species, int(number), side)


def jpeg(pixels: np.ndarray, quality: int = 92) -> bytes:
    """A photo as a small file."""
    return _file(pixels, "JPEG", quality=quality)


def png(pixels: np.ndarray) -> bytes:
    """A photo as an exact file."""
    return _file(pixels, "PNG")


def _file(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    optional("PIL.Image", "Writing photos").fromarray(pixels).save(content, kind, **options)
    return content.getvalue()
