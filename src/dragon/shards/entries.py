"""The format of a shard's records in its LMDB environment.

The name of a key's entry is the key itself, or its digest if it is longer than LMDB allows. With a working set of
several checkpoints the name is the digest and the checkpoint, which counts backwards, so that the first entry from a
checkpoint's name on is the newest one that the checkpoint shows.

Blobs are separate entries. The record contains the position of each in the environment's file, where it stays until it
is deleted: LMDB's Python module touches every page of an entry that it reads, and so it need not read blobs.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from dragon import _core
from dragon.runtime.protocol.shards import Settings
from dragon.shards.records import Record, digest, place_of

__all__ = [
    "BROADCAST",
    "NUMBER",
    "PERSISTENT",
    "WRITER",
    "Entries",
    "Settings",
    "Stored",
    "is_record",
    "places_of",
]

# Flags of a record.
_LONG_KEY, PERSISTENT, BROADCAST, _DELETED, _HAS_BLOBS = 1, 2, 4, 8, 16

_MAX_KEY_BYTES = 480  # longer keys are replaced by their digest
_VERSIONED, _BLOB = b"\xfe", b"\xff"
_FIRST = b"\1"  # entries before this name are internal to the shard
WRITER = b"\0w"
_HIDDEN = b"\0hidden"  # the number of entries that do not count as keys: blobs, this entry, copies of broadcasts
_LAST = 2**64 - 1
_PIECE = 2**31  # bytes of an LMDB entry at most

_LENGTH = struct.Struct("<I")
_BLOBS = struct.Struct("<QI")  # the number in the names of the pieces, and the number of pieces
_EXTENT = struct.Struct("<HQQ")  # of each piece: index of the blob, position in the file, size in bytes
_BLOB_NAME = struct.Struct(">cQI")
NUMBER = struct.Struct(">Q")


class Stored(NamedTuple):
    """A record in a shard, valid during its transaction."""

    flags: int
    checkpoint: int
    key: bytes
    head: bytes
    blobs: list[list[Any]]  # the pieces of each blob

    @property
    def size(self) -> int:
        """The size of the record in bytes, without the key."""
        return len(self.head) + sum(len(piece) for blob in self.blobs for piece in blob)


class Entries:
    """Finds, writes and deletes entries within an LMDB transaction. Keys are in their encoded form."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._versioned = settings.working_set > 1

    @property
    def oldest(self) -> int:
        """The oldest checkpoint that the shard holds."""
        raise NotImplementedError

    def _file(self, inside: Any) -> memoryview:
        """Return the environment's file as LMDB has mapped it. `inside` is memory in that mapping."""
        raise NotImplementedError

    def _start_of_file(self, inside: Any) -> int:
        """Return the address at which the mapping of the file begins."""
        raise NotImplementedError

    def _find(self, txn: Any, key: bytes, checkpoint: int) -> Stored | None:
        if self._versioned:
            return self._visible(txn, key, checkpoint)
        data = txn.get(self._plain(key))
        return None if data is None else self._stored(key, 0, data)

    def _plain(self, key: bytes) -> bytes:
        return key if len(key) <= _MAX_KEY_BYTES else _VERSIONED + digest(key)

    @staticmethod
    def _at(key: bytes, checkpoint: int) -> bytes:
        return _VERSIONED + digest(key) + NUMBER.pack(_LAST - checkpoint)

    def _visible(self, txn: Any, key: bytes, checkpoint: int) -> Stored | None:
        stored = self._newest(txn, key, checkpoint)
        return stored if stored is not None and self._is_seen(stored, checkpoint) else None

    def _newest(self, txn: Any, key: bytes, checkpoint: int) -> Stored | None:
        """Return the newest record of a key up to a checkpoint; None if there is none or it is a deletion."""
        cursor = txn.cursor()
        first = self._at(key, checkpoint)
        if not cursor.set_range(first):
            return None
        found = bytes(cursor.key())
        if found[:17] != first[:17]:
            return None
        stored = self._stored(key, _LAST - NUMBER.unpack(found[17:])[0], cursor.value())
        return None if stored.flags & _DELETED else stored

    def _is_seen(self, stored: Stored, checkpoint: int) -> bool:
        """Return whether a checkpoint shows the newest record up to it.

        With wait_for_keys it must be of this checkpoint, or persistent.
        """
        if stored.flags & _DELETED:
            return False
        if not self.settings.wait_for_keys:
            return True
        return stored.checkpoint == checkpoint or bool(stored.flags & PERSISTENT)

    def _stored(self, key: bytes, checkpoint: int, data: Any) -> Stored:
        flags = data[0]
        if flags == 0:
            return Stored(0, checkpoint, key, bytes(data[1:]), [])
        start = _after_key(data)
        if flags & _LONG_KEY:
            key = bytes(data[5:start])
        blobs: list[list[Any]] = []
        if flags & _HAS_BLOBS:
            file = self._file(data)
            _, start, end = _blobs_at(data, start)
            for blob, first, length in _EXTENT.iter_unpack(data[start:end]):
                if blob == len(blobs):
                    blobs.append([])
                blobs[blob].append(file[first : first + length])
            start = end
        return Stored(flags, checkpoint, key, bytes(data[start:]), blobs)

    def _scan(self, txn: Any, checkpoint: int) -> Iterator[Stored]:
        cursor = txn.cursor()
        more = cursor.set_range(_FIRST)
        last = b""
        while more:
            name = bytes(cursor.key())
            if not is_record(name):
                return
            if not self._versioned:
                yield self._stored(name, 0, cursor.value())
            elif name[:17] != last and (version := _LAST - NUMBER.unpack(name[17:])[0]) <= checkpoint:
                last = name[:17]
                stored = self._stored(b"", version, cursor.value())
                if self._is_seen(stored, checkpoint):
                    yield stored
            more = cursor.next()

    @staticmethod
    def _blobs_first(txn: Any) -> Iterator[tuple[bytes, Any]]:
        """Yield all entries, the pieces of blobs first."""
        cursor = txn.cursor()
        if cursor.set_range(_BLOB):
            yield from ((bytes(name), data) for name, data in cursor)
        for name, data in txn.cursor():
            if bytes(name) >= _BLOB:
                return
            yield bytes(name), data

    def _put(self, txn: Any, key: bytes, record: Record, checkpoint: int, flags: int) -> None:
        name = self._at(key, checkpoint) if self._versioned else self._plain(key)
        old = txn.get(name)
        hidden, number, unused, made = 0, 0, 0, 0
        if old is not None and old[0]:
            hidden -= bool(old[0] & BROADCAST)
            number, unused = _blobs_in(old)
        if flags == 0 and not record.blobs and name is key:
            data = b"\0" + record.head
        else:
            whole_key = blobs = b""
            if name is not key:
                flags |= _LONG_KEY
                whole_key = _LENGTH.pack(len(key)) + key
            if record.blobs:
                flags |= _HAS_BLOBS
                number = number or int.from_bytes(os.urandom(8), "big")
                made, blobs = self._put_blobs(txn, number, record.blobs)
            data = b"%c%b%b%b" % (flags, whole_key, blobs, record.head)
            hidden += bool(flags & BROADCAST)
        if made != unused:
            hidden += made - unused
            self._drop(txn, _names(number, made, unused))
        txn.put(name, data)
        if hidden:
            self._hide(txn, hidden)
        if self._versioned:
            self._drop_older(txn, name)

    def _put_blobs(self, txn: Any, number: int, blobs: list[Any]) -> tuple[int, bytes]:
        """Write blobs, over those with that number. Returns the number of pieces, and the table of their positions."""
        table: list[bytes] = []
        for blob, memory in enumerate(blobs):
            for piece in _pieces(memory):
                name = _BLOB_NAME.pack(_BLOB, number, len(table))
                txn.put(name, piece)
                table.append(self._extent(txn, name, blob))
        return len(table), _BLOBS.pack(number, len(table)) + b"".join(table)

    def _extent(self, txn: Any, name: bytes, blob: int) -> bytes:
        stored = txn.get(name)
        return _EXTENT.pack(blob, _core.address_of(stored) - self._start_of_file(stored), len(stored))

    def _relocated(self, txn: Any, data: Any) -> bytes:
        """Return a record's entry of another environment with the positions of its blobs in this one, where they were
        written."""
        whole = bytearray(data)
        if whole[0] & _HAS_BLOBS:
            number, start, end = _blobs_at(whole, _after_key(whole))
            extents = list(_EXTENT.iter_unpack(whole[start:end]))
            names = _names(number, 0, len(extents))
            whole[start:end] = b"".join(
                self._extent(txn, name, blob) for name, (blob, _, _) in zip(names, extents, strict=True)
            )
        return bytes(whole)

    def _delete(self, txn: Any, key: bytes, checkpoint: int) -> None:
        name = self._at(key, checkpoint) if self._versioned else self._plain(key)
        old = txn.get(name)
        if old is not None:
            hidden = int(bool(old[0] & BROADCAST))
            hidden += self._drop_blobs(txn, old)
            if hidden:
                self._hide(txn, -hidden)
            txn.delete(name)
        if self._versioned:
            data = bytes([_LONG_KEY | _DELETED]) + _LENGTH.pack(len(key)) + key
            txn.put(name, data)
            self._drop_older(txn, name)

    def _drop_blobs(self, txn: Any, data: Any) -> int:
        """Delete the blobs of an entry, and return the number of their entries."""
        number, count = _blobs_in(data)
        self._drop(txn, _names(number, 0, count))
        return count

    @staticmethod
    def _drop(txn: Any, names: list[bytes]) -> None:
        for name in names:
            txn.delete(name)

    def _hidden(self, txn: Any) -> int:
        data = txn.get(_HIDDEN)
        return 0 if data is None else NUMBER.unpack(data)[0]

    def _hide(self, txn: Any, count: int) -> None:
        hidden = self._hidden(txn) or 1
        txn.put(_HIDDEN, NUMBER.pack(hidden + count))

    def _behind(self, txn: Any, dropped: range) -> int:
        """Return how many keys of the checkpoints `dropped`, but persistent ones, are not in the next checkpoint."""
        cursor, there, counted = txn.cursor(), set(), []
        more = cursor.set_range(_VERSIONED)
        while more and (name := bytes(cursor.key()))[:1] == _VERSIONED:
            version = _LAST - NUMBER.unpack(name[17:])[0]
            there.add((name[:17], version))
            if version in dropped and not cursor.value()[0] & (PERSISTENT | _DELETED):
                counted.append((name[:17], version + 1))
            more = cursor.next()
        return sum(wanted not in there for wanted in counted)

    # ---- versions that no checkpoint shows

    def _drop_older(self, txn: Any, name: bytes) -> None:
        """Delete the versions of a key before this one that no checkpoint of the working set shows."""
        oldest, cursor = self.oldest, txn.cursor()
        if not cursor.set_range(name):
            return
        found_base = _LAST - NUMBER.unpack(name[17:])[0] <= oldest
        unseen = []
        while cursor.next() and bytes(cursor.key())[:17] == name[:17]:
            entry = bytes(cursor.key())
            if found_base:
                unseen.append(entry)
            elif _LAST - NUMBER.unpack(entry[17:])[0] <= oldest:
                found_base = True
        for entry in unseen:
            self._drop_entry(txn, entry)

    def _drop_entry(self, txn: Any, name: bytes) -> None:
        data = txn.get(name)
        hidden = int(bool(data[0] & BROADCAST))
        hidden += self._drop_blobs(txn, data)
        if hidden:
            self._hide(txn, -hidden)
        txn.delete(name)

    def _drop_unseen(self, txn: Any) -> None:
        """Delete the versions of every key that no checkpoint of the working set shows."""
        oldest, cursor, unseen = self.oldest, txn.cursor(), []
        last, found_base, more = b"", False, cursor.set_range(_VERSIONED)
        while more:
            name = bytes(cursor.key())
            if name[:1] != _VERSIONED:
                break
            if name[:17] != last:
                last, found_base = name[:17], False
            version = _LAST - NUMBER.unpack(name[17:])[0]
            data = cursor.value()
            passing = self.settings.wait_for_keys and version < oldest and not data[0] & PERSISTENT
            if found_base or passing:
                unseen.append(name)
            elif version <= oldest:
                found_base = True
                if data[0] & _DELETED:
                    unseen.append(name)
            more = cursor.next()
        for name in unseen:
            self._drop_entry(txn, name)


