"""A run: its configuration, its samples, its folder and its result."""
