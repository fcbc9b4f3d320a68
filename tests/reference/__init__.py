"""Slow oracles, written from the papers as loops over dicts node -> value.

No order of nodes or labels is assumed anywhere: everything is keyed by id, and where a tie needs an order
the caller gives one. The modules: `structure`, `targets`, `losses`, `precise` (mpmath), `decisions`,
`metrics`. Each docstring states the convention it follows.
"""

from . import decisions, losses, metrics, precise, structure, targets

__all__ = ["decisions", "losses", "metrics", "precise", "structure", "targets"]
