"""A hierarchy from what callers have in their hands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hace import ConfigError, HACEClassifier, Hierarchy
from hace.formats.given import as_hierarchy

ROWS = [("dog", "husky"), ("dog", "beagle"), ("cat", "tabby")]
TREE = Hierarchy.from_paths(ROWS)
FORMS: list[Any] = [
    TREE,
    ROWS,
    ["dog > husky", "dog > beagle", "cat > tabby"],
    {"husky": "dog", "beagle": "dog", "tabby": "cat", "dog": None, "cat": None},
    {"dog": ["husky", "beagle"], "cat": ["tabby"]},
    pd.DataFrame(ROWS, columns=["parent", "child"]),
    pd.DataFrame(ROWS, columns=["kind", "breed"]),
]


@pytest.mark.parametrize("given", FORMS, ids=lambda form: type(form).__name__)
def test_every_form_is_the_same_hierarchy_also_for_a_classifier(given: Any) -> None:
    h = as_hierarchy(given)
    assert (h.nodes, h.leaves) == (TREE.nodes, TREE.leaves)
    clf = HACEClassifier(given).fit([[0.0], [1.0], [2.0]], ["husky", "beagle", "tabby"])
    assert clf.hierarchy_.leaves == TREE.leaves
    assert clf.predict([[2.5]]).tolist() == ["tabby"]


def test_a_path_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pets.csv"
    path.write_text("parent,child\n" + "".join(f"{a},{b}\n" for a, b in ROWS))
    assert as_hierarchy(str(path)).leaves == as_hierarchy(path).leaves == TREE.leaves
    clf = HACEClassifier(str(path)).fit([[0.0], [1.0], [2.0]], ["husky", "beagle", "tabby"])
    path.unlink()
    assert clf.predict([[2.5]]).tolist() == ["tabby"]


def test_what_makes_no_hierarchy_is_refused_and_a_call_says_how_to_build_one() -> None:
    with pytest.raises(
        ConfigError, match=r"hierarchy must be a Hierarchy, the path of a file, a dict.*Got int"
    ):
        as_hierarchy(3)
    with pytest.raises(TypeError, match=r"Hierarchy\.from_paths\(rows\)"):
        Hierarchy([("dog", "husky")])
