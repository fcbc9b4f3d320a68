"""The `hace` command: finds the subcommand, runs it, and turns errors into one message and an exit code.

Only the module of the command that was asked for is imported: `hace --help` answers at once, and whatever takes time, imports
included, runs inside `main`, where Ctrl-C is caught.
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

from cyclopts import App, CycloptsError, Group

from hace import __version__
from hace.cli.engine import build_app, in_one_line
from hace.errors import ConfigError, DataWarning, HaceError, nearest, printable, shorten
from hace.files.reading import out_of_memory, reason

DESCRIPTION = """\
Cross-entropy that knows your taxonomy: hierarchies, losses, decisions and metrics.

Examples
  hace fit photos                                a model of your photos, table, texts, features or cells
  hace predict photos.hace new-photos --accuracy 0.95
  hace hierarchy cifar100                        look at a taxonomy
  hace hierarchy taxonomy.csv --plot tree.html   draw your own
  hace evaluate --hierarchy taxonomy.csv --scores logits.npy --labels y.npy
                                                 every metric for any model
  hace COMMAND --help                            what a command does, with examples
  hace COMMAND --help-all                        the same with every option

Exit codes: 0 success, 1 training diverged or a run failed, 2 bad input or options, disk full or out of memory, 70 a bug in
hace, 130 stopped by Ctrl-C, 143 by SIGTERM.

HACE_MAX_MEMORY=4G raises the limit of 1 GiB on the memory of an input file; HACE_TRACEBACK=1 shows the traceback of a bug.
"""


MAKE, USE, COMPARE, PARTS = (
    Group(name, sort_key=place) for place, name in enumerate(("Make a model", "Use it", "Compare", "Parts"))
)


class Command(NamedTuple):
    """A subcommand: the function of the same name in the module of that name, whose docstring is its help."""

    name: str
    group: Group
    help: str  # in one line
    memory: str  # what to lower when memory runs out

    def load(self) -> Callable[..., None]:
        """Its function."""
        return getattr(importlib.import_module(f"hace.cli.{self.name}"), self.name)


# To add a command, add a line.
COMMANDS = (
    Command(
        "fit",
        MAKE,
        "fit a calibrated model to your data",
        "HACE_MAX_MEMORY, or the number of samples",
    ),
    Command("train", MAKE, "train a model end to end on images", "--batch-size or --workers"),
    Command(
        "predict",
        USE,
        "answer for new photos, texts or tables, with a guarantee",
        "--batch-size or --workers",
    ),
    Command(
        "serve", USE, "try a model in the browser, or use it as an API", "--device, or the size of the model"
    ),
    Command("next", USE, "choose which samples to label next", "--batch-size, or the size of the pool"),
    Command("evaluate", USE, "compute every metric for any model's scores", "the rows per file"),
    Command("export", USE, "write a finished run as one file", "the size of the model"),
    Command(
        "study",
        COMPARE,
        "run a whole comparison, on a laptop or a cluster",
        "--workers, or --set batch_size=N",
    ),
    Command("demo", COMPARE, "fit a model to drawn photos, in two minutes", "--out"),
    Command("hierarchy", PARTS, "summarise, convert or draw a hierarchy", "the number of nodes"),
    Command("data", PARTS, "describe, download or check a dataset", "the size of the dataset"),
    Command(
        "consensus", PARTS, "combine several opinions at mixed ranks into one answer", "the number of votes"
    ),
    Command("features", PARTS, "compute the features of a frozen model", "--batch-size or --workers"),
    Command(
        "probe", PARTS, "train linear probes on features", "--batch-size, or fewer --lr and --loss at once"
    ),
    Command(
        "calibrate", PARTS, "calibrate confidence, with thresholds that keep a guarantee", "the rows per file"
    ),
    Command("check", PARTS, "check whether a guarantee holds on new samples", "the rows per file"),
    Command(
        "unseen",
        PARTS,
        "see what a model says about classes it has never seen",
        "--epochs, or fewer --methods",
    ),
    Command("report", PARTS, "write the report of a study: a page, tables, figures", "the number of studies"),
)


def application(argv: Sequence[str], commands: Sequence[Command] | None = None) -> App:
    """The application, with the command that was asked for loaded; the others only have their line in --help."""
    commands = COMMANDS if commands is None else commands
    app = build_app("hace", DESCRIPTION, list(argv), version=f"hace {__version__}")
    for place, command in enumerate(commands):
        about: dict[str, Any] = {"name": command.name, "group": command.group, "sort_key": place}
        if argv and argv[0] == command.name:
            app.command(command.load(), **about)
        else:
            app.command(App(help=command.help, **about))
    return app


def parsed(argv: Sequence[str], commands: Sequence[Command] | None = None) -> Callable[[], Any]:
    """What the words of a command line ask for, ready to be called.

    Raises:
        ConfigError: The options are wrong.
    """
    name = f"hace {argv[0]}" if argv else "hace"
    app = application(argv, commands)
    try:
        function, bound, _ = app.parse_args(list(argv), print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise ConfigError(in_one_line(error, name)) from None
    return lambda: function(*bound.args, **bound.kwargs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code, as DESCRIPTION explains them. All messages go to stderr."""
    argv = sys.argv[1:] if argv is None else argv
    memory = ""
    try:
        if not argv:
            application(argv).help_print([], console=_error_console())
            return 2
        command = next((command for command in COMMANDS if command.name == argv[0]), None)
        if command is None and not argv[0].startswith("-"):
            raise ConfigError(_unknown_command(argv[0]))
        memory = "" if command is None else command.memory
        with warnings.catch_warnings():
            warnings.simplefilter("default", DataWarning)
            warnings.showwarning = _shown(warnings.showwarning)
            parsed(argv)()
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
    """How warnings are shown: those about data as lines of the command."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, DataWarning):
            print(f"hace: warning: {printable(str(message))}", file=sys.stderr)
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


def _error_console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def _unknown_command(word: str) -> str:
    names = [command.name for command in COMMANDS]
    likely = nearest(word, names) or f" Known: {', '.join(names)}."
    return f"{word!r} is not a command.{likely} hace --help describes them."
