"""`hace evaluate RUN`: a finished run scores its own data again, and says what its result says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hace import cli, write_hierarchy
from hace.data import synthetic_features
from hace.errors import ConfigError, DataError, FormatError
from hace.lab.probe import probe
from hace.lab.runs.config import DataConfig, LossConfig, ProbeConfig
from hace.lab.runs.run import Run, read_run
from hace.lab.serve.rescore import rescored
from tests.run_files import edit_json, rehash

OPTIONS = {"classes": 8, "dim": 6, "train": 10, "test": 5}


def config(name: str = "hace", **settings: Any) -> ProbeConfig:
    settings = {"epochs": 3, "batch_size": 16, "lr": 2.0, **settings}
    data = settings.pop("data", DataConfig("synthetic-features", options=OPTIONS))
    return ProbeConfig(data=data, loss=LossConfig(name), **settings)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of features, and its hierarchy."""
    folder = tmp_path_factory.mktemp("features")
    write_features(folder)
    return folder


def write_features(folder: Path, seed: int = 0, dim: int = 6) -> None:
    data = synthetic_features(classes=8, dim=dim, train=10, test=5, seed=seed)
    arrays = {f"x_{name}": split.x for name, split in data.splits.items()}
    arrays |= {f"y_{name}": split.labels for name, split in data.splits.items()}
    np.savez(folder / "birds.npz", **arrays)  # pyright: ignore[reportArgumentType]
    write_hierarchy(data.hierarchy, folder / "tree.json")


