"""Weights in files: read them without running a stranger's code, hash them, and fill a model with them.

A file from elsewhere is data, never a program: safetensors, or torch's format read with `weights_only=True`. Weights that
do not fill the model are an error, where timm would leave the rest random.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hace.errors import FormatError, HaceError

SHOWN_KEYS = 3


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


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file by name: safetensors, or torch's own format without any other object.

    Raises:
        FormatError: The file is not there, is neither format, or holds Python objects, which are never loaded.
    """
    path = Path(path)
    if not path.is_file():
        raise FormatError(f"--checkpoint must be a file with weights, and {path} is not one.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise HaceError(f"Reading {path} needs safetensors: pip install 'hace[train]'.") from None
    except Exception as error:
        # torch's own words recommend to run what the file holds.
        other = "it holds more than tensors, or is no torch file."
        reason = first_line(error) if path.suffix == ".safetensors" else other
        raise FormatError(
            f"{path} cannot be read as weights: {reason} hace reads safetensors and torch files that hold "
            "nothing but tensors; it never runs code from a file. Save a trusted model's state_dict() with "
            "safetensors.torch.save_file and give that file."
        ) from error
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):  # as training scripts nest it
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    if not isinstance(found, dict) or not any(isinstance(value, Tensor) for value in found.values()):
        raise FormatError(
            f"{path} holds no state dict: expected names with tensors, got {type(found).__name__}."
        )
    # The prefixes of DistributedDataParallel and torch.compile.
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in found.items()}


def fill(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> None:
    """Copy weights into a model; whatever the model needs must be there, and only a classifier may be left over."""
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
            "Give the weights of this very architecture, or the name of theirs with --model."
        )
    model.load_state_dict({key: state[key] for key in own})


def _fits(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    return all(key in state and state[key].shape == value.shape for key, value in model.state_dict().items())


def first_line(error: Exception) -> str:
    """The first line of an error's message, as a sentence."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if line.endswith(".") else line + "."
