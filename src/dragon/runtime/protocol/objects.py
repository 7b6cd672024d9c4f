"""What is asked about objects: of other nodes, and of those that have a number and a name in the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from dragon.infrastructure.messages import Name
from dragon.runtime.protocol.request import Request, Where

__all__ = [
    "Announce",
    "CloseAtEnd",
    "CreateNamedObject",
    "FindNamedObject",
    "ForgetNamedObject",
    "ListNamedObjects",
    "MakeObject",
    "NamedObject",
    "OfAProcess",
    "OpenOutbox",
    "Operate",
    "Operation",
    "WaitHere",
    "WhyGone",
    "WhyLost",
]

Answer_co = TypeVar("Answer_co", covariant=True)

# ---- objects of other nodes


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """A method of an object of that class and name, for a thread, which waits `timeout` seconds at most.

    `ticket` tells apart the puts of a channel's writer; `doing` are words in which a task that is taken is noted at
    `index`.
    """

    name: Name
    kind: str
    method: str
    given: tuple[Any, ...] = ()
    timeout: float | None = 0
    thread: int = 0
    ticket: int = 0
    doing: Name | None = None
    index: int = 0


class OfAProcess(Request[Answer_co], Generic[Answer_co], frozen=True):
    """One that the agent does for the very process that asks."""


class Operate(OfAProcess[tuple[bool, Any]], tag="remote.operate", frozen=True):
    """Do something with an object of another node: whether it was done, and its result.

    Handles of `released` are gone. A large message comes through the channel `outgoing`, or goes through `inbox`.
    """

    operation: Operation
    payload: bytes = b""
    released: Sequence[Name] = ()
    inbox: Name | None = None
    outgoing: Name | None = None


class WaitHere(OfAProcess[tuple[bool, Any]], tag="objects.wait", frozen=True):
    """Wait for an object of this node on behalf of the process that asks, whose place in the arena is `slot`: what
    Operate is for objects of other nodes, as far as these wait."""

    operation: Operation
    slot: int


class OpenOutbox(OfAProcess[Name], tag="remote.outbox", frozen=True):
    """A channel of this node from which messages go on to that one of another node."""

    name: Name


class WhyGone(OfAProcess[tuple[str, str]], tag="remote.why_gone", frozen=True):
    """Class and text of the error by which messages in an outbox were lost; empty if none were."""

    outbox: Name


class WhyLost(OfAProcess[tuple[str, str]], tag="remote.why_lost", frozen=True):
    """Class and text of the error by which messages to a channel of this node were lost; empty if none were."""

    name: Name


class Announce(OfAProcess[None], tag="remote.announce", frozen=True):
    """Let objects of other nodes live until a process that the caller starts has attached to them."""

    names: list[Name]


class CloseAtEnd(OfAProcess[None], tag="remote.close_at_end", frozen=True):
    """Close the descriptor when a process of another node has ended, or is lost."""

    puid: int


class MakeObject(OfAProcess[Name], tag="remote.make", frozen=True):
    """Make an object of that class on another node; it lives until the caller is attached."""

    node: int
    kind: str
    given: tuple[Any, ...]
    options: dict[str, Any]


# ---- those that have a number and a name, of which the first node knows


class NamedObject(msgspec.Struct):
    """What is known of one: its kind, number, name, the node it is on, what attach() takes, and whether it lives."""

    kind: str
    number: int
    name: str
    node: int
    serialized: bytes
    alive: bool = True


class _OnTheFirst(Request[Answer_co], Generic[Answer_co], frozen=True):
    kind: str

    def place(self) -> int | Where:
        return 0


class CreateNamedObject(_OnTheFirst[NamedObject], tag="named_objects.create", frozen=True):
    """Have a new one known. An empty name becomes one that no other has. Raises ValueError where the name is taken."""

    name: str
    at: int
    serialized: bytes


class FindNamedObject(_OnTheFirst[NamedObject], tag="named_objects.find", frozen=True):
    """The one of that number, which may be gone, or the live one of that name. Raises LookupError."""

    key: int | str


class ListNamedObjects(_OnTheFirst[list[int]], tag="named_objects.numbers", frozen=True):
    """The numbers of those that live."""


class ForgetNamedObject(_OnTheFirst[None], tag="named_objects.forget", frozen=True):
    """It was destroyed."""

    number: int
