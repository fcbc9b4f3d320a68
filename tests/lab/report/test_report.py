"""The report as a whole: the page, its files, bad input, and how nodes are counted."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hace import Hierarchy
from hace.cli import main
from hace.errors import ConfigError, DataError, FormatError, HaceError
from hace.lab.report import PAGE, About, write_report
from hace.lab.report.metric import BEST_NODE_BY_LEVEL, BY_LEVEL
from hace.lab.report.nodes import ancestors_at, node_accuracies, node_counts
from hace.lab.report.page import drawing_data, thinned, to_page
from hace.lab.report.results import Results
from hace.lab.report.study_report import build_document
from hace.lab.runs.run import HIERARCHY
from hace.lab.study.folder import read_study
from hace.lab.study.records import Record
from hace.metrics.answers import shared_counts
from hace.paper import report_sections
from tests.report_studies import animals, fair_records, paper_records, write_study

HOSTILE = "</script><b>&\"'$x_1$"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    runs = folder / "runs"
    records = fair_records(
        runs, animals(), {"cross_entropy": 2.0, "hace": 2.4, "hace_shuffled": 1.5}, seeds=(0, 1)
    )
    records += paper_records(runs, animals())
    return write_study(folder, records, animals())


@pytest.fixture(scope="module")
def page(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("out") / "new" / "folder", sections=[report_sections])


class Outline(HTMLParser):
    """What a browser would see: tags, addresses, captions and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.images: list[str | None] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value for name in ("src", "href") if (value := values.get(name))]
        self.ids += [value] if (value := values.get("id")) else []
        if tag == "img":
            self.images.append(values.get("alt"))


def test_page_needs_nothing_from_outside(page: Path) -> None:
    text = page.read_text()
    outline = Outline(text)
    known = ("#", "data:image/svg+xml;base64,")
    assert all(address.startswith(known) for address in outline.addresses)
    assert "link" not in outline.tags
    assert not re.search(r"@import|url\(", text)
    anchors = {a[1:] for a in outline.addresses if a.startswith("#")}
    assert anchors <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.images
    assert all(alt and len(alt) > 20 for alt in outline.images)
    assert outline.tags.count("table") == outline.tags.count("caption") > 8
    assert not re.search(r"\{\{|\{%", text), "a part of the template was not filled"


def test_hostile_names_stay_text_on_the_page(page: Path) -> None:
    text = page.read_text()
    assert text.count("</script>") == 2
    assert "b" not in Outline(text).tags
    result = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', text, re.S)
    assert result is not None
    data = json.loads(result.group(1))
    (tree,) = data["trees"].values()
    assert HOSTILE in tree["names"]
    assert "out of &lt;memory&gt; &amp;" not in text  # that error is of a run which study.json does not know


def test_page_says_what_was_run_and_what_is_missing(page: Path) -> None:
    text = page.read_text()
    for words in (
        "hace study animals --methods cross_entropy,hace --seeds 2 --out STUDY",
        "6 classes, 10 nodes; samples: 100 train, 40 test",
        "hace 0.1, python 3.11, torch 2.13",
        "not what a method gains on real data",
        "diverged: the loss became infinite or NaN",
        "not run",
        "docs/paper.md",
        "How to read this",
    ):
        assert words in text, words


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tables", "figures"])
def test_a_report_follows_no_links_in_its_folder(name: str, study: Path, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "report", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / name).symlink_to(elsewhere)
    with pytest.raises(HaceError, match=r"must be a folder\. Got a link"):
        write_report(study, out)
    assert not list(elsewhere.iterdir())


