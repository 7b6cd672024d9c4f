"""What an agent responds to another one: a value, or the error that an operation raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from dragon.infrastructure.ddict_errors import DDictError

__all__ = ["Answer", "RemoteError", "error_of", "then", "value_of"]

# An answer: an encoded value, and a payload.
Answer = tuple[msgspec.Raw, Any]


def value_of(answer: Answer) -> msgspec.Raw:
    """Return the value of an answer, without its payload."""
    return answer[0]


def error_of(error: BaseException) -> tuple[str, str]:
    """Return an exception in the form that is sent: the name of its class (for a dictionary's, with its code), and its
    text."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        return f"OSError {error.errno}", error.strerror or ""
    if isinstance(error, DDictError):
        return f"{type(error).__name__} {error.lib_err.removeprefix('DRAGON_')}", error.text
    return error.kind if isinstance(error, RemoteError) else type(error).__name__, str(error)


def then(future: asyncio.Future[Any], change: Callable[[Any], Any]) -> asyncio.Future[Any]:
    """Return a future of what `change` makes of another future's result.

    If `change` returns a future, its result is used. Cancelling the returned future cancels the other one.
    """
    result = future.get_loop().create_future()
    awaited = future

    def done(source: asyncio.Future[Any]) -> None:
        nonlocal awaited
        error = None if source.cancelled() else source.exception()
        if result.done():
            return
        if source.cancelled():
            result.cancel()
        elif error is not None:
            result.set_exception(error)
        elif source is not future:
            result.set_result(source.result())
        else:
            try:
                changed = change(source.result())
            except Exception as failure:
                result.set_exception(failure)
                return
            if isinstance(changed, asyncio.Future):
                awaited = changed
                changed.add_done_callback(done)
            else:
                result.set_result(changed)

    def cancelled(target: asyncio.Future[Any]) -> None:
        if target.cancelled():
            awaited.cancel()

    future.add_done_callback(done)
    result.add_done_callback(cancelled)
    return result


class RemoteError(Exception):
    """An exception that an operation raised on another node."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
