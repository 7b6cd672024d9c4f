"""What a distributed dictionary raises. Each message names the key, the shard and the node it is about."""

from __future__ import annotations

from typing import ClassVar

from dragon.infrastructure.errors import DragonLoggingError

__all__ = [
    "DDICT_ERRORS",
    "DDictCheckpointSyncError",
    "DDictError",
    "DDictFullError",
    "DDictFutureCheckpointError",
    "DDictKeyError",
    "DDictMovedError",
    "DDictPersistCheckpointError",
    "DDictSyncError",
    "DDictTimeoutError",
    "DDictUnableToCreateError",
]


class DDictError(DragonLoggingError):
    """Any error of a dictionary. `lib_err` is the code of its kind: DRAGON_ and a name of dragon.rc.DragonError."""

    code: ClassVar[str] = "FAILURE"

    def __init__(self, text: str = "", lib_err: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.lib_err = f"DRAGON_{lib_err or self.code}"

    def __str__(self) -> str:
        return f"DDict Exception: {self.text}"


class DDictSyncError(DDictError):
    """Dictionaries that were to be brought into step differ."""


class DDictFullError(DDictError):
    """A value does not fit."""

    code = "MEMORY_POOL_FULL"


class DDictTimeoutError(DDictError, TimeoutError):
    """Something did not come about in time."""

    code = "TIMEOUT"


class DDictMovedError(DDictError):
    """Another node decides about a shard that is kept on several now."""


class DDictPersistCheckpointError(DDictError, RuntimeError):
    """A checkpoint cannot be written, or cannot be read back; a RuntimeError, as all that keeps a dictionary from being
    made with one."""

    code = "INVALID_OPERATION"


class DDictKeyError(DDictError, KeyError):
    """There is no such key."""

    code = "KEY_NOT_FOUND"


class DDictCheckpointSyncError(DDictError):
    """A checkpoint that is no longer held was to be read or written."""

    code = "DDICT_CHECKPOINT_RETIRED"


class DDictUnableToCreateError(DDictError):
    """The dictionary cannot be made."""


class DDictFutureCheckpointError(DDictError):
    """A checkpoint beyond the working set cannot be written in this way."""

    code = "DDICT_FUTURE_CHECKPOINT"


DDICT_ERRORS: dict[str, type[DDictError]] = {
    error.__name__: error
    for error in (
        DDictError,
        DDictSyncError,
        DDictFullError,
        DDictTimeoutError,
        DDictPersistCheckpointError,
        DDictKeyError,
        DDictCheckpointSyncError,
        DDictUnableToCreateError,
        DDictFutureCheckpointError,
        DDictMovedError,
    )
}
