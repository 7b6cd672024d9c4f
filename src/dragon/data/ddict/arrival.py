"""An answer of another node, whose memory may come in pieces."""

from __future__ import annotations

from typing import Any

from dragon import _core

__all__ = ["Arrival", "Memory"]

_IN_ARENA = 256 * 1024  # bytes from which a value's memory comes from the arena, which hands out warm pages


class Arrival:
    """What has come so far. `sizes` are those of the buffers that follow in `pieces`, `as_bytes` what they become."""

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
        """Put the pieces where they belong; whether that was all."""
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
    """Pieces that become writable memory of so many bytes, as of an array."""

    def __init__(self, size: int) -> None:
        self.missing = size
        self._memory = memoryview(_new_memory(size))

    def add(self, piece: Any) -> None:
        """Put the next piece in its place."""
        start, size = len(self._memory) - self.missing, len(piece)
        self._memory[start : start + size] = piece
        self.missing -= size

    def whole(self) -> memoryview:
        """All of it."""
        return self._memory


def _new_memory(size: int) -> Any:
    if size >= _IN_ARENA:
        try:
            return _core.Loan(size)
        except MemoryError:
            pass  # the arena is full of other things
    return bytearray(size)
