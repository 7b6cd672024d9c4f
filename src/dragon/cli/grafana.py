"""`dragon grafana`: prints a Grafana dashboard of all metrics in the catalogue."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from dragon.commands import Parser
from dragon.infrastructure.metrics import METRICS, Kind, Metric

_EPILOG = """\
example:
  dragon --telemetry-port 9400 train.py      the run serves its metrics to Prometheus
  dragon grafana > dragon.json               import this in Grafana: Dashboards, New, Import

Prometheus' scrape_configs need a job whose target is the machine of the `dragon` command, with that port. The dashboard
asks for the data source when it is imported.
"""
_COLUMNS, _WIDTH, _HEIGHT = 2, 12, 8
_UNITS = {
    "ratio": "percentunit",
    "bytes": "bytes",
    "watts": "watt",
    "celsius": "celsius",
    "hertz": "hertz",
    "seconds": "s",
}
_SOURCE = {"type": "prometheus", "uid": "${source}"}
# The rows, by the subject of the metrics, and the legends of their series.
_ROWS = {
    "node": ("Nodes", "{{host}} {{cpu}}"),
    "gpu": ("GPUs", "{{host}} GPU {{gpu}}"),
    "process": ("Processes", "{{name}} {{puid}}"),
    "group": ("Process groups", "{{host}} {{group}}"),
    "queue": ("Queues", "{{host}} {{queue}} {{name}} {{operation}}"),
    "pool": ("Pools", "{{host}} {{pool}} {{name}}"),
    "dictionary": ("Dictionaries", "{{host}} {{dictionary}} {{manager}}"),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    return Parser(
        prog="dragon grafana",
        description="Print a Grafana dashboard of all metrics that a run serves to Prometheus, as JSON.",
        epilog=_EPILOG,
    )


def main(words: Sequence[str]) -> int:
    """Print the dashboard. Returns the exit code."""
    parser().parse_args(words)
    print(json.dumps(dashboard(), indent=2))
    return 0


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model, which every version since 9 imports."""
    return {
        "uid": "dragon-run",
        "title": "Dragon run",
        "tags": ["dragon"],
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-15m", "to": "now"},
        "refresh": "5s",
        "schemaVersion": 38,
        "templating": {"list": [_source(), _hosts()]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), start=1)],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _hosts() -> dict[str, Any]:
    return {
        "name": "host",
        "label": "Node",
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({METRICS['load_average'].exported}, host)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = 0
    for subject, (title, legend) in _ROWS.items():
        metrics = [metric for metric in METRICS.values() if metric.exported.startswith(f"dragon_{subject}_")]
        yield {"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": _COLUMNS * _WIDTH, "h": 1}}
        top += 1
        for place, metric in enumerate(metrics):
            x, y = place % _COLUMNS * _WIDTH, top + place // _COLUMNS * _HEIGHT
            yield {**_panel(metric, legend), "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}}
        top += -(-len(metrics) // _COLUMNS) * _HEIGHT


def _panel(metric: Metric, legend: str) -> dict[str, Any]:
    series = f'{metric.exported}{{host=~"$host"}}'
    unit = _UNITS.get(metric.exported.removesuffix("_total").rpartition("_")[2], "short")
    if metric.kind == Kind.COUNTER:
        series, unit = f"rate({series}[$__rate_interval])", {"bytes": "Bps"}.get(unit, "ops")
    return {
        "type": "timeseries",
        "title": metric.meaning + (" per second" if metric.kind == Kind.COUNTER else ""),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [{"refId": "A", "datasource": _SOURCE, "expr": series, "legendFormat": legend}],
    }
