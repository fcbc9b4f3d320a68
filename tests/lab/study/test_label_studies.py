"""Studies about labels: their grids, the question that data leave open, and what the report answers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from hace.cli.entry import main
from hace.errors import ConfigError, DataError
from hace.lab.probe import probe
from hace.lab.report.cards import Card, label_card
from hace.lab.report.compare import compare
from hace.lab.report.labels import LabelQuestion, label_blocks, label_questions, panels
from hace.lab.report.metric import ACCURACY
from hace.lab.report.results import Results
from hace.lab.report.summary import results_text
from hace.lab.runs.config import DataConfig, LabelsConfig
from hace.lab.runs.result import KNOWN_TOP1
from hace.lab.runs.samples import data_of, make_task
from hace.lab.study.comparison import choose
from hace.lab.study.configurations import ConfigurationKey
from hace.lab.study.plan import Choices, make_plan
from hace.lab.study.presets import METHODS, PRESETS, find_presets
from hace.lab.study.records import Record
from hace.lab.study.survey import Survey
from hace.losses.registry import loss_parameters
from hace.paper import STUDIES
from hace.study import Study, StudyResults
from tests.report_studies import animals, config_of, make_run
from tests.study_files import write_features


def configurations(name: str, data: Mapping[str, DataConfig] | None = None, **choices):
    preset = find_presets(name)[name]
    plan = make_plan({name: replace(preset, data=data or preset.data)}, Choices(**choices))
    return Survey(plan.data).asked(plan).configurations


@pytest.mark.parametrize("name", ["mixed-labels", "low-shot", "noisy-labels"])
def test_five_methods_that_take_labels_at_any_level_answer_a_study_of_labels(name: str) -> None:
    methods = [METHODS[key] for key in PRESETS[name].methods]
    assert len(methods) == 5
    assert all("labels" in loss_parameters(method.loss.name) for method in methods)


def test_shares_are_searched_with_equal_budgets_and_against_dropping() -> None:
    configs = configurations("mixed-labels", seeds=1, shares=(0, 80), coarse_to="top")
    assert {configuration.key.labels for configuration in configs} == {"", "80% top"}
    assert {len(configuration.candidates) for configuration in configs} == {10}
    for configuration in configs:
        labels = configuration.config.data.labels
        drops = METHODS[configuration.key.method].drops
        assert labels == (
            LabelsConfig(0.8, to="top", drop=drops) if configuration.key.labels else LabelsConfig()
        )
    whole = {configuration.key.method for configuration in configs if not configuration.key.labels}
    assert whole == {
        "cross_entropy",
        "hace",
        "cross_entropy_paths",
        "cross_entropy_paths_0.5",
    }  # nothing to drop while all are known
    assert {configuration.key.method for configuration in configs if configuration.key.labels} == {
        *PRESETS["mixed-labels"].methods
    }


def test_few_and_wrong_labels() -> None:
    few = configurations("low-shot", seeds=1, fine=(1, 5), decays=(0.0,))
    assert list(dict.fromkeys(configuration.key.labels for configuration in few)) == [
        "", "1 a class", "1 a class + parent", "5 a class", "5 a class + parent",
    ]  # fmt: skip
    assert {len(configuration.candidates) for configuration in few} == {5}
    assert {configuration.widen for configuration in few} == {
        (0, 0)
    }  # synthetic data show how it works, and quickly
    wrong = configurations("noisy-labels", seeds=1, shares=(40,), methods=("cross_entropy",))
    assert [configuration.config.data.labels for configuration in wrong] == [
        LabelsConfig(), LabelsConfig(wrong=0.4), LabelsConfig(wrong=0.4, within="anywhere"),
    ]  # fmt: skip


def test_labels_that_are_mixed_already_are_used_or_dropped_as_they_are() -> None:
    data = {"synthetic": DataConfig("synthetic-features", options={"classes": 6, "train": 10, "coarse": 0.5})}
    configs = configurations("mixed-labels", data, seeds=1, methods=("cross_entropy", "cross_entropy_drop"))
    assert [(configuration.key.method, configuration.config.data.labels) for configuration in configs] == [
        ("cross_entropy", LabelsConfig()), ("cross_entropy_drop", LabelsConfig(drop=True)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "options", "message"),
    [
        (
            "low-shot",
            {"shares": (50,)},
            "shares must come with mixed-labels or noisy-labels. Got low-shot.",
        ),
        ("mixed-labels", {"fine": (1,)}, "fine must come with low-shot. Got mixed-labels."),
        (
            "noisy-labels",
            {"coarse_to": "top"},
            "coarse_to must come with mixed-labels or low-shot. Got noisy-labels.",
        ),
        (
            "mixed-labels",
            {"shares": (100,)},
            "shares must be 0 or from 1 to less than 100, in percent. Got (100,).",
        ),
        (
            "mixed-labels",
            {"shares": (0.8,)},
            "less than 100, in percent. Got (0.8,).",
        ),
        ("low-shot", {"fine": (1, 1.5)}, "s or nothing. Got (1, 1.5)."),
        ("animals", {"decays": (-1.0,)}, "decays must be at least 0. Got (-1.0,)."),
    ],
)
def test_options_that_do_not_fit(preset: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configurations(preset, **options)
    assert message in str(caught.value)


def test_a_level_that_the_data_do_not_have_is_found_before_anything_runs() -> None:
    with pytest.raises(
        ConfigError, match=r"must be one of parent, top, or a level from 1 to \d\. Got 'genus'\."
    ):
        configurations("mixed-labels", coarse_to="genus")


def test_shares_of_data_whose_labels_are_mixed_already() -> None:
    data = {"synthetic": DataConfig("synthetic-features", options={"classes": 6, "train": 10, "coarse": 0.5})}
    with pytest.raises(
        ConfigError, match="shares must hold 0, the labels as they are: some training samples of synth"
    ):
        configurations("mixed-labels", data, shares=(80,))


def test_labels_that_are_mixed_already_are_called_what_they_are(tmp_path: Path) -> None:
    whole = LabelsConfig()
    (question,) = label_questions(
        Results(records(tmp_path, {("cross_entropy", whole): 2.0, ("cross_entropy_drop", whole): 1.0}))
    )
    assert card_of(question).decisions[0].question == "labels as they are"
    data = Survey({("birds", "probe"): DataConfig("synthetic-features", options={"classes": 6, "train": 10})})
    data.datasets["birds", "probe"]["coarse"] = 60
    with pytest.raises(DataError, match="birds must have training samples labelled with a class"):
        data.asked(make_plan(find_presets("mixed-labels")))


def test_samples_labelled_above_the_classes_are_counted_where_final_models_train(tmp_path: Path) -> None:
    """The plan counted them in one split and the report in both: "1,238 of 2,640" and "of 2,936"."""
    rng = np.random.default_rng(0)
    labels = np.array(["a", "b", "top", "c"] * 5)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 20), ("val", 8), ("test", 4)):
        arrays[f"x_{split}"] = rng.normal(size=(count, 3)).astype(np.float32)
        arrays[f"y_{split}"] = labels[:count] if split != "test" else np.array(["a", "b", "c", "c"])
    np.savez(tmp_path / "f.npz", **arrays)
    (tmp_path / "tree.csv").write_text("parent,child\ntop,a\ntop,b\nother,c\n")
    config = DataConfig("features", root=str(tmp_path / "f.npz"), hierarchy=str(tmp_path / "tree.csv"))
    notes = list(Survey({("mine", "probe"): config}).notes())
    assert "mine: 7 of 28 training samples are labelled above the leaves" in notes


@pytest.mark.slow
def test_from_the_command_to_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = str(tmp_path / "study")
    methods = "--methods cross_entropy,conditional_softmax,cross_entropy_drop"
    small = f"--seeds 1 {methods} --rates 8,32 --decays 0 --epochs-scale 0.1 --shares 0,80"
    assert main(["study", "mixed-labels", "--out", study, *small.split()]) == 0
    assert main(["report", study]) == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines() if study not in line) <= 100
    out = " ".join(printed.split())
    assert "One seed only. It cannot tell using coarse labels from dropping them" in out
    assert out.count("are coarse labels worth using?") == 1
    page = (tmp_path / "study" / "report" / "report.html").read_text()
    assert (
        page.index('id="verdict"')
        < page.index("are coarse labels worth using?")
        < page.index("Labels: use or drop")
    )
    assert (tmp_path / "study" / "report" / "figures" / "labels-synthetic-features-fair.svg").is_file()


@pytest.mark.slow
def test_features_whose_labels_are_mixed_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([["lynx", "ocelot"], ["fox", "wolf"]], 30, axis=1)  # (2, 60): cats and dogs
    x = rng.normal(size=(2, 60, 4)) + 2 * (y[..., None] == np.array(["lynx", "ocelot", "fox", "wolf"]))
    split = np.tile(np.repeat(["train", "test", "train", "test"], 15), (2, 1))
    known = np.where((split == "train") & (np.arange(60) % 3 == 0), [["cat"], ["dog"]], y)
    np.savez(tmp_path / "pets.npz", X=x.reshape(120, 4), y=known.ravel(), split=split.ravel())
    (tmp_path / "pets.csv").write_text("parent,child\ncat,lynx\ncat,ocelot\ndog,fox\ndog,wolf\n")
    methods = "--methods cross_entropy,cross_entropy_paths,cross_entropy_drop"
    small = f"{methods} --seeds 1 --rates 2,8 --decays 0 --widen 0 --epochs-scale 0.1"
    given = ["--features", f"pets={tmp_path / 'pets.npz'}", "--hierarchy", f"pets={tmp_path / 'pets.csv'}"]
    assert main(["study", "mixed-labels", *given, *small.split(), "--out", str(tmp_path / "S")]) == 0
    assert main(["report", str(tmp_path / "S")]) == 0
    question = "20 of 60 training samples are labelled above the leaves. Are they worth using?"
    out, page = capsys.readouterr().out, (tmp_path / "S" / "report" / "report.html").read_text()
    assert question in " ".join(out.split())
    assert question in page
    assert "Commands to paste" in page
    pasted = out[out.index("hace probe") :].split("hace predict", 1)[0].replace("\\\n", "")
    train, calibrate = [line for line in pasted.splitlines() if line.strip()]
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(train)[1:]) == 0
    assert main([*shlex.split(calibrate)[1:], "--temperature", "1", "--accuracy", "0.5"]) == 0


# What the report says, of runs whose skill is known.


def records(folder: Path, skills: Mapping[tuple[str, LabelsConfig], float]) -> list[Record]:
    results = []
    for (method, labels), skill in skills.items():
        drops = METHODS[method].drops
        for seed in (0, 1):
            key = ConfigurationKey("fair", "pets", "backbone", method, None, None, seed, labels.text)
            base = config_of(method, None, seed, 1.0)
            known = replace(labels, drop=labels.drop or drops)
            config = replace(base, data=replace(base.data, labels=known))
            results.append(Record(key, "final", 1.0, make_run(folder, animals(), config, "pets", skill, 200)))
    return results


def mean(result: list[Record], method: str, labels: str) -> float:
    return float(np.mean([r.top1 for r in result if (r.key.method, r.key.labels) == (method, labels)]))


def card_of(question: LabelQuestion) -> Card:
    return label_card(question, compare(question.pairs()))


def test_use_or_drop_and_how_far_it_goes(tmp_path: Path) -> None:
    half = LabelsConfig(0.5)
    result = records(
        tmp_path,
        {
            ("cross_entropy", LabelsConfig()): 6.0,
            ("conditional_softmax", LabelsConfig()): 6.0,
            ("cross_entropy", half): 2.0,
            ("conditional_softmax", half): 4.0,
            ("cross_entropy_drop", half): 1.0,
        },
    )
    (question,) = label_questions(Results(result))
    card = card_of(question)
    assert card.answer == "Yes. Use the coarse labels, with conditional softmax."
    best, below, whole = (
        mean(result, m, labels)
        for m, labels in (
            ("conditional_softmax", half.text),
            ("cross_entropy_drop", half.text),
            ("conditional_softmax", ""),
        )
    )
    (decision,) = card.decisions
    assert decision.question == "50% of the labels known only to their parent"
    assert (decision.first, decision.second) == (
        "conditional softmax",
        "cross-entropy, coarse labels dropped",
    )
    assert decision.words == "clear gain"
    assert decision.estimate == pytest.approx(best - below)
    assert card.way is not None
    assert card.way.share == pytest.approx((best - below) / (whole - below))
    assert card.use == "conditional softmax"
    ahead = f"{100 * (best - mean(result, 'cross_entropy', half.text)):.1f}"
    chosen = f"It was the best of 2 on test samples, {ahead} points ahead of cross-entropy."
    assert card.why == f"{chosen} Being chosen there overstates it."
    assert [[x for x, _ in panel.points] for panel in panels(question)] == [[0.0, 50.0]]


def test_drop_them_or_no_difference(tmp_path: Path) -> None:
    low = LabelsConfig(fine=1)
    alone = replace(low, drop=True)
    result = records(
        tmp_path,
        {("cross_entropy", alone): 4.0, ("cross_entropy", low): 1.0, ("conditional_softmax", low): 1.0},
    )
    (question,) = label_questions(Results(result))
    card = card_of(question)
    assert card.answer == "No. Drop the coarse labels."
    assert (card.use, card.way) == ("", None)
    (decision,) = card.decisions
    assert decision.question == "1 label per class, the others known only to their parent"
    assert (decision.second, decision.words) == ("cross-entropy", "clear loss")
    assert card.lines == (
        f"1 label per class: cross-entropy reaches {100 * mean(result, 'cross_entropy', alone.text):.1f}%.",
    )
    same = records(
        tmp_path / "same",
        {("cross_entropy", LabelsConfig(0.5)): 2.0, ("cross_entropy_drop", LabelsConfig(0.5)): 2.0},
    )
    (level,) = label_questions(Results(same))
    assert card_of(level).answer.startswith("No difference shown. ")


def test_wrong_labels_are_asked_about_the_reference(tmp_path: Path) -> None:
    wrong = LabelsConfig(wrong=0.4)
    known = {
        ("cross_entropy", LabelsConfig()): 6.0,
        ("cross_entropy", wrong): 1.0,
        ("conditional_softmax", wrong): 5.0,
    }
    result = records(tmp_path, known)
    (question,) = label_questions(Results(result))
    card = card_of(question)
    (decision,) = card.decisions
    gain = mean(result, "conditional_softmax", wrong.text) - mean(result, "cross_entropy", wrong.text)
    assert decision.estimate == pytest.approx(gain)
    assert card.heads[1] == "conditional softmax minus cross-entropy"
    assert card.answer == "Yes. Use conditional softmax instead of cross-entropy."
    alone = records(
        tmp_path / "alone", {("cross_entropy", LabelsConfig()): 6.0, ("cross_entropy", wrong): 1.0}
    )
    (question,) = label_questions(Results(alone))
    card = card_of(question)
    assert card.decisions == ()
    assert card.answer == "No difference shown. No method chosen on other samples beats cross-entropy."


def test_a_method_that_loses_to_the_reference_is_not_recommended(tmp_path: Path) -> None:
    """Chosen on held-out samples, and worse than the reference on test samples, though better than dropping."""
    half = LabelsConfig(0.5)
    finals = records(
        tmp_path,
        {("cross_entropy", half): 6.0, ("conditional_softmax", half): 2.5, ("cross_entropy_drop", half): 0.0},
    )
    searches = searches_of(
        tmp_path, finals, {"cross_entropy": 1.0, "conditional_softmax": 6.0, "cross_entropy_drop": 0.0}
    )
    (question,) = label_questions(Results([*searches, *finals]))
    assert question.states[0].best == "conditional_softmax"
    card = card_of(question)
    assert card.answer == "Yes. Use the coarse labels, with cross-entropy."
    assert card.use == "cross-entropy"
    assert card.why == "conditional softmax was the best of 2 on held-out samples, but loses on test samples."


def searches_of(folder: Path, finals: list[Record], skills: Mapping[str, float]) -> list[Record]:
    """A search for each final run, in which methods have other skills."""
    searches = []
    for record in finals:
        assert record.run is not None
        config = replace(record.run.config, validation=0.1, evaluate="val", keep=False)
        run = make_run(folder, animals(), config, "pets", skills[record.key.method])
        searches.append(Record(record.key, "search", 1.0, run))
    return searches


def test_held_out_samples_choose_the_best_method_and_test_samples_do_not(tmp_path: Path) -> None:
    half = LabelsConfig(0.5)
    finals = records(
        tmp_path,
        {("cross_entropy", half): 1.0, ("conditional_softmax", half): 4.0, ("cross_entropy_drop", half): 1.0},
    )
    (alone,) = label_questions(Results(finals))
    # No searches: the best on test samples, and the page says so.
    assert alone.states[0].best == "conditional_softmax"
    assert card_of(alone).why.startswith("It was the best of 2 on test samples, ")
    assert label_blocks(alone.results, draw=False)[-1].startswith("Every method has one candidate")
    searches = searches_of(
        tmp_path, finals, {"cross_entropy": 2.0, "conditional_softmax": 2.0, "cross_entropy_drop": 2.0}
    )
    (level,) = label_questions(Results([*searches, *finals]))
    # Level on held-out samples: the first one, though it is behind on test samples.
    assert level.states[0].best == "cross_entropy"
    # No gain over dropping is shown, so nothing that uses them is recommended.
    assert card_of(level).use == ""
    assert label_blocks(level.results, draw=False)[-1].endswith("so no test result chose it.")
    assert level.results.scores[level.states[0].condition].score(
        "cross_entropy", ACCURACY
    ).value == pytest.approx(mean(finals, "cross_entropy", half.text))


def test_other_studies_have_no_such_section(tmp_path: Path) -> None:
    result = records(
        tmp_path, {("cross_entropy", LabelsConfig()): 2.0, ("conditional_softmax", LabelsConfig()): 3.0}
    )
    assert label_blocks(Results(result), draw=False) == []
    assert "use" not in results_text(Results(result)).split("\n")[0]


def lonely(tmp_path: Path) -> list[str]:
    """Features of four classes, two of them alone in their genus: half of what is made wrong or coarse stays."""
    rng = np.random.default_rng(0)
    names = ["lynx", "ocelot", "fox", "bear"]
    y = np.tile(np.repeat(names, 20), 2)
    x = rng.normal(size=(160, 4)) + 2 * (y[:, None] == np.array(names))
    np.savez(tmp_path / "pets.npz", X=x, y=y, split=np.repeat(["train", "test"], 80))
    (tmp_path / "pets.csv").write_text("parent,child\ncat,lynx\ncat,ocelot\ndog,fox\nursid,bear\n")
    small = "--methods cross_entropy --seeds 2 --rates 2,8 --decays 0 --widen 0 --epochs-scale 0.1".split()
    given = ["--features", f"pets={tmp_path / 'pets.npz'}", "--hierarchy", f"pets={tmp_path / 'pets.csv'}"]
    return [*given, *small, "--out", str(tmp_path / "S")]


def test_a_study_says_how_many_labels_really_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = lonely(tmp_path)
    assert main(["study", "noisy-labels", *words, "--shares", "0,40", "--dry-run"]) == 0
    said = capsys.readouterr().err
    alone = "; 2 of 4 classes have no sibling and keep theirs"
    assert f"pets, 40% wrong within parent: 20% of the training labels are wrong{alone}\n" in said
    assert "pets, 40% wrong anywhere: 40% of the training labels are wrong\n" in said
    assert main(["study", "low-shot", *words, "--fine", "5", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert f"pets, 5 a class + parent: 38% of the training labels leave the class open{alone}\n" in said


@pytest.mark.slow
def test_results_over_the_classes_that_have_siblings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "noisy-labels", *lonely(tmp_path), "--shares", "0,40"]) == 0
    results = StudyResults.read(tmp_path / "S")
    table = results.table().set_index(["labels", "seed"])
    assert dict(table["labels changed"].groupby("labels").first()) == {
        "": 0.0, "40% wrong anywhere": 0.4, "40% wrong within parent": 0.2,
    }  # fmt: skip
    for record in (r for r in results.records if r.stage == "final"):
        assert record.run is not None
        result, h = record.run.predictions(), record.run.hierarchy
        cats = np.isin(result["truth"], [h.index("lynx"), h.index("ocelot")])
        expected = (result["answer"] == result["truth"])[cats].mean()
        column = "top-1, classes with siblings"
        assert table.loc[(record.key.labels, record.key.seed), column] == pytest.approx(expected)
    capsys.readouterr()
    page = results.report(tmp_path / "page").read_text(encoding="utf-8")
    said = " ".join(str(results).split())
    mean = 100 * table.loc["40% wrong within parent", "top-1, classes with siblings"].mean()
    for text in (said, page):
        assert "over the 2 of 4 classes that have siblings" in text
        assert f"{mean:.2f}" in text
    assert "40% wrong within parent changes 20% of the labels" in page


def plants(folder: Path, preset: str, **choices) -> Study:
    features, hierarchy = write_features(folder, noise=2.0)
    given = {"features": {"plants": str(features)}, "hierarchy": {"plants": str(hierarchy)}, "seeds": 1}
    return Study(preset, **{**given, "out": str(folder / "study"), "runs": str(folder / "runs"), **choices})


def test_held_out_samples_are_judged_by_true_and_by_known_labels(tmp_path: Path) -> None:
    """The oracle: the search's head scores its held-out samples again, one by one."""
    study = plants(
        tmp_path, "noisy-labels", methods=("hace",), rates=(0.5, 4.0, 32.0), decays=(0.0,), widen=0
    )
    study = replace(study, shares=(40,), only={"labels": "40% wrong anywhere"})
    records = [record for record in study.run().records if record.stage == "search"]
    for record in records:
        config = replace(record.run.config, keep=True)
        task = make_task(data_of(config.data), config)
        run = probe(config, tmp_path / "again")
        answers = run.predictions()["answer"]
        assert (task.val_known != task.val.nodes).any()
        result = record.run.result["metrics"]["leaves"]
        assert result["top-1"] == pytest.approx((answers == task.val.nodes).mean())
        assert result[KNOWN_TOP1] == pytest.approx((answers == task.val_known).mean())


