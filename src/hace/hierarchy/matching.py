"""From names that people have to the nodes of a taxonomy, and from one version of a taxonomy to the next."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from hace.errors import HierarchyError, listed, nearest
from hace.hierarchy.assembly import IntArray, as_id
from hace.hierarchy.hierarchy import Hierarchy
from hace.hierarchy.names import known_names

_SHOWN = 10  # names in a message
_CANDIDATES = 3
_COMPARED = 500  # nodes that candidates for one name are chosen from
_APOSTROPHES = re.compile("['’`´ʼ]")
_BLANKS = re.compile(r"[\s_‐‑–-]+")
_NUMBER = re.compile(r"\d+[._ :-]+(?=\D)")
# "(Linnaeus, 1758)", "Gray, 1825", "L.", "(L.) Mill.", after a word in lower case or a single name.
AUTHOR = re.compile(
    r"(?<=\w)\s+(?:\(?(?:[A-Z][\w.'&-]*|de|van|von|et|al\.|ex|&)[^()]*,?\s*(?:\d{4}|\.)\)?|\([A-Z][^()]*\)(?:\s[A-Z].*)?)$"
)


class Match(NamedTuple):
    """What a name means in a taxonomy."""

    name: str  # the name as given
    id: str | None  # the node's id; None where no node fits, or several do
    # how it was found: "id", "name", "synonym", "spelling" (case, blanks, hyphens), "without author" or "close" (a leading
    # number or a possessive s apart); else "ambiguous" or "unknown"
    how: str
    # ids of up to three nodes that it may mean, where it is ambiguous or unknown
    candidates: tuple[str, ...] = ()


def _normalised(text: str) -> str:
    """The text without case, Unicode forms, apostrophes, underscores and hyphens."""
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return _BLANKS.sub(" ", _APOSTROPHES.sub("", text)).strip().casefold()


def _without_author(text: str) -> str:
    return _normalised(AUTHOR.sub("", text.replace("_", " ").strip()))


def _loose(text: str) -> str:
    return _normalised(re.sub(r"['’]s\b", "", _NUMBER.sub("", text)))


def _spellings(h: Hierarchy) -> Iterator[tuple[str, int]]:
    """Every name that a node has, with its index: ids, display names, synonyms."""
    yield from zip(h.nodes, range(h.num_nodes), strict=True)
    if h.names is not h.nodes:
        yield from zip(h.names, range(h.num_nodes), strict=True)
    yield from ((name, h.index(id)) for name, id in h.synonyms.items())


def match(h: Hierarchy, names: Sequence[str]) -> list[Match]:
    """See :meth:`hace.Hierarchy.match`."""
    ids = frozenset(h.nodes)
    known = known_names(h)
    display = frozenset(h.names)
    matches: dict[str, Match] = {}
    for name in dict.fromkeys(names):
        if name in known:
            how = "id" if name in ids else "name" if name in display else "synonym"
            matches[name] = Match(name, h.nodes[known[name]], how)
    for how, key in {"spelling": _normalised, "without author": _without_author, "close": _loose}.items():
        waiting = [name for name in dict.fromkeys(names) if name not in matches]
        if not waiting:
            break
        matches |= _match_by(h, waiting, how, key)
    unknown = [name for name in dict.fromkeys(names) if name not in matches]
    for name, candidates in _nearest(h, unknown):
        matches[name] = Match(name, None, "unknown", candidates)
    return [matches[name] for name in names]


def _match_by(h: Hierarchy, names: Sequence[str], how: str, key: Callable[[str], str]) -> dict[str, Match]:
    """Matches of the names whose key is that of a node's name; several such nodes are ambiguous."""
    nodes_of: dict[str, set[int]] = {key(name): set() for name in names}
    for spelling, v in _spellings(h):
        plain = key(spelling)
        if plain in nodes_of:
            nodes_of[plain].add(v)
    matches: dict[str, Match] = {}
    for name in names:
        nodes = sorted(nodes_of[key(name)])
        if len(nodes) == 1:
            matches[name] = Match(name, h.nodes[nodes[0]], how)
        elif nodes:
            candidates = tuple(h.nodes[v] for v in nodes[:_CANDIDATES])
            matches[name] = Match(name, None, "ambiguous", candidates)
    return matches


