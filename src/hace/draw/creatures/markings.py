"""Markings of species: each a function of a box, the way the body runs, and the chance of an individual."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hace.draw.creatures.pen import Colour, Marks, oval

Box = tuple[float, float, float, float]  # left, top, right, bottom
Polygons = tuple[list[np.ndarray], list[np.ndarray]]
Pattern = Callable[[Box, np.random.Generator], Polygons]


def marks_of(
    pattern: str, colour: Colour, box: Box, rng: np.random.Generator, *, upright: bool = False
) -> Marks | None:
    """The markings of a body in a box; ``upright``: it runs from top to bottom, not from left to right."""
    if pattern == "plain":
        return None
    left, top, right, bottom = box
    polygons, holes = PATTERNS[pattern]((top, left, bottom, right) if upright else box, rng)
    if upright:
        polygons = [p[:, ::-1] for p in polygons]
        holes = [p[:, ::-1] for p in holes]
    return Marks(colour, polygons, holes)


def _bars(box: Box, rng: np.random.Generator, count: int, thick: float) -> list[np.ndarray]:
    """Bars across the body, a little bent and not quite even."""
    left, top, right, bottom = box
    step = (right - left) / count
    bent = rng.uniform(-0.4, 0.4) * step
    y = np.linspace(top, bottom, 5)
    bend = bent * np.cos(np.linspace(-np.pi / 2, np.pi / 2, 5))
    bars = []
    for i in range(count):
        x = left + step * (i + 0.5 + rng.uniform(-0.12, 0.12))
        w = step * thick * rng.uniform(0.85, 1.15) / 2
        one = np.column_stack([x - w + bend, y])
        other = np.column_stack([x + w + bend, y])
        bars.append(np.vstack([one, other[::-1]]))
    return bars


def _striped(box: Box, rng: np.random.Generator) -> Polygons:
    return _bars(box, rng, int(rng.integers(4, 6)), 0.46), []


def _pinstriped(box: Box, rng: np.random.Generator) -> Polygons:
    return _bars(box, rng, int(rng.integers(8, 10)), 0.38), []


def _lined(box: Box, rng: np.random.Generator) -> Polygons:
    left, top, right, bottom = box
    turned = _bars((top, left, bottom, right), rng, 4, 0.42)
    return [bar[:, ::-1] for bar in turned], []


def _scattered(
    box: Box, rng: np.random.Generator, across: int, radius: float
) -> Iterator[tuple[float, float, float]]:
    """Places of spots: rows that are shifted by half, each spot a little off."""
    left, top, right, bottom = box
    rows = max(2, round(across * (bottom - top) / (right - left)))
    dx = (right - left) / across
    dy = (bottom - top) / rows
    for row in range(rows):
        for column in range(-1, across + 1):
            x = left + dx * (column + 0.5 + 0.5 * (row % 2) + rng.uniform(-0.16, 0.16))
            y = top + dy * (row + 0.5 + rng.uniform(-0.16, 0.16))
            yield x, y, radius * min(dx, dy) * rng.uniform(0.8, 1.15)


def _spotted(box: Box, rng: np.random.Generator) -> Polygons:
    return [oval(x, y, r, r, 12) for x, y, r in _scattered(box, rng, 5, 0.3)], []


def _speckled(box: Box, rng: np.random.Generator) -> Polygons:
    return [oval(x, y, r, r, 8) for x, y, r in _scattered(box, rng, 9, 0.27)], []


def _ringed(box: Box, rng: np.random.Generator) -> Polygons:
    places = list(_scattered(box, rng, 4, 0.42))
    holes = [oval(x, y, 0.55 * r, 0.55 * r, 12) for x, y, r in places]
    return [oval(x, y, r, r, 14) for x, y, r in places], holes


def _saddled(box: Box, rng: np.random.Generator) -> Polygons:
    left, top, right, bottom = box
    middle = left + (right - left) * rng.uniform(0.46, 0.56)
    half = 0.19 * (right - left)
    return [
        np.array(
            [(middle - half, top), (middle + half, top), (middle + half, bottom), (middle - half, bottom)]
        )
    ], []


def _tailed(box: Box, rng: np.random.Generator) -> Polygons:
    left, top, right, bottom = box
    edge = left + (right - left) * rng.uniform(0.48, 0.56)
    return [np.array([(edge, top), (right, top), (right, bottom), (edge, bottom)])], []


def _chequered(box: Box, rng: np.random.Generator) -> Polygons:
    left, top, right, bottom = box
    side = (right - left) / 6
    x0 = left + side * rng.uniform(-0.3, 0.3)
    y0 = top + side * rng.uniform(-0.3, 0.3)
    squares = []
    for row in range(int((bottom - top) / side) + 2):
        for column in range(row % 2, 7, 2):
            x = x0 + side * column
            y = y0 + side * row
            squares.append(np.array([(x, y), (x + side, y), (x + side, y + side), (x, y + side)]))
    return squares, []


def _zigzag(box: Box, rng: np.random.Generator) -> Polygons:
    left, top, right, bottom = box
    step = (right - left) / 4.5
    thick = (right - left) / 12
    y = np.linspace(top, bottom, 7)
    swing = step * 0.35 * np.where(np.arange(7) % 2, 1, -1)
    shapes = []
    for i in range(5):
        x = left + step * (i + 0.3 + rng.uniform(-0.1, 0.1))
        one = np.column_stack([x + swing, y])
        other = np.column_stack([x + thick + swing, y])
        shapes.append(np.vstack([one, other[::-1]]))
    return shapes, []


def _netted(box: Box, rng: np.random.Generator) -> Polygons:
    left, top, right, bottom = box
    step = (right - left) / 5
    high = bottom - top
    w = step * 0.14
    start = rng.uniform(0, step)
    shapes = []
    for i in range(-6, 12):
        x = left + start + step * i
        for lean in (0.8 * high, -0.8 * high):
            shapes.append(
                np.array([(x - w, top), (x + w, top), (x + w + lean, bottom), (x - w + lean, bottom)])
            )
    return shapes, []


PATTERNS: dict[str, Pattern] = {
    "striped": _striped,  # across the body
    "pinstriped": _pinstriped,
    "lined": _lined,  # along it
    "spotted": _spotted,
    "speckled": _speckled,
    "ringed": _ringed,
    "saddled": _saddled,  # one broad bar
    "tailed": _tailed,  # the far half
    "chequered": _chequered,
    "zigzag": _zigzag,
    "netted": _netted,
}
