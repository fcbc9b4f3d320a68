"""Finished runs at work: predictions on new images, calibration, export, and scores of their own data again.

predictor        `Predictor`: answers for images and features, which `inputs` reads
run_calibration  `calibrate_run`: a temperature and thresholds that keep promises, from the samples a run held out
export           a run as one file, and that file opened
load_run         the model of a finished run; `rescored`: a run on its own data, with any evaluation
"""
