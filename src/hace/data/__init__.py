"""Data sets: official ones, your own, and a synthetic one, all as a `Dataset` of splits.

A data set is a hierarchy, and for each split the labels (nodes at any level) with images (`Samples`) or frozen features
(`Features`).
"""

from __future__ import annotations

from hace.data.dataset import Dataset
from hace.data.samples import Features, Samples

__all__ = ["Dataset", "Features", "Samples"]
