"""Readers and writers of hierarchies.

`FORMATS` lists every format: which suffixes it has, which function reads it and which one writes it. A reader
is a function from a `Source` (or a folder) to a `Draft`; a new format is one such function and one entry
here.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hace.errors import ConfigError, FormatError, HierarchyError, nearest
from hace.files.reading import reason
from hace.files.writing import atomic_path
from hace.formats.builtin import cifar100_hierarchy
from hace.formats.folders import fgvc_hierarchy, nabirds_hierarchy, scan_fgvc, scan_folder, scan_nabirds
from hace.formats.graphs import parse_json, render_dot, render_json, render_mermaid
from hace.formats.ontology import parse_obo
from hace.formats.pairs import parse_edges, parse_names
from hace.formats.source import Draft, Problems, Source, build, read_source
from hace.formats.tables import parse_csv, parse_tsv, render_csv, render_tsv
from hace.formats.trees import DASHED, parse_indented, parse_newick, render_newick
from hace.hierarchy import Hierarchy

__all__ = [
    "FORMATS",
    "Format",
    "cifar100_hierarchy",
    "fgvc_hierarchy",
    "nabirds_hierarchy",
    "parse_hierarchy",
    "read_hierarchy",
    "render_hierarchy",
    "write_hierarchy",
]


@dataclass(frozen=True)
class Format:
    """How hierarchies are stored in one format; what the format cannot do is None."""

    summary: str
    suffixes: tuple[str, ...] = ()
    parse: Callable[..., Draft] | None = None  # (Source, **options)
    scan: Callable[..., Draft] | None = None  # (folder, Problems, **options)
    render: Callable[[Hierarchy], str] | None = None
    root: bool | None = None  # whether reading adds (True) or removes (False) a root unless told otherwise

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the reader that are its own."""
        reader = self.parse or self.scan
        parameters = inspect.signature(reader).parameters.values() if reader else ()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


FORMATS: dict[str, Format] = {
    "json": Format("everything a hierarchy is; or a nested tree", (".json",), parse_json, render=render_json),
    "csv": Format("id, parent, name, label; edges; or label paths", (".csv",), parse_csv, render=render_csv),
    "tsv": Format("as csv, with tabs", (".tsv", ".tab"), parse_tsv, render=render_tsv),
    "edges": Format("two ids a line", (".edges",), parse_edges),
    "indented": Format("one name a line, children indented", (".indented",), parse_indented),
    "newick": Format(
        "brackets, as in phylogenetics",
        (".nwk", ".newick", ".tre", ".tree"),
        parse_newick,
        render=render_newick,
    ),
    "obo": Format("is_a of an OBO ontology", (".obo",), parse_obo),
    "folder": Format("a tree of class folders", scan=scan_folder),
    "nabirds": Format("the files of NABirds", scan=scan_nabirds),
    "fgvc": Format("the files of FGVC-Aircraft", scan=scan_fgvc, root=True),
    "dot": Format("a drawing by Graphviz", (".dot", ".gv"), render=render_dot),
    "mermaid": Format("a drawing by Mermaid", (".mmd", ".mermaid"), render=render_mermaid),
}


def read_hierarchy(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    leaves: Sequence[str | int] | None = None,
    names: Mapping[str, str] | str | os.PathLike[str] | None = None,
    level_names: Sequence[str] | None = None,
    rooted: bool | None = None,
    root: bool | None = None,
    encoding: str | None = None,
    **options: Any,
) -> Hierarchy:
    """Reads a hierarchy from a file, a folder, or by its name from the package.

    Args:
        path: A file; a folder of class folders or of a data set; or "cifar100" (the folder of that name is
            "./cifar100").
        format: A name in `FORMATS`. Without it the suffix decides, and for .txt the content, where it leaves
            no doubt.
        leaves: Ids of the leaves in label order, instead of what the file says.
        names: Display names by id, or the path of a file with "id name" lines.
        level_names: Names of the levels from 1 down.
        rooted: Whether a single top counts as the root, as in `Hierarchy.from_edges`.
        root: True adds a root where there is none, False removes it.
        encoding: Of the file, where it is neither UTF-8 nor begins with a byte order mark.
        **options: Options of the format; `FORMATS[format].options` lists them.

    Raises:
        FormatError: If the file cannot be read, with its path and the lines in question.
        HierarchyError: If it can, and what it says is no hierarchy.
        ConfigError: For an unknown format or option.

    Example:
        >>> read_hierarchy("cifar100").num_nodes, read_hierarchy("cifar100", root=True).num_nodes
        (120, 121)
    """
    if format is None and isinstance(path, str) and path == "cifar100":
        if options:
            raise ConfigError(f"'cifar100' has no option {next(iter(options))!r}.")
        return cifar100_hierarchy(root=bool(root))
    name = os.fspath(path)
    if not os.path.exists(path) and not os.path.splitext(name)[1] and nearest(str(name), ["cifar100"]):
        raise FormatError(f"{name}: there is no such file. Did you mean the built-in 'cifar100'?")
    shared = {
        "leaves": leaves,
        "names": _names(names, encoding),
        "level_names": level_names,
        "rooted": rooted,
    }
    if os.path.isdir(path):
        kind = _reader(format or _folder_format(Path(path)), "scan", options)
        problems = Problems(name)
        draft = kind.scan(Path(path), problems, **options)  # pyright: ignore[reportOptionalCall]
    else:
        if format is not None:
            _reader(format, "parse", options)  # a wrong name should not wait for a large file
        source = read_source(path, encoding)
        kind = _reader(format or _file_format(source), "parse", options)
        draft = kind.parse(source, **options)  # pyright: ignore[reportOptionalCall]
        problems = source.problems
    hierarchy = build(draft, problems, **shared)
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
    **options: Any,
) -> Hierarchy:
    """Reads a hierarchy from text; the arguments are those of `read_hierarchy`.

    Example:
        >>> parse_hierarchy("((husky,beagle)dog,cat)animal;", "newick").leaves
        ('beagle', 'cat', 'husky')
        >>> parse_hierarchy("husky dog", "edges", order="child parent").path("husky")
        ('husky', 'dog')
    """
    kind = _reader(format, "parse", options)
    source = Source(text)
    draft = kind.parse(source, **options)  # pyright: ignore[reportOptionalCall]
    return build(draft, source.problems, leaves=leaves, names=names, level_names=level_names, rooted=rooted)


