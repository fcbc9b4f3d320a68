"""Experiments. Each part imports only those before it: features, models, runs, probe, probe_table,
train, study, serve, report.
"""
