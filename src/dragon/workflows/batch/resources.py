"""What tasks ask for, and which node of a batch has it for them.

A batch whose tasks ask for nothing needs none of this: its workers share one queue. With the first task that does, each
node gets a queue of its own, into which a task is put when what it asks for is free there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.workflows.batch.call import Kind
from dragon.workflows.batch.conditions import Demand, Share
from dragon.workflows.batch.order import Entry, Places, State

_IN_A_ROW = 3  # tasks that fail on a node before it is paused
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0
_LOOKED_AT = 64  # waiting tasks that may be placed before the first of them


_NOTHING = Demand()


class NodeResources:
    """A node of a batch: what is free there.

    Args:
        node: the node.
        workers: the number of its workers.
    """

    def __init__(self, node: NodeDescriptor, workers: int) -> None:
        self.host, self.index = node.host_name, node.index
        self.workers = workers  # workers that run
        self.paused = False  # whether it gets no tasks for a while; see FailingNodes
        self._busy = 0  # those with a task
        # More workers than CPUs share them: nobody is bound to the numbers below 0.
        self._cpus = [*node.cpus, *range(-1, len(node.cpus) - workers - 1, -1)]
        self._gpus = [*node.gpus]
        self._memory = node.physical_mem
        self.all = Demand(len(self._cpus), len(self._gpus), self._memory, self.host)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs there."""
        return len(self._cpus) == self.all.cpus and not self._busy

    @property
    def has_worker(self) -> bool:
        """Whether a worker there waits for a task."""
        return self._busy < self.workers and not self.paused

    def rank(self, demand: Demand) -> tuple[bool, int]:
        """Return how well the node suits, the smallest first: GPUs are kept for who needs them, the load is spread."""
        return bool(self._gpus) and not demand.gpus, -len(self._cpus)

    def may(self, demand: Demand) -> bool:
        """Return whether the demand fits, were nothing else there."""
        return self.workers > 0 and not self.paused and _fits(demand, self.all)

    def fits(self, demand: Demand) -> bool:
        """Return whether the demand fits now."""
        return _fits(demand, self.free)

    @property
    def free(self) -> Demand:
        """What nobody has."""
        return Demand(len(self._cpus), len(self._gpus), self._memory, self.host)

    def begin(self, busy: int = 1) -> None:
        """Note that a worker has a task, or with -1 that it has none any more."""
        self._busy += busy

    def take(self, demand: Demand) -> Share:
        """Return a share, which is free no longer."""
        count = demand.cpus or 1
        cpus, self._cpus = self._cpus[:count], self._cpus[count:]
        gpus, self._gpus = self._gpus[: demand.gpus], self._gpus[demand.gpus :]
        self._memory -= demand.memory
        return Share(self.host, tuple(cpus), tuple(gpus), demand.memory)

    def give_back(self, share: Share) -> None:
        """Let others have a share."""
        self._cpus = sorted([*self._cpus, *share.cpus], key=lambda cpu: (cpu < 0, cpu))
        self._gpus = sorted([*self._gpus, *share.gpus])
        self._memory += share.memory


def _fits(demand: Demand, there: Demand) -> bool:
    named = demand.node in ("", there.node)
    return named and (demand.cpus or 1) <= there.cpus and demand.gpus <= there.gpus and demand.memory <= there.memory


class FailingNodes:
    """The nodes, by index in the run, where one task after another fails: they are `paused`, as a node whose disk is
    full would fail tasks faster than others run them. When the pause is over, a node is paused for twice as long as
    soon as another task fails there."""

    def __init__(self) -> None:
        self.paused: set[int] = set()
        self._failed: dict[int, int] = {}  # how many tasks have failed in a row
        self._limits: dict[int, int] = {}  # how many may, where that is not _IN_A_ROW
        self._pauses: dict[int, float] = {}  # the last pause, in seconds

    @property
    def watches(self) -> bool:
        """Whether the next success on some node counts."""
        return bool(self._failed)

    def failed(self, node: int, before: Collection[int]) -> float:
        """Note that a task has failed on a node, and before on others. Returns for how many seconds the node is paused
        from now on; 0 if it is not."""
        for other in {*before} - {node}:  # then it is the task
            if self._failed.pop(other, 0) and other in self.paused:
                self.paused.remove(other)
                self._limits[other] = 2 * self._limits.get(other, _IN_A_ROW)
        if node in before or node in self.paused:
            return 0.0
        self._failed[node] = self._failed.get(node, 0) + 1
        if self._failed[node] < self._limits.get(node, _IN_A_ROW):
            return 0.0
        self.paused.add(node)
        self._pauses[node] = min(2 * self._pauses.get(node, _FIRST_PAUSE_S / 2), _LONGEST_PAUSE_S)
        return self._pauses[node]

    def succeeded(self, node: int) -> None:
        """Note that a task has succeeded on a node."""
        for known in (self._failed, self._pauses):
            known.pop(node, None)
        self.paused.discard(node)

    def end_pause(self, node: int) -> None:
        """Let a node have tasks again."""
        if node in self.paused:
            self.paused.remove(node)
            self._failed[node] = self._limits.get(node, _IN_A_ROW) - 1


