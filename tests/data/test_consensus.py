"""One answer from several opinions, against the rule as iNaturalist publishes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hace.cli import main
from hace.data.consensus import consensus, read_votes
from hace.errors import ConfigError, DataError, FormatError
from hace.formats import write_hierarchy
from hace.hierarchy import Hierarchy

H = Hierarchy.from_paths(
    [
        ("Fabaceae", "Mimosoideae", "Acacia", "Acacia dealbata"),
        ("Fabaceae", "Mimosoideae", "Mimosa", "Mimosa pudica"),
        ("Fabaceae", "Caesalpinioideae", "Senna", "Senna tora"),
        ("Fabaceae", "Caesalpinioideae", "Senna", "Senna obtusifolia"),
        ("Rosaceae", "Rosoideae", "Rosa", "Rosa canina"),
    ]
)  # fmt: skip


def published_rule(h: Hierarchy, votes: list[str], agree: float, least: int) -> str | None:
    """For every taxon that anybody named, and all above: cumulative count, disagreements, score; the lowest above the share."""
    lineages = [set(h.path(vote)) for vote in votes]
    candidates = []
    for taxon in {node for lineage in lineages for node in lineage}:
        cumulative = sum(taxon in lineage for lineage in lineages)
        disagreements = sum(
            taxon not in lineage and vote not in h.path(taxon)
            for vote, lineage in zip(votes, lineages, strict=True)
        )
        if cumulative >= least and cumulative / (cumulative + disagreements) > agree:
            candidates.append(taxon)
    return max(candidates, key=lambda taxon: h.depth(taxon), default=None)


@pytest.mark.parametrize(
    ("votes", "answer"),
    [
        (["Acacia", "Mimosa"], "Mimosoideae"),
        (["Acacia", "Mimosoideae"], "Mimosoideae"),  # the genus has one supporter
        (["Senna tora", "Senna tora"], "Senna tora"),
        (
            ["Senna tora", "Senna tora", "Senna obtusifolia"],
            "Senna",
        ),  # two of three is not more than two thirds
        (["Senna tora", "Senna tora", "Senna tora", "Senna obtusifolia"], "Senna tora"),
        (["Senna tora", "Senna tora", "Fabaceae"], "Senna tora"),  # a coarse vote is not against a fine one
        (["Rosa canina", "Senna tora"], None),
        (["Rosa canina"], None),
    ],
)
def test_as_the_community_taxon(votes: list[str], answer: str | None) -> None:
    result = consensus({"photo": votes}, H)
    assert result.ids == [answer]
    assert [row["votes"] for row in result.rows()] == ([] if answer is None else [len(votes)])


@given(
    st.lists(st.sampled_from(H.nodes), max_size=8),
    st.sampled_from([0.5, 0.6, 2 / 3, 0.7, 0.9]),
    st.integers(1, 3),
)
def test_any_votes_as_by_the_published_rule(votes: list[str], agree: float, least: int) -> None:
    assert consensus({"x": votes}, H, agree=agree, least=least).ids == [
        published_rule(H, votes, agree, least)
    ]


def test_agreement_by_rank_and_shares() -> None:
    result = consensus(
        {"a": ["Senna tora", "Senna obtusifolia", "Senna tora", "Senna"], "b": ["Acacia", "Mimosa"]}, H
    )
    assert result.agreement() == {1: 1.0, 2: 1.0, 3: 6 / 7, 4: 1 / 3}
    shares = result.node_shares
    assert shares.sum(axis=1) == pytest.approx(1)
    some = [H.index(node) for node in ("Senna tora", "Senna obtusifolia", "Senna")]
    assert shares[0, some] == pytest.approx([0.5, 0.25, 0.25])
    assert np.count_nonzero(shares[1]) == 2


def test_the_last_opinion_of_a_person_counts(tmp_path: Path) -> None:
    """As iNaturalist's current identifications: an older one of the same person is withdrawn."""
    table = tmp_path / "votes.csv"
    table.write_text("photo,who,label\na,ann,Acacia\na,bob,Mimosa\na,ann,Mimosa\na,,Rosa\na,,Rosa\n")
    assert read_votes(table, "photo", annotator="who") == {"a": ["Mimosa", "Mimosa", "Rosa", "Rosa"]}
    assert len(read_votes(table, "photo")["a"]) == 5
    with pytest.raises(
        FormatError, match=r"annotator_column must be one of .* Got 'whom'. Did you mean 'who'"
    ):
        read_votes(table, "photo", annotator="whom")


def test_an_only_opinion_may_be_the_answer() -> None:
    votes = {"a": ["Senna"], "b": [], "c": ["Senna", "Rosa"]}
    assert consensus(votes, H, alone=True).ids == ["Senna", None, None]
    dag = Hierarchy.from_edges([("a", "x"), ("b", "x")])
    assert consensus({"a": ["x"]}, dag, alone=True).ids == ["x"]


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match=r"votes must be nodes of the hierarchy. Got 'Seena'"):
        consensus({"a": ["Seena"]}, H)
    with pytest.raises(ConfigError, match=r"agree must be from 0.5"):
        consensus({"a": ["Senna"]}, H, agree=0.3)
    with pytest.raises(DataError, match="must be a tree or a forest"):
        consensus({}, Hierarchy.from_edges([("a", "x"), ("b", "x")]))
    assert consensus({}, H).ids == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_hierarchy(H, tmp_path / "tree.csv")
    votes = tmp_path / "votes.csv"
    votes.write_text("sample,who,label\na,1,Senna tora\na,2,Senna obtusifolia\nb,1,Rosa canina\n")
    command = ["consensus", str(votes), "--hierarchy", str(tmp_path / "tree.csv")]
    assert main([*command, "--out", str(tmp_path / "labels.csv")]) == 0
    assert (tmp_path / "labels.csv").read_text() == "sample,label,support,votes\na,Senna,2,2\n"
    assert "1 of 2 samples have an answer." in capsys.readouterr().err
    votes.write_text("sample,label\na,\n")
    assert main(command) == 2
    assert "line 2: sample and label must be given" in capsys.readouterr().err
