"""Run directories, edited: what a careless hand or a bad disk would leave."""

from __future__ import annotations

import json
from pathlib import Path

from hace.lab.runs.run import MANIFEST, RESULT, RUN, write_manifest


def edit_json(path: Path, **values: object) -> None:
    """Replace entries of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rehash(folder: Path, **values: object) -> None:
    """Write a run's result and manifest again after an edit: what lies behind the hashes is then reached."""
    edit_json(folder / RESULT, **values)
    manifest = json.loads((folder / MANIFEST).read_text())
    there = [name for name in manifest["files"] if (folder / name).is_file()]
    write_manifest(folder, json.loads((folder / RUN).read_text())["id"], there)
