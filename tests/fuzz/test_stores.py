"""Hostile files where data, weights, features and runs come from: one error each, never a crash, a hang or a GiB."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

import hace
from hace.files.archives import unpack
from hace.files.documents import parse_yaml, read_mapping
from hace.files.pickles import check_size, read_cifar_pickle
from hace.files.reading import read_image
from hace.files.weights import read_state_dict, read_torch
from hace.files.writing import array_bytes, json_bytes
from hace.lab.features.store import FeatureStore
from hace.lab.runs.run import read_run
from tests.data_layouts import python2_pickle
from tests.fuzz.driver import WORDS, fuzz, mutate_bytes, mutate_text, mutate_tree
from tests.lab.runs.test_run import finished

H = hace.Hierarchy.from_edges([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")])
X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 2, 1, 0])
OPCODES = (
    *(bytes([code]) for code in b"}])(tleuasb0123\x85\x86\x87RcQ.N\x88\x89"),
    b"\x85" * 3000,
    b"q\x00",
    b"h\x00",
    b"r\xff\xff\xff\x7f",
    b"T\xff\xff\xff\x7f",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"cnumpy\ndtype\n",
    b"cos\nsystem\n",
)


def mutants(*seeds: bytes, pieces: tuple[bytes, ...] = ()) -> Callable[[Random], bytes]:
    """Changed copies of valid files."""
    return lambda random: mutate_bytes(
        random, random.choice(seeds), pieces=(*pieces, b"\0", b"\xff", b"9" * 50)
    )


def saved_torch(value: Any, zipped: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def repacked(random: Random, data: bytes, pieces: tuple[bytes, ...] = ()) -> bytes:
    """A zip whose records are changed inside, with right checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        chosen = random.choice(old.namelist())
        for name in old.namelist():
            record = old.read(name)
            new.writestr(
                name, mutate_bytes(random, record, pieces=pieces or (b"\0",)) if name == chosen else record
            )
    return file.getvalue()


CIFAR = python2_pickle({"data": np.zeros((2, 3), np.uint8), "fine_labels": [1, 2], "filenames": ["a", "b"]})
CHECKPOINT = {"state_dict": torch.nn.Linear(2, 3).state_dict(), "epoch": 3, "views": torch.ones(4, 3).t()}
TORCH = saved_torch(CHECKPOINT), saved_torch(CHECKPOINT, zipped=False)


def test_pickles() -> None:
    plain = pickle.dumps({"a": [1, (2, "x"), {"b": None}]}, 4)
    fuzz(mutants(CIFAR, pieces=OPCODES), 500, lambda data: read_cifar_pickle(data, "file"))
    fuzz(mutants(plain, pickle.dumps([[], {}], 2), pieces=OPCODES), 300, check_size)


def test_torch_files() -> None:
    def case(random: Random) -> bytes:
        if random.random() < 0.6:
            return repacked(random, TORCH[0], OPCODES)
        return mutate_bytes(random, random.choice(TORCH), pieces=OPCODES)

    fuzz(case, 300, lambda data: read_torch(io.BytesIO(data)))


def test_safetensors_checkpoints(tmp_path: Path) -> None:
    data = save({"w": torch.ones(2, 3), "b": torch.zeros(3).bfloat16()}, {"model": "x"})
    path = tmp_path / "a.safetensors"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_state_dict(path)

    fuzz(mutants(data, pieces=(b"F64", b"[-1", b"99999999999", b"{")), 200, read)


def archives() -> tuple[bytes, ...]:
    files = {"top/a.txt": b"hello", "top/b/c.bin": bytes(1000)}
    made = []
    for mode in ("w", "w:gz"):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for name, content in files.items():
                info = tarfile.TarInfo(name + "é" * 60)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        made.append(file.getvalue())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return (*made, file.getvalue())


@pytest.mark.slow
def test_archives(tmp_path: Path) -> None:
    def read(content: bytes) -> None:
        path = tmp_path / "archive"
        path.write_bytes(content)
        for top in unpack(path, tmp_path / "out"):
            top.rename(tmp_path / f"moved-{hash(content)}-{top.name[:20]}-{len(list(tmp_path.iterdir()))}")

    pieces = (b"../", b"/etc/passwd", b"0000777\0", b"77777777777\0", b"x", b"L", b"ustar\0")
    fuzz(mutants(*archives(), pieces=pieces), 300, read)


