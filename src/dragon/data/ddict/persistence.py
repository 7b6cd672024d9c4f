"""The classes that select how checkpoints of a dictionary are written to disk."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["CheckpointPersister", "DAOSCheckpointPersister", "NULLCheckpointPersister", "PosixCheckpointPersister"]


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