class Allocator:
    """The nodes of a batch, and the tasks that wait for a part of one; in place of `Places`.

    The first task that waits is the next that runs where it may: a node is kept for it, or all of them for a job, until
    it fits. So small tasks do not let a large one wait for ever.
    """

    def __init__(self, nodes: Sequence[NodeResources], before: Places) -> None:
        self.nodes = nodes
        self._slots, self._most_jobs = before.free_slots(), before.most_jobs
        self._jobs = 0  # jobs that run
        self._waiting: deque[Entry] = deque()
        self._alone: Entry | None = None  # a job with more ranks than there are CPUs

    def refusal(self, entry: Entry) -> str:
        """Return why a task can never run here; empty if it can."""
        demand, ranks = _wanted(entry)
        there = [node for node in self.nodes if node.workers]
        if demand.node and all(node.host != demand.node for node in there):
            return f"no node of the batch is called {demand.node!r}; there is {', '.join(node.host for node in there)}"
        if entry.kind == Kind.JOB and demand == _NOTHING:
            return ""
        most = sum(_times(demand, node.all) for node in there)
        if most >= ranks:
            return ""
        sizes = "; ".join(f"{node.host} has {node.all}" for node in there[:8])
        return f"{entry} needs {_worded(demand, ranks)}, and {sizes or 'no node is left'}"

    def lacking(self, entry: Entry) -> str:
        """Return what a task waits for that is ready."""
        demand, ranks = _wanted(entry)
        free = "; ".join(f"{node.host} has {node.free}" for node in self.nodes[:8] if node.workers)
        return f"{_worded(demand, ranks)}, after {self._waiting.index(entry)} other tasks; free: {free}"

    def pause(self, indices: Collection[int]) -> list[int]:
        """Give these nodes of the run no tasks, unless there are no others. Returns the places in `nodes` of those."""
        every = {node.index for node in self.nodes if node.workers} <= {*indices}
        for node in self.nodes:
            node.paused = node.index in indices and not every
        return [place for place, node in enumerate(self.nodes) if node.paused]

    def wait(self, entry: Entry) -> None:
        """Add a task that waits for its share."""
        self._waiting.append(entry)

    def next(self) -> Entry | None:
        """Return a task that gets a slot and its share now; None if none waits, or none can. Ended ones are skipped."""
        if self._alone is not None or not any(node.has_worker for node in self.nodes):
            return None
        before: list[Entry] = []
        refused: set[tuple[Demand, int]] = set()
        kept: NodeResources | None = None
        first = found = None
        while self._waiting and len(before) < _LOOKED_AT:
            entry = self._waiting.popleft()
            if entry.state != State.READY:
                continue
            if _wanted(entry) not in refused and self._place(entry, kept):
                found = entry
                break
            before.append(entry)
            if entry.kind == Kind.JOB and self._jobs == self._most_jobs:
                continue  # it waits for another job, and needs nothing until then
            refused.add(_wanted(entry))
            if first is None:
                first = entry
                if entry.kind == Kind.JOB:
                    break
                demand = entry.demand or _NOTHING
                kept = min((r for r in self.nodes if r.may(demand)), key=lambda node: node.rank(demand), default=None)
        self._waiting.extendleft(reversed(before))
        return found

    def _place(self, entry: Entry, kept: NodeResources | None) -> bool:
        if entry.kind == Kind.JOB and self._jobs == self._most_jobs:
            return False
        demand, ranks = _wanted(entry)
        nodes = sorted(
            (node for node in self.nodes if node is not kept and not node.paused), key=lambda node: node.rank(demand)
        )
        shares: list[tuple[NodeResources, Share]] = []
        worker = next((node for node in nodes if node.has_worker and node.fits(demand)), None)
        if worker is not None:
            for node in (worker, *(node for node in nodes if node is not worker)):
                while len(shares) < ranks and node.fits(demand):
                    shares.append((node, node.take(demand)))
        if len(shares) < ranks:
            for node, share in shares:
                node.give_back(share)
            if self.refusal(entry) or demand != _NOTHING or not all(node.is_idle for node in self.nodes):
                return False
            # More ranks than CPUs: they share all of them, alone.
            there = [node for node in self.nodes if node.workers]
            worker, shares = there[0], [(there[n % len(there)], Share("", (), (), 0)) for n in range(ranks)]
            self._alone = entry
        assert worker is not None
        worker.begin()
        self._jobs += entry.kind == Kind.JOB
        entry.node = self.nodes.index(worker)
        entry.shares = [share._replace(host=node.host) for node, share in shares]
        entry.slot = self._slots.pop()
        return True

    def hold(self, entry: Entry, node: int) -> None:
        """Note that a task that was sent before resources were allocated runs on this node."""
        entry.node, entry.shares = node, [self.nodes[node].take(_NOTHING)]
        self.nodes[node].begin()
        self._jobs += entry.kind == Kind.JOB

    def leave(self, entry: Entry) -> None:
        """Free the slot of a task, and its share."""
        self._slots.append(entry.slot)
        entry.slot = -1
        if entry is self._alone:
            self._alone = None
        by_host = {node.host: node for node in self.nodes}
        for share in entry.shares:
            by_host[share.host].give_back(share)
        if entry.node >= 0:
            self.nodes[entry.node].begin(-1)
            self._jobs -= entry.kind == Kind.JOB
        entry.shares, entry.node = [], -1


def _worded(demand: Demand, ranks: int) -> str:
    return f"{ranks} times " * (ranks > 1) + str(demand._replace(cpus=demand.cpus or 1))


def _wanted(entry: Entry) -> tuple[Demand, int]:
    return entry.demand or _NOTHING, entry.weight if entry.kind == Kind.JOB else 1


def _times(demand: Demand, there: Demand) -> int:
    """Return how many ranks with this demand fit a node at a time."""
    if not _fits(demand, there):
        return 0
    times = [there.cpus // (demand.cpus or 1)]
    if demand.gpus:
        times.append(there.gpus // demand.gpus)
    if demand.memory:
        times.append(there.memory // demand.memory)
    return min(times)
