"""The batch, to which tasks are submitted."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import util as mp_util
from pathlib import Path
from types import NoneType
from typing import Any, Self

from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy
from dragon.lazy_modules import name_of_package
from dragon.native.process import ProcessTemplate
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.handle import Channel, Words
from dragon.runtime.nodes import own_node, run_nodes
from dragon.workflows.batch.call import NEVER, Access, Call, Kind, Output, Streams, Work, access, describe, packed
from dragon.workflows.batch.client import Client, OtherClient, OwnClient, wait_all
from dragon.workflows.batch.conditions import Demand, RetryPolicy
from dragon.workflows.batch.crew import BatchTopology, Crew
from dragon.workflows.batch.descriptor import MakeTask
from dragon.workflows.batch.errors import BatchError
from dragon.workflows.batch.journal import Journal, digest
from dragon.workflows.batch.logs import Logs, checked_stream, output_of, read_files
from dragon.workflows.batch.outcome import Failure, Promise
from dragon.workflows.batch.progress import Counts, Line
from dragon.workflows.batch.scheduler import Scheduler
from dragon.workflows.batch.table import TaskTable
from dragon.workflows.batch.task import Options, Task, task_of
from dragon.workflows.batch.worker import Plan

_batches: weakref.WeakValueDictionary[Any, Batch] = weakref.WeakValueDictionary()


class Batch:
    """Runs functions, programs and jobs as tasks, each as soon as the tasks that it depends on have ended.

    Args:
        num_nodes: the number of nodes of the run to use (default, and maximum: all).
        workers_per_node: how many tasks run on a node at a time (default: its CPUs that the run may use).
        journal: a file that keeps the results of tasks. The same program started again, with the same file, takes from
            there what is done, and runs the rest.
        table: a CSV file that is made anew and gets a line for each task that has ended: its outcome, times and place.
        scheduler_workers: the largest number of jobs that run at a time (default: as many as there are workers for
            their ranks; one is always permitted).
        managed_lifecycle: whether the batch stays after join(), until destroy() is called.
        stdout, stderr: where the output of tasks goes that do not set it themselves: a file to append to, in whose name
            `{rank}` is replaced by the rank in a job; Popen.DEVNULL; for stderr Popen.STDOUT; None: as that of this
            program.
        task_logs: whether the output of every task is kept in files; a path is the folder for them.
        pool_nodes, disable_telem, results_ddict_mem, results_ddict_managers_per_pool: accepted and unused; results are
            in the memory of the processes that hold their tasks.

    As a context manager it is joined at the end of the block, and terminated after an exception. It may be sent to
    other processes of the run, which may submit to it too. Raises ValueError for numbers out of range, TypeError for
    what are not numbers.

    Examples:
        >>> from dragon.native.process import ProcessTemplate
        >>> from dragon.workflows.batch import Batch
        >>> with Batch(workers_per_node=2) as batch:
        ...     numbers = batch.function(divmod, 7, 2)
        ...     total = batch.function(sum, numbers)  # when that has its result
        ...     codes = batch.job([(2, ProcessTemplate("true"))])
        ...     total.get(), codes.get()
        (4, [0, 0])
    """

    def __init__(
        self,
        num_nodes: int | None = None,
        pool_nodes: int | None = None,
        disable_telem: bool = False,
        scheduler_workers: int | None = None,
        results_ddict_mem: int | None = None,
        results_ddict_managers_per_pool: int = 4,
        managed_lifecycle: bool = False,
        stdout: object = None,
        stderr: object = None,
        task_logs: bool | str | os.PathLike[str] = False,
        *,
        workers_per_node: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        table: str | os.PathLike[str] | None = None,
    ) -> None:
        numbers = (num_nodes, workers_per_node, scheduler_workers)
        num_nodes, workers_per_node, scheduler_workers = numbers = tuple(map(plain_number, numbers))
        for name, number in zip(("num_nodes", "workers_per_node", "scheduler_workers"), numbers, strict=True):
            if not isinstance(number, (int, NoneType)):
                raise TypeError(f"{name} must be a whole number, or None, not {number!r}")
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        self._streams = checked_stream("stdout", stdout), checked_stream("stderr", stderr)
        self._managed = managed_lifecycle
        nodes = run_nodes()
        chosen = nodes[: num_nodes or len(nodes)]
        hosts = [(node.host_name, workers_per_node or node.num_cpus) for node in chosen]
        self._topology = BatchTopology(
            len(hosts),
            own_node().host_name,
            tuple(host for host, _ in hosts),
            tuple((host,) for host, _ in hosts),
            tuple(count for _, count in hosts),
        )
        self._logs = Logs.make(task_logs) if task_logs else None
        policies = [
            Policy(placement=Policy.Placement.HOST_NAME, host_name=host) for host, count in hosts for _ in range(count)
        ]
        some = () if len(chosen) == len(nodes) else tuple(host for host, _ in hosts)
        crew = functools.partial(Crew, Plan([*policies], hosts=some))
        with contextlib.ExitStack() as opened:
            rows = None if table is None else opened.enter_context(contextlib.closing(TaskTable(table)))
            kept = None if journal is None else opened.enter_context(contextlib.closing(Journal(journal)))
            make = functools.partial(Scheduler, crew, len(policies), scheduler_workers, journal=kept, table=rows)
            own = OwnClient(make)
            opened.pop_all()  # the scheduler closes them
        self._journals = kept is not None
        own.destroyed = functools.partial(_destroy, weakref.ref(self))
        self._own: OwnClient | None = own
        self._client: Client = own
        self._events = own.scheduler.events
        self._clients = Words(1)
        self._cleared = False
        self._promises: weakref.WeakSet[Promise] = weakref.WeakSet()
        self._end = mp_util.Finalize(self, _end, (own,), exitpriority=15)
        _batches[self._events._name()] = self

    # ---- submitting

    def options(
        self,
        reads: Iterable[Access] | None = None,
        writes: Iterable[Access] | None = None,
        name: str | None = None,
        timeout: float | None = NEVER,
        stdout: object = None,
        stderr: object = None,
        pmi: PMIBackend | str | None = PMIBackend.AUTO,
        leave_running: bool = False,
        *,
        retries: int = 0,
        retry_on: object = Exception,
        backoff: float = 0.0,
        env: Mapping[str, str] | None = None,
        key: str | None = None,
        cpus: int | None = None,
        gpus: int = 0,
        memory: int | str = 0,
        on_node: str | None = None,
    ) -> Options:
        """Return options, to submit a task with them by `.function()`, `.process()` or `.job()`.

        Args:
            reads, writes: the data it accesses, from read() and write(): it waits for tasks submitted before that write
                the same data, and if it writes also for those that read it.
            name: appears in messages and in the manifest of the logs.
            timeout: seconds for which it may run; then it is ended, and its outcome is a TimeoutError.
            stdout, stderr: where its output goes, as for the batch.
            pmi: how the ranks of a job find each other, as for a ProcessGroup; None for programs without MPI.
            leave_running: whether processes that it started and left running stay: those of a function until its worker
                ends, those of a process until the run ends. Otherwise they are ended with it.
            retries: how often it is tried again after an error, an exit code other than 0, or its timeout. With at
                least one it is also run again when its worker or its node is lost, which is not counted.
            retry_on: the exceptions after which it is tried again, or the exit codes: one, or several.
            backoff: seconds before the first retry, doubled for each further one.
            env: environment variables that it finds.
            key: what it is called in the journal, in place of what its function and arguments say.
            cpus, gpus, memory: what it has to itself on its node, or each rank of a job: CPUs, to which it is bound
                (default: 1); GPUs, or the parts of them that the run may use; bytes, or a size such as "2G": a function
                or a process that takes more is ended with a MemoryError.
            on_node: the host name of the node where it runs.

        Raises TypeError and ValueError for a wrong value.
        """
        retry = RetryPolicy.checked(retries, retry_on, backoff)
        return Options(
            self._submit, reads, writes, name, timeout, stdout, stderr, pmi, leave_running,
            retry if retry.retries else None, env, key, Demand.checked(cpus, gpus, memory, on_node),
        )  # fmt: skip

    def function(
        self,
        target: Callable[..., Any],
        /,
        *args: object,
        reads: Iterable[Access] | None = None,
        writes: Iterable[Access] | None = None,
        name: str | None = None,
        timeout: float | None = NEVER,
        stdout: object = None,
        stderr: object = None,
        **kwargs: object,
    ) -> Task:
        """Submit `target(*args, **kwargs)`: short for options() and function()."""
        return Options(self._submit, reads, writes, name, timeout, stdout, stderr, None).function(
            target, *args, **kwargs
        )

    def process(
        self,
        process_template: ProcessTemplate,
        reads: Iterable[Access] | None = None,
        writes: Iterable[Access] | None = None,
        name: str | None = None,
        timeout: float | None = NEVER,
        stdout: object = None,
        stderr: object = None,
    ) -> Task:
        """Submit a process, whose exit code is the result: short for options() and process()."""
        return self.options(reads, writes, name, timeout, stdout, stderr).process(process_template)

    def job(
        self,
        process_templates: Iterable[tuple[int, ProcessTemplate]],
        reads: Iterable[Access] | None = None,
        writes: Iterable[Access] | None = None,
        name: str | None = None,
        timeout: float | None = NEVER,
        pmi: PMIBackend | str | None = PMIBackend.AUTO,
        stdout: object = None,
        stderr: object = None,
    ) -> Task:
        """Submit processes that run together: short for options() and job()."""
        return self.options(reads, writes, name, timeout, stdout, stderr, pmi).job(process_templates)

    def _submit(
        self, kind: Kind, work: Work, weight: int, ranks: list[ProcessTemplate] | None, options: Options
    ) -> Task:
        work, inputs = describe(kind, work, Task, self._promise_of)
        named, name = b"", options.name
        if self._journals:
            named = digest(kind, work, (one.digest for one in inputs), options.key)
        data, buffers, handles = packed(work, options.retry is not None)
        if handles and self._own is None:
            raise BatchError(
                "a task with retries that takes handles of shared objects can be submitted only by the process that "
                "made the batch"
            )
        stdout, stderr = options.streams
        stdout = self._streams[0] if stdout is None else stdout
        stderr = self._streams[1] if stderr is None else stderr
        key = self._client.next_key()
        if self._logs is not None:
            files = self._logs.streams(f"{key[0]}-{key[1]}", kind == Kind.JOB)
            stdout, stderr = files[0] if stdout is None else stdout, files[1] if stderr is None else stderr
        output = _NO_OUTPUT
        if ranks or stdout is not None or stderr is not None:
            output = output_of((stdout, stderr), ranks)
        call = Call(
            kind, data, buffers, [*inputs], options.accesses, name, options.timeout, output.streams, weight,
            options.retry, named, handles, options.demand,
        )  # fmt: skip
        promise = self._client.submit(key, call)
        promise.digest = named
        self._promises.add(promise)
        task = task_of(kind)(self, promise, kind, name, weight, output)
        if self._logs is not None:
            self._logs.note(task.uid, name, kind.name.lower(), output)
        return task

    def _promise_of(self, task: Task) -> Promise:
        if task._batch is not self:
            raise BatchError(f"{task!r} is a task of another batch: give its result, task.get(), as the argument")
        return task._promise

    def read(self, obj: object, *channels: object) -> Access:
        """Return an access for `reads`: to a folder and files in it, one file, a DDict and keys of it, or any hashable
        object and parts of it.

        Without parts it is all of an object; but a folder does not include the files in it.
        """
        return access(obj, channels, writes=False)

    def write(self, obj: object, *channels: object) -> Access:
        """Return an access for `writes`; the arguments are those of read()."""
        return access(obj, channels, writes=True)

    def import_func(self, ptd_file: str | os.PathLike[str], *args: object, **kwargs: object) -> MakeTask:
        """Return a function that submits the task that a YAML file describes; the arguments are the values of the
        file's `import_args`.

        Raises OSError if the file cannot be read, BatchError if it does not describe a task.
        """
        return MakeTask(self.options, ptd_file, args, kwargs)

    # ---- waiting

    def fence(self, timeout: float | None = NEVER) -> None:
        """Wait until all tasks that this process has submitted have ended. Raises TimeoutError after `timeout`
        seconds."""
        left = wait_all(self._client.unfinished(), timeout)
        if left:
            raise TimeoutError(f"{left} tasks have not ended after {timeout} s")

    def progress(self, timeout: float | None = NEVER) -> None:
        """Wait as fence() does, with a line on stderr that says how many tasks have ended, run, wait and failed, at
        which rate, and how long the rest takes. Raises TimeoutError after `timeout` seconds."""
        timeout = checked_seconds("timeout", timeout)
        end = None if timeout is None else time.monotonic() + timeout
        line: Line | None = None
        while True:
            unfinished = self._client.unfinished()
            left = len(unfinished)
            running = min(self._client.running(), left)
            failed = self._client.failed
            counts = Counts(self._client.submitted - left - failed, running, left - running, failed)
            line = line or Line(counts)
            pause = _PROGRESS_S if end is None else min(_PROGRESS_S, end - time.monotonic())
            line.show(counts, last=not left or pause <= 0)
            if not left:
                return
            if pause <= 0:
                raise TimeoutError(f"{left} tasks have not ended after {timeout} s")
            wait_all(unfinished, pause)

    def poll(self, timeout: float | None = NEVER) -> str | None:
        """Return the uid of a task of this process that has ended, each once, in the order of their ends.

        Returns None if none ends within `timeout` seconds. The last million ends that were not polled are kept.
        """
        index = self._client.ended.take(timeout)
        return None if index is None else f"{self._client.number}-{index}"

    def cancel(self, timeout: float | None = 10.0, *, running: bool = True) -> int:
        """Cancel all tasks of this process that have not ended; without `running`, those that no worker has begun.
        Returns how many were cancelled, and have ended, within `timeout` seconds.

        Those that wait are cancelled before those that run, so that no worker begins another one meanwhile.
        """
        gone = self._client.cancel_all(running)
        return len(gone) - wait_all(gone, timeout)

    def clear_results(self) -> None:
        """Wait for all tasks of this process, and drop their results. get() of those not fetched raises BatchError
        afterwards."""
        self.fence()
        self._drop_results(BatchError("the result was dropped by clear_results()"))

    def _drop_results(self, error: Exception) -> None:
        """Let get() raise `error` for tasks whose results were not fetched."""
        for promise in list(self._promises):
            if not promise.fetched:
                promise.outcome = Failure.of(error)
        self._promises.clear()

    def topology(self) -> BatchTopology:
        """Return the nodes and workers of the batch."""
        return self._topology

    @property
    def client_id(self) -> int:
        """The number of this process among those that submit to the batch, the first part of its tasks' uids."""
        return self._client.number

    @property
    def num_workers(self) -> int:
        """The number of tasks that run at a time."""
        return self._topology.total_workers

    @property
    def num_managers(self) -> int:
        """The number of pools of workers (one per node) plus one for the scheduler."""
        return self._topology.total_managers

    # ---- ending

    def join(self, timeout: float | None = NEVER) -> None:
        """Wait for all tasks, and end the batch. With a managed lifecycle, and in a process that received the batch,
        only the tasks of this process are waited for, and the batch stays.

        Raises TimeoutError after `timeout` seconds; the batch then continues. With the batch end results that were not
        fetched: get() of those raises RuntimeError. With a managed lifecycle they stay.
        """
        if self._own is None or self._managed:
            self.fence(timeout)
            self._client.close()
        elif not self._own.is_over:
            self._finish(self._own, timeout)
            self._drop_results(RuntimeError(_NOT_FETCHED))

    def _finish(self, own: OwnClient, timeout: float | None) -> None:
        timeout = checked_seconds("timeout", timeout)
        end = time.monotonic() + (NEVER if timeout is None else timeout)
        while unfinished := own.scheduler.unfinished():
            left = wait_all(list(unfinished), max(0.0, end - time.monotonic()))
            if left:
                raise TimeoutError(f"{left} tasks of the batch have not ended after {timeout} s")
        own.close()
        own.scheduler.finish()
        self._end()

    def close(self) -> None:
        """Do nothing; it exists for programs that call it before join()."""

    def destroy(self, timeout: float | None = NEVER, force_timeout: float | None = None) -> None:
        """End a batch with a managed lifecycle when all tasks of all processes have ended; does nothing if it has
        ended.

        After `timeout` seconds it raises TimeoutError, or with `force_timeout` terminates them within that time. Any
        process that has the batch may call it, also after join(). Raises RuntimeError for a batch without a managed
        lifecycle that has not ended.
        """
        if not self._managed:
            if self._client.is_over:
                return
            raise RuntimeError("destroy() is for a Batch(managed_lifecycle=True); join() ends this one")
        if self._own is None:
            self._client.destroy(checked_seconds("timeout", timeout), force_timeout)
            return
        if self._own.is_over:
            return
        try:
            self._finish(self._own, timeout)
        except TimeoutError:
            if force_timeout is None:
                raise
            self.terminate(timeout=force_timeout)

    def terminate(self, *, timeout: float = 5.0) -> None:
        """Cancel all tasks and end the batch now; what does not end on SIGTERM is killed after `timeout` seconds.

        In a process that received the batch, only its own tasks are cancelled.
        """
        timeout = checked_seconds("timeout", timeout)
        if self._own is None:
            for promise in self._client.unfinished():
                self._client.cancel(promise, timeout)
            self._client.close()
            return
        self._own.close()
        self._own.scheduler.terminate(timeout)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.join()
        else:
            self.terminate()

    # ---- logs

    def _kept_logs(self) -> Logs:
        if self._logs is None:
            raise RuntimeError("the batch keeps no logs: make it with Batch(task_logs=True)")
        return self._logs

    def log_dir(self) -> Path:
        """Return the folder with the output of all tasks. Raises RuntimeError without task_logs, as the other methods
        of logs do."""
        return self._kept_logs().folder

    def log_manifest_path(self) -> Path:
        """Return the path of a file with a line of JSON for each task: tuid, name, task_kind, and the lists of the
        files of stdout and stderr by rank."""
        return self._kept_logs().manifest

    def iter_log_records(self) -> list[dict[str, Any]]:
        """Return the records of the manifest."""
        return self._kept_logs().records()

    def find_logs(self, tuid: str) -> dict[str, Any] | None:
        """Return the record of one task, by its uid; None if there is none."""
        return next((record for record in self.iter_log_records() if record["tuid"] == tuid), None)

    def read_logs(self, tuid: str, log_type: str | None = None, encoding: str = "utf-8") -> dict[str, str | None]:
        """Return the output of a task by "stdout" and "stderr"; the one that is not the `log_type` is None.

        Raises KeyError for an unknown task, ValueError for another log_type.
        """
        record = self.find_logs(tuid)
        if record is None:
            raise KeyError(f"no task {tuid!r} in {self.log_manifest_path()}")
        if log_type not in (None, "stdout", "stderr"):
            raise ValueError(f'log_type must be "stdout" or "stderr", not {log_type!r}')
        return {
            name: read_files(record[name]).decode(encoding, errors="replace") if log_type in (None, name) else None
            for name in ("stdout", "stderr")
        }

    # ---- in other processes

    def __reduce__(self) -> tuple[object, ...]:
        settings = (self._streams, self._managed, self._journals)
        return _restore, (self._events, self._clients, self._topology, self._logs, *settings)


