"""The cards of a page: a question, its answer in a sentence, and the comparisons that decide it.

Words follow from comparisons by fixed rules: a difference is a gain or a loss where it remains after Holm's correction for all
rows of all cards of the page. The question is asked of two methods named beforehand (HACE and cross-entropy, or those of
`--difference`), so nothing was picked by its test results; the method to use is the one that was best on held-out samples.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pandas as pd

from hace.lab.report.caveats import caveats, guarantee_alarm
from hace.lab.report.compare import ENOUGH_SEEDS, Outcome, Pair, compare
from hace.lab.report.document import WORDS
from hace.lab.report.labels import LabelQuestion, LabelState, label_questions
from hace.lab.report.metric import ACCURACY, Metric, aspects
from hace.lab.report.results import Results
from hace.lab.report.runs import PROTOCOLS, Condition, may_be_used, method_title
from hace.lab.report.sentences import say
from hace.lab.runs.run import Run
from hace.settings import unused

Tone = Literal["yes", "part", "no", "open"]
QUESTION = "does the hierarchy help?"
_LINE = 84  # letters of a command before it goes on in the next line


@dataclass(frozen=True)
class Decision:
    """A row of a card: a comparison, and what it shows."""

    question: str  # in what: an aspect, or with which labels
    metric: Metric
    first: str  # titles of the methods
    second: str
    ours: float  # their means
    theirs: float
    estimate: float  # first minus second
    low: float
    high: float
    p: float  # corrected for all rows of all cards
    seeds: int
    outcome: Outcome

    @property
    def difference(self) -> str:
        """The estimate: "+1.3 points"."""
        return f"{self.metric.gap(self.estimate)} {self.metric.unit}"

    @property
    def interval(self) -> str:
        """Its 95% interval: "[+0.3, +2.1]"."""
        return self.metric.gap_interval(self.low, self.high)

    @property
    def means(self) -> str:
        """Both means: "72.6% → 79.5%"."""
        return f"{self.metric.short(self.theirs)} → {self.metric.short(self.ours)}"

    @property
    def words(self) -> str:
        """What it shows: "clear gain", "clear loss", "unclear"."""
        return "unclear" if self.outcome == "unclear" else f"clear {self.outcome}"


class Way(NamedTuple):
    """How far a gain goes from dropping the coarse labels to knowing all labels, as accuracies."""

    dropped: float
    used: float
    known: float

    @property
    def share(self) -> float:
        """The share of the way."""
        return (self.used - self.dropped) / (self.known - self.dropped)


@dataclass(frozen=True)
class Card:
    """A question and its answer."""

    where: str  # dataset, model, and what is known of the labels
    question: str
    answer: str  # in a sentence or two
    tone: Tone  # for the colour
    decisions: tuple[Decision, ...] = ()
    heads: tuple[str, str, str] = ("", "", "")  # headings: of their questions, differences and means
    way: Way | None = None
    lines: tuple[str, ...] = ()  # more sentences
    use: str = ""  # the method to use; "" where nothing was held out
    why: str = ""  # on what evidence
    commands: tuple[str, ...] = ()  # to paste: train it with samples held out, calibrate it, ask it
    alarm: str = ""  # why guarantees that rest on held-out samples must not be trusted
    caveats: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # that it speaks of


def study_cards(results: Results) -> list[Card]:
    """One for each dataset and model with all labels known, by the fair protocol if there is one, and each label question."""
    questions = label_questions(results)
    conditions = _asked_conditions(results, questions)
    pairs = [pair for condition in conditions for pair in _aspect_pairs(results, condition)]
    pairs += [pair for question in questions for pair in question.pairs()]
    rows = compare(pairs)  # one family: all rows of all cards
    return [
        *(aspect_card(results, condition, rows[rows["condition"] == condition]) for condition in conditions),
        *(label_card(question, rows) for question in questions),
    ]


def _asked_conditions(results: Results, questions: Sequence[LabelQuestion]) -> list[Condition]:
    """The conditions with a card of their own: those of the fair protocol, or else of another."""
    about_labels = {c for question in questions for c in question.conditions if c != question.whole}
    conditions = [condition for condition in results.scores if condition not in about_labels]
    fair = {(c.dataset, c.model) for c in conditions if c.protocol == "fair"}
    return [c for c in conditions if c.protocol == "fair" or (c.dataset, c.model) not in fair]


def _decisions(rows: pd.DataFrame) -> list[Decision]:
    return [decision(row, row.metric.title) for _, row in rows.iterrows()]


def decision(row: pd.Series, question: str) -> Decision:
    """A row of :func:`compare` as the row of a card."""
    return Decision(
        question=question,
        metric=row.metric,
        first=method_title(row["first"]),
        second=method_title(row.second),
        ours=row.ours,
        theirs=row.theirs,
        estimate=row.difference,
        low=row.low,
        high=row.high,
        p=row.holm,
        seeds=row.seeds,
        outcome=row.outcome,
    )


def _names(decisions: Sequence[Decision], *outcomes: Outcome) -> list[str]:
    """What the decisions with some outcomes are about."""
    return [decision.question for decision in decisions if decision.outcome in outcomes]


# --- does the hierarchy help?


def _aspect_pairs(results: Results, condition: Condition) -> Iterator[Pair]:
    """The method in question and the best on held-out samples, each against the reference in every aspect."""
    held_out = [method for method in results.held_out(condition) if may_be_used(method)]
    methods = dict.fromkeys((results.first, *held_out[:1]))
    return results.pairs(condition, methods, aspects(results.scores[condition].hierarchy))


def aspect_card(results: Results, condition: Condition, rows: pd.DataFrame) -> Card:
    """Whether a method beats the reference in any aspect, from the rows of its condition."""
    where = " · ".join(filter(None, (*condition.place, condition.labels)))
    if condition.protocol == "paper":
        where += f" · {PROTOCOLS[condition.protocol]}"
    first = results.first
    second = results.second
    of_method = {method: _decisions(own) for method, own in rows.groupby("first", sort=False)}
    own = of_method.get(first, [])
    if not own:
        finished = [method_title(method) for method in results.scores[condition].done]
        notes = tuple(caveats(results, {condition: ()}))
        return Card(where, QUESTION, say("no_comparison", finished=finished), "open", caveats=notes)
    held_out = {m: score for m, score in results.held_out(condition).items() if may_be_used(m)}
    best = next(iter(held_out), "")
    other = "" if best in (first, second) else best
    answer, tone = _answer(results, own, other, of_method.get(other, []))
    if condition.protocol == "paper":
        answer += " " + say("chosen_on_test")
    method, why = _use(results, condition, held_out, of_method) if held_out else ("", "")
    methods = list(dict.fromkeys(filter(None, (first, second, best))))
    ours = method_title(first)
    theirs = method_title(second)
    return Card(
        where,
        QUESTION,
        answer,
        tone,
        decisions=tuple(own),
        heads=("aspect", f"{ours} minus {theirs}", f"{theirs} → {ours}"),
        use=method_title(method) if method else "",
        why=why,
        commands=_commands(results, condition, method),
        alarm=guarantee_alarm(results, condition, method or second),
        caveats=tuple(caveats(results, {condition: methods})),
        methods=tuple(methods),
    )


def _answer(
    results: Results, own: Sequence[Decision], other: str, others: Sequence[Decision]
) -> tuple[str, Tone]:
    """The headline. Unless the first method wins, a better one that was chosen on held-out samples is named."""
    names = {"ours": method_title(results.first), "theirs": method_title(results.second)}
    gains = _names(own, "gain")
    losses = _names(own, "loss")
    ties = _names(own, "unclear", "loss")
    rival = {"other": method_title(other), "other_gains": _names(others, "gain") if _helps(others) else []}
    if max(decision.seeds for decision in own) < ENOUGH_SEEDS:
        return say("helps_one_seed", **names), "open"
    if gains and losses:
        return say("helps_part", gains=gains, losses=losses, **rival, **names), "part"
    if gains:
        return say("helps_yes", gains=gains, ties=ties, **names), "yes"
    if rival["other_gains"]:
        return say("helps_other", losses=losses, **rival, **names), "part"
    if losses:
        return say("helps_no", losses=losses, **names), "no"
    return say("helps_open", **names), "open"


def _helps(decisions: Sequence[Decision]) -> bool:
    """Whether a method is better than the reference: in accuracy, the first aspect, or in others and worse in none."""
    outcomes = [decision.outcome for decision in decisions]
    return "gain" in outcomes and (outcomes[0] == "gain" or "loss" not in outcomes)


def _use(
    results: Results,
    condition: Condition,
    held_out: Mapping[str, float],
    of_method: Mapping[Any, Sequence[Decision]],
) -> tuple[str, str]:
    """The method to use and why: the best on held-out samples, or else the method in question, if the test samples show that
    it helps; or else the reference. If another method is the first of the table, that is said.
    """
    best = next(iter(held_out))
    reference = results.second
    named = [m for m in dict.fromkeys((best, results.first)) if m != reference and may_be_used(m)]
    method = next((m for m in named if _helps(of_method.get(m, []))), reference)
    if method == best:
        why = [_chosen(held_out, "held-out")]
    else:
        loses = bool(_names(of_method.get(best, [])[:1], "loss"))
        why = [say("not_confirmed", best=method_title(best), count=len(held_out), loses=loses)]
    if method != reference:
        why.append(_gain_on_test(of_method[method]))
    means = {m: mean for m, mean in results.scores[condition].means(ACCURACY).items() if may_be_used(m)}
    top = max(means, key=lambda m: means[m])
    if top not in (method, best, reference):
        ahead = f"{100 * (means[top] - means[method]):.1f}"
        why.append(say("highest_on_test", method=method_title(top), ahead=ahead))
    return method, " ".join(why)


def _chosen(scores: Mapping[str, float], samples: str) -> str:
    """How a method was the best, from the accuracies of all on samples that chose it, the best first."""
    (_, highest), *others = scores.items()
    runner_up, second = others[0] if others else ("", highest)
    return say(
        "chosen",
        count=len(scores),
        samples=samples,
        ahead=f"{100 * (highest - second):.1f}",
        runner_up=method_title(runner_up),
    )


def _gain_on_test(decisions: Sequence[Decision]) -> str:
    """What a method gains on test samples: in accuracy, or else in what it is better."""
    accuracy = decisions[0]
    gains = _names(decisions, "gain")
    points = f"{100 * accuracy.estimate:.1f}" if accuracy.outcome == "gain" else ""
    return say("gain_on_test", reference=accuracy.second, points=points, gains=gains)


# --- are coarse labels worth using? which method for poor labels?


def label_card(question: LabelQuestion, rows: pd.DataFrame) -> Card:
    """The card of a question about labels, from comparisons that include its pairs."""
    results = question.results
    states = question.states
    against_dropping = _state_decisions(rows, {state: state.against_dropping for state in states})
    against_reference = _state_decisions(rows, {state: state.against_reference for state in states})
    asks_to_drop = bool(against_dropping)
    decided = against_dropping or against_reference
    use = {state: _state_method(results, state, against_reference.get(state)) for state in states}
    case, answer = _label_answer(results, list(decided.values()), asks_to_drop, list(use.values()))
    may_use = case in ("yes", "part")
    alone = states[0] if len(states) == 1 else None
    reference = method_title(results.second)
    best = " or ".join(dict.fromkeys(method_title(state.best) for state in states))
    named = {state.condition: list(filter(None, (state.best, state.dropper))) for state in states}
    return Card(
        question.title.replace(", ", " · "),
        say("labels_question", mixed=question.mixed) if asks_to_drop else "which method for poor labels?",
        answer,
        case if case in ("yes", "part", "no") else "open",
        decisions=tuple(decided.values()),
        heads=(
            ("training labels", "use minus drop", "drop → use")
            if asks_to_drop
            else ("training labels", f"{best} minus {reference}", f"{reference} → {best}")
        ),
        way=None if alone is None else _way(alone, against_dropping.get(alone)),
        lines=tuple(_reached(state) for state in states if state not in decided),
        use=_label_use(use) if may_use else "",
        why=_label_why(alone, use[alone]) if may_use and alone is not None else "",
        commands=_label_commands(question, alone, case, use),
        alarm=next(filter(None, (guarantee_alarm(results, s.condition, s.best) for s in states)), ""),
        caveats=tuple(caveats(results, named)),
        methods=tuple(dict.fromkeys(state.best for state in states)),
    )


def _state_decisions(
    rows: pd.DataFrame, pairs: Mapping[LabelState, Pair | None]
) -> dict[LabelState, Decision]:
    """The decision of each state that has a pair."""
    compared = {(row.condition, row["first"], row.against, row.second): row for _, row in rows.iterrows()}
    decisions = {}
    for state, pair in pairs.items():
        if pair is not None:
            row = compared.get((pair.ours.condition, pair.first, pair.theirs.condition, pair.second))
            if row is not None:
                decisions[state] = decision(row, state.words)
    return decisions


def _state_method(results: Results, state: LabelState, against_reference: Decision | None) -> str:
    """The method to use: the best of other samples, unless the test samples show that the reference is better."""
    loses = against_reference is not None and against_reference.outcome == "loss"
    return results.second if loses else state.best


def _label_answer(
    results: Results, decisions: Sequence[Decision], asks_to_drop: bool, methods: Sequence[str]
) -> tuple[Literal["yes", "part", "no", "open", "one_seed"], str]:
    """Which case it is, and the headline."""
    outcomes = {decision.outcome for decision in decisions}
    if decisions and max(decision.seeds for decision in decisions) < ENOUGH_SEEDS:
        case = "one_seed"
    elif not outcomes or outcomes == {"unclear"}:
        case = "open"
    elif len(outcomes) > 1:
        case = "part"
    else:
        case = "yes" if outcomes == {"gain"} else "no"
    fields: dict[str, Any] = {} if asks_to_drop else {"reference": method_title(results.second)}
    if case == "yes" or (case == "part" and not asks_to_drop):
        fields["methods"] = list(dict.fromkeys(map(method_title, methods)))
    return case, say(f"{'labels' if asks_to_drop else 'poor'}_{case}", **fields)


def _way(state: LabelState, decided: Decision | None) -> Way | None:
    """How far a gain over dropping goes; None where none is shown."""
    if decided is None or decided.outcome != "gain" or state.known is None or state.known <= decided.theirs:
        return None
    return Way(decided.theirs, decided.ours, state.known)


def _reached(state: LabelState) -> str:
    accuracy = ACCURACY.short(state.accuracy)
    return say("state_reached", state=state.words, method=method_title(state.best), accuracy=accuracy)


def _label_use(use: Mapping[LabelState, str]) -> str:
    """The method to use, or one for each state of the labels."""
    methods = set(use.values())
    if len(methods) == 1:
        return method_title(methods.pop())
    return "; ".join(f"{method_title(method)} for {state.words}" for state, method in use.items())


def _label_why(state: LabelState, method: str) -> str:
    """How the method was chosen; or why not the best one."""
    if method == state.best:
        return _chosen(state.ranking, state.chosen_on)
    return say("not_confirmed", best=method_title(state.best), count=len(state.ranking), loses=True)


def _label_commands(
    question: LabelQuestion, alone: LabelState | None, case: str, use: Mapping[LabelState, str]
) -> tuple[str, ...]:
    """For labels that are mixed already; labels that were made poor are no one's to train with."""
    if question.mixed is None or alone is None:
        return ()
    method = alone.dropper if case == "no" and alone.dropper else use[alone]
    return _commands(question.results, alone.condition, method)


