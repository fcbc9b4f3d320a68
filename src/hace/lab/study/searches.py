"""What the records of a study say about its searches: which runs they are, at which seed, and what judged them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hace.lab.study.cells import Record


def each_run(records: Iterable[Record]) -> list[Record]:
    """The records without those of a run that is there already, such as a search that all seeds share."""
    seen: dict[
        tuple[str, str], Record
    ] = {}  # data that are not here have no fingerprint: ids alone would be equal
    return [r for r in records if not r.id or seen.setdefault((r.key.dataset, r.id), r) is r]


def searched_at(records: Iterable[Record]) -> int | None:
    """The seed whose searches choose for others as well; None where every seed searches for itself."""
    searches = [(r.run.config.seed, r.key.seed) for r in records if r.stage == "search" and r.run is not None]
    return next((made for made, seed in searches if made != seed), None)


def chosen_on(records: Sequence[Record]) -> str:
    """What the searches among these runs are judged on, in words."""
    held = {r.run.config.validation for r in records if r.stage == "search" and r.run is not None}
    words = "the data's own validation split" if held == {"split"} else "held-out training samples"
    seed = searched_at(records)
    return words if seed is None else f"{words}, once for all seeds, at seed {seed}"
