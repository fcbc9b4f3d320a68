"""The page: samples first, everything from the data escaped, and what a broken guarantee looks like."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hace
from hace.fitting.evaluation import chance_of_as_many
from tests.fitting.test_fit import TREE, samples, table


@pytest.fixture(scope="module")
def model() -> hace.Model:
    x, y = samples(100, noise=2.5)
    return hace.fit(table(x, y), quiet=True)


def data_of(page: str) -> dict:
    result = re.search(r'<script type="application/json" id="fit-data">(.*?)</script>', page, re.DOTALL)
    assert result is not None
    return json.loads(result[1])


def test_samples_come_first_then_the_bar_then_one_number_per_question(
    model: hace.Model, tmp_path: Path
) -> None:
    written = model.report(tmp_path / "page")
    assert written == tmp_path / "page" / "index.html"
    page = written.read_text(encoding="utf-8")
    places = [
        page.index(text)
        for text in ('class="samples"', 'id="guarantee"', 'class="questions"', 'id="sunburst"', "<details")
    ]
    assert places == sorted(places)
    assert page.count('<p class="answer">') == 12
    assert {e["right"] for e in model.findings.examples} == {True, False}
    for answer in model.findings.answers:
        assert (answer.question in page) == (answer.word != "Guarantee")  # the bar says that
    assert "http" not in re.sub(r"http://www.w3.org/\S+", "", page)


def test_the_bar_has_the_shares_of_the_test_samples(model: hace.Model, tmp_path: Path) -> None:
    page = model.report(tmp_path / "page.html").read_text(encoding="utf-8")
    data = data_of(page)
    for point in data["curve"]:
        assert sum(point["ranks"].values()) == pytest.approx(1)
    specific = [point["ranks"].get("species", 0) for point in data["curve"]]
    assert specific == sorted(specific, reverse=True)
    assert (
        sum(data["samples"][v] for v in range(len(data["samples"])) if data["tree"]["label"][v] >= 0) == 120
    )
    rights = sum(data["right"][v] for v in range(len(data["right"])) if data["tree"]["label"][v] >= 0)
    assert rights / 120 == pytest.approx(model.findings.accuracy[0])


def test_a_page_of_a_loaded_model_is_the_same(model: hace.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "birds.hace")
    first = model.named("birds.hace").report(tmp_path / "a.html").read_bytes()
    assert hace.load(tmp_path / "birds.hace").report(tmp_path / "b.html").read_bytes() == first


def test_names_cannot_end_the_script_or_make_markup(tmp_path: Path) -> None:
    x, y = samples()
    evil = np.where(y[:, 2] == "kittiwake", "</script><img src=x onerror=alert(1)>", y[:, 2])
    rows = [(*row[:2], name) for row, name in zip(y.tolist(), evil.tolist(), strict=True)]
    page = hace.fit(x, np.array(rows, dtype=object), quiet=True).report(tmp_path / "page.html").read_text()
    assert "<img src=x" not in page
    assert page.count("</script>") == 2


def test_the_card_says_what_the_page_says_and_names_cannot_end_its_table(tmp_path: Path) -> None:
    x, y = samples()
    evil = np.where(y[:, 2] == "kittiwake", "a|b\n# *c*", y[:, 2])
    rows = np.array(
        [(*row[:2], name) for row, name in zip(y.tolist(), evil.tolist(), strict=True)], dtype=object
    )
    model = hace.fit(x, rows, quiet=True)
    model.save(tmp_path / "birds.hace")
    card = hace.load(tmp_path / "birds.hace").card()
    assert card == model.named("birds.hace").card()
    for answer in model.findings.answers:
        assert f"| {answer.question} | " in card
    assert "a\\|b \\# \\*c\\*" in card
    assert [line for line in card.splitlines() if line.startswith("# ")] == ["# birds"]


def test_a_broken_guarantee_is_red(tmp_path: Path) -> None:
    x, y = samples(120)
    split = np.array(["train", "train", "val", "test"])[np.arange(len(x)) // 6 % 4]
    x[split == "test"] += np.random.default_rng(2).normal(size=(int((split == "test").sum()), 8)) * 4
    model = hace.fit(x, y[:, 2], TREE, split=split, quiet=True)
    page = model.report(tmp_path / "page.html").read_text()
    assert '<p class="broken" role="alert"><strong>The guarantee is broken.</strong>' in page


def test_without_test_samples_the_page_says_what_it_can(tmp_path: Path) -> None:
    x, y = samples()
    page = hace.fit(x[:18], y[:18, 2], TREE, quiet=True).report(tmp_path / "page.html").read_text()
    assert 'class="samples"' not in page
    assert "One number per question" in page


def test_chance_of_false_answers_is_that_of_calibrations() -> None:
    """By simulation: calibrate on n uniform scores, count new ones beyond the threshold."""
    rng = np.random.default_rng(0)
    n, m, accuracy = 99, 200, 0.9
    scores = np.sort(rng.random((4000, n)), axis=1)
    threshold = scores[:, int(np.ceil((n + 1) * accuracy)) - 1]
    false = (rng.random((4000, m)) > threshold[:, None]).sum(axis=1)
    for count in (10, 20, 30, 40):
        assert chance_of_as_many(count, m, accuracy, n) == pytest.approx((false >= count).mean(), abs=0.02)


def test_something_new_is_asked_about_where_there_are_enough_classes() -> None:
    rng = np.random.default_rng(0)
    rows = [(f"group {i // 4}", f"class {i}") for i in range(16)]
    centres = 3 * np.repeat(rng.normal(size=(4, 20)), 4, axis=0) + rng.normal(size=(16, 20))
    place = np.arange(960) % 16
    x = (centres[place] + rng.normal(size=(960, 20))).astype(np.float32)
    model = hace.fit(x, np.array(rows, dtype=object)[place], quiet=True)
    new = model.findings.new
    assert new is not None
    assert new["wrong"] + new["group"] + new["nothing"] == pytest.approx(1)
    assert new["classes"] >= 2
    assert any(answer.word == "New" for answer in model.findings.answers)
