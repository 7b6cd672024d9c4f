"""Native pools."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
from typing import Any

import pytest

from conftest import Site
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System, cpu_count
from dragon.native.pool import Pool, WorkerLostError
from dragon.native.process import current
from dragon.native.queue import Queue
from dragon.native.results import IMapIterator, IMapUnorderedIterator, MapResult


def square(x: int) -> int:
    return x * x


def fail(x: int) -> None:
    raise KeyError(x)


def kill_myself(x: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def affinity(_: Any) -> list[int]:
    time.sleep(0.05)
    return sorted(os.sched_getaffinity(0))


def own_name(_: Any) -> str:
    return current().name


def remember(value: Any) -> None:
    global remembered
    remembered = value


def recall(_: Any) -> Any:
    return remembered


def refuse() -> None:
    raise RuntimeError("the initializer's own words")


remembered: Any = None


class TwoWordsError(Exception):
    """An error that cannot be unpickled: its pickle has one argument, and its class requires two."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def fail_in_two_words(x: int) -> None:
    raise TwoWordsError("of", str(x))


def two_words(x: int) -> TwoWordsError:
    return TwoWordsError("of", str(x))


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_all_methods_that_submit_tasks_return_the_results() -> None:
    with Pool(2) as pool:
        assert pool.apply(square, (3,)) == 9
        assert pool.apply_async(square, (4,)).get(30) == 16
        assert pool.map(square, range(10)) == [x * x for x in range(10)]
        assert pool.map(square, [], 1) == []
        assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
        assert list(pool.imap(square, range(5), 2)) == [0, 1, 4, 9, 16]
        with pytest.raises(ValueError, match=r"Chunksize must be 1\+, not 0"):
            pool.map(square, range(5), 0)
        assert sorted(pool.imap_unordered(square, range(5))) == [0, 1, 4, 9, 16]


def test_imap_reads_an_endless_iterable_as_results_are_taken() -> None:
    import itertools

    with Pool(2) as pool:
        squares = pool.imap(square, itertools.count())
        assert [next(squares) for _ in range(3000)] == [x * x for x in range(3000)]


@pytest.mark.parametrize("kind", [IMapIterator, IMapUnorderedIterator])
def test_the_last_result_may_arrive_just_after_its_consumer_looked(kind: type[IMapIterator]) -> None:
    class Ready(deque[tuple[bool, Any]]):
        def popleft(self) -> tuple[bool, Any]:
            try:
                return super().popleft()
            except IndexError:
                if results._index == 0:
                    results._arrived(0, True, "the last")
                raise

    with Pool(1) as pool:
        results = kind(pool)
        results._ready = Ready()
        results._submitted(1)
        assert list(results) == ["the last"]


def test_parts_of_a_map_may_arrive_in_several_threads_at_once() -> None:
    # A thread that cannot submit a part stores its error, while another one collects results. Only without a GIL, and
    # not every time, a count without a lock is wrong.
    parts, threads = 3000, 4
    with Pool(1) as pool:
        result = MapResult(pool, 1, parts * threads)
        barrier = threading.Barrier(threads)

        def arrive(number: int) -> int:
            barrier.wait()
            return sum(result._arrived(number * parts + part, True, (part,)) for part in range(parts))

        with ThreadPoolExecutor(threads) as executor:
            assert sum(executor.map(arrive, range(threads))) == 1
        assert result.get(30) == [*range(parts)] * threads


def test_errors_of_tasks_have_their_remote_traceback() -> None:
    with Pool(1) as pool:
        result = pool.apply_async(fail, (7,))
        with pytest.raises(KeyError, match="7") as caught:
            result.get(30)
        assert "in fail" in str(caught.value.__cause__)
        assert not result.successful()


