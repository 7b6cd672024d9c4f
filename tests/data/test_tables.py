"""Keys and values in Arrow tables and in files of a folder."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Site
from dragon.data.plain_files import PickleRefusedError, read_folder, write_folder

KEYS: list[Any] = [
    "a",
    "",
    "with/slash",
    "../up",
    ".hidden",
    "k" * 500,
    "\ud800",
    7,
    -3,
    2**100,
    1.5,
    b"\xff",
    (1, "x"),
]
VALUES: list[Any] = [b"", b"\0raw", "text", "é", np.arange(3), np.ones((2, 2)), {"a": [1]}, None, 5, np.array([None])]
TABLES: list[dict[Any, Any]] = [
    {},
    {"one": 1, "two": -2},
    {1: "text", 2: "é"},
    {(1, 2): 1.5},
    {b"\xff": b"raw", b"": b""},
    {"a": np.arange(5, dtype="f4"), "b": np.zeros(0, dtype="f4")},
    {"a": np.array([True, False])},
    {"a": np.arange(3, dtype="u1"), "b": np.arange(3, dtype="i8")},  # of two types
    {"a": np.ones((2, 2))},
    {"a": 2**70, "b": 1},
    {"a": True, "b": False},
    {"a": 1, "b": True},
    {"\ud800": 1},
    {n: n for n in range(2500)} | {"last": "text"},
    dict.fromkeys(range(2500), "text") | {2500: 1.5},
]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    return type(left) is type(right) and bool(left == right)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("data", TABLES, ids=range(len(TABLES)))
def test_tables_preserve_keys_and_values(tmp_path: Path, data: dict[Any, Any], suffix: str) -> None:
    pytest.importorskip("pyarrow")
    from dragon.data.arrow import read_table, write_table

    path = tmp_path / f"table{suffix}"
    assert write_table(path, data.items) == len(data)
    count, pairs = read_table(path, allow_pickle=True)
    found = dict(pairs)
    assert (count, found.keys()) == (len(data), data.keys())
    assert all(same(found[key], value) for key, value in data.items())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_columns_have_the_types_of_their_content(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    from dragon.data.arrow import read_table, write_table

    path = tmp_path / "table.parquet"
    write_table(path, {"a": np.arange(3.0), "b": np.arange(1.0)}.items)
    table = pyarrow.parquet.read_table(path)
    assert table.to_pydict() == {"key": ["a", "b"], "value": [[0.0, 1.0, 2.0], [0.0]]}
    assert json.loads(table.schema.metadata[b"dragon"]) == {"key": "str", "value": "array:float64"}
    write_table(path, {"a": None}.items)
    table = pyarrow.parquet.read_table(path)
    assert table.column_names == ["key", "pickled_value"]
    assert pickle.loads(table["pickled_value"][0].as_py()) is None
    with pytest.raises(PickleRefusedError, match=r"table.parquet has pickled objects"):
        read_table(path)


def test_tables_of_other_programs_can_be_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    from dragon.data.arrow import read_table

    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pa.table({"value": [[1, 2], None], "key": ["x", "y"], "more": [1, 2]}), path)
    found = dict(read_table(path)[1])
    assert (found["x"].tolist(), found["y"]) == ([1, 2], None)
    pyarrow.parquet.write_table(pa.table({"name": [1]}), path)
    with pytest.raises(ValueError, match="has no column 'key'; its columns are name"):
        read_table(path)
    path.write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"table\.parquet is no table"):
        read_table(path)
    (tmp_path / "table.arrow").write_bytes(b"no table at all")
    with pytest.raises(ValueError, match=r"table\.arrow is no table"):
        read_table(tmp_path / "table.arrow")


def test_a_failed_write_of_a_table_keeps_the_old_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from dragon.data.arrow import write_table

    path = tmp_path / "table.arrow"
    path.write_text("before")

    def failing() -> Any:
        yield "a", 1
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        write_table(path, failing)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


def test_folders_preserve_keys_and_values(tmp_path: Path) -> None:
    data = {key: VALUES[i % len(VALUES)] for i, key in enumerate(KEYS)} | {f"v{i}": v for i, v in enumerate(VALUES)}
    data |= {"A": b"1", "a.npy": b"2", "arrays": np.arange(2), "arrays.npy": b"3", "7": b"4", "keys.jsonl": b"5"}
    assert write_folder(tmp_path / "new" / "folder", data.items()) == len(data)
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    count, pairs = read_folder(tmp_path / "new" / "folder", allow_pickle=True)
    found = dict(pairs)
    assert (count, found.keys()) == (len(data), data.keys())
    assert all(
        same(found[key], value)
        for key, value in data.items()
        if not (isinstance(value, np.ndarray) and value.dtype == object)
    )
    with pytest.raises(FileExistsError, match="not empty"):
        write_folder(tmp_path / "new" / "folder", [])


def test_files_have_the_plain_content_of_values(tmp_path: Path) -> None:
    write_folder(tmp_path, {"text": "é", "a/b": b"\0", "array": np.arange(3)}.items())
    assert (tmp_path / "text").read_text("utf-8") == "é"
    assert (tmp_path / "a%2Fb").read_bytes() == b"\0"
    assert np.load(tmp_path / "array.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize("data", [{"key": {1}}, {None: b""}])
def test_pickles_are_refused(tmp_path: Path, data: dict[Any, Any]) -> None:
    write_folder(tmp_path, data.items())
    with pytest.raises(PickleRefusedError, match="--allow-pickle"):
        read_folder(tmp_path)


def test_any_folder_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.bin").write_bytes(b"1")
    np.save(tmp_path / "x.npy", np.arange(3))
    found = dict(read_folder(tmp_path)[1])
    assert (found["sub/data.bin"], found["x.npy"].tolist(), len(found)) == (b"1", [0, 1, 2], 2)


@pytest.mark.parametrize(
    "change", [lambda line: "{", lambda line: {**line, "file": "../secret"}, lambda line: {**line, "kind": "program"}]
)
def test_a_damaged_index_is_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    write_folder(tmp_path, [("key", b"1")])
    index = tmp_path / "keys.jsonl"
    changed = change(json.loads(index.read_text()))
    index.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(ValueError, match=r"keys\.jsonl is damaged"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("module", "library", "install"),
    [
        ("dragon.data.zarr", "zarr", "dragon-runtime[zarr]"),
        ("dragon.data.files", "fsspec", "dragon-runtime[arrow]"),
        ("dragon.data.arrow", "pyarrow", "dragon-runtime[arrow]"),
        ("dragon.ai.torch", "torch", "pip install torch"),
    ],
)
def test_the_error_about_a_missing_library_names_its_installation(
    site: Site, module: str, library: str, install: str
) -> None:
    program = f"""
        import sys
        from importlib import import_module
        from pathlib import Path

        sys.modules[{library!r}] = None
        module = import_module({module!r})
        module.read_table(Path("x.parquet"))
    """
    done = site.python(program)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError")
    assert install in done.stderr.splitlines()[-1]
