"""Links of the README and the documentation lead somewhere; those to other sites are only checked for their form."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)|<(https?:[^>]+)>", re.MULTILINE
)
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "evidence").glob("*.md")),
]
BUILT = {"example-report/report.html"}  # pages that are made with the site


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub both make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in words}


def problem(link: str, page: Path) -> str | None:
    """What is wrong with a link, if anything is."""
    if ":" in link:
        parts = urlsplit(link)
        return None if parts.scheme in ("http", "https") and "." in parts.netloc else "not a web address"
    path, _, anchor = link.partition("#")
    if path in BUILT:
        return None
    file = page.parent / path if path else page
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


def test_no_link_names_an_address_of_ours() -> None:
    """The project has no home yet: whoever took such an address would serve our readers."""
    ours = re.compile(
        r"(?:github\.com/[\w.-]+/hace|[\w-]+\.github\.io/hace|git\+https?:\S*hace|pypi\.org/project/hace)\b"
    )
    files = [ROOT / name for name in ("pyproject.toml", "CITATION.cff", "mkdocs.yml")]
    files += [
        *PAGES,
        *(ROOT / "examples").glob("*"),
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / ".github").rglob("*.yml"),
    ]
    results = {str(file): ours.findall(file.read_text(encoding="utf-8")) for file in files if file.is_file()}
    assert {file: links for file, links in results.items() if links} == {}


def test_a_release_turns_relative_links_into_addresses_of_its_tag(tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(
        [sys.executable, ROOT / "tools/release_links.py", "me/it", "v1.0"], cwd=tmp_path, check=True
    )
    home = "https://github.com/me/it"
    relative = [link for link in links(ROOT / "README.md") if ":" not in link and not link.startswith("#")]
    released = links(tmp_path / "README.md")
    assert len(relative) >= 10
    assert [link for link in released if ":" not in link and not link.startswith("#")] == []
    assert {f"{home}/{kind}/v1.0/{link}" for link in relative for kind in ("raw", "blob")} >= {
        link for link in released if link.startswith(home)
    }
    assert f'Homepage = "{home}"' in (tmp_path / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "link",
    [
        "nowhere.md",
        "docs/losses.md#nowhere",
        "http:/x",
    ],
)
def test_a_broken_link_is_noticed(link: str) -> None:
    assert problem(link, ROOT / "README.md")
