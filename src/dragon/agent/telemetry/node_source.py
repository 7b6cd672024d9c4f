"""The node as a whole, and each of its CPUs."""

from __future__ import annotations

from typing import Any

import psutil

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import Sample, tags_of

__all__ = ["CoreSource", "NodeSource"]


class NodeSource:
    """The node as a whole."""

    name = "the node"

    def __init__(self) -> None:
        self._times = psutil.cpu_times()

    def read(self, seen: Seen) -> list[Sample]:
        """Return the use of CPUs, memory, network, disks and the run's shared memory."""
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
        """Return the utilization of each CPU since the last call."""
        before, self._times = self._times, psutil.cpu_times(percpu=True)
        busy = map(_busy, before, self._times)
        return [Sample("cpu_core_percent", value, tags_of(cpu=number)) for number, value in enumerate(busy)]


def _busy(before: Any, now: Any) -> float:
    """Return the CPU utilization in percent between two readings.

    psutil's own measure is kept for each thread, and this is called from changing threads.
    """
    passed = [later - earlier for earlier, later in zip(before, now, strict=True)]
    # The time of guests is contained in that of users.
    whole = sum(passed) - (now.guest - before.guest) - (now.guest_nice - before.guest_nice)
    idle = now.idle - before.idle + now.iowait - before.iowait
    return min(max(100 * (whole - idle) / whole, 0.0), 100.0) if whole > 0 else 0.0
