"""The runs of a study as one table, and those of them that tables show.

`runs_table` has one row per run: its configuration, how it ended, and every metric of its result. One run represents a method
at a seed, which repeats the whole procedure. The paper's protocol takes each seed's best run on the test set, as the paper
does. In the fair one the rate is already chosen on held-out samples, which also choose the dilution.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from hace.data import DATASETS
from hace.files.documents import csv_text
from hace.lab.models import ARCHITECTURES
from hace.lab.report.metric import TOP1, run_column
from hace.lab.study.configurations import ConfigurationKey
from hace.lab.study.presets import DINOV2, METHODS
from hace.lab.study.records import NO_RESULT, Record
from hace.metrics.sample_statistics import MetricKey

PROTOCOLS = {"fair": "fair protocol", "paper": "paper's protocol", "single": "as given"}
KEY = [field.name for field in fields(ConfigurationKey)]
RUN_COLUMNS = [*KEY, "stage", "lr", "status", "error", "id"]
_NOT_WRITTEN = ["condition", "candidates", "edge", "decay", "trained_dilution", "run"]


@dataclass(frozen=True, order=True)
class Condition:
    """Where methods are compared: a protocol, a dataset, a model and what is known of the training labels."""

    protocol: str
    dataset: str
    model: str
    labels: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """Dataset and model; features that do not say where they come from have no model."""
        names = (self.dataset,) if self.model == "features" else (self.dataset, self.model)
        return tuple(map(shown, names))

    @property
    def title(self) -> str:
        """For headings; only the paper's protocol needs a word."""
        protocol = PROTOCOLS[self.protocol] if self.protocol == "paper" else ""
        return ", ".join(filter(None, (*self.place, protocol, self.labels)))

    @property
    def slug(self) -> str:
        """For file names."""
        parts = filter(None, (self.dataset, self.model, self.protocol, self.labels))
        return "-".join(re.sub(r"[^\w.]", "_", part) for part in parts)


def condition_of(key: ConfigurationKey) -> Condition:
    """The condition of a configuration."""
    return Condition(key.protocol, key.dataset, key.model, key.labels)


def method_title(key: str) -> str:
    """The title of a method."""
    return METHODS[key].title if key in METHODS else key


def control_of(method: str) -> str:
    """What a method is a control of; "" if it may be used."""
    return METHODS[method].control if method in METHODS else ""


def drops_labels(method: str) -> bool:
    """Whether a method trains without the coarse labels."""
    return method in METHODS and METHODS[method].drops


def may_be_used(method: str) -> bool:
    """Whether a card may recommend a method: controls and methods that drop labels are there to compare with."""
    return not control_of(method) and not drops_labels(method)


def shown(key: str) -> str:
    """The title of a dataset or model."""
    if key in ARCHITECTURES:
        return ARCHITECTURES[key].title
    if key in DATASETS and DATASETS[key].official:
        return DATASETS[key].title
    return "DINOv2-Large" if key == DINOV2 else key


# --- one row per run


def runs_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per run: its configuration, how it ended, and every metric of its result as "heading: name"."""
    rows = [_row(record) for record in records]
    metrics = dict.fromkeys(name for row in rows for name in row if ": " in name)
    columns = [*RUN_COLUMNS, "split", "samples", *metrics, "seconds", *_NOT_WRITTEN]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)  # values stay as the results have them
    return frame.astype({"dilution": float, "seed": int, "lr": float, "candidates": int})


def _row(record: Record) -> dict[str, Any]:
    """A run as a row of the table of runs."""
    result = record.result
    config = None if record.run is None else record.run.config
    error = record.error or ("loss became infinite or NaN" if record.status == "diverged" else "")
    metrics = {
        run_column((heading, name)): value
        for heading, values in (result.get("metrics") or {}).items()
        for name, value in values.items()
    }
    return {
        **vars(record.key),
        "stage": record.stage,
        "lr": record.lr,
        "status": record.status,
        "error": error,
        "id": "" if record.run is None else record.run.id,
        "split": result.get("split"),
        "samples": result.get("samples"),
        **metrics,
        "seconds": result.get("seconds"),
        "condition": condition_of(record.key),
        "candidates": record.candidates,
        "edge": record.edge,
        "decay": None if config is None else config.weight_decay,
        "trained_dilution": None if config is None else config.loss.options.get("dilution"),
        "run": record.run,
    }


def runs_csv(runs: pd.DataFrame) -> str:
    """Every run with all its metrics, one per line; no cell starts a formula."""
    written = runs.drop(columns=_NOT_WRITTEN)
    lines = written.itertuples(index=False, name=None)
    return csv_text([list(written.columns), *([_field(value) for value in line] for line in lines)])


def _field(value: Any) -> Any:
    """A rate that is not chosen yet is NaN, and so is what a run without a result lacks."""
    if value is None or value != value:
        return ""
    return repr(value) if isinstance(value, float) else value


# --- one row per method and seed


def chosen_runs(runs: pd.DataFrame, by: MetricKey = TOP1) -> pd.DataFrame:
    """The run of each condition, method and seed that tables show, with how many settings were tried for it.

    A finished one with the highest merit: the accuracy on held-out samples in the fair protocol, the metric `by` on the test
    set in the paper's. Ties go to d = 0.5, then to the first.
    """
    of_seed = ["condition", "method", "seed"]
    final = runs[runs["stage"] == "final"]
    merit = _held_out_accuracy(runs, final).where(final["protocol"] != "paper", metric_values(final, by))
    final = final.assign(
        merit=merit.fillna(-1.0),
        finished=final["status"] == "finished",
        halved=final["dilution"] == 0.5,
        tried=final.groupby(of_seed, sort=False)["candidates"].transform("sum"),
    )
    ranked = final.sort_values(["finished", "merit", "halved"], ascending=False, kind="stable")
    best = ranked.groupby(of_seed, sort=False).head(1)
    return best.iloc[sorted(range(len(best)), key=_table_order(final, best).__getitem__)]


def _held_out_accuracy(runs: pd.DataFrame, final: pd.DataFrame) -> pd.Series:
    """The best accuracy on held-out samples of each final run's search; NaN without one."""
    key = [name for name in KEY if name != "pairing"]
    searched = runs[runs["stage"] == "search"]
    of_search = searched[key].fillna({"dilution": -1.0})
    best = metric_values(searched, TOP1).groupby([of_search[name] for name in key]).max()
    wanted = pd.MultiIndex.from_frame(final[key].fillna({"dilution": -1.0}))
    return pd.Series(best.reindex(wanted).to_numpy(), index=final.index, dtype=float)


