"""Taxonomies as they are published: path lists, taxon tables, NCBI's dump, and the class lists of image data sets.

Ranks and other names are kept. A taxon whose parent is not in the file is a top, and a note says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hace.errors import ConfigError, FormatError, HierarchyError, listed
from hace.formats.source import Draft, SourceText, quoted
from hace.hierarchy.matching import AUTHOR

RANKS = (
    "domain superkingdom realm kingdom subkingdom superphylum phylum subphylum superclass class subclass infraclass superorder "
    "order suborder infraorder parvorder superfamily family subfamily supertribe tribe subtribe genus subgenus section "
    "complex species subspecies variety form"
).split()
_LETTERS = dict(
    zip("dkpcofgst", "domain kingdom phylum class order family genus species strain".split(), strict=True)
)
_PREFIX = re.compile(r"([a-z]{1,2})__(.*)", re.DOTALL)
LINEAGE = re.compile(r"(?:^|[\t,; ])[a-z]{1,2}__[^;\t]*;\s*[a-z]{1,2}__")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12};", re.IGNORECASE)
_NUMBERED = re.compile(r"(\S+)\s+[-:]\s+(\S.*)", re.DOTALL)
_SEPARATORS = (" > ", ">", ";", "|", "\t")
_SPECIESNET = "class order family genus species".split()


def resolved(pairs: Iterable[tuple[str, str]], taken: Iterable[str]) -> dict[str, str]:
    """Other names with the id of the one node that has them; a name of several nodes resolves to none."""
    found: dict[str, str] = {}
    several = set(taken)
    for name, id in pairs:
        if name and found.setdefault(name, id) != id:
            several.add(name)
    return {name: id for name, id in found.items() if name not in several}


# ---------------------------------------------------------------------- path lists


def parse_paths(source: SourceText, *, separator: str | None = None) -> Draft:
    """One node per line as its path from the top: "A > B", "id - A > B", "gid : A > B", "A;B", "name<tab>d__A;p__B".

    Lines that begin with "#" are comments. A line may end at an inner node. Prefixes such as "f__" are ranks.
    """
    lines = [(n, line.strip()) for n, line in source.lines() if not line.lstrip().startswith("#")]
    if not lines:
        raise FormatError(f"{source.name}: must list paths such as 'A > B'. Got comments alone.")
    split = [_NUMBERED.fullmatch(line) for _, line in lines]
    numbered = all(split)
    ids = [found[1] for found in split if found] if numbered else []
    twice = [id for id, count in Counter(ids).items() if count > 1]
    if twice:
        raise HierarchyError(
            f"{source.name}: every line must have an id of its own. Got {quoted(twice[0])} twice."
        )
    texts = [found[2] for found in split if found] if numbered else [line for _, line in lines]
    lineages = not numbered and all(LINEAGE.search(text) for text in texts)
    if lineages:
        heads = [re.match(r"(.*?)[\t,]\s*(?=[a-z]{1,2}__)", text) for text in texts]
        ids = [found[1].strip('" ') if found else "" for found in heads]
        texts = [text[found.end() :] if found else text for text, found in zip(texts, heads, strict=True)]
        texts = [re.split(r"[\t,]", text.strip('" '))[0] if ";" in text else text for text in texts]
    mark = separator or (";" if lineages else _separator(source, texts))
    paths = [tuple(part.strip() for part in text.split(mark)) for text in texts]
    if lineages:
        paths = [tuple(part for part in path if not part.endswith("__")) for path in paths]
    for (line, text), path in zip(lines, paths, strict=True):
        if "" in path or not path or any(part.strip(mark.strip() or None) != part for part in path):
            source.problems.broken(line, f"every part of a path must have a name. Got {quoted(text)}.")
    source.problems.raise_broken()
    own = dict(zip(paths, ids, strict=True)) if numbered else {}
    if numbered and len(own) < len(paths):
        twice = next(path for path, count in Counter(paths).items() if count > 1)
        source.problems.unfit(None, f"the path {quoted(mark.join(twice))} is there twice, with two ids.")
        source.problems.raise_any()
    places = dict.fromkeys(path[:k] for path in paths for k in range(1, len(path) + 1))
    return _of_places(source, places, own, mark, paths, ids if lineages else [])


def _separator(source: SourceText, texts: Sequence[str]) -> str:
    counts = {mark: sum(mark in text for text in texts) for mark in _SEPARATORS}
    best = max(_SEPARATORS, key=lambda mark: counts[mark])
    if not counts[best]:
        raise FormatError(
            f"{source.name}: paths must have a separator. Got none of {', '.join(map(repr, _SEPARATORS))} in "
            f"{quoted(texts[0])}. Name it with separator=... (on the command line: -o separator=/)."
        )
    return best


def _of_places(
    source: SourceText,
    places: Mapping[tuple[str, ...], Any],
    own: Mapping[tuple[str, ...], str],
    mark: str,
    paths: Sequence[tuple[str, ...]],
    rows: Sequence[str],
) -> Draft:
    """Nodes at the places of paths: with their own ids, else by their name where it is theirs alone, else by their path."""
    counts = Counter(place[-1] for place in places)
    joined = f" {mark.strip()} " if mark != "\t" else " > "
    id_of: dict[tuple[str, ...], str] = {}
    for place in places:
        id_of[place] = own.get(place) or (
            place[-1] if counts[place[-1]] == 1 and not own else joined.join(place)
        )
    draft = Draft(nodes=list(id_of.values()))
    draft.edges = [(id_of[place[:-1]], id) for place, id in id_of.items() if len(place) > 1]
    if len(set(draft.nodes)) < len(draft.nodes):
        twice = next(id for id, count in Counter(draft.nodes).items() if count > 1)
        source.problems.unfit(None, f"the id {quoted(twice)} is there twice. Ids must be unique.")
        source.problems.raise_any()
    for place, id in id_of.items():
        found = _PREFIX.fullmatch(place[-1])
        draft.names[id] = found[2] if found and found[2] else place[-1]
        if found and found[1] in _LETTERS:
            draft.ranks[id] = _LETTERS[found[1]]
    other = [(joined.join(place), id) for place, id in id_of.items() if own or counts[place[-1]] == 1]
    other += [(row, id_of[path]) for row, path in zip(rows, paths, strict=False)]
    draft.synonyms = resolved(other, id_of.values())
    draft.flat = True
    return draft


def parse_speciesnet(source: SourceText) -> Draft:
    """SpeciesNet's list: uuid;class;order;family;genus;species;common name, empty where a label is above a rank."""
    rows = []
    for line, text in source.lines():
        cells = [cell.strip() for cell in text.split(";")]
        if len(cells) != 7 or not UUID.match(text):
            source.problems.broken(
                line, f"expected uuid;class;order;family;genus;species;name, got {quoted(text)}."
            )
            continue
        rows.append((line, cells[1:6], [cells[6], cells[0], ";".join(cells[1:6])]))
    source.problems.raise_broken()
    return rank_paths(source, rows, _SPECIESNET)


