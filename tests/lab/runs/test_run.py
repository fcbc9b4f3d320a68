"""Run directories: whole or not at all, known by their id, held by one process, and honest about damage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hace
from hace.errors import ConfigError, FormatError, HaceError
from hace.files.writing import write_whole
from hace.lab.runs import run as run_directory
from hace.lab.runs.config import ProbeConfig
from hace.lab.runs.run import DataPrint, finished_run, read_run, start_run
from tests.run_files import edit_json

H = hace.Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")])
DATA = DataPrint("pets", "f" * 64, H.fingerprint)
CONFIG = ProbeConfig()
RESULT = {"status": "finished", "metrics": {"leaves": {"top-1": 0.5}}}


def finished(folder: Path, config: ProbeConfig = CONFIG) -> Path:
    with start_run(folder, config, DATA, H) as writer:
        writer.log([{"epoch": 1, "loss": 0.5}])
        writer.finish(RESULT, {"weight": torch.eye(2)}, {"truth": np.array([1, 2])})
    return folder


def test_a_run_reads_back(tmp_path: Path) -> None:
    run = read_run(finished(tmp_path / "deep" / "run"))
    assert (
        run.id
        == CONFIG.identity(DATA.fingerprint)
        == json.loads((run.folder / "result.json").read_text())["id"]
    )
    assert run.config == CONFIG
    assert run.status == "finished"
    assert run.result is not None
    assert run.result["metrics"]["leaves"]["top-1"] == 0.5
    assert torch.equal(run.weights()["weight"], torch.eye(2))
    assert run.predictions()["truth"].tolist() == [1, 2]
    assert run.log() == [{"epoch": 1, "loss": 0.5}]
    assert run.hierarchy == H
    assert run.about["made_with"]["torch"].startswith("2.")
    assert not [p.name for p in run.folder.iterdir() if p.name.startswith(".hace-")]


def test_without_a_result_it_is_unfinished(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", CONFIG, DATA, H):
        pass
    run = read_run(tmp_path / "run")
    assert run.status == "unfinished"
    with pytest.raises(FormatError, match="not finished"):
        run.weights()
    with start_run(tmp_path / "run", CONFIG, DATA, H) as writer:  # it may go on
        writer.finish({"status": "diverged", "metrics": None})
    assert read_run(tmp_path / "run").status == "diverged"


def test_a_run_that_was_killed_between_its_first_files_can_start_again(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    for name in (
        "run.json",
        "manifest.json",
        "result.json",
        "log.jsonl",
        "weights.safetensors",
        "predictions.safetensors",
    ):
        (folder / name).unlink()
    assert read_run(finished(folder)).status == "finished"


KILLED = """
import os, sys
from tests.lab.runs.test_run import *
os.fsync = lambda _: os.kill(os.getpid(), 9)  # the file is written, and not yet in place
with start_run(sys.argv[1], CONFIG, DATA, H):
    pass
