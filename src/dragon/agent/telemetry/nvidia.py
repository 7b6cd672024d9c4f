"""NVIDIA's driver, through its management library."""

from __future__ import annotations

import importlib
from typing import Any

from dragon.agent.telemetry.gpu_driver import Reading, memory_readings
from dragon.infrastructure.gpus import Gpus

__all__ = ["NvidiaDriver"]


class NvidiaDriver:
    """NVML, through the Python module `module`."""

    remedy = "pip install 'dragon-runtime[gpu]'"

    def __init__(self, module: str = "pynvml") -> None:
        self._module = module

    def open(self) -> None:
        """Load the library."""
        self._nvml: Any = importlib.import_module(self._module)
        self._nvml.nvmlInit()
        self.errors: tuple[type[Exception], ...] = (self._nvml.NVMLError,)
        nvml = self._nvml
        self.readings: dict[str, Reading] = {
            "DeviceUtilization": lambda device: nvml.nvmlDeviceGetUtilizationRates(device).gpu,
            **memory_readings(self._memory),
            "DevicePowerUsage": lambda device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            "DeviceTemperature": lambda device: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            "DeviceClock": lambda device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
            "DeviceMemoryClock": lambda device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
            "DeviceECCErrors": lambda device: nvml.nvmlDeviceGetTotalEccErrors(
                device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC
            ),
        }

    def device(self, gpus: Gpus, place: int) -> Any:
        """Return a device: by its unique name if the environment selects by names, else by its number."""
        if gpus.names:
            return self._nvml.nvmlDeviceGetHandleByUUID(gpus.names[place])
        return self._nvml.nvmlDeviceGetHandleByIndex(int(gpus.numbers[place]))

    def _memory(self, device: Any) -> tuple[float, float]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
        return memory.used, memory.total

    def processes(self, device: Any) -> list[tuple[int, int]]:
        """Return the id and the used GPU memory in bytes of each process that computes on the device."""
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        return [(process.pid, process.usedGpuMemory) for process in running if process.usedGpuMemory is not None]
