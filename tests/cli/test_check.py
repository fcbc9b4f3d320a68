"""`hace check`: a calibration, new scores, some labels; and the same for a classifier, saved and loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hace import HACEClassifier, Hierarchy, calibrate_scores, cli, fit, load, write_hierarchy

H = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])


def scored(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=rows)
    z = 2 * rng.normal(size=(rows, 3))
    z[np.arange(rows), y] += 4
    return z, y


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    z, y = scored(400, 0)
    write_hierarchy(H, tmp_path / "tree.json")
    calibrate_scores(z, H.leaf_nodes[y], H, 0.9).write(tmp_path / "calibration.json")
    new, truth = scored(300, 1)
    np.save(tmp_path / "new.npy", new)
    np.save(tmp_path / "y.npy", new.argmax(1))  # every answer is true
    np.save(tmp_path / "unlike.npy", 0.1 * new)
    lines = [H.leaves[label] if row % 2 else "" for row, label in enumerate(truth)]
    (tmp_path / "half.csv").write_text("\n".join(["label,site", *(f"{line},a" for line in lines)]) + "\n")
    return tmp_path


def run(folder: Path, scores: str, *options: str) -> int:
    tree = ["--hierarchy", str(folder / "tree.json"), "--accuracy", "0.9"]
    return cli.main(["check", str(folder / "calibration.json"), str(folder / scores), *tree, *options])


def test_the_states(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for scores, options, state in (
        ("new.npy", [], "no evidence against it"),
        ("new.npy", ["--labels", str(folder / "y.npy")], "holds"),
        ("unlike.npy", [], "broken"),
    ):
        assert run(folder, scores, *options) == 0
        assert capsys.readouterr().out.startswith(f"{state}: At most 10% of all samples get a false answer")


def test_labels_may_be_unknown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(folder, "new.npy", "--labels", str(folder / "half.csv"), "--label-column", "label", "--json") == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["labels"]["units"] == 150
    assert result["samples"] == 300


def test_groups_need_no_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A guarantee about new groups is checked before anything is labelled: a file names the groups alone."""
    z, y = scored(400, 7)
    site = np.arange(400) // 8
    sites = folder / "sites.csv"
    calibrate_scores(z, H.leaf_nodes[y], H, 0.8, groups=site).write(folder / "calibration.json")
    sites.write_text("\n".join(["file,site", *(f"{i}.jpg,s{i // 6}" for i in range(300))]) + "\n")
    options = ["--accuracy", "0.8", "--json", "--hierarchy", str(folder / "tree.json")]
    command = ["check", str(folder / "calibration.json"), str(folder / "new.npy"), *options]
    assert cli.main(command) == 2
    assert "--groups COLUMN" in capsys.readouterr().err
    assert cli.main([*command, "--labels", str(sites), "--groups", "site"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["labels"] is None
    assert result["comparison"]["units"] == "groups"
    assert len(result["comparison"]["unlike_groups"]) == 50
    assert "has no column of labels" in err


def test_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "unlike.npy", "--page", str(folder / "page.html")) == 0
    page = (folder / "page.html").read_text()
    assert "<h1>Broken</h1>" in page
    assert "confidence" in page
    assert "wrote" in capsys.readouterr().err


def test_a_classifier_checks_itself_before_and_after_it_is_saved(tmp_path: Path) -> None:
    (x, y), (held, known), (new, truth) = (scored(300, seed) for seed in (2, 3, 4))
    y, known, truth, false = (np.array(H.leaves)[label] for label in (y, known, truth, (truth + 1) % 3))
    clf = HACEClassifier(H).fit(x, y).calibrate(held, known, temperature=1.0)
    clf.save(tmp_path / "model.safetensors")
    for model in (clf, HACEClassifier.load(tmp_path / "model.safetensors")):
        assert model.check(new, accuracy=0.9).state == "no evidence against it"
        assert model.check(new, truth, accuracy=0.9).state != "broken"
        assert model.check(new, false, accuracy=0.9).state == "broken"
        assert model.check(0.1 * new, accuracy=0.9).state == "broken"


def test_a_calibration_matches_the_frequencies_of_new_samples(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    z, y = scored(900, 5)
    np.save(folder / "z.npy", z)
    np.save(folder / "all.npy", y)
    new, truth = scored(900, 6)
    np.save(folder / "few_cats.npy", new[(truth != 2) | (np.arange(900) % 5 == 0)])
    names = {
        "--hierarchy": "tree.json",
        "--scores": "z.npy",
        "--labels": "all.npy",
        "--frequencies": "few_cats.npy",
    }
    options = [word for name, file in names.items() for word in (name, str(folder / file))]
    assert cli.main(["calibrate", *options, "--out", str(folder / "matched.json")]) == 0
    assert "drawn to have the class frequencies of the new samples" in capsys.readouterr().out


def test_a_fitted_model_checks_itself() -> None:
    (x, y), (new, truth) = scored(900, 7), scored(200, 8)
    names = np.array(H.leaves)
    model = fit(x, names[y], H)
    assert model.check(new, accuracy=0.8).state == "no evidence against it"
    assert model.check(new, names[(truth + 1) % 3], accuracy=0.8).state == "broken"


def test_a_model_is_checked_and_calibrated_for_new_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of a model of hace fit, with features in files; some labels are unknown."""
    (x, y), (new, truth) = scored(900, 9), scored(240, 10)
    names = np.array(H.leaves)
    model = str(tmp_path / "m.hace")
    fit(x, names[y], H, quiet=True).save(model)
    np.savez(tmp_path / "more.npz", x=new, y=names[truth])
    np.save(tmp_path / "new.npy", new)
    np.save(tmp_path / "odd.npy", new * [1.0, -3.0, 0.2] + 5)
    known = [names[label] if row % 3 else "" for row, label in enumerate(truth)]
    (tmp_path / "some.csv").write_text("\n".join(["label,site", *(f"{label},a" for label in known)]))
    new_file, odd = str(tmp_path / "new.npy"), str(tmp_path / "odd.npy")
    assert cli.main(["check", model, new_file, "--accuracy", "0.8"]) == 0
    assert capsys.readouterr().out.startswith("no evidence against it")
    assert cli.main(["check", model, odd, "--accuracy", "0.8", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["state"] == "broken"
    assert said["comparison"]["p_values"]["similarity"] <= 0.05
    labels = ["--labels", str(tmp_path / "some.csv"), "--label-column", "label"]
    page = ["--page", str(tmp_path / "page.html")]
    assert cli.main(["check", model, new_file, "--accuracy", "0.8", *labels, *page, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"]["units"] == 160
    more = ["--samples", str(tmp_path / "more.npz"), "--accuracy", "0.8"]
    assert cli.main(["calibrate", model, *more, "--for", new_file]) == 0
    assert (
        "calibration samples were drawn to be as similar to the training samples" in capsys.readouterr().out
    )
    assert cli.main(["check", model, odd, "--accuracy", "0.8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["p_values"]["similarity"] <= 0.05
    assert cli.main(["check", str(tmp_path / "calibration.json"), new_file]) == 2
    assert "--hierarchy must come with a calibration" in capsys.readouterr().err


def test_answers_may_be_sets_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hace calibrate --rule set`, then `hace predict`: the truth is under one of these."""
    (x, y), (new, truth) = scored(900, 11), scored(300, 12)
    names = np.array(H.leaves)
    model = str(tmp_path / "m.hace")
    fit(x, names[y], H, quiet=True).save(model)
    np.savez(tmp_path / "more.npz", x=new[:150], y=names[truth[:150]])
    np.save(tmp_path / "new.npy", 0.3 * new[150:])
    how = ["--rule", "set", "--nodes", "2", "--of", "samples", "--accuracy", "0.9"]
    assert cli.main(["calibrate", model, "--samples", str(tmp_path / "more.npz"), *how]) == 0
    capsys.readouterr()
    table = load(model).predict(0.3 * new[150:], accuracy=0.9)
    assert {len(nodes) for nodes in table.nodes} >= {1, 2}
    asked = ["predict", model, str(tmp_path / "new.npy"), "--to", "jsonl"]
    for options in (["--accuracy", "0.9"], ["--threshold", "0.8", "--nodes", "2"]):
        assert cli.main([*asked, *options]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {len(row["answer"]["nodes"]) for row in rows} >= {1, 2}
        for row in rows:
            nodes = [node["id"] for node in row["answer"]["nodes"]]
            for node in nodes:
                assert row["answer"]["id"] in (None, *H.path(node))
            if row["answer"]["id"] is not None:
                assert row["answer"]["probability"] == pytest.approx(
                    sum(n["probability"] for n in row["answer"]["nodes"])
                )
    assert cli.main([*asked[:-1], "csv", "--threshold", "0.8", "--nodes", "2"]) == 0
    out = capsys.readouterr().out
    assert "answer_nodes" in out.splitlines()[0]
    assert " | " in out
    assert cli.main([*asked, "--threshold", "0.8,0.9", "--nodes", "2"]) == 2
    assert "nodes must come with one threshold" in capsys.readouterr().err
