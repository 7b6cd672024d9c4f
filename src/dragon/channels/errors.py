"""The exceptions of channels."""

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
    """The base class of the errors of channels."""


class ChannelTimeout(ChannelError, TimeoutError):
    """An operation did not finish in time."""

    code = Code.TIMEOUT


class ChannelValueError(ChannelError, ValueError):
    """An argument is invalid."""

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
    """A handle was used before open()."""


class ChannelDestroyed(ChannelError, DragonObjectDestroyed):
    """The channel was destroyed."""

    code = Code.OBJECT_DESTROYED


class ChannelBarrierBroken(ChannelError, threading.BrokenBarrierError):
    """Never raised: use dragon.native.barrier.Barrier."""


class ChannelSetError(DragonException):
    """The base class of the errors of a ChannelSet."""


class ChannelSetTimeout(ChannelSetError, TimeoutError):
    """No channel of the set had a message in time."""

    code = Code.TIMEOUT