"""


@pytest.mark.slow
def test_what_a_killed_process_had_half_written_goes_away(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], cwd=root, check=False)
    assert done.returncode == -9
    assert list((tmp_path / "run").glob(".hace-*/*"))
    finished(tmp_path / "run")
    assert not list((tmp_path / "run").glob(".hace-*"))


def test_the_last_line_of_a_log_may_be_cut_off(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"epoch": 2, "lo')
    assert len(read_run(folder).log()) == 1


def test_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    changed = replace(CONFIG, lr=2.0, seed=1)
    expected = r"Changed: seed: 0 -> 1; lr: 1\.0 -> 2\.0"
    with pytest.raises(ConfigError, match=expected), start_run(folder, changed, DATA, H):
        raise AssertionError


def test_changed_data_are_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    other = replace(DATA, fingerprint="g" * 64)
    expected = "fingerprint was ffffffffffff and is gggggggggggg"
    with pytest.raises(ConfigError, match=expected), start_run(folder, CONFIG, other, H):
        raise AssertionError


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    expected = r"holds other files: thesis\.tex"
    with pytest.raises(ConfigError, match=expected), start_run(tmp_path, CONFIG, DATA, H):
        raise AssertionError
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".json"] == []


def break_json(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text('{"half": ')


def change(name: str, **values: object) -> Callable[[Path], object]:
    return lambda folder: edit_json(folder / name, **values)


def flip(name: str) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return edit


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-3])


def drop(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


UNREADABLE = {
    "no run.json": (drop("run.json"), "must be a run directory"),
    "no config": (drop("config.json"), "cannot be read"),
    "half a run.json": (break_json("run.json"), "is not valid JSON"),
    "half a manifest": (break_json("manifest.json"), "is not valid JSON"),
    "half a result": (break_json("result.json"), "result.json was changed after"),
    "no result": (drop("result.json"), "result.json is missing"),
    "deep nests": (lambda folder: (folder / "manifest.json").write_text("[" * 100_000), "it nests too deep"),
    "a list": (lambda folder: (folder / "run.json").write_text("[]"), "must hold a JSON object"),
    "no text": (lambda folder: (folder / "run.json").write_bytes(b"\xff\xfe"), "is not valid JSON"),
    "no data": (change("run.json", data=None), "does not say which data"),
    "another id": (change("run.json", id="0" * 16), "its id 0000000000000000"),
    "another rate": (change("config.json", lr=7.0), "do not match its id"),
    "a bad rate": (change("config.json", lr=-7.0), "does not fit this version"),
    "another run's manifest": (change("manifest.json", id="0" * 16), "belongs to another run"),
    "a manifest of nothing": (change("manifest.json", files={}), "belongs to another run, or is damaged"),
    "an edited metric": (change("result.json", metrics={"leaves": {"top-1": 0.9}}), "was changed after"),
    "an edited source": (
        change("run.json", data={**asdict(DATA), "source": {"mean": 0}}),
        "run.json was changed after",
    ),
    "an edited setting that decides nothing": (change("config.json", keep=False), "config.json was changed"),
}
HIDDEN = {  # only loading or verifying tells
    "no hierarchy": (drop("hierarchy.json"), "hierarchy.json is missing"),
    "half the weights": (cut("weights.safetensors"), "its sha256 is another"),
    "no predictions": (drop("predictions.safetensors"), "predictions.safetensors is missing"),
    "a flipped weight": (flip("weights.safetensors"), "its sha256 is another"),
    "a flipped prediction": (flip("predictions.safetensors"), "its sha256 is another"),
    "a flipped hierarchy": (flip("hierarchy.json"), "its sha256 is another"),
}
DAMAGE = UNREADABLE | HIDDEN
# So damaged that only the folder's name, the id, says which run this was.
NAMELESS = ("no run.json", "no config", "half a run.json", "a list", "no text", "no data", "another id")
NAMELESS += ("another rate", "a bad rate")


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_reported_and_made_again_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    good = finished(tmp_path / "good", replace(CONFIG, lr=3.0))
    bad = finished(tmp_path / CONFIG.identity(DATA.fingerprint))
    before = contents(bad)
    assert finished_run(bad) is not None
    damage, message = DAMAGE[name]
    damage(bad)
    said: list[str] = []
    assert finished_run(bad, said.append) is None
    assert message in said[0]
    assert read_run(good).status == "finished"
    if name in UNREADABLE:
        with pytest.raises(FormatError) as error:
            read_run(bad)
        assert message in str(error.value)
    with start_run(bad, CONFIG, DATA, H) as writer:
        assert message in writer.damage
        assert writer.run.status == "unfinished"
    assert contents(finished(bad)) == before
    assert finished_run(bad) is not None


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    """It is made again, unless nothing says that the folder is this run's: then it is left alone."""
    folder = finished(tmp_path / "mine")
    DAMAGE[name][0](folder)
    before = contents(folder)
    if name in NAMELESS:
        with (
            pytest.raises(HaceError, match=r"Remove the folder first|It holds other files"),
            start_run(folder, CONFIG, DATA, H),
        ):
            raise AssertionError
        assert contents(folder) == before
    else:
        assert finished_run(finished(folder)) is not None


