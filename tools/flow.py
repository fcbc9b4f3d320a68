"""The modules of hace that a call goes through, in order: python tools/flow.py evaluate --hierarchy tree.csv --scores z.npy ...

Prints each module whose functions or classes run, with the first of them; what runs while a module is first imported does not
count. `docs/architecture.md` has the numbers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import hace
from hace.cli import main

SOURCE = str(Path(hace.__file__).parent)


def modules_of(arguments: list[str]) -> dict[str, str]:
    """The modules that a command visits, each with the function it is first visited for."""
    visited: dict[str, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or _is_importing(frame):
            return
        name = Path(code.co_filename).relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
        visited.setdefault(name, code.co_qualname if sys.version_info >= (3, 11) else code.co_name)

    sys.setprofile(note)
    try:
        main(arguments)
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    return visited


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a frame belongs to the body of a module or of a class, or to what these call."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    found = modules_of(sys.argv[1:])
    print(f"{len(found)} modules", file=sys.stderr)
    for module, function in found.items():
        print(f"{module:32} {function}", file=sys.stderr)
