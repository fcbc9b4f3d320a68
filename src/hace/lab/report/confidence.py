"""How far to trust confidence: the metrics that depend on it, raw and calibrated."""

from __future__ import annotations

from statistics import mean

from hace.lab.report.arenas import ECE_BY_LEVEL, Arena, Metric, level_names, method_title
from hace.lab.report.render import ReportTable
from hace.lab.report.scores import ArenaScores
from hace.lab.report.tables import MEANS, metric_table
from hace.metrics.evaluation import CALIBRATED
from hace.metrics.sample_statistics import MetricKey

_AREAS = (
    Metric(("selection", "AURC"), "AURC", higher=False),
    Metric(("selection", "hAURC"), "hAURC", higher=False),
    Metric(("selection", "area under the operating curve"), "operating area"),
)


def confidence_table(arena: Arena, arrays: ArenaScores) -> ReportTable | None:
    """Every metric of confidence beside its calibrated form; None without calibrated runs."""
    names = level_names(arrays.hierarchy) if arrays.hierarchy is not None else ()
    metrics = [Metric((ECE_BY_LEVEL, name), f"{name} ECE", higher=False) for name in names]
    for name in names[-1:]:
        metrics.append(Metric(("Brier score by level", name), "Brier", percent=False, higher=False))
        metrics.append(Metric(("log-likelihood by level", name), "log-likelihood", percent=False))
    pairs = [pair for metric in (*metrics, *_AREAS) for pair in (metric, calibrated(metric))]
    shown = [m for m in pairs if _has(arrays, m.key)]
    if not any(m.key[0].startswith(CALIBRATED) for m in shown):
        return None
    remarks = (
        "Calibrated: scores divided by one temperature, fitted on held-out samples; it changes no ranking of classes. Mean "
        f"temperatures: {temperatures(arrays)}. Above 1, raw scores are too sure; below 1, not sure enough. Brier score and "
        "log-likelihood are those of the classes. " + MEANS,
    )
    title = f"{arena.title}: confidence, raw and calibrated"
    return metric_table(f"confidence-{arena.slug}", title, arrays, shown, remarks)


def calibrated(metric: Metric) -> Metric:
    """The same metric of calibrated scores."""
    heading, name = metric.key
    return Metric((CALIBRATED + heading, name), f"{metric.title}, calibrated", metric.percent, metric.higher)


def temperatures(arrays: ArenaScores) -> str:
    """The mean temperature of each method's runs, in words."""
    found = {}
    for method, choice in arrays.choices.items():
        results = [record.run.result or {} for record in choice.finished if record.run is not None]
        values = [(result.get("temperature") or {}).get("value") for result in results]
        known = [value for value in values if value is not None]
        if known:
            found[method_title(method)] = mean(known)
    return "; ".join(f"{title}: {value:.2f}" for title, value in found.items())


def _has(arrays: ArenaScores, key: MetricKey) -> bool:
    return any(choice.values(key) for choice in arrays.choices.values())
