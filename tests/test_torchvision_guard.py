"""The hook of `make`'s set-up acts where torchvision cannot load its library beside a CPU-only torch, and nowhere else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test is a fresh Python with torch
SCRIPT = Path(__file__).parents[1] / "tools" / "torchvision_guard.py"
spec = importlib.util.spec_from_file_location("torchvision_guard", SCRIPT)
assert spec is not None
assert spec.loader is not None
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
# A package that is to torchvision what matters here: it tries its library, forgives, and attaches to an operator.
FAKE = """
import pathlib, torch
try:
    torch.ops.load_library(str(pathlib.Path(__file__).parent / "_C.so"))
except OSError:
    pass
@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold): ...
"""


def run(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)


def fake_torchvision(folder: Path, error: str) -> str:
    """Code that imports a fake torchvision whose library fails to load with the given words, under the guard."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(FAKE)
    (folder / "torchvision" / "_C.so").write_text("")
    return f"""
import sys, torch
sys.path[:0] = [{str(folder)!r}]
torch.version.cuda = torch.version.hip = None
def load_library(path):
    raise OSError("Could not load this library") from OSError({error!r})
torch.ops.load_library = load_library
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "TorchvisionGuard"]
import importlib.util
spec = importlib.util.spec_from_file_location("guard", {str(SCRIPT)!r})
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
guard.install()
import torchvision
"""


def test_declares_the_operators_when_cuda_is_missing(tmp_path: Path) -> None:
    done = run(fake_torchvision(tmp_path, "libcudart.so.13: cannot open shared object file"))
    assert (done.returncode, done.stderr) == (0, "")


def test_leaves_any_other_failure_alone(tmp_path: Path) -> None:
    done = run(fake_torchvision(tmp_path, "undefined symbol: _ZN3c106detail"))
    assert "operator torchvision::nms does not exist" in done.stderr


def test_leaves_a_torch_with_cuda_alone(tmp_path: Path) -> None:
    code = fake_torchvision(tmp_path, "libcudart.so.13: cannot open shared object file")
    done = run(code.replace("torch.version.cuda = torch.version.hip = None", "torch.version.cuda = '13.0'"))
    assert "operator torchvision::nms does not exist" in done.stderr


def test_hace_installs_nothing() -> None:
    code = "import sys; before = list(sys.meta_path); import hace; hace.Hierarchy; print(sys.meta_path == before)"
    done = run(code)
    assert done.stdout == "True\n", done.stderr


def test_installs_once_and_looks_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    guard.install()
    guard.install()
    assert [getattr(finder, "__name__", "") for finder in sys.meta_path].count("TorchvisionGuard") == 1
    assert guard.TorchvisionGuard.find_spec("torch") is None


def test_start_file_never_breaks_python(tmp_path: Path) -> None:
    """Without the module it names, the line in the `.pth` file does nothing and says nothing."""
    (tmp_path / "guard.pth").write_text(guard.START)
    done = run(f"import site; site.addsitedir({str(tmp_path)!r}); print('alive')", "-S")
    assert (done.stdout, done.stderr) == ("alive\n", "")


def test_set_up_installs_the_hook_without_loading_torch_and_removes_it(tmp_path: Path) -> None:
    guard.set_up(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {f"{guard.COPY}.py", f"{guard.COPY}.pth"}
    code = f"""
import site, sys
site.addsitedir({str(tmp_path)!r})
print([finder.__name__ for finder in sys.meta_path][0], {{"torch", "typing", "pathlib"}} & set(sys.modules))
"""
    done = run(code, "-S")
    assert (done.stdout, done.stderr) == ("TorchvisionGuard set()\n", "")
    guard.set_up(str(tmp_path), remove=True)
    assert not list(tmp_path.glob("*.p*"))


def test_the_real_packages_import() -> None:
    packages = [name for name in ("torchvision", "timm", "torchmetrics") if importlib.util.find_spec(name)]
    if not packages:
        pytest.skip("none of them is installed")
    done = run(f"import {', '.join(packages)}")
    assert done.returncode == 0, done.stderr
