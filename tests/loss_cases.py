"""Every loss with telling parameters, beside its loop oracle: what the tests of losses run over.

A `Case` says how a loss is built and which oracle states its value; a `Form` says how it is computed (the
compiled kernel or plain PyTorch) and in which precision.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from hace import LOSSES, Hierarchy, HierarchyError, build_loss
from hace.losses import kernels
from hace.losses.base import HierarchicalLoss
from tests.hierarchies import NAMED, Plain
from tests.reference import losses as oracle
from tests.reference import precise


@dataclass(frozen=True)
class Case:
    """A loss by its registry name, its parameters, and the oracle with its own."""

    loss: str
    params: dict[str, Any]
    oracle: Callable[..., float]
    oracle_params: dict[str, Any] = field(default_factory=dict)
    outputs: str = "leaves"
    trees_only: bool = False
    sharing: float | None = None  # of path sums: the oracle gets the sums, the loss makes them
    scores: Callable[..., oracle.Row] | None = None  # of the classes, where they are not outputs

    def build(self, h: Hierarchy, **shared: Any) -> HierarchicalLoss:
        return build_loss(self.loss, h, **self.params, **shared)

    def columns(self, h: Hierarchy) -> tuple[str, ...]:
        """The ids of the head's columns, in order."""
        return h.leaves if self.outputs == "leaves" else h.nodes

    def classes(self, plain: Plain, ids: Sequence[str], row: Tensor) -> oracle.Row:
        """One sample's logits as the softmax gets them."""
        given = oracle.columns(ids, row.tolist())
        return given if self.sharing is None else oracle.path_sums(plain, given, self.sharing)

    def fits(self, plain: Plain) -> bool:
        return plain.is_tree or not self.trees_only

    def value(self, plain: Plain, ids: Sequence[str], row: Tensor, label: str, weight: Any = None) -> float:
        """What the loops say for one sample."""
        return self.oracle(plain, self.classes(plain, ids, row), label, weight=weight, **self.oracle_params)

    def precise(
        self, plain: Plain, ids: Sequence[str], row: Tensor, label: str, dtype: torch.dtype = torch.float64
    ) -> tuple[float, list[float]]:
        """(value, gradient) of one sample in sixty digits.

        Of path sums this is what they guarantee: sums in double precision, less the largest where that is beyond 16, rounded
        once to `dtype`.
        """
        params = {name: value for name, value in self.oracle_params.items() if name != "outputs"}
        logits = self.classes(plain, ids, row)
        if self.sharing is not None:
            top = max(logits.values())
            top = top if abs(top) > 16 else 0.0
            logits = {c: torch.tensor(z - top, dtype=dtype).item() for c, z in logits.items()}
        if hasattr(self.oracle, "row"):
            value, gradient = precise.table_loss(plain, logits, self.oracle.row(plain, label, **params))
        else:
            value, gradient = getattr(precise, self.oracle.__name__)(plain, logits, label, **params)
        if self.sharing is not None:
            gradient = oracle.path_gradient(plain, gradient, self.sharing)
        return value, [gradient[v] for v in ids]

    def gradient(self, plain: Plain, ids: Sequence[str], row: Tensor, label: str) -> list[float]:
        """What differences of the loops say for one sample."""

        def value(z: oracle.Row) -> float:
            return self.value(plain, ids, torch.tensor([z[v] for v in ids], dtype=torch.float64), label)

        slopes = precise.numeric_gradient(value, oracle.columns(ids, row.tolist()))
        return [slopes[v] for v in ids]


def _hace(loss: str = "hace", outputs: str = "nodes", **params: Any) -> Case:
    preset = {"ancestral_smoothing": {"aggregate": False}, "hace_leaves": {"outputs": "leaves"}}.get(loss, {})
    same = {"d" if name == "dilution" else name: value for name, value in params.items()}
    return Case(loss, params, oracle.hace, {**same, **preset}, outputs)


def _hxe(**params: Any) -> Case:
    same = {name: value or "none" if name == "normalize" else value for name, value in params.items()}
    return Case("hxe", params, oracle.hxe, same, trees_only=True)


