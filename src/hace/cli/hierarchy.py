"""`hace hierarchy`: summarise, convert or draw a hierarchy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hace.cli.options import reader_options
from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy

DESCRIPTION = """\
Summarise a hierarchy: nodes, leaves, depths, widths, and anything unusual. With --to or --plot, write it in another
format or draw it. An existing output file is replaced in one step, at the end.
"""

EXAMPLES = """\
examples:
  hace hierarchy cifar100                            the built-in taxonomy of CIFAR-100
  hace hierarchy taxonomy.csv                        a file; its format follows from its name and content
  hace hierarchy taxa.csv -o columns=order,family,species     a table with a column for each level, top first
  hace hierarchy pairs.txt -o order=child-parent     one edge per line, the child first
  hace hierarchy NABirds/                            the folder of a data set, or a tree of image folders
  hace hierarchy taxonomy.csv --to json tree.json    convert; "-" as output writes to the terminal
  hace hierarchy tree.json --plot tree.html          draw: .html (interactive), .svg or .png
  hace hierarchy cl.obo -o prefix=CL: -o isolated=drop     options of the reader, as in hace.read_hierarchy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a file, a folder, or the built-in name cifar100")
    parser.add_argument("--format", metavar="FORMAT", help="the format of FILE, if its name does not tell")
    parser.add_argument(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help='an option of the reader; VALUE is text, true, false, or a list as a,b,c or JSON ("-o" may repeat)',
    )
    parser.add_argument(
        "--root",
        action=argparse.BooleanOptionalAction,
        help="add a root above the tops, or remove it (default: as in the file or the data set)",
    )
    parser.add_argument(
        "--to", nargs=2, metavar=("FORMAT", "OUT"), help='write it as FORMAT to OUT ("-": print it)'
    )
    parser.add_argument("--plot", metavar="OUT", help="draw it to OUT: .png, .svg or .html")


def run(args: argparse.Namespace) -> None:
    """Read, then write, draw or summarise."""
    from hace.formats import read_hierarchy

    if args.plot is not None:
        check_plot(args.plot)  # before anything is read or written
    hierarchy = read_hierarchy(args.file, args.format, root=args.root, **reader_options(args.option))
    if args.to is not None:
        write(hierarchy, *args.to, source=args.file)
    if args.plot is not None:
        plot(hierarchy, args.plot, source=args.file)
    if args.to is None and args.plot is None:
        print(hierarchy.summary())


def write(hierarchy: Hierarchy, format: str, out: str, source: str) -> None:
    """Write a hierarchy to a file, or print it where `out` is "-"."""
    from hace.formats import render_hierarchy, write_hierarchy

    if out == "-":
        print(render_hierarchy(hierarchy, format), end="")
        return
    _refuse_source(out, source)
    write_hierarchy(hierarchy, out, format)
    print(f"wrote {out}")


def check_plot(out: str) -> None:
    """Refuse a picture of an unknown kind."""
    from hace.draw import DRAWERS

    if Path(out).suffix.lower() not in DRAWERS:
        raise ConfigError(f"--plot must name a file that ends in one of {', '.join(DRAWERS)}. Got {out!r}.")


def plot(hierarchy: Hierarchy, out: str, source: str) -> None:
    """Draw a hierarchy to a file."""
    from hace.draw import draw_hierarchy

    _refuse_source(out, source)
    draw_hierarchy(hierarchy, out)
    print(f"wrote {out}")


def _refuse_source(out: str, source: str) -> None:
    if Path(out).exists() and Path(source).exists() and Path(out).samefile(source):
        raise ConfigError(f"The output {out} is the input itself. Write to another file.")
