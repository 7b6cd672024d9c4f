"""Logs the unhandled errors of an event loop."""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import Any

from dragon.runtime.log import runtime_log

log = runtime_log("loop")

_TOLD_EVERY_S = 60.0  # seconds in which the same error is logged once
_OFTEN = 10  # occurrences in that time after which the loop pauses at each
_RETRY_S = 0.05  # seconds of such a pause


def tell_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log the errors of the loop, each kind once a minute, and pause the loop at an error that repeats quickly, for
    example of a callback that is called again at once. One error is logged at DEBUG level only: uvloop replies on a TLS
    connection that its peer has just reset. The user of the connection gets its end anyway."""
    errors = _Errors()
    loop.set_exception_handler(errors.tell)


class _Errors:
    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}  # when it was logged, and how often it occurred since then

    def tell(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, RuntimeError) and str(error).endswith("the handler is closed"):
            log.debug("%s: %s", context["message"], error)
            return
        kind, now = _kind(context["message"], error), time.monotonic()
        told, count = self._seen.get(kind, (-_TOLD_EVERY_S, 0))
        if now - told < _TOLD_EVERY_S:
            self._seen[kind] = told, count + 1
            if count >= _OFTEN:
                time.sleep(_RETRY_S)
            return
        if count:
            log.error("the following error occurred %d more times in the last %.0f s", count, now - told)
        self._seen = {key: value for key, value in self._seen.items() if now - value[0] < _TOLD_EVERY_S}
        self._seen[kind] = now, 0
        loop.default_exception_handler(context)


def _kind(message: str, error: BaseException | None) -> str:
    """Return an error's type and the line that raised it, which identify its kind."""
    last = traceback.extract_tb(error.__traceback__)[-1:] if error else []
    return f"{type(error).__name__} {last[0].filename}:{last[0].lineno}" if last else f"{message} {error!r}"
