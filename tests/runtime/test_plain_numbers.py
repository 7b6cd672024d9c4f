"""Numbers as arguments: those of NumPy are accepted, and an error names an argument that is not a number."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dragon
from dragon.data.ddict import DDict, DDictUnableToCreateError
from dragon.infrastructure.plain_number import in_units, plain_number
from dragon.infrastructure.policy import Policy
from dragon.native import Array, Barrier, Lock, Pool, Queue, Semaphore
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.telemetry import AnalysisClient
from dragon.workflows.batch import Batch
from dragon.workflows.runtime import lookup

mp = multiprocessing.get_context("dragon")


@pytest.mark.parametrize("walltime", [np.int64(20), np.float32(20), np.float64(20)])
def test_a_group_accepts_numpys_numbers(walltime: Any) -> None:
    group = ProcessGroup(walltime=walltime, policy=Policy(cpu_affinity=[np.int64(0)]), ignore_error_on_exit=True)
    group.add_process(np.int64(2), ProcessTemplate("sleep", [60]))
    group.init()
    group.start()
    group.send_signal(np.int8(signal.SIGKILL))
    group.join(np.float32(10))
    assert [code for _, code in group.exit_status] == [-9, -9]
    group.close(np.float32(1))


def test_a_process_accepts_numpys_numbers() -> None:
    process = Process("sleep", [60])
    process.start()
    process.send_signal(np.int64(signal.SIGKILL))
    assert process.join(np.float32(10)) == -9


def test_pools_accept_numpys_numbers() -> None:
    with mp.Pool(np.int64(1), maxtasksperchild=np.int64(9)) as pool:
        assert pool.map_async(abs, [-1, -2], np.int64(1)).get(np.float32(10)) == [1, 2]
    native = Pool(policy=[Policy()], processes_per_policy=np.int64(1))
    native.close()
    native.join(np.float32(10))


def test_queues_and_synchronization_objects_accept_numpys_numbers() -> None:
    for queue in (Queue(np.int64(1)), mp.Queue(np.int64(1))):
        queue.put(1, True, np.float32(1))
        assert queue.full()
    assert Semaphore(np.int64(2)).get_value() == 2
    assert Barrier(np.int64(2), timeout=np.float32(1)).parties == 2
    assert len(Array("i", np.int64(3))) == len(mp.Array("i", np.int64(3))) == 3


def test_a_dictionary_accepts_numpys_numbers() -> None:
    one = np.int64(1)
    with DDict(one, one, np.int64(2**24), timeout=np.float32(9), working_set_size=np.int64(2)) as d:
        d["key"] = 1
        assert DDict.attach(d.serialize(), timeout=np.float32(2))["key"] == 1


def test_a_batch_accepts_numpys_numbers() -> None:
    with Batch(num_nodes=np.int64(1), workers_per_node=np.int64(1)) as batch:
        task = batch.options(timeout=np.float32(30)).function(abs, -1)
        job = batch.job([(np.int64(1), ProcessTemplate("true"))])
        assert task.get(timeout=np.float32(30)) == 1
        assert job.get(timeout=np.int64(30)) == 0


@pytest.mark.parametrize("array", [np.array([3]), np.array(3), [3], "3", None, True])
def test_other_values_are_returned_unchanged(array: Any) -> None:
    assert plain_number(array) is array


@pytest.fixture(scope="module")
def task() -> Any:
    with Batch(workers_per_node=1) as batch:
        yield batch.function(abs, -1)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda: AnalysisClient().get_data("cpu_percent", start_time="now"), "start_time"),  # type: ignore[arg-type]
        (lambda: AnalysisClient().get_data("cpu_percent", end_time="now"), "end_time"),  # type: ignore[arg-type]
        (lambda: AnalysisClient().get_lifetimes("now"), "since"),  # type: ignore[arg-type]
        (lambda: AnalysisClient().connect("now"), "timeout"),  # type: ignore[arg-type]
        (lambda: lookup("localhost", "run", timeout_in="now"), "timeout_in"),  # type: ignore[arg-type]
    ],
)
def test_the_error_about_an_invalid_time_names_the_argument(ask: Callable[[], Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a number of seconds, or None, not 'now'"):
        ask()


def test_the_error_about_an_invalid_timeout_of_a_task_names_it(task: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds, or None, not 'now'"):
        task.get(timeout="now")


def test_the_name_of_a_run_must_be_a_string() -> None:
    with pytest.raises(TypeError, match="the name of a run is a string, not 5"):
        lookup("localhost", 5)  # type: ignore[arg-type]


def test_an_array_larger_than_any_memory_is_refused() -> None:
    with pytest.raises(MemoryError, match="8000000000000000 bytes are more than"):
        Array("d", 10**15)


def test_sizes_in_errors_have_units() -> None:
    sizes = {0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 3 * 2**29: "1.5 GiB", 2**41: "2 TiB"}
    assert {size: in_units(size) for size in sizes} == sizes
    with pytest.raises(DDictUnableToCreateError, match=r"needs 8 TiB, and /dev/shm has [\d.]+ \w+ free"):
        DDict(1, 1, "8T")


def test_a_dictionary_takes_a_size_with_a_unit() -> None:
    with DDict(1, 1, "64M") as ddict:
        assert ddict.stats[0].total_bytes == 64 * 2**20
    with pytest.raises(ValueError, match="'64X' is not a size; write 500M or 8G"):
        DDict(1, 1, "64X")


def test_a_time_out_that_is_no_number_is_named() -> None:
    for call in (Queue().get, Lock().acquire):
        with pytest.raises(TypeError, match="timeout must be a number of seconds, or None, not '5'"):
            call(timeout="5")  # type: ignore[arg-type]


def test_a_process_takes_its_name_as_ident_or_name() -> None:
    assert Process("true", name="named").name == Process("true", ident="named").name == "named"


def test_an_import_from_the_wrong_package_names_the_right_one() -> None:
    with pytest.raises(ImportError, match="use `from dragon import DDict`"):
        from dragon.native import DDict  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"use `from dragon\.native import Queue`"):
        from dragon import Queue  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(dragon.native, "DDict")
