"""One shard of a distributed dictionary: an LMDB environment in shared memory.

Every process of the node reads and writes it directly; what survives a killed writer, and what a reader sees meanwhile,
is LMDB's to answer. Beside it stand a few shared words: how often it changed, whether it is frozen, its newest
checkpoint, and how much memory its file may use.

With a working set of one checkpoint a key has one record. With more it has one for each checkpoint it was written in,
the newest first, and a reader takes the first that is not newer than its own checkpoint.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import lmdb

from dragon.infrastructure.ddict_errors import (
    DDictCheckpointSyncError,
    DDictError,
    DDictFullError,
    DDictKeyError,
)
from dragon.infrastructure.errors import DestroyedError
from dragon.runtime.entries import BROADCAST, NUMBER, PERSISTENT, WRITER, Entries, Settings, Stored
from dragon.runtime.handle import Words
from dragon.runtime.records import Record, bytes_in, int_of, of_int

__all__ = ["MISSING", "Shard", "make_words", "mark_gone"]

# Words beside a shard, and what the state may be.
CHANGES, STATE, NEWEST, _WRITTEN, _ROOM, _ALLOCATED, _COUNT_OF_WORDS = range(7)
_USABLE, _FROZEN, _GONE, _PAUSED = range(4)
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()

_PAGE = 4096
_CLAIM = 8 * _PAGE  # what a small write may add to the file
_ENTRY = 640  # of an entry: its name, its place in a page, and what is lost at a page's end
_STEP = 8 * 2**20
_READERS = 4096
_PATIENCE = 2.0  # seconds that a write waits for readers
_LOOK_AGAIN = 0.002
_LONGEST_PAUSE = 10.0  # seconds; whoever paused it is dead by then, or forgot


def make_words() -> Words:
    """The words of a new shard."""
    return Words(_COUNT_OF_WORDS)


def mark_gone(words: Words) -> None:
    """Every use of the shard raises DestroyedError from now on."""
    words[STATE] = _GONE
    words.add(CHANGES, 1)  # whoever waits looks


def _map_size(capacity: int) -> int:
    # Beside the values there are the pages of the tree, and those that the last transactions left.
    return (capacity + capacity // 8 + _STEP) // _PAGE * _PAGE


class Shard(Entries):
    """A shard as one process of its node has it open. Keys are encoded ones."""

    def __init__(self, settings: Settings, words: Words) -> None:
        super().__init__(settings)
        self.words = words
        # Called with checkpoints that leave the working set and are to be written to disk.
        self.retire: Callable[[list[int]], None] = lambda checkpoints: None
        self._check()
        self._env = lmdb.open(
            settings.folder,
            map_size=_map_size(settings.capacity),
            writemap=True,
            sync=False,
            metasync=False,
            map_async=True,
            meminit=False,
            readahead=False,
            max_readers=_READERS,
            max_spare_txns=4,
        )

    def close(self) -> None:
        """Close it in this process."""
        self._env.close()

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"manager {self.settings.manager} on node {self.settings.node}"

    def _check(self) -> None:
        if self.words[STATE] == _GONE:
            raise DestroyedError(f"the dictionary {self.settings.name!r} was destroyed")

    # ---- reading

    def read(self, key: bytes, checkpoint: int, take: Callable[[Stored], Any], exact: bool = False) -> Any:
        """What `take` makes of a key's record, or MISSING. With `exact` only this checkpoint's counts, and persistent
        ones of earlier."""
        self._check()
        with self._env.begin(buffers=True) as txn:
            stored = self._find(txn, key, checkpoint)
            if stored is None or (exact and _is_earlier(stored, checkpoint)):
                return MISSING
            return take(stored)

    def view(self, key: bytes, checkpoint: int) -> tuple[Any, Stored]:
        """A record and the transaction in which it is valid, which the caller aborts. Raises DDictKeyError."""
        self._check()
        txn = self._env.begin(buffers=True)
        try:
            stored = self._find(txn, key, checkpoint)
            if stored is None:
                raise DDictKeyError(f"no such key in {self.where}")
            return txn, stored
        except BaseException:
            txn.abort()
            raise

    def contains(self, key: bytes, checkpoint: int) -> bool:
        """Whether the key is there."""
        self._check()
        with self._env.begin(buffers=True) as txn:
            return self._find(txn, key, checkpoint) is not None

    def scan(self, checkpoint: int) -> Iterator[Stored]:
        """Every visible record, in one state of the shard; each is valid until the next is asked for."""
        self._check()
        with self._env.begin(buffers=True) as txn:
            yield from self._scan(txn, checkpoint)

    def keys(self, checkpoint: int) -> list[bytes]:
        """All keys, but for copies of broadcasts."""
        return [bytes(stored.key) for stored in self.scan(checkpoint) if not stored.flags & BROADCAST]

    def part(self, key: bytes, checkpoint: int, start: int | None, stop: int | None) -> bytes | None:
        """value[start:stop] of a bytes value, None where there is no such key. Raises DDictError for another value."""

        def take(stored: Stored) -> bytes:
            size = _size_of(stored)
            if size < 0:
                raise DDictError(f"the value is no bytes object, in {self.where}", "INVALID_ARGUMENT")
            pieces = stored.blobs[0] if stored.blobs else [stored.head[1:]]
            first, last, _ = slice(start, stop).indices(size)
            parts = []
            for piece in pieces:
                parts.append(bytes(piece[max(0, first) : max(0, last)]))
                first, last = first - len(piece), last - len(piece)
            return b"".join(parts)

        found = self.read(key, checkpoint, take)
        return None if found is MISSING else bytes(found)

    def size(self, key: bytes, checkpoint: int) -> int | None:
        """The length of a key's value where that is a bytes object, -1 where it is not, None where there is no key."""
        found = self.read(key, checkpoint, _size_of)
        return None if found is MISSING else int(found)

    def sizes(self, checkpoint: int) -> list[tuple[bytes, int]]:
        """The same of all keys, but for copies of broadcasts."""
        return [
            (bytes(stored.key), _size_of(stored)) for stored in self.scan(checkpoint) if not stored.flags & BROADCAST
        ]

    def count(self, checkpoint: int) -> int:
        """How many keys."""
        if self._versioned:
            return sum(not stored.flags & BROADCAST for stored in self.scan(checkpoint))
        self._check()
        with self._env.begin(buffers=True) as txn:
            return int(txn.stat()["entries"]) - self._hidden(txn)

    # ---- writing

    def put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> None:
        """Store a record. Raises DDictFullError where it does not fit; then nothing has changed."""
        self._write(record.size, checkpoint, lambda txn: self._put(txn, key, record, checkpoint, flags))

    def put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> None:
        """Store several records, all or none."""

        def put_all(txn: Any) -> None:
            for key, record in records:
                self._put(txn, key, record, checkpoint, flags)

        self._write(sum(record.size for _, record in records), checkpoint, put_all, len(records))

    def put_new(self, key: bytes, record: Record, checkpoint: int) -> bool:
        """Store a record unless the key is there (in this checkpoint, where that is what readers wait for); whether it
        was stored."""

        def put_it(txn: Any) -> bool:
            stored = self._find(txn, key, checkpoint)
            if stored is not None and not (self.settings.wait_for_keys and _is_earlier(stored, checkpoint)):
                return False
            self._put(txn, key, record, checkpoint, 0)
            return True

        return bool(self._write(record.size, checkpoint, put_it))

    def pop(self, key: bytes, checkpoint: int, take: Callable[[Stored], Any] | None = None) -> Any:
        """Delete a key: what `take` makes of its record (True without it), or MISSING."""

        def pop_it(txn: Any) -> Any:
            stored = self._find(txn, key, checkpoint)
            if stored is None:
                return MISSING
            result = True if take is None else take(stored)
            self._delete(txn, key, checkpoint)
            return result

        return self._write(0, checkpoint, pop_it)

    def add(self, key: bytes, value: int, checkpoint: int) -> int:
        """Add to an integer, which is 0 where there is none; the value before. Raises DDictError for anything else."""

        def add_it(txn: Any) -> int:
            stored = self._find(txn, key, checkpoint)
            before = 0 if stored is None else int_of(bytes(stored.head))
            if before is None:
                raise DDictError(f"fetch_add needs an integer, and {self.where} holds something else", "INVALID_VALUE")
            flags = 0 if stored is None else stored.flags & (PERSISTENT | BROADCAST)
            self._put(txn, key, Record(of_int(before + value), []), checkpoint, flags)
            return before

        return int(self._write(_PAGE, checkpoint, add_it))

    def clear(self, checkpoint: int) -> None:
        """Delete every visible key."""

        def clear_all(txn: Any) -> None:
            if self._versioned:
                for key in [bytes(stored.key) for stored in self._scan(txn, checkpoint)]:
                    self._delete(txn, key, checkpoint)
                return
            txn.drop(self._env.open_db(txn=txn), delete=False)

        self._write(0, checkpoint, clear_all)

    def freeze(self, on: bool) -> None:
        """Refuse writes from now on, or no longer."""
        with self._env.begin(write=True):  # after whoever writes now
            self._check()
            self.words[STATE] = _FROZEN if on else _USABLE

    def begin_anew(self, checkpoint: int) -> None:
        """Drop everything; that checkpoint is the newest from now on."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(txn=txn), delete=False)
            self.words[NEWEST] = checkpoint
        self.words.add(CHANGES, 1)

    def export(self, most: int) -> Iterator[tuple[list[bytes], list[Any]]]:
        """All entries as they are, about `most` bytes at a time; each is valid until the next is asked for."""
        with self._env.begin(buffers=True) as txn:
            names, data, size = [], [], 0
            for name, entry in txn.cursor():
                names.append(bytes(name))
                data.append(entry)
                size += len(entry)
                if size >= most:
                    yield names, data
                    names, data, size = [], [], 0
            yield names, data

    def load(self, names: list[bytes], data: list[Any]) -> None:
        """Take over entries of export()."""

        def put_all(txn: Any) -> None:
            for name, entry in zip(names, data, strict=True):
                txn.put(name, entry)

        self._write(sum(len(memoryview(entry)) for entry in data), self.words[NEWEST], put_all, len(names))

    def pause(self, on: bool) -> None:
        """Have writers wait from now on, but for one that is at it; or no longer. A frozen shard has none."""
        self.words.swap_if(STATE, *((_USABLE, _PAUSED) if on else (_PAUSED, _USABLE)))

    def settle(self) -> None:
        """Wait for the writer that is at it."""
        self._env.begin(write=True).abort()

    def hold(self, checkpoint: int) -> Generator[Stored]:
        """scan() of the state as it is now, whatever is written until it is read; close() lets it go."""
        records = self._held(checkpoint)
        next(records)
        return records  # type: ignore[return-value]

    def _held(self, checkpoint: int) -> Generator[Stored | None]:
        with self._env.begin(buffers=True) as txn:
            yield None
            yield from self._scan(txn, checkpoint)

    @staticmethod
    def own_flags(flags: int) -> int:
        """Of a record's flags those that say something about its value."""
        return flags & (PERSISTENT | BROADCAST)

    # ---- writers that a new checkpoint waits for

    def note_writer(self, client: bytes, checkpoint: int | None) -> None:
        """A client writes in a checkpoint from now on, or no more (None)."""
        name = WRITER + client
        with self._env.begin(write=True) as txn:
            before = txn.get(name)
            if checkpoint is not None:
                txn.put(name, NUMBER.pack(checkpoint))
            elif before is not None:
                txn.delete(name)
            change = (checkpoint is not None) - (before is not None)
            if change:
                self._hide(txn, change)
        self.words.add(CHANGES, 1)

    def writers(self) -> list[tuple[bytes, int]]:
        """Every such client and its checkpoint."""
        self._check()
        found = []
        with self._env.begin() as txn:
            cursor = txn.cursor()
            more = cursor.set_range(WRITER)
            while more and cursor.key().startswith(WRITER):
                found.append((cursor.key()[len(WRITER) :], NUMBER.unpack(cursor.value())[0]))
                more = cursor.next()
        return found

    def take_over(self, newest: int, frozen: bool) -> None:
        """Be in the state of the shard whose entries were loaded."""
        self.words[NEWEST], self.words[STATE] = newest, _FROZEN if frozen else _USABLE

    @property
    def is_frozen(self) -> bool:
        """Whether it refuses writes."""
        return self.words[STATE] == _FROZEN

    @property
    def newest(self) -> int:
        """The newest checkpoint that was written."""
        return self.words[NEWEST]

    @property
    def oldest(self) -> int:
        """The oldest checkpoint that may be read and written."""
        return max(0, self.newest - self.settings.working_set + 1)

    def changed_since(self) -> int:
        """A number that differs after a change."""
        return self.words[CHANGES]

    def wait_for_change(self, seen: int, timeout: float | None) -> bool:
        """Wait until changed_since() is no longer `seen`."""
        return self.words.wait(CHANGES, seen, timeout)

    def usage(self) -> dict[str, int]:
        """Bytes: in all, and in use; and the number of entries."""
        self._check()
        with self._env.begin() as txn:
            stat = txn.stat()
        used = min(_used(stat), self.settings.capacity)
        return {"total": self.settings.capacity, "used": used, "entries": int(stat["entries"])}

    # ---- a write transaction

    def _write(self, size: int, checkpoint: int, change: Callable[[Any], Any], entries: int = 1) -> Any:
        words, claim = self.words, size + entries * _CLAIM
        failed_at = None
        while True:
            try:
                with self._env.begin(write=True, buffers=True) as txn:
                    if words[STATE] != _USABLE:
                        self._refuse()
                    if words[NEWEST] != checkpoint:
                        self._move_to(checkpoint)
                    if words.add(_WRITTEN, claim) + claim > words[_ROOM]:
                        self._make_room(txn, size, entries)
                    result = change(txn)
                words.add(CHANGES, 1)
                return result
            except (lmdb.MapFullError, _NoRoomError) as error:
                now = time.monotonic()
                failed_at = failed_at or now
                waited = isinstance(error, _NoRoomError) or now > failed_at + _PATIENCE or not self._is_read()
                if now > failed_at and waited:
                    raise self._full(size, error) from None
                self._collect()
            except _PausedError:
                if not words.wait(STATE, _PAUSED, _LONGEST_PAUSE):
                    self.pause(False)

    def _refuse(self) -> None:
        self._check()
        if self.words[STATE] == _PAUSED:
            raise _PausedError
        raise DDictError(f"frozen: {self.where} takes no changes until unfreeze()", "INVALID_OPERATION")

    def _move_to(self, checkpoint: int) -> None:
        newest = self.words[NEWEST]
        if checkpoint > newest:
            settings = self.settings
            if settings.persist_freq and settings.persist_count:
                left = range(self.oldest, min(newest, checkpoint - settings.working_set) + 1)
                self.retire([number for number in left if number % settings.persist_freq == 0])
            self.words[NEWEST] = checkpoint
        elif checkpoint < newest - self.settings.working_set + 1:
            raise DDictCheckpointSyncError(
                f"checkpoint {checkpoint} is retired: {self.where} holds {self.oldest} to {newest}; "
                "sync_to_newest_checkpoint() goes to the newest",
                "retired",
            )

    def _make_room(self, txn: Any, size: int, entries: int) -> None:
        """See that a write of `size` bytes fits, and that the file has memory for what it may grow by: a mapping of a
        full file system would end the process. What was found lasts for as many bytes as the words then say."""
        words, most = self.words, _map_size(self.settings.capacity)
        end = (self._env.info()["last_pgno"] + 1) * _PAGE
        used = _used(txn.stat())
        left = self.settings.capacity - used
        # Each entry may change some pages; all together not more than there are, and those that they fill.
        claim = min(size + entries * _CLAIM, 2 * (size + entries * _ENTRY) + used + _CLAIM)
        if size > max(left, 0):
            raise _NoRoomError("make it with a larger total_mem")
        wanted = min(most, end + claim)
        if wanted > words[_ALLOCATED]:
            self._allocate(min(most, -(-wanted // _STEP) * _STEP))
        room = left if words[_ALLOCATED] == most else min(left, words[_ALLOCATED] - end)
        words[_ROOM], words[_WRITTEN] = max(room, 0), claim

    def _allocate(self, size: int) -> None:
        fd = os.open(Path(self.settings.folder) / "data.mdb", os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise _NoRoomError(f"{Path(self.settings.folder).parent} has no room for it") from error
        finally:
            os.close(fd)
        self.words[_ALLOCATED] = size

    def _full(self, size: int, error: Exception) -> DDictFullError:
        usage = self.usage()
        why = str(error) if isinstance(error, _NoRoomError) else "there is room, but in pieces, or a view keeps it"
        return DDictFullError(
            f"{size} bytes do not fit into {self.where}: {usage['used']} of its {usage['total']} bytes are used; {why}"
        )

    def _collect(self) -> None:
        """Free what nobody can see any more."""
        self._env.reader_check()
        try:
            with self._env.begin(write=True, buffers=True) as txn:
                if self._versioned:
                    self._drop_unseen(txn)
                self._hide(txn, 0)
            # What a transaction freed can be used by the one after the next.
            with self._env.begin(write=True) as txn:
                self._hide(txn, 0)
        except lmdb.MapFullError:
            time.sleep(_LOOK_AGAIN)  # readers keep what they look at, until they are done

    def _is_read(self) -> bool:
        """Whether somebody looks at a state of the shard, of which nothing can be written over."""
        readers = self._env.readers().splitlines()[1:]
        return any(len(words := reader.split()) == 3 and words[2] != "-" for reader in readers)


class _PausedError(Exception):
    """Writers are to wait."""


class _NoRoomError(Exception):
    """Why something does not fit."""


def _is_earlier(stored: Stored, checkpoint: int) -> bool:
    """Whether a record was left behind in an earlier checkpoint."""
    return stored.checkpoint != checkpoint and not stored.flags & PERSISTENT


def _used(stat: Any) -> int:
    return int(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * _PAGE


def _size_of(stored: Stored) -> int:
    return bytes_in(stored.head, sum(len(piece) for blob in stored.blobs for piece in blob))
