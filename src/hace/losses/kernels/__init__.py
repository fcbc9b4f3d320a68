"""The compiled accelerator: optional, for float32 on the CPU.

It computes what :mod:`hace.losses.numerics` computes and passes the same tests; without it everything works in plain PyTorch.
Eager code calls it directly, ``torch.compile`` sees a custom operator, second derivatives go through the PyTorch form.

It is plain C in a CPython extension: without torch headers one build serves every torch version, and with one version of
each loop per vector width it serves every CPU of its kind. ``benchmarks/losses.py`` prints what it gains.

First the questions that decide whether it may serve a call; then losses and path sums, each with its place in autograd and its
operator for torch.compile, the gradient of a loss being made together with its value; then what evaluation asks, without
gradient: there, a function that may not serve a call returns None, and torch computes the same.

Set ``HACE_KERNEL=0`` in the environment, or use :func:`disabled`, to do without.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from hace.errors import DataError

# Private names of torch. Each call costs more than it seems: it pushes other code out of the processor's caches.
_keys_of, _modes = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set
# A set of dispatch keys as something to compare: a number, or in older versions of torch its text.
_as_value: Callable[[Any], int | str] = getattr(torch._C.DispatchKeySet, "raw_repr", repr)

# Whether ``torch.export`` traces this call. Before torch 2.7 it cannot be told from a compilation: then both hold plain
# operators alone.
exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)

_INTERFACE = 11  # of the extension this package is written for: a build of other source takes other arguments

_kernels: Any
try:
    _kernels = importlib.import_module("hace.losses.kernels._kernels")
except ImportError as error:  # not built: no compiler at install time
    _kernels, _reason = None, f"not built ({error})"
else:
    _reason = ""
    if getattr(_kernels, "interface", 1) != _INTERFACE:
        _kernels, _reason = None, "built from other source; install the package again"


def _key_set(*names: str) -> int | str:
    """The value of a set of dispatch keys."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for name in names:
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return _as_value(keys)


# Keys of plain tensors, and of the modes when nothing is recorded: outside and inside of ``torch.inference_mode``.
_PLAIN = {
    d.lower(): {_key_set(d, f"Autocast{d}"), _key_set(d, f"Autocast{d}", f"Autograd{d}", "ADInplaceOrView")}
    for d in ("CPU", "CUDA")
}
_PLAIN_CPU = _PLAIN["cpu"]
_NO_MODES = {_key_set("BackendSelect"), _key_set("BackendSelect", "ADInplaceOrView")}

_SCALAR = torch.empty((), dtype=torch.float32, device="cpu")  # to make others like it, in half the time

_on = os.environ.get("HACE_KERNEL", "1") != "0"


def status() -> str:
    """One line: whether the accelerator is in use, and if not, why."""
    if _kernels is None:
        return f"pure PyTorch: kernel {_reason}"
    return "compiled kernel (float32 on CPU)" if _on else "pure PyTorch: kernel switched off"


@contextmanager
def disabled() -> Iterator[None]:
    """Within this block everything is computed in pure PyTorch."""
    global _on
    before, _on = _on, False
    try:
        yield
    finally:
        _on = before


def usable(z: Tensor, *others: Tensor | None) -> bool:
    """Whether the accelerator serves these logits with these tables and targets, here and now.

    It reads memory, so it serves plain tensors that hold their values, and no call that torch records or rewrites.
    A graph of ``torch.compile`` holds it as a custom operator, which gets plain tensors when the graph runs.
    """
    if not _on or _kernels is None or z.dtype is not torch.float32:
        return False
    if compiling():
        on_cpu = z.is_cpu and all(t is None or t.is_cpu for t in others)
        return on_cpu and not exporting()
    if transformed() or not is_plain(z):
        return False
    for tensor in others:  # noqa: SIM110  (a generator costs as much as the question)
        if tensor is not None and not is_plain(tensor):
            return False
    return True


def is_plain_batch(z: Any, target: Any) -> bool:
    """Whether these are logits (B, C) and labels (B,), both contiguous, that the accelerator serves in eager mode.

    It asks what :func:`usable` and a loss ask, in one call.
    """
    return (
        _on
        and _kernels is not None
        and not torch.compiler.is_compiling()
        and type(z) is type(target) is Tensor
        and z.dtype is torch.float32
        and target.dtype is torch.int64
        and target.ndim == 1
        and _as_value(_modes()) in _NO_MODES
        and forward_ad._current_level < 0
        and _as_value(_keys_of(z)) in _PLAIN_CPU
        and _as_value(_keys_of(target)) in _PLAIN_CPU
        and target.is_contiguous()
        and z.data_ptr() != 0  # nor empty
    )


