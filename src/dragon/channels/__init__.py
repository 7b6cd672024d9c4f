"""Channels of messages, for programs of the low-level interface, implemented by the channels of the run.

A channel is a FIFO queue with any number of senders and receivers on all nodes. It exists while a process has it.
Messages are copied when they are sent. dragon.native.queue.Queue does the same for objects with less code.
"""

from __future__ import annotations

from typing import Any

from dragon.channels.channel import Channel, ChannelSet
from dragon.channels.errors import (
    ChannelBarrierBroken,
    ChannelDestroyed,
    ChannelEmpty,
    ChannelError,
    ChannelFull,
    ChannelHandleNotOpenError,
    ChannelRecvError,
    ChannelRecvTimeout,
    ChannelSendError,
    ChannelSendTimeout,
    ChannelSetError,
    ChannelSetTimeout,
    ChannelTimeout,
    ChannelValueError,
)
from dragon.channels.events import ChannelFlags, EventType, FlowControl, LockType, OwnershipOnSend, PollResult
from dragon.channels.files import (
    Many2ManyReadingChannelFile,
    Many2ManyWritingChannelFile,
    Peer2PeerReadingChannelFile,
    Peer2PeerWritingChannelFile,
)
from dragon.channels.handles import ChannelRecvH, ChannelSendH
from dragon.channels.message import Message
from dragon.dtypes import ADAPTIVE_WAIT, IDLE_WAIT, SPIN_WAIT
from dragon.infrastructure.lazy_modules import submodule

__all__ = [
    "ADAPTIVE_WAIT",
    "IDLE_WAIT",
    "SPIN_WAIT",
    "Channel",
    "ChannelBarrierBroken",
    "ChannelDestroyed",
    "ChannelEmpty",
    "ChannelError",
    "ChannelFlags",
    "ChannelFull",
    "ChannelHandleNotOpenError",
    "ChannelRecvError",
    "ChannelRecvH",
    "ChannelRecvTimeout",
    "ChannelSendError",
    "ChannelSendH",
    "ChannelSendTimeout",
    "ChannelSet",
    "ChannelSetError",
    "ChannelSetTimeout",
    "ChannelTimeout",
    "ChannelValueError",
    "EventType",
    "FlowControl",
    "LockType",
    "Many2ManyReadingChannelFile",
    "Many2ManyWritingChannelFile",
    "Message",
    "OwnershipOnSend",
    "Peer2PeerReadingChannelFile",
    "Peer2PeerWritingChannelFile",
    "PollResult",
]


def __getattr__(name: str) -> Any:
    if name in ("GatewayMessage", "register_gateways_from_env", "discard_gateways", "ChannelAdapterMsgTypes"):
        raise AttributeError(f"dragon.channels.{name} is not offered: agents take messages to other nodes themselves")
    return submodule(__name__, name)
