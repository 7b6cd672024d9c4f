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
    """Taken and unused: waiting adapts by itself."""

    IDLE_WAIT = 0
    SPIN_WAIT = 1
    ADAPTIVE_WAIT = 2


class ReturnWhen(enum.IntEnum):
    """Taken and unused: what was sent to a channel of this node is in it when send() returns."""

    WHEN_IMMEDIATE = 0
    WHEN_BUFFERED = 1
    WHEN_DEPOSITED = 2
    WHEN_RECEIVED = 3


IDLE_WAIT, SPIN_WAIT, ADAPTIVE_WAIT = WaitMode
WHEN_IMMEDIATE, WHEN_BUFFERED, WHEN_DEPOSITED, WHEN_RECEIVED = ReturnWhen


class DragonException(DragonError):
    """Any error of the low-level interface. `lib_err` is its code."""

    code = Code.FAILURE

    def __init__(self, text: str = "", lib_err: Code | None = None) -> None:
        super().__init__(text)
        self.lib_err = self.code if lib_err is None else lib_err


class DragonObjectDestroyed(DragonException):
    """The object was destroyed."""

    code = Code.OBJECT_DESTROYED
