"""The limits and events of control groups, with synthetic trees of proc and sys."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dragon.control_groups import MemoryKills, cpu_quota, memory_kills, memory_limit


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


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/job/step\n", "sys/fs/cgroup/job/memory.max"),
        ("9:memory:/slurm/job_7\n0::/\n", "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes"),
        ("9:memory:/docker/4f5e\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ],
)
def test_the_memory_limit_of_a_control_group_is_read(tmp_path: Path, groups: str, file: str) -> None:
    assert memory_limit(tree(tmp_path, groups, {file: "536870912\n"})) == 512 * 2**20


def test_without_a_limit_memory_is_unlimited(tmp_path: Path) -> None:
    assert memory_limit(tree(tmp_path, "0::/job\n", {"sys/fs/cgroup/job/memory.max": "max\n"})) == math.inf
    assert memory_limit(tmp_path / "none") == math.inf


@pytest.mark.parametrize(
    ("groups", "file", "text"),
    [
        ("0::/job\n", "sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill {}\n"),
        ("9:memory:/job\n", "sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill {}\n"),
        ("0::/\n", "proc/vmstat", "nr_free_pages 7\noom_kill {}\n"),
    ],
)
def test_kills_for_lack_of_memory_are_noticed(tmp_path: Path, groups: str, file: str, text: str) -> None:
    root = tree(tmp_path, groups, {file: text.format(3)})
    kills = MemoryKills(root)
    assert memory_kills(root) == 3
    assert kills.explain() == ""
    (root / file).write_text(text.format(4))
    assert "lack of memory: the machine is full" in kills.explain()
    assert kills.explain() == ""


def test_the_reason_of_a_kill_names_the_limit(tmp_path: Path) -> None:
    events = "sys/fs/cgroup/job/memory.events"
    root = tree(tmp_path, "0::/job\n", {events: "oom_kill 0", "sys/fs/cgroup/job/memory.max": str(900 << 20)})
    kills = MemoryKills(root)
    (root / events).write_text("oom_kill 1")
    assert kills.explain().endswith("its control group has a limit of 900 MiB")
