"""Barriers between processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any, Self

import msgspec

from dragon.infrastructure.messages import SerializedName
from dragon.infrastructure.plain_number import plain_number
from dragon.native.condition import Condition
from dragon.native.lock import Lock
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.handle import Words, node_of_memory, read_serialized

__all__ = ["Barrier", "BrokenBarrierError"]

BrokenBarrierError = threading.BrokenBarrierError
"""Raised in the processes that wait at a barrier that is broken: threading.BrokenBarrierError itself."""


class Barrier(threading.Barrier):
    """A barrier at which `parties` processes wait for each other, with the rules of threading.Barrier.

    wait() returns a number from 0 to parties - 1, different for each process; one of them calls `action` first. Raises
    BrokenBarrierError if the barrier is aborted or reset, or if a process waited longer than `timeout` seconds. `m_uid`
    is the memory that holds the barrier, as in Lock.

    Examples:
        >>> from dragon.native import Barrier, Process
        >>> barrier = Barrier(2)
        >>> Process(barrier.wait).start()
        >>> barrier.wait(timeout=60) in (0, 1)
        True
    """

    _fewest = 2  # a single party has no other to wait for

    def __init__(
        self,
        parties: int = 2,
        action: Callable[[], Any] | None = None,
        timeout: float | None = None,
        m_uid: Any = None,
    ) -> None:
        parties = plain_number(parties)
        if not isinstance(parties, int) or parties < self._fewest:
            raise ValueError(f"parties must be a whole number from {self._fewest} on, not {parties!r}")
        if action is not None and not callable(action):
            raise ValueError(f"action must be callable, not {action!r}")
        timeout = checked_seconds("timeout", timeout)
        if timeout is not None and timeout < 0:
            raise ValueError("timeout must not be negative")
        self._share((Words._on(node_of_memory(m_uid), 2), Condition(Lock(m_uid), m_uid), parties, action, timeout))

    def _share(self, state: tuple[Words, Condition, int, Any, float | None]) -> None:
        self._words, self._cond, self._parties, self._action, self._timeout = state

    def __getstate__(self) -> Any:
        return self._words, self._cond, self._parties, self._action, self._timeout

    def __setstate__(self, state: Any) -> None:
        self._share(state)

    # threading.Barrier keeps its state in these two numbers, under the lock of `_cond`.

    @property
    def _state(self) -> int:
        value = self._words[0]
        return value - 2**64 if value >= 2**63 else value

    @_state.setter
    def _state(self, value: int) -> None:
        self._words[0] = value % 2**64

    @property
    def _count(self) -> int:
        return self._words[1]

    @_count.setter
    def _count(self, value: int) -> None:
        self._words[1] = value

    def serialize(self) -> str:
        """Return the barrier's name, which attach() takes in any process of the run."""
        names = (self._words._name(), self._cond._name(), self._cond._lock._name(), self._parties)
        return msgspec.json.encode(names).decode()

    @classmethod
    def attach(cls, serialized: str, *, action: Callable[[], Any] | None = None, timeout: float | None = None) -> Self:
        """Return the barrier that serialize() named.

        `action` and `timeout` are not part of the name. Raises DestroyedError if the barrier does not exist any more,
        ValueError for text that serialize() did not write.
        """
        parties_of = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
        kind = tuple[SerializedName, SerializedName, SerializedName, parties_of]
        words, condition, lock, parties = read_serialized(serialized, kind, "barrier")
        barrier = cls.__new__(cls)
        shared = Condition._attached(condition, Lock._attached(lock))
        barrier._share((Words._attached(words), shared, parties, action, timeout))
        return barrier

    def destroy(self) -> None:
        """Break the barrier for every process."""
        self.abort()
