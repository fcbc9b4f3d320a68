"""Classes left out of training: how they are drawn, what answers to them are worth, and the study as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hace import HACEClassifier, HCELoss, Hierarchy, build_loss, predict
from hace.cli.entry import main
from hace.decisions.ladders import outcomes_of
from hace.decisions.scores import Scores
from hace.decisions.threshold_rules import own_masses
from hace.errors import ConfigError, DataError, HierarchyError
from hace.linear.unseen_classes import (
    METHODS,
    UnseenStudy,
    at_known,
    best_methods,
    card,
    curve,
    distance_logits,
    draw_classes,
    guaranteed_point,
    ladder_by,
    leave_out,
    refined,
    summary,
)

BIRDS = Hierarchy.from_paths(
    [
        ("bird", "gull", "herring gull"),
        ("bird", "gull", "western gull"),
        ("bird", "tern", "arctic tern"),
        ("bird", "tern", "common tern"),
        ("bird", "kiwi", "brown kiwi"),
    ]
)


def test_a_class_left_out_has_the_closest_listed_ancestor_as_its_truth() -> None:
    left = leave_out(BIRDS, ["herring gull", "brown kiwi"])
    h = left.hierarchy
    assert "kiwi" not in h.nodes  # a group without a listed class is no answer
    truth = {c: h.nodes[v] for c, v in zip(BIRDS.leaves, left.truths.tolist(), strict=True)}
    assert truth["herring gull"] == "gull"
    assert truth["brown kiwi"] == "bird"
    assert truth["western gull"] == "western gull"
    assert [h.leaves[i] for i in left.labels if i >= 0] == [c for c in BIRDS.leaves if c not in left.classes]


def test_drawn_classes_have_a_listed_sister_and_whole_groups_a_listed_neighbour() -> None:
    for seed in range(20):
        for count in (1, 2, 0.4):
            gone = draw_classes(BIRDS, count, seed)
            assert len(gone) == (2 if count == 0.4 else count)
            for leaf in gone:
                sisters = set(BIRDS.children(BIRDS.parents(leaf)[0])) - set(gone)
                assert sisters, (seed, gone)
        groups = {BIRDS.parents(c)[0] for c in draw_classes(BIRDS, 2, seed, groups=True)}
        assert groups < {"gull", "tern", "kiwi"}
    assert draw_classes(BIRDS, 2, 3) == draw_classes(BIRDS, 2, 3)
    with pytest.raises(DataError, match=r"at most 2 here: every class left out needs a listed sister. Got 3"):
        draw_classes(BIRDS, 3, 0)
    with pytest.raises(
        ConfigError, match=r"must name classes. Got 'hering gull'. Did you mean 'herring gull'"
    ):
        leave_out(BIRDS, ["hering gull"])


def node_scores(**own: float) -> torch.Tensor:
    """Logits of probabilities, by name; the others have next to none."""
    p = torch.full((BIRDS.num_nodes,), 1e-9)
    for name, mass in own.items():
        p[BIRDS.index(name.replace("_", " "))] = mass
    return p.log()[None]


def test_own_answers_with_the_group_where_its_own_output_wins() -> None:
    sure = node_scores(herring_gull=0.9, gull=0.1)
    other = node_scores(herring_gull=0.3, gull=0.6, bird=0.1)
    assert predict(sure, BIRDS, "own", threshold=0.5).ids == ["herring gull"]
    assert predict(other, BIRDS, "own", threshold=0.5).ids == ["gull"]
    assert predict(other, BIRDS, "own", threshold=0.3).ids == ["herring gull"]  # 0.3 of 0.9
    assert predict(other, BIRDS, "own", threshold=0.95).ids == ["bird"]  # q*(gull) is 0.9
    assert predict(node_scores(kiwi=0.8, brown_kiwi=0.2), BIRDS, "own", threshold=0.5).ids == ["kiwi"]


def test_a_head_over_leaves_cannot_say_it_and_a_dag_neither() -> None:
    z = torch.randn(3, BIRDS.num_leaves)
    with pytest.warns(UserWarning, match="No inner node has a mass of its own"):
        predict(z, BIRDS, "own", threshold=0.5)
    log_q = build_loss("cross_entropy", BIRDS).node_log_probs(z)
    kiwi, brown = BIRDS.index("kiwi"), BIRDS.index("brown kiwi")
    torch.testing.assert_close(log_q[:, kiwi], log_q[:, brown])  # why no threshold can prefer the genus
    dag = Hierarchy.from_edges([("a", "c"), ("b", "c"), ("a", "d"), ("b", "e")])
    with pytest.raises(HierarchyError, match="Own masses need a tree"):
        own_masses(torch.zeros(1, dag.num_nodes), dag)


def test_own_moves_up_as_its_threshold_grows_and_outcomes_agree_with_predict() -> None:
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(200, BIRDS.num_nodes, generator=generator)
    truth = torch.randint(0, BIRDS.num_nodes, (200,), generator=generator)
    log_q = HCELoss(BIRDS).node_log_probs(z)
    outcomes = outcomes_of(Scores(z, BIRDS, "logits", "nodes"), truth, rule="own", labels="nodes")
    tried = [0.0, 0.2, 0.5, 0.8, 0.99]
    ladder = ladder_by("own", log_q, BIRDS)
    for t in tried:
        answer = ladder.answers(t)
        assert predict(z, BIRDS, "own", threshold=t, outputs="nodes").nodes.tolist() == answer.tolist()
        said = int((BIRDS.depths[answer] > 0).sum())
        assert said == outcomes.answers_at(np.array([t]))[0]


def birds(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features in which a genus is close together."""
    rng = np.random.default_rng(seed)
    genus = np.random.default_rng(1).normal(size=(3, 24))
    species = 0.5 * np.random.default_rng(2).normal(size=(5, 24))
    y = np.repeat(np.arange(5), samples)
    above = np.array([["gull", "tern", "kiwi"].index(BIRDS.parents(c)[0]) for c in BIRDS.leaves])
    return (genus[above[y]] + species[y] + 0.3 * rng.normal(size=(len(y), 24))).astype(np.float32), y


