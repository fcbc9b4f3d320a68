"""Whether guarantees hold on new photos, with splits and calibration samples that stand for them (`hace fit --for`).

    python benchmarks/new_photos.py frogs DATA/frog_calls --repetitions 20
    python benchmarks/new_photos.py birds DATA --repetitions 20
    python benchmarks/new_photos.py groceries groceries.npz --repetitions 20

At most 5% of new samples may get a false answer, on average over calibrations. `frogs`: syllables of frog calls; the recordings
of a third of them are new, and nobody says which recording a syllable is from. `birds`: ResNet-50 features of CUB-200, a third
of the photos new; the others come in bursts of three, made by noise (the cosine of two shots of a photo is about 0.9).
`groceries`: photos of the Grocery Store Dataset (github.com/marcusklasson/GroceryStoreDataset), whose training photos come in
real bursts and whose test photos are apart from these; groceries.npz holds features of EfficientNet-Lite0: x, part ("train",
"val" or "test"), fine and coarse (names).

Held out are 30% of the labelled samples: at random, or by `hace.fitting.place_of_use.split_for`; guarantees rest on all of
them, or on those drawn by `samples_like`. The model is softmax regression. Columns: how much held-out samples differ from new
ones in similarity (Kolmogorov and Smirnov), accuracy held out and new, false answers and answers about new samples, calibration
samples, and the share of repetitions with more than 7.5% false answers.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy, normalize

from hace import Hierarchy, guaranteed_threshold, read_hierarchy
from hace.data.split import part_of_each, part_of_groups
from hace.decisions.ladders import outcomes_of
from hace.decisions.nearness import Nearness, samples_like
from hace.decisions.scores import Scores
from hace.fitting.place_of_use import split_for
from hace.fitting.splits import Splits

ALPHA, HELD = 0.05, 0.3
NOBODY = np.empty(0, dtype=np.int64)


class Samples(NamedTuple):
    """Features, labels, the tree, true groups, and which rows are labelled and new in a repetition."""

    x: np.ndarray
    y: np.ndarray
    tree: Hierarchy
    groups: np.ndarray | None
    deal: Callable[[int], tuple[np.ndarray, np.ndarray]]


def frogs(folder: Path) -> Samples:
    from frog_calls import read, thirds

    x, names, recording, tree = read(folder)
    y = np.array([tree.leaves.index(name) for name in names])

    def deal(i: int) -> tuple[np.ndarray, np.ndarray]:
        first, second, new = thirds(names, recording, i)
        return np.concatenate([first, second]), new

    return Samples(x.astype(np.float32), y, tree, recording, deal)


def birds(folder: Path) -> Samples:
    tree = read_hierarchy(folder / "cub200_hierarchy" / "cub_wikispecies.parent-child.txt")
    data = np.load(folder / "cub200_resnet50" / "cub200_resnet50_224px_pca512_fp16.npz")
    photos, labels = data["x_train"].astype(np.float32), data["y_train"].astype(np.int64)
    photos = photos[:, :256] - photos[:, :256].mean(axis=0)
    noise = np.random.default_rng(0).normal(size=(3, *photos.shape)).astype(np.float32)
    x = np.concatenate(photos + 0.33 * photos.std() * noise)  # the shots of all photos, one after another
    photo = np.tile(np.arange(len(photos)), 3)

    def deal(i: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.random.default_rng(i).permutation(len(photos))
        new = drawn[: len(drawn) // 3]
        return np.flatnonzero(~np.isin(photo, new)), new

    return Samples(x, np.tile(labels, 3), tree, photo, deal)


def groceries(path: Path) -> Samples:
    data = np.load(path)
    fine, coarse = (data[name].astype(str) for name in ("fine", "coarse"))
    names = {f: (c, f) if c != f else (f,) for f, c in zip(fine.tolist(), coarse.tolist(), strict=True)}
    leaves = sorted(names)
    tree = Hierarchy.from_paths([names[leaf] for leaf in leaves], leaves=leaves)
    x = data["x"].astype(np.float32)
    x = x - x.mean(axis=0)
    x = x @ np.linalg.eigh(x.T @ x)[1][:, -256:]
    labelled, new = np.flatnonzero(data["part"] != "test"), np.flatnonzero(data["part"] == "test")
    return Samples(x, np.array([leaves.index(f) for f in fine]), tree, None, lambda i: (labelled, new))


def scores_of(s: Samples, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Scores of other rows by softmax regression on these."""
    x, y = normalize(torch.from_numpy(s.x), dim=1), torch.from_numpy(s.y)
    torch.manual_seed(0)
    head = torch.nn.Linear(x.shape[1], s.tree.num_leaves)
    steps = torch.optim.Adam(head.parameters(), lr=0.1, weight_decay=1e-5)
    for _ in range(80):
        steps.zero_grad()
        cross_entropy(head(x[rows]), y[rows]).backward()
        steps.step()

    def scores(new: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return head(x[new]).numpy()

    return scores


def judged(s: Samples, parts: Splits, new: np.ndarray, seed: int) -> dict[str, tuple[float, ...]]:
    """False answers and answers about new samples, with all calibration samples and with those drawn."""
    scores = scores_of(s, parts.train)
    near = Nearness.of(s.x[parts.train])
    drawn = samples_like(near.similarity(s.x[parts.calibration]), near.similarity(s.x[new]), seed)
    here, there = scores(parts.calibration), scores(new)
    outcomes = outcomes_of(Scores(there, s.tree), s.tree.leaf_nodes[s.y[new]], labels="nodes")
    right = [
        float((z.argmax(1) == s.y[rows]).mean()) for z, rows in ((here, parts.calibration), (there, new))
    ]
    made = {}
    for name, rows in (("all", np.arange(len(here))), ("drawn", drawn.rows)):
        sure = guaranteed_threshold(here[rows], s.y[parts.calibration][rows], s.tree, 1 - ALPHA)
        false = float(outcomes.losses(sure.threshold).mean())
        said = float((outcomes.answered >= sure.threshold).mean())
        made[name] = (drawn.alarm, *right, false, said, len(rows), float(false > 1.5 * ALPHA))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("frogs", "birds", "groceries"))
    parser.add_argument("source", type=Path)
    parser.add_argument("--repetitions", type=int, default=20)
    args = parser.parse_args()
    s: Samples = globals()[args.study](args.source)
    rows: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for i in range(args.repetitions):
        labelled, new = s.deal(i)
        y = s.y[labelled]

        def split(together: np.ndarray | None, i: int = i, y: np.ndarray = y) -> Splits:
            part = part_of_each(y, HELD, [i]) if together is None else part_of_groups(y, together, HELD, [i])
            return Splits(part[0], part[1], NOBODY, frozenset())

        place = split_for(s.x[new], s.x[labelled], s.tree.leaf_nodes[y], split, None, fixed=False)
        ways = {"random": split(None), "like new samples": place.parts}
        if s.groups is not None:
            ways["by true groups"] = split(s.groups[labelled].astype(str))
        for name, parts in ways.items():
            whole = Splits(labelled[parts.train], labelled[parts.calibration], NOBODY, frozenset())
            for used, made in judged(s, whole, new, i).items():
                rows[name, used].append(made)
        print(f"{i + 1} of {args.repetitions}", flush=True)
    print(
        "| split | calibrated on | differ by | accuracy held out | new | false | its error | answered | samples | over 7.5% |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (name, used), made in rows.items():
        apart, held, new_right, false, said, number, over = np.mean(made, axis=0)
        error = np.std([m[3] for m in made], ddof=1) / np.sqrt(len(made))
        print(
            f"| {name} | {used} | {apart:.2f} | {held:.1%} | {new_right:.1%} | {false:.1%} | {error:.1%} | {said:.1%} "
            f"| {number:,.0f} | {over:.0%} |"
        )


if __name__ == "__main__":
    main()
