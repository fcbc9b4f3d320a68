"""The `hace` command: one file per subcommand, with a typed function of its name; `entry` lists them.

May import everything, inside functions where it is heavy; nothing imports it, and no command imports another.
"""

from __future__ import annotations

from hace.cli.entry import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]
