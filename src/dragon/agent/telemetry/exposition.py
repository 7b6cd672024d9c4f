"""The newest values of a node as Prometheus has them: in families, with base units."""

from __future__ import annotations

from dragon.agent.telemetry.history import History, Series
from dragon.infrastructure.metrics import METRICS, Family, Kind, exported_name

__all__ = ["families"]


def families(history: History, now: float, age: float) -> list[Family]:
    """The newest values of all series; of what the runtime measures only those that are no older than `age` seconds, or
    than they count for."""
    found: dict[str, Family] = {}
    for series in history:
        metric = METRICS.get(series.name)
        if metric is None:
            family = Family(_exported(series), series.kind, f"{series.name}, as the program told it")
        elif now - series.changed <= max(age, metric.counts_for):
            family = Family(metric.exported, metric.kind, metric.meaning)
        else:
            continue
        family = found.setdefault(family.name, family)
        if series.kind != family.kind:
            continue  # two names of a program's that are one to Prometheus; a name has one type there
        if series.kind == Kind.SUMMARY:
            family.samples.append(("_count", series.tags, series.count))
            family.samples.append(("_sum", series.tags, series.total))
        else:
            family.samples.append(("", series.tags, series.last * (metric.scale if metric else 1)))
    return list(found.values())


def _exported(series: Series) -> str:
    suffix = {Kind.COUNTER: "_total", Kind.SUMMARY: "_seconds", Kind.GAUGE: ""}[series.kind]
    return exported_name(series.name).removesuffix(suffix) + suffix
