"""Pools and blocks of shared memory, for programs of the low-level interface.

A pool is a limit on memory of the node's arena: nothing is reserved for it, and the default pool of a node is its whole
arena. A block exists until free(), or until no process that has it is alive. dragon.native.array.Array and
multiprocessing.shared_memory do the same with less code.
"""

from __future__ import annotations

import enum
from typing import Any, Self

import msgspec

from dragon import _core
from dragon.dtypes import DragonException
from dragon.infrastructure.errors import DestroyedError, NotSupportedError
from dragon.infrastructure.messages import SerializedName
from dragon.infrastructure.plain_number import plain_number
from dragon.rc import DragonError as Code
from dragon.runtime.handle import Words
from dragon.runtime.run import this_run

__all__ = [
    "AllocType",
    "DragonMemoryError",
    "DragonPoolAllocationNotAvailable",
    "DragonPoolAttachFail",
    "DragonPoolCreateFail",
    "DragonPoolDetachFail",
    "DragonPoolError",
    "MemoryAlloc",
    "MemoryPool",
    "PoolType",
]

_SIZE, _USED, _COUNT, _GONE, _WORDS = range(5)  # indices of the words of a pool, and their number
_WORD = 8  # bytes


class DragonMemoryError(DragonException):
    """The base class of the errors of memory."""


class DragonPoolError(DragonMemoryError):
    """The base class of the errors of pools."""


class DragonPoolCreateFail(DragonPoolError):
    """A pool cannot be made."""


class DragonPoolAttachFail(DragonPoolError):
    """The pool or block does not exist, or the bytes were not written by serialize()."""


class DragonPoolDetachFail(DragonPoolError):
    """Never raised."""


class DragonPoolAllocationNotAvailable(DragonPoolError):
    """The pool has no room for a block."""

    code = Code.DYNHEAP_REQUESTED_SIZE_NOT_AVAILABLE


PoolType = enum.Enum("PoolType", "SHM HUGEPAGE GPU FILE PRIVATE", start=0)
"""The kind of a pool's memory; always SHM."""

AllocType = enum.Enum("AllocType", "DATA CHANNEL CHANNEL_BUFFER BOOTSTRAP", start=0)
"""The purpose of a block; has no effect."""


class _Told(msgspec.Struct, array_like=True):
    """The form in which serialize() describes a pool or a block; a default pool has no words."""

    what: str
    muid: int
    node: int
    size: int
    words: SerializedName | None


def _read(data: Any, what: str) -> _Told:
    try:
        told = msgspec.msgpack.decode(bytes(data), type=_Told)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise DragonPoolAttachFail(f"this is not what serialize() of a {what} gave: {error}") from error
    if told.what != what:
        raise DragonPoolAttachFail(f"this is what serialize() of a {told.what} gave, not of a {what}")
    return told


def _less(count: int) -> int:
    """Return the number to add to a word in order to subtract `count`."""
    return (1 << 64) - count


