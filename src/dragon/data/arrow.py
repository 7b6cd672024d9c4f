"""Reads and writes keys and values as a table in an Arrow or Parquet file.

The columns are `key` and `value`, with an Arrow type if all entries of a column are numbers, text, bytes objects or
one-dimensional arrays of one dtype (as lists). Otherwise the column has pickles, and is called `pickled_key` or
`pickled_value`. The original types are noted in the schema's metadata under `dragon`, so that reading restores them.
Tables of other programs with columns `key` and `value` are read as well.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dragon.data.plain_files import loader
from dragon.files import whole_file
from dragon.runtime.serialization import dumps

if TYPE_CHECKING:
    import pyarrow

__all__ = ["SUFFIXES", "read_table", "write_table"]

SUFFIXES = (".parquet", ".arrow", ".feather")
"""The suffixes of files that tables are read from and written to."""

_ROWS = 1000  # rows of a batch at most
_BYTES = 64 * 2**20  # bytes of arrays and bytes objects of a batch, approximately
_COLUMNS = ("key", "value")
_PICKLED = "pickled"


class _OtherKindError(Exception):
    """A column has an entry of another kind than its first rows."""


def _pyarrow() -> ModuleType:
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tables need pyarrow: pip install 'dragon-runtime[arrow]'", name="pyarrow") from error


# ---- writing


def write_table(path: Path, pairs: Callable[[], Iterable[tuple[Any, Any]]]) -> int:
    """Write keys and values to a file, which appears only when it is complete. Returns their number.

    `pairs` is called again if a column turns out not to be of one type. Raises OSError, ModuleNotFoundError.
    """
    pa = _pyarrow()
    kinds = ["", ""]
    with whole_file(path) as file:
        while True:
            try:
                return _write(pa, file, path.suffix, pairs(), kinds)
            except _OtherKindError:
                continue


def _write(pa: ModuleType, path: Path, suffix: str, pairs: Iterable[tuple[Any, Any]], kinds: list[str]) -> int:
    """Write a table with columns of these kinds."""
    count = 0
    batches = _batches(pairs)
    first = next(batches, [])
    for column in (0, 1):
        kinds[column] = kinds[column] or _kind_of(pair[column] for pair in first)
    names = [name if kind != _PICKLED else f"pickled_{name}" for name, kind in zip(_COLUMNS, kinds, strict=True)]
    fields = [pa.field(name, _type(pa, kind)) for name, kind in zip(names, kinds, strict=True)]
    note = json.dumps(dict(zip(_COLUMNS, kinds, strict=True)))
    schema = pa.schema(fields, metadata={"dragon": note})
    with path.open("wb") as file:
        writer = pa.parquet.ParquetWriter(file, schema) if suffix == ".parquet" else pa.ipc.new_file(file, schema)
        with writer:
            batch = first
            while batch:
                columns = [_column(pa, kinds, place, [pair[place] for pair in batch]) for place in (0, 1)]
                writer.write_batch(pa.record_batch(columns, schema=schema))
                count += len(batch)
                batch = next(batches, [])
    return count


def _batches(pairs: Iterable[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    batch: list[tuple[Any, Any]] = []
    size = 0
    for pair in pairs:
        batch.append(pair)
        size += getattr(pair[1], "nbytes", 0) or (len(pair[1]) if isinstance(pair[1], (bytes, str)) else 0)
        if len(batch) == _ROWS or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _kind_of(values: Iterable[Any]) -> str:
    """Return the common kind of some values, or "pickled" if they have none."""
    kinds = {_kind(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else (_PICKLED if kinds else "str")


def _kind(value: Any) -> str:
    kind = type(value)
    if kind is int:
        return "int" if -(2**63) <= value < 2**63 else _PICKLED
    if kind is str:
        return "str" if value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value) else _PICKLED
    if kind in (bool, float, bytes):
        return kind.__name__
    # Compared by name, so that numpy is imported only if a value is an array.
    if kind.__name__ == "ndarray" and kind.__module__ == "numpy" and value.ndim == 1:
        return f"array:{value.dtype.name}" if value.dtype.kind in "iufb" and value.dtype.isnative else _PICKLED
    return _PICKLED


def _type(pa: ModuleType, kind: str) -> pyarrow.DataType:
    if kind.startswith("array:"):
        import numpy as np

        return pa.large_list(pa.from_numpy_dtype(np.dtype(kind.removeprefix("array:"))))
    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.large_string()}
    return types.get(kind, pa.large_binary())


def _column(pa: ModuleType, kinds: list[str], place: int, values: list[Any]) -> pyarrow.Array:
    kind = kinds[place]
    if kind == _PICKLED:
        return pa.array([dumps(value) for value in values], _type(pa, kind))
    if _kind_of(values) != kind:
        kinds[place] = _PICKLED
        raise _OtherKindError
    if not kind.startswith("array:"):
        return pa.array(values, _type(pa, kind))
    import numpy as np

    ends = np.cumsum([0, *map(len, values)])
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pa.array(np.concatenate(values)))


# ---- reading


def read_table(path: Path, allow_pickle: bool = False) -> tuple[int, Iterator[tuple[Any, Any]]]:
    """Return the number of keys in a file, and an iterator over (key, value).

    Raises OSError, ValueError for a file that is not such a table, PickleRefusedError, ModuleNotFoundError.
    """
    pa = _pyarrow()
    try:
        schema, count, batches = _opened(pa, path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no table that can be read: {error}") from error
    names = []
    for name in _COLUMNS:
        found = [column for column in (name, f"pickled_{name}") if column in schema.names]
        if not found:
            raise ValueError(f"{path} has no column {name!r}; its columns are {', '.join(schema.names)}")
        names.append(found[0])
    if any(name.startswith("pickled_") for name in names) and not allow_pickle:
        loader(False, path)(b"")
    return count, _pairs(batches, names)


def _opened(pa: ModuleType, path: Path) -> tuple[pyarrow.Schema, int, Iterable[pyarrow.RecordBatch]]:
    if path.suffix == ".parquet":
        file = pa.parquet.ParquetFile(path)
        return file.schema_arrow, file.metadata.num_rows, file.iter_batches(_ROWS)
    # Mapped, so that only the rows that are used are read.
    opened = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
    return opened.schema, sum(opened.get_batch(i).num_rows for i in range(opened.num_record_batches)), batches


def _pairs(batches: Iterable[pyarrow.RecordBatch], names: list[str]) -> Iterator[tuple[Any, Any]]:
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS):
            rows = batch.slice(first, _ROWS)
            columns = [_values(rows.column(name), name.startswith("pickled_")) for name in names]
            yield from zip(*columns, strict=True)


def _values(column: pyarrow.Array, pickled: bool) -> Iterator[Any]:
    import pyarrow as pa

    kind = column.type
    if pickled:
        loads = loader(True, "")
        return (loads(one.as_buffer()) for one in column)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return islice(column.to_pylist(), None)
    plain = pa.types.is_primitive(kind.value_type)
    return (one.values.to_numpy(zero_copy_only=False) if plain and one.is_valid else one.as_py() for one in column)
