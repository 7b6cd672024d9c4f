"""Batches: tasks that depend on each other."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dragon
from conftest import Site
from dragon.infrastructure.policy import Policy
from dragon.native import Event, Queue
from dragon.native.pool import WorkerLostError
from dragon.native.process import Popen, Process, ProcessTemplate
from dragon.workflows.batch import (
    Batch,
    BatchError,
    Function,
    Job,
    ReadAfterWriteDependencyError,
    SubmitAfterCloseError,
    Task,
    TaskCancelledError,
    TaskNotReadyError,
)


@pytest.fixture(scope="module")
def batch() -> Iterator[Batch]:
    """A batch that all tests share which do not end it."""
    with Batch(workers_per_node=2) as shared:
        yield shared


@pytest.fixture
def alone() -> Iterator[Batch]:
    """A batch with a single worker."""
    with Batch(workers_per_node=1) as own:
        yield own


def add(*numbers: int) -> int:
    return sum(numbers)


def fail(text: str) -> None:
    raise KeyError(text)


def write_line(path: Path, line: str) -> None:
    time.sleep(0.01)
    with path.open("a") as file:
        file.write(line + "\n")


def wait_for(event: Any) -> str:
    event.wait(60)
    return "waited"


def announce_and_sleep(queue: Any) -> None:
    queue.put(os.getpid())
    time.sleep(1000)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    sys.exit(7)


def shell(command: str, **options: Any) -> ProcessTemplate:
    return ProcessTemplate("sh", ["-c", command], **options)


# ---- results


def test_a_task_has_the_class_of_what_it_runs_also_in_another_process(batch: Batch) -> None:
    tasks = [batch.function(add, 1, 2), batch.process(shell("true")), batch.job([(2, shell("true"))])]
    assert [type(task) for task in tasks] == [Function, Job, Job]
    queue = Queue()
    process = Process(put_classes, (queue, tasks))
    process.start()
    assert queue.get(timeout=60) == [Function, Job, Job]
    process.join()


def put_classes(queue: Any, tasks: list[Any]) -> None:
    queue.put([type(task) for task in tasks])


def test_a_function_runs_and_returns_its_result(batch: Batch) -> None:
    task = batch.function(add, 1, 2)
    assert task.get() == 3
    assert task.get() == 3  # as often as it is asked for


def test_the_package_dragon_exports_batch() -> None:
    assert dragon.Batch is Batch


def test_lambdas_and_large_arrays_are_sent(batch: Batch) -> None:
    np = pytest.importorskip("numpy")
    ones = batch.function(lambda: np.ones(1_000_000))
    assert batch.function(lambda array: array.sum(), ones).get() == 1_000_000
    assert ones.get().shape == (1_000_000,)


def test_several_tasks_can_use_a_queue_in_a_result(batch: Batch) -> None:
    made = batch.function(lambda: {"queue": Queue()})
    puts = [batch.function(lambda found, i: found["queue"].put(i), made, i) for i in range(3)]
    for put in puts:
        put.get()
    assert sorted(made.get()["queue"].get(timeout=30) for _ in range(3)) == [0, 1, 2]


def test_an_exception_of_a_function_is_raised_with_its_remote_traceback(batch: Batch) -> None:
    task = batch.function(fail, "on purpose")
    with pytest.raises(KeyError, match="on purpose") as caught:
        task.get()
    assert "in fail" in str(caught.value.__cause__)


def test_an_exception_that_cannot_be_sent_becomes_a_batch_error_with_its_text(batch: Batch) -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("only one argument")

    def raise_odd() -> None:
        raise Odd(1, 2)

    with pytest.raises(BatchError, match="Odd: only one argument"):
        batch.function(raise_odd).get()


def test_a_result_that_cannot_be_sent_is_an_error(batch: Batch) -> None:
    with pytest.raises(TypeError, match="pickle"):
        batch.function(threading.Lock).get()


def test_sys_exit_in_a_function_raises_an_error(batch: Batch) -> None:
    with pytest.raises(RuntimeError, match=r"sys\.exit\(7\)"):
        batch.function(leave).get()


def test_a_killed_worker_loses_its_task_and_is_replaced(alone: Batch) -> None:
    lost, next_one = alone.function(kill_myself), alone.function(add, 1)
    with pytest.raises(WorkerLostError, match="signal SIGKILL"):
        lost.get(timeout=60)
    assert next_one.get(timeout=60) == 1


def test_a_killed_worker_loses_at_most_one_task(batch: Batch) -> None:
    for _ in range(10):
        pid = batch.function(os.getpid).get(timeout=60)
        tasks = [batch.function(add, i) for i in range(200)]
        os.kill(pid, signal.SIGKILL)
        lost = 0
        for i, task in enumerate(tasks):
            try:
                assert task.get(timeout=60) == i
            except WorkerLostError:
                lost += 1
        assert lost <= 1


def test_get_raises_an_error_after_its_timeout(batch: Batch) -> None:
    released = Event()
    task = batch.function(wait_for, released)
    with pytest.raises(TaskNotReadyError):
        task.get(timeout=0.05)
    with pytest.raises(TaskNotReadyError):
        task.get(block=False)
    released.set()
    assert task.get(timeout=60) == "waited"


def test_a_task_that_exceeds_its_timeout_is_ended(batch: Batch) -> None:
    for task in (
        batch.function(time.sleep, 1000, timeout=0.1),
        batch.process(shell("sleep 1000"), timeout=0.1),
        batch.job([(2, shell("exec sleep 1000"))], timeout=0.1),
    ):
        with pytest.raises(TimeoutError, match=r"did not end in 0\.1 s"):
            task.get(timeout=60)


def test_the_error_about_an_argument_of_the_wrong_type_names_it(batch: Batch) -> None:
    template = ProcessTemplate("true")
    for given in (5, template):
        with pytest.raises(TypeError, match=r"a job is described by a list of \(number of processes, template\), not"):
            batch.job(given)  # type: ignore[arg-type]
    for one in (5, template, (1, template, 2)):
        with pytest.raises(TypeError, match=r"by pairs of \(number of processes, template\), not"):
            batch.job([one])  # type: ignore[list-item]
    for access in (5, "file", batch.read("file")):
        with pytest.raises(
            TypeError, match=r"reads must be a list of what Batch\.read\(\) and Batch\.write\(\) return"
        ):
            batch.options(reads=access)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout must be a number of seconds, or None, not 'x'"):
        batch.options(timeout="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"num_nodes must be a whole number, or None, not 1\.5"):
        Batch(num_nodes=1.5)  # type: ignore[arg-type]


def test_invalid_arguments_are_refused_at_once(batch: Batch) -> None:
    with pytest.raises(TypeError, match="callable"):
        batch.function(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ProcessTemplate"):
        batch.process("ls")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        batch.job([])
    with pytest.raises(ValueError, match="PIPE"):
        batch.process(shell("true", stdin=Popen.PIPE))
    with pytest.raises(RuntimeError, match="PMI"):
        batch.job([(1, shell("true"))], pmi="nonsense")
    with pytest.raises(ValueError, match="timeout"):
        batch.options(timeout=0)
    with pytest.raises(ValueError, match="workers_per_node"):
        Batch(workers_per_node=0)


# ---- processes and jobs


def test_the_result_of_a_process_is_its_exit_code(batch: Batch) -> None:
    assert batch.process(shell("exit 3")).get() == 3
    assert batch.process(ProcessTemplate("true", args=None)).get() == 0
    assert batch.process(ProcessTemplate(sys.exit, args=(5,))).get() == 5


def test_a_job_can_have_more_ranks_than_there_are_workers(alone: Batch) -> None:
    assert alone.job([(2, shell("true")), (1, ProcessTemplate("true", args=None))]).get(timeout=60) == [0, 0, 0]


def test_the_result_of_a_job_has_the_exit_code_of_each_rank(batch: Batch) -> None:
    codes = batch.job([(2, shell("sleep 1000")), (1, shell("exit 4"))]).get(timeout=60)
    assert codes[2] == 4
    assert all(code < 0 for code in codes[:2])


def test_results_can_be_arguments_of_processes_and_jobs(batch: Batch, tmp_path: Path) -> None:
    code = batch.function(add, 1, 2)
    assert batch.process(ProcessTemplate("sh", ["-c", "exit $0", code])).get() == 3
    codes = batch.job([(2, ProcessTemplate("sh", ["-c", "exit $0", code]))]).get()
    assert len(codes) == 2
    assert 3 in codes
    assert set(codes) <= {3, -15, -9, -2}  # the other one may have been ended


def test_the_policy_of_a_process_is_applied(batch: Batch) -> None:
    cpu = min(os.sched_getaffinity(0))
    assert cpu < 256, "an exit code can say no more"
    pinned = ProcessTemplate(exit_with_only_cpu, policy=Policy(cpu_affinity=[cpu]))
    assert batch.process(pinned).get() == cpu
    assert batch.job([(1, pinned)]).get() == cpu


def exit_with_only_cpu() -> None:
    (cpu,) = os.sched_getaffinity(0)
    sys.exit(cpu)


# ---- the order of tasks


def test_tasks_in_arguments_lists_and_dicts_are_replaced_by_their_results(batch: Batch) -> None:
    one, two = batch.function(add, 1), batch.function(add, 2)
    assert batch.function(add, one, two).get() == 3
    assert batch.function(lambda numbers, more: sum(numbers) + more["b"], [one, two], more={"b": two}).get() == 5


def test_a_task_of_another_batch_is_refused_as_argument(batch: Batch, alone: Batch) -> None:
    with pytest.raises(BatchError, match=r"of another batch: give its result, task\.get\(\)"):
        alone.function(add, 1, batch.function(add, 2))
    assert alone.function(add, 1, batch.function(add, 2).get()).get() == 3


def test_the_error_of_a_task_that_depends_on_a_failed_one_names_it(batch: Batch) -> None:
    first = batch.function(fail, "the cause")
    middle = batch.function(add, first, 1)
    last = batch.function(add, middle, 1)
    for task in (middle, last):
        with pytest.raises(ReadAfterWriteDependencyError, match=f"task {first.uid}.*failed: KeyError.*cause") as caught:
            task.get(timeout=60)
        assert isinstance(caught.value.__cause__, KeyError)
    assert any(f"task {middle.uid}" in note for note in caught.value.__notes__)


def test_the_traceback_of_a_task_can_be_read(batch: Batch) -> None:
    task, released = batch.function(fail, "the cause"), Event()
    with pytest.raises(KeyError):
        task.get(timeout=60)
    assert task.traceback is not None
    assert "in fail" in task.traceback
    assert batch.function(add, task).traceback.startswith("ReadAfterWriteDependencyError")  # type: ignore[union-attr]
    assert isinstance(task.exception, KeyError)
    waits = batch.function(wait_for, released)
    with pytest.raises(TaskNotReadyError):
        waits.get(block=False)
    assert waits.traceback is waits.exception is None
    released.set()
    waits.get(timeout=60)
    assert waits.traceback is waits.exception is None


def test_a_chain_of_ten_thousand_dependent_tasks_completes(batch: Batch) -> None:
    last = batch.function(add, 0)
    for _ in range(10_000):
        last = batch.function(add, last, 1)
    assert last.get(timeout=100) == 10_000


def test_a_failure_at_the_beginning_of_a_long_chain_reaches_its_end(batch: Batch) -> None:
    released = Event()
    last = batch.function(lambda event: event.wait(60) and fail("first"), released)
    for _ in range(3000):
        last = batch.function(add, last, 1)
    released.set()
    with pytest.raises(ReadAfterWriteDependencyError, match="first"):
        last.get(timeout=60)


def test_results_without_references_use_no_memory(batch: Batch) -> None:
    np = pytest.importorskip("numpy")
    psutil = pytest.importorskip("psutil")
    before = psutil.Process().memory_info().rss
    last = batch.function(lambda: np.zeros(1_000_000))
    for _ in range(200):  # 1.6 GB, if all were kept
        last = batch.function(lambda array: array + 1, last)
    assert last.get(timeout=100)[0] == 200
    assert psutil.Process().memory_info().rss - before < 0.8e9


def test_a_reader_waits_for_the_writer_of_the_same_file(batch: Batch, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for i in range(10):
        batch.function(write_line, path, str(i), writes=[batch.write(tmp_path, "file")])
    read = batch.function(path.read_text, reads=[batch.read(path)])
    batch.function(path.unlink, writes=[batch.write(path)])
    assert read.get(timeout=60).split() == [str(i) for i in range(10)]


def test_accesses_to_different_parts_do_not_wait_for_each_other(batch: Batch) -> None:
    released = Event()
    waits = batch.options(writes=[batch.write("/data", "a")]).function(wait_for, released)
    batch.options(reads=[batch.read("/data", "b")]).function(add).get(timeout=60)
    both = batch.options(reads=[batch.read("/data", "a", "b")]).function(add)
    with pytest.raises(TaskNotReadyError):
        both.get(timeout=0.1)
    released.set()
    both.get(timeout=60)
    waits.get(timeout=60)


def test_a_reader_of_a_whole_object_waits_for_the_writer_of_a_part(batch: Batch) -> None:
    released = Event()
    batch.options(writes=[batch.write(("any", "key"), 1)]).function(wait_for, released)
    whole = batch.options(reads=[batch.read(("any", "key"))]).function(add)
    with pytest.raises(TaskNotReadyError):
        whole.get(timeout=0.1)
    released.set()
    whole.get(timeout=60)


def test_accesses_to_keys_of_a_dictionary_order_tasks(batch: Batch, make: Callable[..., Any]) -> None:
    ddict = make(1)
    batch.function(ddict.__setitem__, "a", 1, writes=[batch.write(ddict, "a")])
    assert batch.function(ddict.__getitem__, "a", reads=[batch.read(ddict, "a")]).get(timeout=60) == 1


def test_a_reader_fails_if_its_writer_failed(batch: Batch) -> None:
    broken = [batch.write("/data/broken")]
    batch.options(writes=broken, name="writer").function(fail, "no disk")
    reader = batch.options(reads=[batch.read("/data/broken")]).function(add)
    with pytest.raises(ReadAfterWriteDependencyError, match=r"writer.*no disk"):
        reader.get(timeout=60)
    batch.options(writes=broken).function(add).get(timeout=60)  # who writes it again is not disturbed
    assert batch.options(reads=[batch.read("/data/broken")]).function(add, 1).get(timeout=60) == 1


# ---- cancelling


def test_a_cancelled_task_that_was_not_started_never_runs(alone: Batch, tmp_path: Path) -> None:
    released = Event()
    first = alone.function(wait_for, released)
    marks = [alone.function((tmp_path / str(i)).touch) for i in range(100)]  # some are sent already
    assert all(mark.cancel() for mark in marks)
    released.set()
    assert first.get(timeout=60) == "waited"
    assert alone.function(os.listdir, tmp_path).get(timeout=60) == []
    with pytest.raises(TaskCancelledError):
        marks[0].get()
    assert not marks[0].cancel()


def test_a_running_function_can_be_cancelled(alone: Batch) -> None:
    queue = Queue()
    task = alone.function(announce_and_sleep, queue)
    pid = queue.get(timeout=60)
    assert task.cancel(timeout=60)
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert alone.function(add, 1).get(timeout=60) == 1


def test_a_running_process_and_a_running_job_can_be_cancelled(batch: Batch, site: Site) -> None:
    for start in (batch.process, lambda template: batch.job([(2, template)])):
        queue = Queue()
        task = start(ProcessTemplate(announce_and_sleep, (queue,)))
        pid = queue.get(timeout=60)
        assert task.cancel(timeout=60)
        assert not Path(f"/proc/{pid}").exists()


def test_a_cancelled_process_that_ignores_sigterm_is_killed(batch: Batch) -> None:
    queue = Queue()

    def ignore(queue: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        announce_and_sleep(queue)

    task = batch.process(ProcessTemplate(ignore, (queue,)))
    pid = queue.get(timeout=60)
    assert task.cancel(timeout=60)
    assert not Path(f"/proc/{pid}").exists()


def test_tasks_that_depend_on_a_cancelled_one_are_cancelled(alone: Batch) -> None:
    released = Event()
    alone.function(wait_for, released)
    first = alone.function(add, 1)
    second = alone.function(add, first)
    assert first.cancel()
    with pytest.raises(TaskCancelledError, match=first.uid):
        second.get(timeout=60)
    released.set()


# ---- waiting and ending


def test_a_fence_waits_for_all_tasks(batch: Batch) -> None:
    tasks = [batch.function(time.sleep, 0.01) for _ in range(10)]
    batch.fence()
    assert all(task.done() for task in tasks)
    released = Event()
    batch.function(wait_for, released)
    with pytest.raises(TimeoutError, match="1 tasks"):
        batch.fence(timeout=0.1)
    released.set()


def test_poll_returns_each_ended_task_once() -> None:
    with Batch(workers_per_node=1) as own:
        tasks = [own.function(add, i) for i in range(5)]
        assert [own.poll(60) for _ in tasks] == [task.uid for task in tasks]
        assert own.poll(timeout=0.01) is None


def test_results_can_be_dropped() -> None:
    with Batch(workers_per_node=1) as own:
        task = own.function(add, 1)
        own.clear_results()
        with pytest.raises(BatchError, match="dropped"):
            task.get()
        assert own.function(add, 2).get() == 2


def test_a_batch_that_ended_refuses_tasks_and_keeps_fetched_results() -> None:
    own = Batch(workers_per_node=1)
    task, failed, other = own.function(add, 1), own.function(fail, "fetched"), own.function(add, 2)
    assert task.get(timeout=60) == 1
    with pytest.raises(KeyError):
        failed.get(timeout=60)
    own.close()
    own.join()
    own.join()
    assert (task.get(), type(failed.exception)) == (1, KeyError)
    with pytest.raises(RuntimeError, match=r"was not fetched before join\(\)"):
        other.get()
    with pytest.raises(SubmitAfterCloseError):
        own.function(add, 1)


def test_an_exception_in_the_with_block_ends_running_tasks() -> None:
    queue = Queue()
    tasks: list[Task] = []

    def submit_and_fail() -> None:
        with Batch(workers_per_node=1) as own:
            tasks.extend([own.function(announce_and_sleep, queue), own.process(shell("sleep 1000"))])
            queue.get(timeout=60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        submit_and_fail()
    for task in tasks:
        with pytest.raises(TaskCancelledError):
            task.get(timeout=0)


def test_a_managed_batch_outlives_join_and_ends_with_destroy() -> None:
    own = Batch(workers_per_node=1, managed_lifecycle=True)
    task = own.function(time.sleep, 1000)
    with pytest.raises(TimeoutError):
        own.destroy(timeout=0.1)
    own.destroy(timeout=0.1, force_timeout=1)
    with pytest.raises(TaskCancelledError):
        task.get(timeout=0)
    own.destroy()  # it has ended
    with Batch(workers_per_node=1) as other, pytest.raises(RuntimeError, match="managed_lifecycle"):
        other.destroy()
    other.destroy()


def destroy_it(handle: bytes, queue: Queue) -> None:
    batch = pickle.loads(handle)
    queue.put(batch.function(add, 1, 2).get(timeout=60))
    batch.join()
    batch.destroy(timeout=60)
    batch.destroy()
    with pytest.raises(SubmitAfterCloseError):
        batch.function(add, 1)


def test_any_process_can_destroy_a_managed_batch() -> None:
    queue = Queue()
    own = Batch(workers_per_node=1, managed_lifecycle=True)
    task = own.function(add, 5)
    own.join()
    process = Process(destroy_it, (pickle.dumps(own), queue))
    process.start()
    assert queue.get(timeout=60) == 3
    assert process.join(timeout=60) == 0
    assert task.get() == 5
    own.destroy()


def test_every_rank_of_a_job_has_an_exit_code_and_an_output_file(tmp_path: Path) -> None:
    with Batch(workers_per_node=2, task_logs=tmp_path / "logs") as own:
        assert (own.num_workers, own.num_managers) == (2, 2)
        quiet = own.options(pmi=None).job([(1, shell("echo one")), (2, shell("echo others"))])
        assert quiet.get(timeout=60) == [0, 0, 0]
        files = quiet.log_paths()["stdout"]
        assert isinstance(files, list)
        assert [Path(file).read_text() for file in files] == ["one\n", "others\n", "others\n"]
        assert quiet.stdout_path == files[0]
        assert (quiet.get_stdout(), quiet.get_stderr(encoding=None)) == ("one\nothers\nothers\n", b"")
        alone = own.options(pmi=None).job([(1, shell("echo alone; exit 4"))])
        assert (alone.get(timeout=60), alone.get_stdout()) == (4, "alone\n")
        assert alone.log_paths() == {"stdout": alone.stdout_path, "stderr": alone.stderr_path}


def test_the_topology_has_the_numbers_of_nodes_and_workers(batch: Batch) -> None:
    topology = batch.topology()
    assert topology.total_nodes == len(topology.pool_hostnames) == 1
    assert topology.workers_per_pool == (2,)
    assert topology.total_managers == 2
    assert "2 workers" in str(topology)


# ---- other processes


def submit_more(batch: Batch, known: Task) -> tuple[int, str]:
    task = batch.function(add, known, 10)
    with pytest.raises(KeyError):
        batch.function(fail, "there").get(timeout=60)
    never = batch.function(add, 0)
    batch.fence(60)
    never.cancel(60)
    return task.get(timeout=60), task.uid


def test_a_process_can_submit_tasks_to_a_batch_that_it_received(batch: Batch) -> None:
    known, boxed = batch.function(add, 1), Queue()
    known.get()
    boxed.put(known)
    value, uid = batch.function(lambda b, box: submit_more(b, box.get()), batch, boxed).get(timeout=60)
    assert value == 11
    assert not uid.startswith("0-")


def test_a_task_that_was_sent_through_a_queue_has_its_result(batch: Batch) -> None:
    queue: Queue = Queue()
    task = batch.function(add, 1)
    queue.put(task)
    assert queue.get().get(timeout=60) == 1


def test_killed_clients_do_not_affect_a_batch(batch: Batch) -> None:
    queue = Queue()
    for _ in range(8):
        process = Process(submit_without_end, (batch, queue))
        process.start()
        assert queue.get(timeout=60) == 3
        process.kill()
        process.join()
    assert batch.function(add, 1, 2).get(timeout=60) == 3


def submit_without_end(batch: Batch, queue: Any) -> None:
    queue.put(batch.function(add, 1, 2).get(timeout=60))
    while True:
        batch.function(time.sleep, 0.001)


# ---- output


def test_the_output_of_every_task_and_every_rank_is_kept(tmp_path: Path) -> None:
    with Batch(workers_per_node=2, task_logs=tmp_path / "logs") as own:
        function = own.options(name="speaks").function(print, "from a function")
        process = own.process(shell("echo from a process; echo an error >&2"))
        job = own.job([(3, shell("echo from a rank"))])
        assert function.get_stdout() == "from a function\n"
        assert (process.get_stdout(), process.get_stderr(encoding=None)) == ("from a process\n", b"an error\n")
        assert job.get_stdout() == "from a rank\n" * 3
        assert len(job.log_paths()["stdout"] or ()) == 3
        assert own.read_logs(process.uid) == {"stdout": "from a process\n", "stderr": "an error\n"}
        assert own.read_logs(process.uid, "stderr", encoding="latin-1") == {"stdout": None, "stderr": "an error\n"}
        assert [record["name"] for record in own.iter_log_records()] == ["speaks", "", ""]
        assert (own.find_logs(job.uid) or {})["stdout"] == job.log_paths()["stdout"]
        assert own.find_logs("7-7") is None
        with pytest.raises(KeyError, match="no task '7-7'"):
            own.read_logs("7-7")
        assert own.log_manifest_path().parent == own.log_dir() == tmp_path / "logs"
        assert json.loads(own.log_manifest_path().read_text().splitlines()[0])["tuid"] == function.uid


def test_a_pipe_of_a_template_is_where_the_output_of_its_task_goes(tmp_path: Path) -> None:
    with Batch(workers_per_node=1, task_logs=tmp_path / "logs") as own:
        process = own.process(process_template=shell("echo one; echo two >&2", stdout=Popen.PIPE, stderr=Popen.PIPE))
        job = own.job(process_templates=[(2, shell("echo rank", stdout=Popen.PIPE))])
        assert (process.get_stdout(), process.get_stderr(), job.get_stdout()) == ("one\n", "two\n", "rank\n" * 2)


def test_the_output_option_of_a_task_has_precedence_over_that_of_the_batch(tmp_path: Path) -> None:
    with Batch(workers_per_node=1, stdout=tmp_path / "all", stderr=Popen.DEVNULL) as own:
        own.function(print, "one").get()
        own.function(print, "two", stdout=tmp_path / "mine").get()
        own.job([(2, shell("echo rank"))], stdout=str(tmp_path / "rank-{rank}")).get()
        own.process(shell("echo four", stdout=str(tmp_path / "template"))).get()
    contents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert contents == {
        "all": "one\n",
        "mine": "two\n",
        "rank-0": "rank\n",
        "rank-1": "rank\n",
        "template": "four\n",
    }


def test_output_that_is_in_no_file_is_none(batch: Batch) -> None:
    tasks = [batch.function(add), batch.process(shell("true", stdout=Popen.PIPE))]
    assert [task.stdout_path for task in tasks] == [task.get_stdout() for task in tasks] == [None, None]
    for look in (batch.log_dir, batch.log_manifest_path, batch.iter_log_records):
        with pytest.raises(RuntimeError, match="task_logs=True"):
            look()


# ---- tasks described by a file


def describe(folder: Path, text: str) -> Path:
    path = folder / "task.yml"
    path.write_text(text)
    return path


def test_a_file_can_describe_functions_with_named_arguments(batch: Batch, tmp_path: Path) -> None:
    path = describe(
        tmp_path,
        """
        type: function
        import_args: [write, folder, name_of]
        run_args: [i]
        target: $write
        args: [{call: $name_of, args: [$folder, $i]}, "line $i"]
        writes: [{obj: $folder, channels: ["file_$i"]}]
        name: write-$i
        """,
    )
    make = batch.import_func(path, write_line, tmp_path, lambda folder, i: folder / f"file_{i}")
    first, second = make(1), make(i=2)
    batch.function(add, reads=[batch.read(tmp_path, "file_1", "file_2")]).get(timeout=60)
    assert (first.name, second.name) == ("write-1", "write-2")
    assert (tmp_path / "file_2").read_text() == "line 2\n"


def test_a_file_can_be_in_the_form_of_dragonhpc(batch: Batch, tmp_path: Path) -> None:
    text = """
        import_args: [write, base_dir, get_file]
        args: [i]
        kwargs: {text: nothing}
        type: function
        executables:
            - target: write
              args: [{get_file: [base_dir, i]}, text, i, "a literal $"]
        writes:
            - files: [{get_file: [base_dir, i]}]
        name: write
        timeout: {day: 0, hour: 0, min: 0, sec: 50}
    """
    make = batch.import_func(describe(tmp_path, text), lambda *args: args, tmp_path, lambda folder, i: folder / str(i))
    assert make(1).get(timeout=60) == (tmp_path / "1", "nothing", 1, "a literal $")
    assert make(2, text="b").get(timeout=60)[1] == "b"


def test_a_file_can_describe_processes_and_jobs(batch: Batch, tmp_path: Path) -> None:
    process = batch.import_func(
        describe(tmp_path, "{type: process, run_args: [code], target: sh, args: ['-c', exit $code]}")
    )
    assert process(3).get(timeout=60) == 3
    job = batch.import_func(
        describe(tmp_path, "{type: job, run_args: [n], processes: [{nproc: $n, target: sh, args: ['-c', exit 4]}]}")
    )
    assert 4 in job(2).get(timeout=60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "no YAML"),
        pytest.param(5000 * "[", "no YAML", id="deep"),
        ("just words", "must be a mapping"),
        ("type: dance", "the type is 'dance'"),
        ("{target: $f, speed: 3}", "a function has no speed"),
        ("type: process", "a process needs target"),
    ],
)
def test_a_file_without_a_valid_task_is_refused(batch: Batch, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        batch.import_func(describe(tmp_path, text))


def test_a_binary_file_is_refused(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "task.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(BatchError, match="no YAML"):
        batch.import_func(tmp_path / "task.yml")


def test_missing_and_surplus_arguments_of_a_file_are_refused(batch: Batch, tmp_path: Path) -> None:
    make = batch.import_func(describe(tmp_path, "{import_args: [f], target: $f, args: [$missing]}"), add)
    with pytest.raises(TypeError, match="missing"):
        make()
    with pytest.raises(TypeError, match="0 run_args"):
        make(1)


# ---- nothing is left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_signal(site: Site, number: signal.Signals) -> None:
    process = site.start(
        sys.executable,
        site.write("""
        import time
        from dragon.native.process import ProcessTemplate
        from dragon.workflows.batch import Batch

        if __name__ == "__main__":
            with Batch(workers_per_node=2) as batch:
                batch.function(time.sleep, 1000)
                batch.process(ProcessTemplate("sleep", ["1000"]))
                batch.job([(2, ProcessTemplate("sleep", ["1000"]))])
                print("ready", flush=True)
                batch.fence()
    """),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    site.assert_nothing_left()


def test_a_batch_without_references_ends_its_running_tasks(wait_until: Callable[[Callable[[], object]], None]) -> None:
    queue = Queue()
    own = Batch(workers_per_node=2)
    tasks = [own.function(announce_and_sleep, queue), own.process(ProcessTemplate(announce_and_sleep, (queue,)))]
    pids = [queue.get(timeout=60) for _ in tasks]
    del own, tasks
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_the_end_of_a_batch_waits_for_cancelled_processes() -> None:
    queue = Queue()
    with Batch(workers_per_node=1) as own:
        task = own.process(ProcessTemplate(announce_and_sleep, (queue,)))
        pid = queue.get(timeout=60)
        task.cancel(timeout=0)
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_does_not_close_its_batch_ends(site: Site) -> None:
    done = site.python("""
        from dragon.workflows.batch import Batch

        if __name__ == "__main__":
            batch = Batch(workers_per_node=2)
            print(batch.function(abs, -3).get())
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_a_batch_uses_all_nodes_of_the_run(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "2",
        site.write("""
        from dragon.native import Barrier
        from dragon.native.machine import current
        from dragon.native.process import ProcessTemplate
        from dragon.workflows.batch import Batch

        def where(barrier):
            barrier.wait(60)
            return current().h_uid

        if __name__ == "__main__":
            with Batch(workers_per_node=1) as batch:
                barrier = Barrier(2)
                tasks = [batch.function(where, barrier) for _ in range(2)]
                print(len({task.get() for task in tasks}), batch.topology().total_nodes)
                print(batch.job([(2, ProcessTemplate("true"))]).get())
                print(batch.process(ProcessTemplate("sleep", ["1000"]), timeout=0.2).cancel())
    """),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "2", "[0,", "0]", "True"]


