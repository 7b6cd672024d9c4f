"""Tells which kind of GPUs a node has."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")


def model(driver: Path = _DRIVER) -> str:
    """Return the name of this node's GPUs as NVIDIA's driver gives it, such as "Tesla V100-SXM2-16GB"; "" if there is
    no such driver, or if the GPUs have different names."""
    names: set[str] = set()
    try:
        for file in driver.glob("*/information"):
            names |= {name.strip() for name in re.findall(r"^Model:(.*)$", file.read_text(), re.MULTILINE)}
    except OSError:
        return ""
    return names.pop() if len(names) == 1 else ""


def kind_named(gpu: str, kinds: Collection[str]) -> str:
    """Return which of `kinds`, which jobs name, a GPU is of: the first that is a word of its name, without regard to
    case, as v100 is of "Tesla V100-SXM2-16GB".

    If no job names a kind, all GPUs count as of one kind, which is "". A GPU that is of none of the kinds is of its
    own, which is its whole name.
    """
    for kind in kinds:
        if re.search(rf"(?<![a-z0-9]){re.escape(kind.lower())}(?![a-z0-9])", gpu.lower()):
            return kind
    return gpu if kinds else ""
