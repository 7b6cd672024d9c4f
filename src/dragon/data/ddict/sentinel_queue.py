"""A queue with an end."""

from __future__ import annotations

from typing import Any

from dragon.runtime.handle import Channel

__all__ = ["SentinelQueue"]


class _Sentinel:
    """The end mark after the last item, with the error that stopped the writer, or ""."""

    def __init__(self, error: str) -> None:
        self.error = error


class SentinelQueue:
    """A queue with one writer and one reader; the reader gets EOFError after the writer has closed it.

    Each process first declares its role, by putter() or getter(). A handle that is sent to another process has no role
    there.

    Args:
        maxsize: the number of items that the writer may be ahead; the next put() waits.

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
        """Declare this handle the writer. Raises RuntimeError if it is the reader."""
        self._take("putter")

    def getter(self) -> None:
        """Declare this handle the reader. Raises RuntimeError if it is the writer."""
        self._take("getter")

    def put(self, item: Any) -> None:
        """Add an item. Raises RuntimeError if putter() was not called before, and after close()."""
        self._check("putter", "put")
        if self._ended is not None:
            raise RuntimeError("put() on a SentinelQueue that was closed")
        self._channel.put(item)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item.

        Raises EOFError after the last one, queue.Empty after `timeout` seconds without one, and RuntimeError if
        getter() was not called before.
        """
        self._check("getter", "get")
        if self._ended is None:
            item = self._channel.get(timeout=timeout)
            if not isinstance(item, _Sentinel):
                return item
            self._ended = (item.error,) if item.error else ()
        raise EOFError(*self._ended)

    def close(self, error: str = "") -> None:
        """End the queue for the reader, whose EOFError has `error` as its argument.

        Does nothing when the reader calls it, or the second time.
        """
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
