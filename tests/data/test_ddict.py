"""The distributed dictionary: its methods, values, memory and errors, compared with those of a dict."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, KeysView
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragon.data.ddict import (
    DDict,
    DDictError,
    DDictFullError,
    DDictKeyError,
    DDictSyncError,
    DDictTimeoutError,
    DDictUnableToCreateError,
    PosixCheckpointPersister,
    SentinelQueue,
    strip_pickled_bytes,
)
from dragon.infrastructure.errors import DestroyedError, NotSupportedError
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System, current
from dragon.native.process import Process
from dragon.native.queue import Queue

PIECE = 4 * 2**20  # bytes in which large values come from another node
BLOB = 32 * 1024  # bytes of the smallest buffer that is kept beside its value's pickle
KEYS: list[Any] = [0, -7, 2**100, 1.5, "", "text", "\ud800", "k" * 5000, b"", b"\xff" * 600, None, (), (1, ("a", b"b"))]
VALUES: list[Any] = [0, 2**200, -1, True, None, 1.5, "", "text" * 20000, b"", b"x" * 100_000, bytearray(b"y" * 50_000)]
VALUES += [{"a": [1, (2, 3)]}, {1, 2}, lambda x: x]


def test_keys_and_values_of_any_kind_and_length(ddict: DDict) -> None:
    for key in KEYS:
        for value in VALUES:
            ddict[key] = value
            found = ddict[key]
            assert type(found) is type(value)
            assert found(3) == 3 if callable(value) else found == value
    assert set(ddict) == set(KEYS)
    for key in KEYS:
        del ddict[key]
        assert key not in ddict


ARRAYS = {
    "int8": np.arange(100_000, dtype=np.int8),
    "bool": np.arange(100_000) % 3 == 0,
    "half": np.linspace(0, 1, 50_000, dtype=np.float16),
    "complex": np.linspace(0, 1j, 9_000),
    "longdouble": np.linspace(0, 1, 9_000, dtype=np.longdouble),
    "big-endian": np.arange(9_000, dtype=">f8"),
    "dates": np.arange("2020", "2050", dtype="M8[D]"),
    "text": np.array(["a", "bc"] * 9_000),
    "record": np.zeros(9_000, [("x", "f4"), ("y", "i8")]),
    "metadata": np.zeros(9_000, np.dtype("f8", metadata={"unit": "m"})),
    "columns first": np.asfortranarray(np.arange(10_000.0).reshape(100, 100)),
    "every other": np.arange(20_000.0)[::2],
    "objects": np.array([{"a": 1}, None] * 9_000),
    "one by one": np.arange(10_000.0).reshape(1, 1, 10_000, 1),
}


def test_arrays_that_were_read_are_writable_copies(ddict: DDict) -> None:
    shapes = {str(shape): np.zeros(shape) for shape in [(0,), (3,), (10_000,), (300, 400), (2, 3, 4)]}
    for name, array in (ARRAYS | shapes).items():
        ddict["key"] = array
        found = ddict["key"]
        assert (found.dtype, found.dtype.char, found.shape) == (array.dtype, array.dtype.char, array.shape), name
        assert np.array_equal(found, array), name
        found[...] = found[..., :1]
        assert np.array_equal(ddict["key"], array), name


def test_large_values_are_complete_from_every_node(make: Callable[..., DDict]) -> None:
    ddict = make(1, total_mem=2**28 * System().nnodes)
    chance = np.random.default_rng(1)
    sizes = (PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5)
    values = [chance.bytes(size) for size in sizes]
    arrays = [np.frombuffer(value, np.uint8).copy() for value in values]
    for number in range(System().nnodes):
        shard = ddict.manager(number)
        for value, array in zip(values, arrays, strict=True):
            shard["bytes"], shard["array"] = value, array
            assert shard["bytes"] == value
            assert np.array_equal(shard["array"], array)
        shard["several"] = [arrays[2], "between", arrays[1][:100], arrays[3]]
        first, between, second, third = shard["several"]
        assert (between, len(second)) == ("between", 100)
        assert np.array_equal(first, arrays[2])
        assert np.array_equal(third, arrays[3])
        third[:] = 0  # it is the reader's own
        assert np.array_equal(shard["several"][3], arrays[3])
        assert shard.pop("bytes") == values[3]
    ddict.update(enumerate(values * 3))
    assert ddict.get_many(range(12)) == values * 3
    # Read in another order than they were asked for.
    asked = [ddict.begin_get(number) for number in range(12)]
    assert [each.result() for each in reversed(asked)] == list(reversed(values * 3))


def test_get_many_reads_values_of_every_size(make: Callable[..., DDict]) -> None:
    ddict = make(2, total_mem=2**26 * System().nnodes)
    # Small ones, some with memory of their own beside them, a pickle without, and one too large to come with others.
    sizes = [0, 10, BLOB, 10, 3 * BLOB, 7 * BLOB, 2**20, 10, 8 * BLOB, 20]
    values: dict[Any, Any] = {str(i): bytes([i % 251]) * size for i, size in enumerate(sizes * 20)}
    values["pickle"] = list(range(200_000))
    ddict.put_many(values)
    asked = [*values, "3", "6"]
    assert ddict.get_many(asked) == [values[key] for key in asked]
    assert dict(ddict.items()) == values
    with pytest.raises(DDictKeyError, match="'missing'"):
        ddict.get_many(["1", "missing", "6"])
    for number in range(System().nnodes):
        shard = ddict.manager(number)
        shard["here"], shard["large"] = 1, bytes(2**20)
        assert shard.get_many(["here", "large", "here"]) == [1, bytes(2**20), 1]


def test_large_values_that_are_overwritten_during_a_read_are_consistent(make: Callable[..., DDict]) -> None:
    ddict = make(1, total_mem=2**28 * System().nnodes)
    for number in range(System().nnodes):
        shard = ddict.manager(number)
        shard["key"] = np.zeros(2 * PIECE + 5, np.uint8)

        def overwrite(shard: DDict = shard) -> None:
            for value in range(1, 20):
                shard["key"] = np.full(2 * PIECE + 5, value, np.uint8)

        writer = threading.Thread(target=overwrite)
        writer.start()
        while writer.is_alive():
            found = shard["key"]
            assert found.min() == found.max()
        assert shard["key"][0] == 19


def read_all_the_time(shard: DDict, queue: Queue) -> None:
    for number in itertools.count():
        shard.get_many(["key"] * 3)
        if number == 2:
            queue.put("reading")


def test_memory_read_by_a_killed_reader_is_released(make: Callable[..., DDict]) -> None:
    ddict, queue = make(1, total_mem=2**27 * System().nnodes), Queue()
    for number in range(System().nnodes):
        shard = ddict.manager(number)
        shard["key"] = bytes(3 * PIECE)
        processes = [Process(read_all_the_time, (shard, queue)) for _ in range(2)]
        for process in processes:
            process.start()
        for _ in processes:
            assert queue.get(timeout=60) == "reading"
        for process in processes:
            process.kill()
            process.join()
        for _ in range(20):  # more than fits
            shard["key"] = bytes(3 * PIECE)


def test_tensors_can_be_stored(ddict: DDict) -> None:
    torch = pytest.importorskip("torch")
    tensors = {"small": torch.arange(3), "large": torch.ones(300, 300)}
    ddict["key"] = tensors
    found = ddict["key"]
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def put_a_model(ddict: DDict) -> None:
    import torch

    model = torch.nn.Linear(200, 200)
    torch.nn.init.constant_(model.weight, 2)
    ddict["model"] = model.share_memory()


def test_a_model_outlives_the_process_that_put_it(ddict: DDict) -> None:
    pytest.importorskip("torch")
    process = Process(put_a_model, (ddict,))
    process.start()
    process.join()
    for _ in range(2):
        assert ddict["model"].weight.sum() == 2 * 200 * 200


@pytest.mark.parametrize("kind", ["parameter", "shared", "sparse", "conjugated"])
def test_tensors_of_every_kind_can_be_read_repeatedly(ddict: DDict, kind: str) -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(200, 200)
    tensor = {
        "parameter": torch.nn.Parameter(ones),
        "shared": ones.clone().share_memory_(),
        "sparse": torch.eye(200).to_sparse(),
        "conjugated": (ones * 1j).conj(),
    }[kind]
    ddict["key"] = tensor
    for _ in range(2):
        found = ddict["key"]
        assert type(found) is type(tensor)
        assert torch.equal(found.to_dense(), tensor.to_dense())


def test_many_small_values_fit_into_a_small_dictionary(make: Callable[..., DDict]) -> None:
    ddict = make(1, System().nnodes * 3 * 2**20)
    ddict.update({number: number for number in range(10_000)})
    assert len(ddict) == 10_000
    with pytest.raises(DDictFullError):
        ddict.put_many(dict.fromkeys(range(10000), b"x" * 1000))
    assert ddict[9_999] == 9_999
    assert sum(one.total_used_bytes for one in ddict.stats) < 2**20


class Reversed:
    """A pickler that reverses the bytes of a string."""

    @staticmethod
    def dumps(value: str) -> bytes:
        return value.encode()[::-1]

    @staticmethod
    def loads(data: bytes) -> str:
        return data[::-1].decode()


class Rows:
    """A pickler of arrays of two columns that writes to a file and reads from one."""

    @staticmethod
    def dump(value: np.ndarray[Any, Any], file: IO[bytes]) -> None:
        for row in value:
            file.write(row.tobytes())

    @staticmethod
    def load(file: IO[bytes]) -> np.ndarray[Any, Any]:
        rows = []
        while row := file.read(16):
            rows.append(np.frombuffer(row))
        return np.array(rows)


class UntilError:
    """A pickler of bytes that reads until EOFError."""

    @staticmethod
    def dump(value: bytes, file: IO[bytes]) -> None:
        file.write(value)

    @staticmethod
    def load(file: IO[bytes]) -> bytes:
        found = b""
        with contextlib.suppress(EOFError):
            while True:
                found += file.read(2)
        return found


@pytest.mark.parametrize("value", [b"", b"ab", b"abc"])
def test_a_pickler_can_read_until_the_end_of_a_value(ddict: DDict, value: bytes) -> None:
    with ddict.pickler(value_pickler=UntilError) as other:
        other["key"] = value
        assert other["key"] == value
    queue = Queue(pickler=UntilError)
    queue.put(value)
    assert queue.get(timeout=30) == value


def test_a_pickler_can_have_dump_and_load_for_files(ddict: DDict) -> None:
    array = np.arange(6.0).reshape(3, 2)
    with ddict.pickler(value_pickler=Rows) as other:
        other["array"] = array
        assert np.array_equal(other["array"], array)
    with pytest.raises(TypeError, match="dump and load"), ddict.pickler(value_pickler=3):
        pass


def test_a_pickler_is_used_by_all_operations(ddict: DDict) -> None:
    with ddict.pickler(key_pickler=Reversed, value_pickler=Reversed) as other:
        other["abc"] = "value"
        other.update(more="values")
        other.begin_put("third", "one").result()
        other.pput("fourth", "kept")
        assert (other["abc"], other.get("abc"), other.get_many(["abc", "more"])) == (
            "value",
            "value",
            ["value", "values"],
        )
        assert other.begin_get("third").result() == "one"
        assert dict(other.items()) == {"abc": "value", "more": "values", "third": "one", "fourth": "kept"}
        assert set(other.local_keys()) <= set(other) == {"abc", "fourth", "more", "third"}
        assert other.pop("abc") == "value"
        other.wait_for("more", "values", timeout=5)
        other.bput("everywhere", "x")
        assert other.bget("everywhere") == "x"
        assert sorted(ddict) == [b"driht", b"erehwyreve", b"erom", b"htruof"]  # others see what was made of the keys


def test_unhashable_and_unpicklable_keys_are_refused(ddict: DDict) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        ddict[[1]] = 1
    with pytest.raises(TypeError, match="pickle"):
        ddict[threading.Lock()] = 1


def test_a_value_that_cannot_be_pickled_does_not_replace_the_old_one(ddict: DDict) -> None:
    ddict["key"] = 1
    with pytest.raises(TypeError, match="pickle"):
        ddict["key"] = threading.Lock()
    assert ddict["key"] == 1


def test_a_missing_key_raises_key_error_or_gives_the_default(ddict: DDict) -> None:
    with pytest.raises(KeyError, match="no key 'missing' in checkpoint 0 of manager"):
        ddict["missing"]
    with pytest.raises(DDictKeyError):
        del ddict["missing"]
    with pytest.raises(DDictKeyError):
        ddict.pop("missing")
    assert (ddict.pop("missing", 5), ddict.pop("missing", None)) == (5, None)
    assert ddict.get("missing") is None
    assert ddict.get("missing", 5) == 5
    assert "missing" not in ddict


def test_the_methods_of_a_mapping_work(ddict: DDict) -> None:
    ddict.update({"a": 1, "b": 2}, c=3)
    assert sorted(ddict.items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert sorted(ddict.keys()) == ["a", "b", "c"]
    assert sorted(ddict.values()) == [1, 2, 3]
    assert ddict.setdefault("a", 9) == 1
    assert ddict.setdefault("d", 9) == 9
    assert ddict.pop("d") == 9
    assert len(ddict) == len(ddict.keys()) == 3
    assert ddict.keys().mapping.copy() == {"a": 1, "b": 2, "c": 3}
    key, value = ddict.popitem()
    assert {"a": 1, "b": 2, "c": 3}[key] == value
    ddict.clear()
    assert (len(ddict), list(ddict), bool(ddict)) == (0, [], False)
    with pytest.raises(KeyError):
        ddict.popitem()


class Doubled:
    """An object with the methods that update() requires, which is not a mapping."""

    def keys(self) -> Iterator[int]:
        return iter(range(3))

    def __getitem__(self, key: int) -> int:
        return 2 * key


def test_update_accepts_the_arguments_that_a_dict_accepts(ddict: DDict) -> None:
    ddict.update({"a": 1})
    ddict.update([("b", 2)], c=3)
    ddict.update(Doubled())
    ddict.update(self=4, other=5)
    assert dict(ddict) == {"a": 1, "b": 2, "c": 3, 0: 0, 1: 2, 2: 4, "self": 4, "other": 5}
    with pytest.raises(TypeError, match="positional argument"):
        ddict.update({}, {})  # type: ignore[call-arg]


def test_views_are_sets_like_those_of_a_dict(ddict: DDict) -> None:
    ddict.update(a=1, b=2)
    keys, items = ddict.keys(), ddict.items()
    assert isinstance(keys, KeysView)
    assert keys & {"a", "c"} == {"a", "c"} & keys == {"a"}
    assert (keys | ["c"], keys - {"a"}, keys ^ {"a", "c"}) == ({"a", "b", "c"}, {"b"}, {"b", "c"})
    assert keys == {"a", "b"}
    assert keys < {"a", "b", "c"}
    assert keys.isdisjoint(["c"])
    assert items & {("a", 1), ("b", 1)} == {("a", 1)}
    assert ddict.local_keys() & {"a", "b", "c"} == set(ddict.local_keys())


def test_many_values_can_be_put_and_read_together(ddict: DDict) -> None:
    ddict.put_many((i, np.full(i * 100, i)) for i in range(200))
    assert [len(array) for array in ddict.get_many(range(200))] == [i * 100 for i in range(200)]
    with pytest.raises(KeyError, match="'missing'"):
        ddict.get_many([1, "missing"])
    pending = [ddict.begin_put(i, -i) for i in range(100)]
    for one in pending:
        one.result(30)
    assert [ddict.begin_get(i).result(30) for i in range(100)] == [-i for i in range(100)]


def test_fetch_add_returns_the_value_before_the_addition(ddict: DDict) -> None:
    assert [ddict.fetch_add("n"), ddict.fetch_add("n", 5), ddict.fetch_add("n", -2)] == [0, 1, 6]
    assert ddict["n"] == 4
    ddict["n"] = "text"
    with pytest.raises(DDictError, match="needs an integer"):
        ddict.fetch_add("n")


@pytest.mark.parametrize("value", [np.int64(5), np.uint8(5), True])
def test_every_type_of_integer_can_be_added(ddict: DDict, value: Any) -> None:
    ddict.fetch_add("n", value)
    assert ddict["n"] == value


@pytest.mark.parametrize("value", [1.5, "1", None])
def test_only_integers_can_be_added(ddict: DDict, value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        ddict.fetch_add("n", value)
    assert "n" not in ddict


def count_up(ddict: DDict, times: int) -> None:
    for _ in range(times):
        ddict.fetch_add("n")


def test_concurrent_additions_of_processes_are_all_counted(ddict: DDict) -> None:
    processes = [Process(count_up, (ddict, 200)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [process.join() for process in processes] == [0] * 4
    assert ddict["n"] == 800


@pytest.mark.parametrize("value", ["small", b"x" * 100_000], ids=["small", "large"])
def test_put_new_and_setdefault_keep_an_existing_value(ddict: DDict, value: Any) -> None:
    assert ddict.put_new("key", value)
    assert not ddict.put_new("key", "other")
    assert ddict["key"] == value
    del ddict["key"]
    assert ddict.setdefault("key", "other") == ddict.setdefault("key", "third") == "other"


def claim(ddict: DDict, queue: Queue, name: int) -> None:
    queue.put([ddict.setdefault(number, name) for number in range(300)])


def test_setdefault_gives_all_processes_the_same_value(ddict: DDict) -> None:
    queue = Queue()
    processes = [Process(claim, (ddict, queue, name)) for name in range(4)]
    for process in processes:
        process.start()
    seen = [queue.get(timeout=30) for _ in processes]
    assert [process.join() for process in processes] == [0] * 4
    assert all(one == [ddict[number] for number in range(300)] for one in seen)


def look_around(ddict: DDict, queue: Queue) -> None:
    ddict[f"from {current().hostname}"] = np.arange(1000)
    queue.put((sorted(map(str, ddict)), ddict.local_len(), ddict.local_managers))


def test_every_node_sees_all_keys_and_its_local_ones(ddict: DDict) -> None:
    queue, nodes = Queue(), System().nodes
    ddict.update({i: i for i in range(40)})
    local = 0
    for node in nodes:
        policy = Policy(placement=Policy.Placement.HOST_ID, host_id=node)
        process = Process(look_around, (ddict, queue), policy=policy)
        process.start()
        assert process.join() == 0
        keys, on_node, managers = queue.get()
        assert len(keys) == len(ddict)
        assert len(managers) == 2
        local += on_node
    assert local >= 40


def test_a_batch_of_puts_ends_with_end_batch_put_and_forbids_other_operations(ddict: DDict) -> None:
    ddict.start_batch_put()
    for i in range(100):
        ddict[i] = i
    ddict.end_batch_put()
    assert sorted(ddict) == list(range(100))
    with pytest.raises(DDictError, match="no batch"):
        ddict.end_batch_put()
    ddict.start_batch_put()
    for forbidden in (ddict.start_batch_put, ddict.checkpoint, ddict.rollback, lambda: ddict.pput(1, 1)):
        with pytest.raises(DDictError) as raised:
            forbidden()
        assert raised.value.lib_err == "DRAGON_INVALID_OPERATION"
    ddict.bput("everywhere", 1)
    assert ddict.bget("everywhere") == 1
    ddict.end_batch_put()


def test_a_batch_of_persistent_puts_refuses_others(ddict: DDict) -> None:
    ddict.start_batch_put(persist=True)
    ddict.pput("kept", 1)
    for refused in (ddict.__setitem__, ddict.bput):
        with pytest.raises(DDictError, match="started for pput") as raised:
            refused("other", 2)
        assert raised.value.lib_err == "DRAGON_INVALID_OPERATION"
    ddict.end_batch_put()
    assert dict(ddict) == {"kept": 1}


def test_a_batch_stores_the_value_at_the_time_of_the_put(ddict: DDict) -> None:
    array = np.zeros(10_000)
    ddict.start_batch_put()
    for number in range(5):
        array[:] = number
        ddict[number] = array
    ddict.end_batch_put()
    assert [ddict[number].max() for number in range(5)] == [0, 1, 2, 3, 4]


def test_a_broadcast_is_on_every_manager_and_counts_once(ddict: DDict) -> None:
    ddict.bput("everywhere", [1])
    ddict["a"] = 1
    assert all(ddict.manager(i)["everywhere"] == [1] for i in range(len(ddict.stats)))
    assert ddict.bget("everywhere") == ddict["everywhere"] == [1]
    assert len(ddict) == 2
    assert sorted(ddict) == ["a", "everywhere"]
    with pytest.raises(KeyError):
        ddict.bget("missing")


def test_a_key_can_be_put_at_a_chosen_manager(ddict: DDict) -> None:
    other = (ddict.which_manager("key") + 1) % len(ddict.stats)
    ddict.manager(other)["key"] = "there"
    assert ("key" in ddict, ddict["key"], ddict.get("key")) == (True, "there", "there")
    assert "key" not in ddict.manager(ddict.which_manager("key"))
    assert pickle.loads(pickle.dumps(ddict.manager(other)))["key"] == "there"
    assert ddict.manager(np.int64(other))["key"] == "there"
    for number in (99, -1, "first", None, 0.0):
        with pytest.raises(DDictError, match=f"no manager {number!r}; there are 0 to"):
            ddict.manager(number)  # type: ignore[arg-type]


def fill_each_manager(ddict: DDict) -> dict[str, int]:
    for number in range(len(ddict.manager_nodes)):
        ddict.manager(number).update({f"{number}-{i}": i for i in range(3)})
        ddict.manager(number)["same"] = number
    return {f"{number}-{i}": i for number in range(len(ddict.manager_nodes)) for i in range(3)}


def test_items_and_values_include_keys_at_chosen_managers(ddict: DDict) -> None:
    count = len(ddict.manager_nodes)
    expected = [*fill_each_manager(ddict).items(), *(("same", number) for number in range(count))]
    assert sorted(ddict.items()) == sorted(expected)
    assert sorted(ddict.values()) == sorted(value for _, value in expected)
    local = [item for manager in ddict.local_managers for item in ddict.manager(manager).items()]
    assert sorted(ddict.local_items()) == sorted(local)
    assert sorted(ddict.local_values()) == sorted(value for _, value in local)
    assert sorted(ddict.popitem() for _ in expected) == sorted(expected)
    assert len(ddict) == 0


@pytest.mark.parametrize("working_set_size", [1, 2])
def test_copies_and_clones_have_all_items_at_the_same_managers(
    make: Callable[..., DDict], working_set_size: int
) -> None:
    ddict, cloned = make(working_set_size=working_set_size), make()
    fill_each_manager(ddict)
    ddict.bput("everywhere", [1])
    ddict.pput("kept", 2)
    with ddict.pickler(Reversed, Reversed) as other:
        other["key"] = "value"
    ddict.clone([cloned.serialize()])
    with ddict.copy() as copied:
        for made in (copied, cloned):
            assert sorted(made.items(), key=repr) == sorted(ddict.items(), key=repr)
            for number in range(len(ddict.manager_nodes)):
                there = made.manager(number)
                assert dict(there.items()) == dict(ddict.manager(number).items())
                assert there["everywhere"] == [1]
            with made.pickler(Reversed, Reversed) as other:
                assert other["key"] == "value"
        copied.checkpoint()
        assert copied["kept"] == 2


def test_a_clone_with_another_number_of_managers_has_all_items(ddict: DDict, make: Callable[..., DDict]) -> None:
    expected = fill_each_manager(ddict)
    ddict.bput("everywhere", [1])
    more = make(3)
    ddict.clone([more.serialize()])
    assert {key: value for key, value in more.items() if "-" in key} == expected
    assert all(more.manager(number)["everywhere"] == [1] for number in range(len(more.manager_nodes)))
    assert sum(key == "everywhere" for key in more) == 1


def test_a_frozen_dictionary_can_be_read_but_not_changed(ddict: DDict) -> None:
    ddict["a"] = 1
    ddict.freeze()
    assert ddict.is_frozen
    changes: list[Callable[[], Any]] = [
        lambda: ddict.update(a=2),
        lambda: ddict.pop("a"),
        lambda: ddict.fetch_add("a"),
        lambda: ddict.bput("a", 2),
        ddict.clear,
    ]
    for change in changes:
        with pytest.raises(DDictError, match="frozen"):
            change()
    assert dict(ddict) == {"a": 1}
    ddict.unfreeze()
    ddict["a"] = 2
    assert ddict["a"] == 2


def test_a_view_shows_the_memory_without_a_copy(make: Callable[..., DDict]) -> None:
    ddict = make()
    mine = ddict.manager(ddict.local_manager or 0)
    array = np.arange(100_000)
    mine["array"] = array
    with mine.view("array") as memory:
        assert memory.readonly
        mine["array"] = np.zeros(100_000)
        assert np.array_equal(np.frombuffer(memory, array.dtype), array)
    with pytest.raises(KeyError), mine.view("missing"):
        pass
    mine["small"] = 1
    with pytest.raises(DDictError, match="not one buffer"), mine.view("small"):
        pass


@pytest.mark.parametrize("leave", [DDict.detach, DDict.destroy])
def test_a_view_is_valid_after_its_handle_was_detached_or_destroyed(
    make: Callable[..., DDict], leave: Callable[[DDict], None]
) -> None:
    ddict = make()
    mine = ddict.manager(ddict.local_manager or 0)
    mine["array"] = np.arange(100_000)
    with mine.view("array") as memory:
        leave(mine)
        leave(ddict)
        gc.collect()
        assert np.frombuffer(memory, int).sum() == 4_999_950_000


def test_arrays_of_a_frozen_dictionary_are_read_only_views_of_its_memory(make: Callable[..., DDict]) -> None:
    ddict = make()
    mine = ddict.manager(ddict.local_manager or 0)
    array = np.arange(100_000)
    mine["arrays"] = {"large": array, "small": array[:10], "text": b"x" * 100_000}
    ddict.freeze()
    first, second = mine["arrays"], mine["arrays"]
    assert first["large"].ctypes.data == second["large"].ctypes.data
    assert not first["large"].flags.writeable
    assert np.array_equal(first["large"], array)
    assert np.array_equal(first["small"], array[:10])
    assert first["text"] == b"x" * 100_000
    assert (mine.get("missing"), "missing" in mine) == (None, False)


def test_values_of_a_frozen_dictionary_outlive_it(make: Callable[..., DDict]) -> None:
    ddict = make()
    mine = ddict.manager(ddict.local_manager or 0)
    given_at = []
    for value in range(3):
        mine["array"] = np.full(100_000, value)
        ddict.freeze()
        given_at += [mine["array"] for _ in range(5000)]  # more than a shard has places for readers
        ddict.unfreeze()
    mine["array"] = np.full(100_000, 3)
    del mine
    ddict.destroy()
    gc.collect()
    assert [int(array[0]) for array in given_at[::5000]] == [0, 1, 2]
    assert {int(array[-1]) for array in given_at} == {0, 1, 2}


def test_tensors_of_a_frozen_dictionary_are_writable_copies(make: Callable[..., DDict]) -> None:
    torch = pytest.importorskip("torch")
    ddict = make()
    mine = ddict.manager(ddict.local_manager or 0)
    mine["tensor"] = torch.zeros(100_000)
    ddict.freeze()
    mine["tensor"].add_(1)
    assert mine["tensor"].sum() == 0


_STEPS = st.tuples(st.sampled_from(["view", "put", "pop", "clear", "many"]), st.sampled_from("abc"))


@pytest.mark.parametrize("working_set_size", [1, 2])
@given(st.lists(_STEPS, max_size=60))
@settings(max_examples=30)
def test_a_view_always_shows_the_current_value(working_set_size: int, steps: list[tuple[str, str]]) -> None:
    with DDict(1, 1, 16 * 2**20, working_set_size=working_set_size) as ddict:
        model: dict[str, int] = {}
        for number, (step, key) in enumerate(steps):
            if step == "put":
                ddict[key] = bytes([number]) * 50_000
                model[key] = number
            elif step == "pop" and key in model:
                del ddict[key], model[key]
            elif step == "clear":
                ddict.clear()
                model.clear()
            elif step == "many":  # so that the tree's pages are split
                ddict.put_many({(key, i): bytes(500) for i in range(100)})
            elif step == "view" and key in model:
                with ddict.view(key) as memory:
                    assert (memory[0], memory[-1], len(memory)) == (model[key], model[key], 50_000)
            elif step == "view":
                with pytest.raises(KeyError), ddict.view(key):
                    pass


def test_a_view_shows_the_value_of_its_checkpoint(make: Callable[..., DDict]) -> None:
    ddict = make(working_set_size=2)
    mine = ddict.manager(ddict.local_manager or 0)
    for value in (b"a", b"b"):
        mine["key"] = value * 50_000
        mine.checkpoint()
    for checkpoint, value in ((0, b"a"), (1, b"b"), (0, b"a"), (2, b"b")):
        mine.checkpoint_id = checkpoint
        with mine.view("key") as memory:
            assert bytes(memory[:1]) == value


def test_a_value_that_does_not_fit_is_refused_and_other_values_are_kept(make: Callable[..., DDict]) -> None:
    ddict = make(1, total_mem=4 * 2**20 * System().nnodes)
    ddict["kept"] = 1
    with pytest.raises(DDictFullError, match=r"50 MiB do not fit into manager \d+ on node \d+"):
        ddict["large"] = bytes(50 * 2**20)
    with pytest.raises(DDictFullError):
        ddict.update((i, bytes(100_000)) for i in range(1000))
    with pytest.raises(DDictFullError):
        deque((ddict.__setitem__(i, bytes(100_000)) for i in range(1000)), 0)
    assert ddict["kept"] == 1
    ddict.clear()
    for _ in range(50):
        ddict["again"] = bytes(1_000_000)
    assert len(ddict["again"]) == 1_000_000


def set_later(ddict: DDict) -> None:
    time.sleep(0.2)
    ddict["key"] = 2


def test_wait_for_waits_until_a_key_has_a_value(ddict: DDict) -> None:
    ddict["key"] = 1
    with pytest.raises(DDictTimeoutError, match=r"waited 0.05 s for key 'key' to be 2"):
        ddict.wait_for("key", 2, timeout=0.05)
    process = Process(set_later, (ddict,))
    process.start()
    ddict.wait_for("key", 2, timeout=30)
    process.join()
    assert ddict["key"] == 2


def test_wait_for_compares_all_elements_of_an_array(ddict: DDict) -> None:
    ddict["key"] = np.arange(3)
    for other in (np.arange(4), np.zeros(3), 0):
        with pytest.raises(DDictTimeoutError):
            ddict.wait_for("key", other, timeout=0.05)
    ddict.wait_for("key", np.arange(3), timeout=30)
    assert np.arange(3) in ddict.values()
    assert ("key", np.arange(3)) in ddict.items()
    assert ("key", np.zeros(3)) not in ddict.items()


def test_a_dictionary_can_be_attached_from_its_serialized_name(ddict: DDict) -> None:
    ddict["key"] = 1
    other = DDict.attach(ddict.serialize(), timeout=30)
    assert other["key"] == 1
    other.detach()
    with pytest.raises(DestroyedError, match="detached"):
        other["key"]
    assert ddict["key"] == 1
    with pytest.raises(DDictError, match="not what serialize"):
        DDict.attach("nonsense")


def test_calls_to_a_destroyed_dictionary_raise_destroyed_error(make: Callable[..., DDict]) -> None:
    ddict = make()
    text, other = ddict.serialize(), DDict.attach(ddict.serialize())
    ddict.destroy()
    ddict.destroy()
    uses: list[Callable[[], Any]] = [
        lambda: ddict["key"],
        lambda: other["key"],
        lambda: other.update(key=1),
        lambda: len(other),
        lambda: DDict.attach(text),
    ]
    for use in uses:
        with pytest.raises(DestroyedError):
            use()


def test_a_dictionary_without_handles_is_destroyed(
    make: Callable[..., DDict], wait_until: Callable[[Callable[[], object]], None]
) -> None:
    text = (forgotten := make()).serialize()
    forgotten.detach()

    def is_gone() -> bool:
        try:
            DDict.attach(text)
        except DestroyedError:
            return True
        return False

    wait_until(is_gone)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"working_set_size": 0}, ValueError),
        ({"wait_for_keys": True}, ValueError),
        ({"wait_for_writers": True}, ValueError),
        ({"persist_freq": -1}, ValueError),
        ({"persist_count": -2}, ValueError),
        ({"total_mem": "much"}, ValueError),
        ({"total_mem": -5}, ValueError),
        ({"managers_per_node": None}, AttributeError),
        ({"managers_per_node": 0}, ValueError),
        ({"policy": [Policy()], "managers_per_node": 2}, AttributeError),
        ({"policy": Policy(), "n_nodes": None}, AttributeError),
        ({"restore_from": 1}, AttributeError),
        ({"read_only": True}, AttributeError),
        ({"persist_freq": 1}, AttributeError),
        ({"restart": True}, RuntimeError),
        ({"n_nodes": 1000}, DDictUnableToCreateError),
        ({"total_mem": 2**60}, DDictUnableToCreateError),
        ({"persister_class": int}, NotSupportedError),
    ],
)
def test_invalid_parameters_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        DDict(**options)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"timeout": "x"}, TypeError, "timeout must be a number of seconds, or None, not 'x'"),
        ({"timeout": -1}, ValueError, "timeout must be at least 0 seconds, not -1"),
        ({"name": 5}, TypeError, "name must be a string, not 5"),
        (
            {"name": "a/b", "persister_class": PosixCheckpointPersister},
            ValueError,
            r"name must be a valid file-name prefix \(at most 180 bytes, no \"/\"\), not 'a/b'",
        ),
        ({"working_set_size": "2"}, TypeError, "working_set_size must be a whole number, not '2'"),
        ({"working_set_size": 2.0}, TypeError, "working_set_size must be a whole number, not 2.0"),
        ({"persist_count": None}, TypeError, "persist_count must be a whole number, not None"),
        ({"persist_path": 5}, TypeError, "persist_path must be a string, not 5"),
        ({"restore_from": "0", "name": "x"}, TypeError, "restore_from must be a whole number, not '0'"),
        ({"wait_for_keys": 1, "working_set_size": 2}, TypeError, "wait_for_keys must be True or False, not 1"),
        ({"policy": "node-1"}, TypeError, "policy must be a Policy or a list of policies, not 'node-1'"),
        ({"policy": ["a"]}, TypeError, r"policy must be a Policy or a list of policies, not \['a'\]"),
        ({"policy": [Policy()], "managers_per_policy": 0}, ValueError, "managers_per_policy must be at least 1, not 0"),
    ],
)
def test_the_error_about_an_invalid_parameter_names_it(
    options: dict[str, Any], error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=f"^{what}$"):
        DDict(**options)


def test_attach_refuses_a_timeout_that_is_not_a_number(ddict: DDict) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        DDict.attach(ddict.serialize(), timeout="x")  # type: ignore[arg-type]


def test_managers_are_on_the_nodes_of_their_policies(make: Callable[..., DDict]) -> None:
    policies = [Policy(placement=Policy.Placement.HOST_ID, host_id=node) for node in reversed(System().nodes)]
    with DDict(policy=policies, managers_per_policy=2, total_mem=64 * 2**20) as ddict:
        names = [node.h_uid for node in ddict.manager_nodes]
        assert names == [node for node in reversed(System().nodes) for _ in range(2)]


def test_statistics_have_the_number_of_keys_and_the_used_memory(ddict: DDict) -> None:
    ddict["key"] = bytes(2**20)
    stats = ddict.dstats[ddict.which_manager("key")]
    assert stats.num_keys == 1
    assert 2**20 <= stats.total_used_bytes <= stats.total_bytes
    assert stats.pool_free_space == stats.total_bytes - stats.total_used_bytes
    assert sum(one.num_keys for one in ddict.stats) == 1


def even(ddict: DDict, most: int) -> Iterator[int]:
    return iter(sorted(value for value in ddict.values() if value % 2 == 0 and value < most))


def even_of_this_manager(ddict: DDict) -> Iterator[int]:
    return iter(sorted(ddict[key] for key in ddict.local_keys() if ddict[key] % 2 == 0))


def fail(ddict: DDict) -> Iterator[int]:
    yield 1
    raise ValueError("on purpose")


def test_filter_selects_items_on_each_manager(ddict: DDict) -> None:
    ddict.update({str(i): i for i in range(100)})
    with ddict.filter(even, (50,), lambda a, b: a < b) as found:
        assert list(found) == list(range(0, 50, 2))
    with ddict.filter(even_of_this_manager, (), lambda a, b: a < b) as found:
        assert list(found) == list(range(0, 100, 2))
    with pytest.raises(DDictError, match="manager 0: ValueError: on purpose"), ddict.filter(fail) as found:
        list(found)


def be_killed(ddict: DDict) -> Iterator[int]:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_filter_process_raises_an_error(ddict: DDict) -> None:
    with ddict.filter(be_killed) as found:
        assert next(found) == 1
        with pytest.raises(DDictError, match="manager 0 ended with exit code -9"):
            next(found)


def write_and_close(queue: SentinelQueue) -> None:
    queue.putter()
    for number in range(3):
        queue.put(number)
    queue.close()
    queue.close()  # once is enough, twice does no harm
    with pytest.raises(RuntimeError, match="was closed"):
        queue.put(3)


def test_a_sentinel_queue_ends_after_its_last_item(ddict: DDict) -> None:
    queue = SentinelQueue()
    with pytest.raises(RuntimeError, match=r"get\(\) on a SentinelQueue without getter\(\) before"):
        queue.get()
    queue.getter()
    with pytest.raises(RuntimeError, match="getter or putter, not both"):
        queue.putter()
    writer = Process(write_and_close, (queue,))
    writer.start()
    assert [queue.get() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(EOFError):
            queue.get()
    assert writer.join() == 0


def test_strip_pickled_bytes_removes_the_common_bytes_of_pickles() -> None:
    keys = ["hello", 5, (1, "a"), b"x" * 300]
    stripped = [strip_pickled_bytes(pickle.dumps(key, 5)) for key in keys]
    assert stripped[:2] == [b"\t\0\0\0\0\0\0\0\x8c\x05hello", b"\x80\x05K\x05"]
    assert len(set(stripped)) == len(keys)
    assert strip_pickled_bytes(b"") == b""


def test_copies_clones_and_synchronized_dictionaries_have_the_same_items(
    ddict: DDict, make: Callable[..., DDict]
) -> None:
    ddict.update({i: np.full(i * 100, i) for i in range(100)})
    with ddict.copy("other") as copied:
        assert copied.get_name() == "other"
        assert all(np.array_equal(copied[i], ddict[i]) for i in range(100))
        copied["more"] = 1
        assert len(ddict) == 100
    with pytest.raises(TypeError, match="name must be a string, not 5"):
        ddict.copy(5)  # type: ignore[arg-type]
    other = make()
    ddict.clone([other.serialize()])
    assert len(other) == 100
    empty = make()
    DDict.synchronize_ddicts([empty.serialize(), other.serialize()])
    assert sorted(empty) == sorted(other)
    with pytest.raises(DDictSyncError):
        DDict.synchronize_ddicts([other.serialize(), make(3).serialize()])


def test_memoize_keeps_the_results_of_a_function(ddict: DDict) -> None:
    calls = []

    @ddict.memoize
    def square(x: int, *, offset: int = 0) -> int:
        calls.append(x)
        return x * x + offset

    assert [square(3), square(3), square(3, offset=1), square(4), square(4)] == [9, 9, 10, 16, 16]
    assert calls == [3, 3, 4]
    assert square.__name__ == "square"


@pytest.mark.parametrize("function", [lambda x: x, 5])
def test_memoize_refuses_a_function_without_a_name(ddict: DDict, function: Any) -> None:
    with pytest.raises(TypeError, match=r"has none: use def"):
        ddict.memoize(function)


def test_filter_refuses_arguments_that_are_not_functions(ddict: DDict) -> None:
    with pytest.raises(TypeError, match="mgr_code must be a function, not 5"):
        ddict.filter(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="comparator must be a function, not None"):
        ddict.filter(DDict.local_keys, comparator=None)  # type: ignore[arg-type]


def write_all_the_time(ddict: DDict, queue: Queue) -> None:
    queue.put("begun")
    for number in range(60_000):
        ddict["key"] = number
    queue.put("done")


def test_a_writer_waits_for_a_view_that_keeps_old_pages(make: Callable[..., DDict]) -> None:
    ddict, queue = make(1, total_mem=2**21 * System().nnodes), Queue()
    mine = ddict.manager(ddict.local_manager or 0)
    mine["view"] = bytes(50_000)
    with mine.view("view"):
        here = Policy(placement=Policy.Placement.HOST_NAME, host_name=current().hostname)
        process = Process(write_all_the_time, (mine, queue), policy=here)
        process.start()
        assert queue.get(timeout=30) == "begun"
        time.sleep(1)
    assert queue.get(timeout=60) == "done"
    process.join()


def test_the_error_of_a_full_dictionary_names_an_open_view(make: Callable[..., DDict]) -> None:
    ddict = make(1, total_mem=2**21 * System().nnodes)
    mine = ddict.manager(ddict.local_manager or 0)
    mine["view"] = bytes(50_000)
    with mine.view("view"), pytest.raises(DDictFullError, match="pinned by an open view"):
        deque((mine.__setitem__("key", number) for number in range(100_000)), 0)
    mine["key"] = 1


def test_with_replicas_the_replicas_of_this_node_are_local(make: Callable[..., DDict]) -> None:
    if System().nnodes < 2:
        pytest.skip("needs two nodes; tests/cluster runs it over two")
    ddict = make(1, replicas=2)
    ddict.update({i: bytes(50_000) for i in range(20)})
    assert ddict.local_managers == list(range(System().nnodes))
    assert ddict.local_len() == len(list(ddict.local_keys())) == 20
    with ddict.view(3) as memory:
        assert memory.nbytes == 50_000


def test_a_dictionary_without_a_name_is_called_after_the_line_that_makes_it() -> None:
    with DDict(1, 1, 16 * 2**20) as ddict:
        assert re.fullmatch(r"test_ddict\.py-\d+-[a-z]{10}", ddict.get_name())