def test_the_command_follows_no_link_in_place_of_the_report(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere, copy = tmp_path / "elsewhere", tmp_path / "study"
    elsewhere.mkdir()
    shutil.copytree(study, copy, ignore=shutil.ignore_patterns("report"))
    (copy / "report").symlink_to(elsewhere)
    assert main(["report", str(copy)]) == 2
    assert "report must be a folder. Got a link. Remove it" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


def test_all_files_are_there_and_whole(page: Path) -> None:
    out = page.parent
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {PAGE, "runs.csv"} <= names
    tables = [name for name in names if name.startswith("tables/")]
    assert {name[:-4] for name in tables if name.endswith(".csv")} == {
        n[:-4] for n in tables if n.endswith(".tex")
    }
    for name in names:
        if name.endswith(".svg"):
            ElementTree.parse(out / name)
        if name.endswith(".png"):
            assert (out / name).read_bytes().startswith(b"\x89PNG")
    kinds = {Path(name).stem.split("-")[0] for name in names if name.startswith("figures/")}
    assert kinds == {"rates", "operating", "reliability", "level"}


@pytest.mark.slow
def test_command_prints_the_table_and_writes_the_same_bytes(
    study: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(study), "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == f"The page: {(tmp_path / PAGE).resolve()}"
    assert "pets, backbone" in out
    assert [line.split(":")[0] for line in err.splitlines()] == ["hace", "no result"]
    for path in page.parent.rglob("*"):
        if path.is_file():
            assert (tmp_path / path.relative_to(page.parent)).read_bytes() == path.read_bytes(), path.name


def test_any_two_methods_are_compared(study: Path) -> None:
    results = Results(read_study(study).records(), ("hace_shuffled", "cross_entropy"))
    document = build_document(results, About("title"), draw=False)
    titles = [table.title for table in document.tables()]
    assert "pets, backbone: accuracy minus cross-entropy in points" in titles
    assert document.cards[0].heads[1] == "HACE, shuffled tree minus cross-entropy"


@pytest.mark.slow
def test_broken_and_foreign_runs_are_left_out_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path
    made = fair_records(
        folder / "runs", animals(), {"cross_entropy": 2.0, "hace": 2.4}, seeds=(0, 1), rates=(1.0, 2.0)
    )
    write_study(folder, made, animals())
    finals = {
        r.key.seed: r.run
        for r in read_study(folder).records()
        if (r.key.method, r.stage, r.key.protocol) == ("hace", "final", "fair")
    }
    assert finals[0] is not None
    assert finals[1] is not None
    (finals[0].folder / "result.json").write_text('{"id": "')
    (finals[1].folder / "manifest.json").unlink()
    (folder / "runs" / "notes").mkdir()
    (folder / "runs" / "readme.txt").write_text("mine")
    assert main(["report", str(folder), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{folder / 'report' / PAGE}\n"
    assert "skipped: notes in runs is not a run" in err
    assert "readme.txt" in err
    assert "result.json" in err
    text = (folder / "report" / PAGE).read_text()
    assert "notes in runs is not a run" in text
    assert "result.json" in text
    assert re.search(
        r">HACE</th><td class=\"soft\">failed", text
    )  # of two seeds one is damaged, one unfinished


def test_bad_input_ends_with_a_message(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FormatError, match=r"must be a study. Got a folder without study.json"):
        write_report(empty)
    assert main(["report", str(empty)]) == 2
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    shutil.copy(study / "study.json", empty)
    with pytest.raises(DataError, match="none of 34 runs has finished"):
        write_report(empty)
    assert main(["report", str(empty)]) == 2
    assert "nothing to report" in capsys.readouterr().err
    (empty / "study.json").write_text("{")
    assert main(["report", str(empty)]) == 2
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"--out must be a folder\. Got the file"):
        write_report(study, file)
    with pytest.raises(ConfigError, match=r"must name methods of the study\. Got 'nothing'"):
        write_report(study, tmp_path, compare=("nothing", "cross_entropy"))


def test_the_drawings_data_are_thinned_to_fit() -> None:
    def data() -> dict[str, object]:
        one = {"right": [1] * 10, "mistakes": [[3, 4]] * 10, "seeds": 1}
        return {"places": [{"methods": {"cross_entropy": one, "hace": one, "hxe": one}} for _ in range(2)]}

    def methods(most: int) -> list[tuple[str, bool]]:
        places = thinned(data(), ("hace", "cross_entropy"), most)["places"]
        return [(name, any(m["mistakes"])) for name, m in places[1]["methods"].items()]

    assert thinned(data(), ("hace", "cross_entropy"), 10_000) == data()
    assert methods(210) == [("cross_entropy", True), ("hace", True), ("hxe", False)]
    assert methods(190) == [("cross_entropy", True), ("hace", True)]


# ---------------------------------------------------------------------- nodes


def ragged() -> Hierarchy:
    return Hierarchy.from_paths(
        [("a", "b", "1"), ("a", "b", "2"), ("a", "3"), ("c", "4"), ("c", "5"), ("6",)]
    )


def test_node_counts_by_loops() -> None:
    h = ragged()
    rng = np.random.default_rng(0)
    truth = rng.choice(h.leaf_nodes, 80)
    answers = [rng.choice(h.leaf_nodes, 80) for _ in range(3)]
    table = ancestors_at(h.parent_nodes)
    rights, mistakes = node_counts(table, truth, answers)
    samples, _ = node_counts(table, truth, [truth])

    def path(v: int) -> list[int]:
        return [v, *path(int(h.parent_nodes[v]))] if h.parent_nodes[v] >= 0 else [v]

    def at(v: int, steps: int) -> int:
        return path(v)[::-1][min(steps, len(path(v)) - 1)]

    for v in range(h.num_nodes):
        steps = len(path(v)) - 1
        assert samples[v] == sum(v in path(int(t)) for t in truth)
        destinations: dict[int, int] = {}
        right = 0
        for answer in answers:
            for t, a in zip(truth.tolist(), answer.tolist(), strict=True):
                if v in path(t) and v in path(a):
                    right += 1
                elif v in path(t):
                    destinations[at(a, steps)] = destinations.get(at(a, steps), 0) + 1
        assert rights[v] == right
        largest = sorted(destinations.items(), key=lambda item: (-item[1], item[0]))[:5]
        assert mistakes[v] == [number for pair in largest for number in pair]


def test_counts_on_a_dag_are_those_of_every_way_down() -> None:
    h = Hierarchy.from_edges([("r", "a"), ("r", "b"), ("a", "1"), ("a", "2"), ("b", "2"), ("b", "3")])
    at = {node: i for i, node in enumerate(h.nodes)}
    truth = np.repeat([at["1"], at["2"], at["2"], at["3"]], [1, 2, 4, 8])
    answer = np.repeat([at["2"], at["2"], at["3"], -1], [1, 2, 4, 8])
    result = shared_counts(h, truth, [answer, answer])
    assert {node: int(result[i]) for node, i in at.items()} == {
        "r": 14,
        "a": 6,
        "b": 12,
        "1": 0,
        "2": 4,
        "3": 0,
    }


@pytest.mark.parametrize("rule", [BY_LEVEL, BEST_NODE_BY_LEVEL])
def test_level_accuracy_by_loops(study: Path, rule: str) -> None:
    records = read_study(study).records()
    results = Results(records)
    condition = next(c for c in results.scores if c.protocol == "fair")
    result = node_accuracies(results.scores[condition], "hace", "cross_entropy", 0, rule)
    assert result is not None
    h = animals()
    for method, share in (("hace", result.first), ("cross_entropy", result.second)):
        runs = [
            r.run.predictions()
            for r in records
            if r.run and (r.key.method, r.stage, r.key.protocol) == (method, "final", "fair")
        ]
        for name, value in zip(result.names, share, strict=True):
            right, total = 0, 0
            for run in runs:
                for t, a, best in zip(run["truth"], run["answer"], run["level_correct"], strict=True):
                    if h.nodes[t] in _leaves_below(name):
                        total += 1
                        right += h.nodes[a] in _leaves_below(name) if rule == BY_LEVEL else best[0]
            assert value == pytest.approx(right / total)
    gains = result.first - result.second
    summary = result.summary("HACE", "cross-entropy")
    assert f"HACE matches or beats cross-entropy in {(gains >= 0).sum()} of {len(gains)}." in summary
    verb = "adds" if gains.mean() > 0 else "loses"
    assert f"On average over them it {verb} {abs(100 * gains.mean()):.1f} points." in summary
    table = result.table("pets", "HACE", "cross-entropy")
    assert sorted(r[0].text for r in table.rows) == sorted(result.names)
    assert "most probable" in result.summary("", "") or rule == BY_LEVEL


@pytest.mark.slow
def test_every_level_above_the_classes_is_drawn_and_listed(tmp_path: Path) -> None:
    """As in the paper's analysis of families and manufacturers: the most probable node counts; the other rule has a switch."""
    planes = {("Boeing", "747", "a"), ("Boeing", "747", "b"), ("Boeing", "777", "c"), ("Airbus", "A320", "d")}
    h = Hierarchy.from_paths([(*path[:2], path[2]) for path in sorted(planes)])
    records = fair_records(
        tmp_path / "runs", h, {"cross_entropy": 1.0, "hace": 2.0}, seeds=(0, 1), rates=(1.0,)
    )
    document = build_document(Results(records), About("planes"))
    drawn = [p for p in document.leaves() if hasattr(p, "svg") and p.name.startswith("level-")]
    assert len(drawn) == 2
    assert all("most probable" in p.caption and "matches or beats" in p.caption for p in drawn)
    tables = [table for table in document.tables() if table.id.startswith("nodes-")]
    assert sorted(len(table.rows) for table in tables) == [
        2,
        2,
        3,
        3,
    ]  # manufacturers and families, by both rules


def _leaves_below(name: str) -> set[str]:
    from tests.report_studies import ANIMALS

    return {leaf for leaf, above in ANIMALS.items() if above[-1] == name}


def test_records_without_predictions_still_make_a_report(tmp_path: Path) -> None:
    records: list[Record] = fair_records(
        tmp_path / "runs", animals(), {"cross_entropy": 2.0, "hace": 2.4}, seeds=(0,)
    )
    for record in records:
        if record.run is not None:
            (record.run.folder / "predictions.safetensors").unlink(missing_ok=True)
    text = to_page(
        build_document(Results(records), About("bare"), draw=False), ("hace", "cross_entropy"), "1"
    )
    assert "No run kept its predictions" in text
    assert "without an interval" in text


SHAPES = {
    "dag": Hierarchy.from_edges(
        [("root", "a"), ("root", "b"), ("a", "1"), ("a", "2"), ("b", "2"), ("b", "3"), ("root", "4")]
    ),
    "flat": Hierarchy.flat(["x", "y", "z"]),
    "forest": Hierarchy.from_paths([("a", "1"), ("a", "2"), ("b", "3"), ("4",)]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_hierarchies_of_any_shape(shape: str, tmp_path: Path) -> None:
    skills = {"cross_entropy": 1.0, "hace": 2.0}
    records = fair_records(tmp_path / "runs", SHAPES[shape], skills, seeds=(0, 1), rates=(1.0,))
    document = build_document(Results(records), About(shape), draw=shape == "dag")
    assert any(table.id.startswith("levels-") for table in document.tables()) == (shape == "forest")
    assert any(hasattr(block, "svg") for block in document.leaves()) == (shape == "dag")
    data = drawing_data(document, ("hace", "cross_entropy"))
    assert data["places"][0]["samples"] == _samples_below(SHAPES[shape], 40)


def _samples_below(h: Hierarchy, samples: int) -> list[int]:
    """Of a DAG, by any way down."""
    count = [0] * h.num_nodes
    for i in range(samples):
        leaf = h.leaves[i % h.num_leaves]
        for node in {leaf, *h.ancestors(leaf)}:
            count[h.index(node)] += 1
    return count


@pytest.mark.long
def test_a_large_study_has_a_small_page(tmp_path: Path) -> None:
    """A fifth of the benchmark: 200 runs over 1,011 nodes and 24,633 samples; the whole is `benchmarks/report.py`."""
    from benchmarks.report import large_records
    from hace.lab.report import write_records

    records = large_records(tmp_path / "runs", 200)
    page = write_records(Results(records), About("large"), tmp_path / "report")
    assert page.stat().st_size < 5e6


@pytest.mark.parametrize(("temperature", "words"), [(None, "Raw scores."), (0.3, "After one temperature.")])
def test_thresholds_are_drawn_after_calibration(
    tmp_path: Path, temperature: float | None, words: str
) -> None:
    from hace.lab.report.figures import operating_picture

    skills = {"hace": 2.0, "cross_entropy": 1.0}
    records = fair_records(tmp_path, animals(), skills, seeds=(0,), rates=(1.0,), temperature=temperature)
    (scores,) = Results(records).scores.values()
    drawn = operating_picture(scores, ("hace", "cross_entropy"))
    assert drawn is not None
    assert drawn.caption.endswith(words)


@pytest.fixture
def named(tmp_path: Path) -> tuple[Path, Path]:
    """A study of two methods, and a file with names for its nodes."""
    h = animals()
    records = fair_records(
        tmp_path / "study" / "runs", h, {"cross_entropy": 1.2, "hace": 2.4}, seeds=(0,), rates=(1.0,)
    )
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{node} the {node} itself\n" for node in h.nodes))
    return write_study(tmp_path / "study", records, h), names


@pytest.mark.slow
def test_names_come_from_a_file_that_must_fit(named: tuple[Path, Path]) -> None:
    study, names = named
    assert main(["report", str(study), "--names", str(names)]) == 0
    assert "the husky itself" in (study / "report" / PAGE).read_text(encoding="utf-8")
    names.write_text("nobody Nobody\n")
    with pytest.raises(HaceError, match="nobody"):
        Results(read_study(study).records(), names=names)


@pytest.mark.slow
def test_a_run_with_a_damaged_hierarchy_is_left_out(named: tuple[Path, Path]) -> None:
    study, names = named
    damaged = next((study / "runs").glob(f"*/{HIERARCHY}"))
    damaged.write_text("{}".ljust(damaged.stat().st_size))
    for words in ([], ["--names", str(names)]):
        assert main(["report", str(study), *words]) == 0
        assert "1 failed" in (study / "report" / PAGE).read_text(encoding="utf-8")
