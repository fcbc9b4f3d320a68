"""What experiments need. Each folder imports only those before it: features, runs, probe, train, study, serve, report."""
