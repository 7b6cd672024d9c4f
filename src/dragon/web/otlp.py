"""Sends a run's metrics to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from queue import Full, Queue
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.metrics import Family, Kind, Told, merged
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Ask
from dragon.runtime.protocol.telemetry import Families

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

log = runtime_log("web")

_EVERY_S, _FIRST_S = 10.0, 1.0  # seconds
_UNITS = {"ratio": "1", "bytes": "By", "watts": "W", "celsius": "Cel", "hertz": "Hz", "seconds": "s"}


class Export:
    """Sends the newest values of all nodes to a collector, every ten seconds until it is closed. If the collector
    cannot be reached, that is logged once, and nothing else is affected."""

    def __init__(self, ask: Ask, collector: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        # Its errors are logged here instead, once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._ask = ask
        self._collector = collector
        address = collector if urlsplit(collector).path.strip("/") else f"{collector.rstrip('/')}/v1/metrics"
        self._exporter = OTLPMetricExporter(endpoint=address)
        self._begun = time.time_ns()
        self._told = False
        self._parcels: Queue[list[Family[Told]]] = Queue(1)
        # A daemon thread, so that the process can end even if the collector hangs.
        threading.Thread(target=self._send_all, name="export", daemon=True).start()
        self._task = asyncio.ensure_future(self._collect())

    async def _collect(self) -> None:
        await asyncio.sleep(_FIRST_S)
        while True:
            try:
                self._parcels.put_nowait(await self._ask(Families()))
            except (DragonError, Full) as error:  # the run ends, or the collector is slow
                log.debug("nothing was sent to %s: %r", self._collector, error)
            await asyncio.sleep(_EVERY_S)

    def _send_all(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        while True:
            data = _data(self._parcels.get(), self._begun)
            if self._exporter.export(data) is not MetricExportResult.SUCCESS and not self._told:
                self._told = True
                log.warning(
                    "%s does not accept metrics; the run continues, and sending is tried again", self._collector
                )

    def close(self) -> None:
        """Stop sending."""
        self._task.cancel()


def _data(families: Iterable[Family[Told]], begun: int) -> MetricsData:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [metric for family in merged(families) for metric in _metrics(family, begun, time.time_ns())]
    scope = ScopeMetrics(InstrumentationScope("dragon"), metrics, "")
    return MetricsData([ResourceMetrics(Resource.create({"service.name": "dragon"}), [scope], "")])


def _metrics(family: Family[Told], begun: int, now: int) -> Iterator[Metric]:
    """Yield the metrics of a family. The samples of each suffix are a metric of their own."""
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    name = family.name.removesuffix("_total")
    unit = _UNITS.get(name.rpartition("_")[2], "")
    for suffix in dict.fromkeys(suffix for suffix, _, _ in family.samples):
        points = [NumberDataPoint(tags, begun, now, float(value)) for of, tags, value in family.samples if of == suffix]
        told = Gauge(points) if family.kind == Kind.GAUGE else Sum(points, AggregationTemporality.CUMULATIVE, True)
        yield Metric(name + suffix, family.meaning, "" if suffix == "_count" else unit, told)
