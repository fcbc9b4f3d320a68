"""The page of `hace demo`: three questions that people have about a taxonomy, a card for each, and the details below."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from statistics import mean

import numpy as np

from hace.lab.report.about import about_study
from hace.lab.report.cards import Card, glossary, label_card
from hace.lab.report.compare import compare
from hace.lab.report.conformal import run_ladder, sure_places
from hace.lab.report.labels import LabelState, label_questions
from hace.lab.report.metric import level_names
from hace.lab.report.results import Results
from hace.lab.report.runs import method_title
from hace.lab.report.sentences import say
from hace.lab.report.study_report import write_records
from hace.lab.report.summary import cards_text
from hace.lab.runs.config import DataConfig, LossConfig
from hace.lab.runs.samples import data_of
from hace.lab.study.folder import StudyFolder
from hace.lab.study.presets import METHODS
from hace.linear.unseen_classes import UnseenStudy
from hace.losses.advice import recommended_loss
from hace.metrics.intervals import share_interval

GUARANTEE, NEW_GUARANTEE, NEW = 0.9, 0.8, 12


def write_demo(study: StudyFolder, data: DataConfig) -> tuple[str, Path]:
    """Write the page. Returns what the terminal shows of it, and its path."""
    results = Results(study.records())
    question = label_questions(results)[0]
    labels = label_card(question, compare(question.pairs()))
    best, advised = method_title(question.states[0].best), method_title(_advised())
    lines = (*labels.lines, say("demo_advice", best=best, advised=advised))
    labels = replace(labels, where="Coarse labels", question="use or drop?", lines=lines, caveats=())
    cards = [labels, _guarantee_card(question.states[0]), _new_animals_card(data)]
    page = write_records(results, about_study(study), study.folder / "report", cards=cards)
    text = [cards_text(cards), *(f"{term}: {meaning}" for term, meaning in glossary(cards)[0])]
    return "\n".join(text), page


def _advised() -> str:
    """The method whose loss is advised for coarse labels."""
    advice = recommended_loss(coarse=True)
    loss = LossConfig(advice.loss, dict(advice.params))
    return next(key for key, method in METHODS.items() if method.loss == loss)


def _guarantee_card(state: LabelState) -> Card:
    """Whether the answers of the best method keep a guarantee, and at which levels they are."""
    runs = list(state.scores.finished(state.best)["run"])
    h, samples, false, levels = runs[0].hierarchy, 0, [], []
    for run in runs:
        ladder = run_ladder(run.predictions(), h)
        if ladder is not None:
            (place,) = sure_places(ladder, (GUARANTEE,))
            samples = len(place)
            every = np.arange(samples)
            false.append(1 - ladder.is_true[every, place].mean())
            depth = np.append(h.depths, 0)[ladder.nodes[every, place]]
            levels.append(np.bincount(depth, minlength=h.max_depth + 1) / samples)
    share = mean(false)
    nothing, *by_level = np.mean(levels, axis=0)
    ranks = dict(zip(level_names(h)[::-1], [f"{named:.0%}" for named in by_level[::-1]], strict=True))
    holds = share_interval(round(share * samples), samples)[0] <= 1 - GUARANTEE
    return Card(
        "A guarantee",
        "is it kept, and how specific are the answers?",
        say(
            "demo_guarantee",
            holds=holds,
            allowed=f"{1 - GUARANTEE:.0%}",
            wrong=f"{share:.1%}",
            seeds=len(false),
        ),
        "yes" if holds else "no",
        lines=(
            say("demo_ranks", ranks=ranks, nothing=f"{nothing:.0%}"),
            "It says the family or the group where it is not sure of the animal. Half of the test samples set the threshold "
            "for the other half.",
        ),
    )


def _new_animals_card(config: DataConfig) -> Card:
    """What is said about animals that were left out of training, with thresholds that others of them set."""
    data = data_of(config)
    train, test = ((data[name].x, data.hierarchy.labels[data[name].nodes]) for name in ("train", "test"))
    study = UnseenStudy(
        data.hierarchy,
        train,
        test,
        NEW,
        draws=3,
        seeds=1,
        methods=("leave-one-out",),
        guarantee=NEW_GUARANTEE,
    )
    wanted = f"guarantee {NEW_GUARANTEE:g}"
    rows = [row for row in study.run() if row["lost"] == wanted and not isnan(row["known_true"])]
    shares = {
        name: mean(row[name] for row in rows)
        for name in ("unseen_true", "unseen_false", "known_exact", "known_true")
    }
    percent = {name: f"{share:.0f}%" for name, share in shares.items()}
    holds = shares["unseen_false"] <= 100 * (1 - NEW_GUARANTEE)
    allowed = f"{1 - NEW_GUARANTEE:.0%}"
    return Card(
        "Something not in the list",
        "what does it say?",
        say("demo_new", holds=holds, right=percent["unseen_true"], wrong=percent["unseen_false"]),
        "yes" if holds else "no",
        lines=(
            "A classifier that always names one of its classes is wrong about every one of them.",
            say("demo_left_out", new=NEW, animals=data.hierarchy.num_leaves, allowed=allowed),
            say("demo_price", exact=percent["known_exact"], right=percent["known_true"]),
        ),
    )
