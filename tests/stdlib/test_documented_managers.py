"""Guarantees of the standard library's documentation for managers.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import multiprocessing.util
import os
import signal
import time
from multiprocessing.managers import BaseManager
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


def test_a_manager_runs_in_a_process_of_its_own_until_it_is_shut_down() -> None:
    """Start a subprocess to start the manager. Stop the process used by the manager. This can be called multiple times.
    Manager processes will be shutdown as soon as they are garbage collected."""
    manager = CONTEXT.Manager()
    numbers = manager.list([1])
    assert numbers._callmethod("__len__") == 1
    process = manager._process
    assert process.pid != os.getpid()
    manager.shutdown()
    manager.shutdown()
    assert not process.is_alive()
    manager = CONTEXT.Manager()
    process = manager._process
    del manager
    gc.collect()
    assert ended(process) is not None


class Counter:
    def __init__(self, count: int = 0) -> None:
        self._count = count

    def increment(self, by: int = 1) -> int:
        self._count += by
        return self._count

    def fail(self) -> None:
        raise KeyError("here")


class Manager(BaseManager):
    pass


Manager.register("Counter", Counter)


def increment(counter: Any, count: int) -> None:
    for _ in range(count):
        counter.increment()


def test_registered_classes_are_shared() -> None:
    """A classmethod which can be used for registering a type or callable with the manager class. (The example of the
    documentation.) If an exception is raised by the call then it is re-raised by _callmethod()."""
    with Manager(ctx=CONTEXT) as manager:
        counter = manager.Counter()  # type: ignore[attr-defined]
        processes = [start(increment, counter, 5) for _ in range(2)]
        assert [ended(process) for process in processes] == [0, 0]
        assert counter.increment(0) == 10
        with pytest.raises(KeyError, match="here"):
            counter.fail()


def test_a_client_with_the_key_connects_to_a_server() -> None:
    """Connect a local manager object to a remote manager process. (A wrong authkey raises AuthenticationError.)"""
    with Manager(("127.0.0.1", 0), b"key", ctx=CONTEXT) as server:
        other = Manager(server.address, b"key")
        other.connect()
        assert other.Counter(1).increment(1) == 2  # type: ignore[attr-defined]
        with pytest.raises(mp.AuthenticationError):
            Manager(server.address, b"wrong").connect()


# ---- the server and its process


def test_a_manager_ends_with_the_process_that_made_it(wait_until: Any) -> None:
    """Manager processes will be shutdown as soon as they are garbage collected or their parent process exits."""
    box = CONTEXT.Queue()
    assert ended(start(leave_a_manager, box)) == 0
    pid = box.get(timeout=LONG)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def leave_a_manager(box: Any) -> None:
    manager = CONTEXT.Manager()
    box.put(manager._process.pid)


def test_a_process_that_does_not_end_is_terminated() -> None:
    """shutdown_timeout is a timeout in seconds used to wait until the process used by the manager completes in the
    shutdown() method. If the shutdown times out, the process is terminated."""
    manager = Manager(ctx=CONTEXT, shutdown_timeout=0.1)
    manager.start(linger)
    process = manager._process
    manager.shutdown()
    assert process.exitcode == -signal.SIGTERM


def linger() -> None:
    mp.util.Finalize(None, time.sleep, (60,), exitpriority=0)


def test_several_processes_use_the_server_of_another_process() -> None:
    """Running the following commands creates a server for a single shared queue which remote clients can access.
    Another client can also use it. Local processes can also access that queue. (callable can be left as None where a
    manager instance will be connected to the server.)"""
    box, shared = CONTEXT.Queue(), CONTEXT.Queue()
    server = start(serve_queue, box, shared)
    address = box.get(timeout=LONG)
    client = start(put_there, address)
    assert shared.get(timeout=LONG) == "hello"
    shared.put("local hello")
    manager = QueueManager(address, b"abracadabra")
    manager.connect()
    assert manager.get_queue().get() == "local hello"  # type: ignore[attr-defined]
    client.join(LONG)
    server.terminate()
    server.join(LONG)


class QueueManager(BaseManager):
    pass


QueueManager.register("get_queue")


def serve_queue(box: Any, shared: Any) -> None:
    class Server(BaseManager):
        pass

    Server.register("get_queue", callable=lambda: shared)
    server = Server(("127.0.0.1", 0), b"abracadabra").get_server()
    box.put(server.address)
    server.serve_forever()


def put_there(address: Any) -> None:
    manager = QueueManager(address, b"abracadabra")
    manager.connect()
    manager.get_queue().put("hello")  # type: ignore[attr-defined]
