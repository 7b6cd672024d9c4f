"""GPUs, through the library of their driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from dragon.agent.telemetry.amd import AmdDriver
from dragon.agent.telemetry.gpu_driver import Driver, measured
from dragon.agent.telemetry.intel import IntelDriver
from dragon.agent.telemetry.nvidia import NvidiaDriver
from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.gpus import Gpus, find_gpus
from dragon.infrastructure.metrics import Sample, tags_of
from dragon.runtime.log import runtime_log

__all__ = ["GpuSource", "driver_of", "gpu_source"]

log = runtime_log("telemetry")

_DRIVERS: dict[str, Callable[[], Driver]] = {
    "nvidia": NvidiaDriver,
    "amd": AmdDriver,
    "intel": IntelDriver,
}


def gpu_source(level: int) -> GpuSource | None:
    """Return the source for the GPUs that this node may use, None if none can be measured."""
    gpus = find_gpus()
    if gpus.vendor not in _DRIVERS or not gpus.numbers:
        return None
    return GpuSource(gpus, driver_of(gpus.vendor), with_processes=level >= 4)


def driver_of(vendor: str) -> Driver:
    """Return the driver of a vendor's GPUs, which is not open yet."""
    return _DRIVERS[vendor]()


class GpuSource:
    """The GPUs that the job may use, and the GPU memory of the run's processes. A failure is logged once."""

    name = "the GPUs"

    def __init__(self, gpus: Gpus, driver: Driver, with_processes: bool = False) -> None:
        self._gpus = gpus
        self._driver = driver
        self._with_processes = with_processes
        self._devices: dict[str, Any] | None = None
        self._told: set[tuple[str, str]] = set()
        self._failures: dict[tuple[str, str], list[str]] = defaultdict(list)

    def _open(self) -> dict[str, Any]:
        try:
            self._driver.open()
        except ImportError as error:
            log.warning("the GPUs are not measured: %s; %s", error, self._driver.remedy)
            return {}
        except Exception as error:  # the driver's own exceptions, which exist only with the library
            log.warning("the GPUs are not measured: the driver says %s", error)
            return {}
        devices = {}
        for place, number in enumerate(self._gpus.numbers):
            try:
                devices[str(number)] = self._driver.device(self._gpus, place)
            except self._driver.errors as error:
                self._failures[str(number), str(error)].append("anything")
        return devices

    def read(self, seen: Seen) -> list[Sample]:
        """Return what each GPU reports. One that is divided into instances, or has failed, reports only a part."""
        samples = []
        if self._devices is None:
            self._devices = self._open()  # here, because a driver may be slow
        for number, device in self._devices.items():
            values, errors = measured(self._driver, device)
            samples += [Sample(metric, value, tags_of(gpu=number)) for metric, value in values.items()]
            for metric, error in errors.items():
                self._failures[number, str(error)].append(metric)
            if self._with_processes:
                samples += self._processes(number, device, seen)
        self._tell_failures()
        return samples

    def _processes(self, number: str, device: Any, seen: Seen) -> list[Sample]:
        try:
            used = dict(self._driver.processes(device))
        except self._driver.errors as error:
            self._failures[number, str(error)].append("its processes")
            return []
        return [
            Sample("process_gpu_memory", used[each.pid], tags_of(puid=each.puid, name=each.name, gpu=number))
            for each in (seen.processes if used else ())
            if each.pid in used
        ]

    def _tell_failures(self) -> None:
        for (number, error), metrics in self._failures.items():
            new = [metric for metric in metrics if (number, metric) not in self._told]
            self._told |= {(number, metric) for metric in new}
            if new:
                log.warning("GPU %s does not tell %s: %s", number, ", ".join(new), error)
        self._failures.clear()
