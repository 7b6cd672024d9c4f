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


def describe(box: Any) -> None:
    current = mp.current_process()
    parent = mp.parent_process()
    box.put((current.name, current.daemon, bytes(current.authkey), parent and parent.pid, os.getpid()))


def sleep(seconds: float = 60) -> None:
    time.sleep(seconds)


def leave(code: Any) -> None:

    sys.exit(code)


def fail() -> None:

    sys.stderr = io.StringIO()
    raise ValueError("on purpose")


def tell_ids(box: Any) -> None:
    box.put((os.getpid(), threading.main_thread().native_id, threading.get_native_id(), threading.get_ident()))


def test_the_main_thread_of_a_process_has_the_process_id() -> None:
    """threading: the native integral thread ID of this thread. (Of a main thread on Linux it is the process id.)"""
    box = CONTEXT.Queue()
    process = start(tell_ids, box)
    pid, known, native, ident = box.get(timeout=LONG)
    assert (pid, known, native) == (process.pid,) * 3
    assert ident
    assert ended(process) == 0


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
    many times."""
    process = start(sleep)
    assert process.join(0.01) is None
    assert process.exitcode is None
    process.kill()
    assert process.join(LONG) is None
    assert process.join() is None


def test_a_process_is_alive_from_its_start_until_its_end() -> None:
    """Roughly, a process object is alive from the moment the start() method returns until the child process
    terminates."""
    process = CONTEXT.Process(target=sleep)
    assert not process.is_alive()
    process.start()
    assert process.is_alive()
    process.kill()
    process.join(LONG)
    assert not process.is_alive()


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


@pytest.mark.parametrize(
    ("target", "args", "code"),
    [
        (sleep, (0,), 0),
        (leave, (3,), 3),
        (leave, (None,), 0),
        (leave, (True,), 1),
        (fail, (), 1),
        (os.kill, (0, 0), 0),
    ],
)
def test_exit_codes_of_returns_exits_and_errors(target: Any, args: tuple[Any, ...], code: int) -> None:
    """If the child's run() method returned normally, the exit code will be 0. If it terminated via sys.exit() with an
    integer argument N, the exit code will be N. If the child terminated due to an exception not caught within run(),
    the exit code will be 1."""
    assert ended(start(target, *args)) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_exit_codes_of_signals(number: int) -> None:
    """If it was terminated by signal N, the exit code will be the negative value -N."""
    process = start(sleep)
    os.kill(process.pid, number)
    assert ended(process) == -number


def test_authentication_keys_are_inherited_and_can_be_set() -> None:
    """When a Process object is created, it will inherit the authentication key of its parent process, although this may
    be changed by setting authkey to another byte string."""
    box = CONTEXT.Queue()
    ended(start(describe, box))
    assert box.get(timeout=LONG)[2] == bytes(mp.current_process().authkey)
    process = CONTEXT.Process(target=describe, args=(box,))
    process.authkey = b"another"
    process.start()
    assert box.get(timeout=LONG)[2] == b"another"
    ended(process)


def test_module_functions() -> None:
    """active_children(): Return list of all live children of the current process. current_process(): Return the Process
    object corresponding to the current process. parent_process(): for the main process, parent_process will be
    None."""
    box = CONTEXT.Queue()
    process = start(describe, box)
    name, _, _, parent, pid = box.get(timeout=LONG)
    assert (name, parent, pid) == (process.name, os.getpid(), process.pid)
    ended(process)
    assert process not in mp.active_children()
    assert mp.parent_process() is None
    assert mp.current_process().name == "MainProcess"


def test_pickled_process_objects_are_refused() -> None:
    """Process objects cannot be pickled but for a start."""
    with pytest.raises((TypeError, RuntimeError, pickle.PicklingError)):
        pickle.dumps(start_nothing())


def start_nothing() -> Any:
    process = start(sleep, 0)
    process.join(LONG)
    return process


# ---- the constructor


def test_a_process_without_a_target_ends_without_error() -> None:
    """target is the callable object to be invoked by the run() method. It defaults to None, meaning nothing is
    called."""
    process = CONTEXT.Process()
    process.start()
    assert ended(process) == 0


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