@pytest.mark.parametrize("by", ["truth", "labels"])
def test_rates_are_chosen_by_what_is_asked(by: Literal["truth", "labels"]) -> None:
    metrics = {"truth": (0.6, 0.5), "labels": (0.3, 0.4)}
    configuration = configurations(
        "noisy-labels", seeds=1, shares=(40,), methods=("cross_entropy",), rates=(1.0, 2.0), choose_by=by
    )[0]
    searched = []
    for place, config in enumerate(configuration.search()[::2]):
        results = {"top-1": metrics["truth"][place], KNOWN_TOP1: metrics["labels"][place]}
        run: Any = SimpleNamespace(config=config, status="finished", result={"metrics": {"leaves": results}})
        searched.append(Record(configuration.key, "search", config.lr, run))
    chosen, _ = choose(replace(configuration, candidates=configuration.candidates[::2]), searched)
    assert chosen is not None
    assert chosen["lr"] == {"truth": 1.0, "labels": 2.0}[by]
    with pytest.raises(
        ConfigError, match=r"choose_by must come with a study of probes\. Got fair-end-to-end"
    ):
        make_plan(
            {"fair-end-to-end": STUDIES["fair-end-to-end"]},
            Choices(data_root={"b": "/"}, choose_by="labels"),
        )