def render_hierarchy(hierarchy: Hierarchy, format: str) -> str:
    """The text that `write_hierarchy` would write.

    Example:
        >>> h = Hierarchy.from_edges([("dog", "husky"), ("dog", "beagle")])
        >>> render_hierarchy(h, "newick").strip()
        '(beagle,husky)dog;'
    """
    writers = [name for name, kind in FORMATS.items() if kind.render]
    if format not in writers:
        raise ConfigError(
            f"format must be one of {', '.join(writers)}, got {format!r}.{nearest(str(format), writers)}"
        )
    text = FORMATS[format].render(hierarchy)  # pyright: ignore[reportOptionalCall]
    if "\0" in text:
        raise HierarchyError(
            f"An id or name holds a zero character, which {format} cannot hold. Write it as json."
        )
    return text


def write_hierarchy(hierarchy: Hierarchy, path: str | os.PathLike[str], format: str | None = None) -> None:
    """Writes a hierarchy to a file, whole or not at all: a failure leaves an older file as it was.

    `json` keeps everything. `csv` and `tsv` keep ids, names, edges and label order, not the names of levels,
    nor that a single top is meant as no root. `newick` keeps ids and edges of trees and forests. `dot` and
    `mermaid` are drawings.

    Args:
        hierarchy: What to write.
        path: The file.
        format: A name in `FORMATS`; without it the suffix decides.

    Raises:
        ConfigError: If the format is unknown, the suffix does not tell it, or the path cannot be a file.
        HierarchyError: If the format cannot hold this hierarchy.
        FormatError: If the file cannot be written.
    """
    if format is None:
        format = _by_suffix(os.fspath(path))
        if format is None or FORMATS[format].render is None:
            known = [suffix for kind in FORMATS.values() if kind.render for suffix in kind.suffixes]
            raise ConfigError(
                f"{os.fspath(path)}: the suffix must be one of {', '.join(known)}, or pass format=..."
            )
    text = render_hierarchy(hierarchy, format)
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(
            f"{os.fspath(path)}: a name holds half a surrogate pair, which UTF-8 cannot hold."
        ) from error
    try:
        with atomic_path(Path(path)) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: cannot be written: {reason(error)}.") from error


def _reader(format: str, face: str, options: Mapping[str, Any]) -> Format:
    """The format of this name, if it reads files (face "parse") or folders ("scan") and has these options."""
    readers = [name for name, kind in FORMATS.items() if getattr(kind, face)]
    if format not in readers:
        what = "file" if face == "parse" else "folder"
        hint = nearest(str(format), readers)
        if format in FORMATS:
            hint = " It is written, not read." if FORMATS[format].render else f" It does not read a {what}."
        raise ConfigError(f"format of a {what} must be one of {', '.join(readers)}, got {format!r}.{hint}")
    known = FORMATS[format].options
    for option in options:
        if option not in known:
            raise ConfigError(
                f"format {format!r} has no option {option!r}. It has {', '.join(known) or 'none'}, and as all formats "
                f"leaves, names, level_names, rooted, root and encoding.{nearest(option, known)}"
            )
    return FORMATS[format]


def _names(
    names: Mapping[str, str] | str | os.PathLike[str] | None, encoding: str | None
) -> Mapping[str, str] | None:
    if names is None or isinstance(names, Mapping):
        return names
    return parse_names(read_source(names, encoding))


def _by_suffix(path: str) -> str | None:
    suffix = os.path.splitext(path)[1].lower()
    return next((name for name, kind in FORMATS.items() if suffix in kind.suffixes), None)


def _folder_format(folder: Path) -> str:
    if (folder / "hierarchy.txt").is_file() and (folder / "classes.txt").is_file():
        return "nabirds"
    if (folder / "variants.txt").is_file() or (folder / "data" / "variants.txt").is_file():
        return "fgvc"
    return "folder"


def _file_format(source: Source) -> str:
    format = _by_suffix(source.name)
    if format is not None:
        return format
    text = source.text.strip()
    if text[0] == "{":
        return "json"
    if text[0] == "(" and text[-1] == ";":
        return "newick"
    if text.startswith("format-version:") or re.search(r"^\[Term\]", text, re.MULTILINE):
        return "obo"
    lines = [line for _, line in source.lines()]
    if any(line[0] in " \t" or DASHED.match(line) for line in lines):
        return "indented"
    if all(len(line.split()) == 2 for line in lines):
        return "edges"
    readers = [name for name, kind in FORMATS.items() if kind.parse]
    raise FormatError(
        f"{source.name}: the content does not tell its format. Pass format=... (on the command line: --format ...), "
        f"one of {', '.join(readers)}."
    )
