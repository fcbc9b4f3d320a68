"""Hierarchies in and out: every format by name, from a file, a folder, a text or the package, and to a file or a text."""

from __future__ import annotations

import csv
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from hace.checks import check_choice
from hace.errors import ConfigError, FormatError, HierarchyError, nearest, shorten
from hace.files.reading import reason
from hace.files.writing import atomic_path
from hace.formats import detection
from hace.formats.claml import parse_claml
from hace.formats.csv_tables import parse_csv, render_csv
from hace.formats.detection import FileStart, refuse_other_documents
from hace.formats.draft import Draft, Problems, SourceText, build, read_source
from hace.formats.entry_lists import parse_entries, parse_topics
from hace.formats.folders import holds_fgvc, holds_nabirds, scan_fgvc, scan_folder, scan_nabirds
from hace.formats.graphs import parse_edges, parse_json_graph, parse_names, parse_yaml_graph, render_json
from hace.formats.label_studio import parse_label_studio, render_label_studio
from hace.formats.linked_data import parse_linked_data
from hace.formats.nested_xml import parse_nested_xml
from hace.formats.ontology import parse_obo
from hace.formats.taxonomies import parse_ncbi, parse_paths, parse_speciesnet
from hace.formats.trees import parse_indented, parse_newick, render_newick
from hace.hierarchy import Hierarchy


@dataclass(frozen=True)
class Format:
    """How hierarchies are stored in one format; what the format cannot do is None."""

    summary: str
    suffixes: tuple[str, ...] = ()
    signature: Callable[[FileStart], bool] | None = None  # unmistakable content, which wins over the suffix
    looks_like: Callable[[FileStart], bool] | None = None  # likely content, where the suffix says nothing
    parse: Callable[..., Draft] | None = None  # (SourceText, **options)
    holds: Callable[[Path], bool] | None = None  # whether a folder is in the format
    scan: Callable[..., Draft] | None = None  # (folder, Problems, **options)
    render: Callable[[Hierarchy], str] | None = None
    root: bool | None = None  # whether reading adds (True) or removes (False) a root by default

    @property
    def options(self) -> tuple[str, ...]:
        """Options that only this reader has."""
        reader = self.parse or self.scan
        parameters = inspect.signature(reader).parameters.values() if reader else ()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


FORMATS: dict[str, Format] = {
    "json": Format(
        "everything a hierarchy is; a nested tree; or nodes that name each other",
        suffixes=(".json",),
        looks_like=detection.is_json,
        parse=parse_json_graph,
        render=render_json,
    ),
    "csv": Format(
        "id, parent, name, label; edges; or label paths",
        suffixes=(".csv",),
        signature=detection.is_code_table,
        looks_like=partial(detection.is_taxon_table, delimiter=","),
        parse=parse_csv,
        render=render_csv,
    ),
    "tsv": Format(
        "as csv, with tabs",
        suffixes=(".tsv", ".tab"),
        looks_like=partial(detection.is_taxon_table, delimiter="\t"),
        parse=partial(parse_csv, delimiter="\t"),
        render=partial(render_csv, delimiter="\t"),
    ),
    "xlsx": Format(
        "as csv, in the first sheet of an Excel workbook",
        suffixes=(".xlsx",),
        parse=partial(parse_csv, delimiter="\t"),  # which `read_sheet` puts between cells
    ),
    "edges": Format(
        "two ids per line",
        suffixes=(".edges",),
        looks_like=detection.is_edges,
        parse=parse_edges,
    ),
    "indented": Format(
        "one name per line, children indented",
        suffixes=(".indented",),
        looks_like=detection.is_outline,
        parse=parse_indented,
    ),
    "newick": Format(
        "brackets, as in phylogenetics",
        suffixes=(".nwk", ".newick", ".tre", ".tree"),
        looks_like=detection.is_newick,
        parse=parse_newick,
        render=render_newick,
    ),
    "yaml": Format(
        "a nested tree, or nodes that name each other",
        suffixes=(".yaml", ".yml"),
        parse=parse_yaml_graph,
    ),
    "obo": Format(
        "is_a of an OBO ontology",
        suffixes=(".obo",),
        looks_like=detection.is_obo,
        parse=parse_obo,
    ),
    "rdf": Format(
        "SKOS, RDF and OWL: RDF/XML, Turtle, N-Triples, functional syntax",
        suffixes=(".rdf", ".owl", ".ttl", ".nt", ".skos", ".ofn"),
        signature=detection.is_linked_data,
        parse=parse_linked_data,
    ),
    "paths": Format(
        "one path per line: A > B, id - A > B, A;B, d__A;p__B",
        signature=detection.is_lineages,
        looks_like=detection.is_paths,
        parse=parse_paths,
    ),
    "topics": Format(
        "one node per line with its parent: RCV1's topics",
        signature=detection.is_topics,
        parse=parse_topics,
    ),
    "entries": Format(
        "entries with their parents and names in several languages: Open Food Facts",
        signature=detection.is_entries,
        parse=parse_entries,
    ),
    "ncbi": Format(
        "NCBI's taxdump: nodes.dmp, names.dmp",
        suffixes=(".dmp",),
        signature=detection.is_ncbi,
        parse=parse_ncbi,
    ),
    "speciesnet": Format(
        "SpeciesNet's taxonomy",
        signature=detection.is_speciesnet,
        parse=parse_speciesnet,
    ),
    "label-studio": Format(
        "a labelling configuration with a Taxonomy tag",
        suffixes=(".xml",),
        signature=detection.is_label_studio,
        parse=parse_label_studio,
        render=render_label_studio,
    ),
    "claml": Format(
        "ClaML: ICD-10 and other classifications of health",
        signature=detection.is_claml,
        parse=parse_claml,
    ),
    "xml": Format(
        "elements with a code and a title inside each other: ICD-10-CM, GS1, JEL",
        signature=detection.is_nested_xml,
        parse=parse_nested_xml,
    ),
    "folder": Format("a tree of class folders", scan=scan_folder),
    "nabirds": Format("the files of NABirds", holds=holds_nabirds, scan=scan_nabirds),
    "fgvc": Format("the files of FGVC-Aircraft", holds=holds_fgvc, scan=scan_fgvc, root=True),
}

