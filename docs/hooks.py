"""Docstrings keep what editors and `help()` readers know; pages show it as readers of pages expect.

A role such as :meth:`path` becomes the name alone, an example that starts with `>>>` becomes a code block, and a formula (a
`.. math::` paragraph in a docstring, a `math` block on a page) becomes MathML, which browsers draw without a script. Comments
are removed, since one at the start of a line would split its paragraph. The site also gets a page of all commands and a live
report, of a small study that runs while it is built.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

from hace.cli import COMMANDS, Command, main

sys.path.append(str(Path(__file__).parent))  # mkdocs loads this file by its path
from check_arguments import ROOT, shown, with_losses

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod|obj):(?=<code>)")
ROLE_TEXT = re.compile(r":(?:attr|class|data|func|meth|mod|obj):(?=`)")
COMMENT = re.compile(r"^<!--(?:(?!-->)[^\n])*-->\n|<!--.*?-->", re.MULTILINE | re.DOTALL)
MATH = ".. math::"
MATH_BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = ">>> "
TO_RECORD = re.compile(r"\]\(((?:\.\./)*)\.\./(evidence|examples)/")
FROM_EVIDENCE = re.compile(r"\]\(\.\./docs/")
STUDY = [
    "animals",
    "--only",
    "method=cross_entropy,hace",
    "--seeds",
    "3",
    "--rates",
    "32,128",
    "--widen",
    "0",
]


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
    spaced = "".join(f'<div style="margin: 0.5em 0">{line}</div>' for line in lines)
    return f'<div style="overflow-x: auto; overflow-y: hidden">{spaced}</div>'


class Examples(Preprocessor):
    """Put each paragraph that starts with a prompt into a code block; Markdown would take `>>>` for three quotes."""

    def run(self, lines: list[str]) -> list[str]:
        """Called with the lines of a text, before anything else reads them."""
        shown: list[str] = []
        fenced = example = False
        for line in lines:
            fenced ^= line.startswith("```")
            if not fenced and not example and line.startswith(PROMPT):
                shown.append("```pycon")
                example = True
            elif example and not line.strip():
                shown.append("```")
                example = False
            shown.append(line)
        return [*shown, "```"] if example else shown


class PageExtension(Extension):
    """Makes the preprocessors known to Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Called once per converter."""
        md.preprocessors.register(Examples(md), "examples", 27)  # after whitespace, before code blocks
        md.preprocessors.register(MathParagraphs(md), "math paragraphs", 22)  # after code blocks


def on_config(config: Any) -> Any:
    """Add the extension for all pages and docstrings."""
    config.markdown_extensions.append(PageExtension())
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


def commands_page() -> str:
    """Every command with its options, as `--help-all` prints them."""
    os.environ["COLUMNS"] = "110"
    parts = [f"## hace {command.name}\n\n```text\n{help_of(command)}\n```\n" for command in COMMANDS]
    return "# Commands\n\nWhat `hace COMMAND --help-all` prints.\n\n" + "\n".join(parts)


def help_of(command: Command) -> str:
    """The whole help of a command."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main([command.name, "--help-all"])
    return printed.getvalue().rstrip()


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the page of commands, the live report, the record of the evidence, and the notebook."""
    files.append(File.generated(config, "commands.md", content=commands_page()))
    files.append(File.generated(config, "example-report/report.html", content=example_report()))
    for path in sorted((ROOT / "evidence").glob("*.md")):
        files.append(File.generated(config, f"evidence/{path.name}", abs_src_path=str(path)))
    notebook = "examples/first_steps.ipynb"
    files.append(File.generated(config, notebook, abs_src_path=str(ROOT / notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """List the losses, draw the formulas, take out comments, and add an index of all objects to the overview of the API.

    The repository has the record of the evidence and the notebook beside docs, the site below them: links between both follow.
    """
    if page.file.src_uri.startswith("evidence/"):
        page.meta["search"] = {
            "boost": 0.1
        }  # whoever searches for a word wants its page, then the proofs and tables
    markdown = FROM_EVIDENCE.sub("](../", TO_RECORD.sub(r"](\1\2/", with_losses(markdown)))
    markdown = MATH_BLOCK.sub(lambda block: drawn(block[1].replace("\n", " ")), COMMENT.sub("", markdown))
    return markdown + object_index() if page.file.src_uri == "api/index.md" else markdown


def object_index() -> str:
    """A table of every class and function on the API pages, by name, with the first sentence about it."""
    package = griffe.load("hace", search_paths=[ROOT / "src"])
    rows = {}
    for page, anchor, result in shown(package):
        if result.docstring is None or not (result.is_class or result.is_function):
            continue
        first = result.docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        name = anchor.rsplit(".", 1)[1]
        rows[name.lower(), anchor] = f"| [`{name}`]({page}#{anchor}) | {ROLE_TEXT.sub('', first)} |"
    return "\n\n## All objects\n\n| name | what it is |\n| --- | --- |\n" + "\n".join(
        row for _, row in sorted(rows.items())
    )


def on_page_content(html: str, **_: Any) -> str:
    """Take the roles out of a rendered page."""
    return ROLE.sub("", html)
