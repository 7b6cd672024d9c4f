"""What a node has: its names, CPUs, GPUs and memory, as the job's allocation gives them."""

from __future__ import annotations

import glob
import math
import os
import socket
from pathlib import Path

import msgspec

from dragon.infrastructure.parameters import memory_limit

__all__ = ["NodeDescriptor", "describe_this_node"]

# The variable through which each vendor's library is told which devices to use.
GPU_VARIABLES = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "ROCR_VISIBLE_DEVICES",
    "intel": "ZE_AFFINITY_MASK",
}
_CPU_VARIABLES = ("SLURM_CPUS_ON_NODE", "PBS_NCPUS", "NCPUS")


class NodeDescriptor(msgspec.Struct, kw_only=True):
    """A node of the run. `cpus` and `gpus` are the numbers of the devices that the run may use."""

    host_name: str
    h_uid: int
    ip_addrs: list[str]
    cpus: list[int]
    gpus: list[int]
    gpu_vendor: str
    physical_mem: int
    index: int = 0
    is_primary: bool = True

    @property
    def name(self) -> str:
        return self.host_name

    @property
    def host_id(self) -> int:
        return self.h_uid

    @property
    def num_cpus(self) -> int:
        return len(self.cpus)

    @property
    def num_gpus(self) -> int:
        return len(self.gpus)

    @property
    def gpu_env_str(self) -> str:
        return GPU_VARIABLES.get(self.gpu_vendor, "")


def describe_this_node() -> NodeDescriptor:
    """The machine this process runs on."""
    import hashlib  # costs every process a few milliseconds, and few ask for this

    vendor, gpus = find_gpus()
    name = socket.gethostname()
    machine = name + Path("/proc/sys/kernel/random/boot_id").read_text()
    return NodeDescriptor(
        host_name=name,
        h_uid=int.from_bytes(hashlib.sha256(machine.encode()).digest()[:7], "big"),
        ip_addrs=_addresses(name),
        cpus=find_cpus(),
        gpus=gpus,
        gpu_vendor=vendor,
        physical_mem=memory_limit(),
    )


def find_cpus() -> list[int]:
    """CPUs that this job may use: affinity, control group quota and the workload manager's word."""
    cpus = sorted(os.sched_getaffinity(0))
    limits = [len(cpus), _cgroup_cpus()]
    limits += [int(os.environ[name]) for name in _CPU_VARIABLES if os.environ.get(name, "").isdigit()]
    return cpus[: max(1, min(limits))]


def _cgroup_cpus() -> int:
    group = Path("/proc/self/cgroup").read_text().partition("0::")[2].strip()
    least = 1 << 20
    for folder in [Path("/sys/fs/cgroup" + group), *Path("/sys/fs/cgroup" + group).parents]:
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            least = min(least, math.ceil(int(quota) / int(period)))
    return least


def find_gpus() -> tuple[str, list[int]]:
    """Vendor and device numbers of the GPUs, those that the environment hides left out."""
    for vendor, count in (("nvidia", _count_nvidia()), ("amd", _count_amd()), ("intel", _count_intel())):
        if count:
            mask = os.environ.get(GPU_VARIABLES[vendor])
            if mask is None:
                return vendor, list(range(count))
            return vendor, [int(part) for part in mask.split(",") if part.strip().isdigit()]
    return "", []


def _count_nvidia() -> int:
    return len(glob.glob("/proc/driver/nvidia/gpus/*")) or len(glob.glob("/dev/nvidia[0-9]*"))


def _count_amd() -> int:
    count = 0
    for path in glob.glob("/sys/class/kfd/kfd/topology/nodes/*/properties"):
        properties = dict(line.split() for line in Path(path).read_text().splitlines())
        count += int(properties.get("simd_count", "0")) > 0
    return count


def _count_intel() -> int:
    count = 0
    for path in glob.glob("/sys/class/drm/card[0-9]*/device"):
        if not (Path(path) / "vendor").exists() or not (Path(path) / "class").exists():
            continue
        vendor, kind = (Path(path) / "vendor").read_text().strip(), (Path(path) / "class").read_text().strip()
        # 0x0380: a display controller without a screen, which is what the data-centre devices are.
        count += vendor == "0x8086" and kind.startswith("0x0380")
    return count


def _addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ["127.0.0.1"]
    return sorted({str(address[4][0]) for address in found})
