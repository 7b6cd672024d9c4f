"""NVIDIA's GPUs, through the library of their driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.gpus import Gpus, find_gpus
from dragon.infrastructure.metrics import Sample
from dragon.runtime.log import runtime_log

__all__ = ["NvidiaSource", "gpu_source"]

log = runtime_log("telemetry")


def gpu_source() -> NvidiaSource | None:
    """The GPUs that this node may use; None where it has none that can be measured, which is said if it is a lack."""
    gpus = find_gpus()
    if gpus.vendor != "nvidia" or not gpus.numbers:
        return None
    try:
        return NvidiaSource(gpus, importlib.import_module("pynvml"))
    except ImportError as error:
        log.warning("the GPUs are not measured: %s; pip install 'dragon-runtime[gpu]'", error)
    except Exception as error:  # the driver's own class, which is there only with the library
        log.warning("the GPUs are not measured: the driver says %s", error)
    return None


class NvidiaSource:
    """The GPUs that the job may use. `driver` is the module pynvml. Raises its errors where there is no driver."""

    name = "the GPUs"

    def __init__(self, gpus: Gpus, driver: Any) -> None:
        self._driver = driver
        self._failed: set[tuple[str, str]] = set()
        driver.nvmlInit()
        self._devices: dict[str, Any] = {}
        for place, number in enumerate(gpus.numbers):
            try:
                self._devices[str(number)] = (
                    driver.nvmlDeviceGetHandleByUUID(gpus.names[place])
                    if gpus.names
                    else driver.nvmlDeviceGetHandleByIndex(int(number))
                )
            except driver.NVMLError as error:
                self._tell(str(number), "anything", error)

    def read(self, seen: Seen) -> list[Sample]:
        """What each of them tells; one that is divided into instances, or has gone, does not tell everything."""
        readings: dict[str, Callable[[Any], float]] = {
            "DeviceUtilization": lambda device: self._driver.nvmlDeviceGetUtilizationRates(device).gpu,
            "DeviceMemoryUtilization": self._memory,
            "DevicePowerUsage": lambda device: self._driver.nvmlDeviceGetPowerUsage(device) / 1000,
        }
        samples = []
        for number, device in self._devices.items():
            for metric, read in readings.items():
                try:
                    samples.append(Sample(metric, read(device), {"gpu": number}))
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
