"""The RPC of everything that controls a run: handlers beside what they act on, and sessions of requests and answers.

A message is a msgpack array whose first element, the tag, is the name of its class.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from dragon.infrastructure.ddict_errors import DDictError
from dragon.infrastructure.messages import decoder_of, encode
from dragon.infrastructure.structs import msgspec
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Caller, Request, tag_of

log = runtime_log("rpc")

_Answer = TypeVar("_Answer")
_Self = TypeVar("_Self")
_Fields = ParamSpec("_Fields")


class _Mark(Protocol[_Fields, _Answer]):
    """Marks the handler of a kind of request, which takes its fields and returns its answer."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[_Self, _Fields], Coroutine[Any, Any, _Answer]], /
    ) -> Callable[Concatenate[_Self, _Fields], Coroutine[Any, Any, _Answer]]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[_Self, _Fields], asyncio.Future[_Answer]], /
    ) -> Callable[Concatenate[_Self, _Fields], asyncio.Future[_Answer]]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[_Self, _Fields], _Answer], /
    ) -> Callable[Concatenate[_Self, _Fields], _Answer]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[_Self, _Fields], _Answer | asyncio.Future[_Answer]], /
    ) -> Callable[Concatenate[_Self, _Fields], _Answer | asyncio.Future[_Answer]]: ...


def serves(kind: Callable[_Fields, Request[_Answer]]) -> _Mark[_Fields, _Answer]:
    """Let a method of what Table.serve() gets handle a kind of request."""
    return cast(Any, partial(_mark, (kind, "")))  # type: ignore[no-any-return]


def serves_each(kind: Callable[Concatenate[Any, _Fields], Request[_Answer]]) -> _Mark[_Fields, _Answer]:
    """Let a method handle a kind of request that takes all fields but the first: by that Table.serve_each() finds the
    object, and Table.serve() has one object for all."""
    return cast(Any, partial(_mark, (kind, "each")))  # type: ignore[no-any-return]


def serves_for(kind: Callable[_Fields, Request[_Answer]]) -> _Mark[Concatenate[Caller, _Fields], _Answer]:
    """Let a method handle a kind of request, which takes the caller, then the fields."""
    return cast(Any, partial(_mark, (kind, "caller")))  # type: ignore[no-any-return]


def _mark(served: tuple[Callable[..., object], str], method: Callable[..., object]) -> object:
    method.served = served  # type: ignore[attr-defined]
    return method


class Table:
    """The handlers of requests."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, type[Request[object]]] = {}  # by the encoded tag
        # The method, its object (or the function that finds it), and how it takes the fields.
        self._handlers: dict[type[Request[object]], tuple[Callable[..., object], Any, str]] = {}

    def serve(self, *rooms: object) -> None:
        """Let the marked methods of these objects handle requests."""
        for room in rooms:
            self._add(type(room), room, "each")

    def serve_each(self, of: type, find: Callable[[Any], object]) -> None:
        """Let the marked methods of a class handle requests, each of the object that is found by the first field."""
        self._add(of, find, "found")

    def _add(self, of: type, room: object, each: str) -> None:
        for method in vars(of).values():
            kind, how = getattr(method, "served", (None, ""))
            if kind is not None:
                self._kinds[encode(tag_of(kind))] = kind
                self._handlers[kind] = method, room, each if how == "each" else how

    def decode(self, body: bytes | msgspec.Raw, barred: type | tuple[type, ...]) -> Request[object]:
        """Return a request from outside, which must not be of a `barred` kind. Raises ValueError."""
        # The first byte is the length of the array, the second the length of the tag, which is below 32.
        start = bytes(memoryview(body)[:33])
        kind = self._kinds.get(start[1 : 2 + start[1] % 32]) if len(start) > 1 else None
        if kind is None or issubclass(kind, barred):
            asked: object = msgspec.msgpack.decode(body)
            raise ValueError(f"the agent has no operation {asked[0] if isinstance(asked, list) and asked else asked!r}")
        try:
            request: Request[object] = _decoder(kind).decode(body)
            return request
        except msgspec.ValidationError as error:
            raise ValueError(f"{tag_of(kind)}: {error}") from None

    def do(self, request: Request[_Answer], caller: Caller) -> _Answer | asyncio.Future[_Answer]:
        """Return the answer, or a future of it. Raises what the handler raises, and ValueError if there is none."""
        handler = self._handlers.get(type(request))
        if handler is None:
            raise ValueError(f"the agent has no operation {tag_of(type(request))!r}")
        (method, room, how), fields = handler, msgspec.structs.astuple(request)
        match how:
            case "each":
                answer = method(room, *fields[1:])
            case "found":
                answer = method(room(fields[0]), *fields[1:])
            case "caller":
                answer = method(room, caller, *fields)
            case _:
                answer = method(room, *fields)
        return cast(_Answer, asyncio.ensure_future(answer) if type(answer) is CoroutineType else answer)


# A decoder of all kinds would take a tenth of an agent's start.
_decoder = functools.cache(decoder_of)


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """What a session says. The requests of one side are numbered, and answered in any order."""


if TYPE_CHECKING:
    Encoded = Any  # what is sent need not be encoded already
else:
    Encoded = msgspec.Raw


class Asked(Frame, frozen=True):
    """A request, encoded. If the number is 0, it is not answered."""

    number: int
    request: Encoded


class Answered(Frame, frozen=True):
    """The answer to a request, encoded, or the class and text of an error."""

    number: int
    value: Encoded = msgspec.Raw(b"\xc0")  # nil
    error: tuple[str, str] | None = None


class Cancelled(Frame, frozen=True):
    """The answer to a request is not needed any more."""

    number: int


# Raises msgspec.MsgspecError for anything else.
decode_frame: Callable[[bytes], Frame] = decoder_of(Asked | Answered | Cancelled).decode
_encode = msgspec.msgpack.Encoder().encode


def error_of(error: BaseException) -> tuple[str, str]:
    """Return the class (for a dictionary's error with its code, for the system's with its number) and the text."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        return f"OSError {error.errno}", error.strerror or ""
    if isinstance(error, DDictError):
        return f"{type(error).__name__} {error.lib_err.removeprefix('DRAGON_')}", error.text
    return error.kind if isinstance(error, RemoteError) else type(error).__name__, str(error)


