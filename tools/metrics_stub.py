"""Tell type checkers what `hace.metrics` makes from its table of metrics: python tools/metrics_stub.py

Rewrites the end of src/hace/metrics/__init__.pyi, after the line that says so. A test fails where it is stale.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from hace.metrics import functional, streaming
from hace.metrics.measures import METRICS

STUB = Path(__file__).parents[1] / "src" / "hace" / "metrics" / "__init__.pyi"
MARK = "# From here on written by tools/metrics_stub.py, from the rows of hace.metrics.measures.\n"


def definitions() -> Iterator[str]:
    """The function and the class of each row."""
    for row in METRICS:
        if row.function is not None:
            face = functional.function_of(row.function)
            head = f"def {row.function}{arguments(inspect.signature(face))} -> {functional.returned(row)}:"
            yield f"{head}\n{docstring(face)}\n"
        if row.streaming is not None:
            made = streaming.class_of(row.streaming)
            yield f"class {row.streaming}(RatioMetric):\n{docstring(made)}\n"


def arguments(signature: inspect.Signature) -> str:
    """The arguments of a signature as code, a line each."""
    written = []
    for parameter in signature.parameters.values():
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        kind = parameter.annotation if isinstance(parameter.annotation, str) else "Any"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        written.append(f"{stars}{parameter.name}: {kind}{default}")
    return "(\n    " + ",\n    ".join(written) + ",\n)"


def docstring(made: object) -> str:
    """The docstring, indented as it is in code."""
    lines = inspect.cleandoc(made.__doc__ or "").splitlines()
    end = "" if len(lines) == 1 else "\n    "
    text = "\n".join(f"    {line}".rstrip() for line in lines).strip()
    return f'    """{text}{end}"""'


def stub() -> str:
    """The whole stub."""
    before = STUB.read_text(encoding="utf-8").partition(MARK)[0]
    return before + MARK + "\n" + "\n".join(definitions())


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
