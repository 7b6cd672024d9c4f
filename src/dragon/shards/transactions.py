"""A shard's LMDB environment and its shared words: opening them, and changes in transactions that fit into its
memory."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from dragon import _core
from dragon.infrastructure.ddict_errors import (
    DDictCheckpointSyncError,
    DDictError,
    DDictFullError,
    DDictTimeoutError,
)
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.plain_number import in_units
from dragon.infrastructure.private import checked_folder
from dragon.runtime.handle import Lock, Words
from dragon.shards.entries import Entries, Settings
from dragon.shards.environment import Environment

__all__ = ["ALLOCATED", "CHANGES", "NEWEST", "SINCE", "Transactions", "make_words", "mark_gone", "words_after"]

# The indices of a shard's words, and the values of its state.
CHANGES, _STATE, NEWEST, _WRITTEN, _ROOM, ALLOCATED, _CHOSEN, SINCE, _COUNT_OF_WORDS = range(9)
_USABLE, _FROZEN, _GONE, _PAUSED = range(4)

_PAGE = mmap.PAGESIZE  # bytes; at least as large as a page of LMDB
_CLAIM = 8 * _PAGE  # bytes that a small write may add to the file
_ENTRY = 640  # bytes of an entry besides its value: its name, its slot in a page, and the unused end of a page
_STEP = 8 * 2**20  # bytes by which the file grows
_READERS_TIMEOUT_S = 2.0  # seconds that a write waits for readers
_READERS_POLL_S = 0.002  # seconds between two attempts
_MAX_PAUSE_S = 10.0  # seconds after which a pause is ended: the process that paused the shard has died


def make_words() -> Words:
    """Return the words of a new shard."""
    return Words(_COUNT_OF_WORDS)


def words_after(words: Words) -> Words:
    """Return words for a shard that continues with the memory of a destroyed one."""
    later = make_words()
    for word in (NEWEST, ALLOCATED, _CHOSEN):
        later[word] = words[word]
    return later


def mark_gone(words: Words) -> None:
    """Mark the shard as destroyed: every later use raises DestroyedError."""
    words[_STATE] = _GONE
    words.add(CHANGES, 1)  # wakes the processes that wait for a change


def _map_size(capacity: int) -> int:
    # In addition to the values there are the pages of the tree, and those that the last transactions freed.
    return (capacity + capacity // 8 + _STEP) // _PAGE * _PAGE


def _start_of_file(address: int) -> int:
    """Return the address of the beginning of the file that is mapped at an address; LMDB maps all of it at once."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            extent, _, offset = line.split()[:3]
            first, last = (int(end, 16) for end in extent.split("-"))
            if first <= address < last:
                return first - int(offset, 16)
    raise RuntimeError(f"/proc/self/maps does not show what is at {address:#x}")


