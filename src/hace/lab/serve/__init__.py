"""Finished runs at work: predictions on new images, calibration, export, and scores of their own data again.

predictor        `Predictor`: answers for images and features, which `inputs` reads
export           a run as one file, and that file opened
load_run         the model of a finished run
rescore          a run on its own data again, or on others, with any evaluation
calibrate_run    the calibration of a run
"""
