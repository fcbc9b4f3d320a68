"""Cell types in AnnData: what is written, and that it does not depend on how the cells are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix

import hace
from hace import Hierarchy
from hace.errors import ConfigError, DataError

anndata = pytest.importorskip("anndata")
sklearn_metrics = pytest.importorskip("sklearn.metrics")

ONTOLOGY = Hierarchy.from_edges(
    [
        ("cell", "leukocyte"), ("cell", "neuron"), ("leukocyte", "lymphocyte"), ("leukocyte", "monocyte"),
        ("lymphocyte", "T"), ("lymphocyte", "B"), ("T", "CD4"), ("T", "CD8"), ("CD4", "Treg"), ("B", "plasma"),
    ],
    names={"CD4": "CD4-positive T cell", "CD8": "CD8-positive T cell", "B": "B cell"},
)  # fmt: skip
TYPES = ("CD4", "CD8", "B", "monocyte")


def cells(count: int = 400, seed: int = 0, noise: float = 1.0) -> Any:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, len(TYPES), count)
    centres = np.random.default_rng(7).normal(0, 1.5, (len(TYPES), 12)) + np.array([1, 1, 1, 0])[:, None]
    x = np.maximum(centres[kind] + rng.normal(0, noise, (count, 12)), 0).astype(np.float32)
    result = anndata.AnnData(x)
    result.obs_names = [f"cell{i}" for i in range(count)]
    result.var_names = [f"gene{i}" for i in range(12)]
    result.obs["type"] = np.array(TYPES, dtype=object)[kind]
    result.obs["donor"] = [f"d{i % 8}" for i in range(count)]
    result.obs["cluster"] = [str(k) for k in kind]
    result.obsm["X_umap"] = x[:, :2]
    return result


@pytest.fixture(scope="module")
def model() -> hace.HACEClassifier:
    return hace.anndata.fit(cells(), "type", ONTOLOGY)


def test_classes_are_the_labels_and_nothing_below_them(model: hace.HACEClassifier) -> None:
    h = model.hierarchy_
    assert set(h.leaves) == set(TYPES)
    assert "Treg" not in h.nodes  # no cell shows what it looks like
    assert {"leukocyte", "lymphocyte", "T"} <= set(h.nodes)
    assert "cell" not in h.nodes  # a single child


def test_columns_and_record(model: hace.HACEClassifier) -> None:
    query = cells(300, seed=1)
    hace.anndata.annotate(query, model, accuracy=0.9, groups="cluster")
    obs = query.obs
    for row in range(0, 300, 37):
        node = obs["hace"].iloc[row]
        if isinstance(node, str):
            assert obs["hace_name"].iloc[row] == ONTOLOGY.name(node)
            assert obs["hace_rank"].iloc[row] == model.hierarchy_.depths[model.hierarchy_.index(node)]
    assert set(obs["hace_guarantee"]) == {0.9}
    truth, said = (np.array(list(obs[c].astype(object)), dtype=object) for c in ("type", "hace"))
    wrong = [
        s
        for t, s in zip(truth, said, strict=True)
        if isinstance(s, str) and s != t and s not in ONTOLOGY.path(t)
    ]
    assert len(wrong) / len(truth) < 0.15  # the guarantee is 0.1, on average
    record = query.uns["hace"]
    assert record["accuracy"] == 0.9
    assert "At most 10%" in record["guarantee"]
    assert record["classes"] == list(model.hierarchy_.leaves)
    assert record["class_names"] == [ONTOLOGY.name(leaf) for leaf in record["classes"]]
    assert record["group_names"] == ["0", "1", "2", "3"]
    assert [ONTOLOGY.name(node) if node else "" for node in record["group_answers"]] == [
        obs.loc[obs["cluster"] == group, "hace_group_name"].iloc[0] for group in record["group_names"]
    ]
    assert obs.groupby("cluster", observed=True)["hace_group"].nunique().max() == 1


def test_one_answer_per_cluster_is_that_of_mean_probabilities(model: hace.HACEClassifier) -> None:
    query = cells(120, seed=2)
    hace.anndata.annotate(query, model, threshold=0.8, groups="cluster")
    q = np.exp(model.predict_node_log_proba(query.to_df()))
    for group in "0123":
        mean = q[(query.obs["cluster"] == group).to_numpy()].mean(axis=0)
        expected = hace.predict(
            np.log(mean)[None], model.hierarchy_, rule="threshold", threshold=0.8, kind="node_log_probs"
        )
        assert query.obs.loc[query.obs["cluster"] == group, "hace_group"].iloc[0] == expected.ids[0]


@pytest.mark.filterwarnings("ignore:Trying to modify attribute")  # a view becomes a copy, as anndata says
@pytest.mark.parametrize("form", ["csr", "csc", "layer", "backed", "shuffled genes", "view"])
def test_answers_do_not_depend_on_how_cells_are_stored(
    model: hace.HACEClassifier, form: str, tmp_path: Path
) -> None:
    plain, query, options = cells(150, seed=3), cells(150, seed=3), {}
    if form in ("csr", "csc"):
        query.X = (csr_matrix if form == "csr" else csc_matrix)(query.X)
    elif form == "layer":
        query.layers["log"], query.X, options = query.X.copy(), query.X * 9, {"layer": "log"}
    elif form == "backed":
        query.X = csr_matrix(query.X)
        query.write(tmp_path / "query.h5ad")
        query = anndata.read_h5ad(tmp_path / "query.h5ad", backed="r")
    elif form == "shuffled genes":
        query = query[:, np.random.default_rng(0).permutation(12)].copy()
    elif form == "view":
        both = anndata.concat([query, query], index_unique="-")
        query = both[:150]
    hace.anndata.annotate(plain, model)
    hace.anndata.annotate(query, model, batch_size=47, **options)
    assert list(query.obs["hace"].astype(object)) == list(plain.obs["hace"].astype(object))
    assert np.allclose(query.obs["hace_probability"], plain.obs["hace_probability"], atol=1e-6)


def test_training_does_not_depend_on_how_cells_are_stored(tmp_path: Path) -> None:
    reference, query = cells(), cells(60, seed=4)
    reference.X = csr_matrix(reference.X)
    reference.write(tmp_path / "reference.h5ad")
    backed = anndata.read_h5ad(tmp_path / "reference.h5ad", backed="r")
    results = [hace.anndata.fit(data, "type", ONTOLOGY) for data in (reference, backed)]
    assert np.allclose(results[0].coef_, results[1].coef_)
    hace.anndata.annotate(query, results[1])
    query.write(tmp_path / "annotated.h5ad")  # all of it is what a file can hold
    again = anndata.read_h5ad(tmp_path / "annotated.h5ad")
    assert list(again.obs["hace_name"].astype(object)) == list(query.obs["hace_name"].astype(object))


def test_labels_by_name_at_mixed_depths_and_missing() -> None:
    reference = cells()
    labels = reference.obs["type"].astype(object).copy()
    labels[labels == "CD8"] = "CD8-positive T cell"
    labels.iloc[::5] = "lymphocyte"
    labels.iloc[1::50] = np.nan
    labels.iloc[2::50] = None
    reference.obs["mixed"] = labels
    model = hace.anndata.fit(reference, "mixed", ONTOLOGY)
    assert set(model.hierarchy_.leaves) == set(TYPES)
    assert "lymphocyte" in model.hierarchy_.nodes
    assert model.hierarchy_.index("lymphocyte") in model._seen


def test_donors_are_held_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    for name in ("fit", "calibrate"):
        plain = getattr(hace.HACEClassifier, name)

        def recorded(self: Any, X: Any, y: Any, *groups: Any, of: str = name, call: Any = plain) -> Any:
            seen[of] = X
            return call(self, X, y, *groups)

        monkeypatch.setattr(hace.HACEClassifier, name, recorded)
    reference = cells()
    hace.anndata.fit(reference, "type", ONTOLOGY, groups="donor", held_out=0.25)
    donors = reference.obs["donor"].to_numpy()
    rows = {row.tobytes(): donor for row, donor in zip(np.asarray(reference.X), donors, strict=True)}
    trained, held = ({rows[row.tobytes()] for row in seen[name]} for name in ("fit", "calibrate"))
    assert len(held) == 2
    assert not trained & held


def test_guarantees_are_about_new_donors() -> None:
    reference = cells()
    reference.obs["donor"] = [f"d{i % 40}" for i in range(400)]
    model = hace.anndata.fit(reference, "type", ONTOLOGY, groups="donor", held_out=0.5)
    assert model.guarantee(0.9).guarantee.startswith("In a new group at most 10% of its samples")
    with pytest.raises(DataError, match=r"groups must be at least 19 .* Got 10\."):
        hace.anndata.annotate(cells(50, seed=1), model, accuracy=0.95)


def test_embeddings_and_a_saved_model(tmp_path: Path) -> None:
    reference, query = cells(), cells(80, seed=5)
    for data in (reference, query):
        data.obsm["X_pca"] = np.asarray(data.X)[:, ::-1].copy()
    model = hace.anndata.fit(reference, "type", ONTOLOGY, obsm="X_pca")
    model.save(tmp_path / "cells.safetensors")
    again = hace.HACEClassifier.load(tmp_path / "cells.safetensors")
    hace.anndata.annotate(query, again, obsm="X_pca")
    assert query.uns["hace"]["features"] == "obsm X_pca"
    with pytest.raises(DataError, match=r"12 are missing: .* Pass obsm='X_pca'\."):
        hace.anndata.annotate(query, again)


def test_macro_f1_by_loops_and_as_scikit_learn_counts() -> None:
    rng = np.random.default_rng(0)
    names = list(ONTOLOGY.nodes)
    truth, answers = (rng.choice(names, 200).tolist() for _ in range(2))
    counted = [t if a == t or t in ONTOLOGY.path(a) else a for t, a in zip(truth, answers, strict=True)]
    expected = sklearn_metrics.f1_score(truth, counted, labels=sorted(set(truth)), average="macro")
    assert hace.anndata.macro_f1(truth, answers, ONTOLOGY) == pytest.approx(expected)
    assert hace.anndata.macro_f1(["CD4", "T"], ["CD4-positive T cell", "CD8"], ONTOLOGY) == 1.0
    assert hace.anndata.macro_f1(["T", np.nan], [None, "T"], ONTOLOGY) == 0.0


def test_the_picture_names_each_class_and_each_rank(model: hace.HACEClassifier, tmp_path: Path) -> None:
    query = cells(100, seed=6)
    hace.anndata.annotate(query, model)
    hace.anndata.draw_ranks(query, tmp_path / "umap.svg")
    text = (tmp_path / "umap.svg").read_text(encoding="utf-8")
    assert "<svg" in text
    for rank, count in query.obs["hace_rank"].value_counts().items():
        title = f"rank {rank} ({count:,})" if rank else f"no answer ({count:,})"
        assert f"<!-- {title}" in text
    for name, count in query.obs["hace_class"].map(ONTOLOGY.name).value_counts().items():
        assert f"<!-- {name} ({count:,})" in text
    hace.anndata.draw_ranks(query, tmp_path / "umap.png")
    assert (tmp_path / "umap.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("change", "call", "error", "message"),
    [
        (lambda a: None, {"labels": "typ"}, ConfigError, r"obs must have 'typ'\. .*Did you mean 'type'"),
        (lambda a: None, {"layer": "log"}, ConfigError, r"layers must have 'log'\. Got none"),
        (lambda a: None, {"obsm": "X_pca"}, ConfigError, r"obsm must have 'X_pca'"),
        (lambda a: None, {"groups": "batch"}, ConfigError, r"obs must have 'batch'"),
        (lambda a: a.obs.insert(0, "one", "x"), {"groups": "one"}, DataError, r"must name at least two groups"),
        (lambda a: a.obs.insert(0, "odd", "CD5"), {"labels": "odd"}, DataError, r"labels must be ids or unique names"),
        (lambda a: None, {"held_out": 1.0}, ConfigError, r"held_out must be at least 0 and below 1\. Got 1.0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change: Any, call: dict[str, Any], error: Any, message: str) -> None:
    reference = cells(40)
    change(reference)
    with pytest.raises(error, match=message):
        hace.anndata.fit(reference, **{"labels": "type", "hierarchy": ONTOLOGY, **call})


def test_missing_genes_and_models_without_a_guarantee(model: hace.HACEClassifier) -> None:
    query = cells(30, seed=8)[:, :11].copy()
    with pytest.raises(
        DataError, match=r"12 features of the training\. 1 are missing: 'gene11'.* missing=\"zero\""
    ):
        hace.anndata.annotate(query, model)
    whole = cells(30, seed=8)
    whole.X[:, 11] = 0
    hace.anndata.annotate(query, model, missing="zero")
    hace.anndata.annotate(whole, model)
    assert list(query.obs["hace"].astype(object)) == list(whole.obs["hace"].astype(object))
    assert query.uns["hace"]["missing_features"] == 1
    bare = hace.anndata.fit(cells(), "type", ONTOLOGY, held_out=0)
    with pytest.raises(ConfigError, match="needs a calibrated classifier"):
        hace.anndata.annotate(whole, bare)
    hace.anndata.annotate(whole, bare, threshold=0.9)
    assert np.isnan(whole.obs["hace_guarantee"]).all()


def test_raw_counts_are_noticed() -> None:
    counts = cells(60)
    counts.X = np.round(counts.X * 40)
    with pytest.warns(UserWarning, match="look like raw counts"):
        hace.anndata.fit(counts, "type", ONTOLOGY, held_out=0)


def test_a_model_that_is_always_right_keeps_its_temperature_and_makes_guarantees() -> None:
    model = hace.anndata.fit(cells(60, noise=0.01), "type", ONTOLOGY)
    assert model.temperature_ == 1.0
    query = cells(30, seed=9, noise=0.01)
    hace.anndata.annotate(query, model, threshold=0.5)
    assert list(query.obs["hace"].astype(object)) == list(query.obs["type"])


def test_an_anndata_as_features_and_missing_labels_are_refused() -> None:
    data = cells(20)
    with pytest.raises(ConfigError, match=r"Got AnnData\. Pass adata\.X, or use hace\.anndata\.fit"):
        hace.HACEClassifier(ONTOLOGY).fit(data, data.obs["type"])
    y = data.obs["type"].astype(object).to_numpy()
    y[3] = np.nan
    with pytest.raises(
        DataError, match=r"1 of 20 are missing \(NaN\); the first is y\[3\].* 'cell': it means unknown"
    ):
        hace.HACEClassifier(ONTOLOGY).fit(np.asarray(data.X), y)
