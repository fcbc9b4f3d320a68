"""The numerics, on tensors alone: log-probabilities of nodes and the cross-entropy of a table, in log space.

Every loss of hace is one expression (the paper's eq. 1 and 2),

    loss(z, y) = - sum_v T[y, v] log q*[v],        q* = R softmax(z),

with logits z over the outputs, the 0/1 reachability R and a table T. There is no epsilon inside a logarithm and no
clamp: a subtree's sum is kept as ``exp(shift) * sum`` with the largest logit of that subtree as its shift, so that
sums only grow and differences of logits are taken before anything is rounded. Values and gradients stay finite and
right at logits of 1e4.

All functions are ordinary PyTorch: they differentiate twice, compile and export. The compiled kernel
(:mod:`hace.losses.kernels`) computes the same for the common case.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hace.losses.kernels.torch_internals import compiling, is_eager, transformed

# A path's sums are accumulated by a small triangular matrix, which differentiates as often as you like. Beyond this many
# entries torch.logcumsumexp is used instead; it has second derivatives only where the first are not 0.
_SQUARES = 1 << 22
_LEAST_SHARE = 1e-30  # of a row, which float32 holds in full
_RANGE = 60.0  # logits within this range of their row's largest have exponentials that float32 holds in full


class Levels(NamedTuple):
    """A tree cut into levels, the top one first: what the passes over it need.

    ``nodes`` holds the node indices level by level, ``parents`` the position of each one's parent within the level
    above (0 in the first level), ``widths`` the number of nodes of each level, and ``places`` the position of
    each node in ``nodes``.
    """

    nodes: Tensor
    parents: Tensor
    places: Tensor
    widths: tuple[int, ...]


class PathRanges(NamedTuple):
    """Rows of a table, each along one path of a tree.

    ``low`` and ``high`` (B, K) are ranges of positions, each within the next; ``value`` (B, K) the entries of the table;
    ``column`` the column at each position (None: the same).
    """

    low: Tensor
    high: Tensor
    value: Tensor
    column: Tensor | None


def path_cross_entropy(z: Tensor, path: PathRanges) -> Tensor:
    r"""Cross-entropy of rows on one path of a tree: - sum_j T_j log q*[b_j].

    The subtrees of a path are nested ranges of columns. Level 0 is the innermost range, level j what range j adds
    to range j - 1, level K the rest. It takes one log-sum-exp per level, accumulated outward.
    """
    if path.column is not None:
        z = z.index_select(1, path.column.long())
    shares = z.detach().softmax(dim=1) if is_eager(z) and z.numel() else None
    if shares is None or not bool(shares.amin() > _LEAST_SHARE):  # nor where one is nan
        return _far_path_losses(z, path)
    return _NearPathLosses.apply(z, path, shares)  # type: ignore[return-value]


def _segment_edges(path: PathRanges, columns: int) -> Tensor:
    """(B, 2K + 2) where segments begin and end, left to right: the left parts of levels K to 1, level 0, the right parts."""
    first = path.low.new_zeros(len(path.low), 1)
    return torch.cat([first, path.low.flip(1), path.high, first + columns], dim=1)


def _far_path_losses(z: Tensor, path: PathRanges) -> Tensor:
    """The same for logits of any range, each segment with its own shift; it differentiates as often as you like."""
    batch, columns = z.shape
    segments = 2 * path.low.shape[1] + 1
    wide = wide_dtype(z)
    member = segment_members(_segment_edges(path, columns), columns)
    shift, total = _group_sum_exp(z.flatten(), member.long(), batch * segments)
    shift = shift.to(wide).view(batch, segments)
    total = total.to(wide).view(batch, segments)
    # Relative to the row's largest logit, so that sums keep their digits whatever the size of the logits.
    shift = shift - finite_shift(shift.masked_fill(total == 0, -torch.inf).amax(dim=1, keepdim=True))
    lse = _running_lse(*_fold(shift, total))
    inside = lse[:, :-1]
    everything = lse[:, -1:]
    return table_cross_entropy(inside - everything, path.value.to(wide)).to(z.dtype)


class _NearPathLosses(torch.autograd.Function):
    """The same where no share of a row, its softmax, is too small for its type.

    With S_r the sum of the shares p up to level r, the gradient at level r is p * (mass / S_K - sum over j >= r of T_j / S_j).
    """

    @staticmethod
    def forward(ctx, z: Tensor, path: PathRanges, shares: Tensor) -> Tensor:  # type: ignore[override]
        depth = path.low.shape[1]
        wide = wide_dtype(z)
        lengths = _segment_edges(path, z.shape[1]).diff(dim=1)
        # In a fifth of the time that index_add takes.
        sums = torch.segment_reduce(shares.flatten(), "sum", lengths=lengths.flatten(), unsafe=True)
        sums = sums.view(lengths.shape).to(wide)
        left = sums[:, :depth].flip(1)
        right = sums[:, depth + 1 :]
        total = torch.cat([sums[:, depth : depth + 1], left + right], dim=1).cumsum(dim=1)
        ctx.save_for_backward(z, shares, lengths, total)
        ctx.path = path
        log_q = (total[:, :-1] / total[:, -1:]).log()
        return table_cross_entropy(log_q, path.value.to(wide)).to(z.dtype)

    @staticmethod
    def backward(ctx, outer: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        z, shares, lengths, total = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            losses = _far_path_losses(z, ctx.path)
            # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
            (grad,) = torch.autograd.grad(losses, z, torch.ones_like(outer), create_graph=True)
            return grad * outer[:, None], None, None
        value = ctx.path.value.to(total.dtype)
        share = value.sum(dim=1, keepdim=True) / total[:, -1:]
        above = (value / total[:, :-1]).flip(1).cumsum(dim=1).flip(1)
        factor = torch.cat([share - above, share], dim=1) * outer[:, None]
        factors = torch.cat([factor.flip(1), factor[:, 1:]], dim=1).to(z.dtype).flatten()
        grad = factors.repeat_interleave(lengths.flatten(), output_size=z.numel()).view_as(z)
        return grad.mul_(shares), None, None


def table_cross_entropy(log_probs: Tensor, table: Tensor) -> Tensor:
    """- sum_v T[b, v] log q*[b, v], where 0 log 0 = 0.

    Example:
        >>> log_probs = torch.tensor([[0.0, -1.0, -torch.inf]])
        >>> table_cross_entropy(log_probs, torch.tensor([[0.5, 0.5, 0.0]]))
        tensor([0.5000])
    """
    nothing = (table == 0) & log_probs.isneginf()
    return -(table * log_probs.masked_fill(nothing, 0.0)).sum(dim=-1)


def segment_members(edges: Tensor, columns: int) -> Tensor:
    """(B * columns,) the segment that each column is in, counted through all rows, in int32 or int64.

    Example:
        >>> segment_members(torch.tensor([[0, 1, 1, 3], [0, 2, 3, 3]]), 3)
        tensor([0, 2, 2, 3, 3, 4], dtype=torch.int32)
    """
    if compiling() or not transformed():
        lengths = edges.diff(dim=1).flatten().int()  # repeating 64-bit integers takes twenty times as long
        return torch.repeat_interleave(lengths, output_size=len(edges) * columns)
    # The same without a shape that depends on values, for vmap: count the edges at or before each column.
    inner = edges[:, 1:-1]
    counts = edges.new_zeros(len(edges), columns + 1).scatter_add(1, inner, torch.ones_like(inner))
    passed = counts.cumsum(dim=1)
    first = (edges.shape[1] - 1) * torch.arange(len(edges), device=edges.device)
    return (passed[:, :columns] + first[:, None]).flatten()


def tree_log_probs(z: Tensor, levels: Levels) -> Tensor:
    """log q* of every node of a tree or forest, by one pass from the deepest level up."""
    columns = z.t().index_select(0, levels.nodes)  # (N, B): a node's logits are contiguous
    parts = columns.split(levels.widths)
    parents = levels.parents.split(levels.widths)
    shifts = [part.detach() for part in parts]
    for k in range(len(parts) - 1, 0, -1):
        shifts[k - 1] = _group_max(shifts[k - 1], parents[k], shifts[k])
    top = finite_shift(shifts[0].amax(dim=0))
    shifts = [finite_shift(s) for s in shifts]
    sums = [(part - shift).exp() for part, shift in zip(parts, shifts, strict=True)]
    for k in range(len(parts) - 1, 0, -1):
        # At most 0, but for a subtree of -inf alone, whose shift means nothing and whose sum is 0.
        carried = sums[k] * (shifts[k] - shifts[k - 1][parents[k]]).clamp(max=0.0).exp()
        sums[k - 1] = sums[k - 1].index_add(0, parents[k], carried)
    everything = (sums[0] * (shifts[0] - top).clamp(max=0.0).exp()).sum(dim=0).log()
    log_q = (torch.cat(shifts) - top) + (_safe_log(torch.cat(sums)) - everything)
    return log_q.index_select(0, levels.places).t()


def dag_log_probs(z: Tensor, ancestor: Tensor, descendant: Tensor) -> Tensor:
    """log q* of every node of a DAG from its (ancestor, descendant) pairs, each node with itself among them."""
    columns = z.t()
    terms = columns.index_select(0, descendant)  # (pairs, B)
    shift = finite_shift(_group_max(torch.full_like(columns, -torch.inf), ancestor, terms.detach()))
    sums = torch.zeros_like(columns).index_add(0, ancestor, (terms - shift[ancestor]).exp())
    top = finite_shift(columns.detach().amax(dim=0))
    everything = (columns - top).exp().sum(dim=0).log()
    return ((shift - top) + (_safe_log(sums) - everything)).t()


def outside_log_sums(z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(B, K) log-sum-exp of the columns outside of ranges (B, K), before ``low`` and from ``high`` on, in double precision.

    Sums run in from both ends and nothing is subtracted, so what a subtree with nearly all of the mass leaves keeps its digits.
    """
    wide = z.to(wide_dtype(z))
    top = _shared_shift(z)
    lowest = torch.finfo(wide.dtype).min / 4  # in place of -inf, whose gradient would be nan
    if top is not None:
        terms = (wide - top).exp()
        nothing = wide.new_zeros(len(z), 1)
        before = torch.cat([nothing, terms.cumsum(dim=1)[:, :-1]], dim=1)
        after = torch.cat([terms.flip(1).cumsum(dim=1).flip(1), nothing], dim=1)
        return _safe_log(before.gather(1, low) + after.gather(1, high)) + top
    wide = wide.masked_fill(wide == -torch.inf, lowest)
    nothing = wide.new_full((len(z), 1), lowest)
    before = torch.cat([nothing, wide.logcumsumexp(dim=1)[:, :-1]], dim=1)
    after = torch.cat([wide.flip(1).logcumsumexp(dim=1).flip(1), nothing], dim=1)
    return torch.logaddexp(before.gather(1, low), after.gather(1, high))


