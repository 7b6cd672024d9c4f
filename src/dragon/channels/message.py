"""A message: bytes that are sent or were received."""

from __future__ import annotations

from dragon.channels.errors import ChannelError
from dragon.managed_memory import MemoryAlloc, MemoryPool

__all__ = ["Message"]


class Message:
    """Bytes that are sent or were received, with two numbers of the sender's."""

    def __init__(self, memory: MemoryAlloc | bytearray | None, hints: int = 0, clientid: int = 0) -> None:
        self._memory, self.hints, self.clientid = memory, hints, clientid

    @classmethod
    def create_alloc(
        cls, mpool: MemoryPool, nbytes: int, hints: int = 0, clientid: int = 0, timeout: float | None = None
    ) -> Message:
        """One of so many bytes in memory of a pool."""
        return cls(mpool.alloc(nbytes), hints, clientid)

    @classmethod
    def create_empty(cls) -> Message:
        """One to receive into."""
        return cls(None)

    @classmethod
    def create_from_mem(cls, mem: MemoryAlloc, hints: int = 0, clientid: int = 0) -> Message:
        """One of a block."""
        return cls(mem, hints, clientid)

    def bytes_memview(self) -> memoryview:
        """Its bytes, to be read and written."""
        if self._memory is None:
            raise ChannelError("the message has no memory: it was not received yet, or was destroyed")
        return self._memory.get_memview() if isinstance(self._memory, MemoryAlloc) else memoryview(self._memory)

    def tobytes(self) -> bytes:
        """A copy of its bytes."""
        return bytes(self.bytes_memview())

    def clear_payload(self, start: int = 0, stop: int | None = None) -> None:
        """Set bytes to zero."""
        memory = self.bytes_memview()[start:stop]
        memory[:] = bytes(len(memory))

    def destroy(self, free_mem: bool = True) -> None:
        """Let its memory go; free it."""
        if free_mem and isinstance(self._memory, MemoryAlloc):
            self._memory.free()
        self._memory = None
