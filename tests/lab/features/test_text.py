"""Texts from a table to answers: encoders, features, probes, predictions, exports."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hace import Predictor, cli, load_dataset
from hace.errors import ConfigError, DataError, FormatError
from hace.lab.features.backbones import fit_tfidf, load_encoder, tfidf_encoder
from hace.lab.features.store import FeatureStore

sklearn_text = pytest.importorskip("sklearn.feature_extraction.text")

TREE = "parent,child\nclothes,shoe\nclothes,hat\nfood,bread\nfood,cheese\n"
WORDS = {
    "shoe": "red leather boot heel laces sole".split(),
    "hat": "wool brim cap felt straw beret".split(),
    "bread": "rye loaf baked crust flour yeast".split(),
    "cheese": "aged cheddar cream gouda mild blue".split(),
}


def titles(folder: Path, count: int = 40) -> Path:
    rng = np.random.default_rng(0)
    with (folder / "titles.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["id", "title", "label", "split"])
        for split, samples in (("train", count), ("val", count // 4), ("test", count // 2)):
            for label, words in WORDS.items():
                for i in range(samples):
                    own = rng.choice(words, 2).tolist() + rng.choice(["the", "new", "best"], 2).tolist()
                    coarse = "clothes" if label in ("shoe", "hat") else "food"
                    out.writerow(
                        [i, " ".join(own), coarse if split == "train" and i % 5 == 0 else label, split]
                    )
    (folder / "tree.csv").write_text(TREE)
    return folder / "titles.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    titles(folder)
    common = [
        "--text",
        str(folder / "titles.csv"),
        "--column",
        "title",
        "--hierarchy",
        str(folder / "tree.csv"),
    ]
    assert cli.main(["features", *common, "--encoder", "tfidf", "--out", str(folder / "F")]) == 0
    words = ["probe", "--features", str(folder / "F"), "--loss", "cross_entropy_paths", "--epochs", "30"]
    assert cli.main([*words, "--out", str(folder / "runs")]) == 0
    return folder


def run_of(folder: Path) -> Path:
    (run,) = (path for path in (folder / "runs").iterdir() if path.name[0] != "." and not path.is_symlink())
    return run


def test_tfidf_is_scikit_learns(folder: Path) -> None:
    data = load_dataset("texts", folder / "titles.csv", hierarchy=folder / "tree.csv", column="title")
    expected = sklearn_text.TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), strip_accents="unicode")
    rows = expected.fit(data["train"].texts).transform(data["test"].texts).toarray()
    assert np.allclose(FeatureStore(folder / "F").load("test", "none").x, rows, atol=1e-6)


def test_parts_of_texts_keep_their_texts(folder: Path) -> None:
    data = load_dataset("texts", folder / "titles.csv", hierarchy=folder / "tree.csv", column="title")
    train = data["train"]
    few = train.select([5, 2])
    assert list(few.texts) == [train.texts[5], train.texts[2]]
    assert list(train.joined([few, train]).texts) == [*few.texts, *train.texts]


def test_the_val_split_is_held_out(folder: Path) -> None:
    config = json.loads((run_of(folder) / "config.json").read_text())
    assert config["validation"] == "split"


def test_texts_are_answered_as_their_features_are(folder: Path, tmp_path: Path) -> None:
    predictor = Predictor.from_run(run_of(folder))
    data = load_dataset("texts", folder / "titles.csv", hierarchy=folder / "tree.csv", column="title")
    asked = predictor.predict(list(data["test"].texts))
    stored = predictor.predict(FeatureStore(folder / "F").load("test", "none").x)
    assert asked.answers.ids == stored.answers.ids
    assert (asked.answers.nodes.numpy() == data["test"].nodes).mean() > 0.9
    (tmp_path / "new.csv").write_text("title\nred boot\naged cheddar\n")
    table = predictor.predict(tmp_path / "new.csv")
    assert table.answers.ids == ["shoe", "cheese"]
    assert list(table.names) == ["red boot", "aged cheddar"]
    assert predictor.predict("rye loaf").answers.ids == ["bread"]
    assert predictor.predict(str(folder / "F")).answers.ids[:1]  # features of `hace features`


def test_the_command_takes_texts_and_tables(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("id,name\n1,felt cap\n")
    words = ["predict", str(run_of(folder)), "red boot", str(tmp_path / "new.csv")]
    assert cli.main([*words, "--column", "name", "--to", "csv", "--top-k", "1"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["sample"], row["answer"]) for row in rows] == [("red boot", "shoe"), ("felt cap", "hat")]


def test_an_exported_model_names_its_encoder_and_takes_texts(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    assert cli.main(["export", str(run_of(folder)), "--to", "safetensors", "--out", str(out)]) == 0
    exported, run = Predictor.from_run(out), Predictor.from_run(run_of(folder))
    texts = ["red boot", "blue cream", "wool beret"]
    assert exported.reads_text
    assert exported.document["architecture"]["encoder"]["name"] == "tfidf"
    assert exported.predict(texts).answers.ids == run.predict(texts).answers.ids
    assert torch.allclose(
        exported.predict(texts).answers.probabilities, run.predict(texts).answers.probabilities
    )


def test_a_folder_of_sentence_transformers(folder: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    every = ["[UNK]", "the", "new", "best", *(word for words in WORDS.values() for word in words)]
    known = {word: i for i, word in enumerate(every)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    model = library.SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    model.save(str(tmp_path / "mini"))
    table = [
        "--text",
        str(folder / "titles.csv"),
        "--column",
        "title",
        "--hierarchy",
        str(folder / "tree.csv"),
    ]
    made = ["--encoder", "minilm", "--checkpoint", str(tmp_path / "mini"), "--out", str(tmp_path / "F")]
    assert cli.main(["features", *table, *made]) == 0
    store = FeatureStore(tmp_path / "F")
    assert store.dims == 16
    assert store.about["column"] == "title"
    data = load_dataset("texts", folder / "titles.csv", hierarchy=folder / "tree.csv", column="title")
    own = model.encode(list(data["val"].texts), show_progress_bar=False)
    assert np.allclose(store.load("val", "none").x, own, atol=1e-5)
    words = ["probe", "--features", str(tmp_path / "F"), "--loss", "cross_entropy", "--epochs", "20"]
    assert cli.main([*words, "--out", str(tmp_path / "runs")]) == 0
    predictor = Predictor.from_run(run_of(tmp_path))
    assert predictor.predict(["red boot", "aged cheddar"]).answers.ids == ["shoe", "cheese"]
    with pytest.raises(ConfigError, match="must be a model of sentence-transformers"):
        load_encoder("minilm", checkpoint=tmp_path / "nothing")


def test_what_does_not_fit_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FormatError, match=r"must have a column 'titel'\. Got .* Did you mean 'title'"):
        load_dataset("texts", folder / "titles.csv", hierarchy=folder / "tree.csv", column="titel")
    with pytest.raises(DataError, match="must hold words"):
        fit_tfidf(["", " "])
    (tmp_path / "encoder.json").write_text('{"words": ["a"]}')
    with pytest.raises(FormatError, match="is damaged: make it again"):
        load_encoder("tfidf", checkpoint=tmp_path / "encoder.json")
    with pytest.raises(ConfigError, match=r"tfidf needs the file encoder\.json"):
        load_encoder("tfidf")
    assert cli.main(["features", "--text", "a.csv", "--out", str(tmp_path / "F")]) == 2
    assert "--text must come with --encoder." in capsys.readouterr().err
    with pytest.raises(ConfigError, match="Give texts, a CSV table of them, or features"):
        Predictor.from_run(run_of(folder)).predict([np.zeros((4, 4, 3), np.uint8)])


def test_an_encoder_comes_back_from_its_file() -> None:
    state = fit_tfidf(["red boot", "felt cap", "red cap"])
    again = tfidf_encoder(json.loads(json.dumps(state)), "encoder.json")
    assert again.weights == tfidf_encoder(state, "encoder.json").weights
    assert again(["red boot"]).shape == (1, again.dims)
