"""Copies of shared memory of other nodes.

A program may have views of a copy, such as NumPy's, which read and change it without a call. What they have changed is
written back before this process sends anything to another node, and when it ends; the copy is read again whenever the
process has received something from another node, or acquired a lock there. So processes that exchange data in turns
see each other's changes.
"""

from __future__ import annotations

import atexit
import itertools
import sys
import weakref
from collections.abc import Iterator
from typing import ClassVar, Protocol

from dragon.infrastructure.errors import DestroyedError, NodeLostError, RunEndedError
from dragon.runtime.log import warn_user

_Bytes = bytes | bytearray
_BLOCK = 4096  # elements that are compared at once
_WIDTHS = {1, 2, 4, 8}  # bytes, of NumPy's unsigned integers


class _Words(Protocol):
    def _read(self, start: int, size: int) -> bytes: ...
    def _write_parts(self, parts: list[tuple[int, bytes]]) -> None: ...


# By their ids: copies of which there may be views, and those that were dropped before a view's changes had been written
# back. Mostly there are none, which is tested before each message.
viewed: dict[int, weakref.ref[Copy] | Copy] = {}


class Copy:
    """A copy, empty until it is read, of `size` shared bytes of another node, written in elements of `grain` bytes."""

    _viewed: ClassVar = viewed  # still available when the interpreter has cleared the module

    def __init__(self, words: _Words, size: int, grain: int) -> None:
        self.memory = bytearray(size)
        self._words = words
        self._grain = grain
        self._synced: bytearray | None = None  # what was last read or written; None if there are no views

    def have_views(self) -> None:
        """Keep the copy in step with the shared memory from now on, since the program may have views of it."""
        if self._synced is None:
            self.read(0, len(self.memory))
            self._synced = bytearray(self.memory)
            if not viewed:
                atexit.register(write_back)
            viewed[id(self)] = weakref.ref(self)

    def read(self, start: int, size: int) -> None:
        """Read bytes again, after views' changes of them were written back."""
        self.write_back(start, size)
        data = self._words._read(start, size)
        if self._synced is None:
            self.memory[start : start + size] = data
            return
        # Only what others have changed, as another thread may change the rest in a view just now.
        for first, last in _differences(self._synced[start : start + size], data, self._grain):
            self.memory[start + first : start + last] = data[first:last]
            self._synced[start + first : start + last] = data[first:last]

    def write(self, start: int, before: _Bytes) -> None:
        """Write what differs from the bytes that were there before. Raises NodeLostError and DestroyedError."""
        is_all = len(before) == len(self.memory)
        after = self.memory if is_all else self.memory[start : start + len(before)]  # nothing large is copied
        changes = _differences(before, after, self._grain)
        parts = [(start + first, bytes(after[first:last])) for first, last in changes]
        self._words._write_parts(parts)
        if self._synced is not None:
            for first, data in parts:
                self._synced[first : first + len(data)] = data

    def write_back(self, start: int = 0, size: int | None = None) -> None:
        """Write what views have changed. Raises NodeLostError and DestroyedError."""
        if self._synced is not None:
            is_all = size is None or size == len(self.memory)
            self.write(start, self._synced if is_all else self._synced[start : start + (size or 0)])

    def refresh(self) -> None:
        """Read everything again. Raises NodeLostError and DestroyedError."""
        self.read(0, len(self.memory))

    def __del__(self) -> None:
        # The garbage collector may run during a request, so it is written with the next one.
        if self._synced is not None and self._synced != self.memory:
            self._viewed[id(self)] = self
        else:
            self._viewed.pop(id(self), None)


def write_back() -> None:
    """Write back what views have changed of all copies."""
    _keep_in_step(False)


def refresh() -> None:
    """Read all copies again of which there may be views."""
    _keep_in_step(True)


def _keep_in_step(again: bool) -> None:
    for kept in list(viewed.values()):
        copy = kept() if isinstance(kept, weakref.ref) else kept
        if copy is None:
            continue
        is_over = copy is kept  # it was dropped
        try:
            copy.refresh() if again else copy.write_back()
        except (DestroyedError, RunEndedError):
            is_over = True  # nobody has that memory any more
        except NodeLostError as error:
            is_over = True
            warn_user(f"a view of shared memory of another node keeps its contents from now on: {error}")
        if is_over:
            copy._synced = None
            viewed.pop(id(copy), None)


def _differences(before: _Bytes, after: _Bytes, grain: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of elements that differ."""
    if before == after:
        return
    numpy = sys.modules.get("numpy")
    if numpy is not None and grain in _WIDTHS and hasattr(numpy, "flatnonzero"):
        changed = numpy.frombuffer(before, f"u{grain}") != numpy.frombuffer(after, f"u{grain}")
        edges = numpy.flatnonzero(numpy.diff(changed, prepend=False, append=False)) * grain
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        return
    for block in range(0, len(after), _BLOCK * grain):
        old, new = before[block : block + _BLOCK * grain], after[block : block + _BLOCK * grain]
        if old == new:
            continue
        changed = {at: old[at : at + grain] != new[at : at + grain] for at in range(0, len(new), grain)}
        for differ, run in itertools.groupby(changed, changed.__getitem__):
            if differ:
                first, *more = run
                yield block + first, block + first + grain * (1 + len(more))
