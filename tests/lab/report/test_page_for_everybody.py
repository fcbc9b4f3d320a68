"""A study's page in a real browser: the answer on the first screen, links and Back, the keyboard alone, and paper."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hace.formats.readers import animals_hierarchy
from hace.lab.report import About, write_records
from hace.lab.report.results import Results
from hace.lab.runs.config import LabelsConfig
from tests.lab.report.conftest import (
    fresh,
    missed_by_tab,
    nothing_was_loaded,
    on_screen,
    serious_barriers,
    soon,
)
from tests.report_studies import fair_records

pytestmark = pytest.mark.slow

PAPER = (184 * 96 // 25, 271 * 96 // 25)  # px of A4 without its margins
SCREENS = {"phone": (390, 844), "desktop": (1440, 900)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions about one taxonomy, as in the demo: all labels, and most of them coarse."""
    folder, h = tmp_path_factory.mktemp("study"), animals_hierarchy()
    few = {"seeds": (0, 1, 2, 3), "rates": (1.0, 2.0, 4.0), "samples": 610, "dataset": "animals"}
    skills = {
        "cross_entropy": 3.0,
        "hace": 3.2,
        "hxe_0.2": 2.8,
        "cross_entropy_paths": 3.1,
        "hace_shuffled": 2.9,
    }
    records = fair_records(folder / "runs", h, skills, **few)  # type: ignore[arg-type]
    coarse = {
        "cross_entropy": 2.2,
        "hace": 2.4,
        "hxe_0.2": 2.0,
        "cross_entropy_paths": 2.6,
        "cross_entropy_drop": 1.5,
    }
    records += fair_records(folder / "coarse", h, coarse, labels=LabelsConfig(0.8), **few)  # type: ignore[arg-type]
    return write_records(
        Results(records), About("hace study: animals", "hace study animals"), folder / "report"
    )


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    fresh(browser, page)
    yield browser
    nothing_was_loaded(browser)


def shown(browser: Any) -> str:
    """The node that the page shows."""
    return browser.find_element("css selector", "#details h3").get_attribute("textContent")


def place(browser: Any) -> str:
    return browser.find_element("css selector", "#choose-place").get_attribute("value")


@pytest.mark.parametrize("screen", SCREENS)
def test_both_answers_are_on_the_first_screen(opened: Any, screen: str) -> None:
    width, height = SCREENS[screen]
    on_screen(opened, width, height)
    answers = opened.execute_script(
        "const found = [...document.querySelectorAll('#verdict .answer')];"
        "return found.map((e) => [e.textContent, e.getBoundingClientRect().bottom])"
    )
    assert len(answers) == 2
    assert "Use the coarse labels, with path sums." in answers[1][0]
    assert max(bottom for _, bottom in answers) < height
    card = opened.find_elements("css selector", "#verdict .card")[1].text
    assert "Use path sums." in card
    assert re.search(r"80% of the labels known only to family\s+\+\d+\.\d points\s+\[", card)
    assert re.search(r"\d+% of the way from dropping them to knowing all labels", card)
    assert opened.execute_script("return scrollY") == 0


def test_a_link_leads_to_a_node_and_back_goes_back(opened: Any, page: Path) -> None:
    opened.get("about:blank")
    opened.get(f"{page.as_uri()}#node=cat")
    assert shown(opened) == "cat"
    opened.find_element("css selector", "#below button").click()
    first = shown(opened)
    assert first != "cat"
    assert opened.current_url.endswith(f"#node={first}")
    opened.back()
    soon(opened, lambda: shown(opened) == "cat")
    opened.forward()
    soon(opened, lambda: shown(opened) == first)


