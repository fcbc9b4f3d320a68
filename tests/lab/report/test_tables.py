"""Tables of a report: their numbers against slow loops over the runs' files, their marks, and every format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from safetensors.numpy import load_file

from hace.errors import ConfigError, DataError
from hace.lab.report import report_text
from hace.lab.report.document import Entry, Table, to_csv, to_latex, to_text
from hace.lab.report.metric import HEADLINES
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition, chosen_runs, methods_table, runs_csv, runs_table
from hace.lab.report.tables import against_table, confidence_table, headline_table, levels_switch
from hace.lab.study.records import Record
from hace.metrics.intervals import interval, paired_interval
from hace.paper import report_sections
from tests.report_studies import ANIMALS, animals, fair_records, page_with, paper_records, row

FAIR = Condition("fair", "pets", "backbone")
PAPER = Condition("paper", "aircraft", "dinov2_large")
SKILLS = {"cross_entropy": 2.0, "hace": 2.4, "hace_shuffled": 1.5, "hxe_0.2": 1.9}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("runs")
    return fair_records(folder, animals(), SKILLS) + paper_records(folder, animals())


@pytest.fixture(scope="module")
def results(records: list[Record]) -> Results:
    return Results(records)


def all_tables(results: Results) -> Iterator[Table]:
    for scores in results.scores.values():
        yield headline_table(scores)
        levels = levels_switch(scores)
        assert levels is not None
        yield from (table for _, table in levels.options)
    for protocol in ("fair", "paper"):
        table = against_table(results, protocol)
        assert table is not None
        yield table
    for section in report_sections(results, draw=False):
        yield from (block for block in section.blocks if isinstance(block, Table))


def top1_by_hand(records: list[Record]) -> dict[int, tuple[float, np.ndarray]]:
    """By seed, accuracy and right answers from the files themselves."""
    results = {}
    for record in records:
        assert record.run is not None
        arrays = load_file(record.run.folder / "predictions.safetensors")
        right = [float(a == t) for a, t in zip(arrays["answer"], arrays["truth"], strict=True)]
        results[record.key.seed] = (sum(right) / len(right), np.array(right))
    return results


@pytest.mark.slow
def test_fair_numbers_are_means_of_the_final_runs(records: list[Record], results: Results) -> None:
    table = headline_table(results.scores[FAIR])
    for method, title in (("cross_entropy", "cross-entropy"), ("hace", "HACE")):
        mine = [
            r for r in records if r.key.method == method and r.key.protocol == "fair" and r.stage == "final"
        ]
        by_hand = top1_by_hand(mine)
        drawn = interval(np.stack([right for _, right in by_hand.values()]))
        entry = row(table, title)["top-1 ↑"]
        assert entry.text == f"{100 * sum(a for a, _ in by_hand.values()) / 3:.2f}"
        assert entry.detail == f"[{100 * drawn.low:.2f}, {min(100 * drawn.high, 100):.2f}]"
        results_on_disk = [json.loads((r.run.folder / "result.json").read_text()) for r in mine if r.run]
        severity = [d["metrics"]["leaves"]["severity"] for d in results_on_disk]
        assert row(table, title)["levels off ↓"].text == f"{sum(severity) / 3:.3f}"
        assert row(table, title)["seeds"].text == "3"


def test_a_control_is_never_marked_as_best(tmp_path: Path) -> None:
    skills = {"cross_entropy": 2.0, "hace": 2.4, "hace_shuffled": 5.0}
    table = headline_table(Results(fair_records(tmp_path, animals(), skills)).scores[FAIR])
    marks = [row(table, title)["top-1 ↑"].mark for title in ("HACE, shuffled tree", "HACE", "cross-entropy")]
    assert marks == ["", "best", ""]


def test_differences_are_corrected_for_their_number(results: Results) -> None:
    rows = results.against_reference("fair")
    assert set(rows["first"]) == {"hace", "hace_shuffled", "hxe_0.2"}
    smallest = rows.loc[rows["p"].idxmin()]
    assert smallest.comparisons == 3
    assert smallest.holm == pytest.approx(min(1, 3 * smallest.p))
    table = against_table(results, "fair")
    assert table is not None
    alone = int(((rows["low"] > 0) | (rows["high"] < 0)).sum())
    remaining = int((rows["holm"] < 0.05).sum())
    assert (
        f"3 comparisons: {alone} with an interval without 0, {remaining} after Holm's correction"
        in table.remarks[1]
    )


def test_accuracy_by_level_is_the_best_class_carried_up(records: list[Record], results: Results) -> None:
    mine = [
        r
        for r in records
        if r.key.method == "cross_entropy" and r.key.protocol == "fair" and r.stage == "final"
    ]
    group = {animals().index(leaf): above[-1] for leaf, above in ANIMALS.items()}
    carried, by_node = [], []
    for record in mine:
        assert record.run is not None
        arrays = load_file(record.run.folder / "predictions.safetensors")
        pairs = zip(arrays["answer"].tolist(), arrays["truth"].tolist(), strict=True)
        carried.append([float(group[a] == group[t]) for a, t in pairs])
        by_node.append(arrays["level_correct"][:, 0].astype(float))
    assert np.mean(carried) != np.mean(by_node)  # or the two rules could not be told apart
    switch = levels_switch(results.scores[FAIR])
    assert switch is not None
    for (_, table), right in zip(switch.options, (carried, by_node), strict=True):
        drawn = interval(np.stack(right))
        entry = row(table, "cross-entropy")["level 1"]
        assert (entry.text, entry.detail) == (
            f"{100 * drawn.value:.2f}",
            f"[{100 * drawn.low:.2f}, {100 * drawn.high:.2f}]",
        )


@pytest.mark.slow
def test_confidence_is_shown_raw_and_calibrated(tmp_path: Path, results: Results) -> None:
    assert confidence_table(results.scores[FAIR]) is None  # no run has a temperature
    records = fair_records(tmp_path, animals(), {"cross_entropy": 2.0, "hace": 2.4}, temperature=2.0)
    table = confidence_table(Results(records).scores[FAIR])
    assert table is not None
    assert "cross-entropy: 2.00; HACE: 2.00" in table.remarks[0]
    mine = [r.run for r in records if r.key.method == "cross_entropy" and r.stage == "final" and r.run]
    for title, heading, name in (
        ("level 2 ECE", "calibration error (ECE) by level", "level 2"),
        ("hAURC", "selection", "hAURC"),
    ):
        for suffix, prefix in (("", ""), (", calibrated", "calibrated: ")):
            values = [(run.result or {})["metrics"][prefix + heading][name] for run in mine]
            assert row(table, "cross-entropy")[f"{title}{suffix} ↓"].text == f"{100 * np.mean(values):.2f}"


def test_the_interval_of_levels_off_divides_distances_by_mistakes(
    records: list[Record], results: Results
) -> None:
    mine = [
        r
        for r in records
        if r.key.method == "cross_entropy" and r.key.protocol == "fair" and r.stage == "final"
    ]
    above, below = [], []
    for record in mine:
        assert record.run is not None
        arrays = load_file(record.run.folder / "predictions.safetensors")
        wrong = [a != t for a, t in zip(arrays["answer"], arrays["truth"], strict=True)]
        above.append([float(d) if w else 0.0 for d, w in zip(arrays["distance"], wrong, strict=True)])
        below.append([float(w) for w in wrong])
    drawn = interval(np.array(above), np.array(below))
    entry = row(headline_table(results.scores[FAIR]), "cross-entropy")["levels off ↓"]
    assert entry.detail == f"[{drawn.low:.3f}, {drawn.high:.3f}]"


def test_fair_protocol_takes_the_dilution_that_was_best_on_held_out_samples(tmp_path: Path) -> None:
    records = []
    for dilution, skill in ((0.2, 0.5), (0.7, 3.0)):
        for record in fair_records(tmp_path / f"{dilution}", animals(), {"hace": skill}, seeds=(0, 1)):
            records.append(replace(record, key=replace(record.key, dilution=dilution)))
    # Swap the final runs: the test set would choose 0.2, and only the search speaks for 0.7.
    finals = {(r.key.dilution, r.key.seed): r.run for r in records if r.stage == "final"}
    other = {0.2: 0.7, 0.7: 0.2}
    records = [
        replace(r, run=finals[other[r.key.dilution], r.key.seed]) if r.stage == "final" else r
        for r in records
    ]
    chosen = chosen_runs(runs_table(records))
    assert list(chosen["dilution"]) == [0.7, 0.7]
    assert methods_table(chosen)["settings"]["hace"] == "dilution 0.7, rate 4"


def test_what_is_missing_is_said(results: Results) -> None:
    table = headline_table(results.scores[PAPER])
    assert row(table, "HXE α=0.2")["top-1 ↑"] == Entry("diverged", soft=True)
    assert row(table, "soft labels β=10")["top-1 ↑"].text == "failed"
    assert row(table, "soft labels β=30")["top-1 ↑"].text == "not run"


def test_differences_are_paired(records: list[Record], results: Results) -> None:
    runs = {}
    for method in ("hace", "cross_entropy"):
        mine = [
            r for r in records if r.key.method == method and r.key.protocol == "fair" and r.stage == "final"
        ]
        runs[method] = np.stack([right for _, right in top1_by_hand(mine).values()])
    drawn = paired_interval(runs["hace"], runs["cross_entropy"])
    table = against_table(results, "fair")
    assert table is not None
    entry = row(table, "HACE")["pets backbone"]
    assert entry.text == f"{100 * drawn.value:+.2f}"
    star = "*" if drawn.low > 0 or drawn.high < 0 else ""
    assert entry.detail == f"[{100 * drawn.low:+.2f}, {100 * drawn.high:+.2f}]{star}"


@pytest.mark.slow
def test_tallies_count_mean_and_median(tmp_path: Path) -> None:
    records = []
    for name, skill in (("one", 0.4), ("two", 3.5), ("three", 4.0)):
        records += fair_records(
            tmp_path, animals(), {"cross_entropy": 2.0, "hace": skill}, dataset=name, seeds=(0,)
        )
    results = Results(records)
    gaps = []
    for name in ("one", "two", "three"):
        by = {r.key.method: r.top1 for r in records if r.key.dataset == name and r.stage == "final"}
        gaps.append(100 * (by["hace"] - by["cross_entropy"]))
    table = against_table(results, "fair")
    assert table is not None
    result = row(table, "HACE")
    assert result["won"].text == f"{sum(g > 0 for g in gaps)} of 3" == "2 of 3"
    assert result["mean"].text == f"{sum(gaps) / 3:+.2f}"
    assert result["median"].text == f"{sorted(gaps)[1]:+.2f}"


def test_best_is_bold_and_second_underlined(results: Results) -> None:
    table = headline_table(results.scores[FAIR])
    for metric in HEADLINES[:4]:
        head = f"{metric.title} {'↑' if metric.higher else '↓'}"
        values = {
            float(row(table, r[0].text)[head].text): row(table, r[0].text)[head].mark for r in table.rows
        }
        order = sorted(values, reverse=metric.higher)
        assert [values[v] for v in order] == (["best", "second"] + [""] * len(order))[: len(order)]


def test_every_table_in_every_format_is_the_same_twice(records: list[Record]) -> None:
    formats = (to_latex, page_with, to_csv, to_text)
    twice = [[write(t) for t in all_tables(Results(records)) for write in formats] for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(twice[0]) > 40
    assert runs_csv(runs_table(records)) == runs_csv(runs_table(records))


def test_latex_is_a_tabular_with_every_cell_escaped(results: Results) -> None:
    table = Table("t", "t", pandas.DataFrame({"method": ["a_b & 5% #1"], "x": [Entry("1.50", "[1, 2]")]}))
    assert to_latex(table).splitlines()[4] == r"a\_b \& 5\% \#1 & 1.50 & [1, 2] \\"
    for table in all_tables(results):
        text = to_latex(table)
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
        body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(lines) == len(table.rows)
        assert len({len(re.findall(r"(?<!\\)&", line)) for line in lines}) == 1
        assert not re.search(r"(?<!\\)[%#_$]", text)


def test_no_cell_of_a_csv_starts_a_formula(records: list[Record]) -> None:
    cells = {"=a": ["=cmd()"], "b": ["-1.50"], "c": ["-"], "d": ["@x"]}
    table = Table("t", "t", pandas.DataFrame(cells))
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [
        ["'=a", "b", "c", "d"],
        ["'=cmd()", "-1.50", "", "'@x"],
    ]
    hostile = replace(records[0], run=None, error="=1+1")
    assert "'=1+1" in next(csv.DictReader(io.StringIO(runs_csv(runs_table([hostile]))))).values()


def test_hostile_names_stay_text() -> None:
    name = "</script><b>|*_[x](y)_*\n&\"'$"
    frame = pandas.DataFrame({"method": [name], name: [Entry("1.0", name)]})
    table = Table("t", name, frame, remarks=(name,))
    page = page_with(table)
    assert "<b>" not in page
    assert page.count("</script") == 2
    assert (
        next(csv.reader(io.StringIO(to_csv(table)))) == ["method", name, f"{name} (detail)"] or "\n" in name
    )


def test_runs_csv_holds_every_run_and_metric(records: list[Record]) -> None:
    lines = list(csv.DictReader(io.StringIO(runs_csv(runs_table(records)))))
    assert len(lines) == len(records)
    for line, record in zip(lines, records, strict=True):
        assert line["status"] == record.status
        assert float(line["lr"]) == record.lr
        if record.status == "finished":
            assert record.run is not None
            assert record.run.result is not None
            assert line["id"] == record.run.id
            for heading, names in record.run.result["metrics"].items():
                for name, value in names.items():
                    assert line[f"{heading}: {name}"] == ("" if value is None else repr(value))
            assert line["seconds"] == "1.25"
    failed = [line for line in lines if line["status"] == "failed"]
    assert {line["error"] for line in failed} == {"ValueError: out of <memory> & 'luck'"}
    assert {line["status"] for line in lines} == {"finished", "diverged", "failed", "not run"}


def test_text_for_the_terminal(records: list[Record]) -> None:
    text = report_text(records)
    assert "pets, backbone" in text
    assert re.search(r"HACE, shuffled tree +\d+\.\d\d \[\d", text)
    assert text.endswith("52 runs: 44 finished, 4 diverged, 2 failed, 2 not run")
    assert max(map(len, text.splitlines())) <= 100


def test_tables_fit_the_terminal_with_the_longest_names() -> None:
    name = "HACE, 0.9 one-hot + 0.1 soft labels β=30"
    marks = ("best", "second", "")
    frame = pandas.DataFrame(
        [[name, *[Entry("72.41", "[71.40, 73.42]", mark)] * 4] for mark in marks],
        columns=["method", *[f"minus {name}"] * 4],
    )
    table = Table("t", "A long title " * 10, frame)
    lines = to_text(table).splitlines()
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert text.count("72.41 [71.40, 73.42] 1st") == text.count("72.41 [71.40, 73.42] 2nd") == 4
    assert (
        len([line for line in lines if line.startswith("HACE, 0.9 one-hot")]) == 3 * 4
    )  # beside each column


def test_nothing_to_report_is_said(records: list[Record]) -> None:
    with pytest.raises(DataError, match=r"the study has no runs"):
        Results([])
    missing = [r for r in records if r.status in ("failed", "not run", "diverged")]
    with pytest.raises(
        DataError, match=r"none of 8 runs has finished \(2 failed, 4 diverged\). The first error: ValueError"
    ):
        Results(missing)


def test_compared_methods_are_checked(records: list[Record]) -> None:
    with pytest.raises(
        ConfigError, match=r"must name methods of the study\. Got 'hacc'\..*Did you mean 'hace'"
    ):
        Results(records, ("hacc", "cross_entropy"))
    with pytest.raises(ConfigError, match="two methods"):
        Results(records, ("hace",))
    assert (Results(records).first, Results(records).second) == ("hace", "cross_entropy")
    assert Results(records, ("cross_entropy", "hxe_0.2")).second == "hxe_0.2"


def test_damaged_predictions_cost_the_interval_and_are_listed(tmp_path: Path) -> None:
    records = fair_records(tmp_path, animals(), {"cross_entropy": 2.0, "hace": 2.4}, seeds=(0, 1))
    broken = next(r.run for r in records if r.stage == "final" and r.key.method == "hace")
    assert broken is not None
    (broken.folder / "predictions.safetensors").write_bytes(b"not a file of tensors")
    results = Results(records)
    table = headline_table(results.scores[FAIR])
    assert row(table, "HACE")["top-1 ↑"].detail == ""
    assert row(table, "cross-entropy")["top-1 ↑"].detail
    assert len(results.problems) == 1
    assert broken.folder.name in results.problems[0]
