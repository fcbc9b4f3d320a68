"""A run: its configuration, its samples, its folder and its result.

config    what decides a run (`ProbeConfig`, `TrainConfig`), and so its id
samples   the data of a run, split for training and selection, with the labels that are known
run       the run directory: read, written by one process at a time, verified by hashes
result    from a model's outputs to metrics and predictions
process   where it computes, what people see, how it stops early
"""
