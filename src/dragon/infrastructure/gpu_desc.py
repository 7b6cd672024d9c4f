"""The GPUs of a machine as programs ask for them by this name."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dragon.infrastructure.gpus import find_gpus

__all__ = ["AccVendor", "AcceleratorDescriptor", "find_accelerators"]


class AccVendor(enum.IntEnum):
    """Who makes them."""

    NVIDIA = 1
    AMD = 2
    INTEL = 3
    UNKNOWN = 4


@dataclass
class AcceleratorDescriptor:
    """Devices by number, and the variable that tells a process which of them to use."""

    vendor: AccVendor = AccVendor.UNKNOWN
    device_list: list[int] = field(default_factory=list)
    env_str: str = ""

    def get_sdict(self) -> dict[str, Any]:
        """As a dict of plain values."""
        return {**asdict(self), "vendor": int(self.vendor)}

    @classmethod
    def from_sdict(cls, sdict: dict[str, Any]) -> Self:
        """What get_sdict() described."""
        return cls(**{**sdict, "vendor": AccVendor(sdict["vendor"])})


def find_accelerators() -> AcceleratorDescriptor:
    """The GPUs of this machine that the environment leaves visible; none of a vendor UNKNOWN where there are none."""
    found = find_gpus()
    if not found.vendor:
        return AcceleratorDescriptor()
    whole = sorted({int(number) for number in found.numbers})
    return AcceleratorDescriptor(AccVendor[found.vendor.upper()], whole, found.variable)
