"""One photo of one individual."""

from __future__ import annotations

import numpy as np
from PIL import Image

from hace.draw.creatures.pen import Pen, darker
from hace.draw.creatures.scenes import in_the_way, photographed
from hace.draw.creatures.species import Species

_FINE = 256  # pixels of a drawing that is shown small


def draw_creature(species: Species, seed: int, side: int = 64) -> np.ndarray:
    """(side, side, 3) bytes: an individual of a species.

    Args:
        species: one of :data:`SPECIES` or :data:`UNLISTED`.
        seed: which individual; it looks the same at every size, but for the grain of the photo.
        side: pixels.
    """
    chance = np.random.default_rng([seed, *species.name.encode()])
    fine = max(_FINE, 3 * side) if side > 96 else 3 * side
    image = Image.new("RGB", (fine, fine))
    pen = Pen(image, light=chance.uniform(-0.9, 0.9))
    plan = species.plan
    scene = plan.scenes[int(chance.integers(len(plan.scenes)))]
    scene(pen, chance)
    turn = chance.uniform(-plan.turn, plan.turn)
    size = chance.uniform(0.68, 1.0)
    x, y = chance.uniform(-0.12, 0.12, 2)
    flip = plan.flips and chance.random() < 0.5
    squash = chance.uniform(0.84, 1.0)
    with pen.at(x, y, turn, size, flip=flip, squash=squash):
        plan.body(pen, species.look, chance)
    in_the_way(pen, chance, darker(plan.weed, 0.1))
    noise = np.random.default_rng([seed, side, *species.name.encode()])
    return photographed(image, side, chance, noise)
