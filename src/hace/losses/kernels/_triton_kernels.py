"""Path losses in Triton: one program per row, no atomics, so that the same logits give the same bits.

The subtrees of a path are nested ranges of positions. A program walks them from the inside out: level 0 is the innermost
range, level j what range j adds to range j - 1 (a piece on the left and one on the right), level K the rest. Every lane keeps
its own largest logit and sum; a level ends with one reduction. What is one number per level is in double precision.

Needs Triton; :mod:`hace.losses.kernels.on_cuda` imports this where it is at hand.
"""

# pyright: reportInvalidTypeForm=false
from __future__ import annotations

from typing import Any

triton: Any
tl: Any
try:
    import triton
    import triton.language as tl
except ImportError:  # a reader of this file need not have it
    triton = None
    tl = None


def _jit(function: Any) -> Any:
    """A kernel, where there is Triton."""
    return function if triton is None else triton.jit(function)


# Arguments, throughout: `z` (B, columns) float32 logits with rows `stride` apart; `column` the column at each position, read
# if PERMUTED; `low`, `high` (B, depth) int64 ranges and `value` (B, depth) float64 entries of the table; `top`, `total`
# (B, depth + 1) float64: the sum of exp over everything up to a level is exp(top) * total. BLOCK is the number of lanes.


@_jit
def _places(column, at, end, PERMUTED: tl.constexpr):
    """The columns at positions, or the positions themselves."""
    if PERMUTED:
        at = tl.load(column + at, mask=at < end, other=0).to(tl.int64)
    return at


@_jit
def _piece_sums(z, column, begin, end, top, total, PERMUTED: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the positions from begin to end to every lane's (top, total)."""
    first = begin
    while first < end:
        at = first + tl.arange(0, BLOCK)
        x = tl.load(z + _places(column, at, end, PERMUTED), mask=at < end, other=float("-inf"))
        new = tl.maximum(top, x, propagate_nan=tl.PropagateNan.ALL)
        shift = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - shift) + tl.exp(x - shift)
        top = new
        first += BLOCK
    return top, total


@_jit
def path_forward(
    z, column, low, high, value, loss, top, total, stride, columns, depth, PERMUTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """loss[b] = - sum_j T_j (L_j - L_all), and (top, total) of every level for the gradient."""
    row = tl.program_id(0).to(tl.int64)
    z += row * stride
    low += row * depth
    high += row * depth
    value += row * depth
    top += row * (depth + 1)
    total += row * (depth + 1)
    left = tl.full((), 0, tl.int64)
    right = tl.full((), 0, tl.int64)
    largest = tl.full((), float("-inf"), tl.float64)
    summed = tl.full((), 0.0, tl.float64)
    lse = largest
    weighted = tl.full((), 0.0, tl.float64)
    mass = tl.full((), 0.0, tl.float64)
    for j in range(depth + 1):
        inner = j < depth
        begin = tl.load(low + j, mask=inner, other=0)
        end = tl.load(high + j, mask=inner, other=columns)
        entry = tl.load(value + j, mask=inner, other=0.0)
        if j == 0:  # nothing inside yet: all of it is on the left
            left = end
            right = end
        lanes = tl.full((BLOCK,), float("-inf"), tl.float32)
        sums = tl.full((BLOCK,), 0.0, tl.float32)
        lanes, sums = _piece_sums(z, column, begin, left, lanes, sums, PERMUTED, BLOCK)
        lanes, sums = _piece_sums(z, column, right, end, lanes, sums, PERMUTED, BLOCK)
        best = tl.max(lanes, 0)
        shift = tl.where(best == float("-inf"), 0.0, best)
        level = tl.sum(sums * tl.exp(lanes - shift), 0).to(tl.float64)
        new = tl.maximum(largest, best.to(tl.float64), propagate_nan=tl.PropagateNan.ALL)
        base = tl.where(new == float("-inf"), 0.0, new)
        summed = summed * tl.exp(largest - base) + level * tl.exp(best.to(tl.float64) - base)
        largest = new
        tl.store(top + j, largest)
        tl.store(total + j, summed)
        lse = base + tl.log(summed)
        weighted += tl.where(entry == 0.0, 0.0, entry * lse)
        mass += entry
        left = begin
        right = end
    tl.store(loss + row, (mass * lse - weighted).to(tl.float32))


@_jit
def _piece_slopes(z, grad, column, begin, end, shift, factor, PERMUTED: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient at the positions from begin to end: exp(z - shift) * factor."""
    first = begin
    while first < end:
        at = first + tl.arange(0, BLOCK)
        place = _places(column, at, end, PERMUTED)
        x = tl.load(z + place, mask=at < end, other=float("-inf"))
        tl.store(grad + place, tl.exp(x - shift) * factor, mask=at < end)
        first += BLOCK


@_jit
def path_backward(
    z, column, low, high, value, outer, grad, top, total, stride, columns, depth,
    PERMUTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient, from the outside in.

    At a logit z of level r it is outer * exp(z - L_r) * [exp(L_r - L_all) S - sum over j >= r of T_j exp(L_r - L_j)].
    """
    row = tl.program_id(0).to(tl.int64)
    z += row * stride
    grad += row * columns
    low += row * depth
    high += row * depth
    value += row * depth
    top += row * (depth + 1)
    total += row * (depth + 1)
    upstream = tl.load(outer + row).to(tl.float64)
    mass = tl.full((), 0.0, tl.float64)
    for j in range(depth):
        mass += tl.load(value + j)
    best = tl.load(top + depth)  # of all logits: tops are taken relative to it, which keeps their digits
    best = tl.where(best == float("-inf"), 0.0, best)
    everything = tl.log(tl.load(total + depth))
    outside = everything  # L of the level outside, less best
    share = tl.full((), 0.0, tl.float64)  # sum over j >= r of T_j exp(L_r - L_j)
    begin = tl.full((), 0, tl.int64)
    end = tl.full((), 0, tl.int64) + columns
    for i in range(depth + 1):
        r = depth - i
        largest = tl.load(top + r)
        summed = tl.load(total + r)
        nothing = largest == float("-inf")
        shift = tl.where(nothing, 0.0, largest)
        lse = shift - best + tl.log(summed)
        entry = tl.load(value + r, mask=r < depth, other=0.0)
        share = entry + tl.where(nothing, 0.0, tl.exp(lse - outside)) * share
        slope = tl.exp(lse - everything) * mass - share
        factor = tl.where(nothing, 0.0, slope * upstream / summed).to(tl.float32)
        outside = lse
        inside = tl.load(low + r - 1, mask=r > 0, other=0)
        ends = tl.load(high + r - 1, mask=r > 0, other=0)
        if r == 0:  # no range inside: all of it is on the left
            inside = end
            ends = end
        _piece_slopes(z, grad, column, begin, inside, shift.to(tl.float32), factor, PERMUTED, BLOCK)
        _piece_slopes(z, grad, column, ends, end, shift.to(tl.float32), factor, PERMUTED, BLOCK)
        begin = inside
        end = ends
