"""What a node measures about itself, and how the readings of all nodes are shown."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pynvml
from tqdm import tqdm


@dataclass(frozen=True)
class Reading:
    """The load of one node at one moment: of its CPUs over a minute, and of each of its GPUs in percent."""

    node: str
    cpu_load: float
    devices: dict[int, float]

    def line(self) -> str:
        parts = [f"nodename: {self.node} cpu load average 1 minute: {self.cpu_load}"]
        parts += [f"device # {index} utilization: {percent:.2f}%" for index, percent in self.devices.items()]
        return " ".join(parts)

    def gauges(self) -> Iterator[tuple[str, float]]:
        yield f"{self.node} cpu load avg.", self.cpu_load
        for index, percent in self.devices.items():
            yield f"{self.node} device {index} util", percent


@dataclass(frozen=True)
class Progress:
    """One step done of a job that has `total` of them."""

    job: str
    total: int


Message: TypeAlias = Reading | Progress | str


def find_devices() -> dict[int, Any]:
    """Return the NVIDIA GPUs of this node that report their utilization, by index; none without a driver."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return {}
    return {index: handle for index in range(count) if (handle := _readable_device(index)) is not None}


def _readable_device(index: int) -> Any | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        # A GPU that is divided into instances (MIG) has no utilization of its own.
        pynvml.nvmlDeviceGetUtilizationRates(handle)
    except pynvml.NVMLError:
        return None
    return handle


def read_node(node: str, devices: dict[int, Any]) -> Reading:
    utilization = {index: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for index, handle in devices.items()}
    return Reading(node, round(os.getloadavg()[0], 2), utilization)


class LineDisplay:
    """Prints every reading on a line of its own."""

    def show(self, message: Message) -> None:
        if isinstance(message, Progress):
            return
        print(message.line() if isinstance(message, Reading) else message, flush=True)

    def close(self) -> None:
        pass


class BarDisplay:
    """Keep one bar per gauge and per job, with plain lines above them."""

    def __init__(self) -> None:
        self.bars: dict[str, tqdm[Any]] = {}

    def show(self, message: Message) -> None:
        if isinstance(message, Reading):
            for label, value in message.gauges():
                self._set(label, value)
        elif isinstance(message, Progress):
            self._bar(message.job, message.total).update()
        else:
            tqdm.write(message)

    def close(self) -> None:
        for bar in self.bars.values():
            bar.close()

    def _set(self, label: str, value: float) -> None:
        bar = self._bar(label, 100)
        bar.n = value
        bar.refresh()

    def _bar(self, label: str, total: int) -> tqdm[Any]:
        if label not in self.bars:
            # Lines go to standard output; bars on another stream could overtake them on the way to the terminal.
            self.bars[label] = tqdm(total=total, desc=label, file=sys.stdout)
        return self.bars[label]


def leave_interrupts_to_main() -> None:
    """Let Ctrl-C reach only the main process, which ends the others in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
