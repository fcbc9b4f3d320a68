"""Taxonomies as they are published: path lists, taxon tables, NCBI's dump, and the class lists of image datasets.

Ranks and other names are kept. A taxon whose parent is not in the file is a top, and a note says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hace.errors import ConfigError, FormatError, HierarchyError, listed
from hace.formats.draft import Draft, SourceText, quoted
from hace.hierarchy.matching import AUTHOR

RANKS = (
    "domain superkingdom realm kingdom subkingdom superphylum phylum subphylum superclass class subclass infraclass superorder "
    "order suborder infraorder parvorder superfamily family subfamily supertribe tribe subtribe genus subgenus section "
    "complex species subspecies variety form"
).split()
_LETTERS = {name[0]: name for name in "domain kingdom phylum class order family genus species".split()}
_PREFIX = re.compile(r"([a-z]{1,2})__(.*)", re.DOTALL)
LINEAGE = re.compile(r"(?:^|[\t,; ])[a-z]{1,2}__[^;\t]*;\s*[a-z]{1,2}__")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12};", re.IGNORECASE)
NUMBERED = re.compile(r"(\S+)\s+[-:]\s+(\S.*)", re.DOTALL)
_ROW_OF_LINEAGE = re.compile(r"([^\t,]*)[\t,]\s*\"?([a-z]{1,2}__[^\t,]*)")
_SEPARATORS = (" > ", ">", ";", "|", "\t")
_SPECIESNET = "class order family genus species".split()
Place = tuple[str, str, str]  # rank, the name that makes the id, the name to show


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
    lines = [line.strip() for _, line in source.lines() if not line.lstrip().startswith("#")]
    if not lines:
        raise FormatError(f"{source.name}: must list paths such as 'A > B'. Got comments alone.")
    if len(lines) > 1 and not LINEAGE.search(lines[0]) and all(LINEAGE.search(line) for line in lines[1:]):
        lines = lines[1:]  # a header, such as "Feature ID<tab>Taxon"
    split = [NUMBERED.fullmatch(line) for line in lines]
    numbered, lineages = all(split), all(LINEAGE.search(line) for line in lines)
    if lineages:
        split = [_ROW_OF_LINEAGE.match(line) for line in lines]
    ids = [found[1].strip('" ') if found else "" for found in split] if numbered or lineages else []
    texts = [found[2] if found else line for found, line in zip(split, lines, strict=True)] if ids else lines
    mark = separator or (";" if lineages else _separator(source, texts))
    ended = all(text.endswith(mark) for text in texts)  # as SILVA writes them
    paths = [tuple(part.strip(' "') for part in text.split(mark)[: -1 if ended else None]) for text in texts]
    if lineages:
        paths = [tuple(part for part in path if not part.endswith("__")) for path in paths]
    for text, path in zip(lines, paths, strict=True):
        if "" in path or not path or any(part.strip(mark.strip() or None) != part for part in path):
            source.problems.broken(None, f"every part of a path must have a name. Got {quoted(text)}.")
    source.problems.raise_broken()
    if numbered and (twice := _repeated(ids) or _repeated(paths)):
        raise HierarchyError(f"{source.name}: every path must have its own id. Got {quoted(twice)} twice.")
    joined = f" {mark.strip()} " if mark.strip() else " > "
    other: dict[tuple[Place, ...], list[str]] = {}
    for path, id in zip(paths, ids or [""] * len(paths), strict=True):
        other.setdefault(tuple(map(_place, path)), []).extend([joined.join(path), "" if numbered else id])
    own = dict(zip(other, ids, strict=True)) if numbered else {}
    return _of_places(source, other, own, joined)


def _repeated(values: Sequence[Any]) -> Any:
    return next((value for value, count in Counter(values).items() if count > 1), None)


def _place(name: str) -> Place:
    found = _PREFIX.fullmatch(name)
    return (_LETTERS.get(found[1], ""), name, found[2]) if found and found[2] else ("", name, name)


def _separator(source: SourceText, texts: Sequence[str]) -> str:
    best = max(_SEPARATORS, key=lambda mark: sum(mark in text for text in texts))
    if any(best in text for text in texts):
        return best
    raise FormatError(
        f"{source.name}: paths must have a separator. Got none of {', '.join(map(repr, _SEPARATORS))} in {quoted(texts[0])}. "
        "Name it with separator=... (on the command line: -o separator=/)."
    )


def _of_places(
    source: SourceText,
    other: Mapping[tuple[Place, ...], Sequence[str]],
    own: Mapping[tuple[Place, ...], str],
    joined: str,
) -> Draft:
    """Nodes at the ends of paths, with other names, and above them.

    Ids are a node's own, else its name where it is its alone, else with its rank, else with all that is above it.
    """
    places = dict.fromkeys(path[:k] for path in other for k in range(1, len(path) + 1))
    counts = Counter(place[-1][1] for place in places)
    ranked = Counter(place[-1][:2] for place in places)
    draft, id_of = Draft(flat=True), {}
    for place in places:
        rank, key, name = place[-1]
        id = key if counts[key] == 1 else f"{rank}:{key}" if rank and ranked[rank, key] == 1 else ""
        id = own.get(place, "" if own else id)
        id_of[place] = id = id or joined.join(part for _, part, _ in place)
        draft.names[id] = name
        draft.ranks |= {id: rank} if rank else {}
    draft.nodes = list(id_of.values())
    if twice := _repeated(draft.nodes):
        raise HierarchyError(f"{source.name}: ids must be unique. Got {quoted(twice)} at two places.")
    draft.edges = [(id_of[place[:-1]], id) for place, id in id_of.items() if len(place) > 1]
    pairs = [(name, id_of[path]) for path, names in other.items() for name in names]
    draft.synonyms = resolved(pairs, [*draft.nodes, *(draft.names.values() if not own else ())])
    return draft


def parse_speciesnet(source: SourceText) -> Draft:
    """SpeciesNet's list: uuid;class;order;family;genus;species;common name, empty where a label is above a rank."""
    rows = []
    for line, text in source.lines():
        cells = [cell.strip() for cell in text.split(";")]
        if len(cells) != 7 or not UUID.match(text):
            source.problems.broken(line, f"expected uuid;class;...;species;name, got {quoted(text)}.")
        else:
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
    placed: dict[tuple[Place, ...], list[str]] = {}
    without = 0
    for _, cells, more in rows:
        names = dict(zip(ranks, (cell.strip() for cell in cells), strict=True))
        if flat:
            said = dict(zip(about, (cell.strip() for cell in more), strict=True))
            if _SYNONYM.search(said.get("taxonomicstatus", "")):
                continue
            names[said["taxonrank"].casefold() or "species"] = AUTHOR.sub("", said["scientificname"])
        if about:
            more = [name for name, kind in zip(more, about, strict=True) if kind not in _NOT_NAMES]
        epithet, genus = names.get("species", ""), names.get("genus", "")
        if epithet and genus and " " not in epithet and (epithet != genus or genus.islower()):
            names["species"] = f"{genus} {epithet}"
        path = tuple((rank, name, name) for rank, name in names.items() if name)
        if path:
            placed.setdefault(path, []).extend(more)
        else:
            without += 1
    if not placed:
        raise FormatError(f"{source.name}: must name taxa. Got empty ranks alone.")
    draft = _of_places(source, placed, {}, "/")
    if without:
        draft.notes.append(f"{without:,} rows name no taxon (such as blank) and are left out")
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
        taxon = {role: cells[i].strip() for role, i in at.items()} if len(cells) == len(header) else {}
        id = taxon.get("id", "")
        if not id:
            words = f"expected {len(header)} columns as in the header, and an id. Got {quoted(cells)}."
            source.problems.broken(line, words)
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
        if (target := _accepted(accepted_of, id)) != id:
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
        parent = taxa[id][1]["parent"]
        above = _accepted(accepted_of, key.get(_bare(parent), ""))
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


