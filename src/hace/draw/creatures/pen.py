"""A pen with a place, a size and a direction: smooth shapes with light, outline and markings, in coordinates from -1 to 1.

Shapes are lists of points (x, y), x to the right and y down, that a smooth closed curve goes through. Everything is drawn
larger than it is shown and reduced in the end, which rounds the edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageDraw

Point = tuple[float, float]
Points = Sequence[Point] | np.ndarray
Colour = tuple[int, int, int]
INK: Colour = (38, 32, 36)
WHITE: Colour = (250, 248, 240)


def mixed(a: Colour, b: Colour, share: float) -> Colour:
    """A colour between two; share 1 is the second."""
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue


def darker(colour: Colour, share: float = 0.35) -> Colour:
    """A colour closer to ink."""
    return mixed(colour, INK, share)


def lighter(colour: Colour, share: float = 0.35) -> Colour:
    """A colour closer to white."""
    return mixed(colour, WHITE, share)


def smooth(points: Points, steps: int = 7) -> np.ndarray:
    """A closed curve through points (Catmull-Rom): steps per part."""
    p = np.asarray(points, dtype=float)
    places = np.arange(-1, 3) + np.arange(len(p))[:, None]
    return (_catmull_rom(steps) @ p[places % len(p)]).reshape(-1, 2)


@cache
def _catmull_rom(steps: int) -> np.ndarray:
    """(steps, 4): the weights of the points before and after a part of a curve, along it."""
    t = np.arange(steps)[:, None] / steps
    powers = t ** np.arange(4)
    return powers @ np.array([[0, 2, 0, 0], [-1, 0, 1, 0], [2, -5, 4, -1], [-1, 3, -3, 1]]) / 2


def oval(x: float, y: float, rx: float, ry: float, count: int = 20) -> np.ndarray:
    """Points of an ellipse."""
    return _circle(count) * (rx, ry) + (x, y)


@cache
def _circle(count: int) -> np.ndarray:
    angles = np.arange(count) * 2 * np.pi / count
    return np.column_stack([np.cos(angles), np.sin(angles)])


def both_sides(half: Sequence[Point]) -> list[Point]:
    """A shape that is symmetric about x = 0, from its right half, top to bottom."""
    return [*half, *[(-x, y) for x, y in reversed(half) if x > 0]]


class Pen:
    """Draws on an image of side x side pixels."""

    def __init__(self, image: Image.Image, *, light: float = 0.0) -> None:
        self.image = image
        self.side = image.width
        self.draw = ImageDraw.Draw(image)
        self.matrix = np.array(
            [[self.side / 2, 0, self.side / 2], [0, self.side / 2, self.side / 2]], dtype=float
        )
        self.light = light
        self.shades: dict[float, tuple[Image.Image, Image.Image]] = {}

    @contextmanager
    def at(
        self,
        x: float = 0,
        y: float = 0,
        turn: float = 0,
        size: float = 1,
        *,
        flip: bool = False,
        squash: float = 1,
    ) -> Iterator[None]:
        """Draw elsewhere: around (x, y), turned by an angle, smaller, mirrored, or narrower."""
        before = self.matrix
        c = np.cos(turn)
        s = np.sin(turn)
        own = np.array([[c, -s], [s, c]]) @ np.diag([size * squash * (-1 if flip else 1), size])
        place = before[:, :2] @ np.array([x, y]) + before[:, 2]
        self.matrix = np.column_stack([before[:, :2] @ own, place])
        try:
            yield
        finally:
            self.matrix = before

    @property
    def unit(self) -> float:
        """Pixels of a length of 1."""
        return float(np.sqrt(abs(np.linalg.det(self.matrix[:, :2]))))

    def pixels(self, points: Points) -> list[Point]:
        """Points as places in the image."""
        p = np.asarray(points) @ self.matrix[:, :2].T + self.matrix[:, 2]
        return list(map(tuple, p.tolist()))

    def width(self, share: float) -> int:
        """A width of lines in pixels."""
        return max(1, round(share * self.unit))

    def line(self, points: Points, colour: Colour, width: float, *, bent: bool = True) -> None:
        """A line through points, with round ends."""
        if bent and len(points) > 2:
            points = _open_curve(points)
        at = self.pixels(points)
        pixels = self.width(width)
        self.draw.line(at, fill=colour, width=pixels, joint="curve")
        r = pixels / 2
        for x, y in (at[0], at[-1]):
            self.draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def dot(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A disc."""
        self.draw.polygon(self.pixels(oval(x, y, radius, radius, 14)), fill=colour)

    def eye(self, x: float, y: float, radius: float, colour: Colour = WHITE) -> None:
        """An eye that looks at you."""
        self.dot(x, y, radius * 1.18, INK)
        self.dot(x, y, radius, colour)
        self.dot(x, y, radius * 0.62, INK)
        self.dot(x - radius * 0.25, y - radius * 0.28, radius * 0.26, WHITE)

    def shape(
        self,
        points: Points,
        colour: Colour,
        *,
        marks: Marks | None = None,
        rim: float = 0.035,
        shade: float = 0.5,
        sharp: bool = False,
    ) -> None:
        """A filled shape: its outline, then its markings, then light."""
        self.shapes([points], colour, marks=marks, rim=rim, shade=shade, sharp=sharp)

    def shapes(
        self,
        several: Sequence[Points],
        colour: Colour,
        *,
        marks: Marks | None = None,
        rim: float = 0.035,
        shade: float = 0.5,
        sharp: bool = False,
    ) -> None:
        """Several shapes as one."""
        curves = [np.asarray(points, dtype=float) if sharp else smooth(points) for points in several]
        outlines = [self.pixels(curve) for curve in curves]
        if rim:
            for outline in outlines:
                closed = [*outline, *outline[:2]]
                joint = "curve" if sharp else None
                self.draw.line(closed, fill=darker(colour, 0.6), width=self.width(2 * rim), joint=joint)
        box = _around(outlines, self.side)
        if box is None:
            return
        mask, brush = self._layer(box)
        for outline in outlines:
            brush.polygon(_moved(outline, box), fill=255)
        self.image.paste(colour, box, mask)
        if marks is not None:
            layer, brush = self._layer(box)
            for value, polygons in ((255, marks.polygons), (0, marks.holes)):
                for polygon in polygons:
                    brush.polygon(_moved(self.pixels(polygon), box), fill=value)
            self.image.paste(marks.colour, box, ImageChops.multiply(mask, layer))
        if shade:
            dark, light = self._shades(shade)
            self.image.paste(darker(colour, 0.75), box, ImageChops.multiply(mask, dark.crop(box)))
            self.image.paste(WHITE, box, ImageChops.multiply(mask, light.crop(box)))

    def _layer(self, box: tuple[int, int, int, int]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
        layer = Image.new("L", (box[2] - box[0], box[3] - box[1]))
        return layer, ImageDraw.Draw(layer)

    def _shades(self, share: float) -> tuple[Image.Image, Image.Image]:
        """How much of shadow and of light falls where."""
        if share not in self.shades:
            slope = _slope(self.side, self.light)
            both = (1 - slope) * share, slope * share / 2
            dark, light = (Image.fromarray((255 * s).astype(np.uint8)) for s in both)
            self.shades[share] = dark, light
        return self.shades[share]


class Marks(NamedTuple):
    """Markings within a shape: a colour, polygons that have it, and holes in them."""

    colour: Colour
    polygons: Sequence[np.ndarray]
    holes: Sequence[np.ndarray] = ()


def _around(outlines: Sequence[Sequence[Point]], side: int) -> tuple[int, int, int, int] | None:
    """The part of the image that outlines cover: left, top, right, bottom; None where they are outside."""
    points = np.concatenate([np.asarray(outline) for outline in outlines])
    left, top = np.clip(points.min(axis=0).astype(int) - 1, 0, side).tolist()
    right, bottom = np.clip(points.max(axis=0).astype(int) + 2, 0, side).tolist()
    return (left, top, right, bottom) if left < right and top < bottom else None


def _moved(points: Sequence[Point], box: tuple[int, int, int, int]) -> list[Point]:
    return [(x - box[0], y - box[1]) for x, y in points]


def _slope(side: int, angle: float) -> np.ndarray:
    """Light that falls from above, from an angle: 1 towards it, 0 away from it."""
    grid = np.linspace(-1, 1, side, dtype=np.float32)
    towards = np.sin(angle) * grid[None, :] - np.cos(angle) * grid[:, None]
    return np.clip(0.5 + 0.75 * towards, 0, 1) ** 2


def _open_curve(points: Points, steps: int = 6) -> np.ndarray:
    """A curve through points that ends where they end."""
    closed = smooth([points[0], *points, points[-1]], steps)
    return np.vstack([closed[steps : len(points) * steps], points[-1]])
