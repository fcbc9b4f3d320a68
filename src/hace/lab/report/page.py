"""A report as one page that opens from disk without a network: what the templates among the assets make of a document."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from hace.draw import json_for_page, page_data, templates
from hace.lab.report.cards import glossary
from hace.lab.report.document import Document
from hace.lab.report.runs import method_title

MOST_NUMBERS = 1_500_000  # in the drawing's data: about 5 MB


def to_page(document: Document, compared: tuple[str, str], version: str) -> str:
    """The page. Names, errors and options are always escaped."""
    page = _environment().get_template("report.html")
    data = json_for_page(drawing_data(document, compared))
    text = page.render(document=document, version=version, data=data, terms=glossary(document.cards))
    return re.sub("[\ud800-\udfff]", "\ufffd", text)  # half a surrogate pair, which UTF-8 cannot hold


@cache
def _environment() -> Environment:
    environment = templates("hace.lab.report")
    environment.filters |= {
        "base64": lambda content: base64.b64encode(content).decode(),
        "code": code,
        "first_words": _first_words,
        "whole": _whole,
        "pictures": _pictures_together,
        "spans": _spans,
    }
    return environment


def _pictures_together(blocks: Iterable[Any]) -> list[tuple[bool, list[Any]]]:
    """Neighbouring pictures, and what is between them."""
    return [(drawn, list(group)) for drawn, group in itertools.groupby(blocks, lambda b: hasattr(b, "svg"))]


def _spans(line: Iterable[str]) -> list[tuple[str, int]]:
    """Equal neighbours of a line as one, with the number of columns."""
    return [(text, len(list(same))) for text, same in itertools.groupby(line)]


def _first_words(answer: str) -> tuple[str, str]:
    """The first sentence if it has three words at most, and the rest."""
    head, dot, rest = answer.partition(". ")
    return (head + ".", " " + rest) if dot and len(head.split()) <= 3 else ("", answer)


def code(text: str) -> Markup:
    """Text as HTML; text between backticks becomes code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _whole(text: str) -> Markup:
    """Intervals that do not break over lines."""
    return Markup(re.sub(r"\[[^\[\]]*\]", r'<span class="ends">\g<0></span>', str(escape(text))))


def drawing_data(document: Document, compared: tuple[str, str]) -> dict[str, Any]:
    """The data of report.js. Conditions over the same hierarchy share it."""
    trees: dict[str, Any] = {}
    places = []
    for drawing in document.drawings:
        h = drawing["hierarchy"]
        if h.fingerprint not in trees:
            trees[h.fingerprint] = page_data(h, drawing.get("dataset", "everything"), document.naming)
        numbers = {name: value for name, value in drawing.items() if name != "hierarchy"}
        places.append({"sure": {}, "guarantees": [], **numbers, "tree": h.fingerprint})
    titles = {method: method_title(method) for place in places for method in place["methods"]}
    data = {"trees": trees, "places": places, "titles": titles, "first": compared[0], "second": compared[1]}
    return thinned(data, compared)


def thinned(data: dict[str, Any], compared: Collection[str], most: int = MOST_NUMBERS) -> dict[str, Any]:
    """The same, small enough for a page: drops the mistakes of methods that are not compared first, then these methods."""
    for place in data["places"] if _numbers(data) > most else ():
        for name, method in place["methods"].items():
            if name not in compared:
                place["methods"][name] = {**method, "mistakes": [[]] * len(method["mistakes"])}
    for place in data["places"] if _numbers(data) > most else ():
        shown = {name: method for name, method in place["methods"].items() if name in compared}
        place["methods"] = shown or dict(list(place["methods"].items())[:2])
    return data


def _numbers(data: dict[str, Any]) -> int:
    methods = [method for place in data["places"] for method in place["methods"].values()]
    return sum(len(m["right"]) + len(m["mistakes"]) + sum(map(len, m["mistakes"])) for m in methods)
