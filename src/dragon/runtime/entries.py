"""How a shard's records lie in its LMDB environment.

A key's entry is named by the key itself, or by its digest where that is longer than LMDB's names may be. With a working
set of several checkpoints the name is the digest and the checkpoint, counted backwards, so that the first entry from a
checkpoint's name on is the newest that it shows.

Blobs are entries of their own. Beside each there is one that says where in the environment's file it lies, where it
stays until it is deleted: LMDB's module touches every page of what it is asked for, and this way it is not asked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from dragon import _core
from dragon.infrastructure.messages import Name
from dragon.runtime.records import Record, digest, place_of

__all__ = [
    "BROADCAST",
    "NUMBER",
    "PERSISTENT",
    "WRITER",
    "Entries",
    "Settings",
    "Stored",
    "is_blob",
    "is_place",
    "places_of",
]

# Flags of a record.
_LONG_KEY, PERSISTENT, BROADCAST, _DELETED, _HAS_BLOBS = 1, 2, 4, 8, 16

_LONGEST_KEY = 480
_VERSIONED, _BLOB = b"\xfe", b"\xff"
WRITER, _PLACE = b"\0w", b"\0p"
_HIDDEN = b"\0hidden"  # how many entries are not to be counted: blobs, their places, this one, copies of broadcasts
_LAST = 2**64 - 1
_PIECE = 2**31  # bytes of the largest entry of LMDB that is made

_LENGTH = struct.Struct("<I")
_BLOBS = struct.Struct("<QH")
_SIZE = struct.Struct("<Q")
_BLOB_NAME = struct.Struct(">cQHH")
_EXTENT = struct.Struct("<QQ")
NUMBER = struct.Struct(">Q")
_NO_NAMES: list[bytes] = []


class Settings(msgspec.Struct, frozen=True):
    """What a shard is made with. `capacity` is in bytes."""

    manager: int
    managers: int
    capacity: int
    folder: str = ""
    words: Name = (0, 0, 0)
    node: int = 0
    name: str = ""
    working_set: int = 1
    wait_for_keys: bool = False
    read_only: bool = False
    persist_freq: int = 0
    persist_count: int = 0
    persist_path: str = ""
    holders: list[int] = []  # with replicas: the nodes that keep it, the one that decides first


class Stored(NamedTuple):
    """A record as it lies in a shard; valid while its transaction lasts."""

    flags: int
    checkpoint: int
    key: bytes
    head: bytes
    blobs: list[list[Any]]  # of each blob its pieces

    @property
    def size(self) -> int:
        """Bytes of all of it, but for the key."""
        return len(self.head) + sum(len(piece) for blob in self.blobs for piece in blob)


class Entries:
    """Finds, writes and deletes entries within a transaction of LMDB. Keys are encoded ones."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._versioned = settings.working_set > 1

    @property
    def oldest(self) -> int:
        """The oldest checkpoint that is held."""
        raise NotImplementedError

    def _file(self, inside: Any) -> memoryview:
        """The environment's file as LMDB has it in memory. `inside` is some memory of it."""
        raise NotImplementedError

    def _start_of_file(self, inside: Any) -> int:
        """The address at which that begins."""
        raise NotImplementedError

    def _find(self, txn: Any, key: bytes, checkpoint: int) -> Stored | None:
        if self._versioned:
            return self._visible(txn, key, checkpoint)
        data = txn.get(self._plain(key))
        return None if data is None else self._stored(txn, key, 0, data)

    def _plain(self, key: bytes) -> bytes:
        return key if len(key) <= _LONGEST_KEY else _VERSIONED + digest(key)

    @staticmethod
    def _at(key: bytes, checkpoint: int) -> bytes:
        return _VERSIONED + digest(key) + NUMBER.pack(_LAST - checkpoint)

    def _visible(self, txn: Any, key: bytes, checkpoint: int) -> Stored | None:
        cursor = txn.cursor()
        first = self._at(key, checkpoint)
        if not cursor.set_range(first):
            return None
        found = bytes(cursor.key())
        if found[:17] != first[:17]:
            return None
        stored = self._stored(txn, key, _LAST - NUMBER.unpack(found[17:])[0], cursor.value())
        return stored if self._is_seen(stored) else None

    def _is_seen(self, stored: Stored) -> bool:
        if stored.flags & _DELETED:
            return False
        return not self.settings.wait_for_keys or bool(stored.flags & PERSISTENT) or stored.checkpoint >= self.oldest

    def _stored(self, txn: Any, key: bytes, checkpoint: int, data: Any) -> Stored:
        flags = data[0]
        if flags == 0:
            return Stored(0, checkpoint, key, bytes(data[1:]), [])
        start = 1
        if flags & _LONG_KEY:
            (length,) = _LENGTH.unpack_from(data, 1)
            key, start = bytes(data[5 : 5 + length]), 5 + length
        blobs: list[list[Any]] = []
        if flags & _HAS_BLOBS:
            number, count = _BLOBS.unpack_from(data, start)
            start += _BLOBS.size
            for i in range(count):
                (size,) = _SIZE.unpack_from(data, start)
                start += _SIZE.size
                blobs.append([self._piece(txn, name, data) for name in _pieces(number, i, size)])
        return Stored(flags, checkpoint, key, bytes(data[start:]), blobs)

    def _piece(self, txn: Any, name: bytes, inside: Any) -> memoryview:
        start, size = _EXTENT.unpack(txn.get(_PLACE + name))
        return self._file(inside)[start : start + size]

    def _put_piece(self, txn: Any, name: bytes, piece: Any) -> None:
        txn.put(name, piece)
        stored = txn.get(name)
        start = _core.address_of(stored) - self._start_of_file(stored)
        txn.put(_PLACE + name, _EXTENT.pack(start, len(stored)))

    def _scan(self, txn: Any, checkpoint: int) -> Iterator[Stored]:
        cursor = txn.cursor()
        more = cursor.set_range(b"\1")
        last = b""
        while more:
            name = bytes(cursor.key())
            if is_blob(name):
                return
            if not self._versioned:
                yield self._stored(txn, name, 0, cursor.value())
            elif name[:17] != last and (version := _LAST - NUMBER.unpack(name[17:])[0]) <= checkpoint:
                last = name[:17]
                stored = self._stored(txn, b"", version, cursor.value())
                if self._is_seen(stored):
                    yield stored
            more = cursor.next()

    def _put(self, txn: Any, key: bytes, record: Record, checkpoint: int, flags: int) -> None:
        name = self._at(key, checkpoint) if self._versioned else self._plain(key)
        old = txn.get(name)
        hidden, number, unused = 0, 0, _NO_NAMES
        if old is not None and old[0]:
            hidden -= bool(old[0] & BROADCAST)
            number, unused = _blobs_in(old)
        if flags == 0 and not record.blobs and name is key:
            data, made = b"\0" + record.head, _NO_NAMES
        else:
            data, made = self._entry(txn, key, name, record, flags, number)
            hidden += bool(flags & BROADCAST)
        if made != unused:
            hidden += 2 * (len(made) - len(unused))
            self._drop(txn, [name for name in unused if name not in made])
        txn.put(name, data)
        if hidden:
            self._hide(txn, hidden)
        if self._versioned:
            self._drop_older(txn, name)

    def _entry(
        self, txn: Any, key: bytes, name: bytes, record: Record, flags: int, number: int
    ) -> tuple[bytes, list[bytes]]:
        """A record's entry, and the names of its blobs, which are written: over those of that number unless it is 0."""
        parts, made = [], []
        if name is not key:
            flags |= _LONG_KEY
            parts.append(_LENGTH.pack(len(key)) + key)
        if record.blobs:
            flags |= _HAS_BLOBS
            number = number or int.from_bytes(os.urandom(8), "big")
            parts.append(_BLOBS.pack(number, len(record.blobs)))
            for i, blob in enumerate(record.blobs):
                memory = memoryview(blob).cast("B")
                size = memory.nbytes
                parts.append(_SIZE.pack(size))
                names = _pieces(number, i, size)
                made += names
                length = -(-size // len(names))
                for piece, entry in enumerate(names):
                    self._put_piece(txn, entry, memory[piece * length : (piece + 1) * length])
        return b"".join([bytes([flags]), *parts, record.head]), made

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
        """Delete the blobs of an entry; how many entries that were."""
        names = _blobs_in(data)[1]
        self._drop(txn, names)
        return 2 * len(names)

    @staticmethod
    def _drop(txn: Any, names: list[bytes]) -> None:
        for name in names:
            txn.delete(name)
            txn.delete(_PLACE + name)

    def _hidden(self, txn: Any) -> int:
        data = txn.get(_HIDDEN)
        return 0 if data is None else NUMBER.unpack(data)[0]

    def _hide(self, txn: Any, count: int) -> None:
        hidden = self._hidden(txn) or 1
        txn.put(_HIDDEN, NUMBER.pack(hidden + count))

    # ---- versions that nobody sees

    def _drop_older(self, txn: Any, name: bytes) -> None:
        """Of a key's versions before this one, delete those that no checkpoint of the working set shows."""
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
        """The same for every key."""
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
    """Which of `now` managers hold a record that a manager, one of `before`, held.

    With as many as before it is the same. Otherwise a broadcast's copies go to all that do not have the key itself, a
    key that was put with a chosen manager stays there if there is such a manager, and others go where their hash says.
    """
    if before == now:
        return [manager]
    place = place_of(key, now)
    if flags & BROADCAST:
        return [other for other in range(now) if other != place]
    chosen = place_of(key, before) != manager
    return [manager if chosen and manager < now else place]


def is_place(name: bytes) -> bool:
    """Whether an entry of that name says where a piece of a blob lies."""
    return name.startswith(_PLACE)


def is_blob(name: bytes) -> bool:
    """Whether an entry of that name is a piece of a blob."""
    return name[:1] == _BLOB


def _blobs_in(data: Any) -> tuple[int, list[bytes]]:
    """The number in the names of an entry's blobs, 0 where there are none, and those names."""
    flags = data[0]
    if not flags & _HAS_BLOBS:
        return 0, _NO_NAMES
    start = 1 + (4 + _LENGTH.unpack_from(data, 1)[0] if flags & _LONG_KEY else 0)
    number, count = _BLOBS.unpack_from(data, start)
    sizes = struct.unpack_from(f"<{count}Q", data, start + _BLOBS.size)
    return number, [name for i, size in enumerate(sizes) for name in _pieces(number, i, size)]


def _pieces(number: int, blob: int, size: int) -> list[bytes]:
    """The names of a blob's entries."""
    if size <= _PIECE:
        return [_BLOB_NAME.pack(_BLOB, number, blob, 0)]
    return [_BLOB_NAME.pack(_BLOB, number, blob, piece) for piece in range(-(-size // _PIECE))]
