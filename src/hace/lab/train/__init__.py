"""End-to-end training of image models: `hace.train` (`run_train` in `train`) is the way in.

train        check, set up, epochs, evaluation
loop         `Training`: all parts of a training in memory, and one step of it
run_log      `RunLog`: its log, checkpoints and result on disk
distributed  `ProcessGroup`: one training by several processes
learning_curves   its log, drawn

Imports runs and all below; not studies, predictions or reports.
"""
