"""Linear probes on frozen features."""
