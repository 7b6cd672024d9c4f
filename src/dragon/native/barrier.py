"""Barriers between processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any, Self

from dragon.infrastructure.plain_number import plain_number
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.handle import Words, node_of_memory, read_serialized, serialized

__all__ = ["Barrier", "BrokenBarrierError"]

# Bits of the words. The last _ENDS rounds are remembered, for parties that look late.
_COUNT, _ENDS, _BROKEN = 20, 16, 1
_NUMBER, _MOST = 64 - _COUNT - _ENDS - 1, 1 << _COUNT - 1

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
        m_uid: object = None,
    ) -> None:
        parties = plain_number(parties)
        if not isinstance(parties, int) or not self._fewest <= parties < _MOST:
            raise ValueError(f"parties must be a whole number from {self._fewest} to {_MOST - 1}, not {parties!r}")
        if action is not None and not callable(action):
            raise ValueError(f"action must be callable, not {action!r}")
        timeout = checked_seconds("timeout", timeout)
        if timeout is not None and timeout < 0:
            raise ValueError("timeout must not be negative")
        node = node_of_memory(m_uid)
        self.__setstate__((Words._on(node, 1), Words._on(node, 1), parties, action, timeout))

    def __setstate__(self, state: tuple[Words, Words, int, Any, float | None]) -> None:
        self._round, self._arrivals, self._parties, self._action, self._timeout = state

    def __getstate__(self) -> tuple[Words, Words, int, Any, float | None]:
        return self._round, self._arrivals, self._parties, self._action, self._timeout

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the other parties, `timeout` seconds at most: that of the barrier if it is None.

        Returns a number from 0 to parties - 1, different for each. Raises BrokenBarrierError.
        """
        while (place := self._arrive())[1] >= self._parties:  # that round is complete
            self._round.wait(0, place[0])
        after: int | None
        try:
            if place[1] + 1 == self._parties:
                after = self._release(place[0])
            else:
                after = self._round.wait(0, place[0], self._timeout if timeout is None else timeout)
        except BaseException:
            self._leave(place)
            raise
        return self._result(place, after)

    # Two words hold the barrier, in place of a lock and a condition: to arrive is one request to another node, to wait
    # another one, and no party that is killed keeps the others from it. `_round` is the truth: the number of the round,
    # how the latest ones have ended, and whether the barrier is broken. `_arrivals` counts the parties of a round; it
    # is of an earlier one for a moment, or until the next arrival if the party that ended that one was killed.

    def _arrive(self) -> tuple[int, int]:
        """Return the round, and how many parties arrived before. If all have, wait for its end, and arrive again."""
        place = divmod(self._arrivals.add(0, 1), 1 << _COUNT)
        if not place[0] & _BROKEN and place[1] < self._parties:
            return place
        self._leave(place)
        if self._follow() & _BROKEN:
            raise BrokenBarrierError
        return place[0], self._parties

    def _leave(self, place: tuple[int, int]) -> None:
        """Take back an arrival, unless the round is complete, and has its end from the last party."""
        while (arrived := self._arrivals[0]) >> _COUNT == place[0] and arrived % (1 << _COUNT):
            if place[1] < self._parties <= arrived % (1 << _COUNT) or self._arrivals.swap_if(0, arrived, arrived - 1):
                return

    def _release(self, round_: int) -> int:
        """Call the action as the last party, and end the round. Returns the next one."""
        try:
            if self._action:
                self._action()
        except BaseException:
            self._end(round_, is_broken=True)
            raise
        return self._end(round_, ended_well=True)

    def _end(self, round_: int, *, ended_well: bool = False, is_broken: bool = False) -> int:
        """End a round, unless another party has. Returns the one after it."""
        number, ends = divmod(round_ >> 1, 1 << _ENDS)
        ends = (ends << 1 | ended_well) % (1 << _ENDS)
        after = ((number + 1) % (1 << _NUMBER) << _ENDS | ends) << 1 | is_broken
        if self._round.swap_if(0, round_, after) and self._arrivals.swap_if(
            0, (round_ << _COUNT) + self._parties, after << _COUNT
        ):
            return after
        return self._follow()

    def _follow(self) -> int:
        """Let processes arrive for the current round. Returns it."""
        while (arrived := self._arrivals[0]) >> _COUNT != (current := self._round[0]):
            self._arrivals.swap_if(0, arrived, current << _COUNT)
        return current

    def _result(self, place: tuple[int, int], after: int | None) -> int:
        """Return what wait() does, given the round after the one for which this party waited; None: its time is up."""
        if after is None:
            after = self._end(place[0], is_broken=True)  # no other party is to wait for this one
        since = ((after >> _ENDS + 1) - (place[0] >> _ENDS + 1)) % (1 << _NUMBER)
        if after >> min(since, _ENDS) & 1:
            return place[1]
        self._follow()
        raise BrokenBarrierError

    def reset(self) -> None:
        """Make the barrier as it was when it was new. Parties that wait get a BrokenBarrierError."""
        current = self._follow()
        if current & _BROKEN or self.n_waiting:
            self._end(current)

    def abort(self) -> None:
        """Break the barrier: parties that wait and those that come get a BrokenBarrierError, until reset()."""
        while not (current := self._round[0]) & _BROKEN:
            self._end(current, is_broken=True)

    @property
    def n_waiting(self) -> int:
        """The number of parties that wait at the moment."""
        round_, count = divmod(self._arrivals[0], 1 << _COUNT)
        return 0 if round_ & _BROKEN else count % self._parties

    @property
    def broken(self) -> bool:
        """Whether it is broken."""
        return bool(self._round[0] & _BROKEN)

    def serialize(self) -> str:
        """Return the barrier's name, which attach() takes in any process of the run."""
        return serialized(self._round._name(), self._arrivals._name(), self._parties)

    @classmethod
    def attach(cls, serialized: str, *, action: Callable[[], Any] | None = None, timeout: float | None = None) -> Self:
        """Return the barrier that serialize() named.

        `action` and `timeout` are not part of the name. Raises DestroyedError if the barrier does not exist any more,
        ValueError for text that serialize() did not write.
        """
        from dragon.infrastructure.messages import SerializedName
        from dragon.infrastructure.structs import msgspec

        kind = tuple[SerializedName, SerializedName, Annotated[int, msgspec.Meta(ge=1, lt=_MOST)]]
        round_, arrivals, parties = read_serialized(serialized, kind, "barrier")
        barrier = cls.__new__(cls)
        barrier.__setstate__((Words._attached(round_), Words._attached(arrivals), parties, action, timeout))
        return barrier

    def destroy(self) -> None:
        """Break the barrier for every process."""
        self.abort()
