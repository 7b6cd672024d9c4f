"""A task, as the process that submitted it sees it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dragon.infrastructure.facts import PMIBackend
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.runtime.arguments import checked_seconds
from dragon.workflows.batch.call import NEVER, Access, Kind, Output, function_work, job_work, process_work
from dragon.workflows.batch.client import Client
from dragon.workflows.batch.conditions import Demand, InEnvironment, RetryPolicy, checked_variables
from dragon.workflows.batch.errors import TaskNotReadyError
from dragon.workflows.batch.leftovers import Leaving
from dragon.workflows.batch.logs import checked_stream, read_files
from dragon.workflows.batch.outcome import Failure, Promise


class Home(Protocol):
    """The batch of a task, which is kept alive by its tasks."""

    _client: Client


class Task:
    """A unit of work that a batch runs: made by Batch.function(), process() and job().

    As an argument of another task it stands for its result. Sent to another process in any other way it is the same
    task there, as long as the process that submitted it keeps it.

    Attributes:
        kind: whether it runs a function, a process or a job.
        name: the name that it was given, or "".
        weight: its number of ranks; 1 for a function and a process.
        output: where its output goes.

    Examples:
        >>> from dragon.workflows.batch import Batch
        >>> with Batch(workers_per_node=1) as batch:
        ...     task = batch.options(name="power").function(pow, 2, 10)
        ...     task.get(timeout=60), task.name, task.done()
        (1024, 'power', True)
    """

    __slots__ = ("__weakref__", "_batch", "_promise", "kind", "name", "output", "weight")

    def __init__(self, batch: Home, promise: Promise, kind: Kind, name: str, weight: int, output: Output) -> None:
        self._batch = batch
        self._promise = promise
        self.kind = kind
        self.name = name
        self.weight = weight
        self.output = output

    @property
    def uid(self) -> str:
        """Its name in the batch: "client-number"; the process that made the batch is client 0."""
        client, number = self._promise.key
        return f"{client}-{number}"

    def get(self, block: bool = True, timeout: float | None = NEVER) -> Any:
        """Return the result: a function's value; the exit code of a process, or of a job of one rank; a list of the
        exit codes of a job's ranks, including those that were ended because another one failed.

        Raises the exception of the function; TaskNotReadyError (a TimeoutError) if the task has not ended within
        `timeout` seconds, or at once without `block`; TaskCancelledError if it or a task that it needs was cancelled;
        TimeoutError if it exceeded its own timeout; WorkerLostError if its worker died; ReadAfterWriteDependencyError
        if a task that it depends on failed; and RuntimeError after the end of the batch for a result that was not
        fetched before.
        """
        self._wait(block, timeout)
        promise = self._promise
        assert promise.outcome is not None
        promise.fetched = True
        return promise.outcome.get()

    def _wait(self, block: bool, timeout: float | None) -> None:
        if not self._promise.wait(timeout if block else 0):
            after = f" within {timeout} s" if block else ""
            raise TaskNotReadyError(f"{self!r} has not ended{after}")

    def cancel(self, timeout: float | None = 10.0) -> bool:
        """Cancel the task, and end it if it runs. Returns whether it was cancelled, and has ended, within `timeout`
        seconds.

        Returns False for a task that has ended already. Tasks that need its result are cancelled with it.
        """
        return self._batch._client.cancel(self._promise, timeout)

    def done(self) -> bool:
        """Return whether it has ended, successfully or not."""
        return self._promise.outcome is not None

    @property
    def traceback(self) -> str | None:
        """The text of the exception that it raised, with the worker's traceback; None if it raised none, or has not
        ended."""
        outcome = self._promise.outcome
        return outcome.text if isinstance(outcome, Failure) else None

    @property
    def exception(self) -> BaseException | None:
        """The exception that it raised; None if it raised none, or has not ended."""
        outcome = self._promise.outcome
        return outcome.error() if isinstance(outcome, Failure) else None

    def explain(self) -> str:
        """Return in a sentence what the task waits for, where it runs, or how it ended, with its tries so far.

        Raises BatchError in another process than the one that made the batch.
        """
        return self._batch._client.explain(self._promise)

    def log_paths(self) -> dict[str, str | list[str] | None]:
        """Return the files of its output by "stdout" and "stderr": None for none, a list by rank for several."""
        return {"stdout": _one_or_all(self.output.stdout), "stderr": _one_or_all(self.output.stderr)}

    @property
    def stdout_path(self) -> str | None:
        """The file of its stdout, for a job that of rank 0; None if there is none."""
        return self.output.stdout[0] if self.output.stdout else None

    @property
    def stderr_path(self) -> str | None:
        """The file of its stderr, for a job that of rank 0; None if there is none."""
        return self.output.stderr[0] if self.output.stderr else None

    def get_stdout(
        self, block: bool = True, timeout: float | None = NEVER, encoding: str | None = "utf-8"
    ) -> str | bytes | None:
        """Return what it wrote to stdout, for a job of all ranks in order; as bytes if `encoding` is None.

        Returns None if its output is in no file: Batch(task_logs=True) keeps that of every task. Raises
        TaskNotReadyError if it has not ended, as get() does.
        """
        return self._read(self.output.stdout, block, timeout, encoding)

    def get_stderr(
        self, block: bool = True, timeout: float | None = NEVER, encoding: str | None = "utf-8"
    ) -> str | bytes | None:
        """Return what it wrote to stderr, as get_stdout() does for stdout."""
        return self._read(self.output.stderr, block, timeout, encoding)

    def _read(self, paths: list[str], block: bool, timeout: float | None, encoding: str | None) -> str | bytes | None:
        self._wait(block, timeout)
        if not paths:
            return None
        data = read_files(paths)
        return data if encoding is None else data.decode(encoding, errors="replace")

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<Task {self.uid}{named}>"

    def __reduce__(self) -> tuple[object, ...]:
        self._batch._client.export(self._promise)
        return _restore, (self._batch, self._promise.key, self.kind, self.name, self.weight, self.output)


class Function(Task):
    """A task that calls a function: made by Batch.function().

    Examples:
        >>> from dragon.workflows.batch import Batch, Function
        >>> with Batch(workers_per_node=1) as batch:
        ...     task = batch.function(pow, 2, 10)
        ...     isinstance(task, Function), task.get(timeout=60)
        (True, 1024)
    """

    __slots__ = ()


class Job(Task):
    """A task that runs a process, or the ranks of a job: made by Batch.process() and Batch.job().

    Examples:
        >>> from dragon.native.process import ProcessTemplate
        >>> from dragon.workflows.batch import Batch, Job
        >>> with Batch(workers_per_node=1) as batch:
        ...     task = batch.process(ProcessTemplate("true"))
        ...     isinstance(task, Job), task.get(timeout=60)
        (True, 0)
    """

    __slots__ = ()


def task_of(kind: Kind) -> type[Task]:
    """Return the class of tasks of that kind."""
    return Function if kind == Kind.FUNCTION else Job


def _one_or_all(paths: list[str]) -> str | list[str] | None:
    return list(paths) if len(paths) > 1 else next(iter(paths), None)


def _restore(batch: Home, key: tuple[int, int], kind: Kind, name: str, weight: int, output: Output) -> Task:
    return task_of(kind)(batch, batch._client.known(key), kind, name, weight, output)


def _checked(name: str, accesses: Iterable[Access] | None) -> list[Access]:
    found = list(accesses) if isinstance(accesses, Iterable) else accesses or []
    if not isinstance(found, list) or not all(isinstance(one, Access) for one in found):
        raise TypeError(f"{name} must be a list of what Batch.read() and Batch.write() return, not {accesses!r}")
    return found


class Options:
    """The options of a task, with which it is submitted. Made by Batch.options().

    As a decorator it makes a function submit itself: each call returns a task.
    """

    def __init__(
        self,
        submit: Callable[..., Task],
        reads: Iterable[Access] | None,
        writes: Iterable[Access] | None,
        name: str | None,
        timeout: float | None,
        stdout: object,
        stderr: object,
        pmi: PMIBackend | str | None,
        leave_running: bool = False,
        retry: RetryPolicy | None = None,
        env: object = None,
        key: str | None = None,
        demand: Demand | None = None,
    ) -> None:
        self._submit = submit
        self.accesses: list[Access] = []
        for kind, accesses in (("reads", reads), ("writes", writes)):
            if accesses is not None:
                self.accesses += _checked(kind, accesses)
        self.name, self.timeout = name or "", NEVER
        if timeout is not None:
            self.timeout = checked_seconds("timeout", timeout)
            if not self.timeout > 0:
                raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
        if not isinstance(key, str | None):
            raise TypeError(f"key must be a text, not {key!r}")
        self.retry, self.key, self._variables, self.demand = retry, key, checked_variables(env), demand
        self.streams = (
            None if stdout is None else checked_stream("stdout", stdout),
            None if stderr is None else checked_stream("stderr", stderr),
        )
        self._pmi = pmi
        self._leaves = leave_running

    def function(self, target: Callable[..., Any], /, *args: object, **kwargs: object) -> Task:
        """Submit `target(*args, **kwargs)`. Raises what pickling raises, SubmitAfterCloseError after the end."""
        work = function_work(target, args, kwargs)
        if self._variables:
            target = InEnvironment(target)
            target.variables = self._variables
        if self._leaves:
            target = Leaving(target)
        return self._submit(Kind.FUNCTION, (target, *work[1:]), 1, None, self)

    def __call__(self, target: Callable[..., Any]) -> Callable[..., Task]:
        """Return a function that submits `target` with its arguments."""
        function_work(target, (), {})
        return functools.wraps(target)(functools.partial(self.function, target))

    def process(self, process_template: ProcessTemplate) -> Task:
        """Submit a process, whose exit code is the result. Without a placement in its policy it runs on a node of the
        batch."""
        process_work(process_template)
        return self._submit(Kind.PROCESS, process_work(self._own(process_template)), 1, [process_template], self)

    def job(self, process_templates: Iterable[tuple[int, ProcessTemplate]]) -> Task:
        """Submit processes that run together: pairs of (number, template). If one fails, the others are ended.

        Raises RuntimeError for an unavailable `pmi`, TypeError and ValueError for other than such pairs.
        """
        ProcessGroup(pmi=self._pmi)  # raises for an unavailable backend
        if not isinstance(process_templates, Iterable):
            raise TypeError(
                f"a job is described by a list of (number of processes, template), not {process_templates!r}"
            )
        templates = list(process_templates)
        job_work(templates, self._pmi)
        work, weight = job_work([(nproc, self._own(template)) for nproc, template in templates], self._pmi)
        ranks = [template for nproc, template in templates for _ in range(nproc)]
        return self._submit(Kind.JOB, work, weight, ranks, self)

    def _own(self, template: ProcessTemplate) -> ProcessTemplate:
        """Return the template with what the options say of it."""
        if not self._leaves and not self._variables:
            return template
        changed = copy.copy(template)
        changed.leave_running = self._leaves or template.leave_running
        changed.env = {**(template.env or {}), **self._variables}
        return changed