def ranks_of(header: Sequence[str]) -> list[str]:
    """The ranks that a table has columns of, from the top down; none if it says what is below what in another way."""
    plain = {name.strip().casefold() for name in header}
    ranks = [rank for rank in RANKS if rank in plain]
    return ranks if len(ranks) > 1 and plain.isdisjoint(("label", "parent", "child")) else []


def rank_paths(
    source: SourceText,
    rows: Iterable[tuple[int, list[str], list[str]]],
    ranks: Sequence[str],
    others: Sequence[str] = (),
) -> Draft:
    """Rows of (line, name at each rank, other names of the last one). Empty ranks are skipped; a row may end early.

    A node is its rank, its name and what is above it. A species given by its epithet alone is named with its genus. `others`
    says what the other names are: a scientificName with its taxonRank is a node below the ranks.
    """
    about = [name.casefold() for name in others]
    flat = "scientificname" in about and "taxonrank" in about and "species" not in ranks
    placed: dict[tuple[tuple[str, str], ...], list[str]] = {}
    without = 0
    for _, cells, more in rows:
        names = dict(zip(ranks, (cell.strip() for cell in cells), strict=True))
        if flat:
            said = dict(zip(about, (cell.strip() for cell in more), strict=True))
            if _SYNONYM.search(said.get("taxonomicstatus", "")):
                continue
            names[said["taxonrank"].casefold() or "species"] = AUTHOR.sub("", said["scientificname"])
        more = (
            [name for name, kind in zip(more, about, strict=True) if kind not in _NOT_NAMES]
            if about
            else more
        )
        epithet, genus = names.get("species", ""), names.get("genus", "")
        if epithet and genus and " " not in epithet and epithet.casefold() != genus.casefold():
            names["species"] = f"{genus} {epithet}"
        path = tuple((rank, name) for rank, name in names.items() if name)
        if path:
            placed.setdefault(path, []).extend(more)
        else:
            without += 1
    places = dict.fromkeys(path[:k] for path in placed for k in range(1, len(path) + 1))
    counts = Counter(place[-1][1] for place in places)
    draft, id_of = Draft(flat=True), {}
    for place in places:
        rank, name = place[-1]
        id = name if counts[name] == 1 else f"{rank}:{name}"
        if id in draft.ranks:  # the same name and rank in two places
            id = "/".join(part for _, part in place)
        if id in draft.ranks:
            source.problems.unfit(
                None, f"{quoted(name)} is at one place with two ranks. Give the columns in order."
            )
            source.problems.raise_any()
        id_of[place], draft.ranks[id], draft.names[id] = id, rank, name
    draft.nodes = list(id_of.values())
    draft.edges = [(id_of[place[:-1]], id) for place, id in id_of.items() if len(place) > 1]
    other = [(name, id_of[path]) for path, names in placed.items() for name in names]
    draft.synonyms = resolved(other, [*draft.nodes, *counts])
    if without:
        draft.notes.append(f"{without:,} rows name no taxon (such as blank) and are left out")
    if not draft.nodes:
        raise FormatError(f"{source.name}: must name taxa. Got empty ranks alone.")
    return draft


