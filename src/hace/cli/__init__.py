"""The `hace` command: one file per subcommand, with `add_arguments(parser)` and `run(args)`; `entry` lists them.

May import everything, inside functions where it is heavy; nothing imports it, and no command imports another.
"""

from __future__ import annotations

from hace.cli.entry import COMMANDS, main

__all__ = ["COMMANDS", "main"]
