"""The cards: words that follow from comparisons, a choice that never sees the test set, and caveats."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.null_studies import STUDIES, NullStudy, claims, null_cards
from hace import DataConfig, LossConfig, ProbeConfig
from hace.cli import main
from hace.lab.probe import probe
from hace.lab.report.cards import aspect_card, commands, study_cards
from hace.lab.report.caveats import caveats
from hace.lab.report.compare import COLUMNS, compare
from hace.lab.report.forest import forests
from hace.lab.report.metric import ACCURACY, CONFIDENCE, LEVELS_OFF, SPECIFICITY, Metric, aspects
from hace.lab.report.results import Results
from hace.lab.report.runs import Condition, method_title
from hace.lab.study.records import Record
from hace.metrics.intervals import holm
from tests.report_studies import animals, fair_records, page_with

FAIR = Condition("fair", "pets", "backbone")
SKILLS = {"cross_entropy": 1.0, "hace": 3.0, "conditional_softmax": 2.9, "hace_shuffled": 3.5}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return fair_records(
        tmp_path_factory.mktemp("runs"), animals(), SKILLS, rates=(0.5, 1.0, 4.0), samples=120
    )


@pytest.fixture(scope="module")
def results(records: list[Record]) -> Results:
    return Results(records)


# ---------------------------------------------------------------------- comparisons


def test_all_rows_of_a_call_are_corrected_together(results: Results) -> None:
    scores = results.scores[FAIR]
    metrics = aspects(scores.hierarchy)
    rows = compare(results.pairs(FAIR, scores.methods.index, metrics))
    assert len(rows) == 3 * len(metrics)
    assert rows["holm"].tolist() == pytest.approx(holm(rows["p"].tolist()))
    shown = rows["holm"] < 0.05
    better = (rows["difference"] > 0) == [metric.higher for metric in rows["metric"]]
    assert set(rows["outcome"]) == {"gain", "unclear"}
    assert (rows["outcome"] == "gain").tolist() == (shown & better).tolist()
    alone = compare(results.pairs(FAIR, ["hace"], [ACCURACY]))
    (p,) = alone["p"]
    assert alone["holm"].tolist() == [p]
    assert p in rows["p"].tolist()


def test_one_seed_shows_nothing(tmp_path: Path) -> None:
    skills = {"cross_entropy": 0.0, "hace": 9.0}
    (card,) = study_cards(Results(fair_records(tmp_path, animals(), skills, seeds=(0,), samples=400)))
    accuracy = card.decisions[0]
    assert accuracy.p < 1e-6
    assert accuracy.low > 0.3
    assert (accuracy.outcome, card.tone) == ("unclear", "open")
    assert card.answer.startswith("One seed only. It cannot tell HACE from cross-entropy")
    two = Results(fair_records(tmp_path, animals(), skills, seeds=(0, 1), samples=400))
    assert study_cards(two)[0].answer.startswith("Yes. HACE beats cross-entropy in accuracy")


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: f"{study.title}, {study.seeds} seeds")
def test_few_studies_without_a_difference_claim_one(study: NullStudy) -> None:
    """At most 6% may, in benchmarks/null_studies.py; here of 60 studies that are always the same."""
    assert sum(claims(null_cards(study, seed)) for seed in range(60)) <= 6


# ---------------------------------------------------------------------- answers


def rows_of(results: Results, outcomes: Mapping[str, Mapping[Metric, str]]) -> pd.DataFrame:
    """Comparisons with given outcomes, by first method and metric."""
    rows = []
    for method, of_metrics in outcomes.items():
        for metric, outcome in of_metrics.items():
            way = {"gain": 1, "loss": -1, "unclear": 0.1}[outcome] * (1 if metric.higher else -1)
            numbers = {
                "difference": 0.1 * way,
                "low": 0.05 * way,
                "high": 0.15 * way,
                "ours": 0.5,
                "theirs": 0.5,
            }
            row = {
                "condition": FAIR,
                "against": FAIR,
                "metric": metric,
                "first": method,
                "second": "cross_entropy",
            }
            rows.append({**row, **numbers, "seeds": 5, "holm": 0.01, "outcome": outcome})
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.mark.parametrize(
    ("hace", "conditional", "start", "tone"),
    [
        (
            {ACCURACY: "gain", LEVELS_OFF: "unclear"},
            {},
            "Yes. HACE beats cross-entropy in accuracy. No difference is shown in mistakes.",
            "yes",
        ),
        (
            {ACCURACY: "gain", LEVELS_OFF: "loss"},
            {},
            "In part. HACE beats cross-entropy in accuracy and loses in mistakes.",
            "part",
        ),
        (
            {ACCURACY: "loss", LEVELS_OFF: "loss"},
            {},
            "No. HACE loses to cross-entropy in accuracy and mistakes.",
            "no",
        ),
        (
            {ACCURACY: "unclear"},
            {},
            "No difference shown. HACE and cross-entropy do not clearly differ in any aspect.",
            "open",
        ),
        (
            {ACCURACY: "unclear", CONFIDENCE: "unclear"},
            {ACCURACY: "gain", CONFIDENCE: "unclear"},
            "Not by HACE: no difference from cross-entropy is shown. conditional softmax beats cross-entropy in accuracy.",
            "part",
        ),
        (
            {ACCURACY: "loss"},
            {ACCURACY: "unclear", SPECIFICITY: "gain"},
            "Not by HACE, which loses to cross-entropy in accuracy. conditional softmax beats cross-entropy in specificity.",
            "part",
        ),
    ],
)
def test_the_answer_sums_up_the_comparisons(
    tmp_path: Path, hace: dict[Metric, str], conditional: dict[Metric, str], start: str, tone: str
) -> None:
    """Conditional softmax is the best on held-out samples."""
    skills = {"cross_entropy": 1.0, "hace": 1.0, "conditional_softmax": 6.0}
    results = Results(fair_records(tmp_path, animals(), skills, seeds=(0,)))
    card = aspect_card(results, FAIR, rows_of(results, {"hace": hace, "conditional_softmax": conditional}))
    assert card.answer == start
    assert card.tone == tone


def test_a_study_gets_a_card_with_aspects_and_a_method(results: Results) -> None:
    (card,) = study_cards(results)
    assert card.tone == "yes"
    names = [decision.question for decision in card.decisions]
    assert names == ["accuracy", "mistakes", "coarse answers", "confidence", "specificity"]
    accuracy = card.decisions[0]
    gap = results.scores[FAIR].difference("hace", "cross_entropy", ACCURACY)
    assert gap is not None
    assert (accuracy.estimate, accuracy.low, accuracy.high) == gap.interval[:3]
    assert accuracy.words == "clear gain"
    assert card.use in ("HACE", "conditional softmax")
    text = page_with(cards=[card], caution="made up")
    for words in (
        'id="verdict"',
        "does the hierarchy help?",
        accuracy.interval,
        "clear gain",
        "made up",
        "3 seeds: ",
    ):
        assert words in text


# ---------------------------------------------------------------------- what to use


def chosen_elsewhere(
    folder: Path, held_out: Mapping[str, float], test: Mapping[str, float], samples: int = 240
) -> Results:
    """A study whose methods have some skills on held-out samples, and others on test samples."""
    seeds = range(5)
    searches = fair_records(folder / "a", animals(), held_out, seeds=seeds, rates=(4.0,), samples=samples)
    finals = fair_records(folder / "b", animals(), test, seeds=seeds, rates=(4.0,), samples=samples)
    return Results(
        [*(r for r in searches if r.stage == "search"), *(r for r in finals if r.stage == "final")]
    )


@pytest.mark.slow
def test_the_method_to_use_is_chosen_on_held_out_samples(tmp_path: Path) -> None:
    """Conditional softmax is better on test samples, HACE on held-out ones: HACE it is. Controls are never recommended."""
    held_out = {"hace": 2.5, "cross_entropy": 1.0, "conditional_softmax": 1.2, "hace_shuffled": 5.0}
    results = chosen_elsewhere(tmp_path, held_out, {**held_out, "conditional_softmax": 6.0})
    ranking = results.held_out(FAIR)
    assert list(ranking)[:2] == ["hace_shuffled", "hace"]
    own = [r.top1 or 0.0 for r in results.records if (r.stage, r.key.method) == ("search", "hace")]
    assert ranking["hace"] == pytest.approx(np.mean(own))
    (card,) = study_cards(results)
    assert card.use == "HACE"
    assert card.why.startswith("It was the best of 3 on held-out samples, ")
    assert re.search(r"conditional softmax scores highest, \d+\.\d points above it", card.why)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skills", "use", "why"),
    [
        (
            {"hace": 5.0, "conditional_softmax": 2.0},
            "HACE",
            "but its gain on test samples is not clear. On test samples it adds",
        ),
        (
            {"hace": 2.0, "conditional_softmax": 2.0},
            "cross-entropy",
            "but its gain on test samples is not clear.",
        ),
        ({"hace": 2.0, "conditional_softmax": 0.0}, "cross-entropy", "but loses on test samples."),
    ],
)
def test_what_to_use_agrees_with_the_test_samples(
    tmp_path: Path, skills: dict[str, float], use: str, why: str
) -> None:
    """Conditional softmax is the best on held-out samples, and no better than cross-entropy on test samples."""
    held_out = {"hace": 0.5, "cross_entropy": 0.5, "conditional_softmax": 9.0}
    (card,) = study_cards(chosen_elsewhere(tmp_path, held_out, {"cross_entropy": 2.0, **skills}))
    assert card.use == use
    assert card.why.startswith(f"conditional softmax was the best of 3 on held-out samples, {why}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_recommendation_contradicts_neither_the_claim_nor_the_table(tmp_path: Path, seed: int) -> None:
    """Random skills on held-out samples and, drawn anew, on test samples."""
    rng = np.random.default_rng(seed)
    names = ("cross_entropy", "hace", "conditional_softmax", "soft_label_10")
    held_out, test = (
        dict(zip(names, rng.choice([1.0, 1.2, 2.5, 4.0], 4).tolist(), strict=True)) for _ in "ab"
    )
    results = chosen_elsewhere(tmp_path, held_out, test)
    (card,) = study_cards(results)
    method = {method_title(name): name for name in names}[card.use]
    if card.tone == "yes":
        assert method != "cross_entropy"
    if card.tone in ("no", "open"):  # no gain is claimed, so none may be recommended
        assert method == "cross_entropy"
        assert not any(decision.outcome == "gain" for decision in card.decisions)
    if card.answer.startswith("Not by"):
        assert card.answer.split(". ")[1].startswith(card.use)
    means = results.scores[FAIR].means(ACCURACY)
    top = max(means, key=lambda name: means[name])
    best = next(iter(results.held_out(FAIR)))
    if top not in (method, "cross_entropy"):  # the first of the table is named
        assert method_title(top) in card.why
        assert top == best or f"{100 * (means[top] - means[method]):.1f} points above it" in card.why
    assert not re.search(r"rate \d|d 0\.", card.use + card.why + card.answer)


# ---------------------------------------------------------------------- caveats


def notes(results: Results) -> str:
    return " ".join(caveats(results, {FAIR: ("hace", "cross_entropy")}))


def test_caveats_name_edges_budgets_seeds_and_missing_runs(records: list[Record]) -> None:
    said = notes(Results(records))
    assert (
        "may do better: HACE (3 of 3 at the largest rate), cross-entropy (3 of 3 at the largest rate)."
        in said
    )
    assert "3 seeds: the intervals say little about how other seeds would turn out. Raise `--seeds`." in said
    assert "fewer than" not in said
    fewer = [
        replace(r, candidates=2) if r.stage == "final" and r.key.method == "cross_entropy" else r
        for r in records
    ]
    assert "the settings tried per seed are HACE 3, cross-entropy 2." in notes(Results(fewer))
    lost = [
        replace(r, run=None, error="gone") if r.stage == "final" and r.key.seed == 2 else r for r in records
    ]
    assert "4 of 12 final runs have no result: cross-entropy, HACE, " in notes(Results(lost))


def test_small_classes_are_a_caveat(tmp_path: Path) -> None:
    few = fair_records(
        tmp_path, animals(), {"cross_entropy": 1.0, "hace": 2.0}, seeds=(0,), rates=(1.0,), samples=40
    )
    said = notes(Results(few))
    assert "6 of 6 classes have fewer than 10 test samples" in said
    assert "One seed: the intervals say nothing about other seeds." in said


@pytest.mark.parametrize(("samples", "weak"), [(40, True), (2000, False)])
def test_a_search_on_few_held_out_samples_is_a_caveat(tmp_path: Path, samples: int, weak: bool) -> None:
    records = fair_records(
        tmp_path, animals(), {"cross_entropy": 1.0, "hace": 2.0}, seeds=(0,), samples=samples
    )
    assert (f"Rates were chosen on {samples:,} held-out samples" in notes(Results(records))) == weak


# ---------------------------------------------------------------------- the forest


def test_the_forest_has_every_method_with_settings_tried_the_best_first(results: Results) -> None:
    switch = forests(results, FAIR)
    assert switch is not None
    assert [title for title, _ in switch.options][:2] == ["Accuracy", "Mistakes"]
    plot = switch.options[0][1]
    gaps = plot.rows["difference"].tolist()
    assert gaps == sorted(gaps, reverse=True)
    assert set(plot.rows["first"]) == set(SKILLS) - {"cross_entropy"}
    mistakes = switch.options[1][1].rows["difference"].tolist()
    assert mistakes == sorted(mistakes)
    text = page_with(plot)
    assert text.count("<tr") == 4
    assert text.count('<td class="wide">3</td>') == 3  # settings tried


def test_every_aspect_has_an_interval_and_pairs(results: Results) -> None:
    (card,) = study_cards(results)
    for decision in card.decisions:
        assert decision.low <= decision.estimate <= decision.high
        assert decision.estimate == pytest.approx(decision.ours - decision.theirs, abs=1e-6)


# ---------------------------------------------------------------------- commands


def test_a_study_that_selects_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--methods cross_entropy_drop --seeds 1 --shares 0"
    assert main(["study", "mixed-labels", "--out", str(tmp_path / "s"), *small.split()]) == 2
    assert "A study must have at least one run" in capsys.readouterr().err


def test_the_commands_to_paste_make_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the chosen loss and rate by their names on the command line, and samples held out for calibration."""
    monkeypatch.chdir(tmp_path)
    data = DataConfig("synthetic-features", options={"classes": 6, "train": 40, "dim": 8})
    loss = LossConfig("hace", {"dilution": 0.3})
    made = probe(ProbeConfig(data=data, loss=loss, lr=2.0, epochs=3, weight_decay=1e-3), tmp_path / "study")
    train, calibrate, predict, _ = commands(made)
    train = train.replace("\\\n", "")
    assert "--loss hace:dilution=0.3" in " ".join(train.split())
    assert main(shlex.split(train)[1:]) == 0
    assert main([*shlex.split(calibrate)[1:], "--temperature", "1", "--accuracy", "0.5,0.9"]) == 0
    np.save("photos.npy", np.zeros((2, 8), np.float32))
    assert main(shlex.split(predict.replace(" photos ", " photos.npy "))[1:]) == 0


def test_the_commands_hold_out_the_validation_split_that_the_data_have(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.array(["a", "b"] * 30)
    np.savez(
        tmp_path / "f.npz", X=rng.normal(size=(60, 3)), y=y, split=np.repeat(["train", "val", "test"], 20)
    )
    (tmp_path / "tree.csv").write_text("parent,child\nr,a\nr,b\n")
    data = DataConfig("features", root=str(tmp_path / "f.npz"), hierarchy=str(tmp_path / "tree.csv"))
    made = probe(ProbeConfig(data=data, epochs=1), tmp_path / "study")
    words = shlex.split(commands(made)[0].replace("\\\n", ""))
    assert words[words.index("--validation") + 1] == "split"


@pytest.mark.slow
@pytest.mark.parametrize(("on_test", "broken"), [(0.6, True), (4.0, False)])
def test_held_out_samples_unlike_test_samples_break_guarantees(
    tmp_path: Path, on_test: float, broken: bool
) -> None:
    skills = {"hace": 4.0, "cross_entropy": 4.0}
    (card,) = study_cards(chosen_elsewhere(tmp_path, skills, dict.fromkeys(skills, on_test)))
    assert ("of test samples, more than chance" in card.alarm) == broken
