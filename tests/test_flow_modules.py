"""The tool that counts the modules each flow goes through."""

from __future__ import annotations

import pytest

from tools.flow_modules import in_own_process


@pytest.mark.slow
def test_a_probe_needs_neither_studies_nor_reports() -> None:
    flow = in_own_process("probe")
    assert {"cli/probe.py", "lab/probe.py", "lab/probe_table.py", "linear/fit.py"} <= set(flow["visited"])
    assert not [name for name in flow["imported"] if name.startswith(("hace.lab.study", "hace.lab.report"))]
