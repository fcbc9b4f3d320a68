"""The page of `hace check`: can the guarantee be trusted here?"""

from __future__ import annotations

from pathlib import Path

from hace.decisions.check import Check
from hace.draw import templates
from hace.files.writing import write_whole

_GROUPS = 12  # the most unlike are shown


def write_check(result: Check, path: str | Path) -> None:
    """Write a check as one page.

    Args:
        result: Of :func:`hace.check`.
        path: Of the page.
    """
    groups = sorted(result.comparison.unlike_groups.items(), key=lambda pair: -pair[1])[:_GROUPS]
    page = templates("hace.lab.report").get_template("check.html").render(result=result, groups=groups)
    write_whole(Path(path), page.encode())
