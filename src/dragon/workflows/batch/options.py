"""The options of a task."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from dragon.infrastructure.facts import PMIBackend
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.runtime.arguments import checked_seconds
from dragon.workflows.batch.call import NEVER, Access, Kind, Work, function_work, job_work, process_work
from dragon.workflows.batch.leftovers import Leaving
from dragon.workflows.batch.logs import checked_stream
from dragon.workflows.batch.task import Task


def _checked(name: str, accesses: Iterable[Access] | None) -> list[Access]:
    found = list(accesses) if isinstance(accesses, Iterable) else accesses or []
    if not isinstance(found, list) or not all(isinstance(one, Access) for one in found):
        raise TypeError(f"{name} must be a list of what Batch.read() and Batch.write() return, not {accesses!r}")
    return found


def _leaving(template: ProcessTemplate) -> ProcessTemplate:
    """Return a copy of the template whose processes are left running."""
    changed = copy.copy(template)
    changed.leave_running = True
    return changed


class Options:
    """The options of a task, with which it is submitted. Made by Batch.options()."""

    def __init__(
        self,
        submit: Callable[..., Task],
        reads: Iterable[Access] | None,
        writes: Iterable[Access] | None,
        name: str | None,
        timeout: float | None,
        stdout: Any,
        stderr: Any,
        pmi: PMIBackend | str | None,
        leave_running: bool,
    ) -> None:
        self._submit = submit
        self._accesses = [*_checked("reads", reads), *_checked("writes", writes)]
        timeout = checked_seconds("timeout", timeout)
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
        self._name = name or ""
        self._timeout = NEVER if timeout is None else timeout
        self._streams = checked_stream("stdout", stdout), checked_stream("stderr", stderr)
        self._pmi = pmi
        self._leaves = leave_running

    def function(self, target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Task:
        """Submit `target(*args, **kwargs)`. Raises what pickling raises, SubmitAfterCloseError after the end."""
        work = function_work(target, args, kwargs)
        if self._leaves:
            work = Leaving(target), args, kwargs
        return self._submitted(Kind.FUNCTION, work, 1, None)

    def process(self, process_template: ProcessTemplate) -> Task:
        """Submit a process, whose exit code is the result. Without a placement in its policy it runs on a node of the
        batch."""
        work = process_work(process_template)
        if self._leaves:
            work = process_work(_leaving(process_template))
        return self._submitted(Kind.PROCESS, work, 1, [process_template])

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
        work, weight = job_work(templates, self._pmi)
        if self._leaves:
            work, _ = job_work([(nproc, _leaving(template)) for nproc, template in templates], self._pmi)
        return self._submitted(
            Kind.JOB, work, weight, [template for nproc, template in templates for _ in range(nproc)]
        )

    def _submitted(self, kind: Kind, work: Work, weight: int, ranks: list[ProcessTemplate] | None) -> Task:
        return self._submit(kind, work, weight, ranks, self._accesses, self._name, self._timeout, self._streams)
