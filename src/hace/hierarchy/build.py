"""From the ways people write a hierarchy down (edges, parents, label paths, objects, graphs) to ids and edges.

Only what cannot be an id is refused here; other problems are collected, and the assembly reports them together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, count, groupby
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np

from hace.checks import check_choice
from hace.errors import HierarchyError, listed
from hace.hierarchy.assembly import IntArray, as_id, as_ids

if TYPE_CHECKING:
    import networkx as nx


PATH_MARK = " > "  # between the names of a path that is one text
_MERGE = ' ids="merged" makes one node of a class and the group of its name.'
_SHARE = ' If they are one concept below several others, ids="shared" makes one node of them, and the hierarchy a DAG.'
# pandas.NA and NaT, by name: they do not compare, and pandas may not be installed.
_PANDAS_MISSING = ("NAType", "NaTType")
# Ids made of paths grow with the square of the depth: a chain of 100,000 names would take gigabytes.
_MAX_PATH_CHARACTERS = 1 << 28
Key = TypeVar("Key")


class Frame(Protocol):
    """A data frame of pandas or polars: columns with names, and rows."""

    columns: Any  # their names


def frame_rows(table: Any, argument: str) -> tuple[list[str], Iterable[tuple[Any, ...]]] | None:
    """Column names and rows of a pandas or polars frame; None for anything else."""
    columns = getattr(table, "columns", getattr(table, "column_names", None))
    if columns is None or isinstance(table, Mapping):
        return None
    if hasattr(table, "itertuples"):  # pandas
        return [str(c) for c in columns], table.itertuples(index=False, name=None)
    if hasattr(table, "iter_rows"):  # polars
        return [str(c) for c in columns], table.iter_rows()
    raise HierarchyError(
        f"{argument} must be a list, or a frame of pandas or polars. Got {type(table).__name__}. "
        "Convert it, for instance with .to_pandas() or .collect()."
    )


class PathTable(NamedTuple):
    """What label paths amount to."""

    ids: list[str]
    edges: IntArray
    names: dict[str, str]
    level_names: tuple[str, ...] | None
    problems: list[str]


def index_edges(
    edges: Iterable[tuple[Any, Any]] | Frame, nodes: Iterable[Any], argument: str = "nodes"
) -> tuple[list[str], IntArray, list[str]]:
    """Ids and index pairs of (parent, child) pairs; ``argument`` names the list of nodes in messages."""
    known = as_ids(nodes, argument)
    index = {node: i for i, node in enumerate(dict.fromkeys(known))}
    problems = []
    if len(index) < len(known):
        twice = [node for node, k in Counter(known).items() if k > 1]
        problems.append(
            f"{argument} repeats {listed(twice)}. Each id must occur once (1 and '1' are the same id)."
        )
    frame = frame_rows(edges, "edges")
    given: Any = edges if frame is None else _named_pairs(*frame)
    pairs: list[Any] = _list_of(given, "edges", "pairs (parent, child)")
    if set(map(type, pairs)) != {tuple} or set(map(len, pairs)) != {2}:
        for edge in pairs:
            if isinstance(edge, str) or not hasattr(edge, "__len__") or len(edge) != 2:
                raise HierarchyError(f"edges must be pairs (parent, child). Got {edge!r}.")
    places, ends = _index_texts(pairs, index) or _index_ids(pairs, index)
    return list(places), _pairs(ends), problems


def _index_texts(pairs: list[Any], index: Mapping[str, int]) -> tuple[dict[str, int], list[int]] | None:
    """All ids, and the ends of edges as their indices, without a step of Python for each. None if an end is no id as it is."""
    places = _growing(index)
    try:
        ends = list(map(places.__getitem__, chain.from_iterable(pairs)))
    except TypeError:  # a list, for instance
        return None
    are_ids = set(map(type, places)) <= {str} and "" not in places
    return (places, ends) if are_ids else None


def _index_ids(pairs: list[Any], index: Mapping[str, int]) -> tuple[dict[str, int], list[int]]:
    """The same, with every end made an id."""
    places = _growing(index)
    return places, [places[as_id(end, "edges")] for edge in pairs for end in edge]


def _growing(index: Mapping[str, int]) -> dict[str, int]:
    """A copy that gives a new id the next index when it is looked up."""
    return defaultdict(count(len(index)).__next__, index)


def _list_of(given: Any, argument: str, what: str) -> list[Any]:
    """What an argument holds, as a list."""
    try:
        return list(given)
    except TypeError:
        raise HierarchyError(f"{argument} must be {what}. Got {given!r:.80}.") from None


def _named_pairs(columns: list[str], rows: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, Any]]:
    places = [[i for i, c in enumerate(columns) if c.casefold() == name] for name in ("parent", "child")]
    if any(len(positions) != 1 for positions in places):
        raise HierarchyError(
            f"A frame of edges must have a column 'parent' and a column 'child'. Got {listed(columns)}. Rename its "
            "columns, or use Hierarchy.from_paths for one column per level."
        )
    (parent,), (child,) = places
    return ((row[parent], row[child]) for row in rows)


def edges_of_parents(
    parents: Mapping[Any, Any] | Sequence[int] | np.ndarray,
) -> tuple[list[str], IntArray, list[str]]:
    """Ids and index pairs of a mapping child -> parents, of a pandas Series, or of an array of parent positions."""
    if hasattr(parents, "items") and not isinstance(parents, Mapping) and not hasattr(parents, "columns"):
        parents_of: dict[Any, list[Any]] = {}  # of a Series: an id may occur once for each of its parents
        for row, (node, above) in enumerate(parents.items(), start=1):  # type: ignore[union-attr]
            cell = _cell(above, row, "parents")
            parents_of.setdefault(node, []).extend([] if cell is None else [cell])
        parents = parents_of
    if not isinstance(parents, Mapping):
        if frame_rows(parents, "parents") is not None:
            raise HierarchyError(
                "parents must be a mapping or a 1-D array of integers. Got a frame: use Hierarchy.from_edges with its "
                "columns 'parent' and 'child'."
            )
        array = np.asarray(parents)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise HierarchyError(
                "parents must be a mapping or a 1-D array of integers (-1 for a top). "
                f"Got shape {array.shape} of {array.dtype}."
            )
        array = array.astype(np.int64)
        n = len(array)
        outside = np.flatnonzero((array < -1) | (array >= n))
        problems = [
            f"Unknown parent {int(array[i])} of node {i}: parents must be positions from 0 to {n - 1}, or -1 for a top."
            for i in outside.tolist()
        ]
        children = np.flatnonzero((array >= 0) & (array < n))
        return list(map(str, range(n))), np.stack([array[children], children], axis=1), problems
    keys = as_ids(parents, "parents")
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    twice = [key for key, count in Counter(keys).items() if count > 1]
    problems = [f"parents has two keys for the id {key!r}. Each id must occur once." for key in twice]
    flat: list[int] = []
    unknown: dict[str, str] = {}
    for child, above in zip(keys, parents.values(), strict=True):
        several = isinstance(above, Iterable) and not isinstance(above, str)
        for parent in above if several else () if above is None else (above,):
            key = as_id(parent, "parents")
            if key in index:
                flat += (index[key], index[child])
            else:
                unknown.setdefault(key, child)
    problems += [
        f"Unknown parent {parent!r} of {child!r}: it is not a key of parents. "
        f"Add {{{parent!r}: None}} if it is a top, or correct it."
        for parent, child in unknown.items()
    ]
    return list(index), _pairs(flat), problems


class PathTree(Generic[Key]):
    """Paths from the top down, merged where they begin alike. A place is a number; parents come first; -1 is above the tops."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.keys: list[Key] = []  # the last step of each place
        self._place_of: dict[tuple[int, Key], int] = {}

    def add(self, path: Iterable[Key]) -> int:
        """The place at the end of a path."""
        place = -1
        for key in path:
            parent = place
            place = self._place_of.setdefault((place, key), len(self.keys))
            if place == len(self.keys):
                self.parents.append(parent)
                self.keys.append(key)
        return place

    def path(self, place: int) -> list[Key]:
        """The steps from the top down to a place."""
        upward = []
        while place >= 0:
            upward.append(self.keys[place])
            place = self.parents[place]
        return upward[::-1]

    def depths(self) -> list[int]:
        """The number of steps to each place, 1 at the tops."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def joined(self, names: Sequence[str], mark: str) -> list[str]:
        """The names on the way to each place, in one text."""
        texts: list[str] = []
        length = 0
        for name, parent in zip(names, self.parents, strict=True):
            text = name if parent < 0 else f"{texts[parent]}{mark}{name}"
            length += len(text)
            if length > _MAX_PATH_CHARACTERS:
                raise HierarchyError(
                    f"Paths are too deep to be ids: they must have at most {_MAX_PATH_CHARACTERS:,} characters together. "
                    "Give the nodes names that are unique."
                )
            texts.append(text)
        return texts


def edges_of_paths(paths: Any, ids: str, level_names: Sequence[str] | None) -> PathTable:
    """Ids and index pairs of label paths; see :meth:`hace.Hierarchy.from_paths`."""
    check_choice("ids", ids, ("name", "shared", "merged", "level", "path"), HierarchyError)
    if isinstance(level_names, str):
        raise HierarchyError(f"level_names must be a list of names, one a column. Got {level_names!r}.")
    rows, header = _rows_of_paths(paths)
    names = header if level_names is None else level_names
    levels = None if names is None else tuple(str(name) for name in names)
    if ids == "shared" and level_names is None:
        levels = None  # a concept below several others has no one level
    problems: list[str] = []
    tree = _tree_of_rows(rows, ids == "merged", levels, problems)
    place_ids = _place_ids(tree, ids, levels)
    place_of: dict[str, int] = {}  # id: the first place that has it
    shared: dict[str, int] = {}  # id: the second place that has it
    for place, id in enumerate(place_ids):
        if place_of.setdefault(id, place) != place:
            shared.setdefault(id, place)
    if shared and ids != "shared":
        problems.append(_shared_id_problem(tree, place_of, shared, ids))
    index = {id: i for i, id in enumerate(place_of)}
    # A shared concept has the parents of all its places, another node those of its first.
    places = range(len(place_ids)) if ids == "shared" else place_of.values()
    edges: dict[tuple[int, int], None] = {}  # a dict, for each edge once and in order
    for place in places:
        parent = tree.parents[place]
        if parent >= 0:
            edges[index[place_ids[parent]], index[place_ids[place]]] = None
    names_of = {id: tree.keys[place] for id, place in place_of.items()}
    ends = [end for edge in edges for end in edge]
    return PathTable(list(index), _pairs(ends), names_of, levels, problems)


def _tree_of_rows(
    rows: Iterable[Any], merged: bool, levels: Sequence[str] | None, problems: list[str]
) -> PathTree[str]:
    """The paths of all rows as one tree; ``merged``: a name right below itself is one node."""
    tree: PathTree[str] = PathTree()
    row_of_end: dict[int, int] = {}  # the place at the end of a row: the first such row
    for number, row in enumerate(rows, start=1):
        path = _cells(row, number, problems)
        if merged:
            path = tuple(name for name, _ in groupby(path))
        if levels is not None and len(path) > len(levels):
            problems.append(f"Row {number} has {len(path)} names, but level_names only {len(levels)}.")
        elif path:
            row_of_end.setdefault(tree.add(path), number)
    if merged:
        _report_classes_above_others(tree, row_of_end, problems)
    return tree


def _rows_of_paths(paths: Any) -> tuple[Iterable[Any], Sequence[str] | None]:
    """One row of names per path, and the columns of a table. Texts such as "Home > Garden > Pots" are split."""
    frame = frame_rows(paths, "paths")
    if frame is None:
        rows = [paths] if isinstance(paths, str) else _list_of(paths, "paths", "rows of names")
        if any(isinstance(row, str) and PATH_MARK in row for row in rows):
            rows = [path_parts(row) if isinstance(row, str) else row for row in rows]
        return rows, None
    header, rows = frame
    if len(header) == 1:
        rows = [path_parts(cell) if isinstance(cell, str) else (cell,) for (cell,) in rows]
        if any(len(row) > 1 for row in rows):
            return rows, None  # the one column's name is not that of a level
    return rows, header


def _report_classes_above_others(
    tree: PathTree[str], row_of_end: Mapping[int, int], problems: list[str]
) -> None:
    """Merging a class with the group of its name loses the class if the group has other classes."""
    inner = set(tree.parents)
    above = [(number, tree.keys[place]) for place, number in row_of_end.items() if place in inner]
    if above:
        number, name = above[0]
        problems.append(
            f"Row {number} ends at {name!r}, which has classes below it in other rows{_others(len(above) - 1, 'row')}. "
            'A class must be a leaf. Give it another name than its group, or use ids="level".'
        )


def _place_ids(tree: PathTree[str], ids: str, levels: Sequence[str] | None) -> list[str]:
    """The id of each place: its path, its name with its level, or its name."""
    if ids == "path":
        return tree.joined(tree.keys, "/")
    if ids != "level":
        return tree.keys
    inner = set(tree.parents)
    return [
        f"{levels[depth - 1] if levels else depth}:{name}" if place in inner else name
        for place, (name, depth) in enumerate(zip(tree.keys, tree.depths(), strict=True))
    ]


def _shared_id_problem(
    tree: PathTree[str], place_of: Mapping[str, int], shared: Mapping[str, int], ids: str
) -> str:
    """What to say of ids that several places have."""
    id, second = next(iter(shared.items()))
    first = place_of[id]
    where = " and ".join(" / ".join(tree.path(place)) for place in (first, second))
    finer = {"level": ', or use ids="path"', "path": ""}.get(ids, ', or use ids="level" or ids="path"')
    remedy = ""
    if tree.parents[second] == first and ids == "name":
        remedy = _MERGE
    elif ids == "name":
        remedy = _SHARE
    others = _others(len(shared) - 1, "name")
    return f"{id!r} is at two places: {where}{others}. Give them different names{finer}.{remedy}"


def path_parts(text: str) -> tuple[str, ...]:
    """The names of a path written as one text, "Home > Garden > Pots"."""
    return tuple(part.strip() for part in text.split(PATH_MARK))


def _others(count: int, what: str) -> str:
    return f", and {count:,} more {what}{'s' * (count > 1)} likewise" if count else ""


def _cells(row: Sequence[Any], number: int, problems: list[str]) -> tuple[str, ...]:
    """The names of one row, without the missing cells at its end."""
    if isinstance(row, str | Mapping | AbstractSet) or not isinstance(row, Iterable):
        remedy = " Tables of columns go in as a DataFrame." if isinstance(row, Mapping) else ""
        raise HierarchyError(
            f"Row {number} of paths must be a sequence of names, from the top down. Got {row!r}.{remedy}"
        )
    cells = [_cell(c, number) for c in row]
    while cells and cells[-1] is None:
        cells.pop()
    if None in cells:
        problems.append(
            f"Row {number} has a gap: no name at level {cells.index(None) + 1}, but {cells[-1]!r} below it. "
            "Only the end of a row may be empty."
        )
        return ()
    return tuple(c for c in cells if c is not None)


def _cell(value: Any, number: int, of: str = "paths") -> str | None:
    no_text = value is None or (isinstance(value, str) and not value)
    not_a_number = isinstance(value, float) and value != value
    if no_text or not_a_number or type(value).__name__ in _PANDAS_MISSING:
        return None
    if isinstance(value, float) and value.is_integer():  # integers in a column with gaps
        value = int(value)
    return as_id(value, f"Row {number} of {of}")


def _pairs(flat: list[int]) -> IntArray:
    return np.array(flat, dtype=np.int64).reshape(-1, 2)


_MISSING: Any = object()


# Ids of the tops, (parent, child) pairs and names by id.
_Traversal = tuple[list[str], list[tuple[str, str]], dict[str, str]]


class _Branch(NamedTuple):
    """An entry of a nested dict."""

    name: Any
    below: Any


def edges_of_tree(tree: Any, children: str, parents: str | None, name: str, ids: str) -> _Traversal:
    """Edges and names of nested dicts or node objects; see :meth:`hace.Hierarchy.from_tree`."""
    check_choice("ids", ids, ("name", "path"), HierarchyError)
    if parents is not None and ids == "path":
        raise HierarchyError("ids must be 'name' with parents=: a node may have several paths.")
    tops, edges, names = _walk(_tops(tree, name), parents or children, name, ids)
    return tops, [(b, a) for a, b in edges] if parents else edges, names


def _tops(tree: Any, name: str) -> list[Any]:
    """The nodes a walk starts from."""
    if isinstance(tree, Mapping):
        # A node with a name, as in JSON, or names and what is below them.
        record = isinstance(tree.get(name), (str, int)) and not isinstance(tree[name], bool)
        return [tree] if record else list(_branches(tree))
    return list(tree) if isinstance(tree, (list, tuple, set, frozenset)) else [tree]


def _branches(below: Any) -> Iterator[_Branch]:
    """What is below a key: a dict, a list of names and dicts, a single name, or nothing."""
    if isinstance(below, Mapping):
        yield from (_Branch(key, value) for key, value in below.items())
    elif below is None:
        return
    elif isinstance(below, (list, tuple, set, frozenset)):
        for item in below:
            yield from _branches(item)
    else:
        yield _Branch(below, None)


def _get(node: Any, attribute: str) -> Any:
    value = node.get(attribute) if isinstance(node, Mapping) else getattr(node, attribute, _MISSING)
    if value is _MISSING:
        raise HierarchyError(
            f"A node of the tree must have the attribute {attribute!r}. Got {type(node).__name__} without it: name the right "
            "one with children=, parents= or name=."
        )
    return value() if callable(value) else value


def _next(node: Any, attribute: str) -> list[Any]:
    if isinstance(node, _Branch):
        return list(_branches(node.below))
    related = _get(node, attribute)
    if related is None:
        return []
    return (
        list(related)
        if isinstance(related, Iterable) and not isinstance(related, (str, Mapping))
        else [related]
    )


def _walk(tops: list[Any], attribute: str, name: str, ids: str) -> _Traversal:
    """Every node once, every edge once, in the order of the tree; a stack, so that depth does not matter."""
    seen: dict[str, Any] = {}
    begin: list[str] = []
    edges: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    problems: dict[str, None] = {}
    stack: list[tuple[Any, str | None]] = [(node, None) for node in reversed(tops)]
    nameless = 0
    while stack:
        node, before = stack.pop()
        title = node.name if isinstance(node, _Branch) else _get(node, name)
        if title is None or title == "":
            nameless += 1
            title = f"node{nameless}"
        title = as_id(title, "tree")
        key = title if ids == "name" or before is None else f"{before}/{title}"
        if before is None:
            begin.append(key)
        else:
            edges.append((before, key))
        if key not in seen:
            seen[key] = node
            names[key] = title
            stack += [(child, key) for child in reversed(_next(node, attribute))]
        elif isinstance(node, _Branch) or (seen[key] is not node and seen[key] != node):
            problems[f"Two nodes are called {key!r}. Rename one, or use ids='path'."] = None
    if problems:
        raise HierarchyError(list(problems))
    return begin, edges, names


Direction = Literal["parent_to_child", "child_to_parent"]
_RELATIONS = {"is_a", "part_of"}  # edge keys of ontology graphs, which point from child to parent


def graph_parts(graph: nx.DiGraph, direction: str) -> tuple[list[tuple[Any, Any]], dict[Any, str]]:
    """(parent, child) pairs and names of a graph; see :meth:`hace.Hierarchy.from_networkx`."""
    check_choice("direction", direction, get_args(Direction), HierarchyError)
    if isinstance(graph, type) or not hasattr(graph, "is_directed"):
        raise HierarchyError(
            f"graph must be a directed graph of networkx. Got {graph!r:.80}. Pairs go to Hierarchy.from_edges."
        )
    if not graph.is_directed():
        raise HierarchyError("graph must be directed. Got an undirected graph.")
    every: Any = graph.edges
    keys = {edge[2] for edge in every(keys=True)} if graph.is_multigraph() else set()
    if direction == "parent_to_child" and keys & _RELATIONS and "is_a" not in keys:
        raise HierarchyError(
            f"The edges of graph must point from parent to child. Got the relations {listed(sorted(map(str, keys)))}, as "
            "obonet reads them from child to parent: pass direction='child_to_parent'."
        )
    edges = list(dict.fromkeys((edge[0], edge[1]) for edge in graph.edges()))
    if "is_a" in keys:  # an ontology as obonet reads it: other relations are no levels
        edges = [(edge[0], edge[1]) for edge in every(keys=True) if edge[2] == "is_a"]
    if direction == "child_to_parent" or "is_a" in keys:
        edges = [(parent, child) for child, parent in edges]
    names = {k: str(v) for k, v in graph.nodes(data="name") if v is not None}
    return edges, names


def labelled(graph: nx.DiGraph) -> list[Any] | None:
    """The nodes with an attribute ``label``, in its order; None where there are none."""
    labels: dict[Any, Any] = {k: v for k, v in graph.nodes(data="label") if v is not None}
    strange = [f"{k}: {v!r}" for k, v in labels.items() if not isinstance(v, (int, np.integer))]
    if strange:
        raise HierarchyError(f"The node attribute label must be an integer. Got {listed(strange)}.")
    labels = {k: v for k, v in labels.items() if v >= 0}
    shared = [v for v, k in Counter(labels.values()).items() if k > 1]
    if shared:
        raise HierarchyError(f"Labels must differ. Got {listed(map(str, shared))} at several nodes.")
    return sorted(labels, key=lambda k: labels[k]) if labels else None