def compiling() -> bool:
    """Whether ``torch.compile`` traces this call."""
    return torch.compiler.is_compiling()


def transformed() -> bool:
    """Whether torch records or rewrites operations (export, jit, torch.func, forward-mode AD, any dispatch mode).

    Each of them adds to the keys that operations are dispatched by, but for forward-mode AD.
    """
    return _as_value(_modes()) not in _NO_MODES or forward_ad._current_level >= 0


def is_plain(tensor: Tensor, device: str = "cpu") -> bool:
    """Whether a tensor is what its type says: strided memory on a device that can be read directly.

    Whatever is not (sparse, nested, negated on reading, functional, wrapped by ``torch.func``) has other dispatch keys.
    """
    return (
        (type(tensor) is Tensor or type(tensor) is Parameter)
        and _as_value(_keys_of(tensor)) in _PLAIN[device]
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)  # freed storage, as sharded training leaves it
    )


def readable(tensor: Tensor) -> bool:
    """Whether a decision may depend on the values of a tensor, at no cost and without breaking a trace."""
    return not compiling() and not transformed() and is_plain(tensor)


def raise_bad_target(value: float, labels: int, ignore_index: int) -> None:
    """The error for a label outside its range."""
    raise DataError(
        f"target must hold labels from 0 to {labels - 1} (or ignore_index={ignore_index}). Got {int(value)}."
    )


# ---------------------------------------------------------------------- losses and path sums

SOFT_LABELS, SIMILARITY, EXPECTED = 0, 1, 2  # kinds of losses of distances
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
_DOWN, _CENTRED, _UP = 0, 1, 2  # passes of path sums


class BatchLabels(NamedTuple):
    """The labels of a batch, contiguous, and how their losses are reduced."""

    target: Tensor
    ignore_index: int
    reduction: str


class Call(NamedTuple):
    """A loss of the extension and what it takes besides the batch.

    ``function`` is its name, ``tensors`` and ``numbers`` are its own arguments, ``labels`` is how many labels there are and
    ``weight`` their weights. ``arguments`` are the addresses of the tensors and the numbers; a graph has no addresses.
    """

    function: str
    tensors: tuple[Tensor | None, ...]
    numbers: tuple[float, ...]
    labels: int
    weight: Tensor | None
    arguments: tuple[float, ...]


def make_call(
    function: str,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float] = (),
    labels: int = 0,
    weight: Tensor | None = None,
) -> Call:
    """A call of a loss; see :class:`Call`."""
    arguments = () if compiling() else (*map(address, tensors), *numbers)
    return Call(function, tuple(tensors), tuple(numbers), labels, weight, arguments)


def address(tensor: Tensor | None) -> int:
    """Where a tensor's memory begins; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def tree_places(level: Tensor) -> Tensor:
    """Where a tree's inner nodes and leaves are; a call without them finds them itself."""
    return torch.frombuffer(_kernels.tree_places(address(level), len(level)), dtype=torch.int32)


def kernel_loss(
    z: Tensor, call: Call, labels: BatchLabels | None, pure: Callable[[Tensor, Any], Tensor]
) -> Tensor:
    """(B,) losses by the kernel, or their sum."""
    if compiling():
        needed = torch.is_grad_enabled() and z.requires_grad
        tensors = [z.new_empty(0) if t is None else t for t in call.tensors]
        numbers = [*call.numbers, call.labels]
        batch = labels or (None, -100, "none")
        return _loss_op(z, *batch, call.function, tensors, numbers, call.weight, needed)[0]
    return run_loss(z, call, labels, pure)


def compute(
    z: Tensor, with_grad: bool, call: Call, labels: BatchLabels | None, *, summed: bool
) -> tuple[Tensor, Tensor | None]:
    """(B,) losses, or with ``summed`` their sum, and the gradient of that sum if it is wanted; see `kernel_loss`."""
    z = z.contiguous()
    target, ignore_index, reduction = labels or (None, -100, "none")
    rows, columns = z.shape
    loss = torch.empty_like(_SCALAR) if summed else z.new_empty(rows)
    grad = torch.empty_like(z) if with_grad else None
    bad = getattr(_kernels, call.function)(
        *(z.data_ptr(), rows, columns, loss.data_ptr(), summed, address(grad)),
        *(address(target), ignore_index, address(call.weight), _REDUCTIONS[reduction], call.labels),
        *call.arguments,
        torch.get_num_threads(),
    )
    if bad >= 0 and target is not None:
        raise_bad_target(target[bad].item(), call.labels, ignore_index)
    return loss, grad


