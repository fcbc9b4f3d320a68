"""Every mutation on the lists still applies; `make mutations` runs them."""

from __future__ import annotations

from tests.mutations.run import misfits, read_mutations


def test_every_listed_mutation_applies_to_the_code_as_it_is() -> None:
    assert misfits(read_mutations()) == []
