"""Readers of scores and labels, and `hace evaluate` as a whole, under mutated files and options."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from hace.cli import main
from hace.formats import parse_hierarchy
from hace.formats.score_files import open_scores, read_list, read_values
from tests.fuzz.driver import CHUNKS, fuzz, mutate_bytes, mutate_text, odd_value

TREE = "parent,child\npet,dog\npet,cat\ndog,husky\ndog,beagle\n"
H = parse_hierarchy(TREE, "csv")
Z = np.random.default_rng(0).normal(size=(6, 3))
Y = np.array([0, 1, 2, 0, 1, 2])
CSV = "beagle,cat,husky\n" + "".join(",".join(f"{v:.3f}" for v in row) + "\n" for row in Z)
DTYPES = ("<f4", ">f8", "<f2", "longdouble", "<i8", ">i4", "|u1", "|b1", "<c8", "<U3", "|S2", "<M8[D]")
HEADERS = (
    *(
        b"'shape': (2, 3)",
        b"'shape': (10000000, 10000000)",
        b"'shape': (-1,)",
        b"'shape': ()",
        b"'shape': (True, 3)",
    ),
    *(
        b"'descr': '|O'",
        b"'descr': '<f16'",
        b"'descr': [('a', '<f8')]",
        b"'descr': '<U99999999'",
        b"'fortran_order': True",
    ),
    *(b"9" * 3000, b"((((" * 100, b"\x93NUMPY\x02\x00", b"\xff\xff\xff\xff", b"PK\x01\x02"),
)


def saved(write: Callable[..., None], *arguments: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    write(buffer, *arguments, **options)
    return buffer.getvalue()


def array_bytes(random: Random, values: np.ndarray, name: str) -> bytes:
    dtype = random.choice(DTYPES)
    with np.errstate(all="ignore"):
        values = values.real.astype(dtype) if random.random() < 0.5 else values
    if random.random() < 0.2:
        values = values[None] if random.random() < 0.5 else values[:0]
    kind = random.randrange(3)
    if kind == 0:
        data = saved(np.save, values)
    else:
        data = saved(np.savez if kind == 1 else np.savez_compressed, **{random.choice((name, "a")): values})
    return mutate_bytes(random, data, pieces=[*CHUNKS, *HEADERS]) if random.random() < 0.8 else data


def bomb(random: Random) -> bytes:
    """A small zip whose array claims, and may hold, far more than the file."""
    shape = random.choice(((10**6, 3), (2 * 10**8, 3), (10**12, 3)))
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file, file.open("scores.npy", "w") as member:
        member.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for _ in range(random.choice((1, 24))):
            member.write(bytes(1 << 20))
    return buffer.getvalue()


def parquet_bytes(random: Random) -> bytes:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"husky": Z[:, 2], "cat": Z[:, 1], "beagle": Z[:, 0]}
    if random.random() < 0.4:
        odd = (["a"] * 6, [None] * 6, [[1.0]] * 6, [True] * 6, [1] * 6, [b"x"] * 6)
        columns[random.choice(list(columns))] = random.choice(odd)  # type: ignore[assignment]
    data = saved(lambda buffer: pq.write_table(pa.table(columns), buffer))
    return mutate_bytes(random, data) if random.random() < 0.8 else data


def score_case(random: Random) -> tuple[str, bytes]:
    suffix = random.choice((".npy", ".npz", ".csv", ".csv"))
    if suffix == ".csv":
        return suffix, text_bytes(random, CSV)
    return suffix, bomb(random) if random.random() < 0.02 else array_bytes(random, Z, "scores")


def label_case(random: Random) -> tuple[str, bytes]:
    suffix = random.choice((".npy", ".npz", ".csv", ".txt"))
    if suffix in (".npy", ".npz"):
        return suffix, array_bytes(random, Y, "labels")
    return suffix, text_bytes(
        random, random.choice(("image,label\n1,dog\n2,cat\n", "0\n1\n2\n0\n1\n2\n", "label\nhusky\n"))
    )


def text_bytes(random: Random, text: str) -> bytes:
    encoding = random.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"))
    data = mutate_text(random, text).encode(encoding, "replace")
    return mutate_bytes(random, data) if random.random() < 0.3 else data


@pytest.mark.slow
def test_scores(tmp_path: Path) -> None:
    def read(made: tuple[str, bytes]) -> None:
        path = tmp_path / f"z{made[0]}"
        path.write_bytes(made[1])
        opened = open_scores(path, H)
        for chunk in opened.chunks():
            assert chunk.shape[1] in (3, 5)

    fuzz(score_case, 900, read)


@pytest.mark.slow
def test_parquet(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        (tmp_path / "z.parquet").write_bytes(data)
        list(open_scores(tmp_path / "z.parquet", H).chunks())

    fuzz(parquet_bytes, 300, read)


@pytest.mark.slow
def test_labels(tmp_path: Path) -> None:
    def read(made: tuple[str, bytes]) -> None:
        path = tmp_path / f"y{made[0]}"
        path.write_bytes(made[1])
        values, _ = read_values(path)
        assert values.ndim == 1
        if made[0] in (".csv", ".txt"):
            read_list(str(path))

    fuzz(label_case, 700, read)


NUMBER_OPTIONS = (
    "--bins",
    "--price",
    "--threshold",
    "--level",
    "--subset",
    "--label-column",
)
CHOICES = {
    "--kind": ("logits", "probs"),
    "--outputs": ("auto", "leaves", "nodes"),
    "--label-kind": ("auto", "index", "id"),
}


def command(random: Random) -> dict[str, Any]:
    """Files and options of one `hace evaluate`; most files are valid, so that every stage is reached."""
    z, y = saved(np.save, Z), saved(np.save, Y)
    files = {"tree.csv": TREE.encode(), "z.npy": z, "y.npy": y}
    kind = random.randrange(5)
    if kind == 0:
        suffix, files_bytes = score_case(random)
        files[f"z{suffix}"] = files_bytes
    elif kind == 1:
        suffix, files_bytes = label_case(random)
        files[f"y{suffix}"] = files_bytes
    elif kind == 2:
        files["tree.csv"] = text_bytes(random, TREE)
    options: list[str] = []
    for _ in range(random.randint(0, 2)):
        name = random.choice((*NUMBER_OPTIONS, *CHOICES, "-o", "--compare", "--key", "--root-node", "--json"))
        value = odd_value(random)
        text = "0.5" if random.random() < 0.3 else str(value)[:300]
        if name in ("--root-node", "--json"):
            options.append(name)
        elif name == "-o":
            option = random.choice(
                ("columns", "leaves", "rooted", "encoding", "names", "label", "flat", "header", "x")
            )
            options += ["-o", f"{option}={text}"]
        elif name == "--compare":
            options += [name, "z.npy"]
        else:
            options.append(f"{name}={random.choice(CHOICES.get(name, (text,)))}")
    if random.random() < 0.1:
        options.append("--scores=pipe.npy" if random.random() < 0.5 else "--labels=pipe.npy")
    scores = next(file for file in reversed(files) if file.startswith("z"))
    labels = next(file for file in reversed(files) if file.startswith("y"))
    return {"files": files, "arguments": ["--scores", scores, "--labels", labels, *options]}


@pytest.mark.slow
def test_evaluate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HACE_TRACEBACK", "1")  # a bug is an exception, not exit code 70
    os.mkfifo("pipe.npy")

    def run(made: dict[str, Any]) -> None:
        for name, data in made["files"].items():
            Path(name).write_bytes(data)
        try:
            code = main(["evaluate", "--hierarchy", "tree.csv", *made["arguments"]])
        except SystemExit as stop:  # argparse
            code = stop.code
        output = capsys.readouterr()
        assert code in (0, 2)
        assert code == 0 or output.err
        assert len(output.err) < 10_000

    fuzz(command, 300, run)
