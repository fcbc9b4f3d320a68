"""Start-up: `import hace` and the first loss beyond torch's own import, and commands that need no torch.

    python evidence/keep.py start-up/times benchmarks/start_up.py

Processor seconds of Python processes, medians of five of each in turn. The first loss is what a script has paid when it has
built its hierarchy and called its `HACELoss` once, beyond `import torch`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

RUNS = 5
COMMAND = "import sys; from hace.cli import main; sys.exit(main(sys.argv[1:]))"
LOSS = """
import torch
import hace
h = hace.Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")])
loss = hace.HACELoss(h)
loss(torch.randn(4, loss.num_outputs, requires_grad=True), torch.tensor([0, 1, 2, 0])).backward()
"""
CASES: dict[str, tuple[str, ...]] = {
    "python": ("pass",),
    "hace --help": (COMMAND, "--help"),
    "hace hierarchy cifar100": (COMMAND, "hierarchy", "cifar100"),
    "import torch": ("import torch",),
    "import hace": ("import torch, hace",),
    "first HACELoss": (LOSS,),
}


def processor_time(*arguments: str) -> float:
    """Seconds of user and system time of a Python process."""
    process = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"python -c {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(RUNS):
        for name, arguments in CASES.items():
            times[name].append(processor_time(*arguments))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    torch_alone = seconds["import torch"] - seconds["python"]
    rows = (
        ("`hace --help`", seconds["hace --help"], 0.3),
        ("`hace hierarchy cifar100`", seconds["hace hierarchy cifar100"], 1.0),
        ("`import hace` beyond torch", seconds["import hace"] - seconds["import torch"], 0.1),
        ("first `HACELoss` beyond torch", seconds["first HACELoss"] - seconds["import torch"], torch_alone),
    )
    print("| what | processor time: s | goal: s | over a bare Python |\n| --- | --- | --- | --- |")
    for what, value, goal in rows:
        print(f"| {what} | {value:.2f} | {goal:.2g} | {value / seconds['python']:.0f}x |")


if __name__ == "__main__":
    main()
