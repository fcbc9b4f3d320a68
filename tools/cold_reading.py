"""Functions to explain cold: python tools/cold_reading.py [--seed 43] [--count 20] [--lines 25]

Prints functions of the package that are longer than 25 lines, drawn at random by a seed, with their files and lines. A reader
who has not seen the code gets two minutes for each and says what it does; what most readers miss is rewritten.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "hace"


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of every function and method of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def drawn(seed: int, count: int, lines: int) -> list[str]:
    """`file:first-last name` of functions longer than `lines`, drawn by the seed."""
    long = [
        f"{path.relative_to(SOURCE)}:{first}-{last} {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name, first, last in functions(path)
        if last - first + 1 > lines
    ]
    return random.Random(seed).sample(long, min(count, len(long)))


def main() -> None:
    """Print the drawn functions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--lines", type=int, default=25)
    args = parser.parse_args()
    print("\n".join(drawn(args.seed, args.count, args.lines)))


if __name__ == "__main__":
    main()