# All other options of readers are text.
_SWITCHES = ("header", "internal_labels", "rooted", "root", "flat", "parts")


def read_hierarchy(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    leaves: Sequence[str | int] | None = None,
    names: Mapping[str, str] | str | os.PathLike[str] | None = None,
    level_names: Sequence[str] | None = None,
    rooted: bool | None = None,
    root: bool | None = None,
    flat: bool = False,
    encoding: str | None = None,
    member: str | None = None,
    **options: Any,
) -> Hierarchy:
    """Reads a hierarchy from a file, a folder, or by its name from the package.

    Args:
        path: A file, as it is or in a .gz, .zip or .tar.gz; a folder of class folders or of a dataset; or "cifar100" or
            "animals", which come with hace (a folder of that name is "./cifar100").
        format: A name in `FORMATS`. Without it the suffix decides, and for .txt the content, if it is
            unambiguous.
        leaves: Ids of the leaves in label order, instead of what the file says.
        names: Display names by id, or the path of a file with "id name" lines.
        level_names: Names of the levels from 1 down.
        rooted: Whether a single top counts as the root, as in `Hierarchy.from_edges`.
        root: True adds a root where there is none, False removes it.
        flat: Whether the file may be a flat list of classes. Without it, a file without a single edge is
            refused unless it says so itself: it was probably read in the wrong way.
        encoding: Of a file that is not UTF-8 and has no byte order mark.
        member: Which file of an archive to read, if it holds several taxonomies.
        **options: Options of the format; `FORMATS[format].options` lists them.

    Raises:
        FormatError: If the file cannot be read, with its path and the lines in question.
        HierarchyError: If the file can be read, but is not a hierarchy.
        ConfigError: For an unknown format or option, or a value of the wrong type.

    Example:
        >>> read_hierarchy("cifar100").num_nodes, read_hierarchy("cifar100", root=True).num_nodes
        (120, 121)
    """
    _check_options({"rooted": rooted, "root": root, "flat": flat, "encoding": encoding, "member": member})
    if format is None and isinstance(path, str) and path in BUILTIN:
        if options:
            raise ConfigError(f"{path!r} has no option {next(iter(options))!r}.")
        return BUILTIN[path](root=bool(root))
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"path must be the path of a file or folder. Got {path!r:.80}. Hierarchy.from_edges, from_parents and "
            "from_paths take what is in memory."
        )
    name = os.fspath(path)
    if not os.path.exists(path) and not os.path.splitext(name)[1] and (meant := nearest(str(name), BUILTIN)):
        raise FormatError(f"{name}: there is no such file.{meant.replace('mean', 'mean the built-in', 1)}")
    if isinstance(names, str | os.PathLike):
        names = parse_names(read_source(names, encoding))
    if os.path.isdir(path):
        kind = _reader(format or _folder_format(Path(path)), "scan", options)
        problems = Problems(name)
        draft = kind.scan(Path(path), problems, **options)  # pyright: ignore[reportOptionalCall]
    else:
        if format is not None:
            _reader(format, "parse", options)  # a wrong name should not wait for a large file
        source = read_source(path, encoding, member)
        kind = _reader(format or _file_format(source), "parse", options)
        draft = kind.parse(source, **options)  # pyright: ignore[reportOptionalCall]
        problems = source.problems
    hierarchy = build(
        draft, problems, leaves=leaves, names=names, level_names=level_names, rooted=rooted, flat=flat
    )
    root = kind.root if root is None else root
    return hierarchy if root is None else hierarchy.with_root() if root else hierarchy.without_root()


