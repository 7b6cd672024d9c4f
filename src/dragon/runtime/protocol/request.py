"""What all requests have in common, and how they and their answers are sent.

A request is a frame of its length (4 bytes, little-endian) and a msgpack array of its tag and its fields; the answer is
a frame of a Reply.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, get_args

import msgspec

from dragon.infrastructure.facts import PUID_NODE_SHIFT, node_of_puid
from dragon.infrastructure.messages import decoder_of, encode

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "BetweenAgents",
    "Caller",
    "Handler",
    "OfAll",
    "OfNumber",
    "OfProcess",
    "OnNode",
    "Reply",
    "Request",
    "Where",
    "answer_type",
    "decode_answer",
    "decode_numbered",
    "decode_numbered_reply",
    "decode_reply",
    "encode_numbered",
    "encode_request",
    "frame",
    "tag_of",
]

Answer_co = TypeVar("Answer_co", covariant=True)
Item = TypeVar("Item")
Value = TypeVar("Value")


class Where(enum.Enum):
    """Where a request is done, if that is not a node of which the index is known."""

    HERE = "by the agent that is asked"
    ALL = "by all agents"
    NAMED = "by the agent that has what is called so"


class Caller(NamedTuple):
    """Who asks: a node, the process of it, and the descriptors that came with the request, which are closed after it
    was taken."""

    node: int
    pid: int = 0
    descriptors: Sequence[int] = ()


class Handler(NamedTuple):
    """What an agent does for a kind of request."""

    kind: type[Request[object]]
    do: Callable[[Any, Caller], object]  # the answer, or a future of it


class Request(msgspec.Struct, Generic[Answer_co], frozen=True, array_like=True, forbid_unknown_fields=True):
    """Something that is asked of an agent, and that an `Answer` answers."""

    def place(self) -> int | Where:
        """Where it is done; an index that is no node's is that of the agent that is asked."""
        return Where.HERE

    @classmethod
    def served_by(cls, do: Callable[[Self], Answer_co | asyncio.Future[Answer_co]]) -> Handler:
        """Have that answer it."""
        return Handler(cls, lambda request, _: do(request))

    @classmethod
    def served_for(cls, do: Callable[[Self, Caller], Answer_co | asyncio.Future[Answer_co]]) -> Handler:
        """The same, which is told who asks."""
        return Handler(cls, do)


class BetweenAgents(Request[Answer_co], Generic[Answer_co], frozen=True):
    """One that only agents ask, and whom they like."""


class OnNode(Request[Answer_co], Generic[Answer_co], frozen=True):
    """One that is done on a node, -1 being that of the agent that is asked."""

    node: int

    def place(self) -> int | Where:
        """The node that the request names."""
        return self.node


class OfNumber(Request[Answer_co], Generic[Answer_co], frozen=True):
    """One about a group, which is done on the node where that was made."""

    number: int

    def place(self) -> int | Where:
        """The node whose index is in the upper bits of the number."""
        return self.number >> PUID_NODE_SHIFT


class OfProcess(Request[Answer_co], Generic[Answer_co], frozen=True):
    """One about a process of that puid or name, which is done on its node."""

    identifier: int | str

    def place(self) -> int | Where:
        """The node of the process; for a name, the agent that has a process of it."""
        return Where.NAMED if isinstance(self.identifier, str) else node_of_puid(self.identifier)


class OfAll(Request[list[Item]], Generic[Item], frozen=True):
    """One that all nodes answer, each with a list; the answer is all of these in one."""

    def place(self) -> int | Where:
        """All agents."""
        return Where.ALL


class Reply(msgspec.Struct, Generic[Value]):
    """The answer to a request: a value, or the class and text of an error."""

    value: Value | None = None
    error: tuple[str, str] | None = None


class _Numbered(msgspec.Struct, frozen=True, array_like=True):
    number: int
    request: msgspec.Raw = msgspec.Raw(b"")


def tag_of(kind: type[Request[object]]) -> str:
    """What a kind of request is called where it is sent."""
    return str(kind.__struct_config__.tag)


@functools.cache
def answer_type(kind: type[Request[object]]) -> Any:
    """The type of what answers a kind of request."""
    (answer,) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]
    return list[answer] if issubclass(kind, OfAll) else answer  # type: ignore[valid-type]


_decoder = functools.cache(decoder_of)
_numbered: msgspec.msgpack.Decoder[_Numbered] = decoder_of(_Numbered)
_numbered_reply: msgspec.msgpack.Decoder[tuple[int, msgspec.Raw]] = decoder_of(tuple[int, msgspec.Raw])


@functools.cache
def _reply_decoder(kind: type[Request[object]]) -> msgspec.msgpack.Decoder[Any]:
    return _decoder(Reply[answer_type(kind)])  # type: ignore[misc]


def frame(body: bytes) -> bytes:
    """A body as it is sent, after its length."""
    return len(body).to_bytes(4, "little") + body


def encode_request(request: Request[object]) -> bytes:
    """A request as it is sent. Raises ValueError for text that is not UTF-8."""
    return frame(encode(request))


def encode_numbered(number: int, request: Request[object] | None) -> bytes:
    """One of several requests over a connection as it is sent, to be answered by its number and a Reply whenever that
    is there. Without a request, that of the number is not wanted any more; it is answered all the same."""
    return frame(encode((number, request) if request is not None else (number,)))


def decode_numbered(body: bytes) -> tuple[int, bytes]:
    """The number of a request, and the request as it is encoded; empty where that of the number is not wanted any more.
    Raises msgspec.MsgspecError for anything else."""
    found = _numbered.decode(body)
    return found.number, bytes(found.request)


def decode_numbered_reply(body: bytes | bytearray) -> tuple[int, msgspec.Raw]:
    """The number of a request and the Reply to it, which decode_reply() reads."""
    number, reply = _numbered_reply.decode(body)
    return number, reply


def decode_reply(request: Request[Value], body: bytes | bytearray | msgspec.Raw) -> Reply[Value]:
    """What answers a request. Raises msgspec.MsgspecError where that is something else."""
    reply: Reply[Value] = _reply_decoder(type(request)).decode(body)
    return reply


def decode_answer(request: Request[Value], value: msgspec.Raw) -> Value:
    """The answer alone. Raises msgspec.MsgspecError where that is something else."""
    answer: Value = _decoder(answer_type(type(request))).decode(value)
    return answer