_PROGRESS_S = 0.2  # seconds between two looks at the progress
_NO_OUTPUT = Output((None, None), [], [])
_NOT_FETCHED = (
    "the result was not fetched before join() ended the batch: get() it before, or make a "
    "Batch(managed_lifecycle=True) and destroy() it afterwards"
)


def _destroy(made: weakref.ref[Batch], timeout: float | None, force_timeout: float | None) -> None:
    """End the batch at the request of another process."""
    batch = made()
    if batch is not None:
        batch.destroy(timeout, force_timeout)


def _restore(
    events: Channel, clients: Words, topology: BatchTopology, logs: Logs | None, *settings: *tuple[Streams, bool, bool]
) -> Batch:
    known = _batches.get(events._name())
    if known is not None:
        return known
    batch = Batch.__new__(Batch)
    batch._own, batch._events, batch._clients = None, events, clients
    batch._topology, batch._logs = topology, logs
    batch._streams, batch._managed, batch._journals = settings
    batch._promises = weakref.WeakSet()
    batch._client = OtherClient(clients.add(0, 1) + 1, events)
    _batches[events._name()] = batch
    return batch


def _end(own: OwnClient) -> None:
    """End what is left of a batch when it is joined or garbage collected."""
    own.close()
    own.tell_end()
    own.scheduler.end()


def __getattr__(name: str) -> Any:
    return name_of_package("dragon.workflows.batch", __name__, name)  # programs import all of the package's from here
