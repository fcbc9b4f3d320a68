"""The paper's claims and errata as text: for the terminal, and as Markdown for `docs/paper.md`."""

from __future__ import annotations

import textwrap
from collections import Counter

from hace.paper.assumptions import ASSUMPTIONS
from hace.paper.claims import paper_claims
from hace.paper.printed import errata

CLAIM_HEADS = ("claim", "where", "printed", "recomputed", "verdict", "note")


def claims_text(width: int = 100) -> str:
    """All claims for the terminal, with a summary.

    Args:
        width: Characters per line.

    Example:
        >>> print(claims_text()[:87])
        The paper's claims, recomputed from its printed tables
        <BLANKLINE>
        recomputes      15 of 18
    """
    lines = ["The paper's claims, recomputed from its printed tables", ""]
    for claim in paper_claims():
        said = claim.printed
        if claim.recomputed and claim.recomputed != claim.printed:
            said += f" -> {claim.recomputed}"
        note = f" {claim.note}" if claim.note else ""
        verdict = claim.status.removesuffix(" be recomputed")  # "cannot" is enough in a column
        head = f"{verdict:<15} {said:<28} "
        body = f"{claim.text} ({claim.where}).{note}"
        lines += textwrap.wrap(body, width, initial_indent=head, subsequent_indent=" " * 45)
    return "\n".join([*lines, "", claims_summary()])


def claims_summary() -> str:
    """How many claims hold, in a sentence.

    Example:
        >>> claims_summary()
        'Of 33 claims 23 recompute, 1 is within rounding, 5 differ and 4 cannot be recomputed.'
    """
    count = Counter(claim.status for claim in paper_claims())
    return (
        f"Of {count.total()} claims {count['recomputes']} recompute, {count['within rounding']} is within rounding, "
        f"{count['differs']} differ and {count['cannot be recomputed']} cannot be recomputed."
    )


def claims_markdown() -> str:
    """The claims as a Markdown table."""
    rows = [(c.text, c.where, c.printed, c.recomputed or "-", c.status, c.note) for c in paper_claims()]
    lines = [CLAIM_HEADS, ("---",) * len(CLAIM_HEADS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def errata_markdown() -> str:
    """The errata as a Markdown list."""
    return "\n".join(f"- **{erratum.id}** ({erratum.where}): {erratum.text}" for erratum in errata())


def assumptions_markdown() -> str:
    """The assumptions as a Markdown list."""
    return "\n".join(f"- {assumption}" for assumption in ASSUMPTIONS)
