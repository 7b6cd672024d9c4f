"""How many cores a program may use: affinity, the CPU quotas of control groups, and the workload manager's word."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["cpu_quota", "managed_cores", "usable_cores"]

# The words of Slurm, PBS Pro (NCPUS) and Torque.
_CPU_VARIABLES = ("SLURM_CPUS_ON_NODE", "PBS_NCPUS", "NCPUS", "PBS_NUM_PPN")
_ROOT = Path("/")
_Quota = Callable[[Path], float]


def usable_cores(root: Path = _ROOT) -> float:
    """Cores' worth of time that this process may use, not always a whole number. `root` is where proc and sys are."""
    return min(len(os.sched_getaffinity(0)), cpu_quota(root), managed_cores())


def cpu_quota(root: Path = _ROOT) -> float:
    """Cores' worth of time that the control groups of this process grant, of version 1 or 2, the tightest of them and
    of those around them; infinite where none has a quota. `root` is where proc and sys are."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return math.inf  # a system without control groups
    least, mounts = math.inf, root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            for mount in (mounts, mounts / "unified"):
                least = min(least, _least(mount, group, _quota_of_version_2))
        elif "cpu" in controllers.split(","):
            for mount in (mounts / controllers, mounts / "cpu"):
                least = min(least, _least(mount, group, _quota_of_version_1))
    return least


def managed_cores() -> float:
    """Cores that the workload manager says this job has on this node, infinite where there is none."""
    limits = [int(os.environ[name]) for name in _CPU_VARIABLES if os.environ.get(name, "").isdigit()]
    return max(1, min([_slurm_cores(), *limits]))


def _slurm_cores() -> float:
    """This node's part of Slurm's list for the job, such as 72(x2),36."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = os.environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else math.inf


def _least(mount: Path, group: str, quota_of: _Quota) -> float:
    """The least quota of a group and those around it. In a container the path may be that of the machine, of which the
    container sees its own group alone, at the mount: what is not there is passed over."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return min(quota_of(mount.joinpath(*parts[:length])) for length in range(len(parts) + 1))


def _quota_of_version_2(folder: Path) -> float:
    return _quota(*_words(folder / "cpu.max", 2))


def _quota_of_version_1(folder: Path) -> float:
    return _quota(*_words(folder / "cpu.cfs_quota_us", 1), *_words(folder / "cpu.cfs_period_us", 1))


def _words(file: Path, count: int) -> list[str]:
    """The words of a file, none where there are not so many, or no file."""
    try:
        words = file.read_text().split()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return words if len(words) == count else []


def _quota(quota: str = "max", period: str = "") -> float:
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else math.inf
