"""What was answered to writes that may be asked for again, because the connection over which they came broke or the
node that did them is lost. Who asks again is given the same answer, and nothing is done twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Protocol

from dragon.agent.shards.holding import Whose

__all__ = ["Answered", "Answers", "Identity", "Reply"]

_SESSIONS = 4096
_LARGEST = 2**20  # bytes of an answer that is kept
_MOST = 64 * 2**20  # bytes of all answers that are kept
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

    @property
    def size(self) -> int:
        """Bytes of its buffers."""
        return sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def forget_large(self) -> None:
        """Nobody waits here for an answer that takes much memory."""
        if self.size > _LARGEST:
            self.forget()

    def forget(self) -> None:
        """Keep only that it was done."""
        self.value, self.buffers, self.forgotten = None, [], True


@dataclass(slots=True)
class _Session:
    """The writes of one thread, but for those up to `settled`, of which it needs no answer any more."""

    settled: int = 0
    answered: dict[int, Answered] = field(default_factory=dict)

    def settle(self, settled: int) -> None:
        if settled > self.settled:
            self.settled = settled
            for old in [old for old in self.answered if old <= settled]:
                del self.answered[old]


class Answers:
    """Those of one node, for the sessions that were heard of last."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._added = 0  # bytes since it was last looked at what all take

    def find(self, identity: Identity | None) -> Answered | None:
        """The answer to a write, None where it was not done here. What its session needs no more is forgotten. Raises
        ValueError for a write of which the session has the answer: what asks for it was late, and is not done again."""
        if identity is None:
            return None
        name, number, settled = identity
        session = self._sessions.get(name)
        if session is None:
            return None
        self._sessions.move_to_end(name)
        session.settle(settled)
        if number <= session.settled:
            raise ValueError(f"write {number} was answered before; its request was late, and is not done again")
        return session.answered.get(number)

    def add(self, identity: Identity | None, answer: Answered) -> None:
        """A write was done."""
        if identity is not None:
            name, number, settled = identity
            session = self._session(bytes(name))
            session.settle(settled)
            self._keep(session, number, answer)

    def _keep(self, session: _Session, number: int, answer: Answered) -> None:
        session.answered[number] = answer
        self._added += answer.size
        if self._added > _MOST // 4:
            self._added = 0
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Processes that have ended ask for nothing more, and nobody says which those are."""
        taken = 0
        for session in reversed(self._sessions.values()):
            for answer in session.answered.values():
                taken += answer.size
                if taken > _MOST and answer.everywhere and answer.buffers:
                    answer.forget()

    def _session(self, name: bytes) -> _Session:
        session = self._sessions.setdefault(name, _Session())
        self._sessions.move_to_end(name)
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def of(self, whose: Whose) -> list[Any]:
        """All about one shard, for a node that is to keep it too."""
        return [
            (
                name,
                session.settled,
                [
                    (number, answer.value, answer.buffers, answer.forgotten)
                    for number, answer in session.answered.items()
                    if answer.whose == whose
                ],
            )
            for name, session in self._sessions.items()
        ]

    def take_over(self, whose: Whose, told: list[Any]) -> None:
        """What of() gave on another node."""
        for name, settled, answers in told:
            session = self._session(bytes(name))
            session.settle(settled)
            for number, value, buffers, forgotten in answers:
                if number > session.settled:
                    kept = Answered(whose, value, buffers, everywhere=True, forgotten=forgotten)
                    self._keep(session, number, kept)
