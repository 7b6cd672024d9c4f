"""What a distributed dictionary raises. Each message names the key, the shard and the node it is about."""

from __future__ import annotations

from dragon.infrastructure.errors import DragonLoggingError

__all__ = [
    "DDICT_ERRORS",
    "DDictCheckpointSyncError",
    "DDictError",
    "DDictFullError",
    "DDictFutureCheckpointError",
    "DDictKeyError",
    "DDictPersistCheckpointError",
    "DDictSyncError",
    "DDictTimeoutError",
    "DDictUnableToCreateError",
]


class DDictError(DragonLoggingError):
    """Any error of a dictionary. `lib_err` is a word for its kind."""

    def __init__(self, text: str = "", lib_err: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.lib_err = lib_err or type(self).__name__

    def __str__(self) -> str:
        return f"DDict Exception: {self.text}"


class DDictSyncError(DDictError):
    """Dictionaries that were to be brought into step differ."""


class DDictFullError(DDictError):
    """A value does not fit."""


class DDictTimeoutError(DDictError, TimeoutError):
    """Something did not come about in time."""


class DDictPersistCheckpointError(DDictError):
    """A checkpoint cannot be written, or cannot be read back."""


class DDictKeyError(DDictError, KeyError):
    """There is no such key."""


class DDictCheckpointSyncError(DDictError):
    """A checkpoint that is no longer held was to be written."""


class DDictUnableToCreateError(DDictError):
    """The dictionary cannot be made."""


class DDictFutureCheckpointError(DDictError):
    """A checkpoint beyond the working set cannot be written in this way."""


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
    )
}
