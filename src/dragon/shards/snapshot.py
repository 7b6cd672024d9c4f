"""A shard's records in a file, which is written atomically, and checked when it is read; and shards filled from files.

A file consists of a magic word, a version, a header, the records, an end mark with their number, and a checksum. The
files of a checkpoint that a dictionary's managers write together are a set, whose identity is in the name and header of
each. The rename of the last one commits the set: it is complete if there is a file of every manager, whose number each
header has. A later set has a larger identity; that of files of earlier versions is empty.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dragon.files import regular
from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.shards import Settings
from dragon.shards.records import Record, place_of
from dragon.shards.shard import BROADCAST, Shard, Stored, places_of

_MAGIC = b"DRGNDICT"
_VERSION = 1
_START = struct.Struct("<8sII")  # magic word, version, size of the header in bytes
_RECORD = struct.Struct("<IBIH")  # size of the key in bytes, flags, size of the head in bytes, number of blobs
_SIZE = struct.Struct("<Q")
_END = 0xFFFFFFFF  # in place of the size of a key: the end mark
_DIGEST = 32  # bytes of the checksum
_PIECE = 2**20  # bytes that are read at a time
_SYNCED = 64 * 2**20  # bytes between two synchronizations: a disk that is only slow makes progress
_NAME = re.compile(r"(\.?)(.+)_([0-9]+)_([0-9]+)(?:\.([0-9a-f]{40}))?\.ddict(?:\.[0-9a-f]{8})?", re.DOTALL)


class Header(msgspec.Struct):
    """The header of a file: its writer, the number of managers, the checkpoint, and the identity of the set."""

    name: str
    manager: int
    managers: int
    checkpoint: int
    set: str = ""


class File(NamedTuple):
    """What the name of a manager's file says."""

    name: str
    checkpoint: int
    set: str
    manager: int
    path: Path


def snapshot_path(settings: Settings, manager: int, checkpoint: int, of_set: str) -> Path:
    """Return the path of one manager's file of a checkpoint."""
    return Path(settings.persist_path) / f"{settings.name}_{manager}_{checkpoint}{of_set and '.'}{of_set}.ddict"


def files_in(folder: str | Path, unfinished: bool = False) -> Iterator[File]:
    """Yield the files in a folder, or those that are being written, or whose writer was killed."""
    for path in Path(folder).glob(".*.ddict.*" if unfinished else "*.ddict"):
        parts = _NAME.fullmatch(path.name)
        if parts and bool(parts[1]) == unfinished:
            yield File(parts[2], int(parts[4]), parts[5] or "", int(parts[3]), path)


def managers_of(files: dict[int, Path]) -> int:
    """Return how many managers wrote a set of these files, 0 if some are missing. (Reading finds a damaged one.)"""
    said = {}
    for manager, path in files.items():
        try:
            with open(path, "rb", opener=regular) as file:
                said[manager] = _header(path, file).managers
        except (OSError, DDictPersistCheckpointError):
            said[manager] = 0
    # There may be old files of a dictionary with more managers.
    for managers in set(said.values()) - {0}:
        if all(said.get(manager, -1) in (0, managers) for manager in range(managers)):
            return managers
    return 0


def tidy(settings: Settings, checkpoint: int, of_set: str, complete: bool = True) -> None:
    """Remove what a complete set makes unneeded: older files of its checkpoint, and those of checkpoints before it, of
    which as many are kept as the settings say. Later checkpoints are of another run, which may need them.

    Of an incomplete set, remove this manager's file.
    """
    if not complete:
        snapshot_path(settings, settings.manager, checkpoint, of_set).unlink(missing_ok=True)
        return
    mine = [file for file in files_in(settings.persist_path) if file.name == settings.name]
    numbers = sorted({file.checkpoint for file in mine if file.checkpoint <= checkpoint})
    dropped = set(numbers[: -settings.persist_count]) if settings.persist_count > 0 else set()
    for file in (*mine, *files_in(settings.persist_path, unfinished=True)):
        old = file.checkpoint == checkpoint and file.set < of_set
        if file.name == settings.name and (old or file.checkpoint in dropped):
            file.path.unlink(missing_ok=True)


