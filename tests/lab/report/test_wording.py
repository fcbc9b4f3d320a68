"""How a report words numbers, marks and counts."""

from __future__ import annotations

import numpy as np
import pytest

from hace.lab.report.document import marked
from hace.lab.report.findings import bracketed, certainties, limits, signed
from hace.lab.report.nodes import ancestors_at
from hace.lab.report.page import code
from hace.lab.report.results import tally
from hace.lab.report.study_report import counts_text, shortened
from hace.lab.report.verdict import in_words
from hace.lab.runs.config import LabelsConfig
from hace.metrics.intervals import Interval, share_difference


def test_differences_have_a_sign_unless_they_round_to_0() -> None:
    assert [signed(1.26, 1), signed(-0.04, 1)] == ["+1.3", "0.0"]
    assert bracketed(-0.04, 1.26, 1) == "[0.0, +1.3]"
    assert bracketed(0.04, 1.26, 1) == "[+0.04, +1.26]"


def test_a_difference_is_clear_if_it_remains_beside_all_the_others() -> None:
    gap = Interval(2.0, 0.5, 3.5, 0.8)
    assert certainties({"a": (gap, 5)}) == {"a": "clear"}
    assert certainties(dict.fromkeys("abcdef", (gap, 5)))["a"] == "likely"


def test_a_far_off_interval_does_not_squeeze_the_others() -> None:
    assert limits([(-1.0, 0.0, 1.0)] * 9 + [(-90.0, -80.0, -70.0)]) == (-6.35, 1.35)


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([71.2, 70.0, None, 71.2, 69.0], ["best", "second", "", "best", ""]),
        ([1.0, 2.0], ["", "best"]),
        ([1.0, None], ["", ""]),
        ([], []),
    ],
)
def test_the_best_two_are_marked(values: list[float | None], marks: list[str]) -> None:
    assert marked(values) == marks


def test_counts_and_lists_in_words() -> None:
    assert counts_text([]) == "0 runs"
    assert shortened(["a", "b", "c"], 2) == ["a", "b", "and 1 more"]
    assert tally([2.0, -1.0, 0.5]) == (2, 3, 0.5, 0.5)
    assert tally([]) is None


def test_states_of_labels_in_words() -> None:
    assert in_words(LabelsConfig(0.8)) == "80% of the labels known only to their parent"
    assert in_words(LabelsConfig(fine=1)) == "1 label per class, the others known only to their parent"
    assert in_words(LabelsConfig(wrong=0.4)) == "40% of the labels wrong, but within their parent"


def test_text_between_backticks_becomes_code() -> None:
    text = code("`hace report` & <b>, <https://example.org>")
    assert text == "<code>hace report</code> &amp; &lt;b&gt;, &lt;https://example.org&gt;"


def test_the_way_down_to_each_node() -> None:
    assert ancestors_at(np.array([-1, 0, 1, 0])).tolist() == [[0, 0, 0], [0, 1, 1], [0, 1, 2], [0, 3, 3]]


def test_newcombes_interval() -> None:
    found = share_difference(0.8, 0.6, 50)
    assert [round(found.value, 2), round(found.low, 3), round(found.high, 3)] == [0.2, 0.02, 0.364]
