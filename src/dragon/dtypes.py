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


WaitMode = enum.IntEnum("WaitMode", "IDLE_WAIT SPIN_WAIT ADAPTIVE_WAIT", start=0)
"""Options of dragonhpc that have no effect: waiting adapts by itself."""

ReturnWhen = enum.IntEnum("ReturnWhen", "WHEN_IMMEDIATE WHEN_BUFFERED WHEN_DEPOSITED WHEN_RECEIVED", start=0)
"""Options of dragonhpc that have no effect: when send() returns, the message is in a channel of this node."""

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
