"""CIFAR-100 in its official layouts: the same data whichever way it comes, and nothing run that a pickle brings along."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hace
from hace.data import published
from hace.data.batches import channel_stats
from hace.data.dataset import duplicates
from hace.errors import DataError, FormatError
from tests.data_layouts import cifar_binary, cifar_python, small_cifar


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A CIFAR-100 with 300 and 100 images."""
    monkeypatch.setattr(published, "COUNTS", {"train": 300, "test": 100})
    return small_cifar()


def packed(folder: Path, place: str) -> Path:
    archive = folder / f"{place}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / place, place)
    return archive


def test_python_and_binary_version_folder_and_archive_are_the_same(small: dict, tmp_path: Path) -> None:
    python = hace.load_dataset("cifar100", cifar_python(tmp_path / "p", small))
    binary = hace.load_dataset("cifar100", cifar_binary(tmp_path / "b", small))
    direct = hace.load_dataset("cifar100", tmp_path / "p" / "cifar-100-python")
    archive = hace.load_dataset("cifar100", packed(tmp_path / "p", "cifar-100-python"))
    (tmp_path / "a").mkdir()
    packed(tmp_path / "b", "cifar-100-binary").rename(tmp_path / "a" / "cifar-100-binary.tar.gz")
    beside = hace.load_dataset("cifar100", tmp_path / "a")
    assert len({data.fingerprint for data in (python, binary, direct, archive, beside)}) == 1
    for split, (pixels, fine) in small.items():
        assert np.array_equal(python[split].labels, fine)
        assert torch.equal(python[split].pixels, torch.from_numpy(pixels.reshape(-1, 3, 32, 32)))
    image = python["test"].image(3)
    assert np.array_equal(np.array(image), small["test"][0][3].reshape(3, 32, 32).transpose(1, 2, 0))
    assert python["test"].names[3] == "test/00003"


def test_the_paper_has_no_root_and_one_can_be_had(small: dict, tmp_path: Path) -> None:
    cifar_binary(tmp_path, small)
    plain, rooted = (hace.load_dataset("cifar100", tmp_path, root_node=root) for root in (None, True))
    assert (plain.hierarchy.num_nodes, rooted.hierarchy.num_nodes) == (120, 121)
    assert np.array_equal(plain["train"].labels, rooted["train"].labels)
    assert not np.array_equal(plain["train"].nodes, rooted["train"].nodes)
    assert plain.fingerprint != rooted.fingerprint


def test_another_hierarchy_finds_classes_by_name(small: dict, tmp_path: Path) -> None:
    cifar_binary(tmp_path, small)
    leaves = hace.cifar100_hierarchy().leaves
    other = hace.Hierarchy.from_edges([("thing", leaf) for leaf in leaves], leaves=leaves[::-1])
    data = hace.load_dataset("cifar100", tmp_path, hierarchy=other)
    assert np.array_equal(99 - data["train"].labels, small["train"][1])
    smaller = hace.Hierarchy.flat([leaf for leaf in leaves if leaf != "apple"])
    with pytest.raises(DataError, match=r"the classes of CIFAR-100.*'apple'"):
        hace.load_dataset("cifar100", tmp_path, hierarchy=smaller)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Path.touch, (self.path,)


def test_a_hostile_pickle_runs_nothing(small: dict, tmp_path: Path) -> None:
    cifar_python(tmp_path, small)
    mark = tmp_path / "owned"
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps({"data": Bomb(mark)}))
    with pytest.raises(
        FormatError, match=r"test: not a pickle of CIFAR-100: it wants to call .*Nothing in it was run"
    ):
        hace.load_dataset("cifar100", tmp_path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # the bomb is a bomb


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (
            lambda p, y: (p[:-1], y[:-1]),
            DataError,
            r"train.bin: must have 300 images\. Got 299",
        ),
        (
            lambda p, y: (p, np.where(y == 7, 8, y)),
            DataError,
            r"every class must have 3 images\. 'beetle' has no images",
        ),
        (lambda p, y: (p, np.where(y == 99, 100, y) % 101), DataError, r"fine labels must be from 0 to 99"),
    ],
)
def test_wrong_counts_and_labels(
    spoil: Callable, kind: type, words: str, small: dict, tmp_path: Path
) -> None:
    pixels, fine = spoil(*small["train"])
    cifar_binary(tmp_path, {**small, "train": (pixels, np.minimum(fine, 99))})
    if fine.max() > 99:
        path = tmp_path / "cifar-100-binary" / "train.bin"
        rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 3074).copy()
        rows[0, 1] = 100
        path.write_bytes(rows.tobytes())
    with pytest.raises(kind, match=words):
        hace.load_dataset("cifar100", tmp_path)


