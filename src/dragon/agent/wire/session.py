"""The requests between this agent and another one, in both directions. The wire keeps their order, and sends them again
where a connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from types import CoroutineType
from typing import Any, Protocol, TypeVar, cast

import msgspec

from dragon import _core
from dragon.agent.wire.frames import Asked, Cancelled, Failed, Frame, Value
from dragon.infrastructure.ddict_errors import DDictError
from dragon.infrastructure.messages import encode
from dragon.runtime.protocol.request import Caller, Handler, Request, tag_of

__all__ = ["Answer", "RemoteError", "Serve", "Session", "Table", "error_of", "then", "value_of"]


_Answer = TypeVar("_Answer")


class Table:
    """The handlers, by the kind of request that each answers."""

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self._handlers: dict[type[Request[object]], Handler] = {}
        self.serve(handlers)

    def serve(self, handlers: Iterable[Handler]) -> None:
        """Let these handlers answer the requests of their kinds."""
        self._handlers.update((handler.kind, handler) for handler in handlers)

    def do(self, request: Request[_Answer], caller: Caller) -> _Answer | asyncio.Future[_Answer]:
        """Return the answer, or a future of it. Raises what the handler raises, and ValueError if there is no
        handler."""
        handler = self._handlers.get(type(request))
        if handler is None:
            raise ValueError(f"the agent knows no operation {tag_of(type(request))!r}")
        answer: Any = handler.do(request, caller) if handler.for_caller else handler.do(request)
        return cast(_Answer, asyncio.ensure_future(answer) if type(answer) is CoroutineType else answer)


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


# (node, request, payload, respond) -> how to cancel. `respond` takes a value and a payload, or an error.
Serve = Callable[[int, Request[object], Any, Callable[..., None]], Callable[[], None] | None]


class _Links(Protocol):
    wire: _core.Wire
    serve: Serve


class Session:
    """The requests to and from one node."""

    def __init__(self, links: _Links, node: int) -> None:
        self._links, self._node = links, node
        # Requests are numbered on over all epochs, so that late answers are not taken for those of others.
        self._asked = 0
        self._pending: dict[int, tuple[int, asyncio.Future[Answer]]] = {}  # with the epoch
        self._serving: dict[int, tuple[int, Callable[[], None]]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether neither side waits for an answer of the other."""
        return not (self._pending or self._serving)

    def end_epochs(self, before: float) -> list[asyncio.Future[Answer]]:
        """Forget what was in flight in epochs before that one. Returns the futures of the requests whose answers are
        lost."""
        for number in [number for number, (epoch, _) in self._serving.items() if epoch < before]:
            self._serving.pop(number)[1]()
        lost = {number: future for number, (epoch, future) in self._pending.items() if epoch < before}
        for number in lost:
            del self._pending[number]
        return list(lost.values())

    def ask(self, request: Request[object], payload: Any, future: asyncio.Future[Answer]) -> None:
        """Send a request. Its answer becomes the result of the future, unless that is done."""
        if future.done():
            return
        self._asked = number = self._asked + 1
        self._pending[number] = self._send(Asked(number, request), payload), future
        future.add_done_callback(partial(self._asked_no_more, number))

    def _asked_no_more(self, number: int, future: asyncio.Future[Answer]) -> None:
        if self._pending.pop(number, None) is not None and future.cancelled():
            self._send(Cancelled(number), None)

    def hear(self, epoch: int, frame: Frame, payload: Any) -> None:
        """Handle a request, an answer or a cancellation."""
        match frame:
            case Asked(number, request):
                cancel = self._links.serve(self._node, request, payload, partial(self._respond, number))
                if cancel is not None:
                    self._serving[number] = epoch, cancel
            case Value(number, value):
                _, future = self._pending.pop(number, (0, None))
                if future is not None and not future.done():
                    future.set_result((value, payload))
            case Failed(number, kind, text):
                _, future = self._pending.pop(number, (0, None))
                if future is not None and not future.done():
                    future.set_exception(RemoteError(kind, text))
            case Cancelled(number):
                if number in self._serving:
                    self._serving[number][1]()
                    self._respond(number, None, b"", asyncio.CancelledError())

    def _send(self, frame: Frame, payload: Any) -> int:
        """Send a frame and a payload. Returns the epoch in which."""
        return self._links.wire.send(self._node, encode(frame), payload, False)

    def _respond(self, number: int, value: Any, payload: Any = b"", error: BaseException | None = None) -> None:
        self._serving.pop(number, None)
        if error is not None:
            self._send(Failed(number, *error_of(error)), None)
        else:
            self._send(Value(number, value), payload)
