"""NVIDIA's GPUs, through the library of their driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.gpus import Gpus, find_gpus
from dragon.infrastructure.metrics import Sample, tags_of
from dragon.runtime.log import runtime_log

__all__ = ["NvidiaSource", "gpu_source"]

log = runtime_log("telemetry")


def gpu_source() -> NvidiaSource | None:
    """The GPUs that this node may use, None where it has none that can be measured."""
    gpus = find_gpus()
    return NvidiaSource(gpus) if gpus.vendor == "nvidia" and gpus.numbers else None


class NvidiaSource:
    """The GPUs that the job may use, by the module `driver`. A driver that is not there is said once in the log."""

    name = "the GPUs"

    def __init__(self, gpus: Gpus, driver: str = "pynvml") -> None:
        self._gpus = gpus
        self._module = driver
        self._driver: Any = None
        self._devices: dict[str, Any] | None = None
        self._failed: set[tuple[str, str]] = set()

    def _open(self) -> dict[str, Any]:
        try:
            self._driver = importlib.import_module(self._module)
            self._driver.nvmlInit()
        except ImportError as error:
            log.warning("the GPUs are not measured: %s; pip install 'dragon-runtime[gpu]'", error)
            return {}
        except Exception as error:  # the driver's own class, which is there only with the library
            log.warning("the GPUs are not measured: the driver says %s", error)
            return {}
        return dict(self._find())

    def _find(self) -> Iterator[tuple[str, Any]]:
        for place, number in enumerate(self._gpus.numbers):
            try:
                if self._gpus.names:
                    yield str(number), self._driver.nvmlDeviceGetHandleByUUID(self._gpus.names[place])
                else:
                    yield str(number), self._driver.nvmlDeviceGetHandleByIndex(int(number))
            except self._driver.NVMLError as error:
                self._tell(str(number), "anything", error)

    def read(self, seen: Seen) -> list[Sample]:
        """What each of them tells; one that is divided into instances, or has gone, does not tell everything."""
        readings: dict[str, Callable[[Any], float]] = {
            "DeviceUtilization": lambda device: self._driver.nvmlDeviceGetUtilizationRates(device).gpu,
            "DeviceMemoryUtilization": self._memory,
            "DevicePowerUsage": lambda device: self._driver.nvmlDeviceGetPowerUsage(device) / 1000,
        }
        samples = []
        if self._devices is None:
            self._devices = self._open()  # here, as a driver may take its time
        for number, device in self._devices.items():
            for metric, read in readings.items():
                try:
                    samples.append(Sample(metric, read(device), tags_of(gpu=number)))
                except self._driver.NVMLError as error:
                    self._tell(number, metric, error)
        return samples

    def _memory(self, device: Any) -> float:
        memory = self._driver.nvmlDeviceGetMemoryInfo(device)
        return 100 * float(memory.used) / float(memory.total)

    def _tell(self, number: str, metric: str, error: Exception) -> None:
        if (number, metric) not in self._failed:
            self._failed.add((number, metric))
            log.warning("GPU %s does not tell %s: %s", number, metric, error)