def _nearest(h: Hierarchy, names: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The most similar nodes of each name, among those that share a word with it or begin alike."""
    shown = names[: 10 * _SHOWN]
    parts = {name: {*_loose(name).split(), *_starts(_loose(name))} for name in shown}
    wanted = {part for several in parts.values() for part in several}
    places: dict[str, list[tuple[str, int]]] = {part: [] for part in wanted}
    for text, v in _spellings(h) if shown else ():
        plain = _normalised(text)
        for part in wanted.intersection((*plain.split(), *_starts(plain))):
            places[part].append((plain, v))
    for name in names:
        if name not in parts:
            yield name, ()
            continue
        held = sorted((places[part] for part in parts[name]), key=len)
        near = dict.fromkeys(entry for entries in held for entry in entries[:_COMPARED])
        compare = SequenceMatcher(b=_loose(name), autojunk=False)
        scored: dict[int, float] = {}
        for plain, v in near:
            compare.set_seq1(plain)
            scored[v] = max(scored.get(v, 0.0), compare.ratio())
        best = sorted(scored, key=lambda v: (-scored[v], v))[:_CANDIDATES]
        yield name, tuple(h.nodes[v] for v in best)


def _starts(plain: str) -> tuple[str, str]:
    return plain[:4] + "*", plain[:1] + "*"


def within(
    h: Hierarchy,
    names: list[Any],
    collapse: bool,
    below: Any,
    ranks: Iterable[str] | None,
    corrections: Mapping[str, str | None],
) -> Hierarchy:
    """See :meth:`hace.Hierarchy.within`."""
    if not names:
        raise HierarchyError("names must hold at least one class. Got none.")
    if below is not None:
        h = _below(h, str(below))
    id_of = _nodes_of_names(h, [as_id(name, "names") for name in names], corrections)
    _check_one_name_each(id_of)
    part = h.subset(list(id_of.values()))
    if ranks is not None:
        part = _of_ranks(part, set(ranks))
    only_top_is_root = not part.rooted and len(part.tops) == 1 and part.level_names is None
    if only_top_is_root and part.num_nodes > 1:
        part = part._derive(part.nodes, part.edges, part.leaves, rooted=None)
    if collapse:
        part = part.collapse_unary()
    return with_synonyms(
        part, {name: id for name, id in id_of.items() if name != id and name not in part._index}
    )


def _nodes_of_names(
    h: Hierarchy, names: Sequence[str], corrections: Mapping[str, str | None]
) -> dict[str, str]:
    """The id of each name: by hand where there is a correction (None leaves the name out), else by matching."""
    wanted = [name for name in names if corrections.get(name, "") is not None]
    by_hand = {name: str(corrections[name]) for name in wanted if name in corrections}
    known = known_names(h)
    unknown = [id for id in by_hand.values() if id not in known]
    if unknown:
        raise HierarchyError(f"matches must lead to nodes of the taxonomy. Got {listed(unknown)}.")
    matches = {m.name: m for m in match(h, [name for name in wanted if name not in by_hand])}
    unmatched = [m for m in matches.values() if m.id is None]
    if unmatched:
        raise HierarchyError(_unmatched_lines(h, unmatched, len(names)))
    return {
        name: h.nodes[known[by_hand[name]]] if name in by_hand else str(matches[name].id) for name in wanted
    }


def _unmatched_lines(h: Hierarchy, unmatched: Sequence[Match], total: int) -> list[str]:
    """How many names need a hand, the remedy, and the first of them with what they may mean."""
    first = f"; here are the first {_SHOWN}" if len(unmatched) > _SHOWN else ""
    return [
        f"{len(unmatched):,} of {total:,} names must be matched by hand{first}. Correct them with matches={{name: id}}, None "
        "to leave one out (on the command line: --matches FILE.csv).",
        *(match_line(h, m) for m in unmatched[:_SHOWN]),
    ]


def _check_one_name_each(id_of: Mapping[str, str]) -> None:
    """Refuse several names of one node."""
    repeated = [id for id, count in Counter(id_of.values()).items() if count > 1]
    if repeated:
        names = [name for name, id in id_of.items() if id == repeated[0]]
        more = f", and {len(repeated) - 1:,} more nodes are named twice" if len(repeated) > 1 else ""
        raise HierarchyError(
            f"Each class must be a node of its own. {listed(names)} are all {repeated[0]!r}{more}. Name each node once."
        )


def match_line(h: Hierarchy, match: Match) -> str:
    """A sentence about a name that was not matched."""
    candidates = [f"{h.name(id)} [{id}]" if h.name(id) != id else id for id in match.candidates]
    what = "means several nodes" if match.how == "ambiguous" else "is not in the taxonomy"
    return f"{match.name!r} {what}" + (f": {'; '.join(candidates)}" if candidates else "") + "."


def with_synonyms(h: Hierarchy, more: Mapping[str, str]) -> Hierarchy:
    """The same hierarchy whose nodes have more names."""
    copy = object.__new__(Hierarchy)
    copy.__dict__.update({k: v for k, v in h.__dict__.items() if not k.startswith("_")})
    copy.__dict__["synonyms"] = {**h.synonyms, **more}
    return copy


def _below(h: Hierarchy, name: str) -> Hierarchy:
    result = match(h, [name])[0]
    if result.id is None:
        raise HierarchyError(f"below must be a node. {match_line(h, result)}")
    inside = np.zeros(h.num_nodes, dtype=bool)
    inside[[h.index(id) for id in h.descendants(result.id, include_self=True)]] = True
    leaves = [leaf for leaf in h.leaves if inside[h.index(leaf)]]
    return h._restricted(inside, leaves, rooted=None, same_levels=False)


def _of_ranks(h: Hierarchy, ranks: set[str]) -> Hierarchy:
    """Inner nodes of other ranks go; what is below them moves up. Classes stay."""
    have = set(h.ranks or ()) - {""} or set(h.level_names or ())
    if not ranks <= have:
        words = listed(sorted(have)) or "none"
        raise HierarchyError(f"ranks must be among {words}. Got {listed(sorted(ranks - have))}.")
    of = h.ranks or [h.level_names[d - 1] if d and h.level_names else "" for d in h.depths.tolist()]
    keep = [h.labels[v] >= 0 or of[v] in ranks for v in range(h.num_nodes)]
    above: list[set[int]] = [set() for _ in h.nodes]
    for parent, child in h.edges.tolist():  # parents come first
        above[child] |= {parent} if keep[parent] else above[parent]
    position = {v: i for i, v in enumerate(v for v in range(h.num_nodes) if keep[v])}
    pairs = [(position[p], position[v]) for v in position for p in sorted(above[v])]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return h._derive([h.nodes[v] for v in position], edges, h.leaves, rooted=None, same_levels=False)


# ---------------------------------------------------------------------- versions


CASES = ("kept", "renamed", "merged", "split", "scattered", "dropped")


@dataclass(frozen=True)
class Migration:
    """From one version of a taxonomy to the next; made by :meth:`hace.Hierarchy.migrate`."""

    old: Hierarchy
    new: Hierarchy
    nodes: IntArray  # int64 (N,): for each old node the new one, -1 if it was removed
    cases: tuple[str, ...]  # for each old node one of CASES

    def labels(self, labels: Any) -> IntArray:
        """New node indices of old labels: names or ids, or node indices of the old version; -1 for dropped and scattered."""
        return self.nodes[self._indices(labels)]

    def _indices(self, labels: Any) -> IntArray:
        values = np.asarray(labels)
        if values.dtype.kind in "iu":
            return values.astype(np.int64)
        known = known_names(self.old)
        unknown = [word for word in map(str, values.tolist()) if word not in known]
        if unknown:
            raise HierarchyError(f"labels must be nodes of the old version. Got {listed(unknown)}.")
        return np.array([known[str(word)] for word in values.tolist()], dtype=np.int64)

    def scores(self, probabilities: Any) -> np.ndarray:
        """(B, N') probabilities over the new nodes, from those of the old leaves (B, n) or old nodes (B, N).

        Mass moves with its node. That of a split class is at the node above its parts: nobody knows which part is meant. Mass
        of dropped and scattered classes is lost, so that rows may sum to less than 1.
        """
        old = np.asarray(probabilities)
        at = self._columns(old.shape[-1])
        moved = np.zeros((*old.shape[:-1], self.new.num_nodes), dtype=old.dtype)
        for column in np.flatnonzero(at >= 0).tolist():
            moved[..., at[column]] += old[..., column]
        return moved

    def head(self, weight: Any, bias: Any | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows of a linear head over the new leaves, or the new nodes if the old head is over nodes, to go on training from.

        A new class has the row of its old one, the mean of those merged into it, or that of the class it was split from; one
        without an ancestor in the old version starts at zero.
        """
        old = np.asarray(weight)
        sources: list[list[int]] = [[] for _ in self.new.nodes]
        for column, v in enumerate(self._columns(len(old)).tolist()):
            if v >= 0:
                sources[v].append(column)
        for parent, child in self.new.edges.tolist():  # a part begins as the class that it was split from
            sources[child] = sources[child] or sources[parent]
        over_nodes = len(old) == self.old.num_nodes
        places = range(self.new.num_nodes) if over_nodes else self.new.leaf_nodes.tolist()
        chosen = [sources[v] for v in places]

        def moved(rows: np.ndarray) -> np.ndarray:
            return np.stack([rows[s].mean(axis=0) if s else np.zeros_like(rows[0]) for s in chosen])

        return moved(old), None if bias is None else moved(np.asarray(bias))

    def _columns(self, width: int) -> IntArray:
        if width == self.old.num_leaves:
            return self.nodes[self.old.leaf_nodes]
        if width != self.old.num_nodes:
            raise HierarchyError(
                f"There must be one column for each of the {self.old.num_leaves} leaves or {self.old.num_nodes} nodes of the "
                f"old version. Got {width}."
            )
        return self.nodes

    def report(self, labels: Any) -> dict[str, int]:
        """How many samples each case touches. Scattered: split into parts that have no node above them all."""
        counts = Counter(self.cases[v] for v in self._indices(labels).tolist())
        return {case: counts[case] for case in CASES}


def migration(old: Hierarchy, new: Hierarchy, mapping: Mapping[Any, Any], strict: bool) -> Migration:
    """See :meth:`hace.Hierarchy.migrate`."""
    problems: list[str] = []
    mapped = _mapped_nodes(old, new, mapping, problems if strict else [])
    places, cases = _direct_places(old, new, mapped)
    missing = [v for v in range(old.num_nodes) if v not in mapped and places[v] < 0]
    lost_classes = [old.nodes[v] for v in missing if old.labels[v] >= 0]
    if strict and lost_classes:
        problems.append(
            f"Every class of the old version must have a place in the new one. {len(lost_classes):,} have none: "
            f"{listed(lost_classes)}. Name them in mapping, with None to drop one, or pass strict=False."
        )
    if problems:
        raise HierarchyError(problems)
    _place_groups_by_children(old, new, [v for v in missing if old.labels[v] < 0], places, cases)
    _mark_merged_and_split(old, new, places, cases)
    return Migration(old, new, places, tuple(cases))


def _mapped_nodes(
    old: Hierarchy, new: Hierarchy, mapping: Mapping[Any, Any], problems: list[str]
) -> dict[int, list[int]]:
    """For each old node that the mapping names its new nodes: none, one, or several."""
    sources = known_names(old)
    targets = known_names(new)
    mapped: dict[int, list[int]] = {}
    unknown_sources: list[str] = []
    unknown_targets: list[str] = []
    for key, value in mapping.items():
        several = isinstance(value, Iterable) and not isinstance(value, str)
        ends = [] if value is None else list(map(str, value)) if several else [str(value)]
        unknown_targets += [end for end in ends if end not in targets]
        if str(key) in sources:
            mapped[sources[str(key)]] = [targets[end] for end in ends if end in targets]
        else:
            unknown_sources.append(str(key))
    for words, unknown, known in (
        ("name nodes of the old version", unknown_sources, sources),
        ("lead to nodes of the new version", unknown_targets, targets),
    ):
        if unknown:
            problems.append(
                f"mapping must {words}. Got {listed(unknown)}.{nearest(unknown[0], known)} "
                "Correct it, or pass strict=False to leave it out."
            )
    return mapped


def _direct_places(
    old: Hierarchy, new: Hierarchy, mapped: Mapping[int, Sequence[int]]
) -> tuple[IntArray, list[str]]:
    """The new node of each old one by the mapping, else by id or name; -1 where there is none. And the case of each."""
    targets = known_names(new)
    places = np.full(old.num_nodes, -1, dtype=np.int64)
    cases = ["dropped"] * old.num_nodes
    for v, (id, name) in enumerate(zip(old.nodes, old.names, strict=True)):
        if v not in mapped:
            same = targets.get(id, targets.get(name))
            if same is not None:
                places[v] = same
                cases[v] = "kept"
        elif len(mapped[v]) == 1:
            places[v] = mapped[v][0]
            cases[v] = "kept" if new.nodes[places[v]] == id else "renamed"
        elif mapped[v]:
            places[v] = _common(new, mapped[v])
            cases[v] = "split" if places[v] >= 0 else "scattered"
    return places, cases


def _place_groups_by_children(
    old: Hierarchy, new: Hierarchy, groups: Iterable[int], places: IntArray, cases: list[str]
) -> None:
    """An inner node that is not in the new version goes to the lowest node above what remains of its descendants."""
    for v in groups:
        descendants = map(old.index, old.descendants(old.nodes[v]))
        remaining = [int(places[d]) for d in descendants if places[d] >= 0]
        if remaining:
            places[v] = _common(new, remaining)
            cases[v] = "renamed" if places[v] >= 0 else "dropped"


def _mark_merged_and_split(old: Hierarchy, new: Hierarchy, places: IntArray, cases: list[str]) -> None:
    """A class whose new node is a group now was split; classes that share a new node were merged."""
    classes = old.leaf_nodes.tolist()
    sharing = Counter(places[v] for v in classes if cases[v] != "split")
    for v in classes:
        if cases[v] not in ("kept", "renamed"):
            continue
        if new.labels[places[v]] < 0:
            cases[v] = "split"
        elif sharing[places[v]] > 1:
            cases[v] = "merged"


def _common(h: Hierarchy, nodes: Sequence[int]) -> int:
    """The lowest node above all of these, -1 where there is none."""
    common = set(h.ancestors(h.nodes[nodes[0]], include_self=True))
    for v in nodes[1:]:
        common &= {*h.ancestors(h.nodes[v], include_self=True)}
    return max((h.index(id) for id in common), key=lambda v: (h.depths[v], -v), default=-1)
