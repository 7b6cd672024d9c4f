"""What channels raise."""

from __future__ import annotations

import threading

from dragon.dtypes import DragonException, DragonObjectDestroyed
from dragon.rc import DragonError as Code

__all__ = [
    "ChannelBarrierBroken",
    "ChannelDestroyed",
    "ChannelEmpty",
    "ChannelError",
    "ChannelFull",
    "ChannelHandleNotOpenError",
    "ChannelRecvError",
    "ChannelRecvTimeout",
    "ChannelSendError",
    "ChannelSendTimeout",
    "ChannelSetError",
    "ChannelSetTimeout",
    "ChannelTimeout",
    "ChannelValueError",
]


class ChannelError(DragonException):
    """Any error of a channel."""


class ChannelTimeout(ChannelError, TimeoutError):
    """Something did not come about in time."""

    code = Code.TIMEOUT


class ChannelValueError(ChannelError, ValueError):
    """An argument that is not valid."""

    code = Code.INVALID_ARGUMENT


class ChannelSendError(ChannelError):
    """A message cannot be sent."""


class ChannelSendTimeout(ChannelSendError, TimeoutError):
    """There was no room for a message in time."""

    code = Code.TIMEOUT


class ChannelFull(ChannelSendError):
    """There is no room for a message."""

    code = Code.CHANNEL_FULL


class ChannelRecvError(ChannelError):
    """A message cannot be received."""


class ChannelRecvTimeout(ChannelRecvError, TimeoutError):
    """There was no message in time."""

    code = Code.TIMEOUT


class ChannelEmpty(ChannelRecvError):
    """There is no message."""

    code = Code.CHANNEL_EMPTY


class ChannelHandleNotOpenError(ChannelError):
    """A handle is used without open() before."""


class ChannelDestroyed(ChannelError, DragonObjectDestroyed):
    """The channel was destroyed."""

    code = Code.OBJECT_DESTROYED


class ChannelBarrierBroken(ChannelError, threading.BrokenBarrierError):
    """Raised by nothing here: dragon.native.barrier.Barrier is the barrier."""


class ChannelSetError(DragonException):
    """Any error of a ChannelSet."""


class ChannelSetTimeout(ChannelSetError, TimeoutError):
    """No channel of the set had a message in time."""

    code = Code.TIMEOUT
