"""The paper's numbers as data, and its claims recomputed from them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hace import nabirds_hierarchy
from hace.errors import ConfigError
from hace.paper import ASSUMPTIONS, PaperTable, PrintedCell, paper_tables
from hace.paper.printed import CELL_KEYS, read_document
from tests.paper.claims import (
    claims_markdown,
    claims_summary,
    gains,
    misplaced_marks,
    paper_claims,
    whole_count,
)

TABLES = paper_tables()
RESULTS = {name: table for name, table in TABLES.items() if table.metric in ("top-1", "top-5")}
END_TO_END = ("best_to_best", "model_matched", "best_to_best_top5")
PROBES = ("probe", "probe_matched", "probe_top5")
PAGE = Path(__file__).parents[2] / "evidence" / "paper.md"

# Of the LaTeX source, by another reader than ours: cells, their sum in hundredths, the sum of each times its place
# (so that two cells that change places are seen), bold and underlined ones.
CHECKS = {
    "best_to_best": (36, 206549, 3290525, 18, 0),
    "model_matched": (72, 340617, 10139833, 36, 0),
    "nabirds_methods": (48, 232056, 4695555, 6, 6),
    "probe": (30, 230415, 3418752, 4, 3),
    "probe_matched": (36, 273227, 4846895, 18, 0),
    "best_to_best_top5": (36, 281496, 4794272, 18, 0),
    "nabirds_methods_top5": (48, 322477, 6980114, 6, 6),
    "probe_top5": (30, 277370, 4260924, 3, 6),
}

# printed, recomputed, verdict; in the order of paper_claims()
CLAIMS = """
    15 of 18 ; 15 of 18 ; recomputes
    4.66 ; 4.66 ; recomputes
    1.57 ; 1.57 ; recomputes
    larger ; 6.14, 6.74, 1.10 ; recomputes
    17 of 18 ; 17 of 18 ; recomputes
    4.46 ; 4.46 ; recomputes
    31 of 36 ; 31 of 36 ; recomputes
    8.83 ; 8.83 ; recomputes
    3 ; 3 ; recomputes
    3.31 ; 3.31 ; recomputes
    21 ; 21 ; recomputes
    59 of 70 ; ; cannot be recomputed
    7.21 ; ; cannot be recomputed
    28 of 30 ; ; cannot be recomputed
    4.21 ; ; cannot be recomputed
    6 ; 8 ; differs
    4 of 6 ; 4 of 6 ; recomputes
    4.38 ; 4.38 ; recomputes
    consistently ; 3 of 6 ; differs
    mostly ; 5 of 9 ; recomputes
    both do ; 13 of 18 ; differs
    large majority ; 29 of 36 ; recomputes
    3 of 3 ; 3 of 3 ; recomputes
    2.18 ; 2.19 ; within rounding
    3 of 3 ; 3 of 3 ; recomputes
    17 of 18 ; 17 of 18 ; recomputes
    1.59 ; 1.59 ; recomputes
    5.06 ; 5.06 ; recomputes
    0.99 ; 0.99 ; recomputes
    all ; 4 of 10 ; differs
    10 ; 10 ; recomputes
    60,000 ; 60,000 ; recomputes
    10,000 ; 10,200 ; differs
