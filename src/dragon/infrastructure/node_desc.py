"""The description of a node: its names, CPUs, GPUs and memory, as the job's allocation gives them."""

from __future__ import annotations

import math
import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dragon.control_groups import cpu_quota, folders
from dragon.cores import managed_cores
from dragon.infrastructure.gpus import GPU_VARIABLES, Gpus, find_gpus
from dragon.infrastructure.interfaces import own_addresses
from dragon.infrastructure.variables import memory_limit


class NodeDescriptor(NamedTuple):
    """A node of the run.

    Attributes:
        host_name: its host name.
        h_uid: its host id.
        addresses: the IP addresses at which other nodes reach it; empty if there are no others.
        cpus: the numbers of the CPUs that the run may use.
        gpus: the numbers of the GPUs that the run may use; a tile is a fraction, 0.1 being the second tile of the
            first.
        gpu_vendor: "nvidia", "amd" or "intel"; empty without GPUs.
        physical_mem: its memory in bytes.
        index: its index in the run.
        is_primary: whether the head process runs on it.
        real_cpus: of a simulated node: the machine's CPUs, which stand for the claimed ones in turn; else empty.
        gpu_names: the names of the GPUs in `gpu_variable`, if they are not the numbers.
        gpu_variable: the environment variable that selects GPUs; empty for the vendor's default.
    """

    host_name: str
    h_uid: int
    addresses: list[str]
    cpus: list[int]
    gpus: list[int | float]
    gpu_vendor: str
    physical_mem: int
    index: int = 0  # type: ignore[assignment]  # which a tuple has as a method
    is_primary: bool = True
    real_cpus: list[int] = []
    gpu_names: list[str] = []
    gpu_variable: str = ""

    @property
    def name(self) -> str:
        """The node's host name."""
        return self.host_name

    @property
    def host_id(self) -> int:
        """The node's id, the same as `h_uid`."""
        return self.h_uid

    @property
    def ip_addrs(self) -> list[str]:
        """The node's IP addresses; this machine's if none are known."""
        return self.addresses or own_addresses()

    @property
    def num_cpus(self) -> int:
        """The number of CPUs that the run may use on the node."""
        return len(self.cpus)

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that the run may use on the node."""
        return len(self.gpus)

    @property
    def gpu_env_str(self) -> str:
        """The environment variable that selects GPUs, such as `CUDA_VISIBLE_DEVICES`; empty without GPUs."""
        return self.gpu_variable or GPU_VARIABLES.get(self.gpu_vendor, ("",))[0]

    def existing_cpus(self, cpus: list[int]) -> list[int]:
        """Return the existing CPUs to bind to for some of `cpus`."""
        if not self.real_cpus:
            return cpus
        return sorted({self.real_cpus[cpu % len(self.real_cpus)] for cpu in cpus})

    def has_gpu(self, gpu: float) -> bool:
        """Return whether the run may use that device or tile."""
        # A tile belongs to its device; only the driver knows which tiles a device has.
        return gpu in self.gpus or (self.gpu_vendor == "intel" and isinstance(gpu, float) and int(gpu) in self.gpus)

    def gpu_name(self, gpu: float) -> str:
        """Return the name of a device in the vendor's variable: its number unless the job's mask has another name."""
        if self.gpu_names and gpu in self.gpus:
            return self.gpu_names[self.gpus.index(gpu)]
        return str(gpu) if self.gpu_vendor == "intel" else str(int(gpu))


def describe_this_node(claims: dict[str, Any] | None = None, addresses: Sequence[str] = ()) -> NodeDescriptor:
    """Return the description of this machine, or of a simulated node with its own "host_name", "cpus" and "gpus"."""
    claims = {key: value for key, value in (claims or {}).items() if value is not None}
    real_name, real_cpus, gpus = socket.gethostname(), find_cpus(), find_gpus()
    name = str(claims.get("host_name", real_name))
    cpus = _claimed(claims, "cpus", 1) if "cpus" in claims else real_cpus
    if "gpus" in claims:
        gpus = Gpus("nvidia", [*_claimed(claims, "gpus", 0)])
    machine = name + boot_id()
    return NodeDescriptor(
        host_name=name,
        h_uid=random.Random(machine).getrandbits(56),  # the same for the same machine; hashlib loads all of OpenSSL
        addresses=list(addresses),
        cpus=cpus,
        gpus=gpus.numbers,
        gpu_vendor=gpus.vendor if gpus.numbers else "",
        physical_mem=memory_limit(),
        real_cpus=real_cpus if "cpus" in claims else [],
        gpu_names=gpus.names,
        gpu_variable=gpus.variable,
    )


def boot_id() -> str:
    """Return text that identifies this boot of this machine; empty on kernels without one, such as gVisor."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return ""


def _claimed(claims: dict[str, Any], kind: str, least: int) -> list[int]:
    count = claims[kind]
    if not isinstance(count, int) or count < least:
        raise ValueError(f"a node cannot claim {count!r} {kind}")
    return list(range(count))


def find_cpus() -> list[int]:
    """Return the CPUs that this job may use: by affinity, control group and workload manager."""
    cpus = sorted(os.sched_getaffinity(0))
    confined = _cgroup_set()
    cpus = [cpu for cpu in cpus if cpu in confined] or cpus
    return cpus[: max(1, math.ceil(min(len(cpus), cpu_quota(), managed_cores())))]


def _cgroup_set() -> set[int]:
    """Return the CPUs of the innermost control group that names some; empty if none does."""
    for folder in folders("cpuset"):
        try:
            text = (folder / "cpuset.cpus.effective").read_text()
        except OSError:
            continue
        parts = [part.partition("-") for part in text.strip().split(",") if part]
        if parts:
            return {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}
    return set()
