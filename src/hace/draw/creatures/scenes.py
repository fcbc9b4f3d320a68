"""Where a creature is seen: backgrounds, what stands in the way, and the light and noise of a photo."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageFilter

from hace.draw.creatures.pen import Colour, Pen, darker, lighter, mixed, oval

Chance = np.random.Generator
Scene = Callable[[Pen, Chance], None]


def _ground(pen: Pen, top: Colour, bottom: Colour) -> None:
    """A slow change from one colour to another."""
    t = np.linspace(0, 1, 64)[:, None]
    column = (np.array(top) + (np.array(bottom) - np.array(top)) * t).astype(np.uint8)
    pen.image.paste(Image.fromarray(column[:, None, :]).resize(pen.image.size))


def _blurred(pen: Pen, share: float) -> None:
    pen.image.paste(pen.image.filter(ImageFilter.BoxBlur(share * pen.side)))


def _discs(pen: Pen, chance: Chance, count: int, sizes: tuple[float, float], colours: list[Colour]) -> None:
    for _ in range(count):
        x, y = chance.uniform(-1, 1, 2)
        pen.dot(x, y, chance.uniform(*sizes), colours[int(chance.integers(len(colours)))])


def _blades(pen: Pen, chance: Chance, count: int, colour: Colour, width: float) -> None:
    for _ in range(count):
        x = chance.uniform(-1, 1)
        lean = chance.uniform(-0.4, 0.4)
        top = chance.uniform(-0.6, 0.6)
        shade = mixed(darker(colour, 0.3), lighter(colour, 0.3), chance.random())
        pen.line([(x, 1.1), (x + 0.3 * lean, 0.5 + 0.4 * top), (x + lean, top)], shade, width)


def water(pen: Pen, chance: Chance) -> None:
    """Blue or green, with weeds and bubbles."""
    deep = mixed((28, 92, 134), (36, 112, 102), chance.random())
    _ground(pen, lighter(deep, 0.45), darker(deep, 0.1))
    _blades(pen, chance, int(chance.integers(3, 8)), (52, 120, 88), 0.07)
    _blurred(pen, 0.012)
    for _ in range(int(chance.integers(3, 9))):
        x, y = chance.uniform(-1, 1, 2)
        pen.dot(x, y, chance.uniform(0.02, 0.06), lighter(deep, 0.65))


def sky(pen: Pen, chance: Chance) -> None:
    """Blue to grey, with clouds and leaves out of focus."""
    blue = mixed((126, 182, 222), (188, 198, 204), chance.random())
    _ground(pen, blue, lighter(blue, 0.5))
    _discs(pen, chance, 4, (0.2, 0.45), [lighter(blue, 0.6)])
    _discs(pen, chance, int(chance.integers(0, 6)), (0.1, 0.3), [(98, 142, 84), (134, 162, 88)])
    _blurred(pen, 0.05)


def wood(pen: Pen, chance: Chance) -> None:
    """Green, with spots of light."""
    green = mixed((72, 108, 66), (98, 96, 58), chance.random())
    _ground(pen, lighter(green, 0.25), darker(green, 0.35))
    _discs(
        pen, chance, 14, (0.1, 0.35), [darker(green, 0.2), lighter(green, 0.3), (128, 144, 78), (64, 92, 70)]
    )
    _blurred(pen, 0.05)


def meadow(pen: Pen, chance: Chance) -> None:
    """Grass, and flowers out of focus."""
    green = mixed((122, 160, 74), (166, 168, 88), chance.random())
    _ground(pen, lighter(green, 0.3), darker(green, 0.15))
    _discs(
        pen,
        chance,
        int(chance.integers(2, 8)),
        (0.06, 0.16),
        [(232, 208, 96), (222, 140, 152), (240, 238, 226), (160, 130, 190)],
    )
    _blades(pen, chance, 12, green, 0.06)
    _blurred(pen, 0.025)


def sand(pen: Pen, chance: Chance) -> None:
    """Grains, ripples and pebbles."""
    yellow = mixed((222, 196, 148), (200, 172, 140), chance.random())
    _ground(pen, lighter(yellow, 0.15), darker(yellow, 0.08))
    tilt = chance.uniform(-0.3, 0.3)
    for y in np.arange(-1.2, 1.3, 0.3):
        off = chance.uniform(-0.08, 0.08)
        pen.line([(-1.1, y + off - tilt), (0, y - off), (1.1, y + off + tilt)], darker(yellow, 0.1), 0.06)
    _blurred(pen, 0.012)
    _discs(
        pen,
        chance,
        int(chance.integers(3, 9)),
        (0.02, 0.08),
        [darker(yellow, 0.25), lighter(yellow, 0.4), (150, 138, 128)],
    )


def leaf(pen: Pen, chance: Chance) -> None:
    """A large leaf with its veins."""
    green = mixed((88, 140, 76), (132, 156, 70), chance.random())
    _ground(pen, darker(green, 0.1), darker(green, 0.3))
    with pen.at(turn=chance.uniform(0, 2 * np.pi)):
        pen.shape(oval(0, 0, 1.5, 0.95), green, rim=0, shade=0.3)
        pen.line([(-1.5, 0), (1.5, 0)], lighter(green, 0.3), 0.05)
        for x in np.arange(-1.2, 1.3, 0.4):
            for side in (-1, 1):
                pen.line([(x, 0), (x + 0.4, side * 0.8)], lighter(green, 0.2), 0.025)
    _blurred(pen, 0.008)


def desert(pen: Pen, chance: Chance) -> None:
    """Sky above, dunes below."""
    sky_ = mixed((160, 204, 224), (236, 196, 160), chance.random())
    _ground(pen, sky_, lighter(sky_, 0.5))
    y = chance.uniform(0.1, 0.5)
    for i, colour in enumerate([(224, 178, 128), (206, 154, 106)]):
        bend = chance.uniform(-0.25, 0.25)
        pen.shape(
            [
                (-1.6, y + 0.25 * i),
                (-0.5, y + bend + 0.25 * i),
                (0.6, y - bend + 0.25 * i),
                (1.6, y + 0.2 * i),
                (1.6, 2),
                (-1.6, 2),
            ],
            colour,
            rim=0,
            shade=0.2,
        )
    _blurred(pen, 0.015)


def room(pen: Pen, chance: Chance) -> None:
    """A plain wall."""
    walls: list[Colour] = [(214, 206, 196), (178, 196, 200), (206, 184, 178), (190, 200, 172)]
    wall = walls[int(chance.integers(len(walls)))]
    _ground(pen, lighter(wall, 0.2), darker(wall, 0.15))


def in_the_way(pen: Pen, chance: Chance, colour: Colour) -> None:
    """Sometimes a blade or two in front of the creature."""
    if chance.random() < 0.3:
        for _ in range(int(chance.integers(1, 3))):
            x = chance.uniform(-0.9, 0.9)
            lean = chance.uniform(-0.5, 0.5)
            pen.line(
                [(x, 1.1), (x + 0.4 * lean, 0.2), (x + lean, chance.uniform(-1.1, 0.1))],
                colour,
                chance.uniform(0.05, 0.09),
            )


def photographed(image: Image.Image, side: int, chance: Chance, noise: Chance) -> np.ndarray:
    """The drawing as a camera sees it: (side, side, 3) bytes with its focus, light, tint, corners and noise."""
    blur = chance.uniform(0.0, 0.012)
    gain = chance.uniform(0.86, 1.25)
    contrast = chance.uniform(0.84, 1.12)
    tint = chance.normal(0, 0.05, 3)
    corners = chance.uniform(0, 0.3)
    grain = chance.uniform(3, 10)
    small = image.resize((side, side), Image.Resampling.BOX, reducing_gap=1.0)
    if blur > 0.004:
        small = small.filter(ImageFilter.GaussianBlur(blur * side))
    x = np.asarray(small, dtype=np.float32)
    grid = np.linspace(-1, 1, side, dtype=np.float32) ** 2
    light = gain * (1 - corners * (grid[:, None] + grid[None, :]) / 2)
    x = (x - 128) * contrast + 128
    x = x * light[..., None] * (1 + tint).astype(np.float32)
    x += noise.standard_normal(x.shape, dtype=np.float32) * grain
    return np.clip(x, 0, 255).astype(np.uint8)
