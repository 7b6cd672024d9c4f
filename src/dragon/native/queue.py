"""A queue of objects that any process of the run can put into and take from."""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.generic import V
from dragon.infrastructure.plain_number import plain_number
from dragon.runtime.handle import Channel, node_for_objects, read_serialized, serialized
from dragon.runtime.picklers import Pickler, pickler_of
from dragon.runtime.remote import node_of
from dragon.runtime.run import identity

if TYPE_CHECKING:
    from dragon.infrastructure.policy import Policy

__all__ = ["Empty", "Full", "Queue", "QueueError"]

Empty, Full = queue.Empty, queue.Full

_DEFAULT_SIZE = 100  # objects
_THREAD_POLL_S = 0.05  # seconds between two checks of the event that another thread may have set

_Q = TypeVar("_Q", bound="Queue[Any]")


class QueueError(DragonError):
    """task_done() or join() was called on a queue without joinable=True."""


class Queue(Channel, Generic[V]):
    """A first-in first-out queue.

    Args:
        maxsize: the number of objects that it holds at most; put() waits for room. 0 or less: limited by memory only.
        joinable: whether task_done() and join() may be used.
        policy: a policy that names a host selects the node that holds the queue. Otherwise it is the one that a
            `with` block of a policy names, or this process's node.
        pickler: converts objects to bytes and back, with `dumps` and `loads`, or `dump` and `load` of files. It is sent
            along with the queue. Without one, arrays and bytes are sent without an intermediate copy.

    put(obj, block=True, timeout=None) raises queue.Full, get(block=True, timeout=None) raises queue.Empty; timeouts are
    in seconds. After close() every use raises ValueError, after destroy() in every process. `pool`, `block_size`,
    `buffered`, `num_streams` and the channels are accepted for dragonhpc's programs and have no effect, as have
    `stream_channel` and `flush`: the queue finds memory itself, and every object is one message that can be taken at
    once.

    Examples:
        >>> from dragon.native import Process, Queue
        >>> queue = Queue(maxsize=10)
        >>> Process(queue.put, ({"loss": 0.25},)).start()
        >>> queue.get(timeout=60)
        {'loss': 0.25}
    """

    def __new__(
        cls, maxsize: int = _DEFAULT_SIZE, *, policy: Policy | None = None, pickler: object = None, **options: object
    ) -> Self:
        return super().__new__(_class_for(pickler, cls))

    def __init__(
        self,
        maxsize: int = _DEFAULT_SIZE,
        *,
        pool: object = None,
        block_size: int = 65536,
        joinable: bool = False,
        buffered: bool = True,
        policy: Policy | None = None,
        num_streams: int = 0,
        main_channel: object = None,
        mgr_channel: object = None,
        sem_channel: object = None,
        strm_channels: object = None,
        pickler: object = None,
    ) -> None:
        maxsize = plain_number(maxsize)
        if not isinstance(maxsize, int):
            raise TypeError(f"maxsize must be a whole number, not {maxsize!r}")
        if buffered and (strm_channels is not None or num_streams > 0 or mgr_channel is not None):
            raise ValueError("a buffered queue has no stream channels and no manager channel")
        self._make_on(node_for_objects(policy), max(maxsize, 0), maker=identity().puid)
        self._set_state(self._state_of(joinable, pickler))

    @staticmethod
    def _state_of(joinable: bool, pickler: object) -> object:
        return joinable

    def _state(self) -> object:
        return self._joinable

    def _set_state(self, state: object) -> None:
        self._joinable = state

    if TYPE_CHECKING:

        def put(
            self,
            obj: V,
            block: bool = True,
            timeout: float | None = None,
            stream_channel: object = None,
            flush: bool = False,
        ) -> None:
            """Put a copy of an object. Raises queue.Full after `timeout` seconds."""

        def put_nowait(self, obj: V, stream_channel: object = None, flush: bool = False) -> None:
            """Put an object, or raise queue.Full."""

        def get(self, block: bool = True, timeout: float | None = None, stream_channel: object = None) -> V:
            """Take the oldest object. Raises queue.Empty after `timeout` seconds."""

        def get_nowait(self, stream_channel: object = None) -> V:
            """Take the oldest object, or raise queue.Empty."""

    @property
    def closed(self) -> bool:
        """Whether close() was called in this process."""
        return self._closed

    @property
    def node(self) -> int:
        """The index of the node that holds the queue."""
        return node_of(self._name())

    def size(self) -> int:
        """Return the number of objects in the queue."""
        return self._size()

    def poll(self, timeout: float | None = 0) -> bool:
        """Wait at most `timeout` seconds (None: without limit) for an object, and return whether there is one."""
        return self._wait_readable(timeout)

    def thread_wait(self, timeout: float | None, done_ev: threading.Event, ready: list[Any]) -> None:
        """Wait for an object, until `timeout` seconds have passed or another thread sets `done_ev`.

        For threads that each wait for one of several objects: the thread that finds an object sets `done_ev` and
        appends the queue to `ready`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not done_ev.is_set():
            left = _THREAD_POLL_S if deadline is None else min(_THREAD_POLL_S, deadline - time.monotonic())
            if self.poll(max(left, 0.0)):
                ready.append(self)
                done_ev.set()
            elif left <= 0:
                return

    def task_done(self, timeout: float | None = None) -> None:
        """Report that an object that was taken is processed. `timeout` has no effect.

        Raises ValueError when called more often than objects were put, QueueError without joinable=True.
        """
        self._check_joinable()
        if not self._task_done():
            raise ValueError("task_done() called too many times")

    def join(self, timeout: float | None = None) -> None:
        """Wait until task_done() was called for every object that was put.

        Raises TimeoutError after `timeout` seconds, QueueError without joinable=True.
        """
        self._check_joinable()
        if not self._join(timeout):
            raise TimeoutError(f"task_done() was not called for every object of the queue within {timeout} s")

    def _check_joinable(self) -> None:
        if not self._joinable:
            raise QueueError("this queue was made without joinable=True")

    def close(self) -> None:
        """Close the queue in this process; other processes can still use it."""
        self._close()

    def destroy(self) -> None:
        """Destroy the queue for every process; the objects in it are dropped."""
        if not self._closed:
            self._destroy()

    def serialize(self) -> bytes:
        """Return the queue's name, which Queue.attach() takes in any process of the run. The caller keeps the queue
        alive."""
        return serialized(*self._name(), self._joinable).encode()

    @classmethod
    def attach(cls, serialized_bytes: bytes, *, mpool: object = None, pickler: object = None) -> Self:
        """Return the queue that serialize() named. `mpool` has no effect.

        Raises DestroyedError if the queue does not exist any more, ValueError for bytes that serialize() did not write.
        """
        from dragon.infrastructure.messages import NameGeneration, NameOffset, NameRole

        parts = tuple[NameOffset, NameGeneration, NameRole, bool]
        offset, generation, role, joinable = read_serialized(serialized_bytes, parts, "queue")
        kind = _class_for(pickler, cls)
        return kind._attached((offset, generation, role), kind._state_of(joinable, pickler))


class _PickledQueue(Queue):
    """A queue that converts objects with the program's own pickler."""

    @staticmethod
    def _state_of(joinable: bool, pickler: object) -> object:
        return joinable, pickler_of(pickler)

    def _state(self) -> object:
        return self._joinable, self._pickler

    def _set_state(self, state: object) -> None:
        self._joinable, self._pickler = cast("tuple[bool, Pickler]", state)

    def put(self, obj: object, *args: object, **options: object) -> None:
        self._operations.put(self, bytes(self._pickler.dumps(obj)), *args, **options)

    def put_nowait(self, obj: object, *args: object, **options: object) -> None:
        self.put(obj, False, None, *args, **options)

    def get(self, *args: object, **options: object) -> object:
        return self._pickler.loads(self._operations.get(self, *args, **options))

    def get_nowait(self, *args: object, **options: object) -> object:
        return self.get(False, None, *args, **options)


def _class_for(pickler: object, cls: type[_Q]) -> type[_Q]:
    """Return the class of a queue with that pickler. Queues without a pickler use cloudpickle where pickle fails."""
    if pickler is None or pickler is sys.modules.get("cloudpickle"):
        return cls
    if cls not in (Queue, _PickledQueue):
        raise TypeError(f"{cls.__name__}, a subclass of Queue, takes no pickler: let its put() and get() use it")
    return cast(type[_Q], _PickledQueue)