def sibling_log_probs(z: Tensor, group: Tensor, num_groups: int, fixed: Tensor | None = None) -> Tensor:
    """log softmax within groups of siblings; 0 at the ``fixed`` nodes (a root, whose probability is 1)."""
    columns = z.t()
    shift = _group_max(columns.new_full((num_groups, z.shape[0]), -torch.inf), group, columns.detach())
    shift = finite_shift(shift)[group]
    sums = columns.new_zeros(num_groups, z.shape[0]).index_add(0, group, (columns - shift).exp())
    some = sums != 0  # a group of -inf alone has no sum to divide by
    out = (columns - shift) - torch.where(some, torch.where(some, sums, 1.0).log(), 0.0)[group]
    return (out if fixed is None else out.masked_fill(fixed[:, None], 0.0)).t()


def log_sum(terms: Tensor) -> Tensor:
    """logsumexp over the last dimension; where everything is -inf so is the sum, and its gradient is 0 and not nan."""
    nothing = (terms == -torch.inf).all(dim=-1)
    return terms.masked_fill(nothing[..., None], 0.0).logsumexp(dim=-1).masked_fill(nothing, -torch.inf)


def sum_down(x: Tensor, levels: Levels) -> Tensor:
    """(B, N) sum of x over each node and everything above it, by one pass from the top level down."""
    parts = list(x.t().index_select(0, levels.nodes).split(levels.widths))
    parents = levels.parents.split(levels.widths)
    for k in range(1, len(parts)):
        parts[k] = parts[k] + parts[k - 1].index_select(0, parents[k])
    return torch.cat(parts).index_select(0, levels.places).t()


