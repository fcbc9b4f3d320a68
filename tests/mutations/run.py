"""Apply each mutation listed beside this file to a copy of the project and run the tests that must catch it.

    python -m tests.mutations.run                 all of them (about an hour on two cores)
    python -m tests.mutations.run core answers    those of some lists
    python -m tests.mutations.run --only rules    those with this text in their name, file or tests
    python -m tests.mutations.run --check         only look whether every mutation still applies (a second)

A list is a TOML file of `[[mutation]]` tables: `name`, `file` (from the project's root), `old` (found exactly once in the
file), `new`, and `tests`, the test files of which at least one must fail. The exit code is the number of survivors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent


class Mutation(NamedTuple):
    """One changed line, and the test files that must notice."""

    list: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_mutations(names: list[str] | None = None) -> list[Mutation]:
    """The mutations of the lists with these names, of all lists by default."""
    found = []
    for path in sorted(LISTS.glob("*.toml")):
        if not names or path.stem in names:
            for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
                found.append(Mutation(path.stem, **{**entry, "tests": tuple(entry["tests"])}))
    return found


def misfits(mutations: list[Mutation]) -> list[str]:
    """Why mutations do not apply to the current project; empty if all do."""
    wrong = []
    for m in mutations:
        path = ROOT / m.file
        times = path.read_text(encoding="utf-8").count(m.old) if path.is_file() else 0
        if times != 1:
            wrong.append(f"{m.list}/{m.name}: the old text is {times} times in {m.file}, not once")
        if m.old == m.new:
            wrong.append(f"{m.list}/{m.name}: old and new are the same")
        wrong += [f"{m.list}/{m.name}: no file {test}" for test in m.tests if not (ROOT / test).is_file()]
    names = [(m.list, m.name) for m in mutations]
    return wrong + [f"{'/'.join(name)} is listed twice" for name in {n for n in names if names.count(n) > 1}]


def caught(m: Mutation, copy: Path) -> bool:
    """Whether the named tests fail on a copy of the project with this mutation."""
    path = copy / m.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(m.old, m.new), encoding="utf-8")
    try:
        env = {
            **os.environ,
            "PYTHONPATH": str(copy / "src"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *m.tests]
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(
                f"{m.list}/{m.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}"
            )
        return done.returncode != 0
    finally:
        path.write_text(text, encoding="utf-8")


def make_copy(folder: Path) -> Path:
    """A copy of the project to mutate; the compiled kernel comes along, the environment does not."""
    ignored = shutil.ignore_patterns(".venv", ".git", "site", "hace-demo", "__pycache__", ".*_cache", "build")
    return Path(shutil.copytree(ROOT, folder / "copy", ignore=ignored))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the number of survivors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lists", nargs="*", help="names of lists, without .toml (default: all)")
    parser.add_argument("--only", default="", help="text in the name, the file or a test file of a mutation")
    parser.add_argument("--check", action="store_true", help="only look whether every mutation still applies")
    parser.add_argument("--workers", type=int, default=2, help="copies worked on side by side (default 2)")
    args = parser.parse_args(argv)
    mutations = [m for m in read_mutations(args.lists) if args.only in " ".join((m.name, m.file, *m.tests))]
    wrong = misfits(mutations)
    print(f"{len(mutations)} mutations", *wrong, sep="\n")
    if wrong or args.check:
        return len(wrong)
    copies: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.workers) as pool:
        for worker in range(args.workers):
            copies.put(make_copy(Path(folder) / str(worker)))

        def one(m: Mutation) -> bool:
            copy = copies.get()
            try:
                found = caught(m, copy)
            finally:
                copies.put(copy)
            print(f"{'caught  ' if found else 'SURVIVED'}  {m.list}/{m.name}  ({m.file})", flush=True)
            return found

        results = list(pool.map(one, mutations))
    print(f"{sum(results)} of {len(results)} mutations caught")
    return results.count(False)


if __name__ == "__main__":
    sys.exit(main())
