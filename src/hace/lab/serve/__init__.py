"""Finished runs at work: predictions on new images, and scores of their own data again.

predictor   `Predictor`: answers for images and features; inputs, vision and predictions are its parts
rescoring   `rescored`: a run on its own data, with any evaluation
trained_model   the model of a finished training

Imports probe, train and all below; not reports.
"""
