"""The description of a channel of dragon.globalservices.channel."""

from __future__ import annotations

from dragon.infrastructure.process_desc import ProcessDescriptor
from dragon.infrastructure.structs import msgspec


class ChannelOptions(msgspec.Struct, kw_only=True):
    """The options of a new channel: `capacity` and `block_size` of `local_opts`, if it has them."""

    local_opts: object = None
    ref_count: bool = False


class ChannelDescriptor(msgspec.Struct):
    """A channel. `m_uid` is the number of its pool: the index of its node; `sdesc` the argument of Channel.attach()."""

    State = ProcessDescriptor.State

    m_uid: int
    c_uid: int
    name: str
    node: int
    state: ProcessDescriptor.State
    sdesc: bytes
