"""Experiments. Each part imports only those before it: features, models, runs, probe, train, study, serve, report.

Imports all other folders but `paper` and `cli`.
"""