class RemoteError(Exception):
    """An exception that a handler on the other side raised."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Session:
    """The requests and answers between this side and another one. `send` sends a message and returns the epoch of the
    connection; `serve` handles an encoded request: it returns the answer or a future of it, or raises."""

    def __init__(self, send: Callable[[bytes], int], serve: Callable[[msgspec.Raw], object]) -> None:
        self._send, self.serve = send, serve
        # Requests are numbered on over all epochs, so that late answers are not taken for those of others.
        self._asked = 0
        self._pending: dict[int, tuple[int, asyncio.Future[msgspec.Raw]]] = {}  # with the epoch
        self._serving: dict[int, tuple[int, asyncio.Future[Any]]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether neither side waits for an answer of the other."""
        return not (self._pending or self._serving)

    def end_epochs(self, before: float) -> list[asyncio.Future[msgspec.Raw]]:
        """Forget what was in flight in epochs before that one. Returns the futures of the answers that are lost."""
        for number in [number for number, (epoch, _) in self._serving.items() if epoch < before]:
            self._serving.pop(number)[1].cancel()
        lost = {number: future for number, (epoch, future) in self._pending.items() if epoch < before}
        for number in lost:
            del self._pending[number]
        return list(lost.values())

    def ask(self, request: Request[object], future: asyncio.Future[msgspec.Raw]) -> None:
        """Send a request. Its answer, encoded, becomes the result of the future."""
        self._asked = number = self._asked + 1
        self._pending[number] = self._send(_encode(Asked(number, request))), future
        future.add_done_callback(partial(self._asked_no_more, number))

    def _asked_no_more(self, number: int, future: asyncio.Future[msgspec.Raw]) -> None:
        if self._pending.pop(number, None) is not None and future.cancelled():
            self._send(_encode(Cancelled(number)))

    def receive(self, frame: Frame, epoch: int = 0) -> None:
        """Handle a request, an answer or a cancellation."""
        match frame:
            case Asked(number, request):
                try:
                    answer = self.serve(request)
                except Exception as error:
                    self._answer(number, None, error)
                    return
                if isinstance(answer, asyncio.Future):
                    if number:
                        self._serving[number] = epoch, answer
                    answer.add_done_callback(partial(self._served, number))
                else:
                    self._answer(number, answer, None)
            case Answered(number, value, failure):
                _, future = self._pending.pop(number, (0, None))
                if future is not None and not future.done():
                    if failure is not None:
                        future.set_exception(RemoteError(*failure))
                    else:
                        future.set_result(value)
            case Cancelled(number) if number in self._serving:
                self._serving[number][1].cancel()

    def _served(self, number: int, answer: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if not number or self._serving.pop(number, None) is not None:  # else nobody waits for it any more
            self._answer(number, None if error else answer.result(), error)

    def _answer(self, number: int, value: object, error: BaseException | None) -> None:
        if not number:
            if error is not None:
                log.debug("a request without an answer failed", exc_info=error)
            return
        try:
            self._send(_encode(Answered(number, value) if error is None else Answered(number, error=error_of(error))))
        except ValueError as failure:  # it is too large, or text is not UTF-8
            self._send(_encode(Answered(number, error=error_of(failure))))