def _accepted(accepted_of: Mapping[str, str], id: str) -> str:
    """Where a chain of synonyms ends; one that goes round ends within itself."""
    for _ in range(10):
        id = accepted_of.get(id, id)
    return id


def absent(missing: Sequence[str]) -> str:
    """The note about nodes whose parents are not in the file."""
    if len(missing) == 1:
        return f"the parent of {missing[0]!r} is not in the file; it is a top"
    return f"the parents of {len(missing):,} nodes are not in the file; they are tops: {listed(missing, 3)}"


def _bare(id: str) -> str:
    return re.sub(r"^https?://(www\.)?", "", id)


def add_vernaculars(draft: Draft, header: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> None:
    """Common names, from the table of vernacular names of a Darwin Core archive or a Catalogue of Life data package."""
    plain = [re.sub(r"^\w+:", "", name.strip()).casefold() for name in header]
    id = next((plain.index(c) for c in ("taxonid", "id", "coreid") if c in plain), None)
    name = next((plain.index(c) for c in ("vernacularname", "name") if c in plain), None)
    if id is None or name is None:
        return
    kept = set(draft.nodes)
    pairs = ((c[name].strip(), c[id].strip()) for _, c in rows if len(c) == len(plain))
    pairs = [pair for pair in pairs if pair[1] in kept]
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
    draft.synonyms = resolved(pairs, [*parents, *draft.names.values()])
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


# ---------------------------------------------------------------------- JSON of image datasets and ontologies


def json_taxonomy(source: SourceText, content: Any, parts: bool, relations: Sequence[str]) -> Draft | None:
    """COCO or LVIS categories, Open Images' tree or obographs; None if the content is none of them."""
    if isinstance(content, dict) and isinstance(content.get("graphs"), list):
        return _obographs(source, content["graphs"], relations)
    if isinstance(content, dict) and isinstance(content.get("LabelName"), str):
        return _open_images(source, content, parts)
    categories = content.get("categories") if isinstance(content, dict) else content
    named = isinstance(categories, list) and all(isinstance(c, dict) and "name" in c for c in categories)
    if named and categories:
        grouped = all("supercategory" in c for c in categories)
        if grouped or (categories is not content and not any("children" in c for c in categories)):
            return _categories(source, categories)
    return None


def _categories(source: SourceText, categories: list[dict[str, Any]]) -> Draft:
    """Classes below their supercategories. A class that is a group, too, is a leaf below it, or the one node if it is alone."""
    names = [c["name"] for c in categories]
    if not all(isinstance(name, str) and name for name in names) or _repeated(names):
        raise FormatError(f"{source.name}: every category must have its own name. Got {listed(names, 5)}.")
    above = {c["name"]: str(c.get("supercategory") or "") for c in categories}
    counts = Counter(above.values())
    alone = [name for name, top in above.items() if name == top and counts[top] == 1]
    tops = [top for top in counts if top and top not in alone]
    group = {top: f"{top} (group)" if top in above else top for top in tops}
    edges: dict[tuple[str, str], None] = {}
    for name, top in above.items():
        own, outer = group.get(name, ""), group.get(top, "") if top != name else ""
        edges |= {(own, name): None} if own else {}
        edges |= {(outer, own or name): None} if outer else {}
    draft = Draft(edges=list(edges), leaves=names, nodes=names.copy(), flat=True)
    draft.ranks = {id: "supercategory" for id, _ in edges} | dict.fromkeys(names, "category")
    pairs = [(str(c["id"]), c["name"]) for c in categories if isinstance(c.get("id"), int | str)]
    for c in categories:
        others: Any = c.get("synonyms") if isinstance(c.get("synonyms"), list) else []
        pairs += [(str(other), c["name"]) for other in [*others, c.get("synset") or ""]]
    draft.synonyms = resolved(pairs, {*names, *group.values()})
    if not draft.edges:
        draft.notes.append("the categories have no supercategory: the classes are flat")
    if alone:
        draft.notes.append(f"classes that are their own supercategory are one node: {listed(alone, 5)}")
    return draft


def _open_images(source: SourceText, tree: dict[str, Any], parts: bool) -> Draft:
    nodes: dict[str, None] = {}
    edges: dict[str, dict[tuple[str, str], None]] = {"Subcategory": {}, "Part": {}}
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        id = node.get("LabelName") if isinstance(node, dict) else None
        if not isinstance(id, str) or not id or not all(isinstance(node.get(key, []), list) for key in edges):
            raise FormatError(f"{source.name}: nodes must have a LabelName and lists. Got {quoted(node)}.")
        nodes.setdefault(id)
        for key, held in edges.items():
            children = [child for child in node.get(key, []) if isinstance(child, dict)]
            held |= {(id, str(child.get("LabelName"))): None for child in children}
            waiting += node.get(key, [])[::-1]
    chosen = edges["Subcategory"] | (edges["Part"] if parts else {})
    draft = Draft(edges=list(chosen), nodes=list(nodes), flat=True)
    if edges["Part"] and not parts:
        draft.notes.append(f"{len(edges['Part']):,} Part relations are left out; -o parts=true reads them")
    return draft


def _obographs(source: SourceText, graphs: list[Any], relations: Sequence[str]) -> Draft:
    def items(key: str, *texts: str) -> Iterator[dict[str, Any]]:
        for item in (item for graph in graphs if isinstance(graph, dict) for item in graph.get(key, ())):
            if not isinstance(item, dict) or not all(isinstance(item.get(text), str) for text in texts):
                raise FormatError(f"{source.name}: {key} must have {', '.join(texts)}. Got {quoted(item)}.")
            yield item

    draft, obsolete, pairs = Draft(flat=True), {}, []
    typed = '"CLASS"' in source.text
    for node in items("nodes", "id"):
        if node.get("type") != ("CLASS" if typed else None):
            continue
        id, name, meta = _curie(node["id"]), node.get("lbl"), node.get("meta")
        about: Any = meta if isinstance(meta, dict) else {}
        said = [v for v in about.get("basicPropertyValues", ()) if isinstance(v, dict)]
        values = [(str(v.get("pred")), v["val"]) for v in said if isinstance(v.get("val"), str)]
        if about.get("deprecated") is True:
            obsolete[id] = next((_curie(v) for pred, v in values if pred.endswith("IAO_0100001")), "")
            continue
        draft.nodes.append(id)
        draft.names |= {id: name} if isinstance(name, str) and name else {}
        pairs += [(s.get("val"), id) for s in about.get("synonyms", ()) if isinstance(s, dict)]
        pairs += [(v, id) for pred, v in values if pred.endswith("hasAlternativeId")]
    kept = dict.fromkeys(draft.nodes)
    if not kept:
        raise FormatError(f"{source.name}: the obograph must have classes. Got none.")
    edges, outside = {}, {}
    wanted = {"is_a", "subClassOf", *(_RELATIONS.get(r, r) for r in relations)}
    for edge in items("edges", "sub", "pred", "obj"):
        parent, child, kind = _curie(edge["obj"]), _curie(edge["sub"]), edge["pred"]
        if child in kept and (kind in wanted or _curie(kind) in wanted):
            (edges if parent in kept else outside)[parent, child] = None
    draft.edges, draft.nodes = list(edges), list(kept)
    pairs += [(old, new) for old, new in obsolete.items() if new in kept]
    draft.synonyms = resolved((p for p in pairs if isinstance(p[0], str)), [*kept, *draft.names.values()])
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
        left = f"{len(outside):,} parents are not in the file and are left out"
        draft.notes.append(f"{left} ({listed(where, 5)}){words}")
    if obsolete:
        draft.notes.append(f"{obsolete:,} obsolete terms are left out")


def check_relations(relations: str | None) -> list[str]:
    """The relations to read as edges besides is_a."""
    words = [word.strip() for word in (relations or "").split(",") if word.strip()]
    if relations is not None and not words:
        raise ConfigError("relations must name relations to read besides is_a, such as part_of. Got nothing.")
    return words
