"""Weights and pickles from outside: read without running a stranger's code.

A pickle is a program that may call anything, nest without limit and size the interpreter's tables. `pickle` is never
imported here: a small machine runs the opcodes that published files use, calls nothing but what its reader names, bounds the
number of opcodes, the depth of what they build and the memo, and takes only text and numbers for keys, so that no hash
recurses. Two readers use it: CIFAR-100's files, and files of `torch.save` before torch itself loads them, since
`torch.load(weights_only=True)` crashes on deep nesting, trusts the sizes that a file declares and unpacks records of any size.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickletools
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hace.errors import ConfigError, FormatError
from hace.files.reading import open_regular, optional
from hace.files.writing import write_whole

MAX_OPCODES = 4_000_000  # CIFAR-100 has 0.3 million, a checkpoint with optimiser state about 50 per tensor
MAX_DEPTH = 64
MAX_RECORDS = 200_000
MAX_LINE = 300
SHOWN_KEYS = 3
# Bytes of JSON in a .safetensors file: names, types and shapes of about 100,000 tensors.
_MAX_HEADER = 1 << 24

_CONSTANTS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)
_SINGLES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = (str, bytes, int, float, bool, type(None))
_MARK = object()


class Name(NamedTuple):
    """A name that a pickle may mention but not call."""

    value: Any


class Buildable:
    """The result of a call that may take a state (opcode BUILD) afterwards."""

    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


Function = Callable[[Any], Any]
# What a pickle may name: (module, name) to a function, whose result is the object, or to a `Name`.
Vocabulary = Mapping[tuple[str, str], "Callable[..., Any] | Name"]


def read_pickle(data: bytes | BinaryIO, vocabulary: Vocabulary, persistent: Function | None = None) -> Any:
    """The value that a pickle describes: numbers, text, bytes, lists, tuples, dictionaries, and what the vocabulary makes."""
    machine = _Machine(vocabulary, persistent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in text that is not to be trusted anyway
            for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
                if count >= MAX_OPCODES:
                    raise FormatError(f"it has more than {MAX_OPCODES:,} opcodes")
                if opcode.name == "STOP":
                    return machine.pop()
                machine.step(opcode.name, argument)
    except FormatError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        words = str(error)[:200] if isinstance(error, ValueError) else "its opcodes do not fit together"
        raise FormatError(words or "it is damaged") from error
    raise FormatError("it has no end")


class _Machine:
    """The stack, the marks and the memo of a pickle that is being read.

    A container is complete once another one holds it: changing it later would make a cycle or hide depth.
    """

    def __init__(self, vocabulary: Vocabulary, persistent: Function | None) -> None:
        self.vocabulary, self.persistent = vocabulary, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.depth: dict[int, int] = {}  # by id, of containers
        self.complete: set[int] = set()
        self.alive: list[Any] = []  # so that no id is used twice

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in _CONSTANTS:
            self.stack.append(argument)
        elif opcode in _SINGLES:
            self.stack.append(_SINGLES[opcode])
        elif opcode in _EMPTY:
            self.push(_EMPTY[opcode](), ())
        elif opcode in _TUPLES or opcode == "TUPLE":
            many = opcode == "TUPLE"
            items = self.pop_marked() if many else [self.pop() for _ in range(_TUPLES[opcode])][::-1]
            self.push(tuple(items), items)
        elif opcode == "MARK":
            self.stack.append(_MARK)
        elif opcode in ("LIST", "DICT"):
            items = self.pop_marked()
            self.push([] if opcode == "LIST" else {}, ())
            self.extend(items) if opcode == "LIST" else self.set_items(items)
        elif opcode in ("APPEND", "APPENDS"):
            self.extend([self.pop()] if opcode == "APPEND" else self.pop_marked())
        elif opcode in ("SETITEM", "SETITEMS"):
            self.set_items([self.pop(), self.pop()][::-1] if opcode == "SETITEM" else self.pop_marked())
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self.top()
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif opcode in ("GLOBAL", "STACK_GLOBAL"):
            self.name(argument)
        elif opcode in ("REDUCE", "BUILD"):
            self.call() if opcode == "REDUCE" else self.build()
        elif opcode == "BINPERSID" and self.persistent is not None:
            self.push(self.persistent(self.pop()), ())
        elif opcode not in ("PROTO", "FRAME"):
            raise FormatError(f"it uses the opcode {opcode}")

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise FormatError("its opcodes do not fit together")
        return self.stack[-1]

    def pop(self) -> Any:
        value = self.top()
        self.stack.pop()
        return value

    def pop_marked(self) -> list[Any]:
        items = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def push(self, value: Any, items: Any) -> None:
        self.alive.append(value)
        self.depth[id(value)] = 1
        self.stack.append(value)
        self.hold(value, items)

    def hold(self, container: Any, items: Any) -> None:
        """Note that a container holds items."""
        if id(container) in self.complete and items:
            raise FormatError("it refers to itself")
        deepest = max((self.depth.get(id(item), 0) for item in items), default=0) + 1
        if deepest > MAX_DEPTH:
            raise FormatError(f"it nests more than {MAX_DEPTH} levels deep")
        self.depth[id(container)] = max(self.depth[id(container)], deepest)
        for item in items:
            if item is container:
                raise FormatError("it refers to itself")
            if id(item) in self.depth:
                self.complete.add(id(item))

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise FormatError(f"it appends to a {_noun(target)}")
        self.hold(target, items)
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(items) % 2:
            raise FormatError(f"it sets items of a {_noun(target)}")
        for key in items[::2]:
            if type(key) not in _KEYS:
                raise FormatError(f"a key must be text or a number, got a {_noun(key)}")
        self.hold(target, items)
        target.update(zip(items[::2], items[1::2], strict=True))

    def name(self, argument: str | None) -> None:
        if argument is None:
            name, module = self.pop(), self.pop()
        else:
            module, _, name = argument.partition(" ")
        if type(module) is not str or type(name) is not str or (module, name) not in self.vocabulary:
            raise FormatError(f"it wants to call {str(module)[:60]}.{str(name)[:60]}")
        self.stack.append(self.vocabulary[module, name])

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        known = any(function is value for value in self.vocabulary.values())
        if type(arguments) is not tuple or not known or isinstance(function, Name):
            raise FormatError(f"it wants to call a {_noun(function)}")
        result = function(*arguments)
        if id(result) in self.depth:  # one of the arguments
            self.stack.append(result)
        else:
            self.push(result, arguments)

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Buildable):
            self.hold(target, (state,))
            target.state = state
        elif type(target) is not dict:  # the attributes of an OrderedDict do not matter
            raise FormatError(f"it changes a {_noun(target)}")


def _noun(value: Any) -> str:
    return type(value).__name__.strip("_")


class _Array(Buildable):
    """Stands for an array; its state is (version, shape, dtype, column order, bytes)."""


class _Type(Buildable):
    """Stands for a dtype, whose name decides; its state is byte order and alignment, which bytes do not have."""


# What the published files of CIFAR-100 name.
_CIFAR: Vocabulary = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): Name("array"),
    ("numpy", "dtype"): _Type,
}


def read_cifar_pickle(data: bytes, source: str) -> dict[str, Any]:
    """The dictionary of a file `train`, `test` or `meta` of CIFAR-100: text, lists, and uint8 arrays by text keys."""
    try:
        found = read_pickle(data, _CIFAR)
        if type(found) is not dict:
            raise FormatError(f"it holds a {_noun(found)} instead of a dictionary")
        return {str(_plain(key)): _plain(value) for key, value in found.items()}
    except FormatError as error:
        raise FormatError(
            f"{source}: not a pickle of CIFAR-100: {error}. Nothing in it was run. Fetch it again from the official page."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return _byte_array(value.state)
    if type(value) is list:
        return [item.decode("latin-1") if type(item) is bytes else item for item in value]
    return value.decode("latin-1") if type(value) is bytes else value


def _byte_array(state: Any) -> np.ndarray:
    if type(state) is not tuple or len(state) != 5:
        raise FormatError("an array is not complete")
    _, shape, dtype, columns_first, content = state
    if type(content) is str:  # Python 2 has one kind of string
        content = content.encode("latin-1", "replace")
    name = dtype.arguments[:1] if isinstance(dtype, _Type) else ()
    if name not in (("u1",), (b"u1",)) or columns_first or type(content) is not bytes:
        raise FormatError("an array is not of bytes")
    if type(shape) is not tuple or not all(type(size) is int and 0 <= size <= len(content) for size in shape):
        raise FormatError("an array has no shape")
    if math.prod(shape) != len(content):
        raise FormatError(f"an array of shape {shape} has {len(content):,} bytes"[:200])
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


# Bytes per value of the storages that torch.save names.
_ITEMSIZES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1}
_ITEMSIZES |= {"Byte": 1, "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16}
_TYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128".split()
# What a file may name: what torch itself does for tensors and the dictionaries around them.
_TORCH: Vocabulary = {
    **dict.fromkeys((("collections", "OrderedDict"), ("collections", "Counter")), lambda *_: {}),
    **{("torch._utils", f"_rebuild_{name}"): Buildable for name in ("tensor", "tensor_v2", "parameter")},
    **dict.fromkeys((("torch", "Size"), ("torch", "device")), Buildable),
    **{("torch", f"{name}Storage"): Name(size) for name, size in _ITEMSIZES.items()},
    **{("torch", name): Name(None) for name in _TYPES},
}


def read_torch(file: BinaryIO) -> Any:
    """What `torch.save` wrote: tensors on the CPU, numbers, text, lists and dictionaries. Parameters are tensors.

    The pickle inside is read as data first, with all limits, and every storage must have the bytes it declares; then
    `torch.load(weights_only=True)`, which trusts both, makes the tensors. Two layouts exist: a zip archive of stored records
    (since torch 1.6), and before it five pickles followed by raw bytes. Messages do not name the file.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        zipped = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        if zipped:
            _check_zip(file, size)
        else:
            claimed: dict[str, int] = {}
            for _ in range(5):  # magic number, protocol, system, the object, the storages' keys
                read_pickle(file, _TORCH, lambda about: claimed.update((_storage(about),)) or Buildable())
            if sum(claimed.values()) > size:
                raise FormatError("its storages declare more bytes than it has")
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about storages of old versions
            found = torch.load(file, map_location="cpu", weights_only=True)
        _check_tensors(found)
        return found
    except FormatError:
        raise
    except Exception as error:  # zipfile and torch have many kinds
        raise FormatError(f"it is damaged ({str(error)[:100]})") from error