def parse_hierarchy(
    text: str | bytes,
    format: str,
    *,
    leaves: Sequence[str | int] | None = None,
    names: Mapping[str, str] | None = None,
    level_names: Sequence[str] | None = None,
    rooted: bool | None = None,
    flat: bool = False,
    **options: Any,
) -> Hierarchy:
    """Reads a hierarchy from text.

    Example:
        >>> parse_hierarchy("((husky,beagle)dog,cat)animal;", "newick").leaves
        ('beagle', 'cat', 'husky')
        >>> parse_hierarchy("husky dog", "edges", order="child parent").path("husky")
        ('husky', 'dog')
    """
    _check_options({"rooted": rooted, "flat": flat})
    kind = _reader(format, "parse", options)
    source = SourceText(text)
    draft = kind.parse(source, **options)  # pyright: ignore[reportOptionalCall]
    return build(
        draft, source.problems, leaves=leaves, names=names, level_names=level_names, rooted=rooted, flat=flat
    )


def _reader(format: str, face: str, options: Mapping[str, Any]) -> Format:
    """The format of this name, if it reads files (face "parse") or folders ("scan") and has these options."""
    readers = [name for name, kind in FORMATS.items() if getattr(kind, face)]
    if format not in readers:
        what = "file" if face == "parse" else "folder"
        hint = f" It does not read a {what}." if format in FORMATS else nearest(str(format), readers)
        raise ConfigError(f"format of a {what} must be one of {', '.join(readers)}. Got {format!r}.{hint}")
    known = FORMATS[format].options
    for option in options:
        if option not in known:
            raise ConfigError(
                f"format {format!r} has no option {option!r}. It has {', '.join(known) or 'none'}, and as all formats "
                f"leaves, names, level_names, rooted, root, flat and encoding.{nearest(option, known)}"
            )
    _check_options(options)
    return FORMATS[format]


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse values of another type: commands pass what was typed after -o."""
    for name, value in options.items():
        if name in _SWITCHES:
            rule = "true or false"
            fits = isinstance(value, bool)
        elif name == "columns":
            rule = "a mapping to text or a list of text"
            inside = value.values() if isinstance(value, Mapping) else value
            many = not isinstance(value, str) and isinstance(inside, Iterable)
            fits = many and all(isinstance(item, str) for item in inside)
        else:
            rule = "text"
            fits = isinstance(value, str)
        if value is not None and not fits:
            raise ConfigError(f"{name} must be {rule}. Got {shorten(repr(value), 80)}.")


def _suffix_format(path: str) -> str | None:
    suffix = os.path.splitext(path)[1].lower()
    return next((name for name, kind in FORMATS.items() if suffix in kind.suffixes), None)


def _folder_format(folder: Path) -> str:
    """The format of a folder: a dataset's files, else class folders."""
    known = [name for name, kind in FORMATS.items() if kind.holds and kind.holds(folder)]
    return _only(known, str(folder)) or "folder"