def metric_values(runs: pd.DataFrame, key: MetricKey) -> pd.Series:
    """A metric of each run; NaN where it has none."""
    name = run_column(key)
    return runs[name].astype(float) if name in runs else pd.Series(float("nan"), index=runs.index)


def _table_order(final: pd.DataFrame, best: pd.DataFrame) -> list[tuple[Any, ...]]:
    """The place of each chosen run in tables: by dataset and model as the study has them, protocol, method, labels, seed."""
    places = {
        place: i for i, place in enumerate(dict.fromkeys(zip(final["dataset"], final["model"], strict=True)))
    }
    conditions = {condition: i for i, condition in enumerate(dict.fromkeys(final["condition"]))}
    methods = {method: i for i, method in enumerate(METHODS)}
    return [
        (
            places[condition.dataset, condition.model],
            condition.protocol,
            conditions[condition],
            methods.get(method, len(methods)),
            method,
            seed,
        )
        for condition, method, seed in zip(best["condition"], best["method"], best["seed"], strict=True)
    ]


def matched_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs at fixed rates, each named by :func:`matched_name`; one that several pairs share is in each of them."""
    fixed = runs[(runs["stage"] == "final") & runs["pairing"].notna()]
    names = list(map(matched_name, fixed["method"], fixed["dilution"], fixed["pairing"]))
    last = fixed.assign(method=names, tried=1).drop_duplicates(["condition", "method", "seed"], keep="last")
    return last.sort_values("seed", kind="stable")


def matched_name(method: str, dilution: float | None, pairing: str) -> str:
    """The name of a run within a pair: "hace 0.2 adjusted"."""
    known = dilution is not None and dilution == dilution
    return f"{method} {f'{dilution:g}' if known else 'any'} {pairing}"


# --- one row per method


def methods_table(chosen: pd.DataFrame) -> pd.DataFrame:
    """The methods of a condition: how many runs have finished, what is missing, and the settings tried and chosen."""
    rows = {method: _method_row(str(method), own) for method, own in chosen.groupby("method", sort=False)}
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["finished", "runs", "state", "tried", "settings"]
    )


def _method_row(method: str, own: pd.DataFrame) -> tuple[int, int, str, str, str]:
    finished = own[own["status"] == "finished"]
    return len(finished), len(own), _state(own["status"]), tried_text(own), _settings(method, finished)


def _state(statuses: pd.Series) -> str:
    """Shown instead of a number, or after it: "", "diverged", "1 of 3 diverged" ..."""
    missing = statuses.value_counts()
    missing = [(missing[status], status) for status in NO_RESULT if status in missing]
    if (statuses == "finished").any():
        return ", ".join(f"{count} of {len(statuses)} {status}" for count, status in missing)
    return missing[0][1]


def tried_text(chosen: pd.DataFrame) -> str:
    """How many settings the seeds of methods tried: "8", or "8 to 10" where seeds differ; "" where nothing is chosen."""
    counts = chosen.loc[chosen["protocol"] != "single", "tried"]
    return _range(counts) if len(counts) else ""


def _settings(method: str, finished: pd.DataFrame) -> str:
    """The chosen settings: "dilution 0.5, rate 8 to 16"."""
    known = METHODS.get(method)
    has_dilution = known is None or known.diluted or bool(known.tuned)
    dilutions = finished["dilution"].dropna()
    if dilutions.empty:  # not of the configuration: a search chose it
        dilutions = finished["trained_dilution"].dropna()
    decays = finished["decay"].dropna()
    parts = {
        "dilution": dilutions if has_dilution else [],
        "rate": finished["lr"],
        "decay": decays if decays.nunique() > 1 else [],
    }
    return ", ".join(f"{name} {_range(values)}" for name, values in parts.items() if len(values))


def _range(values: Sequence[float] | pd.Series) -> str:
    low = min(values)
    high = max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


# --- what runs say of themselves


def unseen_classes(runs: Iterable[Any]) -> str:
    """Which classes had no training sample in some runs: "2 classes have no training sample: lynx, owl"; "" if none."""
    trained = [(run.result or {}).get("train") or {} for run in runs if run is not None]
    names = sorted({name for train in trained for name in train.get("unseen_classes", ())})
    words = "1 class has" if len(names) == 1 else f"{len(names):,} classes have"
    more = " ..." if len(names) > 4 else ""
    return f"{words} no training sample: {', '.join(names[:4])}{more}" if names else ""
