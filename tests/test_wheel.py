"""The wheel, built and installed as a user would get it: complete, and working with and without a C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import hace
from hace import environment

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the source tree"),
]


def build(folder: Path, **variables: str) -> Path:
    """Build a wheel from a copy of the sources, so that nothing lands in the tree and nothing stale gets in."""
    source = folder / "source"
    source.mkdir()
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
    ]
    done = subprocess.run(
        [*pip, "--wheel-dir", folder, source],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("hace-*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment that sees this one's other packages, and give its bin folder.

    A `.pth` line makes the packages importable but does not follow *their* `.pth` files, so the editable install of
    hace in this environment stays out of sight.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    output(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site_packages = output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    parents = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site_packages.strip()) / "parent.pth").write_text("".join(f"{path}\n" for path in sorted(parents)))
    return folder / "bin"


def output(*command: str | Path, cwd: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def without_a_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel; beside it, the folder `source` that it was built from."""
    return build(tmp_path_factory.mktemp("bare"), CC="false")


@pytest.fixture(scope="module")
def installed(without_a_compiler: Path) -> Path:
    return install(without_a_compiler, without_a_compiler.parent / "venv")


def test_imports_from_site_packages(installed: Path, tmp_path: Path) -> None:
    path = output(installed / "python", "-c", "import hace; print(hace.__file__)", cwd=tmp_path)
    assert Path(path.strip()).is_relative_to(installed.parent)


def test_command_and_data_files(installed: Path, tmp_path: Path) -> None:
    assert output(installed / "hace", "--version", cwd=tmp_path) == f"hace {hace.__version__}\n"
    assert "120" in output(installed / "hace", "hierarchy", "cifar100", cwd=tmp_path)
    output(installed / "hace", "hierarchy", "cifar100", "--plot", "tree.html", cwd=tmp_path)
    assert "aquatic mammals" in (tmp_path / "tree.html").read_text(encoding="utf-8").replace("_", " ")


@pytest.mark.long  # compiles the kernel, as the set-up of `make` has done
def test_kernel_is_there_if_it_is_here(tmp_path: Path) -> None:
    code = "from hace.environment import config; print(config()['kernel'])"
    python = install(build(tmp_path), tmp_path / "venv") / "python"
    assert output(python, "-c", code, cwd=tmp_path).strip() == environment.config()["kernel"]


def test_without_a_compiler_the_wheel_has_no_kernel_and_works(
    without_a_compiler: Path, installed: Path, tmp_path: Path
) -> None:
    assert not [name for name in zipfile.ZipFile(without_a_compiler).namelist() if name.endswith(".so")]
    code = """
import torch
from hace import HACELoss, Hierarchy
h = Hierarchy.from_edges([("dog", "husky"), ("dog", "beagle"), ("cat", "manx"), ("cat", "tabby")])
z = torch.zeros(2, h.num_nodes, requires_grad=True)
HACELoss(h)(z, torch.tensor([0, 1])).backward()
print(bool(z.grad.abs().sum() > 0))
"""
    assert output(installed / "python", "-c", code, cwd=tmp_path) == "True\n"


def test_typed_marker_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import hace, pathlib; print((pathlib.Path(hace.__file__).parent / 'py.typed').exists())"
    assert output(installed / "python", "-c", code, cwd=tmp_path) == "True\n"


def test_one_wheel_is_for_all_python_versions(without_a_compiler: Path) -> None:
    """The tag follows from pyproject.toml, not from the kernel."""
    assert "-cp310-abi3-" in without_a_compiler.name


def test_the_source_distribution_builds_the_package_and_carries_no_tests(without_a_compiler: Path) -> None:
    source = without_a_compiler.parent / "source"
    made = "from setuptools import build_meta; print(build_meta.build_sdist('.'))"
    name = output(sys.executable, "-c", made, cwd=source).splitlines()[-1]
    with tarfile.open(source / name) as archive:
        files = {"/".join(file.split("/")[1:]) for file in archive.getnames()}
    assert {"src/hace/losses/kernels/_kernels.c", "src/hace/losses/kernels/path.h", "LICENSE"} <= files
    assert {"src/hace/formats/cifar100.csv", "src/hace/py.typed", "CHANGELOG.md"} <= files
    assert not [file for file in files if file.startswith("tests/")]


def test_sources_and_headers_of_the_kernel_are_listed() -> None:
    """A header that pyproject.toml does not list would not rebuild the extension."""
    folder = ROOT / "src/hace/losses/kernels"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert [file.name for file in folder.glob("*.[ch]") if f"kernels/{file.name}" not in text] == []
