"""hace: cross-entropy that knows your taxonomy."""

__version__ = "0.1.0.dev0"
