"""Checks of the printed numbers: marks of the best, and accuracies as counts of images."""

from __future__ import annotations

from decimal import Decimal

from hace.paper.printed import PrintedCell, paper_tables


def misplaced_marks() -> list[PrintedCell]:
    """Cells whose bold or underline contradicts the numbers; equal numbers share a mark.

    Example:
        >>> misplaced_marks()
        []
    """
    wrong = []
    for table in paper_tables().values():
        underlines = any(cell.mark == "underline" for cell in table.cells)
        for contest in table.contests():
            best, second = sorted({Decimal(cell.printed) for cell in contest}, reverse=True)[:2]
            right = {best: "bold", second: "underline" if underlines else ""}
            wrong += [cell for cell in contest if cell.mark != right.get(Decimal(cell.printed), "")]
    return wrong


def whole_count(printed: str, samples: int) -> bool:
    """Whether a printed percentage can be a count out of so many samples.

    Example:
        >>> whole_count("81.10", 3333), whole_count("81.10", 3400)
        (True, False)
    """
    near = round(float(printed) * samples / 100)
    return any(f"{100 * count / samples:.2f}" == printed for count in (near - 1, near, near + 1))
