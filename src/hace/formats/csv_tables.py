"""Hierarchies as CSV and TSV: one node per row, one edge per row, or one label path per row."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from hace.checks import check_choice
from hace.errors import ConfigError, FormatError, listed
from hace.files.documents import csv_rows
from hace.formats.code_tables import (
    CodeColumns,
    columns_of,
    find_columns,
    parse_by_content,
    parse_codes,
)
from hace.formats.draft import Draft, Problems, SourceText, quoted, similar, take_edge, upside_down
from hace.formats.graphs import draft_of_pairs
from hace.formats.level_tables import (
    find_level_pairs,
    parse_level_pairs,
    parse_outline,
    parse_path_column,
    parse_stairs,
    parse_tiers_in_stairs,
)
from hace.formats.taxonomies import (
    OTHER_NAMES,
    RANKS,
    add_vernaculars,
    parse_taxa,
    rank_paths,
    ranks_of,
    taxon_columns,
)
from hace.hierarchy import Hierarchy
from hace.hierarchy.build import PATH_MARK, edges_of_paths, path_parts

Rows = Iterator[tuple[int, list[str]]]  # (line, cells)
OTHER_MARKS = ("\t", ";", "|")
_ID_COLUMNS = ("id", "parent", "name", "label", "rank", "synonyms")
_DUMP_MARK = "\t|\t"
_SHOWN_LEVELS = 6
_SHOWN_PARENTS = 3


def parse_csv(
    source: SourceText,
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    label: str | None = None,
    ids: str = "name",
    header: bool | None = None,
    order: str | None = None,
    delimiter: str = ",",
    parents: str | None = None,
) -> Draft:
    """A table in one of four shapes.

    * `id`, `parent` and optionally `name` and `label`: one node per row, an empty parent for a top, one row for
      each parent of a node with several, and the label (0 to n - 1) of every leaf. This is what
      `write_hierarchy` writes.
    * `parent`, `child`: one edge per row. Such a table may be without a header.
    * One column per level, from the top down: one label path per row. Paths may end early and may repeat. A single column
      may hold whole paths, "Home > Garden > Pots".
    * A table of codes as it was published (:mod:`hace.formats.code_tables`). ``parents="prefix"``: a code's prefixes are above
    it.
    """
    if parents is not None:
        check_choice("parents", parents, ("prefix",))
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f"delimiter must be one character, not a quote or line end. Got {delimiter!r}.")
    if _DUMP_MARK in next(line for _, line in source.lines()):  # as Open Tree of Life divides cells
        text = source.text.replace(_DUMP_MARK, "\t")
        source = SourceText(text, source.name, source.encoding, source.others)
        delimiter = "\t"
    delimiter = _mark(source, delimiter)
    if columns is None and header is None and not (parents is None and _has_own_header(source, delimiter)):
        draft = _published(source, delimiter)
        if draft is None and label is None and order is None:
            draft = _code_table(source, delimiter, ids, parents)
        if draft is not None:
            return draft
    rows = csv_rows(source.text, source.name, delimiter)
    if header is False:
        return _without_header(source, rows, columns, label, ids, order)
    names = _header(source, next(rows)[1])
    if columns is not None and not isinstance(columns, Mapping):
        _check_order(order)
        return _paths(source, names, rows, list(columns), label, ids)
    if label is not None or ids != "name":
        raise ConfigError(
            "label and ids need columns=[...], the list of level columns from the top down "
            "(on the command line: -o columns=top,...,leaf)."
        )
    wanted = dict(columns or {})
    draft = _by_names(source, names, rows, wanted, order)
    if draft is None and not wanted:
        draft = _by_cells(source, names, list(rows), header, order)
    if draft is None:
        raise _unknown_columns(source, names, wanted)
    return draft


def _check_order(order: str | None) -> None:
    """Refuse an order of columns that have names."""
    if order is not None:
        raise ConfigError(
            f"order must be left out if columns have names. Got {order!r}. It is for two columns without a header."
        )


def _by_names(
    source: SourceText, names: list[str], rows: Rows, wanted: Mapping[str, str], order: str | None
) -> Draft | None:
    """Nodes with their parents, or edges, where the header has these columns; ``wanted``: those that have other names."""
    if not set(wanted) <= {*_ID_COLUMNS, "child"}:
        known = ", ".join(_ID_COLUMNS)
        raise ConfigError(f"columns may name {known} and child. Got {listed(wanted, 30)}.")
    for shape in (_ID_COLUMNS, ("parent", "child")):
        if set(wanted) <= set(shape) and all(wanted.get(c, c) in names for c in shape[:2]):
            _check_order(order)
            _need(source, names, wanted.values())
            picked = _pick(source, names, rows, [wanted.get(c, c) for c in shape])
            return _nodes(source, picked) if shape is _ID_COLUMNS else _edges(source, picked, bool(wanted))
    return None


def _by_cells(
    source: SourceText,
    names: list[str],
    rows: list[tuple[int, list[str]]],
    header: bool | None,
    order: str | None,
) -> Draft | None:
    """Edges or whole paths, where the cells say so and the header does not; the first line may be one of them."""
    if header is None and len(names) == 2:
        is_edge = not {cell for _, cells in rows for cell in cells}.isdisjoint(names)  # its ids occur again
        if is_edge:
            return _without_header(source, iter([(1, names), *rows]), None, None, "name", order)
    if len(names) == 1 and any(PATH_MARK in cells[0] for _, cells in rows):  # "Home > Garden > Pots"
        first = [(1, names)] if PATH_MARK in names[0] else []
        return _paths(source, ["path"], iter([*first, *rows]), ["path"], None, "name")
    return None


def _has_own_header(source: SourceText, delimiter: str) -> bool:
    """Whether line 1 names the columns of hace's own tables: id and parent, or parent and child."""
    first = next((line for _, line in source.lines()), "")
    names = {name.strip().strip('"') for name in first.split(delimiter)}
    return names >= {"id", "parent"} or names >= {"parent", "child"}


