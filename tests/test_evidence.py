"""The tables and numbers in README and docs are those of the kept results."""

import ast
import csv
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evidence import effects, keep, reduce, write
from hace.lab.report.metric import HEADLINES
from hace.lab.report.results import Results
from hace.metrics.intervals import compared_together, holm, p_value
from hace.paper.recipes import fixed_runs
from tests.report_studies import animals, fair_records

ROOT = Path(__file__).parents[1]
MEASURED = (
    "README.md",
    "docs/decisions.md",
    "docs/data.md",
    "docs/estimator.md",
    "docs/hierarchy.md",
    "docs/kernels.md",
    "docs/paper.md",
    "docs/performance.md",
    "docs/serve.md",
    "docs/study.md",
    "docs/training.md",
    "docs/tutorials/cells.md",
    "docs/tutorials/unseen.md",
    "docs/when-it-helps.md",
    "evidence/details.md",
    "evidence/guarantees.md",
    "evidence/paper.md",
    "evidence/peers.md",
    "evidence/tables.md",
)


@pytest.mark.slow
def test_pages_show_the_kept_results() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "evidence" / "write.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", MEASURED)
def test_every_measured_number_comes_from_a_result(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert quotes_results(ROOT / page), "the part of the page about results is marked"
    assert write.unquoted(text, json.loads(write.QUOTED.read_text(encoding="utf-8"))) == []


def test_every_quote_is_used_and_every_study_says_what_made_it() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in write.PAGES)
    listed = ", ".join(part["names"] or "" for part in write._PART.finditer(text)).split(", ")
    assert set(write.read_quotes()) == set(filter(None, listed))
    for study in write.RESULTS.iterdir():
        about = json.loads((study / "about.json").read_text(encoding="utf-8"))
        if "tables" in about:  # of benchmarks, each with its own command
            assert set(about["tables"]) == {path.name for path in study.glob("*.csv")}, study.name
            assert all(made["command"] for made in about["tables"].values()), study.name


def test_every_page_with_results_is_checked() -> None:
    results = [page.relative_to(ROOT).as_posix() for page in write.PAGES if quotes_results(page)]
    assert sorted(results) == sorted(MEASURED)


