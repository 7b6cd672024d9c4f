"""multiprocessing.Pool: when it reads elements, when results arrive, and how a pool ends."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import multiprocessing.pool
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dragon  # noqa: F401
from conftest import Site
from dragon.native.collecting import Collector
from together import failures

CONTEXT: Any = mp.get_context("dragon")


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with CONTEXT.Pool(2) as pool:
        yield pool


def slowly(x: int) -> int:
    time.sleep(0.005)
    return x


def double(x: int) -> int:
    return 2 * x


def put_in(queue: Any, value: int) -> None:
    queue.put(value)


# Each pair of values is there.
@pytest.mark.parametrize(
    ("method", "chunksize", "join_first", "kind"),
    [
        ("imap", 1, False, list),
        ("imap", 7, True, iter),
        ("imap", 7, False, iter),
        ("imap_unordered", 1, True, iter),
        ("imap_unordered", 7, False, list),
        ("imap_unordered", 7, True, list),
    ],
)
def test_results_are_read_after_close(method: str, chunksize: int, join_first: bool, kind: Any) -> None:
    pool = CONTEXT.Pool(2)
    results = getattr(pool, method)(double, kind(range(5000)), chunksize)
    pool.close()
    if join_first:
        pool.join()
    assert sorted(results) == [2 * x for x in range(5000)]
    pool.join()


def test_a_generator_may_wait_for_the_consumer_of_the_results(pool: Any) -> None:
    room = threading.Semaphore(3)

    def source() -> Iterator[int]:
        for number in range(20):
            room.acquire()
            yield number

    for at, value in enumerate(pool.imap(double, source())):
        assert value == 2 * at
        room.release()


def test_the_first_result_does_not_wait_for_the_next_element(pool: Any) -> None:
    more = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        assert more.wait(30)
        yield 2

    results = pool.imap(double, source())
    assert next(results) == 2
    more.set()
    assert list(results) == [4]


def test_a_generator_is_read_by_one_thread_only(pool: Any) -> None:
    readers = set()

    def source() -> Iterator[int]:
        for number in range(3000):
            readers.add(threading.get_ident())
            yield number

    done: list[int] = []
    results = pool.imap_unordered(double, source())
    threads = [threading.Thread(target=lambda: done.extend(results)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert [pool.apply_async(double, (x,), callback=lambda _: None).get(30) for x in range(300)] == [
        2 * x for x in range(300)
    ]
    for thread in threads:
        thread.join()
    assert len(done) == 3000
    assert len(readers) == 1


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
def test_an_error_of_the_iterable_is_raised_after_the_results_before_it(pool: Any, method: str) -> None:
    def source() -> Iterator[int]:
        yield from range(20)
        raise KeyError("no more")

    results = getattr(pool, method)(slowly, source())
    seen = [next(results) for _ in range(20)]
    assert sorted(seen) == list(range(20))
    with pytest.raises(KeyError, match="no more"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_a_non_iterable_argument_raises_type_error(pool: Any) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(pool.imap(double, 5))
    with pytest.raises(TypeError, match="not iterable"):
        pool.map(double, 5)


def test_a_sequence_shorter_than_its_len_raises_value_error(pool: Any) -> None:
    class Liar:
        def __len__(self) -> int:
            return 1000

        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(ValueError, match="parts that its len"):
        pool.map(double, Liar())


def test_a_generator_is_read_a_bounded_number_of_elements_ahead(pool: Any) -> None:
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    results = pool.imap(double, source())
    for _ in range(2000):
        next(results)
    assert read <= 2000 + 2 * 1024
    results = None


def test_tasks_are_executed_before_their_results_are_read() -> None:
    queue = CONTEXT.Queue()
    with CONTEXT.Pool(2) as pool:
        results = pool.imap(put_in_queue, ((queue, number) for number in range(2500)))
        assert sorted(queue.get(timeout=60) for _ in range(2500)) == list(range(2500))
        assert len(list(results)) == 2500


def put_in_queue(pair: Any) -> None:
    put_in(*pair)


@pytest.mark.filterwarnings("ignore:unclosed running")
def test_a_result_keeps_its_pool_alive() -> None:
    assert CONTEXT.Pool(2).map_async(double, range(4)).get(30) == [0, 2, 4, 6]
    assert CONTEXT.Pool(2).apply_async(double, (3,)).get(30) == 6
    assert list(CONTEXT.Pool(2).imap(double, range(3))) == [0, 2, 4]


def test_the_attributes_of_pools_and_results_show_the_progress_of_a_call(pool: Any) -> None:
    result = pool.map_async(double, range(100), chunksize=10)
    assert pool._processes == 2
    while result._number_left:
        assert result._number_left <= 10
    assert result.get(30) == [2 * x for x in range(100)]  # another thread may have counted the last part a moment ago
    assert result._job not in pool._cache
    assert pool._taskqueue.qsize() == 0
    results = pool.imap_unordered(double, range(50))
    while results._index < 50:
        pass
    assert sorted(results) == [2 * x for x in range(50)]


def test_a_call_is_not_pending_once_its_result_is_ready(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it before the collecting thread has marked the call as complete."""
    monkeypatch.setattr(Collector, "complete", lambda collector, number: collector.wake())
    for result in (pool.apply_async(double, (2,)), pool.map_async(double, [2])):
        result.wait(30)
        assert result.ready()
        assert result._job not in pool._cache


def test_pools_and_results_are_instances_of_the_standard_librarys_classes(pool: Any) -> None:
    assert isinstance(pool, mp.pool.Pool)
    assert isinstance(pool.apply_async(double, (1,)), mp.pool.AsyncResult)
    assert isinstance(pool.map_async(double, [1]), mp.pool.MapResult)
    assert isinstance(pool.imap(double, [1]), mp.pool.IMapIterator)


