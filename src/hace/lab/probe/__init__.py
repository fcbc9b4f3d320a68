"""Linear probes on frozen features: many heads in one pass, each a run directory.

Imports nothing of `hace.lab` but `features` and `runs`.
"""

from __future__ import annotations

from hace.lab.probe.probe import ProbePass, Scaling, run_probes

__all__ = ["ProbePass", "Scaling", "run_probes"]
