"""The species: 65 that models learn, and a few that no model is told about."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hace.draw.creatures import bodies, scenes
from hace.draw.creatures.bodies import Look
from hace.draw.creatures.pen import Colour, Pen

_COLOURS: dict[str, Colour] = {
    "amber": (226, 150, 52),
    "ash": (150, 148, 144),
    "black": (44, 40, 46),
    "blue": (62, 112, 186),
    "bronze": (134, 98, 58),
    "brown": (124, 84, 60),
    "cream": (240, 226, 190),
    "crimson": (172, 38, 56),
    "fern": (96, 146, 82),
    "gold": (238, 192, 64),
    "grey": (128, 138, 148),
    "jade": (74, 150, 120),
    "lilac": (172, 138, 200),
    "lime": (160, 186, 78),
    "navy": (44, 60, 108),
    "olive": (122, 122, 64),
    "orange": (236, 124, 48),
    "pink": (232, 134, 164),
    "plum": (122, 62, 112),
    "red": (208, 58, 48),
    "rust": (176, 88, 48),
    "sand": (214, 182, 128),
    "sky": (128, 182, 220),
    "teal": (44, 134, 144),
    "white": (244, 242, 236),
}


class Plan(NamedTuple):
    """What the species of a family share: realm, group, body, backgrounds, and how they are turned."""

    realm: str
    group: str
    body: Callable[[Pen, Look, np.random.Generator], None]
    scenes: tuple[scenes.Scene, ...]
    turn: float
    flips: bool
    weed: Colour  # of what may stand in the way


class Species(NamedTuple):
    """A species: its name, its family, and how it looks."""

    name: str
    family: str
    look: Look

    @property
    def plan(self) -> Plan:
        """What its family shares."""
        return PLANS[self.family]

    @property
    def path(self) -> tuple[str, str, str, str]:
        """Its names from the top down: realm, group, family, species."""
        return self.plan.realm, self.plan.group, self.family, self.name


_GRASS = (104, 142, 70)
_WEED = (50, 104, 84)
_TWIG = (110, 84, 62)


def _fish(body: bodies.Body) -> Plan:
    return Plan("vertebrate", "fish", body, (scenes.water,), 0.3, True, _WEED)


def _bird(body: bodies.Body, *where: scenes.Scene) -> Plan:
    return Plan("vertebrate", "bird", body, where or (scenes.sky, scenes.wood), 0.12, True, _TWIG)


def _beetle(body: bodies.Body) -> Plan:
    return Plan("insect", "beetle", body, (scenes.sand, scenes.leaf, scenes.wood), 3.2, False, _GRASS)


def _butterfly(body: bodies.Body) -> Plan:
    return Plan("insect", "butterfly", body, (scenes.meadow, scenes.leaf, scenes.sky), 0.8, False, _GRASS)


def _flower(body: bodies.Body) -> Plan:
    return Plan("plant", "flower", body, (scenes.meadow, scenes.wood, scenes.sky), 0.2, True, _GRASS)


def _cactus(body: bodies.Body) -> Plan:
    return Plan("plant", "cactus", body, (scenes.desert, scenes.sand, scenes.room), 0.12, True, _GRASS)


PLANS: dict[str, Plan] = {
    "angelfish": _fish(bodies.angelfish),
    "pike": _fish(bodies.pike),
    "puffer": _fish(bodies.puffer),
    "finch": _bird(bodies.finch),
    "heron": _bird(bodies.heron, scenes.sky, scenes.water, scenes.wood),
    "owl": _bird(bodies.owl),
    "dune beetle": _beetle(bodies.dune_beetle),
    "stag beetle": _beetle(bodies.stag_beetle),
    "ladybird": _beetle(bodies.ladybird),
    "longhorn beetle": _beetle(bodies.longhorn_beetle),
    "swallowtail": _butterfly(bodies.swallowtail),
    "ringlet": _butterfly(bodies.ringlet),
    "skipper": _butterfly(bodies.skipper),
    "daisy": _flower(bodies.daisy),
    "poppy": _flower(bodies.poppy),
    "tulip": _flower(bodies.tulip),
    "barrel cactus": _cactus(bodies.barrel_cactus),
    "column cactus": _cactus(bodies.column_cactus),
    "paddle cactus": _cactus(bodies.paddle_cactus),
}

# Family, and its species: adjective, pattern, and the colours of body, markings and accent.
_LISTED = """
angelfish
    banded    striped     gold    navy    gold
    royal     lined       blue    gold    gold
    lantern   plain       orange  orange  gold
    dotted    spotted     gold    navy    gold