def test_an_error_of_a_callback_is_printed_and_the_result_is_available(capfd: pytest.CaptureFixture[str]) -> None:
    with Pool(1) as pool:
        result = pool.apply_async(square, (3,), callback=lambda value: 1 // 0)
        assert result.get(30) == 9
        assert pool.apply_async(square, (4,)).get(30) == 16
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_workers_that_exit_in_the_initializer_are_not_restarted_forever() -> None:
    with Pool(2, sys.exit, (3,)) as pool, pytest.raises(WorkerLostError, match="while they started, with exit code 3"):
        pool.apply_async(square, (1,)).get(30)


def wait_and_heed_no_signal(ready: Queue) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.put("ready")
    time.sleep(60)


def test_terminate_kills_workers_after_its_patience() -> None:
    ready = Queue()
    pool = Pool(1)
    result = pool.apply_async(wait_and_heed_no_signal, (ready,))
    ready.get(timeout=30)
    pool.terminate(patience=0.1)
    assert [process.exitcode for process in pool._pool] == [-signal.SIGKILL]
    with pytest.raises(RuntimeError, match="was terminated"):
        result.get(30)


def test_a_killed_worker_raises_an_error_for_its_task_and_is_replaced() -> None:
    with Pool(2) as pool:
        with pytest.raises(WorkerLostError, match="signal SIGKILL"):
            pool.apply_async(kill_myself, (1,)).get(30)
        assert pool.map(square, range(20), 1) == [x * x for x in range(20)]


def test_tasks_of_killed_workers_that_cannot_be_replaced_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Queue()
    with Pool(2) as pool:
        results = [pool.apply_async(wait_and_heed_no_signal, (ready,)) for _ in range(2)]
        for _ in results:
            ready.get(timeout=30)
        first, second = pool._pool

        def fail_while_the_other_dies(index: int) -> None:
            second.kill()
            second.join()
            raise OSError("no memory left")

        monkeypatch.setattr(pool._workers, "_start", fail_while_the_other_dies)
        first.kill()
        for result in results:
            with pytest.raises(WorkerLostError, match="signal SIGKILL"):
                result.get(30)


def test_the_initializer_runs_in_every_worker_and_tasks_raise_its_error() -> None:
    with Pool(2, remember, ("hello",)) as pool:
        assert set(pool.map(recall, range(4))) == {"hello"}
    with Pool(2, refuse) as pool, pytest.raises(RuntimeError, match="own words"):
        pool.apply_async(square, (1,)).get(30)


def test_a_worker_has_the_name_of_a_pool_worker() -> None:
    with Pool(1) as pool:
        assert re.fullmatch(r"pool_worker_\d+", pool.apply(own_name, (0,)))


def test_policies_place_the_workers() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    with Pool(policy=[Policy(cpu_affinity=[cpu]) for cpu in cpus], processes_per_policy=1) as pool:
        assert {tuple(a) for a in pool.map(affinity, range(4 * len(cpus)), 1)} == {(cpu,) for cpu in cpus}


@pytest.mark.skipif(bool(System().gpu_policies()), reason="this machine has GPUs")
def test_an_empty_list_of_policies_starts_one_worker_per_cpu_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="one worker per CPU"):
        pool = Pool(policy=System().gpu_policies(), processes_per_policy=1)
    assert len(pool._pool) == cpu_count()
    pool.close()
    pool.join()


def test_a_pool_refuses_tasks_after_close_and_get_has_a_timeout() -> None:
    pool = Pool(1)
    result = pool.apply_async(time.sleep, (0.3,))
    with pytest.raises(TimeoutError):
        result.get(0.01)
    with pytest.raises(ValueError, match="ready"):
        result.successful()
    with pytest.raises(ValueError, match="running"):
        pool.join()
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.apply_async(square, (1,))
    pool.join()
    assert result.get(30) is None


class Deadly:
    """An argument that kills the process that unpickles it."""

    def __reduce__(self) -> Any:
        return kill_myself, (1,)


def test_a_worker_that_is_killed_while_it_receives_a_task_loses_only_that_task() -> None:
    with Pool(2) as pool:
        before = [pool.apply_async(time.sleep, (0.2,)) for _ in range(2)]
        lost = pool.apply_async(square, (Deadly(),))
        after = [pool.apply_async(square, (n,)) for n in range(50)]
        with pytest.raises(WorkerLostError):
            lost.get(60)
        assert [result.get(60) for result in before] == [None, None]
        assert [result.get(60) for result in after] == [n * n for n in range(50)]


