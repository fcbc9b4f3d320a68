"""Finished runs at work: predictions on new images, scores of other samples."""
