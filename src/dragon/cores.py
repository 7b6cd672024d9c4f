"""The number of cores that a program may use: from its affinity, CPU quotas of control groups, and the workload
manager."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["cpu_quota", "managed_cores", "usable_cores"]

# Variables of Slurm, PBS Pro (NCPUS) and Torque.
_CPU_VARIABLES = ("SLURM_CPUS_ON_NODE", "PBS_NCPUS", "NCPUS", "PBS_NUM_PPN")
_ROOT = Path("/")
_Quota = Callable[[Path], float]


def usable_cores(root: Path = _ROOT) -> float:
    """Return how many cores this process may use, which may be a fraction. `root` is the folder that has proc
    and sys."""
    return min(len(os.sched_getaffinity(0)), cpu_quota(root), managed_cores())


def cpu_quota(root: Path = _ROOT) -> float:
    """Return the number of cores that the control groups of this process, of version 1 or 2, allow; infinite without a
    quota.

    The smallest quota of the groups and their parents counts. `root` is the folder that has proc and sys.
    """
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
    """Return the number of cores that the workload manager gives this job on this node; infinite without one."""
    limits = [int(os.environ[name]) for name in _CPU_VARIABLES if os.environ.get(name, "").isdigit()]
    return max(1, min([_slurm_cores(), *limits]))


def _slurm_cores() -> float:
    """Return this node's entry in Slurm's list for the job, such as 72(x2),36."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = os.environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else math.inf


def _least(mount: Path, group: str, quota_of: _Quota) -> float:
    """Return the smallest quota of a group and its parents.

    In a container the path may be the machine's, while the container sees only its own group, at the mount: folders
    that do not exist are skipped.
    """
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return min(quota_of(mount.joinpath(*parts[:length])) for length in range(len(parts) + 1))


def _quota_of_version_2(folder: Path) -> float:
    return _quota(*_words(folder / "cpu.max", 2))


def _quota_of_version_1(folder: Path) -> float:
    return _quota(*_words(folder / "cpu.cfs_quota_us", 1), *_words(folder / "cpu.cfs_period_us", 1))


def _words(file: Path, count: int) -> list[str]:
    """Return the words of a file; none if it does not have exactly `count` words or does not exist."""
    try:
        words = file.read_text().split()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return words if len(words) == count else []


def _quota(quota: str = "max", period: str = "") -> float:
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else math.inf
