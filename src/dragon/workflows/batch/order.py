"""The order of tasks that follows from the data they read and write.

A reader waits for the last writer of the same data, a writer for the last writer and for all readers since.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from dragon.workflows.batch.access import Access
from dragon.workflows.batch.entry import Entry


class _Part:
    """The users of one part of an object: its last writer, the error if that failed, and the readers since."""

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
    """The accesses of tasks that have not ended, and of writers that failed."""

    def __init__(self) -> None:
        self._objects: dict[Hashable, dict[Hashable, _Part]] = {}

    def add(self, entry: Entry, accesses: list[Access]) -> Iterator[tuple[Entry | str, bool]]:
        """Add the accesses of a task. Yields its dependencies: (a task, or the error of a failed one; whether the new
        task reads its data)."""
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
        """Remove the accesses of a task that has ended; `error` says how if it failed, else ""."""
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
