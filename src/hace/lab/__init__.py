"""Experiments. Each part imports only those before it: features, models, runs, probe, train, study, serve, report."""
