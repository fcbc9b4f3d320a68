"""Studies: their grids, what is on disk, what goes wrong, and the command line."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hace.cli import main
from hace.errors import ConfigError, FormatError
from hace.files.writing import only_process
from hace.lab.probe import probe
from hace.lab.report import about_study, report_text
from hace.lab.report.about import facts
from hace.lab.runs.config import DataConfig, ProbeConfig, TrainConfig
from hace.lab.study.comparison import choose
from hace.lab.study.configurations import FAIR_RATES, ConfigurationKey
from hace.lab.study.folder import read_study
from hace.lab.study.plan import Choices, StudyPlan, make_plan
from hace.lab.study.presets import METHODS, PRESETS, find_presets
from hace.lab.study.prices import seconds_a_sample
from hace.lab.study.progress import Pace, Tally, watching
from hace.lab.study.records import Record
from hace.lab.study.survey import Survey
from hace.losses.poincare_head import PoincareBall
from hace.paper import ASSUMPTIONS, STUDIES
from hace.paper.recipes import PAPER_DATASETS, RECIPES, fixed_runs
from tests.data_layouts import write_image
from tests.report_studies import animals, make_run
from tests.study_files import PATHS, outcomes, plants_study, start_study, write_features

ALL = {**STUDIES, **PRESETS}
SOMEWHERE = {
    "features": dict.fromkeys(PAPER_DATASETS, "f.npz"),
    "data_root": dict.fromkeys(PAPER_DATASETS, "data"),
}
BIRDS = {"data_root": {"birds": "/"}}


def plan(name: str | list[str], **choices) -> StudyPlan:
    return make_plan(find_presets(name, ALL), Choices(**{**SOMEWHERE, **choices}))


def small(folder: Path, *more: str) -> list[str]:
    """A study of three runs: cross-entropy at two rates, and the final one."""
    options = plants_study(folder)
    options += ["--rates", "1,8"] if "--rates" not in more else []
    options += ["--seeds", "1", "--epochs-scale", "0.1"]
    options += ["--out", str(folder / "study")] if "--out" not in more else []
    return [*options, *(more or ("--methods", "cross_entropy"))]


# The grids.


def test_the_papers_end_to_end_grid_is_ten_runs_for_each_of_18_pairs() -> None:
    configurations = plan("paper-train").configurations
    pairs = Counter((c.key.dataset, c.key.model) for c in configurations)
    assert set(pairs.values()) == {10}
    assert len(pairs) == 18
    for dataset, model in pairs:
        results = [
            (c.key.method, c.key.dilution, c.key.pairing, *c.rates)
            for c in configurations
            if (c.key.dataset, c.key.model) == (dataset, model)
        ]
        runs = [
            (method, *run)
            for method, diluted in (("hace", True), ("cross_entropy", False))
            for run in fixed_runs(diluted, RECIPES[model].lr)
        ]
        assert sorted(map(str, results)) == sorted(map(str, runs))
    assert all(c.search() == [] and c.final(c.candidates[0]).evaluate == "test" for c in configurations)


@pytest.mark.parametrize(
    ("name", "configurations"),
    [
        ("paper-fgvc", 60),
        ("paper-family", 10),
        ("paper-nabirds", 216),
        ("paper-probe", 144),
        ("fair-probe", 165),
    ],
)
def test_sizes_of_other_grids(name: str, configurations: int) -> None:
    keys = [c.key for c in plan(name).configurations]
    assert len(keys) == len(set(keys)) == configurations


def test_studies_share_their_runs() -> None:
    whole = {c.final(c.candidates[0]).identity("data") for c in plan("paper-train").configurations}
    for part in ("paper-fgvc", "paper-family"):
        assert {c.final(c.candidates[0]).identity("data") for c in plan(part).configurations} <= whole


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, preset in ALL.items() if preset.protocol == "fair"])
def test_a_fair_study_gives_every_method_the_same_rates_and_seeds(name: str) -> None:
    configurations = make_plan(
        find_presets(name, ALL), Choices(features={"nabirds": "f.npz"}, data_root={"nabirds": "data"})
    ).configurations
    by_model: dict[tuple[str, str], set] = {}
    for configuration in configurations:
        factor = METHODS[configuration.key.method].rate_factor  # a power of 2: bits stay
        rates = tuple(rate / factor for rate in configuration.rates)
        by_model.setdefault((configuration.key.dataset, configuration.key.model), set()).add(rates)
        assert all(c.evaluate == "val" and c.validation == 0.1 and not c.keep for c in configuration.search())  # type: ignore[attr-defined]
        assert configuration.final({"lr": 1.0}).validation == 0
    assert all(len(rates) == 1 for rates in by_model.values())
    seeds = {
        m: {c.key.seed for c in configurations if c.key.method == m}
        for m in {c.key.method for c in configurations}
    }
    assert all(
        result == set(range(ALL[name].seeds_on(configurations[0].key.dataset))) for result in seeds.values()
    )
    if ALL[name].kind == "probe":
        decays = len(ALL[name].decays) or 1
        grid = tuple(rate for rate in ALL[name].rates for _ in range(decays))
        assert {rates for result in by_model.values() for rates in result} == {grid}
        assert decays > 1 or name == "animals" or grid == FAIR_RATES  # which has less time


@pytest.mark.parametrize("name", [name for name, preset in ALL.items() if preset.protocol == "fair"])
def test_rates_are_in_steps_of_two(name: str) -> None:
    """Steps of four moved a headline by half a point: the best rate of one method fell between two of the grid."""
    rates = ALL[name].rates
    assert [b / a for a, b in pairwise(rates)] == [2.0] * (len(rates) - 1)


def test_a_loss_has_its_cells_dilution_and_the_shuffled_tree_its_seed() -> None:
    for configuration in plan("controls").configurations:
        if METHODS[configuration.key.method].diluted:
            assert configuration.config.loss.options["dilution"] == configuration.key.dilution
        assert configuration.config.data.shuffle == (
            configuration.key.seed if configuration.key.method == "hace_shuffled" else None
        )


def test_methods_with_a_head_of_their_own_start_at_random() -> None:
    """A hyperbolic head cannot start from zeros; all else is as for the other methods."""
    result = plan(
        "methods", settings={"start": "zeros"}, methods=("hace", "hace_poincare", "class_embedding")
    ).configurations
    plain, bent, cosine = (
        next(c for c in result if c.key.method == m) for m in ("hace", "hace_poincare", "class_embedding")
    )
    assert (plain.config.start, bent.config.start) == ("zeros", "auto")  # type: ignore[attr-defined]
    assert (plain.config.head.ball, bent.config.head.ball) == (None, PoincareBall())
    assert plain.rates == bent.rates == tuple(16 * rate for rate in cosine.rates)


def test_choices_shrink_a_study() -> None:
    result = plan(
        "fair-probe", only={"method": "hace,cross_entropy", "dataset": "cifar100"}, seeds=2
    ).configurations
    assert {(c.key.method, c.key.dataset, c.key.seed) for c in result} == {
        (m, "cifar100", s) for m in ("hace", "cross_entropy") for s in (0, 1)
    }
    for scale, epochs, warmup in ((0.1, 30, 3), (0.001, 1, 0)):
        config = plan("paper-train", epochs_scale=scale, only={"model": "vit_base"}).configurations[0].config
        assert isinstance(config, TrainConfig)
        assert (config.epochs, config.warmup_epochs) == (epochs, warmup)


def test_data_of_ones_own_need_an_option_only() -> None:
    result = make_plan(
        find_presets("fair-probe", ALL), Choices(features={"birds": "b.npz"}, hierarchy={"birds": "t.csv"})
    )
    assert {c.key.dataset for c in result.configurations} == {"birds"}
    assert result.missing == tuple(f"--features {name}=" for name in PAPER_DATASETS)
    assert result.data["birds", "probe"].name == "features"
    images = make_plan(
        find_presets("fair-end-to-end", ALL),
        Choices(**BIRDS, only={"model": "resnet18"}),
    )
    assert images.data["birds", "train"].name == "folders"
    assert images.configurations[0].config.epochs == RECIPES["resnet18"].epochs["nabirds"]


def test_options_go_to_the_data_that_have_them() -> None:
    images = {"birds": "/", "plants": "/", "cifar100": "data"}
    options = {"birds.test": 0.1, "test": 0.2, "label_kind": "id", "plants.allow_empty": True}
    place = Choices(features={"birds": "b.npz"}, data_root=images, options=options)
    both = make_plan(find_presets(["fair-probe", "fair-end-to-end"], ALL), place)
    assert {key: config.options for key, config in both.data.items()} == {
        ("birds", "probe"): {"label_kind": "id"},
        ("birds", "train"): {"test": 0.1},
        ("plants", "train"): {"test": 0.2, "allow_empty": True},
        ("cifar100", "train"): {},
    }
    said = " --data-root birds=PATH --data-root plants=PATH --data-root cifar100=PATH"
    said += " -o birds.test=0.1 -o test=0.2 -o label_kind=id -o plants.allow_empty=true"
    assert said in place.command("fair-end-to-end")


def test_the_command_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "birds.csv").touch()
    choices = Choices(
        features={"birds": "f.npz"},
        hierarchy={"birds": str(tmp_path / "birds.csv")},
        only={"method": "hace,cross_entropy"},
        rates=(0.5, 2),
        widen=0,
        search_once=True,
        settings={"batch_size": 64},
        coarse_to="the genus",
    )
    assert choices.command("fair-probe controls") == (
        "hace study fair-probe controls --features birds=PATH --hierarchy birds=PATH --only method=hace,cross_entropy "
        "--rates 0.5,2 --widen 0 --search-once --set batch_size=64 --coarse-to 'the genus' --out STUDY"
    )
    assert " --hierarchy birds=cifar100 " in replace(choices, hierarchy={"birds": "cifar100"}).command(
        "animals"
    )


def test_options_of_the_data_are_part_of_a_runs_id() -> None:
    def first(options: dict) -> str:
        place = Choices(**BIRDS, options=options)
        return (
            make_plan(find_presets("fair-end-to-end", ALL), place).configurations[0].config.identity("0" * 64)
        )

    assert first({"test": 0.2}) == first({"birds.test": 0.2})
    assert len({first({}), first({"test": 0.2}), first({"test": 0.3})}) == 3


def test_any_model_of_timm() -> None:
    choices = Choices(**BIRDS, models=("test_vit", "resnet50"), methods=("cross_entropy",), seeds=1)
    first, second = make_plan(find_presets("mixed-labels-end-to-end", ALL), choices).configurations[::4]
    assert (first.key.model, first.config.model, second.config.model) == ("test_vit", "test_vit", "resnet50")
    recipe = RECIPES["resnet18"]  # of a model that the paper does not have
    assert (first.config.lr, first.config.optimizer) == (recipe.lr, recipe.optimizer)
    assert "--models test_vit,resnet50" in choices.command("mixed-labels-end-to-end")


def test_several_presets_make_one_study() -> None:
    names = ["paper-probe", "fair-probe", "controls", "paper-fgvc"]
    together = plan(names)
    assert together.preset == "paper-probe fair-probe controls paper-fgvc"
    keys = [configuration.key for configuration in together.configurations]
    assert len(keys) == len(set(keys))
    assert set(keys) == {configuration.key for name in names for configuration in plan(name).configurations}
    assert ("aircraft", "train") in together.data
    assert ("aircraft", "probe") in together.data


def test_any_setting_of_all_runs() -> None:
    configurations = plan("paper-fgvc", settings={"batch_size": 64, "precision": "bf16"}).configurations
    assert {(c.config.batch_size, getattr(c.config, "precision")) for c in configurations} == {(64, "bf16")}  # noqa: B009


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("fair-prob", {}, r"A study must be one of .*\. Got 'fair-prob'\. Did you mean 'fair-probe'"),
        (
            "fair-probe",
            {"methods": ("hase",)},
            r"A method must be one of .*\. Got 'hase'\. Did you mean 'hace'",
        ),
        (
            "fair-probe",
            {"only": {"metod": "cross_entropy"}},
            r"only must name one of .* Got 'metod'\. Did you mean 'method'",
        ),
        (
            "fair-probe",
            {"only": {"method": "cross_entrop"}},
            r"only: method must be among .* Got 'cross_entrop'\. Did you mean 'cross_entropy'",
        ),
        ("paper-probe", {"rates": (1.0,)}, "rates must come with a fair study: .* Got paper-probe."),
        ("fair-probe", {"rates": (1.0, -1.0)}, r"rates must be more than 0. Got \(1.0, -1.0\)"),
        (
            "fair-probe",
            {"settings": {"lr": 1}},
            "settings: lr is set by the study grid. Use rates, base_rate or only.",
        ),
        (
            "fair-probe",
            {"settings": {"bath_size": 1}},
            "bath_size is not a setting.* Did you mean 'batch_size'",
        ),
        (
            "fair-end-to-end",
            {"settings": {"model": "resnet50"}},
            "settings: model is set by the .* Use models.",
        ),
        (
            "fair-end-to-end",
            {"models": ("resnet5",)},
            "a name of timm's. Got 'resnet5'. Did you mean 'resnet50'",
        ),
        (
            "fair-probe",
            {"models": ("resnet50",)},
            "models must come with paper-train, fair-end-to-end or .* Got fair-probe.",
        ),
        ("fair-probe", {"seeds": 0}, "seeds must be at least 1. Got 0"),
        ("fair-probe", {"epochs_scale": 0.0}, "epochs_scale must be more than 0. Got 0"),
        (
            "fair-probe",
            {"features": {}},
            "fair-probe has no data. Give features of cifar100, .* or of your own data: `--features NAME=PATH`",
        ),
        (
            "fair-probe",
            {"features": {"a": "f"}, "hierarchy": {"b": "h"}},
            "hierarchy must name data that the study has. Got 'b'.* Give `--features b=PATH`",
        ),
        (
            "fair-end-to-end",
            {**BIRDS, "options": {"bird.test": 0.2}},
            "options must name data that the study has. Got 'bird.test'. Did you mean 'birds'",
        ),
        (
            "animals",
            {"features": {}, "options": {"classes": 12}},
            "options must name data that the study has. Got 'classes'. Give `--features NAME=PATH`.",
        ),
        (
            "fair-end-to-end",
            {**BIRDS, "options": {"tset": 0.2}},
            "Got 'tset': birds has allow_empty, test, pixels. Did you mean 'test'",
        ),
        (
            "fair-probe",
            {"features": {"birds": "b.npz"}, "options": {"test": 0.2}},
            "options must be options of the study's data. Got 'test': birds has label_kind, allow_empty.",
        ),
        (
            "fair-end-to-end",
            {"settings": {"data.options.test": 0.2}},
            "settings: data.options.test is set by the study grid. Use features, .* and options.",
        ),
    ],
)
def test_choices_that_do_not_fit(name: str, choices: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(find_presets(name, ALL), Choices(**{**SOMEWHERE, **choices}))


# Studies on the disk.


def test_a_study_is_done_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert "3 of 3 runs are done" in out
    assert "Its page: hace report " in err
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("study/**/*") if p.name != ".lock"}
    assert main(small(tmp_path)) == 0
    assert {p: p.stat().st_mtime_ns for p in times} == times
    records = read_study(tmp_path / "study").records()
    assert [(r.stage, r.status) for r in records] == [
        ("search", "finished"),
        ("search", "finished"),
        ("final", "finished"),
    ]
    best = max(records[:2], key=lambda r: (r.top1, -r.lr))
    assert records[2].lr == best.lr
    assert records[2].run is not None
    assert records[2].run.config.evaluate == "test"


def test_two_studies_share_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ("--runs", str(tmp_path / "shared"))
    assert main(small(tmp_path, "--methods", "cross_entropy", *runs)) == 0
    before = outcomes(tmp_path / "shared")
    other = ("--out", str(tmp_path / "other"), "--dry-run")
    assert main(small(tmp_path, "--methods", "cross_entropy,hxe_0.2", *runs, *other)) == 0
    assert "2 configurations, 6 runs, 3 done" in capsys.readouterr().out
    assert main(small(tmp_path, "--methods", "cross_entropy,hxe_0.2", *runs, *other[:2])) == 0
    assert before.items() <= outcomes(tmp_path / "shared").items()
    assert len(outcomes(tmp_path / "shared")) == 6


def test_a_changed_study_is_refused_with_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(small(tmp_path)) == 0
    before = outcomes(tmp_path / "study" / "runs")
    assert main(small(tmp_path, "--methods", "cross_entropy,hxe_0.2")) == 2
    said = capsys.readouterr().err
    assert "choices.methods: ['cross_entropy'] -> ['cross_entropy', 'hxe_0.2']" in said
    assert "new configurations: 1, the first is plants features hxe_0.2, seed 0" in said
    assert "Give another folder, or update (--update)" in said
    assert main(small(tmp_path, "--methods", "cross_entropy,hxe_0.2", "--update")) == 0
    assert before.items() <= outcomes(tmp_path / "study" / "runs").items()
    assert len(read_study(tmp_path / "study").configurations) == 2


def test_changed_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small(tmp_path)) == 0
    write_features(tmp_path, seed=1)
    assert main(small(tmp_path)) == 2
    assert "data plants: fingerprint" in capsys.readouterr().err


def test_moved_data_and_a_moved_study_are_the_same(tmp_path: Path) -> None:
    assert main(small(tmp_path)) == 0
    before = outcomes(tmp_path / "study" / "runs")
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("plants.npz", "plants.csv", "study"):
        (tmp_path / name).rename(moved / name)
    run = read_study(moved / "study").records()[0].run
    assert run is not None
    shutil.rmtree(run.folder)  # what is missing is made from the data where they are now
    assert main(small(moved)) == 0
    assert outcomes(moved / "study" / "runs") == before


def test_choices_that_lead_to_the_same_grid_are_the_same(tmp_path: Path) -> None:
    assert main(small(tmp_path, "--methods", "cross_entropy,hxe_0.2", "--only", "method=cross_entropy")) == 0
    document = (tmp_path / "study" / "study.json").read_bytes()
    assert main(small(tmp_path, "--methods", "cross_entropy")) == 0
    assert (tmp_path / "study" / "study.json").read_bytes() == document


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = ("--features", f"cifar100={tmp_path / 'nothing.npz'}", "--hierarchy", "cifar100=cifar100")
    assert main(small(tmp_path, "--methods", "cross_entropy,hace", *missing, "--dry-run")) == 0
    out = capsys.readouterr().out
    assert not (tmp_path / "study").exists()
    assert "cifar100: not counted, cannot be used: " in out
    assert "2 configurations, 6 runs, 0 done; the rest takes at least 0:00:0" in out
    assert "rough: by rule of thumb" in out
    assert (
        main(small(tmp_path, "--methods", "cross_entropy,hace", *missing)) == 2
    )  # without the data it is not started
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("--executor", "rya"),
            "--executor must be one of 'local', 'ray', 'slurm'. Got 'rya'. Did you mean 'ray'?",
        ),
        (("--retries", "-1"), "retries must be at least 0. Got -1."),
        (("--workers", "-1"), "workers must be 0 or more. Got -1."),
        (("--threads", "0"), "threads must be at least 1. Got 0."),
        (("--rates", "1,x"), "--rates must be a number, or several with commas. Got 'x'."),
        (("--only", "method"), "--only must be NAME=VALUE. Got 'method'."),
        (("--features", "plants=x"), "--features must name 'plants' once"),
        (("--out", "{}"), "out must be a study, a new or an empty folder."),
    ],
)
def test_options_that_do_not_fit(
    more: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(small(tmp_path, *(m.format(tmp_path) for m in more))) == 2
    assert message in capsys.readouterr().err


def test_no_study_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 2
    assert "A study must have a name. `hace study --list` shows them." in capsys.readouterr().err
    with pytest.raises(FormatError, match=r"must be a study. Got a folder without study\.json"):
        read_study(tmp_path)
    with pytest.raises(FormatError, match=r"nowhere must be a study. Got no such folder"):
        read_study(tmp_path / "nowhere")


def test_the_list_names_every_study_and_assumption(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{out}" for name in ALL)
    assert all(assumption in out for assumption in ASSUMPTIONS)


def test_the_datas_own_validation_split_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features, _ = write_features(tmp_path)
    arrays = dict(np.load(features))
    fifth = np.arange(len(arrays["y"])) % 5 == 0
    arrays["split"] = np.where((arrays["split"] == "train") & fifth, "val", arrays["split"])
    np.savez(features, **arrays)
    assert main(small(tmp_path, "--methods", "cross_entropy")) == 0
    held = int((arrays["split"] == "val").sum())
    words = f"plants: its validation split ({held} samples) chooses under the fair protocol"
    assert words in capsys.readouterr().err
    study = read_study(tmp_path / "study")
    records = study.records()
    *searches, final = records
    samples = int((arrays["split"] == "train").sum())
    assert [r.run.config.validation for r in searches if r.run] == ["split", "split"]
    assert [r.run.result["train"]["samples"] for r in searches if r.run] == [samples, samples]  # type: ignore[index]
    assert final.run is not None
    assert final.run.config.validation == 0
    assert "Rates chosen on the data's own validation split." in report_text(records)
    assert ("rates chosen on", "the data's own validation split") in facts(records, about_study(study))


def test_runs_and_cells_name_the_model_behind_a_features_file(tmp_path: Path) -> None:
    features, _ = write_features(tmp_path)
    np.savez(features, **np.load(features), model=np.array("vit_large_patch14_dinov2.lvd142m"))
    assert main(small(tmp_path)) == 0
    records = read_study(tmp_path / "study").records()
    assert {r.key.model for r in records} == {"dinov2_large"}  # the paper's configurations
    assert {r.run.about["data"]["model"] for r in records if r.run} == {"vit_large_patch14_dinov2.lvd142m"}


# Failures.


def obstructed(folder: Path, stage: str) -> Path:
    """Do a study, then put something else where one of its runs was."""
    assert main(small(folder)) == 0
    run = next(r.run for r in read_study(folder / "study").records() if r.stage == stage)
    assert run is not None
    for file in run.folder.iterdir():
        file.unlink()
    (run.folder / "note.txt").write_text("not a run")
    return run.folder / "note.txt"


def test_a_run_that_fails_is_retried_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = obstructed(tmp_path, "search")
    with pytest.raises(SystemExit) as stopped:
        main(small(tmp_path))
    assert stopped.value.code == 1
    printed, said = capsys.readouterr()
    assert "1 of 3 runs are done, 2 failed: " in printed
    assert "failed after 2 attempts: plants features cross_entropy, seed 0, rate 1: " in said
    failures = json.loads((tmp_path / "study" / "failures.json").read_text())
    assert failures[note.parent.name]["attempts"] == 2
    assert failures[note.parent.name]["configuration"]["method"] == "cross_entropy"
    failed, other, final = read_study(tmp_path / "study").records()
    assert failed.status == "failed"
    assert "It holds other files: note.txt" in failed.error
    assert other.status == "finished"
    assert final.status == "failed"  # no rate can be chosen fairly from a part of the search
    assert "1 of the 2 runs that choose its rate failed, at 1: " in final.error
    note.unlink()
    assert main(small(tmp_path)) == 0
    assert not (tmp_path / "study" / "failures.json").exists()
    assert [r.status for r in read_study(tmp_path / "study").records()] == ["finished"] * 3


@pytest.mark.slow
def test_the_rest_of_a_pass_goes_on(tmp_path: Path) -> None:
    methods = ("--methods", "cross_entropy,cross_entropy_smooth,hxe_0.2", "--retries", "0")
    assert main(small(tmp_path, *methods)) == 0
    before = outcomes(tmp_path / "study" / "runs")
    note = next(r.run.folder for r in read_study(tmp_path / "study").records() if r.run) / "note.txt"
    for folder in (tmp_path / "study" / "runs").iterdir():
        for file in folder.iterdir():
            file.unlink()
    note.write_text("not a run")
    with pytest.raises(SystemExit):
        main(small(tmp_path, *methods))
    records = read_study(tmp_path / "study").records()
    assert Counter(r.status for r in records) == {"finished": 7, "failed": 2}
    assert all("It holds other files: note.txt" in r.error for r in records if r.status == "failed")
    note.unlink()
    assert main(small(tmp_path, *methods)) == 0
    assert outcomes(tmp_path / "study" / "runs") == before  # alone or in a pass, the same bytes


@pytest.mark.slow
def test_every_method_has_the_same_bytes_alone_and_in_a_pass(tmp_path: Path) -> None:
    """Which runs share a pass depends on kills, failures and executors."""
    features, hierarchy = write_features(tmp_path)
    data = DataConfig("features", root=str(features), hierarchy=str(hierarchy))
    losses = {method.loss.name: method.loss for method in METHODS.values()}
    configs = [ProbeConfig(data=data, loss=loss, lr=2.0, epochs=2) for loss in losses.values()]
    probe(configs, tmp_path / "together")
    for config in configs:
        probe([config], tmp_path / "alone")
    assert outcomes(tmp_path / "together") == outcomes(tmp_path / "alone")


def test_a_damaged_run_is_reported_and_made_again(tmp_path: Path) -> None:
    assert main(small(tmp_path)) == 0
    whole = outcomes(tmp_path / "study" / "runs")
    run = read_study(tmp_path / "study").records()[2].run
    assert run is not None
    for name, content in (("result.json", b"{"), ("predictions.safetensors", bytes(80))):
        (run.folder / name).write_bytes(content)
        record = read_study(tmp_path / "study").records()[2]
        assert record.status == "failed"
        assert str(run.folder / name) in record.error
        assert main(small(tmp_path)) == 0
        assert outcomes(tmp_path / "study" / "runs") == whole


def test_no_rate_is_chosen_where_all_have_diverged(tmp_path: Path) -> None:
    (configuration,) = make_plan(
        find_presets("methods"), Choices(only={"method": "cross_entropy"}, rates=(1.0, 2.0), seeds=1)
    ).configurations
    searched = []
    for config in configuration.search():
        assert isinstance(config, ProbeConfig)
        run = make_run(tmp_path, animals(), config, "animals", 1.0, status="diverged")
        searched.append(Record(configuration.key, "search", config.lr, run))
    assert [record.status for record in searched] == ["diverged", "diverged"]
    candidate, why = choose(configuration, searched)
    assert candidate is None
    assert "No rate can be chosen: all of 1, 2 have diverged" in why


def test_one_process_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small(tmp_path)) == 0
    before = (tmp_path / "study" / "study.json").read_bytes()
    with only_process(tmp_path / "study"):
        assert main(small(tmp_path)) == 2
        assert main(small(tmp_path, "--methods", "hce", "--update")) == 2
    assert "Another process is at work" in capsys.readouterr().err
    assert (tmp_path / "study" / "study.json").read_bytes() == before


# For people.


def test_lines_now_and_then() -> None:
    now = 0.0
    stream = StringIO()
    with watching(stream, lambda: now) as watch:
        tally = Tally(total=10)
        watch(tally)
        tally.done = 1
        watch(tally)
        now = 30.0
        tally.done, tally.left = 5, "at least 0:00:30 left"
        tally.notes.append("something")
        watch(tally)
    assert stream.getvalue().splitlines() == [
        "study: 0 of 10 runs are done",
        "study: something",
        "study: 5 of 10 runs are done, at least 0:00:30 left",
    ]


def seconds_said(text: str) -> tuple[str, float]:
    """The word and the seconds of "at least 0:01:02 left"."""
    *words, clock, _ = text.split()
    return " ".join(words), sum(float(x) * 60**i for i, x in enumerate(reversed(clock.split(":"))))


@pytest.mark.parametrize("seed", range(20))
def test_the_time_left_guarantees_no_more_than_it_knows(seed: int) -> None:
    """Searches that share passes come first and are cheap; final runs alone, and dear: 3:42 of 14:01 was a mean over both."""
    rng = random.Random(seed)
    workers, clock, said, stages = rng.choice([1, 2, 4]), 0.0, [], ("search", "final")
    cost = {
        (d, stage): rng.uniform(*(1, 3) if stage == "search" else (4, 40)) for d in "ab" for stage in stages
    }
    runs = [
        (
            Record(ConfigurationKey("fair", d, "m", "cross_entropy", None, None, seed), stage, 1.0, None),
            cost[d, stage],
        )
        for stage in stages
        for d in "ab"
        for seed in range(24)
    ]
    jobs, step = [], 0
    while step < len(runs):  # up to eight searches in a pass, every final run alone
        size = 8 if runs[step][0].stage == "search" else 1
        jobs.append(runs[step : step + size])
        step += size
    pace, waiting, busy = Pace(workers), list(runs), []
    while jobs or busy:
        while jobs and len(busy) < workers:
            job = jobs.pop(0)
            busy.append((clock, clock + sum(seconds for _, seconds in job) * rng.uniform(0.9, 1.1), job))
        began, clock, job = min(busy, key=lambda at: at[1])
        busy = [at for at in busy if at[2] is not job]
        waiting = [run for run in waiting if run not in job]
        pace.ended([record for record, _ in job], clock - began)
        said.append((clock, pace.left(record for record, _ in waiting)))
    assert all(not text for _, text in said[: workers - 1])  # too early to tell
    assert said[-1][1] == ""  # nothing is left
    spoken = [(clock - at, *seconds_said(text)) for at, text in said if text]
    assert {word for _, word, _ in spoken} == {"at least", "about"}
    for left, word, seconds in spoken:  # but for the jobs under way, which have begun already
        under_way = 1.1 * max(cost.values())
        assert seconds <= 1.15 * left + under_way, (word, left, seconds)
        if word == "about":
            assert seconds >= 0.85 * left - under_way, (left, seconds)


def test_images_and_features_of_one_data_set_in_one_study(tmp_path: Path) -> None:
    """Their fingerprints differ, and each kind of runs has its own."""
    features, hierarchy = write_features(tmp_path)
    for split in ("train", "test"):
        for name in PATHS:
            write_image(tmp_path / "images" / split / name / f"{split}.png")
    choices = Choices(
        features={"plants": str(features)},
        data_root={"plants": str(tmp_path / "images")},
        hierarchy={"plants": str(hierarchy)},
        only={"method": "cross_entropy", "model": "features,resnet18"},
        seeds=1,
    )
    both = make_plan(find_presets(["fair-probe", "fair-end-to-end"], ALL), choices)
    study = start_study(tmp_path / "study", both, choices, Survey(both.data))
    prints = {kind: study.sets["plants", kind]["fingerprint"] for kind in ("probe", "train")}
    assert prints["probe"] != prints["train"]
    for configuration in study.configurations:
        assert study.identity(configuration, configuration.config) == configuration.config.identity(
            prints[configuration.config.kind]
        )
    assert start_study(tmp_path / "study", both, choices, Survey(both.data)).document == study.document
    assert {r.status for r in study.records()} == {"not run"}


@pytest.mark.slow
def test_end_to_end_on_images_of_ones_own(tmp_path: Path) -> None:
    for i, (split, name) in enumerate(
        (s, n) for s in ("train", "test") for n in ("dog/husky", "dog/pug", "cat/tabby")
    ):
        for k in range(6 if split == "train" else 1):
            write_image(tmp_path / "pets" / split / name / f"{k}.png", colour=(40 * i, 40 * k, 90))
    options = ["study", "fair-end-to-end", "--data-root", f"pets={tmp_path / 'pets'}", "--seeds", "1"]
    options += [
        "--only",
        "model=resnet18",
        "--only",
        "method=cross_entropy",
        "--rates",
        "0.05,0.1",
        "--epochs-scale",
        "0.001",
    ]
    options += ["--set", "image_size=32"]
    assert main([*options, "--out", str(tmp_path / "study")]) == 0
    records = read_study(tmp_path / "study").records()
    assert [(r.key.dataset, r.key.model, r.status) for r in records] == [("pets", "resnet18", "finished")] * 3
    assert not list(tmp_path.glob("study/runs/*/checkpoint*"))


@pytest.mark.slow
def test_end_to_end_on_images_without_a_test_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, name in enumerate(("dog/husky", "dog/pug", "cat/tabby")):
        for k in range(10):
            write_image(tmp_path / "pets" / name / f"{k}.png", colour=(40 * i, 20 * k, 90))
    options = ["study", "fair-end-to-end", "--data-root", f"pets={tmp_path / 'pets'}", "--seeds", "1"]
    options += [
        "--models",
        "test_vit",
        "--methods",
        "cross_entropy",
        "--rates",
        "0.05",
        "--epochs-scale",
        "0.001",
    ]
    options += ["--set", "image_size=32", "--out", str(tmp_path / "study")]
    assert main(options) == 2
    assert "It has train. Give some samples to a split 'test': " in capsys.readouterr().err
    assert main([*options, "-o", "test=0.2"]) == 0
    study = read_study(tmp_path / "study")
    assert study.sets["pets", "train"]["samples"] == {"train": 24, "test": 6}
    (record,) = study.records()
    assert (record.status, record.run.config.data.options) == ("finished", {"test": 0.2})
    again = ["train", "--config", str(record.run.folder / "config.json"), "--out", str(tmp_path / "again")]
    assert main(again) == 0
    assert f"run {record.run.id} is in" in capsys.readouterr().out
    assert main([*options, "-o", "pets.test=0.2"]) == 0  # the same, in other words
    assert main([*options, "-o", "test=0.3"]) == 2
    assert "data.options.test: 0.2 -> 0.3" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "study"), "--out", str(tmp_path / "page")]) == 0
    assert "-o test=0.2" in (tmp_path / "page" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_dry_run_prices_data_that_are_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A researcher wants to know what a study costs before fetching its data."""
    assert main(["study", "paper-train", "paper-probe", "--out", str(tmp_path / "s"), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "--data-root nabirds=" in err
    assert "--features aircraft=" in err
    rows = {tuple(line.split()[:3]): line.split() for line in out.splitlines()}
    assert rows["cifar100", "resnet18", "hace"][3:5] == ["6", "0"]
    assert rows["cifar100", "resnet18", "cross_entropy"][3:5] == ["4", "0"]
    assert rows["nabirds", "dinov2_large", "hace_soft30"][3:5] == ["6", "0"]
    hours = {model: seconds(rows["nabirds", model, "hace"][5]) for model in ("resnet18", "vit_base")}
    assert hours["vit_base"] / hours["resnet18"] == pytest.approx(300 / 750 * 17.6 / 1.81, rel=0.02)
    assert " 324 runs, 0 done" in out  # 18 pairs of ten, and 3 x (4 x 6 + 6 x 4) probes
    assert not (tmp_path / "s").exists()
    with pytest.raises(ConfigError, match="has no data"):
        make_plan(find_presets("paper-train", ALL))
    with pytest.raises(ConfigError, match=r"A study must have at least one run\. Got none\."):
        make_plan({})


def test_the_papers_experiment_on_your_own_images_with_one_model() -> None:
    place = Choices(data_root={"birds": "photos"}, models=("resnet18",), settings={"image_size": 64})
    configurations = make_plan(find_presets("paper-train", ALL), place).configurations
    assert len(configurations) == 10
    assert {c.key.model for c in configurations} == {"resnet18"}
    assert {c.config.epochs for c in configurations} == {750}  # those of NABirds
    train = configurations[0].config
    speeds = [seconds_a_sample(replace(train, device=device), {}) for device in ("cpu", "cuda")]
    assert 1 / speeds[0] == pytest.approx(300, rel=0.1)  # images per second of one core
    assert speeds[0] / speeds[1] > 100
    assert seconds_a_sample(replace(train, image_size=32), {}) > seconds_a_sample(train, {})


def seconds(text: str) -> int:
    hours, minutes, rest = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + rest


@pytest.mark.slow
def test_features_without_a_test_split_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features, hierarchy = write_features(tmp_path)
    arrays = dict(np.load(features))
    np.savez(features, X=arrays["X"], y=arrays["y"])
    words = ["--features", f"plants={features}", "--hierarchy", f"plants={hierarchy}"]
    assert main(["study", "fair-probe", *words, "--out", str(tmp_path / "study")]) == 2
    said = capsys.readouterr().err
    assert "plants has no split 'test'. It has train. Give some samples to a split 'test'" in said
    assert not (tmp_path / "study").exists()


def test_a_changed_study_is_reported_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small(tmp_path)) == 0
    assert main(small(tmp_path, "--methods", "cross_entropy", "--set", "batch_size=8")) == 2
    said = capsys.readouterr().err
    assert "plants features cross_entropy, seed 0: config.batch_size: 256 -> 8" in said
