"""What evaluation asks of the kernel, without gradient; where the kernel does not support a call, torch computes the same."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hace.losses.kernels import extension
from hace.losses.kernels.extension import address, kernel_supports


def node_log_probs(z: Tensor, parent: Tensor, level: Tensor, nodes: Tensor | None = None) -> Tensor | None:
    """(B, N) log q* of every node of a tree; ``nodes`` are those of the columns, None: all. None where torch must serve."""
    if not kernel_supports(z, parent, level, nodes, gradient=False):
        return None
    z = z.detach().contiguous()
    out = z.new_empty(len(z), len(level))
    extension.module.node_log_probs(
        *(z.data_ptr(), *z.shape, len(level), *map(address, (out, parent, level, nodes))),
        torch.get_num_threads(),
    )
    return out


class AnswerTable(NamedTuple):
    """What an answer v is worth: factor * scale_v S_v + inside_v P_v + constant_v, where S_v = S_parent + gain_v P_v.

    P_v is the mass of the leaves at or below v, and ``start`` is S at the top. No answer below v is worth more than v and
    reach_v P_v together. All by node: ``level`` in int32, the tops' being 0, the others in float64. ``sample``, or None, adds
    sum_v sample_v P_v over the leaves, a term of the sample alone. ``order`` in int64, or None: only leaves are answers, and
    this is their order.
    """

    level: Tensor
    gain: Tensor
    scale: Tensor
    inside: Tensor
    constant: Tensor
    reach: Tensor
    sample: Tensor | None
    order: Tensor | None
    start: float
    factor: float

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What the kernel reads."""
        return self[:8]


def best_answers(log_q: Tensor, table: AnswerTable, tie: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """(B,) the best answers, as nodes or by ``order``, their masses and what they are worth; None where torch must serve.

    The leaves of (B, N) log q* count, renormalised; a sample without mass on them has the answer -1. Answers closer than
    ``tie``, relative to the larger of 1 and the best, are equal: the most probable counts, then the first.
    """
    if not kernel_supports(log_q, *table.tensors, gradient=False):
        return None
    z = log_q.detach().contiguous()
    answer = torch.empty(len(z), dtype=torch.long)
    mass, worth = torch.empty(2, len(z), dtype=torch.float64)
    extension.module.best_answers(
        *(z.data_ptr(), *z.shape, *map(address, table.tensors), table.start, table.factor, tie),
        *(answer.data_ptr(), mass.data_ptr(), worth.data_ptr(), torch.get_num_threads()),
    )
    return answer, mass, worth


_MOST_BEST = 64  # the kernel's MOST_BEST


def best_columns(z: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """(B, k) columns of the k greatest scores of each row, best first, equal ones in order, and (B,) the rows' greatest.

    The greatest of a row with NaN is NaN, and its columns mean nothing. None where torch must serve.
    """
    z = z.detach()
    if not 1 <= k <= min(_MOST_BEST, z.shape[1]) or not kernel_supports(z, gradient=False):
        return None
    z = z.contiguous()
    columns = torch.empty(len(z), k, dtype=torch.long)
    top = torch.empty(len(z))
    extension.module.best_columns(
        z.data_ptr(), *z.shape, k, columns.data_ptr(), top.data_ptr(), torch.get_num_threads()
    )
    return columns, top


def best_of_levels(log_q: Tensor, depth: Tensor, levels: int) -> tuple[Tensor, Tensor] | None:
    """(B, H) the most probable node of the levels 1 to H of a tree, of equal ones the first, and their log q*.

    A leaf counts at its depth, in int32, and at all levels below. None where torch must serve.
    """
    if not levels or not kernel_supports(log_q, depth, gradient=False):
        return None
    nodes = torch.empty(len(log_q), levels, dtype=torch.long)
    masses = torch.empty(len(log_q), levels)
    _level_masses(log_q, depth, levels, nodes, masses, None)
    return nodes, masses


def level_squares(log_q: Tensor, depth: Tensor, levels: int) -> Tensor | None:
    """(B, H) the sum of q*^2 over the nodes of each level, in float64; see :func:`best_of_levels`."""
    if not levels or not kernel_supports(log_q, depth, gradient=False):
        return None
    squares = torch.empty(len(log_q), levels, dtype=torch.float64)
    _level_masses(log_q, depth, levels, None, None, squares)
    return squares


def _level_masses(log_q: Tensor, depth: Tensor, levels: int, *out: Tensor | None) -> None:
    z = log_q.detach().contiguous()
    extension.module.level_masses(
        *(z.data_ptr(), *z.shape, depth.data_ptr(), levels, *map(address, out), torch.get_num_threads())
    )


def walk(
    log_q: Tensor, children: tuple[Tensor, Tensor, Tensor], begin: int, steps: int
) -> tuple[Tensor, Tensor] | None:
    """(B, steps + 1) from ``begin`` always to the child of greatest log q*, of equal ones the first, and these log q*.

    A leaf repeats. ``children`` are those of `Layout.children`; ``begin`` is a node, or -1 with log q* 0. None where torch
    must serve.
    """
    if not kernel_supports(log_q, *children, gradient=False):
        return None
    z = log_q.detach().contiguous()
    nodes = torch.empty(len(z), steps + 1, dtype=torch.long)
    masses = torch.empty(len(z), steps + 1)
    extension.module.walk_down(
        *(z.data_ptr(), *z.shape, *map(address, children), begin, steps + 1),
        *(nodes.data_ptr(), masses.data_ptr(), torch.get_num_threads()),
    )
    return nodes, masses


def spread(z: Tensor, nodes: Tensor, count: int) -> Tensor | None:
    """(B, n) -> (B, count): the scores of each column at its node, -inf at all others. None where torch must serve."""
    if not kernel_supports(z, nodes, gradient=False):
        return None
    z = z.detach().contiguous()
    out = torch.empty(len(z), count)
    extension.module.spread(
        z.data_ptr(), *z.shape, nodes.data_ptr(), out.data_ptr(), count, torch.get_num_threads()
    )
    return out
