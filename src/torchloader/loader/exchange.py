"""Batches that the loading workers of several programs on a node make for each other.

A file that all of them map (dragon.node_files) has a slot for each batch, chosen by its key. The process that makes a
batch locks its slot, and then notes there where the batch is: in anonymous memory, which is freed when the worker that
made it and its trainer have ended. So killed processes leave nothing behind: their locks are released by the system,
and a missing batch is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import struct
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dragon.infrastructure.errors import RunEndedError
from dragon.node_files import NodeFile, NodeMemory, Parts, SnapshotGoneError
from dragon.serialization import dumps
from torchloader.loader.messages import Packed, pack_error
from torchloader.loader.streams import Task

_SLOTS = 4096
_ENTRY = struct.Struct("=16sqqQ")  # a key, and the process, descriptor and inode of the memory with its batch
_TRUSTED = _SLOTS * _ENTRY.size  # where the tokens of loaders lie
_TOKEN = 8  # bytes
_DIFFERS = _TRUSTED + _SLOTS * _TOKEN  # where it lies whether loaders were found to differ
_SIZE = _DIFFERS + 1  # bytes of the file

_MOST_BYTES = 128 << 20  # of batches that a process keeps for others
_MOST_BATCHES = 64
_MOST_BATCHES_OF_WORKER = 4  # until the trainer keeps them
_WAIT_S = 10.0  # seconds to wait for what another worker does, at least
_FIRST_POLL_S, _LONGEST_POLL_S = 0.0005, 0.05  # seconds between two looks


class Membership(NamedTuple):
    """What the workers of a loader need to share batches."""

    name: str
    path: str  # of the file
    token: bytes  # of their loader


def joined(name: str | None, is_map_style: bool) -> tuple[NodeFile | None, Membership | None]:
    """Return the file of the loaders of that name, which the caller must close, and a membership for a new loader; None
    without a name, and after a RuntimeWarning if the file cannot be made."""
    if name is None:
        return None, None
    if not isinstance(name, str) or not name:
        raise TypeError(f"shared_as must be a name, not {name!r}")
    if not is_map_style:
        raise ValueError(
            f"shared_as={name!r} is for map-style datasets: a batch of an iterable-style one depends on all that its "
            "stream gave before"
        )
    digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
    try:
        file = NodeFile(f"batches_1_{digest}", _SIZE)
    except (OSError, RunEndedError) as error:
        warnings.warn(f"batches are not shared as {name!r}: {error}", RuntimeWarning, stacklevel=3)
        return None, None
    return file, Membership(name, str(file.path), os.urandom(_TOKEN))


def key_of(seed: int, task: Task) -> bytes:
    """Return a key that is unique to this batch among the loaders of one name."""
    return hashlib.blake2b(dumps((seed, task.epoch, task.indices)), digest_size=16).digest()


class SharedBatch(NamedTuple):
    """Where a worker keeps a batch for others."""

    path: str  # of the file
    at: int  # the offset of the slot in bytes
    entry: bytes  # in the slot


class BatchCache:
    """The latest batches that a process keeps for others: at most `most`, and at most 128 MiB."""

    def __init__(self, most: int = _MOST_BATCHES) -> None:
        self._most = most
        self._kept: deque[NodeMemory | Parts] = deque()  # the oldest first

    def keep(self, memory: NodeMemory | Parts) -> None:
        kept = self._kept
        kept.append(memory)
        while len(kept) > 1 and (len(kept) > self._most or sum(each.size for each in kept) > _MOST_BYTES):
            kept.popleft()

    def adopt(self, kept: SharedBatch) -> None:
        """Keep a batch of a worker beyond the worker's end."""
        key, *place = _ENTRY.unpack(kept.entry)
        try:
            with open(kept.path, "r+b", buffering=0) as file:
                memory = Parts(tuple(place))
                self.keep(memory)
                if os.pread(file.fileno(), _ENTRY.size, kept.at) == kept.entry:
                    os.pwrite(file.fileno(), _ENTRY.pack(key, *memory.place), kept.at)
        except (FileNotFoundError, SnapshotGoneError):  # the loader is closed, or the worker has ended
            return


