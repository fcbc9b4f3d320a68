"""Frozen features: run a timm model once over the images of a data set and store the vectors for probes.

    load_backbone   a frozen model with its preprocessing
    extract         one pass over a data set, into shards on disk; resumes to the same bytes
    FeatureStore    the shards, checked against their manifest and normalised while reading

Imports `data` and what is below it. Knows nothing of runs.
"""

from __future__ import annotations

from hace.lab.features.backbones import Backbone, load_backbone
from hace.lab.features.extraction import extract
from hace.lab.features.store import FeatureStore

__all__ = ["Backbone", "FeatureStore", "extract", "load_backbone"]
