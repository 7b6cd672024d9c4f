"""The networks that a workload may name, without importing what builds them."""

from __future__ import annotations

# GoogLeNet has one form, which workloads call depth 1.
DEPTHS: dict[str, tuple[int, ...]] = {
    "resnet": (10, 18, 34, 50, 101, 152),
    "vgg": (11, 13, 16, 19),
    "googlenet": (1,),
}


def known(arch: str, depth: int) -> bool:
    """Return whether the network exists with this depth."""
    return depth in DEPTHS.get(arch, ())