def _file_format(source: SourceText) -> str:
    """The format of a file: a signature decides, else the suffix, else what the content looks like."""
    start = FileStart(source)
    refuse_other_documents(start)
    signed = [name for name, kind in FORMATS.items() if kind.signature and kind.signature(start)]
    format = _only(signed, source.name) or _suffix_format(source.name)
    if format is None:
        likely = [name for name, kind in FORMATS.items() if kind.looks_like and kind.looks_like(start)]
        format = _only(likely, source.name)
    if format is not None:
        return format
    readers = [name for name, kind in FORMATS.items() if kind.parse]
    raise FormatError(
        f"{source.name}: the suffix, or the content of a .txt, must say the format. Got neither. Pass format=..., one "
        f"of {', '.join(readers)}; on the command line, an outline of names is --hierarchy-format indented."
    )


def _only(formats: Sequence[str], name: str) -> str | None:
    """The one format, None if there is none."""
    if len(formats) > 1:
        raise FormatError(
            f"{name}: must look like one format. It looks like {' and '.join(formats)}: pass format=..., one of these."
        )
    return formats[0] if formats else None


def render_hierarchy(hierarchy: Hierarchy, format: str) -> str:
    """The text that `write_hierarchy` would write.

    Example:
        >>> h = Hierarchy.from_edges([("dog", "husky"), ("dog", "beagle")])
        >>> render_hierarchy(h, "newick").strip()
        '(beagle,husky)dog;'
    """
    writers = [name for name, kind in FORMATS.items() if kind.render]
    check_choice("format", format, writers)
    text = FORMATS[format].render(hierarchy)  # pyright: ignore[reportOptionalCall]
    if "\0" in text:
        raise HierarchyError(f"An id or name has a zero character, which {format} cannot hold. Write json.")
    return text


def write_hierarchy(hierarchy: Hierarchy, path: str | os.PathLike[str], format: str | None = None) -> None:
    """Writes a hierarchy to a file, whole or not at all: a failure leaves an older file as it was.

    `json` keeps everything. `csv` and `tsv` keep ids, names, edges and label order, not the names of levels,
    nor that a single top is not a root. `newick` keeps ids and edges of trees and forests.

    Args:
        hierarchy: What to write.
        path: The file.
        format: A name in `FORMATS`; without it the suffix decides.

    Raises:
        ConfigError: If the format is unknown, the suffix does not tell it, or the path cannot be a file.
        HierarchyError: If the format cannot hold this hierarchy.
        FormatError: If the file cannot be written.
    """
    name = os.fspath(path)
    if format is None:
        format = _suffix_format(name) or ""
        known = [suffix for kind in FORMATS.values() if kind.render for suffix in kind.suffixes]
        if not set(FORMATS[format].suffixes if format else ()) & set(known):
            raise ConfigError(
                f"{name}: the suffix must be one of {', '.join(known)}. Or pass format= (--to)."
            )
    text = render_hierarchy(hierarchy, format)
    try:
        with atomic_path(Path(path)) as temporary:
            temporary.write_bytes(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise FormatError(f"{name}: a name holds half a surrogate pair, which UTF-8 cannot hold.") from error
    except OSError as error:
        raise FormatError(f"{name}: cannot be written: {reason(error)}.") from error


def cifar100_hierarchy(root: bool = False) -> Hierarchy:
    """CIFAR-100's own two levels: 20 superclasses above 100 classes in the official label order.

    Args:
        root: True adds a root: 121 nodes instead of 120.

    Example:
        >>> h = cifar100_hierarchy()
        >>> h.num_nodes, h.leaves[:2], h.parents("apple"), h.level_names
        (120, ('apple', 'aquarium_fish'), ('fruit_and_vegetables',), ('superclass', 'class'))
    """
    return _built_in("cifar100", ["superclass", "class"], root)


def animals_hierarchy(root: bool = False) -> Hierarchy:
    """A small taxonomy for demos: 5 groups, 20 families and 61 animals."""
    return _built_in("animals", ["group", "family", "animal"], root)


BUILTIN = {"animals": animals_hierarchy, "cifar100": cifar100_hierarchy}


def _built_in(name: str, columns: list[str], root: bool) -> Hierarchy:
    lines = resources.files("hace.formats").joinpath(f"{name}.csv").read_text(encoding="utf-8").splitlines()
    rows = sorted(csv.DictReader(lines), key=lambda row: int(row["label"]))
    paths = [[row[column] for column in columns] for row in rows]
    leaves = [row[columns[-1]] for row in rows]
    hierarchy = Hierarchy.from_paths(paths, leaves=leaves, level_names=columns)
    return hierarchy.with_root() if root else hierarchy
