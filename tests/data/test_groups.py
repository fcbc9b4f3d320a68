"""Groups of samples: read from listings and feature files, never cut by a split."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from hace import Hierarchy
from hace.data import Dataset, Features, load_dataset
from hace.data.split import part_of_groups
from hace.errors import DataError, FormatError, GroupWarning
from hace.lab.runs.config import ProbeConfig
from hace.lab.runs.samples import make_task

TREE = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "siamese")])


def features(rows: int = 400, groups: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = rng.integers(groups, size=rows)
    y = rng.integers(4, size=groups)[group]
    x = rng.normal(size=(rows, 3)).astype("f")
    return x, y, np.array([f"site {g}" for g in group])


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_groups_cuts_none_and_has_about_the_share_of_every_label(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = rng.integers(300, size=5000)
    labels = rng.integers(6, size=300)[group] if seed % 2 else rng.integers(6, size=5000)
    rest, held = part_of_groups(labels, group, 0.2, [seed])
    assert np.array_equal(np.sort(np.concatenate([rest, held])), np.arange(5000))
    assert not set(group[rest]) & set(group[held])
    shares = np.bincount(labels[held], minlength=6) / np.bincount(labels)
    assert np.abs(shares - 0.2).max() < 0.05
    assert np.array_equal(held, part_of_groups(labels, group, 0.2, [seed])[1])


def test_the_last_group_of_a_label_stays() -> None:
    labels, group = np.array([0, 0, 0, 1, 1, 1]), np.array(list("aaabbc"))
    rest, _ = part_of_groups(labels, group, 0.9, [0])
    assert set(labels[rest]) == {0, 1}


@pytest.mark.parametrize("layout", ["one", "parts"])
def test_feature_files_name_groups(tmp_path: Path, layout: str) -> None:
    x, y, group = features()
    test = np.isin(group, np.unique(group)[::4])
    if layout == "one":
        np.savez(tmp_path / "f.npz", X=x, y=y, split=np.where(test, "test", "train"), groups=group)
    else:
        parts = {"train": ~test, "test": test}
        np.savez(
            tmp_path / "f.npz",
            **{
                f"{key}_{name}": value[rows]
                for key, value in (("x", x), ("y", y), ("groups", group))
                for name, rows in parts.items()
            },
        )
    data = load_dataset("features", tmp_path / "f.npz", hierarchy=TREE)
    assert np.array_equal(data["test"].groups, group[test])
    assert "in 30 groups" in data.summary()
    task = make_task(data, ProbeConfig(validation=0.2, evaluate="test"))
    assert task.val is not None
    sets = [set(part.groups) for part in (task.train, task.val, task.evaluated)]  # type: ignore[arg-type]
    assert len(set.union(*sets)) == sum(map(len, sets))


def test_any_column_may_name_them_and_one_that_looks_like_it_is_mentioned(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    x, y, group = features()
    table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y, "RecordID": group})
    table.to_parquet(tmp_path / "f.parquet")
    data = load_dataset("features", tmp_path / "f.parquet", hierarchy=TREE, groups="recordid")
    assert data["train"].groups is not None
    assert data["train"].num_features == 2
    np.savez(tmp_path / "f.npz", X=x, y=y, site=group)
    with pytest.warns(GroupWarning, match="has a column 'site' that is not used"):
        load_dataset("features", tmp_path / "f.npz", hierarchy=TREE)
    with pytest.raises(DataError, match=r"groups must be a column\. Got 'sites'"):
        load_dataset("features", tmp_path / "f.npz", hierarchy=TREE, groups="sites")


def test_listings_name_groups(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    lines = ["path,label,Site"]
    for i in range(40):
        image.new("RGB", (4, 4)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{TREE.leaves[i % 4]},place {i // 4}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    with pytest.warns(GroupWarning, match="--groups Site"):
        load_dataset("manifest", tmp_path / "list.csv", hierarchy=TREE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_dataset("manifest", tmp_path / "list.csv", hierarchy=TREE, groups="Site", test=0.3)
    assert not set(data["train"].groups) & set(data["test"].groups)  # type: ignore[arg-type]
    (tmp_path / "list.csv").write_text("\n".join([*lines, f"0.png,{TREE.leaves[0]},"]))
    with pytest.raises(FormatError, match="line 42: Site must name the group"):
        load_dataset("manifest", tmp_path / "list.csv", hierarchy=TREE, groups="Site")


def test_a_group_in_two_splits_is_refused_by_name() -> None:
    x, y, group = features()
    nodes = TREE.leaf_nodes[y]
    whole = Features(TREE, nodes, [f"{i}" for i in range(len(y))], x, groups=group)
    with pytest.raises(
        DataError, match=r"every group must be in one split\..*the first is 'site 0', in 'train' and 'test'"
    ):
        Dataset("mine", TREE, {"train": whole.select(range(200)), "test": whole.select(range(200, 400))})
    bare = Features(TREE, nodes, whole.names, x)
    with pytest.raises(DataError, match=r"every split must name its groups, or none\. Got none in 'test'"):
        Dataset("mine", TREE, {"train": whole, "test": bare})


def test_data_without_groups_have_the_fingerprint_they_had() -> None:
    x, y, group = features()
    names = [f"{i}" for i in range(len(y))]
    bare = Dataset("mine", TREE, {"train": Features(TREE, TREE.leaf_nodes[y], names, x)})
    grouped = Dataset("mine", TREE, {"train": Features(TREE, TREE.leaf_nodes[y], names, x, groups=group)})
    assert bare.fingerprint == "aad6f3ef4f568db84c5ac1f9d04b64d7ffa59e96cdd43b7ca838b6e9db006b87"
    assert grouped.fingerprint != bare.fingerprint


def test_commands_take_groups_and_mention_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hace import cli

    x, y, group = features(400, 40)
    test = np.isin(group, np.unique(group)[::3])
    np.savez(tmp_path / "f.npz", X=x, y=y, split=np.where(test, "test", "train"), site=group)
    (tmp_path / "tree.csv").write_text("parent,child\ndog,husky\ndog,beagle\ncat,tabby\ncat,siamese\n")
    given = [
        "--features",
        str(tmp_path / "f.npz"),
        "--hierarchy",
        str(tmp_path / "tree.csv"),
        "--out",
        str(tmp_path / "runs"),
    ]
    words = ["probe", *given, "--epochs", "1", "--validation", "0.2", "-o", "label_kind=index"]
    assert cli.main(words) == 0
    assert "hace: " in (said := capsys.readouterr().err)
    assert "has a column 'site' that is not used" in said
    assert cli.main([*words, "--groups", "site"]) == 0
    assert "that is not used" not in capsys.readouterr().err
    study = [
        "study",
        "fair-probe",
        "--features",
        f"mine={tmp_path / 'f.npz'}",
        "--hierarchy",
        f"mine={tmp_path / 'tree.csv'}",
    ]
    study += [
        "-o",
        "label_kind=index",
        "--groups",
        "site",
        "--methods",
        "cross_entropy",
        "--seeds",
        "1",
        "--dry-run",
        "--out",
        str(tmp_path / "s"),
    ]
    assert cli.main(study) == 0
    np.savez(tmp_path / "f.npz", X=x, y=y, split=np.where(np.arange(400) % 2, "test", "train"), site=group)
    assert cli.main([*words, "--groups", "site"]) == 2
    assert "every group must be in one split" in capsys.readouterr().err
