"""What must not slip through: tensors that are elsewhere, rows without any probability, modes that torch switches on."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch.autograd import forward_ad

import hace
from hace import Hierarchy
from hace.losses import kernels

ANIMALS = Hierarchy.from_paths(
    [("animal", "dog", "husky"), ("animal", "dog", "beagle"), ("animal", "cat")],
    leaves=["cat", "husky", "beagle"],
)
FORMS = {"kernel": nullcontext, "pure": kernels.disabled}
TARGET = torch.tensor([1])


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> AbstractContextManager[None]:
    if request.param == "kernel" and not kernels.kernel_supports(torch.zeros(1)):
        pytest.skip(kernels.status())
    return FORMS[request.param]()


def test_tables_on_another_device_are_an_error_and_no_crash() -> None:
    z = torch.zeros(2, 5)
    with pytest.raises(hace.DataError, match="meta"):
        hace.HACELoss(ANIMALS).to("meta")(z, torch.tensor([0, 1]))
    with pytest.raises(hace.DataError, match="meta"):
        hace.HACELoss(ANIMALS, 0.5, 0.1).to("meta")(z, torch.tensor([0, 1]))


def test_tables_survive_to_empty_and_narrow_types() -> None:
    z, y = torch.randn(2, 5), torch.tensor([0, 1])
    expected = hace.HACELoss(ANIMALS, 0.3)(z, y)
    moved = hace.HACELoss(ANIMALS, 0.3).to("meta").to_empty(device="cpu")
    assert torch.equal(moved(z, y), expected)
    assert torch.equal(hace.HACELoss(ANIMALS, 0.3).half().to(torch.bfloat16)(z, y), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "row",
    [[-torch.inf] * 5, [0, torch.inf, 0, 0, 0], [torch.nan] * 5, [0, 0, 0, torch.nan, 0]],
    ids=["all -inf", "+inf", "all nan", "one nan"],
)
def test_rows_without_a_distribution_give_nan(
    row: list[float], smoothing: float, form: AbstractContextManager[None]
) -> None:
    z = torch.tensor([row], dtype=torch.float32)
    with form:
        assert hace.HACELoss(ANIMALS, 0.5, smoothing)(z, TARGET).isnan()


def test_a_nan_logit_reaches_the_gradient(form: AbstractContextManager[None]) -> None:
    z = torch.tensor([[0, 0, 0, torch.nan, 0]], requires_grad=True)
    with form:
        hace.HACELoss(ANIMALS, 0.5)(z, TARGET).backward()
    assert z.grad is not None
    assert z.grad.isnan().any()


def test_a_negative_label_is_refused_inside_a_graph(form: AbstractContextManager[None]) -> None:
    loss = torch.compile(hace.HACELoss(ANIMALS), backend="eager")
    with form, pytest.raises((RuntimeError, IndexError, ValueError)):
        loss(torch.zeros(1, 5), torch.tensor([-1]))


def test_a_head_made_for_inference_can_train() -> None:
    h = Hierarchy.flat(["never", "seen", "before"])
    with torch.inference_mode():
        hace.node_log_probs(torch.zeros(1, 3), h)
    z = torch.zeros(1, 3, requires_grad=True)
    hace.node_log_probs(z, h)[0, 0].backward()
    assert z.grad is not None


def test_the_root_is_certain(form: AbstractContextManager[None]) -> None:
    z = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    with form:
        assert (hace.node_log_probs(z, ANIMALS)[:, 0].abs() <= 1e-7).all()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own derivatives use it
def test_forward_mode_goes_through_pytorch() -> None:
    z, tangent = torch.randn(1, 5), torch.randn(1, 5)
    with forward_ad.dual_level():
        out = hace.node_log_probs(forward_ad.make_dual(z, tangent), ANIMALS)
        derivative = forward_ad.unpack_dual(out).tangent
    assert derivative is not None
    step = 1e-3
    with kernels.disabled():
        ahead = hace.node_log_probs((z + step * tangent).double(), ANIMALS)
        behind = hace.node_log_probs((z - step * tangent).double(), ANIMALS)
    torch.testing.assert_close(derivative, ((ahead - behind) / (2 * step)).float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("loss", hace.losses.registry.CLASSES)
def test_keywords_of_another_loss_are_refused(loss: str) -> None:
    made = getattr(hace, loss)
    assert issubclass(made, hace.HACELoss) == (loss == "HACELoss")
    own = inspect.signature(made).parameters
    assert all(p.kind is not p.VAR_KEYWORD for p in own.values())
    assert {"labels", "weight", "ignore_index", "reduction"} <= set(own)
    for name, value in {"dilution": 0.3, "soft_label_beta": 5.0, "aggregate": False, "alpha": 0.1}.items():
        if name not in own:
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
                made(ANIMALS, **{name: value})


def test_a_misspelt_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'label'"):
        hace.HACELoss(ANIMALS, label="nodes")  # pyright: ignore[reportCallIssue]
    with pytest.raises(hace.ConfigError, match=r"Got 'label'\. Did you mean 'labels'\?"):
        hace.build_loss("hace", ANIMALS, label="nodes")


@pytest.mark.parametrize(
    ("argument", "values"),
    {
        "ignore_index": [2**63, -(2**63) - 1, 0.5, "0", None, True],
        "weight": [
            "x",
            ["a", "b", "c"],
            [1.0, [2.0], 3.0],
            object(),
            torch.zeros(3, device="meta"),
            [1j, 1, 1],
        ],
    }.items(),
)
def test_odd_values_of_shared_arguments_are_config_errors(argument: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(hace.ConfigError, match=f"^{argument} must be "):
            hace.HACELoss(ANIMALS, **{argument: value})  # type: ignore[arg-type]
    hace.HACELoss(ANIMALS, ignore_index=2**63 - 1, weight=torch.ones(3, dtype=torch.bfloat16))


def test_hxe_stays_finite_whatever_a_root_would_weigh() -> None:
    assert hace.HXELoss(ANIMALS, 800.0)(torch.zeros(1, 3), TARGET).isfinite()


def test_cross_entropy_is_torchs_own() -> None:
    z, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, -100, 1])
    weight = torch.tensor([1.0, 2.0, 0.5])
    ours = hace.CrossEntropyLoss(ANIMALS, 0.1, weight=weight)(z, y)
    theirs = torch.nn.CrossEntropyLoss(weight, label_smoothing=0.1)(z, y)
    torch.testing.assert_close(ours, theirs)