"""


def number(cell: PrintedCell) -> float:
    assert cell.value is not None
    return cell.value


def differences(table: PaperTable) -> list[float]:
    """HACE minus cross-entropy, by the layout alone: the columns alternate."""
    values = [number(cell) for cell in table.cells]
    return [ours - theirs for ours, theirs in zip(values[::2], values[1::2], strict=True)]


def test_the_numbers_are_those_of_the_source() -> None:
    assert list(RESULTS) == list(CHECKS)
    for name, table in RESULTS.items():
        hundredths = [int(cell.printed.replace(".", "")) for cell in table.cells]
        marks = Counter(cell.mark for cell in table.cells)
        weighted = sum(place * value for place, value in enumerate(hundredths, 1))
        result = (len(hundredths), sum(hundredths), weighted, marks["bold"], marks["underline"])
        assert result == CHECKS[name], name
        assert all(re.fullmatch(r"\d{1,2}\.\d\d", cell.printed) for cell in table.cells)


def test_a_cell_is_named_by_its_key() -> None:
    for name, table in TABLES.items():
        keys = {tuple(getattr(cell, name) for name in CELL_KEYS) for cell in table.cells}
        assert len(keys) == len(table.cells) == len(table.rows) * len(table.columns)
        crossings = [table.cell(**row, **column) for row in table.rows for column in table.columns]
        assert crossings == list(table.cells)
        assert {cell.table for cell in table.cells} == {name}


def test_names_are_those_that_results_are_joined_by() -> None:
    from hace.data import DATASETS

    cells = [cell for table in TABLES.values() for cell in table.cells]
    assert {cell.dataset for cell in cells} - {None} == {
        name for name, kind in DATASETS.items() if kind.official
    }
    used = {name for cell in cells for name in (cell.dataset, cell.model, cell.method) if name}
    assert used == set(read_document("tables.json")["names"])


def test_the_table_of_architectures_reads_as_numbers() -> None:
    table = TABLES["architectures"]
    assert table.value(model="vit_base", metric="params") == 86e6
    assert table.value(model="swin_tiny", metric="learning_rate") == 1.25e-4
    assert table.value(model="resnet50", metric="epochs", dataset="aircraft") == 750
    assert table.cell(model="resnet18", metric="dropout").value is None
    assert TABLES["learning_rates"].cell(method="cross_entropy", pairing="standard").printed == "l * d"


def test_claims_are_as_listed() -> None:
    listed = [tuple(part.strip() for part in line.split(";")) for line in CLAIMS.strip().splitlines()]
    results = [(c.printed, c.recomputed.replace(";", ","), c.status) for c in paper_claims()]
    assert results == listed


def test_means_and_counts_follow_from_the_layout() -> None:
    """The same figures by other code: columns in turn, floats."""
    said = {
        "best_to_best": (15, 18, 4.66, 20.39, -1.57),
        "model_matched": (31, 36, 8.83, 73.84, -28.92),
        "probe_matched": (17, 18, 1.59, 5.06, -0.99),
        "best_to_best_top5": (17, 18, 4.46, 20.37, -0.41),
    }
    for name, (wins, of, mean, largest, least) in said.items():
        points = differences(TABLES[name])
        assert (sum(p > 0 for p in points), len(points)) == (wins, of)
        assert [sum(points) / len(points), max(points), min(points)] == pytest.approx(
            [mean, largest, least], abs=0.005
        )
        assert [float(g) for g in gains(TABLES[name]).values()] == pytest.approx(points)


def test_the_mean_without_collapsed_runs_leaves_out_the_three_that_the_paper_names() -> None:
    table = TABLES["model_matched"]
    three = [("resnet18", 0.7), ("resnet34", 0.5), ("resnet34", 0.7)]
    low = [table.value(model=m, dilution=d, pairing="standard", method="cross_entropy") for m, d in three]
    assert low == [3.39, 2.13, 5.01]
    rest = [
        float(gain)
        for cell, gain in gains(table).items()
        if (cell.model, cell.dilution) not in three or cell.pairing == "adjusted"
    ]
    assert len(rest) == 33
    assert sum(rest) / 33 == pytest.approx(3.31, abs=0.005)


def test_leads_over_the_next_best_method() -> None:
    def lead(row: str, table: PaperTable, ours: tuple[str, ...]) -> float:
        cells = [c for c in table.cells if row in (c.model, c.dataset)]
        others = [number(c) for c in cells if not str(c.method).startswith("hace")]
        return max(number(c) for c in cells if c.method in ours) - max(others)

    birds, variants = TABLES["nabirds_methods"], ("hace", "hace_smooth")
    leads = [lead(row["model"], birds, variants) for row in birds.rows]
    assert leads == pytest.approx([3.77, 0.87, 1.68, 19.16, 1.72, -0.90])
    assert sum(leads) / 6 == pytest.approx(4.38, abs=0.005)
    probe = TABLES["probe"]
    best = [lead(row["dataset"], probe, (*variants, "hace_soft10", "hace_soft30")) for row in probe.rows]
    plain = [lead(row["dataset"], probe, ("hace",)) for row in probe.rows]
    assert best == pytest.approx([0.22, 4.89, 1.46])
    assert (sum(best) / 3, sum(plain) / 3) == pytest.approx((2.19, 2.18), abs=0.005)


def test_bold_is_the_best_and_underlined_the_second() -> None:
    assert misplaced_marks() == []


def test_a_misplaced_mark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ("77.93", "bold"), ("76.52", "underline"), ("70.00", "bold")
    cells = tuple(PrintedCell("t", text, mark, method=text, metric="top-1") for text, mark in row)
    table = PaperTable("t", "", "", (), (), cells)
    monkeypatch.setattr("tests.paper.claims.paper_tables", lambda: {"t": table})
    assert misplaced_marks() == [cells[2]]


def test_best_runs_agree_with_the_tables_by_dilution_where_they_do() -> None:
    """Probes do, but for cross-entropy on NABirds; end to end on FGVC-Aircraft no cell does."""
    off = {}
    for best, matched in (("probe", "probe_matched"), ("best_to_best", "model_matched")):
        for cell in TABLES[best].cells:
            runs = TABLES[matched].select(dataset=cell.dataset, model=cell.model, method=cell.method)
            if runs:
                off[cell] = round(max(number(run) for run in runs) - number(cell), 2)
    probes = {(c.dataset, c.method): value for c, value in off.items() if c.table == "probe" and value}
    planes = sorted(value for c, value in off.items() if c.table == "best_to_best")
    assert probes == {("nabirds", "cross_entropy"): -0.01}
    assert len(planes) == 12
    assert (planes[0], planes[-1]) == (0.06, 1.80)


def test_the_comparison_on_nabirds_takes_over_the_best_runs() -> None:
    for suffix in ("", "_top5"):
        for cell in TABLES["best_to_best" + suffix].select(dataset="nabirds"):
            same = TABLES["nabirds_methods" + suffix].cell(model=cell.model, method=cell.method)
            assert same.printed == cell.printed


def test_repeated_numbers() -> None:
    """Numbers that occur twice in a row, apart from the one cross-entropy run that serves three dilutions."""
    repeats = set()
    for table in RESULTS.values():
        for row in table.rows:
            runs = {(cell.printed, cell.method, cell.dilution if cell.method == "hace" or cell.pairing == "standard" else 0)
                    for cell in table.select(**row)}  # fmt: skip
            count = Counter(printed for printed, *_ in runs)
            repeats |= {(table.id, *row.values(), printed) for printed, times in count.items() if times > 1}
    assert repeats == {
        ("model_matched", "vit_base", "16.08"),
        ("nabirds_methods", "resnet34", "71.01"),
        ("probe", "nabirds", "84.96"),
        ("probe", "nabirds", "83.50"),
        ("probe_matched", "nabirds", "80.18"),
        ("probe_top5", "cifar100", "98.96"),
        ("probe_top5", "aircraft", "86.02"),
        ("probe_top5", "nabirds", "97.60"),
        ("probe_top5", "nabirds", "97.21"),
    }


def planes(tables: tuple[str, ...]) -> set[str]:
    return {cell.printed for name in tables for cell in TABLES[name].select(dataset="aircraft")}


def test_end_to_end_accuracies_are_counts_of_3333_images() -> None:
    values = planes(END_TO_END)
    assert len(values) == 82
    assert sum(whole_count(value, 3333) for value in values) == 82
    assert sum(whole_count(value, 3400) for value in values) < 41


def test_accuracies_of_probes_are_no_counts_but_fit_means_of_three_runs_as_any_number_does() -> None:
    values = planes(PROBES)
    odd = sum(not whole_count(value, 3333) for value in values)
    assert f"{odd} of the {len(values)} different accuracies are not whole counts" in text_of("probe-counts")
    assert all(whole_count(value, 3 * 3333) for value in values)
    anything = [f"{hundredths / 100:.2f}" for hundredths in range(3000, 9000)]
    assert sum(whole_count(value, 3 * 3333) for value in anything) > 0.999 * len(anything)
    assert 0.3 < sum(whole_count(value, 3333) for value in anything) / len(anything) < 0.4


def test_cross_entropy_still_rises_where_its_search_ends() -> None:
    cells = {cell.dataset: [] for cell in TABLES["probe_matched"].cells}
    for cell in TABLES["probe_matched"].select(method="cross_entropy"):
        if cell.pairing == "standard" or cell.dilution == 0.7:  # l * d, and l once
            cells[cell.dataset].append(cell)
    for dataset in ("aircraft", "nabirds"):
        printed = [cell.printed for cell in cells[dataset]]
        assert printed == sorted(printed)
        assert ", ".join(printed) in text_of("cross-entropy-rises")


def test_leads_of_hace_with_smoothing_on_nabirds() -> None:
    table = TABLES["nabirds_methods"]
    worded, rivals = [], []
    for comparison in table.comparisons():
        scores = {str(cell.method): number(cell) for cell in comparison}
        ours = scores.pop("hace_smooth")
        worded.append(ours - max(scores.values()))
        scores.pop("hace")
        rivals.append(ours - max(scores.values()))
    won = [i for i, lead in enumerate(worded) if lead > 0]
    assert len(won) == 4
    figures = [sum(worded[i] for i in won) / 4, sum(rivals[i] for i in won) / 4, sum(rivals) / 6]
    assert figures == pytest.approx([3.545, 6.37, 2.445])
    assert all(f"{round(figure, 3):g}" in text_of("next-best") for figure in figures)


def test_species_of_nabirds(real_data: Callable[[str], Path]) -> None:
    h = nabirds_hierarchy(real_data("nabirds"))
    species = {int(h.parent_nodes[leaf]) for leaf in h.leaf_nodes}
    short = sum(h.depths[v] == 2 for v in species)  # order, species, variant
    perching = h.nodes[h.names.index("Perching Birds")]
    inside = [v for v in species if perching in h.ancestors(h.nodes[v])]
    assert f"{short} of the {len(species)} species" in text_of("three-level-path")
    assert f"{len(inside)} of the {len(species)} species" in text_of("passeriformes")
    assert len(inside) + short == len(species)


def test_the_13_nodes_of_aircraft_by_arithmetic() -> None:
    left, right = "1 + 41 + 70 + 102", "1 + 30 + 70 + 100"
    totals = [sum(map(int, parts.split(" + "))) for parts in (left, right)]
    assert totals == [214, 201]
    assert left in text_of("fgvc-nodes")
    assert right in text_of("fgvc-nodes")


def errata() -> dict[str, tuple[str, list[PrintedCell]]]:
    """Text and cells of every erratum; each of its selectors must find some."""
    results = {}
    for entry in read_document("errata.json"):
        keys = [
            ({k: v for k, v in key.items() if k != "table"}, TABLES[key["table"]]) for key in entry["cells"]
        ]
        cells = [table.select(**key) for key, table in keys]
        assert all(cells), entry["id"]
        results[entry["id"]] = (entry["text"], [cell for group in cells for cell in group])
    return results


def text_of(name: str) -> str:
    return errata()[name][0]


def test_errata_point_at_cells_and_say_what_stands_there() -> None:
    by_id = {name: cells for name, (_, cells) in errata().items()}
    text_only = {"dag-mass", "passeriformes", "three-level-path", "leaf-gradient", "families"}
    assert {name for name, cells in by_id.items() if not cells} == text_only
    assert {cell.printed for cell in by_id["repeated-80.18"]} == {"80.18"}
    assert {cell.printed for cell in by_id["repeated-71.01"]} == {"71.01"}
    assert sorted(number(cell) for cell in by_id["cross-entropy-collapse"]) == [2.13, 3.39, 5.01]
    assert [cell.printed for cell in by_id["hace-collapse"]] == ["9.75"]
    assert {cell.printed for cell in by_id["probe-cross-entropy"]} == {"83.50", "83.49"}
    assert {cell.printed for cell in by_id["fgvc-counts"]} == {"6,800", "3,400", "102"}
    below = {
        c
        for name in ("probe", "probe_matched")
        for c in TABLES[name].select(dataset="cifar100")
        if number(c) < 96
    }
    assert set(by_id["over-96"]) == below
    pair = TABLES["probe_matched"].select(dataset="aircraft", dilution=0.2, pairing="standard")
    assert " - ".join(cell.printed for cell in pair) in text_of("stray-row")


def test_footnotes_mark_their_cells() -> None:
    table = TABLES["model_matched"]
    ids = {text: name for name, (text, _) in errata().items()}
    notes = {ids[note.text]: note for note in table.footnotes}
    assert [note.mark for note in table.footnotes] == list("abcd")
    low = table.cell(model="swin_tiny", dilution=0.2, pairing="adjusted", method="hace")
    assert table.marks(low) == (notes["hace-collapse"].mark,)
    assert len(notes["two-tables"].cells) == 72  # of the whole table: it marks no single cell
    assert table.marks(table.cells[0]) == ()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({"modle": "vit_base"}, "a key must be one of 'dataset', .* Got 'modle'. Did you mean 'model'"),
        ({"model": "vit"}, "Got 0 cells. For model it has resnet18, resnet34"),
        ({"model": "vit_base"}, "Got 6 cells. Add dataset and method."),
    ],
)
def test_a_key_that_names_no_cell_or_many(key: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TABLES["best_to_best"].value(**key)


def test_a_cell_without_a_number_says_so() -> None:
    with pytest.raises(ConfigError, match=r"must hold a number\. Got '3 or 4'\. Read its `printed`"):
        TABLES["datasets"].value(dataset="nabirds", metric="depth")


def test_the_page_shows_what_follows_from_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    errors = "\n".join(f"- **{e['id']}** ({e['where']}): {e['text']}" for e in read_document("errata.json"))
    assumed = "\n".join(f"- {assumption}" for assumption in ASSUMPTIONS)
    for text in (claims_summary(), claims_markdown(), errors, assumed):
        assert text in page, f"evidence/paper.md must hold:\n{text}"


def test_the_paper_is_read_without_torch() -> None:
    code = "import sys, hace.paper as p; p.paper_tables(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
