"""The `hace` command: one file per subcommand, with `add_arguments(parser)` and `run(args)`; `entry` lists them."""

from __future__ import annotations

from hace.cli.entry import COMMANDS, main

__all__ = ["COMMANDS", "main"]
