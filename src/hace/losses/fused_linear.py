"""The last layer and the loss in one: the logits of the whole batch never exist.

A million outputs times a batch of 256 are a gigabyte of logits, and as much again for their gradient. :func:`path_losses`
computes them a chunk of columns at a time: one pass for the log-sum-exps along each sample's path, and in the backward pass
a second that computes each chunk again, turns it into its gradient in place, and leaves finished rows of the weights'
gradient. That is four products where the plain form needs three. :func:`sample_losses` is for losses that need all logits
of a sample at once, a few samples at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hace.losses.kernels.torch_internals import compiling, transformed
from hace.losses.numerics import (
    PathRanges,
    finite_shift,
    segment_members,
    table_cross_entropy,
    wide_dtype,
    without_autocast,
)

_ENTRIES = 1 << 18  # logits of a chunk of columns: small enough for a processor's cache
_WIDER = 64  # times that on an accelerator
_SAMPLE_ENTRIES = 1 << 24  # logits of a chunk of samples: each reads and writes the weights' gradient once
_NARROWEST = 256  # columns of a chunk, whatever the batch


class Layer(NamedTuple):
    """A linear layer and its input; ``dtype`` is the precision of its products."""

    features: Tensor  # (B, d)
    weight: Tensor  # (C, d)
    bias: Tensor | None  # (C,)
    dtype: torch.dtype

    def logits(self, memory: Tensor | None = None) -> Tensor:
        """(B, C) logits, in float32 or wider."""
        with without_autocast(self.features):
            x, w, b = (None if t is None else t.to(self.dtype) for t in self[:3])
            assert x is not None
            assert w is not None
            if memory is None or _wide_type(self.dtype) is not self.dtype:
                return F.linear(x, w, b).to(_wide_type(self.dtype))
            z = torch.mm(x, w.t(), out=memory[: len(x) * len(w)].view(len(x), len(w)))
            return z if b is None else z.add_(b)

    def columns(self, pick: slice | Tensor) -> Layer:
        """The same with some of the outputs."""
        return self._replace(weight=self.weight[pick], bias=None if self.bias is None else self.bias[pick])


def supports_chunks(*tensors: Tensor | None) -> bool:
    """Whether these tensors can be computed with in chunks: torch neither records nor rewrites the call."""
    plain = all(t is None or type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
    return plain and not compiling() and not transformed()


def layer_dtype(features: Tensor, weight: Tensor) -> torch.dtype:
    """The precision that ``F.linear`` has here and now, autocast considered."""
    device = features.device.type
    narrow = torch.is_autocast_enabled(device) and torch.float64 not in (features.dtype, weight.dtype)
    return torch.get_autocast_dtype(device) if narrow else weight.dtype


def path_losses(layer: Layer, path: PathRanges, in_torch: Callable[[Tensor], Tensor]) -> Tensor:
    """(B,) losses of rows along paths, a chunk of columns at a time; ``in_torch``: from logits, for second derivatives."""
    return _ByColumns.apply(layer.features, layer.weight, layer.bias, layer.dtype, path, in_torch)  # type: ignore[return-value]


def sample_losses(layer: Layer, losses: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """(B,) losses, a chunk of samples at a time; ``losses`` takes the logits of some samples, and which these are."""
    return _BySamples.apply(layer.features, layer.weight, layer.bias, layer.dtype, losses)  # type: ignore[return-value]


class _ByColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, weight, bias, dtype, path, in_torch) -> Tensor:  # type: ignore[no-untyped-def, override]
        layer = Layer(features, weight, bias, dtype)
        chunks = _Chunks(path, layer)
        top, total = chunks.level_sums(layer)
        ctx.save_for_backward(features, weight, bias)
        ctx.rest = (dtype, chunks, top, total, in_torch)
        inside, everything = torch.split(_lse_outward(top, total), [path.low.shape[1], 1], dim=1)
        return table_cross_entropy(inside - everything, path.value.to(top.dtype)).to(_wide_type(dtype))

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        dtype, chunks, top, total, in_torch = ctx.rest
        x, w, b = ctx.saved_tensors
        layer = Layer(x, w, b, dtype)
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            return _differentiable(ctx, layer, in_torch, outer[0])
        gradient = _Gradient(layer, ctx.needs_input_grad, torch.empty_like)
        top, factor = _level_factors(top, total, chunks.path.value, outer[0])
        memory = chunks.memory(layer)
        for chunk in chunks.all:
            part = layer.columns(chunk.columns)
            slope = chunks.slopes(chunk, part.logits(memory), top, factor)
            gradient.add_columns(part, chunk.columns, slope)
        return (*gradient.parts, None, None, None)


class _BySamples(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, weight, bias, dtype, losses) -> Tensor:  # type: ignore[no-untyped-def, override]
        layer = Layer(features, weight, bias, dtype)
        ctx.save_for_backward(features, weight, bias)
        ctx.rest = (dtype, losses)
        parts = [losses(part.logits(), where) for part, where in _sample_chunks(layer)]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        dtype, losses = ctx.rest
        x, w, b = ctx.saved_tensors
        layer = Layer(x, w, b, dtype)
        if torch.is_grad_enabled():
            return _differentiable(ctx, layer, lambda z: losses(z, slice(None)), outer[0])
        gradient = _Gradient(layer, ctx.needs_input_grad, torch.zeros_like)
        for part, where in _sample_chunks(layer):
            z = part.logits().requires_grad_()
            with torch.enable_grad():
                each = losses(z, where)
            (slope,) = torch.autograd.grad(each, z, outer[0][where])
            gradient.add_samples(part, where, slope)
        return (*gradient.parts, None, None)


def _sample_chunks(layer: Layer) -> list[tuple[Layer, slice]]:
    batch = len(layer.features)
    few = max(1, _SAMPLE_ENTRIES // len(layer.weight))
    places = [slice(first, first + few) for first in range(0, max(batch, 1), few)]
    return [(layer._replace(features=layer.features[place]), place) for place in places]


def _differentiable(ctx: Any, layer: Layer, in_torch: Callable[[Tensor], Tensor], outer: Tensor) -> Any:
    """The gradient as a graph, by the plain form: all logits exist."""
    needed = ctx.needs_input_grad[:3]
    wanted = [t for t, need in zip(layer[:3], needed, strict=True) if need and isinstance(t, Tensor)]
    grads = iter(torch.autograd.grad(in_torch(layer.logits()), wanted, outer, create_graph=True))
    first = [next(grads) if need else None for need in needed]
    return (*first, *(None,) * (len(ctx.needs_input_grad) - 3))


class _Gradient:
    """Gradients of a layer's features, weights and bias, filled a chunk at a time."""

    def __init__(self, layer: Layer, needed: tuple[bool, ...], initial: Callable[[Tensor], Tensor]) -> None:
        x, w, b, dtype = layer
        self._narrow = dtype
        self._x = torch.zeros_like(x, dtype=_wide_type(dtype)) if needed[0] else None
        self._w = initial(w) if needed[1] else None
        self._b = initial(b) if needed[2] and b is not None else None
        self._given = (x.dtype, x.to(dtype))

    @property
    def parts(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return None if self._x is None else self._x.to(self._given[0]), self._w, self._b

    def add_columns(self, part: Layer, columns: slice | Tensor, slope: Tensor) -> None:
        """The share of some outputs: their rows of the weights' gradient are then finished."""
        narrow = slope.to(self._narrow)
        with without_autocast(slope):
            if self._x is not None:
                _add_product(self._x, narrow, part.weight.to(self._narrow))
            if self._w is not None and isinstance(columns, slice) and self._w.dtype is self._narrow:
                torch.mm(narrow.t(), self._given[1], out=self._w[columns])
            elif self._w is not None:
                self._w[columns] = (narrow.t() @ self._given[1]).to(self._w.dtype)
        if self._b is not None:
            self._b[columns] = slope.sum(dim=0).to(self._b.dtype)

    def add_samples(self, part: Layer, samples: slice, slope: Tensor) -> None:
        """The share of some samples."""
        narrow = slope.to(self._narrow)
        with without_autocast(slope):
            if self._x is not None:
                self._x[samples] = (narrow @ part.weight.to(self._narrow)).to(self._x.dtype)
            if self._w is not None:
                _add_product(self._w, narrow.t(), self._given[1][samples])
        if self._b is not None:
            self._b += slope.sum(dim=0).to(self._b.dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype is a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


class _Chunk(NamedTuple):
    """Positions ``first`` to ``last``, their columns, and the samples whose path has an edge inside."""

    number: int
    first: int
    last: int
    columns: slice | Tensor
    cut: Tensor


class _Chunks:
    """The positions in chunks, and the level of the path that each sample has in each.

    Level 0 is the innermost range, level j what range j adds to range j - 1, level K the rest. Nearly every sample is on one
    level in nearly every chunk; the others are cut.
    """

    def __init__(self, path: PathRanges, layer: Layer) -> None:
        self.path = path
        batch = len(path.low)
        size = len(layer.weight)
        entries = _ENTRIES if path.low.device.type == "cpu" else _ENTRIES * _WIDER
        width = self._width = min(size, max(_NARROWEST, entries // batch))
        starts = torch.arange(0, size, width, device=path.low.device)
        low = path.low[:, :, None]
        high = path.high[:, :, None]
        self.level = torch.zeros(batch, len(starts), dtype=torch.long, device=starts.device)  # at its start
        cut = torch.zeros_like(self.level, dtype=torch.bool)
        for j in range(path.low.shape[1]):
            self.level += (low[:, j] > starts) | (high[:, j] <= starts)
            for edge in (low[:, j], high[:, j]):
                cut |= (edge > starts) & (edge < starts + width)
        samples = cut.t().nonzero()[:, 1].split(cut.sum(dim=0).tolist())
        self.all = []
        for number, sample in enumerate(samples):
            first = number * width
            last = min(number * width + width, size)
            columns = slice(first, last) if path.column is None else path.column[first:last].long()
            self.all.append(_Chunk(number, first, last, columns, sample))

    def level_sums(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """(top, total), (B, K + 1): the sum of exp over a level is exp(top) * total; -inf and 0 where it is empty."""
        batch = len(self.path.low)
        levels = self.path.low.shape[1] + 1
        tops = []
        totals = []
        places = []
        sample = torch.arange(batch, device=self.level.device)
        memory = self.memory(layer)
        for chunk in self.all:
            z = layer.columns(chunk.columns).logits(memory)
            place = self.level[:, chunk.number] + levels * sample
            if len(chunk.cut):
                inner = z[chunk.cut].flatten()
                member = self._levels_inside(chunk) + (levels * chunk.cut)[:, None]
                top, total = _merged(inner, torch.ones_like(inner), member.flatten(), batch * levels)
                counts = total != 0  # nan stays
                for kind, new in zip((tops, totals), (top, total), strict=True):
                    kind.append(new[counts].to(wide_dtype(z)))
                places.append(counts.nonzero().flatten())
            top = z.amax(dim=1)
            total = z.sub_(finite_shift(top)[:, None]).exp_().sum(dim=1)
            total[chunk.cut] = 0.0
            tops.append(top.to(wide_dtype(z)))
            totals.append(total.to(wide_dtype(z)))
            places.append(place)
        top, total = _merged(torch.cat(tops), torch.cat(totals), torch.cat(places), batch * levels)
        return top.view(batch, levels), total.view(batch, levels)

    def memory(self, layer: Layer) -> Tensor:
        """Room for the logits of a chunk."""
        size = len(layer.features) * self._width
        return torch.empty(size, dtype=layer.dtype, device=layer.features.device)

    def slopes(self, chunk: _Chunk, z: Tensor, top: Tensor, factor: Tensor) -> Tensor:
        """The logits of a chunk become their gradient: exp(z - top) * factor of each one's level, in place."""
        inner = z[chunk.cut]
        level = self.level[:, chunk.number, None]
        z.sub_(top.gather(1, level)).exp_().mul_(factor.gather(1, level))
        if len(chunk.cut):
            levels = self._levels_inside(chunk)
            shift = top[chunk.cut].gather(1, levels)
            scale = factor[chunk.cut].gather(1, levels)
            z[chunk.cut] = (inner - shift).exp_() * scale
        return z

    def _levels_inside(self, chunk: _Chunk) -> Tensor:
        """(cut samples, columns of the chunk) levels."""
        width = chunk.last - chunk.first
        depth = self.path.low.shape[1]
        low = (self.path.low[chunk.cut] - chunk.first).clamp(0, width)
        high = (self.path.high[chunk.cut] - chunk.first).clamp(0, width)
        ends = low.new_full((len(low), 1), width)
        edges = torch.cat([torch.zeros_like(ends), low.flip(1), high, ends], dim=1)
        segment = segment_members(edges, width).view(len(low), width)
        first = (2 * depth + 1) * torch.arange(len(low), device=low.device)
        return (segment - first[:, None] - depth).abs()


def _merged(top: Tensor, total: Tensor, place: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Sums of terms exp(top) * total by their places, in the same form; -inf and 0 where there is none."""
    top = top.masked_fill(total == 0, -torch.inf)
    largest = top.new_full((size,), -torch.inf).scatter_reduce(0, place, top, "amax")
    shares = total * (top - finite_shift(largest)[place]).exp()
    return largest, shares.new_zeros(size).index_add(0, place, shares)


def _lse_outward(top: Tensor, total: Tensor) -> Tensor:
    """(B, K + 1) log-sum-exp of the levels up to each one, relative to the row's largest logit."""
    best = finite_shift(top.amax(dim=1, keepdim=True))
    return torch.logcumsumexp(top - best + total.log(), dim=1)


def _level_factors(top: Tensor, total: Tensor, value: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """(shift, factor), (B, K + 1): the gradient at a logit z of level r is exp(z - shift[r]) * factor[r].

    With L_r the log-sum-exp of the levels up to r and S the sum of the row, that is exp(z - L_r) * [exp(L_r - L_K) * S
    - sum over j >= r of T_j exp(L_r - L_j)], where every exponent is at most 0.
    """
    lse = _lse_outward(top, total)
    wide = top.dtype
    value = value.to(wide)
    share = torch.zeros_like(lse)  # sum over j >= r of T_j exp(L_r - L_j), from the outside in
    for r in range(value.shape[1] - 1, -1, -1):
        step = (finite_shift(lse[:, r]) - finite_shift(lse[:, r + 1])).clamp(max=0.0)
        share[:, r] = value[:, r] + step.exp() * share[:, r + 1]
    slope = (lse - lse[:, -1:]).exp() * value.sum(dim=1, keepdim=True) - share
    shift = finite_shift(top.cummax(dim=1).values)
    best = finite_shift(top.amax(dim=1, keepdim=True))
    factor = slope * (shift - best - lse).clamp(max=0.0).exp() * outer.to(wide)[:, None]
    factor = factor.masked_fill(lse == -torch.inf, 0.0)
    return shift.to(outer.dtype), factor.to(outer.dtype)


def _wide_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
