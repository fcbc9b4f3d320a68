"""A report of a study whose files were edited: a message that names the file, never an unexpected error."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hace.cli import main
from hace.errors import HaceError
from hace.lab.report import Results, about_study
from hace.lab.report.page import to_page
from hace.lab.report.study_report import build_document
from hace.lab.study.folder import read_study
from hace.paper import report_sections
from tests.report_studies import animals, fair_records, write_study

GONE = object()
EDITS = [
    ("configurations.0.key.method", [1], "study.json: A configuration of the study does not fit"),
    ("configurations.0.key.method", None, "its method"),
    ("configurations.0.key.dataset", " x", "configurations must be about its data. Got ' x'"),
    ("configurations.1.key.seed", "..", "its seed"),
    ("configurations.1.key.protocol", "", "its protocol"),
    ("configurations.1.candidates.1", "nope", "does not fit this version"),
    ("configurations.1.candidates.1", {"nope": 1}, "its candidates"),
    ("configurations.0.candidates", [], "its candidates"),
    ("configurations.0.config.lr", "fast", "lr must be a number"),
    ("configurations.0.widen", GONE, "KeyError('widen')"),
    ("configurations.1.key.labels", "\ud800", "half a surrogate pair"),
    ("data.pets.samples.train", " x", "data.pets: samples must be counts"),
    ("data.pets.changed", [], "data.pets: changed must be a mapping or nothing. Got []"),
    ("data.pets.changed", {"a": "nope"}, "data.pets: changed must be shares"),
    ("data.pets.nodes", None, "data.pets: nodes must be an integer. Got None"),
    ("data.pets.config", "features", "data.pets: config must be a mapping"),
    ("data.pets", GONE, "configurations must be about its data. Got 'pets'"),
    ("made_with", None, "made_with must be a mapping"),
    ("choices", [], "choices must be a mapping"),
    ("format", 1, "must be a study of format 2. Got format 1"),
]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    records = fair_records(
        folder / "runs", animals(), {"cross_entropy": 2.0, "hace": 2.4}, seeds=(0, 1), rates=(1.0, 2.0)
    )
    return write_study(folder, records, animals())


def edited(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    part = document
    for key in path[:-1]:
        part = part[key]
    if value is GONE:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("where", "value", "message"),
    EDITS,
    ids=[f"{w}={'gone' if v is GONE else repr(v)}"[:40] for w, v, _ in EDITS],
)
def test_an_edited_study_is_refused_with_a_message(
    study: Path, where: str, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = study / "study.json"
    original = file.read_text()
    path = tuple(int(part) if part.isdigit() else part for part in where.split("."))
    try:
        file.write_text(json.dumps(edited(json.loads(original), path, value)))
        assert main(["report", str(study)]) == 2
    finally:
        file.write_text(original)
    printed = capsys.readouterr().err
    assert message in printed
    assert "study.json" in printed


def test_versions_of_a_run_that_are_no_mapping_cost_its_result(study: Path) -> None:
    file = next((study / "runs").glob("*/run.json"))
    original = file.read_text()
    try:
        file.write_text(json.dumps(edited(json.loads(original), ("made_with",), [])))
        records = read_study(study).records()
    finally:
        file.write_text(original)
    assert [r.error for r in records if "the versions must be a mapping" in r.error]


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = document.items() if isinstance(document, dict) else enumerate(document[:2])
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


@pytest.mark.slow
@pytest.mark.parametrize("count", [25, pytest.param(250, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "file", ["study.json", "run.json", "config.json", "result.json", "hierarchy.json", "manifest.json"]
)
def test_any_edit_is_a_report_or_a_message(study: Path, file: str, count: int) -> None:
    path = study / file if file == "study.json" else next((study / "runs").glob(f"*/{file}"))
    original = path.read_text()
    document = json.loads(original)
    values = (GONE, None, True, -1, 1e308, "", "..", [], {}, [1], {"a": 1}, 10**30, "\ud800", [[]], "nope")
    edits = [(place, value) for place in places(document) for value in values]
    rng = np.random.default_rng(0)
    try:
        for i in rng.choice(len(edits), min(count, len(edits)), replace=False):
            path.write_text(json.dumps(edited(document, *edits[i])))
            try:
                opened = read_study(study)
                about, results = about_study(opened), Results(opened.records())
                document_ = build_document(results, about, [report_sections], draw=False)
                to_page(document_, (results.first, results.second), "1").encode()
            except HaceError:
                pass
    finally:
        path.write_text(original)
