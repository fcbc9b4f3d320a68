"""Whether the files of a finished run are the ones it wrote.

result.json carries two entries for that:

files   size and sha256 of hierarchy, weights and predictions
seal    sha256 of the result itself and of what run.json says about the data

The run's id covers the configuration. The log is not checked; `seconds` are not sealed, so that the results
of two machines differ in nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hace.errors import FormatError, HaceError
from hace.files.writing import json_bytes, sha256, write_whole

VERIFIED = ".verified"  # sizes and times of files at the last full check, which saves reading them again
AGAIN = "The command that made the run makes it again."
_UNSEALED = ("seal", "seconds")


def sealed(result: Mapping[str, Any], data: Mapping[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """A result with the prints of its run's files and its seal.

    Args:
        result: The document.
        data: What run.json says about the data.
        files: The files that belong to the result, all written.
    """
    prints = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
    document = json.loads(json_bytes({**result, "files": prints}))  # as it will be read
    return {**document, "seal": _seal(document, data)}


def check_seal(path: Path, result: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Refuse a result that was edited, or whose files are missing or have another size.

    Raises:
        FormatError: Says what is wrong.
    """
    if result.get("seal") != _seal(result, data):
        raise FormatError(
            f"{path} was changed after it was written: its seal must be the hash of its content. {AGAIN}"
        )
    for name, known in result["files"].items():
        _check_size(path.parent / name, known["bytes"])


def check_file(path: Path, known: Mapping[str, Any]) -> None:
    """Refuse a file that is not the one that was written.

    Raises:
        FormatError: Says what is wrong.
    """
    _check_size(path, known["bytes"])
    if sha256(path) != known["sha256"]:
        raise FormatError(f"{path} was changed after it was written: its sha256 is another. {AGAIN}")


def check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Check all files of a run, unless their sizes and times are those of the last check.

    Raises:
        FormatError: Says what is wrong with the first that is not as written.
    """
    if _verified(folder) == _stamps(folder, files):
        return
    for name, known in files.items():
        check_file(folder / name, known)
    with suppress(HaceError):  # a folder that cannot be written is checked every time
        mark_verified(folder, files)


def mark_verified(folder: Path, files: Iterable[str]) -> None:
    """Note that files are as written, from now on for as long as their sizes and times stay."""
    write_whole(folder / VERIFIED, json_bytes(_stamps(folder, files)))


def _seal(result: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in result.items() if key not in _UNSEALED}
    return hashlib.sha256(json.dumps([rest, data], sort_keys=True).encode()).hexdigest()


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise FormatError(f"{path} is missing. {AGAIN}")
    if path.stat().st_size != size:
        raise FormatError(f"{path} must have {size:,} bytes. Got {path.stat().st_size:,}. {AGAIN}")


def _stamps(folder: Path, files: Iterable[str]) -> dict[str, list[int]]:
    there = {name: (folder / name).stat() for name in files if (folder / name).is_file()}
    return {name: [about.st_size, about.st_mtime_ns] for name, about in there.items()}


def _verified(folder: Path) -> Any:
    try:
        return json.loads((folder / VERIFIED).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
