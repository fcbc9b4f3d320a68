"""Tables with named columns: CSV and TSV."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hace.errors import ConfigError, FormatError
from hace.formats.pairs import take_edge
from hace.formats.source import Draft, Source, quoted, similar
from hace.hierarchy import Hierarchy
from hace.hierarchy.build import edges_of_paths

_ID_COLUMNS = ("id", "parent", "name", "label")
_SHOWN_COLUMNS = 30
_SHOWN_PARENTS = 3


def parse_csv(
    source: Source,
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    label: str | None = None,
    ids: str = "name",
    delimiter: str = ",",
) -> Draft:
    """A table with a header, in one of three shapes.

    * `id`, `parent` and optionally `name` and `label`: a node a row, an empty parent for a top, a row for
      each parent of a node with several, and the label (0 to n - 1) of every leaf. This is what
      `write_hierarchy` writes.
    * `parent`, `child`: an edge a row.
    * One column a level, from the top down: a label path a row. Paths may end early and may repeat.

    Args:
        source: The text.
        columns: For the first two shapes the names of the columns in the file, such as {"id": "code",
            "parent": "above"}, where they differ. For the third, the list of level columns.
        label: For the third shape, the column that holds the label of the row's leaf.
        ids: For the third shape: "name", "level" or "path", as in `Hierarchy.from_paths`.
        delimiter: Between two columns.
    """
    if not (isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'):
        raise ConfigError(
            f"delimiter must be one character, neither a quote nor a line end, got {delimiter!r}."
        )
    if isinstance(columns, str):
        raise ConfigError(f"columns must be a list of columns or a mapping, got the text {quoted(columns)}.")
    header, rows = _rows(source, delimiter)
    if columns is not None and not isinstance(columns, Mapping):
        return _paths(source, _Table(source, header, rows), list(columns), label, ids)
    if label is not None or ids != "name":
        raise ConfigError(
            "label and ids need columns=[...], the list of level columns from the top down "
            "(on the command line: -o columns=top,...,leaf)."
        )
    wanted = dict(columns or {})
    if not set(wanted) <= {*_ID_COLUMNS, "child"}:
        raise ConfigError(f"columns may name id, parent, name, label and child, got {_listed(wanted)}.")
    for shape in (_ID_COLUMNS, ("parent", "child")):
        needed = shape[:2]
        if set(wanted) <= set(shape) and all(wanted.get(c, c) in header for c in needed):
            table = _Table(source, header, rows)
            table.need([wanted.get(c, c) for c in needed] + list(wanted.values()))
            picked = [wanted.get(c, c) for c in shape]
            return (_nodes if shape is _ID_COLUMNS else _edges)(source, table, picked)
    asked = sorted({*wanted.values()} - set(header))
    raise FormatError(
        f"{source.name}, line 1: expected the columns id and parent, or parent and child"
        f"{', or the names you gave: ' + _listed(asked) if asked else ''}. Columns found: {_listed(header)}. "
        "Name them with columns={'id': ..., 'parent': ...}, or list the levels with columns=[top, ..., leaf] "
        "(on the command line: -o columns=top,...,leaf)."
    )


def parse_tsv(
    source: Source,
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    label: str | None = None,
    ids: str = "name",
) -> Draft:
    """As `parse_csv`, with tabs between the columns."""
    return parse_csv(source, columns=columns, label=label, ids=ids, delimiter="\t")


def _rows(source: Source, delimiter: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header, and (line where it starts, cells) of each row that is not blank."""
    reader = csv.reader(io.StringIO(source.text, newline=""), delimiter=delimiter, strict=True)

    def rows() -> Iterator[tuple[int, list[str]]]:
        start = 1
        try:
            for cells in reader:
                if any(cells):
                    yield start, cells
                start = reader.line_num + 1
        except csv.Error as error:
            raise FormatError(f"{source.name}, line {start}: not a valid row: {error}.") from error

    found = rows()
    _, header = next(found, (1, []))
    header = [cell.strip() for cell in header]
    repeated = [cell for cell, count in Counter(header).items() if count > 1 and cell]
    if repeated:
        raise FormatError(
            f"{source.name}, line 1: columns that stand twice: {_listed(repeated)}. Rename one."
        )
    return header, found


def _listed(columns: Iterable[str]) -> str:
    columns = list(columns)
    more = f" and {len(columns) - _SHOWN_COLUMNS} more" if len(columns) > _SHOWN_COLUMNS else ""
    return ", ".join(map(quoted, columns[:_SHOWN_COLUMNS])) + more


