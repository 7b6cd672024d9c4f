"""A page that shows a run live: its nodes, devices and processes, in any browser and without access to the Internet."""

from __future__ import annotations

import html as html_text
import math
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from dragon.infrastructure.metrics import METRICS, RunState
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import Ask
from dragon.runtime.protocol.run import NodeWaits, Waits
from dragon.runtime.protocol.telemetry import Kinds, Lifetimes, OutputOf, Query, StateOfRun, TasksBetween
from dragon.signals import name_of
from dragon.web.http import Handler, Request, Response

_SIGNALS = {number: name_of(number) for number in range(1, signal.NSIG)}
_ALONE = """<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
"""


def html(title: str = "dragon", data: object = None) -> str:
    static = files("dragon.web") / "static"

    def text(name: str) -> str:
        return (static / name).read_text()

    # In a script element, "<" may begin its end tag, or hide it.
    embedded = msgspec.json.encode(data).decode().replace("<", "\\u003c") if data is not None else ""
    return Template(text("page.html")).substitute(
        title=html_text.escape(title),
        style=text("uPlot/uPlot.min.css") + text("page.css"),
        charts=text("uPlot/uPlot.iife.min.js"),
        script="".join(
            text(f"{name}.js") for name in ("data", "charts", "processes", "overview", "tasks", "timeline", "page")
        ),
        data=embedded,
        policy=_ALONE if data is not None else "",
    )


# The page may load nothing from other servers, and send nothing to them.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
_MOST_TASKS = 5000  # at once; more could not be told apart in a picture


class Dashboard:
    """The page, and the data that it requests, for which it needs the token in its link."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._token = secrets.token_urlsafe(16)

    def link(self, address: str) -> str:
        """Return the link to the page, given the server's address. The browser does not send what follows "#"."""
        return f"{address}/#{self._token}"

    @property
    def routes(self) -> dict[str, Handler]:
        """The paths that the server is to answer, with their handlers."""
        guarded, ask = self._guarded, self._ask
        return {
            "/": self._page,
            "/run": guarded(self._run),
            "/query": guarded(self._query),
            # The processes that are alive, or have ended since a time.
            "/lifetimes": guarded(lambda given: ask(Lifetimes(_number(given, "since")))),
            "/waits": guarded(self._waits),
            # Tasks of pools and batches that ran in an interval, if there are very many a part of them.
            "/tasks": guarded(
                lambda given: ask(TasksBetween(_number(given, "start"), _number(given, "end"), _MOST_TASKS))
            ),
            "/output": guarded(lambda given: ask(OutputOf(int(_number(given, "puid"))))),  # its end
        }

    async def _page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
        return Response(html().encode(), "text/html; charset=utf-8", headers=headers)

    def _guarded(self, tell: Callable[[Mapping[str, str]], Awaitable[Any]]) -> Handler:
        async def answer(request: Request) -> Response:
            if not request.has_token(self._token):
                reason = b"open the dashboard by its full link: the token is missing or wrong\n"
                return Response(reason, status="401 Unauthorized")
            return Response(msgspec.json.encode(await tell(request.parameters)), "application/json")

        return answer

    async def _run(self, parameters: Mapping[str, str]) -> object:
        """Return what can be requested."""
        return about(await self._ask(StateOfRun()), time.time(), sorted({name for name, _ in await self._ask(Kinds())}))

    async def _query(self, parameters: Mapping[str, str]) -> object:
        """Return series of the named metrics since a time, with one value per interval of that many seconds."""
        start, interval = _number(parameters, "since"), _number(parameters, "interval")
        metrics = parameters.get("metrics", "").split(",")
        found = await self._ask(Query(metrics, {}, start, math.inf, interval, "last"))
        return {"now": time.time(), "records": found}

    async def _waits(self, parameters: Mapping[str, str]) -> object:
        """Return what processes wait for, by object."""
        return _each_once(await self._ask(Waits()))


def about(run: RunState, now: float, names: Sequence[str]) -> dict[str, Any]:
    """Return what the page shows of a run beside its values: the names are those of its metrics."""
    return {**msgspec.structs.asdict(run), "now": now, "names": names, "metrics": METRICS, "signals": _SIGNALS}


def _each_once(nodes: Sequence[NodeWaits]) -> list[NodeWaits]:
    """Keep a wait for another node's object only in that node's answer, which knows the holder, if there is one."""
    answered = {node.node for node in nodes}
    return [
        msgspec.structs.replace(
            node, objects=[one for one in node.objects if one.node == node.node or one.node not in answered]
        )
        for node in nodes
    ]


def _number(parameters: Mapping[str, str], name: str) -> float:
    try:
        number = float(parameters.get(name, "0"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name}={parameters[name]!r} is not a number of at least 0")
    return number
