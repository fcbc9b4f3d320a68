"""Several opinions about each sample, at mixed ranks: one answer that enough of them support.

A vote for a node supports the node and all above it. With

    support(v)   votes for v or for a node below it
    against(v)   votes for nodes that are neither below v nor above it
    score(v)     support(v) / (support(v) + against(v))

the consensus is the deepest node with at least two supporters whose score is above the share asked for. A vote for an ancestor
of v is neither for nor against v. With two thirds this is how iNaturalist finds the community taxon, but for its explicit
disagreements, in which people say that they doubt the finer name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hace.checks import is_number, require
from hace.errors import DataError, FormatError, listed, nearest
from hace.files.documents import read_rows
from hace.files.reading import check_memory
from hace.hierarchy import Hierarchy
from hace.hierarchy.hierarchy import check_hierarchy
from hace.hierarchy.names import known_names


@dataclass(frozen=True, eq=False)
class Consensus:
    """The answer of each sample, and how far people agree.

    Attributes:
        hierarchy: The classes.
        samples: What the samples are called.
        nodes: (M,) node indices; -1 where no node has enough support.
        support: (M,) votes for the node or below it; 0 without a node.
        votes: For each sample the node indices of its votes.
    """

    hierarchy: Hierarchy
    samples: Sequence[str]
    nodes: np.ndarray
    support: np.ndarray
    votes: Sequence[np.ndarray]

    @property
    def ids(self) -> list[str | None]:
        """The ids of the answers, None where there is none."""
        return [None if v < 0 else self.hierarchy.nodes[v] for v in self.nodes.tolist()]

    @cached_property
    def node_shares(self) -> np.ndarray:
        """(M, N) float32, the shares of the votes: soft targets for any loss with ``labels="nodes"``, coarse votes included.

        Where all votes are leaves, ``node_shares[:, hierarchy.leaf_nodes]`` are soft targets over the classes.
        """
        return shares_of(self.votes, self.hierarchy)

    def agreement(self) -> dict[int, float]:
        """For each level the share of pairs of votes on the same sample that name the same node there.

        Pairs count at levels that both votes reach.
        """
        same: Counter[int] = Counter()
        pairs: Counter[int] = Counter()
        for votes in self.votes:
            paths = [_downward(self.hierarchy, v) for v in votes.tolist()]
            for i, one in enumerate(paths):
                for other in paths[:i]:
                    for level in range(min(len(one), len(other))):
                        pairs[level + 1] += 1
                        same[level + 1] += one[level] == other[level]
        return {level: same[level] / pairs[level] for level in sorted(pairs)}

    def rows(self) -> list[dict[str, Any]]:
        """One row for each sample with an answer: sample, label, support, votes."""
        return [
            {"sample": sample, "label": id, "support": int(support), "votes": len(votes)}
            for sample, id, support, votes in zip(
                self.samples, self.ids, self.support, self.votes, strict=True
            )
            if id is not None
        ]


def consensus(
    votes: Mapping[str, Sequence[str]],
    hierarchy: Hierarchy,
    *,
    agree: float = 2 / 3,
    least: int = 2,
    alone: bool = False,
) -> Consensus:
    """One node per sample from several opinions at mixed ranks; see this module.

    Args:
        votes: For each sample the nodes that people chose: ids, or names that only one node has.
        hierarchy: The classes; a tree or a forest.
        agree: The score that the answer must exceed, from 0.5 up to (but not including) 1.
        least: How many votes the answer must have.
        alone: Whether the only vote on a sample is its answer, whatever `least` says.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")])
        >>> consensus({"a": ["husky", "husky", "dog"], "b": ["husky", "beagle", "dog"], "c": ["husky", "tabby"]}, h).ids
        ['husky', 'dog', None]
    """
    require("agree", agree, "from 0.5 up to, but not including, 1", is_number(agree) and 0.5 <= agree < 1)
    require("least", least, "at least 1", is_number(least) and least >= 1)
    indices = vote_nodes(votes, hierarchy)
    if not hierarchy.is_tree and not (alone and all(len(v) < 2 for v in indices)):
        raise DataError("hierarchy must be a tree or a forest: on a DAG a vote has several paths to the top.")
    answers = [
        (int(v[0]), 1) if alone and len(v) == 1 else _deepest_supported(hierarchy, v, agree, least)
        for v in indices
    ]
    nodes, support = np.array(answers, dtype=np.int64).reshape(-1, 2).T
    return Consensus(hierarchy, list(votes), nodes, support, indices)


def vote_nodes(votes: Mapping[str, Sequence[str]], hierarchy: Hierarchy) -> list[np.ndarray]:
    """For each sample the node indices of its votes."""
    check_hierarchy(hierarchy)
    given = votes.values() if isinstance(votes, Mapping) else [None]
    if any(names is None or isinstance(names, str) for names in given):
        raise DataError(f"votes must be a mapping from each sample to a list of nodes. Got {votes!r:.80}.")
    known = known_names(hierarchy)
    unknown = sorted({name for names in votes.values() for name in names if name not in known})
    if unknown:
        raise DataError(f"votes must be nodes of the hierarchy. Got {listed(unknown, 5)}.")
    return [np.array([known[name] for name in names], dtype=np.int64) for names in votes.values()]


def shares_of(votes: Sequence[np.ndarray], hierarchy: Hierarchy) -> np.ndarray:
    """(M, N) float32: for each sample the shares of its votes; zeros where there are none."""
    check_memory("votes", 4 * len(votes) * hierarchy.num_nodes, "shares of all nodes")
    shares = np.zeros((len(votes), hierarchy.num_nodes), dtype=np.float32)
    for row, nodes in zip(shares, votes, strict=True):
        np.add.at(row, nodes, 1 / max(len(nodes), 1))
    return shares


def read_votes(
    path: str | os.PathLike[str],
    sample: str = "sample",
    label: str = "label",
    annotator: str | None = None,
) -> dict[str, list[str]]:
    """The votes for each sample, from a CSV or TSV table with a line for each vote.

    With a column of annotators, the last vote of each on a sample counts, as iNaturalist's current identifications do.
    """
    header, rows = read_rows(path)
    columns = {"sample": sample, "label": label} | ({} if annotator is None else {"annotator": annotator})
    for what, column in columns.items():
        if column not in header:
            raise FormatError(
                f"{path}: {what}_column must be one of {listed(header, 20)}. Got {column!r}.{nearest(column, header)}"
            )
    votes: dict[str, dict[str, str]] = {}
    for line, row in rows:
        name = row[sample].strip()
        node = row[label].strip()
        if not name or not node:
            raise FormatError(
                f"{path}, line {line}: {sample} and {label} must be given. Got {name!r} and {node!r}."
            )
        who = f"line {line}" if annotator is None else row[annotator].strip()
        votes.setdefault(name, {})[who or f"line {line}"] = node
    if not votes:
        raise FormatError(f"{path}: must have a line for each opinion. Got none.")
    return {name: list(own.values()) for name, own in votes.items()}


def _deepest_supported(h: Hierarchy, votes: np.ndarray, agree: float, least: int) -> tuple[int, int]:
    """The node and its support; (-1, 0) where none has enough."""
    paths = [_downward(h, v) for v in votes.tolist()]
    support = Counter(node for path in paths for node in path)
    best = (-1, 0)
    for path in paths:
        for depth, node in enumerate(path):
            compatible = sum(set(other) <= set(path[: depth + 1]) and node not in other for other in paths)
            against = len(paths) - support[node] - compatible
            scored = support[node] > agree * (support[node] + against)
            if scored and support[node] >= least and (best[0] < 0 or h.depths[node] > h.depths[best[0]]):
                best = (node, support[node])
    return best


def _downward(h: Hierarchy, v: int) -> list[int]:
    """The nodes from the top down to a node, the root of the whole hierarchy left out."""
    path = [h.index(id) for id in reversed(h.path(h.nodes[v]))]
    return path[1:] if h.rooted and len(path) > 1 else path
