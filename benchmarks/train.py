"""What a training step costs beside the model: the loss, and the loop.

    python benchmarks/train.py [--rounds 4] [--model resnet18] [--batch 128]

Two ratios, each of measurements taken in turn in one run. Seconds are those of the processor (one thread), and the best round
of each side counts, so that other work on the machine counts little:

- the loss's share of a step (forward and backward of loss and model, and the optimiser's update), for HACE as for
  cross-entropy over the same 120 outputs: at most 1%;
- the loop of `hace train` (mixing, accumulation, precision, counting, checks, checkpoints and the log included) over a
  bare loop written by hand, on the same batches: at most 5%.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from hace.data import Samples, synthetic_images
from hace.data.batches import Preprocessing
from hace.data.dataset import Dataset
from hace.formats import cifar100_hierarchy
from hace.lab.models import build_model
from hace.lab.runs.config import DataConfig, LossConfig, TrainConfig
from hace.lab.runs.samples import make_task
from hace.lab.train.loop import ProcessGroup, Training, build_optimizer, schedule_factor

LOSSES = {
    "hace": LossConfig("hace"),
    "hace, smoothing 0.1": LossConfig("hace", {"label_smoothing": 0.1}),
    "cross_entropy": LossConfig("hce"),  # over the same 120 outputs: torch's own would have 100
}


def data() -> Dataset[Samples]:
    return synthetic_images(cifar100_hierarchy(), train=13, test=1)  # 120 nodes, 1,300 images of 32 px


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
    view = Preprocessing.of(task.train)
    return Training(config, task, view, ProcessGroup(0, 1, torch.device("cpu")), config.loss.build(task.tree))


def by_hand(config: TrainConfig, other: Training):
    """A bare loop over the same batches; yields after each step."""
    loss = config.loss.build(other.task.tree)
    model = build_model(config.model, loss.num_outputs, image_size=32, seed=config.seed)
    optimizer = build_optimizer(model, config)
    batches = other.batches
    steps = config.epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: schedule_factor("cosine", t, steps))
    for epoch in range(config.epochs):
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            loss(model(x), y).backward()
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
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = TrainConfig(
        model=args.model,
        batch_size=args.batch,
        epochs=100,
        lr=0.01,
        data=DataConfig("synthetic"),
        device="cpu",
    )
    ours = training(config, data())
    bare, loop = by_hand(config, ours), by_hace(ours)
    for steps in (bare, loop):
        next(steps)  # the first one allocates
    pairs = [(seconds(bare), seconds(loop)) for _ in range(args.rounds)]
    step, with_loop = (min(times) for times in zip(*pairs, strict=True))
    print(
        f"{args.model}, 32 px, batch {args.batch}, {torch.get_num_threads()} thread: {step:.3f} s a step by hand, "
        f"{args.batch / step:,.1f} images/s"
    )
    failed = False
    for name in LOSSES:
        share = loss_share(name, args.batch, step)
        failed |= share > 0.01
        print(f"loss {name:<22} {share:8.3%} of a step   (at most 1%)")
    overhead = with_loop / step - 1
    failed |= overhead > 0.05
    print(f"loop over a bare one        {overhead:8.3%}              (at most 5%)")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