# What torch.autograd.Function is without torch.func, which never comes here.
class _KernelLoss(torch.autograd.function._SingleLevelFunction):
    @staticmethod
    def forward(ctx, z: Tensor, call: Call, labels: BatchLabels | None, pure: Any) -> Tensor:  # type: ignore[override]
        summed = labels is not None and labels.reduction != "none"
        loss, ctx.grad = compute(z, ctx.needs_input_grad[0], call, labels, summed=summed)
        ctx.save_for_backward(z)
        # A copy: the graph may be used again after the caller has written new labels into the tensor.
        copy = labels and _kernels.copied(labels.target.data_ptr(), 8 * labels.target.numel())
        ctx.rest = call, labels, copy, pure
        return loss

    @staticmethod
    def backward(ctx, *outer: Tensor) -> tuple[Tensor | None, None, None, None]:  # type: ignore[override]
        by = outer[0]
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            (z,) = ctx.saved_tensors
            labels = _labels_of(ctx)
            losses = ctx.rest[3](z, labels and labels.target)
            # Samples are independent: with ones first, an outer gradient of 0 needs no special case.
            (grad,) = torch.autograd.grad(losses, z, z.new_ones(len(z)), create_graph=True)
            return grad * (by[:, None] if by.ndim else by), None, None, None
        # The gradient was made with the loss. It is handed over once, and recomputed if the graph is used twice.
        grad, ctx.grad = ctx.grad, None
        if grad is None:
            (z,) = ctx.saved_tensors
            grad = compute(z, True, ctx.rest[0], _labels_of(ctx), summed=False)[1]
            assert grad is not None
        if by.ndim == 0 and is_plain(by):
            _kernels.multiply(grad.data_ptr(), grad.numel(), by.data_ptr())
        elif by.ndim == 0 or not bool((by == 1.0).all()):
            grad = grad.mul_(by[:, None] if by.ndim else by)
        return grad, None, None, None


def _labels_of(ctx: Any) -> BatchLabels | None:
    """The labels as they were."""
    _, labels, copy, _ = ctx.rest
    if labels is None or len(labels.target) == 0:
        return labels
    return labels._replace(target=torch.frombuffer(bytearray(copy), dtype=torch.int64))


run_loss: Callable[..., Tensor] = _KernelLoss.apply  # type: ignore[attr-defined]  # `kernel_loss` in eager mode


def kernel_log_probs(z: Tensor, parent: Tensor, level: Tensor, nodes: Tensor | None = None) -> Tensor:
    """(B, N) log q* of every node of a tree, without gradient; ``nodes`` are those of the columns, in eager mode only."""
    if compiling():
        return _node_log_probs_op(z, parent, level)
    z = z.detach().contiguous()
    out = z.new_empty(len(z), len(level))
    _kernels.node_log_probs(
        *(z.data_ptr(), *z.shape, len(level), *map(address, (out, parent, level, nodes))),
        torch.get_num_threads(),
    )
    return out


# Schemas are spelled out: torch 2.4 cannot read them from annotations that are strings. An empty tensor stands for None, and
# the number of labels is the last of the numbers: autograd takes neither lists with None nor empty ones.
@torch.library.custom_op(
    "hace::loss",
    mutates_args=(),
    schema="(Tensor z, Tensor? target, int ignore_index, str reduction, str function, Tensor[] tensors, float[] numbers, "
    "Tensor? weight, bool with_grad) -> (Tensor, Tensor)",
)
def _loss_op(
    z: Tensor,
    target: Tensor | None,
    ignore_index: int,
    reduction: str,
    function: str,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    weight: Tensor | None,
    with_grad: bool,
) -> tuple[Tensor, Tensor]:
    batch = None if target is None else BatchLabels(target.contiguous(), ignore_index, reduction)
    given = [t if t.numel() else None for t in tensors]
    call = make_call(function, given, numbers[:-1], int(numbers[-1]), weight)
    loss, grad = compute(z, with_grad, call, batch, summed=False)
    return loss, z.new_empty(0) if grad is None else grad


