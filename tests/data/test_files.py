"""A dictionary as a file system of fsspec, with the protocol `ddict://`."""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

fsspec = pytest.importorskip("fsspec")

from dragon.data.ddict import DDict, DDictError, DDictKeyError  # noqa: E402
from dragon.data.files import DictionaryFileSystem  # noqa: E402
from dragon.native.process import Process  # noqa: E402

Make = Callable[..., DDict]


# As an installed package does by its entry point.
fsspec.register_implementation("ddict", DictionaryFileSystem, clobber=True)


@pytest.fixture
def files(ddict: DDict) -> Iterator[Any]:
    """A file system with some files, and values that are not files."""
    ddict.update({"a": b"1", "dir/b": b"22", "dir/sub/c": b"333", "dir/array": np.arange(3), 5: b"hidden", "odd/": b""})
    return DictionaryFileSystem(ddict)


def test_the_entry_point_names_the_class() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["ddict"].partition(":")
    assert getattr(import_module(module), name) is DictionaryFileSystem


def test_files_can_be_opened_by_url(ddict: DDict) -> None:
    with fsspec.open("ddict://data/text.txt", "w", dictionary=ddict) as file:
        file.write("one\ntwo\n")
    assert ddict["data/text.txt"] == b"one\ntwo\n"
    with fsspec.open("ddict://data/text.txt", "r", dictionary=ddict.serialize()) as file:
        assert file.readlines() == ["one\n", "two\n"]
    with fsspec.open("ddict://data/text.txt", "ab", dictionary=ddict) as file:
        file.write(b"three")
    assert ddict["data/text.txt"] == b"one\ntwo\nthree"
    with fsspec.open("ddict://packed.gz", "wb", dictionary=ddict, compression="infer") as file:
        file.write(b"x" * 1000)
    assert len(ddict["packed.gz"]) < 100


def test_the_dictionary_is_a_required_option(ddict: DDict) -> None:
    with pytest.raises(TypeError, match="dictionary="):
        fsspec.open("ddict://data", "wb")
    with fsspec.open("ddict://data", "wb", ddict={"dictionary": ddict}) as file:
        file.write(b"1")
    assert ddict["data"] == b"1"


def test_files_and_folders_are_listed(files: Any) -> None:
    assert files.ls("", detail=False) == ["a", "dir"]
    assert files.ls("ddict://dir/", detail=False) == ["dir/array", "dir/b", "dir/sub"]
    assert {one["name"]: (one["type"], one["size"]) for one in files.ls("dir")} == {
        "dir/array": ("other", 0),
        "dir/b": ("file", 2),
        "dir/sub": ("directory", 0),
    }
    assert files.ls("dir/b", detail=False) == ["dir/b"]
    assert files.find("") == ["a", "dir/b", "dir/sub/c"]
    assert files.find("dir", maxdepth=1) == ["dir/b"]
    assert files.find("dir", withdirs=True) == ["dir", "dir/b", "dir/sub", "dir/sub/c"]
    assert files.find("a", detail=True) == {"a": {"name": "a", "size": 1, "type": "file"}}
    assert files.find("missing") == []
    assert files.glob("dir/**/c") == ["dir/sub/c"]
    assert sorted(files.du("dir", total=False).values()) == [2, 3]
    assert [name for name, _, _ in files.walk("dir")] == ["dir", "dir/sub"]
    with pytest.raises(FileNotFoundError):
        files.ls("missing")


def test_existing_files_and_folders_are_found(files: Any) -> None:
    assert files.exists("dir/b")
    assert files.exists("dir")
    assert not files.exists("di")
    assert files.isfile("dir/b")
    assert not files.isfile("dir")
    assert not files.isfile("dir/array")
    assert files.isdir("dir/sub")
    assert files.info("a") == {"name": "a", "size": 1, "type": "file"}
    assert files.size("dir/sub/c") == 3
    with pytest.raises(FileNotFoundError):
        files.info("missing")


def test_files_can_be_read_and_written(files: Any) -> None:
    assert files.cat("dir/b") == b"22"
    assert files.cat("dir", recursive=True, on_error="omit") == {"dir/b": b"22", "dir/sub/c": b"333"}
    files.pipe({"new": b"0123456789", "large": bytes(range(256)) * 1000})
    assert files.cat_file("new", start=2, end=-3) == b"23456"
    assert files.cat_file("large", start=255_990) == bytes(range(246, 256))
    assert files.cat_ranges(["new", "new"], [0, 5], [3, 7]) == [b"012", b"56"]
    assert files.head("new", 4) == b"0123"
    with pytest.raises(FileNotFoundError):
        files.cat_file("missing")
    with pytest.raises(TypeError, match="no file: its value is of type ndarray"):
        files.cat_file("dir/array")
    with pytest.raises(DDictError, match="not a bytes object"):
        files.cat_file("dir/array", start=1)
    with pytest.raises(FileExistsError):
        files.pipe_file("new", b"", mode="create")
    with pytest.raises(FileExistsError):
        files.open("new", "xb")
    with pytest.raises(ValueError, match="r\\+b"):
        files.open("new", "r+b")


