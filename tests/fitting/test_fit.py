"""One path: the same three lines on every kind of data, and a clear message where data cannot be learned from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hace
from hace import ConfigError, DataError, FormatError, HaceError, Hierarchy, Predictor

anndata = pytest.importorskip("anndata")

RANKS = ["family", "genus", "species"]
SPECIES = [
    ("gulls", "Larus", "herring gull"),
    ("gulls", "Larus", "common gull"),
    ("gulls", "Rissa", "kittiwake"),
    ("terns", "Sterna", "arctic tern"),
    ("terns", "Sterna", "common tern"),
    ("terns", "Thalasseus", "sandwich tern"),
]
TREE = Hierarchy.from_paths(SPECIES, level_names=RANKS)


def samples(count: int = 60, seed: int = 0, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Features (6 count, 8) and rows of ranks: each rank moves the mean of its features."""
    rng = np.random.default_rng(0)
    parts = {name: rng.normal(size=8) * 2 for row in SPECIES for name in row}
    centres = np.array([sum(parts[name] for name in row) for row in SPECIES])
    rng = np.random.default_rng(seed)
    place = np.arange(6 * count) % 6
    return (centres[place] + noise * rng.normal(size=(6 * count, 8))).astype(np.float32), np.array(SPECIES)[
        place
    ]


X, Y = samples()
NEW, TRUTH = samples(20, seed=1)


def table(x: np.ndarray = X, y: np.ndarray = Y) -> pd.DataFrame:
    return pd.DataFrame(x, columns=[f"m{i}" for i in range(8)]).assign(**dict(zip(RANKS, y.T, strict=True)))


def as_csv(folder: Path) -> Path:
    table().to_csv(folder / "birds.csv", index=False)
    return folder / "birds.csv"


def as_parquet(folder: Path) -> Path:
    table().to_parquet(folder / "birds.parquet")
    return folder / "birds.parquet"


def as_feature_file(folder: Path) -> Path:
    np.savez(folder / "birds.npz", X=X, y=Y[:, 2])
    return folder / "birds.npz"


def as_h5ad(folder: Path) -> Path:
    obs = table()[RANKS].rename(columns={"species": "cell_type"})
    adata = anndata.AnnData(X, obs=obs.set_index(pd.Index([f"cell {i}" for i in range(len(X))])))
    adata.write_h5ad(folder / "cells.h5ad")
    return folder / "cells.h5ad"


@pytest.mark.parametrize("make", [as_csv, as_parquet, as_feature_file, as_h5ad])
def test_the_same_three_lines_on_every_kind_of_file(make: Callable[[Path], Path], tmp_path: Path) -> None:
    model = hace.fit(make(tmp_path), hierarchy=TREE, quiet=True)
    answers = model.predict(NEW)
    model.save(tmp_path / "birds.hace")
    assert list(answers.columns) == ["answer", "rank", "confidence"]
    known = answers.answer.notna()
    right = [a in row for a, row in zip(answers.answer[known], TRUTH[known], strict=True)]
    assert np.mean(right) > 0.9
    assert answers["rank"][known].isin(RANKS).all()
    assert answers[~known].isna().all(axis=None)
    pd.testing.assert_frame_equal(hace.load(tmp_path / "birds.hace").predict(NEW), answers)


def test_arrays_frames_and_a_taxonomy_in_the_columns_agree() -> None:
    from_arrays = hace.fit(X, Y[:, 2], TREE, quiet=True)
    from_paths = hace.fit(X, [" > ".join(row) for row in Y], quiet=True)
    from_table = hace.fit(table(), quiet=True)
    assert from_table.hierarchy.level_names == tuple(RANKS)
    for model in (from_paths, from_table):
        assert set(model.hierarchy.nodes) == set(TREE.nodes)
    assert from_paths.predict(NEW, None).answer.tolist() == from_arrays.predict(NEW, None).answer.tolist()
    assert from_table.feature_names == [f"m{i}" for i in range(8)]


def test_labels_may_end_at_any_rank() -> None:
    data = table()
    vague = np.random.default_rng(0).random(len(data))
    data.loc[vague < 0.4, "species"] = None
    data.loc[vague < 0.2, "genus"] = None
    model = hace.fit(data, quiet=True)
    assert model.findings.coarse == pytest.approx(0.5, abs=0.1)  # nothing coarse is held out
    assert model.findings.coarse_gain is not None
    right = model.predict(NEW, None).answer.to_numpy() == TRUTH[:, 2]
    assert right.mean() > 0.8


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    model = hace.fit(X, Y[:, 2], TREE)
    lines = capsys.readouterr().out.splitlines()
    assert lines == str(model).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "How good",
        "Guarantee",
        "Taxonomy",
        "Coarse",
        "Watch",
        "Next",
    ]
    assert "at most 5% wrong, guaranteed: " in lines[1]
    assert "logistic regression was chosen" in lines[2]


