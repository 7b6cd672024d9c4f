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

__all__ = ["Asked", "Cancelled", "Failed", "Frame", "Greeted", "Messages", "Noticed", "Value", "decode_frame"]


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of them. Requests of one side are numbered, and answered in any order."""


class Asked(Frame, tag=0, frozen=True):
    """A request."""

    number: int
    request: AnyRequest


class Value(Frame, tag=1, frozen=True):
    """The answer to one, as it was encoded."""

    number: int
    value: msgspec.Raw


class Failed(Frame, tag=2, frozen=True):
    """The class and text of the error that answers one."""

    number: int
    kind: str
    text: str


class Noticed(Frame, tag=3, frozen=True):
    """What needs no answer."""

    notice: AnyNotice


class Cancelled(Frame, tag=4, frozen=True):
    """A request is waited for no more."""

    number: int


class Messages(Frame, tag=5, frozen=True):
    """Messages of a flow: `start` and the payload."""

    flow: int
    kind: int
    start: bytes = b""


class Greeted(Frame, tag=6, frozen=True):
    """What the other side is told first, where there is a fabric."""

    greeting: Greeting


_decoder: msgspec.msgpack.Decoder[Frame] = decoder_of(Asked | Value | Failed | Noticed | Cancelled | Messages | Greeted)


def decode_frame(data: bytes) -> Frame:
    """A frame, which keeps `data`. Raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)
