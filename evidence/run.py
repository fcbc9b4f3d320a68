"""Run a study behind the docs' numbers and keep its tables: python evidence/run.py NAME ... --data FOLDER [--work FOLDER]

    python evidence/run.py cub200-mixed-labels --data data --work work

A study stopped at any point resumes with the same command. When it is finished its tables go to evidence/results/NAME, with
the command, versions, the seconds of all runs together and SHA-256 of every input, and effects.csv (see effects.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from effects import write_effects

from hace import Hierarchy, environment, read_hierarchy, write_hierarchy
from hace.lab.report.document import Table, to_csv
from hace.lab.report.labels import label_questions, labels_table
from hace.lab.report.results import Results
from hace.lab.report.tables import confidence_table, headline_table
from hace.lab.study.folder import StudyFolder, read_study

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def main() -> None:
    """Run, report, keep."""
    listed = tomllib.loads((HERE / "studies.toml").read_text())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="+", choices=list(listed["studies"]), metavar="NAME", help=", ".join(listed["studies"])
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder with the inputs that studies.toml lists"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("evidence-work"), help="the folder of the studies' runs"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--keep-only", action="store_true", help="keep the tables of a study as far as it has come"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        run(name, listed, args)


def run(name: str, listed: dict[str, Any], args: argparse.Namespace) -> None:
    """Run one study and keep its tables."""
    command = re.sub(r",\s+", ",", listed["studies"][name]["command"])
    inputs = {word: _input(word, listed, args) for word in re.findall(r"{(\w+)}", command)}
    folder = args.work / name
    if not args.keep_only:
        words = shlex.split(command.format(**inputs))
        _hace(*words, "--out", str(folder), "--runs", str(args.work / "runs"), "--workers", str(args.workers))
    files = {
        word: {"file": path.name, "sha256": sha256(path), **_source(word, listed, args)}
        for word, path in inputs.items()
    }
    keep(folder, RESULTS / name, f"hace {' '.join(command.split())}", files)


def keep(
    folder: Path,
    target: Path,
    command: str,
    inputs: dict[str, Any],
    rates: Iterable[float] | None = None,
    protocol: str = "",
) -> None:
    """Keep the tables and effects of a study, and what made them; the rates it searched, if the command has none."""
    study = read_study(folder)
    results = Results(study.records())
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for table in kept_tables(results):
        (target / f"{table.id}.csv").write_text(to_csv(table), encoding="utf-8")
    write_effects(results, target / "effects.csv")
    made_with = environment.config()
    runs = {
        record.run.folder: record.run for record in results.records if record.run is not None
    }  # each once
    got = [run.result for run in runs.values() if run.result]
    about = {
        "command": command,
        "inputs": inputs,
        **({"protocol": protocol} if protocol else {}),
        **({"changed": changed} if (changed := _changed(study)) else {}),
        **({} if rates is None else {"rates": [float(f"{rate:.6g}") for rate in rates]}),
        "runs": len(got),
        "seconds": round(sum(result["seconds"] for result in got)),
        "made_with": {name: made_with[name] for name in ("hace", "python", "torch", "numpy")},
    }
    (target / "about.json").write_text(json.dumps(about, indent=2) + "\n")


def _changed(study: StudyFolder) -> dict[str, dict[str, float]]:
    """The share of training labels that each kind of labels really changes, by dataset."""
    shares = {name: about.get("changed") for name, about in study.data.items()}
    return {name: {k: round(v, 4) for k, v in result.items()} for name, result in shares.items() if result}


def kept_tables(results: Results) -> Iterator[Table]:
    """The report's tables of methods and of confidence, and those of questions about labels."""
    for scores in results.scores.values():
        tables = (headline_table(scores), confidence_table(scores))
        yield from (table for table in tables if table is not None)
    yield from (labels_table(question) for question in label_questions(results))


def _input(word: str, listed: dict[str, Any], args: argparse.Namespace) -> Path:
    if word in listed["inputs"]:
        return args.data / listed["inputs"][word]
    if word in listed["rooted"]:
        return _rooted(listed["rooted"][word], args.work / f"{word}.csv")
    path = args.work / f"{word}.npz"
    if not path.exists():
        source, *options = listed["reduced"][word].split()
        _python(str(HERE / "reduce.py"), str(args.data / listed["inputs"][source]), str(path), *options)
    return path


def _rooted(name: str, path: Path) -> Path:
    """A built-in hierarchy below one root."""
    h = read_hierarchy(name)
    edges = [(h.nodes[parent], h.nodes[child]) for parent, child in h.edges.tolist()]
    edges += [("root", top) for top in h.tops]
    write_hierarchy(Hierarchy.from_edges(edges, leaves=h.leaves), path)
    return path


def _source(word: str, listed: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """What a reduced input was made from: its bytes may differ between processors in the last digits."""
    if word not in listed["reduced"]:
        return {}
    name, *options = listed["reduced"][word].split()
    source = args.data / listed["inputs"][name]
    return {"from": {"file": source.name, "sha256": sha256(source), "options": " ".join(options)}}


def _hace(*words: str) -> None:
    _python("-m", "hace", *words)


def _python(*words: str) -> None:
    """Run Python with one thread: more change the last digits."""
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, **one})


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
