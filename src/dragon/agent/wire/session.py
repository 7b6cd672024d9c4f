"""The requests between this agent and another one, in both directions. The wire keeps their order, and sends them again
where a connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from dragon.agent.wire.frames import Asked, Cancelled, Failed, Frame, Value
from dragon.agent.wire.responses import Answer, RemoteError, error_of
from dragon.runtime.protocol.request import Request

__all__ = ["Serve", "Session"]

# (node, request, payload, respond) -> how to cancel. `respond` takes a value and a payload, or an error.
Serve = Callable[[int, Request[object], Any, Callable[..., None]], Callable[[], None] | None]


class Session:
    """The requests to and from one node. `send` sends it a frame and a payload, and returns the epoch in which; `serve`
    executes its requests."""

    def __init__(self, node: int, send: Callable[[Frame, Any], int], serve: Callable[[], Serve]) -> None:
        self._node = node
        self._send = send
        self._serve_with = serve
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
        future.add_done_callback(lambda done: self._asked_no_more(number, done))

    def _asked_no_more(self, number: int, future: asyncio.Future[Answer]) -> None:
        if self._pending.pop(number, None) is not None and future.cancelled():
            self._send(Cancelled(number), None)

    def hear(self, epoch: int, frame: Frame, payload: Any) -> None:
        """Handle a request, an answer or a cancellation."""
        match frame:
            case Asked(number, request):
                self._serve(epoch, number, request, payload)
            case Value(number, value):
                self._answered(number, (value, payload))
            case Failed(number, kind, text):
                self._answered(number, RemoteError(kind, text))
            case Cancelled(number):
                if number in self._serving:
                    self._serving[number][1]()
                    self._respond(number, None, b"", asyncio.CancelledError())

    def _serve(self, epoch: int, number: int, request: Request[object], payload: Any) -> None:
        cancel = self._serve_with()(self._node, request, payload, partial(self._respond, number))
        if cancel is not None:
            self._serving[number] = epoch, cancel

    def _respond(self, number: int, value: Any, payload: Any = b"", error: BaseException | None = None) -> None:
        self._serving.pop(number, None)
        if error is not None:
            self._send(Failed(number, *error_of(error)), None)
        else:
            self._send(Value(number, value), payload)

    def _answered(self, number: int, answer: Answer | RemoteError) -> None:
        _, future = self._pending.pop(number, (0, None))
        if future is None or future.done():
            return
        if isinstance(answer, RemoteError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
