"""How a report words numbers, marks and counts."""

from __future__ import annotations

import numpy as np
import pytest

from hace import Hierarchy
from hace.lab.report.about import counts_text, shortened
from hace.lab.report.document import Entry, with_marks
from hace.lab.report.forest import limits, p_text
from hace.lab.report.labels import in_words
from hace.lab.report.metric import bracketed, signed
from hace.lab.report.nodes import ancestors_at
from hace.lab.report.page import code
from hace.lab.report.sentences import listed, say
from hace.lab.report.tables import tally
from hace.lab.runs.config import LabelsConfig
from hace.metrics.intervals import share_difference


def test_differences_have_a_sign_unless_they_round_to_0() -> None:
    assert [signed(1.26, 1), signed(-0.04, 1)] == ["+1.3", "0.0"]
    assert bracketed(-0.04, 1.26, 1) == "[0.0, +1.3]"
    assert bracketed(0.04, 1.26, 1) == "[+0.04, +1.26]"


def test_a_far_off_interval_does_not_squeeze_the_others() -> None:
    assert limits([-1.0, 0.0, 1.0] * 9 + [-90.0, -80.0, -70.0, np.nan]) == (-6.35, 1.35)


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([71.2, 70.0, None, 71.2, 69.0], ["best", "second", "", "best", ""]),
        ([1.0, 2.0], ["", "best"]),
        ([1.0], [""]),
        ([1.0, None], ["", ""]),
        ([], []),
    ],
)
def test_the_best_two_are_marked(values: list[float | None], marks: list[str]) -> None:
    entries = [Entry(str(value)) for value in values]
    assert [entry.mark for entry in with_marks(entries, values)] == marks


def test_counts_and_lists_in_words() -> None:
    assert counts_text([]) == "0 runs"
    assert shortened(["a", "b", "c"], 2) == ["a", "b", "and 1 more"]
    assert tally([2.0, -1.0, 0.5]) == (2, 3, 0.5, 0.5)
    assert tally([]) is None


def test_states_of_labels_in_words() -> None:
    assert in_words(LabelsConfig()) == "labels as they are"
    assert in_words(LabelsConfig(0.8)) == "80% of the labels known only to their parent"
    assert in_words(LabelsConfig(0.8, drop=True)) == "80% of the labels dropped"
    assert in_words(LabelsConfig(fine=1)) == "1 label per class, the others known only to their parent"
    assert (
        in_words(LabelsConfig(fine=5, to="top"))
        == "5 labels per class, the others known only to the top level"
    )
    assert in_words(LabelsConfig(wrong=0.4)) == "40% of the labels wrong, but within their parent"
    both = LabelsConfig(0.5, wrong=0.1, within="anywhere")
    assert (
        in_words(both) == "50% of the labels known only to their parent and 10% of the labels wrong, anywhere"
    )


def test_ranks_have_their_names() -> None:
    birds = Hierarchy.from_paths(
        [("gulls", "herring gull"), ("gulls", "common gull"), ("owls", "barn owl")],
        level_names=("genus", "species"),
    )
    assert in_words(LabelsConfig(0.8), birds) == "80% of the labels known only to genus"
    ragged = Hierarchy.from_paths([("a", "b", "1"), ("a", "b", "2"), ("a", "3")])
    assert in_words(LabelsConfig(0.8), ragged) == "80% of the labels known only to their parent"


def test_sentences_are_filled_in_and_keep_what_is_in_names() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    said = say("helps_yes", ours="<b> & {{ c }}", theirs="d", gains=["e", "f"], ties=[])
    assert said == "Yes. <b> & {{ c }} beats d in e and f."


def test_p_values() -> None:
    assert [p_text(p) for p in (0.0127, 0.5, 1e-6, np.nan)] == ["0.013", "0.5", "<0.0001", "-"]


def test_text_between_backticks_becomes_code() -> None:
    text = code("`hace report` & <b>, <https://example.org>")
    assert text == "<code>hace report</code> &amp; &lt;b&gt;, &lt;https://example.org&gt;"


def test_the_way_down_to_each_node() -> None:
    assert ancestors_at(np.array([-1, 0, 1, 0])).tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 2], [0, 3, 3]]


def test_newcombes_interval() -> None:
    result = share_difference(0.8, 0.6, 50)
    assert [round(result.value, 2), round(result.low, 3), round(result.high, 3)] == [0.2, 0.02, 0.364]
