"""The frames between two agents: each an array of its kind and its fields, which payload bytes may follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dragon.agent.wire.bulk import Greeting
from dragon.infrastructure.messages import decoder_of
from dragon.runtime.protocol.agents import Notice
from dragon.runtime.protocol.request import Request

if TYPE_CHECKING:
    AnyRequest = Request[object]
    AnyNotice = Notice
else:
    from dragon.runtime.protocol.decoding import AnyNotice, AnyRequest

__all__ = [
    "Asked",
    "Cancelled",
    "Failed",
    "Forwarded",
    "Frame",
    "Greeted",
    "Messages",
    "Noticed",
    "State",
    "Value",
    "decode_frame",
]


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A frame. The requests of one side are numbered, and answered in any order."""


class Asked(Frame, tag=0, frozen=True):
    """A request."""

    number: int
    request: AnyRequest


class Value(Frame, tag=1, frozen=True):
    """The answer to a request, encoded."""

    number: int
    value: msgspec.Raw


class Failed(Frame, tag=2, frozen=True):
    """The class and text of the error that answers a request."""

    number: int
    kind: str
    text: str


class Noticed(Frame, tag=3, frozen=True):
    """A notice, which is not answered. It has a number if it is kept until it is acknowledged."""

    notice: AnyNotice
    number: int = 0


class Cancelled(Frame, tag=4, frozen=True):
    """The answer to a request is not needed any more."""

    number: int


class Messages(Frame, tag=5, frozen=True):
    """Messages of a flow: `start`, followed by the payload."""

    flow: int
    kind: int
    start: bytes = b""


class Greeted(Frame, tag=6, frozen=True):
    """The second frame of a side that has a fabric."""

    greeting: Greeting


class Forwarded(Frame, tag=7, frozen=True):
    """A request that is not answered, and kept until it is acknowledged."""

    number: int
    request: AnyRequest


class State(Frame, tag=8, frozen=True):
    """The epoch of the sender's session: the first frame of each side, and one to acknowledge others with.

    `before` is the last epoch that had a connection, and the number of the last frame that was handled in it.
    """

    epoch: int
    before: tuple[int, int] = (-1, 0)


_decoder: msgspec.msgpack.Decoder[Frame] = decoder_of(
    Asked | Value | Failed | Noticed | Cancelled | Messages | Greeted | Forwarded | State
)


def decode_frame(data: bytes) -> Frame:
    """Decode a frame, which keeps `data`. Raises msgspec.MsgspecError if it is invalid."""
    return _decoder.decode(data)