def test_the_study_compares_methods_at_equal_accuracy() -> None:
    heard: list[str] = []
    study = UnseenStudy(
        BIRDS, birds(30, 3), birds(20, 4), 2, draws=2, seeds=1, epochs=15, outside=birds(4, 5)[0]
    )
    rows = study.run(lambda text, rows: heard.append(text))
    assert heard == ["seed 1 of 1, draw 1 of 2", "seed 1 of 1, draw 2 of 2", "done"]
    assert {row["method"] for row in rows} == set(METHODS)
    assert all(0 <= row["outside_named"] <= 100 for row in rows)
    for row in rows:
        if not isinstance(row["lost"], str):
            assert np.isnan(row["known_exact"]) or row["known_exact"] >= row["best"] - row["lost"]
    again = UnseenStudy(BIRDS, birds(30, 3), birds(20, 4), 2, draws=1, seeds=1, epochs=15).run()
    first = [row for row in rows if row["draw"] == 0]
    assert [row["unseen_true"] for row in again] == pytest.approx(
        [row["unseen_true"] for row in first], nan_ok=True
    )
    assert {line["method"] for line in summary(rows)} == set(METHODS)
    assert "leave-one-out" in card(rows)
    assert "nan" not in card(rows)


def test_own_outputs_trained_by_leave_one_out_see_what_is_new() -> None:
    """On separable data the head names the genus for most of the unseen samples, at no cost on known ones."""
    left = leave_out(BIRDS, ["herring gull", "arctic tern"])
    study = UnseenStudy(BIRDS, birds(60, 3), birds(40, 4), list(left.classes), draws=1, seeds=1)
    truth, new = left.truths[study.test[1]], left.labels[study.test[1]] < 0
    best = {}
    for name in ("cross-entropy", "leave-one-out"):
        log_q = study.log_q(left, METHODS[name], 0, {}, {})
        ladder = ladder_by(METHODS[name].rule, log_q, left.hierarchy)
        point = at_known(curve(ladder, truth, new), 97.0)
        best[name] = 0.0 if point is None else point.unseen_exact
    assert best["leave-one-out"] > best["cross-entropy"]


def test_the_estimator_takes_the_term_and_its_file_keeps_the_answers(tmp_path: Path) -> None:
    mine = BIRDS.subset(["western gull", "arctic tern", "common tern", "brown kiwi"])
    (x, y), (tx, ty) = birds(60, 3), birds(40, 4)
    names, new = np.array(BIRDS.leaves), BIRDS.label("herring gull")
    mass = {}
    for unseen in (0.0, 0.3):
        clf = HACEClassifier(mine, loss="hce", loss_params={"unseen": unseen})
        log_q = clf.fit(x[y != new], names[y[y != new]]).predict_node_log_proba(tx[ty == new])
        q = np.exp(log_q)
        mass[unseen] = (q[:, mine.index("gull")] - q[:, mine.index("western gull")]).mean()
    assert mass[0.3] > 10 * mass[0.0]  # "another gull"
    clf.save(tmp_path / "birds.safetensors")
    again = HACEClassifier.load(tmp_path / "birds.safetensors").predict_node_log_proba(tx[ty == new])
    np.testing.assert_allclose(again, log_q, atol=1e-5)


