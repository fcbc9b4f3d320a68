"""The paper in a report: printed numbers beside ours in the same cells, and nothing of it where it does not belong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hace import Hierarchy
from hace.lab.report.document import Entry
from hace.lab.report.metric import ACCURACY, TOP5_ACCURACY
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition
from hace.lab.study.records import Record
from hace.paper import ASSUMPTIONS, paper_tables, report_sections
from hace.paper.report import comparable, paper_table
from tests.report_studies import animals, fair_records, paper_records, row


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return paper_records(tmp_path_factory.mktemp("runs"), animals())


@pytest.fixture(scope="module")
def results(records: list[Record]) -> Results:
    return Results(records)


def test_paper_protocol_takes_the_best_of_each_seed_on_the_test_set(
    records: list[Record], results: Results
) -> None:
    best = []
    for seed in (0, 1):
        mine = [
            r.top1 for r in records if (r.key.protocol, r.key.method, r.key.seed) == ("paper", "hace", seed)
        ]
        best.append(max(v for v in mine if v is not None))
    table = paper_table(results, paper_tables()["probe"])
    entry = row(table, "FGVC-Aircraft", "ours, paper's protocol")["HACE"]
    assert entry.text == f"{100 * sum(best) / 2:.2f}"
    assert entry.detail.endswith("n = 2")
    assert row(table, "FGVC-Aircraft", "printed")["HACE"] == Entry("58.97", mark="second", notes=("d", "e"))


def test_pairs_of_the_paper_share_the_run_at_the_models_own_rate(results: Results) -> None:
    table = paper_table(results, paper_tables()["probe_matched"])
    ours = row(table, "FGVC-Aircraft", "ours, paper's protocol")
    assert (
        ours["d = 0.2 adjusted cross-entropy"].text
        == ours["d = 0.7 adjusted cross-entropy"].text
        != "not run"
    )
    assert ours["d = 0.2 standard cross-entropy"].text != ours["d = 0.2 adjusted cross-entropy"].text
    assert ours["d = 0.5 adjusted HACE"].text == "diverged"
    assert ours["d = 0.7 standard HACE"].text == "not run"
    assert all(
        e.text == "not run" for e in list(row(table, "NABirds", "ours, paper's protocol").values())[2:]
    )


def test_printed_numbers_and_marks_stand_as_in_the_paper(results: Results) -> None:
    for table in comparable():
        ours = paper_table(results, table)
        printed = [r for r in ours.rows if r[1].text == "printed"]
        assert [e.text for r in printed for e in r[2:]] == [c.printed for c in table.cells]
        marks = {"bold": "best", "underline": "second", "": ""}
        assert [e.mark for r in printed for e in r[2:]] == [marks[c.mark] for c in table.cells]
        used = {note for r in printed for e in r for note in e.notes}
        whole = {n.mark for n in table.footnotes if len(n.cells) == len(table.cells)}
        assert used | whole == {mark for mark, _ in ours.notes}


class GivenAccuracies(Record):
    """A run of HACE with given accuracies: at the model's own rate it is worse in top-1 and better in top-5."""

    @property
    def result(self) -> Mapping[str, Any]:
        standard = self.key.pairing == "standard"
        accuracies = {"top-1": 0.2, "top-5": 0.9} if standard else {"top-1": 0.6, "top-5": 0.7}
        known = super().result
        return {**known, "metrics": {**known["metrics"], "leaves": accuracies}}


def test_top5_tables_choose_by_top5(records: list[Record]) -> None:
    """The best cell across all dilutions and pairings, as the paper's captions say: not the top-5 of the top-1 winner."""
    swapped = [
        GivenAccuracies(r.key, r.stage, r.lr, r.run)
        if (r.key.method, r.status) == ("hace", "finished")
        else r
        for r in records
    ]
    results = Results(swapped)
    ours = "ours, paper's protocol"
    assert row(paper_table(results, paper_tables()["probe"]), "FGVC-Aircraft", ours)["HACE"].text == "60.00"
    top5 = paper_table(results, paper_tables()["probe_top5"])
    assert row(top5, "FGVC-Aircraft", ours)["HACE"].text == "90.00"
    assert "chosen by top-5 accuracy on the test set" in top5.remarks[0]
    condition = Condition("paper", "aircraft", "dinov2_large")
    assert results.scores[condition].score("hace", ACCURACY).value == pytest.approx(0.6)
    assert results.scores[condition].score("hace", TOP5_ACCURACY).value == pytest.approx(0.7)


def test_the_paper_is_shown_only_where_a_study_has_its_data(results: Results, tmp_path: Path) -> None:
    ids = [section.id for section in report_sections(results, draw=False)]
    assert ids == ["paper", "assumptions"]
    assert report_sections(results, draw=False)[-1].blocks[1] == list(ASSUMPTIONS)
    own = Results(
        fair_records(tmp_path, animals(), {"cross_entropy": 1.0, "hace": 2.0}, seeds=(0,), rates=(1.0,))
    )
    (paper,) = report_sections(own, draw=False)
    assert (paper.id, paper.folded) == ("paper", True)
    (text,) = paper.blocks
    assert "docs/paper.md" in text


def test_families_and_manufacturers_are_beside_the_printed_counts(tmp_path: Path) -> None:
    h = Hierarchy.from_paths([("plane", m, f, v) for m, f, v in ("ABa", "ABb", "ACc", "DEd", "DEe", "DFf")])
    runs = {"dataset": "aircraft", "model": "resnet50", "seeds": (0, 1), "rates": (1.0,)}
    results = Results(fair_records(tmp_path, h, {"cross_entropy": 1.0, "hace": 2.0}, **runs))  # type: ignore[arg-type]
    (lines,) = (b for b in report_sections(results)[0].blocks if isinstance(b, list) and "Printed" in b[0])
    assert lines[0].startswith(
        "Manufacturers. Printed: HACE matches or beats cross-entropy in 28 of 30, mean gain 4.21. Ours, fair protocol: "
    )
    assert lines[1].startswith(
        "Families. Printed: HACE matches or beats cross-entropy in 59 of 70, mean gain 7.21. Ours, fair protocol: "
    )
    for line, nodes in zip(lines, (2, 4), strict=True):
        assert re.search(
            rf"most probable .* HACE matches or beats cross-entropy in \d of {nodes}\. On average", line
        )
