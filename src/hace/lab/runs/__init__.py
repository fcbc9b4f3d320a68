"""A run: its configuration, its samples, its folder and its result.

config, train_config    what decides a run (`ProbeConfig`, `TrainConfig`), and so its id
settings, config_files  how configurations are declared, checked, read and overridden
samples                 the data of a run, split for training and selection
run, writer, integrity  the run directory: read, written by one process at a time, verified by hashes
result                  from a model's outputs to metrics and predictions
devices, progress, stopping   where it computes, what people see, how it stops early

Imports hierarchies, losses, metrics, data, features and models; not how runs are made (probe, train) or used.
"""
