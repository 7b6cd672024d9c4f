"""Pools and blocks of shared memory under dragonhpc's names.

A pool is a limit on memory of the node's arena: nothing is reserved for it, and the default pool of a node is its whole
arena. A block exists until free(), or until no process that has it is alive. dragon.native.array.Array and
multiprocessing.shared_memory do the same with less code.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import NoReturn, Self

from dragon import _core
from dragon.dtypes import DragonException, error_class
from dragon.infrastructure.errors import DestroyedError, NotSupportedError
from dragon.infrastructure.messages import SerializedName
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.structs import msgspec
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

DragonMemoryError = error_class("DragonMemoryError", Code.FAILURE, DragonException)
"""The base class of the errors of memory."""
DragonPoolError = error_class("DragonPoolError", Code.FAILURE, DragonMemoryError)
"""The base class of the errors of pools."""
DragonPoolCreateFail = error_class("DragonPoolCreateFail", Code.FAILURE, DragonPoolError)
"""A pool cannot be made."""
DragonPoolAttachFail = error_class("DragonPoolAttachFail", Code.FAILURE, DragonPoolError)
"""The pool or block does not exist, or the bytes were not written by serialize()."""
DragonPoolDetachFail = error_class("DragonPoolDetachFail", Code.FAILURE, DragonPoolError)
"""Never raised."""
DragonPoolAllocationNotAvailable = error_class(
    "DragonPoolAllocationNotAvailable", Code.DYNHEAP_REQUESTED_SIZE_NOT_AVAILABLE, DragonPoolError
)
"""The pool has no room for a block."""

PoolType = enum.Enum("PoolType", "SHM HUGEPAGE GPU FILE PRIVATE", start=0)
"""The kind of a pool's memory; always SHM."""
AllocType = enum.Enum("AllocType", "DATA CHANNEL CHANNEL_BUFFER BOOTSTRAP", start=0)
"""The purpose of a block; has no effect."""

_SIZE, _USED, _COUNT, _GONE, _WORDS = range(5)  # indices of the words of a pool, and their number
_WORD = 8  # bytes
_NOT_OFFERED = {
    "get_allocations alloc_from_id allocation_exists": "a pool keeps no list; serialize() the blocks",
    "register deregister process_local_register_with_gpu process_local_unregister_with_gpu": (
        "use the GPU's library on the memory of a block"
    ),
}


class _Told(msgspec.Struct, array_like=True):
    """The form in which serialize() describes a pool or a block; a default pool has no words."""

    what: str
    muid: int
    node: int
    size: int
    words: SerializedName | None


def _read(data: bytes, what: str) -> _Told:
    told = msgspec.msgpack.decode(bytes(data), type=_Told)
    if told.what != what:
        raise ValueError(f"it describes a {told.what}")
    return told


@contextlib.contextmanager
def attaching(what: str, wrong: type[DragonException], gone: type[DragonException]) -> Iterator[None]:
    """Raise `wrong` if the bytes that a block attaches are not those of serialize(), `gone` if their object is gone."""
    try:
        yield
    except DestroyedError as error:
        raise gone(f"the {what} is gone: {error}", Code.OBJECT_DESTROYED) from error
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise wrong(f"this is not what serialize() of a {what} gave: {error}") from error


def _checked_size(what: str, size: int, error: type[DragonException]) -> int:
    size = plain_number(size)
    if not isinstance(size, int) or size < 1:
        raise error(f"a {what}'s size is a positive number of bytes, not {size!r}", Code.INVALID_ARGUMENT)
    return size


