"""The base classes of requests, and the encoding of requests and replies.

A request is a frame of its length (4 bytes, little-endian) and a msgpack array of its tag, the name of its class, and
its fields; the reply is a frame with a Reply.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, get_args

from dragon.infrastructure.facts import PUID_NODE_SHIFT, node_of_puid
from dragon.infrastructure.messages import decoder_of, encode
from dragon.infrastructure.structs import msgspec

Answer_co = TypeVar("Answer_co", covariant=True)
Item = TypeVar("Item")
Value = TypeVar("Value")


class Caller(NamedTuple):
    """The sender of a request, and the descriptors that were sent along, which are closed after it was accepted."""

    node: int
    pid: int = 0
    descriptors: Sequence[int] = ()


class Request(msgspec.Struct, Generic[Answer_co], array_like=True, forbid_unknown_fields=True, tag=True):
    """A request to an agent. The type argument is the type of its reply. If it is `repeatable`, executing it twice is
    as good as once: another node is asked again if the connection breaks."""

    repeatable: ClassVar[bool] = False

    def place(self) -> int:
        """Return the node that handles the request; an index that belongs to no node means the receiving agent."""
        return -1


class BetweenAgents(Request[Answer_co], Generic[Answer_co]):
    """A request that only agents send, each to any other."""


class OfAProcess(Request[Answer_co], Generic[Answer_co]):
    """A request that the agent handles only for the process that sends it, not for other agents."""


class OnNode(Request[Answer_co], Generic[Answer_co]):
    """A request that is handled on a node, -1 being that of the receiving agent."""

    node: int

    def place(self) -> int:
        """Return the node that the request names."""
        return self.node


class OfNumber(Request[Answer_co], Generic[Answer_co]):
    """A request about a group, which is handled on the node that made it."""

    number: int

    def place(self) -> int:
        """Return the node whose index is in the upper bits of the number."""
        return self.number >> PUID_NODE_SHIFT


class OfProcess(Request[Answer_co], Generic[Answer_co]):
    """A request about a process, which is handled on its node."""

    puid: int

    def place(self) -> int:
        """Return the node of the process."""
        return node_of_puid(self.puid)


class OfAll(Request[list[Item]], Generic[Item]):
    """A request to all nodes. Each replies with a list; the reply is their concatenation."""

    repeatable: ClassVar[bool] = True


class Ask(Protocol):
    """Asks the agents of a run."""

    async def __call__(self, request: Request[Value], /) -> Value:
        """Return the agents' answer. Raises RunEndedError if the run is ending."""


class Reply(msgspec.Struct, Generic[Value]):
    """The reply to a request: a value, or the class and text of an error."""

    value: Value | None = None
    error: tuple[str, str] | None = None


def tag_of(kind: type[msgspec.Struct]) -> str:
    """Return the tag of a kind of request in the encoding."""
    return str(kind.__struct_config__.tag)


@functools.cache
def answer_type(kind: type[Request[object]]) -> object:
    """Return the type of the reply to a kind of request."""
    (answer,) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]
    return list[answer] if issubclass(kind, OfAll) else answer  # type: ignore[valid-type]


_decoder = functools.cache(decoder_of)


@functools.cache
def _reply_decoder(kind: type[Request[object]]) -> msgspec.msgpack.Decoder[Any]:
    return _decoder(Reply[answer_type(kind)])  # type: ignore[misc]


def frame(body: bytes) -> bytes:
    """Return a body after its length, as it is sent."""
    return len(body).to_bytes(4, "little") + body


def encode_request(request: Request[object]) -> bytes:
    """Return the frame of a request. Raises ValueError for text that is not UTF-8."""
    return frame(encode(request))


def decode_reply(request: Request[Value], body: bytes | bytearray) -> Reply[Value]:
    """Return the reply to a request. Raises msgspec.MsgspecError for anything else."""
    reply: Reply[Value] = _reply_decoder(type(request)).decode(body)
    return reply


def decode_answer(request: Request[Value], value: msgspec.Raw) -> Value:
    """Return the value of a reply. Raises msgspec.MsgspecError for anything else."""
    answer: Value = _decoder(answer_type(type(request))).decode(value)
    return answer
