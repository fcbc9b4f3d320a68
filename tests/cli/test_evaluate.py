"""`hace evaluate` and the functions behind it: files in, all metrics out, and what is refused in which words."""

from __future__ import annotations

import csv
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hace
from hace import Hierarchy, cli, metrics
from hace.decisions.rules import predict
from hace.files.writing import without_nan
from tests.hierarchies import DAG_FOREST

TREE = "parent,child\nanimal,dog\nanimal,cat\ndog,husky\ndog,beagle\ncat,persian\ncat,siamese\n"
LEAVES = ("beagle", "husky", "persian", "siamese")  # natural order


def sample(h: Hierarchy, rows: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(h.num_leaves, size=rows)
    z = rng.normal(size=(rows, h.num_leaves))
    z[np.arange(rows), y] += 1.2
    return z, y


# ---------------------------------------------------------------------- the command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree.csv").write_text(TREE)
    h = hace.read_hierarchy("tree.csv")
    assert h.leaves == LEAVES
    z, y = sample(h)
    np.save("z.npy", z)
    np.save("y.npy", y)
    return tmp_path


@pytest.fixture
def hace_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(*args: str, scores: str = "z.npy", labels: str = "y.npy") -> dict[str, Any]:
        code = cli.main(
            ["evaluate", "--hierarchy", "tree.csv", "--scores", scores, "--labels", labels, "--json", *args]
        )
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    return run


def refused(
    capsys: pytest.CaptureFixture[str], *args: str, scores: str = "z.npy", labels: str = "y.npy"
) -> str:
    code = cli.main(["evaluate", "--hierarchy", "tree.csv", "--scores", scores, "--labels", labels, *args])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("hace: ")
    return err


@pytest.mark.slow
def test_table_and_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    args = ["--threshold", "0.7", "--level", "1", "--price", "0.8", "--out", "results"]
    assert (
        cli.main(["evaluate", "--hierarchy", "tree.csv", "--scores", "z.npy", "--labels", "y.npy", *args])
        == 0
    )
    out = capsys.readouterr().out
    for part in (
        "40 samples",
        "top-1",
        "severity",
        "ECE",
        "threshold 0.7",
        "best node of level 1",
        "The page: ",
    ):
        assert part in out
    assert "least cost, any rank, price 0.8" in out
    files = {path.name for path in (folder / "results").iterdir()}
    pictures = {"operating_curve.png", "risk_coverage.png", "reliability.png", "mistakes.png"}
    tables = {"decisions.csv", "classes.csv", "mistakes.csv"}
    assert files == {"report.html", "report.json"} | tables | pictures
    assert out.startswith("z: right class in ")
    assert [line.split(":")[0] for line in out.splitlines()[:3]] == ["z", "Mistakes", "Confidence"]
    for name in pictures:
        assert (folder / "results" / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = list(
        csv.DictReader((folder / "results" / "decisions.csv").read_text(encoding="utf-8").splitlines())
    )
    assert len(rows) == 40
    h = hace.read_hierarchy("tree.csv")
    sure = predict(np.load("z.npy"), h, "threshold", threshold=0.7)
    assert [row["threshold 0.7: id"] for row in rows] == sure.ids
    assert [row["truth"] for row in rows] == [h.leaves[i] for i in np.load("y.npy")]
    classes = list(
        csv.DictReader((folder / "results" / "classes.csv").read_text(encoding="utf-8").splitlines())
    )
    assert [row["id"] for row in classes] == ["dog", "cat"]
    report = json.loads((folder / "results" / "report.json").read_text())
    expected = float(metrics.top_k_accuracy(np.load("z.npy"), np.load("y.npy"), h))
    assert report["metrics"]["leaves"]["top-1"] == pytest.approx(expected)
    # a second run replaces the files and leaves nothing else behind
    assert (
        cli.main(["evaluate", "--hierarchy", "tree.csv", "--scores", "z.npy", "--labels", "y.npy", *args])
        == 0
    )
    assert {path.name for path in (folder / "results").iterdir()} == files


def test_every_form_of_scores_says_the_same(folder: Path, hace_evaluate: Callable[..., Any]) -> None:
    pd = pytest.importorskip("pandas")
    z, y = np.load("z.npy"), np.load("y.npy")
    expected = hace_evaluate()["metrics"]
    shuffled = ["siamese", "husky", "beagle", "persian"]
    frame = pd.DataFrame(z, columns=list(LEAVES))[shuffled]
    frame.to_csv("named.csv", index=False, float_format="%.17g")
    frame.assign(image=[f"{i}.jpg" for i in range(len(z))]).to_parquet("named.parquet")
    np.savetxt("plain.csv", z, delimiter=",", fmt="%.17g")
    np.savez("z.npz", logits=z, other=np.zeros(3))
    np.save("p.npy", torch.from_numpy(z).softmax(1).numpy())
    np.save("f32.npy", z.astype(np.float32))
    h = hace.read_hierarchy("tree.csv")
    over_nodes = np.full((len(z), h.num_nodes), -np.inf)
    over_nodes[:, h.leaf_nodes] = z
    np.save("nodes.npy", over_nodes)
    for scores, args in [
        ("named.csv", []),
        ("plain.csv", []),
        ("named.parquet", ["--ignore-column", "image"]),
        ("z.npz", []),
        ("z.npz", ["--key", "logits"]),
        ("p.npy", ["--kind", "probs"]),
        ("f32.npy", []),
        ("nodes.npy", []),
    ]:
        evaluation = hace_evaluate(*args, scores=scores)["metrics"]
        for heading, values in expected.items():
            assert evaluation[heading] == pytest.approx(values, abs=1e-5), (scores, heading)
    np.savetxt("y.txt", y, fmt="%d")
    Path("y.csv").write_text("image,label\n" + "".join(f"{i}.jpg,{LEAVES[v]}\n" for i, v in enumerate(y)))
    Path("one.csv").write_text("".join(f"{LEAVES[v]}\n" for v in y))
    np.save("text.npy", np.array(LEAVES)[y])
    np.savez("y.npz", y=y, z=z)
    for labels in ("y.txt", "y.csv", "one.csv", "text.npy", "y.npz"):
        assert hace_evaluate(labels=labels)["metrics"]["leaves"] == expected["leaves"], labels


def test_path_sums(
    folder: Path, hace_evaluate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs of nodes that add up along each path are scored by the classes' logits."""
    h = hace.read_hierarchy("tree.csv")
    outputs = np.random.default_rng(0).normal(size=(40, h.num_nodes))
    np.save("outputs.npy", outputs)
    for options, sharing in ((), 1.0), (("--sharing", "0.5"), 0.5):
        np.save("sums.npy", hace.leaf_logits(torch.from_numpy(outputs), h, "paths", sharing).numpy())
        evaluation = hace_evaluate("--outputs", "paths", *options, scores="outputs.npy")["metrics"]
        assert evaluation == hace_evaluate(scores="sums.npy")["metrics"]
        assert evaluation != hace_evaluate(scores="outputs.npy")["metrics"]
    assert "--sharing must come with --outputs paths" in refused(capsys, "--sharing", "1")
    assert "--kind must be logits" in refused(capsys, "--outputs", "paths", "--kind", "probs")
    assert "sharing must be a number >= 0" in refused(
        capsys, "--outputs", "paths", "--sharing", "-1", scores="outputs.npy"
    )


def test_columns_by_display_name(folder: Path, hace_evaluate: Callable[..., Any]) -> None:
    names = {
        "husky": "Siberian husky",
        "beagle": "Beagle",
        "persian": "Persian cat",
        "siamese": "Siamese cat",
    }
    Path("names.txt").write_text("".join(f"{k} {v}\n" for k, v in names.items()))
    header = ",".join(names[leaf] for leaf in reversed(LEAVES))
    np.savetxt("named.csv", np.load("z.npy")[:, ::-1], delimiter=",", header=header, comments="", fmt="%.17g")
    Path("y.txt").write_text("".join(f"{names[LEAVES[v]]}\n" for v in np.load("y.npy")))
    evaluation = hace_evaluate("-o", "names=names.txt", scores="named.csv", labels="y.txt")
    assert evaluation["metrics"]["leaves"] == pytest.approx(hace_evaluate()["metrics"]["leaves"])


def test_small_chunks(
    folder: Path, hace_evaluate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hace_evaluate()["metrics"]
    np.savetxt("plain.csv", np.load("z.npy"), delimiter=",", fmt="%.17g")
    monkeypatch.setattr("hace.formats.score_files.CHUNK", 12)  # three rows
    for scores in ("z.npy", "plain.csv"):
        evaluation = hace_evaluate(scores=scores)["metrics"]
        for heading, values in whole.items():
            assert evaluation[heading] == pytest.approx(values), heading


def test_metrics_of_the_leaves_alone(
    folder: Path, hace_evaluate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = hace_evaluate("--subset", "dog")
    evaluation = hace_evaluate("--subset", "dog", "--metrics", "leaves", "--out", "found")
    assert evaluation["metrics"] == {"leaves": whole["metrics"]["leaves"]}
    assert whole.keys() - evaluation.keys() == {"operating_curve", "risk_coverage", "reliability"}
    assert {key: whole[key] for key in evaluation if key != "metrics"} == {
        key: evaluation[key] for key in evaluation if key != "metrics"
    }
    written = {path.name for path in (folder / "found").iterdir()}
    assert written == {"report.json", "decisions.csv", "classes.csv", "mistakes.csv"}
    header = (folder / "found" / "decisions.csv").read_text().splitlines()[0]
    assert header == "sample,truth,truth_name,leaf,leaf_name,distance"
    given = ["evaluate", "--hierarchy", "tree.csv", "--scores", "z.npy", "--labels", "y.npy"]
    assert cli.main([*given, "--metrics", "leaves", "--compare", "z.npy"]) == 0
    text = capsys.readouterr().out
    assert "HD@1" in text
    assert not any(word in text for word in ("Confidence", "Brier", "nan", "AURC"))
    assert "--threshold must come without --metrics leaves" in refused(
        capsys, "--metrics", "leaves", "--threshold", "0.9"
    )


@pytest.mark.slow
def test_subset_and_compare(
    folder: Path, hace_evaluate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("region.txt").write_text("husky\npersian\n")
    by_file = hace_evaluate("--subset", "region.txt")
    assert by_file["metrics"] == hace_evaluate("--subset", "persian,husky")["metrics"]
    y = np.load("y.npy")
    assert by_file["outside_subset"] == int((~np.isin(y, [1, 2])).sum())
    dogs = [
        LEAVES.index(leaf) for leaf in hace.read_hierarchy("tree.csv").descendants("dog") if leaf in LEAVES
    ]
    among = hace_evaluate("--subset", "dog")
    assert among["outside_subset"] == int((~np.isin(y, dogs)).sum())
    alone = hace_evaluate("--subset", "dog", "--only-subset")
    np.save("dogs.npy", np.load("z.npy")[np.isin(y, dogs)])
    np.save("labels.npy", y[np.isin(y, dogs)])
    same = hace_evaluate("--subset", "dog", scores="dogs.npy", labels="labels.npy")
    assert alone["metrics"] == same["metrics"] != among["metrics"]
    assert "--only-subset must come with --subset" in refused(capsys, "--only-subset")
    z = np.load("z.npy")
    z[np.arange(len(y)), y] += 2
    np.save("better.npy", z)
    evaluation = hace_evaluate("--compare", "better.npy")["comparison"]
    assert evaluation == hace_evaluate("--compare", "better.npy")["comparison"]
    top1 = next(m for m in evaluation["metrics"] if m["name"] == "top-1")
    assert top1["change"] == pytest.approx(top1["second"] - top1["first"])
    assert 0 < top1["low"] < top1["high"]
    arguments = ["evaluate", "--hierarchy", "tree.csv", "--scores", "z.npy", "--labels", "y.npy"]
    assert cli.main([*arguments, "--compare", "better.npy", "--out", "both"]) == 0
    assert "95% interval" in capsys.readouterr().out
    assert (folder / "both" / "operating_curve.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_dag_is_evaluated_without_levels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hace.write_hierarchy(DAG_FOREST.build(), "dag.json")
    z, y = sample(DAG_FOREST.build())
    np.save("z.npy", z)
    np.save("y.npy", y)
    arguments = [
        "evaluate",
        "--hierarchy",
        "dag.json",
        "--scores",
        "z.npy",
        "--labels",
        "y.npy",
        "--out",
        "dag",
    ]
    assert cli.main(arguments) == 0
    assert "omitted: on a DAG" in capsys.readouterr().out
    assert not (folder / "dag" / "reliability.png").exists()
    assert (folder / "dag" / "mistakes.png").exists()


def test_scores_that_do_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z = np.load("z.npy")
    np.save("wide.npy", np.hstack([z, z]))
    message = refused(capsys, scores="wide.npy")
    assert message.startswith("hace: wide.npy: scores must have")
    assert "each of the 4 leaves or each of the 7 nodes. Got 8 columns" in message
    assert "with or without its root" in message
    assert refused(capsys, "--compare", "wide.npy").startswith("hace: wide.npy: scores must have")
    message = refused(capsys, "--outputs", "nodes")
    assert "number of leaves: pass outputs='leaves' (on the command line: --outputs leaves)" in message
    np.savetxt("wide.csv", np.hstack([z, z]), delimiter=",")
    assert refused(capsys, scores="wide.csv").startswith("hace: wide.csv: scores must have")
    np.save("short.npy", z[:-1])
    assert "39 rows and y.npy has 40 labels" in refused(capsys, scores="short.npy")
    np.save("ints.npy", z.astype(int))
    assert "floating-point numbers. Got int64" in refused(capsys, scores="ints.npy")
    np.save("objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    message = refused(capsys, scores="objects.npy")
    assert "arrays of Python objects would have to be unpickled" in message
    assert ".." not in message
    Path("broken.npy").write_bytes(b"not numpy")
    assert "Got other content" in refused(capsys, scores="broken.npy")
    Path("broken.npz").write_bytes(b"PK\x03\x04broken")
    assert "Got a damaged one" in refused(capsys, scores="broken.npz")
    np.savez("two.npz", a=z, b=z)
    assert "which array? It holds 'a', 'b'" in refused(capsys, scores="two.npz")
    assert "No such file" in refused(capsys, scores="missing.npy")
    Path("z.txt").write_text("1 2 3 4")
    assert ".npy, .npz, .csv or .parquet" in refused(capsys, scores="z.txt")
    Path("empty.csv").write_text("")
    assert "the file is empty" in refused(capsys, scores="empty.csv")


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_the_index_of_a_data_frame_is_named(
    name: str, folder: Path, hace_evaluate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    z = np.load("z.npy")
    rows = "".join(f"{i},{','.join(map(str, row))}\n" for i, row in enumerate(z))
    Path("index.csv").write_text(f"{name},{','.join(LEAVES)}\n{rows}")
    asked = ["evaluate", "--hierarchy", "tree.csv", "--scores", "index.csv", "--labels", "y.npy"]
    assert cli.main(asked) == 2
    error = capsys.readouterr().err
    assert f"Got {name!r}, the index of a DataFrame. Save it with index=False" in error
    assert f"--ignore-column '{name}'" in error
    assert hace_evaluate("--ignore-column", name, scores="index.csv")["metrics"]["leaves"]


def test_columns_that_do_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def header(*columns: str) -> str:
        Path("bad.csv").write_text(",".join(columns) + "\n" + ",".join("1" for _ in columns) + "\n")
        return refused(capsys, scores="bad.csv")

    assert "a class of the hierarchy. Got 'huskey'. Did you mean 'husky'?" in header(*LEAVES[1:], "huskey")
    assert "--ignore-column" in header(*LEAVES, "comment")
    assert "Leaves without a column: 'siamese'" in header("husky", "beagle", "persian")
    assert "There must be one label per row" in header(*LEAVES, "dog")  # columns at mixed ranks are read
    assert "one column. Got two for 'husky'" in header(*LEAVES, "husky")
    Path("text.csv").write_text(",".join(LEAVES) + "\n" + "1,2,three,4\n" * 40)
    assert "text.csv, from line 2 on: every cell must be a number" in refused(capsys, scores="text.csv")
    assert "no column 'image' to ignore" in refused(capsys, "--ignore-column", "image", scores="text.csv")
    Path("broken.parquet").write_bytes(b"PAR1 not really")
    assert "must be a parquet file. Got a damaged one" in refused(capsys, scores="broken.parquet")


def test_bad_values(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hace.formats.score_files.CHUNK", 12)  # rows are counted over chunks
    z = np.load("z.npy")
    z[[17, 30], 2] = np.nan
    np.save("nan.npy", z)
    assert "nan.npy: scores must not hold NaN. 2 of 40 rows break this rule; the first is row 17." in refused(
        capsys, scores="nan.npy"
    )
    p = torch.from_numpy(np.load("z.npy")).softmax(1).numpy()
    p[22] *= 1.5
    np.save("p.npy", p)
    message = refused(capsys, "--kind", "probs", scores="p.npy")
    assert "must sum to 1" in message
    assert "row 22 sums to 1.5" in message
    lines = [",".join(LEAVES), "", *(",".join(map(str, row)) for row in p)]  # a header and a blank line
    Path("p.csv").write_text("\n".join(lines))
    assert "line 25 sums to 1.5" in refused(capsys, "--kind", "probs", scores="p.csv")
    lines[9] = "nan,0,0,1"
    Path("nan.csv").write_text("\n".join(lines))
    assert "1 of 40 rows break this rule; the first is line 10." in refused(capsys, scores="nan.csv")
    message = refused(capsys, "--kind", "probs")
    assert "must not be negative. 3 of 3 rows break this rule; the first is row 0." in message
    assert "on the command line: --kind logits" in message


def test_bad_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    y = np.load("y.npy")
    y[[3, 5]] = 4
    np.save("far.npy", y)
    message = refused(capsys, labels="far.npy")
    assert "labels must be from 0 to 3. 2 of 40 are not; the first is 4 in row 3" in message
    np.save("float.npy", y.astype(float))
    assert "one-dimensional, integers or text" in refused(capsys, labels="float.npy")
    Path("y.csv").write_text("huskey\n" * 40)
    message = refused(capsys, labels="y.csv")
    assert "the first is 'huskey' in line 1. Did you mean 'husky'?" in message
    Path("y.txt").write_text("\n" + "husky\n" * 6 + "huskey\n" + "husky\n" * 33)
    assert "the first is 'huskey' in line 8." in refused(capsys, labels="y.txt")
    Path("headed.csv").write_text("image,label\n" + "a,0\n" * 6 + '"b\nc",1\nd,9\n' + "e,2\n" * 32)
    assert "the first is 9 in line 10" in refused(capsys, labels="headed.csv")
    assert "must be integers" in refused(capsys, "--label-kind", "index", labels="y.csv")
    Path("two.csv").write_text("image,species\n" + "a,husky\n" * 40)
    assert "Say --label-column NAME. The columns: 'image', 'species'" in refused(capsys, labels="two.csv")
    assert "no column 'x'" in refused(capsys, "--label-column", "x", labels="two.csv")
    Path("ragged.csv").write_text("image,label\na,husky\nb\n")
    assert "ragged.csv, line 3: every row must have 2 cells, as the header has. Got 1" in refused(
        capsys, labels="ragged.csv"
    )
    Path("empty.csv").write_text("")
    assert "empty" in refused(capsys, labels="empty.csv")
    Path("y.dat").write_text("0")
    assert ".npy, .npz, .csv or .txt" in refused(capsys, labels="y.dat")


def test_labels_that_could_be_positions_or_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Classes named 1 to 4: label 1 is the second class, or the class '1'. Nobody should guess."""
    Path("tree.csv").write_text("parent,child\nr,1\nr,2\nr,3\nr,4\n")
    np.save("z.npy", np.eye(4)[[0, 1, 2]] * 9)
    np.save("y.npy", np.array([1, 2, 3]))
    message = refused(capsys)
    assert "label 1 could be class '2' by position or '1' by id" in message
    for kind, expected in (("id", 1.0), ("index", 0.0)):
        arguments = [
            "evaluate",
            "--hierarchy",
            "tree.csv",
            "--scores",
            "z.npy",
            "--labels",
            "y.npy",
            "--json",
        ]
        assert cli.main([*arguments, "--label-kind", kind]) == 0
        assert json.loads(capsys.readouterr().out)["metrics"]["leaves"]["top-1"] == expected
    np.save("y.npy", np.array([1, 2, 4]))
    assert "They are ids of the hierarchy: say --label-kind id." in refused(capsys)
    np.save("y.npy", np.array([0, 1, 2]))  # '0' is not an id, so these are positions
    assert cli.main(["evaluate", "--hierarchy", "tree.csv", "--scores", "z.npy", "--labels", "y.npy"]) == 0


def test_bad_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'huskey'. Did you mean 'husky'?" in refused(capsys, "--subset", "huskey")
    assert "'dgo'. Did you mean 'dog'?" in refused(capsys, "--subset", "dgo")  # inner nodes too
    assert "subset must name at least one class" in refused(capsys, "--subset", ",")
    assert "--threshold must be a number" in refused(capsys, "--threshold", "high")
    assert "levels 1 to 2. Got 3" in refused(capsys, "--threshold", "0.1,0.2,0.3")
    assert "from 0 to 1" in refused(capsys, "--threshold", "7")
    assert "price must be a number from 0 to 1" in refused(capsys, "--price", "7")
    assert "level must be an integer from 0 to 2" in refused(capsys, "--level", "species")
    for option, value in [("bins", "0"), ("bins", "1000000000")]:
        message = refused(capsys, "--compare", "z.npy", f"--{option}", value)
        assert f"--{option} must be a whole number from" in message
    message = refused(capsys, "--subset", "region.txt")
    assert "There is no file 'region.txt', and the hierarchy has no class 'region.txt'" in message


def test_a_full_disk_leaves_no_part_of_a_report(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (folder / "out").mkdir()
    (folder / "out" / "report.json").write_text("old")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    assert cli.main("evaluate --hierarchy tree.csv --scores z.npy --labels y.npy --out out".split()) == 2
    assert capsys.readouterr().err == (
        "drawing the page and the pictures\n"
        "hace: Cannot write to out: No space left on device. Free some space and run the same command again; "
        "what is complete stays.\n"
    )
    assert [path.name for path in (folder / "out").iterdir()] == ["report.json"]
    assert (folder / "out" / "report.json").read_text() == "old"


@pytest.mark.slow
def test_tables_hold_no_formulas_unless_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tree.csv").write_text(TREE.replace("husky", "=1+1"))
    for options, written in ([], "'=1+1"), (["--raw-cells"], "=1+1"):
        files = (
            "evaluate --hierarchy tree.csv --scores z.npy --labels y.npy --metrics leaves --out out".split()
        )
        assert cli.main([*files, *options]) == 0
        capsys.readouterr()
        with Path("out/decisions.csv").open(newline="") as file:
            cells = {
                cell
                for row in csv.reader(file)
                for cell in row
                if cell.endswith("=1+1") and " > " not in cell
            }
        assert cells == {written}


@pytest.mark.parametrize(
    ("out", "words"),
    [("y.npy", "it is a file"), ("y.npy/below", "y.npy is a file"), ("locked", "may not be")],
)
def test_a_bad_out_is_found_before_any_work(
    out: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if out == "locked":  # the tests may run as root
        monkeypatch.setattr("os.access", lambda path, mode: False)
    message = refused(capsys, "--out", out, scores="missing.npy")  # not yet looked for
    assert message.startswith("hace: --out must be a folder")
    assert words in message


def test_a_missing_matplotlib_is_found_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hace.cli.evaluate.find_spec", lambda name: None)
    message = refused(capsys, "--out", "results", scores="missing.npy")
    assert (
        message
        == 'hace: --out draws with matplotlib. Install it in a checkout of hace: pip install ".[report]".\n'
    )


def test_probabilities_read_as_logits_are_doubted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = torch.from_numpy(np.load("z.npy")).softmax(1).numpy()
    np.save("p.npy", p)
    arguments = ["evaluate", "--hierarchy", "tree.csv", "--labels", "y.npy", "--scores"]
    assert cli.main([*arguments, "p.npy"]) == 0
    warning = capsys.readouterr().err
    assert warning.startswith(
        "hace: warning: Scores are read as logits, but every row is from 0 to 1 and sums to 1."
    )
    assert "--kind probs" in warning
    assert warning.count("\n") == 1
    for scores in (["p.npy", "--kind", "probs"], ["z.npy"]):
        assert cli.main([*arguments, *scores]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("root", ["--root-node", "--no-root-node"])
def test_the_report_tells_how_many_answers_say_anything(
    root: str, folder: Path, hace_evaluate: Callable[..., Any]
) -> None:
    sure = hace_evaluate("--threshold", "1", root)["metrics"]["threshold 1"]
    assert (sure["true (right or above)"], sure["answered below the root"]) == (1.0, 0.0)
    evaluation = hace_evaluate("--threshold", "0.7", root)["metrics"]["threshold 0.7"]
    decided = predict(np.load("z.npy"), hace.read_hierarchy("tree.csv"), "threshold", threshold=0.7)
    assert evaluation["answered below the root"] == pytest.approx(float((decided.levels > 0).double().mean()))


@pytest.mark.slow
def test_a_probe_on_real_birds(
    real_data: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short linear probe on frozen features of CUB-200, under its three taxonomies."""
    data = np.load(real_data("cub200_features_lite0") / "cub200_lite0_224px_fp16.npz", allow_pickle=False)
    x, y = (torch.from_numpy(data[name]) for name in ("x_train", "y_train"))
    x, y = torch.nn.functional.normalize(x.float(), dim=1), y.long()
    torch.manual_seed(0)
    probe = torch.nn.Linear(x.shape[1], 200)
    optimizer = torch.optim.SGD(probe.parameters(), lr=8.0, momentum=0.9)
    for _ in range(5):
        for rows in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(probe(x[rows]), y[rows]).backward()
            optimizer.step()
    test = torch.nn.functional.normalize(torch.from_numpy(data["x_test"]).float(), dim=1)
    np.save(tmp_path / "z.npy", probe(test).detach().numpy())
    np.save(tmp_path / "y.npy", data["y_test"].astype(np.int64))
    tops, coarse = set(), {}
    for name in ("flat", "wikispecies", "balanced"):
        tree = real_data("cub200_hierarchy") / f"cub_{name}.parent-child.txt"
        arguments = [
            "--hierarchy",
            str(tree),
            "--scores",
            str(tmp_path / "z.npy"),
            "--labels",
            str(tmp_path / "y.npy"),
            "--price",
            "0.5",
        ]
        assert cli.main(["evaluate", *arguments, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)["metrics"]
        tops.add(result["leaves"]["top-1"])
        coarse[name] = result["accuracy by level, answer carried up"]["level 1"]
        assert result["leaves"]["HD@1"] == pytest.approx(
            result["leaves"]["severity"] * (1 - result["leaves"]["top-1"])
        )
        assert result["least cost, any rank, price 0.5"]["true (right or above)"] > result["leaves"]["top-1"]
    assert len(tops) == 1  # leaves do not know the tree
    assert tops.pop() > 0.5
    assert all(value > 0.8 for value in coarse.values())


def test_the_python_function_does_what_the_command_does(
    folder: Path, hace_evaluate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    h, z, y = hace.read_hierarchy("tree.csv"), np.load("z.npy"), np.load("y.npy")
    np.save("better.npy", z + 2 * np.eye(4)[y])
    said = hace_evaluate(
        *("--threshold", "0.7", "--level", "1", "--price", "0.8", "--subset", "dog,persian", "--only-subset"),
        *(
            "--compare",
            "better.npy",
            "--distance",
            "edges",
            "--bins",
            "9",
        ),
    )
    evaluation = hace.evaluate(
        z,
        y,
        h,
        threshold=0.7,
        level=1,
        price=0.8,
        subset=["dog", "persian"],
        only_subset=True,
        compare=np.load("better.npy"),
        distance="edges",
        bins=9,
    )
    again = evaluation.to_dict()
    assert said["comparison"].pop("second") == "better.npy"
    assert again["comparison"].pop("second") == "second"
    assert json.loads(json.dumps(without_nan(again))) == said
    assert {"outside_subset", "comparison"} < set(again)
    args = [
        "evaluate",
        "--hierarchy",
        "tree.csv",
        "--scores",
        "z.npy",
        "--labels",
        "y.npy",
        "--threshold",
        "0.7",
    ]
    assert cli.main(args) == 0
    assert capsys.readouterr().out.rstrip() == hace.evaluate(z, y, h, name="z", threshold=0.7).to_text()


def test_a_temperature_and_a_guarantee_from_python(folder: Path) -> None:
    h, z, y = hace.read_hierarchy("tree.csv"), np.load("z.npy"), np.load("y.npy")
    sure = hace.guaranteed_threshold(z / 0.5, y, h, 0.8)
    evaluation = hace.evaluate(z, y, h, temperature=0.5, guarantee=sure)
    assert evaluation.calibrated is not None
    warm = hace.evaluate(z / 0.5, y, h, guarantee=sure)
    assert evaluation.calibrated.values == pytest.approx(warm.values, nan_ok=True)
    guaranteed = metrics.guaranteed_answers(z / 0.5, y, h, sure)
    assert evaluation.guarantee_measured()["false"] == pytest.approx(float(guaranteed.false))
    assert evaluation.guarantee_measured()["specificity"] == pytest.approx(float(guaranteed.specificity))
    assert evaluation.to_dict()["guarantee"]["measured"] == warm.to_dict()["guarantee"]["measured"]
    assert f"guarantee: {sure.guarantee}" in evaluation.to_text()
    assert evaluation.values == pytest.approx(hace.evaluate(z, y, h).values, nan_ok=True)
    for wrong, words in (
        ({"temperature": 0.0}, "temperature must be a number above 0"),
        ({"temperature": 2.0, "metrics": "leaves"}, "temperature must be left out with metrics='leaves'"),
        ({"only_subset": True}, "only_subset must come with a subset"),
        ({"price": 3.0}, "price must be a number from 0 to 1"),
    ):
        with pytest.raises(hace.ConfigError, match=words):
            hace.evaluate(z, y, h, **wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_page_from_python(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    h, z, y = hace.read_hierarchy("tree.csv"), np.load("z.npy"), np.load("y.npy")
    evaluation = hace.evaluate(z, y, h, name="mine", compare=z[:, ::-1].copy())
    page = hace.write_evaluation(evaluation, "page")
    assert page == (folder / "page" / "report.html").resolve()
    assert "mine against second" in page.read_text(encoding="utf-8")


def test_scores_and_labels_in_another_order_are_joined_by_the_names_of_samples(
    folder: Path, hace_evaluate: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    z, y = np.load("z.npy"), np.load("y.npy")
    names = [f"{i}.jpg" for i in range(len(y))]
    expected = hace_evaluate("--subset", "dog", "--only-subset")
    plain = hace_evaluate()
    shuffled = np.random.default_rng(0).permutation(len(y))
    rows = [f"{names[i]},{LEAVES[y[i]]},{'ab'[i % 2]}" for i in shuffled]
    Path("y.csv").write_text("file,label,site\n" + "\n".join(rows) + "\n")

    def written(path: str, order: np.ndarray) -> None:
        lines = [",".join([names[i], *(f"{v!r}" for v in z[i].tolist())]) for i in order]
        Path(path).write_text(",".join(["file", *LEAVES]) + "\n" + "\n".join(lines) + "\n")

    def numbers(result: dict[str, Any]) -> list[float]:
        return [value for values in result["metrics"].values() for value in values.values()]

    def same_metrics(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return numbers(one) == pytest.approx(numbers(other), nan_ok=True)

    written("z.csv", np.arange(len(y)))
    assert same_metrics(hace_evaluate(scores="z.csv", labels="y.csv"), plain)
    assert same_metrics(hace_evaluate("--ignore-column", "file", scores="z.csv", labels="y.csv"), plain)
    subset = hace_evaluate("--subset", "dog", "--only-subset", scores="z.csv", labels="y.csv")
    assert same_metrics(subset, expected)
    written("other.csv", np.random.default_rng(1).permutation(len(y)))
    options = ("--compare", "other.csv", "--groups", "site")
    same = hace_evaluate(*options, scores="z.csv", labels="y.csv")["comparison"]["metrics"]
    assert all(row["change"] == pytest.approx(0, abs=1e-9) for row in same if row["first"] is not None)
    written("part.csv", np.r_[0, 0, 2 : len(y)])
    words = ["evaluate", "--hierarchy", "tree.csv", "--labels", "y.csv", "--scores", "part.csv"]
    assert cli.main(words) == 2
    assert "every sample of part.csv must have a label. Got several rows" in capsys.readouterr().err
    Path("y.csv").write_text(Path("y.csv").read_text().replace("3.jpg", "x.jpg"))
    assert cli.main([*words[:-1], "z.csv"]) == 2
    assert "Got none for '3.jpg'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_table_of_decisions_names_samples_and_has_the_guaranteed_answers(folder: Path) -> None:
    h = hace.read_hierarchy("tree.csv")
    held, held_y = sample(h, 300, 1)
    np.save("held.npy", held)
    np.save("held_y.npy", held_y)
    z, _ = sample(h)
    files = [f"photo {i}.jpg" for i in range(len(z))]
    rows = [",".join([file, *map(str, row)]) for file, row in zip(files, z.tolist(), strict=True)]
    Path("z.csv").write_text("\n".join([",".join(["file", *LEAVES]), *rows]) + "\n")
    words = "--hierarchy tree.csv --scores held.npy --labels held_y.npy --accuracy 0.8 --out c.json"
    assert cli.main(["calibrate", *words.split()]) == 0
    words = "--hierarchy tree.csv --scores z.csv --labels y.npy --calibration c.json --accuracy 0.8 --out out"
    assert cli.main(["evaluate", *words.split()]) == 0
    table = list(csv.DictReader(Path("out/decisions.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["sample"] for row in table] == files
    answers = [row["guarantee, 0.8 of samples: id"] for row in table]
    assert set(answers) <= {*h.nodes, ""}
    said = [(a, row["truth"]) for a, row in zip(answers, table, strict=True)]
    false = [a != "" and a not in h.ancestors(truth, include_self=True) for a, truth in said]
    report = json.loads(Path("out/report.json").read_text(encoding="utf-8"))
    assert np.mean(false) == pytest.approx(report["guarantee"]["measured"]["false"])
    assert not any("least cost" in title for title in (*table[0], *report["metrics"]))
