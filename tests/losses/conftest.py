"""What the tests of losses share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loss_cases import FORMS, Form


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[Form]:
    """How losses are computed, in turn: the compiled kernel, plain PyTorch, double precision."""
    with request.param.used():
        yield request.param
