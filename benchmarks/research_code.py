"""Losses and decisions beside research code that is not on PyPI, on the same inputs.

    git clone https://github.com/fiveai/making-better-mistakes
    git clone https://github.com/jvlmdr/hiercls
    git clone https://github.com/RomanPlaud/hierarchical_decision_rules
    python benchmarks/research_code.py --clones .     # half a minute; needs nltk and absl-py

A tree of 1,000 nodes: 9 x 10 x 10 classes below a root. Losses: forward and backward for 128 samples, normal logits.
Decisions: for 1,000 samples, from the probabilities of the classes (softmax of normal logits, deviation 3). Times are processor
time of one thread, medians of interleaved rounds. "same": whether losses and gradients agree to 1e-5, or the share of equal
answers. Expected F1: of the ancestors, the root included as in the other code, under the given probabilities.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hace import ConditionalSoftmaxLoss, Hierarchy, HXELoss, predict
from hace.decisions import Scores

sys.path.insert(0, str(Path(__file__).parent))
from literature import plurality

CLONES = ("making-better-mistakes", "hiercls", "hierarchical_decision_rules")
BATCH, SAMPLES, ROUNDS, ALPHA = 128, 1000, 5, 0.2
Step = Callable[[], Any]


def tree() -> Hierarchy:
    """The root, 9 groups, 90 subgroups and 900 classes."""
    paths = [
        ("root", f"{a}", f"{a}{b}", f"{a}{b}{c}") for a in range(9) for b in range(10) for c in range(10)
    ]
    return Hierarchy.from_paths(paths)


def ratio(theirs: Step, ours: Step) -> float:
    """How many times the time of ours theirs takes."""
    times: dict[Step, list[float]] = {theirs: [], ours: []}
    for step in (theirs, ours):
        step()
    for _ in range(ROUNDS):
        for step, spent in times.items():
            began, repeats = time.process_time(), 0
            while repeats == 0 or time.process_time() - began < 0.1:
                step()
                repeats += 1
            spent.append((time.process_time() - began) / repeats)
    return statistics.median(times[theirs]) / statistics.median(times[ours])


def row(name: str, same: str, times: float, note: str = "") -> None:
    """One line of the table."""
    print(f"| {name} | {same} | {times:.2g} | {note} |", flush=True)


def compare_losses(
    name: str,
    theirs: Callable[[Tensor], Tensor],
    ours: Callable[[Tensor], Tensor],
    size: int,
    note: str = "",
) -> None:
    """A line for a loss of given logits."""
    z = torch.randn(BATCH, size, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def step(loss: Callable[[Tensor], Tensor]) -> list[Tensor]:
        value = loss(z)
        return [value.detach(), *torch.autograd.grad(value, z)]

    results = [torch.allclose(a, b, atol=1e-5) for a, b in zip(step(theirs), step(ours), strict=True)]
    row(name, "yes" if all(results) else "no", ratio(lambda: step(theirs), lambda: step(ours)), note)


def losses(h: Hierarchy) -> None:
    """HXE and conditional softmax."""
    y = torch.randint(h.num_leaves, (BATCH,), generator=torch.Generator().manual_seed(1))
    hxe = HXELoss(h, alpha=ALPHA)
    nltk, trees = importlib.import_module("nltk.tree"), importlib.import_module("better_mistakes.trees")
    published = importlib.import_module("better_mistakes.model.losses")

    def built(node: int) -> Any:
        below = np.flatnonzero(h.parent_nodes == node)
        return nltk.Tree(h.nodes[node], [built(int(v)) for v in below]) if len(below) else h.nodes[node]

    whole = built(0)
    weights = trees.get_exponential_weighting(whole, ALPHA, normalize=False)
    first = published.HierarchicalCrossEntropyLoss(whole, list(h.leaves), weights)
    compare_losses(
        "making-better-mistakes, HXE",
        lambda z: math.exp(ALPHA) * first(z, y),  # its weights begin one level higher
        lambda z: hxe(z, y),
        h.num_leaves,
        "a table of classes x classes x depth; a class whose probability rounds to 0 costs nothing; "
        "a class directly below the root costs -inf",
    )
    hier, hier_torch = importlib.import_module("hier"), importlib.import_module("hier_torch")
    other = hier.Hierarchy(h.parent_nodes)
    second = hier_torch.FlatBertinettoHXE(other, ALPHA, with_leaf_targets=True)
    compare_losses("hiercls, HXE", lambda z: second(z, y), lambda z: hxe(z, y), h.num_leaves)
    third, conditional = hier_torch.HierSoftmaxNLL(other, with_leaf_targets=True), ConditionalSoftmaxLoss(h)
    columns = torch.from_numpy(np.concatenate([c for _, c in sorted(other.children().items())]))
    own = torch.randn(BATCH, h.num_nodes, generator=torch.Generator().manual_seed(0))
    arranged = own[:, columns].clone().requires_grad_()
    own.requires_grad_()

    def theirs() -> tuple[Tensor, Tensor]:
        value = third(arranged, y)
        return value.detach(), torch.autograd.grad(value, arranged)[0]

    def ours() -> tuple[Tensor, Tensor]:
        value = conditional(own, y)
        return value.detach(), torch.autograd.grad(value, own)[0]

    (a, da), (b, db) = theirs(), ours()
    same = torch.allclose(a, b, atol=1e-5) and torch.allclose(da, db[:, columns], atol=1e-5)
    row("hiercls, conditional softmax", "yes" if same else "no", ratio(theirs, ours))


def decisions(h: Hierarchy) -> None:
    """Plurality, a threshold, and hierarchical F1."""
    z = 3 * torch.randn(SAMPLES, h.num_leaves, generator=torch.Generator().manual_seed(0))
    probs = z.double().softmax(1)
    p = probs.numpy()
    rules, metrics = (importlib.import_module(f"hierulz.{part}") for part in ("heuristics", "metrics"))
    order = [*h.leaf_nodes.tolist(), *np.flatnonzero(h.labels < 0).tolist()]  # theirs: the leaves first
    place = {node: i for i, node in enumerate(order)}
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(h.parent_nodes.tolist()):
        if parent >= 0:
            children.setdefault(place[parent], []).append(place[node])
    other = importlib.import_module("hierulz.hierarchy.hierarchy").Hierarchy(children)
    events = other.leaf_events.astype(float)
    deep = other.depths

    def answers(result: np.ndarray) -> np.ndarray:
        """The deepest node of each answer, in the order of ours."""
        return np.array(order)[np.where(result > 0, deep, -1).argmax(1)]

    beats_rivals = rules.plurality.Plurality(other)
    at_half = rules.confidence_threshold.ConfidenceThreshold(other, 0.5)
    best = metrics.hf_beta_score.hFBetaScore(other)
    for name, rule, own in (
        ("plurality", beats_rivals, lambda: plurality(Scores(probs, h, "probs").log_q(), h)),
        ("threshold 0.5", at_half, lambda: predict(probs, h, "threshold", kind="probs", threshold=0.5)),
    ):
        ours, theirs = np.asarray(own().nodes), answers(rule.decode(p @ events))
        passed = ours > 0 if rule is at_half else np.ones(SAMPLES, dtype=bool)
        same = np.mean((theirs == ours)[passed])
        note = f"of the {int(passed.sum())} in which a node below the root passes; else its answer is its first class"
        row(
            f"hierarchical_decision_rules, {name}",
            f"{100 * same:.1f}% of answers",
            ratio(lambda rule=rule: rule.decode(p @ events), own),
            note if rule is at_half else "",
        )
    top = Hierarchy.from_parents(
        dict(zip(h.nodes, [h.parents(v) for v in h.nodes], strict=True)), leaves=h.leaves, rooted=False
    )

    def expected_f1(sets: np.ndarray) -> float:
        """Mean expected F1 of answers that are sets of nodes."""
        f1 = 2 * (sets @ events.T) / (sets.sum(1, keepdims=True) + events.sum(1))
        return float((p * f1).sum(1).mean())

    chosen = predict(probs, top, "expected", kind="probs", metric="hierarchical_f").nodes
    line = np.zeros((SAMPLES, h.num_nodes))
    for i, node in enumerate(np.asarray(chosen)):
        line[i, [place[h.index(v)] for v in h.path(top.nodes[node])]] = 1
    theirs = best.decode(p @ events)
    row(
        "hierarchical_decision_rules, hierarchical F1",
        "no",
        ratio(
            lambda: best.decode(p @ events),
            lambda: predict(probs, top, "expected", kind="probs", metric="hierarchical_f"),
        ),
        "its answer may be several nodes, ours is one: an expected F1 of "
        f"{expected_f1(theirs):.3f} against {expected_f1(line):.3f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clones", type=Path, help="the folder of the three clones")
    options = parser.parse_args()
    if options.clones is None:
        print("left out: --clones FOLDER gives the three clones")
        return
    torch.set_num_threads(1)
    sys.path[:0] = [str(options.clones / name) for name in CLONES]
    h = tree()
    print("| code | same | time, theirs / ours | note |\n| --- | --- | --- | --- |")
    losses(h)
    decisions(h)


if __name__ == "__main__":
    main()
