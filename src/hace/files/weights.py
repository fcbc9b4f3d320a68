"""Weights in files: read them without running a stranger's code, hash them, and fill a model with them.

A file from elsewhere is data, never a program: safetensors, or torch's format read by `hace.files.torch_files`. Weights
that do not fill the model are an error, where timm leaves the rest random.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hace.errors import ConfigError, FormatError
from hace.files.optional import optional
from hace.files.reading import open_regular
from hace.files.torch_files import read_torch
from hace.files.writing import write_whole

SHOWN_KEYS = 3
_MAX_HEADER = (
    1 << 24
)  # bytes of JSON in a .safetensors file: names, types and shapes of about 100,000 tensors
MAX_LINE = 300


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """sha256 over the tensors of a state dict in the order of their names: name, type, shape and bytes of each.

    Example:
        >>> a, b = torch.zeros(2), torch.ones(3)
        >>> weights_hash({"a": a, "b": b}) == weights_hash({"b": b, "a": a})
        True
        >>> weights_hash({"a": a}) == weights_hash({"a": a.bfloat16()})
        False
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)  # numpy itself has no bfloat16
    return digest.hexdigest()


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a .safetensors file by name, memory-mapped, and its metadata.

    Raises:
        FormatError: The file is missing or damaged.
        ConfigError: safetensors is not installed.
    """
    safetensors = optional("safetensors", "Reading .safetensors")
    with open_regular(path) as file:
        header = int.from_bytes(file.read(8), "little")
    try:
        if header > _MAX_HEADER:
            raise FormatError(f"its header declares {header:,} bytes, and at most {_MAX_HEADER:,} are read")
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except Exception as error:  # safetensors raises its own kind, and torch about types it does not know
        raise FormatError(f"{path} is not a .safetensors file, or is damaged: {first_line(error)}") from error


def read_safetensors_arrays(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The same as arrays, those of bfloat16 as float32.

    Raises:
        FormatError: The file is missing or damaged, or has a type that numpy does not know.
    """
    tensors, metadata = read_safetensors(path)
    try:
        return {
            k: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for k, t in tensors.items()
        }, metadata
    except TypeError as error:
        raise FormatError(f"{path} must hold arrays of numbers: {first_line(error)}") from error


def write_safetensors(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write arrays and metadata as a .safetensors file, whole or not at all.

    Raises:
        ConfigError: the metadata are longer than is ever read, or safetensors is not installed.
        HaceError: the file cannot be written.
    """
    save = optional("safetensors.numpy", "Writing .safetensors").save
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
    header = int.from_bytes(content[:8], "little")
    if header > _MAX_HEADER:
        raise ConfigError(
            f"The metadata of a .safetensors file must have at most {_MAX_HEADER:,} bytes. Got {header:,}."
        )
    write_whole(Path(path), content)


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: safetensors, or torch's own format without any other object.

    Raises:
        FormatError: The file is missing, is in neither format, or holds Python objects, which are never loaded.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"--checkpoint must be a file with weights. Got {path}, which is not a file.")
    if path.suffix == ".safetensors":
        found: Any = read_safetensors(path)[0]
    else:
        try:
            with open_regular(path) as file:
                found = read_torch(file)
        except FormatError as error:
            raise FormatError(
                f"{path} cannot be read as weights: {first_line(error)} hace reads .safetensors, and torch files that hold "
                "nothing but tensors and plain values; it never runs code from a file. Save the state_dict() of a model you "
                "trust with safetensors.torch.save_file, and give that file."
            ) from error
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):  # as training scripts nest it
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    pairs = found.items() if isinstance(found, dict) else ()
    state = {key: value for key, value in pairs if isinstance(key, str) and isinstance(value, Tensor)}
    if not state:
        raise FormatError(f"{path} must hold a state dict, names with tensors. Got a {type(found).__name__}.")
    # The prefixes of DistributedDataParallel and torch.compile.
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in state.items()}


def fill(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> None:
    """Copy weights into a model. Every tensor of the model must be there; only a classifier may be left over.

    Args:
        model: A timm model.
        state: The weights by name.
        path: What messages call them.

    Raises:
        FormatError: Weights are missing, too many, or of another shape or type.
    """
    if not _fits(model, state):  # names of the authors', or positions for another image size: timm translates
        translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
        try:
            state = translate(state, model) if translate else state
        except Exception as error:
            raise FormatError(
                f"{path} does not hold weights of a {type(model).__name__}: {first_line(error)}"
            ) from error
    own = model.state_dict()
    problems = [f"{key!r} is missing" for key in own if key not in state]
    problems += [
        f"{key!r} has shape {tuple(state[key].shape)}, the model {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    problems += [
        f"{key!r} is {state[key].dtype}, the model {own[key].dtype}"
        for key in own
        if key in state and state[key].is_floating_point() != own[key].is_floating_point()
    ]
    heads = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    problems += [
        f"{key!r} is not in the model"
        for key in state
        if key not in own and not key.startswith(tuple(f"{head}." for head in heads))
    ]
    if problems:
        more = f" and {len(problems) - SHOWN_KEYS} more" if len(problems) > SHOWN_KEYS else ""
        raise FormatError(
            f"{path} does not fit the model: {'; '.join(problems[:SHOWN_KEYS])}{more}. "
            "Give weights of this architecture, or the architecture of these weights with --model."
        )
    model.load_state_dict({key: state[key] for key in own})


def _fits(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    return all(key in state and state[key].shape == value.shape for key, value in model.state_dict().items())


def first_line(error: Exception) -> str:
    """The first line of an error's message, as a sentence."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_LINE]
    return line if line.endswith(".") else line + "."