def _published(source: SourceText, delimiter: str) -> Draft | None:
    """A taxon table of Darwin Core, Catalogue of Life or iNaturalist, or one with a column for each rank; else None."""
    first = next(line for _, line in source.lines())
    heads = {mark: first.split(mark) for mark in (delimiter, "\t", ";", "|")}
    marks = [mark for mark, names in heads.items() if taxon_columns(names) or ranks_of(names)]
    if not marks:
        return None

    def table(text: SourceText) -> Rows:
        if marks[0] == "\t":  # as they are published: quotes have no meaning
            return ((n, [cell.strip('"') for cell in line.split("\t")]) for n, line in text.lines())
        return csv_rows(text.text, text.name, marks[0])

    rows = table(source)
    names = _header(source, next(rows)[1])
    if taxon_columns(names):
        draft = parse_taxa(source, names, rows)
        others = [name for name in source.others or () if "vernacular" in name.casefold()]
        for name in [o for o in others if "english" in o.casefold()] or others:
            beside = table(SourceText((source.others or {})[name](), name, source.encoding))
            add_vernaculars(draft, next(beside)[1], beside)
        return draft
    plain = [name.casefold() for name in names]
    ranks = ranks_of(names)
    columns = [names[plain.index(rank)] for rank in ranks]
    others = [name for name in names if name.casefold() in OTHER_NAMES]
    held = _pick(source, names, rows, [*columns, *others])
    draft = rank_paths(source, ((n, c[: len(ranks)], c[len(ranks) :]) for n, c in held), ranks, others)
    source.problems.raise_broken()
    return draft


def _mark(source: SourceText, delimiter: str) -> str:
    """The delimiter. Where the first line has no comma, another mark: spreadsheets of many countries write semicolons."""
    first = next(line for _, line in source.lines())
    if PATH_MARK in first:
        return delimiter
    others = [mark for mark in OTHER_MARKS if mark in first]
    return others[0] if delimiter == "," and others and "," not in first else delimiter


