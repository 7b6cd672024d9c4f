"""The messages of Python's parts of two agents, which the wire carries in order: each an array of its kind and its
fields. A payload may come with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dragon.infrastructure.messages import decoder_of
from dragon.runtime.protocol.agents import Notice
from dragon.runtime.protocol.request import Request

if TYPE_CHECKING:
    AnyRequest = Request[object]
    AnyNotice = Notice
else:
    from dragon.runtime.protocol.decoding import AnyNotice, AnyRequest

__all__ = ["Asked", "Cancelled", "Failed", "Forwarded", "Frame", "Noticed", "Value", "decode_frame"]


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message. The requests of one side are numbered, and answered in any order."""


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
    """A notice, which is not answered."""

    notice: AnyNotice


class Cancelled(Frame, tag=4, frozen=True):
    """The answer to a request is not needed any more."""

    number: int


class Forwarded(Frame, tag=5, frozen=True):
    """A request that is not answered."""

    request: AnyRequest


# Decodes a message, which keeps the data. Raises msgspec.MsgspecError if they are invalid.
decode_frame: Callable[[bytes], Frame] = decoder_of(Asked | Value | Failed | Noticed | Cancelled | Forwarded).decode
