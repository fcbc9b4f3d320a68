"""The report's page in a real browser: it draws, descends, compares, searches, and fits a phone and a desk."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hace import Hierarchy
from hace.lab.report import About, write_records
from hace.lab.report.results import Results
from tests.lab.report.conftest import fresh, nothing_was_loaded, on_screen, sticking_out
from tests.report_studies import animals, fair_records

pytestmark = pytest.mark.slow

HOSTILE = "</script><b>&\"'$x_1$"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    skills = {"cross_entropy": 1.2, "hace": 2.4, "hxe_0.2": 0.9}
    records = fair_records(folder / "a", animals(), skills, seeds=(0, 1), rates=(1.0,))
    other = Hierarchy.from_paths([("car", "van"), ("car", "taxi"), ("ship",)])
    records += fair_records(
        folder / "b", other, {"cross_entropy": 1.2, "hace": 2.4}, dataset="things", seeds=(0,), rates=(1.0,)
    )
    return write_records(
        Results(records), About("A study & its <report>", "hace study animals"), folder / "report"
    )


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    fresh(browser, page)
    yield browser
    nothing_was_loaded(browser)


def one(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def text(browser: Any, selector: str) -> str:
    return one(browser, selector).get_attribute("textContent")


def colours(browser: Any) -> list[str]:
    return [cell.get_attribute("fill") for cell in browser.find_elements("css selector", "#chart .cell")]


def choose(browser: Any, selector: str, value: str) -> None:
    from selenium.webdriver.support.select import Select

    Select(one(browser, selector)).select_by_value(value)


def click_node(browser: Any, name: str) -> None:
    """Click the sector of a node where a person would: at its own place on the screen."""
    data = "JSON.parse(document.getElementById('report-data').textContent)"
    names = browser.execute_script(f"return Object.values({data}.trees)[0].names")
    cell = one(browser, f'#chart .cell[data-node="{names.index(name)}"]')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    box = browser.execute_script(
        "const p = arguments[0], m = p.getPointAtLength(p.getTotalLength() / 8).matrixTransform(p.getScreenCTM());"
        "const q = p.getPointAtLength(p.getTotalLength() * 5 / 8).matrixTransform(p.getScreenCTM());"
        "const at = [(m.x + q.x) / 2, (m.y + q.y) / 2];"
        "document.elementFromPoint(...at).dispatchEvent(new MouseEvent('click', {bubbles: true})); return at",
        cell,
    )
    assert box


def test_it_draws_and_descends(opened: Any) -> None:
    assert opened.title == "A study & its <report>"
    assert len(colours(opened)) == 9
    assert text(opened, "#details h3") == "animal"
    assert "top-1" in text(opened, "#details")
    click_node(opened, "dog")
    assert text(opened, "#details h3") == "dog"
    assert text(opened, "#crumbs [aria-current]") == "dog"
    assert len(colours(opened)) == 2
    assert ", 2 seeds" in text(opened, "#details")
    assert "points" in text(opened, "#details")
    one(opened, "#chart .centre").click()
    assert text(opened, "#details h3") == "animal"


def test_keys_move_through_it(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    chart = one(opened, "#chart svg")
    opened.execute_script("arguments[0].focus()", chart)
    chart.send_keys(Keys.ARROW_DOWN)
    first = text(opened, "#details h3")
    assert first in ("dog", "cat", "bird")
    chart.send_keys(Keys.ENTER)
    assert text(opened, "#crumbs [aria-current]") == first


def test_methods_can_be_switched(opened: Any) -> None:
    before = colours(opened)
    assert "HACE better by as much" in text(opened, "#legend")
    choose(opened, "#choose-first", "hxe_0.2")
    assert "HXE α=0.2 better by as much" in text(opened, "#legend")
    assert colours(opened) != before
    assert "HXE α=0.2" in text(opened, "#details")
    choose(opened, "#choose-first", "hace")
    assert colours(opened) == before
    choose(opened, "#choose-second", "")
    assert "% right or less" in text(opened, "#legend")
    assert colours(opened) != before
    choose(opened, "#choose-second", "cross_entropy")
    one(opened, "#swap").click()
    assert "cross-entropy better by as much" in text(opened, "#legend")


def test_another_place_has_another_tree(opened: Any) -> None:
    choose(opened, "#choose-place", "1")
    assert "van" in text(opened, "#below") or "car" in text(opened, "#below")
    assert len(colours(opened)) == 4
    choose(opened, "#choose-place", "0")
    assert len(colours(opened)) == 9


def test_a_class_is_found_and_its_mistakes_shown(opened: Any) -> None:
    one(opened, "#search").send_keys("script")
    elements = opened.find_elements("css selector", "#found button")
    assert [button.find_element("css selector", ".entry").text for button in elements] == [HOSTILE]
    elements[0].click()
    assert text(opened, "#details h3") == HOSTILE
    assert "mistakes of cross-entropy go to" in text(opened, "#details")
    assert opened.find_elements("css selector", "#sunburst b") == []


def test_lists_of_extremes_lead_to_classes(opened: Any) -> None:
    button = one(opened, "#extremes button")
    name = button.find_element("css selector", "span").text
    button.click()
    assert text(opened, "#details h3") == name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out(opened: Any, tmp_path: Path, width: int, scheme: str) -> None:
    on_screen(opened, width, 844, scheme)
    assert opened.execute_script("return innerWidth") == width
    assert sticking_out(opened) == []
    paper = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    height = opened.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
    shot = opened.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture = tmp_path / f"{width}-{scheme}.png"
    picture.write_bytes(base64.b64decode(shot["data"]))
    assert picture.stat().st_size > 50_000


def test_it_prints(opened: Any, tmp_path: Path) -> None:
    made = opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    (tmp_path / "print.pdf").write_bytes(base64.b64decode(made["data"]))
    assert (tmp_path / "print.pdf").stat().st_size > 50_000
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not one(opened, ".controls").is_displayed()
    assert one(opened, "table").is_displayed()
