"""A queue that ends."""

from __future__ import annotations

from typing import Any

from dragon.runtime.handle import Channel

__all__ = ["SentinelQueue"]


class _Sentinel:
    """What follows the last item: the error that kept the writer from more, if one did."""

    def __init__(self, error: str) -> None:
        self.error = error


class SentinelQueue:
    """A queue with one writer and one reader, who learns from EOFError that the writer has closed it.

    Each of the two says first which it is, by putter() or getter(). A handle that is sent to another process has said
    nothing there.

    Args:
        maxsize: items that the writer may be ahead; the next put() waits.

    Examples:
        >>> from dragon.data.ddict import SentinelQueue
        >>> from dragon.native import Process
        >>> def write(queue):
        ...     queue.putter()
        ...     queue.put("last")
        ...     queue.close()
        >>> queue = SentinelQueue()
        >>> Process(write, (queue,)).start()
        >>> queue.getter()
        >>> queue.get()  # the next get() raises EOFError
        'last'
    """

    def __init__(self, maxsize: int = 100) -> None:
        self._channel = Channel(maxsize)
        self._role = ""
        self._ended: tuple[str, ...] | None = None  # the arguments of EOFError

    def __reduce__(self) -> Any:
        return _attached, (self._channel,)

    def putter(self) -> None:
        """Be the writer. Raises RuntimeError for the reader."""
        self._take("putter")

    def getter(self) -> None:
        """Be the reader. Raises RuntimeError for the writer."""
        self._take("getter")

    def put(self, item: Any) -> None:
        """Add an item. Raises RuntimeError without putter() before, and after close()."""
        self._check("putter", "put")
        if self._ended is not None:
            raise RuntimeError("put() on a SentinelQueue that was closed")
        self._channel.put(item)

    def get(self, timeout: float | None = None) -> Any:
        """The next item. Raises EOFError after the last one, queue.Empty after `timeout` seconds without one, and
        RuntimeError without getter() before.
        """
        self._check("getter", "get")
        if self._ended is None:
            item = self._channel.get(timeout=timeout)
            if not isinstance(item, _Sentinel):
                return item
            self._ended = (item.error,) if item.error else ()
        raise EOFError(*self._ended)

    def close(self, error: str = "") -> None:
        """End the queue for the reader, whose EOFError carries `error`; nothing where the reader calls it, or again."""
        if self._role == "putter" and self._ended is None:
            self._ended = ()
            self._channel.put(_Sentinel(error))

    def _take(self, role: str) -> None:
        if self._role not in ("", role):
            raise RuntimeError(f"a handle of a SentinelQueue is {self._role} or {role}, not both")
        self._role = role

    def _check(self, role: str, call: str) -> None:
        if self._role != role:
            raise RuntimeError(f"{call}() on a SentinelQueue without {role}() before")


def _attached(channel: Channel) -> SentinelQueue:
    queue = SentinelQueue.__new__(SentinelQueue)
    queue._channel, queue._role, queue._ended = channel, "", None
    return queue
