"""The GPUs of a machine under dragonhpc's names."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dragon.infrastructure.gpus import find_gpus

__all__ = ["AccVendor", "AcceleratorDescriptor", "find_accelerators"]


class AccVendor(enum.IntEnum):
    """The vendor of accelerators.

    Attributes:
        NVIDIA: NVIDIA.
        AMD: AMD.
        INTEL: Intel.
        UNKNOWN: there are no accelerators.
    """

    NVIDIA = 1
    AMD = 2
    INTEL = 3
    UNKNOWN = 4


@dataclass
class AcceleratorDescriptor:
    """The accelerators of a machine.

    Attributes:
        vendor: their vendor.
        device_list: the numbers of the devices.
        env_str: the environment variable that selects the devices of a process.
    """

    vendor: AccVendor = AccVendor.UNKNOWN
    device_list: list[int] = field(default_factory=list)
    env_str: str = ""

    def get_sdict(self) -> dict[str, Any]:
        """Return the description as a dict of plain values."""
        return {**asdict(self), "vendor": int(self.vendor)}

    @classmethod
    def from_sdict(cls, sdict: dict[str, Any]) -> Self:
        """Return the object that get_sdict() described."""
        return cls(**{**sdict, "vendor": AccVendor(sdict["vendor"])})


def find_accelerators() -> AcceleratorDescriptor:
    """Return the GPUs of this machine that the environment leaves visible; without GPUs, the vendor UNKNOWN and no
    devices."""
    found = find_gpus()
    if not found.vendor:
        return AcceleratorDescriptor()
    whole = sorted({int(number) for number in found.numbers})
    return AcceleratorDescriptor(AccVendor[found.vendor.upper()], whole, found.variable)
