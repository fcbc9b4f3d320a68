"""Studies: a grid of runs, scheduled on this machine or a cluster."""
