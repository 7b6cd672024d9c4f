"""A file of record batches that is readable at any moment, and becomes a Parquet file in the end."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from dragon.infrastructure.recordings import PARQUET, STREAM

__all__ = ["StreamFile"]

_UNFINISHED = ".unfinished"
_ZSTD = pa.Codec.is_available("zstd")


class StreamFile:
    """A new Arrow IPC stream in a folder. `stem` is its name; each batch is in the file when `write` returns.

    All methods raise OSError. A batch that was not written completely is removed again, and later ones can be written.
    """

    def __init__(self, folder: Path, stem: str, schema: Any) -> None:
        self._path = _free(folder, stem)
        self._schema = schema
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._memory = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd" if _ZSTD else None)
        self._stream = pa.ipc.new_stream(self._memory, schema, options=options)  # which begins with the schema

    def write(self, columns: list[list[Any]]) -> None:
        """Append rows, given as columns."""
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        begin = self._memory.tell()
        self._stream.write_batch(pa.record_batch(arrays, schema=self._schema))
        try:
            self._append(self._memory.getvalue())
            begin = 0
        finally:
            self._memory.seek(begin)  # the schema stays until it is in the file
            self._memory.truncate()

    def _append(self, data: bytes) -> None:
        if os.fstat(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written", str(self._path))
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def finish(self, tables: Callable[[Path], Iterator[Any]]) -> None:
        """Close the stream, and make a Parquet file of the rows that `tables` reads from it."""
        self.close()
        target = self._path.with_suffix(PARQUET)
        temporary = self._path.with_suffix(PARQUET + _UNFINISHED)
        try:
            with pa.parquet.ParquetWriter(temporary, self._schema, compression="zstd" if _ZSTD else "none") as writer:
                for table in tables(self._path):
                    writer.write_table(table)
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
        self._path.unlink()
        pa.default_memory_pool().release_unused()

    def close(self) -> None:
        """Close the stream, and leave it as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _free(folder: Path, stem: str) -> Path:
    """Return a path that is not used. An hour may come twice if the clock is set back."""
    count = 1
    while True:
        path = folder / (f"{stem}{STREAM}" if count == 1 else f"{stem}.{count}{STREAM}")
        if not (path.exists() or path.with_suffix(PARQUET).exists()):
            return path
        count += 1
