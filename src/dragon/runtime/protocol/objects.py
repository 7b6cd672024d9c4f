"""Requests about objects of other nodes, and about those that have a number and a name in the run."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import OfAProcess, OnNode, Request

Answer_co = TypeVar("Answer_co", covariant=True)

# ---- objects of other nodes


class OpenDesk(OfAProcess[None]):
    """Open the desk of the node, which a run of one node needs only for event loops that wait."""


class OpenOutbox(OfAProcess[Name]):
    """Return a channel of this node whose messages are forwarded to a channel of another node. Messages that find no
    memory wait until there is some; `droppable` ones, which both sides can do without, are lost after ten seconds."""

    name: Name
    droppable: bool = False


class OpenProxy(OfAProcess[Name]):
    """Return a channel of this node that can be read while a channel of another node can."""

    name: Name


class WhyGone(OfAProcess[tuple[str, str]]):
    """Return class and text of the error by which messages in an outbox were lost; empty if none were."""

    outbox: Name


class WhyLost(OfAProcess[tuple[str, str]]):
    """Return class and text of the error by which messages to a channel of this node were lost; empty if none were."""

    name: Name


class Announce(OfAProcess[None]):
    """Keep objects of other nodes alive until a process that the caller starts has attached to them."""

    names: list[Name]


class CloseAtEnd(OfAProcess[None]):
    """Close the descriptors that are sent along at the end of the process of another node that has this record."""

    record: Name


class MakeObject(OnNode[Name]):
    """Make an object of that class on a node; it is kept alive until a process of the caller's has attached to it."""

    kind: str
    given: tuple[Any, ...]
    options: dict[str, Any]
    made_at: str  # in the program, as train.py:12


# ---- objects with a number and a name, which the first node keeps


class NamedObject(msgspec.Struct):
    """An object with a number and a name: its class, node, argument of attach(), and whether it exists; of a group the
    puids of its members, those made together in one list."""

    kind: str
    number: int
    name: str
    node: int
    serialized: bytes
    alive: bool = True
    members: list[list[int]] = []


class _OnTheFirst(Request[Answer_co], Generic[Answer_co]):
    kind: str

    def place(self) -> int:
        return 0


class CreateNamedObject(_OnTheFirst[NamedObject]):
    """Register a new object. An empty name is replaced by a unique one. Raises ValueError if the name is taken."""

    name: str
    at: int
    serialized: bytes
    members: list[list[int]]


class FindNamedObject(_OnTheFirst[NamedObject]):
    """Return the object of that number, which may be destroyed, or the live one of that name. Raises LookupError."""

    key: int | str


class ListNamedObjects(_OnTheFirst[list[int]]):
    """Return the numbers of the live objects."""


class ChangeMembers(_OnTheFirst[NamedObject]):
    """Add members to a group and remove others. Replies with the group. Raises LookupError."""

    number: int
    added: list[list[int]]
    removed: list[int]


class ForgetNamedObject(_OnTheFirst[None]):
    """Report that the object was destroyed."""

    number: int