class MemoryPool:
    """A limit of `size` bytes on memory of this node, with the program's own number `uid`, its `muid`. The other
    arguments have no effect. Raises DragonPoolCreateFail for an invalid size."""

    pool_type = PoolType.SHM

    def __init__(
        self,
        size: int,
        fname: str = "",
        uid: int = 0,
        pre_alloc_blocks: object = None,
        min_block_size: int | None = None,
        max_allocations: int | None = None,
    ) -> None:
        size = _checked_size("pool", size, DragonPoolCreateFail)
        self._set(uid, this_run().node, size, words := Words(_WORDS))
        words[_SIZE] = size

    def _set(self, muid: int, node: int, size: int, words: Words | None) -> None:
        self.muid, self._node, self.size, self._words, self._detached = muid, node, size, words, False

    @classmethod
    def attach(cls, pool_ser: bytes, *, existing_memory_pool: MemoryPool | None = None) -> Self:
        """Return the pool that serialize() described. Raises DragonPoolAttachFail if it does not exist."""
        with attaching("pool", DragonPoolAttachFail, DragonPoolAttachFail):
            told = _read(pool_ser, "pool")
            words = None if told.words is None else Words._attached(told.words)
            if words is not None and len(words) < _WORDS:
                raise ValueError("it names other memory")
        pool = cls.__new__(cls)
        pool._set(told.muid, told.node, told.size, words)
        return pool

    @classmethod
    def default(cls, node: int | None = None) -> Self:
        """Return the pool that is the whole arena of a node, by default of this one; its `muid` is the node's index."""
        index = this_run().node if node is None else node
        return cls.attach(msgspec.msgpack.encode(_Told("pool", index, index, _core.usage()["limit"], None)))

    @staticmethod
    def numbered(serialized: bytes, muid: int) -> bytes:
        """Return the result of a pool's serialize() with another number."""
        return msgspec.msgpack.encode(msgspec.structs.replace(_read(serialized, "pool"), muid=muid))

    def serialize(self) -> bytes:
        """Return bytes that describe the pool, for attach()."""
        words = None if self._words is None else self._words._name()
        return msgspec.msgpack.encode(_Told("pool", self.muid, self._node, self.size, words))

    # ---- blocks

    def alloc(self, size: int, alloc_type: object = None) -> MemoryAlloc:
        """Allocate a block of zeros.

        Raises DragonPoolAllocationNotAvailable if the pool or the node has no room, DragonMemoryError for an invalid
        size, NotSupportedError for a pool of another node.
        """
        size = _checked_size("block", size, DragonMemoryError)
        if self._detached or (self._words is not None and self._words[_GONE]):
            raise DragonPoolError(f"pool {self.muid} was destroyed or detached", Code.OBJECT_DESTROYED)
        if not self.is_local:
            raise NotSupportedError(
                f"pool {self.muid} is memory of node {self._node}, which only its own processes can look into; send "
                "what is to be there by a channel, a Queue or a DDict"
            )
        used = self._add(_USED, size)
        try:
            if used + size > self.size:
                raise MemoryError(f"{used} of the {self.size} bytes of pool {self.muid} are used")
            block = MemoryAlloc._made(self, Words(-(-size // _WORD)), size)
        except MemoryError as error:
            self._add(_USED, -size)
            raise DragonPoolAllocationNotAvailable(f"{size} bytes for a block: {error}") from error
        self._add(_COUNT, 1)
        return block

    def alloc_blocking(self, size: int, timeout: float | None = None, alloc_type: object = None) -> MemoryAlloc:
        """Allocate a block, as alloc(). It never waits for room."""
        return self.alloc(size)

    def alloc_from_bytes(self, bytes_object: bytes | bytearray | memoryview) -> MemoryAlloc:
        """Allocate a block that contains these bytes. Raises the exceptions of alloc()."""
        data = memoryview(bytes_object).cast("B")
        block = self.alloc(max(1, len(data)))
        block.get_memview()[: len(data)] = data
        return block

    def _add(self, word: int, number: int) -> int:
        """Add to a word, and return what it was. The node counts for a default pool, which has none."""
        return 0 if self._words is None else self._words.add(word, number % (1 << 64))

    # ---- attributes

    @property
    def free_space(self) -> int:
        """The bytes that are not allocated."""
        return max(0, self.size - (_core.usage()["in_use"] if self._words is None else self._words[_USED]))

    @property
    def utilization(self) -> float:
        """The allocated part in percent."""
        return 100 * (1 - self.free_space / self.size)

    @property
    def num_allocations(self) -> int:
        """The number of blocks that were not freed."""
        return _core.usage()["blocks"] if self._words is None else self._words[_COUNT]

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
        """Close the pool in this process."""
        self._detached = True

    def __getattr__(self, name: str) -> NoReturn:
        for names, instead in _NOT_OFFERED.items():
            if name in names.split():
                raise AttributeError(f"MemoryPool.{name}() is not offered: {instead}")
        raise AttributeError(f"'MemoryPool' object has no attribute {name!r}")


class MemoryAlloc:
    """A block of shared memory. MemoryPool.alloc() makes it."""

    _pool: MemoryPool | None  # from which this process has allocated it
    _words: Words | None
    size: int  # in bytes
    _offset: int

    @classmethod
    def _made(cls, pool: MemoryPool | None, words: Words, size: int, offset: int = 0) -> Self:
        block = cls.__new__(cls)
        block._pool, block._words, block.size, block._offset = pool, words, size, offset
        return block

    @classmethod
    def attach(cls, serialized_bytes: bytes) -> Self:
        """Return the block that serialize() described.

        Raises DragonMemoryError if it does not exist any more, NotSupportedError if it is on another node.
        """
        with attaching("block", DragonPoolAttachFail, DragonMemoryError):
            told = _read(serialized_bytes, "block")
            if told.node != this_run().node or told.words is None:
                raise NotSupportedError(f"the block is memory of node {told.node}; only its processes can look into it")
            words = Words._attached(told.words)
            if not 0 <= told.muid <= told.muid + told.size <= len(words) * _WORD:
                raise ValueError("it does not lie in its memory")
        return cls._made(None, words, told.size, told.muid)

    def serialize(self) -> bytes:
        """Return bytes that describe the block, for attach() in any process of this node."""
        return msgspec.msgpack.encode(_Told("block", self._offset, this_run().node, self.size, self._memory()._name()))

    def __reduce__(self) -> tuple[object, ...]:
        return MemoryAlloc._made, (None, self._memory(), self.size, self._offset)

    def _memory(self) -> Words:
        if self._words is None:
            raise DragonMemoryError("the block was freed or detached", Code.OBJECT_DESTROYED)
        return self._words

    def get_memview(self) -> memoryview:
        """Return the block's memory, which can be read and written. Raises DragonMemoryError if the block was freed."""
        return memoryview(self._memory()).cast("B")[self._offset : self._offset + self.size]

    def get_int_ptr(self) -> int:
        """Return the block's address in this process."""
        return int(_core.address_of(self.get_memview()))

    def clear(self, start: int = 0, stop: int | None = None) -> None:
        """Set the bytes from `start` to `stop` to zero."""
        memory = self.get_memview()[start:stop]
        memory[:] = bytes(len(memory))

    def clone(self, offset: int = 0, length: int | None = None) -> MemoryAlloc:
        """Return a block that is a part of the same memory. Raises DragonMemoryError for a part outside of it."""
        length = self.size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > self.size:
            raise DragonMemoryError(f"{length} bytes from {offset} on are not in a block of {self.size} bytes")
        return MemoryAlloc._made(None, self._memory(), length, self._offset + offset)

    def copy(self, pool: MemoryPool, timeout: float | None = None) -> MemoryAlloc:
        """Allocate a block of `pool` with the same bytes."""
        return pool.alloc_from_bytes(self.get_memview())

    def is_the_same_as(self, other: MemoryAlloc) -> bool:
        """Return whether both blocks begin at the same place in the same memory."""
        return self._memory()._name() == other._memory()._name() and self._offset == other._offset

    def free(self) -> None:
        """Free the block; its memory is released once no process has it. Raises DragonMemoryError if it was freed."""
        self._memory()
        if self._pool is not None:
            self._pool._add(_USED, -self.size)
            self._pool._add(_COUNT, -1)
        self._words = self._pool = None

    def detach(self) -> None:
        """Close the block in this process."""
        self._words = None
