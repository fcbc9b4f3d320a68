"""Options as flags and as NAME=VALUE, in every command."""

from __future__ import annotations

import pytest

from hace.cli import main
from hace.cli.entry import build_parser
from hace.cli.options_styles import both_styles


def read(line: str) -> list[str]:
    name, *words = line.split()
    return both_styles(words, build_parser(name).commands[name])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("probe features=f.npz epochs=2 batch_size=64", "--features=f.npz --epochs=2 --batch-size=64"),
        ("probe lr=[4,8] dilution=0.2,0.5 seeds=2", "--lr 4 8 --dilution 0.2 0.5 --seeds=2"),
        ("probe loss.name=hxe loss.options.alpha=0.2", "--loss=hxe --alpha=0.2"),
        (
            "probe loss.options.normalize=tree data.options.classes=6",
            "--loss-option normalize=tree --option classes=6",
        ),
        ("probe bias=false json=true", "--no-bias --json"),
        ("probe -o classes=6 --loss-option seed=1", "-o classes=6 --loss-option seed=1"),
        ("train --epochs 2 --loss hace --dilution 0.5", "epochs=2 loss.name=hace loss.options.dilution=0.5"),
        (
            "train --data.root data --batch-size=8 lr=0.1 --out x",
            "data.root=data batch_size=8 lr=0.1 --out x",
        ),
        ("train --tensorboard --no-channels-last --lr -1", "tensorboard=true channels_last=false lr=-1"),
        ("train out=x preset=cifar100/resnet18", "--out=x --preset=cifar100/resnet18"),
        ("study demo seeds=2 batch_size=64", "demo --seeds=2 --set=batch_size=64"),
        ("study demo --only method=hace seed=0 --seeds 1", "demo --only method=hace seed=0 --seeds 1"),
        ("study demo only=method=sce,hace", "demo --only=method=sce,hace"),
        ("hierarchy taxonomy.csv to=json,-", "taxonomy.csv --to json -"),
        ("hierarchy taxonomy.csv to=json,a,b.json", "taxonomy.csv --to json a,b.json"),
        ("hierarchy taxonomy.csv plot=tree.html", "taxonomy.csv --plot=tree.html"),
        ("report A B out=both -- x=1", "A B --out=both -- x=1"),
    ],
)
def test_both_styles_mean_the_same(line: str, words: str) -> None:
    assert read(line) == words.split()


@pytest.mark.parametrize("value", ["0.1 0.2", "0.1, 0.2", "[0.1, 0.2]", "0.1,0.2"])
def test_spaces_and_commas_separate_values(value: str) -> None:
    parser = build_parser("probe").commands["probe"]
    assert both_styles([f"alpha={value}"], parser) == ["--alpha", "0.1", "0.2"]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("study out=-x demo", "out", "-x"),
        ("study only=method=sce,hace demo", "only", ["method=sce,hace"]),
        ("study batch_size=64 demo", "set", ["batch_size=64"]),
        ("calibrate accuracy=0.9 RUN", "accuracy", [0.9]),
        ("calibrate --accuracy 0.8 0.9 RUN", "accuracy", [0.8, 0.9]),
        ("calibrate --accuracy 0.8 0.9 RUN", "run_folder", "RUN"),
        ("calibrate --accuracy 0.9 ./runs/x", "run_folder", "./runs/x"),
        ("calibrate --accuracy 0.9 4cd033b4", "run_folder", "4cd033b4"),
        ("calibrate --of answers samples RUN", "run_folder", "RUN"),
        ("probe --loss hace sce_paths lr=4", "lr", [4.0]),
        ("probe --loss hace sce_paths lr=4", "loss", ["hace", "sce_paths"]),
        ("probe --lr 4 8 dilution=0.5", "dilution", [0.5]),
        ("probe --loss hace sce_paths --lr 4", "loss", ["hace", "sce_paths"]),
        ("study --only method=sce seed=0 demo controls", "only", ["method=sce", "seed=0"]),
        ("study --only method=sce seed=0 demo controls", "preset", ["demo", "controls"]),
        ("hierarchy taxonomy.csv to=json,-", "to", ["json", "-"]),
        ("train print_config=on", "print_config", True),
        ("train --print-config", "print_config", True),
        ("train --print_config", "print_config", True),
        ("train --print", "print_config", True),
        ("probe --batch_size=64", "batch_size", 64),
    ],
)
def test_argparse_reads_what_was_written(line: str, name: str, value: object) -> None:
    command = line.split()[0]
    assert getattr(build_parser(command).parse_args([command, *read(line)]), name) == value


@pytest.mark.parametrize("value", ["true", "YES", "On", "1"])
def test_words_that_turn_an_option_on(value: str) -> None:
    assert read(f"probe bias={value} json={value}") == ["--bias", "--json"]
    assert read(f"study demo dry_run={value}") == ["demo", "--dry-run"]


@pytest.mark.parametrize("value", ["false", "NO", "Off", "0"])
def test_words_that_turn_an_option_off(value: str) -> None:
    assert read(f"probe bias={value} json={value}") == ["--no-bias"]
    assert read(f"study demo dry_run={value}") == ["demo"]


@pytest.mark.parametrize("word", ["bias=ture", "json=ture", "bias="])
def test_any_other_word_for_a_switch_is_an_error(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", word]) == 2
    name, value = word.split("=")
    assert f"{name} must be true or false. Got {value!r}." in capsys.readouterr().err


def test_a_training_takes_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "model=test_vit", "epochs=2", "loss.name=hxe", "--print_config"]) == 0
    first = capsys.readouterr().out
    assert main(["train", "--model", "test_vit", "--epochs", "2", "--loss", "hxe", "--print_config"]) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("word", ["--epoch_count=3", "epoch_count=3"])
def test_an_unknown_option_names_both_styles(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["probe", word])
    said = capsys.readouterr().err
    assert "Options are written as --name value or name=value" in said