# ---------------------------------------------------------------------- taxa with ids of their parents

# What a column of Darwin Core, a Catalogue of Life data package or iNaturalist's taxa.csv holds; the first one present counts.
_ROLES = {
    "id": ("taxonid", "id", "taxon_id"),
    "parent": ("parentnameusageid", "parentid", "parent_id", "parent_taxon_id", "ancestry"),
    "accepted": ("acceptednameusageid", "acceptednameid"),
    "status": ("taxonomicstatus", "status"),
    "rank": ("taxonrank", "rank"),
    "name": ("canonicalname", "scientificname", "name"),
    "author": ("scientificnameauthorship", "authorship"),
}
_NOT_NAMES = ("taxonrank", "taxonomicstatus")
OTHER_NAMES = {
    *"scientificname scientific_name vernacularname commonname common_name preferred_common_name id taxonid name".split(),
    *("common name", "scientific name", *_NOT_NAMES),
}
_SYNONYM = re.compile("synonym|misapplied|invalid|unaccepted|bare name", re.IGNORECASE)


def taxon_columns(header: Sequence[str]) -> dict[str, str] | None:
    """Roles of the columns of a taxon table, by role; None if it is not one."""
    plain = {re.sub(r"^\w+:", "", name.strip()).casefold(): name for name in reversed(header)}
    found = {role: next((plain[c] for c in names if c in plain), "") for role, names in _ROLES.items()}
    by_parent = bool(found["id"] and found["parent"] and found["name"])
    return found if by_parent and {"parentnameusageid", "parentid", "ancestry"} & plain.keys() else None


