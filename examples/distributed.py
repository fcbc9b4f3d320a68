"""Several processes: torchrun --standalone --nproc-per-node 2 examples/distributed.py. Metrics add up over all of them."""

import gc

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

from hace import HACELoss, Hierarchy
from hace.metrics import LevelAccuracy


def main() -> None:
    """Train and evaluate. What talks to the group lives here, so that it is gone before the group is."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    h = Hierarchy.from_tree(
        {"loops": ["0", "6", "8", "9"], "lines": ["1", "4", "7"], "bows": ["2", "3", "5"]},
        leaves=[str(digit) for digit in range(10)],
    )
    loss = HACELoss(h)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, loss.num_outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(10):
        for batch in torch.arange(1500)[rank::world].split(50):  # each process has its own samples
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()

    accuracy = LevelAccuracy(h)
    mine = torch.arange(1500, len(x))[rank::world]
    with torch.no_grad():
        accuracy.update(model(x[mine]), y[mine])
    result = accuracy.compute()  # of the samples of all processes
    if rank == 0:
        print({name: round(float(value), 3) for name, value in result.items()})
    dist.barrier()  # nobody leaves while another still talks to it: gloo would abort the one that is left


dist.init_process_group("gloo")
try:
    main()
finally:
    gc.collect()  # the model lets go of the group, so that destroying it waits for gloo's threads
    dist.destroy_process_group()
