"""The paper's claims, recomputed from its own tables: what evidence/paper.md must say.

Means and counts in the text follow from printed cells, so they can be checked without a run. Sums are exact (decimals, not
floats). A printed mean may differ from ours by what two decimals hide:

    |printed - recomputed| <= 0.005 (the claim) + 0.01 (the difference of two cells)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from statistics import median
from typing import Literal

from hace.paper.printed import PaperTable, PrintedCell, paper_tables, read_document

Status = Literal["recomputes", "within rounding", "differs", "cannot be recomputed"]
Scores = dict[str, Decimal]  # what each method scored in one comparison

ROUNDING = Decimal("0.015")
HEADS = ("claim", "where", "printed", "recomputed", "verdict", "note")
COLLAPSED = 10  # %: below this a run on 100 classes has learned next to nothing
PLAIN = ("cross_entropy", "cross_entropy_smooth", "hxe_0.2", "hxe_0.5")
STRUCTURED = ("soft_label_10", "soft_label_30", "hxe_0.2", "hxe_0.5")


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what its own numbers say."""

    text: str  # in our words
    where: str  # the abstract, or sections
    printed: str
    recomputed: str
    status: Status
    note: str = ""


def paper_claims() -> list[Claim]:
    """All claims that rest on numbers, by table.

    Example:
        >>> wins = paper_claims()[0]
        >>> wins.printed, wins.recomputed, wins.status
        ('15 of 18', '15 of 18', 'recomputes')
    """
    groups = (
        _best_to_best,
        _model_matched,
        _per_class,
        _methods,
        _both_regimes,
        _probe,
        _probe_matched,
        _set_up,
    )
    return [claim for group in groups for claim in group()]


def gains(table: PaperTable, ours: str = "hace", theirs: str = "cross_entropy") -> dict[PrintedCell, Decimal]:
    """What a method gains over another, in points, for each of its cells where a table has both.

    Example:
        >>> table = paper_tables()["best_to_best"]
        >>> gains(table)[table.cell(model="resnet34", dataset="nabirds", method="hace")]
        Decimal('-1.57')
    """
    comparisons = [{str(cell.method): cell for cell in comparison} for comparison in table.comparisons()]
    return {
        c[ours]: Decimal(c[ours].printed) - Decimal(c[theirs].printed)
        for c in comparisons
        if ours in c and theirs in c
    }


def _best_to_best() -> list[Claim]:
    gain = gains(paper_tables()["best_to_best"])
    top5 = gains(paper_tables()["best_to_best_top5"]).values()
    names = read_document("tables.json")["names"]
    lost = sorted({names[str(cell.model)] for cell, g in gain.items() if g < 0})
    birds, planes, cifar = (
        _mean(g for cell, g in gain.items() if cell.dataset == name)
        for name in ("nabirds", "aircraft", "cifar100")
    )
    points = sorted(gain.values())
    middle = f"The median is {_two(median(points))}; without the largest gain the mean is {_two(_mean(points[:-1]))}."
    order = (
        "NABirds, the deepest and least regular, comes second: that gains grow with either does not follow."
    )
    return [
        _count("pairs of architecture and dataset where HACE beats cross-entropy, end to end", "abstract, 1, 5.1", "15 of 18",
               [g > 0 for g in points], f"All losses are those of {', '.join(lost)}."),
        _number("mean gain over these pairs", "abstract, 1, 5.1", "4.66", _mean(points), middle),
        _number("largest loss", "5.1", "1.57", -points[0]),
        Claim("mean gains on NABirds and FGVC-Aircraft, larger than on CIFAR-100", "5.1, 6", "larger",
              f"{_two(birds)}, {_two(planes)}; {_two(cifar)}", _holds(min(birds, planes) > cifar), order),
        _count("the same pairs in top-5", "A.7", "17 of 18", [g > 0 for g in top5]),
        _number("mean gain in top-5", "A.7", "4.46", _mean(top5)),
    ]  # fmt: skip


def _model_matched() -> list[Claim]:
    gain = gains(paper_tables()["model_matched"])
    cross_entropy = {cell: float(cell.printed) - float(g) for cell, g in gain.items()}
    rest = [cell for cell in gain if cross_entropy[cell] >= COLLAPSED]
    both = [cell for cell in rest if float(cell.printed) >= COLLAPSED]
    middle = f"The median is {_two(median(gain.values()))}."
    without = f"Without that of HACE as well: {_two(_mean(gain[cell] for cell in both))}."
    return [
        _count("settings of FGVC-Aircraft where HACE beats cross-entropy, model-matched", "5.1.1", "31 of 36",
               [g > 0 for g in gain.values()],
               f"The largest loss, {_two(-min(gain.values()))}, is not mentioned."),
        _number("mean gain over these settings", "5.1.1", "8.83", _mean(gain.values()), middle),
        _number("collapsed runs of cross-entropy", "5.1.1", "3", Decimal(len(gain) - len(rest)),
                f"HACE has {len(rest) - len(both)}, which is not mentioned."),
        _number("mean gain without them", "5.1.1", "3.31", _mean(gain[cell] for cell in rest), without),
        _number("largest gain without them", "5.1.1", "21", max(gain[cell] for cell in rest)),
    ]  # fmt: skip


