"""Pictures of drawn creatures and of a model's answers about them.

    python docs/creature_pictures.py                      # draws them from evidence/results/creatures/answers.json
    python docs/creature_pictures.py --answers hace-demo  # first writes that file, by the model that `hace demo` made

Every number in a picture is in that file.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import hace
from hace import environment
from hace.data.creatures import creature_hierarchy, drawn_again, individual, jpeg, photo_name
from hace.draw.creatures import RANKS as RANK_NAMES
from hace.draw.creatures import SPECIES, UNLISTED, draw_creature

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
ANSWERS = DOCS.parent / "evidence" / "results" / "creatures" / "answers.json"
GUARANTEES = (0.8, 0.9, 0.95, 0.99)
TEAL, RED, INK, SOFT, LINE, PAPER = "#00796b", "#c2410c", "#1f2933", "#5b6773", "#d5dbe1", "#ffffff"
PANEL, TRACK, FILL, MARK, WHITE = "#f6f8fa", "#e9edf1", "#b8c4cf", "#9cd3c8", "#fffffe"
RANKS = {
    "species": "#00796a",
    "family": "#3f8f82",
    "group": "#8cc4bb",
    "realm": "#c3e0db",
    "no answer": "#e4e7eb",
}
DARK = {  # what each colour becomes where the reader's screen is dark; others stay
    TEAL: "#4fd1bd",
    RED: "#ff9466",
    INK: "#e6edf3",
    SOFT: "#9da7b1",
    LINE: "#3d444d",
    PAPER: "#161b22",
    PANEL: "#1f262e",
    TRACK: "#2b333c",
    FILL: "#55626f",
    MARK: "#1f7a6d",
    RANKS["no answer"]: "#39424c",
}
FRESH = 40  # new photos of each species
SHEET = ("dune beetle", "ladybird", "swallowtail")


# --- answers of a model


def write_answers(demo: Path) -> None:
    """Ask the model of a demo about photos it has not seen, and write what the pictures show."""
    model = hace.load(demo / "creatures.hace")
    document = {
        "what": "answers of the model of `hace demo` about photos that a program drew; shown by docs/creature_pictures.py",
        "accuracy": model.findings.accuracy[0],
        "samples": model.findings.samples | {"new": FRESH * len(SPECIES)},
        "guarantees": _outcomes(model),
        "photos": [_answers(model, demo, name) for name in _chosen(model, demo)],
        "strangers": _strangers(model, demo),
    }
    ANSWERS.parent.mkdir(parents=True, exist_ok=True)
    ANSWERS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    about = {
        "command": "hace demo && python docs/creature_pictures.py --answers hace-demo",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "made_with": {name: environment.config()[name] for name in ("hace", "python", "torch", "numpy")},
    }
    ANSWERS.with_name("about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _outcomes(model: hace.Model) -> list[dict[str, Any]]:
    """How specific answers about new photos are, and how many are false, for each guarantee."""
    shown = [(species, individual("test", 1000 + i)) for species in SPECIES for i in range(FRESH)]
    images = [Image.open(io.BytesIO(jpeg(draw_creature(species, one)))) for species, one in shown]
    x, _, _ = model.features(images)
    depths = model.hierarchy.depths
    outcomes = []
    for accuracy in GUARANTEES:
        decided = model.decide(x, accuracy)
        nodes = decided.nodes.numpy()
        rank = np.array(["no answer" if v < 0 else RANK_NAMES[depths[v] - 1] for v in nodes])
        wrong = [
            v >= 0 and said not in s.path for v, said, (s, _) in zip(nodes, decided.ids, shown, strict=True)
        ]
        shares = {name: float((rank == name).mean()) for name in RANKS}
        outcomes.append({"accuracy": accuracy, "ranks": shares, "false": float(np.mean(wrong))})
    return outcomes


def _chosen(model: hace.Model, demo: Path) -> list[str]:
    """Two test photos: one whose species the guarantee of 95% leaves open, one whose answer three guarantees change."""
    by_name = {path.name: path for path in sorted((demo / "photos").rglob("*.jpg"))}
    names = [photo_name(species, individual("test", i)) for i in range(8) for species in SPECIES]
    answers = {a: model.predict([by_name[name] for name in names], accuracy=a) for a in GUARANTEES}
    ranks = {a: list(table["rank"]) for a, table in answers.items()}
    true = [
        all(
            answers[a].answer.iloc[i] in creature_hierarchy().path(name.rsplit(" ", 1)[0]) for a in GUARANTEES
        )
        for i, name in enumerate(names)
    ]
    open_ = [
        i for i in range(len(names)) if true[i] and ranks[0.95][i] == "family" and "dune beetle" in names[i]
    ]
    steps = ("species", "family", "group")
    moving = [
        i for i in range(len(names)) if true[i] and tuple(ranks[a][i] for a in (0.8, 0.95, 0.99)) == steps
    ]
    clearest = max(moving, key=lambda i: answers[0.99].confidence.iloc[i])
    return [names[open_[0]], names[clearest]]


def _strangers(model: hace.Model, demo: Path) -> list[dict[str, Any]]:
    """One photo of each species that is not in the list, and the answer."""
    names = [photo_name(species, individual("test", 0)) for species in UNLISTED]
    said = model.predict([demo / "strangers" / name for name in names]).answer
    return [
        {"name": name, "species": species.name, "answer": answer, "true": answer in species.path}
        for name, species, answer in zip(names, UNLISTED, said, strict=True)
    ]


def _answers(model: hace.Model, demo: Path, name: str) -> dict[str, Any]:
    path = next((demo / "photos").rglob(name))
    x, _, _ = model.features([path])
    h = model.hierarchy
    q = np.exp(model.classifier.predict_node_log_proba(x))[0]
    best = h.nodes[h.leaf_nodes[int(q[h.leaf_nodes].argmax())]]
    ladder = [[node, float(q[h.index(node)])] for node in reversed(h.path(best))]
    answers = {str(a): model.predict([path], accuracy=a).answer.iloc[0] for a in GUARANTEES}
    return {"name": name, "ladder": ladder, "answers": answers}


# --- pictures


def _class(colour: str) -> str:
    """The class of what has a colour, where dark screens change it."""
    return f' class="c{list(DARK).index(colour)}"' if colour in DARK else ""


class Drawing:
    """An SVG of a card, light or dark as the reader's screen; text stays text."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = width, height
        self.title = title
        self.parts: list[str] = []

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str, *, r: float = 4, line: str = "none"
    ) -> None:
        """A rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{r}" '
            f'fill="{fill}" stroke="{line}"{_class(fill)}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 15,
        fill: str = INK,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """A line of text."""
        style = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}"' + (
            ' font-weight="600"' if bold else ""
        )
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}{_class(fill)}>{escape(words)}</text>')

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 2) -> None:
        """A line."""
        self.parts.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
            f'stroke="{colour}" stroke-width="{width}"{_class(colour)}/>'
        )

    def circle(self, x: float, y: float, r: float, fill: str) -> None:
        """A disc."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{fill}"{_class(fill)}/>')

    def photo(self, x: float, y: float, side: float, name: str, pixels: int = 320) -> None:
        """The photo of a name, drawn large, with round corners."""
        address = (
            "data:image/jpeg;base64," + base64.b64encode(jpeg(drawn_again(name, pixels), quality=80)).decode()
        )
        clip = f"c{len(self.parts)}"
        self.parts.append(
            f'<clipPath id="{clip}"><rect x="{x}" y="{y}" width="{side}" height="{side}" rx="10"/></clipPath>'
            f'<image x="{x}" y="{y}" width="{side}" height="{side}" clip-path="url(#{clip})" href="{address}"/>'
        )

    def svg(self) -> str:
        """The file."""
        w, h = self.size
        body = "\n".join(self.parts)
        rules = "".join(
            f".c{i} {{ fill: {dark} }} line.c{i} {{ stroke: {dark} }} "
            for i, dark in enumerate(DARK.values())
        )
        style = f"<style>@media (prefers-color-scheme: dark) {{ {rules}.card {{ stroke: {DARK[LINE]} }} }}</style>"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
            f"font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif\">\n"
            f"<title>{escape(self.title)}</title>\n{style}\n"
            f'<rect x="0.5" y="0.5" width="{w - 1}" height="{h - 1}" rx="12" fill="{PAPER}" stroke="{LINE}" '
            f'class="card c{list(DARK).index(PAPER)}"/>\n{body}\n</svg>\n'
        )


