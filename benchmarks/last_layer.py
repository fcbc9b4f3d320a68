"""Memory and time of `loss.linear` against the plain form, loss(F.linear(...)): forward and backward, float32.

    python benchmarks/last_layer.py                                            # a million nodes: 6 GB, two minutes
    python benchmarks/last_layer.py --nodes 100000 --batch 256 --features 256  # any other size

Times are processor time, medians of interleaved rounds. Memory is the peak of one step beyond weights, features and their
gradients, each form in a process of its own (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from losses import proc_status, random_tree, start_peak

import hace

FORMS = ("plain", "linear")
BARS = {"time": 1.4, "memory": 0.05}


class Step:
    """One training step of a head of the given size."""

    def __init__(self, nodes: int, features: int, batch: int) -> None:
        h = random_tree(nodes)
        torch.manual_seed(0)
        self.loss = hace.HACELoss(h, 0.5)
        self.weight = (0.05 * torch.randn(nodes, features)).requires_grad_()
        self.bias = torch.zeros(nodes, requires_grad=True)
        self.x = torch.randn(batch, features, requires_grad=True)
        self.y = torch.randint(h.num_leaves, (batch,))

    def __call__(self, form: str) -> list[torch.Tensor]:
        """The loss and the gradients of features, weights and bias, in one of the forms."""
        layer = (self.x, self.weight, self.bias)
        value = self.loss(F.linear(*layer), self.y) if form == "plain" else self.loss.linear(*layer, self.y)
        return [value.detach(), *torch.autograd.grad(value, layer)]


def memory(step: Step, form: str) -> None:
    """Prints the peak of one step in bytes, beyond what stays."""
    step_small = Step(100, step.x.shape[1], 2)
    step_small(form)  # what is loaded once is not the step's
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what the step takes
    start_peak()
    before = proc_status("VmRSS")
    result = step(form)
    held = sum(4 * t.numel() for t in result)
    print(proc_status("VmHWM") - before - held)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1_000_000, help="nodes of the tree")
    parser.add_argument("--features", type=int, default=256, help="width of the features")
    parser.add_argument("--batch", type=int, default=256, help="samples")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the timing")
    parser.add_argument("--memory", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = [f"--{name}={getattr(args, name)}" for name in ("nodes", "features", "batch")]
    if args.memory:
        memory(Step(args.nodes, args.features, args.batch), args.memory)
        return
    peaks = {}
    for form in FORMS:
        command = [sys.executable, __file__, *size, "--memory", form]
        peaks[form] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    step = Step(args.nodes, args.features, args.batch)
    gap = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*map(step, FORMS), strict=True))
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(args.rounds):
        for form in FORMS:
            began = time.process_time()
            step(form)
            times[form].append(time.process_time() - began)
    seconds = {form: statistics.median(times[form]) for form in FORMS}
    print(
        f"{args.nodes:,} nodes, {args.features} features, batch {args.batch}, {torch.get_num_threads()} thread(s)"
    )
    for form in FORMS:
        print(
            f"  {form:8} {seconds[form]:7.2f} s   peak {peaks[form] / 1e6:8.1f} MB beyond weights and gradients"
        )
    ratios = {"time": seconds["linear"] / seconds["plain"], "memory": peaks["linear"] / peaks["plain"]}
    for name, ratio in ratios.items():
        print(f"  {name}: {ratio:.3f} of the plain form; bar {BARS[name]}")
    print(f"  largest difference of values and gradients: {gap:.1e} of the largest entry")


if __name__ == "__main__":
    main()
