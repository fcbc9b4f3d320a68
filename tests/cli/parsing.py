"""What a command gets from a line of options."""

from __future__ import annotations

import shlex
from typing import Any

from hace.cli.entry import application


def given_to(name: str, line: str, *, fields: bool = False) -> dict[str, Any]:
    """The arguments of the function of a command; of `hace study` also the fields of its study."""
    app = application([name])
    _, bound, _ = app.parse_args([name, *shlex.split(line)], print_error=False, exit_on_error=False)
    values = dict(bound.arguments)
    if fields:
        from hace.cli.study import study_fields

        bound.apply_defaults()
        return study_fields(*(bound.arguments[name] for name in ("preset", "choices", "option", "groups")))
    return values