def answer(document: Mapping[str, Any]) -> Drawing:
    """One photo, the ladder of its probabilities, and the answer that the guarantee allows."""
    photo = document["photos"][0]
    said = photo["answers"]["0.95"]
    drawing = Drawing(720, 260, f"A photo, the probability of each rank, and the answer: {said}")
    drawing.photo(16, 16, 228, photo["name"])
    nodes = [node for node, _ in photo["ladder"]]
    for row, (node, q) in enumerate(photo["ladder"]):
        y, sure = 16 + 36 * row, row <= nodes.index(said)
        drawing.text(266, y + 21, node, size=18, bold=node == said, fill=INK if sure else SOFT)
        drawing.rect(462, y + 5, 180, 20, TRACK)
        drawing.rect(462, y + 5, 180 * q, 20, TEAL if sure else FILL)
        drawing.text(704, y + 21, _percent(q), size=18, anchor="end", fill=INK if sure else SOFT)
    drawing.line(266, 166, 704, 166, LINE, 1)
    drawing.text(266, 207, f"Answer: {said}", size=29, bold=True, fill=TEAL)
    drawing.text(266, 237, "with at most 5% wrong, guaranteed", size=18, fill=SOFT)
    return drawing


def ranks(document: Mapping[str, Any]) -> Drawing:
    """How specific answers are for each guarantee."""
    drawing = Drawing(720, 268, "How specific answers are at guarantees of 80, 90, 95 and 99%")
    drawing.text(16, 32, "guaranteed", fill=SOFT, size=16)
    drawing.text(704, 32, "wrong", fill=SOFT, size=16, anchor="end")
    for i, (rank, colour) in enumerate(RANKS.items()):
        drawing.rect(118 + 98 * i, 19, 15, 15, colour, r=3)
        drawing.text(139 + 98 * i, 32, rank, size=16)
    for row, point in enumerate(document["guarantees"]):
        y, x = 52 + 53 * row, 118.0
        drawing.text(16, y + 26, _percent(point["accuracy"]), size=21, bold=True)
        for rank, colour in RANKS.items():
            share = point["ranks"].get(rank, 0)
            drawing.rect(x, y, 510 * share, 38, colour, r=0)
            if share > 0.08:
                drawing.text(
                    x + 9,
                    y + 25,
                    _percent(share),
                    fill=WHITE if rank in ("species", "family") else "#1f2934",
                    size=17,
                )
            x += 510 * share
        drawing.text(704, y + 26, f"{100 * point['false']:.1f}%", size=18, anchor="end")
    return drawing


