"""A data set's figures from its files, beside those that the paper prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from hace.data import DATASETS
from hace.data.dataset import Dataset
from hace.data.samples import Features
from hace.paper.printed import errata, paper_tables

HEADINGS = {
    "train_images": "training samples",
    "test_images": "test samples",
    "leaves": "leaf classes",
    "nodes": "nodes",
    "depth": "hierarchical depth",
    "image_size": "cropped image size",
    "features": "features",
}
NOTES = {"nabirds": ("passeriformes", "three-level-path")}  # errata of the text about a data set


def figures(data: Dataset[Any], size: int | None) -> dict[str, str]:
    """What the paper's table says of a data set, from the data set; depth is counted below the root.

    Args:
        data: The data set.
        size: The side of its images, for models.
    """
    h = data.hierarchy
    depths = np.unique(h.depths[h.leaf_nodes]).tolist()
    first = next(iter(data.splits.values()))
    features = isinstance(first, Features)
    shape = f"{first.num_features:,}" if features else f"{size} x {size}"
    counts = {split: f"{len(samples):,}" for split, samples in data.splits.items()}
    return {
        "train_images": counts.pop("train", "-"),
        "test_images": counts.pop("test", "-"),
        **counts,
        "leaves": f"{h.num_leaves:,}",
        "nodes": f"{h.num_nodes:,}",
        "depth": " or ".join(map(str, depths)) if len(depths) < 3 else f"{depths[0]} to {depths[-1]}",
        "features" if features else "image_size": shape,
    }


def table_text(data: Dataset[Any], name: str) -> str:
    """The figures, with those that the paper prints beside them where it has any, and its errata below.

    Args:
        data: The data set.
        name: Its name in `hace.DATASETS`.
    """
    kind, table = DATASETS[name], paper_tables()["datasets"]
    printed = {str(cell.metric): cell for cell in table.select(dataset=name)}
    marks = {metric: ",".join(table.marks(cell)) for metric, cell in printed.items()}
    rows = [
        (
            HEADINGS.get(key, f"{key} samples"),
            value,
            printed[key].printed if key in printed else "",
            marks.get(key, ""),
        )
        for key, value in figures(data, kind.size).items()
    ]
    if printed:
        rows.insert(0, ("", "files", "paper", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [kind.title if printed else f"{data.name} ({kind.title})", ""]
    for heading, here, paper, mark in rows:
        note = f" {mark}" if mark else ""
        lines.append(f"  {heading:<{widths[0]}}  {here:>{widths[1]}}  {paper:>{widths[2]}}{note}".rstrip())
    notes = [f"{note.mark} {note.text}" for note in table.footnotes if note.mark in ",".join(marks.values())]
    notes += [erratum.text for erratum in errata() if erratum.id in NOTES.get(name, ())]
    return "\n".join([*lines, "", *_details(data), *(["", *notes] if notes else [])])


def _details(data: Dataset[Any]) -> list[str]:
    h = data.hierarchy
    root = f"with the root {h.tops[0]!r}" if h.rooted else "without a root"
    widths = np.bincount(h.depths)[0 if h.rooted else 1 :]
    lines = [f"hierarchy: {h.kind} {root}, {' + '.join(map(str, widths.tolist()))} nodes by depth"]
    return lines + data.summary().splitlines()[1:]
