"""What a training step costs beside the model: the loss, the loop, and what makes the batches.

    python benchmarks/train.py [--rounds 4] [--model resnet18] [--batch 128] [--size 32] [--precision bf16]

Sizes other than 32 train on random parts of larger images in memory, as `-o pixels=` makes them of photos; the default
precision is that of `hace train` on this processor, with channels last beside bf16.

Two ratios, each of measurements taken in turn in one run. Seconds are those of the processor (one thread), and the best round
of each side counts, so that other work on the machine counts little:

- the loss's share of a step (forward and backward of loss and model, and the optimiser's update), for HACE as for
  cross-entropy over the same 120 outputs: at most 1%;
- the loop of `hace train` (mixing, accumulation, precision, counting, checks, checkpoints and the log included) over a
  bare loop written by hand, with the same model, precision and batches: at most 5%.

And images per second of the batches alone, without a model.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import replace

import torch
from torchvision.transforms.functional import resize

from hace.data import Samples, synthetic_images
from hace.data.batches import Preprocessing
from hace.data.dataset import Dataset
from hace.formats import cifar100_hierarchy
from hace.lab.models import build_model
from hace.lab.runs.config import DataConfig, LossConfig, TrainConfig
from hace.lab.runs.process import fast_settings
from hace.lab.runs.samples import make_task
from hace.lab.train.loop import ProcessGroup, Training, build_optimizer, schedule_factor

LOSSES = {
    "hace": LossConfig("hace"),
    "hace, smoothing 0.1": LossConfig("hace", {"label_smoothing": 0.1}),
    "cross_entropy": LossConfig("hce"),  # over the same 120 outputs: torch's own would have 100
}


def data(size: int, batch: int) -> Dataset[Samples]:
    """Images over 120 nodes, in whole batches: of 32 px, or larger ones to take parts of."""
    tree = cifar100_hierarchy()
    small = synthetic_images(tree, train=batch // math.gcd(batch, tree.num_leaves), test=1)
    if size == 32:
        return small
    side = round(size * 8 / 7)
    large = {
        name: replace(samples, pixels=resize(samples.pixels, (side, side)))
        for name, samples in small.splits.items()
    }
    return replace(small, splits=large)


def loss_share(name: str, batch: int, step: float) -> float:
    """Seconds of the loss, forward and backward, over seconds of the whole step."""
    tree = cifar100_hierarchy()
    loss = LOSSES[name].build(tree)
    z = torch.randn(batch, loss.num_outputs, requires_grad=True)
    y = torch.randint(tree.num_leaves, (batch,))
    times = []
    for _ in range(500):
        began = time.process_time()
        loss(z, y).backward()
        times.append(time.process_time() - began)
    return statistics.median(times) / step


def training(config: TrainConfig, dataset: Dataset[Samples]) -> Training:
    task = make_task(dataset, config)
    view = Preprocessing.of(task.train, config.image_size)
    return Training(config, task, view, ProcessGroup(0, 1, torch.device("cpu")), config.loss.build(task.tree))


def by_hand(config: TrainConfig, other: Training):
    """A bare loop over the same batches; yields after each step."""
    loss = config.loss.build(other.task.tree)
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    model = build_model(config.model, loss.num_outputs, image_size=config.image_size, seed=config.seed)
    model = model.to(memory_format=layout)
    optimizer = build_optimizer(model, config)
    batches = other.batches
    steps = config.epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: schedule_factor("cosine", t, steps))
    for epoch in range(config.epochs):
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
                value = loss(model(x.contiguous(memory_format=layout)), y)
            value.backward()
            optimizer.step()
            schedule.step()
            yield


def by_hace(it: Training):
    """The steps of `hace train`; yields after each."""
    for epoch in range(it.config.epochs):
        for x, y in it.batches.epoch(epoch):
            if it.advance(x, y):
                it.flush_metrics(False)
            yield
        it.end_epoch()


def loader_speed(it: Training) -> float:
    """Images per second of the batches alone."""
    began = time.process_time()
    count = sum(len(y) for _, y in it.batches.epoch(0))
    return count / (time.process_time() - began)


def seconds(steps) -> float:
    began = time.process_time()
    next(steps)
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    precision = args.precision or fast_settings("cpu").get("precision", "fp32")
    config = TrainConfig(
        model=args.model,
        batch_size=args.batch,
        epochs=100,
        lr=0.01,
        data=DataConfig("synthetic"),
        device="cpu",
        image_size=args.size,
        precision=precision,
        channels_last=precision == "bf16",
    )
    ours = training(config, data(args.size, args.batch))
    bare, loop = by_hand(config, ours), by_hace(ours)
    for steps in (bare, loop):
        next(steps)  # the first one allocates
    pairs = [(seconds(bare), seconds(loop)) for _ in range(args.rounds)]
    step, with_loop = (min(times) for times in zip(*pairs, strict=True))
    shares = [loss_share(name, args.batch, step) for name in LOSSES]
    overhead = with_loop / step - 1
    table = {
        "network": args.model,
        "px": args.size,
        "precision": precision,
        "batch": args.batch,
        "s a step by hand": f"{step:.2f}",
        "images/s": f"{args.batch / step:.0f}",
        "images/s of batches alone": f"{loader_speed(ours):.0f}",
        "loss, % of a step (at most 1)": f"{100 * max(shares):.3f}",
        "loop over a bare one, % (at most 5)": f"{100 * overhead:+.1f}",
    }
    for row in (table, dict.fromkeys(table, "---"), table.values()):
        print(f"| {' | '.join(map(str, row))} |")
    failed = max(shares) > 0.01 or overhead > 0.05
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
