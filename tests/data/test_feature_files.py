"""Feature files: the same features from every format, and everything that can be wrong with them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hace
from hace.data.feature_files import feature_model, feature_parts
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.linear import features
from hace.linear.features import RowsOnDisk

H = hace.Hierarchy.from_edges(
    [("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")],
    leaves=["husky", "beagle", "cat"],
    names={"husky": "Siberian Husky"},
)


def ids(split: hace.data.Samples | hace.data.Features) -> list[str]:
    return [split.hierarchy.nodes[v] for v in split.nodes]


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


def test_a_file_names_the_model_behind_its_features(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    name = "vit_large_patch14_dinov2.lvd142m"
    np.savez(tmp_path / "f.npz", X=X, y=Y, model=name)
    save_file({"X": X, "y": Y}, tmp_path / "f.safetensors", {"model": name})
    table = pa.table({"x": list(X), "y": Y})
    pq.write_table(table.replace_schema_metadata({"model": name}), tmp_path / "f.parquet")
    np.savez(tmp_path / "without.npz", X=X, y=Y)
    assert hace.load_dataset("features", tmp_path / "without.npz", hierarchy=H).model is None
    for path in tmp_path.glob("f.*"):
        data = hace.load_dataset("features", path, hierarchy=H)
        assert data.model == name == feature_model(path)
        assert data["train"].labels.tolist() == Y.tolist()


@pytest.mark.parametrize("name", ["val", "valid", "Validation", "dev"])
def test_a_validation_split_has_one_name(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "f.npz", X=X, y=Y, split=np.array(["train", "train", "train", name, name, "test"]))
    data = hace.load_dataset("features", tmp_path / "f.npz", hierarchy=H)
    assert {split: len(samples) for split, samples in data.splits.items()} == {
        "train": 3,
        "test": 1,
        "val": 2,
    }
    parts = {"x_train": X[:3], "y_train": Y[:3], f"x_{name}": X[3:], f"y_{name}": Y[3:]}
    np.savez(tmp_path / "g.npz", **parts)
    assert np.array_equal(hace.load_dataset("features", tmp_path / "g.npz", hierarchy=H)["val"].x, X[3:])
    np.savez(tmp_path / "h.npz", **{**parts, "x_val": X, "y_val": Y, "x_valid": X, "y_valid": Y})
    with pytest.raises(FormatError, match="every split must occur once"):
        hace.load_dataset("features", tmp_path / "h.npz", hierarchy=H)


def test_features_of_safetensors_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "max_memory", lambda: 0)
    data = hace.load_dataset("features", write_features(tmp_path, "safetensors"), hierarchy=H)
    assert isinstance(data["train"].x, RowsOnDisk)
    assert data["test"].num_features == 4
    assert np.array_equal(np.asarray(data["test"].select([1, 0]).x), X[[5, 4]])


def test_features_in_the_order_of_columns(tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match="Say -o label_kind=index or -o label_kind=id"):
        hace.load_dataset("features", tmp_path / "f.npz", hierarchy=h)
    by = {
        kind: hace.load_dataset("features", tmp_path / "f.npz", hierarchy=h, label_kind=kind)
        for kind in ("index", "id")
    }
    assert by["index"]["train"].labels.tolist() == Y.tolist()
    assert by["id"]["train"].labels.tolist() == [1, 2, 0, 0, 2, 1]


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (
            {"features": X, "y": Y},
            FormatError,
            "must hold X and y. Got 'features', 'y'. Expected the arrays X (M, d), y (M,)",
        ),
        ({"x_train": X}, FormatError, "every x_ must have its y_. Got x_train alone"),
        (
            {"X": X, "y": Y[:5]},
            DataError,
            "features must be (M, d) with one label per row. Got (6, 4) and 5 labels",
        ),
        (
            {"X": X, "y": Y, "split": np.array(["train"])},
            DataError,
            "every row must have a split. Got 1 splits and 6 labels",
        ),
        (
            {"X": X, "y": Y, "split": np.arange(6)},
            DataError,
            "split must be a name, or 0 (train), 1 (val) or 2 (test). Got 3",
        ),
        (
            {"X": X, "y": Y + 1},
            DataError,
            "labels must be from 0 to 2. 2 of 6 are not; the first is 3 in row 2",
        ),
        ({"X": X, "y": Y[:, None]}, DataError, "y must be one-dimensional. Got shape (6, 1)"),
        (
            {"X": X[:, :0], "y": Y},
            DataError,
            "features must be floating-point numbers (M, d). Got float32 (6, 0)",
        ),
        (
            {"X": X, "y": Y, "model": Y},
            FormatError,
            "'model' must be text, the name of a model. Got int64 (6,)",
        ),
        ({"X": X, "y": Y, "model": "m" * 999}, FormatError, "name must have 1 to 200 characters. Got 999"),
        ({"X": X, "y": Y % 2}, DataError, "1 of 3 have none: 'cat'"),
        (
            {"X": X.astype(int), "y": Y},
            DataError,
            "features must be floating-point numbers (M, d). Got int64",
        ),
        (
            {"X": X[0], "y": Y[:4]},
            DataError,
            "features must be floating-point numbers (M, d). Got float32 (4,)",
        ),
        (
            {"X": np.where(X == 9, np.nan, X), "y": Y},
            DataError,
            "features must be finite. Row 2 of train is not",
        ),
        (
            {"X": X, "y": np.array(["huskey"] * 6)},
            DataError,
            "the first is 'huskey' in row 0. Did you mean 'husky'",
        ),
    ],
)
def test_features_that_do_not_fit(content: dict, kind: type[HaceError], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", **content)
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
    with pytest.raises(FormatError, match=r"arrays of Python objects would have to be unpickled"):
        hace.load_dataset("features", tmp_path / "f.npz", hierarchy=H)
    assert not (tmp_path / "owned").exists()


def test_feature_files_that_are_damaged(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        path = write_features(tmp_path / kind, kind)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(FormatError, match=r"f\.\w+.* damaged"):
            hace.load_dataset("features", path, hierarchy=H)
    (tmp_path / "f.npz").write_bytes(pickle.dumps(X))
    with pytest.raises(FormatError, match=r"f.npz: must be an .npy or .npz file"):
        hace.load_dataset("features", tmp_path / "f.npz", hierarchy=H)
    with pytest.raises(FormatError, match=r"g.npz: cannot be read: No such file"):
        hace.load_dataset("features", tmp_path / "g.npz", hierarchy=H)
    with pytest.raises(FormatError, match=r"must be .npz, .safetensors, .parquet. Got '.pt'"):
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


def test_half_precision_of_another_kind(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"X": torch.from_numpy(X).bfloat16(), "y": torch.from_numpy(Y)}, tmp_path / "f.safetensors")
    data = hace.load_dataset("features", tmp_path / "f.safetensors", hierarchy=H)
    assert data["train"].x.dtype == np.float32
    assert np.array_equal(data["train"].x, X)


def readers() -> list[Callable[[Path], object]]:
    """What trains on features, and what predicts from them: the same rules."""
    return [feature_parts, lambda path: hace.load_dataset("features", path, hierarchy=H)]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": X, "x": X + 1, "y": Y}, r"names must differ by more than case\. Got 'X' and 'x'"),
        ({"x": X, "x_train": X, "y": Y, "y_train": Y}, r"X or x_train and so on\. Got both"),
        ({"x": X > 3, "y": Y}, r"features must be floating-point numbers.*Got bool"),
        (
            {"x": X.astype("datetime64[D]"), "y": Y},
            r"features must be floating-point numbers.*Got datetime64",
        ),
        ({"x": X.astype(str), "y": Y}, r"features must be floating-point numbers.*Got <U"),
        ({"x": X.astype(np.complex64), "y": Y}, r"features must be floating-point numbers.*Got complex64"),
        ({"x": np.float32(3), "y": Y}, r"Got float32 \(\)|Got \(\)"),
    ],
)
def test_one_rule_for_training_and_predicting(arrays: dict, words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", **arrays)
    for read in readers():
        with pytest.raises(HaceError, match=words):
            read(tmp_path / "f.npz")


def test_columns_of_parquet_that_are_not_numbers(tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    day = datetime.date(2024, 2, 29)
    for x in (
        {"x": list(X[:, 0])},
        {"x": [b"12"] * 6},
        {"x": [["1", "2"]] * 6},
        {"x": [[True]] * 6},
        {"x": [[[1.0]]] * 6},
        {"a": [day] * 6},
        {"a": [True] * 6},
        {"a": ["1.5"] * 6},
        {"a": [datetime.datetime(2024, 2, 29)] * 6},
        {"a": [datetime.timedelta(1)] * 6},
        {"a": [None] * 6},
    ):
        pq.write_table(pa.table({**x, "y": Y}), tmp_path / "f.parquet")
        for read in readers():
            with pytest.raises(HaceError, match=r"f.parquet: features must be (floating-point )?numbers"):
                read(tmp_path / "f.parquet")
    pq.write_table(pa.table({"X": list(X), "x": list(X + 1), "y": Y}), tmp_path / "f.parquet")
    for read in readers():
        with pytest.raises(FormatError, match=r"names must differ by more than case\. Got 'X' and 'x'"):
            read(tmp_path / "f.parquet")
    twice = pa.Table.from_arrays([pa.array(X[:, 0]), pa.array(X[:, 1]), pa.array(Y)], names=["a", "a", "y"])
    pq.write_table(twice, tmp_path / "f.parquet")
    for read in readers():
        with pytest.raises(FormatError, match=r"every column must have its own name\. Got 'a' twice"):
            read(tmp_path / "f.parquet")


def test_features_without_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", X)
    assert [np.asarray(x).tolist() for x in feature_parts(tmp_path / "f.npy").values()] == [X.tolist()]
    np.savez(tmp_path / "f.npz", x_train=X[:4], x_test=X[4:])
    assert {key: len(x) for key, x in feature_parts(tmp_path / "f.npz").items()} == {"train": 4, "test": 2}
    (tmp_path / "f.npz").rename(tmp_path / "renamed.npy")
    with pytest.raises(FormatError, match=r"must be an .npy file with one array\. Got an .npz file"):
        feature_parts(tmp_path / "renamed.npy")
    np.save(tmp_path / "f.npy", np.float32(3))
    with pytest.raises(DataError, match=r"Got float32 \(\)"):
        feature_parts(tmp_path / "f.npy")
    np.save(tmp_path / "f.npy", np.zeros((0, 4), np.float32))
    assert feature_parts(tmp_path / "f.npy")[""].shape == (0, 4)


@pytest.mark.parametrize("kind", ["npy", *KINDS])
def test_mutated_files_end_in_an_error_of_ours(kind: str, tmp_path: Path) -> None:
    """Bytes changed, cut out or doubled: features come out, or one of our errors, and no warning."""
    if kind == "npy":
        np.save(tmp_path / "f.npy", X)
    path = tmp_path / "f.npy" if kind == "npy" else write_features(tmp_path, kind)
    whole, random = path.read_bytes(), np.random.default_rng(0)
    messages: list[str] = []
    for _ in range(150):
        data = bytearray(whole)
        at = int(random.integers(len(data) if random.random() < 0.5 else min(len(data), 128)))
        match int(random.integers(4)):
            case 0:
                data[at] ^= 1 << int(random.integers(8))
            case 1:
                data[at] = int(random.choice(np.frombuffer(b"(),'{}0-9[\xff\x00", np.uint8)))
            case 2:
                del data[at : at + int(random.integers(1, 40))]
            case _:
                data[at:at] = data[at : at + int(random.integers(1, 40))]
        path.write_bytes(data)
        try:
            for x in feature_parts(path).values():
                np.asarray(x).sum()
        except HaceError as error:
            messages.append(str(error))
    assert len(messages) > 20
    assert all(message.startswith(str(path)) for message in messages)


def test_the_index_of_a_data_frame_is_no_feature(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({f"f{i}": X[:, i] for i in range(4)} | {"y": Y})
    frame.index = np.random.default_rng(0).permutation(len(frame))
    frame.to_parquet(tmp_path / "plain.parquet", index=False)
    assert feature_parts(tmp_path / "plain.parquet")[""].shape == (len(frame), 4)
    frame.to_parquet(tmp_path / "f.parquet")
    with pytest.raises(
        FormatError,
        match=r"must not be the index of a DataFrame. Got '__index_level_0__'. Save it with index=False",
    ):
        feature_parts(tmp_path / "f.parquet")