def test_distances_choose_among_classes_and_leave_inner_masses_alone() -> None:
    (x, y), (tx, ty) = birds(30, 3), birds(20, 4)
    assert (distance_logits(x, y, tx).argmax(dim=1).numpy() == ty).mean() > 0.9
    loss = HCELoss(BIRDS)
    z = torch.randn(len(tx), loss.num_outputs, generator=torch.Generator().manual_seed(0))
    new = refined(z, distance_logits(x, y, tx), loss.head.leaf_nodes)
    inner = BIRDS.labels < 0
    torch.testing.assert_close(new.log_softmax(dim=1)[:, inner], z.log_softmax(dim=1)[:, inner])
    two = distance_logits(x[y < 2], y[y < 2], x[y < 2])
    assert (two.argmax(dim=1).numpy() == y[y < 2]).mean() > 0.9


def test_truths_outside_the_list_count_as_their_closest_listed_ancestor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hace import write_hierarchy

    mine = BIRDS.subset(["western gull", "arctic tern", "brown kiwi"])
    write_hierarchy(BIRDS, tmp_path / "all.csv")
    write_hierarchy(mine, tmp_path / "mine.csv")
    (tmp_path / "labels.txt").write_text("herring gull\nwestern gull\ncommon tern\nkiwi\n")
    np.save(tmp_path / "z.npy", np.eye(mine.num_nodes, dtype=np.float32)[[mine.index("gull")] * 4] * 9)
    words = ["evaluate", "--hierarchy", str(tmp_path / "mine.csv"), "--scores", str(tmp_path / "z.npy")]
    words += ["--labels", str(tmp_path / "labels.txt")]
    assert main(words) == 2  # herring gull is not listed
    assert "labels must be ids or unique names" in capsys.readouterr().err
    assert main([*words, "--taxonomy", str(tmp_path / "all.csv")]) == 0
    (tmp_path / "labels.txt").write_text("ostrich\nwestern gull\ncommon tern\nkiwi\n")
    assert main([*words, "--taxonomy", str(tmp_path / "all.csv")]) == 2
    assert "below one of its nodes in the taxonomy. Got 'ostrich'" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hace import write_hierarchy

    write_hierarchy(BIRDS, tmp_path / "birds.csv")
    (x, y), (tx, ty) = birds(30, 3), birds(20, 4)
    names = np.array(BIRDS.leaves)
    np.savez(tmp_path / "birds.npz", x_train=x, y_train=names[y], x_test=tx, y_test=names[ty])
    out = tmp_path / "rows.csv"
    words = ["unseen", "--features", str(tmp_path / "birds.npz"), "--hierarchy", str(tmp_path / "birds.csv")]
    words += ["--leave-out", "2", "--draws", "1", "--seeds", "1", "--epochs", "5", "--out", str(out)]
    assert main([*words, "--methods", "cross-entropy,leave-one-out"]) == 0
    assert "Something new appears" in capsys.readouterr().out
    assert out.read_text().startswith("draw,seed,method,lost,best,threshold,known_exact")
    page = tmp_path / "page.html"
    assert main([*words, "--methods", "leave-one-out", "--accuracy", "0.3", "--page", str(page)]) == 0
    said = capsys.readouterr().out
    assert "guarantee 0.3, leave-one-out: threshold" in said
    (row,) = [line for line in out.read_text().splitlines() if "guarantee 0.3" in line]
    threshold, known_exact = row.split(",")[5:7]
    assert f"threshold {float(threshold):.3g}; {float(known_exact):.1f}% of known samples" in said
    assert "if something new appears, what happens?" in page.read_text()
    assert (
        main([*words, "--methods", "leave-one-out", "--accuracy", "0.9"]) == 2
    )  # with two classes to set it
    assert "classes must be at least 9 to guarantee 0.9 of the samples" in capsys.readouterr().err
    assert main([*words, "--methods", "crossentropy"]) == 2
    assert "A method must be one of" in capsys.readouterr().err


