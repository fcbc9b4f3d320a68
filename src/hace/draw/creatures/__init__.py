"""Creatures drawn by a program: 65 species in four ranks, for demos, tutorials, tests and pictures of the docs.

Groups differ in their body plan, families in shape, species in pattern and colour, individuals in pose, size, light, background
and noise: relatives look alike, and mistakes are those a person would make. Nothing else makes them easy or hard. They are
drawings, so they show how things work and say nothing about real data.

species    the species: names, families, looks
bodies     one function per family
markings   stripes, spots and rings
scenes     backgrounds, light and noise
pen        smooth shapes with light and outline
"""

from __future__ import annotations

from hace.draw.creatures.portrait import draw_creature
from hace.draw.creatures.species import RANKS, SPECIES, UNLISTED, Species, creature_paths

__all__ = ["RANKS", "SPECIES", "UNLISTED", "Species", "creature_paths", "draw_creature"]