def parse_taxa(source: SourceText, header: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> Draft:
    """A table of taxa. Accepted names become nodes; synonyms become names that resolve to them."""
    roles = taxon_columns(header)
    assert roles is not None
    at = {role: header.index(name) for role, name in roles.items() if name}
    plain = [re.sub(r"^\w+:", "", name).casefold() for name in header]
    others = [i for i, name in enumerate(plain) if name in OTHER_NAMES and name not in _NOT_NAMES]
    by_ancestry = roles["parent"].casefold() == "ancestry"
    taxa: dict[str, tuple[int, dict[str, str], list[str]]] = {}
    for line, cells in rows:
        if len(cells) != len(header):
            source.problems.broken(
                line, f"expected {len(header)} columns as in the header, got {len(cells)}."
            )
            continue
        taxon = {role: cells[i].strip() for role, i in at.items()}
        id = taxon["id"]
        if not id:
            source.problems.broken(line, f"the column {quoted(roles['id'])} is empty.")
        elif id in taxa:
            source.problems.unfit(line, f"the id {quoted(id)} is on line {taxa[id][0]} already. Remove one.")
        else:
            if by_ancestry:
                taxon["parent"] = taxon["parent"].rpartition("/")[2]
            taxa[id] = line, taxon, [cells[i].strip() for i in others]
    source.problems.raise_broken()
    return _of_taxa(source, taxa)


def _of_taxa(source: SourceText, taxa: Mapping[str, tuple[int, dict[str, str], list[str]]]) -> Draft:
    key = {_bare(id): id for id in taxa}
    draft, pairs, missing, lost = Draft(flat=True), [], [], 0
    accepted_of: dict[str, str] = {}
    for id, (_, taxon, _) in taxa.items():
        accepted = key.get(_bare(taxon.get("accepted", "")), "")
        if (accepted and accepted != id) or _SYNONYM.search(taxon.get("status", "")):
            accepted_of[id] = accepted if accepted and accepted != id else key.get(_bare(taxon["parent"]), "")
    parents = {_bare(taxon["parent"]) for id, (_, taxon, _) in taxa.items() if id not in accepted_of}
    doubtful = 0
    for id, (_, taxon, others) in taxa.items():
        if taxon.get("status", "").casefold() == "doubtful" and _bare(id) not in parents:
            doubtful += 1
            continue
        author, name = taxon.get("author", ""), taxon["name"] or id
        plain = name.removesuffix(author).rstrip() if author and name != author else name
        names = [name, plain, *others, f"{plain} {author}" if author else ""]
        target, steps = id, 0
        while target in accepted_of and steps < 10:
            target, steps = accepted_of[target], steps + 1
        if target != id:
            lost += target not in taxa or target in accepted_of
            pairs += [(other, target) for other in (id, *names)] if target in taxa else []
            continue
        draft.nodes.append(id)
        draft.names[id] = plain
        rank = taxon.get("rank", "").casefold()
        draft.ranks[id] = "" if rank in ("no rank", "unranked") else rank
        pairs += [(other, id) for other in names if other != plain]
    kept = set(draft.nodes)
    for id in draft.nodes:
        parent, steps = taxa[id][1]["parent"], 0
        above = key.get(_bare(parent), "")
        while above in accepted_of and steps < 10:
            above, steps = accepted_of[above], steps + 1
        if above in kept and above != id:
            draft.edges.append((above, id))
        elif parent and above != id:
            missing.append(id)
    draft.synonyms = resolved((p for p in pairs if p[1] in kept), [*kept, *draft.names.values()])
    if missing:
        draft.notes.append(absent(missing))
    if doubtful:
        draft.notes.append(f"{doubtful:,} doubtful names are left out")
    if accepted_of:
        words = f"; {lost:,} of them lead nowhere and are left out" if lost else ""
        draft.notes.append(f"{len(accepted_of):,} synonyms are names of accepted taxa, not classes{words}")
    return draft


def absent(missing: Sequence[str]) -> str:
    """The note about nodes whose parents are not in the file."""
    if len(missing) == 1:
        return f"the parent of {missing[0]!r} is not in the file; it is a top"
    return f"the parents of {len(missing):,} nodes are not in the file; they are tops: {listed(missing, 3)}"


def _bare(id: str) -> str:
    return re.sub(r"^https?://(www\.)?", "", id)


def add_vernaculars(draft: Draft, header: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> None:
    """Common names of a Darwin Core archive, from its table of vernacular names."""
    plain = [re.sub(r"^\w+:", "", name.strip()).casefold() for name in header]
    id = next((plain.index(c) for c in ("taxonid", "id", "coreid") if c in plain), None)
    if id is None or "vernacularname" not in plain:
        return
    kept, name = set(draft.nodes), plain.index("vernacularname")
    pairs = [
        (c[name].strip(), c[id].strip()) for _, c in rows if len(c) == len(plain) and c[id].strip() in kept
    ]
    draft.synonyms = {**resolved(pairs, [*kept, *draft.names.values()]), **draft.synonyms}


def parse_ncbi(source: SourceText) -> Draft:
    """NCBI's taxdump: nodes.dmp, with names.dmp and merged.dmp beside it or in the same archive."""
    if "name" in source.name.rpartition("/")[2].casefold() and (nodes := source.beside("names", "nodes")):
        source = nodes
    draft, missing, parents = Draft(flat=True), [], {}
    for line, cells in _dump(source, 3):
        id, parent, rank = cells[:3]
        if parents.setdefault(id, parent) != parent or id in draft.ranks:
            source.problems.unfit(line, f"the node {quoted(id)} is there twice.")
        draft.ranks[id] = "" if rank in ("no rank", "clade") else rank.casefold()
    draft.nodes = list(parents)
    for id, parent in parents.items():
        if parent in parents and parent != id:  # the root is its own parent
            draft.edges.append((parent, id))
        elif parent != id:
            missing.append(id)
    names, pairs = source.beside("nodes", "names"), []
    for _, cells in _dump(names, 4) if names else ():
        id, name, unique, kind = cells[:4]
        if id in parents:
            if kind == "scientific name":
                draft.names[id] = name
            pairs += [(name, id), (unique, id)]
    merged = source.beside("nodes", "merged")
    pairs += [(c[0], c[1]) for _, c in _dump(merged, 2) if c[1] in parents] if merged else []
    draft.synonyms = resolved(
        ((n, i) for n, i in pairs if draft.names.get(i) != n), [*parents, *draft.names.values()]
    )
    draft.notes += [absent(missing)] if missing else []
    draft.notes += [] if names else ["there is no names.dmp beside the file: nodes have numbers, not names"]
    return draft


def _dump(source: SourceText, count: int) -> Iterator[tuple[int, list[str]]]:
    for line, text in source.lines():
        cells = [cell.strip() for cell in text.split("|")]
        if len(cells) < count or not cells[0]:
            source.problems.broken(line, f"expected {count} cells between '|', got {quoted(text)}.")
        else:
            yield line, cells
    source.problems.raise_broken()


# ---------------------------------------------------------------------- JSON of image data sets and ontologies


def json_taxonomy(source: SourceText, content: Any, parts: bool, relations: Sequence[str]) -> Draft | None:
    """COCO or LVIS categories, Open Images' tree or obographs; None if the content is none of them."""
    if isinstance(content, dict) and isinstance(content.get("graphs"), list):
        return _obographs(source, content["graphs"], relations)
    if isinstance(content, dict) and isinstance(content.get("LabelName"), str):
        return _open_images(source, content, parts)
    categories = content.get("categories") if isinstance(content, dict) else content
    if (
        isinstance(categories, list)
        and categories
        and all(isinstance(c, dict) and "name" in c for c in categories)
    ):
        grouped = all("supercategory" in c for c in categories)
        if grouped or (categories is not content and not any("children" in c for c in categories)):
            return _categories(source, categories)
    return None


def _categories(source: SourceText, categories: list[dict[str, Any]]) -> Draft:
    names = [c["name"] for c in categories]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise FormatError(
            f"{source.name}: every category must have a name of its own. Got {listed(names, 5)}."
        )
    above = {c["name"]: str(c.get("supercategory") or "") for c in categories}
    members = Counter(above.values())
    group = {}
    for name in members:
        only = members[name] == 1 and above.get(name) == name
        group[name] = "" if only or not name else f"{name} (group)" if name in above else name
    draft = Draft(leaves=names, nodes=names.copy(), flat=True)
    draft.edges = [(group[top], name) for name, top in above.items() if group[top]]
    for name, top in above.items():  # a class below another class, as in a deeper list
        if group.get(name) and top != name and group[top]:
            draft.edges = [edge for edge in draft.edges if edge != (group[top], name)]
            draft.edges += [(group[top], group[name])] if (group[top], group[name]) not in draft.edges else []
            draft.edges += [(group[name], name)] if (group[name], name) not in draft.edges else []
    draft.ranks = {id: "supercategory" for id, _ in draft.edges} | dict.fromkeys(names, "category")
    pairs = [(str(c["id"]), c["name"]) for c in categories if isinstance(c.get("id"), int | str)]
    for c in categories:
        others: Any = c.get("synonyms") if isinstance(c.get("synonyms"), list) else []
        pairs += [(str(other), c["name"]) for other in [*others, c.get("synset") or ""]]
    draft.synonyms = resolved(pairs, {*names, *(id for edge in draft.edges for id in edge)})
    if not draft.edges:
        draft.notes.append("the categories have no supercategory: the classes are flat")
    merged = [name for name in members if name and not group[name]]
    if merged:
        draft.notes.append(f"classes that are their own supercategory are one node: {listed(merged, 5)}")
    return draft


def _open_images(source: SourceText, tree: dict[str, Any], parts: bool) -> Draft:
    edges, part_edges, waiting = {}, {}, [tree]
    nodes: dict[str, None] = {}
    while waiting:
        node = waiting.pop()
        nodes.setdefault(node["LabelName"])
        for key, held in (("Subcategory", edges), ("Part", part_edges)):
            children = node.get(key, [])
            if not isinstance(children, list) or not all(
                isinstance(c, dict) and isinstance(c.get("LabelName"), str) and c["LabelName"]
                for c in children
            ):
                raise FormatError(
                    f"{source.name}: {key} must be a list of nodes with a LabelName, got {quoted(children)}."
                )
            held.update({(node["LabelName"], child["LabelName"]): None for child in children})
            waiting += reversed(children)
    draft = Draft(edges=[*edges, *(part_edges if parts else ())], nodes=list(nodes), flat=True)
    draft.edges = list(dict.fromkeys(draft.edges))
    if part_edges and not parts:
        draft.notes.append(
            f"{len(part_edges):,} Part relations are left out; parts=true (-o parts=true) reads them as edges"
        )
    return draft


def _obographs(source: SourceText, graphs: list[Any], relations: Sequence[str]) -> Draft:
    draft, obsolete, pairs = Draft(flat=True), {}, []
    typed = '"CLASS"' in source.text
    for graph in graphs:
        for node in graph.get("nodes", ()) if isinstance(graph, dict) else ():
            if not isinstance(node, dict) or not isinstance(node.get("id"), str):
                raise FormatError(
                    f"{source.name}: every node of an obograph must have an id, got {quoted(node)}."
                )
            meta: Any = node.get("meta") if isinstance(node.get("meta"), dict) else {}
            id, name = _curie(node["id"]), node.get("lbl")
            if node.get("type") != ("CLASS" if typed else None):
                continue
            values = {
                v.get("pred", ""): v.get("val")
                for v in meta.get("basicPropertyValues", ())
                if isinstance(v, dict)
            }
            if meta.get("deprecated") is True:
                newer = [
                    v for pred, v in values.items() if pred.endswith("IAO_0100001") and isinstance(v, str)
                ]
                obsolete[id] = _curie(newer[0]) if newer else ""
                continue
            draft.nodes.append(id)
            draft.names |= {id: name} if isinstance(name, str) and name else {}
            pairs += [(s.get("val"), id) for s in meta.get("synonyms", ()) if isinstance(s, dict)]
            pairs += [(v, id) for pred, v in values.items() if pred.endswith("hasAlternativeId")]
    kept = dict.fromkeys(draft.nodes)
    edges, outside = {}, {}
    wanted = {"is_a", "subClassOf", *(_RELATIONS.get(r, r) for r in relations)}
    for graph in graphs:
        for edge in graph.get("edges", ()) if isinstance(graph, dict) else ():
            ends: list[Any] = (
                [edge.get(k) for k in ("obj", "sub", "pred")] if isinstance(edge, dict) else [None]
            )
            if not all(isinstance(end, str) for end in ends):
                raise FormatError(
                    f"{source.name}: every edge of an obograph must have sub, pred and obj, got {quoted(edge)}."
                )
            parent, child, kind = _curie(ends[0]), _curie(ends[1]), ends[2]
            if child in kept and (kind in wanted or _curie(kind) in wanted):
                (edges if parent in kept else outside)[parent, child] = None
    draft.edges, draft.nodes = list(edges), list(kept)
    pairs += [(old, new) for old, new in obsolete.items() if new in kept]
    texts = ((name, id) for name, id in pairs if isinstance(name, str))
    draft.synonyms = resolved(texts, [*kept, *draft.names.values()])
    if not kept:
        raise FormatError(f"{source.name}: the obograph must have classes. Got none.")
    note_ontology(draft, outside, len(obsolete))
    return draft


_RELATIONS = {"part_of": "BFO:0000050"}


def _curie(address: str) -> str:
    """GO:0005575 of http://purl.obolibrary.org/obo/GO_0005575; other ids stay."""
    found = re.fullmatch(r"https?://purl\.obolibrary\.org/obo/([A-Za-z]\w*?)_(\w+)", address)
    return f"{found[1]}:{found[2]}" if found else address


def note_ontology(draft: Draft, outside: Mapping[tuple[str, str], Any], obsolete: int) -> None:
    """Notes about what an ontology has besides its own living terms."""
    if outside:
        below = {child for _, child in draft.edges}
        tops = [child for child in dict.fromkeys(child for _, child in outside) if child not in below]
        where = sorted({parent[: parent.find(":") + 1] or parent for parent, _ in outside})
        words = f"; {len(tops):,} terms without another one are tops" if tops else ""
        draft.notes.append(
            f"{len(outside):,} parents are not in the file and are left out ({listed(where, 5)}){words}"
        )
    if obsolete:
        draft.notes.append(f"{obsolete:,} obsolete terms are left out")


def check_relations(relations: str | None) -> list[str]:
    """The relations to read as edges besides is_a."""
    words = [word.strip() for word in (relations or "").split(",") if word.strip()]
    if relations is not None and not words:
        raise ConfigError("relations must name relations to read besides is_a, such as part_of. Got nothing.")
    return words
