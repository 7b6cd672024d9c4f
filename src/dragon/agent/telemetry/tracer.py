"""Collects, for a trace of the run, what processes of this node wait for and do, their recent tasks, and their messages
to other nodes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from dragon import _core
from dragon.agent.services import Services
from dragon.infrastructure.metrics import NodeTasks, Span, Task, failed_or_longest, task_of, tasks_of
from dragon.runtime.log import runtime_log

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
        then the longest."""
        runs = [task for task in running if task.start <= end]
        ended = [span for span in self._tasks if span.end >= start and span.start <= end]
        told = [*runs[:most], *tasks_of(failed_or_longest(ended, max(most - len(runs), 0)))]
        return NodeTasks(self._node, told, len(runs) + len(ended), self._known_since, self.lost)


log = runtime_log("telemetry")

_COLLECT_INTERVAL_S = 0.05
_FLOW_BITS, _MESSAGE_BITS = 20, 24  # of a message's link; the node is above them


class Tracer:
    """Gives `store` the new spans periodically until it is closed. `names` are the names of tasks, by number."""

    def __init__(self, services: Services, names: list[str], store: Callable[[list[Span]], None]) -> None:
        self._services = services
        self._names = names
        self._store = store
        self._tasks = RecentTasks(services.run.node)
        self._messages: list[Span] = []
        self._next = 0
        self._lost = 0
        if not _core.tracing():  # else the run is traced since its start
            _, self._next, _ = _core.take_spans(0)
        _core.trace(True)
        self._watch(True)
        self._timer = services.loop.call_later(_COLLECT_INTERVAL_S, self._collect)

    def _watch(self, on: bool) -> None:
        links, remote = self._services.links, self._services.remote
        if links is not None and remote is not None:
            links.wire.trace(on)
            links.on_event |= {"Sent": self._on_sent, "Received": self._on_received}
            remote.on_operated = self._on_operated if on else None

    def _collect(self) -> None:
        self._timer = self._services.loop.call_later(_COLLECT_INTERVAL_S, self._collect)
        self._take()

    def _take(self) -> None:
        since_1970 = _since_1970()
        noted, self._next, lost = _core.take_spans(self._next)
        if lost and not self._lost:
            log.warning("processes wait and do tasks faster than they can be traced; some of it is missing")
        self._lost += lost
        spans, self._messages = self._messages, []
        for pid, thread, what, kind, which, start, end in noted:
            began, ended = since_1970 + start / 1e9, since_1970 + end / 1e9
            if what == "task":
                number, failed = task_of(which)
                span = Span(began, ended, pid, thread, what, self._names[number], failed=failed)
                self._tasks.add(span)
            else:
                span = Span(began, ended, pid, thread, what, f"{kind} {which:#x}")
            spans.append(span)
        self._tasks.lost = self._lost
        if spans:
            self._store(spans)

    def tasks_between(self, start: float, end: float, most: int) -> NodeTasks:
        """Return at most that many of the tasks that ran between two times (seconds since 1970), or run now."""
        self._take()  # first, as a task that ends now is no longer among those that run
        since_1970 = _since_1970()
        running = [
            Task(pid, since_1970 + begun / 1e9, None, self._names[task_of(which)[0]], False)
            for pid, _, _, _, which, begun, _ in _core.running_tasks()
        ]
        return self._tasks.between(start, end, most, running)

    # ---- what passes through the agent

    def _on_sent(self, event: _core.WireEvent) -> None:
        _, node, number, flow, _, _, _, size = event
        self._note_message("send", f"{size} bytes to {self._host(node)}", _link(node, flow, number))

    def _on_received(self, event: _core.WireEvent) -> None:
        _, node, number, flow, _, _, _, size = event
        link = _link(self._services.run.node, flow, number)
        self._note_message("receive", f"{size} bytes from {self._host(node)}", link)

    def _note_message(self, what: str, name: str, link: int) -> None:
        now = time.time()
        self._messages.append(Span(now, now, os.getpid(), 0, what, name, link))

    def _on_operated(self, caller: int, node: int, name: str, start: float) -> None:
        self._messages.append(Span(start, time.time(), caller, 0, "wait", f"{name} on {self._host(node)}"))

    def _host(self, node: int) -> str:
        assert self._services.links is not None
        return self._services.links.host_name(node)

    def close(self) -> None:
        self._timer.cancel()
        _core.trace(False)
        self._watch(False)
        self._take()


def _since_1970() -> float:
    """Return the time that the monotonic clock has at its zero, in seconds since 1970."""
    return time.time() - time.monotonic()


def _link(node: int, flow: int, number: int) -> int:
    """Return a number that is the same where a message is sent and where it arrives, from its destination and flow."""
    low = flow % (1 << _FLOW_BITS) << _MESSAGE_BITS | number % (1 << _MESSAGE_BITS)
    return (node + 1) << (_FLOW_BITS + _MESSAGE_BITS) | low
