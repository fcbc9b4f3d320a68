"""OBO ontologies: the `is_a` hierarchy of the [Term] stanzas.

The reader is our own and small, although obonet exists: files are untrusted here, so a syntax error must name
its line and any byte string must end in a hierarchy or in hace's own error, and only a few tags of a stanza
matter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from hace.checks import check_choice
from hace.errors import FormatError
from hace.formats.draft import Draft, SourceText, quoted
from hace.formats.taxonomies import check_relations, note_ontology, resolved

_STANZA = re.compile(r"\[([A-Za-z][\w-]*)\]\s*(!.*)?")
_TAG = re.compile(r"([^\s:]+):(.*)", re.DOTALL)
# An id, then optionally {modifiers} and a comment after "!".
_REFERENCE = re.compile(r"((?:\\.|[^\s\\!{])+)\s*(\{.*\})?\s*(!.*)?", re.DOTALL)
_SYNONYM = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "W": " "}


@dataclass
class _Term:
    line: int
    id: str = ""
    name: str = ""
    parents: dict[str, int] = field(default_factory=dict)  # id: line
    related: list[tuple[str, str]] = field(default_factory=list)  # relation and id
    others: list[str] = field(default_factory=list)  # synonyms and alternative ids
    replaced_by: str = ""
    obsolete: bool = False


def parse_obo(
    source: SourceText, *, prefix: str = "", isolated: str = "keep", relations: str | None = None
) -> Draft:
    """The terms of an OBO file and their `is_a` edges. Obsolete terms are left out; parents in other files are noted.

    Synonyms, alternative ids and replaced terms resolve. `relations` names relations to read as edges too, such as part_of;
    intersection_of is the genus of a term's definition, which ontologies without reasoning may have in place of is_a.
    """
    wanted = check_relations(relations)
    check_choice("isolated", isolated, ("keep", "drop"))
    terms = _terms(source)
    source.problems.raise_broken()
    if not terms:
        raise FormatError(f"{source.name}: no [Term] stanza; expected an OBO ontology.")
    current = {term.id: term for term in terms.values() if not term.obsolete and term.id.startswith(prefix)}
    if not current:
        raise FormatError(
            f"{source.name}: none of the {len(terms):,} terms is left with prefix={prefix!r}; "
            f"ids look like {quoted(next(iter(terms)))}, and obsolete terms do not count."
        )
    draft = Draft(nodes=list(current), names={term.id: term.name for term in current.values() if term.name})
    outside = _add_edges(draft, source, terms, current, wanted, prefix)
    draft.synonyms = resolved(_other_names(terms, current), [*current, *draft.names.values()])
    note_ontology(draft, outside, sum(term.obsolete for term in terms.values()))
    genus = [
        term for term in current.values() if not term.parents and dict(term.related).get("intersection_of")
    ]
    if genus and "intersection_of" not in wanted:
        remedy = "relations=intersection_of reads it"
        draft.notes.append(f"{len(genus):,} terms without is_a have a genus in intersection_of: {remedy}")
    draft.flat = bool(outside)
    if isolated == "drop":
        _drop_isolated(draft, source)
    return draft


def _add_edges(
    draft: Draft,
    source: SourceText,
    terms: Mapping[str, _Term],
    current: Mapping[str, _Term],
    wanted: Collection[str],
    prefix: str,
) -> dict[tuple[str, str], None]:
    """Add the edges between current terms; the others, parent and child, lead to terms that the file does not have."""
    outside: dict[tuple[str, str], None] = {}
    for term in current.values():
        more = {id: term.line for relation, id in term.related if relation in wanted}
        for parent, line in {**more, **term.parents}.items():
            if parent in current:
                draft.edges.append((parent, term.id))
            elif parent not in terms:
                outside |= {(parent, term.id): None} if parent.startswith(prefix) else {}
            elif terms[parent].obsolete:
                source.problems.unfit(line, f"the parent {quoted(parent)} of {quoted(term.id)} is obsolete.")
    return outside


def _other_names(terms: Mapping[str, _Term], current: Mapping[str, _Term]) -> list[tuple[str, str]]:
    """Other names with the current term that each means: synonyms, alternative ids, and terms that it replaced."""
    pairs = [(name, term.id) for term in current.values() for name in term.others]
    for term in terms.values():
        if term.obsolete and term.replaced_by in current:
            pairs += [(name, term.replaced_by) for name in (term.id, *term.others)]
    return pairs


def _drop_isolated(draft: Draft, source: SourceText) -> None:
    """Remove the nodes without an edge."""
    connected = {end for edge in draft.edges for end in edge}
    if not connected:
        raise FormatError(f"{source.name}: no is_a edge is left: isolated='drop' would drop every term.")
    draft.nodes = [id for id in draft.nodes if id in connected]
    draft.names = {id: name for id, name in draft.names.items() if id in connected}
    draft.synonyms = {name: id for name, id in draft.synonyms.items() if id in connected}


def _terms(source: SourceText) -> dict[str, _Term]:
    """All terms by id, obsolete ones too."""
    terms: dict[str, _Term] = {}
    term: _Term | None = None  # None outside of [Term] stanzas

    def close() -> None:
        if term is None:
            return
        if not term.id:
            source.problems.broken(term.line, "this [Term] has no id.")
        elif (other := terms.setdefault(term.id, term)) is not term:
            words = f"the id {quoted(term.id)} has a [Term] on line {other.line} already."
            source.problems.unfit(term.line, words)

    for number, line in _logical_lines(source):
        if line.startswith("["):
            close()
            stanza = _STANZA.fullmatch(line)
            if not stanza:
                source.problems.broken(number, f"expected a stanza such as [Term], got {quoted(line)}.")
            term = _Term(number) if stanza and stanza[1] == "Term" else None
        elif not line.startswith("!"):
            tag = _TAG.fullmatch(line)
            if not tag:
                source.problems.broken(number, f"expected 'tag: value', got {quoted(line)}.")
            elif term is not None:
                _take_tag(source, term, number, tag[1], tag[2].strip())
    close()
    return terms


def _take_tag(source: SourceText, term: _Term, line: int, tag: str, value: str) -> None:
    """Take a line "tag: value" of a term; other tags are skipped."""
    if tag in ("id", "is_a"):
        _take_reference(source, term, line, tag, value)
    elif tag == "name":
        if term.name:
            source.problems.broken(line, f"a second name in one [Term], after {quoted(term.name)}.")
        term.name = _unescaped(_without_comment(value))
    elif tag == "is_obsolete":
        word = value.split("!")[0].strip()
        if word not in ("true", "false"):
            source.problems.broken(line, f"is_obsolete must be true or false, got {quoted(value)}.")
        term.obsolete = word == "true"
    elif tag == "synonym":
        if synonym := _SYNONYM.match(value):
            term.others.append(_unescaped(synonym[1]))
    elif tag == "alt_id":
        term.others.append(_unescaped(_without_comment(value)))
    elif tag == "replaced_by":
        term.replaced_by = _unescaped(_without_comment(value))
    elif tag == "relationship":
        words = value.split()
        if len(words) > 1:
            term.related.append((words[0], words[1]))
    # The genus of a definition is one id; its other parts have a relation in front.
    elif tag == "intersection_of" and (genus := _REFERENCE.fullmatch(value)):
        term.related.append((tag, _unescaped(genus[1])))


def _take_reference(source: SourceText, term: _Term, line: int, tag: str, value: str) -> None:
    """Take the id of a term, or that of a parent."""
    reference = _REFERENCE.fullmatch(value)
    if not reference:
        source.problems.broken(line, f"expected one id after {tag}:, got {quoted(value)}.")
        return
    id = _unescaped(reference[1])
    if tag == "id":
        if term.id:
            source.problems.broken(line, f"a second id in one [Term], after {quoted(term.id)}.")
        term.id = id
    elif term.parents.setdefault(id, line) != line:
        source.problems.unfit(line, f"is_a {quoted(id)} is on line {term.parents[id]} already. Remove one.")


def _logical_lines(source: SourceText) -> Iterator[tuple[int, str]]:
    """Logical lines: one that ends in a backslash continues on the next."""
    held: list[str] = []
    start = 0
    for number, line in source.lines():
        start = start if held else number
        # An even number of backslashes is an escaped one, not a continuation.
        if (len(line) - len(line.rstrip("\\"))) % 2:
            held.append(line[:-1])
            continue
        yield start, "".join([*held, line]).strip()
        held = []
    if held:
        yield start, "".join(held).strip()


def _without_comment(value: str) -> str:
    """The value up to a "!" after a blank. (A regular expression would be quadratic in long blanks.)"""
    position = value.find("!", 1)
    while position > 0 and not value[position - 1].isspace():
        position = value.find("!", position + 1)
    return value[:position].rstrip() if position > 0 else value


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)