def _check_zip(file: BinaryIO, size: int) -> None:
    with zipfile.ZipFile(file) as packed:
        infos = packed.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise FormatError("its records are compressed, which torch.save never does")
        if len(infos) > MAX_RECORDS or sum(info.file_size for info in infos) > size:
            raise FormatError("its records declare more bytes than it has")
        sizes = {info.filename: info.file_size for info in infos}
        pickles = [name for name in sizes if name.endswith("/data.pkl")]
        if len(pickles) != 1 or len(sizes) < len(infos):
            raise FormatError("it is not a file that torch.save wrote")

        def storage(about: Any) -> Buildable:
            key, declared = _storage(about)
            held = sizes.get(f"{pickles[0].removesuffix('data.pkl')}data/{key}")
            if held != declared:
                raise FormatError(f"a storage declares {declared:,} bytes and has {held}")
            return Buildable()

        read_pickle(packed.read(pickles[0]), _TORCH, storage)


def _storage(about: Any) -> tuple[str, int]:
    """Key and bytes of ("storage", type, key, device, count)."""
    if type(about) is tuple and len(about) >= 5 and about[0] == "storage":
        _, kind, key, _, count = about[:5]
        if isinstance(kind, Name) and type(kind.value) is int and type(key) is str and type(count) is int:
            return key, kind.value * count
    raise FormatError("a storage has no description")