# --- commands to paste


def _commands(results: Results, condition: Condition, method: str) -> tuple[str, ...]:
    """The commands that make a method's model; none without a run of it."""
    runs = results.scores[condition].finished(method)["run"]
    return commands(runs.iloc[0]) if len(runs) else ()


def commands(run: Run) -> tuple[str, ...]:
    """Commands that train a run's model with samples held out, calibrate it and ask it about photos."""
    own = "split" if run.about["data"].get("own_validation") else 0.1
    config = replace(run.config, validation=run.config.validation or own, temperature=None, keep=True)
    short = {"head.name": "head", "data.name": "data", "data.hierarchy": "hierarchy"}
    short["data.root"] = "features" if config.kind == "probe" else "data-root"
    base = {**type(config)().to_dict(), "loss": config.loss.to_dict()}
    differs = flattened(config.to_dict(), base)
    skip = unused(config)
    changed = {key: value for key, value in differs.items() if value is not None and key not in skip}
    if changed.get("data.name") == "features":
        del changed["data.name"]
    options = {key: _option(short.get(key, key), value) for key, value in changed.items()}
    data = [option for key, option in options.items() if key.startswith("data.")]
    others = [option for key, option in options.items() if not key.startswith("data.")]
    words = [f"hace {config.kind}", *data, f"--loss {shlex.quote(config.loss.text)}", *others]
    run_id = config.identity(run.about["data"]["fingerprint"])
    folder, out = ("runs/best", "runs/best") if config.kind == "train" else (f"runs/{run_id}", "runs")
    return (
        " \\\n".join(_command_lines([*words, f"--out {out}"])),
        f"hace calibrate {folder}",
        f"hace predict {folder} photos --accuracy 0.9",
        f'hace.Predictor.from_run("{folder}").predict("photos", accuracy=0.9)  # in Python',
    )