@pytest.fixture(scope="module")
def runs(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    out = tmp_path_factory.mktemp("runs")
    own = DataConfig("features", root=str(files / "birds.npz"), hierarchy=str(files / "tree.json"))
    configs = {
        "hace": config(),
        "ce": config("cross_entropy", bias=False),
        "standard": config(normalize="standard"),
        "none": config("conditional_softmax", normalize="none"),
        "shuffled": config(data=DataConfig("synthetic-features", options=OPTIONS, shuffle=3)),
        "val": config(validation=0.2, evaluate="val"),
        "file": config(data=own),
        "rooted": config(data=DataConfig(own.name, own.root, own.hierarchy, root_node=False)),
    }
    result = dict(zip(configs, probe(list(configs.values()), out), strict=True))
    assert all(run.status == "finished" for run in result.values())
    return result


@pytest.fixture
def evaluated(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*words: object) -> Any:
        assert cli.main(["evaluate", *map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main(["evaluate", *map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["hace", "ce", "standard", "none", "shuffled", "val", "file", "rooted"])
def test_a_run_says_again_what_its_result_says(
    name: str, runs: dict[str, Run], evaluated: Callable[..., Any]
) -> None:
    evaluation = evaluated(runs[name].folder)
    result = runs[name].result
    assert result is not None
    same = set(evaluation) & set(result)
    assert {"metrics", "operating_curve", "risk_coverage", "reliability", "mistakes", "samples"} <= same
    assert {key: evaluation[key] for key in same} == {key: result[key] for key in same}
    assert (evaluation["run"], evaluation["split"]) == (runs[name].id, result["split"])


def test_the_table_names_the_run(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(runs["hace"].folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("HACE d=0.5, lr 2: right class in ")
    assert lines[4] == f"run {runs['hace'].id}, split test"
    assert lines[5].startswith("40 samples, ")


def test_names_from_a_file(runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h = runs["hace"].hierarchy
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{node} the {node} itself\n" for node in h.nodes))
    words = ["evaluate", str(runs["hace"].folder)]
    plain = (cli.main(words), capsys.readouterr().out)[1]
    named = (cli.main([*words, "--names", str(names)]), capsys.readouterr().out)[1]
    assert named != plain
    assert "itself taken for the " in named.splitlines()[1]
    assert named.splitlines()[0] == plain.splitlines()[0]


def test_two_runs_are_distinguished_by_what_differs(
    runs: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(runs["hace"].folder), "--compare", str(runs["ce"].folder)]
    assert cli.main([*words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in (lines[0], lines[3])] == ["HACE d=0.5", "cross-entropy"]
    assert max(map(len, lines[7:])) <= 100


def test_other_splits(runs: dict[str, Run], evaluated: Callable[..., Any]) -> None:
    assert evaluated(runs["hace"].folder, "--split", "train")["samples"] == 80
    assert evaluated(runs["val"].folder, "--split", "train")["samples"] == 64
    assert evaluated(runs["val"].folder, "--split", "test")["samples"] == 40
    assert evaluated(runs["val"].folder)["samples"] == 16
    with pytest.raises(ConfigError, match="held out no validation samples"):
        rescored(runs["hace"].folder, split="val")
    with pytest.raises(ConfigError, match="split must be one of"):
        rescored(runs["hace"].folder, split="tset")


@pytest.mark.parametrize("name", ["hace", "ce", "none", "shuffled"])
def test_options_act_on_a_run(name: str, runs: dict[str, Run], evaluated: Callable[..., Any]) -> None:
    h = runs[name].hierarchy
    region = ",".join(h.leaves[:3])
    words = (
        "--subset",
        region,
        "--threshold",
        "0.6",
        "--level",
        "1",
        "--price",
        "0.3",
        "--distance",
        "edges",
    )
    evaluation = evaluated(runs[name].folder, *words)
    assert evaluation["outside_subset"] == 25
    assert evaluation["distance"] == "edges"
    assert {"threshold 0.6", "best node of level 1", "least cost, any rank, price 0.3"} <= set(
        evaluation["metrics"]
    )
    report = rescored(runs[name].folder).report(subset=h.leaves[:3])
    assert set(report.samples.answers.tolist()) <= set(h.leaf_nodes[:3].tolist())
    whole = rescored(runs[name].folder).report()
    same = rescored(runs[name].folder).report(subset=h.leaves)
    assert same.values == pytest.approx(whole.values, abs=1e-6, nan_ok=True)
    assert set(whole.samples.answers.tolist()) - set(h.leaf_nodes[:3].tolist())


def test_two_runs_compare_as_their_scores_do(
    runs: dict[str, Run], evaluated: Callable[..., Any], tmp_path: Path
) -> None:
    words = (runs["ce"].folder, "--compare")
    pair = evaluated(*words, runs["hace"].folder)
    rows = {(r["heading"], r["name"]): r for r in pair["comparison"]["metrics"]}
    for side, name in (("first", "ce"), ("second", "hace")):
        result = runs[name].result
        assert result is not None
        assert rows["leaves", "top-1"][side] == result["metrics"]["leaves"]["top-1"]
    # The same second model, as a file of its scores.
    scored = rescored(runs["hace"].folder)
    np.save(tmp_path / "z.npy", np.concatenate([z.numpy() for z in scored.outputs()]))
    alike = evaluated(*words, tmp_path / "z.npy")
    for row in alike["comparison"]["metrics"]:
        other = rows[row["heading"], row["name"]]
        assert row["change"] == pytest.approx(other["change"], abs=1e-6), row
        assert row["low"] == pytest.approx(other["low"], abs=1e-6), row


@pytest.mark.slow
def test_a_folder_of_results(runs: dict[str, Run], tmp_path: Path) -> None:
    words = ["evaluate", str(runs["ce"].folder), "--compare", str(runs["hace"].folder)]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 0
    assert {"report.json", "decisions.csv", "operating_curve.svg"} <= {
        path.with_suffix(".svg").name if path.suffix in (".png", ".svg") else path.name
        for path in (tmp_path / "out").iterdir()
    }


# ---------------------------------------------------------------------- data


def test_moved_data(
    files: Path, runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(str(files), str(moved))
    try:
        message = refused(capsys, runs["file"].folder)
        assert "birds.npz" in message
        assert "--data-root" in message
        results = ["--data-root", str(moved / "birds.npz")]
        assert cli.main(["evaluate", str(runs["file"].folder), *results]) == 0
        words = (runs["file"].folder, "--data-root", moved / "birds.npz", "--compare")
        assert cli.main(["evaluate", *map(str, words), str(runs["file"].folder)]) == 0
    finally:
        shutil.move(str(moved), str(files))


def test_changed_data(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["file"]
    write_features(tmp_path, seed=1)
    before = run.about["data"]["fingerprint"][:12]
    with pytest.raises(
        DataError, match=rf"the data changed since the run .*: the fingerprint was {before} and is [0-9a-f]+"
    ):
        rescored(run.folder, root=tmp_path / "birds.npz")
    write_features(tmp_path, dim=7)
    with pytest.raises(DataError, match=r"must have 6 columns.* Got 7"):
        rescored(run.folder, root=tmp_path / "birds.npz")


def test_another_hierarchy(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs["hace"]
    other = synthetic_features(**{**OPTIONS, "seed": 1})  # type: ignore[arg-type]
    monkeypatch.setattr("hace.lab.runs.samples.load_dataset", lambda *args, **options: other)
    was, now = run.hierarchy.fingerprint[:12], other.hierarchy.fingerprint[:12]
    with pytest.raises(DataError, match=f"the hierarchy changed since the run .* was {was} and is {now}"):
        rescored(run.folder)


def test_runs_on_other_samples_do_not_compare(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (other,) = probe([config(validation=0.2, evaluate="val", seed=1)], tmp_path)
    message = refused(capsys, runs["val"].folder, "--compare", other.folder)
    assert "have different val samples: 16 and 16" in message
    message = refused(capsys, runs["hace"].folder, "--compare", runs["rooted"].folder)
    assert "have different hierarchies" in message


# ---------------------------------------------------------------------- what is refused


def test_options_that_do_not_go_together(
    runs: dict[str, Run], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs["hace"].folder
    message = refused(capsys, run, "--scores", "z.npy", "--labels", "y.npy", "--no-root-node")
    assert "--scores must come without RUN. Leave one of them out." in message
    assert "--no-root-node must come with --hierarchy." in message
    assert "nowhere does not exist." in refused(capsys, "nowhere")
    assert "--scores must come with --hierarchy." in refused(capsys, "--scores", "z.npy", "--labels", "y.npy")
    given = ("--hierarchy", files / "tree.json", "--scores", "z.npy", "--labels", "y.npy")
    assert "--split must come with RUN." in refused(capsys, *given, "--split", "test")
    assert "--data-root must come with RUN." in refused(capsys, *given, "--data-root", "F")
    assert "Two runs compare with hace evaluate RUN --compare RUN" in refused(
        capsys, *given, "--compare", run
    )
    np.save(files / "short.npy", np.zeros((3, 8)))
    message = refused(capsys, run, "--compare", files / "short.npy")
    assert f"has 3 rows and the split 'test' of {run} has 40 labels" in message


def test_folders_without_a_model(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "must be a run directory. It has no run.json." in refused(capsys, tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(runs["hace"].folder, copy)
    result = (copy / "result.json").read_bytes()
    edit_json(copy / "result.json", status="diverged")
    assert "result.json was changed after it was written" in refused(capsys, copy)
    (copy / "result.json").write_bytes(result)
    (copy / "weights.safetensors").unlink()
    assert "weights.safetensors is missing. The command that made the run makes it again." in refused(
        capsys, copy
    )
    rehash(copy)
    assert "has no weights.safetensors: it kept only its result" in refused(capsys, copy)
    rehash(copy, status="diverged")
    assert "has no model: its training diverged" in refused(capsys, copy)
    (copy / "manifest.json").unlink()
    assert "is not finished" in refused(capsys, copy)


def test_weights_of_another_run(runs: dict[str, Run], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs["standard"].folder, copy)
    path = copy / "weights.safetensors"
    weights, hierarchy = load_file(path), runs["standard"].hierarchy.fingerprint
    assert set(weights) == {"weight", "bias", "mean", "std"}
    save_file({k: weights[k] for k in ("weight", "bias")}, path, {"hierarchy": hierarchy})
    rehash(copy)
    with pytest.raises(FormatError, match=r"must hold mean and std .* train the run again"):
        rescored(copy)
    save_file(weights, path, {"hierarchy": "0" * 64})
    rehash(copy)
    with pytest.raises(FormatError, match=f"its fingerprint is 000000000000, the run's {hierarchy[:12]}"):
        rescored(copy)
    save_file({**weights, "weight": weights["weight"][1:].clone()}, path, {"hierarchy": hierarchy})
    rehash(copy)
    with pytest.raises(FormatError, match=r"its loss has 12 outputs, the weights have shape \(11, 6\)"):
        rescored(copy)
    path.write_bytes(b"\x08" + bytes(20))
    rehash(copy)
    with pytest.raises(FormatError, match="is damaged"):
        rescored(copy)
    assert read_run(copy).status == "finished"


@pytest.mark.slow
def test_real_features(
    real_data: Callable[[str], Path], tmp_path: Path, evaluated: Callable[..., Any]
) -> None:
    """Two losses on the features of 11,788 birds, with a hierarchy from a file of another format."""
    data = DataConfig(
        "features",
        root=str(real_data("cub200_features_lite0") / "cub200_lite0_224px_fp16.npz"),
        hierarchy=str(real_data("cub200_hierarchy") / "cub_wikispecies.parent-child.txt"),
    )
    settings = {"data": data, "epochs": 2, "batch_size": 256, "lr": 8.0}
    first, second = probe([config("cross_entropy", **settings), config("hace", **settings)], tmp_path)
    evaluation = evaluated(first.folder, "--compare", second.folder)
    assert first.result is not None
    assert second.result is not None
    assert evaluation["metrics"] == first.result["metrics"]
    expected = second.result["metrics"]
    rows = evaluation["comparison"]["metrics"]
    assert {r["name"]: r["second"] for r in rows if r["heading"] == "leaves"} == expected["leaves"]
