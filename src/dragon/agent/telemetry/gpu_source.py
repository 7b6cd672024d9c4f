"""GPUs: NVIDIA's through NVML, others through plug-ins."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.gpus import Gpus, find_gpus
from dragon.infrastructure.metrics import Sample, tags_of
from dragon.runtime.log import runtime_log

Device = TypeVar("Device")
Reading = Callable[[Any], float | None]


class Untold(Exception):
    """The library has no such value, or no such device."""


class Driver(Protocol):
    """A vendor's library, after open().

    Attributes:
        readings: functions that read a metric from a device, by the metric's name. None means: not known yet, as the
            rate of a counter that was read for the first time.
    """

    remedy: str  # how to install the library if it is missing
    errors: tuple[type[Exception], ...]  # the exceptions that the functions in `readings` raise
    readings: dict[str, Reading]

    def open(self) -> None:
        """Load the library. Raises ImportError if it is missing, and another exception if it does not work."""

    def device(self, gpus: Gpus, place: int) -> object:
        """Return the device at position `place` of the numbers. Raises one of `errors` if there is none."""

    def processes(self, device: object) -> list[tuple[int, int]]:
        """Return the ids of the processes that use a device, and the bytes of its memory that each uses."""


def measured(driver: Driver, device: object) -> tuple[dict[str, float], dict[str, Exception]]:
    """Return the metrics that a device reports now, and the errors of those that it does not report, by name."""
    values, errors = {}, {}
    for metric, read in driver.readings.items():
        try:
            value = read(device)
        except driver.errors as error:
            errors[metric] = error
            continue
        if value is not None:
            values[metric] = value
    return values, errors


def at(devices: list[Device], number: int) -> Device:
    """Return the device of that number. Raises Untold if the driver has fewer."""
    if number >= len(devices):
        raise Untold(f"the driver has {len(devices)} devices")
    return devices[number]


def memory_readings(memory: Callable[[Any], tuple[float, float]]) -> dict[str, Reading]:
    """Return the readings of memory, given a function that returns a device's used and total bytes."""

    def utilization(device: object) -> float:
        used, total = memory(device)
        return 100 * used / total

    return {"DeviceMemoryUtilization": utilization, "DeviceMemoryUsed": lambda device: memory(device)[0]}


class NvidiaDriver:
    """NVML, through the Python module `module`."""

    remedy = "pip install 'dragon-runtime[gpu]'"

    def __init__(self, module: str = "pynvml") -> None:
        self._module = module

    def open(self) -> None:
        nvml = self._nvml = importlib.import_module(self._module)
        nvml.nvmlInit()
        self.errors: tuple[type[Exception], ...] = (nvml.NVMLError,)
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

    def device(self, gpus: Gpus, place: int) -> object:
        if gpus.names:
            return self._nvml.nvmlDeviceGetHandleByUUID(gpus.names[place])
        return self._nvml.nvmlDeviceGetHandleByIndex(int(gpus.numbers[place]))

    def _memory(self, device: object) -> tuple[float, float]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
        return memory.used, memory.total

    def processes(self, device: object) -> list[tuple[int, int]]:
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        return [(process.pid, process.usedGpuMemory) for process in running if process.usedGpuMemory is not None]


log = runtime_log("telemetry")

_PLUG_INS = "dragon.gpu_drivers"  # entry points: a Driver for each vendor's name


class NoDriver(NvidiaDriver):
    """Stands for the driver of a vendor whose plug-in is not installed."""

    remedy = "pip install dragon-runtime-gpus"

    def open(self) -> None:
        raise ImportError(f"no plug-in measures GPUs of {self._module}")


def gpu_source(level: int) -> GpuSource | None:
    """Return the source for the GPUs that this node may use, None if it has none."""
    gpus = find_gpus()
    return GpuSource(gpus, driver_of(gpus.vendor), with_processes=level >= 4) if gpus.numbers else None


def driver_of(vendor: str) -> Driver:
    """Return the driver of a vendor's GPUs, which is not open yet."""
    if vendor == "nvidia":
        return NvidiaDriver()
    for plug_in in entry_points(group=_PLUG_INS, name=vendor):
        driver: Driver = plug_in.load()()
        return driver
    return NoDriver(vendor)


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

    def _processes(self, number: str, device: object, seen: Seen) -> list[Sample]:
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
