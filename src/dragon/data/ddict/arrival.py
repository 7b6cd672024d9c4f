"""Assembles the reply of another node, whose buffers may arrive in pieces."""

from __future__ import annotations

from typing import Any

from dragon import _core

__all__ = ["Arrival", "Memory"]

_IN_ARENA = 256 * 1024  # bytes from which a value's memory is taken from the arena, whose pages are already mapped


class Arrival:
    """A reply, as far as it has arrived.

    `sizes` are the sizes in bytes of the buffers that follow in `pieces`; with `as_bytes` each becomes a bytes object.
    """

    __slots__ = ("_as_bytes", "_sizes", "_under_way", "buffers", "error", "pieces", "value")

    def __init__(
        self, buffers: list[Any], value: Any, error: Any, sizes: list[int] | None = None, as_bytes: bool = False
    ) -> None:
        self.buffers, self.value, self.error = buffers, value, error
        self.pieces: list[Any] = []
        self._sizes = sizes
        self._as_bytes = as_bytes
        self._under_way: _core.BytesInPieces | Memory | None = None

    def gather(self) -> bool:
        """Copy the pieces into their buffers. Returns whether the reply is complete."""
        while self._sizes:
            if self._under_way is None:
                size = self._sizes[0]
                self._under_way = _core.BytesInPieces(size) if self._as_bytes else Memory(size)
            while self.pieces and self._under_way.missing:
                self._under_way.add(self.pieces.pop(0))
            if self._under_way.missing:
                return False
            self.buffers.append(self._under_way.whole())
            self._sizes.pop(0)
            self._under_way = None
        return True


class Memory:
    """Writable memory of `size` bytes, for example of an array, that is filled with pieces in order."""

    def __init__(self, size: int) -> None:
        self.missing = size
        self._memory = memoryview(_new_memory(size))

    def add(self, piece: Any) -> None:
        """Append the next piece."""
        start, size = len(self._memory) - self.missing, len(piece)
        self._memory[start : start + size] = piece
        self.missing -= size

    def whole(self) -> memoryview:
        """Return the whole memory."""
        return self._memory


def _new_memory(size: int) -> Any:
    if size >= _IN_ARENA:
        try:
            return _core.Loan(size)
        except MemoryError:
            pass  # the arena has no room
    return bytearray(size)