pike
    barred    striped     olive   brown   rust
    grass     speckled    olive   cream   rust
    silver    plain       grey    grey    ash
puffer
    freckled  speckled    sand    brown   amber
    ringed    ringed      sand    brown   amber
    lemon     plain       gold    gold    amber
finch
    rose      plain       pink    crimson amber
    barred    striped     rust    cream   amber
    hooded    plain       rust    black   amber
    speckled  speckled    rust    cream   amber
heron
    slate     plain       grey    navy    gold
    rufous    pinstriped  rust    cream   gold
    pearl     speckled    grey    white   gold
owl
    barred    striped     brown   black   gold
    spotted   spotted     brown   black   gold
    frost     plain       ash     ash     gold
    tawny     lined       rust    brown   orange
dune beetle
    striped   lined       sand    brown   bronze
    banded    striped     sand    brown   bronze
    spotted   spotted     sand    brown   bronze
    saddled   saddled     sand    black   bronze
stag beetle
    bronze    plain       bronze  bronze  rust
    ebony     plain       black   black   brown
    barred    striped     bronze  black   rust
ladybird
    dotted    spotted     red     black   white
    ringed    ringed      red     black   white
    amber     spotted     amber   black   white
    chequered chequered   amber   black   white
longhorn beetle
    jade      plain       jade    jade    navy
    zigzag    zigzag      jade    navy    navy
    spotted   spotted     jade    navy    navy
swallowtail
    tiger     striped     gold    black   blue
    lattice   netted      gold    black   blue
    sapphire  plain       blue    blue    orange
    dusky     tailed      gold    black   blue
ringlet
    plain     plain       brown   brown   amber
    marbled   ringed      brown   cream   amber
    russet    plain       rust    rust    gold
skipper
    golden    plain       amber   amber   brown
    chequered chequered   amber   brown   brown
    dingy     speckled    ash     brown   brown
daisy
    snow      plain       white   white   gold
    blush     tipped      white   pink    gold
    crown     haloed      white   pink    gold
    sun       plain       gold    gold    brown
poppy
    field     plain       red     red     black
    haloed    haloed      red     plum    black
    moon      plain       cream   cream   gold
tulip
    scarlet   plain       red     red     gold
    flamed    rayed       red     gold    gold
    candle    tipped      gold    red     gold
    violet    plain       plum    plum    gold
barrel cactus
    fern      plain       fern    fern    pink
    striped   striped     fern    lime    pink
    sunset    plain       fern    fern    orange
column cactus
    candle    plain       fern    fern    white
    ringed    striped     fern    lime    white
    blue      plain       teal    teal    white
paddle cactus
    smooth    plain       fern    fern    red
    spotted   spotted     fern    lime    red
    plum      plain       plum    plum    gold
"""

# Species of these families that models are never told about.
_UNLISTED = """
angelfish
    chequered chequered   gold    navy    gold
owl
    netted    netted      brown   black   gold
dune beetle
    ringed    ringed      sand    brown   bronze
swallowtail
    spotted   spotted     gold    black   blue
tulip
    striped   striped     red     gold    gold
"""


def _read(table: str) -> tuple[Species, ...]:
    species: list[Species] = []
    family = ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            family = line
            continue
        adjective, pattern, *colours = line.split()
        base, mark, accent = (_COLOURS[colour] for colour in colours)
        species.append(Species(f"{adjective} {family}", family, Look(pattern, base, mark, accent)))
    return tuple(species)


SPECIES = _read(_LISTED)
UNLISTED = _read(_UNLISTED)


RANKS = ("realm", "group", "family", "species")


def creature_paths() -> list[tuple[str, str, str, str]]:
    """The names of each species from the top down, one for each of :data:`RANKS`."""
    return [species.path for species in SPECIES]