def test_workers_that_are_killed_at_any_moment_lose_at_most_one_task_each() -> None:
    kills, chance = 9, random.Random(1)
    with Pool(3) as pool:
        lost = 0
        for kill in range(kills):
            results = [pool.apply_async(square, (n,)) for n in range(100)]
            time.sleep(chance.uniform(0, 0.01))
            pool._pool[kill % 3].kill()
            for n, result in enumerate(results):
                try:
                    assert result.get(60) == n * n
                except WorkerLostError:
                    lost += 1
        assert lost <= kills
        pool.close()
        pool.join()


def test_join_returns_after_workers_of_a_closed_pool_were_killed() -> None:
    for _ in range(2):
        pool = Pool(3)
        victims = pool._pool
        pool.map(square, range(3))
        pool.close()
        for victim in victims:
            victim.kill()
        pool.join(60)


def test_tasks_of_a_terminated_pool_raise_an_error() -> None:
    pool = Pool(1)
    results = [pool.apply_async(time.sleep, (100,)) for _ in range(3)]
    pool.terminate()
    pool.join()
    for result in results:
        with pytest.raises(RuntimeError, match="terminated"):
            result.get(30)


def test_invalid_arguments_of_a_pool_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Pool(0)
    with pytest.raises(TypeError):
        Pool("two")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="processes_per_policy"):
        Pool(2, policy=[Policy()], processes_per_policy=1)
    with pytest.raises(TypeError, match="callable"):
        Pool(1, initializer=3)  # type: ignore[arg-type]


def test_an_error_that_cannot_be_unpickled_raises_maybe_encoding_error() -> None:
    with Pool(2) as pool:
        with pytest.raises(MaybeEncodingError, match="of 3") as caught:
            pool.apply(fail_in_two_words, (3,))
        assert "fail_in_two_words" in str(caught.value.__cause__)
        with pytest.raises(MaybeEncodingError):
            pool.map(fail_in_two_words, range(8))
        assert pool.map(square, range(8)) == [x * x for x in range(8)]


def test_a_result_that_cannot_be_unpickled_is_an_error_of_its_task_only() -> None:
    with Pool(2) as pool:
        others = [pool.apply_async(square, (x,)) for x in range(4)]
        unreadable = pool.apply_async(two_words, (3,))
        assert [other.get(60) for other in others] == [0, 1, 4, 9]
        with pytest.raises(TypeError, match="second"):
            unreadable.get(60)
        assert pool.map(square, range(8)) == [x * x for x in range(8)]


def test_arguments_that_cannot_be_unpickled_are_an_error_of_their_task_only() -> None:
    with Pool(1) as pool:
        worker = pool.apply(os.getpid)
        with pytest.raises(ValueError, match="no number"):
            pool.apply(square, (Unreadable(),))
        assert pool.apply(os.getpid) == worker


def test_output_of_tasks_is_complete_when_the_pool_is_closed(site: Site) -> None:
    done = site.python("""
        from dragon.native import Pool

        if __name__ == "__main__":
            with Pool(2) as pool:
                pool.map(print, range(50))
    """)
    assert sorted(map(int, done.stdout.split())) == list(range(50)), done.stderr


def test_the_traceback_of_a_task_has_no_frames_of_the_pool() -> None:
    with Pool(1) as pool, pytest.raises(KeyError) as caught:
        pool.map(fail, [3])
    files = re.findall(r'File "(.*)", line', str(caught.value.__cause__))
    assert files == [__file__]


def test_the_traceback_of_a_loop_over_results_has_one_frame_of_the_pool() -> None:
    with Pool(1) as pool, pytest.raises(KeyError) as caught:
        list(pool.imap(fail, [3]))
    assert [entry.path.name for entry in caught.traceback] == ["test_pool.py", "results.py"]
