"""`hace hierarchy`: read, make, convert and draw hierarchies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hace.cli.engine import With, Without, Words, more
from hace.cli.options import Option, reader_options
from hace.errors import ConfigError

if TYPE_CHECKING:
    from hace.hierarchy import Hierarchy


@Parameter(name="*")
@dataclass(frozen=True)
class Within:
    """The part of a taxonomy above some classes.

    Attributes:
        classes: File with one class name per line, or names separated by commas, for --within.
        within: Taxonomy to look up --classes in; -o and --hierarchy-format apply to it.
        matches: CSV table of the matches, to correct and read back.
        below: Node to start from; everything above it is left out.
        ranks: Ranks of inner nodes to keep, separated by commas.
        collapse: Leave out inner nodes with a single child.
    """

    classes: Annotated[str | None, With("--within")] = None
    within: Annotated[str | None, With("--classes"), Without("--features")] = None
    matches: Annotated[Path | None, With("--within"), more] = None
    below: Annotated[str | None, With("--within"), more] = None
    ranks: Annotated[Words | None, With("--within"), more] = None
    collapse: Annotated[bool, With("--within"), more] = False


def hierarchy(
    file: Annotated[str | None, Without("--within")] = None,
    /,
    *,
    out: Path | None = None,
    to: str | None = None,
    plot: Path | None = None,
    hierarchy_format: str | None = None,
    option: Option = (),
    root_node: Annotated[bool | None, Parameter(negative="--no-root-node")] = None,
    features: Path | None = None,
    levels: Annotated[int, With("--features")] = 2,
    taxonomy: Within = Within(),
) -> None:
    """Summarise a hierarchy: nodes, leaves, depths, widths, and anything unusual. --out and --to write it in another format,
    --plot draws it. An existing output file is replaced in one step, at the end.

    --features makes a hierarchy from the training samples of a feature file, by grouping classes with similar mean vectors.
    FILE, if given, then names the classes, and the command reports how well the two trees agree.

    --classes and --within take the part of a taxonomy above your class names. Ids, names and synonyms match, regardless of
    case, spaces, authorship and Unicode form. If some names have no match or several, --matches writes a table of all matches;
    correct its id column ("-" leaves a class out) and run the same command again.

    Examples
      hace hierarchy cifar100                            the built-in taxonomy of CIFAR-100
      hace hierarchy taxonomy.csv                        a file, in any format it recognises
      hace hierarchy taxa.csv -o columns=order,family,species     one column per level, top first
      hace hierarchy pairs.txt -o order=child-parent     one edge per line, the child first
      hace hierarchy NABirds/                            the folder of a dataset, or a tree of image folders
      hace hierarchy taxonomy.csv --out tree.json        convert; the suffix is the format
      hace hierarchy taxonomy.csv --to newick            print it in another format
      hace hierarchy tree.json --plot tree.html          draw: .html (interactive), .svg or .png
      hace hierarchy --features features.npz --levels 2 --out taxonomy.csv     no taxonomy? make one from features
      hace hierarchy birds.csv --features features.npz   compare it with birds.csv
      hace hierarchy --classes names.txt --within taxdump.zip --matches m.csv --out mine.csv     names to a hierarchy
      hace hierarchy --classes names.txt --within cl.obo --below cell --collapse --out mine.csv
      hace hierarchy cl.obo -o prefix=CL: -o isolated=drop     reader options, as in hace.read_hierarchy

    Args:
        file: File, folder, or the built-in name cifar100.
        out: File to write; the suffix sets the format.
        to: Format to write; without --out, the hierarchy is printed.
        plot: Drawing to write: .png, .svg or .html.
        hierarchy_format: Format of FILE, if its name does not tell.
        option: Reader option, NAME=VALUE: text, true, false, or a list as a,b,c or JSON; may repeat.
        root_node: Add a root above the tops, or remove it (default: as in the file or the dataset).
        features: Feature file to make a hierarchy from (.npz, .safetensors or .parquet).
        levels: Levels of groups above the classes.
    """
    if plot is not None:
        _check_picture(plot)
    reader: dict[str, Any] = {"format": hierarchy_format, **reader_options(option)}
    if taxonomy.within is not None:
        made = _part(taxonomy, taxonomy.within, root_node, reader)
        source = taxonomy.within
    elif features is not None:
        made = _from_features(features, file, levels, root_node, reader)
        source = str(features)
    elif file is not None:
        made = _read(file, root_node, reader)
        source = file
    else:
        raise ConfigError("hace hierarchy must have a FILE, --features or --within. Got none of them.")
    if out is not None:
        write(made, to, out, source)
    elif to is not None:
        from hace.formats import render_hierarchy

        print(render_hierarchy(made, to), end="")
    if plot is not None:
        draw(made, plot, source)
    if out is None and to is None and plot is None:
        print(made.summary())


def _read(file: str, root_node: bool | None, reader: dict[str, Any]) -> Hierarchy:
    """The hierarchy of a file."""
    from hace.formats import read_hierarchy

    return read_hierarchy(file, root=root_node, **reader)


def _part(taxonomy: Within, within: str, root_node: bool | None, reader: dict[str, Any]) -> Hierarchy:
    """The part of a taxonomy above some classes; the table of matches is read, and written where it is not complete."""
    from hace.formats.score_files import read_list, read_matches, write_matches

    names = read_list(taxonomy.classes or "")
    table = taxonomy.matches
    whole = _read(within, root_node, reader)
    corrections = read_matches(table) if table is not None and table.exists() else {}
    matches = [match for match in whole.match(names) if match.name not in corrections]
    counts = Counter(match.how for match in matches)
    counts["corrected"] = len(corrections)
    if table is not None and (not corrections or any(match.id is None for match in matches)):
        write_matches(table, matches, corrections)
    by = ("id", "name", "synonym", "spelling")
    parts = [f"{count:,} {'by ' if how in by else ''}{how}" for how, count in counts.items() if count]
    print(f"{len(names):,} names: {', '.join(parts)}")
    known = {match.name: match.id for match in matches if match.id is not None}
    about: Any = {"collapse": taxonomy.collapse, "below": taxonomy.below, "ranks": taxonomy.ranks}
    return whole.within(names, matches={**known, **corrections}, **about)


def _from_features(
    features: Path, file: str | None, levels: int, root_node: bool | None, reader: dict[str, Any]
) -> Hierarchy:
    """A hierarchy made from features; says how far it agrees with a given one."""
    from hace.data.feature_files import training_features
    from hace.hierarchy import Hierarchy

    kind = reader.pop("label_kind", "auto")  # of the features; all others are of FILE
    given = None if file is None else _read(file, root_node, reader)
    x, labels, classes = training_features(features, given, label_kind=kind)
    made = Hierarchy.from_features(x, labels, classes, levels=levels)
    if root_node:
        made = made.with_root()
    if given is not None:
        agreement = given.agreement(made)
        triplets = (
            f"{agreement.triplets:.3f} of the triplets of classes that both trees resolve (chance: 0.333)"
        )
        print(f"agreement with {file}: {triplets}, correlation of distances {agreement.cophenetic:.3f}")
    return made


def write(hierarchy: Hierarchy, to: str | None, out: Path, source: str) -> None:
    """Write a hierarchy to a file."""
    from hace.formats import write_hierarchy

    _check_output(out, source)
    write_hierarchy(hierarchy, out, to)
    print(f"wrote {out}")


def draw(hierarchy: Hierarchy, out: Path, source: str) -> None:
    """Draw a hierarchy to a file."""
    from hace.draw import draw_hierarchy

    _check_output(out, source)
    draw_hierarchy(hierarchy, out)
    print(f"wrote {out}")


def _check_picture(plot: Path) -> None:
    """Refuse a picture of another kind, before any work is done."""
    from hace.draw import DRAWN

    if plot.suffix.lower() not in DRAWN:
        raise ConfigError(f"--plot must end in one of {', '.join(DRAWN)}. Got {str(plot)!r}.")


def _check_output(out: Path, source: str) -> None:
    """Refuse to write over the input."""
    if out.exists() and Path(source).exists() and out.samefile(source):
        raise ConfigError(f"The output {out} is the input itself. Write to another file.")
