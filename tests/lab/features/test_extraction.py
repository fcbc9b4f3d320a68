"""Features on disk: the right numbers, the same bytes after every interruption, and clear words about the rest."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hace import Hierarchy, cli
from hace.data import Dataset, Samples, synthetic_images
from hace.errors import ConfigError, FormatError
from hace.lab.features import extraction as features
from hace.lab.features import store as feature_store
from hace.lab.features.backbones import Backbone
from hace.lab.features.extraction import extract
from hace.lab.features.store import FeatureStore, manifest_differences
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, ProbeConfig
from hace.lab.serve.rescore import other_samples
from hace.linear.features import RowsOnDisk
from tests.backbone_files import COMMAND, SIZES, VIT, content, toy_images
from tests.processes import SPAWN

DATA = toy_images()


def plain(backbone: Backbone, samples: Samples) -> np.ndarray:
    return torch.cat(
        [backbone(backbone.transform(samples.image(i))[None]) for i in range(len(samples))]
    ).numpy()


def test_features_are_those_of_a_plain_loop_in_order(backbone: Backbone, whole: Path) -> None:
    store = FeatureStore(whole)
    assert store.counts == {"train": 30, "test": 12}
    for split in store.counts:
        samples = store.load(split, normalize="none")
        np.testing.assert_allclose(samples.x, plain(backbone, DATA[split]), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(samples.nodes, DATA[split].nodes)
        assert samples.names == list(DATA[split].names)
        assert samples.hierarchy == DATA.hierarchy
    assert store.dataset().name == "synthetic"


def test_shards_are_memory_maps_of_raw_features(whole: Path) -> None:
    shards = FeatureStore(whole).shards("train")
    assert all(isinstance(shard, np.memmap) for shard in shards)
    assert [shard.shape for shard in shards] == [(8, 64), (8, 64), (8, 64), (6, 64)]


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files as Linux shows them")
def test_a_folder_beyond_the_limit_of_memory_stays_on_disk(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    extract(DATA, backbone, tmp_path, batch_size=8, shard_size=1)
    config = ProbeConfig(DataConfig("features", str(tmp_path)), epochs=2, batch_size=7, normalize="standard")
    in_memory = probe(config, tmp_path / "memory")
    monkeypatch.setattr(feature_store, "max_memory", lambda: 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:  # fewer than the 42 shards
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        data = FeatureStore(tmp_path).dataset("none")
        streamed = probe(config, tmp_path / "disk")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(data["train"].x, RowsOnDisk)
    assert data["train"].x.shape == (30, 64)
    assert streamed.id == in_memory.id
    assert all(streamed.weights()[name].equal(value) for name, value in in_memory.weights().items())
    assert (streamed.predictions()["answer"] == in_memory.predictions()["answer"]).all()


def test_normalisation_happens_at_reading(whole: Path) -> None:
    store = FeatureStore(whole)
    raw, test = store.load("train", "none").x, store.load("test", "none").x
    np.testing.assert_allclose(np.linalg.norm(store.load("train").x, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(
        store.load("train", "unit").x * np.linalg.norm(raw, axis=1)[:, None], raw, rtol=1e-5, atol=1e-6
    )
    mean, std = raw.mean(0, dtype=np.float64), raw.std(0, dtype=np.float64)  # of the training split, for both
    for split, x in (("train", raw), ("test", test)):
        np.testing.assert_allclose(store.load(split, "standard").x, (x - mean) / std, rtol=1e-3, atol=1e-4)


def test_the_manifest_tells_everything(whole: Path, backbone: Backbone) -> None:
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["model"] == {"name": VIT, "weights": backbone.weights, "pool": "auto", "dims": 64}
    assert manifest["preprocessing"]["input_size"] == [3, 32, 32]
    assert manifest["data"]["fingerprint"] == DATA.fingerprint
    assert manifest["data"]["hierarchy"] == DATA.hierarchy.fingerprint
    assert manifest["compute"] == {"dtype": "float32", "batch_size": 3}
    assert manifest["files"]["test-00001.npy"]["rows"] == 4
    assert set(manifest["made_with"]) == {"hace", "torch", "timm"}


def test_workers_change_no_byte(backbone: Backbone, whole: Path, tmp_path: Path) -> None:
    assert extract(DATA, backbone, tmp_path / "out", workers=2, **SIZES)
    assert content(tmp_path / "out") == content(whole)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("batches", range(0, 16, 3))
def test_stopped_after_any_batch_it_goes_on_to_the_same_bytes(
    backbone: Backbone, whole: Path, tmp_path: Path, batches: int
) -> None:
    out, done = tmp_path / "out", []

    def stop(total: int, before: int):
        def step(count: int) -> None:
            done.append(count)
            if len(done) > batches:
                raise StoppedError

        return step

    with pytest.raises(StoppedError):
        extract(DATA, backbone, out, progress=stop, **SIZES)
    with pytest.raises(FormatError, match=r"is not finished: \d of 6 shards are there\. Run the same"):
        FeatureStore(out)
    counts: list[tuple[int, int]] = []
    assert extract(DATA, backbone, out, progress=lambda *n: counts.append(n) or (lambda count: None), **SIZES)
    assert content(out) == content(whole)
    ends = {
        3: 8,
        6: 16,
        9: 24,
        11: 30,
        14: 38,
    }  # after so many batches a shard is whole, and so many images stored
    assert counts == [(42, max((images for batch, images in ends.items() if batch <= batches), default=0))]


def killed_after(files: int, command: list[str]) -> None:
    """`hace` in a process that is killed when it has written so many files, and one more that has not taken its place."""
    real, left = os.fsync, [files]

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)

    os.fsync = fsync
    sys.exit(cli.main(command))


def as_rank(rank: int, command: list[str], said: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    with said.open("w") as sys.stdout:
        code = cli.main(command)
    sys.stdout = sys.__stdout__
    sys.exit(code)


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bytes(
    whole: Path, weights: Path, tmp_path: Path
) -> None:
    """A real SIGKILL, in the middle of writing the manifest, a shard, a later shard and the final manifest."""
    command = [*COMMAND.split(), "--checkpoint", str(weights), "--out", str(tmp_path / "out")]
    for files in (0, 7, 2, 2):
        child = SPAWN.Process(target=killed_after, args=(files, command))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    assert any(name.startswith(".hace-") for name in content(tmp_path / "out"))  # what the last kill left
    assert cli.main(command) == 0
    assert content(tmp_path / "out") == content(whole)


@pytest.mark.parametrize("first", [0, 1])
def test_two_ranks_one_after_the_other_equal_one(
    backbone: Backbone, whole: Path, tmp_path: Path, first: int
) -> None:
    out = tmp_path / "out"
    assert not extract(DATA, backbone, out, rank=first, world=2, **SIZES)
    assert (
        sorted(path.name for path in out.glob("t*-0*.npy"))
        == [
            ["test-00000.npy", "train-00000.npy", "train-00002.npy"],
            ["test-00001.npy", "train-00001.npy", "train-00003.npy"],
        ][first]
    )
    assert extract(DATA, backbone, out, rank=1 - first, world=2, **SIZES)
    assert content(out) == content(whole)


def test_a_second_extraction_leaves_the_files_of_the_first_alone(
    backbone: Backbone, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins while the first has a file half written; what a dead process left is removed, as before."""
    out, real, calls = tmp_path / "out", os.fsync, []
    (out / ".hace-dead").mkdir(parents=True)

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 7:
            assert extract(DATA, backbone, out, **SIZES)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert extract(DATA, backbone, out, **SIZES)
    assert len(calls) > 7
    assert content(out) == content(whole)