def _soft(beta: float, distance: str) -> Case:
    params = {"beta": beta, "distance": distance}
    return Case("soft_label", params, oracle.soft_labels, {"beta": beta, "distance": distance})


def _sim(r: float, distance: str) -> Case:
    params = {"reduction_factor": r, "distance": distance}
    return Case("simloss", params, oracle.simloss, {"r": r, "distance": distance})


def _expected(distance: str) -> Case:
    params = {"distance": distance}
    return Case("expected_distance", params, oracle.expected_distance, {"distance": distance})


def _paths(name: str, sharing: float, of: Case) -> Case:
    """A loss over path sums: its oracle is that of a head over leaves."""
    preset = {} if name.endswith("_paths") else {"outputs": "paths"}
    params = {**of.params, **preset, "sharing": sharing}
    return replace(of, loss=name, params=params, outputs="paths", sharing=sharing)


CASES: dict[str, Case] = {
    "ce": Case("cross_entropy", {}, oracle.ce),
    "ce_smooth": Case("cross_entropy", {"label_smoothing": 0.1}, oracle.ce, {"label_smoothing": 0.1}),
    "soft_label": _soft(10.0, "lca_height"),
    "soft_label_edges": _soft(3.0, "edges"),
    "hxe": _hxe(alpha=0.5),
    "hxe_height": _hxe(alpha=0.5, decay="height"),
    "hxe_tree": _hxe(alpha=0.2, normalize="tree"),
    "hxe_height_tree": _hxe(alpha=0.7, decay="height", normalize="tree"),
    "hce": Case("hce", {}, oracle.hce, {}, "nodes"),
    "hce_unseen": Case("hce", {"unseen": 0.3}, oracle.leave_one_out, {"unseen": 0.3}, "nodes"),
    "hace": _hace(dilution=0.5),
    "hace_smooth": _hace(dilution=0.3, label_smoothing=0.2),
    "hace_soft": _hace(dilution=0.7, soft_label_beta=4.0),
    "hace_soft_depth": _hace(dilution=0.2, soft_label_beta=2.0, distance="lca_depth"),
    "ancestral_smoothing": _hace("ancestral_smoothing", dilution=0.5),
    "ancestral_smooth": _hace("ancestral_smoothing", dilution=0.4, label_smoothing=0.1),
    "hace_leaves": _hace("hace_leaves", "leaves", dilution=0.5),
    "hace_leaves_smooth": _hace("hace_leaves", "leaves", dilution=0.6, label_smoothing=0.1),
    "levelwise": Case("levelwise", {}, oracle.levelwise, {}, "nodes", True, scores=oracle.level_scores),
    "class_embedding": Case(
        "class_embedding",
        {"cross_entropy": 0.5},
        oracle.class_embedding,
        {"cross_entropy": 0.5},
        "nodes",
        True,
        scores=oracle.embedding_scores,
    ),
    "soft_margin": Case("soft_margin", {"margin": 0.5}, oracle.soft_margin, {"margin": 0.5}),
    "simloss": _sim(0.5, "lca_height"),
    "simloss_zero": _sim(0.0, "lca_depth"),
    "expected_distance": _expected("lca_height"),
    "expected_edges": _expected("edges"),
}
CASES |= {
    "ce_paths": _paths("cross_entropy_paths", 1.0, CASES["ce"]),
    "soft_label_paths": _paths("soft_label", 2.0, CASES["soft_label"]),
    "hxe_paths": _paths("hxe", 0.25, CASES["hxe"]),
    "hace_paths": _paths("hace_paths", 0.5, CASES["hace_leaves"]),
    "simloss_paths": _paths("simloss", 0.5, CASES["simloss"]),
    "expected_paths": _paths("expected_distance", 1.0, CASES["expected_distance"]),
    "soft_margin_paths": _paths("soft_margin", 1.0, CASES["soft_margin"]),
    "ce_paths_smooth": _paths("cross_entropy_paths", 0.5, CASES["ce_smooth"]),
    "hace_paths_smooth": _paths("hace_paths", 1.0, CASES["hace_leaves_smooth"]),
}


