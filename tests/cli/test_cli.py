"""The command line as a person meets it: texts, exit codes, and never a traceback for a mistake of the user's."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import hace
from hace.cli import entry as cli
from hace.errors import HierarchyError

EDGES = "parent,child\nanimal,dog\nanimal,cat\ndog,husky\ndog,beagle\n"


def process(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hace", *args], capture_output=True, text=True, **options)  # type: ignore[call-overload]


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    path = tmp_path / "edges.csv"
    path.write_text(EDGES)
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Make `hace fake` run a given function."""

    def register(run: Callable[[], None]) -> None:
        module = ModuleType("hace.cli.fake")
        module.__dict__["fake"] = run
        monkeypatch.setitem(sys.modules, "hace.cli.fake", module)
        command = cli.Command("fake", cli.PARTS, "for a test", "--batch-size")
        monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, command))

    return register


def test_python_m_hace_version() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hace {hace.__version__}\n", "")


def test_help_lists_every_command_by_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    titles = ["Make a model", "Use it", "Compare", "Parts"]
    assert [text.index(title) for title in titles] == sorted(text.index(title) for title in titles)
    for entry in cli.COMMANDS:
        assert re.search(rf"{entry.name} +{re.escape(entry.help)}", text)


@pytest.mark.parametrize("name", [entry.name for entry in cli.COMMANDS])
def test_help_of_a_command_teaches_by_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"\n  hace {name}" in shown
    assert shown.count("\n│ ") <= 60
    assert cli.main([name, "--help-all"]) == 0
    everything = capsys.readouterr().out
    assert len(everything) >= len(shown)
    for line in everything.splitlines():
        assert len(line) <= 80 or line.startswith("  "), line  # examples are as they are


def test_options_that_few_people_need_are_shown_by_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--bins" not in shown
    assert "more options: hace evaluate --help-all" in shown
    assert cli.main(["evaluate", "--help-all"]) == 0
    assert "--bins" in capsys.readouterr().out


def test_nothing_asked_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Make a model" in output.err


def test_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster"]) == 2
    assert "Known: fit, train, predict," in capsys.readouterr().err


