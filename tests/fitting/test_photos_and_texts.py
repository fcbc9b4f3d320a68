"""Photos and texts go through a frozen backbone, once, and the file of the model holds all that new ones need."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import hace
from hace import ConfigError, DataError, FormatError, Predictor
from hace.fitting import encoding
from tests.backbone_files import VIT, save_weights

COLOURS = {
    "warm/red": (200, 40, 30),
    "warm/orange": (230, 140, 20),
    "cold/blue": (30, 60, 200),
    "cold/green": (30, 170, 70),
}
WORDS = {
    ("travel", "flight"): ["book a flight to rome", "cheap plane tickets please", "when does my plane leave"],
    ("travel", "hotel"): [
        "reserve a room for two",
        "is breakfast in the hotel included",
        "cancel my hotel booking",
    ],
    ("money", "transfer"): [
        "send ten euros to anna",
        "transfer money to my savings",
        "wire cash to the landlord",
    ],
    ("money", "balance"): ["how much is on my account", "show me my balance today", "what can i still spend"],
}


def paint(path: Path, colour: tuple[int, int, int], rng: np.random.Generator) -> None:
    noise = rng.normal(0, 25, (40, 48, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 photos of four classes in two groups; four are known to their group alone."""
    folder, rng = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for name, colour in COLOURS.items():
        for i in range(40):
            paint(folder / name / f"{i}.png", colour, rng)
    for i in range(4):
        paint(folder / "warm" / f"unsure {i}.png", COLOURS["warm/red"], rng)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(VIT, tmp_path_factory.mktemp("weights") / "vit.safetensors", num_classes=0)


@pytest.fixture(scope="module")
def colours(photos: Path, weights: Path) -> hace.Model:
    return hace.fit(photos, model=VIT, checkpoint=weights, quiet=True)


def test_a_folder_of_photos(colours: hace.Model, photos: Path, tmp_path: Path) -> None:
    assert set(colours.hierarchy.tops) == {"warm", "cold"}
    assert colours.findings.coarse > 0
    colours.save(tmp_path / "colours.hace")
    new, rng = tmp_path / "new", np.random.default_rng(9)
    paint(new / "a.png", COLOURS["cold/blue"], rng)
    paint(new / "b.png", COLOURS["warm/red"], rng)
    (new / "c.png").write_bytes(b"not a photo")
    answers = colours.predict(new, None)
    assert answers.answer.tolist()[:2] == ["blue", "red"]
    assert answers.answer.iloc[2] is None
    assert "not an image" in answers.error.iloc[2]
    again = hace.load(tmp_path / "colours.hace")
    pd.testing.assert_frame_equal(again.predict(new, None), answers)
    predictions = Predictor.from_run(tmp_path / "colours.hace").predict(new, skip_broken=True)
    assert predictions.answers.ids == ["blue", "red"]
    shutil.copy(new / "a.png", tmp_path / "one.png")
    assert again.predict(tmp_path / "one.png", None).answer.tolist() == ["blue"]


def test_a_listing_of_photos_has_the_same_features_from_the_cache(
    colours: hace.Model, photos: Path, weights: Path, tmp_path: Path
) -> None:
    rows = [
        {"path": str(path), "family": path.parts[-3], "species": path.parts[-2]}
        for path in sorted(photos.glob("*/*/*.png"))
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "listing.csv", index=False)
    model = hace.fit(tmp_path / "listing.csv", model=VIT, checkpoint=weights, quiet=True)
    assert set(model.hierarchy.nodes) == set(colours.hierarchy.nodes)
    paths = [row["path"] for row in rows[::7]]
    assert model.predict(paths, None).answer.tolist() == [row["species"] for row in rows[::7]]


def test_a_photo_that_cannot_be_read_is_left_out_and_reported(
    photos: Path, weights: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "warm" / "red" / "3.png").write_bytes(b"\x89PNG broken")
    model = hace.fit(folder, model=VIT, checkpoint=weights, quiet=True)
    assert any("1 of 164 photos cannot be read" in note for note in model.findings.notes)


