"""Run the commands of a tutorial page in an empty folder and compare what they print with what the page shows.

    python -m tests.tutorial docs/tutorials/*.md            # run pages; exit code 1 where the output differs
    python -m tests.tutorial --write docs/tutorials/*.md    # put what the commands print into the pages

A block with a title is a file of that name. In a `console` block, lines that start with "$ " are commands, and what follows is
their output, in which "..." matches anything and a decimal number one within 2%, since processors round differently; progress,
on stderr, is not shown. An output that starts with "hace: " is an error message, and the command must fail. Python blocks
without a title run where they stand, in one namespace. Blocks of other languages are not run.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
SHELL = re.compile(r"[|&;<>$`]")
PART = re.compile(r"(\.\.\.)|([+-]?\d+\.\d+(?!\d|\.\.\.))|(\s+)")
NEAR = 0.02


class Step(NamedTuple):
    """One command and what the page shows below it; `start` and `end` are where that stands in the page."""

    command: str
    shown: str
    printed: str
    start: int
    end: int

    @property
    def agrees(self) -> bool:
        """Whether the page shows what the command prints."""
        return agree(self.shown, self.printed)


def agree(shown: str, printed: str) -> bool:
    """Whether an output is what a page shows, spaces aside.

    Example:
        >>> agree("top-1  0.712\\n...", "top-1 0.713\\nand more"), agree("+0.010", "-0.010"), agree("1.0 dog", "1.0 cat")
        (True, False, False)
    """
    pattern, numbers, last = "", [], 0
    for part in PART.finditer(shown.strip()):
        pattern += re.escape(shown.strip()[last : part.start()])
        if part[1]:
            pattern += ".*?"
        elif part[2]:
            pattern += r"([+-]?\d+\.\d+)"
            numbers.append(part[2])
        else:
            pattern += r"\s+"
        last = part.end()
    result = re.fullmatch(pattern + re.escape(shown.strip()[last:]), printed.strip(), re.DOTALL)
    return result is not None and all(
        abs(float(text) - float(number))
        <= NEAR * abs(float(number)) + 0.5 * 10.0 ** -len(number.partition(".")[2])
        for text, number in zip(result.groups(), numbers, strict=True)
    )


def steps(page: str, folder: Path) -> Iterator[Step]:
    """Write the files of a page and run its commands, from top to bottom.

    A page shows paths below its folder from there, since the folder has another name on each machine.
    """
    names: dict[str, object] = {}
    for block in BLOCK.finditer(page):
        language, title, body = block.groups()
        if title:
            path = folder / title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        elif language == "console":
            for result in COMMAND.finditer(body):
                fails = result[2].startswith("hace: ")
                printed = run(result[1].replace("\\\n", " "), folder, fails).replace(f"{folder}{os.sep}", "")
                yield Step(
                    result[1],
                    result[2],
                    printed,
                    block.start(3) + result.start(2),
                    block.start(3) + result.end(2),
                )
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(body, "page", "exec"), names)


def run(command: str, folder: Path, fails: bool) -> str:
    """What a command prints. `hace` and scripts run in this process, which spares them the import of torch."""
    words = shlex.split(command, comments=True)
    if words[0] in ("hace", "python") and "-m" not in words[:2] and not SHELL.search(command):
        words = [result for word in words for result in (sorted(glob.glob(word, root_dir=folder)) or [word])]
        code, out, err = in_process(words)
    else:
        variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    if (code != 0) != fails:
        raise AssertionError(f"$ {command}\nexit code {code}\n{out[-2000:]}{err[-2000:]}")
    return err if fails else out


def in_process(words: list[str]) -> tuple[int, str, str]:
    from hace.cli import main

    out, err, arguments = io.StringIO(), io.StringIO(), sys.argv
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            sys.argv = words[1:]
            code = (
                main(words[1:]) if words[0] == "hace" else runpy.run_path(words[1], run_name="__main__") and 0
            )
        except SystemExit as end:
            code = end.code
        finally:
            sys.argv = arguments
    return int(code or 0), out.getvalue(), err.getvalue()


def run_page(path: Path, write: bool = False, files: Sequence[Path] = ()) -> list[Step]:
    """The steps of a page whose output differs; with `write`, the page shows the new output afterwards.

    `files` are put into its folder first: real data that the page tells its reader to fetch.
    """
    page = path.read_text(encoding="utf-8")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for file in files:
            shutil.copy(file, folder)
        try:
            wrong = [step for step in steps(page, Path(folder)) if not step.agrees]
        finally:
            os.chdir(before)
    if write:
        for step in reversed(wrong):
            page = page[: step.start] + step.printed + page[step.end :]
        path.write_text(page, encoding="utf-8")
    return wrong


def main() -> int:
    """Run the pages given on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--file", action="append", type=Path, default=[], help="real data for the page")
    arguments = parser.parse_args()
    wrong = 0
    for path in arguments.pages:
        for step in run_page(path, arguments.write, arguments.file):
            wrong += 1
            print(
                f"{path}: $ {step.command}\n--- the page shows\n{step.shown}--- it prints\n{step.printed}",
                flush=True,
            )
    return 1 if wrong and not arguments.write else 0


if __name__ == "__main__":
    sys.exit(main())
