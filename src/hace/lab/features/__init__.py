"""Frozen backbones and the features they compute, stored on disk."""
