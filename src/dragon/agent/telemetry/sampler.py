"""The sources of measurements of a node, and the sampler that reads them periodically without waiting for any."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import psutil

from dragon import _core
from dragon.agent.telemetry.gpu_source import gpu_source
from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import PROCESS_STATES, Sample, Tags, tags_of
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.run import Known

if TYPE_CHECKING:
    from dragon._core import _Queue as State


_SHARE = 0.0025  # of a core, for reading; storing the values takes nearly as much again
_FIRST_CPU_S = 0.003  # seconds of CPU for the first reading
_LEAST, _MOST = 8, 2000
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATES = {b"R": 0, b"S": 1, b"I": 1, b"D": 2, b"T": 3, b"t": 3}
_OTHER = PROCESS_STATES.index("other")


class _Process:
    """A process when it was last read: its CPU time in seconds, and the time of the reading."""

    def __init__(self, process: Known) -> None:
        self.pid = process.pid
        # One node follows a group. On the others, its name is known only from its members' names: NAME-RANK.
        self.group = process.name.rpartition("-")[0] if process.group else ""
        self.tags = tags_of(puid=process.puid, name=process.name)
        self.read_at = 0.0
        self.cpu = 0.0
        self.percent = 0.0
        self.memory = 0

    def read(self) -> list[Sample]:
        """Return CPU use since the last call, memory and state. Raises OSError if the process has ended."""
        fd = os.open(f"/proc/{self.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 1024)
        finally:
            os.close(fd)
        now = time.monotonic()
        fields = text[text.rindex(b")") + 2 :].split(b" ", 22)  # the name may contain spaces and parentheses
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        self.memory = int(fields[21]) * _PAGE
        samples = [
            Sample("process_memory", self.memory, self.tags),
            Sample("process_state", _STATES.get(fields[0], _OTHER), self.tags),
        ]
        if self.read_at:  # CPU use is measured from one reading to the next
            self.percent = 100 * (cpu - self.cpu) / (now - self.read_at)
            samples.append(Sample("process_cpu_percent", self.percent, self.tags))
        self.read_at, self.cpu = now, cpu
        return samples


class ProcessSource:
    """As many live processes of the run as there is time for, among the first two thousand, in turn."""

    name = "the processes"

    def __init__(self) -> None:
        self._known: dict[int, _Process] = {}  # those to be read next come first
        self._asked_at = 0.0

    def read(self, seen: Seen) -> list[Sample]:
        """Return what the processes read this time use, and the last known sums of each group."""
        live = {process.puid: process for process in seen.processes[:_MOST]}
        self._known = {puid: process for puid, process in self._known.items() if puid in live}
        self._known |= {puid: _Process(process) for puid, process in live.items() if puid not in self._known}
        return [*self._read_those_in_turn(), *self._sums()]

    def _read_those_in_turn(self) -> list[Sample]:
        now = time.monotonic()
        share = _SHARE * (now - self._asked_at) if self._asked_at else _FIRST_CPU_S
        self._asked_at = now
        end = time.thread_time() + share
        samples = []
        for count, (puid, process) in enumerate(list(self._known.items())):
            if count >= _LEAST and time.thread_time() > end:
                break
            self._known[puid] = self._known.pop(puid)
            try:
                samples += process.read()
            except OSError:
                continue  # it has ended, or is about to
        return samples

    def _sums(self) -> list[Sample]:
        percent: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for process in self._known.values():
            if process.group and process.read_at:
                percent[process.group] += process.percent  # type: ignore[assignment]
                memory[process.group] += process.memory
        return [
            sample
            for group in memory
            for sample in (
                Sample("group_cpu_percent", percent[group], tags_of(group=group)),
                Sample("group_memory", memory[group], tags_of(group=group)),
            )
        ]


class NodeSource:
    """The node as a whole."""

    name = "the node"

    def __init__(self) -> None:
        self._times = psutil.cpu_times()

    def read(self, seen: Seen) -> list[Sample]:
        before, self._times = self._times, psutil.cpu_times()
        memory, swap, loads = psutil.virtual_memory(), psutil.swap_memory(), psutil.getloadavg()
        values: dict[str, float] = {
            "load_average": loads[0],
            "load_average_5m": loads[1],
            "load_average_15m": loads[2],
            "cpu_percent": _busy(before, self._times),
            "used_RAM": memory.percent,
            "memory_used": memory.used,
            "swap_used": swap.used,
            "num_running_processes": len(seen.processes),
            "arena_used": seen.arena_used,
            "def_pool_utilization": 100 * seen.arena_used / seen.arena_limit,
        }
        cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        values["network_sent"] = sum(card.bytes_sent for card in cards)
        values["network_received"] = sum(card.bytes_recv for card in cards)
        disks = psutil.disk_io_counters()
        if disks is not None:  # a container may see none
            values["disk_read"], values["disk_written"] = disks.read_bytes, disks.write_bytes
        return [Sample(name, value) for name, value in values.items()]


class CoreSource:
    """Each of the node's CPUs."""

    name = "the CPUs"

    def __init__(self) -> None:
        self._times = psutil.cpu_times(percpu=True)

    def read(self, seen: Seen) -> list[Sample]:
        before, self._times = self._times, psutil.cpu_times(percpu=True)
        busy = map(_busy, before, self._times)
        return [Sample("cpu_core_percent", value, tags_of(cpu=number)) for number, value in enumerate(busy)]