def places_of(key: bytes, flags: int, manager: int, before: int, now: int) -> list[int]:
    """Return which of `now` managers hold a record that `manager`, one of `before`, held.

    With equal numbers it is the same manager. Otherwise the copies of a broadcast are placed with all managers that do
    not have the key itself, a key that was put through manager() stays with its manager if that exists, and any other
    key is placed by its hash.
    """
    if before == now:
        return [manager]
    place = place_of(key, now)
    if flags & BROADCAST:
        return [other for other in range(now) if other != place]
    chosen = place_of(key, before) != manager
    return [manager if chosen and manager < now else place]


def is_record(name: bytes) -> bool:
    """Return whether an entry of that name is a record: not a piece of a blob, and not internal to the shard."""
    return _FIRST <= name < _BLOB


def _after_key(data: Any) -> int:
    return 5 + int(_LENGTH.unpack_from(data, 1)[0]) if data[0] & _LONG_KEY else 1


def _blobs_at(data: Any, start: int) -> tuple[int, int, int]:
    """Return the number in the names of an entry's blobs, and the start and end of the table of their pieces."""
    number, count = _BLOBS.unpack_from(data, start)
    start += _BLOBS.size
    return number, start, start + count * _EXTENT.size


def _blobs_in(data: Any) -> tuple[int, int]:
    """Return the number in the names of an entry's blobs and the number of their pieces; (0, 0) without blobs."""
    if not data[0] & _HAS_BLOBS:
        return 0, 0
    number, count = _BLOBS.unpack_from(data, _after_key(data))
    return number, count


def _names(number: int, first: int, last: int) -> list[bytes]:
    """Return the names of the pieces `first` to `last` - 1."""
    return [_BLOB_NAME.pack(_BLOB, number, piece) for piece in range(first, last)]


def _pieces(blob: Any) -> list[Any]:
    """Return a blob in pieces of about equal size that LMDB accepts."""
    size = memoryview(blob).nbytes
    if size <= _PIECE:
        return [blob]
    memory, count = memoryview(blob).cast("B"), -(-size // _PIECE)
    length = -(-size // count)
    return [memory[i * length : (i + 1) * length] for i in range(count)]
