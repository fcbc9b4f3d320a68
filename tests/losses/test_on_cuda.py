"""The Triton kernels without a GPU: values by Triton's interpreter, code by its compiler for sm_80 and sm_90."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hace.losses import kernels
from hace.losses.kernels import on_cuda

needs_triton = pytest.mark.skipif(not on_cuda.installed(), reason="triton is not installed")

COMPILE = """
import sys, triton
from itertools import product
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hace.losses.kernels import _triton_kernels
from hace.losses.kernels.on_cuda import block_and_warps

common = {"z": "*fp32", "column": "*i32", "low": "*i64", "high": "*i64", "value": "*fp64"}
levels = {"top": "*fp64", "total": "*fp64", "stride": "i32", "columns": "i32", "depth": "i32"}
own = {"path_forward": {"loss": "*fp32"}, "path_backward": {"outer": "*fp32", "grad": "*fp32"}}
for name, rest in own.items():
    for capability in (80, 90):
        # Triton makes a depth of 1 part of the code.
        for columns, permuted, depth in product((120, 100_000), (True, False), (None, 1)):
            block, warps = block_and_warps(columns)
            constants = {"PERMUTED": permuted, "BLOCK": block} | ({} if depth is None else {"depth": depth})
            signature = common | rest | levels | dict.fromkeys(constants, "constexpr")
            source = ASTSource(getattr(_triton_kernels, name), signature=signature, constexprs=constants)
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
            with open(f"{sys.argv[1]}/{name}_{capability}_{columns}_{permuted}_{depth}.cubin", "wb") as file:
                file.write(made.asm["cubin"])
print(triton.__path__[0])
"""


def run(*arguments: str, **environment: str) -> str:
    env = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", **environment}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "count"), [("not long", 7), pytest.param("long", 2, marks=pytest.mark.long)]
)
@needs_triton
def test_values_and_gradients_by_the_interpreter(chosen: str, count: int) -> None:
    file = Path(__file__).with_name("interpreted_triton.py")
    options = ("-q", "-n0", "-p", "no:cacheprovider", "-m", chosen, str(file))
    out = run("-m", "pytest", *options, TRITON_INTERPRET="1")
    assert f"{count} passed" in out
    assert "skipped" not in out


@pytest.mark.long
@needs_triton
def test_compiled_for_gpus_without_spills(tmp_path: Path) -> None:
    where = run("-c", COMPILE, str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache")).split()[-1]
    made = sorted(tmp_path.glob("*.cubin"))
    assert len(made) == 32
    for file in made:
        tool = [f"{where}/backends/nvidia/bin/cuobjdump", "--dump-resource-usage", str(file)]
        used = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        (matches,) = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", used)
        registers, stack, local = map(int, matches)
        assert registers <= 128, f"{file.stem} must leave an SM room for two programs of 256 threads: {used}"
        assert stack == local == 0, f"{file.stem} spills: {used}"


class OnCuda:
    """Just enough of a tensor on a GPU."""

    device, dtype = torch.device("cuda"), torch.float32

    def __len__(self) -> int:
        return 1


def test_chosen_for_cuda_alone_and_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cuda, "is_plain", lambda tensor, device: device == "cuda")
    monkeypatch.setattr(on_cuda, "installed", lambda: True)
    z = OnCuda()
    assert on_cuda.triton_supports(z)  # type: ignore[arg-type]
    assert not on_cuda.triton_supports(torch.zeros(1, 3))
    with kernels.disabled():
        assert not on_cuda.triton_supports(z)  # type: ignore[arg-type]
    monkeypatch.setattr(z, "dtype", torch.float64)
    assert not on_cuda.triton_supports(z)  # type: ignore[arg-type]
    monkeypatch.undo()
    monkeypatch.setattr(on_cuda, "is_plain", lambda tensor, device: True)
    monkeypatch.setattr(on_cuda, "installed", lambda: False)
    assert not on_cuda.triton_supports(OnCuda())  # type: ignore[arg-type]
