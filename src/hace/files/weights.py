"""Weights from outside: files of `torch.save` and of safetensors, read without running a stranger's code.

`torch.load(weights_only=True)` and safetensors read them. Before torch does, three things are checked that it takes on trust:
how much the pickle inside builds, that no record is compressed, and that the records are as long as the tensors in them.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from hace.errors import ConfigError, FormatError
from hace.files.pickles import check_size
from hace.files.reading import open_regular, optional
from hace.files.writing import write_whole

MAX_RECORDS = 200_000
MAX_LINE = 300
SHOWN_KEYS = 3
_OF_CLASSIFIER = 2  # tensors: weight and bias
# Bytes of JSON in a .safetensors file: names, types and shapes of about 100,000 tensors.
_MAX_HEADER = 1 << 24
_LEGACY_PICKLES = 5  # magic number, protocol, system, the object, the storages' keys
_REFUSED_NAME = re.compile(r"(?:GLOBAL|class|function) ([\w.]+)")  # in torch's message


def read_torch(source: str | Path | BinaryIO) -> Any:
    """What `torch.save` wrote: tensors on the CPU, numbers, text, lists and dictionaries. Parameters are tensors.

    Two layouts exist: a zip archive of stored records (since torch 1.6), which is memory-mapped where `source` is a path; and
    before it five pickles followed by raw bytes. Messages do not name the file.
    """
    if not isinstance(source, str | Path):
        return _read_torch(source, source, mapped=False)
    with open_regular(source) as file:
        return _read_torch(file, str(source), mapped=True)


def _read_torch(file: BinaryIO, loaded: str | BinaryIO, mapped: bool) -> Any:
    """Check `file`, and load it, or the path that it has."""
    try:
        zipped = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        records = _check_zip(file) if zipped else _check_legacy(file)
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about storages of old versions
            content = torch.load(loaded, map_location="cpu", weights_only=True, mmap=mapped and zipped)
        _check_tensors(content, records)
        return content
    except FormatError:
        raise
    except Exception as error:  # zipfile and torch have many kinds
        refused = _REFUSED_NAME.search(str(error))
        if refused:
            raise FormatError(f"it wants to call {refused[1][:60]}") from error
        raise FormatError(f"it is damaged ({str(error)[:100]})") from error


def _check_zip(file: BinaryIO) -> Counter[int]:
    """How many records of tensors have each length."""
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as packed:
        records = packed.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise FormatError("its records are compressed, which torch.save never does")
        if len(records) > MAX_RECORDS or sum(record.file_size for record in records) > size:
            raise FormatError("its records declare more bytes than it has")
        names = [record.filename for record in records]
        pickles = [name for name in names if name.endswith("/data.pkl")]
        if len(pickles) != 1 or len(set(names)) < len(names):
            raise FormatError("it is not a file that torch.save wrote")
        check_size(packed.read(pickles[0]))
        return Counter(record.file_size for record in records if "/data/" in record.filename)


def _check_legacy(file: BinaryIO) -> None:
    """Check the pickles of the old layout; torch itself compares its raw bytes with what they declare."""
    # Torch up to 1.6 wrote tar archives, and up to 2.5 unpickled them without asking, weights_only or not.
    if tarfile.is_tarfile(file):
        raise FormatError("it is a tar archive, which torch.save no longer writes")
    file.seek(0)
    for _ in range(_LEGACY_PICKLES):
        check_size(file)


def _check_tensors(content: Any, records: Counter[int] | None) -> None:
    """Refuse tensors that claim more values than they have bytes, or that have other bytes than a record of the file."""
    storages = set()
    for tensor in _tensors(content):
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise FormatError(
                f"a tensor must be dense and have values. Got {tensor.layout} on {tensor.device}"
            )
        storage = tensor.untyped_storage()
        if tensor.numel() * tensor.element_size() > storage.nbytes():  # strides of 0
            raise FormatError(f"a tensor of shape {tuple(tensor.shape)} does not fit its bytes"[:200])
        storages.add((storage.data_ptr(), storage.nbytes()))
    lengths = Counter(length for _, length in storages)
    if records is not None and (surplus := lengths - records):
        raise FormatError(f"a tensor has {min(surplus):,} bytes, and no record of the file is as long")


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in dictionaries, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """sha256 over the tensors of a state dict in the order of their names: name, type, shape and bytes of each."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)  # numpy itself has no bfloat16
    return digest.hexdigest()


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a .safetensors file by name, memory-mapped, and its metadata."""
    safetensors = optional("safetensors", "Reading .safetensors")
    with open_regular(path) as file:
        header = int.from_bytes(file.read(8), "little")
    try:
        if header > _MAX_HEADER:
            raise FormatError(f"its header declares {header:,} bytes, and at most {_MAX_HEADER:,} are read")
        with safetensors.safe_open(path, framework="pt") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            return tensors, dict(opened.metadata() or {})
    except Exception as error:  # safetensors raises its own kind, and torch about types it does not know
        raise FormatError(f"{path} is not a .safetensors file, or is damaged: {first_line(error)}") from error


def read_safetensors_arrays(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The same as arrays, those of bfloat16 as float32."""
    tensors, metadata = read_safetensors(path)
    try:
        arrays = {
            name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
            for name, tensor in tensors.items()
        }
        return arrays, metadata
    except TypeError as error:
        raise FormatError(f"{path} must hold arrays of numbers: {first_line(error)}") from error