class MemoryPool:
    """A limit on memory of this node.

    Args:
        size: bytes of all blocks together.
        uid: a number for the program's own use.
        fname, pre_alloc_blocks, min_block_size, max_allocations: have no effect.

    Raises DragonPoolCreateFail for an invalid size.
    """

    def __init__(
        self,
        size: int,
        fname: str = "",
        uid: int = 0,
        pre_alloc_blocks: Any = None,
        min_block_size: int | None = None,
        max_allocations: int | None = None,
    ) -> None:
        size = plain_number(size)
        if not isinstance(size, int) or size < 1:
            raise DragonPoolCreateFail(f"a pool's size is a positive number of bytes, not {size!r}")
        self._muid, self._node, self._size = uid, this_run().node, size
        self._words: Words | None = Words(_WORDS)
        self._words[_SIZE] = size
        self._detached = False

    @classmethod
    def attach(cls, pool_ser: Any, *, existing_memory_pool: MemoryPool | None = None) -> Self:
        """Return the pool that serialize() described. Raises DragonPoolAttachFail if it does not exist.

        `existing_memory_pool` has no effect.
        """
        told = _read(pool_ser, "pool")
        pool = cls.__new__(cls)
        pool._muid, pool._node, pool._size, pool._detached = told.muid, told.node, told.size, False
        try:
            pool._words = None if told.words is None else Words._attached(told.words)
        except DestroyedError as error:
            raise DragonPoolAttachFail(f"pool {told.muid} is gone: {error}") from error
        except ValueError as error:
            raise DragonPoolAttachFail(f"this is not what serialize() of a pool gave: {error}") from error
        if pool._words is not None and len(pool._words) < _WORDS:
            raise DragonPoolAttachFail("this is not what serialize() of a pool gave: it names other memory")
        return pool

    @classmethod
    def default(cls, node: int | None = None) -> Self:
        """Return the pool that is the whole arena of a node, by default of this one; its `muid` is the node's index."""
        index = this_run().node if node is None else node
        return cls.attach(msgspec.msgpack.encode(_Told("pool", index, index, _core.usage()["limit"], None)))

    @staticmethod
    def numbered(serialized: bytes, muid: int) -> bytes:
        """Return the result of a pool's serialize() with another number."""
        told = _read(serialized, "pool")
        told.muid = muid
        return msgspec.msgpack.encode(told)

    def serialize(self) -> bytes:
        """Return bytes that describe the pool, for attach()."""
        words = None if self._words is None else self._words._name()
        return msgspec.msgpack.encode(_Told("pool", self._muid, self._node, self._size, words))

    def __reduce__(self) -> Any:
        return MemoryPool._again, (self._muid, self._node, self._size, self._words)

    @classmethod
    def _again(cls, muid: int, node: int, size: int, words: Words | None) -> Self:
        pool = cls.__new__(cls)
        pool._muid, pool._node, pool._size, pool._words, pool._detached = muid, node, size, words, False
        return pool

    # ---- blocks

    def alloc(self, size: int, alloc_type: AllocType | None = None) -> MemoryAlloc:
        """Allocate a block of zeros. `alloc_type` has no effect.

        Raises DragonPoolAllocationNotAvailable if the pool or the node has no room, DragonMemoryError for an invalid
        size, NotSupportedError for a pool of another node.
        """
        size = plain_number(size)
        if not isinstance(size, int) or size < 1:
            raise DragonMemoryError(
                f"a block's size is a positive number of bytes, not {size!r}", Code.INVALID_ARGUMENT
            )
        self._check()
        if self._node != this_run().node:
            raise NotSupportedError(
                f"pool {self._muid} is memory of node {self._node}, which only its own processes can look into; send "
                "what is to be there by a channel, a Queue or a DDict"
            )
        self._take(size)
        try:
            return MemoryAlloc._made(self, Words(-(-size // _WORD)), size)
        except MemoryError as error:
            self._give_back(size)
            raise DragonPoolAllocationNotAvailable(f"{size} bytes for a block: {error}") from error

    def alloc_blocking(
        self, size: int, timeout: float | None = None, alloc_type: AllocType | None = None
    ) -> MemoryAlloc:
        """Allocate a block, as alloc(). It never waits for room: `timeout` has no effect."""
        return self.alloc(size, alloc_type)

    def alloc_from_bytes(self, bytes_object: Any) -> MemoryAlloc:
        """Allocate a block that contains these bytes. Raises the exceptions of alloc()."""
        data = memoryview(bytes_object).cast("B")
        block = self.alloc(max(1, len(data)))
        block.get_memview()[: len(data)] = data
        return block

    def _take(self, size: int) -> None:
        if self._words is None:
            return
        used = self._words.add(_USED, size)
        if used + size > self._size:
            self._words.add(_USED, _less(size))
            raise DragonPoolAllocationNotAvailable(
                f"{size} bytes for a block: {used} of the {self._size} bytes of pool {self._muid} are used"
            )
        self._words.add(_COUNT, 1)

    def _give_back(self, size: int) -> None:
        if self._words is not None:
            self._words.add(_USED, _less(size))
            self._words.add(_COUNT, _less(1))

    def _check(self) -> None:
        if self._detached or (self._words is not None and self._words[_GONE]):
            raise DragonPoolError(f"pool {self._muid} was destroyed or detached", Code.OBJECT_DESTROYED)

    # ---- attributes

    @property
    def muid(self) -> int:
        """The number of the pool."""
        return self._muid

    @property
    def size(self) -> int:
        """The bytes of all blocks together, at most."""
        return self._size

    @property
    def free_space(self) -> int:
        """The bytes that are not allocated."""
        if self._words is not None:
            return max(0, self._size - self._words[_USED])
        usage = _core.usage()
        return max(0, usage["limit"] - usage["in_use"])

    @property
    def utilization(self) -> float:
        """The allocated part in percent."""
        return 100 * (1 - self.free_space / self._size)

    @property
    def num_allocations(self) -> int:
        """The number of blocks that were not freed."""
        return self._words[_COUNT] if self._words is not None else _core.usage()["blocks"]

    @property
    def pool_type(self) -> PoolType:
        """The kind of memory: PoolType.SHM."""
        return PoolType.SHM

    @property
    def is_local(self) -> bool:
        """Whether the pool is memory of this node."""
        return self._node == this_run().node

    # ---- ending

    def destroy(self) -> None:
        """Allocate no more blocks, in all processes; existing blocks stay until they are freed."""
        if self._words is not None:
            self._words[_GONE] = 1

    def detach(self, serialize: bool = False) -> None:
        """Close the pool in this process. `serialize` has no effect."""
        self._detached = True

    def __getattr__(self, name: str) -> Any:
        if name in ("get_allocations", "alloc_from_id", "allocation_exists"):
            raise AttributeError(f"MemoryPool.{name}() is not offered: a pool keeps no list; serialize() the blocks")
        if name in ("register", "deregister", "process_local_register_with_gpu", "process_local_unregister_with_gpu"):
            raise AttributeError(f"MemoryPool.{name}() is not offered: use the GPU's library on the memory of a block")
        raise AttributeError(f"'MemoryPool' object has no attribute {name!r}")


class MemoryAlloc:
    """A block of shared memory. MemoryPool.alloc() makes it."""

    _pool: MemoryPool | None
    _words: Words | None
    _size: int
    _offset: int

    @classmethod
    def _made(cls, pool: MemoryPool | None, words: Words, size: int, offset: int = 0) -> Self:
        block = cls.__new__(cls)
        block._pool, block._words, block._size, block._offset = pool, words, size, offset
        return block

    @classmethod
    def attach(cls, serialized_bytes: Any) -> Self:
        """Return the block that serialize() described.

        Raises DragonMemoryError if it does not exist any more, NotSupportedError if it is on another node.
        """
        told = _read(serialized_bytes, "block")
        if told.node != this_run().node or told.words is None:
            raise NotSupportedError(f"the block is memory of node {told.node}; only its own processes can look into it")
        try:
            words = Words._attached(told.words)
        except DestroyedError as error:
            raise DragonMemoryError(f"the block is gone: {error}", Code.OBJECT_DESTROYED) from error
        except ValueError as error:
            raise DragonPoolAttachFail(f"this is not what serialize() of a block gave: {error}") from error
        if not 0 <= told.muid <= told.muid + told.size <= len(words) * 8:
            raise DragonPoolAttachFail("this is not what serialize() of a block gave: it does not lie in its memory")
        return cls._made(None, words, told.size, told.muid)

    def serialize(self) -> bytes:
        """Return bytes that describe the block, for attach() in any process of this node."""
        return msgspec.msgpack.encode(_Told("block", self._offset, this_run().node, self._size, self._memory()._name()))

    def __reduce__(self) -> Any:
        return MemoryAlloc._made, (None, self._memory(), self._size, self._offset)

    def _memory(self) -> Words:
        if self._words is None:
            raise DragonMemoryError("the block was freed or detached", Code.OBJECT_DESTROYED)
        return self._words

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._size

    def get_memview(self) -> memoryview:
        """Return the block's memory, which can be read and written. Raises DragonMemoryError if the block was freed."""
        return memoryview(self._memory()).cast("B")[self._offset : self._offset + self._size]

    def get_int_ptr(self) -> int:
        """Return the block's address in this process."""
        return int(_core.address_of(self.get_memview()))

    def clear(self, start: int = 0, stop: int | None = None) -> None:
        """Set the bytes from `start` to `stop` to zero."""
        memory = self.get_memview()[start:stop]
        memory[:] = bytes(len(memory))

    def clone(self, offset: int = 0, length: int | None = None) -> MemoryAlloc:
        """Return a block that is a part of the same memory. Raises DragonMemoryError for a part outside of it."""
        length = self._size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > self._size:
            raise DragonMemoryError(f"{length} bytes from {offset} on are not in a block of {self._size} bytes")
        return MemoryAlloc._made(None, self._memory(), length, self._offset + offset)

    def copy(self, pool: MemoryPool, timeout: float | None = None) -> MemoryAlloc:
        """Allocate a block of `pool` with the same bytes. `timeout` has no effect."""
        return pool.alloc_from_bytes(self.get_memview())

    def is_the_same_as(self, other: MemoryAlloc) -> bool:
        """Return whether both blocks begin at the same place in the same memory."""
        return self._memory()._name() == other._memory()._name() and self._offset == other._offset

    def free(self) -> None:
        """Free the block; its memory is released once no other process has it. Raises DragonMemoryError if it was freed
        before."""
        self._memory()
        if self._pool is not None:
            self._pool._give_back(self._size)
        self._words = self._pool = None

    def detach(self) -> None:
        """Close the block in this process."""
        self._words = None
