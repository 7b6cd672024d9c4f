"""The newest values of a node in Prometheus' form: in families, with base units."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dragon.agent.telemetry.history import History, Series
from dragon.infrastructure.metrics import METRICS, Family, Kind, Line, Told, exported_name

__all__ = ["families", "lines"]


def families(history: History, now: float, age: float) -> list[Family[Told]]:
    """Return the newest values of all series.

    A metric that the runtime measures is included only if its value is no older than `age` seconds, or than the
    metric's own `counts_for`.
    """
    found: dict[str, Family[Told]] = {}
    for series in history:
        metric = METRICS.get(series.name)
        if metric is None:
            family: Family[Told] = Family(_exported(series), series.kind, f"{series.name}, as the program told it")
        elif now - series.changed <= max(age, metric.counts_for):
            family = Family(metric.exported, metric.kind, metric.meaning)
        else:
            continue
        family = found.setdefault(family.name, family)
        if series.kind != family.kind:
            continue  # two names of a program that are the same in Prometheus, where a name has one type
        if series.kind == Kind.SUMMARY:
            family.samples.append(("_count", series.tags, series.count))
            family.samples.append(("_sum", series.tags, series.total))
        else:
            family.samples.append(("", series.tags, series.last * (metric.scale if metric else 1)))
    return list(found.values())


def _exported(series: Series) -> str:
    suffix = {Kind.COUNTER: "_total", Kind.SUMMARY: "_seconds", Kind.GAUGE: ""}[series.kind]
    return exported_name(series.name).removesuffix(suffix) + suffix


def lines(families: Iterable[Family[Told]]) -> list[Family[Line]]:
    """Return families with their samples as lines of Prometheus' page."""
    return [
        Family(one.name, one.kind, one.meaning, [_line(one.name, *told) for told in one.samples]) for one in families
    ]


def _line(name: str, suffix: str, tags: dict[str, str], value: float) -> Line:
    labels = {exported_name(tag).replace(":", "_"): text for tag, text in tags.items()}
    told = ",".join(f'{tag}="{_escaped(text)}"' for tag, text in labels.items())
    return f"{name}{suffix}{{{told}}} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