def shared_tensor(value: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.full((3,), float(value)).share_memory_()


def sum_of(tensor: Any) -> float:
    return float(tensor.sum())


def test_several_tasks_can_read_a_result_in_shared_memory() -> None:
    pytest.importorskip("torch")
    batch = Batch()
    try:
        tensor = batch.function(shared_tensor, 4)
        readers = [batch.function(sum_of, tensor) for _ in range(3)]
        assert [reader.get(timeout=60) for reader in readers] == [12.0] * 3
        assert tensor.get(timeout=60).tolist() == [4.0] * 3
    finally:
        batch.join()
        batch.destroy()


def fail_with(value: Any) -> None:
    raise ValueError(value)


def fail_with_shared_tensor(value: int) -> None:
    fail_with(shared_tensor(value))


def test_an_error_with_a_tensor_in_shared_memory_can_be_read_repeatedly() -> None:
    pytest.importorskip("torch")
    with Batch() as batch:
        task = batch.function(fail_with_shared_tensor, 4)
        for _ in range(2):
            with pytest.raises(ValueError) as raised:
                task.get(timeout=60)
            assert raised.value.args[0].tolist() == [4.0] * 3


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_tasks_with_large_results_wait_for_memory(site: Site, nodes: str) -> None:
    program = site.write("""
        from dragon.workflows.batch import Batch

        def large(number):
            return bytes([number]) * 2**20

        def reverse(data):
            return data[::-1]

        if __name__ == "__main__":
            with Batch() as batch:
                first = [batch.function(large, number) for number in range(200)]
                second = [batch.function(reverse, task) for task in first]
                print(all(task.get()[0] == number for number, task in enumerate(second)))
    """)
    done = site.dragon("--nodes", nodes, program, env={"DRAGON_ARENA_SIZE": "64m"})
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_progress_says_how_far_the_tasks_are(alone: Batch, capsys: pytest.CaptureFixture[str]) -> None:
    alone.progress()
    tasks = [alone.function(add, 1) for _ in range(4)]
    failing = alone.function(fail, "now")
    alone.progress()
    assert all(task.done() for task in [*tasks, failing])
    sleeping = alone.function(time.sleep, 1000)
    with pytest.raises(TimeoutError, match="1 tasks have not ended"):
        alone.progress(timeout=0.5)
    sleeping.cancel()
    told = capsys.readouterr().err
    assert re.search(
        "0 of 0 tasks.*5 of 5 tasks: 0 run, 0 wait, 1 failed;.*5 of 6 tasks: 1 run, 0 wait, 1 failed;", told, re.DOTALL
    )


def test_a_task_says_what_it_waits_for_where_it_runs_and_how_it_ended(alone: Batch) -> None:
    begun, ends = Event(), Event()
    first = alone.options(name="first").function(set_and_wait, begun, ends)
    begun.wait(60)
    second = alone.function(len, first)
    third = alone.options(retries=1).function(fail, "twice")
    assert re.fullmatch(r"task 0-0 \(first\) runs in worker \d+ on .+\.", first.explain())
    assert second.explain() == "task 0-1 waits for the end of task 0-0 (first)."
    assert third.explain() == "task 0-2 waits for a worker; 1 of them run tasks."
    asking = alone.options(cpus=alone.num_workers).function(add, 1)
    assert re.match(r"task 0-3 waits for 1 CPU, after 1 other tasks; free: .* has ", asking.explain())
    ends.set()
    alone.fence()
    assert second.explain() == "task 0-1 has ended."
    assert third.explain() == "task 0-2 failed: KeyError: 'twice'. Tries before: KeyError: 'twice'."


def test_tasks_that_no_worker_has_begun_are_cancelled_alone(alone: Batch) -> None:
    begun, ends = Event(), Event()
    running = alone.function(set_and_wait, begun, ends)
    begun.wait(60)
    waiting = [alone.function(add, 1) for _ in range(100)]
    assert alone.cancel(running=False) == 100
    ends.set()
    assert running.get(60) == "waited"
    assert {type(task.exception) for task in waiting} == {TaskCancelledError}


def set_and_wait(begun: Any, ends: Any) -> str:
    begun.set()
    return wait_for(ends)


def test_a_task_is_cancelled_in_a_worker_whose_start_is_yet_to_be_reported(
    alone: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Process._begin

    def begin_late(process: Process) -> Any:
        started = begin(process)
        time.sleep(1)
        return started

    monkeypatch.setattr(Process, "_begin", begin_late)
    begun, ends = Event(), Event()
    lost = alone.function(kill_myself)
    task = alone.function(set_and_wait, begun, ends)
    begun.wait(60)
    assert task.cancel()
    assert isinstance(lost.exception, WorkerLostError)


def cancel_own(batch: Batch, queue: Any) -> None:
    tasks = [batch.function(time.sleep, 1000) for _ in range(20)]
    queue.put((batch.cancel(timeout=60), {type(task.exception) for task in tasks}))


def test_all_tasks_of_a_process_are_cancelled_together(batch: Batch, alone: Batch) -> None:
    tasks = [alone.function(time.sleep, 1000) for _ in range(1000)]
    assert alone.cancel(timeout=60) == 1000
    with pytest.raises(TaskCancelledError, match="all tasks of the process"):
        tasks[500].get()
    assert alone.function(add, 1, 2).get(60) == 3
    queue = Queue()
    process = Process(cancel_own, (batch, queue))
    process.start()
    other = batch.function(add, 3, 4)
    assert queue.get(timeout=60) == (20, {TaskCancelledError})
    assert other.get(60) == 7
    process.join()
