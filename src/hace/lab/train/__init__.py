"""End-to-end training of image models: `run_train` in `train` is the way in.

train      check, set up, epochs, evaluation
loop       one step, in memory; batches, mixing, optimizers and distributed are its parts
state      what changes between steps, and its checkpoints
journal    what a training writes while it runs
learning_curves   its log, drawn

Imports runs and all below; not studies, predictions or reports.
"""
