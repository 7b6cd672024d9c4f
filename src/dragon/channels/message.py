"""A message that is sent or was received."""

from __future__ import annotations

from dragon.channels.errors import ChannelError
from dragon.managed_memory import MemoryAlloc, MemoryPool

__all__ = ["Message"]


class Message:
    """The bytes of a message that is sent or was received.

    Attributes:
        hints: a number that the sender chooses.
        clientid: another number that the sender chooses.
    """

    def __init__(self, memory: MemoryAlloc | bytearray | None, hints: int = 0, clientid: int = 0) -> None:
        self._memory, self.hints, self.clientid = memory, hints, clientid

    @classmethod
    def create_alloc(
        cls, mpool: MemoryPool, nbytes: int, hints: int = 0, clientid: int = 0, timeout: float | None = None
    ) -> Message:
        """Return a message of `nbytes` bytes in memory of a pool. `timeout` has no effect."""
        return cls(mpool.alloc(nbytes), hints, clientid)

    @classmethod
    def create_empty(cls) -> Message:
        """Return a message without memory, to receive into."""
        return cls(None)

    @classmethod
    def create_from_mem(cls, mem: MemoryAlloc, hints: int = 0, clientid: int = 0) -> Message:
        """Return a message whose bytes are a block of memory."""
        return cls(mem, hints, clientid)

    def bytes_memview(self) -> memoryview:
        """Return the message's bytes as writable memory. Raises ChannelError if it has none."""
        if self._memory is None:
            raise ChannelError("the message has no memory: it was not received yet, or was destroyed")
        return self._memory.get_memview() if isinstance(self._memory, MemoryAlloc) else memoryview(self._memory)

    def tobytes(self) -> bytes:
        """Return a copy of the message's bytes."""
        return bytes(self.bytes_memview())

    def clear_payload(self, start: int = 0, stop: int | None = None) -> None:
        """Set the bytes from `start` to `stop` to zero."""
        memory = self.bytes_memview()[start:stop]
        memory[:] = bytes(len(memory))

    def destroy(self, free_mem: bool = True) -> None:
        """Release the message's memory, and free it unless `free_mem` is False."""
        if free_mem and isinstance(self._memory, MemoryAlloc):
            self._memory.free()
        self._memory = None
