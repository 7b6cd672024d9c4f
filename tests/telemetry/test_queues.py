"""The metrics of queues and pools, in a run of their own: those of other tests would count too."""

from __future__ import annotations

from pathlib import Path

from conftest import Site
from together import failures

PROGRAM = f"""
import multiprocessing as mp
import os
import signal
import sys
import time

sys.path.insert(0, {str(Path(__file__).parent)!r})

from measured import newest, wait_until

import dragon
from dragon.native.pool import Pool
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime.run import identity
from dragon.telemetry import AnalysisClient

context = mp.get_context("dragon")
"""
CHECKS = """
OF_QUEUES = ("queue_depth", "queue_bytes", "queue_puts", "queue_gets", "queue_waiting")
OF_POOLS = ("pool_tasks_waiting", "pool_tasks_running", "pool_tasks_done", "pool_workers")


def get_for_ever(queue):
    while True:
        queue.get()


def put_for_ever(queue):
    while True:
        queue.put(b"x" * 1000)


def run(function, *args):
    process = Process(function, args)
    process.start()
    return process


def here():
    # The place of a queue that the same line makes.
    return f"program.py:{sys._getframe(1).f_lineno}"


# First, as the values of queues that were destroyed are kept for a while.
def check_at_most_a_hundred_queues_are_measured():
    queues = [Queue() for _ in range(130)]
    try:
        wait_until(bool, "queue_depth")
        # Pools count too.
        series = AnalysisClient().get_data(["queue_depth", "pool_workers"])
        assert len(series) == 100
    finally:
        for queue in queues:
            queue.destroy()


def check_the_content_and_the_operations_of_a_queue_are_measured():
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


def check_the_queues_of_multiprocessing_are_measured():
    queues = [getattr(context, kind)() for kind in ("Queue", "JoinableQueue", "SimpleQueue")]
    for queue in queues:
        for number in range(7):
            queue.put(number)
    while depths().count(7) < 3:
        time.sleep(0.02)


def depths():
    # The newest depth of each queue that this process has made.
    tags = {"puid": str(identity().puid)}
    records = AnalysisClient().get_data("queue_depth", tags=tags, interval=0)
    return [list(record["dps"].values())[-1] for record in records]


def check_queues_have_numbers_and_the_place_and_the_process_that_created_them():
    first, second, place = Queue(), Queue(), here()
    first.put(1)
    wait_until(lambda now: now["queue_puts"] == 1, "queue_puts", place=place)
    tags = [record["tags"] for record in AnalysisClient().get_data("queue_depth", {"place": place})]
    numbers = sorted(int(each["queue"]) for each in tags)
    assert numbers == [numbers[0], numbers[0] + 1]
    assert {each["puid"] for each in tags} == {str(identity().puid)}
    assert {each["name"] for each in tags} == {"head"}
    second.destroy()


def check_waiting_processes_are_counted():
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


def check_processes_killed_during_an_operation_do_not_break_the_counts():
    queue, place = Queue(), here()
    for _ in range(10):
        several = [run(get_for_ever, queue), run(put_for_ever, queue)]
        time.sleep(0.05)
        for process in several:
            os.kill(process._started.pid, signal.SIGKILL)
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


def check_a_destroyed_queue_is_not_measured_any_more():
    queue, place = Queue(), here()
    wait_until(bool, "queue_depth", place=place)
    queue.destroy()
    time.sleep(0.2)
    (record,) = AnalysisClient().get_data("queue_depth", {"place": place}, interval=0)
    count = len(record["dps"])
    time.sleep(0.2)
    (record,) = AnalysisClient().get_data("queue_depth", {"place": place}, interval=0)
    assert len(record["dps"]) == count


def check_the_tasks_and_workers_of_a_native_pool_are_measured():
    tasks_and_workers_are_measured(Pool(3))


def check_the_tasks_and_workers_of_a_pool_of_multiprocessing_are_measured():
    tasks_and_workers_are_measured(context.Pool(3))


def tasks_and_workers_are_measured(pool):
    with pool:
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


def _number_of_the_newest_pool():
    # The number of the pool that was just created.
    begun = time.time() + 0.2  # what is told after that was looked for after the pool was made
    while True:
        found = AnalysisClient().get_data("pool_workers", start_time=begun, interval=0)
        if found:
            return max(int(record["tags"]["pool"]) for record in found)
        time.sleep(0.02)


def places():
    return {record["tags"]["place"] for record in AnalysisClient().get_data("queue_depth", interval=0)}


def check_channels_of_the_runtime_are_not_measured():
    queue, place = Queue(), here()
    wait_until(bool, "queue_depth", place=place)
    before = places()
    ends, manager = context.Pipe(), context.Manager()
    other, place = Queue(), here()
    wait_until(bool, "queue_depth", place=place)
    assert places() == {*before, place}
    manager.shutdown()
    for each in (queue, other):
        each.destroy()
    assert len(ends) == 2
"""


def test_queues_and_pools_are_measured(site: Site) -> None:
    assert failures(site, PROGRAM + CHECKS, "-T4", DRAGON_TELEMETRY_PERIOD="0.05") == {}