class Transactions(Entries):
    """The part of a shard that manages its memory and its state."""

    def __init__(self, settings: Settings, words: Words, lock: Lock) -> None:
        super().__init__(settings)
        self.words = words
        # LMDB has its own lock, which has no timeout. The holder of this lock finds that one free.
        self._lock = lock
        self.timeout: float | None = None  # seconds to wait for other writers
        # Called with the checkpoints that leave the working set and must be written to disk.
        self.retire: Callable[[list[int]], None] = lambda checkpoints: None
        self._check()
        self._environment = Environment(Path(settings.folder), _map_size(settings.capacity))

    @property
    def _env(self) -> lmdb.Environment:
        environment = self._environment
        return (environment.opened or environment.here).env

    def close(self) -> None:
        """Close the shard in this process."""
        self._environment.close()

    def _file(self, inside: Any) -> memoryview:
        here = self._environment.here
        if here.whole is None:
            here.whole = _core.memory_at(self._start_of_file(inside), _map_size(self.settings.capacity))
        return here.whole

    def _start_of_file(self, inside: Any) -> int:
        here = self._environment.here
        if here.start is None:
            here.start = _start_of_file(_core.address_of(inside))
        return here.start

    @property
    def where(self) -> str:
        """The name of the shard in messages."""
        return f"manager {self.settings.manager} on node {self.settings.node}"

    def _check(self) -> None:
        if self.words[_STATE] == _GONE:
            raise DestroyedError(f"the dictionary {self.settings.name!r} was destroyed")

    def _check_readable(self, checkpoint: int) -> None:
        """Raise DestroyedError, or DDictCheckpointSyncError if the checkpoint is no longer held."""
        words = self.words
        if words[_STATE] == _GONE:
            self._check()
        if checkpoint <= words[NEWEST] - self.settings.working_set:
            raise self._retired(checkpoint)

    @property
    def is_gone(self) -> bool:
        """Whether the dictionary was destroyed."""
        return self.words[_STATE] == _GONE

    @property
    def is_frozen(self) -> bool:
        """Whether it refuses writes."""
        return self.words[_STATE] == _FROZEN

    @property
    def newest(self) -> int:
        """The newest checkpoint that was written."""
        return self.words[NEWEST]

    @property
    def oldest(self) -> int:
        """The oldest checkpoint that may be read and written."""
        return max(0, self.newest - self.settings.working_set + 1)

    def freeze(self, on: bool) -> None:
        """Refuse writes from now on, or no longer."""
        self._check()
        with self._writing():  # after the current write
            self._check()
            self.words[_STATE] = _FROZEN if on else _USABLE

    def take_over(self, newest: int, frozen: bool, chosen: bool, since: int) -> None:
        """Set the state of the shard whose entries were loaded."""
        self.words[NEWEST], self.words[_STATE], self.words[_CHOSEN] = newest, _FROZEN if frozen else _USABLE, chosen
        self.words[SINCE] = since

    def set_at(self, number: str, at: int = 2**64 - 1) -> str:
        """Return the identity of the files that the managers of the dictionary with that number write together.

        It begins with the time at which the dictionary was made, or restored last. `at` orders the calls of persist();
        a checkpoint that leaves the working set comes after all of them.
        """
        return f"{self.since or int(number[:16], 16):016x}{at:016x}{number[16:]}"

    @property
    def is_chosen(self) -> bool:
        """Whether a key of the dictionary may be with another manager than its hash says."""
        return bool(self.words[_CHOSEN])

    @property
    def since(self) -> int:
        """The time at which the dictionary restored a checkpoint last; 0: never."""
        return self.words[SINCE]

    def note_chosen(self) -> None:
        """Note that a key may be with another manager than its hash says."""
        self.words[_CHOSEN] = 1

    def pause(self, on: bool) -> None:
        """Block writers from now on, except a current write; or no longer. Has no effect on a frozen shard."""
        self.words.swap_if(_STATE, *((_USABLE, _PAUSED) if on else (_PAUSED, _USABLE)))

    def settle(self) -> None:
        """Wait for the current write."""
        with self._writing():
            pass

    def changed_since(self) -> int:
        """Return a number that differs after a change."""
        return self.words[CHANGES]

    def wait_for_change(self, seen: int, timeout: float | None) -> bool:
        """Wait until changed_since() is no longer `seen`."""
        return self.words.wait(CHANGES, seen, timeout)

    def usage(self) -> dict[str, int]:
        """Return the bytes in all and in use, the number of entries, and the number of those that are records
        of keys."""
        self._check()
        with self._env.begin() as txn:
            stat, hidden = txn.stat(), self._hidden(txn)
        used, entries = min(_used(stat), self.settings.capacity), int(stat["entries"])
        return {"total": self.settings.capacity, "used": used, "entries": entries, "records": entries - hidden}

    # ---- a write transaction

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        """Yield a write transaction. Raises DDictTimeoutError."""
        if not self._lock._take(self.timeout):
            raise self._busy()
        try:
            with self._env.begin(write=True, buffers=True) as txn:
                yield txn
        finally:
            self._lock.release()

    def _busy(self) -> DDictTimeoutError:
        return DDictTimeoutError(
            f"waited {self.timeout:g} s to write into {self.where}: process {self._lock._owner_pid()} is writing"
        )

    def _write(self, size: int, checkpoint: int, change: Callable[[Any], Any], entries: int = 1) -> Any:
        words, lock, claim = self.words, self._lock, size + entries * _CLAIM
        failed_at = None
        while True:
            try:
                if not lock._take(self.timeout):
                    raise self._busy()
                try:
                    with self._env.begin(write=True, buffers=True) as txn:
                        if words[_STATE] != _USABLE:
                            self._refuse()
                        if words[NEWEST] != checkpoint:
                            self._move_to(checkpoint)
                        if words.add(_WRITTEN, claim) + claim > words[_ROOM]:
                            self._make_room(txn, size, entries)
                        result = change(txn)
                finally:
                    lock.release()
                words.add(CHANGES, 1)
                return result
            except (lmdb.MapFullError, _NoRoomError) as error:
                now = time.monotonic()
                failed_at = failed_at or now
                waited = isinstance(error, _NoRoomError) or now > failed_at + _READERS_TIMEOUT_S or not self._is_read()
                if now > failed_at and waited:
                    raise self._full(size, error) from None
                self._collect()
            except lmdb.Error:
                self._check()  # a destroyed shard may have been closed
                raise
            except _PausedError:
                if not words.wait(_STATE, _PAUSED, _MAX_PAUSE_S):
                    self.pause(False)

    def _refuse(self) -> None:
        self._check()
        if self.words[_STATE] == _FROZEN:
            raise DDictError(f"frozen: {self.where} takes no changes until unfreeze()", "INVALID_OPERATION")
        raise _PausedError  # it is paused, or was so a moment ago

    def _move_to(self, checkpoint: int) -> None:
        newest = self.words[NEWEST]
        if checkpoint > newest:
            settings = self.settings
            if settings.persist_freq and settings.persist_count:
                left = range(self.oldest, min(newest, checkpoint - settings.working_set) + 1)
                self.retire([number for number in left if number % settings.persist_freq == 0])
            self.words[NEWEST] = checkpoint
        elif checkpoint < newest - self.settings.working_set + 1:
            raise self._retired(checkpoint)

    def _retired(self, checkpoint: int) -> DDictCheckpointSyncError:
        return DDictCheckpointSyncError(
            f"checkpoint {checkpoint} is retired: {self.where} holds {self.oldest} to {self.newest}; "
            "sync_to_newest_checkpoint() moves to the newest one"
        )

    def _make_room(self, txn: Any, size: int, entries: int) -> None:
        """Check that a write of `size` bytes fits, and allocate memory for the growth of the file.

        Without the allocation, a write to the mapping on a full file system would kill the process. The result is valid
        for as many bytes as the words then say.
        """
        words, most = self.words, _map_size(self.settings.capacity)
        stat = txn.stat()
        end = (self._env.info()["last_pgno"] + 1) * stat["psize"]
        used = _used(stat)
        left = self.settings.capacity - used
        # Each entry may change some pages; all together at most the existing pages and those that they fill.
        claim = min(size + entries * _CLAIM, 2 * (size + entries * _ENTRY) + used + _CLAIM)
        if size > max(left, 0):
            raise _NoRoomError("make it with a larger total_mem")
        wanted = min(most, end + claim)
        if wanted > words[ALLOCATED]:
            self._allocate(min(most, -(-wanted // _STEP) * _STEP))
        room = left if words[ALLOCATED] == most else min(left, words[ALLOCATED] - end)
        words[_ROOM], words[_WRITTEN] = max(room, 0), claim

    def _allocate(self, size: int) -> None:
        with checked_folder(Path(self.settings.folder)):
            fd = os.open(Path(self.settings.folder) / "data.mdb", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise _NoRoomError(f"{Path(self.settings.folder).parent} has no room for it") from error
        finally:
            os.close(fd)
        self.words[ALLOCATED] = size

    def _full(self, size: int, error: Exception) -> DDictFullError:
        usage = self.usage()
        why = (
            str(error)
            if isinstance(error, _NoRoomError)
            else "enough space in total, but fragmented or pinned by an open view()"
        )
        return DDictFullError(
            f"{in_units(size)} do not fit into {self.where}: {in_units(usage['used'])} of its "
            f"{in_units(usage['total'])} are used; {why}"
        )

    def _collect(self) -> None:
        """Free the memory of versions that no reader can see any more."""
        self._env.reader_check()
        try:
            with self._writing() as txn:
                if self._versioned:
                    self._drop_unseen(txn)
                self._hide(txn, 0)
            # Pages that a transaction freed can be used by the one after the next.
            with self._writing() as txn:
                self._hide(txn, 0)
        except lmdb.MapFullError:
            time.sleep(_READERS_POLL_S)  # readers keep the pages that they read until they end

    def _is_read(self) -> bool:
        """Return whether a process reads a state of the shard, whose pages cannot be overwritten."""
        readers = self._env.readers().splitlines()[1:]
        return any(len(words := reader.split()) == 3 and words[2] != "-" for reader in readers)


class _PausedError(Exception):
    """Writers must wait."""


class _NoRoomError(Exception):
    """The shard has no room for a write; the text says why."""


def _used(stat: Any) -> int:
    return int((stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"])
