"""Features on disk: the right numbers, the same bytes after every interruption, and clear words about the rest."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hace import cli
from hace.data import Dataset, Samples
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.experiments import feature_plan, features
from hace.experiments.backbones import Backbone, load_backbone
from hace.experiments.feature_plan import differences
from hace.experiments.feature_store import FeatureStore
from hace.experiments.features import extract
from hace.experiments.progress import progress
from tests.backbone_files import SIZE, VIT, content, save_weights, toy_images

DATA = toy_images()
SIZES = {"batch_size": 3, "shard_size": 8}  # a batch does not divide a shard
COMMAND = (
    "features --data synthetic -o classes=6 -o train=5 -o test=2 --model test_vit --image-size 32 "
    "--batch-size 3 --shard-size 8"
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(VIT, tmp_path_factory.mktemp("weights") / "vit.safetensors", img_size=SIZE)


@pytest.fixture(scope="module")
def backbone(weights: Path) -> Backbone:
    return load_backbone(VIT, checkpoint=weights, image_size=SIZE)


@pytest.fixture(scope="module")
def whole(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of an undisturbed run; tests only read them."""
    folder = tmp_path_factory.mktemp("features") / "whole"
    assert extract(DATA, backbone, folder, **SIZES)
    return folder


def plain(backbone: Backbone, samples: Samples) -> np.ndarray:
    return torch.cat(
        [backbone(backbone.transform(samples.image(i))[None]) for i in range(len(samples))]
    ).numpy()


def test_features_are_those_of_a_plain_loop_in_order(backbone: Backbone, whole: Path) -> None:
    store = FeatureStore(whole)
    assert store.counts == {"train": 30, "test": 12}
    for split in store.counts:
        found = store.load(split, normalize="none")
        np.testing.assert_allclose(found.x, plain(backbone, DATA[split]), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.nodes, DATA[split].nodes)
        assert found.names == list(DATA[split].names)
        assert found.hierarchy == DATA.hierarchy
    assert store.dataset().name == "synthetic"


def test_shards_are_memory_maps_of_raw_features(whole: Path) -> None:
    shards = FeatureStore(whole).shards("train")
    assert all(isinstance(shard, np.memmap) for shard in shards)
    assert [shard.shape for shard in shards] == [(8, 64), (8, 64), (8, 64), (6, 64)]


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


