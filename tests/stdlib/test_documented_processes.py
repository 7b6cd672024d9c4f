"""Guarantees of the standard library's documentation for processes.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


def sleep(seconds: float = 60) -> None:
    time.sleep(seconds)


def fail() -> None:

    sys.stderr = io.StringIO()
    raise ValueError("on purpose")


def tell_ids(box: Any) -> None:
    thread, current, parent = threading.main_thread(), mp.current_process(), mp.parent_process()
    ids = os.getpid(), thread.native_id, threading.get_native_id(), threading.get_ident()
    box.put((*ids, current.name, parent and parent.pid))


def test_the_main_thread_of_a_process_has_the_process_id() -> None:
    """threading: the native integral thread ID of this thread. (Of a main thread on Linux it is the process id.)
    current_process(): return the Process object corresponding to the current process."""
    box = CONTEXT.Queue()
    process = start(tell_ids, box)
    pid, known, native, ident, name, parent = box.get(timeout=LONG)
    assert (pid, known, native) == (process.pid,) * 3
    assert (name, parent, bool(ident)) == (process.name, os.getpid(), True)
    assert ended(process) == 0
    assert process not in mp.active_children()
    assert (mp.parent_process(), mp.current_process().name) == (None, "MainProcess")


def test_run_is_called_in_the_process() -> None:
    """Method representing the process's activity. You may override this method in a subclass."""
    box = CONTEXT.Queue()
    process = Overridden(box)
    process.start()
    assert box.get(timeout=LONG) == "overridden"
    assert ended(process) == 0


class Overridden(CONTEXT.Process):  # type: ignore[misc, name-defined]
    def __init__(self, box: Any) -> None:
        super().__init__()
        self.box = box

    def run(self) -> None:
        self.box.put("overridden")


def test_join_returns_none_and_can_be_called_repeatedly() -> None:
    """Note that the method returns None if its process terminates or if the method times out. A process can be joined
    many times. A process object is alive from the moment the start() method returns until the child process
    terminates. Process objects cannot be pickled but for a start."""
    process = CONTEXT.Process(target=sleep)
    assert not process.is_alive()
    process.start()
    assert process.join(0.01) is None
    assert (process.exitcode, process.is_alive()) == (None, True)
    process.kill()
    assert (process.join(LONG), process.join(), process.is_alive()) == (None, None, False)
    with pytest.raises((TypeError, RuntimeError, pickle.PicklingError)):
        pickle.dumps(process)


def test_daemons_may_not_have_children() -> None:
    """Note that a daemonic process is not allowed to create child processes."""
    box = CONTEXT.Queue()
    process = start(try_child, box, daemon=True)
    assert box.get(timeout=LONG) == "AssertionError"
    ended(process)


def try_child(box: Any) -> None:
    try:
        start(sleep, 0)
    except AssertionError as error:
        box.put(type(error).__name__)


def test_exit_codes_of_returns_exits_and_errors() -> None:
    """If the child's run() method returned normally, the exit code will be 0. If it terminated via sys.exit() with an
    integer argument N, the exit code will be N. If the child terminated due to an exception not caught within run(),
    the exit code will be 1. If it was terminated by signal N, -N. (target defaults to None: nothing is called.)"""
    cases: list[tuple[Any, tuple[Any, ...], int]] = [
        (None, (), 0),
        (sleep, (0,), 0),
        (sys.exit, (3,), 3),
        (sys.exit, (None,), 0),
        (sys.exit, (True,), 1),
        (fail, (), 1),
        *((end_by, (number,), -number) for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1)),
    ]
    processes = [start(target, *args) for target, args, _ in cases]
    assert [ended(process) for process in processes] == [code for *_, code in cases]


def end_by(number: int) -> None:
    os.kill(os.getpid(), number)


def test_authentication_keys_are_inherited_and_can_be_set() -> None:
    """When a Process object is created, it will inherit the authentication key of its parent process, although this may
    be changed by setting authkey to another byte string."""
    box, own = CONTEXT.Queue(), bytes(mp.current_process().authkey)
    for key in (own, b"another"):
        process = CONTEXT.Process(target=tell_key, args=(box,))
        assert process.authkey == own
        if key != own:
            process.authkey = key
        process.start()
        assert box.get(timeout=LONG) == key
        assert ended(process) == 0


def tell_key(box: Any) -> None:
    box.put(bytes(mp.current_process().authkey))


# ---- the constructor


def test_arguments_are_a_list_or_a_tuple_and_a_dictionary() -> None:
    """args is the argument tuple for the target invocation (a list or tuple from Python 3.11 on). kwargs is a
    dictionary of keyword arguments for the target invocation."""
    box = CONTEXT.Queue()
    process = CONTEXT.Process(target=put_both, args=[box, 1], kwargs={"second": 2})
    process.start()
    assert box.get(timeout=LONG) == (1, 2)
    assert ended(process) == 0


def put_both(box: Any, first: Any, *, second: Any = None) -> None:
    box.put((first, second))


def test_the_name_of_a_grandchild_has_the_numbers_of_both_generations() -> None:
    """If no explicit name is provided to the constructor, a name of the form 'Process-N1:N2:...:Nk' is constructed,
    where each Nk is the N-th child of its parent."""
    box = CONTEXT.Queue()
    process = start(name_children, box)
    numbers = process.name.rpartition("-")[2]
    assert [name.rpartition("-")[2] for name in box.get(timeout=LONG)] == [f"{numbers}:1", f"{numbers}:2"]
    assert ended(process) == 0


def name_children(box: Any) -> None:
    box.put([CONTEXT.Process().name for _ in range(2)])
