"""Every format of hierarchies, by name."""

from __future__ import annotations

import collections.abc
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hace.errors import ConfigError, nearest, shorten
from hace.formats.folders import scan_fgvc, scan_folder, scan_nabirds
from hace.formats.graphs import parse_json_graph, render_dot, render_json, render_mermaid
from hace.formats.ontology import parse_obo
from hace.formats.pairs import parse_edges
from hace.formats.source import Draft
from hace.formats.tables import parse_csv, parse_tsv, render_csv, render_tsv
from hace.formats.trees import parse_indented, parse_newick, render_newick
from hace.hierarchy import Hierarchy


@dataclass(frozen=True)
class Format:
    """How hierarchies are stored in one format; what the format cannot do is None."""

    summary: str
    suffixes: tuple[str, ...] = ()
    parse: Callable[..., Draft] | None = None  # (SourceText, **options)
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
    "json": Format("everything a hierarchy is; a nested tree; or nodes that name each other", (".json",), parse_json_graph,
                   render=render_json),
    "csv": Format("id, parent, name, label; edges; or label paths", (".csv",), parse_csv, render=render_csv),
    "tsv": Format("as csv, with tabs", (".tsv", ".tab"), parse_tsv, render=render_tsv),
    "edges": Format("two ids per line", (".edges",), parse_edges),
    "indented": Format("one name per line, children indented", (".indented",), parse_indented),
    "newick": Format("brackets, as in phylogenetics", (".nwk", ".newick", ".tre", ".tree"), parse_newick,
                     render=render_newick),
    "obo": Format("is_a of an OBO ontology", (".obo",), parse_obo),
    "folder": Format("a tree of class folders", scan=scan_folder),
    "nabirds": Format("the files of NABirds", scan=scan_nabirds),
    "fgvc": Format("the files of FGVC-Aircraft", scan=scan_fgvc, root=True),
    "dot": Format("a drawing by Graphviz", (".dot", ".gv"), render=render_dot),
    "mermaid": Format("a drawing by Mermaid", (".mmd", ".mermaid"), render=render_mermaid),
}  # fmt: skip


def format_of_suffix(path: str) -> str | None:
    """The name of the format that a file's suffix tells.

    Args:
        path: The file.
    """
    suffix = os.path.splitext(path)[1].lower()
    return next((name for name, kind in FORMATS.items() if suffix in kind.suffixes), None)


def reader(format: str, face: str, options: Mapping[str, Any]) -> Format:
    """The format of this name.

    Args:
        format: The name.
        face: "parse" for files, "scan" for folders.
        options: Options of its reader, which must exist and have the right types.

    Raises:
        ConfigError: There is no such reader, or it has no such option.
    """
    readers = [name for name, kind in FORMATS.items() if getattr(kind, face)]
    if format not in readers:
        what = "file" if face == "parse" else "folder"
        hint = nearest(str(format), readers)
        if format in FORMATS:
            hint = " It is written, not read." if FORMATS[format].render else f" It does not read a {what}."
        raise ConfigError(f"format of a {what} must be one of {', '.join(readers)}. Got {format!r}.{hint}")
    known = FORMATS[format].options
    for option in options:
        if option not in known:
            raise ConfigError(
                f"format {format!r} has no option {option!r}. It has {', '.join(known) or 'none'}, and as all formats "
                f"leaves, names, level_names, rooted, root, flat and encoding.{nearest(option, known)}"
            )
    check_types(getattr(FORMATS[format], face), options)
    return FORMATS[format]


def check_types(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options whose values are not of the types that a function's annotations name.

    Args:
        function: The function that will take them.
        options: The options by name.

    Raises:
        ConfigError: A value has another type.

    Example:
        >>> check_types(parse_obo, {"prefix": ["CL:"]})
        Traceback (most recent call last):
        hace.errors.ConfigError: prefix must be text. Got ['CL:'].
    """
    hints = typing.get_type_hints(function)
    for name, value in options.items():
        if name in hints and not _fits(value, hints[name]):
            raise ConfigError(f"{name} must be {_words(hints[name])}. Got {shorten(repr(value), 80)}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation; covers the annotations that options of readers use."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in inside)
    if origin is collections.abc.Mapping:
        pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(_fits(k, inside[0]) and _fits(v, inside[1]) for k, v in pairs)
    if origin is collections.abc.Sequence:
        many = not isinstance(value, str | bytes | Mapping) and isinstance(value, collections.abc.Iterable)
        return many and all(_fits(v, inside[0]) for v in value)
    if origin is os.PathLike:
        return isinstance(value, os.PathLike)
    return isinstance(value, hint) and (hint is not int or not isinstance(value, bool))


def _words(hint: Any) -> str:
    """An annotation in words."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(_words(one) for one in inside if one is not type(None)))
    if origin is collections.abc.Mapping:
        return f"a mapping to {_words(inside[1])}"
    if origin is collections.abc.Sequence:
        return f"a list of {_words(inside[0])}"
    return {str: "text", bool: "true or false", int: "an integer"}.get(hint, "a path")
