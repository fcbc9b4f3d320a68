"""Docstrings keep what editors and `help()` readers know; pages show it as readers of pages expect.

A role such as :meth:`path` becomes the name alone, and a `.. math::` paragraph becomes MathML, which browsers draw without a
script. The site also gets a live report, of a small study that runs while it is built.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod|obj):(?=<code>)")
MATH = ".. math::"
STUDY = ["demo", "--only", "method=sce,hace", "--seeds", "3", "--rates", "32,128", "--widen", "0"]


class MathParagraphs(Preprocessor):
    """Replace each `.. math::` paragraph."""

    def run(self, lines: list[str]) -> list[str]:
        """Called with the lines of a text, before anything else reads them."""
        shown: list[str] = []
        rest = iter(lines)
        for line in rest:
            if not line.startswith(MATH):
                shown.append(line)
                continue
            formula = [line.removeprefix(MATH)]
            for more in rest:
                if not more.strip():
                    break
                formula.append(more)
            shown += ["", self.md.htmlStash.store(drawn(" ".join(formula))), ""]
        return shown


def drawn(formula: str) -> str:
    r"""A formula as MathML, one line for each part between `\qquad`; what is wider than the page scrolls."""
    lines = (convert(part, display="block") for part in formula.split(r"\qquad"))
    return f'<div style="overflow-x: auto; overflow-y: hidden">{"".join(lines)}</div>'


class MathExtension(Extension):
    """Makes the preprocessor known to Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Called once per converter."""
        md.preprocessors.register(
            MathParagraphs(md), "math paragraphs", 22
        )  # after the clean-up of whitespace and code blocks


def on_config(config: Any) -> Any:
    """Add the extension for all pages and docstrings."""
    config.markdown_extensions.append(MathExtension())
    return config


@cache
def example_report() -> str:
    """The page of a small study, made once per process."""
    with tempfile.TemporaryDirectory() as folder:
        study = str(Path(folder) / "example")
        for arguments in (["study", *STUDY, "--out", study], ["report", study]):
            done = subprocess.run([sys.executable, "-m", "hace", *arguments], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"hace {' '.join(arguments)}\n{done.stderr}")
        return (Path(study) / "report" / "report.html").read_text(encoding="utf-8")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the live report."""
    files.append(File.generated(config, "example-report/report.html", content=example_report()))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Take the roles out of a rendered page."""
    return ROLE.sub("", html)