def _busy(before: psutil._ntp.scputimes, now: psutil._ntp.scputimes) -> float:
    passed = [later - earlier for earlier, later in zip(before, now, strict=True)]
    # The time of guests is contained in that of users.
    whole = sum(passed) - (now.guest - before.guest) - (now.guest_nice - before.guest_nice)
    idle = now.idle - before.idle + now.iowait - before.iowait
    return min(max(100 * (whole - idle) / whole, 0.0), 100.0) if whole > 0 else 0.0


_MOST_QUEUES = 100
_MOST_BLOCKS = 2**18  # searched for new queues each time
# The operations in which processes of other nodes wait for an object of this node.
_GETS, _PUTS = {"Channel.get", "Channel.wait_readable"}, {"Channel.put"}


class _Queue:
    """A queue or pool: its tags, and the last values of its counters. A counter may change while it is read; a value
    below the last one is not reported."""

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
    """Return the queue's number and place, and the id of its creator, with its name if it is alive on this node."""
    number = {"pool" if "done" in state else "queue": state["number"]}
    names = [("name", process.name) for process in seen.processes if process.puid == state["maker"]]
    return tags_of(**number, puid=state["maker"], place=state["place"], **dict(names))


class Source(Protocol):
    """Something that can be measured, in a thread of its own."""

    name: str

    def read(self, seen: Seen) -> list[Sample]:
        """Return the current values. An exception means that there are none this time."""


def sources_of(level: int) -> list[Source]:
    found: list[Source] = []
    if level >= 2:
        found.append(NodeSource())
    gpus = gpu_source(level) if level >= 3 else None
    if gpus is not None:
        found.append(gpus)
    if level >= 4:
        found += [CoreSource(), ProcessSource(), QueueSource()]
    return found


log = runtime_log("telemetry")

_SAMPLE_TIMEOUT_S = 10.0
_FIRST_SAMPLE_S = 0.1  # seconds over which the first load of the CPUs is measured


class Sampler:
    """Reads what `look` returns and all sources that have answered every `period` seconds, and gives the values to
    `store`."""

    def __init__(
        self, sources: list[Source], period: float, look: Callable[[], Seen], store: Callable[[list[Sample]], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sources = sources
        self._period = period
        self._look = look
        self._store = store
        self._asked: dict[Source, tuple[float, asyncio.Task[None]]] = {}
        self._told: set[tuple[str, str]] = set()
        # Not the loop's own threads, because the loop would wait for their end.
        self._threads = ThreadPoolExecutor(len(sources), "telemetry")
        self._timer = self._loop.call_later(min(period, _FIRST_SAMPLE_S), self._ask)

    def _ask(self) -> None:
        now = self._loop.time()
        self._timer = self._loop.call_later(self._period, self._ask)
        seen = self._look()
        if seen.samples:
            self._store(seen.samples)
        for source in self._sources:
            if source in self._asked:
                waited = now - self._asked[source][0]
                if waited > _SAMPLE_TIMEOUT_S:
                    self._tell(source, "hangs", f"have not been measured for {waited:.0f} s; they are waited for")
            else:
                self._asked[source] = now, self._loop.create_task(self._measure(source, seen))

    async def _measure(self, source: Source, seen: Seen) -> None:
        try:
            self._store(await self._loop.run_in_executor(self._threads, source.read, seen))
        except Exception as error:
            self._tell(source, type(error).__name__, f"cannot be measured: {error!r}")
        del self._asked[source]

    def _tell(self, source: Source, what: str, text: str) -> None:
        if (source.name, what) not in self._told:
            self._told.add((source.name, what))
            log.warning("%s %s", source.name, text)

    def close(self) -> None:
        """Stop. Values that are still being read are dropped."""
        self._timer.cancel()
        for _, task in self._asked.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
