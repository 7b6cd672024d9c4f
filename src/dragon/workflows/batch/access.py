"""The data that a task reads or writes."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Access:
    """Parts of an object that a task reads or writes; without parts, all of it.

    Attributes:
        obj: the object, as a hashable key.
        parts: its parts; empty for all of it.
        writes: whether they are written.

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
    """Return an access to files (a folder and names in it, or one file), to keys of a DDict, or to parts of any
    hashable object.

    Raises TypeError for an object or a part that is not hashable.
    """
    if isinstance(obj, (str, os.PathLike)):
        # Files are identified by their absolute paths, so that a file has the same identity however it is named.
        base = os.path.abspath(os.fspath(obj))
        files = [os.path.normpath(os.path.join(base, os.fspath(part))) for part in channels] or [base]
        return Access("files", tuple(files), writes)
    from dragon.data.ddict import DDict  # imported here, since most batches do not need it

    name: Hashable = ("ddict", obj.get_name()) if isinstance(obj, DDict) else obj
    found = Access(name, tuple(channels), writes)
    hash(found)
    return found
