"""The page of an evaluation: what its cards and tables say, counted again by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from hace import Hierarchy, evaluate, predict
from hace.metrics.comparison import compared
from hace.metrics.evaluation import Evaluation, summary_lines
from hace.metrics.intervals import share_interval
from tests.report_studies import ANIMALS, animals

pytest.importorskip("matplotlib")

from hace.lab.report.evaluation_figures import evaluation_figures
from hace.lab.report.evaluation_page import evaluation_page, sunburst_of


def scored(gain: float, seed: int = 0, rows: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % len(ANIMALS)
    z = rng.normal(size=(rows, len(ANIMALS)))
    z[np.arange(rows), y] += gain
    return z, y


def page_of(*models: tuple[str, Evaluation]) -> str:
    first, *others = (replace(e, name=name) for name, e in models)
    first = replace(first, about={"run": "<b>x</b>"})
    shown = compared(first, others[0]) if others else first
    return evaluation_page(shown, evaluation_figures(models))


def test_the_three_lines_are_counts() -> None:
    h = animals()
    z, y = scored(1.5)
    best = z.argmax(axis=1)
    wrong = best != y
    families = [above for _, above in ANIMALS.values()]
    within = np.array([families[a] == families[b] for a, b in zip(best, y, strict=True)])
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    first, second, third = summary_lines(evaluate(z, y, h), "mine")
    assert f"mine: right class in {100 * (1 - wrong.mean()):.1f}% of 90 samples" in first
    assert f"right node at level 1 in {100 * within.mean():.1f}%." in first
    assert f"Mistakes: {wrong.sum()}; {100 * within[wrong].mean():.0f}% stay within" in second
    stated, gap = p.max(axis=1).mean(), p.max(axis=1).mean() - (1 - wrong.mean())
    side = "high" if gap > 0 else "low"
    assert (
        third == f"Confidence: {100 * stated:.1f}% stated on average, {100 * abs(gap):.1f} points too {side}."
    )


def test_an_accuracy_below_chance_asks_about_the_order_of_columns() -> None:
    h = animals()
    z, y = scored(5.0)
    asked = "no better than chance: are the columns in label order, do labels count from 0, and are rows"
    assert asked not in summary_lines(evaluate(z, y, h))[0]
    assert asked in summary_lines(evaluate(np.roll(z, 1, axis=1), y, h))[0]
    assert (
        asked not in summary_lines(evaluate(z[:3], (y[:3] + 1) % len(ANIMALS), h))[0]
    )  # three samples show nothing


def test_rows_in_another_order_are_asked_about_where_some_classes_are_frequent() -> None:
    h = animals()
    rng = np.random.default_rng(0)
    y = rng.choice(h.num_leaves, 600, p=np.array([8, *[1] * (h.num_leaves - 1)]) / (7 + h.num_leaves))
    z = rng.normal(size=(600, h.num_leaves))
    z[np.arange(600), y] += 4
    asked = "no better than chance"
    assert asked not in summary_lines(evaluate(z, y, h))[0]
    assert asked in summary_lines(evaluate(z, rng.permutation(y), h))[0]
    alike = np.zeros(600, dtype=int)  # any order of one class is right
    assert asked not in summary_lines(evaluate(z + 9 * np.eye(h.num_leaves)[0], alike, h))[0]


def test_the_interval_of_a_share() -> None:
    """Wilson's interval holds the shares whose test at 5% does not reject what was seen."""
    for right, samples in ((0, 10), (7, 10), (500, 600)):
        low, high = share_interval(right, samples)
        for share in (low, high):
            z = abs(right / samples - share) / max(np.sqrt(share * (1 - share) / samples), 1e-12)
            assert share < 1e-12 or z == pytest.approx(1.959964, rel=1e-6)


@pytest.mark.slow
def test_tables_hold_what_was_counted_and_names_are_only_text() -> None:
    h = animals()
    z, y = scored(1.5)
    page = page_of(("mine", evaluate(z, y, h)))
    assert "<b>&" not in page
    assert "<b>x</b>" not in page
    sure = predict(z, h, "threshold", threshold=0.9)
    above = [set(h.ancestors(leaf)) | {leaf} for leaf in h.leaves]
    true = np.mean([node in above[t] for node, t in zip(sure.ids, y, strict=True)])
    row = re.search(r"<th[^>]*>0.9</th>(.*?)</tr>", page)
    assert row is not None
    assert f">{100 * true:.1f}%<" in row.group(1)
    data = json.loads(page.split('id="report-data">')[1].split("</script>")[0])
    (place,) = data["places"]
    tree = data["trees"][place["tree"]]
    cats = tree["names"].index("cat")
    truth_cats = [i for i, t in enumerate(y) if list(ANIMALS.values())[t][1] == "cat"]
    right = sum(list(ANIMALS.values())[z[i].argmax()][1] == "cat" for i in truth_cats)
    assert (place["samples"][cats], place["methods"]["mine"]["right"][cats]) == (len(truth_cats), right)


@pytest.mark.slow
def test_two_models_have_a_card_that_compares_them() -> None:
    h = animals()
    good, bad = (evaluate(*scored(gain), h) for gain in (3.0, 0.5))
    page = page_of(("bad", bad), ("good", good))
    cards = page.split('<article class="card')[1:]
    assert [re.findall(r'class="where">([^<]*)<', card)[0] for card in cards] == [
        "bad, then good: which is better?",
        "bad: how good is it?",
        "good: how good is it?",
    ]
    assert "good is right more often." in cards[0]
    assert "One run each" in cards[0]
    same = page_of(("one", good), ("two", good))
    assert "No difference in accuracy is shown." in same


@pytest.mark.slow
def test_a_dag_and_calibrated_scores() -> None:
    edges = [("a", "x"), ("b", "x"), ("a", "y"), ("b", "z")]
    h = Hierarchy.from_edges(edges, leaves=["x", "y", "z"])
    page = page_of(("dag", evaluate(3.0 * np.eye(3), [0, 1, 1], h)))
    assert "On a DAG" in page
    z, y = scored(2.0)
    cold = evaluate(z, y, animals())
    warm = evaluate(z, y, animals(), temperature=0.5)
    page = page_of(("mine", warm))
    assert "One temperature, 0.5, fitted on held-out samples." in page
    ece = {e: f"{100 * e.reliability['level 2'].ece:.1f}%" for e in (cold, warm.calibrated) if e is not None}
    assert all(f">{text}<" in page for text in ece.values())


def test_a_dag_counts_a_class_below_each_of_its_parents() -> None:
    h = Hierarchy.from_edges([("pet", "cat"), ("pet", "dog"), ("guard", "dog"), ("guard", "goose")])
    answers = [h.label(name) for name in ("dog", "dog", "goose", "cat")]
    truth = np.array([h.label(name) for name in ("dog", "dog", "dog", "cat")])
    drawn = sunburst_of([("mine", evaluate(10 * np.eye(3)[answers], truth, h))])
    results = {v: (drawn["samples"][i], drawn["methods"]["mine"]["right"][i]) for i, v in enumerate(h.nodes)}
    assert results == {"pet": (4, 3), "guard": (3, 3), "cat": (1, 1), "dog": (3, 2), "goose": (0, 0)}
