"""The best scores, and the answers of greatest expected worth on a tree, in the compiled kernel, without gradient."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hace.losses import kernels
from hace.losses.kernels.autograd import address


class AnswerTable(NamedTuple):
    """What an answer v is worth: factor * scale_v S_v + inside_v P_v + constant_v, where S_v = S_parent + gain_v P_v.

    P_v is the mass of the leaves at or below v, and ``start`` is S at the top. All by node: ``level`` in int32, the tops'
    being 0, the others in float64. ``sample``, or None, adds sum_v sample_v P_v over the leaves, a term of the sample alone.
    ``order`` in int64, or None: only leaves are answers, and this is their order.
    """

    level: Tensor
    gain: Tensor
    scale: Tensor
    inside: Tensor
    constant: Tensor
    sample: Tensor | None
    order: Tensor | None
    start: float
    factor: float


def best_served(log_q: Tensor, table: AnswerTable) -> bool:
    """Whether the kernel serves these scores, here and now."""
    wanted = torch.is_grad_enabled() and log_q.requires_grad
    return not wanted and kernels.usable(log_q, *table[:7])


def best(log_q: Tensor, table: AnswerTable, tie: float) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) the best answers, as nodes or by ``order``, their masses and what they are worth.

    Args:
        log_q: (B, N) log q*, of which the leaves count, renormalised.
        table: what answers are worth.
        tie: answers this close, relative to the larger of 1 and the best, are equal: the most probable counts, then the first.

    Returns:
        -1 is the answer of a sample without mass on the leaves.
    """
    z = log_q.detach().contiguous()
    answer = torch.empty(len(z), dtype=torch.long)
    mass, worth = torch.empty(2, len(z), dtype=torch.float64)
    kernels._kernels.best_answers(
        *(z.data_ptr(), *z.shape, *map(address, table[:7]), table.start, table.factor, tie),
        *(answer.data_ptr(), mass.data_ptr(), worth.data_ptr(), torch.get_num_threads()),
    )
    return answer, mass, worth


_MOST_BEST = 64  # the kernel's MOST_BEST


def best_columns(z: Tensor, k: int) -> Tensor | None:
    """(B, k) columns of the k greatest scores of each row, best first, equal ones in order; None where torch must serve."""
    if k > _MOST_BEST or kernels.compiling() or not kernels.usable(z):
        return None
    z = z.detach().contiguous()
    columns = torch.empty(len(z), k, dtype=torch.long)
    kernels._kernels.best_columns(z.data_ptr(), *z.shape, k, columns.data_ptr(), torch.get_num_threads())
    return columns
