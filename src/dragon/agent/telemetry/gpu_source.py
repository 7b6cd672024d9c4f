"""GPUs, through the libraries of NVIDIA's, AMD's and Intel's drivers."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from dragon.agent.telemetry.gpu_driver import Driver, Reading, Untold, at, measured, memory_readings
from dragon.agent.telemetry.intel import IntelDriver
from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.gpus import Gpus, find_gpus
from dragon.infrastructure.metrics import Sample, tags_of
from dragon.runtime.log import runtime_log


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
