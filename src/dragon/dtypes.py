"""Constants and base classes of the low-level interface."""

from __future__ import annotations

import enum

from dragon.infrastructure.errors import DragonError
from dragon.rc import DragonError as Code

__all__ = [
    "ADAPTIVE_WAIT",
    "IDLE_WAIT",
    "SPIN_WAIT",
    "WHEN_BUFFERED",
    "WHEN_DEPOSITED",
    "WHEN_IMMEDIATE",
    "WHEN_RECEIVED",
    "DragonException",
    "DragonObjectDestroyed",
    "ReturnWhen",
    "WaitMode",
]


class WaitMode(enum.IntEnum):
    """Options of dragonhpc that have no effect: waiting adapts by itself.

    Attributes:
        IDLE_WAIT: has no effect.
        SPIN_WAIT: has no effect.
        ADAPTIVE_WAIT: has no effect.
    """

    IDLE_WAIT = 0
    SPIN_WAIT = 1
    ADAPTIVE_WAIT = 2


class ReturnWhen(enum.IntEnum):
    """Options of dragonhpc that have no effect: when send() returns, the message is in a channel of this node.

    Attributes:
        WHEN_IMMEDIATE: has no effect.
        WHEN_BUFFERED: has no effect.
        WHEN_DEPOSITED: has no effect.
        WHEN_RECEIVED: has no effect.
    """

    WHEN_IMMEDIATE = 0
    WHEN_BUFFERED = 1
    WHEN_DEPOSITED = 2
    WHEN_RECEIVED = 3


IDLE_WAIT, SPIN_WAIT, ADAPTIVE_WAIT = WaitMode
WHEN_IMMEDIATE, WHEN_BUFFERED, WHEN_DEPOSITED, WHEN_RECEIVED = ReturnWhen


class DragonException(DragonError):
    """The base class of the errors of the low-level interface.

    Attributes:
        code: the default code of the class.
        lib_err: the code of this error.
    """

    code = Code.FAILURE

    def __init__(self, text: str = "", lib_err: Code | None = None) -> None:
        super().__init__(text)
        self.lib_err = self.code if lib_err is None else lib_err


class DragonObjectDestroyed(DragonException):
    """The object was destroyed."""

    code = Code.OBJECT_DESTROYED
