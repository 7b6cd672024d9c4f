"""The executor, and the libraries that use it."""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import threading
import time
from concurrent.futures import ALL_COMPLETED, BrokenExecutor, CancelledError, Future, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from conftest import Site
from dragon.infrastructure.policy import Policy
from dragon.native import Event, Queue
from dragon.workflows.executor import DragonExecutor


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise RuntimeError("the initializer's own words")


def fail(text: str) -> None:
    raise KeyError(text)


def wait_for(event: Any) -> bool:
    return bool(event.wait(60))


def sleep_and_say(queue: Any) -> None:
    queue.put(os.getpid())
    time.sleep(1000)


def test_submitted_calls_return_their_results() -> None:
    with DragonExecutor(2) as executor:
        assert executor.submit(pow, 2, exp=5).result() == 32
        futures = [executor.submit(operator.neg, i) for i in range(200)]
        assert wait(futures, timeout=60, return_when=ALL_COMPLETED).not_done == set()
        assert sorted(future.result() for future in as_completed(futures)) == list(range(-199, 1))


def test_map_preserves_the_order_with_any_chunk_size() -> None:
    with DragonExecutor(2) as executor:
        for size in (1, 3, 100):
            assert list(executor.map(pow, range(10), [2] * 10, chunksize=size)) == [i * i for i in range(10)]
        with pytest.raises(ValueError, match="chunksize"):
            executor.map(abs, [1], chunksize=0)
        with pytest.raises(TimeoutError):
            list(executor.map(time.sleep, [0.5], timeout=0.01))


def test_exceptions_of_calls_have_their_remote_traceback() -> None:
    with DragonExecutor(1) as executor:
        error = executor.submit(fail, "on purpose").exception(timeout=60)
        assert isinstance(error, KeyError)
        assert "in fail" in str(error.__cause__)


def test_pending_calls_can_be_cancelled_and_running_ones_cannot() -> None:
    released = Event()
    with DragonExecutor(1) as executor:
        first = executor.submit(wait_for, released)
        others = [executor.submit(abs, i) for i in range(100)]
        while not first.running():
            time.sleep(0.01)
        assert not first.cancel()
        assert all(other.cancel() and other.cancelled() for other in others)
        released.set()
        assert first.result(timeout=60)
        with pytest.raises(CancelledError):
            others[0].result(timeout=60)


def test_callbacks_can_submit_calls_and_use_locks_of_the_submitting_thread() -> None:
    lock, last = threading.Lock(), Future[int]()

    with DragonExecutor(1) as executor:

        def go_on(done: Future[int]) -> None:
            with lock:
                if done.result() == 100:
                    last.set_result(100)
                else:
                    executor.submit(operator.add, done.result(), 1).add_done_callback(go_on)

        with lock:
            executor.submit(abs, 0).add_done_callback(go_on)
        assert last.result(timeout=60) == 100


def test_shutdown_waits_for_calls_or_cancels_them() -> None:
    executor = DragonExecutor(1)
    futures = [executor.submit(time.sleep, 0.01) for _ in range(5)]
    executor.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)
    executor.shutdown()
    assert all(future.done() and not future.cancelled() for future in futures)

    executor = DragonExecutor(1)
    futures = [executor.submit(time.sleep, 0.1) for _ in range(50)]
    executor.shutdown(cancel_futures=True)
    assert futures[-1].cancelled()


def test_a_killed_worker_only_affects_its_own_call() -> None:
    with DragonExecutor(1) as executor:
        lost, next_one = executor.submit(kill_myself), executor.submit(abs, -1)
        with pytest.raises(BrokenExecutor, match="signal SIGKILL"):
            lost.result(timeout=60)
        assert next_one.result(timeout=60) == 1