def _per_class() -> list[Claim]:
    unknown = (
        ("families of FGVC-Aircraft where HACE matches or beats cross-entropy", "5.1.2", "59 of 70"),
        ("mean gain over families", "5.1.2", "7.21"),
        ("manufacturers where HACE matches or beats cross-entropy", "5.1.2, A.8", "28 of 30"),
        ("mean gain over manufacturers", "A.8", "4.21"),
    )
    why = "Accuracies per class are drawn, not printed."
    return [Claim(*claim, "", "cannot be recomputed", why) for claim in unknown]


def _methods() -> list[Claim]:
    birds = _scores("nabirds_methods")
    smooth = ("hace_smooth",)
    won = [s for s in birds if _lead(s, smooth) > 0]
    others = [_mean(_lead(s, smooth, ("hace",)) for s in group) for group in (won, birds)]
    reading = (
        "The better of both HACE variants against the best other method, on all six architectures. As worded, HACE with "
        f"smoothing where it wins: {_mean(_lead(s, smooth) for s in won)}. Against the best method that is not HACE: "
        f"{others[0]} where it wins, {others[1]} on all six."
    )
    gap = [s["hace"] > max(s["cross_entropy"], s["cross_entropy_smooth"]) for s in birds]
    return [
        _number("methods compared on NABirds, by the caption", "5.1.3", "6", Decimal(len(birds[0])), "The text says eight."),
        _count("architectures where HACE with smoothing is the best on NABirds", "5.1.3", "4 of 6",
               [max(s, key=s.__getitem__) == "hace_smooth" for s in birds]),
        _number("mean lead over the next best method", "5.1.3", "4.38", _mean(_lead(s, _ours(s)) for s in birds), reading),
        Claim("HACE without smoothing above cross-entropy with and without smoothing", "5.1.3", "consistently", _of(gap),
              _holds(all(gap))),
    ]  # fmt: skip


def _both_regimes() -> list[Claim]:
    """Words of the introduction, counted over the architectures on NABirds and the datasets of the probe."""
    birds, probes = _scores("nabirds_methods"), _scores("probe")
    smoothing = [[s["hace_smooth"] > s["hace"] for s in group] for group in (birds, probes)]
    both = [
        s[m] > max(s[other] for other in STRUCTURED) for s in birds + probes for m in ("hace", "hace_smooth")
    ]
    plain = [s["hace"] > s[other] for s in birds + probes for other in PLAIN]
    most = [*smoothing[0], *smoothing[1]]
    parts = f"{_of(smoothing[0])} architectures on NABirds, {_of(smoothing[1])} datasets in probing."
    return [
        Claim("smoothing improves HACE", "1, 5.1.3", "mostly", _of(most), _holds(2 * sum(most) > len(most)), parts),
        Claim("HACE with and without smoothing beats soft labels and HXE", "1", "both do", _of(both), _holds(all(both)),
              "End to end on NABirds and in probing, for each variant."),
        Claim("HACE beats cross-entropy, label smoothing and HXE", "1", "large majority", _of(plain),
              _holds(3 * sum(plain) > 2 * len(plain)), "Without smoothing, against each, counted in the same way."),
    ]  # fmt: skip


def _probe() -> list[Claim]:
    probes, top5 = _scores("probe"), _scores("probe_top5")
    plain = [_lead(s, ("hace",), _ours(s)) for s in probes]
    first_two = [sorted(s, key=s.__getitem__, reverse=True)[:2] for s in top5]
    return [
        _count("datasets where HACE beats all other methods in probing", "abstract, 1, 5.2", "3 of 3",
               [lead > 0 for lead in plain]),
        _number("mean lead over the next best method that is not HACE", "abstract, 1, 5.2", "2.18",
                _mean(_lead(s, _ours(s)) for s in probes),
                f"For the best variant of HACE. Without smoothing: {_two(_mean(plain))}."),
        _count("datasets where HACE is first and second in top-5", "A.7", "3 of 3",
               [all(m.startswith("hace") for m in pair) for pair in first_two]),
    ]  # fmt: skip