class _Summed:
    """A file with a checksum of all that is written. `progress` is called when a part of it is on the disk."""

    def __init__(self, file: BinaryIO, progress: Callable[[], object]) -> None:
        self.file, self._progress, self._unsynced = file, progress, 0
        self.sum = blake2b(digest_size=_DIGEST)

    def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.sum.update(data)
        self._unsynced += len(data)
        if self._unsynced > _SYNCED:
            self.sync()

    def sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self._unsynced = 0
        self._progress()


def write_snapshot(path: Path, header: Header, records: Iterator[Stored], progress: Callable[[], object]) -> None:
    """Write records to a file, or leave none. `progress` is called while the disk takes the data."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            _write(_Summed(file, progress), header, records)
        temporary.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # so that an older file may be removed
        finally:
            os.close(folder)
    except OSError as error:
        raise DDictPersistCheckpointError(f"{path} cannot be written: {error}") from error
    finally:
        if temporary.exists():
            temporary.unlink()


def _write(file: _Summed, header: Header, records: Iterator[Stored]) -> None:
    head = msgspec.msgpack.encode(header)
    file.write(_START.pack(_MAGIC, _VERSION, len(head)) + head)
    count = 0
    for record in records:
        sizes = [sum(len(piece) for piece in blob) for blob in record.blobs]
        file.write(_RECORD.pack(len(record.key), record.flags, len(record.head), len(sizes)))
        file.write(b"".join(map(_SIZE.pack, sizes)) + bytes(record.key) + record.head)
        for blob in record.blobs:
            for piece in blob:
                file.write(piece)
        count += 1
    file.write(_RECORD.pack(_END, 0, 0, 0) + _SIZE.pack(count))
    file.file.write(file.sum.digest())
    file.sync()


def read_header(path: Path) -> Header:
    """Check a file's checksum and return its header. Raises DDictPersistCheckpointError."""
    try:
        with open(path, "rb", opener=regular) as file:
            return _checked(path, file)
    except OSError as error:
        raise DDictPersistCheckpointError(f"{path} cannot be read: {error}") from error


def _checked(path: Path, file: BinaryIO) -> Header:
    header = _header(path, file)
    file.seek(0)
    rest = os.fstat(file.fileno()).st_size - _DIGEST
    summed = blake2b(digest_size=_DIGEST)
    while rest > 0:
        data = file.read(min(rest, _PIECE))
        if not data:
            break
        summed.update(data)
        rest -= len(data)
    if file.read(_DIGEST) != summed.digest():
        raise DDictPersistCheckpointError(f"{path} is damaged: its checksum does not fit; restore another checkpoint")
    return header


def _header(path: Path, file: BinaryIO) -> Header:
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise DDictPersistCheckpointError(f"{path} is not a checkpoint of a dictionary, or was truncated")
    _, version, size = _START.unpack(start)
    if version != _VERSION:
        raise DDictPersistCheckpointError(f"{path} has format {version}; this version reads format {_VERSION}")
    try:
        return msgspec.msgpack.decode(file.read(size), type=Header)
    except ValueError as error:
        raise DDictPersistCheckpointError(f"{path} is damaged: {error}") from error


def records_in(path: Path, values: bool = True) -> Iterator[tuple[bytes, int, Record]]:
    """Yield (key, flags, record) of a file that was checked before; without `values` the records are empty."""
    with open(path, "rb", opener=regular) as file:
        _header(path, file)
        while True:
            key_size, flags, head_size, count = _RECORD.unpack(file.read(_RECORD.size))
            if key_size == _END:
                return
            sizes = [_SIZE.unpack(file.read(_SIZE.size))[0] for _ in range(count)]
            key = file.read(key_size)
            if values:
                head = file.read(head_size)
                yield key, flags, Record(head, [file.read(size) for size in sizes])
            else:
                file.seek(head_size + sum(sizes), os.SEEK_CUR)
                yield key, flags, Record(b"", [])


# ---- filling shards from a set