def _check_tensors(value: Any) -> None:
    """Refuse strides of 0, which let a few bytes claim any number of values."""
    if isinstance(value, Tensor):
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise FormatError(f"a tensor of shape {tuple(value.shape)} does not fit its bytes"[:200])
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _check_tensors(item)


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
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except Exception as error:  # safetensors raises its own kind, and torch about types it does not know
        raise FormatError(f"{path} is not a .safetensors file, or is damaged: {first_line(error)}") from error


def read_safetensors_arrays(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The same as arrays, those of bfloat16 as float32."""
    tensors, metadata = read_safetensors(path)
    try:
        plain = {k: t.float() if t.dtype == torch.bfloat16 else t for k, t in tensors.items()}
        return {k: t.numpy() for k, t in plain.items()}, metadata
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


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: safetensors, or torch's own format without any other object."""
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
    if not (state := {k: v for k, v in pairs if isinstance(k, str) and isinstance(v, Tensor)}):
        raise FormatError(f"{path} must hold a state dict, names with tensors. Got a {type(found).__name__}.")
    # The prefixes of DistributedDataParallel and torch.compile.
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in state.items()}


def fill(model: nn.Module, state: dict[str, Tensor], path: str | Path) -> None:
    """Copy weights into a timm model. Every tensor of the model must be there; only a classifier may be left over.

    timm itself would leave the rest random.
    """
    own = model.state_dict()
    if any(key not in state or state[key].shape != value.shape for key, value in own.items()):
        # Names of the authors', or positions for another image size: timm translates.
        translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
        try:
            state = translate(state, model) if translate else state
        except Exception as error:
            raise FormatError(
                f"{path} does not hold weights of a {type(model).__name__}: {first_line(error)}"
            ) from error
    problems = [f"{key!r} is missing" for key in own if key not in state]
    for key in (key for key in own if key in state):
        value, found = own[key], state[key]
        if found.shape != value.shape:
            problems.append(f"{key!r} has shape {tuple(found.shape)}, the model {tuple(value.shape)}")
        elif found.is_floating_point() != value.is_floating_point():
            problems.append(f"{key!r} is {found.dtype}, the model {value.dtype}")
    named = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    heads = tuple(f"{head}." for head in ((named,) if isinstance(named, str) else named))
    problems += [f"{k!r} is not in the model" for k in state if k not in own and not k.startswith(heads)]
    if problems:
        more = f" and {len(problems) - SHOWN_KEYS} more" if len(problems) > SHOWN_KEYS else ""
        raise FormatError(
            f"{path} does not fit the model: {'; '.join(problems[:SHOWN_KEYS])}{more}. "
            "Give weights of this architecture, or the architecture of these weights with --model."
        )
    model.load_state_dict({key: state[key] for key in own})


def first_line(error: Exception) -> str:
    """The first line of an error's message, as a sentence."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_LINE]
    return line if line.endswith(".") else line + "."
