"""Every option of the command line, the commands that have it and what each says about it: python tools/options.py [WORD ...]

A word means one thing in all commands, so the lines of an option should agree; `*` marks those that do not, word for word.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from hace.cli import COMMANDS
from hace.cli.entry import application


def options() -> dict[str, dict[str, list[str]]]:
    """The commands by option and by what they say about it."""
    table: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command in COMMANDS:
        app = application([command.name])[command.name]
        for argument in app.assemble_argument_collection(parse_docstring=True):
            if argument.show:
                text = " ".join((argument.parameter.help or "").split())
                table[argument.name][text].append(command.name)
    return table


def main(words: list[str]) -> None:
    """Print the table, or the rows of some options."""
    for name, texts in sorted(options().items()):
        if not words or name in words:
            for text, commands in texts.items():
                print(f"{'*' if len(texts) > 1 else ' '} {name:<20} {', '.join(commands):<40} {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