def test_the_index_of_a_data_frame_is_no_measurement(tmp_path: Path) -> None:
    """It counts rows, and rows often stand class by class."""
    table().to_csv(tmp_path / "birds.csv")  # with a column of row numbers, without a name
    for data in (tmp_path / "birds.csv", pd.read_csv(tmp_path / "birds.csv")):
        model = hace.fit(data, quiet=True)
        assert list(model.classifier.feature_names_in_) == [f"m{i}" for i in range(8)]
        assert any("no measurements" in note for note in model.findings.notes)


def test_the_users_splits_are_honoured() -> None:
    split = np.array(["train", "val", "test"])[np.arange(len(X)) % 3]
    model = hace.fit(table().assign(split=split), quiet=True)
    assert model.findings.samples == {"train": 120, "calibration": 120, "test": 120}
    guarantee = model.classifier.guarantee(0.95)
    assert guarantee.samples == 120


def test_small_data_say_what_could_not_be_done() -> None:
    model = hace.fit(X[:18], Y[:18, 2], TREE, quiet=True)
    assert model.findings.samples == {"train": 18, "calibration": 0, "test": 0}
    assert "none" in str(model).splitlines()[1]
    with pytest.raises(ConfigError, match=r"accuracy=0.95 cannot be guaranteed. .*accuracy=None"):
        model.predict(NEW)
    assert model.predict(NEW, None).answer.notna().all()
    assert model.predict(NEW, threshold=0.9).shape == (120, 3)


