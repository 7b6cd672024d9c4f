"""Tasks that are tried again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Site
from dragon.native import Queue
from dragon.native.pool import WorkerLostError
from dragon.native.process import ProcessTemplate
from dragon.workflows.batch import Batch
from dragon.workflows.batch.resources import FailingNodes
from dragon.workflows.executor import DragonExecutor


@pytest.fixture(scope="module")
def batch() -> Iterator[Batch]:
    with Batch(workers_per_node=2) as shared:
        yield shared


@pytest.fixture
def tries(tmp_path: Path) -> Path:
    """A file to which each try adds a character."""
    return tmp_path / "tries"


def count(tries: Path) -> int:
    with tries.open("a") as file:
        file.write("x")
    return tries.stat().st_size


def fail_until(good: int, tries: Path) -> int:
    if (this := count(tries)) < good:
        raise OSError(f"try {this}")
    return this


def die_until(good: int, tries: Path) -> int:
    if (this := count(tries)) < good:
        os.kill(os.getpid(), signal.SIGKILL)
    return this


def sleep_until(good: int, tries: Path) -> int:
    if (this := count(tries)) < good:
        time.sleep(1000)
    return this


def test_a_task_that_fails_is_tried_again_as_often_as_it_may_be(batch: Batch, tries: Path) -> None:
    assert batch.options(retries=2).function(fail_until, 3, tries).get(60) == 3


def test_the_last_error_names_all_tries(batch: Batch, tries: Path) -> None:
    task = batch.options(retries=2, backoff=0.01).function(fail_until, 9, tries)
    with pytest.raises(OSError, match="try 3") as raised:
        task.get(60)
    assert "1: OSError: try 1; 2: OSError: try 2" in raised.value.__notes__[0]
    assert tries.read_text() == "xxx"


@pytest.mark.parametrize(
    ("retry_on", "times"), [(OSError, 3), (ValueError, 1), ((ValueError, OSError), 3), ((ValueError, 4), 1)]
)
def test_only_the_exceptions_of_retry_on_are_followed_by_another_try(
    batch: Batch, tries: Path, retry_on: Any, times: int
) -> None:
    with pytest.raises(OSError):
        batch.options(retries=2, retry_on=retry_on).function(fail_until, 9, tries).get(60)
    assert len(tries.read_text()) == times


@pytest.mark.parametrize(("retry_on", "times"), [(Exception, 3), (4, 3), ((3, 5), 1), (OSError, 1)])
def test_a_program_is_tried_again_after_its_exit_code(batch: Batch, tries: Path, retry_on: Any, times: int) -> None:
    template = ProcessTemplate("sh", ["-c", f"printf x >> {tries}; exit 4"])
    assert batch.options(retries=2, retry_on=retry_on).process(template).get(60) == 4
    assert len(tries.read_text()) == times


def test_a_job_is_tried_again_as_a_whole(batch: Batch, tries: Path) -> None:
    template = ProcessTemplate("sh", ["-c", f"printf x >> {tries}; test $(wc -c < {tries}) -ge 3 || exit 4"])
    waiting = ProcessTemplate("sh", ["-c", f"while test $(wc -c < {tries}) -lt 3; do sleep 0.05; done"])
    assert batch.options(retries=3, retry_on=4).job([(1, template), (1, waiting)]).get(60) == [0, 0]


def test_the_loss_of_a_worker_is_not_counted_as_an_error_of_the_task(batch: Batch, tries: Path) -> None:
    assert batch.options(retries=1).function(die_until, 4, tries).get(60) == 4


def test_a_task_that_kills_each_worker_ends_with_their_loss(batch: Batch, tries: Path) -> None:
    with pytest.raises(WorkerLostError):
        batch.options(retries=1).function(die_until, 99, tries).get(120)
    assert len(tries.read_text()) == 11


def test_a_task_that_exceeds_its_timeout_is_ended_and_tried_again(batch: Batch, tries: Path) -> None:
    assert batch.options(retries=1, timeout=0.5).function(sleep_until, 2, tries).get(60) == 2


def test_a_task_that_waits_for_its_next_try_can_be_cancelled(tries: Path) -> None:
    with Batch(workers_per_node=1) as alone:
        task = alone.options(retries=1, backoff=1000).function(fail_until, 9, tries)
        alone.function(pow, 2, 3).get(60)  # when this has ended, the first try has
        assert task.cancel()


def test_a_task_that_is_cancelled_as_a_try_ends_is_not_tried_again(batch: Batch, tries: Path) -> None:
    tasks = [batch.options(retries=5, backoff=1000).function(fail_until, 999, tries) for _ in range(100)]
    for task in tasks:
        if not task.cancel():
            with pytest.raises(OSError):
                task.get(60)


def put_and_fail_until(good: int, tries: Path, queue: Any) -> None:
    queue.put(len(tries.read_text()) if tries.exists() else 0)
    fail_until(good, tries)


def test_each_try_gets_the_handles_among_the_arguments(batch: Batch, tries: Path) -> None:
    queue = Queue()
    batch.options(retries=3).function(put_and_fail_until, 3, tries, queue).get(60)
    assert [queue.get(timeout=60) for _ in range(3)] == [0, 1, 2]


def test_what_depends_on_a_task_waits_for_its_last_try(batch: Batch, tries: Path) -> None:
    task = batch.options(retries=2).function(fail_until, 3, tries)
    assert batch.function(pow, task, 2).get(60) == 9


def test_a_task_finds_the_variables_of_its_env(batch: Batch) -> None:
    options = batch.options(env={"GREETING": "hello"})
    assert options.function(os.getenv, "GREETING").get(60) == "hello"
    assert options.process(ProcessTemplate("sh", ["-c", 'test "$GREETING" = hello'])).get(60) == 0
    assert [batch.function(os.getenv, "GREETING").get(60) for _ in range(4)] == [None] * 4


def test_options_are_a_decorator_for_functions_that_submit_themselves(batch: Batch) -> None:
    @batch.options(name="doubled", retries=1)
    def double(number: int) -> int:
        """Return twice the number."""
        return 2 * number

    assert double(double(3)).get(60) == 12
    assert (double.__name__, double.__doc__, double(1).name) == ("double", "Return twice the number.", "doubled")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries must be at least 0"),
        ({"retries": 1.5}, "retries must be a whole number"),
        ({"retries": 1, "backoff": -1}, "backoff must be a number of seconds from 0 on"),
        ({"retries": 1, "retry_on": "OSError"}, "retry_on must be exception classes or exit codes"),
        ({"env": {"A": 1}}, "env must be a mapping of names to texts"),
        ({"key": 1}, "key must be a text"),
    ],
)
def test_wrong_options_are_refused_at_the_call(batch: Batch, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        batch.options(**options)


def test_an_executor_tries_calls_again(tries: Path) -> None:
    with DragonExecutor(2, retries=2) as executor:
        assert executor.submit(fail_until, 3, tries).result(60) == 3
        tries.unlink()
        assert executor.submit(die_until, 3, tries).result(60) == 3


def test_a_task_goes_on_when_its_node_is_lost(site: Site) -> None:
    program = site.write("""
        import os, signal, time
        from dragon.native.machine import current
        from dragon.workflows.batch import Batch

        def end_node(first):
            time.sleep(0.2)
            if current().hostname != first:
                os.kill(os.getppid(), signal.SIGKILL)  # the zygote of the other node, with which the node ends
                time.sleep(1000)
            return "here"

        if __name__ == "__main__":
            with Batch(workers_per_node=1) as batch:
                tasks = [batch.options(retries=1).function(end_node, current().hostname) for _ in range(2)]
                print([task.get(60) for task in tasks])
    """)
    done = site.dragon("--nodes", "2", program)
    assert done.stdout == "['here', 'here']\n", done.stderr


@pytest.mark.parametrize("asks", [False, True], ids=["", "for CPUs"])
def test_a_node_where_one_task_after_another_fails_is_paused(site: Site, asks: bool) -> None:
    program = site.write(
        """
        import sys
        import time
        from dragon.native.machine import current
        from dragon.workflows.batch import Batch

        def work(number):
            if current().hostname == "node-1":
                raise OSError("the disk is full")
            time.sleep(0.1)
            return number

        if __name__ == "__main__":
            with Batch(workers_per_node=2) as batch:
                options = batch.options(retries=2, **({"cpus": 1} if sys.argv[1:] else {}))
                tasks = [options.function(work, number) for number in range(40)]
                assert [task.get(timeout=60) for task in tasks] == list(range(40))
                print(batch.function(work, 1).get(timeout=60))
        """
    )
    done = site.dragon("--nodes", "2", program, *(["asks"] if asks else []))
    assert done.stdout == "1\n", done.stderr
    assert "one task after another fails on node-1, which gets none for 10 s; the last: " in done.stderr
    assert "OSError: the disk is full" in done.stderr


def test_no_node_is_paused_for_tasks_that_fail_everywhere(site: Site) -> None:
    program = site.write(
        """
        import time
        from dragon.native.machine import current
        from dragon.workflows.batch import Batch

        def fail(number):
            raise ValueError(number)

        def where(number):
            time.sleep(0.05)
            return current().hostname

        if __name__ == "__main__":
            with Batch(workers_per_node=2) as batch:
                failing = [batch.options(retries=2).function(fail, number) for number in range(60)]
                batch.fence()
                print(sum(task.exception is None for task in failing))
                print(len({task.get(timeout=60) for task in [batch.function(where, n) for n in range(400)]}))
        """
    )
    done = site.dragon("--nodes", "2", program)
    assert done.stdout == "0\n2\n", done.stderr


def test_a_pause_is_longer_each_time_and_a_success_ends_it() -> None:
    nodes = FailingNodes()
    assert [nodes.failed(0, ()) for _ in range(3)] == [0, 0, 10]
    assert nodes.failed(0, ()) == 0  # a task that ran there already
    for pause in (20, 40, 80, 160, 300, 300):
        nodes.end_pause(0)
        assert (nodes.failed(0, ()), nodes.paused) == (pause, {0})
    nodes.succeeded(0)
    assert (nodes.paused, nodes.watches) == (set(), False)
    assert [nodes.failed(0, ()) for _ in range(3)] == [0, 0, 10]


def test_a_node_is_not_blamed_for_a_task_that_fails_elsewhere_too() -> None:
    nodes = FailingNodes()
    assert [nodes.failed(0, ()), nodes.failed(1, (0,)), nodes.failed(0, ()), nodes.failed(0, ())] == [0, 0, 0, 0]
    assert nodes.failed(0, ()) == 10
    assert nodes.failed(1, (0,)) == 0
    assert nodes.paused == set()
    assert [nodes.failed(0, ()) for _ in range(6)] == [0, 0, 0, 0, 0, 20]  # after a mistake twice as many count
