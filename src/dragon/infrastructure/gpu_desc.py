"""The GPUs of a machine under dragonhpc's names."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dragon.infrastructure.gpus import find_gpus

__all__ = ["AccVendor", "AcceleratorDescriptor", "find_accelerators"]

AccVendor = enum.IntEnum("AccVendor", "NVIDIA AMD INTEL UNKNOWN")
"""The vendor of accelerators; UNKNOWN if there are none."""


@dataclass
class AcceleratorDescriptor:
    """The accelerators of a machine: vendor, numbers, and the environment variable that selects those of a process."""

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
    """Return the GPUs of this machine that the environment leaves visible."""
    found = find_gpus()
    if not found.vendor:
        return AcceleratorDescriptor()
    whole = sorted({int(number) for number in found.numbers})
    return AcceleratorDescriptor(AccVendor[found.vendor.upper()], whole, found.variable)