def test_a_guarantee_that_test_samples_break_is_called_broken() -> None:
    """The test split comes from elsewhere: other cameras, say."""
    x, y = samples(120)
    split = np.array(["train", "train", "val", "test"])[np.arange(len(x)) // 6 % 4]
    fine = hace.fit(x, y[:, 2], TREE, split=split, quiet=True)
    assert fine.findings.broken == ""
    x[split == "test"] += np.random.default_rng(2).normal(size=(int((split == "test").sum()), 8)) * 4
    model = hace.fit(x, y[:, 2], TREE, split=split, quiet=True)
    assert "false answer, guaranteed at most 5%" in model.findings.broken
    assert "groups" in model.findings.broken
    assert "BROKEN" in str(model)


def test_groups_are_whole_and_guarantees_are_about_new_ones() -> None:
    x, y = samples(200)
    site = (np.arange(len(x)) // 12).astype(str)  # 100 sites
    model = hace.fit(x, y[:, 2], TREE, groups=site, quiet=True)
    record = model.classifier.guarantee(0.95)
    assert record.groups == "new"
    assert record.num_groups >= 19


def test_a_guarantee_that_only_all_classes_together_support() -> None:
    """Of 20 groups that calibrate, 18 remain where two classes are left out to ask about new ones."""
    h = Hierarchy.from_paths([(f"g{k // 4}", f"c{k}") for k in range(20)])
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(20, 8))
    recording = np.repeat(np.arange(100), 6)  # five of each class
    train = np.repeat(centres, 30, axis=0) + rng.normal(size=(100, 8))[recording]
    test = np.repeat(centres, 6, axis=0) + rng.normal(size=(120, 8))
    x = np.concatenate([train + 0.5 * rng.normal(size=train.shape), test])
    y = np.concatenate([np.repeat(h.leaves, 30), np.repeat(h.leaves, 6)])
    site = np.concatenate([recording, 1000 + np.arange(120)]).astype(str)
    split = np.repeat(["train", "test"], [600, 120])
    model = hace.fit(x, y, h, groups=site, split=split, quiet=True)
    assert model.classifier.guarantee(0.95).num_groups == 20
    assert model.findings.new is None


def test_copies_of_one_photo_are_one_sample_where_accuracies_are_compared() -> None:
    """All of 10 photos right, each in ten shots, and 92% of new ones: no more than chance."""
    h = Hierarchy.from_paths([(f"g{k // 5}", f"c{k}") for k in range(10)])
    rng = np.random.default_rng(0)
    label = np.concatenate([np.repeat(range(10), count) for count in (40, 10, 60)])
    x = 5 * rng.normal(size=(10, 32))[label] + rng.normal(size=(1100, 32))
    x[400:500] = x[400:500:10].repeat(10, axis=0) + 0.01 * rng.normal(size=(100, 32))
    label[500::12] = (label[500::12] + 5) % 10  # 50 of 600 in the other group
    split = np.repeat(["train", "val", "test"], [400, 100, 600])
    model = hace.fit(x, np.array(h.leaves)[label], h, split=split, quiet=True)
    assert (model.findings.held_out or (0,))[0] == 1
    assert model.findings.accuracy[0] == pytest.approx(550 / 600)
    assert any("100 of 1,100 samples are near-copies" in note for note in model.findings.notes)
    assert "more than chance" not in model.findings.broken


def test_other_programs_read_the_file(tmp_path: Path) -> None:
    model = hace.fit(X, Y[:, 2], TREE, quiet=True)
    model.save(tmp_path / "birds.hace")
    predictor = Predictor.from_run(tmp_path / "birds.hace")
    answers = predictor.predict(NEW, accuracy=0.95).answers
    assert answers.ids == model.predict(NEW).answer.tolist()


def test_the_same_data_give_the_same_model(tmp_path: Path) -> None:
    for name in ("a", "b"):
        hace.fit(X, Y[:, 2], TREE, quiet=True).save(tmp_path / f"{name}.hace")
    one, other = (hace.load(tmp_path / f"{name}.hace").classifier for name in ("a", "b"))
    np.testing.assert_array_equal(one.coef_, other.coef_)


def test_evaluation_on_other_data() -> None:
    model = hace.fit(table(), quiet=True)
    evaluation = model.evaluate(table(NEW, TRUTH))
    right = model.predict(NEW, None).answer.to_numpy() == TRUTH[:, 2]
    assert evaluation.values["leaves", "top-1"] == pytest.approx(right.mean())
    of_array = model.evaluate(NEW.astype(np.float32), TRUTH[:, 2])  # without names of features
    assert of_array.values["leaves", "top-1"] == pytest.approx(right.mean())


def cells(x: np.ndarray, donors: int = 30) -> Any:
    """An AnnData of the samples, with donors."""
    donor = [f"donor {i // 6 % donors}" for i in range(len(x))]
    obs = pd.DataFrame({"cell_type": Y[: len(x), 2], "donor": donor})
    return anndata.AnnData(x, obs=obs.set_index(obs.index.map("cell {}".format)))


def test_donors_of_cells_are_groups_as_sites_of_a_table_are() -> None:
    model = hace.fit(cells(X), hierarchy=TREE, quiet=True)
    assert any("Samples of one donor are kept together" in note for note in model.findings.notes)
    assert model.classifier.guarantee(0.8).groups == "new"
    alone = hace.fit(cells(X), hierarchy=TREE, groups=False, quiet=True)
    assert not any("kept together" in note for note in alone.findings.notes)


def test_few_groups_are_the_reason_that_nothing_is_held_out() -> None:
    model = hace.fit(X, Y[:, 2], TREE, groups=Y[:, 2], quiet=True)
    assert any("360 samples in 6 groups are too few to hold out" in note for note in model.findings.notes)


def test_lists_columns_and_arrays_of_words_are_data() -> None:
    rows = hace.fit(X.tolist(), Y[:, 2].tolist(), TREE, quiet=True)
    array = hace.fit(X.astype(float), Y[:, 2], TREE, quiet=True)
    assert rows.predict(NEW.tolist()).equals(array.predict(NEW))
    texts = [f"{row[2]} over {row[0]} number{i}" for i, row in enumerate(Y[:120])]
    answers = [
        hace.fit(given, Y[:120, 2], TREE, model="tfidf", quiet=True).predict(given, None)
        for given in (texts, np.array(texts), pd.Series(texts))
    ]
    assert answers[0].equals(answers[1])
    assert answers[0].equals(answers[2])


def test_the_table_given_is_left_as_it_is() -> None:
    data = pd.DataFrame(X).assign(species=Y[:, 2])
    before = list(data.columns)
    model = hace.fit(data, hierarchy=TREE, quiet=True)
    new = pd.DataFrame(NEW)
    model.predict(new)
    assert list(data.columns) == before
    assert list(new.columns) == list(range(8))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"data": X}, "y must hold the labels"),
    ({"data": X, "y": Y[:5, 2]}, "y must have one entry for each of the 360 samples. Got 5"),
    ({"data": X, "y": np.full(360, "gull")}, "Labels must be of two classes or more. Got samples of 1"),
    ({"data": X, "y": np.full(360, None)}, "y must hold labels. Got none"),
    (
        {"data": X, "y": np.where(Y[:, 2] == "kittiwake", "kitiwake", Y[:, 2]), "hierarchy": TREE},
        "kitiwake.*Did you mean",
    ),
    (
        {"data": X, "y": Y[:, 2], "hierarchy": TREE, "split": np.full(360, "test")},
        "split must have training samples",
    ),
    (
        {"data": X, "y": Y[:, 2], "hierarchy": TREE, "split": np.full(360, "fold 1")},
        "split must be train, val or test",
    ),
    ({"data": np.where(X > 5, np.nan, X), "y": Y[:, 2]}, "Features must be finite. .* samples hold NaN"),
    ({"data": table().drop(columns=RANKS)}, "must have a column of labels, or one per rank.*label="),
    ({"data": table(), "label": "specis"}, "label must be a column.*Did you mean 'species'"),
    ({"data": table()[RANKS]}, "must have columns of numbers"),
    (
        {"data": table().assign(m3=["1.5"] * 359 + ["tall"])},
        "'m3' must hold numbers. 1 of 360 are not; the first is 'tall' in row 359",
    ),
    ({"data": table().assign(genus=[None] + ["Larus"] * 359)}, "gaps only at its end"),
    ({"data": "no-such.csv"}, "no-such.csv does not exist"),
    ({"data": table(), "layer": "counts", "obsm": "X"}, "(?=.*layer must come with AnnData)(?=.*obsm must)"),
    ({"data": X, "y": Y[:, 2], "text": "m1"}, "text must come with a DataFrame or a table"),
    ({"data": X, "y": Y[:, 2], "groups": "site"}, "groups must be an array with an entry for each sample"),
    ({"data": table(), "y": Y[:, 2], "label": "genus"}, "label must come without y"),
    ({"data": table(), "text": "genus", "columns": ["m1"]}, "photos, texts or numbers. Got text and columns"),
    ({"data": X, "y": Y[:, 2], "new": "nowhere"}, "^nowhere does not exist. Give samples from where"),
    ({"data": X, "y": Y[:, 2], "checkpoint": "nowhere"}, "^nowhere does not exist. Give weights"),
    ({"data": X, "y": Y[:, 2], "seed": -1}, "seed must be a whole number from 0"),
    ({"data": 3}, "Data must be one of these: .*Got int"),
    ({"data": X[:, 0], "y": Y[:, 2]}, r"X must be \(M, d\), one row per sample. Got shape \(360,\)"),
    (
        {"data": X[:, :, None], "y": Y[:, 2]},
        r"X must be \(M, d\), one row per sample. Got shape \(360, 8, 1\)",
    ),
    ({"data": [[1.0, 2.0], [3.0]], "y": ["a", "b"]}, "Got rows of different shapes"),
    ({"data": X, "y": [f"bird {i}" for i in range(360)]}, "Got 360 classes with one sample each"),
    ({"data": np.ones_like(X), "y": Y[:, 2]}, "Features must differ between samples. All 360 are the same"),
    ({"data": X, "y": Y[:, 2], "groups": ["a"] * 360}, "in two groups or more.*groups=False"),
    ({"data": cells(X), "label": "celltype"}, "label must be a column of obs.*Did you mean 'cell_type'"),
    ({"data": cells(X), "groups": "donr"}, "groups must be a column of obs.*Did you mean 'donor'"),
    ({"data": cells(X), "split": "fold"}, "split must be a column of obs"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_bad_data_are_refused_in_words(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(HaceError, match=f"(?s){words}"):
        hace.fit(quiet=True, **arguments)


def test_new_data_must_have_the_features_of_the_training(tmp_path: Path) -> None:
    model = hace.fit(table(), quiet=True)
    with pytest.raises(DataError, match=r"8 columns of the training\. Missing: 'm2'"):
        model.predict(table(NEW, TRUTH).drop(columns="m2"))
    with pytest.raises(DataError, match=r"New data must have 8 features, as in training\. Got 3"):
        model.predict(NEW[:, :3])
    shuffled = table(NEW, TRUTH)[[*RANKS, *(f"m{i}" for i in range(7, -1, -1))]]
    assert model.predict(shuffled).equals(model.predict(NEW))
    with pytest.raises(ConfigError, match=r"path must end in \.hace"):
        model.save(tmp_path / "birds.pt")
    with pytest.raises(FormatError, match="does not exist"):
        hace.load(tmp_path / "birds.hace")
    model.classifier.save(tmp_path / "clf.hace")
    with pytest.raises(FormatError, match=r"HACEClassifier.load"):
        hace.load(tmp_path / "clf.hace")


def test_a_class_with_one_sample_trains_and_is_reported() -> None:
    keep = np.flatnonzero((Y[:, 2] != "kittiwake") | (np.arange(360) == 2))
    model = hace.fit(X[keep], Y[keep, 2], TREE, quiet=True)
    assert any("single sample" in note for note in model.findings.notes)
    assert "kittiwake" not in model.classifier.unseen_classes_


def test_classes_of_a_larger_taxonomy_that_have_no_sample_are_no_answers() -> None:
    wide = Hierarchy.from_paths([*SPECIES, ("auks", "Alca", "razorbill")], level_names=RANKS)
    model = hace.fit(X, Y[:, 2], wide, quiet=True)
    assert set(model.hierarchy.leaves) == set(TREE.leaves)
    assert any("1 of 7 classes of the taxonomy have no sample" in note for note in model.findings.notes)
