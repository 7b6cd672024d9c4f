"""What a run serves while it runs, as its environment asks for: metrics for Prometheus, and the dashboard."""

from __future__ import annotations

import asyncio
import os
import sys

from dragon.infrastructure import parameters
from dragon.runtime.log import runtime_log
from dragon.web.ask import Ask
from dragon.web.http import Handler, serve

__all__ = ["is_wanted", "open_server"]

log = runtime_log("web")


def is_wanted() -> bool:
    """Whether there is anything to serve."""
    return bool(os.environ.get(parameters.TELEMETRY_PORT) or parameters.dashboard())


async def open_server(ask: Ask) -> asyncio.Server | None:
    """Serve what is wanted, and say where on stderr.

    A port that cannot be had is said in the log, and is no reason not to run.
    """
    routes: dict[str, Handler] = {}
    if os.environ.get(parameters.TELEMETRY_PORT):
        from dragon.web.prometheus import page

        routes["/metrics"] = page(ask)
    dashboard = None
    if parameters.dashboard():
        from dragon.web.dashboard import Dashboard

        dashboard = Dashboard(ask)
        routes |= dashboard.routes
    try:
        server = await serve(parameters.telemetry_port(), routes)
    except (OSError, ValueError) as error:
        log.warning("nothing is served: %s; try another --telemetry-port", error)
        return None
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if "/metrics" in routes:
        print(f"dragon: metrics are at {address}/metrics", file=sys.stderr, flush=True)
    if dashboard is not None:
        print(f"dragon: the dashboard is at {dashboard.link(address)}", file=sys.stderr, flush=True)
    return server
