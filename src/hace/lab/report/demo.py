"""The page of `hace demo`: three questions that people have about a taxonomy, a card for each, and the details below."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from statistics import mean

import numpy as np

from hace.lab.report.conformal import ladder_of, sure_places
from hace.lab.report.results import Results
from hace.lab.report.study_report import about_study, verdicts_text, write_records
from hace.lab.report.verdict import Answer, Verdict, glossary, label_questions, label_verdict
from hace.lab.runs.config import DataConfig
from hace.lab.runs.samples import data_of
from hace.lab.study.folder import StudyFolder
from hace.linear.unseen_classes import UnseenStudy
from hace.metrics.evaluation import wilson

PROMISE, NEW_PROMISE, NEW = 0.9, 0.8, 12


def write_demo(study: StudyFolder, data: DataConfig) -> tuple[str, Path]:
    """Write the page. Returns what it says in the terminal, and its path."""
    results = Results(study.records())
    question = label_questions(results)[0]
    answer = next(a for a in question.answers if a.comparison != question.whole)
    labels = replace(label_verdict(question), where="Coarse labels", question="use or drop?", caveats=())
    cards = [labels, _promise(results, answer), _something_new(data)]
    page = write_records(results, about_study(study), study.folder / "report", cards=cards)
    words = [f"{term}: {text}" for line in glossary(cards)[:1] for term, text in line]
    return "\n\n".join([verdicts_text([card]) for card in cards] + ["\n".join(words)]), page


def _promise(results: Results, answer: Answer) -> Verdict:
    """Whether the answers of the best method keep a promise, and at which levels they are."""
    arrays = results.arrays[answer.comparison]
    h, false, levels, samples = arrays.hierarchy, [], [], 0
    assert h is not None
    for run in arrays.predictions(answer.best).values():
        ladder = ladder_of(run, h)
        assert ladder is not None
        (place,) = sure_places(ladder, (PROMISE,))
        rows, samples = np.arange(len(place)), len(place)
        false.append(1 - float(ladder.true[rows, place].mean()))
        depth = np.append(h.depths, 0)[ladder.nodes[rows, place]]
        levels.append(np.bincount(depth, minlength=h.max_depth + 1) / samples)
    nothing, *shares = np.mean(levels, axis=0)
    kept = wilson(round(mean(false) * samples), samples)[0] <= 1 - PROMISE
    said = ", ".join(f"{s:.0%} the {name}" for s, name in zip(shares, h.level_names, strict=True))  # pyright: ignore
    lines = (f"How specific: of all answers {said}; {nothing:.0%} say nothing.", "If it is not sure of the animal, it says \"an owl\" or \"a bird\".")  # fmt: skip
    asked = f"At most {1 - PROMISE:.0%} of the animals may get a false answer: {mean(false):.1%} did, over {len(false)} seeds"
    answered = f"{'Kept' if kept else 'Not kept'}. {asked}."
    return Verdict("A promise", answered, "yes" if kept else "no", lines=lines, question="is it kept, and how specific are the answers?")  # fmt: skip


def _something_new(config: DataConfig) -> Verdict:
    """What is said about animals that were left out of training, with thresholds that others of them set."""
    data = data_of(config)
    train, test = ((data[name].x, data.hierarchy.labels[data[name].nodes]) for name in ("train", "test"))
    study = UnseenStudy(data.hierarchy, train, test, NEW, draws=3, seeds=1, methods=("leave-one-out",), promise=NEW_PROMISE)  # fmt: skip
    rows = [
        row
        for row in study.run()
        if row["lost"] == f"promise {NEW_PROMISE:g}" and not isnan(row["known_true"])
    ]
    share = {
        name: mean(row[name] for row in rows)
        for name in ("unseen_true", "unseen_false", "known_exact", "known_true")
    }
    kept = share["unseen_false"] <= 100 * (1 - NEW_PROMISE)
    said = f"{share['unseen_true']:.0f}% of new animals get a true family or group, {share['unseen_false']:.0f}% a false answer"
    lines = (
        "A classifier that must choose from its list is wrong about every one of them.",
        f"{NEW} of {data.hierarchy.num_leaves} animals are left out of training; half of them set the thresholds, so that at "
        f"most {1 - NEW_PROMISE:.0%} of new ones get a false answer, and the other half are asked.",
        f"The price: of the animals in the list {share['known_exact']:.0f}% get their own name, {share['known_true']:.0f}% a "
        "true answer.",
    )
    answer = f"{'True or silent' if kept else 'Often false'}. {said}, the others none."
    return Verdict(
        "Something not in the list",
        answer,
        "yes" if kept else "no",
        lines=lines,
        question="what does it say?",
    )
