"""A real browser for the pages of reports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
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
