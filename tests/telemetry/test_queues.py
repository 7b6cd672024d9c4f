"""The metrics of queues and pools."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from measured import measuring, newest, wait_until

import dragon
from dragon.native.pool import Pool
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime.run import identity
from dragon.telemetry import AnalysisClient

assert dragon
OF_QUEUES = ("queue_depth", "queue_bytes", "queue_puts", "queue_gets", "queue_waiting")
OF_POOLS = ("pool_tasks_waiting", "pool_tasks_running", "pool_tasks_done", "pool_workers")


@pytest.fixture(autouse=True)
def measured() -> Iterator[None]:
    gc.collect()  # queues that earlier tests have left in cycles
    with measuring():
        yield


def get_for_ever(queue: Queue) -> None:
    while True:
        queue.get()


def put_for_ever(queue: Queue) -> None:
    while True:
        queue.put(b"x" * 1000)


def run(function: object, *args: object) -> Process:
    process = Process(function, args)  # type: ignore[arg-type]
    process.start()
    return process


def here() -> str:
    """Return the place of a queue that the same line makes; earlier tests may have left queues of other places."""
    return f"{Path(__file__).name}:{sys._getframe(1).f_lineno}"


def test_the_content_and_the_operations_of_a_queue_are_measured() -> None:
    queue, place = Queue(), here()
    for number in range(5):
        queue.put(number)
    wait_until(lambda now: now["queue_puts"] == 5, *OF_QUEUES, place=place)
    assert newest(*OF_QUEUES, place=place) == {
        "queue_depth": 5,
        "queue_bytes": 5 * 256,
        "queue_puts": 5,
        "queue_gets": 0,
        "queue_waiting": 0,
    }
    queue.put(b"x" * 10**6)
    wait_until(lambda now: now["queue_bytes"] > 10**6, *OF_QUEUES, place=place)
    for _ in range(6):
        queue.get()
    wait_until(lambda now: now["queue_gets"] == 6, *OF_QUEUES, place=place)
    assert newest("queue_depth", "queue_bytes", place=place) == {"queue_depth": 0, "queue_bytes": 0}


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_the_queues_of_multiprocessing_are_measured(kind: str) -> None:
    queue = getattr(mp.get_context("dragon"), kind)()
    for number in range(7):
        queue.put(number)
    while 7 not in depths():  # earlier tests may have left queues of this process
        time.sleep(0.02)


def depths() -> list[float]:
    """Return the newest depth of each queue that this process has made."""
    tags = {"puid": str(identity().puid)}
    records = AnalysisClient().get_data("queue_depth", tags=tags, interval=0)
    return [list(record["dps"].values())[-1] for record in records]


def test_queues_have_numbers_and_the_place_and_the_process_that_created_them() -> None:
    first, second, place = Queue(), Queue(), here()
    first.put(1)
    wait_until(lambda now: now["queue_puts"] == 1, "queue_puts", place=place)
    tags = [record["tags"] for record in AnalysisClient().get_data("queue_depth", {"place": place})]
    numbers = sorted(int(each["queue"]) for each in tags)
    assert numbers == [numbers[0], numbers[0] + 1]
    assert {each["puid"] for each in tags} == {str(identity().puid)}
    assert {each["name"] for each in tags} == {"head"}
    second.destroy()


def test_waiting_processes_are_counted() -> None:
    queue, place = Queue(1), here()
    getters = [run(get_for_ever, queue) for _ in range(2)]
    wait_until(lambda now: now["queue_waiting"] == 2, "queue_waiting", operation="get", place=place)
    for getter in getters:
        getter.kill()
        getter.join()
    wait_until(lambda now: now["queue_waiting"] == 0, "queue_waiting", operation="get", place=place)
    putter = run(put_for_ever, queue)
    wait_until(lambda now: now["queue_waiting"] == 1, "queue_waiting", operation="put", place=place)
    putter.kill()
    putter.join()


def test_processes_killed_during_an_operation_do_not_break_the_counts() -> None:
    queue, place = Queue(), here()
    for _ in range(10):
        several = [run(get_for_ever, queue), run(put_for_ever, queue)]
        time.sleep(0.05)
        for process in several:
            os.kill(process._started.pid, signal.SIGKILL)  # type: ignore[union-attr]
            process.join()
    while not queue.empty():
        queue.get()
    before = newest("queue_puts", place=place)["queue_puts"]
    queue.put(1)
    wait_until(
        lambda now: now["queue_puts"] > before and now["queue_depth"] == 1, "queue_puts", "queue_depth", place=place
    )
    (record,) = AnalysisClient().get_data("queue_puts", {"place": place}, interval=0)
    values = list(record["dps"].values())
    assert values == sorted(values)


def test_a_destroyed_queue_is_not_measured_any_more() -> None:
    queue, place = Queue(), here()
    wait_until(bool, "queue_depth", place=place)
    queue.destroy()
    time.sleep(0.2)
    (record,) = AnalysisClient().get_data("queue_depth", {"place": place}, interval=0)
    count = len(record["dps"])
    time.sleep(0.2)
    (record,) = AnalysisClient().get_data("queue_depth", {"place": place}, interval=0)
    assert len(record["dps"]) == count


def test_at_most_a_hundred_queues_are_measured() -> None:
    queues = [Queue() for _ in range(130)]
    try:
        wait_until(bool, "queue_depth")
        # Pools count too, and the run may have one yet that nobody uses any more.
        series = AnalysisClient().get_data(["queue_depth", "pool_workers"])
        assert len(series) == 100
    finally:
        for queue in queues:
            queue.destroy()


@pytest.mark.parametrize("kind", ["native", "multiprocessing"])
def test_the_tasks_and_workers_of_a_pool_are_measured(kind: str) -> None:
    with Pool(3) if kind == "native" else mp.get_context("dragon").Pool(3) as pool:
        number = _number_of_the_newest_pool()
        pool.map(abs, range(20), chunksize=1)
        idle = {"pool_tasks_waiting": 0, "pool_tasks_running": 0, "pool_tasks_done": 20, "pool_workers": 3}
        wait_until(lambda now: now == idle, *OF_POOLS, pool=number)
        pool.map_async(time.sleep, [20] * 5, chunksize=1)
        wait_until(
            lambda now: now["pool_tasks_running"] == 3 and now["pool_tasks_waiting"] == 2, *OF_POOLS, pool=number
        )
    # The object is there still, but no worker that could be at a task.
    wait_until(lambda now: now["pool_tasks_running"] == 0, "pool_tasks_running", pool=number)


def _number_of_the_newest_pool() -> int:
    """Return the number of the pool that was just created; the run may have others."""
    begun = time.time() + 0.2  # what is told after that was looked for after the pool was made
    while True:
        found = AnalysisClient().get_data("pool_workers", start_time=begun, interval=0)
        if found:
            return max(int(record["tags"]["pool"]) for record in found)
        time.sleep(0.02)


def places() -> set[str]:
    wait_until(bool, "queue_depth")
    return {record["tags"]["place"] for record in AnalysisClient().get_data("queue_depth", interval=0)}


def test_channels_of_the_runtime_are_not_measured() -> None:
    queue, before = Queue(), places()
    ends, manager = mp.get_context("dragon").Pipe(), mp.get_context("dragon").Manager()
    other, place = Queue(), here()
    wait_until(bool, "queue_depth", place=place)
    assert places() == {*before, place}
    manager.shutdown()
    for each in (queue, other):
        each.destroy()
    assert len(ends) == 2
