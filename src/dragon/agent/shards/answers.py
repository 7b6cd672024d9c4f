"""The replicas of a shard, and the answers to writes that clients may retry, because a connection broke or a node is
lost. A retry gets the same answer, and nothing is done twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dragon.shards.operations import Error, Identity, Result, Tag
from dragon.shards.shard import Shard

_SESSIONS = 4096
_LARGEST = 2**20  # bytes of an answer that is kept
_MOST = 64 * 2**20  # bytes of all answers that are kept
_FORGOTTEN = "NodeLostError", "the key was removed, but its value was lost with the connection that it was sent over"

# A function that sends a result or an error.
Answer = Callable[[Result, Error | None], None]


# The dictionary's number and the manager.
Whose = tuple[str, int]


class Holding(NamedTuple):
    """The replicas of a shard by a decision of the front end, the primary first; each tells the next one."""

    epoch: int
    holders: list[int]

    def before(self, node: int) -> int | None:
        """Return the replica from which `node` receives operations; None for the primary."""
        at = self.holders.index(node)
        return self.holders[at - 1] if at else None

    def behind(self, node: int) -> int | None:
        """Return the next replica, to which `node` forwards operations; None for the last one."""
        return next(iter(self.holders[self.holders.index(node) + 1 :]), None)

    def without(self, node: int, epoch: int) -> Holding:
        return Holding(epoch, [holder for holder in self.holders if holder != node])


class Copies(Protocol):
    """The replicas on this node, and their holders."""

    def holding(self, whose: Whose) -> Holding:
        """Return the holders of a replicated shard. Raises LookupError if this node is none of them."""

    def hold_since(self, whose: Whose, holding: Holding) -> None:
        """Replace the holders of a shard by those of a later decision."""

    def teacher(self, whose: Whose) -> tuple[int, Tag] | None:
        """Return the node that sends this node its copy, and its tag, while the copy is incomplete; else None."""

    def copy_of(self, whose: Whose) -> Shard | None:
        """Return this node's copy of a shard; None if it has no valid one."""

    def held(self) -> Iterator[tuple[Whose, Shard]]:
        """Yield every valid copy on this node, with its shard."""


@dataclass(slots=True)
class Answered:
    """A write that was done here, and its result, for which clients wait until all replicas behind have done it."""

    whose: Whose
    result: Result
    everywhere: bool = False
    waiting: list[Answer] = field(default_factory=list)
    forgotten: bool = False

    def answer(self, reply: Answer) -> None:
        """Reply once it is done everywhere; with an error if the result was too large to be kept."""
        if self.everywhere:
            reply(self.result, _FORGOTTEN if self.forgotten else None)
        else:
            self.waiting.append(reply)

    def fail(self, error: Error) -> None:
        """Reply with an error, because it will not be known here whether it is done everywhere."""
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            reply(Result(), error)

    def is_everywhere(self) -> None:
        """Note that all replicas have done it, and reply to those that wait."""
        self.everywhere = True
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            self.answer(reply)
        if self.size > _LARGEST:  # no client waits for it here
            self.forget()

    @property
    def size(self) -> int:
        """The bytes of its buffers."""
        return sum(memoryview(buffer).nbytes for buffer in self.result.buffers)

    def forget(self) -> None:
        """Drop the result, and keep only that the write was done."""
        self.result, self.forgotten = Result(), True


@dataclass(slots=True)
class _Session:
    """The writes of one thread, except those up to `settled`, whose answers it has received."""

    settled: int = 0
    answered: dict[int, Answered] = field(default_factory=dict)

    def settle(self, settled: int) -> None:
        if settled > self.settled:
            self.settled = settled
            for old in [old for old in self.answered if old <= settled]:
                del self.answered[old]


class Answers:
    """The answers of one node, for the most recent sessions."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._added = 0  # bytes since the total was last checked

    def find(self, identity: Identity | None) -> Answered | None:
        """Return the answer to a write; None if it was not done here. Raises ValueError for a settled one."""
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
        """Drop the oldest results beyond the limit: ended processes do not retry, but are not known here."""
        taken = 0
        for session in reversed(self._sessions.values()):
            for answer in session.answered.values():
                taken += answer.size
                if taken > _MOST and answer.everywhere and answer.result.buffers:
                    answer.forget()

    def _session(self, name: bytes) -> _Session:
        session = self._sessions.setdefault(name, _Session())
        self._sessions.move_to_end(name)
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def of(self, whose: Whose) -> list[Any]:
        """Return all answers about one shard, for a node that becomes a replica."""
        return [
            (
                name,
                session.settled,
                [
                    (number, *answer.result[:2], answer.forgotten)
                    for number, answer in session.answered.items()
                    if answer.whose == whose
                ],
            )
            for name, session in self._sessions.items()
        ]

    def take_over(self, whose: Whose, told: list[Any]) -> None:
        for name, settled, answers in told:
            session = self._session(bytes(name))
            session.settle(settled)
            for number, value, buffers, forgotten in answers:
                if number > session.settled:
                    self._keep(session, number, Answered(whose, Result(value, buffers), True, [], forgotten))