class _Table:
    """Rows with named columns."""

    def __init__(self, source: Source, header: list[str], rows: Iterator[tuple[int, list[str]]]) -> None:
        self.source, self.header, self.rows = source, header, rows

    def need(self, columns: Sequence[str]) -> None:
        missing = [c for c in columns if c not in self.header]
        if missing:
            raise FormatError(
                f"{self.source.name}, line 1: no column {_listed(missing)}. "
                f"Columns found: {_listed(self.header)}.{similar(missing[0], self.header)}"
            )

    def pick(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """(line, cells of these columns); a column that does not exist is empty."""
        at = [self.header.index(c) if c in self.header else -1 for c in columns]
        for line, cells in self.rows:
            if len(cells) != len(self.header):
                self.source.problems.broken(
                    line, f"expected {len(self.header)} columns as in the header, got {len(cells)}."
                )
                continue
            yield line, [cells[i] if i >= 0 else "" for i in at]


def _edges(source: Source, table: _Table, columns: list[str]) -> Draft:
    first_line: dict[tuple[str, str], int] = {}
    for line, (parent, child) in table.pick(columns):
        if not parent or not child:
            source.problems.broken(
                line, f"expected a parent and a child, got {quoted(parent)} and {quoted(child)}."
            )
        else:
            take_edge(parent, child, line, first_line, source.problems)
    return Draft(edges=list(first_line))


def _nodes(source: Source, table: _Table, columns: list[str]) -> Draft:
    draft, problems = Draft(), source.problems
    first_line: dict[tuple[str, str], int] = {}
    own: dict[str, tuple[int, str, str]] = {}  # id: its first line, name and label
    labels: dict[int, tuple[str, int]] = {}  # label: id and line
    tops: set[str] = set()
    for line, (id, parent, name, label) in table.pick(columns):
        if not id:
            problems.broken(line, "the id is empty.")
            continue
        earlier = first_line.setdefault((id, parent), line)
        if earlier != line:
            words = f"below {quoted(parent)} " if parent else ""
            problems.unfit(line, f"the id {quoted(id)} stands {words}on line {earlier} already. Remove one.")
            continue
        if id in own and (id in tops or not parent):
            problems.unfit(line, f"the id {quoted(id)} stands with and without a parent (line {own[id][0]}).")
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
    unknown: dict[str, tuple[str, int]] = {}  # parent: the first id below it and its line
    for (id, parent), line in first_line.items():
        if parent and parent not in own:
            unknown.setdefault(parent, (id, line))
    for parent, (id, line) in list(unknown.items())[:_SHOWN_PARENTS]:
        problems.unfit(
            line,
            f"the parent {quoted(parent)} of {quoted(id)} is unknown: no row has it as its id. "
            f"Add a row for it, with an empty parent if it is a top.{similar(parent, own, problems)}",
        )
    if len(unknown) > _SHOWN_PARENTS:
        more = list(unknown)[_SHOWN_PARENTS:]
        problems.unfit(None, f"{len(more):,} more parents are unknown: {_listed(more)}.")
    draft.nodes = list(own)
    if labels:
        draft.leaves = _leaf_order(source, labels)
    return draft


def _take_label(source: Source, line: int, id: str, label: str, labels: dict[int, tuple[str, int]]) -> None:
    if not (label.isascii() and label.isdigit() and len(label) <= 18):
        source.problems.broken(line, f"the label must be a number from 0, got {quoted(label)}.")
        return
    other, earlier = labels.setdefault(int(label), (id, line))
    if other != id:
        source.problems.unfit(
            line,
            f"the label {int(label)} of {quoted(id)} belongs to {quoted(other)} already (line {earlier}).",
        )


def _leaf_order(source: Source, labels: dict[int, tuple[str, int]]) -> list[str]:
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


def _paths(source: Source, table: _Table, levels: list[str], label: str | None, ids: str) -> Draft:
    if not levels:
        raise ConfigError("columns must name at least one level column, got an empty list.")
    table.need(levels if label is None else [*levels, label])
    paths: list[tuple[str, ...]] = []
    labels: dict[int, tuple[str, int]] = {}
    label_of: dict[tuple[str, ...], str] = {}
    for line, cells in table.pick([*levels, label or ""]):
        *names, number = cells
        names = [name if name.strip() else "" for name in names]
        while names and not names[-1]:
            names.pop()
        if not names:
            source.problems.broken(line, "the row has no names.")
            continue
        if "" in names:
            gap = levels[names.index("")]
            source.problems.broken(
                line,
                f"a gap: the column {quoted(gap)} is empty, and {quoted(names[-1])} stands below it. "
                "Only the end of a path may be empty.",
            )
            continue
        path = tuple(names)
        paths.append(path)
        if label is not None:
            if label_of.setdefault(path, number) != number:
                source.problems.unfit(
                    line, f"{quoted(path[-1])} has the label {number} here and {label_of[path]} above."
                )
            else:
                _take_label(source, line, "/".join(path) if ids == "path" else path[-1], number, labels)
    source.problems.raise_broken()
    found = edges_of_paths(paths, ids, levels)
    for problem in found.problems:
        remedy = " On the command line: -o ids=path." if "use ids=" in problem else ""
        source.problems.unfit(None, problem + remedy)
    source.problems.raise_any()
    depth = max(map(len, paths), default=0)
    one_root = depth > 1 and len({path[0] for path in paths}) == 1
    return Draft(
        edges=[(found.ids[p], found.ids[c]) for p, c in found.edges.tolist()],
        nodes=found.ids,
        names=found.names,
        leaves=_leaf_order(source, labels) if label is not None else None,
        level_names=levels[one_root:depth],  # a column that holds the root has no level of its own
    )


def render_csv(hierarchy: Hierarchy, delimiter: str = ",") -> str:
    """Columns id, parent, name, label; a node with several parents has a row for each of them."""
    rows: list[tuple[str, ...]] = [_ID_COLUMNS]
    parents: list[list[int]] = [[] for _ in range(hierarchy.num_nodes)]
    for parent, child in hierarchy.edges.tolist():
        parents[child].append(parent)
    for v, label in enumerate(hierarchy.labels.tolist()):
        for parent in parents[v] or [-1]:
            above = hierarchy.nodes[parent] if parent >= 0 else ""
            rows.append((hierarchy.nodes[v], above, hierarchy.names[v], "" if label < 0 else str(label)))
    special = re.compile(f'[{delimiter}"\\r\\n]')

    def cell(text: str) -> str:  # csv.writer leaves a lone carriage return bare in some versions of Python
        return '"' + text.replace('"', '""') + '"' if special.search(text) else text

    return "".join(delimiter.join(map(cell, row)) + "\n" for row in rows)


def render_tsv(hierarchy: Hierarchy) -> str:
    """As `render_csv`, with tabs between the columns."""
    return render_csv(hierarchy, delimiter="\t")
