"""Plausible mistakes end in a message of hace, or work; never in an exception of numpy or torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from hace import (
    Hierarchy,
    Profile,
    calibrate_scores,
    check,
    compare,
    consensus,
    evaluate,
    fit_temperature,
    guaranteed_threshold,
    metrics,
    predict,
)
from hace.errors import ConfigError, DataError, HaceError, ScoreWarning

H = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")])
RNG = np.random.default_rng(0)
Z = torch.from_numpy(RNG.normal(size=(40, 3)) * 3)
Y = torch.where(
    torch.from_numpy(RNG.random(40) < 0.7), Z.argmax(dim=1), torch.from_numpy(RNG.integers(3, size=40))
)
CALLS: dict[str, Callable[..., Any]] = {
    "predict": lambda z, y, **options: predict(z, H, **options),
    "evaluate": lambda z, y, **options: evaluate(z, y, H, **options),
    "guaranteed_threshold": lambda z, y, **options: guaranteed_threshold(
        z, y, H, **{"accuracy": 0.6, **options}
    ),
    "fit_temperature": lambda z, y, **options: fit_temperature(z, y, H, **options),
    "calibrate_scores": lambda z, y, **options: calibrate_scores(
        z, H.leaf_nodes[y] if isinstance(y, torch.Tensor) and y is Y else y, H, **{"accuracy": 0.6, **options}
    ),
    "brier_score": lambda z, y, **options: metrics.brier_score(z, y, H, **options),
    "confusion": lambda z, y, **options: metrics.confusion(z, y, H, **options),
    "operating_curve": lambda z, y, **options: metrics.operating_curve(z, y, H, **options),
}


@pytest.mark.parametrize("call", CALLS)
def test_tensors_that_require_a_gradient_are_read(call: str) -> None:
    CALLS[call]((Z.clone().requires_grad_() * 2), Y)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (Z.to_sparse(), r"must be dense\. Got a sparse tensor"),
        (torch.empty(40, 3, device="meta"), "must hold values. Got a tensor on the meta device"),
        (Z > 0, None),
        (Z.to(torch.complex64), None),
        (Z[0], None),
        (Z[None], None),
        (None, None),
        ("scores.npy", None),
        ([[1.0], [1.0, 2.0]], None),
        ({"a": 1}, None),
        (csr_matrix(Z.numpy()), None),
    ],
)
def test_scores_that_are_none(call: str, scores: Any, words: str | None) -> None:
    with pytest.raises(DataError, match=words):
        CALLS[call](scores, Y)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "predict"])
@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Y[:, None], r"have one dimension\. Got shape \(40, 1\)\. Drop the dimension"),
        (Y[0], "have one dimension"),
        (Y[:3], None),
        (Y.double(), "must hold integers"),
        (None, "one label for each sample"),
        ("husky", "one label for each sample"),
        (torch.empty(40, dtype=torch.long, device="meta"), "meta device"),
        (Y.to_sparse(), "sparse"),
    ],
)
def test_targets_that_do_not_fit(call: str, target: Any, words: str | None) -> None:
    with pytest.raises(DataError, match=words):
        CALLS[call](Z, target)


ODD: tuple[Any, ...] = (
    np.array([0.5, 0.6]), np.array(0.5), torch.tensor([0.5, 0.2]), "abc", [], {}, object(), 2**70, -1, float("nan"), b"x",
    (1, 2), {1}, np.float32(0.5), 10**400, np.array([1, 2]), ["leaves"],
)  # fmt: skip
OPTIONS = {
    "predict": "rule threshold subset kind outputs",
    "evaluate": "threshold level price only_subset groups compare kind outputs labels subset prior distance rules bins "
    "thresholds metrics temperature guarantee names",
    "guaranteed_threshold": "accuracy confidence of distance at_most rule constrained groups group_share by labels kind "
    "outputs",
    "fit_temperature": "labels kind outputs",
    "calibrate_scores": "accuracy of confidence rule group_share kind outputs temperature seed groups pool subset prior",
}


@pytest.mark.parametrize("call", OPTIONS)
def test_options_of_any_type(call: str) -> None:
    """What is accepted works; what is refused is refused by name."""
    for name in OPTIONS[call].split():
        for value in ODD:
            with suppress(HaceError):
                CALLS[call](Z, Y, **{name: value})


def test_what_the_messages_say() -> None:
    with pytest.raises(ConfigError, match="prior must be a mapping from nodes to weights"):
        evaluate(Z, Y, H, prior="may.csv")
    with pytest.raises(ConfigError, match="rules must be a mapping from titles to options"):
        evaluate(Z, Y, H, rules="leaf")
    with pytest.raises(ConfigError, match=r"rules must hold the options of each rule.*Got 'leaf' for 'best'"):
        evaluate(Z, Y, H, rules={"best": "leaf"})
    with pytest.raises(ConfigError, match=r"guarantee must be what hace\.guaranteed_threshold returns"):
        evaluate(Z, Y, H, guarantee=0.95)
    assert evaluate(Z, Y, H, temperature=2**70).temperature == 2**70
    with pytest.raises(ConfigError, match=r"rule is not an option of evaluate.*Did you mean 'rules'"):
        evaluate(Z, Y, H, rule="leaf")
    with pytest.raises(ConfigError, match="progress must be a function"):
        evaluate(Z, Y, H, progress=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("hierarchy", [None, "tree.csv", {"dog": ["husky"]}])
def test_hierarchies_that_are_none(hierarchy: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: predict(Z, hierarchy),
        lambda: evaluate(Z, Y, hierarchy),
        lambda: fit_temperature(Z, Y, hierarchy),
        lambda: guaranteed_threshold(Z, Y, hierarchy, 0.6),
        lambda: consensus({"a": ["husky"]}, hierarchy),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"hierarchy must be a hace\.Hierarchy\. Got "):
            call()


def test_results_that_are_none() -> None:
    evaluation = evaluate(Z, Y, H)
    for second in (None, "b", Z):
        with pytest.raises(ConfigError, match=r"second must be what hace\.evaluate returns"):
            compare(evaluation, second)  # type: ignore[arg-type]
    sure = guaranteed_threshold(Z, Y, H, 0.6)
    with pytest.raises(ConfigError, match=r"guarantee must be what hace\.guaranteed_threshold returns"):
        check(0.9, Profile.of(Z, H), Z, H)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"calibration must be what hace\.Profile\.of returns"):
        check(sure, "calibration.json", Z, H)  # type: ignore[arg-type]


@pytest.mark.parametrize("votes", ["husky", [["husky"]], {"a": "husky"}, {"a": None}])
def test_votes_that_are_none(votes: Any) -> None:
    with pytest.raises(DataError, match="votes must be a mapping from each sample to a list of nodes"):
        consensus(votes, H)
    for odd in ({"agree": "most"}, {"least": "two"}):
        with pytest.raises(ConfigError, match="must be"):
            consensus({"a": ["husky"]}, H, **odd)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", CALLS)
def test_probabilities_read_as_logits_are_pointed_out(call: str) -> None:
    with pytest.warns(ScoreWarning, match="say kind='probs'"):
        CALLS[call](Z.softmax(dim=1), Y)
    CALLS[call](Z.softmax(dim=1), Y, kind="probs")
    one = torch.tensor([[0.2, 0.3, 0.5], [3.0, -1.0, 0.5]])  # by chance
    predict(one, H)
