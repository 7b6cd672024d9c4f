"""The metrics of this node's GPUs as dragonhpc's functions return them, for programs that measure by themselves.

The agents measure their nodes anyway, from telemetry level 3 on.
"""

from __future__ import annotations

import functools

from dragon.agent.telemetry.gpu_source import Driver, driver_of, measured
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.gpu_desc import AccVendor
from dragon.infrastructure.gpus import Gpus, find_gpus

_FROM_LEVEL = 3

Metrics = list[dict[str, str | float]]
"""For each metric its name as "metric", such as "DeviceUtilization", and its "value"."""


class Collector:
    """Not supported: its construction raises NotSupportedError. The agents measure their nodes themselves."""

    def __init__(self, telemetry_config: object = None) -> None:
        raise NotSupportedError(
            "telemetry.collector.Collector is not offered: every node's agent measures it, from --telemetry-level 2 or "
            "Telemetry().start(2) on; add_data() adds metrics of a program's own"
        )


def identify_gpu() -> tuple[AccVendor | None, int | list[int]]:
    """Return the vendor and the number of the GPUs that this process may use; for AMD the list of its devices.

    Without GPUs, returns None and 0.
    """
    gpus = find_gpus()
    if not gpus.vendor or not gpus.numbers:
        return None, 0
    count = len(gpus.numbers)
    vendor = AccVendor[gpus.vendor.upper()]
    return vendor, list(range(count)) if vendor == AccVendor.AMD else count


def get_nvidia_metrics(device: int, telemetry_level: int = _FROM_LEVEL) -> Metrics:
    """Return the metrics of an NVIDIA GPU: DeviceUtilization (%), DevicePowerUsage (watts) and others.

    Args:
        device: its position among the GPUs that this process may use.
        telemetry_level: below 3, no metrics are returned.

    Raises LookupError if there is no such GPU, ImportError if the vendor's Python package is missing, RuntimeError if
    the driver reports no metric.
    """
    return _metrics("nvidia", device, telemetry_level)


def get_amd_metrics(device: int, telemetry_level: int = _FROM_LEVEL) -> Metrics:
    """Return the metrics of an AMD GPU, an element of the list of identify_gpu(), as get_nvidia_metrics() does."""
    return _metrics("amd", device, telemetry_level)


def get_intel_metrics(telemetry_level: int = _FROM_LEVEL) -> dict[int, Metrics]:
    """Return the metrics of all Intel GPUs by position, as get_nvidia_metrics() does.

    Metrics that are computed from counters are missing in the first call.
    """
    gpus = _gpus("intel")
    return {device: _metrics("intel", device, telemetry_level) for device in range(len(gpus.numbers))}


def _metrics(vendor: str, device: int, level: int) -> Metrics:
    gpus = _gpus(vendor)
    if not 0 <= device < len(gpus.numbers):
        raise LookupError(f"this process may use {len(gpus.numbers)} {vendor.upper()} GPUs; there is no GPU {device}")
    if level < _FROM_LEVEL:
        return []
    driver = _opened(vendor)
    try:
        handle = _handle(vendor, device)
    except driver.errors as error:
        raise RuntimeError(f"the driver does not report GPU {device}: {error}") from error
    values, errors = measured(driver, handle)
    if errors and not values:
        reason = next(iter(errors.values()))
        raise RuntimeError(f"the driver reports no metric of GPU {device}: {reason}") from reason
    return [{"metric": metric, "value": float(value)} for metric, value in values.items()]


def _gpus(vendor: str) -> Gpus:
    gpus = find_gpus()
    if gpus.vendor != vendor:
        raise LookupError(f"this node has no {vendor.upper()} GPU that this process may use")
    return gpus


@functools.cache
def _opened(vendor: str) -> Driver:
    driver = driver_of(vendor)
    try:
        driver.open()
    except ImportError as error:
        raise ImportError(f"the GPUs cannot be measured: {error}; {driver.remedy}") from error
    return driver


@functools.cache
def _handle(vendor: str, device: int) -> object:
    """Return a device. It is kept, as it has the counters that were read last."""
    return _opened(vendor).device(find_gpus(), device)
