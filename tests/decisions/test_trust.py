"""Samples that differ from those a guarantee rests on are noticed, and others are not."""

from __future__ import annotations

import numpy as np
import pytest

from hace.decisions.trust import differ, right_share, why_broken


def test_alike_samples_differ_as_rarely_as_the_level_says() -> None:
    rng = np.random.default_rng(0)
    for held_out, tested, share in ((50, 1000, 0.9), (300, 300, 0.7), (40, 40, 0.99)):
        pairs = ((rng.random(held_out) < share, rng.random(tested) < share) for _ in range(2000))
        alarms = np.mean([differ(right_share(a), right_share(b)) for a, b in pairs])
        assert alarms < 0.02


def test_bursts_count_as_groups() -> None:
    """Each sample five times: without their groups, chance looks like a difference."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(60), 5)
    pairs = [(np.repeat(rng.random(60) < 0.8, 5), np.repeat(rng.random(60) < 0.8, 5)) for _ in range(1000)]
    alone = np.mean([differ(right_share(a), right_share(b)) for a, b in pairs])
    grouped = np.mean([differ(right_share(a, group), right_share(b, group)) for a, b in pairs])
    assert alone > 0.1
    assert grouped < 0.02


def test_a_difference_is_told_with_its_remedy() -> None:
    held_out, tested = np.arange(500) < 476, np.arange(2000) < 1454
    said = why_broken(right_share(held_out), right_share(tested))
    assert said.startswith(
        "right in 95.2% of the samples it rests on and in 72.7% of test samples, more than chance. Calibrate on"
    )
    assert why_broken(right_share(held_out), right_share(held_out)) == ""
    assert not differ(right_share(np.ones(50)), right_share(np.arange(1000) < 960))


@pytest.mark.parametrize(("right", "groups"), [([], None), ([1], None), ([1, 0, 1], [0, 0, 0])])
def test_too_few_samples_or_groups_say_nothing(right: list[int], groups: list[int] | None) -> None:
    share = right_share(np.array(right), None if groups is None else np.array(groups))
    assert share is None
    assert why_broken(share, right_share(np.ones(100))) == ""
