"""Taxonomies as they are published: path lists, taxon tables, NCBI's dump, and the class lists of image datasets.

Ranks and other names are kept. A taxon whose parent is not in the file is a top, and a note says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hace.errors import ConfigError, FormatError, HierarchyError, listed
from hace.formats.draft import Draft, SourceText, quoted
from hace.hierarchy.build import PathTree
from hace.hierarchy.matching import AUTHOR

RANKS = (
    "domain superkingdom realm kingdom subkingdom superphylum phylum subphylum superclass class subclass infraclass superorder "
    "order suborder infraorder parvorder superfamily family subfamily supertribe tribe subtribe genus subgenus section "
    "complex species subspecies variety form"
).split()
_OF_LIFE = frozenset("kingdom phylum genus species".split())
_LETTERS = {name[0]: name for name in "domain kingdom phylum class order family genus species".split()}
_PREFIX = re.compile(r"([a-z]{1,2})__(.*)", re.DOTALL)
LINEAGE = re.compile(r"(?:^|[\t,; ])[a-z]{1,2}__[^;\t]*;\s*[a-z]{1,2}__")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12};", re.IGNORECASE)
NUMBERED = re.compile(r"(\S+)\s+[-:]\s+(\S.*)", re.DOTALL)
_ROW_OF_LINEAGE = re.compile(r"([^\t,]*)[\t,]\s*\"?([a-z]{1,2}__[^\t,]*)")
_SEPARATORS = (" > ", ">", ";", "|", "\t")
_SPECIESNET = "class order family genus species".split()
Step = tuple[str, str, str]  # of a path: rank, the name that makes the id, the name to show


def resolved(pairs: Iterable[tuple[str, str]], taken: Iterable[str]) -> dict[str, str]:
    """Other names with the id of the one node that has them; a name of several nodes resolves to none."""
    id_of: dict[str, str] = {}
    several = set(taken)
    for name, id in pairs:
        if name and id_of.setdefault(name, id) != id:
            several.add(name)
    return {name: id for name, id in id_of.items() if name not in several}


# ---------------------------------------------------------------------- path lists


class PathLine(NamedTuple):
    """A line of a path list: its text, the id or name in front of the path, and the path."""

    text: str
    id: str
    path: str


def parse_paths(source: SourceText, *, separator: str | None = None) -> Draft:
    """One node per line as its path from the top: "A > B", "id - A > B", "gid : A > B", "A;B", "name<tab>d__A;p__B".

    Lines that begin with "#" are comments. A line may end at an inner node. Prefixes such as "f__" are ranks.
    """
    texts = [line.strip() for _, line in source.lines() if not line.lstrip().startswith("#")]
    if not texts:
        raise FormatError(f"{source.name}: must list paths such as 'A > B'. Got comments alone.")
    if len(texts) > 1 and not LINEAGE.search(texts[0]) and all(map(LINEAGE.search, texts[1:])):
        texts = texts[1:]  # a header, such as "Feature ID<tab>Taxon"
    numbered = all(map(NUMBERED.fullmatch, texts))
    lineages = all(map(LINEAGE.search, texts))
    if lineages:
        lines = [_split(text, _ROW_OF_LINEAGE.match(text)) for text in texts]
    elif numbered:
        lines = [_split(text, NUMBERED.fullmatch(text)) for text in texts]
    else:
        lines = [PathLine(text, "", text) for text in texts]
    mark = separator or (";" if lineages else _separator(source, [line.path for line in lines]))
    paths = _names_of_paths(source, lines, mark, lineages)
    if numbered:
        _check_distinct(source, [line.id for line in lines], paths)
    return draft_of_paths(source, lines, paths, mark, numbered)


def _split(text: str, match: re.Match[str] | None) -> PathLine:
    """A line whose pattern has groups for the id and for the path; without a match the line is the path."""
    return PathLine(text, match[1].strip('" '), match[2]) if match else PathLine(text, "", text)


def _names_of_paths(
    source: SourceText, lines: Sequence[PathLine], mark: str, lineages: bool
) -> list[tuple[str, ...]]:
    """The names of each path, from the top down."""
    all_end_with_mark = all(line.path.endswith(mark) for line in lines)  # as SILVA writes them
    paths = []
    for line in lines:
        names = [part.strip(' "') for part in line.path.split(mark)]
        if all_end_with_mark:
            names = names[:-1]
        if lineages:  # "s__" is an unknown species
            names = [name for name in names if not name.endswith("__")]
        bare_mark = mark.strip() or None
        if not names or any(not name or name.strip(bare_mark) != name for name in names):
            source.problems.broken(None, f"every part of a path must have a name. Got {quoted(line.text)}.")
        paths.append(tuple(names))
    source.problems.raise_broken()
    return paths


def _check_distinct(source: SourceText, ids: Sequence[str], paths: Sequence[tuple[str, ...]]) -> None:
    """Refuse an id, or a path, that is there twice."""
    twice = _repeated(ids) or _repeated(paths)
    if twice:
        raise HierarchyError(f"{source.name}: every path must have its own id. Got {quoted(twice)} twice.")


def draft_of_paths(
    source: SourceText,
    lines: Sequence[PathLine],
    paths: Sequence[tuple[str, ...]],
    mark: str,
    numbered: bool,
) -> Draft:
    """What the lines stand for: numbers are ids, other words in front of a path are names that resolve to its end."""
    joined = f" {mark.strip()} " if mark.strip() else " > "
    tree: PathTree[Step] = PathTree()
    other_names: dict[int, list[str]] = {}
    own_ids: dict[int, str] = {}
    for line, path in zip(lines, paths, strict=True):
        place = tree.add(map(_step, path))
        names = other_names.setdefault(place, [])
        names.append(joined.join(path))
        if numbered:
            own_ids[place] = line.id
        else:
            names.append(line.id)
    return _draft_of_tree(source, tree, other_names, own_ids, joined)


def _repeated(values: Sequence[Any]) -> Any:
    return next((value for value, count in Counter(values).items() if count > 1), None)


def _step(name: str) -> Step:
    match = _PREFIX.fullmatch(name)
    if match and match[2]:
        return _LETTERS.get(match[1], ""), name, match[2]
    return "", name, name


def _separator(source: SourceText, texts: Sequence[str]) -> str:
    best = max(_SEPARATORS, key=lambda mark: sum(mark in text for text in texts))
    if any(best in text for text in texts):
        return best
    raise FormatError(
        f"{source.name}: paths must have a separator. Got none of {', '.join(map(repr, _SEPARATORS))} in {quoted(texts[0])}. "
        "Name it with separator=... (on the command line: -o separator=/)."
    )


def _draft_of_tree(
    source: SourceText,
    tree: PathTree[Step],
    other_names: Mapping[int, Sequence[str]],
    own_ids: Mapping[int, str],
    mark: str,
) -> Draft:
    """A node for every place of a tree of paths. Places at the ends of paths may have other names, and ids of their own."""
    draft = Draft(flat=True)
    draft.nodes = _ids_of_steps(tree, own_ids, mark)
    for id, (rank, _, name) in zip(draft.nodes, tree.keys, strict=True):
        draft.names[id] = name
        if rank:
            draft.ranks[id] = rank
    if twice := _repeated(draft.nodes):
        raise HierarchyError(f"{source.name}: ids must be unique. Got {quoted(twice)} at two places.")
    draft.edges = [
        (draft.nodes[parent], id) for id, parent in zip(draft.nodes, tree.parents, strict=True) if parent >= 0
    ]
    pairs = [(name, draft.nodes[place]) for place, names in other_names.items() for name in names]
    taken = draft.nodes if own_ids else [*draft.nodes, *draft.names.values()]
    draft.synonyms = resolved(pairs, taken)
    return draft


def _ids_of_steps(tree: PathTree[Step], own_ids: Mapping[int, str], mark: str) -> list[str]:
    """The id of each place: its own, else its name if no other place has it, else with its rank, else its whole path.

    Where some places bring ids, the others get their paths.
    """
    counts = Counter(key for _, key, _ in tree.keys)
    counts_by_rank = Counter((rank, key) for rank, key, _ in tree.keys)
    ids: list[str] = []
    paths: list[str] | None = None
    for place, (rank, key, _) in enumerate(tree.keys):
        if place in own_ids:
            ids.append(own_ids[place])
        elif not own_ids and counts[key] == 1:
            ids.append(key)
        elif not own_ids and rank and counts_by_rank[rank, key] == 1:
            ids.append(f"{rank}:{key}")
        else:
            paths = paths or tree.joined([step[1] for step in tree.keys], mark)
            ids.append(paths[place])
    return ids


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
    # Products and industries have sections, families and classes, too, in another order.
    of_life = not plain.isdisjoint(_OF_LIFE) or plain >= {"order", "family"}
    return ranks if len(ranks) > 1 and of_life and plain.isdisjoint(("label", "parent", "child")) else []


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
    kinds = [name.casefold() for name in others]
    names_taxon = "scientificname" in kinds and "taxonrank" in kinds and "species" not in ranks
    tree: PathTree[Step] = PathTree()
    other_names: dict[int, list[str]] = {}
    unnamed = 0
    for _, cells, more in rows:
        name_of = {rank: cell.strip() for rank, cell in zip(ranks, cells, strict=True)}
        if names_taxon:
            about = {kind: cell.strip() for kind, cell in zip(kinds, more, strict=True)}
            if _SYNONYM.search(about.get("taxonomicstatus", "")):
                continue
            name_of[about["taxonrank"].casefold() or "species"] = AUTHOR.sub("", about["scientificname"])
        if kinds:
            more = [name for name, kind in zip(more, kinds, strict=True) if kind not in _NOT_NAMES]
        _complete_epithet(name_of)
        path = [(rank, name, name) for rank, name in name_of.items() if name]
        if path:
            other_names.setdefault(tree.add(path), []).extend(more)
        else:
            unnamed += 1
    if not other_names:
        raise FormatError(f"{source.name}: must name taxa. Got empty ranks alone.")
    draft = _draft_of_tree(source, tree, other_names, {}, "/")
    if unnamed:
        draft.notes.append(f"{unnamed:,} rows name no taxon (such as blank) and are left out")
    return draft


def _complete_epithet(name_of: dict[str, str]) -> None:
    """A species given by its epithet alone gets the name of its genus in front."""
    epithet = name_of.get("species", "")
    genus = name_of.get("genus", "")
    if epithet and genus and " " not in epithet and (epithet != genus or genus.islower()):
        name_of["species"] = f"{genus} {epithet}"


# ---------------------------------------------------------------------- taxa with ids of their parents

# What a column of Darwin Core, a Catalogue of Life data package or iNaturalist's taxa.csv holds; the first one present counts.
_ROLES = {
    "id": ("taxonid", "id", "taxon_id", "uid"),
    "parent": ("parentnameusageid", "parentid", "parent_id", "parent_taxon_id", "parent_uid", "ancestry"),
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


class _Taxon(NamedTuple):
    """A row of a taxon table."""

    line: int
    columns: dict[str, str]  # by their roles
    others: list[str]  # other names


def taxon_columns(header: Sequence[str]) -> dict[str, str] | None:
    """Roles of the columns of a taxon table, by role; None if it is not one."""
    plain = {re.sub(r"^\w+:", "", name.strip()).casefold(): name for name in reversed(header)}
    columns = {role: next((plain[c] for c in names if c in plain), "") for role, names in _ROLES.items()}
    by_parent = bool(columns["id"] and columns["parent"] and columns["name"])
    return (
        columns
        if by_parent and {"parentnameusageid", "parentid", "parent_uid", "ancestry"} & plain.keys()
        else None
    )


def parse_taxa(source: SourceText, header: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> Draft:
    """A table of taxa. Accepted names become nodes; synonyms become names that resolve to them."""
    roles = taxon_columns(header)
    assert roles is not None
    at = {role: header.index(name) for role, name in roles.items() if name}
    plain = [re.sub(r"^\w+:", "", name).casefold() for name in header]
    others = [i for i, name in enumerate(plain) if name in OTHER_NAMES and name not in _NOT_NAMES]
    by_ancestry = roles["parent"].casefold() == "ancestry"
    taxa: dict[str, _Taxon] = {}
    for line, cells in rows:
        columns = {role: cells[i].strip() for role, i in at.items()} if len(cells) == len(header) else {}
        id = columns.get("id", "")
        if not id:
            words = f"expected {len(header)} columns as in the header, and an id. Got {quoted(cells)}."
            source.problems.broken(line, words)
        elif id in taxa:
            source.problems.unfit(
                line, f"the id {quoted(id)} is on line {taxa[id].line} already. Remove one."
            )
        else:
            if by_ancestry:
                columns["parent"] = columns["parent"].rpartition("/")[2]
            taxa[id] = _Taxon(line, columns, [cells[i].strip() for i in others])
    source.problems.raise_broken()
    return _of_taxa(taxa)


def _of_taxa(taxa: Mapping[str, _Taxon]) -> Draft:
    """The accepted taxa as nodes; synonyms are other names of theirs."""
    id_of = {_bare(id): id for id in taxa}  # some files write ids as addresses, some do not
    accepted_of = _accepted_taxa(taxa, id_of)
    draft = Draft(flat=True)
    pairs: list[tuple[str, str]] = []  # another name, the id of its taxon
    doubtful = _doubtful_taxa(taxa, accepted_of)
    lost = 0
    for id, taxon in taxa.items():
        if id in doubtful:
            continue
        name, names = _names_of_taxon(id, taxon)
        accepted = _accepted(accepted_of, id)
        if accepted == id:
            draft.nodes.append(id)
            draft.names[id] = name
            rank = taxon.columns.get("rank", "").casefold()
            draft.ranks[id] = "" if rank in ("no rank", "unranked") else rank
            pairs += [(other, id) for other in names if other != name]
            continue
        if accepted in taxa:
            pairs += [(other, accepted) for other in (id, *names)]
        if accepted not in taxa or accepted in accepted_of:  # a chain that leaves the file, or goes round
            lost += 1
    nodes = set(draft.nodes)
    missing = []
    for id in draft.nodes:
        parent = taxa[id].columns["parent"]
        above = _accepted(accepted_of, id_of.get(_bare(parent), ""))
        if above in nodes and above != id:
            draft.edges.append((above, id))
        elif parent and above != id:
            missing.append(id)
    draft.synonyms = resolved((p for p in pairs if p[1] in nodes), [*nodes, *draft.names.values()])
    if missing:
        draft.notes.append(absent(missing))
    if doubtful:
        draft.notes.append(f"{len(doubtful):,} doubtful names are left out")
    if accepted_of:
        words = f"; {lost:,} of them lead nowhere and are left out" if lost else ""
        draft.notes.append(f"{len(accepted_of):,} synonyms are names of accepted taxa, not classes{words}")
    return draft


def _names_of_taxon(id: str, taxon: _Taxon) -> tuple[str, list[str]]:
    """The name without its author, and all names that mean the taxon, with and without the author."""
    full = taxon.columns["name"] or id
    author = taxon.columns.get("author", "")
    name = full.removesuffix(author).rstrip() if author and full != author else full
    names = [full, name, *taxon.others]
    if author:
        names.append(f"{name} {author}")
    return name, names


def _doubtful_taxa(taxa: Mapping[str, _Taxon], accepted_of: Mapping[str, str]) -> set[str]:
    """The doubtful taxa that no accepted taxon is below."""
    parents = {_bare(taxon.columns["parent"]) for id, taxon in taxa.items() if id not in accepted_of}
    return {
        id
        for id, taxon in taxa.items()
        if taxon.columns.get("status", "").casefold() == "doubtful" and _bare(id) not in parents
    }


def _accepted_taxa(taxa: Mapping[str, _Taxon], id_of: Mapping[str, str]) -> dict[str, str]:
    """The taxon that each synonym stands for: the one it names as accepted, or else its parent; "" if not in the file."""
    accepted_of = {}
    for id, taxon in taxa.items():
        accepted = id_of.get(_bare(taxon.columns.get("accepted", "")), "")
        if accepted and accepted != id:
            accepted_of[id] = accepted
        elif _SYNONYM.search(taxon.columns.get("status", "")):
            accepted_of[id] = id_of.get(_bare(taxon.columns["parent"]), "")
    return accepted_of


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
    nodes = set(draft.nodes)
    pairs = ((c[name].strip(), c[id].strip()) for _, c in rows if len(c) == len(plain))
    pairs = [pair for pair in pairs if pair[1] in nodes]
    draft.synonyms = {**resolved(pairs, [*nodes, *draft.names.values()]), **draft.synonyms}


def parse_ncbi(source: SourceText) -> Draft:
    """NCBI's taxdump: nodes.dmp, with names.dmp and merged.dmp beside it or in the same archive."""
    if "name" in source.name.rpartition("/")[2].casefold() and (nodes := source.beside("names", "nodes")):
        source = nodes
    draft = Draft(flat=True)
    missing = []
    parents = {}
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
    names = source.beside("nodes", "names")
    pairs = []
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
        own = group.get(name, "")
        outer = group.get(top, "") if top != name else ""
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
    """A draft of Open Images' tree, in which classes recur; with ``parts``, also of what is part of what."""
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
    """A draft of an ontology as a graph in JSON."""

    def items(key: str, *texts: str) -> Iterator[dict[str, Any]]:
        for item in (item for graph in graphs if isinstance(graph, dict) for item in graph.get(key, ())):
            if not isinstance(item, dict) or not all(isinstance(item.get(text), str) for text in texts):
                raise FormatError(f"{source.name}: {key} must have {', '.join(texts)}. Got {quoted(item)}.")
            yield item

    draft = Draft(flat=True)
    obsolete = {}
    pairs = []
    typed = '"CLASS"' in source.text
    for node in items("nodes", "id"):
        if node.get("type") != ("CLASS" if typed else None):
            continue
        id = curie(node["id"])
        name = node.get("lbl")
        meta = node.get("meta")
        about: Any = meta if isinstance(meta, dict) else {}
        properties = [v for v in about.get("basicPropertyValues", ()) if isinstance(v, dict)]
        values = [(str(v.get("pred")), v["val"]) for v in properties if isinstance(v.get("val"), str)]
        if about.get("deprecated") is True:
            obsolete[id] = next((curie(v) for pred, v in values if pred.endswith("IAO_0100001")), "")
            continue
        draft.nodes.append(id)
        draft.names |= {id: name} if isinstance(name, str) and name else {}
        pairs += [(s.get("val"), id) for s in about.get("synonyms", ()) if isinstance(s, dict)]
        pairs += [(v, id) for pred, v in values if pred.endswith("hasAlternativeId")]
    nodes = dict.fromkeys(draft.nodes)
    if not nodes:
        raise FormatError(f"{source.name}: the obograph must have classes. Got none.")
    edges = {}
    outside = {}
    wanted = {"is_a", "subClassOf", *(_RELATIONS.get(r, r) for r in relations)}
    for edge in items("edges", "sub", "pred", "obj"):
        parent = curie(edge["obj"])
        child = curie(edge["sub"])
        kind = edge["pred"]
        if child in nodes and (kind in wanted or curie(kind) in wanted):
            (edges if parent in nodes else outside)[parent, child] = None
    draft.edges = list(edges)
    draft.nodes = list(nodes)
    pairs += [(old, new) for old, new in obsolete.items() if new in nodes]
    draft.synonyms = resolved((p for p in pairs if isinstance(p[0], str)), [*nodes, *draft.names.values()])
    note_ontology(draft, outside, len(obsolete))
    return draft


_RELATIONS = {"part_of": "BFO:0000050"}


def curie(address: str) -> str:
    """GO:0005575 of http://purl.obolibrary.org/obo/GO_0005575; other ids stay."""
    match = re.fullmatch(r"https?://purl\.obolibrary\.org/obo/([A-Za-z]\w*?)_(\w+)", address)
    return f"{match[1]}:{match[2]}" if match else address


def _origin(id: str) -> str:
    """What ids of one ontology begin with: GO: of GO:0005575; of an address all but its last part."""
    address = re.match(r"https?://.*[/#]", id)
    return address[0] if address else id[: id.find(":") + 1] or id


def note_ontology(draft: Draft, outside: Mapping[tuple[str, str], Any], obsolete: int) -> None:
    """Notes about what an ontology has besides its own living terms."""
    if outside:
        below = {child for _, child in draft.edges}
        tops = [child for child in dict.fromkeys(child for _, child in outside) if child not in below]
        where = sorted({_origin(parent) for parent, _ in outside})
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
