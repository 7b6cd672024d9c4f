"""A store of zarr in a dictionary."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3")

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest  # noqa: E402
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

from dragon.data import zarr as loading  # noqa: E402
from dragon.data.ddict import DDict, DDictError, DDictFullError  # noqa: E402
from dragon.data.zarr import Store  # noqa: E402
from dragon.native.process import Process  # noqa: E402
from dragon.native.queue import Queue  # noqa: E402

Make = Callable[..., DDict]


def _in_a_loop(test: Any) -> Any:
    """Make a function of a test that is a coroutine, so that no plugin is needed."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class TestContract(StoreTests[Store, cpu.Buffer]):
    """zarr's own tests of a store."""

    store_cls = Store
    buffer_cls = cpu.Buffer

    for _name, _test in inspect.getmembers(StoreTests, inspect.iscoroutinefunction):
        if _name.startswith("test_"):
            locals()[_name] = _in_a_loop(_test)

    async def get(self, store: Store, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(store.ddict[key])

    async def set(self, store: Store, key: str, value: Buffer) -> None:
        store.ddict[key] = value.to_bytes()

    @pytest.fixture
    def store_kwargs(self, ddict: DDict) -> dict[str, Any]:
        return {"ddict": ddict}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> Store:
        return asyncio.run(Store.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> Store:
        return Store(**store_kwargs)

    def test_store_repr(self, store: Store) -> None:
        assert repr(store) == f"Store('ddict://{store.ddict.get_name()}')"

    def test_store_supports_writes(self, store: Store) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: Store) -> None:
        assert store.supports_listing


def write_rows(array: Any, first: int, count: int) -> None:
    array[first : first + count] = np.arange(first, first + count)[:, None]


def test_processes_can_write_to_the_same_array(ddict: DDict) -> None:
    array = zarr.create_array(Store(ddict), name="rows", shape=(40, 3000), chunks=(10, 3000), dtype="i8")
    processes = [Process(write_rows, (array, first, 10)) for first in range(0, 40, 10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.returncode == 0
    found = zarr.open_array(Store(ddict), path="rows", mode="r")
    assert np.array_equal(found[:], np.broadcast_to(np.arange(40)[:, None], (40, 3000)))


async def claim(store: Store, name: bytes) -> None:
    for number in range(200):
        await store.set_if_not_exists(f"key {number}", cpu.Buffer.from_bytes(name))


def claim_and_look(ddict: DDict, queue: Queue, name: bytes) -> None:
    asyncio.run(claim(Store(ddict), name))
    queue.put([ddict[f"key {number}"] for number in range(200)])


def test_set_if_not_exists_succeeds_in_one_process_only(ddict: DDict) -> None:
    queue = Queue()
    processes = [Process(claim_and_look, (ddict, queue, name)) for name in (b"a", b"b", b"c")]
    for process in processes:
        process.start()
    first, second, third = (queue.get(timeout=30) for _ in processes)
    assert first == second == third  # nobody saw a value that was replaced later
    for process in processes:
        assert process.join() == 0


def test_a_group_with_attributes_and_shards_can_be_stored(ddict: DDict) -> None:
    root = zarr.open_group(Store(ddict), mode="w")
    data = np.random.default_rng(1).integers(0, 100, (64, 64))
    array = root.create_array("a/b", shape=data.shape, chunks=(8, 8), shards=(32, 32), dtype=data.dtype)
    array[:] = data
    root.attrs["title"] = "temperatures"
    again = zarr.open_group(Store(ddict), mode="r")
    assert dict(again.attrs) == {"title": "temperatures"}
    assert np.array_equal(again["a/b"][5:20, 30:], data[5:20, 30:])  # parts of the shards
    assert [name for name, _ in again.groups()] == ["a"]


def test_zarr_format_2_is_supported(ddict: DDict) -> None:
    array = zarr.create_array(Store(ddict), shape=(4,), chunks=(2,), dtype="f4", zarr_format=2)
    array[:] = 1.5
    assert ".zarray" in ddict
    assert zarr.open_array(Store(ddict), mode="r")[:].tolist() == [1.5] * 4


def test_keys_that_are_not_of_zarr_are_ignored(ddict: DDict) -> None:
    ddict.update({1: "number", (2, "a"): "pair"})
    zarr.open_group(Store(ddict), mode="w").create_group("inner")
    assert sorted(asyncio.run(_listed(Store(ddict)))) == ["inner/zarr.json", "zarr.json"]
    asyncio.run(Store(ddict).clear())
    assert sorted(map(str, ddict)) == ["(2, 'a')", "1"]
    ddict["text"] = "no bytes"
    with pytest.raises(TypeError, match="'text' is no bytes object but of type str"):
        asyncio.run(Store(ddict).get("text"))


async def _listed(store: Store) -> list[str]:
    return [key async for key in store.list()]


@pytest.mark.parametrize("size", [10, 100_000])
def test_parts_of_values_can_be_read(ddict: DDict, size: int) -> None:
    data = np.random.default_rng(1).bytes(size)
    ddict["key"] = data
    store = Store(ddict)

    def part(request: Any) -> bytes:
        found = asyncio.run(store.get("key", default_buffer_prototype(), request))
        assert found is not None
        return found.to_bytes()

    assert part(RangeByteRequest(2, 7)) == data[2:7]
    assert part(RangeByteRequest(5, size + 5)) == data[5:]
    assert part(OffsetByteRequest(4)) == data[4:]
    assert part(SuffixByteRequest(3)) == data[-3:]
    assert part(SuffixByteRequest(size + 3)) == data


def test_a_store_can_create_its_own_dictionary(make: Make) -> None:
    store = Store(1, 1, 2**22, read_only=False)
    ddict = make()
    assert store != Store(ddict)
    assert store != store.with_read_only(True)
    assert pickle.loads(pickle.dumps(store)) == store
    with pytest.raises(RuntimeError, match="no data has been loaded"):
        store.wait_on_load()
    assert (store.load_cmplt(), store.loaded_bytes) == (False, 0)
    with pytest.raises(TypeError, match="cannot be combined with arguments"):
        Store(ddict, total_mem=2**20)
    store.destroy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = zarr.open_group(tmp_path / "data.zarr", mode="w")
    chance = np.random.default_rng(1)
    for name in ("x", "y"):
        root.create_array(name, shape=(100, 1000), chunks=(10, 1000), dtype="f8")[:] = chance.random((100, 1000))
    return tmp_path / "data.zarr"


@pytest.mark.parametrize("managers", [1, 3])
def test_a_folder_is_loaded_into_a_store(folder: Path, managers: int) -> None:
    store = Store(managers, path=folder, nloaders=2)
    expected = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert store.wait_on_load(60) == expected
    assert store.load_cmplt()
    assert store.loaded_bytes == expected
    found, root = zarr.open_group(store, mode="r"), zarr.open_group(folder, mode="r")
    assert all(np.array_equal(found[name][:], root[name][:]) for name in ("x", "y"))
    store.destroy()


class TestBeforeItIsLoaded:
    """A store whose loaders are blocked: a named pipe without a writer is among the files."""

    @pytest.fixture
    def pipe(self, folder: Path) -> Path:
        os.mkfifo(folder / "a pipe")
        return folder / "a pipe"

    @pytest.fixture
    def store(self, folder: Path, pipe: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        files = [*loading.files_below(folder), (pipe.name, 0)]
        with monkeypatch.context() as patch:
            patch.setattr("dragon.data.zarr.files_below", lambda _: sorted(files))
            store = Store(path=folder, nloaders=1, total_mem=2**25, timeout=3)
        yield store
        store.destroy()

    def test_missing_chunks_are_read_from_the_file(self, store: Store, folder: Path, pipe: Path) -> None:
        root = zarr.open_group(folder, mode="r")
        found = zarr.open_group(store, mode="r")
        assert not store.load_cmplt()
        assert sorted(found.array_keys()) == ["x", "y"]
        assert np.array_equal(found["x"][5:15], root["x"][5:15])
        queue = Queue()
        reader = Process(lambda: queue.put(found["y"][:]))
        reader.start()
        assert np.array_equal(queue.get(timeout=30), root["y"][:])  # in another process too
        assert reader.join() == 0
        pipe.write_bytes(b"")
        store.wait_on_load(30)

    def test_chunks_written_during_loading_are_kept(self, store: Store, folder: Path, pipe: Path) -> None:
        array = zarr.open_array(store, path="x")
        array[:] = 7.0
        asyncio.run(store.set_if_not_exists("y/zarr.json", cpu.Buffer.from_bytes(b"mine")))
        pipe.write_bytes(b"")
        store.wait_on_load(30)
        assert np.all(array[:] == 7.0)
        assert np.array_equal(zarr.open_array(store, path="y")[:], zarr.open_array(folder, path="y", mode="r")[:])

    def test_delete_waits_for_the_loaders(self, store: Store, pipe: Path) -> None:
        with pytest.raises(TimeoutError, match="was not loaded within"):
            asyncio.run(store.delete("x/zarr.json"))
        pipe.write_bytes(b"")
        store.wait_on_load(30)
        asyncio.run(store.delete("x/zarr.json"))
        assert not asyncio.run(store.exists("x/zarr.json"))
        assert sorted(store.keys())[:2] == ["a pipe", "x/c/0/0"]


def test_reads_are_timed_and_printed(ddict: DDict, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(ddict)
    array = zarr.create_array(store, shape=(4,), chunks=(2,), dtype="f4")
    array[:] = 1.0
    store.reset_get_timer()
    assert store.get_timer == 0.0
    store.show_gets = True
    assert array[:2].tolist() == [1.0, 1.0]
    assert 0.0 < store.get_timer < 30.0
    assert capsys.readouterr().out == "get c/0\n"


def test_a_frozen_store_refuses_deletion_until_it_is_unfrozen(ddict: DDict) -> None:
    store = Store(ddict)
    ddict["key"] = b"value"
    ddict.freeze()
    with pytest.raises(DDictError):
        asyncio.run(store.delete("key"))
    store.unfreeze()
    asyncio.run(store.delete("key"))
    assert store.keys() == []


def test_folders_that_cannot_be_loaded_raise_errors(folder: Path) -> None:
    with pytest.raises(OSError, match="is not a folder"):
        Store(path=folder / "missing")
    with pytest.raises(RuntimeError, match="nloaders"):
        Store(path=folder, nloaders=0)
    store = Store(path=folder, total_mem=2**20)
    with pytest.raises(TimeoutError):
        store.wait_on_load(0)
    store.destroy()


def test_an_error_of_a_loader_is_raised_by_wait_on_load(folder: Path) -> None:
    (folder / "large").write_bytes(b"x" * 2**25)
    store = Store(path=folder, total_mem=2**20)
    with pytest.raises(DDictFullError):
        store.wait_on_load(60)
    store.destroy()
