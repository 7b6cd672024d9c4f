"""Serves a run's metrics and dashboard while it runs, as its environment requests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from dragon.infrastructure import variables
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Ask
from dragon.web.http import Handler, serve

log = runtime_log("web")


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
                from dragon.web.otlp import Export

                self._closers.append(Export(ask, collector).close)
            except ImportError as error:
                log.warning("metrics are not sent: %s; pip install 'dragon-runtime[otlp]'", error)

    async def open(self) -> None:
        """Serve what is requested, and print the addresses to stderr."""
        routes: dict[str, Handler] = {}
        lines = []
        if os.environ.get(variables.TELEMETRY_PORT):
            from dragon.web.prometheus import page

            routes["/metrics"] = page(self._ask)
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
        """Stop serving and exporting."""
        for close in self._closers:
            close()