def test_a_superclass_that_is_not_the_classs(small: dict, tmp_path: Path) -> None:
    cifar_binary(tmp_path, small)
    path = tmp_path / "cifar-100-binary" / "test.bin"
    rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 3074).copy()
    rows[5, 0] = (rows[5, 0] + 1) % 20
    path.write_bytes(rows.tobytes())
    with pytest.raises(
        DataError, match=r"superclasses must be those of the classes\. 1 are not; the first is image 5"
    ):
        hace.load_dataset("cifar100", tmp_path)


def test_files_that_are_cut_off(small: dict, tmp_path: Path) -> None:
    cifar_binary(tmp_path / "b", small)
    path = tmp_path / "b" / "cifar-100-binary" / "train.bin"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"train.bin: must be whole records of 3074 bytes\. Got 922,100"):
        hace.load_dataset("cifar100", tmp_path / "b")
    cifar_python(tmp_path / "p", small)
    path = tmp_path / "p" / "cifar-100-python" / "train"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"train: not a pickle of CIFAR-100: .*Fetch it again"):
        hace.load_dataset("cifar100", tmp_path / "p")
    archive = packed(cifar_binary(tmp_path / "c", small), "cifar-100-binary")
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(FormatError, match=r"cifar-100-binary.tar.gz: .*Got a damaged one"):
        hace.load_dataset("cifar100", archive)


def test_other_names_of_classes(small: dict, tmp_path: Path) -> None:
    cifar_binary(tmp_path, small)
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="the classes must be named as in CIFAR-100"):
        hace.load_dataset("cifar100", tmp_path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"nowhere: it does not exist. Give the folder that holds cifar-100-python/"
    ):
        hace.load_dataset("cifar100", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"it holds no CIFAR-100.*https://www.cs.toronto.edu.*--download"):
        hace.load_dataset("cifar100", tmp_path)
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(__file__, "something.py")
    with pytest.raises(DataError, match=r"other.tar: must hold the files train and test"):
        hace.load_dataset("cifar100", tmp_path / "other.tar")


@pytest.mark.long
def test_the_real_images(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """All 60,000, packed into both official layouts: counts, the published mean and deviation, the same either way."""
    from PIL import Image

    rng = np.random.default_rng(0)
    splits = {}
    for split in ("train", "test"):
        pixels, fine = [], []
        for sheet in sorted((real_data("cifar100") / split).glob("*.webp")):
            array = np.array(Image.open(sheet).convert("RGB"))
            rows, columns = array.shape[0] // 32, array.shape[1] // 32
            tiles = array.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3072)
            pixels.append(tiles)
            fine.append(np.full(len(tiles), int(sheet.name[:2])))
        order = rng.permutation(sum(map(len, fine)))
        splits[split] = (np.concatenate(pixels)[order], np.concatenate(fine)[order])
    python = hace.load_dataset("cifar100", cifar_python(tmp_path / "p", splits))
    assert {split: len(samples) for split, samples in python.splits.items()} == {
        "train": 50_000,
        "test": 10_000,
    }
    assert np.array_equal(python["train"].labels, splits["train"][1])
    mean, std = channel_stats(python["train"].pixels)
    assert mean == pytest.approx((0.50708, 0.48655, 0.44092), abs=5e-6)
    assert std == pytest.approx((0.26733, 0.25644, 0.27615), abs=5e-6)
    assert len(duplicates(python.splits)) == 10
    binary = hace.load_dataset("cifar100", cifar_binary(tmp_path / "b", splits))
    assert binary.fingerprint == python.fingerprint
