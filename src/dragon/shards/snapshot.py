"""A shard's records in a file, which is written atomically, and checked when it is read.

A file consists of a magic word, a version, a header, the records, an end mark with their number, and a checksum.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.shards.entries import Stored
from dragon.shards.records import Record

__all__ = [
    "Header",
    "files_in",
    "keys_in",
    "managers_of",
    "names_in",
    "read_header",
    "records_in",
    "snapshot_path",
    "snapshots_in",
    "snapshots_of_all",
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
_NUMBERS = re.compile(r"(.+)_([0-9]+)_([0-9]+)", re.DOTALL)


class Header(msgspec.Struct):
    """The header of a file: which manager of which dictionary wrote it, how many managers there were, and the
    checkpoint."""

    name: str
    manager: int
    managers: int
    checkpoint: int


def snapshot_path(folder: str, name: str, manager: int, checkpoint: int) -> Path:
    """Return the path of one manager's file of a checkpoint."""
    return Path(folder) / f"{name}_{manager}_{checkpoint}.ddict"


def files_in(folder: str | Path) -> Iterator[tuple[str, int, int, Path]]:
    """Yield (name of the dictionary, checkpoint, manager, path) of the files in a folder."""
    for path in Path(folder).glob("*.ddict"):
        if parts := _NUMBERS.fullmatch(path.stem):
            yield parts[1], int(parts[3]), int(parts[2]), path


def snapshots_in(folder: str, name: str, manager: int) -> list[int]:
    """Return the checkpoints of which a manager has files, sorted."""
    return sorted(number for number, managers in snapshots_of_all(folder, name).items() if manager in managers)


def snapshots_of_all(folder: str, name: str) -> dict[int, list[int]]:
    """Return the checkpoints of which there are files, each with the managers that wrote them."""
    found: dict[int, list[int]] = {}
    for whose, checkpoint, manager, _ in files_in(folder):
        if whose == name:
            found.setdefault(checkpoint, []).append(manager)
    return found


def names_in(folder: str) -> list[str]:
    """Return the names of the dictionaries of which there are files, sorted."""
    return sorted({name for name, *_ in files_in(folder)})


def managers_of(folder: str, name: str, checkpoint: int, files: list[int]) -> int:
    """Return the number of managers that wrote a checkpoint, from the managers with `files`; 0 if some files are
    missing.

    A damaged file counts as present, so that reading it raises an error.
    """
    said = {}
    for manager in files:
        try:
            with snapshot_path(folder, name, manager, checkpoint).open("rb") as file:
                said[manager] = _header(Path(file.name), file).managers
        except (OSError, DDictPersistCheckpointError):
            said[manager] = 0
    # There may be old files of a dictionary with more managers.
    for managers in set(said.values()) - {0}:
        if all(said.get(manager, -1) in (0, managers) for manager in range(managers)):
            return managers
    return 0


class _Summed:
    """A file with a checksum of all that is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sum = blake2b(digest_size=_DIGEST)

    def write(self, data: Any) -> None:
        self._file.write(data)
        self.sum.update(data)


def write_snapshot(path: Path, header: Header, records: Iterator[Stored]) -> int:
    """Write records to a file and return their number. Raises DDictPersistCheckpointError if that fails, and leaves no
    file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            count = _write(_Summed(file), header, records)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise DDictPersistCheckpointError(f"{path} cannot be written: {error}") from error
    finally:
        if temporary.exists():
            temporary.unlink()
    return count


def _write(file: _Summed, header: Header, records: Iterator[Stored]) -> int:
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
    file._file.write(file.sum.digest())
    return count


def read_header(path: Path) -> Header:
    """Check a file's checksum and return its header. Raises DDictPersistCheckpointError."""
    try:
        with path.open("rb") as file:
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
    with path.open("rb") as file:
        for key, flags, head_size, sizes in _entries(path, file):
            head = file.read(head_size)
            yield key, flags, Record(head, [file.read(size) for size in sizes])


def keys_in(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (key, flags) of a file that was checked before, without reading the values."""
    with path.open("rb") as file:
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
