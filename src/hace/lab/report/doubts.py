"""What is in doubt about an arena's results: weak searches, few seeds, small classes, unequal budgets, missing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hace.lab.report.arenas import Arena, arena_of, method_title
from hace.lab.report.results import Results
from hace.lab.study.searches import searched_at
from hace.metrics.summary_lines import wilson

FEW_SEEDS = 5  # the fair protocol's number for probes
FEW_SAMPLES = 10  # test samples of a class
WEAK_SEARCH = 0.05  # half the interval of an accuracy on held-out samples
_NAMES = 4


def doubts(results: Results, spoken: Mapping[Arena, Sequence[str]]) -> list[str]:
    """Notes on the methods that a verdict speaks of, by arena, in short sentences."""
    found = [*_edges(results, spoken)]
    for arena, methods in spoken.items():
        found += [
            *_budgets(results, arena, methods),
            *_once(results, arena),
            *_held_out(results, arena, methods),
            *_seeds(results, arena, methods),
            *_samples(results, arena),
            *_missing(results, arena),
        ]
    return list(dict.fromkeys(found))


def _edges(results: Results, spoken: Mapping[Arena, Sequence[str]]) -> Iterator[str]:
    """One sentence for all methods and arenas."""
    counts: dict[str, Counter[str]] = {}
    for arena, methods in spoken.items():
        for method in methods:
            choice = results.choices[arena].get(method)
            for record in choice.finished if choice is not None else ():
                counts.setdefault(method_title(method), Counter()).update([record.edge])
    at_edge = {name: ends for name, ends in counts.items() if any(ends)}
    if at_edge:
        names = ", ".join(
            f"{name} ({', '.join(f'{n} of {ends.total()} at the {edge}' for edge, n in ends.items() if edge)})"
            for name, ends in at_edge.items()
        )
        yield f"Searches that ended at the edge of their grid, so that another value may do better: {names}. Widen `--rates`."


def _budgets(results: Results, arena: Arena, methods: Sequence[str]) -> Iterator[str]:
    tried = {m: results.choices[arena][m].budget for m in methods if m in results.choices[arena]}
    if len(set(tried.values())) > 1:
        words = ", ".join(f"{method_title(m)} {count}" for m, count in tried.items())
        yield f"Unequal search: candidates per seed are {words}."


def _once(results: Results, arena: Arena) -> Iterator[str]:
    seed = searched_at(r for r in results.records if arena_of(r.key) == arena)
    if seed is not None:
        yield f"Rates were chosen once, at seed {seed}, for all seeds: the intervals leave out how that choice varies."


def _held_out(results: Results, arena: Arena, methods: Sequence[str]) -> Iterator[str]:
    """A search on few samples ranks its candidates partly by chance."""
    searched = [
        (record.run.result["samples"], record.top1)
        for record in results.records
        if record.stage == "search" and record.run is not None and record.run.result
        if record.top1 is not None and record.key.method in methods and arena_of(record.key) == arena
    ]
    if not searched:
        return
    samples, accuracy = min(searched, key=lambda found: (found[0], -found[1]))
    low, high = wilson(round(accuracy * samples), samples)
    if high - low > 2 * WEAK_SEARCH:
        yield (
            f"Rates were chosen on {samples:,} held-out samples, where an accuracy is uncertain by about "
            f"{50 * (high - low):.0f} points: chance has a say in the choice."
        )


def _seeds(results: Results, arena: Arena, methods: Sequence[str]) -> Iterator[str]:
    counts = [len(c.finished) for m, c in results.choices[arena].items() if m in methods and c.finished]
    if counts and min(counts) < FEW_SEEDS:
        seeds = "One seed" if min(counts) == 1 else f"{min(counts)} seeds"
        remedy = "" if arena.protocol == "single" else " Raise `--seeds`."
        yield f"{seeds}: the intervals say little about how other seeds would turn out.{remedy}"


def _samples(results: Results, arena: Arena) -> Iterator[str]:
    arrays = results.arrays[arena]
    for method, choice in results.choices[arena].items():
        unseen = {
            name
            for record in choice.finished
            if record.run is not None and record.run.result
            for name in (record.run.result.get("train") or {}).get("unseen_classes", ())
        }
        if unseen:
            names = ", ".join(sorted(unseen)[:_NAMES]) + (" ..." if len(unseen) > _NAMES else "")
            yield f"{len(unseen):,} {'class has' if len(unseen) == 1 else 'classes have'} no training sample: {names}."
            break
        read = arrays.predictions(method)
        if read and arrays.hierarchy is not None:
            truth = next(iter(read.values()))["truth"]
            count = np.bincount(truth, minlength=arrays.hierarchy.num_nodes)[arrays.hierarchy.leaf_nodes]
            few = int((count < FEW_SAMPLES).sum())
            if few:
                total = arrays.hierarchy.num_leaves
                yield f"{few:,} of {total:,} classes have fewer than {FEW_SAMPLES} test samples: single classes say little."
            break


def _missing(results: Results, arena: Arena) -> Iterator[str]:
    final = [r for r in results.records if r.stage == "final" and arena_of(r.key) == arena]
    lost = [r for r in final if r.status != "finished"]
    if lost:
        names = ", ".join(dict.fromkeys(method_title(r.key.method) for r in lost))
        yield f"{len(lost):,} of {len(final):,} final runs have no result: {names}."
