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
from hace.draw.creatures import SPECIES, draw_creature

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
ANSWERS = DOCS.parent / "evidence" / "results" / "creatures" / "answers.json"
GUARANTEES = (0.8, 0.9, 0.95, 0.99)
TEAL, RED, INK, SOFT, LINE, PAPER = "#00796b", "#c2410c", "#1f2933", "#5b6773", "#d5dbe1", "#ffffff"
RANKS = {
    "species": "#00796b",
    "family": "#4ba393",
    "group": "#8cc4bb",
    "realm": "#c3e0db",
    "no answer": "#e4e7eb",
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
    return [names[open_[0]], names[moving[0]]]


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


class Drawing:
    """An SVG of a white card; text stays text."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = width, height
        self.title = title
        self.parts: list[str] = []

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str, *, r: float = 4, line: str = "none"
    ) -> None:
        """A rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{r}" fill="{fill}" stroke="{line}"/>'
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
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>')

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 2) -> None:
        """A line."""
        self.parts.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" stroke-width="{width}"/>'
        )

    def circle(self, x: float, y: float, r: float, fill: str) -> None:
        """A disc."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{fill}"/>')

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
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
            f"font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif\">\n<title>{escape(self.title)}</title>\n"
            f'<rect x="0.5" y="0.5" width="{w - 1}" height="{h - 1}" rx="12" fill="{PAPER}" stroke="{LINE}"/>\n{body}\n</svg>\n'
        )


def answer(document: Mapping[str, Any]) -> Drawing:
    """One photo, the ladder of its probabilities, and the answer that the guarantee allows."""
    photo = document["photos"][0]
    said = photo["answers"]["0.95"]
    drawing = Drawing(800, 268, f"A photo, the probability of each rank, and the answer: {said}")
    drawing.photo(20, 20, 228, photo["name"])
    for row, (node, q) in enumerate(photo["ladder"]):
        y, sure = 22 + 58 * row, row <= [name for name, _ in photo["ladder"]].index(said)
        drawing.text(276, y + 14, node, bold=node == said, fill=INK if sure else SOFT)
        drawing.text(540, y + 14, _percent(q), anchor="end", fill=INK if sure else SOFT)
        drawing.rect(276, y + 22, 264, 18, "#eef1f4")
        drawing.rect(276, y + 22, 264 * q, 18, TEAL if sure else "#b8c1cc")
    drawing.line(566, 24, 566, 244, LINE, 1)
    drawing.text(590, 62, "The answer", fill=SOFT)
    drawing.text(590, 100, said, size=25, bold=True, fill=TEAL)
    for row, words in enumerate(("with at most 5% wrong,", "guaranteed")):
        drawing.text(590, 132 + 21 * row, words)
    _, last = photo["ladder"][-1]
    for row, words in enumerate(("Not the species:", f"{_percent(last)} is not sure enough.")):
        drawing.text(590, 200 + 21 * row, words, fill=SOFT, size=14)
    return drawing


def ranks(document: Mapping[str, Any]) -> Drawing:
    """How specific answers are for each guarantee."""
    drawing = Drawing(800, 268, "How specific answers are at guarantees of 80, 90, 95 and 99%")
    drawing.text(20, 32, "guaranteed", fill=SOFT, size=14)
    drawing.text(780, 32, "wrong", fill=SOFT, size=14, anchor="end")
    for i, (rank, colour) in enumerate(RANKS.items()):
        drawing.rect(130 + 104 * i, 20, 14, 14, colour, r=3)
        drawing.text(150 + 104 * i, 32, rank, size=14)
    for row, point in enumerate(document["guarantees"]):
        y, x = 52 + 53 * row, 130.0
        drawing.text(20, y + 25, _percent(point["accuracy"]), size=19, bold=True)
        for rank, colour in RANKS.items():
            share = point["ranks"].get(rank, 0)
            drawing.rect(x, y, 580 * share, 38, colour, r=0)
            if share > 0.06:
                white = rank in ("species", "family")
                drawing.text(x + 8, y + 25, _percent(share), fill=PAPER if white else INK, size=14)
            x += 580 * share
        drawing.text(780, y + 25, f"{100 * point['false']:.1f}%", anchor="end")
    return drawing


def slider(document: Mapping[str, Any]) -> Drawing:
    """The slider of `hace serve` at three guarantees: one photo, three answers."""
    photo = document["photos"][1]
    drawing = Drawing(800, 330, "One photo at three guarantees: the stricter, the broader the answer")
    ladder = dict(photo["ladder"])
    for column, accuracy in enumerate(("0.8", "0.95", "0.99")):
        x, said = 20 + 258 * column, photo["answers"][accuracy]
        drawing.rect(x, 20, 244, 290, "#f6f8fa", r=10, line=LINE)
        drawing.photo(x + 12, 32, 96, photo["name"], pixels=200)
        drawing.text(x + 120, 52, "The answer", fill=SOFT, size=13)
        for row, words in enumerate(_wrapped(said, 13)):
            drawing.text(x + 120, 76 + 21 * row, words, bold=True, fill=TEAL, size=16)
        for row, (node, q) in enumerate(ladder.items()):
            y = 142 + 26 * row
            drawing.rect(x + 12, y, 220, 22, "#e9edf1")
            drawing.rect(x + 12, y, 220 * q, 22, "#9cd3c8" if node == said else "#cfd8e0")
            drawing.text(x + 20, y + 16, node, size=13, bold=node == said)
            drawing.text(x + 226, y + 16, _percent(q), size=13, anchor="end")
        drawing.text(x + 12, 272, f"How sure must it be? {_percent(float(accuracy))}", size=14, bold=True)
        drawing.line(x + 14, 291, x + 230, 291, LINE, 5)
        place = x + 14 + 216 * (float(accuracy) - 0.75) / 0.25
        drawing.line(x + 14, 291, place, 291, TEAL, 5)
        drawing.circle(place, 291, 8, TEAL)
    return drawing


def photos(document: Mapping[str, Any]) -> Drawing:
    """Three families of insects, a row each: species differ in pattern and colour."""
    drawing = Drawing(800, 560, "Twelve species of three families of insects")
    for row, family in enumerate(SHEET):
        for column, species in enumerate(s for s in SPECIES if s.family == family):
            x, y = 20 + 197 * column, 16 + 180 * row
            drawing.photo(x + 12, y, 146, photo_name(species, individual("train", 4 + column)), pixels=168)
            drawing.text(x + 85, y + 164, species.name, size=13, anchor="middle")
    return drawing


def creatures() -> Image.Image:
    """All species, one photo each."""
    side, columns = 96, 13
    sheet = Image.new("RGB", (columns * side, len(SPECIES) // columns * side))
    for i, species in enumerate(SPECIES):
        portrait = Image.fromarray(draw_creature(species, individual("train", 1), side))
        sheet.paste(portrait, (side * (i % columns), side * (i // columns)))
    return sheet


DRAWN = {f.__name__: f for f in (answer, ranks, slider, photos)}


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
