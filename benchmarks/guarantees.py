"""Do guaranteed thresholds keep their guarantees on real features, and how specific are the answers?

    python benchmarks/guarantees.py --data FOLDER --cache FOLDER --figure docs/images/guarantees.png

Frozen features of CUB-200 and CIFAR-100 (the folders cub200_features_lite0, cub200_hierarchy and cifar100_features_lite0),
unit-normalised. Heads for each: cross-entropy, HACE (dilution 0.5), soft labels (beta 10), HXE (alpha 0.2), conditional
softmax and cross-entropy on path sums (sharing 0.5); SGD with momentum 0.9, cosine, batch 256, 30 epochs, seed 0. All choose
among the rates 1 to 128 in doublings by the top-1 of a tenth of the training samples, which then fits the temperature. The
test samples are split at random, 500 times: some calibrate, the others judge.

First table, of cross-entropy and HACE: the share of false answers among the samples that judge (with of="answers", among their
answers). "above" is the share of splits where it exceeds the guarantee; "above, all" judges by all test samples, the population
the calibration samples were drawn from, as the guarantee does. Second table: how specific the answers are, 1 for leaves and 0
for the root, with 1,000 calibration samples. Each of 500 draws resamples the samples that judge, so the intervals (2.5 to 97.5
%) hold the luck of both parts, and differences are paired. --cache keeps the scores of trained heads.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import hace
from hace import Hierarchy, build_loss, fit_temperature
from hace.decisions.bounds import RiskBound
from hace.decisions.ladders import LADDERS, NOTHING, Ladder, Outcomes
from hace.decisions.scores import Scores
from hace.hierarchy.derived import leaf_counts
from hace.linear import Optimization, Trial, fit_heads, head_scores

RATES = [2.0**k for k in range(8)]  # 1 to 128
LOSSES = {
    "cross-entropy": ("cross_entropy", {}),
    "HACE": ("hace", {"dilution": 0.5}),
    "soft labels": ("soft_label", {"beta": 10.0}),
    "HXE": ("hxe", {"alpha": 0.2}),
    "conditional softmax": ("conditional_softmax", {}),
    "path sums": ("cross_entropy", {"outputs": "paths", "sharing": 0.5}),
}
SIMULATED = ("cross-entropy", "HACE")
SPLITS = 500
CALIBRATION = (200, 1000)
GUARANTEES = {  # accuracy, confidence, of
    "95% of samples, on average": (0.95, None, "samples"),
    "95% of samples, confidence 0.9": (0.95, 0.9, "samples"),
    "90% of answers, confidence 0.9": (0.9, 0.9, "answers"),
}
RULES = {
    "walk down": ("threshold", True),
    "climb": ("climb", True),
    "most informative": ("threshold", False),
    "hedge": ("hedge", True),
}
LEVELS = (0.9, 0.95, 0.99)


@dataclass
class Head:
    """A trained head: calibrated scores of the test samples."""

    data: str
    loss: str
    rate: float
    temperature: float
    hierarchy: Hierarchy
    outputs: str
    scores: Tensor
    labels: np.ndarray

    @property
    def name(self) -> str:
        """The data and the loss."""
        return f"{self.data}, {self.loss}"

    def outcomes(self, rule: str) -> Outcomes:
        """What a rule does on the test samples."""
        return self.ladders[rule].outcomes(self.hierarchy.leaf_nodes[self.labels])

    @cached_property
    def ladders(self) -> dict[str, Ladder]:
        """The answers of each rule as its threshold falls."""
        q = Scores(self.scores, self.hierarchy, outputs=self.outputs).log_q()
        return {rule: LADDERS[form](q, self.hierarchy) for rule, form in RULES.items()}

    def specificity(self, rule: str, threshold: float) -> np.ndarray:
        """(B,) how specific the answer to each sample is."""
        h = self.hierarchy
        specific = np.append(1 - np.log2(leaf_counts(h)) / np.log2(h.num_leaves), 0.0)
        return specific[self.ladders[rule].answers(threshold)]


def features(folder: Path) -> Iterator[tuple[str, Hierarchy, Path]]:
    tree = hace.read_hierarchy(folder / "cub200_hierarchy" / "cub_wikispecies.parent-child.txt")
    yield "CUB-200", tree, folder / "cub200_features_lite0" / "cub200_lite0_224px_fp16.npz"
    path = folder / "cifar100_features_lite0" / "cifar100_lite0_128px_pca256_fp16.npz"
    yield "CIFAR-100", hace.cifar100_hierarchy(), path


def train(h: Hierarchy, path: Path, loss_name: str) -> tuple[float, float, Tensor, Tensor]:
    """Rate, temperature, scores and labels of the test samples."""
    data = hace.load_dataset("features", path, hierarchy=h, label_kind="index")
    parts = []
    for split in ("train", "test"):
        x = torch.from_numpy(np.asarray(data[split].x, dtype=np.float32))
        parts += [F.normalize(x, dim=1), torch.from_numpy(np.array(data[split].labels))]
    x, y, x_test, y_test = parts
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    held, rest = order[: len(y) // 10], order[len(y) // 10 :]
    name, options = LOSSES[loss_name]
    loss = build_loss(name, h, **options)
    heads = fit_heads(
        x[rest], y[rest], [Trial(loss, rate) for rate in RATES], Optimization(epochs=30, batch_size=256)
    )
    right = [
        (loss.leaf_logits(head_scores(x[held], head)).argmax(1) == y[held]).float().mean() for head in heads
    ]
    best = int(torch.stack(right).argmax())
    scores = [head_scores(part, heads[best]) for part in (x[held], x_test)]
    if loss.score_outputs == "leaves":
        scores = [loss.leaf_logits(z) for z in scores]
    temperature = fit_temperature(scores[0], y[held], h, outputs=loss.score_outputs)
    return RATES[best], temperature, scores[1], y_test


def trained(folder: Path, cache: Path | None, losses: Iterable[str] = tuple(LOSSES)) -> Iterator[Head]:
    for data, h, path in features(folder):
        for loss in losses:
            file = None if cache is None else cache / f"{data} {loss}.npz"
            if file is not None and file.exists():
                arrays = np.load(file)
                rate, temperature = float(arrays["rate"]), float(arrays["temperature"])
                scores, labels = torch.from_numpy(arrays["scores"]), torch.from_numpy(arrays["labels"])
            else:
                rate, temperature, scores, labels = train(h, path, loss)
                if file is not None:
                    np.savez(file, rate=rate, temperature=temperature, scores=scores, labels=labels)
            outputs = "leaves" if scores.shape[1] == h.num_leaves else "nodes"
            yield Head(data, loss, rate, temperature, h, outputs, scores / temperature, labels.numpy())


def share(result: Outcomes, threshold: float, of: str) -> float:
    """The share of false answers at a threshold."""
    at = np.array([threshold])
    number = len(result) if of == "samples" else int(result.answers_at(at)[0])
    return float(result.loss_at(at)[0] / number) if number else 0.0


def simulate(head: Head, guarantee: RiskBound, number: int) -> dict[str, np.ndarray]:
    """The share of false answers on the samples that judge, and on all, of each split; nan where nothing is answered."""
    result, rng = head.outcomes("walk down"), np.random.default_rng(0)
    others, everyone = np.full(SPLITS, np.nan), np.full(SPLITS, np.nan)
    for i in range(SPLITS):
        order = rng.permutation(len(result))
        threshold = guarantee.threshold(result.take(order[:number]))
        if threshold == NOTHING:
            continue
        others[i] = share(result.take(order[number:]), threshold, guarantee.of)
        everyone[i] = share(result, threshold, guarantee.of)
    return {"others": others, "all": everyone}


def kept(heads: list[Head]) -> dict[tuple[str, str, int], np.ndarray]:
    """Print the first table and its summary over heads; the shares of each case."""
    cases, result = {}, []
    for title, asked in GUARANTEES.items():
        guarantee = RiskBound.of_accuracy(*asked)
        limit = float(guarantee.alpha)
        print(f"\n{title}: false at most {limit:g}")
        print(
            "| head | calibration | mean false | its standard error | above | above, all | nothing answered |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for head in heads:
            for number in CALIBRATION:
                shares = simulate(head, guarantee, number)
                known = shares["others"][~np.isnan(shares["others"])]
                cases[title, head.name, number] = known
                error = known.std() / np.sqrt(max(len(known), 1))
                above = [np.nansum(shares[part] > limit + 1e-12) / SPLITS for part in ("others", "all")]
                result.append((title, number, known.mean(), error, above[1], 1 - len(known) / SPLITS))
                print(
                    f"| {head.name} | {number:,} | {known.mean():.4f} | {error:.4f} | {above[0]:.3f} | {above[1]:.3f} "
                    f"| {1 - len(known) / SPLITS:.3f} |",
                    flush=True,
                )
    summarise(result)
    return cases


def summarise(result: list[tuple[str, int, float, float, float, float]]) -> None:
    """Print the range over heads of each guarantee and number of calibration samples: `evidence/keep.py` keeps it."""
    columns = (
        "guarantee",
        "calibration images",
        "mean of false answers",
        "its standard error",
        "splits above",
        "no threshold",
    )
    print(f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for title, number in dict.fromkeys(row[:2] for row in result):
        values = np.array([row[2:] for row in result if row[:2] == (title, number)]).T
        low, high = 100 * values.min(axis=1), 100 * values.max(axis=1)
        ranges = [f"{a:.{d}f} to {b:.{d}f}%" for a, b, d in zip(low, high, (2, 2, 1, 1), strict=True)]
        print(f"| {title} | {number:,} | {' | '.join(ranges)} |", flush=True)


def specificities(heads: list[Head]) -> np.ndarray:
    """(draws, heads, rules, levels) mean specificity of the answers, paired over heads, rules and levels of one dataset."""
    rng = np.random.default_rng(1)
    results = {(i, rule): head.outcomes(rule) for i, head in enumerate(heads) for rule in RULES}
    values = np.full((SPLITS, len(heads), len(RULES), len(LEVELS)), np.nan)
    size = len(heads[0].labels)
    for draw in range(SPLITS):
        order = rng.permutation(size)
        calibration, others = order[:1000], rng.choice(order[1000:], size - 1000)
        for i, head in enumerate(heads):
            for j, rule in enumerate(RULES):
                part = results[i, rule].take(calibration)
                for k, level in enumerate(LEVELS):
                    threshold = RiskBound.of_accuracy(level, None, "samples").threshold(part)
                    values[draw, i, j, k] = head.specificity(rule, threshold)[others].mean()
    return values


def show(values: np.ndarray) -> str:
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def how_specific(heads: list[Head]) -> None:
    """Print the second table."""
    print(
        "\nspecificity of the answers where at most 10, 5 and 1% of the samples get a false one, on average"
    )
    print("| head | rule | 90% | 95% | 99% |\n| --- | --- | --- | --- | --- |")
    for data in dict.fromkeys(head.data for head in heads):
        few = [head for head in heads if head.data == data]
        values = specificities(few)
        for i, head in enumerate(few):
            for j, rule in enumerate(RULES):
                print(
                    f"| {head.name} | {rule} | "
                    + " | ".join(show(values[:, i, j, k]) for k in range(3))
                    + " |"
                )
        for i, head in enumerate(few):
            for j, rule in enumerate(RULES):
                if j:
                    change = values[:, i, j] - values[:, i, 0]
                    print(f"| {head.name} | {rule} - walk down | " + " | ".join(map(show, change.T)) + " |")
        for i, head in list(enumerate(few))[1:]:
            for j, rule in enumerate(RULES):
                change = values[:, i, j] - values[:, 0, j]
                print(
                    f"| {head.name} - cross-entropy | {rule} | " + " | ".join(map(show, change.T)) + " |",
                    flush=True,
                )


def draw(cases: dict[tuple[str, str, int], np.ndarray], path: Path) -> None:
    """The shares of false answers of all splits, one panel for each guarantee."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(GUARANTEES), sharey=True)
    names = list(dict.fromkeys(name for _, name, _ in cases))
    rows = [(name, number) for name in names for number in CALIBRATION]
    at = np.arange(len(rows))[::-1]
    for axes, (title, (accuracy, confidence, _)) in zip(panels, GUARANTEES.items(), strict=True):
        shares = [100 * cases[title, name, number] for name, number in rows]
        for y, values, (_, number) in zip(at, shares, rows, strict=True):
            colour = "#00796b" if number == 1000 else "#d35400"
            low, high = np.percentile(values, [5, 90 if confidence else 95])
            axes.plot([low, high], [y, y], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
            mark = high if confidence else values.mean()
            axes.plot(
                mark,
                y,
                "|" if confidence else "o",
                color=colour,
                markersize=11 if confidence else 6,
                markeredgewidth=2.5,
            )
        axes.axvline(100 * (1 - accuracy), color="#444444", linewidth=1, linestyle="--")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("false answers on the other samples, %")
        axes.set_xlim(left=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_yticks(at, [f"{name}, n = {number:,}" for name, number in rows], fontsize=9)
    figure.savefig(path, metadata={"Software": None})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("HACE_TEST_DATA")
    parser.add_argument(
        "--data", type=Path, default=default, required=default is None, help="the folder of feature files"
    )
    parser.add_argument("--cache", type=Path, help="a folder for the scores of trained heads")
    parser.add_argument("--figure", type=Path, help="where to draw the figure")
    return parser.parse_args()


def main() -> None:
    torch.set_num_threads(1)
    options = parse()
    heads = []
    for head in trained(options.data, options.cache):
        top = hace.metrics.top_k_accuracy(head.scores, head.labels, head.hierarchy, outputs=head.outputs)
        print(
            f"{head.name}: rate {head.rate:g}, temperature {head.temperature:.3f}, top-1 {float(top):.4f}",
            flush=True,
        )
        for rule, constrained in (("walk down", True), ("most informative", False)):
            form = {"constrained": constrained, "outputs": head.outputs}
            curve = hace.metrics.operating_curve(head.scores, head.labels, head.hierarchy, **form)
            print(f"  area under the operating curve, {rule}: {curve.area:.4f}", flush=True)
        heads.append(head)
    cases = kept([head for head in heads if head.loss in SIMULATED])
    if options.figure is not None:
        draw(cases, options.figure)
    how_specific(heads)


if __name__ == "__main__":
    main()
