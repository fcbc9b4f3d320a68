"""`hace hierarchy`: summarise, convert or draw a hierarchy."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hace.atomic import atomic_path
from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy

DESCRIPTION = """\
Summarise a hierarchy: nodes, leaves, depths, widths, and what is unusual about it. With --to or --plot, write it in
another format or draw it instead. An existing output file is replaced, in one step at the very end.
"""

EXAMPLES = """\
examples:
  hace hierarchy cifar100                            the built-in taxonomy of CIFAR-100
  hace hierarchy taxonomy.csv                        a file; its format follows from its name and content
  hace hierarchy NABirds/                            the folder of a data set, or a tree of image folders
  hace hierarchy taxonomy.csv --to json tree.json    convert; "-" as output writes to the terminal
  hace hierarchy tree.json --plot tree.html          draw: .html (interactive), .svg or .png
"""

PLOT_SUFFIXES = (".png", ".svg", ".html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a file, a folder, or the built-in name cifar100")
    parser.add_argument("--format", metavar="FORMAT", help="how to read FILE, where its name does not tell")
    parser.add_argument(
        "--root",
        action=argparse.BooleanOptionalAction,
        help="have a single root above the tops, or none (default: as in the file)",
    )
    parser.add_argument(
        "--to", nargs=2, metavar=("FORMAT", "OUT"), help='write it as FORMAT to OUT ("-": print it)'
    )
    parser.add_argument("--plot", metavar="OUT", help="draw it to OUT: .png, .svg or .html")


def run(args: argparse.Namespace) -> None:
    """Read, then write, draw or summarise."""
    hierarchy = read(args.file, args.format, args.root)
    if args.to:
        write(hierarchy, *args.to, source=args.file)
    if args.plot:
        plot(hierarchy, args.plot, source=args.file)
    if not (args.to or args.plot):
        print(hierarchy.summary())


def read(file: str, format: str | None = None, root: bool | None = None) -> Hierarchy:
    """Read a hierarchy, and give it a root or take it away if asked to.

    Args:
        file: What `hace.read_hierarchy` reads.
        format: Its format, None to tell from the name.
        root: True for a root, False for none, None for what the file holds.

    Returns:
        The hierarchy.
    """
    from hace.formats import read_hierarchy

    hierarchy = read_hierarchy(file, format)
    if root is None or root == hierarchy.rooted:
        return hierarchy
    return hierarchy.with_root() if root else hierarchy.without_root()


def write(hierarchy: Hierarchy, format: str, out: str, source: str) -> None:
    """Write a hierarchy to a file, or print it where `out` is "-"."""
    from hace.formats import write_hierarchy

    if out == "-":
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / "out"
            write_hierarchy(hierarchy, temporary, format)
            with temporary.open(encoding="utf-8") as text:
                shutil.copyfileobj(text, sys.stdout)
        return
    _refuse_source(out, source)
    with atomic_path(out) as temporary:
        write_hierarchy(hierarchy, temporary, format)
    print(f"wrote {out}")


def plot(hierarchy: Hierarchy, out: str, source: str) -> None:
    """Draw a hierarchy to a file."""
    if Path(out).suffix.lower() not in PLOT_SUFFIXES:
        raise ConfigError(f"--plot draws to a file named .png, .svg or .html, got {out!r}.")
    _refuse_source(out, source)
    from hace.plots import draw_hierarchy

    with atomic_path(out) as temporary:
        draw_hierarchy(hierarchy, temporary)
    print(f"wrote {out}")


def _refuse_source(out: str, source: str) -> None:
    if Path(out).exists() and Path(source).exists() and Path(out).samefile(source):
        raise ConfigError(f"The output {out} is the input itself. Write to another file.")