def slider(document: Mapping[str, Any]) -> Drawing:
    """The slider of `hace serve` at three guarantees: one photo, three answers."""
    photo = document["photos"][1]
    drawing = Drawing(800, 336, "One photo at three guarantees: the stricter, the broader the answer")
    ladder = dict(photo["ladder"])
    for column, accuracy in enumerate((0.8, 0.95, 0.99)):
        x, said = 16 + 260 * column, photo["answers"][str(accuracy)]
        drawing.rect(x, 16, 248, 304, PANEL, r=10, line="none")
        drawing.photo(x + 12, 28, 96, photo["name"], pixels=200)
        drawing.text(x + 120, 48, "Answer", fill=SOFT, size=15)
        for row, words in enumerate(_wrapped(said, 13)):
            drawing.text(x + 120, 74 + 23 * row, words, bold=True, fill=TEAL, size=19)
        for row, (node, q) in enumerate(ladder.items()):
            y = 138 + 28 * row
            drawing.rect(x + 12, y, 180, 24, TRACK)
            drawing.rect(x + 12, y, 180 * q, 24, MARK if node == said else FILL)
            drawing.text(x + 19, y + 17, node, size=13)
            drawing.text(x + 238, y + 17, _percent(q), size=14, anchor="end")
        drawing.text(x + 12, 278, f"At most {_percent(1 - accuracy)} wrong", size=16, bold=True)
        drawing.line(x + 14, 299, x + 234, 299, LINE, 5)
        place = x + 14 + 220 * (accuracy - 0.79) / 0.20
        drawing.line(x + 14, 299, place, 299, TEAL, 5)
        drawing.circle(place, 299, 8, TEAL)
    return drawing


