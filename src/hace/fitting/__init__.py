"""The one path from data to a model: `hace.fit`, `hace.load` and `Model`.

inputs      what is this data: a table of kinds, each with how it looks and how it is read
labels      labels as people have them, and the taxonomy that comes with them
tables      what the columns of a table are
encoding    photos and texts as features, by a frozen backbone
splits      which samples train, calibrate and test
choice      which loss: the simplest within one standard error of the best
evaluation  what test samples say
findings    what was found, as plain values, and the six lines that say it
model       `Model`: a classifier and its findings, in one file
pipeline    `fit`: every step, in order

It composes what the layers below compute.
"""

from hace.fitting.model import Model, load
from hace.fitting.pipeline import fit

__all__ = ["Model", "fit", "load"]