def _code_table(source: SourceText, delimiter: str, ids: str, parents: str | None) -> Draft | None:
    """A table of codes or tiers as it was published, perhaps below a banner; None if it is not one."""
    by_prefix = parents is not None
    table = list(csv_rows(source.text, source.name, delimiter))
    if not table:
        raise FormatError(f"{source.name}: the table must have a row. Got empty cells.")
    if not by_prefix:
        pairs = find_level_pairs(table[0][1])
        draft = (pairs and parse_level_pairs(pairs, table[1:])) or parse_stairs(table)
        if draft is not None:
            return draft
    header = find_columns(table)
    if header is None:
        return _without_code_header(source, table, by_prefix)
    header_line, columns = header
    is_own_shape = header_line == 1 and "id" in columns.header and "parent" in columns.header
    if is_own_shape and not by_prefix:
        return None
    rows = [row for row in table if row[0] > header_line]
    draft = _by_code_columns(source, header_line, columns, rows, by_prefix)
    if draft is None and len(columns.tiers) > 1:
        levels = [columns.header[i] for i in columns.tiers]
        return _paths(source, columns.header, iter(rows), levels, None, ids)
    source.problems.raise_any()
    return draft or parse_by_content(source, table, prefixes=by_prefix)


def _without_code_header(
    source: SourceText, table: Sequence[tuple[int, list[str]]], by_prefix: bool
) -> Draft | None:
    """A table of codes that its cells alone give away; None if it is not one, an error where prefixes were asked for."""
    draft = None
    if not by_prefix:
        draft = parse_outline(columns_of(table[0][1]), table[1:], numbers=True)
    draft = draft or parse_by_content(source, table, prefixes=by_prefix)
    if draft is None and by_prefix:
        raise FormatError(f"{source.name}: parents='prefix' needs a column of codes, such as id or code.")
    source.problems.raise_any()
    return draft


def _by_code_columns(
    source: SourceText,
    header_line: int,
    columns: CodeColumns,
    rows: Sequence[tuple[int, list[str]]],
    by_prefix: bool,
) -> Draft | None:
    """The first reading that fits these columns; with ``by_prefix`` only that of codes. None if none does."""
    readings: list[Callable[[], Draft | None]] = []
    if columns.parent < 0 and not by_prefix:
        readings.append(partial(parse_outline, columns, rows, numbers=False))
        readings.append(partial(parse_tiers_in_stairs, columns, rows))
    if columns.id >= 0:
        readings.append(partial(parse_codes, source, header_line, columns, rows, prefixes=by_prefix))
    if not by_prefix:
        readings.append(partial(parse_outline, columns, rows, numbers=True))
        readings.append(partial(parse_path_column, source, columns, rows))
    drafts = (reading() for reading in readings)
    return next((draft for draft in drafts if draft is not None), None)


