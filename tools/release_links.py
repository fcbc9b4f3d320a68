"""Give the README and pyproject.toml addresses: python tools/release_links.py OWNER/NAME TAG

In a checkout links are relative and work on any host. On a package index they would lead nowhere, so the release job runs this
before it builds: links become addresses of the tag in the repository that the job runs in, and the package gets its addresses.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?![a-z]+:|#)([^)\s]+)\)")


def with_addresses(text: str, repository: str, tag: str) -> str:
    """Markdown with every relative link, and every relative image, at its address in a tag of the repository.

    Example:
        >>> with_addresses("![a](a.png) [b](docs/b.md#c) [d](#d)", "me/it", "v1")
        '![a](https://github.com/me/it/raw/v1/a.png) [b](https://github.com/me/it/blob/v1/docs/b.md#c) [d](#d)'
    """
    home = f"https://github.com/{repository}"
    return LINK.sub(
        lambda m: f"{m[1]}{m[2]}({home}/{'raw' if m[1] else 'blob'}/{tag}/{m[3]})",
        text,
    )


def main(repository: str, tag: str) -> None:
    """Rewrite both files where they are."""
    readme, project = Path("README.md"), Path("pyproject.toml")
    readme.write_text(with_addresses(readme.read_text(encoding="utf-8"), repository, tag), encoding="utf-8")
    home = f"https://github.com/{repository}"
    urls = f'[project.urls]\nHomepage = "{home}"\nChangelog = "{home}/blob/{tag}/CHANGELOG.md"\nIssues = "{home}/issues"\n\n'
    text = project.read_text(encoding="utf-8")
    place = text.index("[project.optional-dependencies]")
    project.write_text(text[:place] + urls + text[place:], encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