class Exchange:
    """A worker's access to the batches that other loaders' workers make. Raises OSError if the file no longer exists.

    All loaders of one name must make the same batches. Each loader makes the first batch of an iteration itself and
    compares it with the shared one; before it has done so once, its workers neither take nor share other batches.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._file = os.open(membership.path, os.O_RDWR | os.O_CLOEXEC)
        # Where the token of this loader is, once its first batch was compared.
        self._own = _TRUSTED + int.from_bytes(membership.token, "little") % _SLOTS * _TOKEN
        self._cache = BatchCache(_MOST_BATCHES_OF_WORKER)
        self._longest = 0.0  # seconds that making one took here
        self._waits = True  # for the first batch of its loader

    def get(
        self, key: bytes, make: Callable[[], Packed], gives_up: Callable[[], bool], is_first: bool
    ) -> tuple[Packed, bool, SharedBatch | None]:
        """Return a batch, whether another worker has made it, and where it is kept if this worker made it. If loaders
        of the name make different batches, it is a packed ValueError."""
        slot = int.from_bytes(key[:8], "little") % _SLOTS
        if not (is_first or self._is_trusted(gives_up)) or not self._until(lambda: self._locks(slot), gives_up):
            return self._made(make), False, None
        try:
            if self._differs():
                return self._difference(), False, None
            noted, *place = _ENTRY.unpack(os.pread(self._file, _ENTRY.size, slot * _ENTRY.size))
            try:
                found = Parts(tuple(place)).views() if noted == key else None
            except SnapshotGoneError:  # whoever had it has given it up, or has ended
                found = None
            if found is None:
                packed = self._made(make)
                kept = self._keep(slot, key, packed)
                if is_first:
                    self._trust()
                return packed, False, kept
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)
        data, *buffers = found
        packed = Packed(bytes(data), [pickle.PickleBuffer(buffer) for buffer in buffers], "", "")
        return (self._compared(packed, make), False, None) if is_first else (packed, True, None)

    def _made(self, make: Callable[[], Packed]) -> Packed:
        since = time.monotonic()
        packed = make()
        self._longest = max(self._longest, time.monotonic() - since)
        return packed

    def _compared(self, theirs: Packed, make: Callable[[], Packed]) -> Packed:
        """Make the batch here, and return it; or an error if it differs from the shared one, but not from itself."""
        ours = self._made(make)
        if not _equal(ours, theirs) and _equal(ours, self._made(make)):
            os.pwrite(self._file, b"\1", _DIFFERS)
            return self._difference()
        self._trust()
        return ours

    def _difference(self) -> Packed:
        return pack_error(
            ValueError(
                f"loaders with shared_as={self._membership.name!r} on this node make different batches of the same "
                "samples: give those with another dataset, transform or collate_fn another name, and run all of them "
                "again, as some may have been given a batch of others"
            )
        )

    def _differs(self) -> bool:
        return os.pread(self._file, 1, _DIFFERS) == b"\1"

    def _trust(self) -> None:
        os.pwrite(self._file, self._membership.token, self._own)

    def _is_trusted(self, gives_up: Callable[[], bool]) -> bool:
        """Return whether the first batch of this loader was compared. Waits for that only in the first call."""

        def compared() -> bool:
            return os.pread(self._file, _TOKEN, self._own) == self._membership.token

        waits, self._waits = self._waits, False
        return self._until(lambda: compared() or self._differs(), gives_up) if waits else compared()

    def _locks(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except OSError:  # it is locked, or the system has no lock left
            return False
        return True

    def _until(self, holds: Callable[[], bool], gives_up: Callable[[], bool]) -> bool:
        until = time.monotonic() + max(_WAIT_S, 3 * self._longest)
        pause = max(_FIRST_POLL_S, min(self._longest / 8, _LONGEST_POLL_S))
        while not holds():
            if time.monotonic() > until or gives_up():
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_S)
        return True

    def _keep(self, slot: int, key: bytes, packed: Packed) -> SharedBatch | None:
        if packed.text:
            return None
        try:
            memory = NodeMemory([memoryview(packed.data), *(buffer.raw() for buffer in packed.buffers)])
        except OSError:  # there is no memory for it: others make it themselves
            return None
        self._cache.keep(memory)
        entry, at = _ENTRY.pack(key, *memory.place), slot * _ENTRY.size
        os.pwrite(self._file, entry, at)
        return SharedBatch(self._membership.path, at, entry)


def _equal(one: Packed, other: Packed) -> bool:
    views = ([each.data, *(buffer.raw().tobytes() for buffer in each.buffers)] for each in (one, other))
    return next(views) == next(views)
