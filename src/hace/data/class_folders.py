"""CUB-200-2011 and Stanford Cars as they circulate: photos in a folder for each class, below train/ and test/."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hace.data.dataset import Dataset
from hace.data.folders import load_folders
from hace.data.loading import HierarchyLike, chosen_hierarchy
from hace.data.split import Samples
from hace.errors import DataError
from hace.hierarchy import Hierarchy

_CUB_FOLDER = re.compile(r"(\d{3})\..+")  # 001.Black_footed_Albatross


def load_cub200(
    root: Path, hierarchy: HierarchyLike = None, root_node: bool | None = None, *, pixels: int | None = None
) -> Dataset[Samples]:
    """CUB-200-2011: 5,994 training and 5,794 test photos of 200 species, in the official split.

    The dataset has no taxonomy of its own: give one whose leaves are the folders, or the numbers 1 to 200 at the start of
    their names, as published trees have them. `pixels` is as in `load_folders`.
    """
    h = chosen_hierarchy(hierarchy, root_node)
    return replace(load_folders(root, _by_folder(h, root), pixels=pixels), name="cub200")


def load_cars(
    root: Path, hierarchy: HierarchyLike = None, root_node: bool | None = None, *, pixels: int | None = None
) -> Dataset[Samples]:
    """Stanford Cars: 8,144 training and 8,041 test photos of 196 models, in the official split.

    The dataset has no hierarchy of its own: give one whose leaves are the folders. `pixels` is as in `load_folders`.
    """
    return replace(load_folders(root, hierarchy, root_node, pixels=pixels), name="cars")


def _by_folder(h: Hierarchy, root: Path) -> Hierarchy:
    """The tree with the folders' names in place of the numbers of classes."""
    numbers = {str(number) for number in range(1, 201)}
    if set(h.leaves) != numbers:
        return h
    folders = [path.name for path in (root / "train").iterdir()] if (root / "train").is_dir() else []
    of = {str(int(match[1])): match[0] for match in map(_CUB_FOLDER.fullmatch, folders) if match}
    if of.keys() != numbers:
        raise DataError(
            f"{root / 'train'}: must hold 200 folders, 001.Black_footed_Albatross to 200.Common_Yellowthroat. "
            f"Got {len(of)} of them."
        )
    edges = [(h.nodes[parent], of.get(h.nodes[child], h.nodes[child])) for parent, child in h.edges.tolist()]
    return Hierarchy.from_edges(edges, leaves=[of[leaf] for leaf in h.leaves])
