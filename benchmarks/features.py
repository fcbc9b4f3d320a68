"""How fast features are extracted, against a bare loop over timm: run as `python benchmarks/features.py`.

Both see the same images in one process, in turns, and the best round of each counts. Seconds are those of the processor
(one thread), so that other work on the machine matters little; wall-clock seconds are shown beside them. `extract` reads,
preprocesses, computes, checks, hashes and writes; the bare loop preprocesses and computes, and "forward alone" starts from
tensors that are ready. "bar" is what the ratio to the bare loop must stay above.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config

from hace.data import Samples, synthetic_images
from hace.lab.features.backbones import load_backbone
from hace.lab.features.extraction import extract

BAR = 0.9


def bare_loop(model: torch.nn.Module, samples: Samples, batch_size: int) -> torch.Tensor:
    """What a person writes in a notebook."""
    transform = create_transform(**resolve_model_data_config(model))
    results = []
    with torch.inference_mode():
        for start in range(0, len(samples), batch_size):
            rows = range(start, min(start + batch_size, len(samples)))
            results.append(model(torch.stack([transform(samples.image(i)) for i in rows])))
    return torch.cat(results)


def forward_alone(model: torch.nn.Module, batches: list[torch.Tensor]) -> None:
    with torch.inference_mode():
        for batch in batches:
            model(batch)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Of the processor, and of the clock on the wall."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_tiny_patch16_224", help="a timm model (default: %(default)s)")
    parser.add_argument("--images", type=int, default=128, help="how many (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    data = synthetic_images(classes=8, train=args.images // 8, test=1)
    data = type(data)(data.name, data.hierarchy, {"train": data["train"]})
    samples = data["train"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = timm.create_model(args.model, num_classes=0).eval()
        save_file(model.state_dict(), folder / "weights.safetensors")
        backbone = load_backbone(args.model, checkpoint=folder / "weights.safetensors")
        transform = create_transform(**resolve_model_data_config(model))
        ready = torch.stack([transform(samples.image(i)) for i in range(len(samples))]).split(args.batch_size)
        outs = iter(folder / str(i) for i in range(args.rounds + 1))
        cases: dict[str, Callable[[], object]] = {
            "hace extract": lambda: extract(data, backbone, next(outs), batch_size=args.batch_size),
            "bare timm loop": lambda: bare_loop(model, samples, args.batch_size),
            "forward alone": lambda: forward_alone(model, list(ready)),
        }
        best = {case: (float("inf"), float("inf")) for case in cases}
        for _ in range(args.rounds):
            for case, work in cases.items():
                processor, wall = seconds(work)
                best[case] = min(best[case][0], processor), min(best[case][1], wall)
    count, bare = len(samples), best["bare timm loop"]
    print(f"{args.model}, {count} images, {torch.get_num_threads()} thread(s)")
    print(f"{'':16} {'images/CPU s':>13} {'of bare':>8} {'images/s':>9} {'of bare':>8}")
    for case, (processor, wall) in best.items():
        ratio = bare[0] / processor
        row = f"{case:16} {count / processor:13.1f} {ratio:8.2f} {count / wall:9.1f} {bare[1] / wall:8.2f}"
        bar = f"  bar {BAR}{'' if ratio >= BAR else '  BELOW THE BAR'}" if case == "hace extract" else ""
        print(row + bar)


if __name__ == "__main__":
    main()