def test_a_pass_that_was_stopped_goes_on(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HACE_CACHE", str(tmp_path))
    seen: list[int] = []
    original = encoding.Backbone.__call__

    def counted(self: encoding.Backbone, images: object) -> object:
        seen.append(len(images))  # type: ignore[arg-type]
        if sum(seen) == 96:
            raise KeyboardInterrupt
        return original(self, images)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding.Backbone, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        hace.fit(photos, model=VIT, checkpoint=weights, quiet=True)
    hace.fit(photos, model=VIT, checkpoint=weights, quiet=True)
    first = sum(seen)
    hace.fit(photos, model=VIT, checkpoint=weights, quiet=True)
    assert sum(seen) == first


def test_a_model_with_batch_norm_comes_back(photos: Path, tmp_path: Path) -> None:
    weights = save_weights("test_resnet", tmp_path / "resnet.safetensors", num_classes=0)
    model = hace.fit(photos, model="test_resnet", checkpoint=weights, quiet=True)
    model.save(tmp_path / "colours.hace")
    new = sorted((photos / "warm" / "red").glob("*.png"))[:3]
    again = hace.load(tmp_path / "colours.hace").predict(new, None)
    assert again.answer.tolist() == model.predict(new, None).answer.tolist()


BAD = [
    ("an empty folder", "must hold photos, in folders named after what they show"),
    ("one class", "two classes or more|flat list|single"),
    ("loose photos", "every image must be in the folder of a class"),
]


@pytest.mark.parametrize(("what", "words"), BAD)
def test_bad_folders_are_refused_in_words(what: str, words: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    if what == "one class":
        for i in range(3):
            paint(tmp_path / "red" / f"{i}.png", COLOURS["warm/red"], rng)
    if what == "loose photos":
        paint(tmp_path / "a.png", COLOURS["warm/red"], rng)
        paint(tmp_path / "red" / "a.png", COLOURS["warm/red"], rng)
    with pytest.raises((DataError, FormatError, ConfigError), match=words):
        hace.fit(tmp_path, model=VIT, quiet=True)


@pytest.mark.parametrize("option", ["label", "split", "columns", "image", "text", "layer", "obsm"])
def test_columns_that_folders_do_not_have_are_refused(option: str, photos: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{option} must come with .*\. Got a folder of photos\. Leave it out"
    ):
        hace.fit(photos, model=VIT, quiet=True, **{option: ["a"] if option == "columns" else "a"})  # type: ignore[arg-type]


def test_a_photo_of_a_list_that_does_not_exist(tmp_path: Path) -> None:
    pd.DataFrame({"path": ["a.png", "b.png"], "label": ["x", "y"]}).to_csv(tmp_path / "list.csv", index=False)
    with pytest.raises(DataError, match=r"every listed image must exist\. 2 of 2 are missing"):
        hace.fit(tmp_path / "list.csv", quiet=True)


# --- texts


def sentences(seed: int = 0, count: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    names = list(WORDS)
    rows = []
    for i in range(count):
        row = names[i % 4]
        words = " ".join(rng.permutation(" ".join(WORDS[row]).split())[:5])
        rows.append({"utterance": f"{words} {i}", "scenario": row[0], "intent": row[1]})
    return pd.DataFrame(rows)


def test_a_column_of_texts(tmp_path: Path) -> None:
    sentences().to_csv(tmp_path / "intents.csv", index=False)
    model = hace.fit(tmp_path / "intents.csv", model="tfidf", quiet=True)
    new = sentences(1, 40)
    answers = model.predict(new.utterance.tolist(), None)
    assert (answers.answer.to_numpy() == new.intent.to_numpy()).mean() > 0.9
    model.save(tmp_path / "intents.hace")
    new.to_csv(tmp_path / "new.csv", index=False)
    again = hace.load(tmp_path / "intents.hace")
    assert again.predict(tmp_path / "new.csv", None).answer.tolist() == answers.answer.tolist()
    predictor = Predictor.from_run(tmp_path / "intents.hace")
    assert predictor.predict(new.utterance.tolist()).answers.ids == answers.answer.tolist()


def test_a_folder_of_sentence_transformers_encodes_texts(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    data = sentences()
    words = sorted({word for text in data.utterance for word in text.split()})
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    encoder = library.SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device="cpu"
    )
    encoder.save_pretrained(str(tmp_path / "encoder"))
    model = hace.fit(data, model="minilm", checkpoint=tmp_path / "encoder", quiet=True)
    model.save(tmp_path / "intents.hace")
    again = hace.load(tmp_path / "intents.hace")
    new = sentences(1, 40).utterance.tolist()
    assert again.predict(new, None).answer.tolist() == model.predict(new, None).answer.tolist()


def test_texts_beside_numbers_are_asked_about() -> None:
    data = sentences().assign(price=1.5)
    with pytest.raises(
        ConfigError,
        match=r"it has texts \('utterance'\) and numbers \('price'\)\. Name one: text='utterance'",
    ):
        hace.fit(data, quiet=True)
    assert hace.fit(data, text="utterance", model="tfidf", quiet=True).findings.kind == "texts"
