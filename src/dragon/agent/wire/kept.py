"""Frames between two agents that must not be lost if their connection breaks, and must not be handled twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from dragon.agent.wire.frames import Forwarded, Noticed

__all__ = ["KeptFrame", "KeptFrames"]

KeptFrame = Noticed | Forwarded


class KeptFrames:
    """The frames that one agent keeps for another one until they are acknowledged, and the number of those of the other
    one that it has handled.

    They are numbered from 1. Over the next connection, all that are not acknowledged are sent again before anything
    else.
    """

    def __init__(self) -> None:
        self._last = 0
        self._kept: deque[KeptFrame] = deque()
        self.handled = 0

    def add(self, make: Callable[[int], KeptFrame]) -> KeptFrame:
        """Keep and return the frame that `make` returns for the next number."""
        self._last += 1
        frame = make(self._last)
        self._kept.append(frame)
        return frame

    def __iter__(self) -> Iterator[KeptFrame]:
        """Yield the frames that are not acknowledged, in order."""
        return iter(tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def acknowledged(self, number: int) -> None:
        """Drop the frames up to that number, which the other agent has handled."""
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()

    def is_new(self, number: int) -> bool:
        """Return whether a frame of the other agent has not been handled, and count it as handled. Raises ValueError
        if one before it has not."""
        if number > self.handled + 1:
            raise ValueError(f"frame {number} came after frame {self.handled}")
        if number <= self.handled:
            return False
        self.handled = number
        return True
