"""The documentation's search works on file://, and no page asks another host for anything."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.lab.report.conftest import browser, soon

__all__ = ["browser"]
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages of the guide with the site's own theme and search, without the API."""
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("docs")
    pages = folder / "docs"
    (pages / "tutorials").mkdir(parents=True)
    shutil.copytree(ROOT / "docs" / "javascripts", pages / "javascripts")
    shutil.copy(ROOT / "docs" / "extra.css", pages)
    (pages / "index.md").write_text("# Start\n\nAnswers at the rank the model is sure of.\n")
    (pages / "tutorials" / "guarantee.md").write_text("# Guarantees\n\nA calibrated threshold.\n")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(pages),
        site_dir=str(folder / "site"),
        nav=None,
        hooks=[],
        plugins=["search", "offline"],
    )
    build(config)
    return folder / "site"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "tutorials/guarantee.html"])
def test_search_finds_pages_from_the_disk(site: Path, browser: Any, page: str) -> None:
    browser.set_window_size(1280, 900)
    browser.get((site / page).as_uri())
    box = browser.find_element("css selector", ".md-search__input")
    box.click()
    box.send_keys("threshold")

    def results() -> list[str]:
        links = browser.find_elements("css selector", ".md-search-result__link")
        return [link.get_attribute("href") for link in links]

    soon(browser, lambda: len(results()) > 0)
    assert results() == [(site / "tutorials" / "guarantee.html").as_uri()]
    requests = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    assert [url for url in browser.execute_script(requests) if not url.startswith("file:")] == []


def test_no_page_names_a_script_of_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 3
    assert [page.name for page in pages if "https://unpkg.com" in page.read_text(encoding="utf-8")] == []