@_loss_op.register_fake
def _(z: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(z, memory_format=torch.contiguous_format) if rest[-1] else z.new_empty(0)
    return z.new_empty(z.shape[0]), grad


def _save_gradient(ctx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.tensors = len(inputs[5])


def _hand_over_gradient(ctx, outer: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
    return (ctx.saved_tensors[0] * outer[:, None], *(None,) * 4, [None] * ctx.tensors, *(None,) * 3)


_loss_op.register_autograd(_hand_over_gradient, setup_context=_save_gradient)


@torch.library.custom_op(
    "hace::node_log_probs", mutates_args=(), schema="(Tensor z, Tensor parent, Tensor level) -> Tensor"
)
def _node_log_probs_op(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    return kernel_log_probs(z, parent, level)


@_node_log_probs_op.register_fake
def _(z: Tensor, parent: Tensor, level: Tensor) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)


# One pass down the tree, and its transpose, one pass up: each is the other's derivative, as often as you like.


class Tree(NamedTuple):
    """The paths of a tree, its nodes in preorder.

    ``level`` is each node's, the tops' being 0; ``end`` where its subtree ends; ``parent`` the node above it (N for none);
    ``label`` the class of each leaf, in preorder; ``sharing`` is s.
    """

    level: Tensor
    end: Tensor
    parent: Tensor
    label: Tensor
    sharing: float


def path_sums_serve(z: Tensor, tree: Tree) -> bool:
    """Whether the kernel serves these outputs, here and now."""
    return usable(z, *tree[:4])


def path_sums(z: Tensor, tree: Tree, centred: bool, pure: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, N) float32 outputs -> (B, n) logits of the classes, with ``centred`` less the row's largest, as a constant.

    ``pure`` computes the same in plain PyTorch: it serves gradients that are not plain memory.
    """
    way = _CENTRED if centred else _DOWN
    if compiling():
        return _path_sums_op(z, *tree, way)
    return _PathSums.apply(z, tree, way, pure)


class _PathSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, tree: Tree, way: int, pure: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        ctx.tree, ctx.way, ctx.pure = tree, way, pure
        return _path_sums(x, tree, way)

    @staticmethod
    def backward(ctx, outer: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        up = ctx.way != _UP
        if path_sums_serve(outer, ctx.tree):
            found = _PathSums.apply(outer, ctx.tree, _UP if up else _DOWN, ctx.pure)
        elif up:
            with torch.enable_grad():
                z = torch.zeros(len(outer), len(ctx.tree.level), requires_grad=True)
                (found,) = torch.autograd.grad(ctx.pure(z), z, outer, create_graph=outer.requires_grad)
        else:
            found = ctx.pure(outer)
        return found, None, None, None


def _path_sums(x: Tensor, tree: Tree, way: int) -> Tensor:
    x = x.detach().contiguous()
    nodes, classes = len(tree.level), len(tree.label)
    out = x.new_empty(len(x), nodes if way == _UP else classes)
    _kernels.path_sums(
        *(x.data_ptr(), len(x), out.data_ptr(), nodes, classes, tree.level.data_ptr(), tree.label.data_ptr()),
        *(tree.sharing, way, torch.get_num_threads()),
    )
    return out


@torch.library.custom_op(
    "hace::path_sums",
    mutates_args=(),
    schema="(Tensor x, Tensor level, Tensor end, Tensor parent, Tensor label, float sharing, int way) -> Tensor",
)
def _path_sums_op(
    x: Tensor, level: Tensor, end: Tensor, parent: Tensor, label: Tensor, sharing: float, way: int
) -> Tensor:
    return _path_sums(x, Tree(level, end, parent, label, sharing), way)


@_path_sums_op.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    level, _, _, label, _, way = rest
    return x.new_empty(x.shape[0], level.shape[0] if way == _UP else label.shape[0])


def _keep_tree(ctx, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:5])
    ctx.sharing, ctx.way = inputs[5:]


def _turn_round(ctx, outer: Tensor) -> tuple[Tensor | None, ...]:
    way = _DOWN if ctx.way == _UP else _UP
    return (_path_sums_op(outer, *ctx.saved_tensors, ctx.sharing, way), *(None,) * 6)


_path_sums_op.register_autograd(_turn_round, setup_context=_keep_tree)


# ---------------------------------------------------------------------- what evaluation asks


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


def served(z: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernel serves these scores, here and now: not where a gradient is wanted, and not in a compiled graph."""
    wanted = torch.is_grad_enabled() and z.requires_grad
    return not wanted and not compiling() and usable(z, *others)


def best(log_q: Tensor, table: AnswerTable, tie: float) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) the best answers, as nodes or by ``order``, their masses and what they are worth.

    The leaves of (B, N) log q* count, renormalised; a sample without mass on them has the answer -1. Answers closer than
    ``tie``, relative to the larger of 1 and the best, are equal: the most probable counts, then the first.
    """
    z = log_q.detach().contiguous()
    answer = torch.empty(len(z), dtype=torch.long)
    mass, worth = torch.empty(2, len(z), dtype=torch.float64)
    _kernels.best_answers(
        *(z.data_ptr(), *z.shape, *map(address, table[:8]), table.start, table.factor, tie),
        *(answer.data_ptr(), mass.data_ptr(), worth.data_ptr(), torch.get_num_threads()),
    )
    return answer, mass, worth


_MOST_BEST = 64  # the kernel's MOST_BEST


def best_columns(z: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """(B, k) columns of the k greatest scores of each row, best first, equal ones in order, and (B,) the rows' greatest.

    The greatest of a row with NaN is NaN, and its columns mean nothing. None where torch must serve.
    """
    if not 1 <= k <= min(_MOST_BEST, z.shape[1]) or compiling() or not usable(z):
        return None
    z = z.detach().contiguous()
    columns, top = torch.empty(len(z), k, dtype=torch.long), torch.empty(len(z))
    _kernels.best_columns(
        z.data_ptr(), *z.shape, k, columns.data_ptr(), top.data_ptr(), torch.get_num_threads()
    )
    return columns, top


def best_of_levels(log_q: Tensor, depth: Tensor, levels: int) -> tuple[Tensor, Tensor] | None:
    """(B, H) the most probable node of the levels 1 to H of a tree, of equal ones the first, and their log q*.

    A leaf counts at its depth, in int32, and at all levels below.
    """
    if not levels or not served(log_q, depth):
        return None
    nodes = torch.empty(len(log_q), levels, dtype=torch.long)
    masses = torch.empty(len(log_q), levels)
    _call_levels(log_q, depth, levels, nodes, masses, None)
    return nodes, masses


def level_squares(log_q: Tensor, depth: Tensor, levels: int) -> Tensor | None:
    """(B, H) the sum of q*^2 over the nodes of each level, in float64; see :func:`best_of_levels`."""
    if not levels or not served(log_q, depth):
        return None
    squares = torch.empty(len(log_q), levels, dtype=torch.float64)
    _call_levels(log_q, depth, levels, None, None, squares)
    return squares


def _call_levels(log_q: Tensor, depth: Tensor, levels: int, *out: Tensor | None) -> None:
    z = log_q.detach().contiguous()
    _kernels.level_masses(
        *(z.data_ptr(), *z.shape, depth.data_ptr(), levels, *map(address, out), torch.get_num_threads())
    )


def walk(
    log_q: Tensor, children: tuple[Tensor, Tensor, Tensor], begin: int, steps: int
) -> tuple[Tensor, Tensor] | None:
    """(B, steps + 1) from ``begin`` always to the child of greatest log q*, of equal ones the first, and these log q*.

    A leaf repeats. ``children`` are those of `Layout.children`; ``begin`` is a node, or -1 with log q* 0.
    """
    if not served(log_q, *children):
        return None
    z = log_q.detach().contiguous()
    nodes = torch.empty(len(z), steps + 1, dtype=torch.long)
    masses = torch.empty(len(z), steps + 1)
    _kernels.walk_down(
        *(z.data_ptr(), *z.shape, *map(address, children), begin, steps + 1),
        *(nodes.data_ptr(), masses.data_ptr(), torch.get_num_threads()),
    )
    return nodes, masses


def spread(z: Tensor, nodes: Tensor, count: int) -> Tensor | None:
    """(B, n) -> (B, count): the scores of each column at its node, -inf at all others."""
    if not served(z, nodes):
        return None
    z = z.detach().contiguous()
    out = torch.empty(len(z), count)
    _kernels.spread(z.data_ptr(), *z.shape, nodes.data_ptr(), out.data_ptr(), count, torch.get_num_threads())
    return out
