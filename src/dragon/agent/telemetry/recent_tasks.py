"""The newest tasks that processes of a node have run, and those that they run now."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dragon.infrastructure.spans import NodeTasks, Span, Task, failed_or_longest, tasks_of

__all__ = ["RecentTasks"]

_MOST = 16_384  # some 4 MB, and some 10 ms of CPU to choose among them


class RecentTasks:
    """The newest tasks of a node, at most 16,384. `lost` is how many tasks or waits were not recorded."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._tasks: deque[Span] = deque(maxlen=_MOST)
        self._known_since = 0.0
        self.lost = 0

    def add(self, span: Span) -> None:
        """Keep a task. If there are too many, the oldest is dropped."""
        if len(self._tasks) == _MOST:
            self._known_since = max(self._known_since, self._tasks[0].end)
        self._tasks.append(span)

    def between(self, start: float, end: float, most: int, running: Sequence[Task] = ()) -> NodeTasks:
        """Return at most that many of the tasks that ran between two times: those of `running`, then those that failed,
        then the longest.
        """
        runs = [task for task in running if task.start <= end]
        ended = [span for span in self._tasks if span.end >= start and span.start <= end]
        told = [*runs[:most], *tasks_of(failed_or_longest(ended, max(most - len(runs), 0)))]
        return NodeTasks(self._node, told, len(runs) + len(ended), self._known_since, self.lost)
