"""The page of `hace demo`: three questions that people have about a taxonomy, a card for each, and the details below."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from statistics import mean

import numpy as np

from hace.lab.report.conformal import run_ladder, sure_places
from hace.lab.report.results import Results, level_names
from hace.lab.report.study_report import about_study, verdicts_text, write_records
from hace.lab.report.verdict import Answer, Verdict, glossary, label_questions, label_verdict
from hace.lab.runs.config import DataConfig
from hace.lab.runs.samples import data_of
from hace.lab.study.folder import StudyFolder
from hace.linear.unseen_classes import UnseenStudy
from hace.metrics.intervals import share_interval

GUARANTEE, NEW_GUARANTEE, NEW = 0.9, 0.8, 12


def write_demo(study: StudyFolder, data: DataConfig) -> tuple[str, Path]:
    """Write the page. Returns what the terminal shows of it, and its path."""
    results = Results(study.records())
    question = label_questions(results)[0]
    answer = next(a for a in question.answers if a.comparison != question.whole)
    labels = replace(label_verdict(question), where="Coarse labels", question="use or drop?", caveats=())
    cards = [labels, _guarantee(results, answer), _something_new(data)]
    page = write_records(results, about_study(study), study.folder / "report", cards=cards)
    words = verdicts_text(cards), *(f"{term}: {text}" for term, text in glossary(cards)[0])
    return "\n".join(words), page


def _guarantee(results: Results, answer: Answer) -> Verdict:
    """Whether the answers of the best method keep a guarantee, and at which levels they are."""
    runs = [record.run for record in results.choices[answer.comparison][answer.best].finished if record.run]
    h, samples, false, levels = runs[0].hierarchy, 0, [], []
    for run in runs:
        if (ladder := run_ladder(run.predictions(), h)) is not None:
            (place,) = sure_places(ladder, (GUARANTEE,))
            rows, samples = np.arange(len(place)), len(place)
            false.append(1 - ladder.is_true[rows, place].mean())
            depth = np.append(h.depths, 0)[ladder.nodes[rows, place]]
            levels.append(np.bincount(depth, minlength=h.max_depth + 1) / samples)
    share, (nothing, *said) = mean(false), np.mean(levels, axis=0)
    kept = share_interval(round(share * samples), samples)[0] <= 1 - GUARANTEE
    shares = zip(said[::-1], level_names(h)[::-1], strict=True)
    names = ", ".join(f"{x:.0%} name the {name}" for x, name in shares)
    lines = (
        f"How specific: {names}, {nothing:.0%} say nothing.",
        "It says the family or the group where it is not sure of the animal. Half of the test samples set the threshold "
        "for the other half.",
    )
    words = f"On average at most {1 - GUARANTEE:.0%} of the animals get a false answer: {share:.1%} did, over {len(false)} seeds."
    question = "is it kept, and how specific are the answers?"
    tone, first = ("yes", "Kept") if kept else ("no", "Not kept")
    return Verdict("A guarantee", f"{first}. {words}", tone, lines=lines, question=question)


def _something_new(config: DataConfig) -> Verdict:
    """What is said about animals that were left out of training, with thresholds that others of them set."""
    data, least = data_of(config), NEW_GUARANTEE
    train, test = ((data[name].x, data.hierarchy.labels[data[name].nodes]) for name in ("train", "test"))
    how = {"draws": 3, "seeds": 1, "methods": ("leave-one-out",), "guarantee": least}
    rows = UnseenStudy(data.hierarchy, train, test, NEW, **how).run()
    rows = [row for row in rows if row["lost"] == f"guarantee {least:g}" and not isnan(row["known_true"])]
    names = ("unseen_true", "unseen_false", "known_exact", "known_true")
    true, false, exact, known = (f"{mean(row[name] for row in rows):.0f}%" for name in names)
    kept = mean(row["unseen_false"] for row in rows) <= 100 * (1 - least)
    lines = (
        "A classifier that always names one of its classes is wrong about every one of them.",
        f"{NEW} of {data.hierarchy.num_leaves} animals are left out of training and set a threshold, so that at most "
        f"{1 - least:.0%} of new ones get a false answer; each is asked with the threshold that the others set.",
        f"The price: of the animals in the list, {exact} get their name and {known} a true answer.",
    )
    answer = f"Of new animals {true} get a true family or group, {false} a false answer, the others none."
    tone, first = ("yes", "True or silent") if kept else ("no", "Often false")
    where, question = "Something not in the list", "what does it say?"
    return Verdict(where, f"{first}. {answer}", tone, lines=lines, question=question)
