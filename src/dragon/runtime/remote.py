"""Handles of objects on other nodes: each operation is a request to this node's agent, which forwards it to the
owner's."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from dragon import _core
from dragon.infrastructure.errors import DestroyedError, NodeLostError, RunEndedError
from dragon.infrastructure.messages import Name
from dragon.runtime.agent_client import Unwanted, ask, error_named
from dragon.runtime.copies import refresh, write_back
from dragon.runtime.lacking import warn_user
from dragon.runtime.protocol.objects import OpenOutbox, OpenProxy, Operate, Operation, WhyGone
from dragon.runtime.serialization import to_another_node

__all__ = ["REMOTE", "RemoteWords", "from_parts", "node_of", "to_parts"]


_Got = TypeVar("_Got")
_OF_COPIES = {"read", "write"}
_MOST_PARTS = 10_000  # that are written at once
_ANSWER_S = 0.3  # seconds that an agent has for its answer that a time-out has passed
_OUTBOX_WAIT_S = 0.1  # seconds between checks whether a channel has room for which its outbox has none
# What ends when another process has done something, whose changes of shared memory are then to be seen.
_RECEIVING = {"acquire", "get", "wait", "_join", "_sleep"}


def node_of(name: Name) -> int:
    """Return the index of the node that holds the object of that name."""
    return name[2] >> 8


# The objects of handles that the garbage collector removed, and their outboxes. It may run during a request, so the
# objects are released with the next one.
_released: deque[Name] = deque()


class _Remote:
    """The common part of all handles of remote objects. Comes before the class of local handles among the bases."""

    _kind: ClassVar[str]
    _remote_name: Name
    _remote_closed = True
    _dropped: ClassVar[deque[Name]] = _released  # still available when the interpreter has cleared the module

    def _open(self, name: Name) -> None:
        self._remote_name = name
        self._call("_attach")
        self._remote_closed = False

    def _call(self, method: str, *given: Any, payload: bytes = b"") -> Any:
        """Call a method of the object and return its result. Raises what it raises, NodeLostError if its node
        is lost."""
        return self._wait(method, *given, payload=payload)[1]

    def _wait(
        self,
        method: str,
        *given: Any,
        timeout: float | None = 0,
        payload: bytes = b"",
        ticket: int = 0,
        doing: Name | None = None,
        index: int = 0,
        inbox: Name | None = None,
        outgoing: Name | None = None,
        late: Callable[[tuple[bool, Any]], object] | None = None,
    ) -> tuple[bool, Any]:
        """Call a method of the object. Returns whether it succeeded within `timeout` seconds, and its result; see
        Operate. `late` undoes a call that succeeded although an exception interrupted it."""
        if method not in _OF_COPIES:
            write_back()
        thread = _core.thread_id()
        operation = Operation(self._remote_name, self._kind, method, given, timeout, thread, ticket, doing, index)
        released = [_released.popleft() for _ in range(len(_released))]
        try:
            request = Operate(operation, payload, released, inbox, outgoing)
            deadline = None
            if timeout or (timeout == 0 and method in _RECEIVING):
                deadline = time.monotonic() + max(timeout + _ANSWER_S, 1.0)
            answer: tuple[bool, Any] = ask(request, (), self._is_open if timeout != 0 else None, late, deadline)
        except Unwanted:
            if not self._is_open():
                raise (EOFError if method == "get" else ValueError)("another thread closed this handle") from None
            if method == "put":  # which nobody undoes if it is done later
                raise TimeoutError(
                    f"node {node_of(self._remote_name)} did not answer a put() in {timeout} s, and may do it later: "
                    "look at the agents in `dragon doctor`; put the message again only if it may come twice"
                ) from None
            return False, None  # an agent does not answer
        if (method in _RECEIVING and answer[0]) or (method == "is_set" and answer[1]):
            refresh()
        return answer

    def _is_open(self) -> bool:
        return not self._remote_closed

    def _checked_wait(self, method: str, *given: Any, timeout: float | None) -> bool:
        self._check_open()
        return self._wait(method, *given, timeout=timeout)[0]

    def _check_open(self) -> None:
        if self._remote_closed:
            raise ValueError("this handle is closed")

    def _name(self) -> Name:
        return self._remote_name

    def _send(self) -> None:
        self._call("_send")

    def _destroy(self) -> None:
        self._call("_destroy")

    @property
    def _closed(self) -> bool:
        return self._remote_closed

    def _close(self) -> None:
        if not self._remote_closed:
            self._remote_closed = True
            self._drop_channels()
            self._call("_release")

    def _drop_channels(self) -> None:
        """Release the channels of this node that serve this handle."""

    def __del__(self) -> None:
        if not self._remote_closed:
            self._drop_channels()
            self._dropped.append(self._remote_name)


def _limit(block: bool, timeout: float | None) -> float | None:
    return max(timeout, 0) if block and timeout is not None else None if block else 0


_scratch = threading.local()


@contextmanager
def _own_channel() -> Iterator[_core.Channel]:
    """Lend an empty channel, with which objects are converted to messages and back, to this thread.

    It is not lent twice at a time, as pickling and the garbage collector may run code that needs one, and not again if
    an exception ends the block, as a message may be left in it.
    """
    if getattr(_scratch, "pid", 0) != os.getpid():
        _scratch.free, _scratch.pid = [], os.getpid()
    free: list[_core.Channel] = _scratch.free
    channel = free.pop() if free else _core.Channel()
    yield channel
    free.append(channel)


def to_parts(obj: Any) -> tuple[int, Any]:
    """Convert an object to a message. Returns the kind of message and its bytes."""
    with _own_channel() as channel, to_another_node():
        channel.put(obj)
        return channel._get_parts(0)


def from_parts(kind: int, data: Any) -> Any:
    """Return the object of a message."""
    with _own_channel() as channel:
        channel._put_parts(kind, data, 0)
        return channel.get()


class RemoteChannel(_Remote):
    _kind = "Channel"

    _out: _core.Channel | None = None
    _proxy: _core.Channel | None = None
    _bounded: bool | None = None
    _droppable = False  # see OpenFlow

    def put(
        self,
        obj: Any,
        block: bool = True,
        timeout: float | None = None,
        stream_channel: Any = None,
        flush: bool = False,
    ) -> None:
        self._check_open()
        write_back()
        limit = patience = _limit(block, timeout)
        while (outbox := self._outbox()) is not None:
            try:
                with to_another_node():
                    outbox.put(obj, True, patience)
                return
            except queue.Full:
                if self._full():
                    raise
                patience = _OUTBOX_WAIT_S  # the channel has room, the outbox will have some soon
            except _core.DestroyedError:
                if not self._accepts_again(outbox):
                    break
        self._put_message(*to_parts(obj), limit)

    def _is_held_up(self) -> bool:
        """Return whether a put would wait until earlier messages are sent."""
        outbox = self._outbox()
        try:
            return outbox is not None and outbox._full()
        except _core.DestroyedError:
            return False  # the put finds out why

    def _outbox(self) -> _core.Channel | None:
        """Return the local channel whose messages are forwarded without a reply; None if there is none.

        A bounded channel has none, because a put may have to wait; nor is there one if the connection has just broken.
        """
        if self._out is None and self._bounded is not True:
            if self._bounded is None:
                self._bounded = self._capacity() > 0
            if not self._bounded:
                name = ask(OpenOutbox(self._remote_name, self._droppable))
                try:
                    self._out = _core.Channel(name)
                except _core.DestroyedError:
                    return None
        return self._out

    def _drop_channels(self) -> None:
        self._dropped.extend(channel._name() for channel in (self._out, self._proxy) if channel is not None)
        self._proxy = None  # with its descriptor

    def put_nowait(self, obj: Any, stream_channel: Any = None, flush: bool = False) -> None:
        self.put(obj, False)

    def get(self, block: bool = True, timeout: float | None = None, stream_channel: Any = None) -> Any:
        return self._received(_limit(block, timeout), _core.Channel.get)

    def get_nowait(self, stream_channel: Any = None) -> Any:
        return self.get(False)

    def _put_task(self, task: Any, ticket: int) -> None:
        self._check_open()
        self._put_message(*to_parts(task), None, ticket)

    def _get_task(self, doing: RemoteWords, index: int) -> Any:
        return self._received(None, _core.Channel.get, doing._name(), index)

    def _put_message(self, kind: int, data: Any, timeout: float | None, ticket: int = 0) -> None:
        if isinstance(data, _core.Loan):
            done = self._put_large(kind, data, timeout, ticket)
        else:
            done = self._wait("put", kind, timeout=timeout, payload=bytes(data), ticket=ticket)[0]
        if not done:
            raise queue.Full

    def _put_large(
        self, kind: int, data: _core.Loan, timeout: float | None, ticket: int = 0, method: str = "put"
    ) -> bool:
        """Put a large message without a copy: the agent takes it out of a channel of this thread."""
        with _own_channel() as channel:
            channel._put_loan(kind, data)
            try:
                return self._wait(method, timeout=timeout, outgoing=channel._name(), ticket=ticket)[0]
            finally:
                if channel._size():
                    channel._get_parts(0)  # the agent did not take it

    def _accepts_again(self, outbox: _core.Channel) -> bool:
        """Return whether an outbox that has refused a message accepts it by now; drop one that was destroyed.

        Raises the error for which it refuses messages, or by which earlier ones were lost, if any.
        """
        try:
            outbox._size()
            exists = True
        except _core.DestroyedError:
            self._out = None
            exists = False
        kind, text = ask(WhyGone(outbox._name()))
        if kind:
            raise error_named(kind, text) from None
        return exists

    def _received(
        self, timeout: float | None, take: Callable[[_core.Channel], _Got], doing: Name | None = None, index: int = 0
    ) -> _Got:
        """Wait for the next message, and return what `take` gets out of a channel with it. Raises queue.Empty."""
        self._check_open()

        def put_back(answer: tuple[bool, Any]) -> None:
            if doing is None and answer[0] and answer[1] is not None:
                self._put_back(*answer[1])

        with _own_channel() as inbox:
            try:
                done, message = self._wait(
                    "get", timeout=timeout, inbox=inbox._name(), doing=doing, index=index, late=put_back
                )
            except BaseException:
                if doing is None and inbox._size():  # a large message, which is not sent with the reply
                    self._put_back(*inbox._get_parts(0))
                raise
            if done or inbox._size():  # a large message has come, though not the answer
                if message is not None:
                    kind, data = message
                    inbox._put_parts(kind, data, 0)
                return take(inbox)
        raise queue.Empty

    def _put_back(self, kind: int, data: Any) -> None:
        """Put a message back, before the others, that was taken for a get() that an exception interrupted."""
        with suppress(DestroyedError, NodeLostError, RunEndedError):  # then nobody can get it
            if isinstance(data, _core.Loan):
                self._put_large(kind, data, 0, method="_put_back")
            else:
                self._wait("_put_back", kind, payload=bytes(data))

    def _put_bytes(self, buffer: Any, start: int, size: int) -> None:
        self._check_open()
        write_back()
        while (outbox := self._outbox()) is not None:
            try:
                outbox._put_bytes(buffer, start, size)
                return
            except _core.DestroyedError:
                if not self._accepts_again(outbox):
                    break
        with _own_channel() as channel:
            channel._put_bytes(buffer, start, size)
            kind, data = channel._get_parts(0)
        self._put_message(kind, data, None)

    def _get_bytes(self, timeout: float | None) -> bytes:
        return self._received(timeout, lambda inbox: inbox._get_bytes(0))

    def _wait_readable(self, timeout: float | None) -> bool:
        return self._checked_wait("_wait_readable", timeout=timeout)

    def _fileno(self) -> int:
        self._check_open()
        if self._proxy is not None:
            with suppress(_core.DestroyedError):  # this process was forked from one that has closed its handle
                return self._proxy._fileno()
        self._proxy = _core.Channel(ask(OpenProxy(self._remote_name)))
        return self._proxy._fileno()

    def _join(self, timeout: float | None) -> bool:
        return self._checked_wait("_join", timeout=timeout)

    def _size(self) -> int:
        self._check_open()
        return int(self._call("_size"))

    def _capacity(self) -> int:
        return int(self._call("_capacity"))

    def _full(self) -> bool:
        self._check_open()
        return bool(self._call("_full"))

    def _task_done(self) -> bool:
        return bool(self._call("_task_done"))


class _RemoteAcquired(_Remote):
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        self._check_open()
        done, warned = self._wait(
            "acquire", timeout=_limit(block, timeout), late=lambda answer: self._call("release") if answer[0] else None
        )
        for text in warned or ():
            warn_user(text)
        return done

    def __enter__(self) -> bool:
        return self.acquire()

    def release(self, n: int = 1) -> None:
        self._check_open()
        self._call("release", *([n] if n != 1 else []))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class RemoteLock(_RemoteAcquired):
    _kind = "Lock"

    def _is_mine(self) -> bool:
        return bool(self._call("_is_mine"))

    def _count(self) -> int:
        return int(self._call("_count"))

    def _recursive(self) -> bool:
        return bool(self._call("_recursive"))

    def _owner_pid(self) -> int:
        return int(self._call("_owner_pid"))


class RemoteSemaphore(_RemoteAcquired):
    _kind = "Semaphore"
    _acquire = _RemoteAcquired.acquire

    def _value(self) -> int:
        return int(self._call("_value"))


class RemoteEvent(_Remote):
    _kind = "Event"

    def set(self) -> None:
        self._call("set")

    def clear(self) -> None:
        self._call("clear")

    def is_set(self) -> bool:
        return bool(self._call("is_set"))

    def wait(self, timeout: float | None = None) -> bool:
        return self._checked_wait("wait", timeout=_limit(True, timeout))


class RemoteCondition(_Remote):
    _kind = "Condition"

    def _enter(self) -> int:
        return int(self._call("_enter"))

    def _sleep(self, waiter: int, timeout: float | None) -> bool:
        return self._checked_wait("_sleep", waiter, timeout=_limit(True, timeout))

    def _leave(self, waiter: int) -> bool:
        return bool(self._call("_leave", waiter))

    def _notify(self, n: int) -> int:
        return int(self._call("_notify", n))


class RemoteWords(_Remote):
    """Words on another node."""

    _kind = "Words"

    def __len__(self) -> int:
        return int(self._call("__len__"))

    def __getitem__(self, i: int) -> int:
        return int(self._call("__getitem__", i))

    def __setitem__(self, i: int, value: int) -> None:
        self._call("__setitem__", i, value)

    def add(self, i: int, value: int) -> int:
        """Add to word `i` and return its value before."""
        return int(self._call("add", i, value))

    def swap_if(self, i: int, expected: int, value: int) -> bool:
        """Set word `i` to `value` if it is `expected`. Returns whether it was."""
        return bool(self._call("swap_if", i, expected, value))

    def wait(self, i: int, value: int, timeout: float | None = None) -> bool:
        """Wait until word `i` is no longer `value`. Returns False after `timeout` seconds."""
        return self._checked_wait("wait", i, value, timeout=_limit(True, timeout))

    def _read(self, start: int, size: int) -> bytes:
        """Return the current bytes."""
        return bytes(self._call("read", start, size))

    def _write(self, start: int, data: bytes) -> None:
        """Write bytes from `start` on."""
        self._write_parts([(start, data)])

    def _write_parts(self, parts: list[tuple[int, bytes]]) -> None:
        """Write bytes from the start of each part on."""
        for first in range(0, len(parts), _MOST_PARTS):
            starts, datas = zip(*parts[first : first + _MOST_PARTS], strict=True)
            self._call("write", starts, [len(data) for data in datas], payload=b"".join(datas))


REMOTE: dict[type, type[_Remote]] = {
    _core.Channel: RemoteChannel,
    _core.Lock: RemoteLock,
    _core.Semaphore: RemoteSemaphore,
    _core.Event: RemoteEvent,
    _core.Condition: RemoteCondition,
    _core.Words: RemoteWords,
}
