"""Summarise a hierarchy: nodes, leaves, depths, widths, and anything unusual. With --out, --to or --plot, write it in another
format or draw it. An existing output file is replaced in one step, at the end.

With --induce, the hierarchy is made from the training samples of a file of features: classes whose mean vectors are close
are grouped. FILE, if given, then names the classes, and the command reports how well the two trees agree.

With --classes and --within, the hierarchy is the part of a taxonomy above your class names. Ids, names and synonyms match,
whatever their case, blanks, authorship and Unicode form. --matches writes a table of the matches where some name has none or
several; correct its column id ("-" leaves a class out) and run the same command again.

Examples:
  hace hierarchy cifar100                            the built-in taxonomy of CIFAR-100
  hace hierarchy taxonomy.csv                        a file; its format follows from its name and content
  hace hierarchy taxa.csv -o columns=order,family,species     a table with a column for each level, top first
  hace hierarchy pairs.txt -o order=child-parent     one edge per line, the child first
  hace hierarchy NABirds/                            the folder of a dataset, or a tree of image folders
  hace hierarchy taxonomy.csv --to json tree.json    convert; "-" as output writes to the terminal
  hace hierarchy tree.json --plot tree.html          draw: .html (interactive), .svg or .png
  hace hierarchy --induce features.npz --levels 2 --out taxonomy.csv     no taxonomy? make one from features
  hace hierarchy birds.csv --induce features.npz     the same over the classes of birds.csv, compared with it
  hace hierarchy --classes names.txt --within taxdump.zip --matches m.csv --out mine.csv     names to a hierarchy
  hace hierarchy --classes names.txt --within cl.obo --below cell --collapse --out mine.csv
  hace hierarchy cl.obo -o prefix=CL: -o isolated=drop     options of the reader, as in hace.read_hierarchy
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hace.cli.options import Parser, add_option, reader_options
from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("file", "FILE", "a file, a folder, or the built-in name cifar100", nargs="?")
    add("--format", "FORMAT", "the format of FILE, if its name does not say")
    add_option(parser, "the reader; VALUE is text, true, false, or a list as a,b,c or JSON")
    about = "add a root above the tops, or remove it (default: as in the file or the dataset)"
    parser.flag("--root", about, either=True)
    about = 'write it as FORMAT to OUT ("-": print it)'
    parser.add_argument("--to", nargs=2, metavar=("FORMAT", "OUT"), help=about)
    add("--out", "OUT", "write it to OUT, in the format of its suffix")
    add("--plot", "OUT", "draw it to OUT: .png, .svg or .html")
    about = "make the hierarchy from the training samples of features (.npz, .safetensors or .parquet)"
    add("--induce", "FEATURES", about)
    add("--levels", "K", "with --induce: levels of groups above the classes (default: 2)", type=int)
    add("--classes", "NAMES", "a file with one class name per line, or names with commas, for --within")
    about = "make the hierarchy of --classes within this taxonomy; -o and --format are of its reader"
    add("--within", "TAXONOMY", about)
    add("--matches", "CSV", "with --within: a table of matches to correct and to read back")
    add("--below", "NODE", "with --within: leave out what is above this node")
    add("--ranks", "A,B", "with --within: keep inner nodes of these ranks only")
    parser.flag("--collapse", "with --within: leave out inner nodes with a single child")


def run(args: argparse.Namespace) -> None:
    """Read or induce, then write, draw or summarise."""
    if args.plot is not None:
        from hace.draw import DRAWN

        if Path(args.plot).suffix.lower() not in DRAWN:
            raise ConfigError(f"--plot must end in one of {', '.join(DRAWN)}. Got {args.plot!r}.")
    if args.levels is not None and args.induce is None:
        raise ConfigError("--levels must come with --induce FEATURES. Got --levels alone.")
    if (args.classes is None) != (args.within is None) or (args.within and (args.file or args.induce)):
        raise ConfigError("--classes and --within must come together, without FILE and --induce.")
    if args.within is None and (args.matches or args.below or args.ranks or args.collapse):
        raise ConfigError("--matches, --below, --ranks and --collapse must come with --within TAXONOMY.")
    options = reader_options(args.option)
    if args.within is not None:
        hierarchy, source = _within(args, options), args.within
    elif args.induce is None:
        hierarchy, source = _read(args, options), args.file
    else:
        hierarchy, source = _induced(args, options), args.induce
    if args.to is not None:
        write(hierarchy, *args.to, source=source)
    if args.out is not None:
        write(hierarchy, None, args.out, source=source)
    if args.plot is not None:
        plot(hierarchy, args.plot, source=source)
    if args.to is None and args.out is None and args.plot is None:
        print(hierarchy.summary())


def _read(args: argparse.Namespace, options: dict[str, Any]) -> Hierarchy:
    """The hierarchy of a file."""
    from hace.formats import read_hierarchy

    if args.file is None:
        raise ConfigError("hace hierarchy must have a FILE, or --induce FEATURES. Got neither.")
    return read_hierarchy(args.file, args.format, root=args.root, **options)


def _within(args: argparse.Namespace, options: dict[str, Any]) -> Hierarchy:
    """The part of a taxonomy above some classes; the table of matches is read, and written where it is not complete."""
    from hace.formats import read_hierarchy
    from hace.formats.score_files import read_list, read_matches, write_matches

    names, table = read_list(args.classes), None if args.matches is None else Path(args.matches)
    taxonomy = read_hierarchy(args.within, args.format, root=args.root, **options)
    corrections = read_matches(table) if table is not None and table.exists() else {}
    found = [m for m in taxonomy.match(names) if m.name not in corrections]
    counts = Counter(m.how for m in found)
    counts["corrected"] = len(corrections)
    if table is not None and (not corrections or any(m.id is None for m in found)):
        write_matches(table, found, corrections)
    print(f"{len(names):,} names: " + ", ".join(f"{count:,} by {how}" if how in ("id", "name", "synonym", "spelling") else
          f"{count:,} {how}" for how, count in counts.items() if count))  # fmt: skip
    ranks = None if args.ranks is None else [rank.strip() for rank in args.ranks.split(",")]
    about: Any = {"collapse": args.collapse, "below": args.below, "ranks": ranks}
    known = {m.name: m.id for m in found if m.id is not None}
    return taxonomy.within(names, matches={**known, **corrections}, **about)


def _induced(args: argparse.Namespace, options: dict[str, Any]) -> Hierarchy:
    """A hierarchy made from features; says how far it agrees with a given one."""
    from hace.data.feature_files import training_features
    from hace.hierarchy import Hierarchy

    kind = options.pop("label_kind", "auto")  # of the features; all others are of FILE
    given = None if args.file is None else _read(args, options)
    x, labels, classes = training_features(Path(args.induce), given, label_kind=kind)
    hierarchy = Hierarchy.from_features(x, labels, classes, levels=2 if args.levels is None else args.levels)
    if args.root:
        hierarchy = hierarchy.with_root()
    if given is not None:
        found = given.agreement(hierarchy)
        triplets = f"{found.triplets:.3f} of the triplets of classes that both trees resolve (chance: 0.333)"
        print(f"agreement with {args.file}: {triplets}, correlation of distances {found.cophenetic:.3f}")
    return hierarchy


def write(hierarchy: Hierarchy, format: str | None, out: str, source: str) -> None:
    """Write a hierarchy to a file, or print it where `out` is "-"."""
    from hace.formats import render_hierarchy, write_hierarchy

    if out == "-" and format is not None:
        print(render_hierarchy(hierarchy, format), end="")
        return
    _refuse_source(out, source)
    write_hierarchy(hierarchy, out, format)
    print(f"wrote {out}")


def plot(hierarchy: Hierarchy, out: str, source: str) -> None:
    """Draw a hierarchy to a file."""
    from hace.draw import draw_hierarchy

    _refuse_source(out, source)
    draw_hierarchy(hierarchy, out)
    print(f"wrote {out}")


def _refuse_source(out: str, source: str) -> None:
    if Path(out).exists() and Path(source).exists() and Path(out).samefile(source):
        raise ConfigError(f"The output {out} is the input itself. Write to another file.")