def test_files_can_be_copied_moved_and_removed(files: Any, tmp_path: Path) -> None:
    files.cp("dir/b", "copy")
    files.mv("a", "moved/a")
    files.cp("dir", "twice", recursive=True)
    assert files.find("") == ["copy", "dir/b", "dir/sub/c", "moved/a", "twice/b", "twice/sub/c"]
    files.get("dir", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out/sub/c").read_bytes() == b"333"
    files.put(str(tmp_path / "out"), "back", recursive=True)
    assert files.cat("back/sub/c") == b"333"
    files.rm("copy")
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        files.rm("twice")
    files.rm(["twice", "back"], recursive=True)
    assert files.find("") == ["dir/b", "dir/sub/c", "moved/a"]
    with pytest.raises(FileNotFoundError):
        files.rm("missing")
    assert 5 in files.ddict


def test_a_file_is_stored_completely_or_not_at_all(ddict: DDict) -> None:
    files = DictionaryFileSystem(ddict)
    with pytest.raises(TypeError), files.open("broken", "wb") as file:
        file.writelines([b"half", "text"])
    assert "broken" not in ddict
    with files.transaction:
        with files.open("later", "wb") as file:
            file.write(b"all")
        assert "later" not in ddict
    assert ddict["later"] == b"all"


def write_one(files: Any, name: str) -> None:
    files.pipe_file(name, name.encode())


def test_a_file_system_can_be_sent_to_other_processes(ddict: DDict) -> None:
    files = DictionaryFileSystem(dictionary=ddict)
    assert pickle.loads(pickle.dumps(files)) == files
    process = Process(write_one, (files, "theirs"))
    process.start()
    process.join()
    assert files.cat("theirs") == b"theirs"


def test_file_systems_of_two_dictionaries_with_the_same_name_differ(make: Make) -> None:
    first, second = DictionaryFileSystem(make(name="same")), DictionaryFileSystem(make(name="same"))
    first.pipe_file("only", b"here")
    assert first != second
    assert not fsspec.filesystem("ddict", dictionary=second.ddict).exists("only")


def test_parquet_files_can_be_written_and_read(ddict: DDict) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet

    files = DictionaryFileSystem(ddict)
    for part in range(3):
        table = pa.table({"part": [part] * 1000, "number": np.arange(1000.0)})
        pa.parquet.write_table(table, f"table/{part}.parquet", filesystem=files)
    assert pa.parquet.read_table("table/1.parquet", filesystem=files)["number"][999].as_py() == 999
    found = pa.dataset.dataset("table", filesystem=files).to_table(filter=pa.dataset.field("number") >= 998)
    assert sorted(found["part"].to_pylist()) == [0, 0, 1, 1, 2, 2]


def test_torch_can_save_and_load_files(ddict: DDict) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(300, 40)
    with fsspec.open("ddict://model.pt", "wb", dictionary=ddict) as file:
        torch.save(model.state_dict(), file)
    with fsspec.open("ddict://model.pt", "rb", dictionary=ddict) as file:
        found = torch.load(file, weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    ddict["state"] = model.state_dict()  # as a value it needs no file
    assert torch.equal(ddict["state"]["weight"], model.weight)


def test_torch_can_save_a_handle_of_a_dictionary(ddict: DDict, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    ddict["key"] = 1
    torch.save({"data": ddict}, tmp_path / "handle.pt")
    assert torch.load(tmp_path / "handle.pt", weights_only=False)["data"]["key"] == 1


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_parts_and_sizes_of_values_can_be_read(ddict: DDict, size: int) -> None:
    data = np.random.default_rng(1).bytes(size)
    ddict.update({"key": data, "text": "words", (1, 2): [3]})
    assert ddict.bytes_size("key") == size
    assert dict(ddict.bytes_sizes()) == {"key": size, "text": -1, (1, 2): -1}
    for start, stop in [(None, None), (2, 5), (-3, None), (5, 2), (0, size + 10), (size + 5, None)]:
        assert ddict.get_part("key", start, stop) == data[start:stop]
    for ask in (ddict.bytes_size, ddict.get_part):
        with pytest.raises(DDictKeyError, match="missing"):
            ask("missing")
