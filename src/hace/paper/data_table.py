"""The paper's table of data sets, from the files themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from hace.data.dataset import Dataset
from hace.data.registry import DatasetKind
from hace.data.samples import Features

HEADINGS = {
    "train": "training samples",
    "test": "test samples",
    "leaves": "leaf classes",
    "nodes": "nodes",
    "depth": "hierarchical depth",
    "size": "cropped image size",
    "features": "features",
}


def figures(data: Dataset[Any], size: int | None) -> dict[str, str]:
    """What the paper's table says of a data set, from the data set; depth is counted below the root."""
    h = data.hierarchy
    depths = np.unique(h.depths[h.leaf_nodes]).tolist()
    first = next(iter(data.splits.values()))
    features = isinstance(first, Features)
    shape = f"{first.num_features:,}" if features else f"{size} x {size}"
    counts = {split: f"{len(samples):,}" for split, samples in data.splits.items()}
    return {
        "train": counts.get("train", "-"),
        "test": counts.get("test", "-"),
        **{split: count for split, count in counts.items() if split not in ("train", "test")},
        "leaves": f"{h.num_leaves:,}",
        "nodes": f"{h.num_nodes:,}",
        "depth": " or ".join(map(str, depths)) if len(depths) < 3 else f"{depths[0]} to {depths[-1]}",
        "features" if features else "size": shape,
    }


def table_text(data: Dataset[Any], kind: DatasetKind) -> str:
    """The table, with the paper's figures beside those of the files where there are any, and footnotes."""
    found = figures(data, kind.size)
    rows = [(HEADINGS.get(key, f"{key} samples"), value, _printed(kind, key)) for key, value in found.items()]
    if kind.paper is not None:
        rows.insert(0, ("", "files", "paper"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [kind.title if kind.paper is not None else f"{data.name} ({kind.title})", ""]
    for name, here, paper in rows:
        mark = paper[len(paper.rstrip("*+")) :]  # marks stand outside the column
        bare = paper.removesuffix(mark)
        lines.append(f"  {name:<{widths[0]}}  {here:>{widths[1]}}  {bare:>{widths[2]}}{mark}".rstrip())
    lines += ["", *_details(data)]
    if kind.paper is not None and kind.paper.footnotes:
        lines += ["", *kind.paper.footnotes]
    return "\n".join(lines)


def _printed(kind: DatasetKind, key: str) -> str:
    return getattr(kind.paper, key, "") if kind.paper is not None else ""


def _details(data: Dataset[Any]) -> list[str]:
    h = data.hierarchy
    root = f"with the root {h.tops[0]!r}" if h.rooted else "without a root"
    widths = np.bincount(h.depths)[0 if h.rooted else 1 :]
    lines = [f"hierarchy: {h.kind} {root}, {' + '.join(map(str, widths.tolist()))} nodes by depth"]
    return lines + data.summary().splitlines()[1:]
