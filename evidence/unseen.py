"""What heads say about classes they have never seen, beside the tables of `hace unseen`:

    python evidence/unseen.py answers FEATURES.npz HIERARCHY OUT.csv --count 40 --names classes_flat.txt
    python evidence/unseen.py choose  FEATURES.npz HIERARCHY OUT.csv --count 40
    python evidence/unseen.py guarantee FEATURES.npz HIERARCHY OUT.csv --count 40

answers: the first test photo of each of 40 species left out (draw 0), and the answers of cross-entropy's best class, of
cross-entropy with a threshold and of leave-one-out with distances, the last two where they cost 3 points of exact answers on
known species.

choose: the weight of the leave-one-out term, on validation classes: the classes of a test draw are gone, a fifth of the others
is left out of training, and a fifth of the training samples of the rest is held out. No test sample is looked at.

guarantee: 100 draws of classes with a guarantee of 0.9 each. Heads are cross-fitted: the classes that can be left out are dealt
into folds, a head is trained without each fold, and so every class has scores from a head that never saw it. A draw takes
`--count` of these classes; half of them set the threshold, the other half is judged.

table: the summary of the tables of `hace unseen`, by dataset: python evidence/unseen.py table results/unseen

results/unseen/about.json has the commands.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hace import Hierarchy, read_hierarchy
from hace.data.feature_files import load_features
from hace.decisions.bounds import RiskBound, group_places
from hace.decisions.ladders import Outcomes
from hace.hierarchy.derived import is_above
from hace.linear.unseen_classes import (
    METHODS,
    Candidate,
    UnseenStudy,
    at_known,
    curve,
    draw_classes,
    ladder_by,
    leave_out,
    summary,
)

DRAWS = 100
WEIGHTS = (0.1, 0.3, 1.0)
Labelled = tuple[np.ndarray, np.ndarray]


def answers(
    h: Hierarchy, train: Labelled, test: Labelled, args: argparse.Namespace
) -> Iterable[Sequence[Any]]:
    """A row per species left out."""
    names = dict(line.split(maxsplit=1) for line in args.names.read_text(encoding="utf-8").splitlines())
    left = leave_out(h, draw_classes(h, args.count, 0))
    study = UnseenStudy(h, train, test, list(left.classes), epochs=args.epochs)
    truth, new, listed = left.truths[test[1]], left.labels[test[1]] < 0, left.hierarchy
    result, candidates, best = {}, {}, 0.0
    for name in ("cross-entropy", "both"):
        log_q = study.log_q(left, METHODS[name], 0, candidates, {})
        if name == "cross-entropy":
            result["best class"] = listed.leaf_nodes[log_q.numpy()[:, listed.leaf_nodes].argmax(axis=1)]
            best = 100 * float((result["best class"] == truth)[~new].mean())
        ladder = ladder_by(METHODS[name].rule, log_q, listed)
        point = at_known(curve(ladder, truth, new), best - 3)
        assert point is not None
        result[name] = ladder.answers(point.threshold)
    yield ["species", "closest listed", *result, "true"]
    shown = [*(names[v] for v in listed.nodes), "no answer"]
    for row in (np.flatnonzero(test[1] == h.label(c))[0] for c in left.classes):
        said = [shown[int(nodes[row])] for nodes in result.values()]
        true = is_above(listed, result["both"][[row]], truth[[row]])[0] and result["both"][row] > 0
        yield [names[h.leaves[test[1][row]]], shown[truth[row]], *said, "yes" if true else "no"]


def choose(
    h: Hierarchy, train: Labelled, test: Labelled, args: argparse.Namespace
) -> Iterable[Sequence[Any]]:
    """Rows of the study on validation classes, a method per weight."""
    METHODS.update({f"weight {w:g}": Candidate("hce", {"unseen": w}, "own") for w in WEIGHTS})
    methods = ["cross-entropy", *(f"weight {w:g}" for w in WEIGHTS)]
    columns = ("lost", "best", "known_exact", "unseen_true", "unseen_exact", "unseen_named")
    yield ["test draw", "method", *columns]
    for draw in range(args.draws):
        gone = set(draw_classes(h, args.count, draw))
        rest = h.subset([c for c in h.leaves if c not in gone])
        labels = np.array([-1 if c in gone else rest.label(c) for c in h.leaves])[train[1]]
        x, y = train[0][labels >= 0], labels[labels >= 0]
        held = np.zeros(len(y), dtype=bool)
        for label in range(rest.num_leaves):
            own = np.random.default_rng([draw, label]).permutation(np.flatnonzero(y == label))
            held[own[: len(own) // 5]] = True
        fifth = round(0.2 * rest.num_leaves)
        study = UnseenStudy(
            rest, (x[~held], y[~held]), (x[held], y[held]), draw_classes(rest, fifth, 1000 + draw),
            draws=1, seeds=1, methods=methods, epochs=args.epochs,
        )  # fmt: skip
        for row in study.run():
            yield [draw, row["method"], *(f"{row[name]:.4g}" for name in columns)]


def folds(h: Hierarchy, size: int, seed: int) -> Iterable[list[str]]:
    """The classes that have a sister, each in one fold that leaves one of its sisters listed."""
    order = [h.leaves[i] for i in np.random.default_rng(seed).permutation(h.num_leaves).tolist()]
    sisters = {c: set(h.descendants(h.parents(c)[0])) & set(h.leaves) - {c} for c in order if h.parents(c)}
    waiting = [c for c in order if sisters.get(c)]
    while waiting:
        gone: set[str] = set()
        for c in waiting:
            # Neither this class nor one that goes with it may be left without a listed sister.
            alone = any(not sisters[other] - gone - {c} for other in (gone & sisters[c]) | {c})
            if len(gone) < size and not alone:
                gone.add(c)
        yield sorted(gone)
        waiting = [c for c in waiting if c not in gone]


def guarantee(
    h: Hierarchy, train: Labelled, test: Labelled, args: argparse.Namespace
) -> Iterable[Sequence[Any]]:
    """A row per draw and method."""
    bound = RiskBound.of_accuracy(0.9, None, "samples")
    methods = ("cross-entropy", "leave-one-out")
    result: dict[str, list[tuple[Any, ...]]] = {name: [] for name in methods}
    calibrated: dict[Any, Any] = {}
    for number, fold in enumerate(folds(h, args.count, 0)):
        left = leave_out(h, fold)
        study, scores = UnseenStudy(h, train, test, fold, epochs=args.epochs), {}
        new, truth = np.flatnonzero(left.labels[test[1]] < 0), left.truths[test[1]]
        for name in methods:
            log_q = study.log_q(left, METHODS[name], 0, calibrated, scores)
            ladder = ladder_by(METHODS[name].rule, log_q, left.hierarchy)
            outcomes = ladder.outcomes(truth).take(new)
            true = ladder.true(truth) & ladder.says
            exact = ladder.nodes == truth[:, None]
            result[name].append((outcomes, test[1][new], left.labels[test[1]] < 0, ladder, true, exact))
        print(f"fold {number + 1}: a head without {len(fold)} classes", flush=True)
    yield ["draw", "method", "threshold", "false", "true", "known exact"]
    for name, parts in result.items():
        every, classes = joined([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        for draw in range(DRAWS):
            drawn = np.random.default_rng(draw).permutation(np.unique(classes))[: args.count]
            setting, judging = np.split(drawn, [len(drawn) // 2])
            rows = np.flatnonzero(np.isin(classes, setting))
            t = bound.threshold(every.take(rows), group_places(classes[rows], len(rows))[1])
            losses, true, exact = every.losses(t), [], []
            false = np.mean([losses[classes == c].mean() for c in judging])
            for _, _, unseen, ladder, is_true, is_exact in parts:
                at = np.arange(len(ladder)), ladder.rung(t)
                mine = np.unique(test[1][np.isin(test[1], judging) & unseen])
                true += [is_true[at][test[1] == c].mean() for c in mine]
                exact.append(is_exact[at][~unseen].mean())
            shares = (false, np.mean(true), np.mean(exact))
            yield [draw, name, f"{t:.4g}", *(f"{100 * share:.4g}" for share in shares)]


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """The outcomes of several folds as one; the ladders of one may be shorter than those of another."""
    longest = max(part.reached.shape[1] for part in parts)
    columns = []
    for part in parts:
        more = ((0, 0), (0, longest - part.reached.shape[1]))
        reached = np.pad(part.reached, more, constant_values=-np.inf)
        columns.append((reached, np.pad(part.loss, more, mode="edge"), np.pad(part.says, more)))
    return Outcomes(*(np.concatenate(column) for column in zip(*columns, strict=True)))


SETS = {"CUB-200": "cub200", "CIFAR-100": "cifar100", "CLINC150": "clinc150"}
SHOWN = {
    "cross-entropy": "cross-entropy, threshold",
    "class threshold": "cross-entropy, threshold for classes alone",
    "HACE": "HACE, threshold",
    "path sums": "path sums, threshold",
    "distances": "distances to class means",
    "leave-one-out": "leave-one-out, `own`",
    "both": "leave-one-out and distances",
}


def table(folder: Path) -> None:
    """A row per method and number of points lost; true and exact are the same where classes have one level above them."""
    lines: dict[tuple[float, str], dict[str, str]] = {}
    for title, name in SETS.items():
        with (folder / f"{name}.csv").open(encoding="utf-8") as file:
            rows: list[dict[str, Any]] = [row for row in csv.DictReader(file) if row["draw"] != "all"]
        for row in rows:
            row |= {k: float(v) for k, v in row.items() if k != "method" and "guarantee" not in v and v}
        for lost in (1.0, 3.0, 6.0):
            for line in summary(rows, lost):
                cell = lines.setdefault((lost, line["method"]), {})
                for field in ("true", "exact") if title == "CUB-200" else ("true",):
                    value, half = line[f"unseen_{field}"], line[f"unseen_{field}_95"]
                    cell[f"{title} {field}"] = (
                        "less accurate" if np.isnan(value) else f"{value:.1f} ± {half:.1f}"
                    )
    with (folder / "summary.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["method", "lost", *next(iter(lines.values()))])
        out.writerows([SHOWN[name], f"{lost:g}", *cell.values()] for (lost, name), cell in lines.items())


def main() -> None:
    """Run one of the three, write its rows; or the table."""
    if sys.argv[1:2] == ["table"]:
        return table(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("answers", "choose", "guarantee"))
    parser.add_argument("features", type=Path)
    parser.add_argument("hierarchy")
    parser.add_argument("out", type=Path)
    parser.add_argument("--names", type=Path, help="for answers: ids and names")
    parser.add_argument("--count", type=int, required=True, help="classes to leave out at once")
    parser.add_argument("--draws", type=int, default=2, help="for choose: test draws whose classes are gone")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--label-kind", default="index")
    args = parser.parse_args()
    kind = {} if args.label_kind == "id" else {"label_kind": args.label_kind}
    data = load_features(args.features, read_hierarchy(args.hierarchy), **kind)
    h = data.hierarchy
    train, test = (
        (np.asarray(data[s].x, dtype=np.float32), h.labels[data[s].nodes]) for s in ("train", "test")
    )
    made = {"answers": answers, "choose": choose, "guarantee": guarantee}[args.what](h, train, test, args)
    with args.out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(made)


if __name__ == "__main__":
    main()