def _default_case(name: str) -> Case:
    """A loss with its defaults, beside the oracle of its name."""
    outputs = build_loss(name, NAMED["animals"].build()).head.outputs
    return Case(name, {}, getattr(oracle, name), {}, outputs, not _takes(name, NAMED["diamond"]))


def _takes(name: str, plain: Plain) -> bool:
    try:
        build_loss(name, plain.build())
    except HierarchyError:
        return False
    return True


# A new loss needs no case of its own, unless other parameters tell more.
_WITH_CASES = {case.loss for case in CASES.values()}
CASES |= {name: _default_case(name) for name in LOSSES if name not in _WITH_CASES}


def examples(number: int) -> settings:
    """So many random examples; the fixture `form` may serve all of them, since it only switches the kernel."""
    return settings(max_examples=number, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fitting(*names: str) -> list[tuple[str, str]]:
    """(case, name of a hierarchy), where the loss takes that hierarchy."""
    return [(case, name) for case in CASES for name in names if CASES[case].fits(NAMED[name])]


@dataclass(frozen=True)
class Form:
    """How a loss is computed, and how close to the oracle it must then come."""

    name: str
    dtype: torch.dtype

    @property
    def tolerance(self) -> dict[str, float]:
        exact = self.dtype == torch.float64
        return {"rtol": 1e-8 if exact else 1e-5, "atol": 1e-8 if exact else 2e-6}

    @property
    def available(self) -> bool:
        return self.name == "pure" or kernels.status().startswith("compiled")

    @contextmanager
    def used(self) -> Iterator[None]:
        """Computes in this form, or skips where it is not to be had."""
        if self.name == "pure":
            with kernels.disabled():
                yield
        else:
            if not self.available:
                pytest.skip(f"the kernel is not in use: {kernels.status()}")
            yield

    def close(self, actual: Tensor, expected: Any, *where: object) -> None:
        """Asserts that a result comes close enough; `where` tells which case of a loop failed."""
        assert actual.dtype == self.dtype, where
        expected = torch.as_tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(
            actual.detach().double(),
            expected,
            equal_nan=True,
            **self.tolerance,
            msg=lambda text: f"{where}: {text}",
        )


KERNEL = Form("kernel", torch.float32)
PURE = Form("pure", torch.float32)
DOUBLE = Form("pure", torch.float64)
FORMS = [
    pytest.param(KERNEL, id="kernel"),
    pytest.param(PURE, id="pure"),
    pytest.param(DOUBLE, id="float64"),
]


# One case per loss: what is the same whatever the parameters are is tested once per loss.
ONE_OF_EACH = list({case.loss: name for name, case in reversed(CASES.items())}.values())
# `make check` takes one case of each loss.
every_case = pytest.mark.parametrize(
    "case",
    [case if case in ONE_OF_EACH else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
each_loss = pytest.mark.parametrize("case", ONE_OF_EACH)


def in_each_form(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test with every form in turn: one test, all forms that this machine has."""
    signature = inspect.signature(test)

    @wraps(test)
    def run(**arguments: Any) -> None:
        for form in (KERNEL, PURE, DOUBLE):
            if form.available:
                with form.used():
                    test(form=form, **arguments)

    others = [p for name, p in signature.parameters.items() if name != "form"]
    run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return run


def logits(rows: int, columns: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    """Random logits that float32 holds exactly, so that every precision starts from the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, columns, generator=generator)).double()


def with_gradient(loss: HierarchicalLoss, z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(value, gradient); with reduction="none" the gradient of a sum that weights every sample differently."""
    z = z.clone().requires_grad_()
    value = loss(z, target)
    upstream = torch.linspace(1.0, 2.0, value.numel(), dtype=value.dtype).reshape(value.shape)
    (gradient,) = torch.autograd.grad((value * upstream).sum() if loss.reduction == "none" else value, z)
    return value.detach(), gradient
