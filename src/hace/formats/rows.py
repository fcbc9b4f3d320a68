"""From rows of a table to a draft: one node per row, or one label path per row."""

from __future__ import annotations

from collections.abc import Iterator

from hace.errors import listed
from hace.formats.source import Draft, SourceText, quoted, similar
from hace.hierarchy.build import edges_of_paths

Rows = Iterator[tuple[int, list[str]]]  # (line, cells)
_SHOWN_PARENTS = 3


def draft_of_nodes(source: SourceText, rows: Rows) -> Draft:
    """One node per row.

    Args:
        source: Where problems are reported.
        rows: (line, [id, parent, name, label]).
    """
    draft, problems = Draft(), source.problems
    first_line: dict[tuple[str, str], int] = {}
    own: dict[str, tuple[int, str, str]] = {}  # id: its first line, name and label
    labels: dict[int, tuple[str, int]] = {}  # label: id and line
    tops: set[str] = set()
    for line, (id, parent, name, label) in rows:
        if not id:
            problems.broken(line, "the id is empty.")
            continue
        earlier = first_line.setdefault((id, parent), line)
        if earlier != line:
            words = f"below {quoted(parent)} " if parent else ""
            problems.unfit(line, f"the id {quoted(id)} is {words}on line {earlier} already. Remove one.")
            continue
        if id in own and (id in tops or not parent):
            problems.unfit(
                line, f"the id {quoted(id)} is there with and without a parent (line {own[id][0]})."
            )
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
        problems.unfit(None, f"{len(more):,} more parents are unknown: {listed(more)}.")
    draft.nodes = list(own)
    if labels:
        draft.leaves, draft.flat = _leaf_order(source, labels), True
    return draft


def _take_label(
    source: SourceText, line: int, id: str, label: str, labels: dict[int, tuple[str, int]]
) -> None:
    if not (label.isascii() and label.isdigit() and len(label) <= 18):
        source.problems.broken(line, f"the label must be a number from 0. Got {quoted(label)}.")
        return
    other, earlier = labels.setdefault(int(label), (id, line))
    if other != id:
        source.problems.unfit(
            line,
            f"the label {int(label)} of {quoted(id)} belongs to {quoted(other)} already (line {earlier}).",
        )


def _leaf_order(source: SourceText, labels: dict[int, tuple[str, int]]) -> list[str]:
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


def draft_of_paths(source: SourceText, rows: Rows, levels: list[str], labelled: bool, ids: str) -> Draft:
    """One label path per row.

    Args:
        source: Where problems are reported.
        rows: (line, [name at each level, label]); the label is not looked at where rows have none.
        levels: The names of the levels.
        labelled: Whether rows have labels.
        ids: "name", "merged", "level" or "path", as in `Hierarchy.from_paths`.
    """
    paths: list[tuple[str, ...]] = []
    labels: dict[int, tuple[str, int]] = {}
    label_of: dict[tuple[str, ...], str] = {}
    for line, cells in rows:
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
                f"a gap: the column {quoted(gap)} is empty, and {quoted(names[-1])} is below it. "
                "Only the end of a path may be empty.",
            )
            continue
        path = tuple(names)
        paths.append(path)
        if labelled:
            if label_of.setdefault(path, number) != number:
                source.problems.unfit(
                    line, f"{quoted(path[-1])} has the label {number} here and {label_of[path]} above."
                )
            else:
                _take_label(source, line, "/".join(path) if ids == "path" else path[-1], number, labels)
    source.problems.raise_broken()
    found = edges_of_paths(paths, ids, levels)
    for problem in found.problems:
        offered = [f"-o ids={way}" for way in ("merged", "level", "path") if f'ids="{way}"' in problem]
        remedy = f" On the command line: {' or '.join(offered)}." if offered else ""
        source.problems.unfit(None, problem + remedy)
    source.problems.raise_any()
    depth = max(map(len, paths), default=0)
    one_root = depth > 1 and len({path[0] for path in paths}) == 1
    return Draft(
        edges=[(found.ids[p], found.ids[c]) for p, c in found.edges.tolist()],
        nodes=found.ids,
        names=found.names,
        leaves=_leaf_order(source, labels) if labelled else None,
        level_names=levels[one_root:depth],  # a column that holds the root is not a level
        flat=len(levels) == 1,
    )
