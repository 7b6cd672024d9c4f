"""AMD's driver, through AMD SMI."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from dragon.agent.telemetry.gpu_source import Reading, Untold, at, memory_readings
from dragon.infrastructure.gpus import Gpus


class AmdDriver:
    """AMD SMI, through the Python module `module`."""

    remedy = "install the amdsmi of your version of ROCm"

    def __init__(self, module: str = "amdsmi") -> None:
        self._module = module

    def open(self) -> None:
        """Load the library, and sort the devices as programs number them: by the number of the kernel's node."""
        self._smi: Any = importlib.import_module(self._module)
        smi = self._smi
        smi.amdsmi_init()
        self.errors: tuple[type[Exception], ...] = (smi.AmdSmiException, Untold)
        kinds, now = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
        clocks = smi.AmdSmiClkType
        self.readings: dict[str, Reading] = {
            "DeviceUtilization": lambda device: _first(smi.amdsmi_get_gpu_activity(device), "gfx_activity"),
            **memory_readings(self._memory),
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
        """Return a device: by its unique name if the environment selects by names, else by its number."""
        if not gpus.names:
            return at(self._devices, int(gpus.numbers[place]))
        wanted = gpus.names[place].upper().removeprefix("GPU-")
        for device in self._devices:
            serial = str(self._smi.amdsmi_get_gpu_asic_info(device)["asic_serial"])
            if serial.upper().removeprefix("0X").startswith(wanted):
                return device
        raise Untold(f"the driver has no device {gpus.names[place]}")

    def _memory(self, device: Any) -> tuple[float, float]:
        smi, kind = self._smi, self._smi.AmdSmiMemoryType.VRAM
        return smi.amdsmi_get_gpu_memory_usage(device, kind), smi.amdsmi_get_gpu_memory_total(device, kind)

    def processes(self, device: Any) -> list[tuple[int, int]]:
        """Return the id and the used GPU memory in bytes of each process that computes on the device."""
        running = self._smi.amdsmi_get_gpu_process_list(device)
        return [(process["pid"], process["memory_usage"]["vram_mem"]) for process in running]


def _first(told: Mapping[str, Any], *names: str) -> float:
    """Return the first of these values that is a number. Raises Untold if none is."""
    for name in names:
        if isinstance(told.get(name), int | float):
            return float(told[name])
    raise Untold("it has no value for that")
