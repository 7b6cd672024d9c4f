"""Guarantees of the standard library's documentation for the end of processes.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import atexit
import multiprocessing as mp
import multiprocessing.connection
import os
import signal
import sys
import time
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


def sleep(seconds: float = 60) -> None:
    """Sleep in parts: a signal that comes just before time.sleep() is handled only when that ends."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))


def test_the_sentinel_becomes_ready_at_the_end() -> None:
    """A numeric handle of a system object which will become "ready" when the process ends. You can use this value if
    you want to wait on several events at once using multiprocessing.connection.wait(). terminate(): on POSIX this is
    done using the SIGTERM signal. kill(): the same but using the SIGKILL signal."""
    first, second, third = start(sleep, 0), start(sleep), start(sleep)
    assert mp.connection.wait([p.sentinel for p in (first, second, third)], LONG) == [first.sentinel]
    second.terminate()
    assert mp.connection.wait([second.sentinel, third.sentinel], LONG) == [second.sentinel]
    third.kill()
    assert [ended(p) for p in (first, second, third)] == [0, -signal.SIGTERM, -signal.SIGKILL]


def test_descendants_are_not_terminated() -> None:
    """Note that descendant processes of the process will not be terminated -- they will simply become orphaned."""
    box = CONTEXT.Queue()
    process = start(parent_of_a_sleeper, box)
    child = box.get(timeout=LONG)
    process.terminate()
    process.join(LONG)
    os.kill(child, 0)
    os.kill(child, signal.SIGKILL)


def parent_of_a_sleeper(box: Any) -> None:
    box.put(start(sleep).pid)
    sleep()


def test_a_closed_process_object_cannot_be_used() -> None:
    """Close the Process object, releasing all resources associated with it. ValueError is raised if the underlying
    process is still running. Once close() returns successfully, most other methods and attributes of the Process
    object will raise ValueError."""
    process = start(sleep)
    with pytest.raises(ValueError, match="running"):
        process.close()
    process.kill()
    process.join(LONG)
    process.close()
    for use in (lambda: process.pid, process.is_alive, process.join, lambda: process.exitcode):
        with pytest.raises(ValueError, match="closed"):
            use()


# ---- daemons, and what is left to do at the end of a process


@pytest.mark.parametrize("daemon", [True, False])
def test_the_daemon_flag_is_an_argument_and_is_inherited(daemon: bool) -> None:
    """If provided, the keyword-only daemon argument sets the process daemon flag to True or False. If None (the
    default), this flag will be inherited from the creating process."""
    box = CONTEXT.Queue()
    process = start(tell_flags, box, daemon=daemon)
    assert box.get(timeout=LONG) == (daemon, daemon)
    assert ended(process) == 0


def tell_flags(box: Any) -> None:
    box.put((mp.current_process().daemon, CONTEXT.Process().daemon))


def test_daemons_end_with_their_creator() -> None:
    """When a process exits, it attempts to terminate all of its daemonic child processes. Daemons will be terminated
    (and not joined) if non-daemonic processes have exited."""
    reading, writing = CONTEXT.Pipe(False)
    process = start(leave_a_daemon, writing)
    writing.close()
    assert ended(process) == 0
    with pytest.raises(EOFError):  # nobody has the other end any more
        reading.recv()


def leave_a_daemon(connection: Any) -> None:
    box = CONTEXT.Queue()
    start(tell_and_sleep, box, connection, daemon=True)
    box.get()


def tell_and_sleep(box: Any, connection: Any) -> None:
    box.put("started")
    sleep()


def test_processes_that_are_not_daemons_are_joined_at_exit() -> None:
    """Remember also that non-daemonic processes will be joined automatically."""
    box = CONTEXT.Queue()
    assert ended(start(leave_a_child, box)) == 0
    assert box.get(False) == "done"


def leave_a_child(box: Any) -> None:
    start(put_late, box)


def put_late(box: Any) -> None:
    time.sleep(0.1)
    box.put("done")


# ---- joining and ending


def test_finally_clauses_are_not_executed() -> None:
    """Note that exit handlers and finally clauses, etc., will not be executed. (When a process is terminated.)"""
    box = CONTEXT.Queue()
    process = start(tidy_up, box)
    assert box.get(timeout=LONG) == "trying"
    process.terminate()
    assert ended(process) == -signal.SIGTERM
    assert box.empty()


def tidy_up(box: Any) -> None:
    atexit.register(box.put, "exit handler")
    try:
        box.put("trying")
        sleep()
    finally:
        box.put("finally")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Process.interrupt() is there from Python 3.14 on")
def test_finally_clauses_are_executed_when_interrupted() -> None:
    """interrupt(): terminate the process. Works on POSIX using the SIGINT signal. By default, this terminates the
    child process by raising KeyboardInterrupt."""
    box = CONTEXT.Queue()
    process = start(tidy_up, box)
    assert box.get(timeout=LONG) == "trying"
    process.interrupt()
    assert box.get(timeout=LONG) == "finally"
    assert ended(process) == 1


def test_is_alive_joins_an_ended_process() -> None:
    """Calling a finished process's Process.is_alive will join the process. (It is no zombie any more.)"""
    process = start(sleep, 0)
    assert mp.connection.wait([process.sentinel], LONG)
    assert not process.is_alive()
    assert not os.path.exists(f"/proc/{process.pid}")
    assert process.exitcode == 0
