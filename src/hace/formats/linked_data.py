"""Thesauri and ontologies as linked data: SKOS, RDF and OWL, in RDF/XML, Turtle, N-Triples and OWL's functional syntax.

rdflib parses the first three, within the limits of everything from outside: nothing is fetched, no entity is resolved from
elsewhere, and `owl:imports` are not followed. Of a document only concepts or classes, what is above them, and their names
count.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hace.errors import FormatError
from hace.files.reading import check_memory, optional
from hace.formats.draft import Draft, SourceText
from hace.formats.taxonomies import curie, note_ontology, resolved

_BYTES_PER_LETTER = 40  # that rdflib takes, about
_SKOS = "http://www.w3.org/2004/02/skos/core#"
_RDFS = "http://www.w3.org/2000/01/rdf-schema#"
_OWL = "http://www.w3.org/2002/07/owl#"
_RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
_OBO = "http://www.geneontology.org/formats/oboInOwl#"
_XL = "http://www.w3.org/2008/05/skos-xl#"
_ISO = "http://purl.org/iso25964/skos-thes#"
_GETTY = "http://vocab.getty.edu/ontology#"
_CONCEPT = f"{_SKOS}Concept"
_KINDS = (_CONCEPT, f"{_OWL}Class", f"{_RDFS}Class")
_BROADER = (  # child first
    f"{_SKOS}broader",
    *(f"{_ISO}broader{kind}" for kind in ("Generic", "Instantial", "Partitive")),
    *(f"{_GETTY}broader{kind}" for kind in ("Generic", "Instantial", "Partitive", "Preferred")),
)
_NARROWER = (  # parent first
    f"{_SKOS}narrower",
    *(f"{_ISO}narrower{kind}" for kind in ("Generic", "Instantial", "Partitive")),
)
_SUBCLASS = f"{_RDFS}subClassOf"  # child first
_RELATIONS = (*_BROADER, *_NARROWER, _SUBCLASS)
_NAMES = (f"{_SKOS}prefLabel", f"{_RDFS}label")
# Labels that are nodes themselves, and whether they are the name.
_LABELS = {f"{_XL}prefLabel": True, f"{_XL}altLabel": False, f"{_XL}hiddenLabel": False}
_LITERAL_FORM = f"{_XL}literalForm"
_OTHER_NAMES = (
    f"{_SKOS}altLabel",
    f"{_SKOS}hiddenLabel",
    f"{_SKOS}notation",
    f"{_OBO}hasExactSynonym",
    f"{_OBO}hasAlternativeId",
)
# owl:deprecated, physh_rdf:deprecated
_DEPRECATED = re.compile(r"[#/:](?:is)?_?(?:deprecated|obsolete)$", re.IGNORECASE)
_DEPRECATED_KIND = f"{_OWL}DeprecatedClass"
_THINGS = (f"{_OWL}Thing", f"{_OWL}Nothing")
_ENTITY = re.compile(r"<!ENTITY\s+(%?)\s*(\S+)\s+(SYSTEM|PUBLIC|\"[^\"]*\"|'[^']*')", re.IGNORECASE)
_FUNCTIONAL = re.compile(r"^\s*(?:Prefix|Ontology)\s*\(", re.MULTILINE)


@dataclass
class Concepts:
    """What a document says of its concepts or classes, by IRI."""

    declared: dict[str, None] = field(default_factory=dict)
    others: int = 0  # classes of a thesaurus, which are about its concepts
    edges: dict[tuple[str, str], None] = field(default_factory=dict)  # (parent, child)
    names: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # (language, name)
    other_names: list[tuple[str, str]] = field(default_factory=list)  # (name, IRI)
    deprecated: set[str] = field(default_factory=set)


def parse_linked_data(source: SourceText, *, language: str = "en") -> Draft:
    """SKOS concepts below broader ones, or classes below superclasses. Deprecated ones are left out.

    ``language``: of the names; where a concept has none in it, one without a language, else the first, is taken.
    """
    check_memory(source.name, len(source.text) * _BYTES_PER_LETTER)
    concepts = _functional(source) if _FUNCTIONAL.search(source.text[:10_000]) else _graph(source)
    draft = Draft(flat=True)
    current = [iri for iri in concepts.declared if iri not in concepts.deprecated and iri not in _THINGS]
    if not current:
        raise FormatError(
            f"{source.name}: must have SKOS concepts or classes. Got none that are not deprecated."
        )
    id_of = {iri: curie(iri) for iri in current}
    draft.nodes = list(id_of.values())
    outside: dict[tuple[str, str], None] = {}
    for parent, child in concepts.edges:
        if child not in id_of or parent in _THINGS or parent == child:
            continue
        if parent in id_of:
            draft.edges.append((id_of[parent], id_of[child]))
        elif parent not in concepts.deprecated:
            outside[curie(parent), id_of[child]] = None
    others = [(name, id_of[iri]) for name, iri in concepts.other_names if iri in id_of]
    for iri, id in id_of.items():
        names = concepts.names.get(iri, [])
        if names:
            draft.names[id] = _in_language(names, language)
            others += [(name, id) for _, name in names if name != draft.names[id]]
    draft.synonyms = resolved(others, [*draft.nodes, *draft.names.values()])
    if concepts.others:
        draft.notes.append(f"{concepts.others:,} classes beside the concepts are left out")
    note_ontology(draft, outside, len(concepts.deprecated & concepts.declared.keys()))
    return draft


def _in_language(names: list[tuple[str, str]], language: str) -> str:
    for wanted in (language, ""):
        for tag, name in names:
            if tag.partition("-")[0].casefold() == wanted.casefold():
                return name
    return names[0][1]


# ---------------------------------------------------------------------- triples


def _graph(source: SourceText) -> Concepts:
    """The concepts of RDF/XML, Turtle or N-Triples."""
    text = source.text.lstrip()
    is_json = text.startswith(("[", "{"))
    is_xml = text.startswith("<") and not text.startswith(("<http", "<urn"))
    if is_xml:
        _check_entities(source)
    rdflib = optional("rdflib", "Reading RDF and OWL", "ontology")
    # It warns of odd dates and IRIs, which do not matter here.
    logging.getLogger("rdflib").setLevel(logging.ERROR)
    graph = rdflib.Graph(bind_namespaces="none")
    syntax = "xml" if is_xml else "json-ld" if is_json else "turtle"  # N-Triples are Turtle
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rdflib about itself
            graph.parse(data=source.text, format=syntax)
    except Exception as error:  # parsers raise whatever they like about broken text
        reason = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{source.name}: not {'RDF/XML' if is_xml else 'JSON-LD' if is_json else 'Turtle'} ({reason})."
        ) from error
    return _concepts_of(graph, rdflib)


def is_json_ld(content: Any) -> bool:
    """Whether a JSON document is linked data that needs nothing from elsewhere: its contexts, if any, are in it."""
    if isinstance(content, dict):
        if not isinstance(content.get("@context"), dict | list) or not isinstance(
            content.get("@graph"), list
        ):
            return False
        return _contexts_are_inside(content)
    if not isinstance(content, list) or not all(isinstance(node, dict) and "@id" in node for node in content):
        return False
    return any("@type" in node for node in content) and _contexts_are_inside(content)


def _contexts_are_inside(content: Any) -> bool:
    """Whether no context of any object is an address."""
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if "@import" in item or not _is_inside(item.get("@context")):
                return False
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return True


def _is_inside(context: Any) -> bool:
    if isinstance(context, list):
        return all(part is None or isinstance(part, dict) for part in context)
    return context is None or isinstance(context, dict)


def _says_deprecated(property: str, value: str) -> bool:
    """Whether a statement says that its subject is no longer used; vocabularies have properties of their own for it."""
    if property == _RDF_TYPE:
        return value == _DEPRECATED_KIND
    return value.lower() in ("true", "1") and _DEPRECATED.search(property) is not None


def _check_entities(source: SourceText) -> None:
    """Refuse entities that come from elsewhere, hold others, or are used so often that a short file becomes a very long one."""
    growth = 0
    for match in _ENTITY.finditer(source.text):
        if match[1] or match[3].upper() in ("SYSTEM", "PUBLIC") or "&" in match[3]:
            raise FormatError(
                f"{source.name}: entities must be plain text. Got {match[0][:80]!r}. Write the document without it."
            )
        growth += len(match[3]) * source.text.count(f"&{match[2]};")
    check_memory(source.name, (len(source.text) + growth) * _BYTES_PER_LETTER)


def _concepts_of(graph: Any, rdflib: Any) -> Concepts:
    """The concepts of a graph with their labels and relations."""
    concepts = Concepts()
    kind_of: dict[str, str] = {}
    in_thesaurus: dict[str, None] = {}  # what is broader or narrower than something
    forms: dict[
        str, list[tuple[str, str]]
    ] = {}  # (language, text) of labels that are nodes themselves, SKOS-XL
    labels: list[tuple[str, str, bool]] = []  # a concept, such a label of it, and whether that is its name
    # Sorted where that is cheap: the order of the nodes is then always the same.
    for subject, predicate, value in sorted(graph) if len(graph) < 100_000 else graph:
        iri = str(subject)
        kind = str(predicate)
        language = getattr(value, "language", None) or ""
        if kind == _LITERAL_FORM:
            forms.setdefault(iri, []).append((language, str(value)))
        if not isinstance(subject, rdflib.URIRef):
            continue
        if kind == _RDF_TYPE and str(value) in _KINDS:
            if kind_of.get(iri) != _CONCEPT:
                kind_of[iri] = str(value)
        elif kind in _RELATIONS and isinstance(value, rdflib.URIRef):
            edge = (iri, str(value)) if kind in _NARROWER else (str(value), iri)
            concepts.edges[edge] = None
            if kind != _SUBCLASS:
                in_thesaurus |= dict.fromkeys((iri, str(value)))
        elif kind in _LABELS:
            labels.append((iri, str(value), _LABELS[kind]))
        else:
            _annotate(concepts, kind, iri, str(value), language)
    for iri, label, is_name in labels:
        for language, text in forms.get(label, []):
            if not is_name:
                concepts.other_names.append((text, iri))
            elif (language, text) not in concepts.names.setdefault(iri, []):
                concepts.names[iri].append((language, text))
    _declare(concepts, kind_of, in_thesaurus)
    return concepts


def _declare(concepts: Concepts, kind_of: dict[str, str], in_thesaurus: dict[str, None]) -> None:
    """What has a kind is a node. Where most of it is in a thesaurus, the thesaurus alone is; the others are counted."""
    concepts.declared = dict.fromkeys(kind_of)
    in_thesaurus = dict.fromkeys(iri for iri in in_thesaurus if iri in kind_of or iri in concepts.names)
    in_thesaurus |= dict.fromkeys(iri for iri, kind in kind_of.items() if kind == _CONCEPT)
    if 2 * len(in_thesaurus) > len(kind_of):
        concepts.others = len(kind_of.keys() - in_thesaurus.keys())
        concepts.declared = in_thesaurus


def _annotate(concepts: Concepts, kind: str, iri: str, text: str, language: str) -> None:
    """Take a name, another name, or the mark of what is deprecated."""
    if kind in _NAMES:
        concepts.names.setdefault(iri, []).append((language, text))
    elif kind in _OTHER_NAMES:
        concepts.other_names.append((text, iri))
    elif _says_deprecated(kind, text):
        concepts.deprecated.add(iri)


# ---------------------------------------------------------------------- OWL's functional syntax

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(?:@[\w-]+|\^\^\S+?(?=[\s)]))?|<[^<>\s]*>|[()=]|[^\s()=<>"]+')
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"(?:@([\w-]+))?.*', re.DOTALL)


def _functional(source: SourceText) -> Concepts:
    """The classes of an ontology in functional syntax: axioms of three kinds count, each on names of classes."""
    concepts = Concepts()
    prefixes: dict[str, str] = {}
    for words in _axioms(source.text):
        head, *args = words or [""]
        if head == "Prefix" and len(args) == 3:
            prefixes[args[0]] = args[2].strip("<>")
            continue
        args = [arg if arg.startswith('"') else _expanded(arg, prefixes) for arg in args]
        if head == "Declaration" and len(args) == 2 and args[0] == "Class":
            concepts.declared[args[1]] = None
        elif head == "SubClassOf" and len(args) == 2:
            concepts.edges[args[1], args[0]] = None
        elif head == "AnnotationAssertion" and len(args) == 3:
            kind, iri, value = args
            literal = _LITERAL.fullmatch(value)
            if literal is not None:
                text = re.sub(r"\\(.)", r"\1", literal[1])
                _annotate(concepts, kind, iri, text, literal[2] or "")
    return concepts


def _axioms(text: str) -> Iterator[list[str]]:
    """The words of every axiom without arguments in brackets of their own; a declaration's class stands beside its kind."""
    open_axioms: list[list[str]] = []
    nested: list[bool] = []
    before = ""
    for token in _TOKEN.findall(re.sub(r"(?m)^\s*#.*$", "", text)):
        if token == "(":
            if open_axioms:  # the word before the bracket names what is in it
                if open_axioms[-1]:
                    open_axioms[-1].pop()
                nested[-1] = True
            open_axioms.append([before])
            nested.append(False)
        elif token == ")":
            if not open_axioms:
                return
            words = open_axioms.pop()
            if not nested.pop():
                declares = bool(open_axioms) and open_axioms[-1][:1] == ["Declaration"]
                yield ["Declaration", *words] if declares else words
        elif open_axioms:
            open_axioms[-1].append(token)
        before = token


def _expanded(word: str, prefixes: dict[str, str]) -> str:
    if word.startswith("<"):
        return word.strip("<>")
    prefix, colon, rest = word.partition(":")
    return prefixes.get(prefix + colon, prefix + colon) + rest
