"""Start-up: `import hace` beyond torch's own import, and the processor time of commands that need no torch.

The bars: `import hace` adds at most 0.3 s to torch; `hace --help` takes 0.3 s of processor time, `hace hierarchy cifar100`
1 s. The ratio to a bare Python is what to compare between machines.
"""

from __future__ import annotations

import os
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
COMMANDS = {"--help": 0.3, "hierarchy cifar100": 1.0}  # with their bars in seconds
RUN = "import sys; from hace.cli import main; sys.exit(main(sys.argv[1:]))"


def processor_time(*arguments: str) -> float:
    """Seconds of user and system time of a Python process."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"python {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime


def commands() -> list[str]:
    """Prints the time of each command; returns what is over its bar."""
    times: dict[str, list[float]] = {name: [] for name in ("", *COMMANDS)}
    for _ in range(RUNS):
        for name in times:
            times[name].append(processor_time("-c", RUN, *name.split()) if name else processor_time("-c", ""))
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"bare python {medians['']:.3f} s of processor time (medians of {RUNS})")
    for name, bar in COMMANDS.items():
        print(
            f"hace {name}: {medians[name]:.3f} s, {medians[name] / medians['']:.0f}x bare python; bar {bar} s"
        )
    return [f"hace {name} takes more than {bar} s" for name, bar in COMMANDS.items() if medians[name] > bar]


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
    over = commands()
    if hace_time >= BAR:
        over.append(f"import hace takes {hace_time:.3f} s beyond torch, more than {BAR} s")
    if over:
        sys.exit("\n".join(over))


if __name__ == "__main__":
    main()