def test_an_error_of_the_package_is_its_message_and_exit_code_2(
    fake, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise HierarchyError(["'a' is its own parent.", "'b' is its own parent."])

    fake(run)
    assert cli.main(["fake"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "hace: 2 problems:\n  - 'a' is its own parent.\n  - 'b' is its own parent.\n"


def test_an_unexpected_error_names_its_place_and_exits_70(
    fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        hace.errors.nearest(None, [])  # type: ignore[arg-type]

    fake(run)
    assert cli.main(["fake"]) == 70
    first, second = capsys.readouterr().err.splitlines()
    assert re.match(
        r"hace: Unexpected TypeError in .*hace/errors.py, line \d+: object of type 'NoneType' has no len",
        first,
    )
    assert "HACE_TRACEBACK=1" in second
    monkeypatch.setenv("HACE_TRACEBACK", "1")
    with pytest.raises(TypeError):
        cli.main(["fake"])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ..."
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_out_of_memory_says_what_to_lower(error: Exception, fake, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        try:
            raise error
        except Exception as cause:
            raise ImportError("half loaded") from cause

    fake(run)
    assert cli.main(["fake"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("hace: Out of memory: ")
    assert message.endswith(" Lower --batch-size, or use a machine with more memory.\n")


def test_out_of_memory_without_a_reason(fake, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise MemoryError

    fake(run)
    assert cli.main(["fake"]) == 2
    expected = "hace: Out of memory. Lower --batch-size, or use a machine with more memory.\n"
    assert capsys.readouterr().err == expected


def test_ctrl_c_is_one_line_and_130(fake, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    fake(run)
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def evaluated_with(torch: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`hace evaluate` where `import torch` runs this code."""
    (folder / "torch.py").write_text(torch)
    np.save(folder / "z.npy", np.zeros((1, 100)))
    np.save(folder / "y.npy", np.zeros(1, dtype=int))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    arguments = "evaluate --hierarchy cifar100 --scores z.npy --labels y.npy".split()
    return process(*arguments, env={**os.environ, "PYTHONPATH": path}, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "torch",
    [
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n",
        "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt as e:\n    raise ImportError('half loaded') from e\n",
    ],
    ids=["plain", "behind an ImportError"],
)
def test_ctrl_c_while_torch_loads(torch: str, tmp_path: Path) -> None:
    done = evaluated_with(torch, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.slow
def test_an_error_of_an_import_is_no_ctrl_c(tmp_path: Path) -> None:
    done = evaluated_with("raise ImportError('no torch here')\n", tmp_path)
    assert done.returncode == 70
    assert "Unexpected ImportError" in done.stderr
    assert "no torch here" in done.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "secret.csv"), "secret.csv: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (HierarchyError("\x1b[2Jcleared\u202e"), "\\x1b[2Jcleared\\u202e"),
    ],
)
def test_an_error_is_one_line_that_no_terminal_obeys(
    error: Exception, words: str, fake, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise error

    fake(run)
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == f"hace: {words}\n"


@pytest.mark.parametrize("arguments", ["evaluate --hierarchy cifar100", "report study", "hierarchy cifar100"])
def test_an_empty_output_is_an_error(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = "--plot" if arguments.startswith("hierarchy") else "--out"
    assert cli.main([*arguments.split(), option, ""]) == 2
    assert f"{option} must" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(edges: Path) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "hace", "hierarchy", str(edges)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_hierarchy_prints_the_summary(edges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hierarchy", str(edges)]) == 0
    assert capsys.readouterr().out == hace.read_hierarchy(edges).summary() + "\n"


def test_hierarchy_knows_cifar100(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hierarchy", "cifar100"]) == 0
    assert "120" in capsys.readouterr().out


@pytest.mark.parametrize(("flag", "nodes"), [("--root-node", 121), ("--no-root-node", 120)])
def test_hierarchy_switches_the_root(flag: str, nodes: int, tmp_path: Path) -> None:
    out = tmp_path / "tree.json"
    assert cli.main(["hierarchy", "cifar100", flag, "--to", "json", "--out", str(out)]) == 0
    assert hace.read_hierarchy(out).num_nodes == nodes


def test_hierarchy_converts(edges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = edges.with_name("tree.json")
    assert cli.main(["hierarchy", str(edges), "--to", "json", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert hace.read_hierarchy(out) == hace.read_hierarchy(edges)


def test_hierarchy_converts_to_the_terminal(edges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hierarchy", str(edges), "--to", "json"]) == 0
    again = edges.with_name("again.json")
    again.write_text(capsys.readouterr().out)
    assert hace.read_hierarchy(again) == hace.read_hierarchy(edges)


def test_hierarchy_is_made_from_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the training samples alone: the test samples would put every class elsewhere."""
    x = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], dtype=np.float32)
    np.savez(tmp_path / "f.npz", x_train=x, y_train=[3, 5, 7, 9], x_test=x[::-1], y_test=[3, 7, 9, 5])
    out = tmp_path / "taxonomy.csv"
    made = ["hierarchy", "--features", str(tmp_path / "f.npz"), "--levels", "1", "--out", str(out)]
    assert cli.main(made) == 0
    h = hace.read_hierarchy(out)
    assert (h.leaves, h.parents("3"), h.parents("5")) == (("3", "5", "7", "9"), ("group 1",), ("group 1",))
    capsys.readouterr()
    compared = ["hierarchy", str(out), *made[1:-1], str(tmp_path / "again.csv"), "-o", "label_kind=id"]
    assert cli.main(compared) == 0
    assert "1.000 of the triplets" in capsys.readouterr().out
    for change, words in (
        ({"y_train": [3.5, 5, 7, 9]}, "labels must be integers from 0 on, or text. Got float64"),
        ({"y_train": [-1, 5, 7, 9]}, "labels must be integers from 0 on, or text. Got -1"),
        ({"x_train": np.ones_like(x)}, "x must tell classes apart"),
        ({"x_train": x * np.nan}, "features must be finite"),
    ):
        arrays = {"x_train": x, "y_train": [3, 5, 7, 9], "x_test": x, "y_test": [3, 5, 7, 9], **change}
        np.savez(tmp_path / "f.npz", **arrays)
        assert cli.main(made) == 2
        assert words in capsys.readouterr().err
    assert cli.main(["hierarchy", "--levels", "2"]) == 2
    assert cli.main(["hierarchy"]) == 2


def test_hierarchy_passes_options_to_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "up.txt").write_text("dog animal\nhusky dog\n")
    assert (
        cli.main(["hierarchy", str(tmp_path / "up.txt"), "-o", "order=child parent", "--to", "newick"]) == 0
    )
    assert capsys.readouterr().out == "((husky)dog)animal;\n"


def test_hierarchy_takes_lists_with_commas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "levels.csv").write_text("coarse,fine\ndog,husky\ndog,beagle\n")
    arguments = ["hierarchy", str(tmp_path / "levels.csv"), "--to", "newick"]
    assert cli.main([*arguments, "-o", "columns=coarse, fine", "-o", "leaves=husky,beagle"]) == 0
    assert capsys.readouterr().out == "(husky,beagle)dog;\n"
    assert cli.main([*arguments, "-o", "columns=coarse,fin"]) == 2
    assert "no column 'fin'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "1 0\n2 0\n3 1\n",
            "looks like 'child parent' lines: no node has two children, and '0' has 2 parents",
        ),
        ("1 cat\n2 dog\n", "these 2 pairs have no node in common, so this is not a hierarchy"),
    ],
)
def test_hierarchy_refuses_lines_that_are_no_edges(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text(text)
    assert cli.main(["hierarchy", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "on the command line: -o " in error


def test_hierarchy_reads_the_folder_of_a_data_set(real_data: Callable[[str], Path], capsys) -> None:
    assert cli.main(["hierarchy", str(real_data("nabirds"))]) == 0
    assert "1,011" in capsys.readouterr().out.replace("1011", "1,011")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_hierarchy_draws(suffix: str, edges: Path) -> None:
    out = edges.with_name(f"tree{suffix}")
    assert cli.main(["hierarchy", str(edges), "--plot", str(out)]) == 0
    assert out.stat().st_size > 500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.csv"], ["missing.csv"]),
        (["edges.csv", "--hierarchy-format", "jsn"], ["jsn", "json"]),
        (["edges.csv", "--to", "jsn", "--out", "out.json"], ["jsn", "json"]),
        (["edges.csv", "--to", "json", "--out", "nowhere/out.json"], ["nowhere", "Create it first"]),
        (["edges.csv", "--to", "csv", "--out", "edges.csv"], ["edges.csv", "is the input itself"]),
        (["edges.csv", "--option", "ids"], ["NAME=VALUE", "'ids'"]),
        (["edges.csv", "--option", "format=csv"], ["NAME=VALUE", "'format=csv'"]),
        (["edges.csv", "--option", "idz=path"], ["idz", "Did you mean 'ids'?"]),
        (
            ["edges.csv", "--to", "json", "--out", "out.json", "--plot", "out.pdf"],
            ["--plot must end in one of", "out.pdf"],
        ),
        (["edges.csv", "--plot", "out.gif"], ["--plot must end in one of", ".html, .svg, .png", "out.gif"]),
        (["cifar10"], ["cifar10: there is no such file", "built-in 'cifar100'"]),
        (["edges.csv", "-o", "label=y"], ["on the command line: -o columns=top,...,leaf"]),
        (["edges.csv", "--plot", "nowhere/out.html"], ["nowhere", "Create it first"]),
    ],
)
def test_hierarchy_refuses_in_words(
    arguments: list[str],
    words: list[str],
    edges: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(edges.parent)
    assert cli.main(["hierarchy", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hace: ")
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert edges.read_text() == EDGES
    assert [path.name for path in edges.parent.iterdir()] == ["edges.csv"]


@pytest.mark.parametrize("arguments", [["--to", "json", "--out", "out.json"], ["--plot", "out.svg"]])
def test_a_full_disk_leaves_the_old_file(
    arguments: list[str], edges: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(edges.parent)
    out = Path(arguments[-1])
    out.write_text("precious")

    def replace(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    assert cli.main(["hierarchy", str(edges), *arguments]) == 2
    message = capsys.readouterr().err
    assert f"{out}: " in message
    assert "No space left on device" in message
    assert len(message.splitlines()) == 1
    assert out.read_text() == "precious"
    assert sorted(path.name for path in edges.parent.iterdir()) == sorted(["edges.csv", out.name])


def test_a_misspelt_command_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evalute"]) == 2
    assert "'evalute' is not a command. Did you mean 'evaluate'?" in capsys.readouterr().err