KILLER = """
import os, signal, sys
from hace import cli
real, left = os.fsync, int(sys.argv[1])
def fsync(descriptor):
    global left
    left -= 1
    if left < 0:  # a file is written, and has not taken its place
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = fsync
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bytes(
    whole: Path, weights: Path, tmp_path: Path
) -> None:
    """A real SIGKILL, in the middle of writing the manifest, a shard, a later shard and the final manifest."""
    command = [*COMMAND.split(), "--checkpoint", str(weights), "--out", str(tmp_path / "out")]
    for files in (0, 7, 2, 2):
        done = subprocess.run(
            [sys.executable, "-c", KILLER, str(files), *command], capture_output=True, text=True
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
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


@pytest.mark.slow
def test_two_processes_at_once_equal_one(whole: Path, weights: Path, tmp_path: Path) -> None:
    """RANK and WORLD_SIZE as torchrun sets them."""
    command = [sys.executable, "-m", "hace", *COMMAND.split(), "--checkpoint", str(weights)]
    started = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "out")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert content(tmp_path / "out") == content(whole)
    assert any("test_vit, 64 features, train 30, test 12" in text for text in printed)


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
        "Give the options it was made with to go on there, or another --out."
    )
    assert content(whole) == before


def test_a_plan_without_any_shard_may_be_replaced(backbone: Backbone, whole: Path, tmp_path: Path) -> None:
    """After "out of memory" in the first batch, a smaller batch needs no other folder."""
    out = tmp_path / "out"
    feature_plan.claim(out, features.make_plan(DATA, backbone, 999, 8), clean=True)
    assert extract(DATA, backbone, out, **SIZES)
    assert content(out) == content(whole)


def test_differences_know_what_is_only_on_one_side() -> None:
    assert differences({"data": {"counts": {"val": 3}}}, {"data": {"counts": {}}}) == [
        "data.counts.val: there 3, here nothing"
    ]
    assert not differences({"made_with": {"torch": "1"}}, {"made_with": {"torch": "2"}})


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
        FormatError, match=rf"{name} was changed since it was written: its sha256 is another\. Run the"
    ):
        FeatureStore(copy).load("train")
    assert extract(DATA, backbone, copy, **SIZES)
    assert content(copy) == content(whole)


def test_a_lost_shard_is_named(copy: Path) -> None:
    (copy / "test-00001.npy").unlink()
    with pytest.raises(FormatError, match=r"test-00001.npy cannot be read: No such file"):
        FeatureStore(copy).load("test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is no manifest of features: 'format' must be 1"),
        ('{"format": 1}', "'data.counts', 'model.dims' and 'shard_size' must be there"),
        (
            '{"format": 1, "data": {"counts": {"../x": 1}}, "model": {"dims": 2}, "shard_size": 3}',
            "The name of a split must be letters, digits and underscores to name its files, got '../x'",
        ),
        (
            '{"format": 1, "data": {"counts": {"train": 1}}, "model": {"dims": 0}, "shard_size": 3}',
            "counts, dims and shard_size must be positive numbers",
        ),
        (
            '{"format": 1, "data": {"counts": {"train": 1}}, "model": {"dims": 1}, "shard_size": 3, "files": {}}',
            "'files' does not list what the counts promise",
        ),
    ],
)
def test_bad_manifests(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(HaceError, match=re.escape(message)):
        FeatureStore(tmp_path)


def test_bad_questions_to_a_store(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has no split 'trian'\. It has train, test\. Did you mean 'train'\?"
    ):
        FeatureStore(whole).load("trian")
    with pytest.raises(ConfigError, match="normalize must be one of none, unit, standard, got 'l2'"):
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
    assert feature_plan.stored(tmp_path / "out") == (1, 2)


def test_features_that_are_not_finite_are_refused(weights: Path, tmp_path: Path) -> None:
    backbone = load_backbone(VIT, checkpoint=weights, image_size=SIZE)
    backbone.model.norm.bias.data[:] = torch.nan  # type: ignore[union-attr]
    with pytest.raises(DataError, match="not finite for 8 images, the first is 'train/000000' of 'train'"):
        extract(DATA, backbone, tmp_path / "out", **SIZES)
    assert feature_plan.stored(tmp_path / "out") == (0, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive number, got 0"),
        ({"shard_size": -1}, "shard_size must be a positive number, got -1"),
        ({"rank": 2, "world": 2}, "rank must be from 0 to world - 1 = 1, got 2"),
    ],
)
def test_bad_options(backbone: Backbone, tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        extract(DATA, backbone, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(ConfigError, match=r"--out must be a new or empty folder, and .* holds 'thesis\.tex'"):
        extract(DATA, backbone, tmp_path)
    with pytest.raises(ConfigError, match=r"--out must be a folder, and .*thesis\.tex is a file"):
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
    with pytest.raises(
        HaceError, match=r"needs 0\.0 MB for the features that are missing, and 0\.0 MB are free"
    ):
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
    assert feature_plan.stored(out) == (2, 6)
    assert extract(DATA, backbone, out, **SIZES)
    assert content(out) == content(whole)


def test_ctrl_c_tells_how_to_go_on(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = features.write_whole

    def interrupted(path: Path, data: bytes) -> None:
        if path.name == "train-00002.npy":
            os.kill(os.getpid(), signal.SIGINT)
        real(path, data)

    monkeypatch.setattr(features, "write_whole", interrupted)
    out = tmp_path / "out"
    assert cli.main([*COMMAND.split(), "--checkpoint", str(weights), "--out", str(out)]) == 130
    assert capsys.readouterr().err == (
        f"\n2 of 6 shards are in {out}. The same command goes on from there.\nhace: stopped\n"
    )


def test_the_command_says_what_it_made(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*COMMAND.split(), "--checkpoint", str(weights), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"test_vit: 0\.\d M parameters, 64 features, 32 px, float32 on cpu, weights [0-9a-f]{12}", lines[0]
    )
    assert lines[1] == f"FeatureStore(test_vit, 64 features, train 30, test 12) is in {tmp_path / 'out'}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data synthetic-features", "--data synthetic-features holds features already"),
        ("--data synthetic --workers -1", "--workers must be 0 or more, got -1"),
        ("--data synthetic --device cuda:77", "--device cuda:77 cannot be used here: "),
        ("--data synthetic --model test_vti", "Did you mean 'test_vit'"),
    ],
)
def test_mistakes_at_the_command_line(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if "--model" in words else ["--model", VIT]
    assert cli.main(["features", *words.split(), *model, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_progress_writes_lines_to_a_log_and_nothing_to_a_pipe(tmp_path: Path) -> None:
    times = iter([0.0, 10.0, 40.0, 50.0])
    with (tmp_path / "log").open("w+") as log:
        with progress("features", "images", log, clock=lambda: next(times)) as start:
            step = start(110, 10)
            for count in (10, 40, 50):
                step(count)
        log.seek(0)
        assert log.read().splitlines() == [
            "features: 60/110 images, 1.2 images/s, 0:00:40 left",
            "features: 110/110 images, 2.0 images/s, 0:00:00 left",
        ]
    pipe = io.StringIO()
    with progress("features", "images", pipe) as start:
        start(1, 0)(1)
    assert pipe.getvalue() == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    with progress("features", "images", screen) as start:
        start(4, 1)(3)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "4/4" in shown
    assert "images/s" in shown