def test_images(tmp_path: Path) -> None:
    made = []
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 9, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        file = io.BytesIO()
        image.save(file, kind)
        made.append(file.getvalue())

    def read(content: bytes) -> None:
        (tmp_path / "a.png").write_bytes(content)
        read_image(tmp_path / "a.png")

    pieces = (b"IHDR", b"\xff\xd8", b"%!PS-Adobe", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")
    fuzz(mutants(*made, pieces=pieces), 350, read)


def feature_files(folder: Path) -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    split = ["train", "train", "train", "val", "test", "test"]
    np.savez(folder / "a.npz", X=X, y=Y, split=np.array(split), model="resnet50")
    np.savez_compressed(folder / "b.npz", x_train=X, y_train=Y)
    (folder / "c.safetensors").write_bytes(save({"X": torch.from_numpy(X), "y": torch.from_numpy(Y)}))
    pq.write_table(pa.table({"x": list(X), "y": Y, "split": split}), folder / "d.parquet")
    return {path.suffix + path.stem: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_feature_files(tmp_path: Path) -> None:
    (tmp_path / "valid").mkdir()
    files = feature_files(tmp_path / "valid")

    def case(random: Random) -> tuple[str, bytes]:
        name = random.choice(sorted(files))
        inside = name.startswith(".npz") and random.random() < 0.7
        change = repacked if inside else mutate_bytes
        return name[:-1], change(
            random, files[name], pieces=(b"<f8", b"|O", b">f4", b"(10,", b"99999999", b"\xff")
        )

    def read(made: tuple[str, bytes]) -> None:
        path = tmp_path / f"f{made[0]}"
        path.write_bytes(made[1])
        hace.load_dataset("features", path, hierarchy=H)

    fuzz(case, 350, read)


def test_manifests(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (4, 4), (len(name), 0, 0)).save(tmp_path / name)
    text = "path,label,split\na.png,husky,train\nb.png,beagle,val\nc.png,2,test\n"
    words = (*WORDS, "../a.png", "husky", "cat", "3", "\t")

    def read(content: str) -> None:
        (tmp_path / "list.csv").write_text(content, encoding="utf-8", errors="surrogatepass")
        hace.load_dataset("manifest", tmp_path / "list.csv", hierarchy=H)

    fuzz(lambda random: mutate_text(random, text, words=words), 300, read)


CONFIG = {
    "lr": 0.1,
    "loss": {"name": "hace", "options": {"dilution": 0.5}},
    "epochs": 3,
    "data": {"name": "cifar100"},
}


def test_configurations(tmp_path: Path) -> None:
    yaml = "lr: 0.1\nloss:\n  name: hace\n  options: {dilution: 0.5, list: [1, 2]}\nbase: &b {a: 1}\nnext: {<<: *b}\n"
    words = (
        *WORDS,
        "&a",
        "*a",
        "*b",
        "!!int x",
        "!!binary",
        "!!timestamp",
        "2024-13-45",
        "? ",
        "- ",
        ": ",
        "[[[[",
        "<<: ",
    )

    def read(content: str) -> None:
        (tmp_path / "c.json").write_text(content, encoding="utf-8", errors="surrogatepass")
        read_mapping(tmp_path / "c.json")

    fuzz(lambda random: mutate_text(random, yaml, words=words), 400, lambda text: parse_yaml(text, "c.yaml"))
    fuzz(lambda random: mutate_text(random, json.dumps(CONFIG, indent=1)), 150, read)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A store as `hace features` writes it, without a model."""
    files = {
        "hierarchy.json": hace.formats.render_hierarchy(H, "json").encode(),
        "train-labels.npy": array_bytes(H.leaf_nodes[Y].astype("<i8")),
        "train-images.npy": array_bytes(np.zeros((6, 32), np.uint8)),
        "train-names.json": json_bytes([f"train/{i}" for i in range(6)]),
        "train-00000.npy": array_bytes(X[:4]),
        "train-00001.npy": array_bytes(X[4:]),
    }
    manifest = {
        "format": 2,
        "model": {"name": "test_vit", "weights": "0" * 64, "pool": "auto", "dims": 4},
        "preprocessing": {"input_size": [3, 32, 32]},
        "compute": {"dtype": "float32", "batch_size": 4},
        "data": {
            "name": "toy",
            "fingerprint": "0" * 64,
            "hierarchy": H.fingerprint,
            "counts": {"train": 6},
            "images": "0" * 64,
        },
        "dtype": "float32",
        "shard_size": 4,
        "files": {name: {"sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()},
    }
    return {"manifest.json": json_bytes(manifest), **files}


@pytest.mark.slow
def test_feature_stores(store: dict[str, bytes], tmp_path: Path) -> None:
    """Damaged bytes, and manipulated files whose hashes match."""

    def case(random: Random) -> dict[str, bytes]:
        name = random.choice(sorted(store))
        if name == "manifest.json":
            changed = json.dumps(mutate_tree(random, json.loads(store[name]))).encode(
                "utf-8", "surrogatepass"
            )
            return {**store, name: changed}
        data = mutate_bytes(
            random, store[name], pieces=(b"<f8", b"<c8", b"(1, 4)", b"\xff\xff\xc0\x7f", b"NaN")
        )
        manifest = json.loads(store["manifest.json"])
        if random.random() < 0.8:
            manifest["files"][name]["sha256"] = hashlib.sha256(data).hexdigest()
        return {**store, name: data, "manifest.json": json_bytes(manifest)}

    def read(files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        data = FeatureStore(tmp_path).dataset("standard")
        assert data["train"].x.shape == (6, 4)
        assert np.isfinite(data["train"].x).all()

    read(store)
    fuzz(case, 400, read)


@pytest.mark.slow
def test_run_folders(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def case(random: Random) -> dict[str, bytes]:
        name = random.choice(sorted(files))
        if name.endswith(".json") and random.random() < 0.7:
            changed = json.dumps(mutate_tree(random, json.loads(files[name]))).encode(
                "utf-8", "surrogatepass"
            )
        else:
            changed = mutate_bytes(random, files[name])
        return {name: changed}

    def read(changed: dict[str, bytes]) -> None:
        for name, data in {**files, **changed}.items():
            (folder / name).write_bytes(data)
        run = read_run(folder)
        assert run.hierarchy.num_nodes
        run.log()
        run.weights()
        run.predictions()

    read({})
    fuzz(case, 300, read)
