"""Body plans: one function per family, which draws a creature around the middle, facing right or up, about from -1 to 1.

Families of a group share parts (a fish's tail, a beetle's legs); species of a family differ in :class:`Look` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hace.draw.creatures.markings import Box, marks_of
from hace.draw.creatures.pen import (
    INK,
    WHITE,
    Colour,
    Marks,
    Pen,
    Point,
    both_sides,
    darker,
    lighter,
    mixed,
    oval,
)

Chance = np.random.Generator


@dataclass(frozen=True)
class Look:
    """What a species looks like: its pattern, the colour of its body and of its markings, and of fins, beaks or centres."""

    pattern: str
    base: Colour
    mark: Colour
    accent: Colour

    def marks(self, box: Box, chance: Chance, *, upright: bool = False) -> Marks | None:
        """Its markings on a body in a box."""
        return marks_of(self.pattern, self.mark, box, chance, upright=upright)


Body = Callable[[Pen, Look, Chance], None]


# --- fish


def _tail(pen: Pen, x: float, size: float, fork: float, colour: Colour, chance: Chance) -> None:
    bend = chance.uniform(-0.08, 0.08)
    points = [
        (x + 0.12, -0.07),
        (x - 0.22, -size + bend),
        (x - 0.38, -size * 0.9 + bend),
        (x - 0.38 + fork, bend),
        (x - 0.38, size * 0.9 + bend),
        (x - 0.22, size + bend),
        (x + 0.12, 0.07),
    ]
    pen.shape(points, colour)


def angelfish(pen: Pen, look: Look, chance: Chance) -> None:
    """Tall as it is long, with swept fins."""
    sweep = chance.uniform(-0.1, 0.1)
    _tail(pen, -0.5, 0.3, 0.12, look.accent, chance)
    pen.shape(
        [(0.2, -0.45), (-0.15, -0.75), (-0.62 + sweep, -1.0), (-0.42, -0.55), (-0.42, -0.2)], look.accent
    )
    pen.shape([(0.2, 0.45), (-0.15, 0.75), (-0.62 + sweep, 1.0), (-0.42, 0.55), (-0.42, 0.2)], look.accent)
    body = [
        (0.72, 0.03),
        (0.5, -0.3),
        (0.12, -0.58),
        (-0.25, -0.45),
        (-0.52, -0.12),
        (-0.52, 0.12),
        (-0.25, 0.45),
        (0.12, 0.58),
        (0.5, 0.32),
    ]
    pen.shape(body, look.base, marks=look.marks((-0.55, -0.6, 0.6, 0.6), chance))
    pen.line([(0.08, 0.12), (-0.08, 0.3), (-0.12, 0.55)], darker(look.accent, 0.1), 0.07)
    pen.eye(0.46, -0.08, 0.1)
    pen.line([(0.7, 0.06), (0.62, 0.1)], INK, 0.025)


def pike(pen: Pen, look: Look, chance: Chance) -> None:
    """Long and low, with a flat snout and fins far back."""
    _tail(pen, -0.78, 0.27, 0.16, look.accent, chance)
    pen.shape([(-0.2, -0.2), (-0.42, -0.42), (-0.6, -0.4), (-0.58, -0.15)], look.accent)
    pen.shape([(-0.2, 0.2), (-0.4, 0.42), (-0.58, 0.38), (-0.58, 0.15)], look.accent)
    pen.shape([(0.28, 0.2), (0.12, 0.4), (0.02, 0.36), (0.08, 0.18)], look.accent)
    body = [
        (1.0, 0.02),
        (0.76, -0.07),
        (0.5, -0.19),
        (0.0, -0.25),
        (-0.5, -0.18),
        (-0.82, -0.08),
        (-0.82, 0.08),
        (-0.5, 0.17),
        (0.0, 0.25),
        (0.5, 0.2),
        (0.78, 0.11),
    ]
    pen.shape(body, look.base, marks=look.marks((-0.8, -0.28, 0.55, 0.28), chance))
    pen.line([(0.98, 0.04), (0.72, 0.06)], INK, 0.02)
    pen.line([(0.42, -0.12), (0.36, 0.02), (0.42, 0.13)], darker(look.base), 0.03)
    pen.eye(0.6, -0.08, 0.075)


def puffer(pen: Pen, look: Look, chance: Chance) -> None:
    """A ball with spines."""
    _tail(pen, -0.68, 0.2, 0.05, look.accent, chance)
    body = oval(0, 0, 0.72, 0.64, 14)
    start = chance.uniform(0, 0.3)
    for angle in np.arange(start, 2 * np.pi + start, 2 * np.pi / 19):
        c = np.cos(angle)
        s = np.sin(angle)
        spine = [
            (0.66 * c - 0.06 * s, 0.59 * s + 0.06 * c),
            (0.9 * c, 0.81 * s),
            (0.66 * c + 0.06 * s, 0.59 * s - 0.06 * c),
        ]
        pen.shape(spine, darker(look.base, 0.2), sharp=True, shade=0)
    pen.shape(body, look.base, marks=look.marks((-0.72, -0.64, 0.72, 0.64), chance))
    pen.shape(
        [(0.1, 0.5), (0.55, 0.3), (0.66, 0.12), (0.5, 0.42), (0.15, 0.6)],
        lighter(look.base, 0.7),
        rim=0,
        shade=0.2,
    )
    flap = chance.uniform(-0.12, 0.12)
    pen.shape([(0.02, 0.05), (-0.32, -0.08 + flap), (-0.36, 0.2 + flap), (0.02, 0.2)], look.accent)
    pen.eye(0.36, -0.16, 0.17)
    pen.shape(oval(0.72, 0.1, 0.07, 0.06, 8), mixed(look.base, (200, 90, 90), 0.5))


# --- birds


def _perch(pen: Pen, chance: Chance, y: float) -> None:
    tilt = chance.uniform(-0.06, 0.06)
    pen.line([(-1.4, y - tilt), (0, y + 0.02), (1.4, y + tilt)], (92, 68, 52), 0.13)
    pen.line([(-1.4, y - 0.03 - tilt), (0, y - 0.01), (1.4, y - 0.03 + tilt)], (134, 103, 78), 0.04)


def finch(pen: Pen, look: Look, chance: Chance) -> None:
    """Small and round, with a thick short beak."""
    _perch(pen, chance, 0.72)
    pen.line([(-0.02, 0.5), (0.0, 0.7)], (90, 62, 50), 0.05)
    pen.line([(0.16, 0.5), (0.18, 0.7)], (90, 62, 50), 0.05)
    lift = chance.uniform(-0.12, 0.12)
    pen.shape(
        [(-0.35, 0.1), (-0.92, 0.5 + lift), (-0.98, 0.66 + lift), (-0.8, 0.68 + lift), (-0.3, 0.4)],
        darker(look.base, 0.25),
    )
    pen.shape([(0.72, -0.5), (1.0, -0.4), (0.7, -0.28)], look.accent, sharp=True)
    body = [
        (0.44, -0.72),
        (0.7, -0.6),
        (0.74, -0.36),
        (0.62, -0.1),
        (0.55, 0.25),
        (0.3, 0.52),
        (-0.05, 0.56),
        (-0.4, 0.36),
        (-0.45, 0.15),
        (-0.18, -0.2),
        (0.12, -0.56),
    ]
    pen.shape(body, look.base)
    belly = [(0.62, -0.12), (0.54, 0.25), (0.3, 0.5), (0.0, 0.54), (-0.16, 0.4), (0.2, 0.05)]
    pen.shape(belly, lighter(look.base, 0.65), rim=0, shade=0.4)
    wing = [(0.26, -0.12), (0.32, 0.12), (0.02, 0.34), (-0.62, 0.46), (-0.4, 0.1), (-0.08, -0.16)]
    pen.shape(wing, darker(look.base, 0.15), marks=look.marks((-0.55, -0.2, 0.35, 0.46), chance))
    pen.shape([(0.44, -0.72), (0.68, -0.62), (0.5, -0.55), (0.2, -0.56)], look.mark, rim=0, shade=0.3)
    pen.eye(0.52, -0.46, 0.085)


def heron(pen: Pen, look: Look, chance: Chance) -> None:
    """A long neck, a spear of a beak and long legs in shallow water."""
    step = chance.uniform(-0.12, 0.12)
    leg = mixed(look.accent, INK, 0.35)
    pen.line([(-0.12, 0.3), (-0.14 - step, 0.65), (-0.1 - step, 0.98)], leg, 0.05)
    pen.line([(0.04, 0.3), (0.1 + step, 0.65), (0.08 + step, 0.98)], leg, 0.05)
    pen.line([(-0.3, 1.0), (0.3, 1.0)], (225, 238, 240), 0.03)
    pen.shape([(-0.3, 0.0), (-0.85, 0.32), (-0.8, 0.42), (-0.3, 0.3)], darker(look.base, 0.3))
    bend = chance.uniform(-0.05, 0.05)
    neck = [(0.22, 0.05), (0.4, -0.15), (0.26 + bend, -0.42), (0.24 + bend, -0.68), (0.42, -0.8)]
    pen.line(neck, darker(look.base, 0.6), 0.235)
    pen.line(neck, lighter(look.base, 0.35), 0.17)
    pen.shape([(0.46, -0.89), (1.05, -0.72), (0.46, -0.7)], look.accent, sharp=True)
    pen.shape(oval(0.42, -0.8, 0.15, 0.12, 10), lighter(look.base, 0.35))
    pen.line([(0.42, -0.9), (0.22, -0.93), (0.02, -0.8)], look.mark, 0.06)
    body = [
        (0.36, -0.02),
        (0.3, 0.25),
        (0.0, 0.4),
        (-0.42, 0.32),
        (-0.72, 0.3),
        (-0.45, 0.02),
        (-0.1, -0.14),
        (0.2, -0.14),
    ]
    pen.shape(body, look.base, marks=look.marks((-0.65, -0.14, 0.36, 0.4), chance))
    pen.eye(0.46, -0.82, 0.05, (244, 210, 80))


def owl(pen: Pen, look: Look, chance: Chance) -> None:
    """Upright, with a face of two discs."""
    _perch(pen, chance, 0.82)
    pen.shape(both_sides([(0, 0.4), (0.2, 0.6), (0.2, 1.0), (0, 1.02)]), darker(look.base, 0.4))
    ear = chance.uniform(-0.05, 0.05)
    body = both_sides(
        [
            (0, -0.74),
            (0.34, -0.76),
            (0.56, -0.94 + ear),
            (0.6, -0.5),
            (0.58, 0.1),
            (0.5, 0.55),
            (0.25, 0.82),
            (0, 0.86),
        ]
    )
    pen.shape(body, look.base)
    breast = both_sides([(0, -0.14), (0.3, -0.1), (0.42, 0.2), (0.34, 0.6), (0, 0.78)])
    pen.shape(
        breast,
        lighter(look.base, 0.45),
        rim=0.015,
        shade=0.35,
        marks=look.marks((-0.4, -0.14, 0.4, 0.76), chance, upright=True),
    )
    for side in (-1, 1):
        wing = [(0.5, -0.2), (0.66, 0.1), (0.6, 0.5), (0.42, 0.74), (0.44, 0.3)]
        pen.shape([(side * x, y) for x, y in wing], darker(look.base, 0.22))
        pen.shape(oval(side * 0.26, -0.46, 0.29, 0.28, 14), lighter(look.base, 0.6), rim=0.02, shade=0.2)
        pen.eye(side * 0.24, -0.45, 0.16, look.accent)
        pen.line([(side * 0.12, 0.84), (side * 0.26, 0.84)], (226, 170, 60), 0.09)
    pen.shape([(-0.07, -0.36), (0.07, -0.36), (0, -0.16)], (222, 158, 52), sharp=True, rim=0.02)


# --- beetles


def _legs(
    pen: Pen, chance: Chance, at: tuple[float, float, float], reach: float, colour: Colour = INK
) -> None:
    for y, away, knee in zip(at, (-0.28, 0.02, 0.3), (-0.1, 0.0, 0.12), strict=True):
        for side in (-1, 1):
            step = chance.uniform(-0.09, 0.09)
            pen.line(
                [
                    (side * 0.2, y),
                    (side * reach * 0.75, y + knee + step),
                    (side * reach, y + away + 2 * step),
                ],
                colour,
                0.07,
                bent=False,
            )


def _feelers(pen: Pen, chance: Chance, y: float, long: float, out: float) -> None:
    for side in (-1, 1):
        curl = chance.uniform(-0.08, 0.08)
        pen.line(
            [
                (side * 0.1, y),
                (side * (0.1 + 0.6 * out), y - 0.75 * long),
                (side * (0.1 + out + curl), y - long),
            ],
            INK,
            0.045,
        )


def _wing_cases(pen: Pen, half: list[Point], look: Look, chance: Chance, *, upright: bool = True) -> None:
    shape = both_sides(half)
    xs, ys = np.array(shape).T
    pen.shape(
        shape, look.base, marks=look.marks((xs.min(), ys.min(), xs.max(), ys.max()), chance, upright=upright)
    )
    pen.line([(0, ys.min() + 0.02), (0, ys.max() - 0.02)], darker(look.base, 0.7), 0.03)


def dune_beetle(pen: Pen, look: Look, chance: Chance) -> None:
    """An egg on long legs."""
    _legs(pen, chance, (-0.3, -0.02, 0.25), 0.9)
    _feelers(pen, chance, -0.78, 0.25, 0.25)
    pen.shape(oval(0, -0.72, 0.2, 0.17, 12), INK)
    pen.shape(both_sides([(0, -0.7), (0.26, -0.66), (0.38, -0.42), (0.3, -0.26), (0, -0.24)]), look.accent)
    _wing_cases(
        pen, [(0, -0.3), (0.34, -0.28), (0.54, 0.05), (0.52, 0.42), (0.3, 0.78), (0, 0.9)], look, chance
    )


def stag_beetle(pen: Pen, look: Look, chance: Chance) -> None:
    """Long and square, with antlers."""
    _legs(pen, chance, (-0.2, 0.05, 0.3), 0.8)
    open_ = chance.uniform(-0.06, 0.06)
    for side in (-1, 1):
        antler = [(0.12, -0.6), (0.34 + open_, -0.74), (0.36 + open_, -0.95), (0.14 + open_, -1.1)]
        pen.line([(side * x, y) for x, y in antler], darker(look.accent, 0.6), 0.15)
        pen.line([(side * x, y) for x, y in antler], look.accent, 0.09)
        pen.line([(side * (0.36 + open_), -0.92), (side * (0.2 + open_), -0.88)], look.accent, 0.06)
    pen.shape(
        both_sides([(0, -0.66), (0.26, -0.66), (0.34, -0.52), (0.3, -0.38), (0, -0.36)]),
        darker(look.accent, 0.2),
    )
    pen.shape(both_sides([(0, -0.42), (0.36, -0.42), (0.44, -0.26), (0.38, -0.12), (0, -0.1)]), look.accent)
    _wing_cases(
        pen, [(0, -0.14), (0.36, -0.14), (0.42, 0.1), (0.4, 0.5), (0.26, 0.84), (0, 0.94)], look, chance
    )


def ladybird(pen: Pen, look: Look, chance: Chance) -> None:
    """Round, with a small head and white cheeks."""
    _legs(pen, chance, (-0.28, 0.05, 0.35), 0.84)
    _feelers(pen, chance, -0.72, 0.18, 0.18)
    pen.shape(both_sides([(0, -0.78), (0.24, -0.74), (0.42, -0.5), (0.3, -0.36), (0, -0.34)]), INK)
    for side in (-1, 1):
        pen.dot(side * 0.26, -0.55, 0.09, look.accent)
    _wing_cases(
        pen, [(0, -0.46), (0.4, -0.42), (0.7, -0.05), (0.7, 0.3), (0.46, 0.66), (0, 0.8)], look, chance
    )


def longhorn_beetle(pen: Pen, look: Look, chance: Chance) -> None:
    """Narrow, with feelers longer than the body."""
    _legs(pen, chance, (-0.2, 0.0, 0.25), 0.7)
    for side in (-1, 1):
        swing = chance.uniform(-0.12, 0.12)
        points = [
            (0.1, -0.62),
            (0.42, -0.9),
            (0.8 + swing, -0.62),
            (0.92 + swing, -0.05),
            (0.84 + swing, 0.4),
        ]
        pen.line([(side * x, y) for x, y in points], look.accent, 0.055)
    pen.shape(oval(0, -0.6, 0.19, 0.18, 12), darker(look.base, 0.5))
    pen.shape(
        both_sides([(0, -0.5), (0.22, -0.48), (0.28, -0.36), (0.22, -0.22), (0, -0.2)]),
        darker(look.base, 0.3),
    )
    _wing_cases(
        pen, [(0, -0.26), (0.32, -0.24), (0.34, 0.1), (0.28, 0.55), (0.16, 0.9), (0, 0.98)], look, chance
    )


# --- butterflies


def _wings(
    pen: Pen, look: Look, chance: Chance, fore: list[Point], hind: list[Point], box: Box, fold: float
) -> None:
    marks = chance.integers(1 << 30)
    for side in (False, True):
        with pen.at(flip=side, squash=fold):
            same = np.random.default_rng(marks)  # both sides are alike
            pen.shape(hind, mixed(look.base, look.accent, 0.35), marks=look.marks(box, same))
            pen.shape(fore, look.base, marks=look.marks(box, same), rim=0.05)


def _insect_body(pen: Pen, long: float, thick: float, colour: Colour) -> None:
    pen.shape(oval(0, 0.05 + long / 2, thick, long / 2 + 0.1, 12), colour)
    pen.shape(oval(0, -0.1, thick * 1.25, 0.2, 12), lighter(colour, 0.15))
    pen.shape(oval(0, -0.36, thick * 1.1, thick * 1.1, 10), colour)


def _clubs(pen: Pen, out: float) -> None:
    for side in (-1, 1):
        pen.line([(side * 0.05, -0.4), (side * 0.5 * out, -0.68), (side * out, -0.86)], INK, 0.03)
        pen.dot(side * out, -0.86, 0.05, INK)


def swallowtail(pen: Pen, look: Look, chance: Chance) -> None:
    """Pointed wings, and a tail on each hind wing."""
    fold = chance.uniform(0.82, 1.05)
    fore = [(0.06, -0.2), (0.5, -0.62), (0.98, -0.82), (0.98, -0.5), (0.74, 0.02), (0.3, 0.16), (0.06, 0.08)]
    hind = [
        (0.06, 0.02),
        (0.5, 0.02),
        (0.7, 0.22),
        (0.64, 0.48),
        (0.62, 0.96),
        (0.5, 0.98),
        (0.44, 0.62),
        (0.22, 0.62),
        (0.06, 0.3),
    ]
    _wings(pen, look, chance, fore, hind, (0.1, -0.8, 1.0, 0.7), fold)
    for side in (-1, 1):
        pen.dot(side * 0.3 * fold, 0.5, 0.075, look.accent)
    _insect_body(pen, 0.5, 0.075, INK)
    _clubs(pen, 0.3)


def ringlet(pen: Pen, look: Look, chance: Chance) -> None:
    """Round wings with eyes."""
    fold = chance.uniform(0.82, 1.05)
    fore = [
        (0.06, -0.18),
        (0.35, -0.62),
        (0.72, -0.72),
        (0.94, -0.45),
        (0.84, -0.05),
        (0.45, 0.1),
        (0.06, 0.06),
    ]
    hind = [(0.06, 0.0), (0.5, -0.02), (0.78, 0.15), (0.8, 0.48), (0.5, 0.72), (0.2, 0.6), (0.06, 0.3)]
    _wings(pen, look, chance, fore, hind, (0.1, -0.7, 0.95, 0.7), fold)
    for side in (-1, 1):
        for x, y, r in ((0.66, -0.4, 0.15), (0.54, 0.4, 0.12)):
            pen.dot(side * x * fold, y, r, look.accent)
            pen.dot(side * x * fold, y, 0.6 * r, INK)
            pen.dot(side * x * fold - 0.02, y - 0.03, 0.2 * r, WHITE)
    _insect_body(pen, 0.45, 0.075, darker(look.base, 0.6))
    _clubs(pen, 0.26)


def skipper(pen: Pen, look: Look, chance: Chance) -> None:
    """A thick furry body and short wings."""
    with pen.at(size=1.2):
        _skipper(pen, look, chance)


def _skipper(pen: Pen, look: Look, chance: Chance) -> None:
    fold = chance.uniform(0.85, 1.05)
    fore = [(0.08, -0.2), (0.45, -0.42), (0.86, -0.5), (0.74, -0.16), (0.42, 0.14), (0.08, 0.12)]
    hind = [(0.08, 0.04), (0.46, 0.06), (0.66, 0.22), (0.54, 0.46), (0.26, 0.52), (0.08, 0.36)]
    _wings(pen, look, chance, fore, hind, (0.1, -0.5, 0.86, 0.52), fold)
    _insect_body(pen, 0.5, 0.15, look.accent)
    for side in (-1, 1):
        pen.dot(side * 0.12, -0.42, 0.07, INK)
    _clubs(pen, 0.38)


# --- flowers


def _stem(pen: Pen, chance: Chance, top: float, leaf: float, width: float = 0.075) -> None:
    green: Colour = (74, 128, 62)
    bend = chance.uniform(-0.12, 0.12)
    pen.line([(0, top), (bend, 0.6), (bend * 1.6, 1.4)], darker(green, 0.4), width * 1.5)
    pen.line([(0, top), (bend, 0.6), (bend * 1.6, 1.4)], green, width)
    for side in (-1, 1):
        y = 0.86 + chance.uniform(-0.08, 0.08)
        points = [
            (bend, y + 0.1),
            (bend + side * 0.3 * leaf, y - 0.12),
            (bend + side * 0.66 * leaf, y - 0.34),
            (bend + side * 0.4 * leaf, y),
        ]
        pen.shape(points, green)


def _petal(angle: float, inner: float, outer: float, wide: float, blunt: float) -> list[Point]:
    c = np.cos(angle)
    s = np.sin(angle)
    plan = [
        (inner, 0.4 * wide),
        (0.6 * outer, wide),
        (blunt * outer, 0.75 * wide),
        (outer, 0),
        (blunt * outer, -0.75 * wide),
        (0.6 * outer, -wide),
        (inner, -0.4 * wide),
    ]
    return [(r * c - w * s, r * s + w * c) for r, w in plan]


def daisy(pen: Pen, look: Look, chance: Chance) -> None:
    """Many narrow petals around a large disc."""
    _stem(pen, chance, 0.0, 0.8)
    count = int(chance.integers(13, 16))
    start = chance.uniform(0, 1)
    with pen.at(0, -0.18, squash=chance.uniform(0.85, 1.05)):
        angles = start + np.arange(count) * 2 * np.pi / count
        petals = [_petal(a, 0.12, 0.76 * chance.uniform(0.94, 1.04), 0.13, 0.92) for a in angles]
        _petals(pen, petals, look, chance, 0.76)
        pen.shape(oval(0, 0, 0.27, 0.26, 14), look.accent)


def poppy(pen: Pen, look: Look, chance: Chance) -> None:
    """Few broad petals that overlap, around a dark middle."""
    _stem(pen, chance, 0.0, 0.6, 0.055)
    start = chance.uniform(0, 1)
    with pen.at(0, -0.18, squash=chance.uniform(0.85, 1.05)):
        for turn in (0, 0.8):
            petals = [_petal(start + turn + i * np.pi / 2, 0.05, 0.74, 0.42, 0.96) for i in range(4)]
            _petals(pen, petals, look, chance, 0.74)
        pen.shape(oval(0, 0, 0.17, 0.17, 12), INK, rim=0)
        for i in range(12):
            a = i * np.pi / 6
            pen.dot(0.22 * np.cos(a), 0.22 * np.sin(a), 0.035, look.accent)
        pen.dot(0, 0, 0.08, mixed(look.accent, (90, 130, 70), 0.5))


def _petals(pen: Pen, petals: list[list[Point]], look: Look, chance: Chance, reach: float) -> None:
    """Petals with markings that run around the middle or out from it."""
    pen.shapes(petals, look.base, rim=0.03, shade=0.4, marks=_petal_marks(petals, look, chance, reach))
    for petal in petals:
        pen.line([*petal, petal[0]], darker(look.base, 0.3), 0.02)


def _petal_marks(petals: list[list[Point]], look: Look, chance: Chance, reach: float) -> Marks | None:
    if look.pattern == "plain":
        return None
    if look.pattern == "tipped":
        return Marks(look.mark, [oval(0, 0, 2, 2)], [oval(0, 0, 0.72 * reach, 0.72 * reach, 30)])
    if look.pattern == "haloed":
        return Marks(look.mark, [oval(0, 0, 0.62 * reach, 0.62 * reach, 30)])
    if look.pattern == "rayed":
        middles = [np.mean(petal, axis=0) for petal in petals]
        return Marks(look.mark, [_ray(np.arctan2(y, x), 0.9 * reach) for x, y in middles])
    return look.marks((-reach, -reach, reach, reach), chance)


def _ray(angle: float, reach: float) -> np.ndarray:
    ends = [(0.1, -0.3), (reach, -0.05), (reach, 0.05), (0.1, 0.3)]
    return np.array([(r * np.cos(angle + turn), r * np.sin(angle + turn)) for r, turn in ends])


def tulip(pen: Pen, look: Look, chance: Chance) -> None:
    """A cup of petals on a straight stem."""
    _stem(pen, chance, 0.2, 1.05, 0.09)
    gape = chance.uniform(-0.08, 0.1)
    box = (-0.6, -0.85, 0.6, 0.4)
    for side in (-1, 1):
        back = [(0.05, 0.2), (0.3, -0.3), (0.24 + gape, -0.84), (0.5 + gape, -0.6), (0.55, -0.1), (0.4, 0.3)]
        pen.shape(
            [(side * x, y) for x, y in back], darker(look.base, 0.12), marks=_cup_marks(look, box, chance)
        )
    pen.shape([(0, -0.8), (0.22, -0.45), (0.2, 0.2), (-0.2, 0.2), (-0.22, -0.45)], darker(look.base, 0.2))
    for side in (-1, 1):
        front = [
            (-0.02, 0.42),
            (-0.06, 0.0),
            (0.16, -0.34),
            (0.52 + gape, -0.76),
            (0.62, -0.2),
            (0.5, 0.24),
            (0.24, 0.44),
        ]
        pen.shape([(side * x, y) for x, y in front], look.base, marks=_cup_marks(look, box, chance))


def _cup_marks(look: Look, box: Box, chance: Chance) -> Marks | None:
    left, top, right, bottom = box
    edges = {"tipped": (top - 0.2, -0.38), "haloed": (0.06, bottom + 0.2)}
    if look.pattern in edges:
        high, low = edges[look.pattern]
        return Marks(look.mark, [np.array([(left, high), (right, high), (right, low), (left, low)])])
    if look.pattern == "rayed":
        rays = [
            np.array(
                [
                    (0.12 * i - 0.03, -0.8),
                    (0.12 * i + 0.03, -0.8),
                    (0.08 * i + 0.03, 0.4),
                    (0.08 * i - 0.03, 0.4),
                ]
            )
            for i in range(-4, 5)
        ]
        return Marks(look.mark, rays)
    return look.marks(box, chance)


# --- cacti


def _pot(pen: Pen) -> None:
    pen.shape([(-0.4, 0.66), (0.4, 0.66), (0.3, 1.12), (-0.3, 1.12)], (190, 104, 72), sharp=True)
    pen.shape([(-0.46, 0.58), (0.46, 0.58), (0.46, 0.72), (-0.46, 0.72)], (206, 118, 82), sharp=True)


def _spines(pen: Pen, places: list[Point], size: float = 0.06) -> None:
    pale: Colour = (244, 238, 214)
    for x, y in places:
        pen.line([(x - size, y - size), (x + size, y + size)], pale, 0.022)
        pen.line([(x - size, y + size), (x + size, y - size)], pale, 0.022)


def _bloom(pen: Pen, x: float, y: float, radius: float, colour: Colour) -> None:
    for i in range(6):
        a = i * np.pi / 3
        pen.dot(
            x + 0.6 * radius * np.cos(a),
            y + 0.6 * radius * np.sin(a),
            0.5 * radius,
            darker(colour, 0.12 * (i % 2)),
        )
    pen.dot(x, y, 0.35 * radius, (246, 220, 110))


def barrel_cactus(pen: Pen, look: Look, chance: Chance) -> None:
    """A ball with ribs."""
    _pot(pen)
    wide = chance.uniform(0.62, 0.72)
    pen.shape(oval(0, 0.08, wide, 0.6, 16), look.base, marks=look.marks((-wide, -0.5, wide, 0.66), chance))
    for share in (-0.62, -0.22, 0.22, 0.62):
        x = share * wide
        pen.line([(0.5 * x, -0.48), (1.15 * x, 0.08), (0.6 * x, 0.62)], darker(look.base, 0.4), 0.03)
    places = [
        (s * wide * np.cos(t), 0.08 + 0.55 * np.sin(t))
        for s in (-0.8, -0.4, 0, 0.4, 0.8)
        for t in (-0.8, -0.2, 0.4)
    ]
    _spines(pen, places)
    for i in range(int(chance.integers(1, 4))):
        _bloom(pen, (i - 1) * 0.27, -0.5 + 0.07 * abs(i - 1), 0.19, look.accent)


def column_cactus(pen: Pen, look: Look, chance: Chance) -> None:
    """A post with arms."""
    arms = [(-1, chance.uniform(0.0, 0.3)), (1, chance.uniform(-0.25, 0.1))]
    for side, y in arms[: int(chance.integers(1, 3))] if chance.random() < 0.35 else arms:
        points = [(side * 0.1, y + 0.2), (side * 0.52, y + 0.16), (side * 0.56, y - 0.36)]
        pen.line(points, darker(look.base, 0.6), 0.27)
        pen.line(points, darker(look.base, 0.08), 0.21)
        pen.line([(x - 0.03, yy) for x, yy in points], lighter(look.base, 0.25), 0.04)
        _bloom(pen, side * 0.56, y - 0.46, 0.12, look.accent)
    high = -0.9 + chance.uniform(-0.05, 0.1)
    body = both_sides(
        [(0, high), (0.17, high + 0.07), (0.24, high + 0.3), (0.24, 0.2), (0.24, 1.0), (0, 1.04)]
    )
    pen.shape(body, look.base, marks=look.marks((-0.24, high, 0.24, 1.0), chance, upright=True))
    for x in (-0.1, 0.1):
        pen.line([(x, high + 0.12), (x, 0.98)], darker(look.base, 0.4), 0.028)
    _spines(pen, [(x, y) for x in (-0.18, 0, 0.18) for y in np.arange(-0.6, 0.9, 0.3)], 0.045)
    _bloom(pen, 0, high, 0.15, look.accent)


def paddle_cactus(pen: Pen, look: Look, chance: Chance) -> None:
    """Flat pads, one on the other."""
    lean = chance.uniform(-0.12, 0.12)
    pads = [
        (0, 0.58, 0.36, 0.46, 0.0),
        (-0.36 + lean, -0.12, 0.28, 0.4, -0.5),
        (0.36 + lean, -0.06, 0.27, 0.38, 0.55),
        (0.02 + lean, -0.55, 0.23, 0.32, 0.1),
    ]
    _, *others = pads
    for x, y, rx, ry, turn in [others[2], others[0], others[1], pads[0]]:
        with pen.at(x, y, turn):
            pen.shape(oval(0, 0, rx, ry, 14), look.base, marks=look.marks((-rx, -ry, rx, ry), chance))
            _spines(
                pen,
                [(0.45 * rx * i, 0.5 * ry * j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i + j) % 2 == 0],
                0.04,
            )
            if y < 0.5:
                _bloom(pen, 0, -ry, 0.13, look.accent)
