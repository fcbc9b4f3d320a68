"""The verdict as the first screen of the page, and as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from hace.lab.report.arenas import method_title
from hace.lab.report.aspects import Finding
from hace.lab.report.render import code, markdown
from hace.lab.report.verdict import Verdict

LEGEND = (
    "Difference of means over seeds with its 95 % interval, from a bootstrap over seeds and test samples. Likely: the interval "
    "excludes 0, as one in twenty does by chance. Clear: it remains after Holm's correction for all aspects of a card. "
    "Unclear: the interval includes 0. ↓: less is better."
)

SCE = " SCE is softmax cross-entropy."
COARSE = " From a coarse label it learns the summed probability of the classes below."


def verdict_html(verdicts: Sequence[Verdict], caution: str = "") -> str:
    """A card for each verdict."""
    cards = "".join(map(_card, verdicts))
    note = f'<p class="doubt">{code(caution)}</p>' if caution else ""
    words = LEGEND + (SCE if any("sce" in v.pair for v in verdicts) else "")
    words += COARSE if SCE in words and any(v.lines for v in verdicts) else ""
    meanings = {f.aspect.name: f.aspect.meaning for v in verdicts for f in v.findings}
    said = ". ".join(f"{name[0].upper()}{name[1:]}: {meaning}" for name, meaning in meanings.items())
    lines = [f"{said}.", words] if meanings else []
    legend = "".join(f'<p class="legend-line">{html.escape(line)}</p>' for line in lines)
    count = "one" if len(verdicts) == 1 else "several"
    return f'<section id="verdict" aria-label="Verdict"><div class="cards {count}">{cards}</div>{note}{legend}</section>'


def _card(verdict: Verdict) -> str:
    e = html.escape
    first, rest = _split(verdict.answer)
    lines = [
        f'<article class="card {verdict.tone}"><h2><span class="where">{e(verdict.where)}: {e(verdict.question)}</span> '
        f'<span class="answer"><em>{e(first)}</em>{e(rest)}</span></h2>'
    ]
    if verdict.findings:
        ours, theirs = map(method_title, verdict.pair)
        head = (
            f'<tr><th scope="col">aspect</th><th scope="col">{e(ours)} minus {e(theirs)}</th><th scope="col" class="room">'
            f'{e(theirs)} → {e(ours)}</th><th scope="col">how certain</th></tr>'
        )
        rows = "".join(map(_row, verdict.findings))
        lines.append(
            f'<table class="findings"><caption class="heard">{e(verdict.where)}</caption><thead>{head}</thead>'
            f"<tbody>{rows}</tbody></table>"
        )
    if verdict.use:
        lines.append(f'<p class="use"><strong>Use</strong> {_whole(code(verdict.use))}</p>')
    if verdict.lines:
        lines.append("<ul>" + "".join(f"<li>{_whole(code(line))}</li>" for line in verdict.lines) + "</ul>")
    if verdict.doubts:
        lines.append(
            '<ul class="doubts">' + "".join(f"<li>{code(doubt)}</li>" for doubt in verdict.doubts) + "</ul>"
        )
    return "".join([*lines, "</article>"])


def _row(finding: Finding) -> str:
    e, aspect = html.escape, finding.aspect
    look = "better" if finding.better else "worse" if finding.worse else "level"
    unit = f" {aspect.unit}" if aspect.unit else ""
    less = "" if aspect.metric.higher else " ↓"
    return (
        f'<tr class="{look}"><th scope="row" title="{e(aspect.meaning)}">{e(aspect.name)}{less}</th>'
        f"<td>{aspect.gap(finding.gap.value)}<small>{unit} {_whole(e(finding.interval))}</small></td>"
        f'<td class="room">{aspect.value(finding.theirs)} → {aspect.value(finding.ours)}</td><td>{finding.word}</td></tr>'
    )


def _whole(text: str) -> str:
    """Intervals that do not break over lines."""
    return re.sub(r"\[[^\[\]]*\]", r'<span class="ends">\g<0></span>', text)


def _split(answer: str) -> tuple[str, str]:
    """The first sentence if it has three words at most, and the rest."""
    head, dot, rest = answer.partition(". ")
    return (head + ".", " " + rest) if dot and len(head.split()) <= 3 else ("", answer)


def verdict_markdown(verdicts: Sequence[Verdict], caution: str = "") -> list[str]:
    """Lines of Markdown."""
    lines: list[str] = []
    for v in verdicts:
        lines += [f"**{markdown(v.where)}: {v.question}** {markdown(v.answer)}", ""]
        for f in v.findings:
            unit = f" {f.aspect.unit}" if f.aspect.unit else ""
            lines.append(
                f"- {f.aspect.name}: {f.aspect.gap(f.gap.value)}{unit} {markdown(f.interval)}, "
                f"{f.aspect.value(f.theirs)} to {f.aspect.value(f.ours)}: {f.word}"
            )
        lines += [f"- {markdown(line)}" for line in v.lines]
        lines += [f"- Use {markdown(v.use)}"] if v.use else []
        lines += [f"- In doubt: {markdown(doubt)}" for doubt in v.doubts]
        lines.append("")
    return [*lines, *([markdown(caution), ""] if caution else []), LEGEND, ""]