def _probe_matched() -> list[Claim]:
    gain = gains(paper_tables()["probe_matched"])
    points = gain.values()
    above = [float(cell.printed) > 96 for cell in paper_tables()["probe"].select(dataset="cifar100")]
    return [
        _count("probes where HACE beats cross-entropy, model-matched", "5.2.1", "17 of 18", [g > 0 for g in points]),
        _number("mean gain over these settings", "5.2.1", "1.59", _mean(points), f"The median is {_two(median(points))}."),
        _number("largest gain", "5.2.1", "5.06", max(points)),
        _number("largest loss", "5.2.1", "0.99", -min(points), "Its cell repeats a number of its row."),
        Claim("methods above 96% on CIFAR-100", "5.2.1", "all", _of(above), _holds(all(above))),
    ]  # fmt: skip


def _set_up() -> list[Claim]:
    tables = paper_tables()
    dilutions = len({cell.dilution for cell in tables["model_matched"].cells})
    rates = tables["learning_rates"]
    hace = dilutions * len(rates.select(method="hace"))
    cross_entropy = sum(
        dilutions if "d" in cell.printed else 1 for cell in rates.select(method="cross_entropy")
    )
    images = {name: _images(tables["datasets"], name) for name in ("cifar100", "aircraft")}
    return [
        _number("runs for each pair of architecture and dataset", "4.3, A.4", "10", Decimal(hace + cross_entropy),
                f"{hace} of HACE and {cross_entropy} of cross-entropy."),
        _number("images of CIFAR-100", "A.3", "60,000", images["cifar100"]),
        _number("images of FGVC-Aircraft", "A.3", "10,000", images["aircraft"], "The released files hold 10,000."),
    ]  # fmt: skip


def _images(table: PaperTable, dataset: str) -> Decimal:
    return sum(
        (Decimal(table.value(dataset=dataset, metric=f"{part}_images")) for part in ("train", "test")),
        Decimal(),
    )


def _scores(table: str) -> list[Scores]:
    return [
        {str(c.method): Decimal(c.printed) for c in comparison}
        for comparison in paper_tables()[table].comparisons()
    ]


def _ours(scores: Scores) -> tuple[str, ...]:
    return tuple(method for method in scores if method.startswith("hace"))


def _lead(scores: Scores, ours: Sequence[str], aside: Sequence[str] = ()) -> Decimal:
    """How far the best of ours is ahead of the best other method, ignoring those in `aside`."""
    return max(scores[m] for m in ours) - max(scores[m] for m in scores if m not in (*ours, *aside))


def _mean(points: Iterable[Decimal]) -> Decimal:
    points = list(points)
    return sum(points, Decimal()) / len(points)


def _two(points: Decimal) -> str:
    return str(points.quantize(Decimal("0.01"), ROUND_HALF_UP))


def _of(hits: Sequence[bool]) -> str:
    return f"{sum(hits)} of {len(hits)}"


def _holds(condition: bool) -> Status:
    return "recomputes" if condition else "differs"


def _count(text: str, where: str, printed: str, hits: Sequence[bool], note: str = "") -> Claim:
    return Claim(text, where, printed, _of(hits), _holds(_of(hits) == printed), note)


def _number(text: str, where: str, printed: str, result: Decimal, note: str = "") -> Claim:
    said = Decimal(printed.replace(",", ""))
    shown = result.quantize(said, ROUND_HALF_UP)
    status: Status = _holds(shown == said)
    if status == "differs" and "." in printed and abs(result - said) <= ROUNDING:
        status = "within rounding"
    return Claim(text, where, printed, f"{shown:,}", status, note)


def misplaced_marks() -> list[PrintedCell]:
    """Cells whose bold or underline contradicts the numbers; equal numbers share a mark.

    Example:
        >>> misplaced_marks()
        []
    """
    wrong = []
    for table in paper_tables().values():
        underlines = any(cell.mark == "underline" for cell in table.cells)
        for comparison in table.comparisons():
            best, second = sorted({Decimal(cell.printed) for cell in comparison}, reverse=True)[:2]
            right = {best: "bold", second: "underline" if underlines else ""}
            wrong += [cell for cell in comparison if cell.mark != right.get(Decimal(cell.printed), "")]
    return wrong


def whole_count(printed: str, samples: int) -> bool:
    """Whether a printed percentage can be a count out of so many samples.

    Example:
        >>> whole_count("81.10", 3333), whole_count("81.10", 3400)
        (True, False)
    """
    near = round(float(printed) * samples / 100)
    return any(f"{100 * count / samples:.2f}" == printed for count in (near - 1, near, near + 1))


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
    lines = [HEADS, ("---",) * len(HEADS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