def quotes_results(page: Path) -> bool:
    text = page.read_text(encoding="utf-8")
    return any(mark in text for mark in ("<!-- results", "<!-- evidence: "))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results in place of that of the repository."""
    monkeypatch.setattr(write, "RESULTS", tmp_path)
    return tmp_path


def test_tables_that_a_benchmark_prints_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bench.py"
    script.write_text(
        "print('first\\n\\n| loss | top-1 |\\n| --- | --- |\\n| a | 5.5 [5.1, 6.0] |\\n| b | 4 |')\n"
        "print('\\nsecond\\n| x |\\n| --- |\\n| 1 |')\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(keep, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["keep.py", "new/table", str(script)])
    keep.main()
    assert (tmp_path / "new/table.csv").read_text(encoding="utf-8") == (
        'loss,top-1,top-1 (detail)\na,5.5,"[5.1, 6.0]"\nb,4,\n'
    )
    assert (tmp_path / "new/table-2.csv").read_text(encoding="utf-8") == "x\n1\n"
    about = json.loads((tmp_path / "new/about.json").read_text(encoding="utf-8"))["tables"]
    assert sorted(about) == ["table-2.csv", "table.csv"]
    assert about["table.csv"]["command"].startswith("python ")


def test_numbers_that_look_measured() -> None:
    page = """<!-- results: a, b -->
    Ahead by 3.5 points, or +2, at d = 0.5 with `lr=0.1`; 95% intervals, CUB-200, [losses](a-1.5.md).
    It is +7.5, and β=0.3 gives -1.25 or 7.5.
    <!-- end of results --> Elsewhere 8.5."""
    assert write.unquoted(page, {"a": "+7.5", "b": "7.5"}) == ["3.5", "+2", "-1.25"]


def test_quotes_are_replaced_in_their_places() -> None:
    page = """1.5
    <!-- results: a, b, a -->
    First 1.5 (11.5), then 12 of 120 and 1.5 again.
    <!-- end of results -->"""
    assert write.written(page, {"a": "1.5", "b": "12"}, {"a": "2.5", "b": "7 to 8"}) == page.replace(
        "First 1.5 (11.5), then 12 of 120 and 1.5", "First 2.5 (11.5), then 7 to 8 of 120 and 2.5"
    )
    with pytest.raises(SystemExit, match="must show '9', the quote 'a'"):
        write.written(page, {"a": "9", "b": "12"}, {})


def test_a_quote_is_rewritten_from_its_row(folder: Path) -> None:
    (folder / "e.csv").write_text(
        "method,labels,low\ncross-entropy,all,1\ncross-entropy,few,2\nHACE,worse,-0.26\n", encoding="utf-8"
    )
    known = {
        "few": {
            "from": "e.csv",
            "where": {"method": "cross-entropy", "labels": "few"},
            "show": "{low} points",
        },
        "both": {"from": "e.csv", "where": {"method": "cross-entropy"}, "show": "{low}"},
        "round": {"from": "e.csv", "where": {"labels": "worse"}, "show": "{low~1} points"},
    }
    assert write.quote("few", known) == "2 points"
    assert write.quote("round", known) == "0.3 points"
    with pytest.raises(SystemExit, match=r"one row of e\.csv\. Got 2"):
        write.quote("both", known)
    with pytest.raises(SystemExit, match="'none'"):
        write.quote("none", known)
    assert write.table('e.csv columns="labels, low" where="method=cross-entropy; labels=few"').endswith(
        "| few | 2 |\n"
    )


def test_the_short_table_is_made_from_the_results() -> None:
    summary = importlib.import_module("evidence.summary")
    with (write.RESULTS / "confirmation" / "summary.csv").open(encoding="utf-8", newline="") as file:
        assert list(summary.table()) == list(csv.DictReader(file))
    for situation in summary.SITUATIONS:
        for study in summary.DATASETS.values():
            change = summary.measured(study, situation)
            assert change.low < change.after - change.before < change.high


def test_a_study_keeps_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "evidence")  # as for a script
    run = importlib.import_module("run")
    results = Results(fair_records(tmp_path, animals(), {"cross_entropy": 2.0, "hace": 2.4}))
    names = [table.id for table in run.kept_tables(results)]
    assert any(name.startswith("methods-") for name in names), names


def test_effects_count_every_comparison_of_a_study(tmp_path: Path) -> None:
    results = Results(fair_records(tmp_path, animals(), {"cross_entropy": 2.0, "hace": 2.4, "hxe_0.2": 1.9}))
    top1, hf1 = (next(m for m in HEADLINES if m.title == title) for title in ("top-1", "hF1"))
    rows = effects_of(results, top1)
    assert [(row["method"], row["minus"]) for row in rows] == [
        ("HACE", "cross-entropy"),
        ("HXE α=0.2", "cross-entropy"),
    ]
    (scores,) = results.scores.values()
    gaps = {m: scores.difference(m, "cross_entropy", top1) for m in ("hace", "hxe_0.2")}
    expected = compared_together({m: gap.interval for m, gap in gaps.items() if gap is not None})
    assert [row["holm"] for row in rows] == [f"{one.adjusted:.2g}" for one in expected.values()]
    assert {row["comparisons"] for row in rows} == {"2"}
    assert {row["over"] for row in effects_of(results, top1)} == {effects.SAMPLES}
    assert {row["over"] for row in effects_of(results, hf1)} == {effects.SAMPLES}
    ece = next(m for m in effects.metrics(results) if m.title == "ECE")
    over_seeds = effects_of(results, ece)
    assert {row["over"] for row in over_seeds} == {effects.SEEDS}
    p = [float(str(row["p"])) for row in over_seeds]
    gaps = {m: scores.difference(m, "cross_entropy", ece) for m in ("hace", "hxe_0.2")}
    intervals = [gap.interval for gap in gaps.values() if gap is not None]
    assert p == pytest.approx([p_value(interval) for interval in intervals], rel=0.05)
    assert {interval.freedom for interval in intervals} == {len(scores.finished("cross_entropy")) - 1}
    assert [float(str(row["holm"])) for row in over_seeds] == pytest.approx(holm(p), rel=0.05)


def test_distance_and_hf1_are_one_quantity_where_all_leaves_are_equally_deep(tmp_path: Path) -> None:
    results = Results(fair_records(tmp_path, animals(), {"cross_entropy": 2.0, "hace": 2.4}))
    (scores,) = results.scores.values()
    assert scores.hierarchy is not None
    depths = scores.hierarchy.depths[scores.hierarchy.leaf_nodes]
    assert len(set(depths.tolist())) == 1
    result = {}
    for title in ("HD@1", "hF1"):
        metric = next(m for m in HEADLINES if m.title == title)
        gap = scores.difference("hace", "cross_entropy", metric)
        assert gap is not None
        result[title] = gap.interval
    assert p_value(result["HD@1"]) == pytest.approx(p_value(result["hF1"]), rel=1e-9)
    assert result["hF1"].value == pytest.approx(-result["HD@1"].value / depths[0])
    assert result["hF1"].freedom == pytest.approx(result["HD@1"].freedom)


def effects_of(results: Results, metric: effects.Metric) -> list[dict[str, object]]:
    return [dict(zip(effects.COLUMNS, row, strict=True)) for row in effects.rows(results, metric)]


def test_a_table_is_rewritten_from_its_file(folder: Path) -> None:
    (folder / "t.csv").write_text(
        'method,top-1,top-1 (detail),seeds\ncross-entropy,70.0,"[69, 71]",5\nA|B,71.0,,5\n', encoding="utf-8"
    )
    assert write.table("t.csv") == (
        "| method | top-1 | seeds |\n| --- | --- | --- |\n| cross-entropy | 70.0 [69, 71] | 5 |\n| A\\|B | 71.0 | 5 |\n"
    )
    assert write.table('t.csv columns="method, top-1" rows="cross-entropy" intervals="no"') == (
        "| method | top-1 |\n| --- | --- |\n| cross-entropy | 70.0 |\n"
    )
    with pytest.raises(SystemExit, match="'HACE'"):
        write.table('t.csv rows="HACE"')


def test_effects_are_shown_by_method(folder: Path) -> None:
    (folder / "e.csv").write_text(
        "method,metric,first,difference,low,high,holm\nA,top-1,70.0,+1.0,+0.5,+1.5,0.01\nA,hF1,80.0,-0.1,-0.3,+0.1,1\n",
        encoding="utf-8",
    )
    assert write.table('e.csv metrics="top-1; hF1"').splitlines()[-1] == (
        "| A | 70.0 | **+1.0 [+0.5, +1.5]** | -0.1 [-0.3, +0.1] |"
    )


def test_an_effect_over_seeds_alone_is_marked_and_never_bold(folder: Path) -> None:
    (folder / "e.csv").write_text(
        "method,labels,metric,first,difference,low,high,holm,over\n"
        "A,all labels,top-1,70.0,+1.0,+0.5,+1.5,0.01,seeds and samples\n"
        "A,all labels,hF1,80.0,+0.1,+0.1,+0.1,0.001,seeds\n",
        encoding="utf-8",
    )
    assert "**" not in write.table('e.csv where="metric=hF1" by="labels"')
    header, _, row = write.table('e.csv metrics="top-1; hF1"').splitlines()
    assert header == "| method | top-1 | Δ top-1 | Δ hF1 † |"
    assert row == "| A | 70.0 | **+1.0 [+0.5, +1.5]** | +0.1 [+0.1, +0.1] |"


def test_searches_that_ended_at_the_edge_are_marked(folder: Path) -> None:
    (folder / "about.json").write_text('{"command": "hace study x --rates 2,8,32 --decays 0"}')
    (folder / "methods-x-fair-1_a_class.csv").write_text(
        'method,chosen\ncross-entropy,"rate 8, decay 0 to 0.0001"\n'
        'HACE,"d 0.5, rate 8 to 32"\nclass embeddings,rate 0.125 to 0.5\n',
        encoding="utf-8",
    )
    (folder / "methods-x-fair.csv").write_text(
        "method,chosen\ncross-entropy,rate 2\nHACE,rate 8\n", encoding="utf-8"
    )
    assert write.at_edge(folder, "1 a class") == {"HACE", "class embeddings"}  # whose rates are a sixteenth
    assert write.at_edge(folder, "all labels") == {"cross-entropy"}
    (folder / "labels-x-fair.csv").write_text(
        "method,all labels,all labels (detail),1 a class,1 a class (detail),tried\n"
        'cross-entropy,70,"[69, 71]",30,"[29, 31]",6\n'
        'HACE,71,"[70, 72]",31,"[30, 32]",6\n',
        encoding="utf-8",
    )
    assert write.table("labels-x-fair.csv").splitlines() == [
        "| method | all labels | 1 per class | settings tried |",
        "| --- | --- | --- | --- |",
        "| cross-entropy | 70 [69, 71] ‡ | 30 [29, 31] | 6 |",
        "| HACE | 71 [70, 72] | 31 [30, 32] ‡ | 6 |",
    ]


def test_effects_are_shown_by_labels(folder: Path) -> None:
    (folder / "e.csv").write_text(
        "labels,method,metric,difference,low,high,holm\n5 a class,A,top-1,+1,+0,+2,0.01\n"
        "5 a class + parent,A,top-1,+3,+2,+4,1\n",
        encoding="utf-8",
    )
    assert write.table('e.csv by="labels" where="metric=top-1"').splitlines()[::2] == [
        "| method | 5 per class | 5 per class, rest coarse |",
        "| A | **+1 [+0, +2]** | +3 [+2, +4] |",
    ]


def test_the_first_samples_of_each_class_are_kept() -> None:
    labels = np.array([2, 0, 2, 2, 0, 1])
    assert reduce.first_of_each(labels, 2).tolist() == [0, 1, 2, 4, 5]


def test_reduced_features_keep_the_largest_variance() -> None:
    rng = np.random.default_rng(0)
    train = rng.normal(size=(200, 6)) * [9, 1, 7, 1, 1, 1] + 3
    few, _ = reduce.reduced(train, train[:5], 2)
    assert few.var(axis=0) == pytest.approx([train[:, 0].var(), train[:, 2].var()], rel=0.05)
    assert np.abs(few.mean(axis=0)).max() < 1e-5


def test_the_papers_pairs_and_the_same_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """HACE at l and l/d beside cross-entropy at l d and l; at equal rates both are equal here."""
    monkeypatch.syspath_prepend(ROOT / "evidence")
    protocol = importlib.import_module("protocol")
    rows = []
    for seed in (0, 1):
        for method, diluted in (("hace", True), ("cross_entropy", False)):
            for run in fixed_runs(diluted, 0.01):
                about = {
                    "data": "birds",
                    "optimiser": "sgd",
                    "base rate": 0.01,
                    "severity": 2.0,
                    "seed": seed,
                }
                about |= {"method": method, "dilution": run.dilution, "pairing": run.pairing, "rate": run.lr}
                rows.append({**about, "top-1": run.lr + 0.1 * seed})  # only the rate decides
    (row,) = protocol.pairings(rows)
    assert (row["cross-entropy, best of 4"], row["HACE, best of 6"]) == ("6.00", "10.00")
    assert (row["difference"], row["difference (detail)"]) == ("+4.00", "[+4.00, +4.00]")
    gains = [1 - d for d in (0.2, 0.5, 0.7)] + [1 / d - 1 for d in (0.2, 0.5, 0.7)]
    assert (row["pairs ahead, of 6"], row["mean gain of the pairs"]) == ("6.0", f"{np.mean(gains):+.2f}")
    by_d = {row["d"]: row for row in protocol.same_rates(rows)}
    assert [by_d[d]["difference"] for d in (0.2, 0.5, 0.7)] == [
        "+0.00"
    ] * 3  # both at l, the largest of cross-entropy
    (cells,) = protocol.by_base_rate([{k: str(v) for k, v in row.items()} | {"data": "cars"}])
    assert cells["Cars"] == "**+4.00 [+4.00, +4.00]**, 6.0"
    (cells,) = protocol.by_base_rate([{**row, "data": "cars", "pairs ahead, of 6": "4.9"}])
    assert cells["Cars"] == "+4.00 [+4.00, +4.00], 4.9"
    assert {part.partition("-")[2] for part in protocol.PARTS} == set(protocol.SETS)
    for part in protocol.PARTS:
        assert list(protocol.commands(part, Path("data"), Path("work")))


def test_the_papers_pairs_are_beside_the_printed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both differences are HACE minus cross-entropy; results of other datasets stay when one is kept anew."""
    monkeypatch.syspath_prepend(ROOT / "evidence")
    protocol = importlib.import_module("protocol")
    setting = {"data": "cars", "optimiser": "adamw", "base rate": "0.003"}
    runs = [{**setting, "method": "cross_entropy", "dilution": "", "pairing": "adjusted", "top-1": "50"}]
    for d in ("0.2", "0.5", "0.7"):
        runs += [{**setting, "method": "cross_entropy", "dilution": d, "pairing": "standard", "top-1": "40"}]
        for pairing in ("standard", "adjusted"):
            runs += [{**setting, "method": "hace", "dilution": d, "pairing": pairing, "top-1": "51"}]
    rows = protocol.beside_printed(runs)
    assert [row["ours: Cars"] for row in rows] == ["+11.00"] * 3 + ["+1.00"] * 3 + ["+6.00"]
    assert rows[0]["paper: CIFAR-100"] == f"{96.48 - 95.53:+.2f}"
    table = tmp_path / "table.csv"
    protocol._write(table, [{"data": "cars", "x": "1"}, {"data": "cub200", "x": "2"}])
    protocol._replace(table, [{"data": "cars", "x": "3"}])
    assert protocol._read(table) == [{"data": "cub200", "x": "2"}, {"data": "cars", "x": "3"}]


@pytest.mark.parametrize("folder", ["benchmarks", "evidence", "examples", "tools"])
def test_scripts_import_what_the_package_has(folder: str) -> None:
    missing = []
    for script in sorted((ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "hace":
                continue
            try:
                module = importlib.import_module(str(node.module))
            except ModuleNotFoundError as error:  # of an extra that is not installed, or renamed
                missing += [f"{script.name}: {error}"] if str(error.name).startswith("hace") else []
                continue
            for name in node.names:
                if not hasattr(module, name.name) and not is_module(f"{node.module}.{name.name}"):
                    missing.append(f"{script.name}: {node.module}.{name.name}")
    assert missing == []


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
