"""A shard's records in a file, which is written atomically, and checked when it is read.

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
from typing import Any, BinaryIO, NamedTuple

import msgspec

from dragon.files import regular
from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.shards.entries import Settings, Stored
from dragon.shards.records import Record

__all__ = [
    "File",
    "Header",
    "files_in",
    "keys_in",
    "managers_of",
    "read_header",
    "records_in",
    "snapshot_path",
    "tidy",
    "write_snapshot",
]


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
    """The header of a file: which manager of which dictionary wrote it, how many managers there were, the checkpoint,
    and the identity of the set."""

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


def snapshot_path(folder: str, name: str, manager: int, checkpoint: int, of_set: str) -> Path:
    """Return the path of one manager's file of a checkpoint."""
    return Path(folder) / f"{name}_{manager}_{checkpoint}{of_set and '.'}{of_set}.ddict"


def files_in(folder: str | Path, unfinished: bool = False) -> Iterator[File]:
    """Yield the files in a folder, or those that are being written, or whose writer was killed."""
    for path in Path(folder).glob(".*.ddict.*" if unfinished else "*.ddict"):
        parts = _NAME.fullmatch(path.name)
        if parts and bool(parts[1]) == unfinished:
            yield File(parts[2], int(parts[4]), parts[5] or "", int(parts[3]), path)


def managers_of(files: dict[int, Path]) -> int:
    """Return the number of managers that wrote a set, of which there are these files; 0 if some are missing.

    A damaged file counts as present, so that reading it raises an error.
    """
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


def tidy(settings: Settings, checkpoint: int, of_set: str) -> None:
    """Remove what a complete set makes unneeded: older files of its checkpoint, and those of checkpoints before it, of
    which as many are kept as the settings say. Later checkpoints are of another run, which may need them."""
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

    def write(self, data: Any) -> None:
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
    """Write records to a file. Raises DDictPersistCheckpointError if that fails, and leaves no file.

    `progress` is called again and again while the disk takes the data.
    """
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


def records_in(path: Path) -> Iterator[tuple[bytes, int, Record]]:
    """Yield (key, flags, record) of a file that was checked before."""
    with open(path, "rb", opener=regular) as file:
        for key, flags, head_size, sizes in _entries(path, file):
            head = file.read(head_size)
            yield key, flags, Record(head, [file.read(size) for size in sizes])


def keys_in(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (key, flags) of a file that was checked before, without reading the values."""
    with open(path, "rb", opener=regular) as file:
        for key, flags, head_size, sizes in _entries(path, file):
            file.seek(head_size + sum(sizes), os.SEEK_CUR)
            yield key, flags


def _entries(path: Path, file: BinaryIO) -> Iterator[tuple[bytes, int, int, list[int]]]:
    """Yield (key, flags, size of the head, sizes of the blobs) of each record. The caller reads or skips head and
    blobs."""
    _header(path, file)
    while True:
        key_size, flags, head_size, count = _RECORD.unpack(file.read(_RECORD.size))
        if key_size == _END:
            return
        sizes = [_SIZE.unpack(file.read(_SIZE.size))[0] for _ in range(count)]
        yield file.read(key_size), flags, head_size, sizes
