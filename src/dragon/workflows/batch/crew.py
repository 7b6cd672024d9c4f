"""The workers of a batch, and the processes that they start for its tasks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragon.infrastructure.errors import ProcessError, RunEndedError
from dragon.infrastructure.policy import Policy
from dragon.native.feeding import Workers
from dragon.native.process import Process
from dragon.native.workers import MOST_TICKETS, pass_on_end
from dragon.runtime import placement, processes
from dragon.runtime.agent_client import ask
from dragon.runtime.handle import Channel, Words
from dragon.runtime.nodes import run_nodes
from dragon.runtime.placement import one_warning
from dragon.runtime.protocol.groups import SignalGroup
from dragon.workflows.batch.resources import NodeResources
from dragon.workflows.batch.worker import GROUP, MOVES, Plan, Setting, work

if TYPE_CHECKING:
    from dragon.native.feeding import WorkerProcess


@dataclass(frozen=True)
class BatchTopology:
    """The nodes of a batch. There is a pool of workers on each node.

    Attributes:
        total_nodes: the number of nodes.
        scheduler_hostname: the node of the process that made the batch.
        manager_hostnames: the nodes, one for each pool.
        pool_hostnames: the nodes of each pool.
        workers_per_pool: the number of workers of each pool.

    Examples:
        >>> from dragon.workflows.batch import Batch
        >>> with Batch(workers_per_node=2) as batch:
        ...     topology = batch.topology()
        >>> topology.total_workers == 2 * topology.total_nodes
        True
    """

    total_nodes: int
    scheduler_hostname: str
    manager_hostnames: Sequence[str]
    pool_hostnames: Sequence[Sequence[str]]
    workers_per_pool: Sequence[int]

    @property
    def total_managers(self) -> int:
        """The number of pools plus one for the scheduler."""
        return len(self.manager_hostnames) + 1

    @property
    def total_workers(self) -> int:
        """The number of workers of all pools."""
        return sum(self.workers_per_pool)

    def __str__(self) -> str:
        pools = ", ".join(
            f"{' '.join(hosts)}: {workers} workers"
            for hosts, workers in zip(self.pool_hostnames, self.workers_per_pool, strict=True)
        )
        return f"batch on {self.total_nodes} nodes, scheduler on {self.scheduler_hostname}; {pools}"


LOST, NO_WORKER, WORKERS = 2, 3, 4
"""The types of the messages that a worker has died while it had a task, that no worker is left, and that a worker could
not be replaced, or could be after all."""


class Crew:
    """The workers of a plan."""

    def __init__(self, plan: Plan, tasks: Channel, events: Channel, claims: Words) -> None:
        self._tasks, self._queues, self._nodes_of = tasks, list[Channel](), list[int]()
        self._away: set[int] = set()
        policies = [*plan.policies]
        self._started: dict[int, Process] = {}
        self._size = len(policies)
        self._doing = Words(self._size)
        setting = Setting(tasks, events, claims, self._doing, plan)
        members = placement.members("batch", policies)

        def start(index: int) -> WorkerProcess:
            own = setting._replace(tasks=self._queues[self._nodes_of[index]]) if self._queues else setting
            try:
                with placement.as_member(members[index]):
                    process = Process(work, (index, own), policy=policies[index], _kind="batch_worker")
                    worker = process._begin()
                    self._started[index] = process
            except Exception:
                if index not in self._away:
                    self._away.add(index)
                    events.put((WORKERS, index))
                raise
            if index in self._away:
                self._away.remove(index)
                events.put((WORKERS, index))
            return worker

        def lost(number: int, error: BaseException) -> None:
            events.put((LOST, number, error))

        def gave_up(error: BaseException) -> None:
            events.put((NO_WORKER, error))

        self._policies = policies
        with one_warning():
            self._workers = Workers(self._size, start, lost, gave_up, self._pass_on_end, self._doing)

    def queue(self, node: int) -> Channel:
        """Return the queue of the workers of a node; with -1 that of all."""
        return self._tasks if node < 0 else self._queues[node]

    def node_of(self, worker: int) -> int:
        """Return the node of a worker."""
        return self._nodes_of[worker]

    def host_of(self, worker: int) -> int:
        """Return the index in the run of a worker's node."""
        return self._started[worker].node

    def name_of(self, host: int) -> str:
        """Return the name of a node, by its index in the run; it may be lost."""
        return next((node.host_name for node in run_nodes() if node.index == host), f"node {host}")

    def has_others(self, host: int) -> bool:
        """Return whether workers were started on other nodes too."""
        return any(self.host_of(worker) != host for worker in range(self._size))

    def workers_of(self, node: int) -> int:
        """Return how many workers of a node run, or are about to be replaced."""
        return sum(at == node and index not in self._away for index, at in enumerate(self._nodes_of))

    def divide(self) -> list[NodeResources]:
        """Give each node a queue of its own, where its workers take their tasks from now on. Returns the nodes; a node
        that is lost is none of them."""
        nodes = {node.index: node for node in run_nodes()}
        workers = [self._started[index].node for index in range(self._size)]
        found = [node for node in dict.fromkeys(workers) if node in nodes]
        self._nodes_of = [found.index(node) if node in nodes else -1 for node in workers]
        self._queues = [Channel() for _ in found]
        for index, node in enumerate(workers):
            if node in nodes:  # where those stay that take the places of these
                here = Policy(placement=Policy.Placement.HOST_NAME, host_name=nodes[node].host_name)
                self._policies[index] = Policy.merge(self._policies[index], here)
            # Each worker that takes one takes nothing more from this queue.
            self._tasks._put_task((0, 0, MOVES, self._queues, self._nodes_of), 0)
        return [NodeResources(nodes[node], self.workers_of(at)) for at, node in enumerate(found)]

    def _pass_on_end(self) -> None:
        for queue in (self._tasks, *self._queues):
            pass_on_end(queue)

    def task_of(self, worker: int) -> int:
        """Return the number of the task that a worker is running; 0 if none, or if it is dead."""
        return self._doing[worker]

    def running(self) -> int:
        """Return how many workers run a task."""
        return sum(0 < number < MOST_TICKETS for number in map(self._doing.__getitem__, range(self._size)))

    def describe(self, worker: int) -> str:
        """Return words for a worker: its pid and its node."""
        host, pid = self.place_of(worker)
        return f"worker {pid} on {host}"

    def place_of(self, worker: int) -> tuple[str, int | None]:
        """Return the name of a worker's node, and its pid; None if it has none yet."""
        return self.name_of(self.host_of(worker)), self._workers.current(worker).pid

    def end_worker(self, index: int) -> Callable[[], None]:
        """Send SIGTERM to a worker; another replaces it. Returns a function that kills it if it has not ended."""
        worker = self._workers.current(index)
        worker.terminate()

        def kill() -> None:
            if worker.is_alive():
                worker.kill()

        return kill

    def end_processes(self, running: tuple[int, int]) -> Callable[[], None]:
        """Send SIGTERM to a task's process or group. Returns a function that sends SIGKILL."""
        _signal(running, signal.SIGTERM)
        return lambda: _signal(running, signal.SIGKILL)

    def finish(self, timeout: float | None) -> bool:
        """Let the workers end when they have done all submitted tasks. Returns whether they have within `timeout`
        seconds."""
        self._pass_on_end()
        return self._workers.join(timeout)

    def stop_replacing(self) -> None:
        """Stop replacing workers that end."""
        self._workers.stop_replacing()

    def terminate(self, patience: float = 5.0) -> None:
        """End the workers now: with SIGTERM, and SIGKILL after `patience` seconds."""
        self._workers.terminate(patience)


def _signal(running: tuple[int, int], number: signal.Signals) -> None:
    what, name = running
    with suppress(ProcessError, LookupError, RuntimeError, RunEndedError):  # it has ended, and possibly the run
        if what == GROUP:
            ask(SignalGroup(name, int(number)))
        else:
            processes.kill(name, number)
