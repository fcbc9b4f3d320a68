"""Speed and memory of the losses on an accelerator: what `benchmarks/losses.py --device cuda` prints."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from losses import medians, random_tree, without_kernel

import hace
from hace.losses.kernels import on_cuda

SIZES = ((120, 128), (1_000, 128), (10_000, 128), (100_000, 64))  # nodes, batch


def device_table(device: str) -> None:
    """Ratios to `F.cross_entropy` over the same logits, forward and backward, with and without the Triton kernels."""
    where = torch.device(device)
    module = getattr(torch, where.type)
    name = module.get_device_name(where) if hasattr(module, "get_device_name") else device
    print(
        f"{name}; torch {torch.__version__}; Triton {'found' if on_cuda.installed() else 'not installed'}\n"
    )
    print(f"{'':24}{'cross-entropy':>15}{'HACE':>10}{'pure':>10}{'HXE':>10}{'peak, buffers':>16}{'pure':>10}")
    for nodes, batch in SIZES:
        h = random_tree(nodes)
        z = torch.randn(batch, nodes, device=where, requires_grad=True)
        leaves = torch.randn(batch, h.num_leaves, device=where, requires_grad=True)
        y = torch.randint(h.num_leaves, (batch,), device=where)
        losses = hace.HACELoss(h, 0.5).to(where), hace.HXELoss(h, 0.2).to(where)

        def step(loss: Callable, x: torch.Tensor, y: torch.Tensor = y) -> Callable[[], None]:
            def run() -> None:
                x.grad = None
                loss(x, y).backward()
                module.synchronize()

            return run

        at_node = torch.as_tensor(h.leaf_nodes, device=where)[y]
        steps = {
            "cross-entropy": step(F.cross_entropy, z, at_node),
            "HACE": step(losses[0], z),
            "pure": without_kernel(step(losses[0], z)),
            "HXE": step(losses[1], leaves),
        }
        times = medians(steps, 50)
        base = times["cross-entropy"]
        peaks = []
        for form in ("HACE", "pure"):
            z.grad = None
            module.reset_peak_memory_stats()
            before = module.memory_allocated()
            steps[form]()
            peaks.append((module.max_memory_allocated() - before) / (4 * z.numel()))
        ratios = "".join(f"{times[n] / base:>9.2f}x" for n in ("HACE", "pure", "HXE"))
        print(
            f"{nodes:>12,} nodes, B={batch:<4}{base * 1e3:>12.3f} ms{ratios}{peaks[0]:>16.2f}{peaks[1]:>10.2f}"
        )


if __name__ == "__main__":
    if torch.cuda.is_available():
        device_table("cuda")
    else:
        print("skipped: no CUDA device")
