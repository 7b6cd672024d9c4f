"""One shard of a distributed dictionary: an LMDB environment in shared memory.

Every process of the node reads and writes it directly; LMDB guarantees what survives a killed writer, and what readers
see meanwhile. Some shared words belong to it: the number of changes, whether it is frozen, its newest checkpoint, and
how much memory its file may use.

With a working set of one checkpoint a key has one record. Otherwise it has one for each checkpoint in which it was
written, the newest first, and a reader takes the first that is not newer than its own checkpoint.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from dragon.infrastructure.ddict_errors import (
    DDictError,
    DDictKeyError,
)
from dragon.shards.entries import BROADCAST, NUMBER, PERSISTENT, WRITER, Stored, is_record
from dragon.shards.records import Record, bytes_in, int_of, of_int
from dragon.shards.transactions import ALLOCATED, CHANGES, NEWEST, SINCE, Transactions

__all__ = ["MISSING", "Shard"]

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()

_PAGE = mmap.PAGESIZE
_DATA = "data.mdb"


class Shard(Transactions):
    """A shard that a process of its node has open. Keys are in their encoded form."""

    def close(self) -> None:
        """Close the shard in this process; if values still refer to its memory, it stays open."""
        here = self._environment.here
        if not here.pinned and not here.views:
            super().close()

    # ---- reading

    def read(self, key: bytes, checkpoint: int, take: Callable[[Stored], Any]) -> Any:
        """Return `take(record)` of a key's record, or MISSING."""
        self._check_readable(checkpoint)
        with self._env.begin(buffers=True) as txn:
            stored = self._find(txn, key, checkpoint)
            return MISSING if stored is None else take(stored)

    def read_many(self, keys: list[bytes], checkpoint: int, take: Callable[[list[Stored | None]], Any]) -> Any:
        """Return `take(records)` of the records of several keys, in one state of the shard; None stands for a missing
        key."""
        self._check_readable(checkpoint)
        with self._env.begin(buffers=True) as txn:
            return take([self._find(txn, key, checkpoint) for key in keys])

    def view(self, key: bytes, checkpoint: int) -> tuple[Any, Stored]:
        """Return the transaction in which a record is valid, which the caller aborts, and the record. Raises
        DDictKeyError."""
        self._check_readable(checkpoint)
        txn = self._env.begin(buffers=True)
        try:
            stored = self._find(txn, key, checkpoint)
            if stored is None:
                raise DDictKeyError(f"no such key in {self.where}")
            self._environment.here.views.add(txn)
            return txn, stored
        except BaseException:
            txn.abort()
            raise

    def pin(self, key: bytes, checkpoint: int) -> tuple[Any, Stored] | None:
        """Return an object that keeps the blobs of a record unchanged as long as it exists (None without blobs), and
        the record.

        Returns None if there is no such key.
        """
        self._check_readable(checkpoint)
        txn = self._env.begin(buffers=True)
        stored = self._find(txn, key, checkpoint)
        if stored is None:
            txn.abort()
            return None
        if not stored.blobs:
            txn.abort()
            return None, stored
        here = self._environment.here
        with here.pinning:
            for pinned in here.pinned:
                if pinned.id() == txn.id():
                    txn.abort()  # one reader slot for a state is enough
                    return pinned, stored
            here.pinned.add(txn)
        return txn, stored

    def contains(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists."""
        self._check_readable(checkpoint)
        with self._env.begin(buffers=True) as txn:
            return self._find(txn, key, checkpoint) is not None

    def has_had(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists, or existed in an earlier checkpoint of the working set and was not deleted
        since."""
        self._check_readable(checkpoint)
        with self._env.begin(buffers=True) as txn:
            return (self._newest if self._versioned else self._find)(txn, key, checkpoint) is not None

    def holds(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists and is not a copy of a broadcast."""
        found = self.read(key, checkpoint, lambda stored: not stored.flags & BROADCAST)
        return found is True

    def scan(self, checkpoint: int) -> Iterator[Stored]:
        """Yield every visible record, in one state of the shard; each is valid until the next one is taken."""
        self._check_readable(checkpoint)
        with self._env.begin(buffers=True) as txn:
            yield from self._scan(txn, checkpoint)

    def keys(self, checkpoint: int) -> list[bytes]:
        """Return all keys without copies of broadcasts."""
        return [key for key, flags, _ in self.flagged_keys(checkpoint) if not flags & BROADCAST]

    def flagged_keys(self, checkpoint: int) -> list[tuple[bytes, int, int]]:
        """Return (key, own_flags() of its record, checkpoint in which it was put) of all keys."""
        return [
            (bytes(stored.key), self.own_flags(stored.flags), stored.checkpoint) for stored in self.scan(checkpoint)
        ]

    def part(self, key: bytes, checkpoint: int, start: int | None, stop: int | None) -> bytes | None:
        """Return value[start:stop] of a bytes value, None if there is no such key. Raises DDictError for any other
        value."""

        def take(stored: Stored) -> bytes:
            size = _size_of(stored)
            if size < 0:
                raise DDictError(f"the value is not a bytes object, in {self.where}", "INVALID_ARGUMENT")
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
        """Return the length of a key's bytes value, -1 for any other value, None if there is no such key."""
        found = self.read(key, checkpoint, _size_of)
        return None if found is MISSING else int(found)

    def sizes(self, checkpoint: int) -> list[tuple[bytes, int]]:
        """Return all keys without copies of broadcasts, with the lengths of their bytes values, -1 for any
        other value."""
        return [
            (bytes(stored.key), _size_of(stored)) for stored in self.scan(checkpoint) if not stored.flags & BROADCAST
        ]

    def count(self, checkpoint: int) -> int:
        """Return the number of keys."""
        if self._versioned:
            return sum(not stored.flags & BROADCAST for stored in self.scan(checkpoint))
        self._check_readable(checkpoint)
        with self._env.begin(buffers=True) as txn:
            return int(txn.stat()["entries"]) - self._hidden(txn)

    # ---- writing

    def put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> None:
        """Store a record. Raises DDictFullError if it does not fit; then the shard is unchanged."""
        self._write(record.size, checkpoint, lambda txn: self._put(txn, key, record, checkpoint, flags), record.entries)

    def put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> None:
        """Store several records, all or none. Raises DDictFullError if they do not fit."""

        def put_all(txn: Any) -> None:
            for key, record in records:
                self._put(txn, key, record, checkpoint, flags)

        size, entries = sum(record.size for _, record in records), sum(record.entries for _, record in records)
        self._write(size, checkpoint, put_all, entries)

    def put_new(self, key: bytes, record: Record, checkpoint: int) -> bool:
        """Store a record unless the key exists (with wait_for_keys: in this checkpoint). Returns whether it was
        stored."""

        def put_it(txn: Any) -> bool:
            if self._find(txn, key, checkpoint) is not None:
                return False
            self._put(txn, key, record, checkpoint, 0)
            return True

        return bool(self._write(record.size, checkpoint, put_it, record.entries))

    def pop(self, key: bytes, checkpoint: int, take: Callable[[Stored], Any] | None = None) -> Any:
        """Delete a key. Returns `take(record)`, or True without `take`; MISSING if there is no such key."""

        def pop_it(txn: Any) -> Any:
            stored = self._find(txn, key, checkpoint)
            if stored is None:
                return MISSING
            result = True if take is None else take(stored)
            self._delete(txn, key, checkpoint)
            return result

        return self._write(0, checkpoint, pop_it)

    def add(self, key: bytes, value: int, checkpoint: int) -> int:
        """Add to an integer, 0 if the key is missing, and return the value before. Raises DDictError for any other
        value."""

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
        """Delete every visible key; with wait_for_keys only those of this checkpoint, so that earlier persistent keys
        stay."""

        def clear_all(txn: Any) -> None:
            if not self._versioned:
                self._drop_all(txn)
                return
            every = not self.settings.wait_for_keys
            keys = [
                bytes(found.key) for found in self._scan(txn, checkpoint) if every or found.checkpoint == checkpoint
            ]
            for key in keys:
                self._delete(txn, key, checkpoint)

        self._write(0, checkpoint, clear_all)

    def advance(self, checkpoint: int) -> None:
        """Move to a checkpoint, as the first write in it does."""
        if checkpoint > self.words[NEWEST]:
            self._write(0, checkpoint, lambda txn: None)

    def begin_anew(self, checkpoint: int, since: int = 0) -> None:
        """Drop everything, and make `checkpoint` the newest one, which was restored at the time `since`."""
        self._check()
        with self._writing() as txn:
            self._drop_all(txn)
            self.words[NEWEST], self.words[SINCE] = checkpoint, since or self.words[SINCE]
        self.words.add(CHANGES, 1)

    def _drop_all(self, txn: Any) -> None:
        writers = self._writers(txn)
        txn.drop(self._env.open_db(txn=txn), delete=False)
        for client, checkpoint in writers:
            txn.put(WRITER + client, NUMBER.pack(checkpoint))
        if writers:
            self._hide(txn, len(writers))

    def export(self, most: int) -> Iterator[tuple[list[bytes], list[Any]]]:
        """Yield all entries, blobs before the records that refer to them, in batches of about `most` bytes.

        A batch is valid until the next one is taken.
        """
        with self._env.begin(buffers=True) as txn:
            names, data, size = [], [], 0
            for name, entry in self._blobs_first(txn):
                names.append(name)
                data.append(entry)
                size += len(entry)
                if size >= most:
                    yield names, data
                    names, data, size = [], [], 0
            yield names, data

    def load(self, names: list[bytes], data: list[Any]) -> None:
        """Store entries of export(), in its order."""

        def put_all(txn: Any) -> None:
            for name, entry in zip(names, data, strict=True):
                txn.put(name, self._relocated(txn, entry) if is_record(name) else entry)

        self._write(sum(len(memoryview(entry)) for entry in data), self.words[NEWEST], put_all, len(names))

    def hold(self, checkpoint: int) -> Generator[Stored]:
        """Return scan() of the present state, whatever is written until it is read; its close() releases the state."""
        records = self._held(checkpoint)
        next(records)
        return records  # type: ignore[return-value]

    def _held(self, checkpoint: int) -> Generator[Stored | None]:
        with self._env.begin(buffers=True) as txn:
            yield None
            yield from self._scan(txn, checkpoint)

    @staticmethod
    def own_flags(flags: int) -> int:
        """Return those of a record's flags that describe its value."""
        return flags & (PERSISTENT | BROADCAST)

    # ---- keys and writers that a new checkpoint waits for

    def behind(self, checkpoint: int) -> int:
        """Return how many keys of the checkpoints that would be dropped for `checkpoint` are not in the next one yet.
        Persistent keys do not count."""
        self._check()
        dropped = range(self.oldest, checkpoint - self.settings.working_set + 1)
        if not dropped:
            return 0
        with self._env.begin(buffers=True) as txn:
            return self._behind(txn, dropped)

    def note_writer(self, client: bytes, checkpoint: int | None) -> None:
        """Register that a client writes in a checkpoint from now on; None unregisters it."""
        name = WRITER + client
        self._check()
        with self._writing() as txn:
            before = txn.get(name)
            if checkpoint is not None:
                txn.put(name, NUMBER.pack(checkpoint))
            elif before is not None:
                txn.delete(name)
            change = (checkpoint is not None) - (before is not None)
            if change:
                self._hide(txn, change)
        self.words.add(CHANGES, 1)

    def forget_writers(self) -> None:
        """Unregister all clients."""
        with self._writing() as txn:
            writers = self._writers(txn)
            for client, _ in writers:
                txn.delete(WRITER + client)
            self._hide(txn, -len(writers))

    def move_to(self, folder: Path) -> None:
        """Give the environment to another shard in that folder, after the current write. Memory that a process reads is
        copied."""
        self.forget_writers()
        if not self._is_read():
            try:
                (folder / _DATA).hardlink_to(Path(self.settings.folder) / _DATA)
                return
            except OSError:
                pass  # the folder is on another file system: copy the data
        self._env.copy(str(folder))
        self.words[ALLOCATED] = 0

    def writers(self) -> list[tuple[bytes, int]]:
        """Return (client, checkpoint) of all registered clients."""
        self._check()
        with self._env.begin() as txn:
            return self._writers(txn)

    @staticmethod
    def _writers(txn: Any) -> list[tuple[bytes, int]]:
        found = []
        cursor = txn.cursor()
        more = cursor.set_range(WRITER)
        while more and bytes(cursor.key()).startswith(WRITER):
            found.append((bytes(cursor.key())[len(WRITER) :], NUMBER.unpack(cursor.value())[0]))
            more = cursor.next()
        return found


def _size_of(stored: Stored) -> int:
    return bytes_in(stored.head, sum(len(piece) for blob in stored.blobs for piece in blob))
