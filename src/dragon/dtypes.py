"""Constants and base classes of dragonhpc's low-level interface."""

from __future__ import annotations

import enum
import sys

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
"""Options without effect: waiting adapts by itself."""
ReturnWhen = enum.IntEnum("ReturnWhen", "WHEN_IMMEDIATE WHEN_BUFFERED WHEN_DEPOSITED WHEN_RECEIVED", start=0)
"""Options without effect: when send() returns, the message is in a channel of this node."""
IDLE_WAIT, SPIN_WAIT, ADAPTIVE_WAIT = WaitMode
WHEN_IMMEDIATE, WHEN_BUFFERED, WHEN_DEPOSITED, WHEN_RECEIVED = ReturnWhen


class DragonException(DragonError):
    """The base class of the errors of the low-level interface: `lib_err` is the error's code, `code` its default."""

    code = Code.FAILURE

    def __init__(self, text: str = "", lib_err: Code | None = None) -> None:
        super().__init__(text)
        self.lib_err = self.code if lib_err is None else lib_err


def error_class(name: str, code: Code, *bases: type[Exception]) -> type[DragonException]:
    """Return a class of errors for the module that calls; the first base is a DragonException."""
    module = sys._getframe(1).f_globals["__name__"]
    made: type[DragonException] = type(name, bases, {"code": code, "__module__": module})
    return made


DragonObjectDestroyed = error_class("DragonObjectDestroyed", Code.OBJECT_DESTROYED, DragonException)
"""The object was destroyed."""
