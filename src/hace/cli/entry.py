"""The `hace` command: it finds the subcommand, runs it and turns errors into a message and an exit code.

Neither this module nor the subcommands' import torch at their top: `hace --help` answers at once, and whatever takes
time, imports included, runs inside `main`, where Ctrl-C is heard.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from hace import __version__
from hace.errors import HaceError

DESCRIPTION = """\
Cross-entropy that knows your taxonomy: hierarchies, losses, decisions and metrics.
"""

EPILOG = """\
examples:
  hace hierarchy cifar100                        look at a taxonomy
  hace hierarchy taxonomy.csv --plot tree.html   draw your own
  hace evaluate --hierarchy taxonomy.csv --scores logits.npy --labels y.npy
                                                 all metrics of any model
  hace COMMAND --help                            what a command does, with examples

exit codes: 0 done, 1 a training diverged, 2 something in the input or the options does not fit, 130 stopped by Ctrl-C,
143 by SIGTERM
"""


class Command(NamedTuple):
    """A subcommand: its name, one line about it, and the module with DESCRIPTION, EXAMPLES, add_arguments and run."""

    name: str
    help: str
    module: str


# To add a command, add a line.
COMMANDS = (
    Command("hierarchy", "summarise, convert or draw a hierarchy", "hace.cli.hierarchy"),
    Command("data", "look at a data set, fetch it, check it", "hace.cli.data"),
    Command("features", "compute the features of a frozen model", "hace.cli.features"),
    Command("probe", "train linear probes on features", "hace.cli.probe"),
    Command("train", "train a model end to end on images", "hace.cli.train"),
    Command("study", "run a whole comparison, anywhere", "hace.cli.study"),
    Command("report", "tables, figures and a page of a study", "hace.cli.report"),
    Command("predict", "answers of a finished run on new images", "hace.cli.predict"),
    Command("evaluate", "all metrics of any model's scores", "hace.cli.evaluate"),
    Command("demo", "a study of made-up features, in two minutes", "hace.cli.demo"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        The exit code: 0 done, 2 a `HaceError` or a file that cannot be reached (the message on stderr), 130 stopped by
        Ctrl-C.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        parser = build_parser()
        if not argv:
            parser.print_help(sys.stderr)
            return 2
        args = parser.parse_args(argv)
        args.run(args)
        sys.stdout.flush()  # a closed pipe shows here, not when the interpreter shuts down
    except HaceError as error:
        print(f"hace: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return interrupted()
    except BrokenPipeError:
        # The reader has seen enough (`hace ... | head`). Python would complain again at exit, hence the empty stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.filename is None:
            raise
        print(f"hace: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        if not from_ctrl_c(error):
            raise
        return interrupted()
    return 0


def interrupted() -> int:
    """Say that Ctrl-C was heard; the exit code of it."""
    print("Interrupted.", file=sys.stderr)
    return 130


def from_ctrl_c(error: BaseException | None) -> bool:
    """Whether Ctrl-C lies behind an error: compiled modules that it stops while they load raise one of their own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command and of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="hace",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hace {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        module = importlib.import_module(command.module)
        subparser = subparsers.add_parser(
            command.name,
            help=command.help,
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser
