"""Handles of objects on other nodes: each operation is put on the desk of this node's agent, whose wire has the owner's
perform it."""

from __future__ import annotations

import queue
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dragon import _core
from dragon.runtime.copies import refresh, viewed, write_back
from dragon.runtime.log import warn_user
from dragon.runtime.serialization import to_another_node

if TYPE_CHECKING:
    from dragon.infrastructure.start_request import Name

T = TypeVar("T")
KINDS = {"Channel": 2, "Lock": 3, "Semaphore": 4, "Event": 5, "Condition": 6, "Words": 7}  # of the core
_MOST_PARTS = 10_000  # that are written at once
_ANSWER_S = 0.3  # seconds that an agent has for its answer that a time-out has passed
_OUTBOX_WAIT_S = 0.1  # seconds between checks whether a channel has room for which its outbox has none
_DONE, _NO_ANSWER = 1, 2  # states of an operation; see operate()
_PIECE = struct.Struct("=QQ")
_OPERATIONS = _core.OPERATIONS
_NOTHING: Name = (0, 0, 0)


def node_of(name: Name) -> int:
    """Return the index of the node that holds the object of that name."""
    return name[2] >> 8


# The objects of handles that the garbage collector removed, and their outboxes. It may run during a request, so the
# objects are released with the next one.
_released: deque[tuple[str, Name]] = deque()


def _release_dropped() -> None:
    while _released:
        try:
            kind, name = _released.popleft()
        except IndexError:  # another thread took the last one
            return
        _core.tell(_OPERATIONS["detach"], KINDS[kind], name)


class _Remote:
    """The common part of all handles of remote objects. Comes before the class of local handles among the bases."""

    _kind: ClassVar[str]
    _remote_name: Name
    _remote_closed = True
    _dropped: ClassVar[deque[tuple[str, Name]]] = (
        _released  # still available when the interpreter has cleared the module
    )

    def _open(self, name: Name) -> None:
        self._remote_name = name
        self._call("attach")
        self._remote_closed = False

    def _call(self, method: str, *given: int, payload: bytes = b"") -> Any:
        """Call a method of the object and return its result."""
        if viewed:
            write_back()
        if _released:
            _release_dropped()
        what = _OPERATIONS.get(f"{self._kind}.{method}") or _OPERATIONS[method]
        return _core.operate(what, self._remote_name, given, payload or None, kind=KINDS[self._kind])[1]

    def _wait(self, method: str, *given: int, timeout: float | None, **more: Any) -> tuple[bool, Any]:
        """Call a method of the object that waits."""
        if self._remote_closed:
            raise ValueError("this handle is closed")
        if viewed:
            write_back()
        if _released:
            _release_dropped()
        what = _OPERATIONS[f"{self._kind}.{method}"]
        limit = None if timeout is None else max(timeout + _ANSWER_S, 1.0)
        state, value = _core.operate(
            what, self._remote_name, given, timeout=timeout, limit=limit, handle=self if timeout != 0 else None, **more
        )
        if state == _DONE:
            if viewed and method != "put":
                refresh()
            return True, value
        if state > _NO_ANSWER:
            raise (EOFError if method == "get" else ValueError)("another thread closed this handle")
        if state == _NO_ANSWER and method == "put":  # which nobody undoes if it is done later
            raise TimeoutError(
                f"node {node_of(self._remote_name)} did not answer a put() in {timeout} s, and may do it later: "
                "look at the agents in `dragon doctor`; put the message again only if it may come twice"
            )
        return False, None

    def _check_open(self) -> None:
        if self._remote_closed:
            raise ValueError("this handle is closed")

    def _name(self) -> Name:
        return self._remote_name

    def _send(self) -> None:
        self._call("send")

    def _destroy(self) -> None:
        self._call("destroy")

    @property
    def _closed(self) -> bool:
        return self._remote_closed

    def _close(self) -> None:
        if not self._remote_closed:
            self._remote_closed = True
            self._drop_channels()
            self._call("detach")

    def _drop_channels(self) -> None:
        """Release the channels of this node that serve this handle."""

    def __del__(self) -> None:
        if not self._remote_closed:
            self._drop_channels()
            self._dropped.append((self._kind, self._remote_name))


def _asking(kind: Callable[[Any], T], method: str) -> Callable[..., T]:
    """Return a method that calls `method` of the object and returns its result as that kind."""

    def ask(self: _Remote, *given: int) -> T:
        return kind(self._call(method, *given))

    return ask


def _limit(block: bool, timeout: float | None) -> float | None:
    return max(timeout, 0) if block and timeout is not None else None if block else 0


# These are the same on every node, so that nothing about the other one is needed to put them.
_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})


def to_parts(obj: object) -> tuple[int, Any]:
    """Convert an object to a message. Returns the kind of message and its bytes."""
    if type(obj) in _PLAIN:
        return _core.parts_of(obj)
    with to_another_node():
        return _core.parts_of(obj)


class RemoteChannel(_Remote):
    _kind = "Channel"

    _out: _core.Channel | None = None
    _proxy: _core.Channel | None = None
    _bounded: bool | None = None
    _droppable = False  # see Wire.open_outbox()

    def put(
        self,
        obj: object,
        block: bool = True,
        timeout: float | None = None,
        stream_channel: object = None,
        flush: bool = False,
    ) -> None:
        if self._remote_closed:
            raise ValueError("this handle is closed")
        limit = patience = None if block and timeout is None else _limit(block, timeout)
        if self._bounded:
            return self._put_message(*to_parts(obj), limit)
        if viewed:
            write_back()
        while (outbox := self._out or self._outbox()) is not None:
            try:
                if type(obj) in _PLAIN:
                    outbox.put(obj, True, patience)
                    return
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
        """Return the local channel whose messages are forwarded without a reply; None if there is none. A bounded
        channel has none, because a put may have to wait; nor is there one if the connection has just broken."""
        if self._out is None and self._bounded is not True:
            if self._bounded is None:
                self._bounded = self._capacity() > 0
            if not self._bounded:
                from dragon.runtime.agent_client import ask  # not imported before: many processes do not need these
                from dragon.runtime.protocol.objects import OpenOutbox

                name = ask(OpenOutbox(self._remote_name, self._droppable))
                try:
                    self._out = _core.Channel(name)
                except _core.DestroyedError:
                    return None
        return self._out

    def _drop_channels(self) -> None:
        for channel in (self._out, self._proxy):
            if channel is not None:
                self._dropped.append((self._kind, channel._name()))
        self._proxy = None  # with its descriptor

    def put_nowait(self, obj: object, stream_channel: object = None, flush: bool = False) -> None:
        self.put(obj, False)

    def get(self, block: bool = True, timeout: float | None = None, stream_channel: object = None) -> object:
        return self._received(_limit(block, timeout))

    def get_nowait(self, stream_channel: object = None) -> object:
        return self.get(False)

    def _put_task(self, task: object, ticket: int) -> None:
        self._put_message(*to_parts(task), None, ticket)

    def _get_task(self, doing: RemoteWords, index: int) -> object:
        return self._received(None, index, words=doing._name())

    def _put_message(self, kind: int, data: object, timeout: float | None, ticket: int = 0) -> None:
        if not self._wait("put", kind, timeout=timeout, payload=data, ticket=ticket)[0]:
            raise queue.Full

    def _accepts_again(self, outbox: _core.Channel) -> bool:
        """Return whether an outbox that has refused a message accepts it by now; drop one that was destroyed."""
        try:
            outbox._size()
            exists = True
        except _core.DestroyedError:
            self._out = None
            exists = False
        from dragon.runtime.agent_client import ask, error_named
        from dragon.runtime.protocol.objects import WhyGone

        kind, text = ask(WhyGone(outbox._name()))
        if kind:
            raise error_named(kind, text) from None
        return exists

    def _received(self, timeout: float | None, *given: int, **more: object) -> Any:
        done, received = self._wait("get", *given, timeout=timeout, **more)
        if not done:
            raise queue.Empty
        return received

    def _put_bytes(self, buffer: bytes | bytearray | memoryview, start: int, size: int) -> None:
        self._check_open()
        if viewed:
            write_back()
        while (outbox := self._outbox()) is not None:
            try:
                outbox._put_bytes(buffer, start, size)
                return
            except _core.DestroyedError:
                if not self._accepts_again(outbox):
                    break
        channel = _core.Channel()
        channel._put_bytes(buffer, start, size)
        self._put_message(*channel._get_parts(0), None)

    def _get_bytes(self, timeout: float | None) -> bytes:
        received: bytes = self._received(timeout, as_bytes=True)
        return received

    def _wait_readable(self, timeout: float | None) -> bool:
        return self._wait("wait_readable", timeout=timeout)[0]

    def _fileno(self) -> int:
        self._check_open()
        if self._proxy is not None:
            with suppress(_core.DestroyedError):  # this process was forked from one that has closed its handle
                return self._proxy._fileno()
        from dragon.runtime.agent_client import ask
        from dragon.runtime.protocol.objects import OpenProxy

        self._proxy = _core.Channel(ask(OpenProxy(self._remote_name)))
        return self._proxy._fileno()

    def _join(self, timeout: float | None) -> bool:
        return self._wait("join", timeout=timeout)[0]

    def _size(self) -> int:
        self._check_open()
        return int(self._call("size"))

    _capacity, _task_done = _asking(int, "capacity"), _asking(bool, "task_done")

    def _full(self) -> bool:
        self._check_open()
        return bool(self._call("full"))


class _RemoteAcquired(_Remote):
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        done, recovered = self._wait("acquire", timeout=_limit(block, timeout))
        if recovered:
            warn_user(f"the {self._kind.lower()} was held by a process that died; it is recovered")
        return done

    def __enter__(self) -> bool:
        return self.acquire()

    def release(self, n: int = 1) -> None:
        self._check_open()
        self._call("release", n)

    def __exit__(self, *raised: object) -> None:
        self.release()


class RemoteLock(_RemoteAcquired):
    _kind = "Lock"

    _is_mine, _recursive = _asking(bool, "is_mine"), _asking(bool, "recursive")
    _count, _owner_pid = _asking(int, "count"), _asking(int, "owner")


class RemoteSemaphore(_RemoteAcquired):
    _kind = "Semaphore"
    _acquire = _RemoteAcquired.acquire

    _value = _asking(int, "value")


class RemoteEvent(_Remote):
    _kind = "Event"

    def set(self) -> None:
        self._call("set")

    def clear(self) -> None:
        self._call("clear")

    def is_set(self) -> bool:
        is_set = bool(self._call("is_set"))
        if is_set and viewed:
            refresh()
        return is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._wait("wait", timeout=_limit(True, timeout))[0]


class RemoteCondition(_Remote):
    _kind = "Condition"

    _enter, _leave, _notify = _asking(int, "enter"), _asking(bool, "leave"), _asking(int, "notify")

    def _sleep(self, waiter: int, timeout: float | None) -> bool:
        return self._wait("sleep", waiter, timeout=_limit(True, timeout))[0]


class RemoteWords(_Remote):
    """Words on another node."""

    _kind = "Words"

    __len__, __getitem__, add = _asking(int, "length"), _asking(int, "get"), _asking(int, "add")
    swap_if = _asking(bool, "swap_if")

    def __setitem__(self, i: int, value: int) -> None:
        self._call("set", i, value)

    def wait(self, i: int, value: int, timeout: float | None = None) -> int | None:
        """Wait until word `i` is no longer `value`. Returns what it is, None after `timeout` seconds."""
        done, changed = self._wait("wait", i, value, timeout=_limit(True, timeout))
        return changed if done else None

    def _read(self, start: int, size: int) -> bytes:
        """Return the current bytes."""
        what = _OPERATIONS["Words.read"]
        return bytes(_core.operate(what, self._remote_name, (start, size), kind=KINDS["Words"])[1])

    def _write(self, start: int, data: bytes) -> None:
        """Write bytes from `start` on."""
        self._write_parts([(start, data)])

    def _write_parts(self, parts: list[tuple[int, bytes]]) -> None:
        """Write bytes from the start of each part on."""
        what = _OPERATIONS["Words.write"]
        for first in range(0, len(parts), _MOST_PARTS):
            some = parts[first : first + _MOST_PARTS]
            heads = b"".join(_PIECE.pack(start, len(data)) for start, data in some)
            payload = heads + b"".join(data for _, data in some)
            _core.operate(what, self._remote_name, (len(some),), payload, kind=KINDS["Words"])


REMOTE: dict[type, type[_Remote]] = {
    _core.Channel: RemoteChannel,
    _core.Lock: RemoteLock,
    _core.Semaphore: RemoteSemaphore,
    _core.Event: RemoteEvent,
    _core.Condition: RemoteCondition,
    _core.Words: RemoteWords,
}
