"""The `hace` command: finds the subcommand, runs it, and turns errors into one message and an exit code.

Neither this module nor those of the subcommands import torch at the top: `hace --help` answers at once, and whatever takes
time, imports included, runs inside `main`, where Ctrl-C is caught.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hace import __version__
from hace.cli.options import ConfigParser, Parser
from hace.errors import ConfigError, GroupWarning, HaceError, nearest, printable, shorten
from hace.files.reading import out_of_memory, reason

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

exit codes: 0 success, 1 a training diverged or a run failed, 2 bad input or options, disk full or out of memory,
70 a bug in hace, 130 stopped by Ctrl-C, 143 by SIGTERM

HACE_MAX_MEMORY=4G raises the limit of 1 GiB on the memory of an input file; HACE_TRACEBACK=1 shows the traceback of a bug.
"""


class Command(NamedTuple):
    """A subcommand; its module has a docstring, which is its help, `add_arguments`, `run`, and PARSER if not `Parser`."""

    name: str
    help: str  # in one line
    memory: str  # what to lower when memory runs out
    module: str = ""

    def load(self) -> Any:
        """Its module."""
        return importlib.import_module(self.module or f"hace.cli.{self.name}")

    def parser(self) -> Parser | ConfigParser:
        """The parser of its options."""
        module = self.load()
        make = getattr(module, "PARSER", Parser)
        description, _, examples = (module.__doc__ or "").partition("\nExamples:")
        parser = make(prog=f"hace {self.name}", description=description, epilog=f"examples:{examples}")
        module.add_arguments(parser)
        return parser


# To add a command, add a line.
COMMANDS = (
    Command("hierarchy", "summarise, convert or draw a hierarchy", "the number of nodes"),
    Command("data", "describe, download or check a dataset", "the size of the dataset"),
    Command("features", "compute the features of a frozen model", "--batch-size or --workers"),
    Command("probe", "train linear probes on features", "--batch-size, or fewer --lr and --loss at once"),
    Command("train", "train a model end to end on images", "--batch-size or --workers"),
    Command("study", "run a whole comparison, on a laptop or a cluster", "--workers, or --set batch_size=N"),
    Command(
        "unseen", "what does a model say about classes it has never seen?", "--epochs, or fewer --methods"
    ),
    Command("report", "write the report of a study: a page, tables, figures", "the number of studies"),
    Command("export", "write a finished run as one file", "the size of the model"),
    Command("calibrate", "calibrate confidence, with thresholds that keep a guarantee", "the rows per file"),
    Command("predict", "classify new images with a finished run", "--batch-size or --workers"),
    Command("serve", "try a model in the browser, or use it as an API", "--device, or the size of the model"),
    Command("evaluate", "compute all metrics for any model's scores", "--replicates, or the rows per file"),
    Command("demo", "does the hierarchy help? a study in two minutes", "--workers"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code, as EPILOG explains them. All messages go to stderr."""
    argv = sys.argv[1:] if argv is None else argv
    memory = ""
    try:
        command = next((command for command in COMMANDS if argv and command.name == argv[0]), None)
        if command is None:
            return without_command(argv)
        memory = command.memory
        args = command.parser().parse_args(argv[1:])
        if getattr(args, "out", None) == "":
            raise ConfigError("--out must be a path. Got ''.")
        with warnings.catch_warnings():
            warnings.simplefilter("default", GroupWarning)
            warnings.showwarning = _shown(warnings.showwarning)
            command.load().run(args)
        sys.stdout.flush()  # a closed pipe shows here, not when the interpreter shuts down
    except BrokenPipeError:
        # The reader has seen enough (`hace ... | head`). Without the empty stdout Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KeyboardInterrupt, Exception) as error:
        if from_ctrl_c(error):
            print("Interrupted.", file=sys.stderr)
            return 128 + getattr(error, "number", 2)  # of the signal; a plain KeyboardInterrupt is SIGINT's
        code, message = explained(error, memory)
        if code == 70 and os.environ.get("HACE_TRACEBACK"):
            raise
        lines = "\n".join(printable(line) for line in message.split("\n"))
        print(f"hace: {lines}", file=sys.stderr)
        return code
    return 0


def _shown(others: Callable[..., None]) -> Callable[..., None]:
    """How warnings are shown: those about groups as lines of the command."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, GroupWarning):
            print(f"hace: {printable(str(message))}", file=sys.stderr)
        else:
            others(message, category, *where, **more)

    return show


def explained(error: BaseException, memory: str) -> tuple[int, str]:
    """The exit code and the message of an error."""
    if isinstance(error, HaceError):
        return 2, str(error)
    if out_of_memory(error):
        words = shorten(str(error).strip().split("\n")[0].rstrip("."), 200)
        what = f"Out of memory: {words}" if words else "Out of memory"
        return 2, f"{what}. Lower {memory}, or use a machine with more memory."
    if isinstance(error, OSError):
        return 2, ": ".join(str(part) for part in (error.filename, reason(error)) if part)
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in reversed(frames) if "hace" in Path(f.filename).parts), frames[-1])
    return 70, (
        f"Unexpected {type(error).__name__} in {frame.filename}, line {frame.lineno}: {shorten(str(error), 500)}\n"
        "This is a bug in hace, not in your files. To report it, run the command again with HACE_TRACEBACK=1."
    )


def from_ctrl_c(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: compiled modules that it stops while they load raise another one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def without_command(argv: Sequence[str]) -> int:
    """Answer --help, --version, no words at all, or words that begin with none of the commands."""
    parser = Parser(prog="hace", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"hace {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        subparsers.add_parser(command.name, help=command.help)
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    if not argv[0].startswith("-"):
        names = [command.name for command in COMMANDS]
        likely = nearest(argv[0], names) or f" Known: {', '.join(names)}."
        raise ConfigError(f"{argv[0]!r} is not a command.{likely} hace --help describes them.")
    parser.parse_args(argv)
    return 0
