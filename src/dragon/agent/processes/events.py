"""What the zygote tells the agent of the processes that it was asked to start."""

from __future__ import annotations

import msgspec

from dragon.infrastructure.messages import Name, decoder_of

__all__ = ["Event", "Exited", "Failed", "Started", "Stream", "Synchronised", "decode_events"]


class _Event(msgspec.Struct, tag_field="event", frozen=True):
    """An event of a process, by its puid, in a group of that number; 0 where it is in no group."""

    puid: int
    group: int


class Stream(_Event, tag="stream", frozen=True):
    """Standard stream `number` of a process that is being started. As many `descriptors` come with it: the agent's end,
    and where to pass on what is read from it; `channel` is who reads it."""

    name: str
    number: int
    channel: Name | None
    descriptors: int


class Started(_Event, tag="started", frozen=True):
    """It runs. `parent` asked for it, `record` is where its state is kept."""

    pid: int
    name: str
    parent: int
    record: Name


class Failed(_Event, tag="failed", frozen=True):
    """It could not be started: the text of an error, and its number."""

    text: str
    error: int


class Exited(_Event, tag="exited", frozen=True):
    """It has ended, by itself or (a negative code) by a signal. With `leaves` the processes that it started go on.

    `signals` has a bit for each signal that processes of its node have sent it by the runtime, from 1 on.
    """

    code: int
    signals: int
    leaves: int


class Synchronised(msgspec.Struct, tag_field="event", tag="synchronised", frozen=True):
    """The zygote has told what it had done when it was asked."""


Event = Stream | Started | Failed | Exited

_decoder: msgspec.msgpack.Decoder[list[Event | Synchronised]] = decoder_of(list[Event | Synchronised])


def decode_events(data: bytes) -> list[Event | Synchronised]:
    """The events of a message of the zygote's. Raises msgspec.MsgspecError where there are others in it."""
    return _decoder.decode(data)
