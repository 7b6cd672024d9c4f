"""Serves a run's metrics and dashboard, and sends the metrics to a collector, as its environment requests."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Full, Queue
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dragon.infrastructure import variables
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.metrics import Family, Kind, Line, Told, merged
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Ask
from dragon.runtime.protocol.telemetry import Families, Lines
from dragon.web.http import Handler, Request, Response, serve

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

log = runtime_log("web")

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus(ask: Ask) -> Handler:
    """Return a handler that answers with the metrics: to requests with the token if one is set, or else to this
    user's programs."""
    token = os.environ.get(variables.TELEMETRY_TOKEN) or None

    async def answer(request: Request) -> Response:
        if token is None and not request.is_trusted():
            why = f"another user's program must send a token, which {variables.TELEMETRY_TOKEN} sets for the run\n"
            return Response(why.encode(), status="403 Forbidden")
        if token is not None and not request.has_token(token):
            return Response(b"the bearer token is missing or wrong\n", status="401 Unauthorized")
        told = await ask(Lines())
        # In a thread: with hundreds of nodes it takes a tenth of a second.
        page = await asyncio.to_thread(lambda: "".join(map(_text, merged(told))).encode())
        return Response(page, _CONTENT_TYPE)

    return answer


def _text(family: Family[Line]) -> str:
    meaning = family.meaning.replace("\\", r"\\").replace("\n", r"\n")
    lines = {line.rpartition(" ")[0]: line for line in family.samples}  # the same name and labels must not occur twice
    head = f"# HELP {family.name} {meaning}\n# TYPE {family.name} {family.kind}"
    return "\n".join([head, *lines.values(), ""])


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


def are_wanted() -> bool:
    """Return whether anything is to be served or exported."""
    return bool(os.environ.get(variables.TELEMETRY_PORT) or variables.dashboard() or variables.otlp())


class Views:
    """The metrics for Prometheus, those for OpenTelemetry, and the dashboard: those that are requested."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._closers: list[Callable[[], None]] = []
        if collector := variables.otlp():
            try:
                self._closers.append(Export(ask, collector).close)
            except ImportError as error:
                log.warning("metrics are not sent: %s; pip install 'dragon-runtime[otlp]'", error)

    async def open(self) -> None:
        """Serve what is requested, and print the addresses to stderr."""
        routes: dict[str, Handler] = {}
        lines = []
        if os.environ.get(variables.TELEMETRY_PORT):
            routes["/metrics"] = prometheus(self._ask)
            lines.append("metrics are at {address}/metrics")
        if variables.dashboard():
            from dragon.web.dashboard import Dashboard

            dashboard = Dashboard(self._ask)
            routes |= dashboard.routes
            lines.append("the dashboard is at " + dashboard.link("{address}"))
        if not routes:
            return
        try:
            server = await serve(variables.telemetry_port(), routes)
        except (OSError, ValueError) as error:
            log.warning("nothing is served: %s; try another --telemetry-port", error)
            return
        self._closers.append(server.close)
        address = f"http://127.0.0.1:{server.port}"
        for line in lines:
            print("dragon: " + line.format(address=address), file=sys.stderr, flush=True)

    def close(self) -> None:
        for close in self._closers:
            close()
