"""Where the values of the runtime's metrics come from: the node, and the run's processes and groups on it."""

from __future__ import annotations

from typing import Protocol

import psutil

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import PROCESS_STATES, Sample

__all__ = ["CoreSource", "GroupSource", "NodeSource", "ProcessSource", "Source"]


class Source(Protocol):
    """Something that can be measured, in a thread of its own."""

    name: str

    def read(self, seen: Seen) -> list[Sample]:
        """The values of this moment. What it raises means that there are none this time."""


class NodeSource:
    """The node as a whole."""

    name = "the node"

    def __init__(self) -> None:
        psutil.cpu_percent()  # it measures from one call to the next

    def read(self, seen: Seen) -> list[Sample]:
        """CPUs, memory, network and disks; the run's shared memory."""
        memory, swap, loads = psutil.virtual_memory(), psutil.swap_memory(), psutil.getloadavg()
        values: dict[str, float] = {
            "load_average": loads[0],
            "load_average_5m": loads[1],
            "load_average_15m": loads[2],
            "cpu_percent": psutil.cpu_percent(),
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
        psutil.cpu_percent(percpu=True)

    def read(self, seen: Seen) -> list[Sample]:
        """How busy they were since the last time."""
        busy = psutil.cpu_percent(percpu=True)
        return [Sample("cpu_core_percent", value, {"cpu": str(number)}) for number, value in enumerate(busy)]


class ProcessSource:
    """Each live process of the run."""

    name = "the processes"

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def read(self, seen: Seen) -> list[Sample]:
        """CPU since the last time, memory and state."""
        samples = []
        known = self._known
        self._known = {}
        for process in seen.processes:
            tags = {"puid": str(process.puid), "name": process.name}
            try:
                found = self._known[process.puid] = known.get(process.puid) or psutil.Process(process.pid)
                values = self._read(found)
            except psutil.Error:
                continue  # it has ended, or is about to
            if process.puid not in known:
                del values["process_cpu_percent"]  # it is measured from one time to the next
            samples += [Sample(name, value, tags) for name, value in values.items()]
        return samples

    @staticmethod
    def _read(process: psutil.Process) -> dict[str, float]:
        with process.oneshot():
            state = process.status()
            return {
                "process_cpu_percent": process.cpu_percent(),
                "process_memory": process.memory_info().rss,
                "process_state": PROCESS_STATES.index(state if state in PROCESS_STATES else "other"),
            }


class GroupSource:
    """The process groups that this agent follows, and what it keeps itself."""

    name = "the groups"

    def read(self, seen: Seen) -> list[Sample]:
        """Their live members, and how often one was started again."""
        samples = [Sample("db_size", seen.history)]
        for group in seen.groups:
            samples.append(Sample("group_live", group.live, {"group": group.name}))
            samples.append(Sample("group_restarts", group.restarts, {"group": group.name}))
        return samples