def pool_in_a_worker(n: int) -> list[int]:
    with CONTEXT.Pool(2) as inner:
        values: list[int] = inner.map(double, range(n))
    assert mp.current_process().daemon
    return values


def test_a_worker_can_create_a_pool(pool: Any) -> None:
    assert pool.map(pool_in_a_worker, [2, 3]) == [[0, 2], [0, 2, 4]]


def test_workers_have_the_names_of_the_standard_librarys_workers(pool: Any) -> None:
    assert "PoolWorker-" in pool.apply(worker_name)


def worker_name() -> str:
    return mp.current_process().name


MEMORY = """
import multiprocessing as mp
import numpy as np
import dragon

context = mp.get_context("dragon")


def ones(mebibytes):
    return np.ones(mebibytes << 17)


def total(array):
    return array.sum() / 2**17


def check_unread_results_do_not_use_memory_of_the_run():
    with context.Pool(2) as pool:
        results = [pool.apply_async(ones, (8,)) for _ in range(40)]
        for result in results:
            result.wait()
        assert sum(len(result.get()) for result in results) >> 17 == 320
        assert sum(len(array) for array in pool.imap(ones, [8] * 40)) >> 17 == 320


def check_arguments_wait_until_there_is_memory_for_them():
    arrays = [np.ones(8 << 17) for _ in range(40)]
    with context.Pool(2) as pool:
        assert sum(pool.map(total, arrays, chunksize=1)) == 320
        assert sum(pool.imap(total, (array for array in arrays))) == 320
        assert sum(result.get() for result in [pool.apply_async(total, (array,)) for array in arrays]) == 320


def check_an_argument_or_result_larger_than_the_arena_raises_memory_error():
    with context.Pool(2) as pool:
        for call in (lambda: pool.apply(ones, (200,)), lambda: pool.apply(total, (np.ones(200 << 17),))):
            try:
                call()
            except MemoryError:
                continue
            raise AssertionError("no error")
        assert pool.apply(abs, (-1,)) == 1


def check_join_returns_although_unread_results_exceed_the_memory():
    with context.Pool(2) as pool:
        results = pool.map_async(ones, [8] * 40, chunksize=1)
        pool.close()
        pool.join()
        assert len(results.get(0)) == 40
"""


def test_arguments_and_results_may_exceed_the_memory_of_a_run(site: Site) -> None:
    found = failures(site, MEMORY, command=False, DRAGON_ARENA_SIZE="96M")
    assert (found, found.stderr) == ({}, "")


def test_a_forked_child_can_use_a_pool(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp, os
        import dragon

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(1) as pool:
                assert pool.apply(abs, (-1,)) == 1
            if os.fork() == 0:
                with mp.Pool(1) as pool:
                    print(pool.apply(abs, (-2,)), flush=True)
                os._exit(0)
            os.wait()
    """)
    assert done.stdout == "2\n", done.stderr


def test_terminate_ends_a_pool_whose_iterable_is_blocked() -> None:
    never = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        never.wait()

    pool = CONTEXT.Pool(1)
    results = pool.imap(double, source())
    assert next(results) == 2
    pool.terminate()
    with pytest.raises(RuntimeError, match="terminated"):
        next(results)
    never.set()


def slow_pid(_: Any) -> int:
    time.sleep(0.05)
    return os.getpid()


def test_callbacks_are_called_while_the_main_thread_waits_for_something_else(pool: Any) -> None:
    called = threading.Event()
    pool.map_async(double, range(3), callback=lambda values: called.set())
    assert called.wait(30)


WAYS = {
    "apply_async": lambda pool: [pool.apply_async(double, (i,)) for i in range(3)],
    "map": lambda pool: pool.map(double, range(20)),
    "map_async": lambda pool: pool.map_async(double, range(20)),
    "map_async of nothing": lambda pool: pool.map_async(double, []),
    "starmap_async": lambda pool: pool.starmap_async(double, [(i,) for i in range(20)]),
    "imap": lambda pool: pool.imap(double, range(20)),
    "imap of a generator": lambda pool: pool.imap(double, (i for i in range(20))),
    "imap in chunks": lambda pool: pool.imap(double, range(20), 3),
    "imap_unordered": lambda pool: pool.imap_unordered(double, range(20)),
    "imap_unordered in chunks": lambda pool: pool.imap_unordered(double, iter(range(20)), 3),
}


def all_of(results: Any) -> list[int]:
    if hasattr(results, "get"):
        results = results.get(30)
    return sorted(result.get(30) if hasattr(result, "get") else result for result in results)


@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
@pytest.mark.parametrize(("way", "abandoned"), list(zip(WAYS, itertools.cycle([True, False]), strict=False)))
def test_results_of_a_pool_that_nobody_keeps_arrive_and_it_ends(
    way: str, abandoned: bool, wait_until: Callable[..., None]
) -> None:
    pool = CONTEXT.Pool(2)
    if abandoned:
        next(iter(pool.imap(slowly, range(100))))
    results, gone = WAYS[way](pool), weakref.ref(pool)
    del pool
    count = {"apply_async": 3, "map_async of nothing": 0}.get(way, 20)
    assert all_of(results) == [2 * i for i in range(count)]
    wait_until(lambda: gone() is None)


@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
def test_an_error_of_a_pool_that_nobody_keeps_comes_after_the_results_before_it() -> None:
    pool = CONTEXT.Pool(2)
    results, gone = pool.imap(int, ["1", "2", "x"]), weakref.ref(pool)
    del pool
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="'x'"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    assert gone() is None
