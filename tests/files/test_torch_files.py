"""Files of torch.save: the same tensors as torch.load gives, and an error where torch crashes, guesses or runs code."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from hace.errors import FormatError
from hace.files.weights import read_safetensors, read_state_dict, read_torch
from tests.files.test_pickles import DEEP_KEY, DEEP_LIST


def saved(value: Any, zipped: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def rezipped(
    data: bytes, compression: int = zipfile.ZIP_STORED, dropped: str = "", **replaced: bytes
) -> bytes:
    """The records of a file again, some replaced and one dropped."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", compression) as new:
        for name in set(old.namelist()) - {dropped}:
            key = name.split("/", 1)[1].replace("/", "_").replace(".", "_")
            new.writestr(name, replaced.get(key, old.read(name)))
    return file.getvalue()


def assert_same(result: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert (result.dtype, result.shape, result.stride()) == (
            expected.dtype,
            expected.shape,
            expected.stride(),
        )
        assert torch.equal(result, expected)
    elif isinstance(expected, dict):
        assert list(result) == list(expected)
        for key in expected:
            assert_same(result[key], expected[key])
    else:
        assert result == expected


@pytest.mark.parametrize("zipped", [True, False])
def test_the_same_values_as_torch_load(zipped: bool, tmp_path: Path) -> None:
    x = torch.randn(4, 5)
    types = (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    )
    value = {
        "model": torch.nn.Linear(2, 3).state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "views": {0: x.t(), 1: x[1:, 2]},
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0),
        "types": {str(dtype): torch.ones(3).to(dtype) for dtype in types},
        "rng": torch.get_rng_state(),
        "plain": [1, 2.5, None, True, "text", (1, 2)],
    }
    data = saved(value, zipped)
    path = tmp_path / "weights.pt"
    path.write_bytes(data)
    for source in (io.BytesIO(data), path):
        read = read_torch(source)
        assert_same(read, torch.load(io.BytesIO(data), weights_only=True))
        first, second = read["views"][0], read["views"][1]
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


CRASHES = """
import sys
from hace import cli
data, weights = sys.argv[1:]
first = cli.main(["data", "cifar100", "--data-root", data])
words = "features --data synthetic --model test_vit --checkpoint".split()
print(first, cli.main([*words, weights, "--out", data]))
"""


@pytest.mark.slow
def test_deep_nests_end_in_a_message_and_not_in_a_crash(tmp_path: Path) -> None:
    """In its own process: each of these files was a segmentation fault."""
    for name in ("train", "test", "meta"):
        (tmp_path / name).write_bytes(DEEP_KEY)
    (tmp_path / "weights.pt").write_bytes(rezipped(GOOD, data_pkl=DEEP_KEY))
    words = [sys.executable, "-c", CRASHES, str(tmp_path), str(tmp_path / "weights.pt")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 2\n"), done.stderr
    assert done.stderr.count("it has more than 50,000 tuples") == 2


def tarred(name: bytes) -> bytes:
    """A tar archive, whose first bytes are the name of its first file: here a row of pickles."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT, encoding="latin-1") as packed:
        packed.addfile(tarfile.TarInfo(name.decode("latin-1")))
    return file.getvalue()


GOOD = saved({"w": torch.arange(6.0).view(2, 3)})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (rezipped(GOOD, data_pkl=DEEP_KEY), "it has more than 50,000 tuples"),
        (rezipped(GOOD, data_pkl=DEEP_LIST), "it is damaged (maximum recursion depth exceeded"),
        (rezipped(GOOD, data_pkl=b"cos\nsystem\n(U\x04truetR."), "it wants to call os.system"),
        (rezipped(GOOD, zipfile.ZIP_DEFLATED), "its records are compressed"),
        (rezipped(GOOD, data_0=b"\0" * 20), "a tensor has 24 bytes, and no record of the file is as long"),
        (GOOD[:-20], "it is damaged"),
        (rezipped(GOOD, dropped="archive/data/0"), "it is damaged"),
        (pickle.dumps([1, 2]), "pickle exhausted"),
        (tarred(b"\x80\x02K\x01." * 5), "it is a tar archive"),
        (saved({"w": torch.ones(3, 3).to_sparse()}), "a tensor must be dense and have values"),
        (saved({"w": torch.ones(3, 3, device="meta")}), "a tensor must be dense and have values"),
        (saved({"w": torch.ones(3)}, zipped=False)[:-4], "it is damaged (unexpected EOF"),
        (b"", "pickle exhausted"),
    ],
)
def test_other_files_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    """From memory and memory-mapped: without a comparison, torch maps a short record together with what follows it."""
    path = tmp_path / "weights.pt"
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_torch(path)
    assert words in str(caught.value)
    with pytest.raises(FormatError):  # torch itself compares the lengths of what it reads into memory
        read_torch(io.BytesIO(data))


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((2, 4), (3, 1), 0), ((2, 3), (3, 1), 1), ((10**12,), (0,), 0), ((-1,), (1,), 0), ((2,), (1, 1), 0)],
)
def test_a_tensor_larger_than_its_bytes_is_refused(size: tuple, stride: tuple, offset: int) -> None:
    record = zipfile.ZipFile(io.BytesIO(GOOD)).read("archive/data.pkl")
    start = record.index(b"QK\x00K\x02K\x03\x86")
    stop = record.index(b"K\x03K\x01\x86", start) + 5
    body = b"".join(pickle.dumps(part, 2)[2:-1].replace(b"q\x00", b"") for part in (offset, size, stride))
    with pytest.raises(FormatError, match=r"a tensor of shape|it is damaged"):
        read_torch(io.BytesIO(rezipped(GOOD, data_pkl=record[: start + 1] + body + record[stop:])))


def test_state_dicts_are_found_where_training_scripts_put_them(tmp_path: Path) -> None:
    state = {"module.w": torch.ones(2), "epoch": 3}
    for i, value in enumerate((state, {"state_dict": state, "args": {"lr": 0.1}}, {"model": state})):
        path = tmp_path / f"{i}.pt"
        torch.save(value, path)
        assert_same(read_state_dict(path), {"w": torch.ones(2)})


def test_a_safetensors_header_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(
        FormatError, match=r"its header declares 1,099,511,627,776 bytes, and at most 16,777,216"
    ):
        read_safetensors(path)
