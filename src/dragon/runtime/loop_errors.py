"""What an event loop reports of itself."""

from __future__ import annotations

import asyncio
from typing import Any

from dragon.runtime.log import runtime_log

__all__ = ["tell_loop_errors"]

log = runtime_log("loop")


def tell_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop tell of its errors, but of one: uvloop answers on a TLS connection that its peer has just reset.

    Whoever uses the connection is told of its end anyway.
    """
    loop.set_exception_handler(_tell)


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, RuntimeError) and str(error).endswith("the handler is closed"):
        log.debug("%s: %s", context["message"], error)
    else:
        loop.default_exception_handler(context)
