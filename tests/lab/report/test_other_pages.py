"""The pages beside a study's in a real browser: an evaluation, two models, a small study, and a tree by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from hace import Hierarchy, evaluate
from hace.cli import main
from hace.formats import write_hierarchy
from hace.lab.report import About, write_records
from hace.lab.report.results import Results
from tests.lab.report.conftest import (
    fresh,
    missed_by_tab,
    nothing_was_loaded,
    on_screen,
    serious_barriers,
    settle,
    soon,
    sticking_out,
)
from tests.lab.report.test_evaluation_page import page_of, scored
from tests.report_studies import animals, fair_records

pytestmark = pytest.mark.slow

PAGES = ("evaluation", "two models", "study", "dag", "tree")
LONG = "HACE d=0.5, a name as long as that of a run with many settings, lr 0.25"


def study(folder: Path) -> Path:
    records = fair_records(folder / "runs", animals(), {"hace": 3.0, "cross_entropy": 1.0}, seeds=(0, 1))
    return write_records(Results(records), About("a study"), folder / "study")


def tree(folder: Path) -> Path:
    write_hierarchy(animals(), folder / "tree.json")
    main(["hierarchy", str(folder / "tree.json"), "--plot", str(folder / "tree.html")])
    return folder / "tree.html"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, h = tmp_path_factory.mktemp("pages"), animals()
    (z, y), (other, _) = scored(2.0), scored(0.5, seed=1)
    mine = evaluate(z, y, h, temperature=0.5)
    dag = Hierarchy.from_edges(
        [("pet", "cat"), ("wild", "cat"), ("pet", "dog"), ("wild", "wolf")], leaves=["cat", "dog", "wolf"]
    )
    texts = {
        "evaluation": page_of(("mine", mine)),
        "two models": page_of((LONG, evaluate(other, y, h)), ("mine", mine)),
        "dag": page_of(("mine", evaluate(z[:, :3], y % 3, dag))),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts} | {
        "study": study(folder),
        "tree": tree(folder),
    }


@pytest.fixture(params=PAGES)
def opened(request: pytest.FixtureRequest, browser: Any, made: dict[str, Path]) -> Iterator[Any]:
    fresh(browser, made[request.param])
    browser.page = (request.param, made[request.param])
    yield browser
    nothing_was_loaded(browser)


def shown(browser: Any) -> str:
    return browser.find_element("css selector", "#details h3").get_attribute("textContent")


def below(browser: Any) -> Any:
    return browser.find_element("css selector", "#below button")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1440, 900)])
def test_the_answer_is_on_the_first_screen(opened: Any, width: int, height: int) -> None:
    on_screen(opened, width, height)
    assert sticking_out(opened) == []
    answer = "#chart" if opened.page[0] == "tree" else "#verdict .answer"
    box = opened.find_element("css selector", answer).rect
    assert 0 < box["y"] + box["height"] < height


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_barrier(opened: Any, scheme: str) -> None:
    on_screen(opened, 1280, 900, scheme)
    assert serious_barriers(opened) == []


def test_links_lead_to_nodes_and_back_goes_back(opened: Any) -> None:
    whole = shown(opened)
    below(opened).click()
    node, address = shown(opened), opened.current_url
    assert node != whole
    assert "#node=" in address
    opened.back()
    soon(opened, lambda: shown(opened) == whole)
    opened.get("about:blank")
    opened.get(address)
    settle(opened)
    assert shown(opened) == node


def test_a_search_finds_a_node(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    field = opened.find_element("css selector", "#search")
    field.send_keys("do")
    assert opened.find_element("css selector", "#found .entry").text == "dog"
    field.send_keys(Keys.ENTER)
    assert shown(opened) == "dog"


def test_the_keyboard_alone_reaches_everything(opened: Any) -> None:
    wanted, missed = missed_by_tab(opened)
    assert wanted > 3
    assert missed == []


def test_long_names_stay_in_their_place(browser: Any, made: dict[str, Path]) -> None:
    """The reference's name above a forest plot does not run into the next column."""
    fresh(browser, made["study"])
    ends = browser.execute_script(
        "for (const e of document.querySelectorAll('.forest .zero')) e.textContent = 'a name of a method '.repeat(9);"
        "return [...document.querySelectorAll('.forest .zero')].filter((e) => e.checkVisibility()).map((e) => {"
        "  const cell = e.closest('td').getBoundingClientRect(), own = e.getBoundingClientRect();"
        "  return [own.left - cell.left, cell.right - own.right]; })"
    )
    assert ends
    assert min(min(pair) for pair in ends) >= -1
