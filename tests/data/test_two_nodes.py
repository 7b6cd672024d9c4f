"""Dictionaries over two nodes, by themselves and as files, stores of zarr and profiles: all in one run."""

from __future__ import annotations

import pytest

from conftest import Site
from together import failures

pytest.importorskip("zarr", minversion="3")
pytest.importorskip("fsspec")

PROGRAM = """
import os
import signal
import time

import numpy as np
import zarr

from dragon.data.ddict import DDict, DDictError, DDictTimeoutError
from dragon.data.files import DictionaryFileSystem
from dragon.data.zarr import Store
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue

HERE, THERE = System().hostname_policies()


def look_up(ddict, found):
    assert ddict.local_managers == []
    assert ("missing" in ddict, ddict.get("missing"), ddict.pop("missing", None)) == (False, None, None)
    for use in (
        lambda d: d["key"],
        lambda d: "key" in d,
        lambda d: d.get_many(["key"]),
        lambda d: d.pop("other"),
        lambda d: d.get_part("key", 0, 1),
        lambda d: d.begin_get("key").result(),
    ):
        found.put(use(DDict.attach(ddict.serialize())))


def check_a_node_without_managers_finds_keys_at_chosen_managers():
    found = Queue()
    with DDict(3, 1, 2**24) as ddict:
        process = Process(look_up, (ddict, found), policy=THERE)
        for key in ("key", "other"):
            ddict.manager((ddict.which_manager(key) + 1) % 3)[key] = b"value"
        process.start()
        told = [found.get(timeout=30) for _ in range(6)]
        assert process.join() == 0
    assert told == [b"value", True, [b"value"], b"value", b"v", b"value"]


def put_for_ever(ddict, queue):
    queue.put(os.getpid())
    value = bytes(30 << 20)
    while True:
        ddict["large"] = value


def times_out(ddict):
    for use in (lambda: ddict.update(small=1), lambda: ddict.pop("small"), lambda: ddict.fetch_add(1)):
        try:
            use()
        except DDictTimeoutError:
            return True
        except KeyError:
            pass
    return False


def check_operations_time_out_while_a_stopped_process_is_writing():
    queue, timed_out = Queue(), False
    with DDict(policy=[THERE], total_mem=2**28, timeout=1) as ddict:
        process = Process(put_for_ever, (ddict, queue), policy=THERE)
        process.start()
        writer = queue.get()
        for _ in range(100):
            os.kill(writer, signal.SIGSTOP)
            timed_out = times_out(ddict)
            os.kill(writer, signal.SIGCONT)
            if timed_out:
                break
            time.sleep(0.01)
        process.kill()
        process.join()
    assert timed_out


def fill(array, first):
    array[first : first + 50] = first + 1
    assert array.shape == (100, 2000)


def check_processes_of_both_nodes_write_an_array_of_zarr():
    store = Store(2, 2, 2**26)
    options = {"chunks": (10, 2000), "shards": (50, 2000), "dtype": "i4", "compressors": None}
    array = zarr.create_array(store, shape=(100, 2000), **options)
    processes = [Process(fill, (array, 50 * i), policy=node) for i, node in enumerate((HERE, THERE))]
    for process in processes:
        process.start()
    assert [process.join() for process in processes] == [0, 0]
    assert sorted(np.unique(array[:], return_counts=True)[1]) == [100_000, 100_000]
    assert array[60:70, 5].tolist() == [51] * 10
    assert (sorted(store.ddict)[-1], len(store.ddict)) == ("zarr.json", 3)
    store.destroy()


def check_files_are_on_both_nodes():
    for replicas in (1, 2):
        with DDict(1, 2, 2**26, replicas=replicas) as ddict:
            files = DictionaryFileSystem(ddict)
            for i in range(20):
                files.pipe_file(f"folder/{i}", bytes([i]) * 10_000 * i)
            assert {ddict.which_manager(f"folder/{i}") for i in range(20)} == {0, 1}
            assert files.du("folder") == 10_000 * sum(range(20))
            assert all(files.cat_file(f"folder/{i}", 5, 9) == bytes([i]) * 4 for i in range(1, 20))
            assert all(files.size(f"folder/{i}") == 10_000 * i for i in range(20))
            ddict.update({str(i): i for i in range(20)})
            for i in range(20):
                try:
                    ddict.get_part(str(i))
                except DDictError:
                    continue
                raise AssertionError("an integer has parts")
            files.rm("folder", recursive=True)
            assert len(ddict) == 20


def counted(ddict):
    return sorted((name, one.count, one.remote, one.bytes) for name, one in ddict.profile().items())


def check_operations_on_another_node_are_counted_separately():
    with DDict(1, 2, 2**24) as ddict:
        ddict.profile_reset()
        for manager in range(2):
            ddict.manager(manager)["key"] = bytes(50_000)
            assert ddict.manager(manager)["key"] == bytes(50_000)
        assert counted(ddict) == [("get", 2, 1, 100002), ("put", 2, 1, 100002)]
        there = ddict.manager(next(i for i in range(2) if i not in ddict.local_managers))
        there["large"] = bytes(300_000)
        ddict.profile_reset()
        assert there.get_many(["key", "large", "key"]) == [bytes(50_000), bytes(300_000), bytes(50_000)]
        assert counted(ddict) == [("get", 3, 3, 400003)]
"""


def test_dictionaries_work_over_two_nodes(site: Site) -> None:
    assert failures(site, PROGRAM, "--nodes", "2") == {}
