"""Near-copies are found and kept together; what the order of the data gives away is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hace
from hace import ConfigError, Hierarchy
from hace.fitting.inputs import Given
from hace.fitting.splits import split_samples
from hace.fitting.twins import grouped, joined_groups, near_copies, share_in_sequence, times, together

TREE = Hierarchy.from_paths([("a", "1"), ("a", "2"), ("b", "3"), ("b", "4")])


def samples(count: int = 400, width: int = 32, seed: int = 0) -> Given:
    rng = np.random.default_rng(seed)
    nodes = TREE.leaf_nodes[rng.integers(0, 4, count)]
    x = (rng.normal(size=(count, width)) + nodes[:, None]).astype(np.float32)
    return Given("features", x, nodes, TREE, [f"row {i}" for i in range(count)])


def with_copies(given: Given, noise: float = 0.02) -> Given:
    """A fifth of the samples copied, with a little noise, at random places."""
    rng = np.random.default_rng(1)
    source = rng.integers(0, len(given), len(given) // 5)
    x = np.concatenate([given.x, given.x[source] + noise * rng.normal(size=given.x[source].shape)])
    order = rng.permutation(len(x))
    nodes = np.concatenate([given.nodes, given.nodes[source]])[order]
    return Given("features", x[order].astype(np.float32), nodes, TREE, [f"row {i}" for i in range(len(x))])


def test_copies_are_found_and_nothing_else() -> None:
    clean = samples()
    assert len(np.unique(near_copies(clean))) == len(clean)
    copied = with_copies(clean)
    place = near_copies(copied)
    assert len(np.unique(place)) == len(clean)
    result = together(copied)
    assert not result.by_user
    assert "near-copies of another; splits keep them together" in result.notes[0]
    parts = split_samples(copied.nodes, TREE, None, result.groups)
    homes = [set(place[part].tolist()) for part in (parts.train, parts.calibration, parts.test)]
    assert sum(map(len, homes)) == len(set.union(*homes))


def test_splits_of_the_user_that_cut_copies_are_told() -> None:
    copied = with_copies(samples())
    place = near_copies(copied)
    names = np.array(["train", "validation", "test", "train"])[np.arange(len(copied)) % 4]
    trained = set(place[names == "train"].tolist())
    twins = {part: sum(place[i] in trained for i in np.flatnonzero(names == part)) for part in set(names)}
    note = together(replace(copied, split=names)).notes[0]
    for part, called in (("validation", "val"), ("test", "test")):
        assert twins[part] > 0
        assert f"{twins[part]} of your 120 {called} samples have one in training" in note
    assert "splits keep them together" not in note
    whole = np.array(["train", "test"])[place % 2]
    assert "splits keep them together" in together(replace(copied, split=whole)).notes[0]


def test_copies_in_training_flatter_and_kept_together_they_do_not() -> None:
    """Noise that nothing can learn: what is right beyond chance was copied."""
    rng = np.random.default_rng(0)
    base = samples(300, width=500)
    noise = replace(base, x=rng.normal(size=base.x.shape).astype(np.float32))
    copied = with_copies(noise)
    copied = replace(
        copied, x=np.concatenate([copied.x] * 2), nodes=np.concatenate([copied.nodes] * 2), names=[""] * 720
    )
    ids = np.array(TREE.nodes)[copied.nodes]
    scores = {}
    for kind, groups in (("apart", np.arange(720)), ("together", near_copies(copied))):
        parts = split_samples(copied.nodes, TREE, None, groups.astype(str))
        clf = hace.HACEClassifier(TREE, weight_decay=1e-6).fit(copied.x[parts.train], ids[parts.train])
        scores[kind] = clf.score(copied.x[parts.test], ids[parts.test])
    assert scores["apart"] > scores["together"] + 0.1
    assert scores["together"] < 0.4


def test_copies_with_two_labels_are_reported() -> None:
    given = samples()
    first, second = (np.flatnonzero(given.nodes == v)[0] for v in TREE.leaf_nodes[:2])
    given.x[second] = given.x[first]
    assert "1 near-copies have different labels" in " ".join(together(given).notes)


def test_rows_of_a_table_are_copies_only_if_they_are_equal() -> None:
    given = replace(with_copies(samples()), kind="table")
    assert len(np.unique(near_copies(given))) == len(given)
    twice = replace(
        given, x=np.concatenate([given.x, given.x[:9]]), nodes=np.concatenate([given.nodes, given.nodes[:9]])
    )
    assert len(np.unique(near_copies(replace(twice, names=[""] * (len(given) + 9))))) == len(given)


def test_groups_that_share_copies_become_one() -> None:
    groups = np.array(["x", "x", "y", "z", "y"])
    place = np.array([0, 1, 1, 2, 3])  # a copy in x and one in y
    assert joined_groups(groups, place).tolist() == ["x", "x", "x", "z", "x"]
    assert joined_groups(groups, np.arange(5)) is groups


def test_the_order_gives_recordings_away() -> None:
    clean = samples(800)
    assert share_in_sequence(clean.x, clean.nodes) < 0.2
    rng = np.random.default_rng(0)
    place = np.arange(800) // 20  # 40 recordings, one after another
    nodes = TREE.leaf_nodes[place % 4]
    x = (2 * rng.normal(size=(40, 32))[place] + rng.normal(size=(800, 32))).astype(np.float32)
    given = Given("table", x, nodes, TREE, [""] * 800)
    assert share_in_sequence(x, nodes) > 0.6
    assert "groups='sequence'" in together(given).notes[0]
    assert together(replace(given, groups=place.astype(str))).notes == ()
    shuffled = rng.permutation(800)
    assert share_in_sequence(x[shuffled], nodes[shuffled]) < 0.2
    cut = grouped(given, "sequence")
    assert cut.groups is not None
    assert len(np.unique(cut.groups)) == 20


def test_photos_of_one_minute_are_a_group(tmp_path: Path) -> None:
    taken = ["2024:05:01 10:00:00", "2024:05:01 10:00:04", "2024:05:01 10:00:50", "2024:05:01 10:05:00", None]
    paths = []
    for i, when in enumerate(taken):
        path = tmp_path / f"{i}.jpg"
        exif = Image.Exif()
        if when is not None:
            exif[0x0110] = "Trap 5000"
            exif.get_ifd(0x8769)[0x9003] = when
        noise = np.random.default_rng(i).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path, exif=exif)
        paths.append(path)
    groups = times(paths)
    assert [len(set(groups[:3])), len(set(groups))] == [1, 3]
    x = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    nodes = np.full(5, TREE.leaf_nodes[0])
    given = Given("photos", x, nodes, TREE, [path.name for path in paths], items=paths)
    place = near_copies(given)
    assert place[0] == place[1]  # four seconds apart
    assert len(set(place.tolist())) == 4
    with pytest.raises(ConfigError, match="groups='time' must come with photos"):
        grouped(samples(), "time")


def test_copies_of_photos_in_another_size_are_near(tmp_path: Path) -> None:
    """By a small random model: copies are far closer than other photos."""
    timm = pytest.importorskip("timm")
    import torch

    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=0).eval()
    rng = np.random.default_rng(0)
    images = []
    for _ in range(12):
        small = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((320, 320), Image.Resampling.BICUBIC)
        path = tmp_path / "copy.jpg"
        image.resize((240, 240)).save(path, quality=60)
        images += [image, Image.open(path).convert("RGB")]
    pixels = [np.asarray(image.resize((160, 160))).astype(np.float32) / 255 for image in images]
    with torch.inference_mode():
        x = model(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)).numpy()
    given = Given("photos", x, np.full(24, TREE.leaf_nodes[0]), TREE, [""] * 24)
    place = near_copies(given)
    assert (place[::2] == place[1::2]).all()
    assert len(np.unique(place)) >= 9  # weights that learned nothing tell few apart
