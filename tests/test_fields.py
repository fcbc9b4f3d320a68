"""Two fields on real data, as their tutorials go: blood cells with the whole Cell Ontology, and the intents of CLINC150.

The data are where HACE_TEST_DATA says; without them, the tutorials themselves run on excerpts in the same formats.
"""

from __future__ import annotations

import csv
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hace
from hace import Predictor, cli

ROOT = Path(os.environ.get("HACE_TEST_DATA", "nowhere"))
CELLS, INTENTS = ROOT / "taxonomies" / "cl-basic.obo", ROOT / "clinc150_minilm"
PAGES = Path(__file__).parents[1] / "docs" / "tutorials"


def types() -> dict[str, str]:
    """The dataset's names of types and those of the ontology, as the tutorial has them."""
    text = (PAGES / "cells.md").read_text(encoding="utf-8")
    block = text[text.index("TYPES = {") : text.index("}\n", text.index("TYPES = {")) + 1]
    names: dict[str, Any] = {}
    exec(block, names)
    return names["TYPES"]


@pytest.mark.slow
@pytest.mark.skipif(not CELLS.is_file(), reason="needs the Cell Ontology in HACE_TEST_DATA")
def test_blood_cells_with_the_whole_ontology() -> None:
    scanpy = pytest.importorskip("scanpy")
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = scanpy.datasets.pbmc68k_reduced()
    cells.obs["cell_type"] = cells.obs["bulk_labels"].map(types()).astype(object)
    ontology = hace.read_hierarchy(CELLS, relations="intersection_of")
    right, flat, false = [], [], []
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(cells.n_obs)
        reference, query = cells[order[:500]].copy(), cells[order[500:]].copy()
        model = hace.anndata.fit(reference, "cell_type", ontology, held_out=0, weight_decay=1e-3)
        hace.anndata.annotate(query, model, threshold=0.5)
        truth = np.array([ontology.match([name])[0].id for name in query.obs["cell_type"]], dtype=object)
        right.append(np.mean(query.obs["hace_class"].astype(object).to_numpy() == truth))
        plain = LogisticRegression(C=1 / (1e-3 * 500), max_iter=300)
        plain.fit(np.asarray(reference.X), reference.obs["cell_type"].astype(str))
        flat.append(np.mean(plain.predict(np.asarray(query.X)) == query.obs["cell_type"].astype(str)))
        sure = hace.anndata.fit(reference, "cell_type", ontology)
        hace.anndata.annotate(query, sure, accuracy=0.9)
        said = query.obs["hace"].astype(object)
        false.append(np.mean([isinstance(a, str) and a not in ontology.path(t) and a not in ontology.ancestors(t)
                              for t, a in zip(truth, said, strict=True)]))  # fmt: skip
        labelled = {ontology.match([name])[0].id for name in types().values()}
        allowed = labelled | {above for node in labelled for above in ontology.ancestors(node)}
        assert set(said.dropna()) <= allowed  # nothing below what was labelled
    assert np.mean(right) > np.mean(flat) - 0.015
    assert np.mean(false) < 0.14  # the guarantee is 0.1; four splits of 200 cells


@pytest.mark.long
@pytest.mark.skipif(not INTENTS.is_dir(), reason="needs CLINC150 in HACE_TEST_DATA")
def test_intents_from_a_table_to_answers(tmp_path: Path) -> None:
    data = np.load(INTENTS / "clinc150_minilm_fp16.npz")
    rng = np.random.default_rng(0)
    with (tmp_path / "intents.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "split"])
        for split, count in (("train", 3000), ("test", 500)):
            for i in rng.permutation(len(data[f"y_{split}"]))[:count]:
                rows.writerow([data[f"text_{split}"][i], data[f"y_{split}"][i], split])
    tree = INTENTS / "clinc150_hierarchy.csv"
    table = ["--text", str(tmp_path / "intents.csv"), "--hierarchy", str(tree)]
    assert cli.main(["features", *table, "--encoder", "tfidf", "--out", str(tmp_path / "F")]) == 0
    made = ["--loss", "cross_entropy_paths", "--lr", "8", "--epochs", "20", "--out", str(tmp_path / "runs")]
    assert cli.main(["probe", "--features", str(tmp_path / "F"), *made]) == 0
    (run,) = (path for path in (tmp_path / "runs").iterdir() if not path.name.startswith("."))
    predictor = Predictor.from_run(run)
    predictions = predictor.predict(tmp_path / "intents.csv")
    truth = [*data["y_train"], *data["y_test"]]
    assert len(predictions) == 3500
    assert set(predictions.answers.ids) <= set(truth)
    ask = ["how do i say hello in french", "please freeze my account"]
    assert predictor.predict(ask).answers.ids == ["translate", "freeze_account"]
    assert predictor.run.result is not None
    assert predictor.run.result["metrics"]["leaves"]["top-1"] > 0.7