def test_two_processes_at_once_equal_one(whole: Path, weights: Path, tmp_path: Path) -> None:
    """RANK and WORLD_SIZE as torchrun sets them."""
    command = [*COMMAND.split(), "--checkpoint", str(weights), "--out", str(tmp_path / "out")]
    said = [tmp_path / f"{rank}.txt" for rank in range(2)]
    started = [SPAWN.Process(target=as_rank, args=(rank, command, said[rank])) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0]
    assert content(tmp_path / "out") == content(whole)
    assert any("test_vit, 64 features, train 30, test 12" in path.read_text() for path in said)


def test_another_plan_is_refused_with_the_difference(
    backbone: Backbone, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(whole)
    with pytest.raises(ConfigError) as error:
        extract(DATA, replace(backbone, pool="avg", weights="0" * 64), whole, batch_size=4, shard_size=8)
    assert str(error.value) == (
        f"{whole} holds other features:\n"
        f"  model.weights: there {backbone.weights}, here {'0' * 64}\n"
        "  model.pool: there auto, here avg\n"
        "  compute.batch_size: there 3, here 4\n"
        "Give the options it was made with to resume, or another --out."
    )
    assert content(whole) == before


def test_a_plan_without_any_shard_may_be_replaced(backbone: Backbone, whole: Path, tmp_path: Path) -> None:
    """After "out of memory" in the first batch, a smaller batch needs no other folder."""
    out = tmp_path / "out"
    out.mkdir()
    digests = {split: samples.digests() for split, samples in DATA.splits.items()}
    feature_store.claim(out, features.plan_features(DATA, backbone, digests, 999, 8))
    assert extract(DATA, backbone, out, **SIZES)
    assert content(out) == content(whole)


def test_differences_know_what_is_only_on_one_side() -> None:
    assert manifest_differences({"data": {"counts": {"val": 3}}}, {"data": {"counts": {}}}) == [
        "data.counts.val: there 3, here nothing"
    ]
    assert not manifest_differences({"made_with": {"torch": "1"}}, {"made_with": {"torch": "2"}})


class Counting:
    """A backbone that counts the images it sees."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.seen = backbone, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        return self.backbone(images)


def visit(data: Dataset[Samples], backbone: Backbone, out: Path) -> int:
    """Features of a dataset, checked against a fresh folder; how many images went through the model."""
    counting: Any = Counting(backbone)
    assert extract(data, counting, out, **SIZES)
    store = FeatureStore(out)
    for split in data.splits:
        samples = store.load(split, "none")
        np.testing.assert_allclose(samples.x, plain(backbone, data[split]), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(samples.nodes, data[split].nodes)
        assert list(samples.names) == list(data[split].names)
    assert not list(out.glob(".before-*"))
    return counting.seen


def test_a_second_visit_computes_only_images_that_are_new(backbone: Backbone, tmp_path: Path) -> None:
    """More, fewer, renamed, relabelled, moved to another split, another hierarchy: images are known by their bytes."""
    out, more = tmp_path / "out", synthetic_images(DATA.hierarchy, train=6, test=2, seed=1)
    assert visit(DATA, backbone, out) == 42
    train, test = DATA["train"], DATA["test"]
    relabelled = replace(train, nodes=np.roll(train.nodes, 3), names=[f"new/{n}" for n in train.names])
    assert visit(replace(DATA, splits={"train": relabelled, "test": test}), backbone, out) == 0
    swapped = {"train": Samples.joined([test, train.select(range(20))]), "test": train.select(range(20, 30))}
    assert visit(replace(DATA, splits=swapped), backbone, out) == 0
    grown = Samples.joined([more["train"].select(range(5)), train])
    other = {"train": grown, "test": test.select(range(3))}
    assert visit(replace(DATA, splits=other), backbone, out) == 5
    tree = DATA.hierarchy.shuffled(1)
    trees = {split: replace(samples, hierarchy=tree) for split, samples in other.items()}
    assert visit(replace(DATA, hierarchy=tree, splits=trees), backbone, out) == 0


@pytest.mark.parametrize("batches", [0, 2, 5])
def test_a_second_visit_that_is_stopped_goes_on(backbone: Backbone, tmp_path: Path, batches: int) -> None:
    out = tmp_path / "out"
    extract(DATA, backbone, out, **SIZES)
    more = synthetic_images(DATA.hierarchy, train=5, test=2, seed=1)
    data = replace(
        more, splits={"train": Samples.joined([more["train"], DATA["train"]]), "test": more["test"]}
    )
    seen = 0

    def stop(*_: int):
        def step(count: int) -> None:
            nonlocal seen
            seen += 1
            if seen > batches:
                raise StoppedError

        return step

    with pytest.raises(StoppedError):
        extract(data, backbone, out, progress=stop, **SIZES)
    third = replace(data, splits={**data.splits, "test": DATA["test"]})  # and the data change once more
    assert visit(third, backbone, out) <= 30


def test_a_store_with_two_splits_is_read_over_another_hierarchy(whole: Path) -> None:
    data = FeatureStore(whole).dataset()
    flat = Hierarchy.flat(data.hierarchy.leaves)
    for split in ("train", "test"):
        other = other_samples(flat, whole, split)
        assert [flat.nodes[v] for v in other.nodes] == [data.hierarchy.nodes[v] for v in data[split].nodes]
