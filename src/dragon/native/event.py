"""Events between processes."""

from __future__ import annotations

from dragon.runtime.handle import Event as _Event
from dragon.runtime.handle import node_of_memory

__all__ = ["Event"]


class Event(_Event):
    """A flag that processes wait for: set(), clear(), is_set(), wait(timeout=None) -> bool.

    `m_uid` is the memory that holds the event, as in Lock.

    Examples:
        >>> from dragon.native import Event, Process
        >>> ready = Event()
        >>> Process(ready.set).start()
        >>> ready.wait(timeout=60)
        True
    """

    def __init__(self, m_uid: object = None) -> None:
        self._make_on(node_of_memory(m_uid))

    def __enter__(self) -> Event:
        self.wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clear()

    def destroy(self) -> None:
        """Destroy the event for every process."""
        self._destroy()
