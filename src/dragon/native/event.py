"""Events between processes."""

from __future__ import annotations

from typing import Any

from dragon.runtime.handle import Event as _Event

__all__ = ["Event"]


class Event(_Event):
    """A flag to wait for: set(), clear(), is_set(), wait(timeout=None) -> bool."""

    def __init__(self, m_uid: Any = None) -> None:
        super().__init__()

    def __enter__(self) -> Event:
        self.wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clear()

    def destroy(self) -> None:
        """End the event for every process."""
        self._destroy()
