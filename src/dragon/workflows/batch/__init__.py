"""Functions, programs and jobs as tasks that depend on each other, run by long-lived workers.

- A task starts when the tasks whose results it takes have ended, and those whose data it reads or overwrites.
- What a task raised is raised by its `get()`; that of every task that needs its result, or the data it should have
  written, raises ReadAfterWriteDependencyError.
- A task that was not started is cancelled at once and never runs; one that runs is ended.
- A worker that dies costs the one task that it had. Its place is taken by a new one.
- The process that made the batch keeps the order. Every process that was sent the batch can submit to it as well.
"""

from __future__ import annotations

from types import ModuleType

from dragon.infrastructure.lazy_modules import submodule
from dragon.workflows.batch.access import Access
from dragon.workflows.batch.batch import Batch
from dragon.workflows.batch.descriptor import MakeTask
from dragon.workflows.batch.errors import (
    BatchError,
    ReadAfterWriteDependencyError,
    SubmitAfterCloseError,
    TaskCancelledError,
    TaskNotReadyError,
)
from dragon.workflows.batch.task import Task
from dragon.workflows.batch.topology import BatchTopology

__all__ = [
    "Access",
    "Batch",
    "BatchError",
    "BatchTopology",
    "MakeTask",
    "ReadAfterWriteDependencyError",
    "SubmitAfterCloseError",
    "Task",
    "TaskCancelledError",
    "TaskNotReadyError",
]


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
