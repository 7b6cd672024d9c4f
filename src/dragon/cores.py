"""The number of cores that a program may use: from its affinity, CPU quotas of control groups, and the workload
manager."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from dragon.control_groups import ROOT, cpu_quota

__all__ = ["cpu_quota", "managed_cores", "usable_cores"]

# Variables of Slurm, PBS Pro (NCPUS) and Torque.
_CPU_VARIABLES = ("SLURM_CPUS_ON_NODE", "PBS_NCPUS", "NCPUS", "PBS_NUM_PPN")


def usable_cores(root: Path = ROOT) -> float:
    """Return how many cores this process may use, which may be a fraction. `root` is the folder that has proc
    and sys."""
    return min(len(os.sched_getaffinity(0)), cpu_quota(root), managed_cores())


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
