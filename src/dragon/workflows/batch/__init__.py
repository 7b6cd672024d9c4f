"""Functions, programs and jobs as tasks that depend on each other, run by long-lived workers.

- A task starts when the tasks have ended whose results it takes, and those that access the same data before it.
- The exception of a task is raised by its `get()`; the `get()` of each task that needs its result, or the data that it
  should have written, raises ReadAfterWriteDependencyError.
- A cancelled task that has not started never runs; a running one is ended.
- When a worker dies, only the task that it was running fails. A new worker replaces it.
- The process that made the batch schedules the tasks. Every process that received the batch can submit to it as well.
"""

from __future__ import annotations

from types import ModuleType

from dragon.lazy_modules import submodule
from dragon.workflows.batch.batch import Batch
from dragon.workflows.batch.call import Access
from dragon.workflows.batch.crew import BatchTopology
from dragon.workflows.batch.descriptor import MakeTask
from dragon.workflows.batch.errors import (
    BatchError,
    ReadAfterWriteDependencyError,
    SubmitAfterCloseError,
    TaskCancelledError,
    TaskNotReadyError,
)
from dragon.workflows.batch.task import Function, Job, Task

__all__ = [
    "Access",
    "Batch",
    "BatchError",
    "BatchTopology",
    "Function",
    "Job",
    "MakeTask",
    "ReadAfterWriteDependencyError",
    "SubmitAfterCloseError",
    "Task",
    "TaskCancelledError",
    "TaskNotReadyError",
]


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
