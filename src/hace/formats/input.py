"""Hierarchies in: from a file, a folder, a text, or the package."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hace.errors import ConfigError, FormatError, nearest
from hace.formats.builtin import BUILTIN
from hace.formats.pairs import parse_names
from hace.formats.registry import FORMATS, check_types, format_of_suffix, reader
from hace.formats.source import Problems, SourceText, build, read_source
from hace.formats.trees import DASHED
from hace.hierarchy import Hierarchy


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
    **options: Any,
) -> Hierarchy:
    """Reads a hierarchy from a file, a folder, or by its name from the package.

    Args:
        path: A file; a folder of class folders or of a data set; or "cifar100" or "animals", which come with hace (a folder
            of that name is "./cifar100").
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
        **options: Options of the format; `FORMATS[format].options` lists them.

    Raises:
        FormatError: If the file cannot be read, with its path and the lines in question.
        HierarchyError: If the file can be read, but is not a hierarchy.
        ConfigError: For an unknown format or option, or a value of the wrong type.

    Example:
        >>> read_hierarchy("cifar100").num_nodes, read_hierarchy("cifar100", root=True).num_nodes
        (120, 121)
    """
    shared = {"leaves": leaves, "names": names, "level_names": level_names, "rooted": rooted, "flat": flat}
    check_types(read_hierarchy, {**shared, "root": root, "encoding": encoding})
    if format is None and isinstance(path, str) and path in BUILTIN:
        if options:
            raise ConfigError(f"{path!r} has no option {next(iter(options))!r}.")
        return BUILTIN[path](root=bool(root))
    name = os.fspath(path)
    if not os.path.exists(path) and not os.path.splitext(name)[1] and (meant := nearest(str(name), BUILTIN)):
        raise FormatError(f"{name}: there is no such file.{meant.replace('mean', 'mean the built-in', 1)}")
    if names is not None and not isinstance(names, Mapping):
        shared["names"] = parse_names(read_source(names, encoding))
    if os.path.isdir(path):
        kind = reader(format or _folder_format(Path(path)), "scan", options)
        problems = Problems(name)
        draft = kind.scan(Path(path), problems, **options)  # pyright: ignore[reportOptionalCall]
    else:
        if format is not None:
            reader(format, "parse", options)  # a wrong name should not wait for a large file
        source = read_source(path, encoding)
        kind = reader(format or _file_format(source), "parse", options)
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
    flat: bool = False,
    **options: Any,
) -> Hierarchy:
    """Reads a hierarchy from text.

    Args:
        text: The text, or its bytes.
        format: A name in `FORMATS`.
        leaves: As in `read_hierarchy`.
        names: As in `read_hierarchy`.
        level_names: As in `read_hierarchy`.
        rooted: As in `read_hierarchy`.
        flat: As in `read_hierarchy`.
        **options: As in `read_hierarchy`.

    Example:
        >>> parse_hierarchy("((husky,beagle)dog,cat)animal;", "newick").leaves
        ('beagle', 'cat', 'husky')
        >>> parse_hierarchy("husky dog", "edges", order="child parent").path("husky")
        ('husky', 'dog')
    """
    shared = {"leaves": leaves, "names": names, "level_names": level_names, "rooted": rooted, "flat": flat}
    check_types(parse_hierarchy, shared)
    kind = reader(format, "parse", options)
    source = SourceText(text)
    draft = kind.parse(source, **options)  # pyright: ignore[reportOptionalCall]
    return build(draft, source.problems, **shared)


def _folder_format(folder: Path) -> str:
    if (folder / "hierarchy.txt").is_file() and (folder / "classes.txt").is_file():
        return "nabirds"
    if (folder / "variants.txt").is_file() or (folder / "data" / "variants.txt").is_file():
        return "fgvc"
    return "folder"


def _file_format(source: SourceText) -> str:
    format = format_of_suffix(source.name)
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
        f"{source.name}: the format cannot be inferred from the content. Pass format=... (on the command line: --format ...), "
        f"one of {', '.join(readers)}."
    )
