"""Independent cross-checks: torchmetrics for leaves and calibration, hiclass for ancestor sets.

Known disagreements, each pinned by a test:

* torchmetrics breaks ties of scores as torch.topk happens to; hace takes them in label order.
* hiclass builds ancestor sets of the *names* in a row, so a name at two places is one ancestor; hace compares nodes.
* hiclass counts every column, so a root in the first column is an ancestor like any other and lifts all
  three numbers; hace leaves the root out.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from hace import Hierarchy, metrics
from tests.hierarchies import TREES, random_plain

SHAPES = [random_plain("ragged", 0, 25), TREES["animals"], TREES["ragged"]]


def sample(h: Hierarchy, rows: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(h.num_leaves, (rows,), generator=g)
    z = torch.randn(rows, h.num_leaves, generator=g)
    z[torch.arange(rows), y] += 1.5
    return z, y


@pytest.mark.parametrize("plain", SHAPES)
def test_top_k_and_calibration_agree_with_torchmetrics(plain: object) -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    h = plain.build()  # type: ignore[attr-defined]
    z, y = sample(h)
    for k in {1, 2, min(5, h.num_leaves)}:
        theirs = functional.multiclass_accuracy(z, y, h.num_leaves, average="micro", top_k=k)
        assert float(metrics.top_k_accuracy(z, y, h, k)) == pytest.approx(float(theirs))
    p = z.softmax(dim=1)
    theirs = functional.multiclass_calibration_error(p, y, h.num_leaves, n_bins=15, norm="l1")
    mine = metrics.expected_calibration_error(p.max(1).values, p.argmax(1) == y, 15)
    assert mine == pytest.approx(float(theirs), abs=1e-6)
    deepest = metrics.level_calibration(z, y, h)[-1]  # at the deepest level every leaf counts as itself
    assert deepest.ece == pytest.approx(float(theirs), abs=1e-6)


def test_ties_come_in_label_order_here() -> None:
    h = Hierarchy.flat(range(6))
    z = torch.zeros(6, 6)
    y = torch.arange(6)
    assert float(metrics.top_k_accuracy(z, y, h, 2)) == pytest.approx(
        2 / 6
    )  # labels 0 and 1 are the two best
    assert float(metrics.top_k_accuracy(z, y, h, 1)) == pytest.approx(1 / 6)


def hiclass_metrics() -> object:
    pytest.importorskip("hiclass")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports warn about what they lack
        from hiclass import metrics as peer
    return peer


def paths(h: Hierarchy, labels: torch.Tensor, *, root: bool) -> np.ndarray:
    """Rows from the top down without (or with) the root, filled up with "" as hiclass wants them."""
    drop = int(h.rooted and not root)
    every = [h.path(h.leaves[i])[::-1][drop:] for i in labels.tolist()]
    width = max(map(len, every))
    return np.array([[*row, *[""] * (width - len(row))] for row in every], dtype=object)


def padded(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = max(a.shape[1], b.shape[1])
    fill = [np.full((len(x), width - x.shape[1]), "", dtype=object) for x in (a, b)]
    return np.hstack([a, fill[0]]), np.hstack([b, fill[1]])


@pytest.mark.parametrize("plain", SHAPES)
@pytest.mark.parametrize("average", ["micro", "macro"])
def test_precision_and_recall_agree_with_hiclass(plain: object, average: str) -> None:
    peer = hiclass_metrics()
    h = plain.build()  # type: ignore[attr-defined]
    z, y = sample(h)
    truth, answer = padded(paths(h, y, root=False), paths(h, z.argmax(1), root=False))
    mine = metrics.hierarchical_prf(z, y, h, average=average)
    theirs = [getattr(peer, name)(truth, answer, average=average) for name in ("precision", "recall")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where precision and recall are 0; so is its F1, as here
        theirs.append(peer.f1(truth, answer, average=average))  # type: ignore[attr-defined]
    assert [float(x) for x in mine] == pytest.approx(theirs)


def test_a_root_in_the_first_column_lifts_hiclass() -> None:
    peer = hiclass_metrics()
    h = TREES["animals"].build()
    y, a = torch.tensor([0, 0]), torch.tensor([1, 2])  # husky taken for persian, and for beagle
    truth, answer = padded(paths(h, y, root=True), paths(h, a, root=True))
    assert peer.precision(truth, answer) == pytest.approx(3 / 6)  # type: ignore[attr-defined]
    assert float(metrics.hierarchical_prf(a, y, h).precision) == pytest.approx(1 / 4)


def test_a_name_at_two_places_is_one_ancestor_for_hiclass() -> None:
    peer = hiclass_metrics()
    rows = [("Boeing", "727", "727-200"), ("Airbus", "727", "A300")]  # two families of one name
    h = Hierarchy.from_paths(rows, ids="path")
    truth, answer = np.array(rows[:1], dtype=object), np.array(rows[1:], dtype=object)
    assert peer.precision(truth, answer) == pytest.approx(1 / 3)  # type: ignore[attr-defined]
    y = [h.label("/".join(row)) for row in rows]
    assert float(metrics.hierarchical_prf(y[1:], y[:1], h).precision) == 0
