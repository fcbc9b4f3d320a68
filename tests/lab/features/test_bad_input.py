"""Features that go wrong: changed files, bad manifests, broken images, full and read-only disks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hace.data import Dataset, Samples
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.files.writing import array_bytes
from hace.lab.features import extraction as features
from hace.lab.features import store as feature_store
from hace.lab.features.backbones import Backbone, load_backbone
from hace.lab.features.extraction import extract
from hace.lab.features.store import FeatureStore
from tests.backbone_files import SIZE, SIZES, VIT, content, toy_images

DATA = toy_images()


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, data in content(whole).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    "name", ["train-00001.npy", "train-labels.npy", "train-names.json", "hierarchy.json"]
)
def test_a_changed_file_is_detected_and_repaired(
    copy: Path, backbone: Backbone, whole: Path, name: str
) -> None:
    data = bytearray((copy / name).read_bytes())
    data[-2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(
        FormatError, match=rf"{name} has changed since it was written: its sha256 differs\. Run the"
    ):
        FeatureStore(copy).load("train")
    assert extract(DATA, backbone, copy, **SIZES)
    assert content(copy) == content(whole)


def test_a_lost_shard_is_named(copy: Path) -> None:
    (copy / "test-00001.npy").unlink()
    with pytest.raises(FormatError, match=r"test-00001.npy: cannot be read: No such file"):
        FeatureStore(copy).load("test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a manifest of features: 'format' must be 2"),
        ('{"format": 2}', "'data.counts', 'model.dims' and 'shard_size' must be there"),
    ],
)
def test_files_that_are_not_manifests(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(HaceError, match=re.escape(message)):
        FeatureStore(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": {"counts": {"../x": 1}}, "files": None},
            "The name of a split must be letters, digits and underscores",
        ),
        ({"model": {"dims": 0}}, "counts, dims and shard_size must be positive numbers"),
        ({"shard_size": True}, "counts, dims and shard_size must be positive numbers"),
        ({"shard_size": 1, "data": {"counts": {"train": 10**12}}}, "at most 1,000,000 shards"),
        ({"model": {"dims": 10**12}}, "1,000,000 dims are possible"),
        ({"preprocessing": None}, "'preprocessing' must be there"),
        ({"files": {}}, "'files' does not list as many files as the counts need"),
        ({"files": []}, "'files' does not list as many files as the counts need"),
        ({"files": {"train-00000.npy": 3}}, "every file must have its sha256"),
    ],
)
def test_bad_manifests(copy: Path, change: dict, message: str) -> None:
    document = json.loads((copy / "manifest.json").read_text())
    for key, value in change.items():
        document[key] = {**document[key], **value} if isinstance(value, dict) and value else value
    (copy / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(HaceError, match=re.escape(message)):
        FeatureStore(copy)


def rewritten(folder: Path, name: str, content: bytes) -> None:
    """Another file with a matching hash, as a manipulated store has it."""
    (folder / name).write_bytes(content)
    document = json.loads((folder / "manifest.json").read_text())
    document["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "train-00001.npy",
            lambda x: x[:1],
            "must be float32 (8, 64), as the manifest says. Got float32 (1, 64)",
        ),
        (
            "train-00001.npy",
            lambda x: x[:, :1],
            "must be float32 (8, 64), as the manifest says. Got float32 (8, 1)",
        ),
        ("train-00001.npy", lambda x: x.astype(complex), "Got complex128 (8, 64)"),
        ("train-00001.npy", lambda x: x * np.float32("nan"), "must hold finite numbers. Got NaN or infinity"),
        ("train-labels.npy", lambda y: y[:1], "must be 30 labels, int64. Got int64 (1,)"),
        ("train-labels.npy", lambda y: y.astype(float), "must be 30 labels, int64. Got float64 (30,)"),
        ("train-labels.npy", lambda y: y + 1000, "nodes must be from 0 to"),
    ],
)
def test_a_store_with_matching_hashes_is_still_checked(
    copy: Path, name: str, change: Callable, message: str
) -> None:
    rewritten(copy, name, array_bytes(change(np.load(copy / name))))
    for normalize in ("none", "standard"):
        with pytest.raises(HaceError, match=re.escape(message)):
            FeatureStore(copy).load("train", normalize)


def test_names_are_checked(copy: Path) -> None:
    rewritten(copy, "train-names.json", b'["a"]')
    with pytest.raises(FormatError, match="must be a list of 30 names"):
        FeatureStore(copy).load("train")


def test_bad_questions_to_a_store(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"must be one of 'train', 'test'\. Got 'trian'\. Did you mean 'train'\?"
    ):
        FeatureStore(whole).load("trian")
    with pytest.raises(ConfigError, match=r"normalize must be one of 'none', 'unit', 'standard'. Got 'l2'"):
        FeatureStore(whole).load("train", "l2")
    with pytest.raises(FormatError, match=r"has no manifest.json: make features with `hace features`"):
        FeatureStore(tmp_path)


def test_standard_needs_a_training_split(backbone: Backbone, tmp_path: Path) -> None:
    only = Dataset("only", DATA.hierarchy, {"test": DATA["test"]})
    extract(only, backbone, tmp_path / "out", **SIZES)
    with pytest.raises(DataError, match=r"normalize='standard' needs a split 'train'.* has test"):
        FeatureStore(tmp_path / "out").load("test", "standard")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_is_named_and_what_was_done_stays(
    backbone: Backbone, tmp_path: Path, workers: int
) -> None:
    paths = []
    for i in range(10):
        paths.append(tmp_path / f"{i}.png")
        DATA["train"].image(i).save(paths[-1])
    paths[9].write_bytes(paths[9].read_bytes()[:500])
    samples = Samples(DATA.hierarchy, DATA["train"].nodes[:10], [p.name for p in paths], paths=paths)
    data = Dataset("broken", DATA.hierarchy, {"train": samples})
    with pytest.raises(DataError, match=r"^\S*9\.png: the image cannot be read"):
        extract(data, backbone, tmp_path / "out", workers=workers, **SIZES)
    assert feature_store.stored(tmp_path / "out") == (1, 2)


def test_features_that_are_not_finite_are_refused(weights: Path, tmp_path: Path) -> None:
    backbone = load_backbone(VIT, checkpoint=weights, image_size=SIZE)
    backbone.model.norm.bias.data[:] = torch.nan  # type: ignore[union-attr]
    with pytest.raises(
        DataError, match="gives NaN or infinite values for 8 images; the first is 'train/000000' of 'train'"
    ):
        extract(DATA, backbone, tmp_path / "out", **SIZES)
    assert feature_store.stored(tmp_path / "out") == (0, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be positive. Got 0"),
        ({"shard_size": -1}, "shard_size must be positive. Got -1"),
        ({"rank": 2, "world": 2}, "rank must be from 0 to world - 1 = 1. Got 2"),
    ],
)
def test_bad_options(backbone: Backbone, tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        extract(DATA, backbone, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(
        ConfigError, match=r"--out must be a new or empty folder\. Got .*, which holds 'thesis\.tex'"
    ):
        extract(DATA, backbone, tmp_path)
    with pytest.raises(ConfigError, match=r"--out must be a folder\. Got the file .*thesis\.tex"):
        extract(DATA, backbone, tmp_path / "thesis.tex")
    assert content(tmp_path) == {"thesis.tex": b"all of it"}


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A folder that nobody may write to; a test that runs as root becomes nobody in the meantime."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no such permissions on Windows")
@pytest.mark.parametrize("name", ["", "new"])
def test_a_read_only_folder_is_a_message(backbone: Backbone, sealed: Path, name: str) -> None:
    with pytest.raises(HaceError, match=r"Cannot write to .*: Permission denied\. Make it writable and run"):
        extract(DATA, backbone, sealed / name, **SIZES)
    assert content(sealed) == {}


def test_a_disk_without_enough_space_is_refused_at_once(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))
    with pytest.raises(HaceError, match=r"must have 0\.0 MB free for the missing features\. Got 0\.0 MB"):
        extract(DATA, backbone, tmp_path / "out", **SIZES)


def test_a_disk_that_fills_up_keeps_whole_shards_only(
    backbone: Backbone, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "out", os.fsync

    def full(descriptor: int) -> None:
        if (out / "train-00001.npy").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        HaceError, match=r"Cannot write to .*: No space left on device\. Free some space and run the"
    ):
        extract(DATA, backbone, out, **SIZES)
    monkeypatch.undo()
    assert {name: data for name, data in content(whole).items() if name in content(out)} == content(out) | {
        "manifest.json": content(whole)["manifest.json"]
    }
    assert feature_store.stored(out) == (2, 6)
    assert extract(DATA, backbone, out, **SIZES)
    assert content(out) == content(whole)
