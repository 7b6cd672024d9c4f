"""The events that the zygote sends to the agent about the processes that it starts."""

from __future__ import annotations

import msgspec

from dragon.infrastructure.messages import Name, decoder_of


class _Event(msgspec.Struct, tag_field="event", frozen=True):
    """An event of a process, by its puid; `group` is the number of its group, or 0."""

    puid: int
    group: int


class Stream(_Event, tag="stream", frozen=True):
    """Standard stream `number` of a process that is being started. `descriptors` is the number of descriptors that come
    with it: the agent's end, and the target to forward to. `channel` is that of the reader."""

    name: str
    number: int
    channel: Name | None
    descriptors: int


class Started(_Event, tag="started", frozen=True):
    """A process has started. `parent` is the puid of the requester, `record` holds its state, and `time` is when its
    start began, in nanoseconds since 1970."""

    pid: int
    name: str
    parent: int
    record: Name
    time: int


class Failed(_Event, tag="failed", frozen=True):
    """A process could not be started: the text of an error, and its number."""

    text: str
    error: int


class Exited(_Event, tag="exited", frozen=True):
    """A process has ended; a negative code is a signal. With `leaves` the processes that it started continue. `signals`
    has a bit for each signal that processes of its node have sent it through the runtime, from signal 1 on. `time` is
    in nanoseconds since 1970."""

    code: int
    signals: int
    leaves: int
    time: int


class Synchronised(msgspec.Struct, tag_field="event", tag="synchronised", frozen=True):
    """The zygote has sent all events up to the SYNCHRONISE request."""


Event = Stream | Started | Failed | Exited

_decoder: msgspec.msgpack.Decoder[list[Event | Synchronised]] = decoder_of(list[Event | Synchronised])


def decode_events(data: bytes) -> list[Event | Synchronised]:
    """Decode the events of a message of the zygote. Raises msgspec.MsgspecError for unknown ones."""
    return _decoder.decode(data)