def test_an_initializer_runs_in_every_worker_and_breaks_the_executor_if_it_raises() -> None:
    with DragonExecutor(1, os.putenv, ("SEEN", "yes")) as executor:
        assert executor.submit(os.system, 'test "$SEEN" = yes').result(timeout=60) == 0
    with DragonExecutor(2, refuse) as executor:
        with pytest.raises(BrokenProcessPool, match="own words"):
            executor.submit(abs, 1).result(timeout=60)
        with pytest.raises(BrokenProcessPool, match="own words"):
            executor.submit(abs, 1)


def test_workers_can_be_terminated() -> None:
    queue = Queue()
    with DragonExecutor(1) as executor:
        running, waiting = executor.submit(sleep_and_say, queue), executor.submit(abs, 1)
        pid = queue.get(timeout=60)
        executor.terminate_workers()
        for future in (running, waiting):
            with pytest.raises(BrokenProcessPool, match="terminated"):
                future.result(timeout=60)
    assert not Path(f"/proc/{pid}").exists()


def test_policies_place_the_workers() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    with DragonExecutor(policy=[Policy(cpu_affinity=[cpu]) for cpu in cpus]) as executor:
        seen = {tuple(one) for one in executor.map(_affinity, range(8 * len(cpus)))}
        assert seen <= {(cpu,) for cpu in cpus}
    with pytest.raises(ValueError, match="2 policies for 3"):
        DragonExecutor(3, policy=[Policy(), Policy()])
    with pytest.raises(ValueError, match="at least 1"):
        DragonExecutor(0)


def _affinity(_: Any) -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_a_program_that_does_not_shut_down_its_executor_ends(site: Site) -> None:
    done = site.python("""
        from dragon.workflows.executor import DragonExecutor

        if __name__ == "__main__":
            print(DragonExecutor(1).submit(abs, -3).result(), flush=True)
            executor = DragonExecutor(1)
            executor.submit(print, "printed", flush=True)
            executor.shutdown(wait=False)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\nprinted\n", "")


def test_a_program_that_ends_waits_for_its_calls(site: Site) -> None:
    done = site.python("""
        import time

        from dragon.workflows.executor import DragonExecutor

        def slow() -> str:
            time.sleep(0.5)
            return "called"

        if __name__ == "__main__":
            future = DragonExecutor(1).submit(slow)
            future.add_done_callback(lambda future: print(future.result()))
            print("at the end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "at the end\ncalled\n", "")


# ---- libraries


def test_dask_can_use_the_executor() -> None:
    dask = pytest.importorskip("dask")
    with DragonExecutor(2) as executor, dask.config.set(scheduler=executor):
        doubled = [dask.delayed(operator.mul)(i, 2) for i in range(20)]
        assert dask.delayed(sum)(doubled).compute() == 380
        pids = dask.delayed([dask.delayed(os.getpid)() for _ in range(4)])
        assert os.getpid() not in pids.compute()


def test_joblib_can_use_the_executor() -> None:
    joblib = pytest.importorskip("joblib")
    import dragon.workflows.joblib_backend  # noqa: F401

    with joblib.parallel_config(backend="dragon", n_jobs=2):
        parallel = joblib.Parallel()
        assert parallel(joblib.delayed(lambda x: x * x)(i) for i in range(1000)) == [i * i for i in range(1000)]
        assert os.getpid() not in parallel(joblib.delayed(os.getpid)() for _ in range(4))
        with pytest.raises(KeyError, match="on purpose"):
            parallel(joblib.delayed(fail)("on purpose") for _ in range(10))
        generated = joblib.Parallel(return_as="generator")(joblib.delayed(abs)(-i) for i in range(10))
        assert list(generated) == list(range(10))
        with pytest.raises(multiprocessing.TimeoutError):
            joblib.Parallel(timeout=0.1)(joblib.delayed(time.sleep)(1000) for _ in range(2))


def test_without_joblib_the_error_names_the_extra(site: Site) -> None:
    done = site.python("""
        import sys
        sys.modules["joblib"] = None
        import dragon.workflows.joblib_backend
    """)
    assert "dragon-runtime[joblib]" in done.stderr
