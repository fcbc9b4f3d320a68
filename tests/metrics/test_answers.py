"""Answers without scores, columns at mixed ranks, and lists of (class, score), against slow and independent oracles."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hace
from hace import ConfigError, DataError, Hierarchy
from hace.cli import main
from hace.formats.score_files import open_scores, open_top_k, read_answers
from hace.metrics import evaluate_answers
from hace.metrics.answers import class_scores
from tests.hierarchies import Plain, hierarchies

H = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby"), ("cat", "lynx")]).with_root()


@given(hierarchies(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_class_scores_follow_their_words(plain: Plain, random: Random) -> None:
    """Loops over nodes and samples; scikit-learn's macro-F1 after answers below the label are replaced by it."""
    sk = pytest.importorskip("sklearn.metrics")
    h = plain.build()
    truth = [random.choice(h.nodes) for _ in range(12)]
    answers = [random.choice([*h.nodes, None]) for _ in truth]
    report = evaluate_answers(answers, truth, h).values
    below = [a is not None and (a == t or t in h.ancestors(a)) for a, t in zip(answers, truth, strict=True)]
    refined = [t if b else a or "none" for a, t, b in zip(answers, truth, below, strict=True)]
    labels = sorted(set(truth))
    assert report["right or below"] == pytest.approx(np.mean(below))
    recalls = [np.mean([b for b, t in zip(below, truth, strict=True) if t == label]) for label in labels]
    assert report["balanced accuracy"] == pytest.approx(np.mean(recalls))
    macro = sk.f1_score(truth, refined, labels=labels, average="macro", zero_division=0)
    assert report["macro-F1"] == pytest.approx(macro)
    each = []
    for v, node in enumerate(h.nodes):
        if h.depths[v] == 0 and h.num_nodes > 1:
            continue
        branch = {node, *h.descendants(node)}
        said, actual = [a in branch for a in answers], [t in branch for t in truth]
        if any(said) or any(actual):
            right = sum(a and t for a, t in zip(said, actual, strict=True))
            each.append(2 * right / (sum(said) + sum(actual)))
    expected = np.mean(each) if each else np.nan
    assert report["macro-F1 over nodes"] == pytest.approx(expected, nan_ok=True)
    if len({*truth, *answers}) > 1:
        assert report["kappa"] == pytest.approx(sk.cohen_kappa_score(truth, [a or "none" for a in answers]))


def test_groups_and_rare_classes_are_slices() -> None:
    truth = ["husky"] * 12 + ["lynx"] * 2
    answers = ["husky"] * 11 + ["dog"] + ["lynx", "tabby"]
    report = evaluate_answers(answers, truth, H, groups=["a"] * 7 + ["b"] * 7)
    assert report.slices["classes with up to 10 samples"]["right or below"] == 0.5
    assert report.slices["other classes"]["samples"] == 12
    assert report.slices["b"]["true (right or above)"] == pytest.approx(6 / 7)
    assert report.values["accuracy at level 1"] == 1.0
    assert "classes with up to 10 samples" in report.to_text()
    assert class_scores(H, np.zeros(0, int), np.zeros(0, int))["macro-F1"] != 0


