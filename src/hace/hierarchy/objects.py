"""Trees as Python objects: nested dicts and lists, and the nodes of tree libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hace.errors import HierarchyError
from hace.hierarchy.assembly import as_id
from hace.hierarchy.induction import Induced

if TYPE_CHECKING:
    from hace.hierarchy.hierarchy import Hierarchy


class Converted(Induced):
    """The part of :class:`hace.Hierarchy` that reads trees of Python objects."""

    @classmethod
    def from_tree(
        cls,
        tree: Any,
        *,
        children: str = "children",
        parents: str | None = None,
        name: str = "name",
        ids: Literal["name", "path"] = "name",
        leaves: Iterable[Any] | None = None,
        level_names: Sequence[str] | None = None,
        rooted: bool | None = None,
    ) -> Hierarchy:
        """A hierarchy from a nested dict, or from the node objects of a tree library (bigtree, anytree, ete, NLTK's WordNet).

        Args:
            tree: a nested dict, whose values are dicts, lists of classes, or None; or a node or a list of nodes, objects or
                dicts with a name and children.
            children: the attribute, key or method that holds a node's children.
            parents: the one that holds a node's parents, to walk up instead: ``tree`` is then the list of classes, in label
                order.
            name: the one that holds a node's name. Nodes without one get the ids node1, node2, ...
            ids: what makes a node. ``"name"``: its name; two nodes of one name are an error. ``"path"``: the names from the
                top, joined with "/".
            leaves: as in :meth:`from_edges`.
            level_names: as in :meth:`from_edges`.
            rooted: as in :meth:`from_edges`.

        Example:
            >>> from hace import Hierarchy
            >>> h = Hierarchy.from_tree({"animal": {"dog": ["husky", "beagle"], "cat": None}})
            >>> h.nodes
            ('animal', 'dog', 'beagle', 'husky', 'cat')
        """
        if ids not in ("name", "path"):
            raise HierarchyError(f"ids must be 'name' or 'path'. Got {ids!r}.")
        if parents is not None and ids == "path":
            raise HierarchyError("ids must be 'name' with parents=: a node may have several paths.")
        tops = _tops(tree, name)
        found = _walk(tops, parents or children, name, ids)
        edges = [(b, a) for a, b in found.edges] if parents else found.edges
        if parents and leaves is None:
            leaves = found.tops
        return cls.from_edges(  # pyright: ignore[reportAttributeAccessIssue]
            edges, nodes=found.names, names=found.names, leaves=leaves, level_names=level_names, rooted=rooted
        )


_MISSING: Any = object()


class _Found(NamedTuple):
    tops: list[str]
    edges: list[tuple[str, str]]
    names: dict[str, str]  # by id


class _Branch(NamedTuple):
    """An entry of a nested dict."""

    name: Any
    below: Any


def _tops(tree: Any, name: str) -> list[Any]:
    """The nodes a walk starts from."""
    if isinstance(tree, Mapping) and not _is_record(tree, name):
        return list(_branches(tree))
    several = isinstance(tree, (list, tuple, set, frozenset)) and not isinstance(tree, _Branch)
    return list(tree) if several else [tree]


def _is_record(tree: Mapping[Any, Any], name: str) -> bool:
    """Whether a mapping is a node with a name, as in JSON, rather than names and what is below them."""
    return isinstance(tree.get(name), (str, int)) and not isinstance(tree[name], bool)


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
    found = _get(node, attribute)
    if found is None:
        return []
    return list(found) if isinstance(found, Iterable) and not isinstance(found, (str, Mapping)) else [found]


def _walk(tops: list[Any], attribute: str, name: str, ids: str) -> _Found:
    """Every node once, every edge once, in the order of the tree; a stack, so that depth does not matter."""
    seen: dict[str, Any] = {}
    found = _Found([], [], {})
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
            found.tops.append(key)
        else:
            found.edges.append((before, key))
        if key not in seen:
            seen[key], found.names[key] = node, title
            stack += [(child, key) for child in reversed(_next(node, attribute))]
        elif isinstance(node, _Branch) or (seen[key] is not node and seen[key] != node):
            problems[f"Two nodes are called {key!r}. Rename one, or use ids='path'."] = None
    if problems:
        raise HierarchyError(list(problems))
    return found
