"""The number of cores that a program may use, with synthetic trees of proc and sys."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from dragon.cores import cpu_quota, usable_cores


def tree(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Return the folder, as the root of a system with this process in these control groups."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000\n", math.inf), ("150000 100000\n", 1.5), ("5000 100000\n", 0.05), ("", math.inf)]
)
def test_the_quota_of_a_control_group_of_version_2_is_read(tmp_path: Path, text: str, cores: float) -> None:
    root = tree(tmp_path, "0::/job/step\n", {"sys/fs/cgroup/job/step/cpu.max": text})
    assert cpu_quota(root) == cores


def test_the_lowest_quota_of_a_group_and_its_parents_applies(tmp_path: Path) -> None:
    inner, outer = "sys/fs/cgroup/job/step/cpu.max", "sys/fs/cgroup/job/cpu.max"
    assert cpu_quota(tree(tmp_path / "a", "0::/job/step\n", {inner: "400000 100000", outer: "300000 100000"})) == 3
    assert cpu_quota(tree(tmp_path / "b", "0::/job/step\n", {inner: "200000 100000", outer: "300000 100000"})) == 2


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_the_quota_of_a_control_group_of_version_1_is_read(tmp_path: Path, controllers: str) -> None:
    folder = f"sys/fs/cgroup/{controllers}/slurm/job_7"
    files = {f"{folder}/cpu.cfs_quota_us": "250000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    groups = f"9:memory:/slurm\n4:{controllers}:/slurm/job_7\n0::/\n"
    assert cpu_quota(tree(tmp_path, groups, files)) == 2.5


def test_a_quota_of_minus_one_in_version_1_is_no_limit(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu"
    files = {f"{folder}/cpu.cfs_quota_us": "-1\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert cpu_quota(tree(tmp_path, "1:cpu:/\n0::/\n", files)) == math.inf


def test_a_container_that_sees_only_its_own_group_has_its_quota(tmp_path: Path) -> None:
    of_version_1 = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}
    assert cpu_quota(tree(tmp_path / "1", "1:cpu:/docker/4f5e\n", of_version_1)) == 0.5
    of_version_2 = {"sys/fs/cgroup/cpu.max": "50000 100000"}
    assert cpu_quota(tree(tmp_path / "2", "0::/../pod-4f5e\n", of_version_2)) == 0.5


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == math.inf


def test_the_usable_cores_are_the_lowest_of_all_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "PBS_NCPUS", "NCPUS", "PBS_NUM_PPN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    root = tree(tmp_path, "0::/\n", {"sys/fs/cgroup/cpu.max": "250000 100000"})
    assert usable_cores(root) == 2.5
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    assert usable_cores(root) == 2
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("5000 100000")
    assert usable_cores(root) == 0.05
