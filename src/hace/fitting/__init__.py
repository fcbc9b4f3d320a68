"""The one path from data to a model: `hace.fit`, `hace.load` and `Model`.

inputs      what is this data: a table of kinds, each with how it looks and how it is read
labels      labels as people have them, and the taxonomy that comes with them
tables      what the columns of a table are
encoding    photos and texts as features, by a frozen backbone
splits      which samples train, calibrate and test
choice      which loss: the simplest within one standard error of the best
training    the classifier of a choice, trained and calibrated
evaluation  how answers turn out on samples whose truth is known
newness     what happens to classes that a model has never seen
examples    a dozen test samples with their answers
verdict     what samples that trained nothing say: the findings of a fit
recalibration  the findings once the model was calibrated again
findings    what was found, as plain values, and the six lines that say it
page        the findings as a page
card        the findings as a model card
model       `Model`: a classifier and its findings, in one file
progress    one line that says what a fit is doing
pipeline    `fit`: every step, in order

It composes what the layers below compute.
"""
