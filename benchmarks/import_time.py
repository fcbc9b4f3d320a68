"""How long `import hace` takes beyond torch's own import. The bar: a median under 0.3 s."""

from __future__ import annotations

import statistics
import subprocess
import sys

RUNS = 9
BAR = 0.3
CODE = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import hace
print(middle - start, time.perf_counter() - middle)
"""


def main() -> None:
    times = []
    for _ in range(RUNS):
        output = subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, check=True, text=True
        ).stdout
        times.append([float(part) for part in output.split()])
    torch_time, hace_time = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"import torch {torch_time:.3f} s, then import hace {hace_time:.3f} s (medians of {RUNS}; bar {BAR} s)"
    )
    if hace_time >= BAR:
        sys.exit(f"import hace takes {hace_time:.3f} s beyond torch, more than {BAR} s")


if __name__ == "__main__":
    main()