def persisted_for(settings: Settings, only: int | None) -> dict[int, dict[str, int]]:
    """Return the checkpoints from which a shard can be filled: their sets, and how many managers wrote each."""
    sets: dict[tuple[int, str], dict[int, Path]] = {}
    for file in files_in(settings.persist_path):
        if file.name == settings.name and only in (None, file.checkpoint):
            sets.setdefault((file.checkpoint, file.set), {})[file.manager] = file.path
    found: dict[int, dict[str, int]] = {}
    for (checkpoint, of_set), files in sets.items():
        written_by = managers_of(files)
        if written_by not in (0, settings.managers):
            found.setdefault(checkpoint, {})[of_set] = written_by
        elif settings.manager in files:
            # The files of other managers may be on other nodes.
            found.setdefault(checkpoint, {})[of_set] = settings.managers
    return found


def restore(shards: list[Shard], checkpoint: int, of_set: str, written_by: int, since: int) -> bool:
    """Fill shards of one dictionary from a set. Returns whether a key is with another manager than its hash says.

    If the number of managers equals that of the files' writers, each manager reads one file. Otherwise each reads all
    of them, and takes its own keys. A key that was put through manager() stays with its manager if that exists;
    otherwise its hash decides. If that gives two values for one key, nothing is restored.

    `since` is the time from which on the dictionary writes other sets than before. Raises DDictPersistCheckpointError
    if a file is missing or damaged, or two keys coincide; then the shards are unchanged.
    """
    settings, mine = shards[0].settings, {shard.settings.manager: shard for shard in shards}
    managers = settings.managers
    writers = mine if written_by == managers else range(written_by)
    paths = {manager: snapshot_path(settings, manager, checkpoint, of_set) for manager in writers}
    for path in paths.values():
        _check(path, written_by, of_set)
    if written_by != managers:
        _check_chosen(list(paths.values()), managers)
    for shard in shards:
        shard.begin_anew(checkpoint, since)
    found_chosen = False
    for manager, path in paths.items():
        for key, flags, record in records_in(path):
            for place in places_of(key, flags, manager, written_by, managers):
                if place in mine:
                    mine[place].put(key, record, checkpoint, Shard.own_flags(flags))
                    found_chosen = found_chosen or _is_chosen(key, flags, place, managers)
    return found_chosen


def _is_chosen(key: bytes, flags: int, manager: int, managers: int) -> bool:
    """Return whether a manager holds a key that the key's hash assigns to another one."""
    return not flags & BROADCAST and place_of(key, managers) != manager


def _check_chosen(paths: list[Path], managers: int) -> None:
    """Raise DDictPersistCheckpointError if a key that was put through manager() would coincide with an equal key."""
    seen: dict[tuple[bytes, int], int] = {}
    for key, manager, place in _placed(paths, managers, True):
        if seen.setdefault((key, place), manager) != manager:
            raise _met(key, seen[key, place], manager, place)
    if seen:
        for key, manager, place in _placed(paths, managers, False):
            if (key, place) in seen:
                raise _met(key, seen[key, place], manager, place)


def _placed(paths: list[Path], managers: int, chosen: bool) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, manager, new manager) of the records whose manager was chosen, or was not."""
    for manager, path in enumerate(paths):
        for key, flags, _ in records_in(path, values=False):
            if not flags & BROADCAST and _is_chosen(key, flags, manager, len(paths)) == chosen:
                yield key, manager, places_of(key, flags, manager, len(paths), managers)[0]


def _met(key: bytes, first: int, second: int, place: int) -> DDictPersistCheckpointError:
    return DDictPersistCheckpointError(
        f"key {key[1:60].decode(errors='replace')!r} was put with manager {first} and with manager {second}, and both "
        f"would go to manager {place} now; restore it with as many managers as wrote it"
    )


def _check(path: Path, written_by: int, of_set: str) -> None:
    header = read_header(path)
    if header.managers != written_by:
        raise DDictPersistCheckpointError(
            f"{path} was written by one of {header.managers} managers, whose other files are not all there; "
            "to restore it into another number of managers all nodes need all of them, in a folder that they share"
        )
    if header.set != of_set:
        raise DDictPersistCheckpointError(
            f"{path} was renamed: it belongs to the files whose names end in {header.set}.ddict; restore those"
        )