def contents(folder: Path) -> dict[str, bytes]:
    """All files but what a clock leaves its mark in: when a run began, and the hash of that."""
    results = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".json", ".safetensors")}
    return results | {"run.json": b"", "manifest.json": b""}


def test_loading_a_changed_file_is_refused(tmp_path: Path) -> None:
    run = read_run(finished(tmp_path / "run"))
    for name in ("weights.safetensors", "predictions.safetensors", "hierarchy.json"):
        flip(name)(run.folder)
    for load in (run.weights, run.predictions, lambda: run.hierarchy):
        with pytest.raises(FormatError):
            load()


def test_a_run_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    folder = finished(tmp_path / CONFIG.identity(DATA.fingerprint))
    change("run.json", format=99)(folder)
    expected = "not of this version"
    with pytest.raises(FormatError, match=expected), start_run(folder, CONFIG, DATA, H):
        raise AssertionError
    assert (folder / "weights.safetensors").exists()


def test_a_full_check_reads_unchanged_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path / "run")
    assert finished_run(folder) is not None
    monkeypatch.setattr(run_directory, "sha256", lambda path: pytest.fail(f"{path} is read again"))
    assert finished_run(folder) is not None


def test_every_sample_is_scored() -> None:
    from hace.lab.runs.result import evaluate_outputs

    loss, truth = hace.build_loss("hace", H), H.leaf_nodes[[0, 1, 2, 0]]
    chunks = [torch.zeros(2, H.num_nodes)] * 2
    assert evaluate_outputs(loss, chunks, truth, H).predictions()["truth"].tolist() == truth.tolist()
    for wrong in (chunks[:1], [*chunks, *chunks]):
        with pytest.raises(HaceError, match="sample"):
            evaluate_outputs(loss, wrong, truth, H)


def test_of_three_leaves_all_are_among_the_five_best() -> None:
    from hace.lab.runs.result import evaluate_outputs

    truth = np.array([*H.leaf_nodes, H.index("dog")])
    outputs = torch.zeros(4, 3)
    outputs[:, 2] = 1.0  # one right, two wrong, and a label that no leaf is
    result = evaluate_outputs(hace.build_loss("cross_entropy", H), [outputs], truth, H).predictions()
    assert (result["answer"] == result["truth"]).tolist() == [False, False, True, False]
    assert result["top5"].tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    "name", ["calibration.json", "log.jsonl", "weights.safetensors", "result.json", ".lock", "checkpoints"]
)
def test_nothing_inside_a_run_is_written_through_links(name: str, tmp_path: Path) -> None:
    """`ln -s victim RUN/calibration.json; hace calibrate RUN` used to overwrite the victim."""
    folder, victim = finished(tmp_path / "run"), tmp_path / "victim"
    if name == "checkpoints":
        (victim / ".hace-of-others").mkdir(parents=True)
    else:
        victim.write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with suppress(HaceError), start_run(folder, CONFIG, DATA, H) as writer:
        writer.write_log([{"epoch": 1}])
        writer.log([{"epoch": 2}])
        writer.finish(RESULT, {"weight": torch.eye(2)})
    assert victim.is_dir() or victim.read_text() == "precious"
    assert name != "checkpoints" or list(victim.iterdir())
    if (folder / name).is_symlink():
        with suppress(HaceError):
            write_whole(folder / name, b"{}")
        assert victim.is_dir() or victim.read_text() == "precious"


def test_a_link_in_place_of_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(HaceError, match=r"must be a folder\. Got a link"),
        start_run(tmp_path / "run", CONFIG, DATA, H),
    ):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HaceError, match="file"), start_run(tmp_path / "file" / "run", CONFIG, DATA, H):
        pass
    (tmp_path / "run" / ".lock").mkdir(parents=True)
    with pytest.raises(HaceError, match=r"\.lock"), start_run(tmp_path / "run", CONFIG, DATA, H):
        pass
