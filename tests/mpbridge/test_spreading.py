"""Executors and processes of the standard library's classes run on all nodes of a run."""

from __future__ import annotations

from conftest import Site
from together import failures

PROGRAM = """
import multiprocessing as mp, os, socket, sys, time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, queues
import dragon

context = mp.get_context("dragon")
NODES = {"node-0", "node-1"}


def where(_=None):
    time.sleep(0.1)
    return socket.gethostname()


def prepare(value):
    global prepared
    prepared = value


def read(_):
    time.sleep(0.05)
    return prepared, socket.gethostname()


def fail(_):
    raise ValueError("no")


def check_an_executor_uses_all_nodes():
    with ProcessPoolExecutor(4, mp_context=context, initializer=prepare, initargs=("yes",)) as executor:
        assert set(executor.map(where, range(12))) == NODES
        assert set(executor.map(read, range(12))) == {("yes", node) for node in NODES}
        assert type(executor.submit(fail, 1).exception()) is ValueError
        assert sum(map(len, executor.map(bytes, [1 << 20] * 20))) == 20 << 20
        assert executor.submit(len, bytes(30 << 20)).result() == 30 << 20


def check_an_executor_reports_a_worker_that_ends():
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        assert type(executor.submit(os._exit, 3).exception()) is BrokenProcessPool


def tell(queue, large):
    queue.put((socket.gethostname(), len(large)))


def check_the_standard_librarys_queues_reach_all_nodes():
    context.Lock()
    for kind in (queues.Queue, queues.JoinableQueue, queues.SimpleQueue):
        queue = kind(ctx=context)
        processes = [context.Process(target=tell, args=(queue, bytes(100_000))) for _ in range(4)]
        for process in processes:
            process.start()
        assert {queue.get() for _ in processes} == {(node, 100_000) for node in NODES}, kind
        for process in processes:
            process.join()
            assert process.exitcode == 0, kind


def look(queue, file):
    queue.put(socket.gethostname())


def check_processes_that_inherit_descriptors_stay_on_their_node():
    queue = context.Queue()
    reading, writing = connection.Pipe()
    processes = [context.Process(target=look, args=(queue, reading)) for _ in range(4)]
    for process in processes:
        process.start()
    assert {queue.get() for _ in processes} == {"node-0"}
    for process in processes:
        process.join()
"""


def test_processes_are_spread_over_all_nodes(site: Site) -> None:
    found = failures(site, PROGRAM, "--nodes", "2")
    assert found == {}
    assert found.stderr.count("inherits open files") == found.stderr.count("\n") == 1, found.stderr
