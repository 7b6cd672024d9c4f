"""What data a task reads and writes, and the order of tasks that follows from it.

A reader waits for the last writer of the same data, a writer for the last writer and for all readers since.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragon.workflows.batch.entry import Entry

__all__ = ["Access", "Accesses", "access"]


@dataclass(frozen=True)
class Access:
    """Some parts of an object that a task reads or writes; no parts: all of it."""

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


class _Part:
    """Who uses one part of an object: its last writer, the error if that failed, and those who read since."""

    __slots__ = ("error", "readers", "writer")

    def __init__(self) -> None:
        self.writer: Entry | None = None
        self.error = ""
        self.readers: list[Entry] = []

    @property
    def is_unused(self) -> bool:
        return self.writer is None and not self.error and not self.readers


_WHOLE: Hashable = ("the whole object",)


class Accesses:
    """The accesses of the tasks that have not ended, and of the writers that failed."""

    def __init__(self) -> None:
        self._objects: dict[Hashable, dict[Hashable, _Part]] = {}

    def add(self, entry: Entry, accesses: list[Access]) -> Iterator[tuple[Entry | str, bool]]:
        """Note what a task does; whom it has to wait for: (a task or the error of one that failed, whether it reads
        what that one writes)."""
        entry.accesses = accesses
        for one in accesses:
            parts = self._objects.setdefault(one.obj, {})
            for part in self._touched(parts, one):
                if part.writer is not None and part.writer is not entry:
                    yield part.writer, not one.writes
                elif part.error and not one.writes:
                    yield part.error, True
                if one.writes:
                    yield from ((reader, False) for reader in part.readers if reader is not entry)
            for name in one.parts or (_WHOLE,):
                own = parts.setdefault(name, _Part())
                if one.writes:
                    own.writer, own.error, own.readers = entry, "", []
                else:
                    own.readers.append(entry)

    @staticmethod
    def _touched(parts: dict[Hashable, _Part], one: Access) -> list[_Part]:
        if not one.parts:
            return list(parts.values())
        return [parts[name] for name in (*one.parts, _WHOLE) if name in parts]

    def ended(self, entry: Entry, error: str) -> None:
        """A task has ended; `error` says how if it failed."""
        for one in entry.accesses:
            parts = self._objects.get(one.obj, {})
            for name in one.parts or (_WHOLE,):
                part = parts.get(name)
                if part is None:
                    continue
                if part.writer is entry:
                    part.writer, part.error = None, error
                part.readers = [reader for reader in part.readers if reader is not entry]
                if part.is_unused:
                    del parts[name]
            if not parts:
                self._objects.pop(one.obj, None)
        entry.accesses = []