def write_safetensors(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write arrays and metadata as a .safetensors file, whole or not at all."""
    save = optional("safetensors.numpy", "Writing .safetensors").save
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
    header = int.from_bytes(content[:8], "little")
    if header > _MAX_HEADER:
        raise ConfigError(
            f"Metadata of .safetensors must have at most {_MAX_HEADER:,} bytes. Got {header:,}."
        )
    write_whole(Path(path), content)


def check_weights_file(path: str | Path) -> None:
    """Refuse a path that is not a file."""
    if not Path(path).is_file():
        raise FormatError(f"--checkpoint must be a file with weights. Got {path}, which is not a file.")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: safetensors, or torch's own format without any other object."""
    path = Path(path)
    check_weights_file(path)
    if path.suffix == ".safetensors":
        content: Any = read_safetensors(path)[0]
    else:
        try:
            content = read_torch(path)
        except FormatError as error:
            raise FormatError(
                f"{path} cannot be read as weights: {first_line(error)} hace reads .safetensors, and torch files that hold "
                "nothing but tensors and plain values; it never runs code from a file. Save the state_dict() of a model you "
                "trust with safetensors.torch.save_file, and give that file."
            ) from error
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):  # as training scripts nest it
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    pairs = content.items() if isinstance(content, dict) else ()
    state = {key: value for key, value in pairs if isinstance(key, str) and isinstance(value, Tensor)}
    if not state:
        raise FormatError(
            f"{path} must hold a state dict, names with tensors. Got a {type(content).__name__}."
        )
    # The prefixes of DistributedDataParallel and torch.compile.
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in state.items()}


def fill(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> None:
    """Copy weights into a timm model. Every tensor of the model must be there; only a classifier may be left over.

    timm itself would leave the rest random.
    """
    own = model.state_dict()
    if any(key not in state or state[key].shape != value.shape for key, value in own.items()):
        state = _translated(model, state, path)
    problems = _misfits(model, own, state)
    if problems:
        more = f" and {len(problems) - SHOWN_KEYS} more" if len(problems) > SHOWN_KEYS else ""
        remedy = "Give weights of this architecture, or the architecture of these weights with --model."
        if _differ_in_names(own, state):
            remedy = "The same tensors have other names here. Rename them as docs/features.md shows."
        raise FormatError(
            f"{path} does not fit the model: {'; '.join(problems[:SHOWN_KEYS])}{more}. {remedy}"
        )
    model.load_state_dict({key: state[key] for key in own})


def _translated(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """Weights with the authors' names, or positions for another image size, as timm translates them."""
    translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if translate is None:
        return state
    try:
        return translate(state, model)
    except Exception as error:  # timm raises whatever foreign weights run into
        raise FormatError(
            f"{path} does not hold weights of a {type(model).__name__}: {first_line(error)}"
        ) from error


def _differ_in_names(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> bool:
    """Whether a file has all tensors of a model, by their shapes, under other names; it may have a classifier besides."""
    wanted = Counter(tuple(tensor.shape) for tensor in own.values())
    given = Counter(tuple(tensor.shape) for tensor in state.values())
    return not wanted - given and sum(given.values()) <= sum(wanted.values()) + _OF_CLASSIFIER


def _misfits(model: nn.Module, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """What keeps weights from filling a model whose state is `own`."""
    problems = [f"{key!r} is missing" for key in own if key not in state]
    for key in (key for key in own if key in state):
        value = own[key]
        given = state[key]
        if given.shape != value.shape:
            problems.append(f"{key!r} has shape {tuple(given.shape)}, the model {tuple(value.shape)}")
        elif given.is_floating_point() != value.is_floating_point():
            problems.append(f"{key!r} is {given.dtype}, the model {value.dtype}")
    named = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    names = (named,) if isinstance(named, str) else named
    classifiers = tuple(f"{name}." for name in names)
    surplus = [key for key in state if key not in own and not key.startswith(classifiers)]
    return problems + [f"{key!r} is not in the model" for key in surplus]


def first_line(error: Exception) -> str:
    """The first line of an error's message, as a sentence."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_LINE]
    return line if line.endswith(".") else line + "."
