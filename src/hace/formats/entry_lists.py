"""Lists in which each entry names its parents: RCV1's topics, and the taxonomies of Open Food Facts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hace.errors import listed
from hace.formats.draft import Draft, SourceText, quoted
from hace.formats.taxonomies import absent, resolved

TOPIC = re.compile(r"\s*parent:\s*(\S+)\s+child:\s*(\S+)(?:\s+child-description:\s*(.*?))?\s*")
NO_PARENT = "none"
PARENT = re.compile(r"<\s*([a-z]{2,3}(?:[_-]\w+)?)\s*:\s*(\S.*)")
_LANGUAGE_LINE = re.compile(r"([a-z]{2,3}(?:[_-]\w+)?)\s*:\s*(.*)")
_PROPERTY = re.compile(r"[\w-]+\s*:\s*[a-z]{2,3}(?:[_-]\w+)?\s*:.*")  # wco_hs_code:en: 1204.00
_DIRECTIVE = re.compile(r"(?:synonyms|stopwords)\s*:", re.IGNORECASE)
_COMMA = re.compile(r"(?<!\\),")
# In these languages an id has no accents: "fr:crème brûlée" is fr:creme-brulee.
_WITHOUT_ACCENTS = frozenset("ca en es fr it nl pt sk".split())


def parse_topics(source: SourceText) -> Draft:
    """One node per line: "parent: CCAT  child: C11  child-description: STRATEGY/PLANS". A parent None makes a top."""
    draft = Draft(flat=True)
    first_line: dict[str, int] = {}
    parents: list[tuple[str, str]] = []
    for line, text in source.lines():
        if text.lstrip().startswith("#"):
            continue
        match = TOPIC.fullmatch(text)
        if match is None:
            source.problems.broken(line, f"expected 'parent: A child: B'. Got {quoted(text)}.")
            continue
        parent, child, name = match.groups()
        if child not in first_line:
            first_line[child] = line
            draft.nodes.append(child)
            draft.names[child] = name or child
        parents.append((parent, child))
    source.problems.raise_broken()
    missing = []
    for parent, child in parents:
        if parent in first_line:
            draft.edges.append((parent, child))
        elif parent.casefold() != NO_PARENT:
            missing.append(child)
    if missing:
        draft.notes.append(absent(missing))
    return draft


@dataclass
class Entry:
    """One block of lines: its names by language, the first one first, and its parents."""

    line: int
    names: list[tuple[str, list[str]]] = field(default_factory=list)  # (language, names)
    parents: list[tuple[str, str]] = field(default_factory=list)  # (language, name)

    @property
    def id(self) -> str:
        """The id that labels use: en:plant-based-foods."""
        language, names = self.names[0]
        return f"{language}:{slug(names[0], language)}"


def parse_entries(source: SourceText) -> Draft:
    """Blocks divided by blank lines: "< en:Parent" for each parent, then a line of names for each language, "en: Name, Other".

    Ids are those of the product data, such as en:plant-based-foods; all other names lead to them. Properties, stop words and
    synonyms of single words are left out.
    """
    nameless: list[int] = []
    entries = list(_entries(source, nameless))
    if not entries:
        source.problems.broken(None, "must have blocks with names, such as 'en: Name'. Got none.")
    source.problems.raise_broken()
    draft = Draft(flat=True)
    id_of: dict[tuple[str, str], str] = {}  # (language, slug) of every name
    other_names: list[tuple[str, str]] = []
    for entry in entries:
        id = entry.id
        draft.names.setdefault(id, entry.names[0][1][0])
        for language, names in entry.names:
            for name in names:
                id_of.setdefault((language, slug(name, language)), id)
                other_names.append((name, id))
    draft.nodes = list(draft.names)
    missing = _link_entries(draft, entries, id_of)
    draft.synonyms = resolved(other_names, [*draft.nodes, *draft.names.values()])
    below = {child for _, child in draft.edges}
    if tops := [id for id in missing if id not in below]:
        draft.notes.append(absent(tops))
    if more := len(missing.keys() & below):
        draft.notes.append(f"nodes of which one of several parents is not in the file: {more:,}")
    if nameless:
        lines = listed([f"line {line}" for line in nameless], 3)
        draft.notes.append(f"blocks of parents without a name are left out: {lines}")
    if repeated := len(entries) - len(draft.nodes):
        draft.notes.append(f"entries of the same name are taken as one: {repeated:,}")
    return draft


def _link_entries(
    draft: Draft, entries: Sequence[Entry], id_of: Mapping[tuple[str, str], str]
) -> dict[str, None]:
    """Add the edges from parents to entries; returns the entries that name a parent which is not in the file."""
    edges: dict[tuple[str, str], None] = {}
    missing: dict[str, None] = {}
    for entry in entries:
        for language, name in entry.parents:
            parent = id_of.get((language, slug(name, language)))
            if parent is None:
                missing[entry.id] = None
            elif parent != entry.id:
                edges[parent, entry.id] = None
    draft.edges = list(edges)
    return missing


def _entries(source: SourceText, nameless: list[int]) -> Iterator[Entry]:
    """The blocks that have a name; ``nameless``: the lines of blocks that have parents alone."""
    text = source.text.replace("\r\n", "\n").replace("\r", "\n")
    entry = Entry(1)
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.strip()
        if not line:
            if entry.names:
                yield entry
            elif entry.parents:
                nameless.append(entry.line)
            entry = Entry(number + 1)
        elif line.startswith("#") or _DIRECTIVE.match(line) or _PROPERTY.fullmatch(line):
            continue
        elif line.startswith("<"):
            match = PARENT.fullmatch(line)
            if match is None:
                source.problems.broken(number, f"a parent must be '< en:Name'. Got {quoted(line)}.")
            else:
                entry.parents.append((match[1], match[2]))
        else:
            match = _LANGUAGE_LINE.fullmatch(line)
            names = [] if match is None else [n.replace("\\,", ",").strip() for n in _COMMA.split(match[2])]
            names = [name for name in names if slug(name, match[1] if match else "")]
            if match and names:
                entry.names.append((match[1], names))
            elif ":" not in line:  # other lines with a colon are properties
                source.problems.broken(
                    number, f"expected 'language: name' or '< parent'. Got {quoted(line)}."
                )


def slug(name: str, language: str) -> str:
    """A name as ids have it: "Plant-based foods" is plant-based-foods."""
    name = unicodedata.normalize("NFC", name).casefold()
    if language.partition("_")[0] in _WITHOUT_ACCENTS:
        name = "".join(c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c))
    return re.sub(r"[\W_]+", "-", name).strip("-")
