"""Run directories, edited: what a careless hand or a bad disk would leave."""

from __future__ import annotations

import json
from pathlib import Path

from hace.files.writing import json_bytes
from hace.lab.runs.run import sealed


def edit_json(path: Path, **values: object) -> None:
    """Replace entries of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def reseal(folder: Path, **values: object) -> None:
    """Seal a run again after an edit, with the hashes of its files as they are: what lies behind the seal is then reached."""
    result = {**json.loads((folder / "result.json").read_text()), **values}
    data = json.loads((folder / "run.json").read_text())["data"]
    rest = {key: value for key, value in result.items() if key not in ("seal", "files")}
    files = [folder / name for name in result["files"] if (folder / name).is_file()]
    (folder / "result.json").write_bytes(json_bytes(sealed(rest, data, files)))
