"""The exceptions of distributed dictionaries. Each message names the key, the shard and the node."""

from __future__ import annotations

from typing import ClassVar

from dragon.infrastructure.errors import DragonLoggingError


class DDictError(DragonLoggingError):
    """The base class of the errors of dictionaries.

    Attributes:
        text: the message without "DDict Exception: ".
        lib_err: the code of this error, with the prefix DRAGON_.
    """

    code: ClassVar[str] = "FAILURE"  # the default code of the class, a name of dragon.rc.DragonError

    def __init__(self, text: str = "", lib_err: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.lib_err = f"DRAGON_{lib_err or self.code}"

    def __str__(self) -> str:
        return f"DDict Exception: {self.text}"


class DDictSyncError(DDictError):
    """Dictionaries that should be synchronized have different shapes."""


class DDictFullError(DDictError):
    """A value does not fit."""

    code = "MEMORY_POOL_FULL"


class DDictTimeoutError(DDictError, TimeoutError):
    """An operation did not finish in time."""

    code = "TIMEOUT"


class DDictMovedError(DDictError):
    """Another node is now the primary of a shard with replicas."""


class DDictPersistCheckpointError(DDictError, RuntimeError):
    """A checkpoint cannot be written or restored. It is also a RuntimeError, as other errors of making a dictionary."""

    code = "INVALID_OPERATION"


class DDictKeyError(DDictError, KeyError):
    """There is no such key."""

    code = "KEY_NOT_FOUND"


class DDictCheckpointSyncError(DDictError):
    """A checkpoint was read or written that is no longer held."""

    code = "DDICT_CHECKPOINT_RETIRED"


class DDictUnableToCreateError(DDictError):
    """The dictionary cannot be made."""


class DDictFutureCheckpointError(DDictError):
    """A checkpoint beyond the working set cannot be written in this way."""

    code = "DDICT_FUTURE_CHECKPOINT"


_classes: list[type[DDictError]] = [DDictError, *DDictError.__subclasses__()]
DDICT_ERRORS = {error.__name__: error for error in _classes}
