"""Pools and blocks of shared memory, for programs of the low-level interface.

A pool is a limit on memory of the node's arena: nothing is set aside for it, and the default pool of a node is all of
its arena. A block lives until free(), or until no process that has it lives any more. dragon.native.array.Array and
multiprocessing.shared_memory do the same with less to write.
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

_SIZE, _USED, _COUNT, _GONE, _WORDS = range(5)  # words of a pool
_WORD = 8


class DragonMemoryError(DragonException):
    """Any error of memory."""


class DragonPoolError(DragonMemoryError):
    """Any error of a pool."""


class DragonPoolCreateFail(DragonPoolError):
    """A pool cannot be made."""


class DragonPoolAttachFail(DragonPoolError):
    """There is no such pool."""


class DragonPoolDetachFail(DragonPoolError):
    """Raised by nothing here."""


class DragonPoolAllocationNotAvailable(DragonPoolError):
    """The pool has no room for a block."""

    code = Code.DYNHEAP_REQUESTED_SIZE_NOT_AVAILABLE


class PoolType(enum.Enum):
    """Where a pool's memory is; here always SHM."""

    SHM = 0
    HUGEPAGE = 1
    GPU = 2
    FILE = 3
    PRIVATE = 4


class AllocType(enum.Enum):
    """What a block is for; taken and unused."""

    DATA = 0
    CHANNEL = 1
    CHANNEL_BUFFER = 2
    BOOTSTRAP = 3


class _Told(msgspec.Struct, array_like=True):
    """What serialize() says of a pool or a block; a default pool has no words."""

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
    """What to add to a word to subtract."""
    return (1 << 64) - count


class MemoryPool:
    """A limit on memory of this node.

    Args:
        size: bytes of all blocks together.
        uid: a number of its own, by which nothing is found.
        fname, pre_alloc_blocks, min_block_size, max_allocations: taken and unused.
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
        """The pool that serialize() described. Raises DragonPoolAttachFail where there is none."""
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
        """The pool that is all of a node's arena; its `muid` is the node's index."""
        index = this_run().node if node is None else node
        return cls.attach(msgspec.msgpack.encode(_Told("pool", index, index, _core.usage()["limit"], None)))

    @staticmethod
    def numbered(serialized: bytes, muid: int) -> bytes:
        """What serialize() gave, with another number."""
        told = _read(serialized, "pool")
        told.muid = muid
        return msgspec.msgpack.encode(told)

    def serialize(self) -> bytes:
        """What attach() takes."""
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
        """A new block of zeros. Raises DragonPoolAllocationNotAvailable where the pool, or the node, has no room."""
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
        """The same. It does not wait: raises DragonPoolAllocationNotAvailable at once."""
        return self.alloc(size, alloc_type)

    def alloc_from_bytes(self, bytes_object: Any) -> MemoryAlloc:
        """A new block with these bytes."""
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

    # ---- what is known of it

    @property
    def muid(self) -> int:
        """Its number."""
        return self._muid

    @property
    def size(self) -> int:
        """Bytes of all blocks together, at most."""
        return self._size

    @property
    def free_space(self) -> int:
        """Bytes that are left of that."""
        if self._words is not None:
            return max(0, self._size - self._words[_USED])
        usage = _core.usage()
        return max(0, usage["limit"] - usage["in_use"])

    @property
    def utilization(self) -> float:
        """Percent that are used."""
        return 100 * (1 - self.free_space / self._size)

    @property
    def num_allocations(self) -> int:
        """Blocks that were not freed."""
        return self._words[_COUNT] if self._words is not None else _core.usage()["blocks"]

    @property
    def pool_type(self) -> PoolType:
        """SHM."""
        return PoolType.SHM

    @property
    def is_local(self) -> bool:
        """Whether it is memory of this node."""
        return self._node == this_run().node

    # ---- its end

    def destroy(self) -> None:
        """Refuse further blocks, for all processes; those that there are stay until they are freed."""
        if self._words is not None:
            self._words[_GONE] = 1

    def detach(self, serialize: bool = False) -> None:
        """Use it no more in this process."""
        self._detached = True

    def __getattr__(self, name: str) -> Any:
        if name in ("get_allocations", "alloc_from_id", "allocation_exists"):
            raise NotSupportedError(f"MemoryPool.{name}() is not offered: a pool keeps no list; serialize() the blocks")
        if name in ("register", "deregister", "process_local_register_with_gpu", "process_local_unregister_with_gpu"):
            raise NotSupportedError(
                f"MemoryPool.{name}() is not offered: use the GPU's library on the memory of a block"
            )
        raise AttributeError(f"'MemoryPool' object has no attribute {name!r}")


class MemoryAlloc:
    """A block of shared memory. Made by MemoryPool.alloc()."""

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
        """The block that serialize() described. Raises DragonMemoryError where it is gone."""
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
        """What attach() takes, in any process of this node."""
        return msgspec.msgpack.encode(_Told("block", self._offset, this_run().node, self._size, self._memory()._name()))

    def __reduce__(self) -> Any:
        return MemoryAlloc._made, (None, self._memory(), self._size, self._offset)

    def _memory(self) -> Words:
        if self._words is None:
            raise DragonMemoryError("the block was freed or detached", Code.OBJECT_DESTROYED)
        return self._words

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def get_memview(self) -> memoryview:
        """The memory, to be read and written."""
        return memoryview(self._memory()).cast("B")[self._offset : self._offset + self._size]

    def get_int_ptr(self) -> int:
        """Its address in this process."""
        return int(_core.address_of(self.get_memview()))

    def clear(self, start: int = 0, stop: int | None = None) -> None:
        """Set bytes to zero."""
        memory = self.get_memview()[start:stop]
        memory[:] = bytes(len(memory))

    def clone(self, offset: int = 0, length: int | None = None) -> MemoryAlloc:
        """A part of the same memory."""
        length = self._size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > self._size:
            raise DragonMemoryError(f"{length} bytes from {offset} on are not in a block of {self._size} bytes")
        return MemoryAlloc._made(None, self._memory(), length, self._offset + offset)

    def copy(self, pool: MemoryPool, timeout: float | None = None) -> MemoryAlloc:
        """A block of that pool with the same bytes."""
        return pool.alloc_from_bytes(self.get_memview())

    def is_the_same_as(self, other: MemoryAlloc) -> bool:
        """Whether it is the same memory."""
        return self._memory()._name() == other._memory()._name() and self._offset == other._offset

    def free(self) -> None:
        """Give the memory back once no other process has it. Raises DragonMemoryError for one that was freed."""
        self._memory()
        if self._pool is not None:
            self._pool._give_back(self._size)
        self._words = self._pool = None

    def detach(self) -> None:
        """Use it no more in this process."""
        self._words = None