def _shared_shift(z: Tensor) -> Tensor | None:
    """(B, 1) the largest logit of each row if one shift is enough for the row: no sum of exponentials underflows.

    None where it does not, or where values cannot be looked at.
    """
    if not is_eager(z) or z.numel() == 0:
        return None
    rows = z.detach()
    top = rows.amax(dim=1, keepdim=True)
    near = top - rows.amin(dim=1, keepdim=True) <= _RANGE  # false for a nan, too
    return top if bool(near.all()) else None


def _group_sum_exp(x: Tensor, member: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """(shift, sum) with log-sum-exp of group g = shift[g] + log(sum[g]); an empty group has sum 0."""
    shift = x.new_full((groups,), -torch.inf).scatter_reduce(0, member, x.detach(), "amax")
    shift = finite_shift(shift)
    return shift, x.new_zeros(groups).index_add(0, member, (x - shift.index_select(0, member)).exp())


def _fold(shift: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 2K + 1) segments from left to right -> (B, K + 1) levels from the inside out, each as exp(shift) * total."""
    middle = shift.shape[1] // 2
    shift = shift.masked_fill(total == 0, -torch.inf)
    left = shift[:, :middle].flip(1)
    right = shift[:, middle + 1 :]
    top = finite_shift(torch.maximum(left, right))
    both = total[:, :middle].flip(1) * (left - top).exp() + total[:, middle + 1 :] * (right - top).exp()
    centre = slice(middle, middle + 1)
    return torch.cat([finite_shift(shift[:, centre]), top], dim=1), torch.cat([total[:, centre], both], dim=1)


def _running_lse(shift: Tensor, total: Tensor) -> Tensor:
    """(B, K) log-sum-exp of the first 1, 2, ..., K groups, each given as exp(shift) * total; ``shift`` is constant."""
    shift = shift.masked_fill(total == 0, -torch.inf)
    if shift.numel() * shift.shape[1] > _SQUARES:
        return torch.logcumsumexp(shift + _safe_log(total), dim=1)
    top = finite_shift(shift.cummax(dim=1).values)
    # (B, K, K): j in units of the largest up to k.
    weight = (shift[:, None, :] - top[:, :, None]).exp().tril()
    return top + _safe_log((weight * total[:, None, :]).sum(dim=2))


def _group_max(start: Tensor, group: Tensor, rows: Tensor) -> Tensor:
    """Row g of ``start``, or a row of that group that is larger, column by column."""
    return start.scatter_reduce(0, group[:, None].expand_as(rows), rows, "amax")


def finite_shift(shift: Tensor) -> Tensor:
    """-inf replaced by 0: where all logits are -inf, any shift will do, but -inf less -inf would be nan."""
    return shift.masked_fill(shift == -torch.inf, 0.0)


def _safe_log(x: Tensor) -> Tensor:
    """log(x) with log(0) = -inf, whose gradient is 0 and not nan."""
    positive = x != 0
    return torch.where(positive, torch.where(positive, x, 1.0).log(), -torch.inf)


def without_autocast(z: Tensor) -> AbstractContextManager[Any]:
    """Products of tensors on this one's device keep their precision; a device like meta has no autocast to leave out."""
    device = z.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def wide_dtype(z: Tensor) -> torch.dtype:
    """Double precision, where the device has it."""
    return torch.float32 if z.device.type == "mps" else torch.float64
