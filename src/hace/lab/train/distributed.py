"""One training by several processes that torchrun starts, or by this process alone.

Every process has the whole model and computes its share of each batch. A single process does not communicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hace.data.batches import share_of
from hace.errors import HaceError
from hace.lab.runs.process import choose_device, processes

LOST = (
    "A process of this job was lost, or did not answer in time ({reason}). The job ends here; the same command resumes from "
    "the last checkpoint."
)

# Groups that have ended. Whoever lets go of a group last waits for its threads, and holds the interpreter's lock while it
# does; a thread that still waits for that lock, to let go of a tensor, then waits forever. Left to the model, that happens
# right after the last broadcast. Here a group outlives its model, and its threads have long come to rest.
_ended: list[Any] = []


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a job."""

    rank: int  # of this one; 0 alone writes
    world: int  # how many there are
    device: torch.device  # where this one computes

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model to train: with one process itself, with several one that averages their gradients."""
        if self.world == 1:
            return model
        ids = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)

    def unsynced(self, model: nn.Module, last: bool) -> Any:
        """A context for one part of a batch: gradients go around with the last one only."""
        if isinstance(model, nn.parallel.DistributedDataParallel) and not last:
            return model.no_sync()
        return nullcontext()

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def share(self, content: bytes | None) -> bytes:
        """What the main process gives, in every process."""
        if self.world == 1:
            return content or b""
        length = torch.tensor([len(content or b"")], device=self.device)
        dist.broadcast(length, 0)
        buffer = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        if self.main and content:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        if len(buffer):
            dist.broadcast(buffer, 0)
        return content or b"" if self.main else buffer.cpu().numpy().tobytes()

    def same_buffers(self, model: nn.Module) -> None:
        """Give all processes the main one's statistics of batch norms, which each computes on its own share."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def rows(self, mine: Tensor, size: int) -> Tensor:
        """All rows of a batch, each once and in order, from the rows that each process has of it."""
        if self.world == 1:
            return mine
        padded = mine.new_zeros(share_of(size, 0, self.world).stop, *mine.shape[1:])  # the first has most
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded)
        return torch.cat([part[: counted(size, r, self.world)] for r, part in enumerate(parts)])


def counted(size: int, rank: int, world: int) -> int:
    """How many samples of a batch count for one process: as many as its share has, or 0 where that is a stand-in."""
    share = share_of(size, rank, world)
    return share.stop - share.start if rank < size else 0


@contextmanager
def join_processes(device: str = "auto", timeout: float = 600.0) -> Iterator[ProcessGroup]:
    """Join the other processes of a job that torchrun has started; alone without it."""
    rank, world, local_rank = processes()
    chosen = choose_device(device, local_rank)
    joined = world > 1 and not dist.is_initialized()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    try:
        if joined:
            backend = "nccl" if chosen.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        yield ProcessGroup(rank, world, chosen)
    except (dist.DistError, RuntimeError) as error:
        if world == 1 or isinstance(error, HaceError) or not _lost(error):
            raise
        raise HaceError(LOST.format(reason=str(error).strip().splitlines()[0].split(". ")[0])) from error
    finally:
        if joined and dist.is_initialized():
            _ended.append(dist.group.WORLD)
            dist.destroy_process_group()


def _lost(error: Exception) -> bool:
    words = ("connection", "gloo", "timed out", "socket")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)
