"""The examples in the README and in the guide run as printed."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from hace.errors import ConfigError
from tests.tutorial import run_page, steps

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND_LINE = re.compile(r"^(?:    )?(?:\$ )?(?:torchrun .* -m )?(hace [a-z]+ .*)$", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), ROOT / "docs" / "taxonomies.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page build on each other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], page.name, "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_print_what_they_show(
    page: Path, monkeypatch: pytest.MonkeyPatch, real_data: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    files = [real_data("frog_calls") / "Frogs_MFCCs.csv"] if page.stem == "frogs" else []
    assert [(step.command, step.shown, step.printed) for step in run_page(page, files=files)] == []


def test_a_tutorial_that_shows_something_else_is_noticed(tmp_path: Path) -> None:
    page = """
```text title="a/words.txt"
one two
```

```console
$ cat a/words.txt
one ...
$ cat a/words.txt \\
    | tr o O
nothing
```
"""
    assert [step.agrees for step in steps(page, tmp_path)] == [True, False]
    with pytest.raises(AssertionError, match="exit code 1"):
        list(steps("```console\n$ false\n```\n", tmp_path))
    with pytest.raises(ZeroDivisionError):
        list(steps("```python\nx = 0\n```\n\n```python\n1 / x\n```\n", tmp_path))


README = (ROOT / "README.md").read_text(encoding="utf-8")
README_BLOCKS = BLOCK.findall(README)


@pytest.mark.parametrize("code", README_BLOCKS, ids=range(len(README_BLOCKS)))
def test_a_block_of_the_readme_runs_alone_and_prints_what_it_shows(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(code, {})
    shown = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert shown != []
    assert capsys.readouterr().out.splitlines() == shown


@pytest.mark.slow
def test_the_commands_of_the_readme_print_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but those that fetch and install the package."""
    monkeypatch.chdir(tmp_path)
    blocks = re.search(r"^```sh\n(.*?)^```\n\n^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert blocks is not None
    fetch, install, *commands = blocks[1].splitlines()
    assert fetch.startswith("git clone ")
    assert install.startswith("pip install ")
    lines = [f"$ {command}" for command in commands]
    page = "\n".join(["```console", *lines, f"{blocks[2]}```"])
    ran = list(steps(page, tmp_path))
    assert [step.command.split()[0] for step in ran] == ["python", "hace"]
    assert [(step.command, step.shown, step.printed) for step in ran if not step.agrees] == []


def test_the_readme_is_a_screen_or_two() -> None:
    assert len(README.splitlines()) <= 90


def test_the_citation_names_this_version() -> None:
    from hace import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_start_page_and_the_changelog_name_every_command() -> None:
    from hace.cli import COMMANDS

    for page in (ROOT / "docs" / "index.md", ROOT / "CHANGELOG.md"):
        text = page.read_text(encoding="utf-8")
        assert [c.name for c in COMMANDS if f"`hace {c.name}`" not in text] == [], page.name


def test_every_loss_rule_and_metric_has_a_card() -> None:
    """A card of a loss begins with its call; those of rules and metrics have an example each."""
    from hace import metrics
    from hace.decisions import RULES
    from hace.losses.registry import CLASSES, LOSSES
    from hace.metrics.measures import METRICS

    losses, rules, measured = (
        (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for page in ("losses", "decisions", "metrics")
    )
    assert [n for n in CLASSES if f"\n    {n}(hierarchy" not in losses] == []
    assert [n for n in LOSSES if f"`{n}`" not in losses] == []
    assert re.findall(r"^## `(\w+)`$", rules, re.MULTILINE) == list(RULES)
    streaming = {name for name, module in metrics._LISTED.items() if module == "hace.metrics.streaming"}
    rows = {name for row in METRICS for name in (row.function, row.streaming) if name is not None}
    assert len(rows) > 15
    assert {n for n in streaming if f"`{n}`" not in measured} == set()
    assert {n for n in rows if f"`{n}(" not in measured and f"`{n}`" not in measured} == set()
    of_rules = [card for card in rules.split("\n## ")[1:] if card.startswith("`")]
    of_metrics = measured.split("\n## Streaming")[0].split("\n## ")[1:]
    cards = of_rules + of_metrics
    assert [card.splitlines()[0] for card in cards if "\n```python\n" not in card] == []


def test_formulas_are_rendered() -> None:
    """Pages write formulas as `math` blocks, which the site and GitHub both draw."""
    pages = [*(ROOT / "docs").rglob("*.md")]
    raw = re.compile(r"\$\$|\\\(|\.\. math::|^    loss\(z, y\) =", re.MULTILINE)
    assert [page.name for page in pages if raw.search(page.read_text(encoding="utf-8"))] == []


def test_commands_have_the_options_that_pages_give() -> None:
    """Commands of the tutorials run; those of the other pages need data, and are only parsed."""
    from hace.cli.entry import COMMANDS, parsed

    commands, names = [], {command.name for command in COMMANDS}
    for page in [*PAGES, *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        commands += [(page.name, line) for line in COMMAND_LINE.findall(text) if line.split()[1] in names]
    assert len(commands) > 50
    wrong = []
    for page, line in commands:
        words = shlex.split(re.split(r" 2>| > ", line)[0], comments=True)[1:]
        try:
            parsed(words)
        except ConfigError as error:
            if "modle" not in line:  # which the page shows as a mistake
                wrong.append((page, line, str(error)))
    assert wrong == []


def test_the_site_draws_formulas_and_examples() -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    from types import SimpleNamespace

    from markdown import Markdown

    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec
    assert spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="losses.md"))
    text = "<!-- results: x -->\nIt reaches 55.95%.\n\n```math\nq^* = R\n```\n"
    shown = hooks.on_page_markdown(text, page)
    assert "It reaches 55.95%." in shown
    assert hooks.COMMENT.sub("", "<!-- a -->1<!-- b -->\n<!-- c -->\nX") == "1\nX"
    assert "<math" in shown
    assert "```" not in shown
    record = SimpleNamespace(file=SimpleNamespace(src_uri="evidence/guarantees.md"), meta={})
    hooks.on_page_markdown("# Proofs", record)
    assert record.meta["search"]["boost"] < 1  # the guide's own page is found first
    made = Markdown(extensions=["pymdownx.superfences", hooks.PageExtension()])
    html = made.convert("An example:\n\n>>> 1 + 1\n2\n\n.. math:: x^2\n\nDone.")
    assert "blockquote" not in html
    assert "<pre" in html
    assert "<math" in html
    assert "<p>Done.</p>" in html


def navigation() -> list[str]:
    """Titles of the site's navigation; the tags of mkdocs.yml stay text."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"^ +- ([^:]+): \S+\.md$", text.partition("\nnav:")[2], re.MULTILINE)


def test_no_title_is_given_twice() -> None:
    headings = [page.read_text(encoding="utf-8").splitlines()[0] for page in (ROOT / "docs").rglob("*.md")]
    assert len(navigation()) > 30
    assert len(set(navigation())) == len(navigation())
    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: f"{page.parent.name}/{page.name}"
)
def test_a_page_has_at_most_2000_words(page: Path) -> None:
    """Code and tables that are written from results do not count."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```|<!-- evidence.*?<!-- end of evidence -->", "", text, flags=re.M | re.S)
    assert len(re.findall(r"\S*\w\S*", text)) <= 2000
