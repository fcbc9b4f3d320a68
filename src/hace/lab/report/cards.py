"""The verdict as the first screen of the page, and as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from hace.lab.report.arenas import method_title
from hace.lab.report.aspects import Finding
from hace.lab.report.render import code, markdown
from hace.lab.report.verdict import LabelStep, Verdict, points

LEGEND = (
    (
        "Differences",
        "of means over seeds, with their 95 % interval from a bootstrap over seeds and test samples; ↓: less is better.",
    ),
    ("Clear", "the difference remains after Holm's correction for all lines of a card."),
    ("Likely", "the interval excludes 0, as one in twenty does by chance."),
    ("Unclear", "the interval includes 0."),
)
EXPLAINED = {  # by the beginning of their key
    "hace": "hierarchy-aware cross-entropy, which trains the nodes above a class as well.",
    "sce_paths": "cross-entropy whose classes share the weights of the nodes above them.",
    "sce_soft": "cross-entropy with part of the target on related classes.",
    "sce": "plain softmax cross-entropy over the classes.",
    "hxe": "hierarchical cross-entropy: one term per level, which counts less the deeper it is.",
    "hce": "cross-entropy over all nodes.",
    "conditional": "a softmax among the children of each node.",
}
COARSE = "cross-entropy learns from one by the summed probability of the classes below it."


def verdict_html(verdicts: Sequence[Verdict], caution: str = "") -> str:
    """A card for each verdict."""
    cards = "".join(map(_card, verdicts))
    note = f'<p class="doubt">{code(caution)}</p>' if caution else ""
    legend = "".join(f'<p class="legend-line">{_terms(terms)}</p>' for terms in glossary(verdicts) if terms)
    count = "one" if len(verdicts) == 1 else "several"
    return f'<section id="verdict" aria-label="Verdict"><div class="cards {count}">{cards}</div>{note}{legend}</section>'


def glossary(verdicts: Sequence[Verdict]) -> list[list[tuple[str, str]]]:
    """What the words of the cards mean, in lines of terms: aspects, methods, and how certain a difference is."""
    aspects = {f.aspect.name: f"{f.aspect.meaning}." for v in verdicts for f in v.findings}
    spoken = dict.fromkeys(m for v in verdicts for m in v.spoken)
    known = {m: next((text for key, text in EXPLAINED.items() if m.startswith(key)), "") for m in spoken}
    methods = {method_title(m): text for m, text in known.items() if text}
    if any(step.answer.dropping for v in verdicts for step in v.steps):
        methods["Coarse label"] = COARSE
    shown = any(v.findings or v.steps for v in verdicts)
    return [[*methods.items()], [*aspects.items()], [*LEGEND] if shown else []]


def _terms(terms: Sequence[tuple[str, str]]) -> str:
    return " ".join(
        f"<strong>{html.escape(t[0].upper() + t[1:])}:</strong> {html.escape(text)}" for t, text in terms
    )


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
        lines.append(_table(verdict.where, head, map(_row, verdict.findings)))
    if any(step.answer.dropping for step in verdict.steps):
        head = (
            '<tr><th scope="col">training labels</th><th scope="col">use minus drop</th><th scope="col" class="room">'
            'drop → use</th><th scope="col">how certain</th></tr>'
        )
        lines.append(_table(verdict.where, head, map(_step, verdict.steps)))
        lines += map(_closed, verdict.steps if len(verdict.steps) == 1 else ())
    said = [step.line for step in verdict.steps if not any(s.answer.dropping for s in verdict.steps)]
    if said := [*said, *verdict.lines]:
        lines.append("<ul>" + "".join(f"<li>{_whole(code(line))}</li>" for line in said) + "</ul>")
    if verdict.use:
        lines.append(
            f'<p class="use"><strong>Use {code(verdict.use)}</strong>{_whole(code(verdict.why))}</p>'
        )
    if verdict.doubts:
        lines.append(
            '<ul class="doubts">' + "".join(f"<li>{code(doubt)}</li>" for doubt in verdict.doubts) + "</ul>"
        )
    return "".join([*lines, "</article>"])


def _table(title: str, head: str, rows: Iterable[str]) -> str:
    return (
        f'<table class="findings"><caption class="heard">{html.escape(title)}</caption><thead>{head}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _step(step: LabelStep) -> str:
    answer = step.answer
    gain = answer.dropping[1] if answer.dropping else None
    look = "level" if gain is None or not gain.excludes_zero else "better" if gain.value > 0 else "worse"
    dropped = "" if answer.dropped is None else f"{100 * answer.dropped:.1f} % → "
    number, _, ends = ("", "", "") if gain is None else points(gain).partition(" ")
    return (
        f'<tr class="{look}"><th scope="row">{html.escape(step.state)}</th><td>{number}<small> {_whole(ends)}</small></td>'
        f'<td class="room">{dropped}{100 * answer.accuracy:.1f} %</td><td>{step.word}</td></tr>'
    )


def _closed(step: LabelStep) -> str:
    """How far using coarse labels leads from dropping them to knowing all labels, as a bar."""
    answer, closed = step.answer, step.answer.closed
    if closed is None or answer.dropped is None or answer.whole is None:
        return ""
    share = round(100 * min(max(closed, 0.0), 1.0))
    return (
        f'<p class="way"><strong>{100 * closed:.0f} % of the way</strong> from dropping them to knowing all labels'
        f'<span class="track"><i style="width:{share}%"></i></span><span class="ways">'
        f"<span>dropped {100 * answer.dropped:.1f} %</span><span>all known {100 * answer.whole:.1f} %</span></span></p>"
    )


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
        lines += [f"- {markdown(line)}" for line in (*(step.line for step in v.steps), *v.lines)]
        lines += [f"- Use {markdown(v.use + v.why)}"] if v.use else []
        lines += [f"- In doubt: {markdown(doubt)}" for doubt in v.doubts]
        lines.append("")
    terms = [
        f"**{t[0].upper()}{t[1:]}**: {markdown(text)}" for line in glossary(verdicts) for t, text in line
    ]
    return [*lines, *([markdown(caution), ""] if caution else []), *([" ".join(terms), ""] if terms else [])]
