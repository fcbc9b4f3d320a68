"""Options: what they become, which belong together, and what is said about wrong ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest

from hace.cli import main
from hace.cli.engine import With, Without
from hace.cli.entry import COMMANDS, application
from hace.lab.runs.config import ProbeConfig, TrainConfig
from hace.study import Study
from tests.cli.parsing import given_to


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("--epochs 2 --batch-size 8 --lr 1e-3", {"epochs": 2, "batch_size": 8, "lr": 0.001}),
        ("--epochs=2 --batch-size=8", {"epochs": 2, "batch_size": 8}),
        ("--data cifar100 --data-root 010", {"data": {"name": "cifar100", "root": "010"}}),
        ("--labels.to 2 --labels.drop", {"data": {"labels": {"to": 2, "drop": True}}}),
        ("--labels.to genus --no-keep", {"data": {"labels": {"to": "genus"}}, "keep": False}),
        ("--tensorboard --no-channels-last --lr -1", {"tensorboard": True, "channels_last": False, "lr": -1}),
        ("--no-root-node --validation split", {"data": {"root_node": False}, "validation": "split"}),
        ("--workers none --seed 10", {"workers": None, "seed": 10}),
        ("--epochs 010 --model 1e3", {"epochs": 10, "model": "1e3"}),
    ],
)
def test_settings_of_a_training(line: str, given: dict[str, Any]) -> None:
    assert given_to("train", line)["given"] == given


def test_lists_take_commas_and_options_of_the_command_are_apart() -> None:
    values = given_to(
        "probe", "--features f.npz --lr 4,8 --loss hace:dilution=0.3,hxe --head poincare --seeds 2"
    )
    assert (values["lr"], values["loss"], values["seeds"]) == ((4.0, 8.0), ("hace:dilution=0.3", "hxe"), 2)
    assert values["given"] == {"data": {"root": "f.npz"}, "head": {"name": "poincare"}}
    values = given_to(
        "study",
        "animals controls --rates 1,2 --methods hace:level_weights=[1,2],cross_entropy --gpus 1 --executor ray",
    )
    assert values["preset"] == ("animals", "controls")
    assert values["choices"] == {
        "rates": (1.0, 2.0),
        "methods": ("hace:level_weights=[1,2]", "cross_entropy"),
    }
    assert values["resources"] == {"gpus": 1.0}
    values = given_to("study", "demo --executor slurm --setup 'module load a,b' --setup 'export X=1'")
    assert values["resources"] == {"setup": ("module load a,b", "export X=1")}


def test_a_path_without_a_name_is_named_after_its_file() -> None:
    words = "fair-probe --features x/birds.npz --features cars=c.npz --hierarchy cars=t.csv"
    words += " --set batch_size=3 -o birds.test=0.2"
    study = Study(**given_to("study", words, fields=True))
    assert study.features == {"birds": "x/birds.npz", "cars": "c.npz"}
    assert (study.hierarchy, study.settings, study.options) == (
        {"cars": "t.csv"},
        {"batch_size": 3},
        {"birds.test": 0.2},
    )
    one = Study(**given_to("study", "fair-probe --features birds.npz --hierarchy t.csv", fields=True))
    assert one.hierarchy == {"birds": "t.csv"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --epoch-count=3", "'--epoch-count' is not an option of hace train."),
        (
            "train epochs=2",
            "'epochs=2' is one argument too many for hace train. Options are written as --epochs 2.",
        ),
        ("train --epochs", "--epochs must have a value."),
        (
            "probe --data synthetic-features --lr 4 8",
            "'8' is one argument too many for hace probe. Lists are written with commas.",
        ),
        ("train --lr 1 --lr 2", "--lr must be given once. Got it twice."),
        ("train --rate 3", "'--rate' is not an option of hace train. Did you mean '--lr'?"),
        ("train --print-confg", "Did you mean '--print-config'?"),
        ("train --epochs 1.5 --print-config", "--epochs must be an integer. Got '1.5'."),
        ("train --epochs 1:30 --print-config", "--epochs must be an integer. Got '1:30'."),
        ("train --lr nan --print-config", "--lr must be a number. Got 'nan'."),
        ("train --epochs 0 --lr -1 --print-config", "2 problems:"),
        (
            "train --precision fp8 --print-config",
            "precision must be one of 'fp32', 'bf16', 'fp16'. Got 'fp8'.",
        ),
        ("train --loss hacee --print-config", "Did you mean 'hace'"),
        ("probe --data synthetic-features --threads two", "--threads must be an integer. Got 'two'."),
        ("probe --data synthetic-features --threads 1.5", "--threads must be an integer. Got '1.5'."),
        (
            "probe --data synthetic-features --lr 4,x",
            "--lr must be a number, or several with commas. Got 'x'.",
        ),
        (
            "predict run x --to cvs",
            "'wildlife-insights', 'timelapse', 'label-studio', 'fiftyone'. Got 'cvs'. Did you mean 'csv'?",
        ),
        ("predict run x --to cvs", "Did you mean 'csv'?"),
        ("predict", "hace predict must have RUN."),
        ("predict run", "hace predict must have INPUTS"),
        ("predict run x --out ''", "--out must be a path. Got ''."),
        (
            "study animals --retires 2",
            "'--retires' is not an option of hace study. Did you mean '--retries' or",
        ),
        ("study animals --only cross_entropy", "--only must be NAME=VALUE. Got 'cross_entropy'."),
        ("study animals --only seed=1 --only seed=2", "--only must name 'seed' once. Got '1' and '2'."),
        ("study fair-probe --features a.npz --features b/a.npz", "--features must name 'a' once."),
        (
            "study x --features a.npz --data-root b --hierarchy t",
            "--hierarchy must be NAME=PATH unless there is one dataset.",
        ),
        (
            "features --data photos --out f",
            "--data must come with --model. Add one, such as --model resnet50.",
        ),
        (
            "features --data tests --model resnet18 --out f",
            "The dataset must be a name, such as 'folders'. Got the path 'tests'. "
            "Give --data folders --data-root tests (load_dataset('folders', 'tests')).",
        ),
        ("train --loss hacee --out o", "loss.name must be one of cross_entropy, "),
        ("serve nowhere", "nowhere does not exist. Give a run that `hace probe` or `hace train` wrote."),
        ("serve", "hace serve must have a RUN, or --demo. Got neither."),
        ("evaluate", "hace evaluate must have a RUN, --scores or --answers. Got none of them."),
        ("calibrate", "hace calibrate must have a RUN, or --hierarchy, --scores and --labels. Got neither."),
    ],
)
def test_what_is_said_about_wrong_options(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.strip("'") for word in line.split()]
    assert main(words) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.startswith("hace: ")
    assert output.out == ""


@pytest.mark.parametrize(
    "line",
    [
        "evaluate --answers a --labels l --hierarchy h --out o: --out must come with RUN or --scores",
        "evaluate --answers a --labels l --hierarchy h --threshold 0.5: --threshold must come with RUN or --scores",
        "evaluate --answers a --labels l --hierarchy h --compare nosuch.npy: --compare must come with RUN or --scores",
        "evaluate --answers a --labels l --hierarchy h --prior nosuch.csv: --prior must come with RUN or --scores",
        "evaluate --answers a --labels l --hierarchy h --kind probs: --kind must come with --scores or --compare",
        "evaluate --answers a --labels l --hierarchy h --scores s: --answers must come without --scores",
        "evaluate --answers a: --answers must come with --hierarchy",
        "evaluate run --answers a: --answers must come without RUN",
        "evaluate run --metrics leaves: --metrics must come with --scores",
        "evaluate run --raw-cells: --raw-cells must come with --out",
        "evaluate run --of answers: --of must come with --accuracy",
        "evaluate run --calibration c: --calibration must come with --scores or --accuracy",
        "evaluate run --sharing 1: --sharing must come with --outputs paths",
        "evaluate run --data-root d --samples s: --data-root must come without --samples",
        "calibrate run --scores s --labels l --hierarchy h: RUN must come without --scores",
        "calibrate --hierarchy h --scores s --labels l --split test: --split must come with RUN",
        "calibrate --hierarchy h --scores s --labels l --device cpu: --device must come with RUN",
        "predict run x --level 1 --threshold 0.5: --threshold must come without --level",
        "features --text t --encoder minilm --image-size 3 --out f: --image-size must come with --model",
        "features --text t --encoder minilm --data d --out f: --data must come without --text",
        "features --data d --model m --column c --out f: --column must come with --text",
        "hierarchy h --levels 3: --levels must come with --features",
        "hierarchy --classes c: --classes must come with --within",
        "hierarchy h --within t --classes c: FILE must come without --within",
        "hierarchy h --collapse: --collapse must come with --within",
        "data synthetic --skip-broken: --skip-broken must come with --check",
        "data synthetic --download: --download must come with --data-root",
        "export run --to onnx --runtime r: --runtime must come with --page",
        "export run --page p --out o: --out must come without --page",
        "serve run --demo: --demo must come without RUN",
        "study animals --hours 3: --hours must come with --executor slurm",
        "study animals --address x: --address must come with --executor ray",
        "study animals --executor local --gpus 1: --gpus must come without --executor local",
    ],
)
def test_an_option_that_the_others_make_meaningless_is_an_error(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = line.split(": ")
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err


def test_every_condition_names_an_option() -> None:
    """A misspelt one would hold never, or always."""
    known: set[str] = set()
    named: set[str] = set()
    for command in COMMANDS:
        for argument in application([command.name])[command.name].assemble_argument_collection():
            known |= set(argument.names)
            for rule in get_args(argument.field_info.annotation)[1:]:
                if isinstance(rule, (With, Without)):
                    named |= {condition.split()[0] for condition in rule.conditions}
    assert named
    assert named <= known


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_option_is_documented(name: str) -> None:
    arguments = application([name])[name].assemble_argument_collection(parse_docstring=True)
    assert [argument.name for argument in arguments if argument.show and not argument.parameter.help] == []


def kind_of(hint: Any) -> str:
    """What a user writes for an option: a number, text or nothing; lists are as their items."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(sorted({kind_of(part) for part in get_args(hint) if part is not NoneType}))
    if get_origin(hint) is tuple:
        return kind_of(get_args(hint)[0])
    return {int: "number", float: "number", bool: "flag"}.get(hint, "text")