def lines_of(shares: dict[str, list[float]]) -> list[dict]:
    """Rows of methods with these shares of true answers, one per draw."""
    point = {"lost": 3.0, "known_exact": 70.0, "best": 73.0}
    return [
        {"draw": draw, "seed": 0, "method": name, "unseen_true": share, **point}
        for name, each in shares.items()
        for draw, share in enumerate(each)
    ]


def test_methods_whose_difference_may_be_chance_are_tied() -> None:
    each = {"first": [19.0, 35.0, 6.0], "second": [20.0, 28.0, 8.0], "far behind": [1.0, 17.0, -12.0]}
    assert best_methods(lines_of(each)) == ["first", "second"]
    assert best_methods(lines_of({name: shares[:1] for name, shares in each.items()})) == ["second"]


def test_the_threshold_is_that_of_the_head_whose_classes_set_it() -> None:
    """The definition, class by class: the least threshold that the classes left out support, and each judged without itself."""
    h = Hierarchy.from_paths([(f"g{i // 4}", f"c{i:02}") for i in range(24)])
    left = leave_out(h, [f"c{i:02}" for i in range(0, 24, 2)])
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(24), 8)  # shares of eighths are exact
    listed = left.hierarchy
    z = torch.from_numpy(rng.normal(size=(192, listed.num_nodes)))
    truth, unseen = left.truths[classes], left.labels[classes] < 0
    z[torch.arange(192), torch.from_numpy(truth)] += 2
    ladder = ladder_by("threshold", build_loss("hce", listed).node_log_probs(z), listed)
    point = guaranteed_point(ladder, truth, unseen, classes, 0.8)

    true_answers = {
        (answer, node)
        for node in set(truth.tolist())
        for answer in (node, *map(listed.index, listed.ancestors(listed.nodes[node])))
    }

    def false_at(t: float, some: np.ndarray) -> float:
        answers = ladder.answers(t)
        says = np.append(listed.depths, 0)[answers] > 0
        pairs = zip(answers.tolist(), truth.tolist(), strict=True)
        wrong = says & ~np.array([pair in true_answers for pair in pairs])
        return sum(wrong[classes == c].mean() for c in some)

    def least(some: np.ndarray) -> float:
        tried = ladder.outcomes(truth).take(np.flatnonzero(np.isin(classes, some))).thresholds()
        return min(t for t in tried if (false_at(t, some) + 1) / (len(some) + 1) <= 0.2 + 1e-12)

    new = np.unique(classes[unseen])
    assert point.threshold == least(new)
    judged = [false_at(least(new[new != c]), np.array([c])) for c in new]
    assert point.unseen_false == pytest.approx(100 * np.mean(judged))
    exact = (ladder.answers(point.threshold) == truth)[~unseen].mean()
    assert point.known_exact == pytest.approx(100 * exact)
    few = guaranteed_point(ladder, truth, unseen & (classes < 8), classes, 0.8)
    assert np.isnan(few.unseen_false)  # four classes set it, and three cannot
    assert few.threshold > 0


def test_one_sample_of_each_class_keeps_the_guarantee_and_spends_it() -> None:
    """Few classes that allow little: one sample of each answers more, and false answers stay below what is allowed."""
    h = Hierarchy.from_paths([(f"g{i // 4}", f"c{i:02}") for i in range(24)])
    left = leave_out(h, [f"c{i:02}" for i in range(0, 24, 2)])
    classes = np.repeat(np.arange(24), 8)
    truth, unseen = left.truths[classes], left.labels[classes] < 0
    loss = build_loss("hce", left.hierarchy)
    false: dict[str, list[float]] = {"steadier": [], "sharper": []}
    true: dict[str, list[float]] = {"steadier": [], "sharper": []}
    for seed in range(150):
        z = torch.from_numpy(np.random.default_rng(seed).normal(size=(192, left.hierarchy.num_nodes)))
        z[torch.arange(192), torch.from_numpy(truth)] += 2
        ladder = ladder_by("threshold", loss.node_log_probs(z), left.hierarchy)
        for prefer in false:
            point = guaranteed_point(ladder, truth, unseen, classes, 0.9, prefer)
            false[prefer].append(point.unseen_false)
            true[prefer].append(point.unseen_true)
    error = np.std(false["sharper"]) / np.sqrt(150)
    assert np.mean(false["steadier"]) < np.mean(false["sharper"]) <= 10 + 3 * error
    assert np.mean(true["sharper"]) > np.mean(true["steadier"])
