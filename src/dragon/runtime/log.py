"""The log of the runtime, on stderr, with the unhandled errors of event loops; and warnings to users."""

from __future__ import annotations

import os
import sys
import time
import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any

from dragon.infrastructure import variables

if TYPE_CHECKING:
    import asyncio
    import logging


def runtime_log(name: str) -> logging.Logger:
    """Return the logger of one part of the runtime, with the level in DRAGON_LOG_LEVEL (default: WARNING)."""
    import logging  # processes that log nothing do not load it

    root = logging.getLogger("dragon")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("dragon %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
        root.setLevel(os.environ.get(variables.LOG_LEVEL, "WARNING"))
    return root.getChild(name)


class Once:
    """Logs each text once, whatever the values in it."""

    def __init__(self, log: logging.Logger, level: int = 30) -> None:  # logging.WARNING
        self._log = log
        self._level = level
        self._told: set[str] = set()

    def __call__(self, text: str, *values: object) -> None:
        if text not in self._told:
            self._told.add(text)
            self._log.log(self._level, "%s (this is logged once)", text.format(*values))


# What stands between the user's line and the runtime's.
_LIBRARIES = ("dragon.", "contextlib", "multiprocessing.", "concurrent.", "threading")
_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def warn_user(text: str) -> None:
    """Issue a RuntimeWarning at the line of the user's program that led here."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and (
        frame.f_globals.get("__name__", "").startswith(_LIBRARIES) or frame.f_code.co_filename.startswith(_PACKAGE)
    ):
        level, frame = level + 1, frame.f_back
    if frame is None:  # a thread or process of the runtime
        runtime_log("placement").warning("%s", text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=level)


_TOLD_EVERY_S = 60.0  # seconds in which the same error is logged once
_OFTEN = 10  # occurrences in that time after which the loop pauses at each
_RETRY_S = 0.05  # seconds of such a pause


def tell_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log the errors of the loop, each kind once a minute, and pause the loop at an error that repeats quickly, for
    example of a callback that is called again at once. One error is logged at DEBUG level only: uvloop replies on a TLS
    connection that its peer has just reset. The user of the connection gets its end anyway."""
    seen: dict[str, tuple[float, int]] = {}  # when an error was logged, and how often it occurred since then

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, log = context.get("exception"), runtime_log("loop")
        if isinstance(error, RuntimeError) and str(error).endswith("the handler is closed"):
            log.debug("%s: %s", context["message"], error)
            return
        kind, now = _kind(context["message"], error), time.monotonic()
        told, count = seen.get(kind, (-_TOLD_EVERY_S, 0))
        if now - told < _TOLD_EVERY_S:
            seen[kind] = told, count + 1
            if count >= _OFTEN:
                time.sleep(_RETRY_S)
            return
        if count:
            log.error("the following error occurred %d more times in the last %.0f s", count, now - told)
        for old in [each for each, (logged, _) in seen.items() if now - logged >= _TOLD_EVERY_S]:
            del seen[old]
        seen[kind] = now, 0
        loop.default_exception_handler(context)

    loop.set_exception_handler(tell)


def _kind(message: str, error: BaseException | None) -> str:
    """Return an error's type and the line that raised it, which identify its kind."""
    import traceback  # most processes log no error

    last = traceback.extract_tb(error.__traceback__)[-1:] if error else []
    return f"{type(error).__name__} {last[0].filename}:{last[0].lineno}" if last else f"{message} {error!r}"
