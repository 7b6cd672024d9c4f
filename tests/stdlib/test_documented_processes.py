"""What the standard library's documentation of multiprocessing promises of processes, pipes, queues and locks.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing as mp
import multiprocessing.connection
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


def put(box: Any, *values: Any) -> None:
    for value in values:
        box.put(value)


def describe(box: Any) -> None:
    current = mp.current_process()
    parent = mp.parent_process()
    box.put((current.name, current.daemon, bytes(current.authkey), parent and parent.pid, os.getpid()))


def sleep(seconds: float = 60) -> None:
    time.sleep(seconds)


def leave(code: Any) -> None:
    import sys

    sys.exit(code)


def fail() -> None:
    import sys

    sys.stderr = io.StringIO()
    raise ValueError("on purpose")


def start(target: Any, *args: Any, **options: Any) -> Any:
    process = CONTEXT.Process(target=target, args=args, **options)
    process.start()
    return process


def ended(process: Any) -> Any:
    process.join(LONG)
    return process.exitcode


# ---- Process


def tell_ids(box: Any) -> None:
    box.put((os.getpid(), threading.main_thread().native_id, threading.get_native_id(), threading.get_ident()))


def test_the_main_thread_of_a_process_is_its_own() -> None:
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


def test_run_may_be_called_here() -> None:
    """The standard run() method invokes the callable object passed to the object's constructor as the target argument,
    if any, with sequential and keyword arguments taken from the args and kwargs arguments."""
    called: list[Any] = []
    CONTEXT.Process(target=called.append, args=[1]).run()
    assert called == [1]


def test_a_process_is_started_once() -> None:
    """This must be called at most once per process object."""
    process = start(sleep, 0)
    with pytest.raises(AssertionError):
        process.start()
    assert ended(process) == 0


def test_join_returns_none_and_may_be_called_again() -> None:
    """Note that the method returns None if its process terminates or if the method times out. A process can be joined
    many times."""
    process = start(sleep)
    assert process.join(0.01) is None
    assert process.exitcode is None
    process.kill()
    assert process.join(LONG) is None
    assert process.join() is None


def test_joining_before_the_start_is_an_error() -> None:
    """It is an error to attempt to join a process before it has been started."""
    with pytest.raises(AssertionError):
        CONTEXT.Process(target=sleep).join()


def test_names() -> None:
    """The name is a string used for identification purposes only. If no explicit name is provided to the constructor, a
    name of the form 'Process-N1:N2:...:Nk' is constructed."""
    assert CONTEXT.Process(name="mine").name == "mine"
    assert "Process-" in CONTEXT.Process().name
    process = CONTEXT.Process()
    process.name = "renamed"
    assert process.name == "renamed"


def test_it_is_alive_from_start_until_its_end() -> None:
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


def test_the_daemon_flag_is_inherited_and_set_before_the_start() -> None:
    """The process's daemon flag, a Boolean value. This must be set before start() is called. The initial value is
    inherited from the creating process."""
    process = CONTEXT.Process(target=sleep)
    assert process.daemon is False
    process.daemon = True
    process.start()
    with pytest.raises(AssertionError):
        process.daemon = False
    process.kill()
    ended(process)


def test_the_pid_is_none_before_the_start() -> None:
    """Return the process ID. Before the process is spawned, this will be None."""
    box = CONTEXT.Queue()
    process = CONTEXT.Process(target=describe, args=(box,))
    assert process.pid is None
    process.start()
    assert box.get(timeout=LONG)[4] == process.pid
    ended(process)


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
def test_exit_codes(target: Any, args: tuple[Any, ...], code: int) -> None:
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


def test_the_sentinel_becomes_ready_at_the_end() -> None:
    """A numeric handle of a system object which will become "ready" when the process ends. You can use this value if
    you want to wait on several events at once using multiprocessing.connection.wait()."""
    processes = [start(sleep, 0), start(sleep)]
    assert mp.connection.wait([p.sentinel for p in processes], LONG) == [processes[0].sentinel]
    processes[1].terminate()
    assert mp.connection.wait([processes[1].sentinel], LONG) == [processes[1].sentinel]
    for process in processes:
        process.join(LONG)


def test_terminate_and_kill() -> None:
    """On POSIX this is done using the SIGTERM signal. Same as terminate() but using the SIGKILL signal on POSIX."""
    first, second = start(sleep), start(sleep)
    first.terminate()
    second.kill()
    assert (ended(first), ended(second)) == (-signal.SIGTERM, -signal.SIGKILL)


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


def test_close() -> None:
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


# ---- pipes and queues


def test_pipes_are_duplex_unless_told_otherwise() -> None:
    """If duplex is True (the default) then the pipe is bidirectional. If duplex is False then the pipe is
    unidirectional: conn1 can only be used for receiving messages and conn2 can only be used for sending messages."""
    first, second = CONTEXT.Pipe()
    first.send(1)
    second.send(2)
    assert (first.recv(), second.recv()) == (2, 1)
    receiving, sending = CONTEXT.Pipe(False)
    sending.send("sent")
    assert receiving.recv() == "sent"
    with pytest.raises(OSError, match="read-only"):
        receiving.send(1)
    with pytest.raises(OSError, match="write-only"):
        sending.recv()


def test_recv_blocks_until_there_is_something_or_the_end() -> None:
    """Blocks until there is something to receive. Raises EOFError if there is nothing left to receive and the other end
    was closed."""
    here, there = CONTEXT.Pipe()
    process = start(send_and_close, there)
    there.close()
    assert here.recv() == "sent"
    with pytest.raises(EOFError):
        here.recv()
    ended(process)


def send_and_close(connection: Any) -> None:
    connection.send("sent")
    connection.close()


def test_poll() -> None:
    """If timeout is not specified then it will return immediately. If timeout is a number then this specifies the
    maximum time in seconds to block. If timeout is None then an infinite timeout is used."""
    here, there = CONTEXT.Pipe()
    assert here.poll() is False
    assert here.poll(0.01) is False
    there.send(1)
    assert here.poll() is True
    assert here.poll(None) is True


def test_bytes() -> None:
    """Return a complete message of byte data sent from the other end of the connection as a string. If maxlength is
    specified and the message is longer than maxlength then OSError is raised and the connection will no longer be
    readable. If the buffer is too short then a BufferTooShort exception is raised and the complete message is
    available as e.args[0]."""
    here, there = CONTEXT.Pipe()
    there.send_bytes(b"0123456789", 2, 5)
    assert here.recv_bytes() == b"23456"
    buffer = bytearray(8)
    there.send_bytes(b"abc")
    assert here.recv_bytes_into(buffer, 4) == 3
    assert bytes(buffer) == b"\0\0\0\0abc\0"
    there.send_bytes(b"much too long")
    with pytest.raises(mp.BufferTooShort) as caught:
        here.recv_bytes_into(bytearray(3))
    assert caught.value.args[0] == b"much too long"
    there.send_bytes(b"long")
    with pytest.raises(OSError, match="limit"):
        here.recv_bytes(2)
    with pytest.raises(OSError, match="closed"):
        here.recv_bytes()


def test_wait_for_several() -> None:
    """Wait till an object in object_list is ready. Returns the list of those objects in object_list which are ready.
    If timeout is a float then the call blocks for at most that many seconds. A negative timeout is equivalent to a
    zero timeout."""
    pairs = [CONTEXT.Pipe() for _ in range(3)]
    assert mp.connection.wait([here for here, _ in pairs], 0.01) == []
    assert mp.connection.wait([here for here, _ in pairs], -1) == []
    pairs[1][1].send(1)
    assert mp.connection.wait([here for here, _ in pairs], LONG) == [pairs[1][0]]


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_queues_time_out_as_documented(kind: str) -> None:
    """If timeout is a positive number, it blocks at most timeout seconds and raises the queue.Full exception if no free
    slot was available within that time. Otherwise (block is False), put an item on the queue if a free slot is
    immediately available, else raise the queue.Full exception."""
    box = getattr(CONTEXT, kind)(1)
    with pytest.raises(queue.Empty):
        box.get(False)
    with pytest.raises(queue.Empty):
        box.get_nowait()
    with pytest.raises(queue.Empty):
        box.get(timeout=0.01)
    box.put("item")
    for call in (lambda: box.put(1, False), lambda: box.put_nowait(1), lambda: box.put(1, timeout=0.01)):
        with pytest.raises(queue.Full):
            call()
    assert (box.qsize(), box.full(), box.empty(), box.get()) == (1, True, False, "item")


def test_closed_queues_take_and_give_nothing() -> None:
    """If the queue is closed, ValueError is raised."""
    box = CONTEXT.Queue()
    box.close()
    box.join_thread()
    for call in (lambda: box.put(1), lambda: box.get(False)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_order_of_one_process() -> None:
    """If a process puts several objects they come in that order (queues are first-in first-out)."""
    box = CONTEXT.Queue()
    ended(start(put, box, *range(100)))
    assert [box.get(timeout=LONG) for _ in range(100)] == list(range(100))


def test_joinable_queues() -> None:
    """Blocks until all items in the queue have been gotten and processed. Raises a ValueError if called more times than
    there were items placed in the queue."""
    box = CONTEXT.JoinableQueue()
    put(box, 1, 2)
    process = start(process_all, box, 2)
    box.join()
    assert box.empty()
    with pytest.raises(ValueError, match="too many"):
        box.task_done()
    ended(process)


def process_all(box: Any, count: int) -> None:
    for _ in range(count):
        box.get()
        box.task_done()


def test_simple_queues() -> None:
    """It is a simplified Queue type, very close to a locked Pipe: empty(), get(), put(), close()."""
    box = CONTEXT.SimpleQueue()
    assert box.empty()
    box.put("item")
    assert not box.empty()
    assert box.get() == "item"
    box.close()


# ---- locks and the like


def test_locks_may_be_released_by_anybody() -> None:
    """A non-recursive lock object: release() can be called from any process or thread, not only the one which
    originally acquired the lock. When invoked on an unlocked lock, a ValueError is raised."""
    lock = CONTEXT.Lock()
    assert lock.acquire() is True
    assert lock.acquire(block=False) is False
    assert lock.acquire(timeout=0.01) is False
    ended(start(release, lock))
    with pytest.raises(ValueError, match="released too many times"):
        lock.release()
    with lock:
        assert not lock.acquire(False)


def release(lock: Any) -> None:
    lock.release()


def test_recursive_locks_belong_to_their_owner() -> None:
    """A recursive lock must be released by the process or thread that acquired it. An AssertionError is raised if this
    method is called by a process or thread other than the owner or if the lock is in an unlocked state."""
    lock = CONTEXT.RLock()
    assert lock.acquire()
    assert lock.acquire()
    errors: list[str] = []
    thread = threading.Thread(target=lambda: errors.append(error_of(lock.release)))
    thread.start()
    thread.join()
    lock.release()
    lock.release()
    assert [*errors, error_of(lock.release)] == ["AssertionError", "AssertionError"]


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def test_semaphores() -> None:
    """BoundedSemaphore: a release beyond the initial value is an error; a Semaphore has no bound."""
    semaphore, bounded = CONTEXT.Semaphore(1), CONTEXT.BoundedSemaphore(1)
    semaphore.release()
    assert semaphore.get_value() == 2
    with pytest.raises(ValueError, match="released too many times"):
        bounded.release()
    assert bounded.acquire()
    assert not bounded.acquire(False)


def test_events_and_conditions_wake_other_processes() -> None:
    """wait_for(): wait until a condition evaluates to true. Event: a clone of threading.Event."""
    event, condition, value = CONTEXT.Event(), CONTEXT.Condition(), CONTEXT.Value("i", 0)
    process = start(set_all, event, condition, value)
    assert event.wait(LONG)
    with condition:
        assert condition.wait_for(lambda: value.value == 3, LONG)
    assert ended(process) == 0
    event.clear()
    assert event.wait(0.01) is False


def set_all(event: Any, condition: Any, value: Any) -> None:
    event.set()
    for number in range(1, 4):
        with condition:
            value.value = number
            condition.notify_all()


def test_barriers() -> None:
    """Barrier: a clone of threading.Barrier."""
    barrier = CONTEXT.Barrier(2, timeout=LONG)
    process = start(barrier.wait)
    assert barrier.wait() in (0, 1)
    ended(process)
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(0.01)
    assert barrier.broken


# ---- shared ctypes


def test_values_have_a_lock_and_a_type() -> None:
    """By default the return value is actually a synchronized wrapper for the object. If lock is False then access to
    the returned object will not be automatically protected by a lock."""
    value = CONTEXT.Value("d", 3.5)
    with value.get_lock():
        value.value += 1
    assert value.value == 4.5
    assert value.get_obj().value == 4.5
    assert not hasattr(CONTEXT.Value("i", 1, lock=False), "get_lock")
    own = CONTEXT.Lock()
    assert CONTEXT.Value("i", 1, lock=own).get_lock() is own


def test_arrays_are_zeroed_or_initialised() -> None:
    """If size_or_initializer is an integer, then it determines the length of the array, and the array will be initially
    zeroed. Otherwise, it is a sequence which is used to initialize the array. An array of ctypes.c_char has value and
    raw attributes which allow one to use it to store and retrieve strings."""
    assert CONTEXT.Array("i", 3)[:] == [0, 0, 0]
    assert CONTEXT.Array("i", [1, 2])[:] == [1, 2]
    text = CONTEXT.Array("c", b"hello")
    assert (text.value, text.raw) == (b"hello", b"hello")


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_double))


def test_structures_are_shared() -> None:
    """Structures and arrays of structures are allocated from shared memory (the example of the documentation)."""
    points = CONTEXT.Array(Point, [(1.875, -6.25), (-5.75, 2.0)])
    ended(start(square, points))
    assert [(point.x, point.y) for point in points] == [(3.515625, 39.0625), (33.0625, 4.0)]


def square(points: Any) -> None:
    for point in points:
        point.x **= 2
        point.y **= 2


# ---- programming guidelines


def test_pickled_process_objects_are_refused() -> None:
    """Process objects cannot be pickled but for a start."""
    with pytest.raises((TypeError, RuntimeError, pickle.PicklingError)):
        pickle.dumps(start_nothing())


def start_nothing() -> Any:
    process = start(sleep, 0)
    process.join(LONG)
    return process


@contextlib.contextmanager
def listening() -> Iterator[Any]:
    with mp.connection.Listener(("localhost", 0), authkey=b"secret") as listener:
        yield listener


def test_listeners_and_clients_authenticate() -> None:
    """If authkey is given and not None, it should be a byte string and will be used as the secret key for an HMAC-based
    authentication challenge. AuthenticationError is raised if authkey is given and authentication fails."""
    with listening() as listener:
        process = start(call, listener.address, b"secret")
        with listener.accept() as connection:
            assert connection.recv() == "called"
        assert ended(process) == 0
        process = start(call, listener.address, b"wrong")
        with pytest.raises(mp.AuthenticationError):
            listener.accept()
        ended(process)


def call(address: Any, key: bytes) -> None:
    with contextlib.suppress(mp.AuthenticationError), mp.connection.Client(address, authkey=key) as connection:
        connection.send("called")
