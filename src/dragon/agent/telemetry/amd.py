"""AMD's driver, by the management library of ROCm."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from dragon.infrastructure.gpus import Gpus

__all__ = ["AmdDriver"]


class _Untold(Exception):
    """The library has no value, or no device."""


class AmdDriver:
    """AMD SMI as the module `module` has it."""

    remedy = "install the amdsmi of your version of ROCm"

    def __init__(self, module: str = "amdsmi") -> None:
        self._module = module

    def open(self) -> None:
        """Load it, and put the devices in the order in which programs number them: that of the kernel's nodes."""
        self._smi: Any = importlib.import_module(self._module)
        smi = self._smi
        smi.amdsmi_init()
        self.errors: tuple[type[Exception], ...] = (smi.AmdSmiException, _Untold)
        kinds, now = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
        clocks = smi.AmdSmiClkType
        self.readings: dict[str, Callable[[Any], float]] = {
            "DeviceUtilization": lambda device: _first(smi.amdsmi_get_gpu_activity(device), "gfx_activity"),
            "DeviceMemoryUtilization": self._memory,
            "DeviceMemoryUsed": self._memory_used,
            "DevicePowerUsage": lambda device: _first(
                smi.amdsmi_get_power_info(device), "current_socket_power", "average_socket_power"
            ),
            "DeviceTemperature": lambda device: smi.amdsmi_get_temp_metric(device, kinds.HOTSPOT, now),
            "DeviceClock": lambda device: _first(smi.amdsmi_get_clock_info(device, clocks.GFX), "clk"),
            "DeviceMemoryClock": lambda device: _first(smi.amdsmi_get_clock_info(device, clocks.MEM), "clk"),
            "DeviceECCErrors": lambda device: _first(smi.amdsmi_get_gpu_total_ecc_count(device), "uncorrectable_count"),
        }
        self._devices = sorted(
            smi.amdsmi_get_processor_handles(), key=lambda device: smi.amdsmi_get_gpu_kfd_info(device)["node_id"]
        )

    def device(self, gpus: Gpus, place: int) -> Any:
        """By its unique name where the environment chooses by names, else by its number."""
        if not gpus.names:
            number = int(gpus.numbers[place])
            if number >= len(self._devices):
                raise _Untold(f"the driver has {len(self._devices)} devices")
            return self._devices[number]
        wanted = gpus.names[place].upper().removeprefix("GPU-")
        for device in self._devices:
            serial = str(self._smi.amdsmi_get_gpu_asic_info(device)["asic_serial"])
            if serial.upper().removeprefix("0X").startswith(wanted):
                return device
        raise _Untold(f"the driver has no device {gpus.names[place]}")

    def _memory_used(self, device: Any) -> float:
        return float(self._smi.amdsmi_get_gpu_memory_usage(device, self._smi.AmdSmiMemoryType.VRAM))

    def _memory(self, device: Any) -> float:
        total = self._smi.amdsmi_get_gpu_memory_total(device, self._smi.AmdSmiMemoryType.VRAM)
        return 100 * self._memory_used(device) / float(total)

    def processes(self, device: Any) -> list[tuple[int, int]]:
        """Those that compute on it."""
        running = self._smi.amdsmi_get_gpu_process_list(device)
        return [(process["pid"], process["memory_usage"]["vram_mem"]) for process in running]


def _first(told: Mapping[str, Any], *names: str) -> float:
    """The first of these values that is a number. Raises _Untold where none is."""
    for name in names:
        if isinstance(told.get(name), int | float):
            return float(told[name])
    raise _Untold("it has no value for that")
