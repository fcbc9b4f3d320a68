"""End-to-end training of image models: `hace.train` is the way in.

train        check, set up, epochs, evaluation; `RunLog`: log, checkpoints and result on disk
loop         `Training`: all parts of a training in memory, and one step of it; `ProcessGroup`: several processes
"""