def test_few_labels_get_as_many_steps_as_many(tmp_path: Path) -> None:
    study = plants(tmp_path, "low-shot", methods=("cross_entropy",), rates=(4.0,), decays=(0.0,), fine=(2,))
    study = replace(study, settings={"steps": 24, "batch_size": 7})
    results = {r.key.labels: r.run.result["train"] for r in study.run().records if r.run is not None}
    assert {labels: train["samples"] for labels, train in results.items()} == {
        "": 98, "2 a class": 14, "2 a class + parent": 98,
    }  # fmt: skip
    steps = {labels: train["epochs"] * -(-train["samples"] // 7) for labels, train in results.items()}
    assert steps == {"": 28, "2 a class": 24, "2 a class + parent": 28}  # whole epochs


def test_the_papers_rates_follow_from_a_base_rate() -> None:
    place = {"features": {"cifar100": "f.npz"}, "base_rate": 3e-3, "methods": ("cross_entropy", "hace")}
    result = make_plan({"paper-probe": STUDIES["paper-probe"]}, Choices(**place)).configurations
    seed = [configuration for configuration in result if configuration.key.seed == 0]
    assert sorted(
        configuration.rates[0] / 3e-3 for configuration in seed if configuration.key.method == "cross_entropy"
    ) == pytest.approx([0.2, 0.5, 0.7, 1])
    assert max(configuration.rates[0] for configuration in seed) == pytest.approx(0.015)
