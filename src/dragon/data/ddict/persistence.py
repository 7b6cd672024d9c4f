"""The classes that select how checkpoints of a dictionary are written to disk."""

from __future__ import annotations

import warnings
from typing import ClassVar

from dragon.infrastructure.errors import NotSupportedError
from dragon.shards.snapshot import files_in

__all__ = [
    "CheckpointPersister",
    "DAOSCheckpointPersister",
    "NULLCheckpointPersister",
    "PosixCheckpointPersister",
    "check_persister",
    "warn_of_no_checkpoint",
]


class CheckpointPersister:
    """The base class of the ways to persist, which the agents implement. Subclasses of a program are not supported.

    Attributes:
        kind: the name of the way to persist.
    """

    kind: ClassVar[str] = ""


class NULLCheckpointPersister(CheckpointPersister):
    """Writes nothing.

    Examples:
        >>> from dragon.data.ddict import DDict, NULLCheckpointPersister
        >>> with DDict(1, 1, 16 * 2**20, persister_class=NULLCheckpointPersister) as ddict:
        ...     ddict["a"] = 1
        ...     ddict.persisted_ids()
        []
    """

    kind = "NULL"


class PosixCheckpointPersister(CheckpointPersister):
    """Writes files `{name}_{manager}_{checkpoint}.{set}.ddict` to the dictionary's persist_path; those of one persist()
    have the same `set`.

    Examples:
        >>> from dragon.data.ddict import DDict, PosixCheckpointPersister
        >>> options = {"persist_freq": 1, "persist_count": 2, "persister_class": PosixCheckpointPersister}
        >>> with DDict(1, 1, 16 * 2**20, name="model", **options) as ddict:
        ...     ddict["step"] = 0
        ...     ddict.persist()
        ...     ddict.persisted_ids()
        [0]
    """

    kind = "POSIX"


class DAOSCheckpointPersister(CheckpointPersister):
    """Not supported: DDict() raises NotSupportedError for it."""

    kind = "DAOS"


def check_persister(persister: type[CheckpointPersister], persist_freq: int) -> None:
    """Raise NotSupportedError for a class that is not supported, AttributeError if nothing would be written."""
    if persister is NULLCheckpointPersister and persist_freq:
        raise AttributeError("persist_freq needs a persister_class that writes: PosixCheckpointPersister")
    if persister not in (NULLCheckpointPersister, PosixCheckpointPersister):
        raise NotSupportedError(
            f"{getattr(persister, '__name__', persister)} is not offered; "
            "PosixCheckpointPersister writes to any file system that is mounted"
        )


def warn_of_no_checkpoint(name: str, folder: str) -> None:
    """Warn that a restarted dictionary finds no checkpoint and begins empty."""
    others = ", ".join(map(repr, sorted({file.name for file in files_in(folder)})))
    warnings.warn(
        f"restart: {folder} has no checkpoint of a dictionary {name!r}, which begins empty"
        + (f"; there are those of {others}" if others else ""),
        RuntimeWarning,
        stacklevel=3,
    )