def test_a_word_means_the_same_in_every_command() -> None:
    """Options of one name take one kind of value everywhere; `python tools/options.py` lists what each says about them."""
    kinds: dict[str, dict[str, str]] = {}
    for command in COMMANDS:
        for argument in application([command.name])[command.name].assemble_argument_collection():
            for word in argument.names if argument.show else ():
                kinds.setdefault(word, {})[command.name] = kind_of(argument.hint)
    assert {word: result for word, result in kinds.items() if len(set(result.values())) > 1} == {}


def test_settings_have_the_options_of_their_configuration() -> None:
    for config, name, apart in (
        (TrainConfig, "train", {"data", "loss", "head", "init_hash"}),
        (ProbeConfig, "probe", {"data", "loss", "head", "lr", "keep", "temperature"}),
    ):
        arguments = application([name])[name].assemble_argument_collection()
        known = {word for argument in arguments for word in argument.names}
        missing = {
            f
            for f in (field.name for field in dataclasses.fields(config))
            if f"--{f.replace('_', '-')}" not in known
        }
        assert missing <= apart


def test_a_fraction_is_no_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "z.npy", np.zeros((1, 100)))
    given = ["--hierarchy", "cifar100", "--scores", f"{tmp_path}/z.npy", "--labels", f"{tmp_path}/z.npy"]
    assert main(["evaluate", *given, "--bins", "2.5"]) == 2
    assert capsys.readouterr().err == "hace: --bins must be an integer. Got '2.5'.\n"