def strangers(document: Mapping[str, Any]) -> Drawing:
    """Photos of species that are not in the list, with their answers."""
    drawing = Drawing(800, 272, "Five species that are not in the list, and what a model says")
    for column, one in enumerate(document["strangers"]):
        x, colour = 16 + 156 * column, TEAL if one["true"] else RED
        drawing.photo(x, 16, 144, one["name"], pixels=200)
        drawing.text(x, 183, one["species"], size=13, fill=SOFT)
        drawing.text(x, 211, "true" if one["true"] else "wrong", size=14, fill=colour)
        for row, words in enumerate(_wrapped(one["answer"] or "no answer", 13)):
            drawing.text(x, 234 + 21 * row, words, size=17, bold=True, fill=colour)
    return drawing


def photos(document: Mapping[str, Any]) -> Drawing:
    """Three families of insects, a row each: species differ in pattern and colour."""
    drawing = Drawing(800, 560, "Twelve species of three families of insects")
    for row, family in enumerate(SHEET):
        for column, species in enumerate(s for s in SPECIES if s.family == family):
            x, y = 20 + 197 * column, 16 + 180 * row
            drawing.photo(x + 12, y, 146, photo_name(species, individual("train", 4 + column)), pixels=168)
            drawing.text(x + 85, y + 165, species.name, size=15, anchor="middle")
    return drawing


def creatures() -> Image.Image:
    """All species, one photo each."""
    side, columns = 96, 13
    sheet = Image.new("RGB", (columns * side, len(SPECIES) // columns * side))
    for i, species in enumerate(SPECIES):
        portrait = Image.fromarray(draw_creature(species, individual("train", 1), side))
        sheet.paste(portrait, (side * (i % columns), side * (i // columns)))
    return sheet


DRAWN = {f.__name__: f for f in (answer, ranks, slider, strangers, photos)}


def drawings() -> Iterator[tuple[str, Drawing]]:
    """The name and the drawing of every picture, from the committed answers."""
    document = json.loads(ANSWERS.read_text(encoding="utf-8"))
    for name, draw in DRAWN.items():
        yield name, draw(document)


def _percent(share: float) -> str:
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _wrapped(words: str, width: int) -> Sequence[str]:
    lines = [""]
    for word in words.split():
        lines = (
            [*lines[:-1], f"{lines[-1]} {word}".strip()]
            if len(lines[-1]) + len(word) < width
            else [*lines, word]
        )
    return lines


def main() -> None:
    """Write the pictures; with --answers FOLDER first the answers."""
    if sys.argv[1:2] == ["--answers"]:
        write_answers(Path(sys.argv[2]))
    for name, drawing in drawings():
        (IMAGES / f"{name}.svg").write_text(drawing.svg(), encoding="utf-8")
    creatures().save(IMAGES / "creatures.jpg", quality=82)


if __name__ == "__main__":
    main()
