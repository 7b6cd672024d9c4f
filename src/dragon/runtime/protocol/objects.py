"""Requests about objects of other nodes, and about those that have a number and a name in the run."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from dragon.infrastructure.messages import Name
from dragon.runtime.protocol.request import Request, Where

Answer_co = TypeVar("Answer_co", covariant=True)

# ---- objects of other nodes


class OfAProcess(Request[Answer_co], Generic[Answer_co], frozen=True):
    """A request that the agent handles only for the process that sends it, not for other agents."""


class OpenDesk(OfAProcess[None], tag="objects.desk", frozen=True):
    """Open the desk of the node, which a run of one node needs only for event loops that wait."""


class OpenOutbox(OfAProcess[Name], tag="remote.outbox", frozen=True):
    """Return a channel of this node whose messages are forwarded to a channel of another node. Messages that find no
    memory wait until there is some; `droppable` ones, which both sides can do without, are lost after ten seconds."""

    name: Name
    droppable: bool = False


class OpenProxy(OfAProcess[Name], tag="remote.proxy", frozen=True):
    """Return a channel of this node that can be read while a channel of another node can."""

    name: Name


class WhyGone(OfAProcess[tuple[str, str]], tag="remote.why_gone", frozen=True):
    """Return class and text of the error by which messages in an outbox were lost; empty if none were."""

    outbox: Name


class WhyLost(OfAProcess[tuple[str, str]], tag="remote.why_lost", frozen=True):
    """Return class and text of the error by which messages to a channel of this node were lost; empty if none were."""

    name: Name


class Announce(OfAProcess[None], tag="remote.announce", frozen=True):
    """Keep objects of other nodes alive until a process that the caller starts has attached to them."""

    names: list[Name]


class CloseAtEnd(OfAProcess[None], tag="remote.close_at_end", frozen=True):
    """Close the descriptors that are sent along when the process of another node has ended whose creator has this
    record, or its node is lost."""

    record: Name


class MakeObject(OfAProcess[Name], tag="remote.make", frozen=True):
    """Make an object of that class on another node; it is kept alive until the caller has attached to it."""

    node: int
    kind: str
    given: tuple[Any, ...]
    options: dict[str, Any]
    made_at: str  # in the program, as train.py:12


# ---- objects with a number and a name, which the first node keeps


class NamedObject(msgspec.Struct):
    """An object with a number and a name. `kind` is its class, `node` its node, `serialized` the argument of attach(),
    `alive` whether it exists."""

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
    """Register a new object. An empty name is replaced by a unique one. Raises ValueError if the name is taken."""

    name: str
    at: int
    serialized: bytes


class FindNamedObject(_OnTheFirst[NamedObject], tag="named_objects.find", frozen=True):
    """Return the object of that number, which may be destroyed, or the live one of that name. Raises LookupError."""

    key: int | str


class ListNamedObjects(_OnTheFirst[list[int]], tag="named_objects.numbers", frozen=True):
    """Return the numbers of the live objects."""


class ForgetNamedObject(_OnTheFirst[None], tag="named_objects.forget", frozen=True):
    """Report that the object was destroyed."""

    number: int
