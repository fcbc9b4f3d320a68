"""Links of the README and the documentation lead somewhere; those to other sites are only checked for their form."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[1]
ADDRESS = re.search(
    r'^Homepage = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
)
assert ADDRESS
HOME = re.compile(rf"{re.escape(ADDRESS[1])}/(?:blob|raw|tree)/main/([^#]+)(?:#(.*))?")
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)|<(https?:[^>]+)>", re.MULTILINE
)
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BUILT = {"example-report/report.html"}  # pages that are made with the site


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub both make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in words}


def problem(link: str, page: Path) -> str | None:
    """What is wrong with a link, if anything is."""
    home = HOME.fullmatch(link)
    if home is None and ":" in link:
        parts = urlsplit(link)
        return None if parts.scheme in ("http", "https") and "." in parts.netloc else "not a web address"
    path, _, anchor = (home[1], "", home[2] or "") if home else link.partition("#")
    if path in BUILT:
        return None
    file = (ROOT / path) if home else (page.parent / path if path else page)
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and "api" not in file.parts and anchor not in anchors(file):
        return "no such heading"
    return None


def links(page: Path) -> list[str]:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return [next(filter(None, match.groups())) for match in LINK.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [(link, why) for link in links(page) if (why := problem(link, page))] == []


def test_the_readme_works_on_a_package_index() -> None:
    """There a relative link leads nowhere."""
    assert [link for link in links(ROOT / "README.md") if not link.startswith(("https://", "#"))] == []


def test_the_project_has_one_address() -> None:
    """A new home is one command in CONTRIBUTING.md; a link that it misses would lead to somebody else's project."""
    files = [ROOT / name for name in ("pyproject.toml", "CITATION.cff", "mkdocs.yml", "CONTRIBUTING.md")]
    files += [
        *PAGES,
        *(ROOT / "examples").glob("*"),
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / ".github").rglob("*.yml"),
    ]
    found = re.compile(r"https://(?:github\.com/([\w.-]+)|([\w-]+)\.github\.io)/hace\b")
    owners = {
        a or b for file in files if file.is_file() for a, b in found.findall(file.read_text(encoding="utf-8"))
    }
    assert owners == {ADDRESS[1].split("/")[-2]}


@pytest.mark.parametrize(
    "link",
    [
        "nowhere.md",
        "docs/losses.md#nowhere",
        f"{ADDRESS[1]}/blob/main/no.md",
        "http:/x",
    ],
)
def test_a_broken_link_is_noticed(link: str) -> None:
    assert problem(link, ROOT / "README.md")
