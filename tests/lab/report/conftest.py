"""A real browser for the pages of reports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs a browser and its driver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    except WebDriverException as error:
        pytest.skip(f"the browser does not start here: {error.msg}")
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def settle(browser: Any) -> None:
    """Wait until the drawing has the width of its box in three frames running: a window resizes in its own time."""
    browser.execute_async_script(
        "const done = arguments[0], svg = document.querySelector('#chart svg');"
        "let still = 0, box = 0;"
        "const frame = () => {"
        "  const now = document.getElementById('chart').clientWidth;"
        "  still = now === box && svg.viewBox.baseVal.width === Math.max(260, now) ? still + 1 : 0; box = now;"
        "  if (still === 3) done(); else requestAnimationFrame(frame);"
        "};"
        "frame()"
    )


def soon(browser: Any, holds: Callable[[], bool]) -> None:
    """Wait until something holds: a page follows Back and links in its own time."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 30, poll_frequency=0.05).until(lambda _: holds())


USABLE = "a[href], button, select, input, summary, [tabindex='0']"


def fresh(browser: Any, page: Path, address: str = "") -> None:
    """Open a page on a desktop, in light colours, with no network; wait until it is drawn."""
    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    browser.set_window_size(1280, 900)
    browser.get("about:blank")
    browser.get_log("browser")  # of the pages before
    browser.get(page.as_uri() + address)
    settle(browser)


def on_screen(browser: Any, width: int, height: int, scheme: str = "light") -> None:
    """The same page on another screen, or in another scheme."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.refresh()
    settle(browser)


def nothing_was_loaded(browser: Any) -> None:
    """No errors in the console, and no request but that of the page itself."""
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def serious_barriers(browser: Any) -> list[str]:
    """What axe-core finds in the page with everything unfolded: violations that are serious or critical."""
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core: pip install axe-core-python")
    browser.execute_script("for (const box of document.querySelectorAll('details')) box.open = true")
    browser.execute_script((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    result = browser.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run().then((r) => done(r.violations))"
    )
    return [
        f"{v['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for v in result
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]


def missed_by_tab(browser: Any) -> tuple[int, list[str]]:
    """How many usable elements a page shows, and those that the Tab key does not reach."""
    from selenium.webdriver.common.keys import Keys

    usable = f'[...document.querySelectorAll("{USABLE}")].filter((e) => e.checkVisibility() && !e.disabled)'
    wanted = browser.execute_script(
        "window.reached = new Set(); document.addEventListener('focusin', (e) => window.reached.add(e.target));"
        f"return {usable}.length"
    )
    for _ in range(wanted + 5):
        browser.switch_to.active_element.send_keys(Keys.TAB)
    missed = browser.execute_script(
        f"return {usable}.filter((e) => !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 90))"
    )
    return wanted, missed


def sticking_out(browser: Any) -> list[str]:
    """What lies beyond the right edge of the screen, but for what scrolls by itself."""
    inner, outer = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    past = browser.execute_script(
        "return [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, svg, .heard, .skip') &&"
        "e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"
    )
    return past if inner <= outer else [f"{inner} px wide", *past]
