"""Datasets: published ones, your own, and synthetic ones, all as a `Dataset` of splits.

A dataset is a hierarchy and, for each split, labels (nodes at any level) with images (`Samples`) or frozen features
(`Features`). `DATASETS` lists them all; a new one is a function that returns a `Dataset`, and an entry there.
"""

from __future__ import annotations

from hace.data.catalog import DATASETS, load_dataset
from hace.data.creatures import creature_hierarchy, creatures, write_creatures
from hace.data.dataset import Dataset
from hace.data.split import Features, Samples
from hace.data.synthetic import synthetic_features, synthetic_hierarchy, synthetic_images

__all__ = [
    "DATASETS",
    "Dataset",
    "Features",
    "Samples",
    "creature_hierarchy",
    "creatures",
    "load_dataset",
    "synthetic_features",
    "synthetic_hierarchy",
    "synthetic_images",
    "write_creatures",
]
