"""What data a task reads and writes."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

__all__ = ["Access", "access"]


@dataclass(frozen=True)
class Access:
    """Some parts of an object that a task reads or writes; no parts: all of it.

    Examples:
        >>> from dragon.workflows.batch import Batch
        >>> with Batch(workers_per_node=1) as batch:
        ...     batch.write("/data", "a.csv").writes, batch.read("/data/a.csv").parts
        (True, ('/data/a.csv',))
    """

    obj: Hashable
    parts: tuple[Hashable, ...]
    writes: bool


def access(obj: Any, channels: tuple[Any, ...], writes: bool) -> Access:
    """An access to files (a folder and names in it, or one file), to keys of a DDict, or to parts of anything hashable.

    Raises TypeError for an object or a part that has no hash.
    """
    if isinstance(obj, (str, os.PathLike)):
        # Every file is an object of its own, so that it is the same by whatever way it is named.
        base = os.path.abspath(os.fspath(obj))
        files = [os.path.normpath(os.path.join(base, os.fspath(part))) for part in channels] or [base]
        return Access("files", tuple(files), writes)
    from dragon.data.ddict import DDict  # not needed by most

    name: Hashable = ("ddict", obj.get_name()) if isinstance(obj, DDict) else obj
    found = Access(name, tuple(channels), writes)
    hash(found)
    return found
