"""Users' queues and pools, read from the node's shared memory.

Processes do not report their queues to the agent: it looks for them among the arena's blocks, and reads the counters
that the queues have anyway. So a put and a get cost the same whether or not they are measured, and a process that is
killed in the middle of one disturbs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragon import _core
from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import Sample, Tags, tags_of
from dragon.runtime.log import runtime_log

if TYPE_CHECKING:
    from dragon._core import _Queue as State

__all__ = ["QueueSource"]

log = runtime_log("telemetry")

_MOST_QUEUES = 100
_MOST_BLOCKS = 2**18  # searched for new queues each time
# The operations in which processes of other nodes wait for an object of this node.
_GETS, _PUTS = {"Channel.get", "Channel._wait_readable"}, {"Channel.put"}


class _Queue:
    """A queue or pool: its tags, and the last values of its counters.

    A counter may change while it is read; a value below the last one is not reported.
    """

    def __init__(self, tags: Tags) -> None:
        self.tags = tags
        self._waits = {purpose: tags_of(**dict(tags), operation=purpose) for purpose in ("get", "put")}
        self._last = {"puts": 0, "gets": 0, "done": 0}

    def _counted(self, counter: str, value: int) -> int:
        self._last[counter] = max(self._last[counter], value)
        return self._last[counter]

    def of_queue(self, state: State, seen: Seen) -> list[Sample]:
        """Return a queue's size, its counters, and the number of processes that wait for it."""
        parked = [what for offset, what in seen.parked if offset == state["offset"]]
        getting = state["getting"] + sum(what in _GETS for what in parked)
        putting = state["putting"] + sum(what in _PUTS for what in parked)
        return [
            Sample("queue_depth", state["size"], self.tags),
            Sample("queue_bytes", state["bytes"], self.tags),
            Sample("queue_puts", self._counted("puts", state["taken"] + state["size"]), self.tags),
            Sample("queue_gets", self._counted("gets", state["taken"]), self.tags),
            Sample("queue_waiting", getting, self._waits["get"]),
            Sample("queue_waiting", putting, self._waits["put"]),
        ]

    def of_pool(self, state: State) -> list[Sample]:
        """Return the number of a pool's tasks and workers."""
        return [
            Sample("pool_tasks_waiting", state["size"], self.tags),
            Sample("pool_tasks_running", state["running"], self.tags),
            Sample("pool_tasks_done", self._counted("done", state["done"]), self.tags),
            Sample("pool_workers", max(state["attached"] - 1, 0), self.tags),  # the last attachment is not a worker's
        ]


class QueueSource:
    """The queues and pools of this node, at most a hundred."""

    name = "the queues"

    def __init__(self) -> None:
        self._next = 0
        self._offsets: list[int] = []
        self._known: dict[int, _Queue] = {}
        self._told = False

    def read(self, seen: Seen) -> list[Sample]:
        """Return the contents and counters of each queue and pool."""
        found, self._next = _core.find_queues(self._next, _MOST_BLOCKS)
        offsets = list(dict.fromkeys([*self._offsets, *found]))
        if len(offsets) > _MOST_QUEUES and not self._told:
            self._told = True
            log.warning("there are more than %d queues and pools; the others are not measured", _MOST_QUEUES)
        states = _core.queues(offsets[:_MOST_QUEUES])
        self._offsets = [state["offset"] for state in states]
        before, self._known = self._known, {}
        samples = []
        for state in states:
            number = state["number"]
            queue = self._known[number] = before.get(number) or _Queue(_tags(state, seen))
            samples += queue.of_pool(state) if "done" in state else queue.of_queue(state, seen)
        return samples


def _tags(state: State, seen: Seen) -> Tags:
    """Return the queue's number, and the id of the process that created it, with its name if it is alive on
    this node."""
    kind, maker = "pool" if "done" in state else "queue", state["maker"]
    tags: dict[str, object] = {kind: state["number"], "puid": maker}
    for process in seen.processes:
        if process.puid == maker:
            tags["name"] = process.name
    return tags_of(**tags)
