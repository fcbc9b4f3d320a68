"""What must hold exactly between losses, tables and hierarchies, whatever the numbers are."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

import hace
from hace import (
    ClassEmbeddingLoss,
    ConditionalSoftmaxLoss,
    CrossEntropyLoss,
    HACELoss,
    HCELoss,
    Hierarchy,
    HXELoss,
    LevelwiseLoss,
    SimLoss,
    SoftLabelLoss,
    SoftMarginLoss,
)
from hace.hierarchy.derived import reachability_matrix
from hace.losses.table_loss import TableLoss
from tests.hierarchies import ANIMALS, NAMED, Plain, forests, hierarchies, trees
from tests.loss_cases import (
    CASES,
    DOUBLE,
    ONE_OF_EACH,
    Form,
    every_case,
    examples,
    in_each_form,
    logits,
    with_gradient,
)
from tests.reference import losses as oracle
from tests.reference import targets

rates = st.sampled_from([0.05, 0.2, 0.5, 0.7, 0.9, 1.0])
forest_or_tree = st.one_of(trees(), forests())
TABLES = [case for case in ONE_OF_EACH if isinstance(CASES[case].build(ANIMALS.build()), TableLoss)]


def scores(form: Form, h: Hierarchy, outputs: str, seed: int = 0) -> Tensor:
    """A row for each class."""
    return logits(h.num_leaves, h.num_leaves if outputs == "leaves" else h.num_nodes, seed).to(form.dtype)


def classes(h: Hierarchy) -> Tensor:
    return torch.arange(h.num_leaves)


# ------------------------------------------------------------------ between losses


@examples(15)
@given(plain=forest_or_tree)
def test_one_classifier_per_level_answers_in_three_ways(plain: Plain) -> None:
    h = plain.build()
    z = scores(DOUBLE, h, "nodes")
    assert torch.equal(LevelwiseLoss(h, answers="leaf").leaf_logits(z), z[:, h.leaf_nodes.tolist()])
    answers = LevelwiseLoss(h, answers="top_down")
    DOUBLE.close(answers.node_log_probs(z), ConditionalSoftmaxLoss(h).node_log_probs(z))
    DOUBLE.close(
        LevelwiseLoss(h, reduction="none")(z, classes(h)),
        LevelwiseLoss(h, answers="leaf", reduction="none")(z, classes(h)),
    )


def class_embeddings(h: Hierarchy) -> torch.Tensor:
    """(n, N) the embedding of each class: the step of each node at or above it."""
    return reachability_matrix(h, "leaves", dense=True).t() * ClassEmbeddingLoss(h).step


@examples(25)
@given(plain=forest_or_tree)
def test_inner_products_of_class_embeddings_are_similarities(plain: Plain) -> None:
    """Those of Barz and Denzler: 1 - height of the LCA / height of the root."""
    h = plain.build()
    phi = class_embeddings(h).numpy()
    root = h.heights.max() + (not h.rooted)
    np.testing.assert_allclose(phi @ phi.T, 1.0 - h.distance_matrix() / root, atol=1e-12)
    nearest = ClassEmbeddingLoss(h).leaf_logits(torch.from_numpy(phi)).argmax(dim=1)
    assert nearest.tolist() == list(range(h.num_leaves))


def test_a_margin_of_0_is_cross_entropy() -> None:
    h = NAMED["ragged"].build()
    z = scores(DOUBLE, h, "leaves")
    DOUBLE.close(SoftMarginLoss(h, 0.0)(z, classes(h)), CrossEntropyLoss(h)(z, classes(h)))


def test_outputs_of_0_learn_the_embedding() -> None:
    """Zeros have no direction: the loss is 1, and its gradient that of a vector of length 1."""
    h = NAMED["ragged"].build()
    result, gradient = with_gradient(ClassEmbeddingLoss(h), torch.zeros(1, h.num_nodes), torch.tensor([0]))
    assert result == 1.0
    torch.testing.assert_close(gradient[0], -class_embeddings(h)[0].float())


@examples(20)
@given(plain=hierarchies(), labels=st.sampled_from(["leaves", "nodes"]))
def test_simloss_of_any_matrix(form: Form, plain: Plain, labels: str) -> None:
    """That of distances is the default; another one by the sum itself."""
    h = plain.build()
    ends = h.leaf_nodes if labels == "leaves" else np.arange(h.num_nodes)
    far = h.distances(ends[:, None], h.leaf_nodes[None, :], labels="nodes")
    z = logits(len(ends), h.num_leaves, seed=3).to(form.dtype)
    shared = {"labels": labels, "reduction": "none"}
    y = torch.arange(len(ends))
    form.close(SimLoss(h, similarity=0.5**far, **shared)(z, y), SimLoss(h, 0.5, **shared)(z, y).double())
    similarity = logits(len(ends), h.num_leaves, seed=4).abs() + 0.1
    wanted = -(z.double().softmax(dim=1) * similarity).sum(dim=1).log()
    loss = SimLoss(h, similarity=similarity, **shared)
    form.close(loss(z, y), wanted)
    form.close(loss(z, torch.eye(len(ends), dtype=form.dtype)), wanted)


@examples(40)
@given(plain=hierarchies())
def test_hace_without_dilution_is_hce_is_cross_entropy_over_nodes(form: Form, plain: Plain) -> None:
    h = plain.build()
    z = scores(form, h, "nodes")
    plain_ce = cross_entropy(z.double(), torch.tensor(h.leaf_nodes.tolist()), reduction="none")
    form.close(HACELoss(h, 1.0, reduction="none")(z, classes(h)), plain_ce)
    form.close(HCELoss(h, reduction="none")(z, classes(h)), plain_ce)


@examples(40)
@given(plain=hierarchies())
def test_limits_that_are_cross_entropy(form: Form, plain: Plain) -> None:
    h = plain.build()
    z = scores(form, h, "leaves")
    wanted = cross_entropy(z.double(), classes(h), reduction="none")
    same: list[torch.nn.Module] = [
        CrossEntropyLoss(h, reduction="none"),
        SoftLabelLoss(h, beta=1e4, reduction="none"),
        SimLoss(h, 0.0, reduction="none"),
        HACELoss(h, 1.0, outputs="leaves", reduction="none"),
    ]
    if h.is_tree:
        same += [HXELoss(h, 0.0, decay=decay, reduction="none") for decay in ("depth", "height")]
    for loss in same:
        form.close(loss(z, classes(h)), wanted, loss)


@examples(40)
@given(plain=hierarchies(), sharing=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_path_sums_collapse_to_a_head_over_leaves(form: Form, plain: Plain, sharing: float) -> None:
    """Layer by layer and loss by loss; at sharing 0 they are the leaf columns, whatever the inner outputs are."""
    h = plain.build()
    x, weight = logits(h.num_leaves, 3).to(form.dtype), logits(h.num_nodes, 3, seed=1).to(form.dtype)
    bias = logits(1, h.num_nodes, seed=2)[0].to(form.dtype)
    z = x @ weight.t() + bias
    if sharing == 0:
        z[:, h.labels < 0] = torch.nan
    for paths, leaves in (
        (HACELoss(h, outputs="paths", sharing=sharing), HACELoss(h, outputs="leaves")),
        (CrossEntropyLoss(h, outputs="paths", sharing=sharing), CrossEntropyLoss(h)),
    ):
        collapsed, moved = paths.collapse(weight, bias)
        assert collapsed.shape == (h.num_leaves, 3)
        assert moved is not None
        over_leaves = x @ collapsed.t() + moved
        torch.testing.assert_close(over_leaves, paths.leaf_logits(z), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(
            leaves(over_leaves, classes(h)), paths(z, classes(h)), rtol=1e-5, atol=1e-4
        )
        assert paths.collapse(weight)[1] is None
    if sharing == 0:
        assert torch.equal(collapsed, weight[h.leaf_nodes.tolist()])


@examples(40)
@given(plain=forest_or_tree, d=rates)
def test_hace_is_an_hxe_over_nodes(form: Form, plain: Plain, d: float) -> None:
    """Its weight on the i-th conditional from the leaf is 1 - (1 - d)^(i + 1), and 1 on P(top) / 1."""
    h = plain.build()
    z = scores(form, h, "nodes")
    log_q = hace.node_log_probs(z.double(), h, "nodes")
    wanted = []
    for row, leaf in zip(log_q, h.leaves, strict=True):
        path = [row[h.index(v)].item() for v in h.path(leaf)]
        terms = [here - above for here, above in zip(path, [*path[1:], 0.0], strict=True)]
        weights = [1 - (1 - d) ** (i + 1) for i in range(len(path))]
        weights[-1] = 1.0  # P(top) / 1; with a root that conditional is log 1
        wanted.append(-sum(w * t for w, t in zip(weights, terms, strict=True)))
    form.close(HACELoss(h, d, reduction="none")(z, classes(h)), wanted)


@pytest.mark.slow
@examples(40)
@given(plain=trees(), alpha=st.sampled_from([0.0, 0.2, 1.0]))
def test_taking_the_root_off_changes_no_hxe(form: Form, plain: Plain, alpha: float) -> None:
    h = plain.build()
    below = h.without_root()
    z = scores(form, h, "leaves")
    for decay in ("depth", "height"):
        for normalize in (None, "tree"):
            rooted = HXELoss(h, alpha, decay=decay, normalize=normalize, reduction="none")
            rootless = HXELoss(below, alpha, decay=decay, normalize=normalize, reduction="none")
            form.close(rootless(z, classes(h)), rooted(z, classes(h)).double())


def test_a_root_is_inert_but_a_top_is_not() -> None:
    h = ANIMALS.build()
    z = logits(1, 7).clone()
    value = HACELoss(h, 0.5)(z, torch.tensor([0]))
    top_loss = HACELoss(h.without_root(), 0.5)(z[:, 1:], torch.tensor([0]))
    assert value.item() != pytest.approx(top_loss.item(), rel=1e-3)


# ------------------------------------------------------------------ the matrices


def test_the_paper_s_path_of_three() -> None:
    h = ANIMALS.build()
    row = HACELoss(h, 0.6).table(dense=True)[h.label("husky")]
    path = [row[h.index(v)].item() for v in ("husky", "dog", "animal")]
    assert path == pytest.approx([0.6, 0.24, 0.16], rel=1e-12)
    assert row.sum().item() == pytest.approx(1.0, rel=1e-12)


SMOOTHINGS = (
    {},
    {"label_smoothing": 0.3},
    {"soft_label_beta": 3.0},
    {"label_smoothing": 0.3, "soft_label_beta": 3.0},
    {"level_weights": "uniform"},
    {"level_weights": "linear", "label_smoothing": 0.1},
    {"level_weights": [0.4, 0.0, 0.35, 0.25], "soft_label_beta": 2.0},
)


@examples(15)
@given(plain=hierarchies(), d=rates)
def test_rows_sum_to_one_and_are_the_recursion_s(plain: Plain, d: float) -> None:
    h = plain.build()
    for labels, ids in (("leaves", h.leaves), ("nodes", h.nodes)):
        for options in SMOOTHINGS:
            shared = {} if "level_weights" in options else {"d": d}
            table = HACELoss(h, *shared.values(), labels=labels, **options).table(dense=True)
            rows = [targets.hace_row(plain, y, d, **options) for y in ids]
            wanted = [[row.get(v, 0.0) for v in h.nodes] for row in rows]
            torch.testing.assert_close(table, torch.tensor(wanted, dtype=torch.float64))
            torch.testing.assert_close(table.sum(dim=1), torch.ones(len(ids), dtype=torch.float64))


def dilution_masses(dilution: float, length: int) -> np.ndarray:
    """(length,) the masses of a dilution, d (1 - d)^j and (1 - d)^k at the top: eq. (4) as level weights."""
    step = np.arange(length)
    return np.power(1.0 - dilution, step) * np.where(step == length - 1, 1.0, dilution)


def test_level_weights_of_a_dilution_are_hace_bit_for_bit() -> None:
    """Where all classes have one depth; on ragged trees the rest at the top is a sum, right to the last bits."""
    for d in (0.2, 0.5, 0.7, 0.9):
        for name in ("animals", "ragged"):
            h = NAMED[name].build()
            masses = dilution_masses(d, h.max_depth + h.rooted)
            pair = [HACELoss(h, d, 0.1), HACELoss(h, label_smoothing=0.1, level_weights=masses.tolist())]
            torch.testing.assert_close(*(loss.table(dense=True) for loss in pair), rtol=1e-14, atol=0)
        pair = [HACELoss(ANIMALS.build(), d), HACELoss(ANIMALS.build(), level_weights=dilution_masses(d, 3))]
        assert torch.equal(*(loss.table(dense=True) for loss in pair))
        z = logits(4, 7).float()
        results = [with_gradient(loss, z, torch.arange(4)) for loss in pair]
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@examples(40)
@given(plain=hierarchies(), d=rates, eps=st.sampled_from([0.0, 0.1, 0.9]))
def test_the_table_is_h_times_v(plain: Plain, d: float, eps: float) -> None:
    h = plain.build()
    n = h.num_leaves
    w = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    vertical = HACELoss(h, d).table(dense=True)
    uniform = (1 - eps) * torch.eye(n, dtype=torch.float64) + eps / n
    table = HACELoss(h, d, eps, weight=w).table(dense=True)
    torch.testing.assert_close(table, uniform @ w.diag() @ vertical)
    plain_table = HACELoss(h, d, eps).table(dense=True)
    torch.testing.assert_close(plain_table, (1 - eps) * vertical + eps * vertical.mean(dim=0))
    soft = [targets.lca_soft_labels(plain, y, 3.0) for y in h.leaves]
    spread = torch.tensor([[row.get(c, 0.0) for c in h.leaves] for row in soft], dtype=torch.float64)
    table = HACELoss(h, d, soft_label_beta=3.0, weight=w).table(dense=True)
    torch.testing.assert_close(table, spread @ w.diag() @ vertical)


@pytest.mark.parametrize("case", TABLES)
def test_tables_are_sparse_unless_asked(case: str) -> None:
    names = ["ragged", "dag_forest"][: 1 + CASES[case].fits(NAMED["dag_forest"])]
    for labels, name in itertools.product(("leaves", "nodes"), names):
        loss = CASES[case].build(NAMED[name].build(), labels=labels)
        sparse, dense = loss.table(), loss.table(dense=True)
        assert sparse.layout == torch.sparse_coo
        assert dense.layout == torch.strided
        assert dense.dtype == sparse.dtype == torch.float64
        assert dense.shape == (loss.num_labels, loss.hierarchy.num_nodes)
        torch.testing.assert_close(sparse.to_dense(), dense, rtol=0, atol=0)


@examples(40)
@given(plain=hierarchies(), outputs=st.sampled_from(["nodes", "leaves"]))
def test_r_aggregates(plain: Plain, outputs: str) -> None:
    h = plain.build()
    ids = h.nodes if outputs == "nodes" else h.leaves
    dense = hace.reachability_matrix(h, outputs, dense=True)
    below = {v: set(h.descendants(v, include_self=True)) for v in h.nodes}
    assert dense.tolist() == [[float(u in below[v]) for u in ids] for v in h.nodes]
    sparse = hace.reachability_matrix(h, outputs)
    assert sparse.layout == torch.sparse_coo
    assert torch.equal(sparse.to_dense(), dense)
    z = logits(3, len(ids))
    by_matrix = (sparse @ z.softmax(dim=1).t()).t().log()
    torch.testing.assert_close(by_matrix, hace.node_log_probs(z, h, outputs))


@examples(30)
@given(plain=hierarchies(), d=rates)
def test_the_loss_is_the_one_equation(form: Form, plain: Plain, d: float) -> None:
    """-T log(R softmax(z)), with both matrices dense."""
    h = plain.build()
    z = scores(form, h, "nodes")
    log_q = (z.double().softmax(dim=1) @ hace.reachability_matrix(h, dense=True).t()).log()
    loss = HACELoss(h, d, 0.2, reduction="none")
    form.close(loss(z, classes(h)), -(loss.table(dense=True) * log_q).sum(dim=1))


# ------------------------------------------------------------------ invariances


@examples(40)
@given(plain=hierarchies(), seed=st.integers(0, 5))
def test_a_parent_is_at_least_as_likely_as_its_child(form: Form, plain: Plain, seed: int) -> None:
    h = plain.build()
    for outputs in ("nodes", "leaves"):
        log_q = hace.node_log_probs(scores(form, h, outputs, seed), h, outputs)
        for parent, child in h.edges.tolist():
            assert (log_q[:, parent] >= log_q[:, child] - form.tolerance["atol"]).all()
        assert (log_q <= form.tolerance["atol"]).all()
        if h.rooted:
            assert log_q[:, 0].abs().max() <= form.tolerance["atol"]


@pytest.mark.slow
@every_case
@in_each_form
def test_shift_invariance_balanced_gradients_and_order(case: str, form: Form) -> None:
    if case == "class_embedding":  # outputs are a vector, not logits
        return
    for name in ("ragged", "forest", "redundant"):
        if not CASES[case].fits(NAMED[name]):
            continue
        h = NAMED[name].build()
        loss = CASES[case].build(h, reduction="none")
        z = scores(form, h, CASES[case].outputs).requires_grad_()
        value = loss(z, classes(h))
        shift = torch.tensor([64.0, -128.0, 0.5, 8.0, -8.0, 1.0, 2.0], dtype=form.dtype)[: len(z)]
        owned = torch.ones(loss.num_outputs, dtype=form.dtype)
        if CASES[case].outputs == "paths":  # a shift of all classes is one of their own outputs
            owned[h.labels < 0] = 0.0
        moved = loss(z + shift[:, None] * owned, classes(h))
        torch.testing.assert_close(moved, value, rtol=1e-5, atol=2e-5)
        (gradient,) = torch.autograd.grad(value.sum(), z)
        assert (gradient * owned).sum(dim=1).abs().max() < 1e-5
        turn = torch.tensor(random.Random(1).sample(range(len(z)), len(z)))
        torch.testing.assert_close(loss(z[turn], classes(h)[turn]), value[turn], rtol=0, atol=0)
        one_by_one = torch.stack([loss(row, y) for row, y in zip(z, classes(h), strict=True)])
        form.close(one_by_one, value.double())


@pytest.mark.slow
@examples(60)
@given(plain=hierarchies(), case=st.sampled_from(sorted(CASES)), seed=st.integers(0, 99))
def test_names_lines_and_label_order_carry_no_meaning(form: Form, plain: Plain, case: str, seed: int) -> None:
    if not CASES[case].fits(plain):
        return
    rng = random.Random(seed)
    new = dict(
        zip(
            plain.nodes, rng.sample([f"x{i}" for i in range(len(plain.nodes))], len(plain.nodes)), strict=True
        )
    )
    lines = rng.sample(list(plain.parents.items()), len(plain.parents))
    twin = Plain(
        {new[v]: [new[u] for u in rng.sample(above, len(above))] for v, above in lines},
        [new[c] for c in rng.sample(plain.leaves, len(plain.leaves))],
        plain.rooted,
    )
    h, g = plain.build(), twin.build()
    old = {name: v for v, name in new.items()}
    ids = CASES[case].columns(h)
    z = scores(form, h, CASES[case].outputs).requires_grad_()
    columns = [ids.index(old[v]) for v in CASES[case].columns(g)]
    y = torch.tensor([g.label(new[c]) for c in h.leaves])
    weight = dict(zip(h.leaves, torch.linspace(0.5, 2.0, h.num_leaves).tolist(), strict=True))
    ours = CASES[case].build(h, weight=[weight[c] for c in h.leaves])
    theirs = CASES[case].build(g, weight=[weight[old[c]] for c in g.leaves])
    value, moved = ours(z, classes(h)), theirs(z[:, columns], y)
    form.close(moved, value.detach().double())
    (gradient,) = torch.autograd.grad(value, z)
    (moved_gradient,) = torch.autograd.grad(moved, z)
    form.close(moved_gradient, gradient.double())
    log_q, moved_q = ours.node_log_probs(z), theirs.node_log_probs(z[:, columns])
    form.close(moved_q[:, [g.index(new[v]) for v in h.nodes]], log_q.detach().double())


def test_dilution_moves_mass_up() -> None:
    """A model that is sure of the family but not of the species pays less the smaller d is."""
    h = ANIMALS.build()
    z = oracle.columns(h.nodes, [0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # much mass at "dog" itself
    row = torch.tensor([[z[v] for v in h.nodes]])
    values = [HACELoss(h, d)(row, torch.tensor([h.label("husky")])).item() for d in (0.2, 0.5, 0.7, 1.0)]
    assert values == sorted(values)
