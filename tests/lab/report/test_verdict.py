"""The verdict: words that follow from intervals, a choice that never sees the test set, guarantees that hold, and caveats."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hace import DataConfig, Hierarchy, LossConfig, ProbeConfig
from hace.cli import main
from hace.hierarchy.distances import relations
from hace.lab.probe import probe
from hace.lab.report.conformal import (
    AnswerLadder,
    confidence_columns,
    conformal_limits,
    detail_draws,
    detail_parts,
    run_ladder,
    sure_places,
)
from hace.lab.report.findings import Aspect, Finding, Metric, certainties, findings, forests, points
from hace.lab.report.results import TOP1, Comparison, Results, method_title
from hace.lab.report.verdict import _answer, caveats, commands, verdicts
from hace.lab.study.records import Record
from hace.metrics.intervals import Interval, resampled_interval
from tests.report_studies import animals, fair_records, page_with

FAIR = Comparison("fair", "pets", "backbone")
SKILLS = {"sce": 1.0, "hace": 3.0, "conditional": 2.9, "hace_shuffled": 3.5}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return fair_records(
        tmp_path_factory.mktemp("runs"), animals(), SKILLS, rates=(0.5, 1.0, 4.0), samples=120
    )


@pytest.fixture(scope="module")
def results(records: list[Record]) -> Results:
    return Results(records)


@pytest.mark.parametrize(
    ("gap", "seeds", "comparisons", "word"),
    [
        (Interval(2.0, 0.5, 3.5, 0.77), 5, 1, "clear"),
        (Interval(2.0, 0.5, 3.5, 0.77), 5, 5, "clear"),
        (Interval(2.0, 0.5, 3.5, 0.77), 5, 8, "likely"),  # p = 0.0094: eight of them are 0.075
        (Interval(-2.0, -3.5, -0.5, 0.77), 5, 1, "clear"),
        (Interval(2.0, 0.5, 3.5, 0.77), 2, 1, "likely"),  # two seeds are never clear
        (Interval(1.0, -0.1, 2.1, 0.55), 5, 1, "open"),
        (Interval(1.0, np.nan, np.nan), 5, 1, "open"),
        (Interval(0.0, 0.0, 0.0, 0.0), 5, 1, "open"),
    ],
)
def test_words_follow_from_intervals(gap: Interval, seeds: int, comparisons: int, word: str) -> None:
    assert certainties(dict.fromkeys(range(comparisons), (gap, seeds)))[0] == word


def made(name: str, way: int, sure: str = "clear", higher: bool = True) -> Finding:
    aspect = Aspect(name, Metric(TOP1, name, higher=higher), "")
    return Finding(aspect, 0.5, 0.5, Interval(0.1 * way, 0.05 * way, 0.15 * way), sure)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "start", "tone"),
    [
        (
            [made("a", 1), made("b", 0, "open")],
            "Yes. HACE beats cross-entropy in a. No difference is shown in b.",
            "yes",
        ),
        ([made("a", 1, "likely")], "Probably. HACE beats cross-entropy in a.", "yes"),
        (
            [made("a", 1), made("b", 1, higher=False)],
            "In part. HACE beats cross-entropy in a and loses in b.",
            "part",
        ),
        ([made("a", -1), made("b", 1, higher=False)], "No. HACE loses to cross-entropy in a and b.", "no"),
        ([made("a", -1, "likely")], "Probably not.", "no"),
        ([made("a", 1, "open")], "No difference shown. HACE and cross-entropy are tied", "open"),
    ],
)
def test_the_answer_sums_up_the_findings(
    results: Results, found: list[Finding], start: str, tone: str
) -> None:
    answer, said = _answer(results, FAIR, found, "")
    assert answer.startswith(start)
    assert said == tone


def test_a_study_gets_a_verdict_with_aspects_method_and_rate(results: Results) -> None:
    (verdict,) = verdicts(results)
    assert verdict.tone == "yes"
    assert [f.aspect.name for f in verdict.findings] == [
        "accuracy", "mistakes", "coarse answers", "confidence", "detail at 95%",
    ]  # fmt: skip
    accuracy = verdict.findings[0]
    gap = results.gaps("hace", "sce", "fair")[FAIR]
    assert accuracy.gap == gap
    assert accuracy.better
    assert verdict.use in ("HACE", "conditional softmax")
    text = page_with(verdicts=[verdict], caution="made up")
    for words in (
        'id="verdict"',
        "does the hierarchy help?",
        accuracy.interval,
        "clear gain",
        "made up",
        "3 seeds: ",
    ):
        assert words in text


@pytest.mark.slow
def test_the_method_to_use_is_chosen_on_held_out_samples(tmp_path: Path) -> None:
    """Conditional softmax is better on test samples, HACE on held-out ones: HACE it is. Controls are never recommended."""
    good, bad = {"hace": 1.5, "sce": 1.0, "conditional": 1.2, "hace_shuffled": 5.0}, {"conditional": 6.0}
    searches = [r for r in fair_records(tmp_path / "a", animals(), good, samples=120) if r.stage == "search"]
    finals = fair_records(tmp_path / "b", animals(), {**good, **bad}, samples=120)
    results = Results([*searches, *(r for r in finals if r.stage == "final")])
    held = results.held_out(FAIR)
    assert list(held)[:2] == ["hace_shuffled", "hace"]
    assert held["hace"] == pytest.approx(
        np.mean(
            [
                max(r.top1 or 0 for r in searches if r.key.method == "hace" and r.key.seed == s)
                for s in (0, 1, 2)
            ]
        )
    )
    (verdict,) = verdicts(results)
    assert verdict.use == "HACE"
    assert verdict.why.startswith(": best of 3 on held-out samples")
    assert "On test samples conditional softmax is ahead (+" in verdict.why
    assert results.choices[FAIR]["hace"].budget == "2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skills", "start", "rest"),
    [
        ({"hace": 3.0, "conditional": 1.0}, "HACE: +", "but the test samples show no gain: "),
        (
            {"hace": 1.0, "conditional": 1.0},
            "cross-entropy. conditional",
            "but the test samples show no gain: ",
        ),
        (
            {"hace": 1.0, "conditional": 0.0},
            "cross-entropy. conditional",
            "but the test samples show a loss: -",
        ),
    ],
)
def test_what_to_use_agrees_with_the_test_samples(
    tmp_path: Path, skills: dict[str, float], start: str, rest: str
) -> None:
    """Conditional softmax is the best on held-out samples, and no better than cross-entropy on test samples."""
    held = {"hace": 0.5, "sce": 0.5, "conditional": 9.0}
    searches = [r for r in fair_records(tmp_path / "a", animals(), held, samples=240) if r.stage == "search"]
    finals = fair_records(tmp_path / "b", animals(), {"sce": 1.0, **skills}, samples=240)
    (verdict,) = verdicts(Results([*searches, *(r for r in finals if r.stage == "final")]))
    assert (verdict.use + verdict.why).startswith(start)
    assert rest in verdict.why
    assert "conditional softmax was the best of 3 on held-out samples" in verdict.why


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_recommendation_contradicts_neither_the_claim_nor_the_table(tmp_path: Path, seed: int) -> None:
    """Random skills on held-out samples and, drawn anew, on test samples."""
    rng = np.random.default_rng(seed)
    names = ("sce", "hace", "conditional", "sce_soft10")
    held, test = (dict(zip(names, rng.choice([1.0, 1.2, 2.0, 2.8], 4).tolist(), strict=True)) for _ in "ab")
    searches = fair_records(tmp_path / "a", animals(), held, rates=(4.0,), samples=120)
    finals = fair_records(tmp_path / "b", animals(), test, rates=(4.0,), samples=120)
    both = [*(r for r in searches if r.stage == "search"), *(r for r in finals if r.stage == "final")]
    results = Results(both)
    (verdict,) = verdicts(results)
    titles, arrays = {method_title(m): m for m in names}, results.arrays[FAIR]
    method = titles[verdict.use]
    theirs = findings(arrays, method, "sce") if method != "sce" else []
    if verdict.tone == "yes":
        assert method != "sce"
    if verdict.tone in ("no", "open"):  # no gain is claimed, so none may be recommended
        assert method == "sce"
        assert not any(f.better for f in verdict.findings)
    if verdict.answer.startswith("Not by"):
        assert verdict.answer.split("; ")[1].startswith(verdict.use)
    if theirs:
        assert any(f.better for f in theirs)
        assert not theirs[0].worse
    scores = {m: arrays.score(m, TOP1).value or 0.0 for m in names}
    top = max(scores, key=lambda m: scores[m])
    if scores[top] > scores[method]:  # the first of the table is named, with the difference between them
        here, there = (arrays.difference(*pair, TOP1) for pair in ((top, method), (method, top)))
        assert here is not None
        assert there is not None
        assert method_title(top) in verdict.why
        assert points(here[0]) in verdict.why or points(there[0]) in verdict.why
    assert not re.search(r"rate \d|d 0\.", verdict.use + verdict.why + verdict.answer)


def test_caveats_name_edges_budgets_seeds_and_small_classes(records: list[Record]) -> None:
    notes = " ".join(caveats(Results(records), {FAIR: ("hace", "sce")}))
    assert "may do better: HACE (3 of 3 at the largest rate), cross-entropy (" in notes
    assert "3 seeds" in notes
    assert "fewer than" not in notes
    fewer = [replace(r, candidates=2) if r.stage == "final" and r.key.method == "sce" else r for r in records]
    notes = " ".join(caveats(Results(fewer), {FAIR: ("hace", "sce")}))
    assert "candidates per seed are HACE 3, cross-entropy 2" in notes
    lost = [
        replace(r, run=None, error="gone") if r.stage == "final" and r.key.seed == 2 else r for r in records
    ]
    assert "4 of 12 final runs have no result" in " ".join(caveats(Results(lost), {FAIR: ("hace", "sce")}))


def test_small_classes_are_a_caveat(tmp_path: Path) -> None:
    few = fair_records(tmp_path, animals(), {"sce": 1.0, "hace": 2.0}, seeds=(0,), rates=(1.0,), samples=40)
    assert "6 of 6 classes have fewer than 10 test samples" in " ".join(
        caveats(Results(few), {FAIR: ("hace", "sce")})
    )


@pytest.mark.parametrize(("samples", "weak"), [(40, True), (2000, False)])
def test_a_search_on_few_held_out_samples_is_a_caveat(tmp_path: Path, samples: int, weak: bool) -> None:
    records = fair_records(tmp_path, animals(), {"sce": 1.0, "hace": 2.0}, seeds=(0,), samples=samples)
    notes = " ".join(caveats(Results(records), {FAIR: ("hace", "sce")}))
    assert (f"Rates were chosen on {samples:,} held-out samples" in notes) == weak


def test_the_forest_has_every_method_with_candidates_the_best_first(results: Results) -> None:
    switch = forests(results, FAIR)
    assert switch is not None
    assert [title for title, _ in switch.options][:2] == ["Accuracy", "Mistakes"]
    plot = switch.options[0][1]
    values = [f.gap.value for _, f in plot.rows]
    assert values == sorted(values, reverse=True)
    assert {choice.method for choice, _ in plot.rows} == set(SKILLS) - {"sce"}
    mistakes = [f.gap.value for _, f in switch.options[1][1].rows]
    assert mistakes == sorted(mistakes)
    text = page_with(plot)
    assert text.count("<tr") == 4
    assert text.count('<td class="wide">3</td>') == 3  # candidates


# ---------------------------------------------------------------------- guarantees


def test_guaranteed_answers_by_loops() -> None:
    h = Hierarchy.from_paths([("a", "b", "1"), ("a", "b", "2"), ("a", "3"), ("c", "4"), ("c", "5"), ("6",)])
    rng = np.random.default_rng(0)
    samples = 400
    truth = h.leaf_nodes[rng.integers(h.num_leaves, size=samples)]
    answer = np.where(
        rng.random(samples) < 0.6, truth, h.leaf_nodes[rng.integers(h.num_leaves, size=samples)]
    )
    mass = np.sort(rng.random((samples, h.max_depth + 1)), axis=1)[:, ::-1].astype(np.float32)
    run = {"truth": truth, "answer": answer, "path_confidence": mass}
    ladder = run_ladder(run, h)
    assert ladder is not None
    for i in range(samples):
        path = list(h.path(h.nodes[answer[i]]))[::-1]
        path = [None] * (h.max_depth + 1 - len(path)) + path
        above = set(h.path(h.nodes[truth[i]])) | {None}
        assert [None if v < 0 else h.nodes[v] for v in ladder.nodes[i]] == path
        assert ladder.is_true[i].tolist() == [node in above for node in path]
    rows = np.arange(100)
    kept = [
        max([m for m, t in zip(mass[i], ladder.is_true[i], strict=True) if not t], default=0.0) for i in rows
    ]
    assert limit_of(kept, 0.9) == sorted(kept)[91 - 1]  # ceil(101 * 0.9)
    places, strict = sure_places(ladder, (0.9, 0.95))
    order = np.random.default_rng(0).permutation(samples)
    for half, other in ((order[:200], order[200:]), (order[200:], order[:200])):
        theta = sorted(max([0.0, *mass[i][~ladder.is_true[i]]]) for i in other)
        for i in half:  # ceil(201 * 0.9)
            assert places[i] == max([0, *(k for k in range(1, 4) if mass[i, k] > theta[181 - 1])])
    wrong = [not ladder.is_true[i, places[i]] for i in range(samples)]
    assert 0.03 < np.mean(wrong) < 0.17  # guaranteed is 0.1
    share = relations(h).specificity
    columns = confidence_columns(run, h)
    expected = [share[ladder.nodes[i, k]] for i, k in enumerate(strict)]
    assert columns["sure_detail"][0] == pytest.approx(np.mean(expected), rel=1e-5)
    assert share[h.index("1")] == pytest.approx(1)
    assert share[-1] == 0
    assert share[h.index("b")] == pytest.approx(np.log(3) / np.log(6))


def limit_of(false_up_to: list[float], guarantee: float) -> float:
    """The limit of samples, each drawn once."""
    return float(conformal_limits(np.array(false_up_to), np.ones((len(false_up_to), 1), int), guarantee)[0])


def drawn(ladder: AnswerLadder, worth: np.ndarray, guarantee: float) -> np.ndarray:
    """(DRAWS,) the mean worth on each draw."""
    parts = np.hstack([0.0, *detail_parts(ladder, worth, guarantee)])
    return detail_draws(parts[None], ladder.groups)[0, 1:]


def test_the_detail_at_a_guarantee_knows_the_noise_of_its_threshold() -> None:
    """Fresh samples, with calibration and evaluation drawn together, vary as much as the interval of one draw says."""
    h = Hierarchy.from_paths(
        [(f"a{i}", f"a{i}b{j}", f"a{i}b{j}c{k}") for i in range(3) for j in range(3) for k in range(3)]
    )
    rng = np.random.default_rng(0)
    samples, means, naive, stated = 1000, [], [], []
    for _ in range(150):
        leaf = h.leaf_nodes[rng.integers(h.num_leaves, size=samples)]
        family = h.parent_nodes[leaf]
        masses = [rng.beta(4, 1.2, size=samples)]
        for _ in range(2):
            masses.append(masses[-1] + (1 - masses[-1]) * rng.uniform(0.3, 0.9, size=samples))
        luck = rng.random(samples)
        true = [np.ones(samples, dtype=bool), *(luck < mass for mass in masses[::-1])]
        nodes = np.stack([np.full(samples, -1), h.parent_nodes[family], family, leaf], axis=1)
        reached = np.stack([np.full(samples, np.inf), *masses[::-1]], axis=1)
        ladder = AnswerLadder(h, nodes, reached, np.stack(true, axis=1))
        worth = relations(h).specificity[nodes]
        said = np.take_along_axis(worth, sure_places(ladder, (0.95,))[0][:, None], axis=1)[:, 0]
        draws = drawn(ladder, worth, 0.95)
        means.append(said.mean())
        naive.append(said.std() / samples**0.5)
        stated.append(resampled_interval(np.append(said.mean(), draws)[None], samples).error)
    assert np.mean(stated) == pytest.approx(np.std(means), rel=0.25)
    assert np.mean(naive) < 0.5 * np.std(means)  # of the evaluated samples alone


def test_draws_choose_their_thresholds_as_the_samples_do() -> None:
    """A draw of samples gives what samples repeated that often would; groups are drawn, and halved, whole."""
    rng = np.random.default_rng(0)
    samples = 120
    mass = np.sort(rng.random((samples, 4)).round(2), axis=1)[:, ::-1].copy()  # with ties
    true = np.sort(rng.random((samples, 4)) < 0.7, axis=1)[:, ::-1].copy()
    worth = np.broadcast_to(np.array([0.0, 0.3, 0.6, 1.0]), mass.shape)
    mass[:, 0], true[:, 0] = np.inf, True  # the root
    nothing = np.zeros((samples, 4), dtype=int)
    flat = Hierarchy.flat(["a", "b"])
    alone, own = (AnswerLadder(flat, nothing, mass, true, names) for names in (None, np.arange(samples)))
    halves = zip(alone.resampled.halves, own.resampled.halves, strict=True)
    assert all(np.array_equal(a, b) for a, b in halves)
    assert np.array_equal(drawn(alone, worth, 0.9), drawn(own, worth, 0.9))
    for groups in (None, rng.integers(17, size=samples)):
        ladder = AnswerLadder(flat, nothing, mass, true, groups)
        halves, counts, _ = ladder.resampled
        found = drawn(ladder, worth, 0.9)
        if groups is not None:
            assert set(groups[halves[0]]).isdisjoint(groups[halves[1]])
            for group in range(17):
                assert (counts[groups == group] == counts[groups == group][:1]).all()
        for draw in range(0, 300, 29):
            total = 0.0
            for rows, others in (halves, halves[::-1]):
                theta = [max([0.0, *mass[i][~true[i]]]) for i in np.repeat(others, counts[others, draw])]
                limit = limit_of(theta, 0.9)
                for i in np.repeat(rows, counts[rows, draw]):
                    total += worth[i, max([0, *(k for k in range(1, 4) if mass[i, k] > limit)])]
            assert found[draw] == pytest.approx(total / counts[:, draw].sum())


def test_a_guarantee_that_too_few_samples_can_keep_answers_nothing() -> None:
    reached = np.column_stack([np.full(5, np.inf), np.ones(5)])
    flat = Hierarchy.flat(["a", "b"])
    ladder = AnswerLadder(flat, np.zeros((5, 2), dtype=int), reached, np.ones((5, 2), dtype=bool))
    assert limit_of([0.0] * 5, 0.99) == np.inf
    assert sure_places(ladder, (0.99,))[0].tolist() == [0] * 5


def test_no_ladder_without_a_tree_or_kept_confidences() -> None:
    dag = Hierarchy.from_edges([("r", "a"), ("r", "b"), ("a", "1"), ("a", "2"), ("b", "2")])
    assert confidence_columns({"path_confidence": np.ones((3, 0))}, dag) == {}
    assert confidence_columns({}, animals()) == {}


def test_derived_metrics_have_intervals_and_pair(results: Results) -> None:
    arrays = results.arrays[FAIR]
    names = {f.aspect.name: f for f in findings(arrays, "hace", "sce")}
    for name in ("confidence", "detail at 95%"):
        f = names[name]
        assert f.gap.low <= f.gap.value <= f.gap.high
        assert f.gap.value == pytest.approx(f.ours - f.theirs)


def test_a_study_that_selects_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--methods sce_drop --seeds 1 --shares 0"
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
