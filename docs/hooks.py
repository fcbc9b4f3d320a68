"""Docstrings name things as :meth:`path`, which editors and `help()` readers know; on a page the name alone is enough."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod|obj):(?=<code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Take the roles out of a rendered page."""
    return ROLE.sub("", html)
