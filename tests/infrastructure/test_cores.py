"""The number of cores that a program may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragon.cores import usable_cores


def test_the_usable_cores_are_the_lowest_of_all_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "PBS_NCPUS", "NCPUS", "PBS_NUM_PPN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    quota = tmp_path / "sys/fs/cgroup/cpu.max"
    quota.parent.mkdir(parents=True)
    quota.write_text("250000 100000")
    assert usable_cores(tmp_path) == 2.5
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    assert usable_cores(tmp_path) == 2
    quota.write_text("5000 100000")
    assert usable_cores(tmp_path) == 0.05
