"""Frozen features: run a timm model once over the images of a dataset and store the vectors for probes.

backbones   `load_backbone`: a frozen model with its preprocessing
extraction  `extract`: one pass over a dataset, into shards on disk; resumes to the same bytes
store       `FeatureStore`: the shards, checked against their manifest and normalised while reading
"""
