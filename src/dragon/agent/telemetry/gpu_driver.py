"""What the library of a vendor's driver is to telemetry, and what those of several vendors have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from dragon.infrastructure.gpus import Gpus

__all__ = ["Driver", "Reading", "Untold", "at", "memory_readings"]

Device = TypeVar("Device")
Reading = Callable[[Any], float | None]


class Untold(Exception):
    """The library has no value, or no device."""


class Driver(Protocol):
    """A vendor's library, after open(). `remedy` says how it is had where it is not there.

    `readings` are metrics by name, each of which is read from a device as this driver knows it, or raises one of
    `errors`. One that is None is not known yet, as that of a counter which was read for the first time.
    """

    remedy: str
    errors: tuple[type[Exception], ...]
    readings: dict[str, Reading]

    def open(self) -> None:
        """Load the library. Raises ImportError where it is not there, and what it raises where it does not work."""

    def device(self, gpus: Gpus, place: int) -> Any:
        """The device at that place of the numbers. Raises one of the errors where there is none."""

    def processes(self, device: Any) -> list[tuple[int, int]]:
        """The ids of the processes that use a device, and the bytes of its memory that each has."""


def at(devices: list[Device], number: int) -> Device:
    """The device of that number. Raises Untold where the driver has fewer."""
    if number >= len(devices):
        raise Untold(f"the driver has {len(devices)} devices")
    return devices[number]


def memory_readings(memory: Callable[[Any], tuple[float, float]]) -> dict[str, Reading]:
    """What there is to read where `memory` tells the bytes of a device that are used, and all that it has."""

    def utilization(device: Any) -> float:
        used, total = memory(device)
        return 100 * used / total

    return {"DeviceMemoryUtilization": utilization, "DeviceMemoryUsed": lambda device: memory(device)[0]}
