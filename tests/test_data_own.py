"""A user's own data: class folders, a CSV list, feature files; and everything that can be wrong with them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hace
from hace.errors import ConfigError, DataError, FormatError, HaceError
from tests.data_layouts import write_image

H = hace.Hierarchy.from_edges(
    [("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")],
    leaves=["husky", "beagle", "cat"],
    names={"husky": "Siberian Husky"},
)


def ids(split: hace.data.Samples | hace.data.Features) -> list[str]:
    return [split.hierarchy.nodes[v] for v in split.nodes]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for split, count in (("train", 2), ("test", 1)):
        for shade, label in enumerate(("husky", "beagle", "cat")):
            for i in range(count):
                colour = (80 * shade, 100 * i, 250 if split == "train" else 0)
                write_image(tmp_path / "photos" / split / label / f"{i}.png", colour=colour)
    return tmp_path / "photos"


def test_folders_with_splits(photos: Path) -> None:
    data = hace.load_dataset("folders", photos, hierarchy=H)
    assert data.name == "photos"
    assert list(data.splits) == ["train", "test"]
    assert ids(data["train"]) == ["beagle", "beagle", "cat", "cat", "husky", "husky"]
    assert data["test"].names == ["test/beagle/0.png", "test/cat/0.png", "test/husky/0.png"]
    assert data["test"].labels.tolist() == [1, 2, 0]
    assert data["test"].image(2).getpixel((0, 0)) == (0, 0, 0)
    with pytest.raises(
        ConfigError, match=r"photos has no split 'tset'. It has train, test. Did you mean 'test'"
    ):
        data["tset"]


def test_folders_without_splits_by_name_and_at_mixed_levels(tmp_path: Path) -> None:
    for name in ("Siberian Husky/a.JPG", "dog/b.jpeg", "beagle/deep/dog/c.png", "cat/d.webp", "beagle/e.bmp"):
        write_image(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").touch()
    (tmp_path / ".cache").mkdir()
    write_image(tmp_path / ".cache" / "x.png")
    data = hace.load_dataset("folders", tmp_path, hierarchy=H)
    assert list(data.splits) == ["train"]
    assert dict(zip(data["train"].names, ids(data["train"]), strict=True)) == {
        "Siberian Husky/a.JPG": "husky",
        "dog/b.jpeg": "dog",
        "beagle/deep/dog/c.png": "dog",
        "cat/d.webp": "cat",
        "beagle/e.bmp": "beagle",
    }
    with pytest.raises(
        DataError,
        match=r"2 of 5 samples are labelled above the leaves, the first is 'beagle/deep/dog/c.png' with 'dog'",
    ):
        _ = data["train"].labels
    leaves = data["train"].select(data["train"].leaf_only())
    assert len(leaves) == 3
    assert leaves.labels.tolist() == [0, 1, 2]


def test_folders_in_folders_are_a_hierarchy(tmp_path: Path) -> None:
    for name in (
        "train/dog/husky/a.png",
        "train/dog/beagle/b.png",
        "train/cat/c.png",
        "test/dog/husky/d.png",
    ):
        write_image(tmp_path / name)
    data = hace.load_dataset("folders", tmp_path, root_node=True)
    assert data.hierarchy.leaves == ("beagle", "cat", "husky")
    assert data.hierarchy.path("husky") == ("husky", "dog", "root")
    assert ids(data["test"]) == ["husky"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda f: write_image(f / "train/huskey/1.png"),
            "train/huskey: the folder is no class of the hierarchy, by id or unique name. Did you mean 'husky'? 1 of 7 images",
        ),
        (lambda f: (f / "train/empty").mkdir(), "1 class folders have no images, the first is 'empty'"),
        (lambda f: [p.unlink() for p in (f / "test").rglob("*.png")], "test: there is no image in it"),
        (lambda f: write_image(f / "test/1.png"), "test/1.png: this image lies in no folder of a class"),
        (
            lambda f: (f / "test/cat/link.png").symlink_to(f / "train/cat/0.png"),
            "1 images stand in two splits, the first is",
        ),
        (
            lambda f: (f / "test/cat/link.png").symlink_to(f / "test/cat/0.png"),
            "stands twice in the split 'test'",
        ),
    ],
    ids=["label", "class without images", "split without images", "loose", "two splits", "twice"],
)
def test_folders_that_do_not_fit(spoil: Callable[[Path], object], words: str, photos: Path) -> None:
    spoil(photos)
    with pytest.raises(DataError) as caught:
        hace.load_dataset("folders", photos, hierarchy=H)
    assert words in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: the folder does not exist. Expected folders of classes"):
        hace.load_dataset("folders", tmp_path / "nowhere", hierarchy=H)


def test_classes_without_samples(photos: Path) -> None:
    bigger = hace.Hierarchy.from_edges(
        [*((p, c) for p, c in (("dog", "husky"), ("dog", "beagle"))), ("cats", "cat"), ("cats", "lynx")]
    )
    with pytest.raises(DataError, match=r"1 of 4 classes have no samples: 'lynx'.*allow_empty=True"):
        hace.load_dataset("folders", photos, hierarchy=bigger)
    assert len(hace.load_dataset("folders", photos, hierarchy=bigger, allow_empty=True)["train"]) == 6


def test_images_that_are_broken(photos: Path) -> None:
    whole = (photos / "test/cat/0.png").read_bytes()
    data = hace.load_dataset("folders", photos, hierarchy=H)
    for content in (whole[: len(whole) // 2], b"", b"text", whole[:30]):
        (photos / "test/cat/0.png").write_bytes(content)
        with pytest.raises(DataError, match=r"photos/test/cat/0.png: the image cannot be read"):
            data["test"].image(1)
    (photos / "test/cat/0.png").unlink()
    with pytest.raises(DataError, match=r"photos/test/cat/0.png: the image does not exist"):
        data["test"].image(1)
    with pytest.raises(DataError, match=r"photos/test/cat/0.png: cannot be reached: No such file"):
        _ = data.fingerprint
    (photos / "test/cat/0.png").mkdir()
    with pytest.raises(DataError, match=r"photos/test/cat/0.png: the image cannot be read .*Is a directory"):
        data["test"].image(1)


def manifest(photos: Path, *rows: str, name: str = "list.csv") -> Path:
    path = photos / name
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_manifest_at_mixed_levels(photos: Path) -> None:
    path = manifest(
        photos,
        "Label,note,path,split",
        "Siberian Husky,,train/husky/0.png,train",
        'dog,"known, roughly",train/beagle/1.png,train',
        f"cat,,{photos / 'train/cat/0.png'},train",
        "beagle,,./test/../train/beagle/0.png,test",
    )
    data = hace.load_dataset("manifest", path, hierarchy=H)
    assert ids(data["train"]) == ["husky", "dog", "cat"]
    assert data["test"].names == ["train/beagle/0.png"]
    assert [data["train"].image(i).getpixel((0, 0))[0] for i in range(3)] == [0, 80, 160]
    tabbed = manifest(photos, "path\tlabel", "train/husky/0.png\thusky", name="list.tsv")
    assert list(hace.load_dataset("manifest", tabbed, hierarchy=H, allow_empty=True).splits) == ["train"]


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        (["path,class", "a,b"], FormatError, "there is no column 'label'"),
        (["path,label", "train/husky/0.png"], FormatError, "entry 2: expected 2 columns, got 1"),
        (
            ["path,label", "train/husky/0.png,"],
            FormatError,
            "entry 2: path, label and split must not be empty",
        ),
        (["path,label"], DataError, "the list has no images"),
        (["path,label", '"train'], FormatError, "not a table of comma-separated values"),
        (
            ["path,label", "train/husky/0.png,huskey"],
            DataError,
            "the first is 'huskey' in row 0. Did you mean 'husky'",
        ),
        (
            ["path,label", "train/husky/9.png,husky"],
            DataError,
            "1 of 1 images are missing, the first is train/husky/9.png",
        ),
        (
            ["path,label", "train/husky/0.png,husky"],
            DataError,
            "2 of 3 classes have no samples: 'beagle', 'cat'",
        ),
        (
            ["path,label,split", "train/husky/0.png,husky,train", "test/../train/husky/0.png,husky,test"],
            DataError,
            "1 images stand in two splits",
        ),
        (
            ["path,label", *["train/husky/0.png,husky"] * 2],
            DataError,
            "a sample stands twice in the split 'train'",
        ),
    ],
)
def test_manifests_that_do_not_fit(rows: list[str], kind: type[HaceError], words: str, photos: Path) -> None:
    with pytest.raises(kind) as caught:
        hace.load_dataset("manifest", manifest(photos, *rows), hierarchy=H)
    assert words in str(caught.value)


def test_a_manifest_needs_a_file_and_a_hierarchy(photos: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not tell its hierarchy: give one with --hierarchy"):
        hace.load_dataset("manifest", manifest(photos, "path,label"))
    with pytest.raises(FormatError, match=r"nowhere.csv: cannot be read: No such file"):
        hace.load_dataset("manifest", photos / "nowhere.csv", hierarchy=H)


X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 2, 1, 0])


def write_features(path: Path, kind: str) -> Path:
    split = ["train"] * 4 + ["test"] * 2
    parts = {"x_train": X[:4], "y_train": Y[:4], "x_test": X[4:], "y_test": Y[4:]}
    if kind == "npz":
        np.savez(path / "f.npz", X=X, y=Y, split=np.array(split))
    elif kind == "npz parts":
        np.savez_compressed(path / "f.npz", **parts)
    elif kind == "safetensors":
        from safetensors.numpy import save_file

        save_file({"X": X, "y": Y, "split": np.array([0, 0, 0, 0, 2, 2])}, path / "f.safetensors")
    elif kind == "safetensors parts":
        from safetensors.numpy import save_file

        save_file({key: np.ascontiguousarray(value) for key, value in parts.items()}, path / "f.safetensors")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        labels = {"y": Y, "split": split}
        table = {"x": list(X)} if kind == "parquet lists" else {f"f{i}": X[:, i] for i in range(4)}
        pq.write_table(pa.table({**labels, **table}), path / "f.parquet")
    return next(path.glob("f.*"))


KINDS = ["npz", "npz parts", "safetensors", "safetensors parts", "parquet lists", "parquet columns"]


def test_all_feature_files_are_the_same(tmp_path: Path) -> None:
    prints = set()
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        data = hace.load_dataset("features", write_features(tmp_path / kind, kind), hierarchy=H)
        assert np.array_equal(data["train"].x, X[:4]), kind
        assert np.array_equal(data["test"].x, X[4:]), kind
        assert data["train"].labels.tolist() == [0, 1, 2, 2]
        prints.add(data.fingerprint)
    assert len(prints) == 1


def test_features_are_mapped_where_possible(tmp_path: Path) -> None:
    data = hace.load_dataset("features", write_features(tmp_path, "npz"), hierarchy=H)
    assert isinstance(data["train"].x, np.memmap)
    assert not data["train"].x.flags.writeable
    assert data["test"].num_features == 4
    assert np.array_equal(data["test"].select([1, 0]).x, X[[5, 4]])
    np.savez(tmp_path / "g.npz", X=np.asfortranarray(X.astype(np.float16)), y=Y)
    other = hace.load_dataset("features", tmp_path / "g.npz", hierarchy=H)
    assert other["train"].x.dtype == np.float16
    assert np.array_equal(other["train"].x, X)


def test_feature_labels_by_id_at_mixed_levels(tmp_path: Path) -> None:
    labels = np.array(["Siberian Husky", "dog", "cat", "cat", "beagle", "animal"])
    np.savez(tmp_path / "f.npz", X=X.astype(np.float64), y=labels)
    data = hace.load_dataset("features", tmp_path / "f.npz", hierarchy=H)
    assert ids(data["train"]) == ["husky", "dog", "cat", "cat", "beagle", "animal"]
    assert data["train"].x.dtype == np.float32


def test_numbers_that_could_be_labels_or_ids(tmp_path: Path) -> None:
    h = hace.Hierarchy.flat(["2", "0", "1"])
    np.savez(tmp_path / "f.npz", X=X, y=Y)
    with pytest.raises(ConfigError, match="label-kind index"):
        hace.load_dataset("features", tmp_path / "f.npz", hierarchy=h)
    by = {
        kind: hace.load_dataset("features", tmp_path / "f.npz", hierarchy=h, label_kind=kind)
        for kind in ("index", "id")
    }
    assert by["index"]["train"].labels.tolist() == Y.tolist()
    assert by["id"]["train"].labels.tolist() == [1, 2, 0, 0, 2, 1]


@pytest.mark.parametrize(
    ("arrays", "kind", "words"),
    [
        ({"features": X, "y": Y}, FormatError, "it holds features, y. Expected the arrays X (M, d), y (M,)"),
        ({"x_train": X}, FormatError, "there is x_train without y_train"),
        ({"X": X, "y": Y[:5]}, DataError, "6 rows of features and 5 labels"),
        ({"X": X, "y": Y, "split": np.array(["train"])}, DataError, "1 splits and 6 labels"),
        (
            {"X": X, "y": Y, "split": np.arange(6)},
            DataError,
            "split must be a name, or 0 (train), 1 (val) or 2 (test), got 3",
        ),
        (
            {"X": X, "y": Y + 1},
            DataError,
            "labels must be from 0 to 2. 2 of 6 are not; the first is 3 in row 2",
        ),
        ({"X": X, "y": Y % 2}, DataError, "1 of 3 classes have no samples: 'cat'"),
        ({"X": X.astype(int), "y": Y}, DataError, "features must be float32 or float16, got int64"),
        (
            {"X": X[0], "y": Y[:4]},
            DataError,
            "features of train must be (M, d) with a label for each row, got (4,)",
        ),
        (
            {"X": np.where(X == 9, np.nan, X), "y": Y},
            DataError,
            "features must be finite, and row 2 of train is not",
        ),
        (
            {"X": X, "y": np.array(["huskey"] * 6)},
            DataError,
            "the first is 'huskey' in row 0. Did you mean 'husky'",
        ),
    ],
)
def test_features_that_do_not_fit(arrays: dict, kind: type[HaceError], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(kind) as caught:
        hace.load_dataset("features", tmp_path / "f.npz", hierarchy=H)
    assert words in str(caught.value)
    assert str(tmp_path / "f.npz") in str(caught.value) or "split must be" in words


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Path.touch, (self.path,)


def test_objects_in_a_feature_file_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", X=X, y=np.array([Bomb(tmp_path / "owned")] * 6, dtype=object))
    with pytest.raises(FormatError, match=r"y.npy holds Python objects, which would have to be unpickled"):
        hace.load_dataset("features", tmp_path / "f.npz", hierarchy=H)
    assert not (tmp_path / "owned").exists()


def test_feature_files_that_are_damaged(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        path = write_features(tmp_path / kind, kind)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(FormatError, match=r"f\.\w+: damaged, or not what its name says"):
            hace.load_dataset("features", path, hierarchy=H)
    (tmp_path / "f.npz").write_bytes(pickle.dumps(X))
    with pytest.raises(FormatError, match=r"f.npz: damaged"):
        hace.load_dataset("features", tmp_path / "f.npz", hierarchy=H)
    with pytest.raises(FormatError, match=r"g.npz: the file does not exist"):
        hace.load_dataset("features", tmp_path / "g.npz", hierarchy=H)
    with pytest.raises(FormatError, match=r"must be .npz, .safetensors, .parquet, got '.pt'"):
        hace.load_dataset("features", tmp_path / "g.pt", hierarchy=H)


def test_the_real_features(real_data: Callable[[str], Path]) -> None:
    path = real_data("cifar100_features_lite0") / "cifar100_lite0_128px_pca256_fp16.npz"
    data = hace.load_dataset("features", path, hierarchy=hace.cifar100_hierarchy())
    assert {name: split.x.shape for name, split in data.splits.items()} == {
        "train": (50_000, 256),
        "test": (10_000, 256),
    }
    assert data["train"].x.dtype == np.float16
    assert np.array_equal(np.bincount(data["test"].labels), np.full(100, 100))


@pytest.mark.parametrize(
    ("module", "package", "use"),
    [
        ("PIL.Image", "pillow", lambda data, path: data["test"].image(0)),
        ("safetensors", "safetensors", lambda data, path: hace.load_dataset("features", path, hierarchy=H)),
    ],
)
def test_packages_that_are_not_there(
    module: str, package: str, use: Callable, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = hace.load_dataset("folders", photos, hierarchy=H)
    path = write_features(tmp_path, "safetensors")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ConfigError, match=rf'needs the package {package}. Install it with: pip install "hace\[data\]"'
    ):
        use(data, path)


def test_names_and_options_of_data_sets(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data set must be one of cifar100, .*got 'cifar10'. Did you mean 'cifar100'"
    ):
        hace.load_dataset("cifar10", tmp_path)
    with pytest.raises(
        ConfigError, match=r"'nabirds' has no option 'corp'. It has crop. Did you mean 'crop'"
    ):
        hace.load_dataset("nabirds", tmp_path, corp=True)
    with pytest.raises(ConfigError, match=r"'cifar100' needs the folder or file it lies in: --root"):
        hace.load_dataset("cifar100")
    with pytest.raises(ConfigError, match="is made up and lies nowhere"):
        hace.load_dataset("synthetic", tmp_path)
    with pytest.raises(ConfigError, match="'folders' cannot be downloaded"):
        hace.load_dataset("folders", tmp_path, download=True)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, follow_symlinks: bool = True) -> bool:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DataError, match=r"variants.txt: cannot be read: Permission denied"):
        hace.load_dataset("aircraft", tmp_path)


def test_half_precision_of_another_kind(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"X": torch.from_numpy(X).bfloat16(), "y": torch.from_numpy(Y)}, tmp_path / "f.safetensors")
    data = hace.load_dataset("features", tmp_path / "f.safetensors", hierarchy=H)
    assert data["train"].x.dtype == np.float32
    assert np.array_equal(data["train"].x, X)
