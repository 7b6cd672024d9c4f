"""The interface to a GPU vendor's library, and what several vendors' libraries have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from dragon.infrastructure.gpus import Gpus

Device = TypeVar("Device")
Reading = Callable[[Any], float | None]


class Untold(Exception):
    """The library has no such value, or no such device."""


class Driver(Protocol):
    """A vendor's library, after open().

    Attributes:
        remedy: how to install the library if it is missing
        errors: the exceptions that the functions in `readings` raise
        readings: functions that read a metric from a device, by the metric's name. None means: not known yet, as the
            rate of a counter that was read for the first time.
    """

    remedy: str
    errors: tuple[type[Exception], ...]
    readings: dict[str, Reading]

    def open(self) -> None:
        """Load the library. Raises ImportError if it is missing, and another exception if it does not work."""

    def device(self, gpus: Gpus, place: int) -> Any:
        """Return the device at position `place` of the numbers. Raises one of `errors` if there is none."""

    def processes(self, device: Any) -> list[tuple[int, int]]:
        """Return the ids of the processes that use a device, and the bytes of its memory that each uses."""


def measured(driver: Driver, device: Any) -> tuple[dict[str, float], dict[str, Exception]]:
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

    def utilization(device: Any) -> float:
        used, total = memory(device)
        return 100 * used / total

    return {"DeviceMemoryUtilization": utilization, "DeviceMemoryUsed": lambda device: memory(device)[0]}
