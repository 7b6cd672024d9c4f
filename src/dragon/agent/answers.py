"""What was answered to writes that may be asked for again, because the connection over which they came broke or the
node that did them is lost. Who asks again is given the same answer, and nothing is done twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Protocol

from dragon.agent.holding import Whose

__all__ = ["Answered", "Answers", "Identity", "Reply"]

_SESSIONS = 4096
_LARGEST = 2**20  # bytes of an answer that is kept
_FORGOTTEN = "NodeLostError", "the key was removed, but its value was lost with the connection that it was sent over"

# Who asked (a thread's own number), the number of the write, and the last one of which it needs no answer any more.
Identity = tuple[bytes, int, int]


class Reply(Protocol):
    """Takes a value and buffers, which become bytes objects or memory that can be written to, or an error by its
    class's name and its text."""

    def __call__(
        self, value: Any, buffers: list[Any], error: tuple[str, str] | None, /, *, as_bytes: bool = False
    ) -> None: ...


@dataclass(slots=True)
class Answered:
    """An operation that was done here, and what it gave. Until it is done `everywhere`, here and by all that do what
    this node does, those who asked wait."""

    whose: Whose
    value: Any
    buffers: list[Any]
    as_bytes: bool = False
    everywhere: bool = False
    waiting: list[Reply] = field(default_factory=list)
    forgotten: bool = False

    def answer(self, reply: Reply) -> None:
        """Answer now, or once it is done everywhere."""
        if self.everywhere:
            self.tell(reply)
        else:
            self.waiting.append(reply)

    def fail(self, error: tuple[str, str]) -> None:
        """Whether it is done everywhere is not known, and will not be here."""
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            reply(None, [], error)

    def tell(self, reply: Reply) -> None:
        """Answer, with an error where the answer was too large to be kept."""
        error = _FORGOTTEN if self.forgotten else None
        reply(self.value, self.buffers, error, as_bytes=self.as_bytes)

    def is_everywhere(self) -> None:
        """All copies have it: answer those who wait."""
        self.everywhere = True
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            self.tell(reply)
        self.forget_large()

    def forget_large(self) -> None:
        """Nobody waits here for an answer that takes much memory."""
        if sum(len(memoryview(buffer)) for buffer in self.buffers) > _LARGEST:
            self.value, self.buffers, self.forgotten = None, [], True


class Answers:
    """Those of one node, for the sessions that were heard of last."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, dict[int, Answered]] = OrderedDict()

    def find(self, identity: Identity | None) -> Answered | None:
        """The answer to a write, None where it was not done here. What its session needs no more is forgotten."""
        if identity is None:
            return None
        session, number, settled = identity
        answered = self._sessions.get(session)
        if answered is None:
            return None
        self._sessions.move_to_end(session)
        for old in [old for old in answered if old <= settled]:
            del answered[old]
        return answered.get(number)

    def add(self, identity: Identity | None, answer: Answered) -> None:
        """A write was done."""
        if identity is None:
            return
        self._sessions.setdefault(bytes(identity[0]), {})[identity[1]] = answer
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)

    def of(self, whose: Whose) -> list[Any]:
        """All about one shard, for a node that is to keep it too."""
        return [
            (session, number, answer.value, answer.buffers, answer.forgotten)
            for session, answered in self._sessions.items()
            for number, answer in answered.items()
            if answer.whose == whose
        ]

    def take_over(self, whose: Whose, told: list[Any]) -> None:
        """What of() gave on another node."""
        for session, number, value, buffers, forgotten in told:
            if self.find((session, number, 0)) is None:
                answered = Answered(whose, value, buffers, everywhere=True, forgotten=forgotten)
                self.add((session, number, 0), answered)
