"""Drawn creatures: the same every time, alike at every size, and hard where a person would find them hard."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL")

from hace.draw.creatures import RANKS, SPECIES, UNLISTED, creature_paths, draw_creature


def test_the_same_individual_every_time_and_another_by_its_number() -> None:
    species = SPECIES[0]
    assert np.array_equal(draw_creature(species, 3), draw_creature(species, 3))
    assert not np.array_equal(draw_creature(species, 3), draw_creature(species, 4))


def test_an_individual_looks_the_same_at_every_size() -> None:
    for species in SPECIES[::9]:
        small = draw_creature(species, 5, 64).astype(float)
        large = draw_creature(species, 5, 256).reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
        assert np.abs(small - large).mean() < 12


def test_every_species_is_drawn_and_none_twice() -> None:
    looks = {(species.family, species.look) for species in (*SPECIES, *UNLISTED)}
    assert (
        len(looks) == len({species.name for species in (*SPECIES, *UNLISTED)}) == len(SPECIES) + len(UNLISTED)
    )
    for species in (*SPECIES, *UNLISTED):
        photo = draw_creature(species, 0, 32)
        assert photo.shape == (32, 32, 3)
        assert photo.std() > 8
    assert all(len(path) == len(RANKS) for path in creature_paths())
    assert {species.family for species in UNLISTED} <= {species.family for species in SPECIES}


def test_siblings_are_alike() -> None:
    """Mean photos of a family are closer than those of other groups."""
    means = {s.name: np.mean([draw_creature(s, i, 32) for i in range(12)], axis=0) for s in SPECIES[::2]}
    near, far = [], []
    for a in SPECIES[::2]:
        for b in SPECIES[::2]:
            distance = np.abs(means[a.name] - means[b.name]).mean()
            if a.name < b.name and a.family == b.family:
                near.append(distance)
            elif a.name < b.name and a.plan.group != b.plan.group:
                far.append(distance)
    assert np.mean(near) < np.mean(far)
