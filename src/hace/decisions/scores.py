"""The gate for scores: any model's outputs in, log q* over the nodes out."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hace.checks import check_choice, is_number, require
from hace.errors import ConfigError, DataError, HierarchyError, ScoreWarning, listed, nearest
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import layout
from hace.hierarchy.hierarchy import check_hierarchy
from hace.hierarchy.names import known_names, node_of, score_columns, unknown_name_hint
from hace.losses.head import node_log_probs
from hace.losses.kernels import best_columns

ScoreKind = Literal["logits", "probs", "log_probs", "node_log_probs", "sigmoid"]
SCORE_KINDS: tuple[str, ...] = get_args(ScoreKind)
INDEPENDENT = ("sigmoid",)  # kinds of which each column is a probability by itself
POOLS = ("log", "mean")  # how the answers to the samples of a group become one

_PROBABILITIES = (
    "Scores are read as logits, but every row is from 0 to 1 and sums to 1. If they are probabilities, say kind='probs' (on "
    "the command line: --kind probs)."
)
# Bounds of independent scores: their logarithms stay finite in single precision.
_LEAST = 2.0**-100
_MOST = 1 - 2.0**-24
_BLOCK = 1 << 22  # (sample, node) entries worked on at once: temporaries of 16 MiB, which the allocator keeps


@dataclass(frozen=True, eq=False)
class Scores:
    """A model's scores with what they mean: the columns, and the form of the numbers.

    Built where scores enter, and handed on as one value. The constructor looks at the shape alone; every method that needs
    the numbers checks them first, once.

    Attributes:
        data: (B, n) over the leaves in label order or (B, N) over the nodes in node order; a tensor, or an array, which is
            read when needed.
        hierarchy: the hierarchy.
        kind: ``"logits"``; ``"probs"`` or ``"log_probs"`` of mutually exclusive outputs, so rows sum to 1;
            ``"node_log_probs"``: log q* of all nodes, as from the ``node_log_probs`` of a loss; ``"sigmoid"``: each column is
            a probability by itself, from 0 to 1, as of detectors, and nothing sums to 1. A node's score is then that of
            "at least one of the columns at or below it", as if they were independent: 1 - prod (1 - p).
        outputs: what the columns are, ``"leaves"`` or ``"nodes"``; ``"auto"`` tells by their number.

    Raises:
        DataError: the shape does not fit, or they are not floating-point numbers.

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> scores = Scores(np.array([[0.5, 0.3, 0.2]]), h, "probs")
        >>> scores.outputs, [round(q, 1) for q in scores.log_q().exp()[0].tolist()], h.nodes
        ('leaves', [0.8, 0.5, 0.3, 0.2], ('dog', 'husky', 'beagle', 'cat'))
    """

    data: Any
    hierarchy: Hierarchy
    kind: str = "logits"
    outputs: str = "auto"
    _sound: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, SCORE_KINDS)
        require("outputs", self.outputs, "'auto', 'leaves' or 'nodes'", isinstance(self.outputs, str))
        data = self.data
        if not (isinstance(data, np.ndarray) and data.dtype.kind == "f"):
            data = as_tensor(data, "scores")
        columns = "nodes" if self.kind == "node_log_probs" else self.outputs
        over = score_columns(tuple(data.shape), self.hierarchy, columns)
        if isinstance(data, Tensor) and not data.is_floating_point():
            raise DataError(f"scores must be floating-point numbers. Got {data.dtype}.")
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "outputs", over)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: slice | np.ndarray) -> Scores:
        return replace(self, data=self.data[rows])

    def blocks(self) -> Iterator[tuple[slice, Scores]]:
        """All rows, checked, in pieces that bound the memory of work on (rows, nodes)."""
        for rows in row_blocks(len(self), self.hierarchy.num_nodes):
            yield rows, self[rows].checked(rows.start)

    def checked(self, first_row: int = 0, top: Tensor | None = None) -> Scores:
        """The same scores as a tensor of logits (``"node_log_probs"`` stay log q*, ``"sigmoid"`` probabilities), float32, or
        float64 where they are.

        ``first_row``: number of the first row, for messages; ``top``: (B,) each row's greatest score or NaN, where known.
        """
        if self._sound:
            return self
        z = _checked(as_tensor(self.data, "scores"), self.kind, first_row, top)
        kind = self.kind if self.kind in ("node_log_probs", *INDEPENDENT) else "logits"
        return replace(self, data=z, kind=kind, _sound=True)

    def cooled(self, temperature: float) -> Scores:
        """Divided by a temperature; a row that would overflow is shifted first, which changes no probability."""
        fits = is_number(temperature) and temperature > 0
        require("temperature", temperature, "a number above 0", fits)
        temperature = float(temperature)
        whole = self.checked()
        if temperature == 1:
            return whole
        self.need_shares("temperature")
        z = whole.data / temperature
        if bool((over := (z == torch.inf).any(dim=1)).any()):
            rows = whole.data[over]
            z[over] = (rows - rows.amax(dim=1, keepdim=True)) / temperature
        return replace(whole, data=z)

    def restricted(self, keep: np.ndarray | None, rows: np.ndarray | None = None) -> Scores:
        """Restricted to some leaves, such as the species of a region.

        Outputs without any of these leaves at or below them get -inf; a softmax then renormalises the rest. An inner output
        of a head over nodes keeps its own mass if one of the leaves is below it. Independent scores of others become 0.
        ``keep``: the nodes of a :func:`subset_mask`; None: all. ``rows``: the numbers of the rows, for messages.
        """
        if keep is None:
            return self
        self._need_outputs("subset")
        whole = self.checked()
        allowed = torch.from_numpy(keep[self.hierarchy.leaf_nodes] if self.outputs == "leaves" else keep)
        nothing = 0.0 if self.kind in INDEPENDENT else -torch.inf
        z = whole.data.masked_fill(~allowed.to(whole.data.device), nothing)
        none = (z == -torch.inf).all(1, keepdim=True)
        numbers = 0 if rows is None else rows
        _refuse_rows(none, "must have some mass in the subset", "Use a larger subset.", numbers)
        return replace(whole, data=z)

    def weighted(self, prior: Mapping[str, float] | None) -> Scores:
        """With the logarithm of a prior weight added to each output; see :func:`prior_weights`."""
        if prior is None:
            return self
        self._need_outputs("prior")
        self.need_shares("prior")
        whole = self.checked()
        log_weight = torch.from_numpy(np.log(prior_weights(self.hierarchy, prior)))
        if self.outputs == "leaves":
            log_weight = log_weight[layout(self.hierarchy).leaf_nodes]
        return replace(whole, data=whole.data + log_weight.to(whole.data))

    def pooled(self, place: np.ndarray, how: str = "mean") -> Scores:
        """One row for each group, of the samples whose ``place`` (B,) says so, counted from 0.

        ``"log"``: the mean of their log-probabilities, renormalised; ``"mean"``: the mean of their probabilities.
        """
        check_choice("pool", how, POOLS)
        self._need_outputs("pool")
        whole = self.checked()
        groups = torch.from_numpy(place)
        independent = self.kind in INDEPENDENT
        log_p = whole.data.clamp(min=_LEAST).log() if independent else whole.data.log_softmax(dim=1)
        values = log_p if how == "log" else log_p.exp()
        sums = values.new_zeros(int(place.max(initial=-1)) + 1, values.shape[1]).index_add_(0, groups, values)
        means = sums / torch.bincount(groups)[:, None]
        if independent:
            return replace(whole, data=means.exp() if how == "log" else means)
        return replace(whole, data=means.log_softmax(dim=1) if how == "log" else means.log())

    def _need_outputs(self, what: str) -> None:
        if self.kind == "node_log_probs":
            raise ConfigError(
                f"{what} needs logits or probabilities: log q* no longer tells a node's own mass from that below it. "
                "Pass scores of kind='logits' or kind='probs'."
            )

    def need_shares(self, what: str) -> None:
        """Refuse what only makes sense where probabilities of classes sum to 1."""
        if self.kind in INDEPENDENT:
            raise ConfigError(
                f"{what} must come with probabilities that sum to 1. Got scores of kind={self.kind!r}, each of which stands by "
                "itself. Leave it out: a threshold, a level and a guarantee need none."
            )

    def log_q(self) -> Tensor:
        """(B, N) log q* of all nodes in node order; of independent scores, their logarithm as the class says."""
        z = self.checked().data
        if self.kind == "node_log_probs":
            return z
        if self.kind in INDEPENDENT:
            return self._log_any()
        # Plain PyTorch gives columns, and all that follows reads rows.
        return node_log_probs(z, self.hierarchy, outputs=self.outputs).contiguous()  # type: ignore[arg-type]

    def _log_any(self) -> Tensor:
        """(B, N) log of 1 - prod (1 - p) over the columns at or below each node."""
        p = self.checked().data.clamp(_LEAST, _MOST)
        hazard = (-(-p).log1p()).log()  # log of -log(1 - p), which adds up
        shares = node_log_probs(hazard, self.hierarchy, outputs=self.outputs)  # type: ignore[arg-type]
        total = hazard.logsumexp(dim=1, keepdim=True)
        return (-(-(shares + total).exp()).expm1()).log().contiguous()

    def leaves(self) -> Tensor:
        """(B, n) scores of the leaves in label order, whose softmax are their probabilities."""
        z = self.checked().data
        if self.kind in INDEPENDENT:
            z = z.clamp(min=_LEAST).log()
        if self.outputs == "leaves":
            return z
        leaves = z.index_select(1, layout(self.hierarchy, z.device).leaf_nodes)
        none = leaves.amax(dim=1, keepdim=True) == -torch.inf
        _refuse_rows(none, "must have some mass on the leaves", "Decide among nodes.")
        return leaves

    def truths(self, target: Any, labels: str = "leaves") -> np.ndarray:
        """(B,) node indices of the truths of the samples; see :func:`as_nodes`."""
        truth = as_nodes(target, self.hierarchy, "target", of=labels).numpy()
        check_truths(truth.shape, len(self))
        return truth


def check_truths(shape: tuple[int, ...], samples: int) -> None:
    """Refuse truths that are not one for each sample."""
    if shape == (samples,):
        return
    rule = f"hold one truth for each of the {samples} samples" if len(shape) == 1 else "have one dimension"
    remedy = ""
    if len(shape) > 1 and 1 in shape:
        remedy = " Drop the dimension of length 1: target.reshape(-1)."
    raise DataError(f"target must {rule}. Got shape {shape}.{remedy}")


def _checked(z: Tensor, kind: str, first_row: int, top: Tensor | None) -> Tensor:
    """The values of scores, as logits or log q*."""
    half = z.dtype not in (torch.float32, torch.float64)
    z = z.float() if half else z

    def refuse(bad: Tensor, rule: str, remedy: str) -> None:
        _refuse_rows(bad, rule, remedy, first_row)

    # One pass finds NaN, which it keeps, +inf and rows of -inf.
    top = z.amax(dim=1, keepdim=True) if top is None else top[:, None]
    refuse(top.isnan(), "must not hold NaN", "Check the model that made them.")
    if kind != "probs" and kind not in INDEPENDENT:
        refuse(top == torch.inf, "must be finite or -inf, not +inf", "Check for overflow in the model.")
        if kind == "node_log_probs":
            refuse(top > 1e-3, "of kind 'node_log_probs' must be at most 0", "Say kind='logits' for logits.")
        refuse(top == -torch.inf, "must not be -inf throughout", "Keep one class.")
        if kind == "logits" and _like_probabilities(z):
            warnings.warn(_PROBABILITIES, ScoreWarning, stacklevel=2)
        return z
    remedy = "Say kind='logits' (on the command line: --kind logits) for logits."
    refuse(z.amin(dim=1, keepdim=True) < 0, f"of kind {kind!r} must not be negative", remedy)
    if kind in INDEPENDENT:
        refuse(top > 1, f"of kind {kind!r} must be at most 1", remedy)
        return z
    total = z.sum(dim=1)
    off = (total - 1).abs() > (2e-2 if half else 1e-3)  # sums of rounded numbers
    if bool(off.any()):
        row = int(off.nonzero()[0, 0])
        raise DataError(
            f"Rows of scores must sum to 1 with kind 'probs'. {int(off.sum())} of {len(z)} do not; row {first_row + row} "
            f"sums to {float(total[row]):.4g}. Give kind='logits' (on the command line: --kind logits) for logits, or divide "
            "each row by its sum."
        )
    return z.log()


def _like_probabilities(z: Tensor) -> bool:
    """Whether all rows are from 0 to 1 and sum to 1 within rounding; a single column is inconclusive."""
    if z.shape[1] < 2 or not len(z):
        return False

    def sums_to_one(rows: Tensor) -> bool:
        return bool((rows >= 0).all()) and bool(((rows.sum(dim=1) - 1).abs() < 1e-3).all())

    return sums_to_one(z[:1]) and sums_to_one(z)  # as a rule the first row decides


def leaf_log_probs(log_q: Tensor, hierarchy: Hierarchy) -> Tensor:
    """(B, n) log-probabilities of the leaves alone, in label order: the leaf outputs renormalised."""
    return Scores(log_q, hierarchy, "node_log_probs", "nodes", _sound=True).leaves().log_softmax(dim=1)


def rank_leaves(log_p: Tensor, k: int) -> Tensor:
    """(B, k) labels of the k greatest scores, best first; equal scores in label order."""
    n = log_p.shape[1]
    require("k", k, f"from 1 to the number of leaves, {n}", isinstance(k, int | np.integer) and 1 <= k <= n)
    ranked = best_columns(log_p, k)
    if ranked is not None:
        return ranked[0]
    values, labels = log_p.topk(min(k + 1, n), dim=1)
    split = values[:, k - 1] == values[:, -1] if n > k else torch.zeros(len(values), dtype=torch.bool)
    values = values[:, :k]
    labels = labels[:, :k]
    tied = (values[:, 1:] == values[:, :-1]).any(dim=1).nonzero().squeeze(1)
    if len(tied):  # topk leaves the order of equal scores open: sort by label, then stably by score
        named, order = labels[tied].sort(dim=1)
        best = values[tied].gather(1, order).sort(dim=1, descending=True, stable=True).indices
        labels[tied] = named.gather(1, best)
    if bool(split.any()):  # equal scores on both sides of the cut: only a full stable sort decides
        whole = log_p[split].sort(dim=1, descending=True, stable=True).indices
        labels[split] = whole[:, :k]
    return labels


def subset_leaves(hierarchy: Hierarchy, subset: Iterable[Any]) -> list[str]:
    """Ids of the leaves of a subset, in label order; an inner node means all leaves below it."""
    one = isinstance(subset, str | int)
    require("subset", subset, "the name of a class, or several", one or _is_iterable(subset))
    given = {str(c) for c in ([subset] if one else subset)}
    if not given:
        raise DataError("subset must name at least one class. Got none.")
    nodes = {name: node_of(hierarchy, name) for name in given}
    unknown = sorted(name for name, node in nodes.items() if node < 0)
    if unknown:
        raise DataError(
            f"subset must name nodes of the hierarchy. Got {listed(unknown)}.{unknown_name_hint(hierarchy, unknown[0])}"
        )
    inside = np.isin(np.arange(hierarchy.num_nodes), list(nodes.values()))
    for parent, child in hierarchy.edges.tolist():  # parents before children
        inside[child] |= inside[parent]
    return [leaf for leaf, node in zip(hierarchy.leaves, hierarchy.leaf_nodes, strict=True) if inside[node]]


def subset_mask(hierarchy: Hierarchy, subset: Iterable[Any]) -> np.ndarray:
    """(N,) whether a leaf of the subset is at or below each node."""
    mask = np.zeros(hierarchy.num_nodes, dtype=bool)
    mask[[hierarchy.index(c) for c in subset_leaves(hierarchy, subset)]] = True
    for parent, child in reversed(hierarchy.edges.tolist()):
        mask[parent] |= mask[child]
    return mask


def inside_subset(hierarchy: Hierarchy, subset: Iterable[Any], truth: np.ndarray) -> np.ndarray:
    """(S,) whether each truth is a class of the subset, or an inner node with no class outside it."""
    allowed = subset_mask(hierarchy, subset)
    others = [hierarchy.nodes[node] for node in hierarchy.leaf_nodes if not allowed[node]]
    return ~subset_mask(hierarchy, others)[truth] if others else np.ones(len(truth), dtype=bool)


def check_prior(prior: Any) -> None:
    """Refuse what is no mapping from ids to numbers above 0."""
    rule = "a mapping from nodes to weights, such as {'lynx': 0.1}"
    is_of_ids = isinstance(prior, Mapping) and all(isinstance(name, str) for name in prior)
    require("prior", prior, rule, is_of_ids)
    for name, value in prior.items():
        if not is_number(value) or value <= 0:
            raise DataError(
                f"prior must be numbers above 0; to rule classes out, use subset. Got {value!r} for {name!r}."
            )


def prior_weights(hierarchy: Hierarchy, prior: Mapping[str, float]) -> np.ndarray:
    """(N,) the prior weight of each node: that of the nearest node named at or above it, else 1.

    Weights say how much likelier a class is here, or in this season, than in training: 0.1 is a tenth as likely.
    """
    check_prior(prior)
    unknown = [name for name in prior if name not in set(hierarchy.nodes)]
    if unknown:
        raise DataError(
            f"prior must name nodes of the hierarchy. Got {unknown[0]!r}.{nearest(str(unknown[0]), hierarchy.nodes)}"
        )
    weights = np.ones(hierarchy.num_nodes)
    named = np.array([node in prior for node in hierarchy.nodes])
    weights[named] = [prior[node] for node in hierarchy.nodes if node in prior]
    for parent, child in hierarchy.edges.tolist():  # parents before children
        if not named[child]:
            weights[child] = weights[parent]
    return weights


def as_nodes(
    labels: Any, hierarchy: Hierarchy, what: str, *, of: str = "leaves", abstain: bool = False
) -> Tensor:
    """Check labels and turn them into node indices on the CPU."""
    check_hierarchy(hierarchy)
    check_choice("labels", of, ("leaves", "nodes"))
    if labels is None or isinstance(labels, str | Mapping):
        raise DataError(f"{what} must hold one label for each sample. Got {labels!r}.")
    if holds_ids(labels):
        return _id_nodes(np.asarray(labels, dtype=object), hierarchy, what, abstain)
    y = as_tensor(labels, what).cpu()
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise DataError(f"{what} must hold integers. Got {y.dtype}.")
    y = y.long()
    count = hierarchy.num_leaves if of == "leaves" else hierarchy.num_nodes
    outside = (y < (-1 if abstain and of == "nodes" else 0)) | (y >= count)
    if bool(outside.any()):
        place = outside.nonzero()[0].tolist()
        raise DataError(
            f"{what} must hold {'labels of leaves' if of == 'leaves' else 'node indices'} from 0 to {count - 1}. "
            f"{int(outside.sum())} of {y.numel()} do not; the first is {int(y[tuple(place)])} at position "
            f"{place[0] if len(place) == 1 else tuple(place)}."
        )
    return layout(hierarchy).leaf_nodes[y] if of == "leaves" else y


def holds_ids(labels: Any) -> bool:
    """Whether labels are ids of nodes: strings, and None for no answer."""
    if isinstance(labels, Tensor):
        return False
    if not isinstance(labels, (list, tuple)):
        values = np.asarray(labels)
        if values.dtype != object:
            return values.dtype.kind in "UT"
        labels = values.ravel()
    rows = (label for label in labels if isinstance(label, (list, tuple)))
    return (
        any(isinstance(label, str) for label in labels)
        or any(map(holds_ids, rows))
        or (len(labels) > 0 and all(label is None for label in labels))
    )


def _id_nodes(ids: np.ndarray, hierarchy: Hierarchy, what: str, abstain: bool) -> Tensor:
    """Node indices of ids."""
    index: dict[Any, int] = dict(known_names(hierarchy))
    if abstain:
        index[None] = -1
    known = (index.get(value, -2) if isinstance(value, (str, NoneType)) else -2 for value in ids.flat)
    nodes = np.fromiter(known, dtype=np.int64, count=ids.size).reshape(ids.shape)
    bad = np.flatnonzero(nodes == -2)
    if len(bad):
        first = ids.flat[bad[0]]
        raise DataError(
            f"{what} must hold ids of the hierarchy, {hierarchy!r}. {len(bad):,} of {ids.size:,} are not; the first is "
            f"{first!r} at position {bad[0]}.{nearest(str(first), hierarchy.nodes)}"
        )
    return torch.from_numpy(nodes)


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of rows, equally many in each, that bound the memory of work on (rows, width)."""
    step = max(1, -(-rows // max(1, round(rows * width / _BLOCK))))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def level_numbers(hierarchy: Hierarchy) -> range:
    """The levels 1 to the deepest, of trees and forests."""
    if not hierarchy.is_tree:
        raise HierarchyError(
            "Levels need a tree or forest: on a DAG a node has no single ancestor at a level."
        )
    return range(1, hierarchy.max_depth + 1)


def _refuse_rows(bad: Tensor, rule: str, remedy: str, numbers: int | np.ndarray = 0) -> None:
    """``numbers``: of the rows, or of the first."""
    rows = bad.any(dim=1)
    if bool(rows.any()):
        first = int(rows.nonzero()[0, 0])
        first = first + numbers if isinstance(numbers, int) else int(numbers[first])
        raise DataError(
            f"scores {rule}. {int(rows.sum())} of {len(rows)} rows break this rule; the first is row {first}. {remedy}"
        )


def as_tensor(values: Any, what: str) -> Tensor:
    """Numbers, from a tensor, an array or lists, as a tensor; ``what``: the name of the argument, for messages."""
    if isinstance(values, np.ndarray) and (not values.flags.writeable or min(values.strides, default=0) < 0):
        values = values.copy()  # torch warns about read-only arrays, and takes no reversed ones
    try:
        tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what} must hold numbers, or ids of nodes, in rows of one length. Got {reprlib.repr(values)}."
        ) from error
    if tensor.layout != torch.strided:
        raise DataError(f"{what} must be dense. Got a sparse tensor; pass {what}.to_dense().")
    if tensor.is_meta:
        raise DataError(f"{what} must hold values. Got a tensor on the meta device, which has none.")
    return tensor


def _is_iterable(values: Any) -> bool:
    """Whether values can be gone through; an array or a tensor of no dimension cannot."""
    return isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0
