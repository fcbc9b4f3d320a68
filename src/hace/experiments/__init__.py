"""Experiments: frozen backbones and the features they give."""