def _option(name: str, value: Any) -> str:
    """A setting as the command line has it."""
    if name.startswith("data.options."):
        option = name.removeprefix("data.options.")
        return f"-o {shlex.quote(f'{option}={value}')}"
    name = name.removeprefix("data.").replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {shlex.quote(str(value))}"


def _command_lines(words: Sequence[str]) -> list[str]:
    """Lines of whole words, so that a path with blanks stays in one line."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) > _LINE:
            lines.append("   ")
        lines[-1] += f" {word}"
    return lines


def flattened(values: Mapping[str, Any], base: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """What differs from the defaults, by dotted names."""
    changed: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            below = base.get(key)
            changed |= flattened(value, below if isinstance(below, Mapping) else {}, f"{where}{key}.")
        elif value != base.get(key):
            changed[where + key] = value
    return changed


# --- what the words of the cards mean


def glossary(cards: Sequence[Card]) -> list[list[tuple[str, str]]]:
    """In lines of terms: methods, aspects, and when a difference is clear."""
    decisions = [decision for card in cards for decision in card.decisions]
    named = dict.fromkeys(method for card in cards for method in card.methods)
    methods = {method_title(method): _method_text(method) for method in named if _method_text(method)}
    if any(card.heads[1] == "use minus drop" for card in cards):
        methods["Coarse label"] = WORDS["coarse"]
    meanings = {d.metric.title: f"{d.metric.meaning}." for d in decisions if d.question == d.metric.title}
    return [[*methods.items()], [*meanings.items()], [*WORDS["legend"].items()] if decisions else []]


def _method_text(method: str) -> str:
    return next((text for key, text in WORDS["methods"].items() if method.startswith(key)), "")
