"""Guarantees of the standard library's documentation for contexts, for the module's functions and in its guidelines.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import gc
import io
import multiprocessing as mp
import multiprocessing.connection
import multiprocessing.dummy
import multiprocessing.pool
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from documented import CONTEXT, LONG, ended, start

if TYPE_CHECKING:
    from conftest import Site


# ---- contexts and start methods


def test_the_start_methods_are_listed_and_that_of_a_context_is_returned() -> None:
    """Returns a list of the supported start methods. get_context(): if method is None then the default context is
    returned (that of a context is itself); ValueError is raised if the specified start method is not available."""
    assert {"fork", "spawn", "forkserver", "dragon"} <= set(mp.get_all_start_methods())
    assert CONTEXT.get_start_method() == "dragon"
    assert CONTEXT.get_context() is CONTEXT
    assert CONTEXT.get_context("spawn") is mp.get_context("spawn")
    with pytest.raises(ValueError, match="cannot find context for 'none'"):
        CONTEXT.get_context("none")


def test_a_context_has_the_same_attributes_as_the_module() -> None:
    """Return a context object which has the same attributes as the multiprocessing module."""
    spawn = mp.get_context("spawn")
    assert {name for name in mp.__all__ if hasattr(spawn, name) and not hasattr(CONTEXT, name)} == set()


def test_the_start_method_can_be_set_only_once(site: Site) -> None:
    """If the start method has not been fixed and allow_none is true then None is returned; is false, then the start
    method is fixed to the default and the name is returned. set_start_method() should not be used more than once:
    RuntimeError, unless force is true."""
    result = site.python("""
        import multiprocessing as mp
        import dragon

        print(mp.get_start_method(allow_none=True))
        mp.set_start_method("dragon")
        print(mp.get_start_method(), mp.get_context() is mp.get_context("dragon"))
        try:
            mp.set_start_method("spawn")
        except RuntimeError as error:
            print(error)
        mp.set_start_method("spawn", force=True)
        print(mp.get_start_method(), type(mp.Process())._start_method, type(mp.Queue()).__module__)
    """)
    assert result.stdout.splitlines() == [
        "None",
        "dragon True",
        "context has already been set",
        "spawn None multiprocessing.queues",
    ], result.stderr


def test_several_start_methods_can_be_used_in_one_program() -> None:
    """Context objects have the same API as the multiprocessing module, and allow one to use multiple start methods in
    the same program."""
    for context in (CONTEXT, mp.get_context("fork"), CONTEXT):
        box = context.SimpleQueue()
        process = context.Process(target=hello, args=(box,))
        process.start()
        assert box.get() == "hello"
        assert ended(process) == 0


def hello(box: Any) -> None:
    box.put("hello")


# ---- the module's functions


def test_active_children_returns_live_children_and_joins_the_others() -> None:
    """Return list of all live children of the current process. Calling this has the side effect of "joining" any
    processes which have already finished."""
    living, finished = start(time.sleep, 60), start(time.sleep, 0)
    assert living in mp.active_children()
    assert mp.connection.wait([finished.sentinel], LONG)
    assert finished not in mp.active_children()
    assert not os.path.exists(f"/proc/{finished.pid}")
    living.kill()
    assert ended(living) == -9


def test_cpu_count_is_the_number_of_usable_cpus_of_the_run() -> None:
    """The number of usable CPUs can be obtained with os.process_cpu_count() (or len(os.sched_getaffinity(0))). (Here
    cpu_count() is this number, over all nodes.)"""
    assert CONTEXT.cpu_count() == len(os.sched_getaffinity(0))


def test_functions_for_other_start_methods_have_no_effect() -> None:
    """Calling freeze_support() has no effect when invoked on any operating system other than Windows. set_executable()
    sets the path of the interpreter for a child. (Here it has no effect: processes are forked.)"""
    assert CONTEXT.freeze_support() is None
    CONTEXT.set_executable("/nowhere/python")
    try:
        assert ended(start(time.sleep, 0)) == 0
    finally:
        CONTEXT.set_executable(sys.executable)


def test_a_process_can_observe_the_end_of_its_parent() -> None:
    """parent_process(): return the Process object corresponding to the parent process. (It is joined like any
    other.)"""
    box = CONTEXT.Queue()
    process = start(parent_of_a_waiter, box)
    assert box.get(timeout=LONG) == (process.name, process.pid, True)
    process.kill()
    assert ended(process) == -9
    assert box.get(timeout=LONG) is False


def parent_of_a_waiter(box: Any) -> None:
    start(wait_for_parent, box)
    time.sleep(60)


def wait_for_parent(box: Any) -> None:
    parent: Any = mp.parent_process()
    box.put((parent.name, parent.pid, parent.is_alive()))
    parent.join(LONG)
    box.put(parent.is_alive())


# ---- logging


def test_processes_log_to_stderr_with_their_names(site: Site) -> None:
    """log_to_stderr(): it adds a handler which sends output to sys.stderr using format
    '[%(levelname)s/%(processName)s] %(message)s'. (The level of the logger is that of the parent's.)"""
    result = site.python("""
        import logging
        import multiprocessing as mp
        import dragon

        def work():
            mp.get_logger().info("done")

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            mp.log_to_stderr(logging.INFO).warning("doomed")
            process = mp.Process(target=work, name="worker")
            process.start()
            process.join()
    """)
    lines = result.stderr.splitlines()
    assert lines[0] == "[WARNING/MainProcess] doomed"
    told = [line for line in lines if "worker" in line]
    assert told[:2] == ["[INFO/worker] child process calling self.run()", "[INFO/worker] done"]
    # From Python 3.14 on in the other order.
    assert sorted(told[2:]) == [
        "[INFO/worker] process exiting with exitcode 0",
        "[INFO/worker] process shutting down",
    ]


# ---- dummy


def test_multiprocessing_dummy_uses_threads_with_any_start_method(site: Site) -> None:
    """multiprocessing.dummy replicates the API of multiprocessing but is no more than a wrapper around the threading
    module. The Pool function returns an instance of ThreadPool."""
    result = site.python("""
        import multiprocessing as mp
        import multiprocessing.dummy
        import os
        import dragon

        mp.set_start_method("dragon")
        box = mp.dummy.Queue()
        process = mp.dummy.Process(target=lambda: box.put(os.getpid()))
        process.start()
        process.join()
        with mp.dummy.Pool(2) as pool:
            print(type(pool).__name__, box.get() == os.getpid(), pool.apply(os.getpid) == os.getpid())
    """)
    assert result.stdout == "ThreadPool True True\n", result.stderr


# ---- programming guidelines


def test_arguments_of_a_process_exist_until_its_end() -> None:
    """It is better to pass the object as an argument to the constructor for the child process. This also ensures that
    as long as the child process is still alive the object will not be garbage collected in the parent process."""
    results = CONTEXT.Queue()
    process = start(use_later, results, CONTEXT.Lock(), CONTEXT.Queue(), CONTEXT.Value("i", 3))
    gc.collect()
    assert results.get(timeout=LONG) == (True, "item", 3)
    assert ended(process) == 0


def use_later(results: Any, lock: Any, box: Any, value: Any) -> None:
    time.sleep(0.1)
    box.put("item")
    results.put((lock.acquire(), box.get(), value.value))


def test_attributes_of_a_subclass_of_process_are_sent() -> None:
    """Ensure that all arguments to Process.__init__() are picklable. Also, if you subclass Process then make sure that
    instances will be picklable when the Process.start method is called."""
    process = Subclass()
    process.attribute = threading.Lock()
    with pytest.raises(TypeError, match="attribute"):
        process.start()
    process.attribute = 5
    process.start()
    assert ended(process) == 5


class Subclass(CONTEXT.Process):  # type: ignore[misc, name-defined]
    attribute: Any = None

    def run(self) -> None:
        raise SystemExit(self.attribute)


CONSTANT = "constant"
changed = ["at the import"]


def test_a_process_does_not_see_later_changes_of_global_variables() -> None:
    """Bear in mind that if code run in a child process tries to access a global variable, then the value it sees (if
    any) may not be the same as the value in the parent process at the time that Process.start was called. However,
    global variables which are just module level constants cause no problems."""
    changed[0] = "later"
    box = CONTEXT.Queue()
    process = start(tell_globals, box)
    assert box.get(timeout=LONG) == ("constant", "at the import")
    assert ended(process) == 0


def tell_globals(box: Any) -> None:
    box.put((CONSTANT, changed[0]))


def test_a_replaced_stdin_of_the_parent_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beware of replacing sys.stdin with a "file like object". (A process has an empty one of its own.)"""
    mine = io.StringIO("mine")
    monkeypatch.setattr("sys.stdin", mine)
    box = CONTEXT.Queue()
    process = start(read_input, box)
    assert box.get(timeout=LONG) == ""
    assert ended(process) == 0
    assert mine.read() == "mine"


def read_input(box: Any) -> None:
    box.put(sys.stdin.read())