@pytest.mark.slow
def test_slices_of_scores_are_those_of_the_best_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores have the slices that their best classes have as answers; the page shows them."""
    truth = ["husky"] * 12 + ["lynx"] * 2 + ["tabby"] * 3
    site = ["north", "south"] * 8 + ["north"]
    rng = np.random.default_rng(0)
    z = rng.normal(size=(17, H.num_leaves))
    best = [H.leaves[i] for i in z.argmax(axis=1)]
    wanted = evaluate_answers(best, truth, H, groups=site).slices
    evaluation = hace.evaluate(z, truth, H, outputs="leaves", labels="nodes", groups=site)
    assert list(evaluation.slices) == list(wanted)
    for name, values in evaluation.slices.items():
        assert values == pytest.approx({key: wanted[name][key] for key in values})
    page = hace.write_evaluation(evaluation, tmp_path / "page").read_text(encoding="utf-8")
    assert "Rare classes and groups" in page
    hace.write_hierarchy(H, tmp_path / "tree.json")
    np.save(tmp_path / "z.npy", z)
    rows = "".join(f"{y},{s}\n" for y, s in zip(truth, site, strict=True))
    (tmp_path / "y.csv").write_text(f"label,site\n{rows}")
    call = ["evaluate", "--hierarchy", str(tmp_path / "tree.json"), "--scores", str(tmp_path / "z.npy"), "--labels",
            str(tmp_path / "y.csv"), "--label-column", "label", "--groups", "site", "--json"]  # fmt: skip
    assert main(call) == 0
    assert json.loads(capsys.readouterr().out)["slices"] == evaluation.slices


def test_the_command_reads_answers_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hace.write_hierarchy(H, tmp_path / "tree.json")
    (tmp_path / "a.csv").write_text("file,prediction\nb.jpg,dog\na.jpg,husky\nc.jpg,blank\n")
    (tmp_path / "y.csv").write_text(
        "file,label,site\na.jpg,husky,north\nb.jpg,beagle,north\nc.jpg,lynx,south\n"
    )
    call = ["evaluate", "--hierarchy", str(tmp_path / "tree.json"), "--answers", str(tmp_path / "a.csv"), "--labels",
            str(tmp_path / "y.csv"), "--groups", "site", "--json"]  # fmt: skip
    assert main(call) == 2
    assert "the first is 'blank' at position 2" in capsys.readouterr().err
    assert main([*call, "--no-answer", "blank,unknown"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["exactly right"] == pytest.approx(1 / 3)
    assert result["metrics"]["true (right or above)"] == 1.0  # no answer is never false
    assert result["slices"]["north"]["samples"] == 2
    (tmp_path / "y.csv").write_text("file,label\nz.jpg,husky\n")
    with pytest.raises(DataError, match=r"must have an answer. Got none for 'z.jpg'"):
        read_answers(tmp_path / "a.csv", tmp_path / "y.csv")
    with pytest.raises(ConfigError, match="which column"):
        read_answers(tmp_path / "a.csv", tmp_path / "y.csv", answer_column="species")


def test_columns_at_mixed_ranks(tmp_path: Path) -> None:
    """A node without a column has no mass of its own: the same as the full table with nothing there."""
    (tmp_path / "s.csv").write_text("husky,cat,blank,lynx\n0.5,0.25,0.1,0.25\n0.1,0.8,0.1,0.1\n")
    with pytest.raises(DataError, match=r"Got 'blank'.*--ignore-column NAME"):
        open_scores(tmp_path / "s.csv", H)
    for absent, kind in ((0.0, "probs"), (-np.inf, "logits")):
        scores = open_scores(tmp_path / "s.csv", H, ignore_columns=["blank"], absent=absent)
        assert scores.outputs == "nodes"
        (chunks_read,) = scores.chunks()
        full = np.full((2, H.num_nodes), absent)
        for column, id in enumerate(("husky", "cat", None, "lynx")):
            if id is not None:
                full[:, H.index(id)] = (
                    [[0.5, 0.25, 0.1, 0.25], [0.1, 0.8, 0.1, 0.1]][0][column],
                    [0.1, 0.8, 0.1, 0.1][column],
                )
        np.testing.assert_array_equal(chunks_read, full)
        rows = chunks_read / chunks_read.sum(axis=1, keepdims=True) if kind == "probs" else chunks_read
        report = hace.evaluate(rows, ["husky", "cat"], H, kind=kind, outputs="nodes", labels="nodes")
        assert np.isfinite(report.values["leaves", "top-1"])
        assert "balanced accuracy" in report.to_text()
        assert report.to_dict()["classes"] == report.class_scores


def test_lists_of_classes_and_scores(tmp_path: Path) -> None:
    (tmp_path / "k.csv").write_text("sample,class,score\n1,husky,0.6\n1,cat,0.2\n2,lynx,0.9\n")
    (spread,) = open_top_k(tmp_path / "k.csv", H, "spread").chunks()
    np.testing.assert_allclose(spread.sum(axis=1), 1)
    row = dict(zip(H.nodes, spread[0], strict=True))
    assert row["husky"] == pytest.approx(0.6)
    assert row["beagle"] == row["tabby"] == row["lynx"] == pytest.approx(0.2 / 3)
    (unknown,) = open_top_k(tmp_path / "k.csv", H, "unknown").chunks()
    assert unknown[0][0] == pytest.approx(0.2)
    assert unknown[0].sum() == pytest.approx(1)
    (tmp_path / "few.csv").write_text("sample,class,score\n1,husky,0.5\n1,beagle,0.01\n")
    (few,) = open_top_k(tmp_path / "few.csv", H, "spread").chunks()
    assert (
        few[0][H.leaf_nodes] <= few[0][H.index("beagle")] * (1 + 1e-9)
    ).sum() == 3  # never above the smallest
    with pytest.raises(ConfigError, match="which needs a root"):
        open_top_k(tmp_path / "k.csv", H.without_root(), "unknown")
    (tmp_path / "bad.csv").write_text("sample,class,score\n1,blank,0.6\n")
    with pytest.raises(DataError, match=r"Got 'blank'.*--ignore-column"):
        open_top_k(tmp_path / "bad.csv", H, "spread")
    uuid = "00000000-0000-4000-8000-00000000000"
    taxa = "".join(f"{uuid}{i};mammalia;carnivora;{f};{g};{s};{n}\n" for i, f, g, s, n in [
        (1, "felidae", "panthera", "leo", "lion"), (2, "felidae", "lynx", "lynx", "eurasian lynx"),
        (3, "felidae", "", "", "cat family"), (4, "canidae", "canis", "lupus", "wolf")])  # fmt: skip
    (tmp_path / "taxonomy_release.txt").write_text(taxa + f"{uuid}5;;;;;;blank\n")
    h = hace.read_hierarchy(tmp_path / "taxonomy_release.txt", root=True)
    assert h.num_leaves == 3
    lines = taxa.splitlines()
    predictions = [
        {
            "filepath": "a.jpg",
            "prediction": lines[2],
            "classifications": {"classes": lines[:3], "scores": [0.5, 0.3, 0.1]},
        },
        {
            "filepath": "b.jpg",
            "prediction": f"{uuid}5;;;;;;blank",
            "classifications": {"classes": [lines[3]], "scores": [1.0]},
        },
    ]
    (tmp_path / "p.json").write_text(json.dumps({"predictions": predictions}))
    (tmp_path / "y.csv").write_text("filepath,label\nb.jpg,canis lupus\na.jpg,lion\n")
    words, truth, _ = read_answers(tmp_path / "p.json", tmp_path / "y.csv")
    report = evaluate_answers([word or None for word in words], truth, h)
    assert report.values["true (right or above)"] == 1.0
    (listed,) = open_top_k(tmp_path / "p.json", h, "spread").chunks()
    assert listed[0][h.index("panthera leo")] == pytest.approx(0.5)
