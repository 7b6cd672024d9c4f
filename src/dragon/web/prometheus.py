"""The page that Prometheus reads: the newest values of all nodes in its text format 0.0.4."""

from __future__ import annotations

import asyncio
import hmac
import os

from dragon.infrastructure import variables
from dragon.infrastructure.metrics import Family, Line, merged
from dragon.runtime.protocol.request import Ask
from dragon.runtime.protocol.telemetry import Lines
from dragon.web.http import Handler, Request, Response

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def page(ask: Ask) -> Handler:
    """Return a handler that answers with the metrics: to requests with the token if one is set, or else to this
    user's programs."""
    token = os.environ.get(variables.TELEMETRY_TOKEN) or None

    async def answer(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if token is None and not request.is_trusted():
            why = f"another user's program must send a token, which {variables.TELEMETRY_TOKEN} sets for the run\n"
            return Response(why.encode(), status="403 Forbidden")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return Response(b"the bearer token is missing or wrong\n", status="401 Unauthorized")
        told = await ask(Lines())
        # In a thread: with hundreds of nodes it takes a tenth of a second.
        return Response(await asyncio.to_thread(_render, told), _CONTENT_TYPE)

    return answer


def _render(told: list[Family[Line]]) -> bytes:
    """Return the families of all nodes as one page, on which each metric occurs once."""
    return "".join(map(_text, merged(told))).encode()


def _text(family: Family[Line]) -> str:
    meaning = family.meaning.replace("\\", r"\\").replace("\n", r"\n")
    lines = {line.rpartition(" ")[0]: line for line in family.samples}  # the same name and labels must not occur twice
    head = f"# HELP {family.name} {meaning}\n# TYPE {family.name} {family.kind}"
    return "\n".join([head, *lines.values(), ""])