def test_a_link_leads_to_a_place_with_the_same_tree(opened: Any, page: Path) -> None:
    opened.get("about:blank")
    opened.get(f"{page.as_uri()}#place=1&node=owl")
    assert (shown(opened), place(opened)) == ("owl", "1")
    opened.find_element("css selector", "#below button").click()
    assert shown(opened) != "owl"
    assert place(opened) == "1"
    assert "#place=1&node=" in opened.current_url
    opened.back()
    soon(opened, lambda: (shown(opened), place(opened)) == ("owl", "1"))
    opened.execute_script(
        "const s = document.getElementById('choose-place'); s.value = '0'; s.dispatchEvent(new Event('change'))"
    )
    assert (shown(opened), opened.current_url.endswith("#node=owl")) == ("owl", True)


@pytest.mark.parametrize("address", ["#node=nobody", "#place=9&node=cat", "#node=%", "#%", "#nothing"])
def test_a_bad_link_shows_everything(opened: Any, page: Path, address: str) -> None:
    opened.get("about:blank")
    opened.get(page.as_uri() + address)
    assert shown(opened) == "animals"


def test_every_switch_and_every_option(opened: Any) -> None:
    tried = opened.execute_script(
        """
        let tried = 0;
        for (const box of document.querySelectorAll("details")) box.open = true;
        for (const chooser of document.querySelectorAll("select")) {
          const values = [...chooser.options].map((option) => option.value);
          for (const value of [...values, values[0]]) {
            chooser.value = value;
            chooser.dispatchEvent(new Event("change"));
            tried += 1;
            const parts = [...(chooser.closest(".switch") || { children: [] }).children];
            const options = parts.filter((part) => part.dataset.option !== undefined);
            if (options.length && options.filter((part) => !part.hidden).length !== 1) return -1;
          }
        }
        const slider = document.getElementById("guarantee");
        for (let i = 0; i <= Number(slider.max); i++) {
          slider.value = i;
          slider.dispatchEvent(new Event("input"));
          tried += 1;
        }
        document.getElementById("show-stops").click();
        return tried;
        """
    )
    assert tried > 40
    assert "not wrong" in opened.find_element("css selector", "#sure-bars").text
    assert "answers stop here" in opened.find_element("css selector", "#legend").text


def test_a_search_finds_a_family_and_its_animals(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    field = opened.find_element("css selector", "#search")
    field.send_keys("lyn")
    assert [e.text for e in opened.find_elements("css selector", "#found .entry")] == ["lynx"]
    field.send_keys(Keys.ENTER)
    assert shown(opened) == "lynx"


def test_the_keyboard_alone_reaches_everything(opened: Any) -> None:
    wanted, missed = missed_by_tab(opened)
    assert wanted > 20
    assert missed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_barrier(opened: Any, scheme: str) -> None:
    on_screen(opened, 1280, 900, scheme)
    assert serious_barriers(opened) == []


def test_it_is_small_and_prints_on_few_pages(opened: Any, page: Path) -> None:
    assert page.stat().st_size < 2e6
    made = opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    pages = len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(made["data"])))
    assert 1 <= pages <= 8


def test_paper_has_whole_figures_and_the_command(opened: Any) -> None:
    """Laid out as on paper: a figure fits a page, and what reproduces the study is not folded away."""
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": PAPER[0], "height": PAPER[1], "deviceScaleFactor": 1, "mobile": False},
    )
    tall = opened.execute_script(
        "return [...document.querySelectorAll('figure, .card, #chart, tr')].filter((e) => e.checkVisibility())"
        ".map((e) => [e.getBoundingClientRect().height, getComputedStyle(e).breakInside, e.id || e.className])"
    )
    assert len(tall) > 20
    assert [result for result in tall if result[0] > PAPER[1]] == []
    broken = {name for _, inside, name in tall if inside != "avoid"}
    assert broken <= {"chart"}  # it is inside one that is not broken
    assert opened.find_element("css selector", "#about code").is_displayed()
    assert not opened.find_element("css selector", "#reading").is_displayed()
    opened.execute_script("dispatchEvent(new Event('afterprint'))")
    assert not opened.execute_script("return document.getElementById('about').open")
