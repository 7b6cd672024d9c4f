"""The newest values in the text format of Prometheus, 0.0.4."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import msgspec

from dragon.agent.telemetry.history import History, Series
from dragon.infrastructure.metrics import METRICS, Kind

__all__ = ["CONTENT_TYPE", "Family", "families", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(msgspec.Struct, array_like=True):
    """A metric: its name, type and meaning, and the suffix, tags and value of each of its samples."""

    name: str
    kind: str
    meaning: str
    samples: list[tuple[str, dict[str, str], float]] = []


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
    return _name(series.name).removesuffix(suffix) + suffix


def render(told: Iterable[Family]) -> bytes:
    """The families of all nodes as one page, on which each metric comes once."""
    merged: dict[str, Family] = {}
    for family in told:
        first = merged.setdefault(family.name, Family(family.name, family.kind, family.meaning, []))
        if first.kind == family.kind:
            first.samples += family.samples
    return "".join(_text(family) for family in merged.values()).encode()


def _text(family: Family) -> str:
    lines = {}  # by the name and labels, which must not come twice
    for suffix, tags, value in family.samples:
        labels = {_name(tag).replace(":", "_"): text for tag, text in tags.items()}
        told = ",".join(f'{tag}="{_escaped(text, quote=True)}"' for tag, text in labels.items())
        lines[f"{family.name}{suffix}{{{told}}}"] = _number(value)
    head = f"# HELP {family.name} {_escaped(family.meaning)}\n# TYPE {family.name} {family.kind}\n"
    return head + "".join(f"{name} {value}\n" for name, value in lines.items())


def _name(text: str) -> str:
    return re.sub(r"^(?=\d)|[^a-zA-Z0-9_:]", "_", text)


def _escaped(text: str, quote: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
