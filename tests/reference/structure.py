"""Structure by the definitions: depth, height, ancestors, common ancestors, distances, levels.

`None` is the virtual root above the tops of an unrooted hierarchy: depth 0, one edge above every top.
"""

from __future__ import annotations

from tests.hierarchies import Plain


def ancestors(h: Plain, v: str) -> set[str]:
    """All nodes on a way from `v` upwards, `v` itself included."""
    result, open_nodes = {v}, [v]
    while open_nodes:
        above = set(h.parents[open_nodes.pop()]) - result
        result |= above
        open_nodes += above
    return result


def descendants(h: Plain, v: str) -> set[str]:
    """All nodes that have `v` among their ancestors, `v` itself included."""
    return {w for w in h.parents if v in ancestors(h, w)}


def leaves_below(h: Plain, v: str) -> set[str]:
    """The leaves among the descendants of `v`; a leaf is below itself."""
    return descendants(h, v) & set(h.leaves)


def children(h: Plain) -> dict[str, list[str]]:
    """For every node the nodes that name it as a parent."""
    below: dict[str, list[str]] = {v: [] for v in h.parents}
    for child, above in h.parents.items():
        for parent in above:
            below[parent].append(child)
    return below


def depths(h: Plain) -> dict[str, int]:
    """Longest way down to each node: 0 at a root, 1 at the tops of an unrooted hierarchy."""
    known: dict[str, int] = {}

    def depth(v: str) -> int:
        if v not in known:
            above = [depth(parent) for parent in h.parents[v]]
            known[v] = max(above) + 1 if above else (0 if h.rooted else 1)
        return known[v]

    return {v: depth(v) for v in h.parents}


def heights(h: Plain) -> dict[str | None, int]:
    """Longest way down from each node to a leaf; `None`, the virtual root, when unrooted."""
    below, known = children(h), {}

    def height(v: str) -> int:
        if v not in known:
            known[v] = max((height(child) + 1 for child in below[v]), default=0)
        return known[v]

    result: dict[str | None, int] = {v: height(v) for v in h.parents}
    if not h.rooted:
        result[None] = max(height(v) for v in h.tops) + 1
    return result


def max_depth(h: Plain) -> int:
    """The greatest depth of a node."""
    return max(depths(h).values())


def path(h: Plain, v: str) -> list[str]:
    """From `v` up to its top; trees and forests only."""
    above = h.parents[v]
    assert len(above) <= 1, f"{v} has several parents: a path is not unique"
    return [v] + (path(h, above[0]) if above else [])


def lca_candidates(h: Plain, a: str, b: str) -> set[str | None]:
    """Common ancestors of least height and, among these, of greatest depth; {None} is the virtual root.

    On a tree the set has one member. On a DAG it may have several, all at the same distances.
    """
    common = ancestors(h, a) & ancestors(h, b)
    if not common:
        return {None}
    height, depth = heights(h), depths(h)
    least = min(height[v] for v in common)
    lowest = {v for v in common if height[v] == least}
    deepest = max(depth[v] for v in lowest)
    return {v for v in lowest if depth[v] == deepest}


def climbs(h: Plain, v: str) -> dict[str | None, int]:
    """Fewest edges from `v` up to each of its ancestors; the virtual root is one edge above the tops."""
    fewest: dict[str | None, int] = {v: 0}
    frontier: list[str] = [v]
    while frontier:
        following: list[str] = []
        for w in frontier:
            above: list[str | None] = [*h.parents[w]]
            if not above and not h.rooted:
                above = [None]
            for parent in above:
                if parent not in fewest:
                    fewest[parent] = fewest[w] + 1
                    if parent is not None:
                        following.append(parent)
        frontier = following
    return fewest


def pair_distance(h: Plain, a: str, b: str, distance: str = "lca_height") -> int:
    """Distance of two nodes; 0 between a node and itself by every convention.

    lca_height: height of the LCA. lca_depth: greatest depth minus the depth of the LCA. edges: fewest edges
    of a way that climbs from one node to a common ancestor and descends to the other.
    """
    if a == b:
        return 0
    if distance == "edges":
        up_a, up_b = climbs(h, a), climbs(h, b)
        return min(up_a[v] + up_b[v] for v in up_a if v in up_b)
    meeting = lca_candidates(h, a, b).pop()
    if distance == "lca_height":
        return heights(h)[meeting]
    if distance == "lca_depth":
        return max_depth(h) - (0 if meeting is None else depths(h)[meeting])
    raise ValueError(distance)


def max_distance(h: Plain, distance: str = "lca_height") -> int:
    """The greatest distance of two leaves; 0 when there is one leaf."""
    return max(pair_distance(h, a, b, distance) for a in h.leaves for b in h.leaves)


def carried(h: Plain, v: str | None, level: int) -> str | None:
    """The ancestor of `v` at depth `level`, or `v` itself when it is not that deep (trees and forests)."""
    if v is None:
        return None
    depth = depths(h)
    return next((w for w in path(h, v) if depth[w] == level), v)


def level_choices(h: Plain, level: int) -> set[str]:
    """The nodes to choose from at a level: those of that depth, and the leaves that end above it."""
    depth = depths(h)
    return {v for v in h.parents if depth[v] == level or (v in h.leaves and depth[v] < level)}