def _header(source: SourceText, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    repeated = [cell for cell, count in Counter(names).items() if count > 1 and cell]
    if repeated:
        raise FormatError(
            f"{source.name}, line 1: columns that are there twice: {listed(repeated, 9)}. Rename one."
        )
    return names


def _unknown_columns(source: SourceText, names: list[str], wanted: Mapping[str, str]) -> FormatError:
    """The error about a header without the columns of any shape, with the options that work."""
    asked = sorted({*wanted.values()} - set(names))
    remedies = [f"columns={{'id': {names[0]!r}, 'parent': ...}} names columns of ids"]
    if len(names) > 1:
        level_columns = [name for name in names if name != "label"]
        shown = ",".join(level_columns[:_SHOWN_LEVELS]) + (
            ",..." if len(level_columns) > _SHOWN_LEVELS else ""
        )
        option = shlex.quote(f"columns={shown}")
        labels = " -o label=label" if "label" in names else ""
        remedies.append(
            f"columns=[...] lists level columns from the top down (on the command line: -o {option}{labels})"
        )
    if len(names) == 2:
        remedies.append("header=False says that line 1 is an edge (on the command line: -o header=false)")
    return FormatError(
        f"{source.name}, line 1: the columns must be id and parent, or parent and child"
        f"{', or the names you gave: ' + listed(asked, 30) if asked else ''}. Got {listed(names, 30)}. {'; '.join(remedies)}."
    )


def _without_header(
    source: SourceText,
    rows: Rows,
    columns: Mapping[str, str] | Sequence[str] | None,
    label: str | None,
    ids: str,
    order: str | None,
) -> Draft:
    """Two columns are edges; more are levels, whose names must be given."""
    first = next(rows)
    names = list(columns) if columns is not None and not isinstance(columns, Mapping) else []
    rows = chain([first], rows)
    if names:
        if len(names) != len(first[1]):
            raise ConfigError(
                f"columns must name each of the {len(first[1])} columns of a table without a header. Got {len(names)} names."
            )
        levels = [name for name in names if name != label]
        return _paths(source, _header(source, names), rows, levels, label, ids)
    if len(first[1]) != 2 or columns is not None:
        raise ConfigError(
            f"header=False needs columns=[...], a name for each of the {len(first[1])} columns, top level first "
            "(on the command line: -o columns=top,...,leaf). Two columns of edges need none."
        )
    picked = _pick(source, ["parent", "child"], rows, ["parent", "child"])
    pairs = [(line, one, other) for line, (one, other) in picked if _both(source, line, one, other)]
    return draft_of_pairs(pairs, order, source.problems)


def _both(source: SourceText, line: int, parent: str, child: str) -> bool:
    if not parent or not child:
        words = f"expected a parent and a child, got {quoted(parent)} and {quoted(child)}."
        source.problems.broken(line, words)
    return bool(parent and child)


def _need(source: SourceText, header: list[str], columns: Iterable[str]) -> None:
    missing = [c for c in columns if c not in header]
    if missing:
        raise FormatError(
            f"{source.name}, line 1: no column {listed(missing, 30)}. "
            f"Columns found: {listed(header, 30)}.{similar(missing[0], header)}"
        )


def _pick(source: SourceText, header: list[str], rows: Rows, columns: Sequence[str]) -> Rows:
    """(line, cells of these columns); a column that does not exist is empty."""
    at = [header.index(c) if c and c in header else -1 for c in columns]
    given = {c for c in columns if c and c in header} - {*_ID_COLUMNS, "child"}
    for line, cells in rows:
        if len(cells) != len(header):
            words = f"expected {len(header)} columns as in the header, got {len(cells)}."
            source.problems.broken(line, words)
            continue
        picked = [cells[i] if i >= 0 else "" for i in at]
        if not given.isdisjoint(picked):
            name = next(cell for cell in picked if cell in given)
            source.problems.broken(
                line,
                f"the first line must name the columns. Got {quoted(name)} there, which is a value here, too. If the file has "
                "no header, pass header=False (on the command line: -o header=false); else rename the column.",
            )
            return
        yield line, picked


def _edges(source: SourceText, rows: Rows, asked: bool) -> Draft:
    """Columns parent and child; a child without a parent is at the top. Where they were not asked for, they may be swapped."""
    first_line: dict[tuple[str, str], int] = {}
    tops: list[str] = []
    for line, (parent, child) in rows:
        if child and not parent:
            tops.append(child)
        elif _both(source, line, parent, child):
            take_edge(parent, child, line, first_line, source.problems)
    swapped = None if asked else upside_down(list(first_line))
    if swapped:
        source.problems.broken(
            None,
            f"the columns look swapped: {swapped}. Swap them with columns={{'parent': 'child', 'child': 'parent'}} (on the "
            'command line: -o \'columns={"parent": "child", "child": "parent"}\'), or name each as it is if they are right.',
        )
    return Draft(edges=list(first_line), nodes=tops)


def _nodes(source: SourceText, rows: Rows) -> Draft:
    """One node per row: (line, [id, parent, name, label, rank, synonyms])."""
    draft = Draft()
    problems = source.problems
    first_line: dict[tuple[str, str], int] = {}
    own: dict[str, tuple[int, str, str]] = {}  # id: its first line, name and label
    labels: dict[int, tuple[str, int]] = {}  # label: id and line
    tops: set[str] = set()
    for line, (id, parent, name, label, rank, others) in rows:
        if not id:
            problems.broken(line, "the id is empty.")
            continue
        earlier = first_line.setdefault((id, parent), line)
        if earlier != line:
            words = f"below {quoted(parent)} " if parent else ""
            problems.unfit(line, f"the id {quoted(id)} is {words}on line {earlier} already. Remove one.")
            continue
        if id in own and (id in tops or not parent):
            words = f"the id {quoted(id)} is there with and without a parent (line {own[id][0]})."
            problems.unfit(line, words)
        if own.setdefault(id, (line, name, label))[1:] != (name, label):
            problems.unfit(line, f"the id {quoted(id)} has another name or label on line {own[id][0]}.")
        elif label and own[id][0] == line:
            _take_label(source, line, id, label, labels)
        if parent:
            draft.edges.append((parent, id))
        else:
            tops.add(id)
        if name:
            draft.names[id] = name
        draft.ranks |= {id: rank} if rank else {}
        draft.synonyms |= dict.fromkeys(filter(None, others.split("|")), id)
    _report_unknown_parents(first_line, own, problems)
    draft.nodes = list(own)
    if labels:
        draft.leaves = _leaf_order(source, labels)
        draft.flat = True
    return draft


def _report_unknown_parents(
    line_of: Mapping[tuple[str, str], int], ids: Iterable[str], problems: Problems
) -> None:
    """Name the parents that no row has as its id; ``line_of``: the line of each pair (id, parent)."""
    known = set(ids)
    unknown: dict[str, tuple[str, int]] = {}  # parent: the first id below it and its line
    for (id, parent), line in line_of.items():
        if parent and parent not in known:
            unknown.setdefault(parent, (id, line))
    for parent, (id, line) in list(unknown.items())[:_SHOWN_PARENTS]:
        problems.unfit(
            line,
            f"the parent {quoted(parent)} of {quoted(id)} is unknown: no row has it as its id. "
            f"Add a row for it, with an empty parent if it is a top.{similar(parent, ids, problems)}",
        )
    if len(unknown) > _SHOWN_PARENTS:
        more = list(unknown)[_SHOWN_PARENTS:]
        problems.unfit(None, f"{len(more):,} more parents are unknown: {listed(more)}.")


def _take_label(
    source: SourceText, line: int, id: str, label: str, labels: dict[int, tuple[str, int]]
) -> None:
    if not (label.isascii() and label.isdigit() and len(label) <= 18):
        source.problems.broken(line, f"the label must be a number from 0. Got {quoted(label)}.")
        return
    other, earlier = labels.setdefault(int(label), (id, line))
    if other != id:
        words = f"the label {int(label)} of {quoted(id)} belongs to {quoted(other)} already (line {earlier})."
        source.problems.unfit(line, words)


def _leaf_order(source: SourceText, labels: dict[int, tuple[str, int]]) -> list[str]:
    """The ids of the leaves by their labels; labels with a gap are a problem."""
    ordered = sorted(labels)
    for position, label in enumerate(ordered):
        if position != label:
            id, line = labels[label]
            source.problems.unfit(
                line,
                f"labels must run from 0 without a gap, and {position} is missing before the label {label} "
                f"of {quoted(id)}. Number the leaves from 0, or leave out the labels.",
            )
            break
    return [labels[label][0] for label in ordered]


def _names_of_row(source: SourceText, line: int, cells: Sequence[str], levels: Sequence[str]) -> list[str]:
    """The names of a row up to its last one; none, and a problem is noted, if there is no name or a gap among them."""
    names = [cell if cell.strip() else "" for cell in cells]
    while names and not names[-1]:
        names.pop()
    if not names:
        source.problems.broken(line, "the row has no names.")
    elif "" in names:
        gap = levels[names.index("")]
        source.problems.broken(
            line,
            f"a gap: the column {quoted(gap)} is empty, and {quoted(names[-1])} is below it. "
            "Only the end of a path may be empty: move it into that column.",
        )
        return []
    return names


def _paths(
    source: SourceText, header: list[str], rows: Rows, levels: list[str], label: str | None, ids: str
) -> Draft:
    """One label path per row: a name at each level, and a label if there is such a column."""
    if not levels:
        raise ConfigError("columns must name at least one level column. Got an empty list.")
    _need(source, header, levels if label is None else [*levels, label])
    ranks = [level.casefold() for level in levels]
    if label is None and len(levels) > 1 and set(ranks) <= set(RANKS):
        held = list(_pick(source, header, rows, levels))
        filled = [[bool(cell) for cell in cells] for _, cells in held]
        # An empty rank in the middle is skipped.
        if any(cells != sorted(cells, reverse=True) for cells in filled):
            return rank_paths(source, ((n, cells, []) for n, cells in held), ranks)
        header = levels
        rows = iter(held)
    paths, labels = _read_paths(
        source, _pick(source, header, rows, [*levels, label or ""]), levels, label, ids
    )
    depth = max(map(len, paths), default=0)
    levels = levels if depth <= len(levels) else []
    if ids == "shared":
        levels = []  # a concept below several others has no one level
    graph = edges_of_paths(paths, ids, levels or None)
    for problem in graph.problems:
        offered = [
            f"-o ids={way}" for way in ("merged", "shared", "level", "path") if f'ids="{way}"' in problem
        ]
        remedy = f" On the command line: {' or '.join(offered)}." if offered else ""
        source.problems.unfit(None, problem + remedy)
    source.problems.raise_any()
    one_root = depth > 1 and len({path[0] for path in paths}) == 1
    return Draft(
        edges=[(graph.ids[p], graph.ids[c]) for p, c in graph.edges.tolist()],
        nodes=graph.ids,
        names=graph.names,
        leaves=_leaf_order(source, labels) if label is not None else None,
        level_names=levels[one_root:depth] or None,  # a column that holds the root is not a level
        flat=depth == 1,
    )


def _read_paths(
    source: SourceText, rows: Rows, levels: list[str], label: str | None, ids: str
) -> tuple[list[tuple[str, ...]], dict[int, tuple[str, int]]]:
    """The path of each row; and the leaf of each label with its line, where the last cell is a label."""
    paths: list[tuple[str, ...]] = []
    labels: dict[int, tuple[str, int]] = {}
    label_of: dict[tuple[str, ...], str] = {}
    for line, (*cells, number) in rows:
        names = _names_of_row(source, line, cells, levels)
        if not names:
            continue
        path = tuple(names) if len(levels) > 1 else path_parts(names[0])
        paths.append(path)
        if label is None:
            continue
        if label_of.setdefault(path, number) != number:
            words = f"{quoted(path[-1])} has the label {number} here and {label_of[path]} above."
            source.problems.unfit(line, words)
        else:
            _take_label(source, line, "/".join(path) if ids == "path" else path[-1], number, labels)
    source.problems.raise_broken()
    return paths, labels


def render_csv(hierarchy: Hierarchy, delimiter: str = ",") -> str:
    """Columns id, parent, name, label, and rank and synonyms where there are any; a row for each parent of a node."""
    other: dict[str, list[str]] = {}
    for name, id in hierarchy.synonyms.items():
        other.setdefault(id, []).append(name)
    width = 6 if other else 5 if hierarchy.ranks else 4
    rows: list[tuple[str, ...]] = [_ID_COLUMNS[:width]]
    parents: list[list[int]] = [[] for _ in range(hierarchy.num_nodes)]
    for parent, child in hierarchy.edges.tolist():
        parents[child].append(parent)
    for v, label in enumerate(hierarchy.labels.tolist()):
        for parent in parents[v] or [-1]:
            above = hierarchy.nodes[parent] if parent >= 0 else ""
            id = hierarchy.nodes[v]
            rank = hierarchy.ranks[v] if hierarchy.ranks else ""
            more = "|".join(o for o in other.get(id, ()) if "|" not in o)
            rows.append((id, above, hierarchy.names[v], "" if label < 0 else str(label), rank, more)[:width])
    special = re.compile(f'[{delimiter}"\\r\\n]')

    def cell(text: str) -> str:  # csv.writer leaves a lone carriage return bare in some versions of Python
        return '"' + text.replace('"', '""') + '"' if special.search(text) else text

    return "".join(delimiter.join(map(cell, row)) + "\n" for row in rows)
