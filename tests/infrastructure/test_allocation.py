"""The CPUs and GPUs of an allocation, with environments that are set on real clusters."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from dragon.infrastructure import gpus, node_desc
from dragon.infrastructure.gpus import find_gpus
from dragon.infrastructure.node_desc import describe_this_node, find_cpus

UUIDS = [f"GPU-{digit * 8}-1b2c-3d4e-5f60-718293a4b5c6" for digit in "0123"]

PERLMUTTER = {
    "SLURM_JOB_ID": "31415926",
    "SLURM_CPUS_ON_NODE": "128",
    "SLURM_JOB_CPUS_PER_NODE": "128(x2)",
    "SLURM_STEP_GPUS": "0,1,2,3",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}
# Half a node: the control group shows two of four devices, which count from 0 inside it.
SHARED_SLURM = {
    "SLURM_JOB_ID": "271828",
    "SLURM_CPUS_ON_NODE": "16",
    "SLURM_JOB_GPUS": "2,3",
    "CUDA_VISIBLE_DEVICES": "0,1",
}
SLURM_WITHOUT_MASK = {"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0,1,3", "SLURM_STEP_GPUS": "1,3"}
POLARIS = {"PBS_JOBID": "2001.polaris-pbs-01", "PBS_NUM_PPN": "64", "NCPUS": "64", "PBS_NODEFILE": "/var/spool/n"}
PBS_WITH_CGROUPS = {"PBS_JOBID": "7.pbs", "NCPUS": "8", "CUDA_VISIBLE_DEVICES": f"{UUIDS[2]},{UUIDS[0]}"}
AURORA = {"PBS_JOBID": "9.aurora-pbs", "NCPUS": "208"}
FRONTIER = {"SLURM_CPUS_ON_NODE": "56", "ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
VARIABLES = {
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_NODEID",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "NCPUS",
    "PBS_NCPUS",
    "PBS_NUM_PPN",
    "ZE_FLAT_DEVICE_HIERARCHY",
}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a machine of 256 CPUs without GPUs and without a workload manager."""
    for name in VARIABLES.union(*gpus.GPU_VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(256)))
    monkeypatch.setattr(node_desc, "folders", lambda controller: [tmp_path])
    monkeypatch.setattr(node_desc, "cpu_quota", lambda: math.inf)
    for vendor in ("_nvidia", "_amd", "_intel"):
        monkeypatch.setattr(gpus, vendor, lambda: [])


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


# ---- CPUs


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 256),
        (PERLMUTTER, 128),
        (SHARED_SLURM, 16),
        (POLARIS, 64),
        (PBS_WITH_CGROUPS, 8),
        ({"SLURM_JOB_CPUS_PER_NODE": "72(x2),36", "SLURM_NODEID": "1"}, 72),
        ({"SLURM_JOB_CPUS_PER_NODE": "72(x2),36", "SLURM_NODEID": "2"}, 36),
        ({"SLURM_CPUS_ON_NODE": "512"}, 256),
        ({"PBS_NCPUS": "0"}, 1),
        ({"NCPUS": "many"}, 256),
    ],
)
def test_the_workload_manager_limits_the_cpus(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int
) -> None:
    set_environment(monkeypatch, environment)
    assert find_cpus() == list(range(count))


@pytest.mark.parametrize(("quota", "count"), [(math.inf, 256), (1.5, 2), (0.05, 1), (4.0, 4)])
def test_the_cpu_quota_of_a_control_group_limits_the_cpus(
    monkeypatch: pytest.MonkeyPatch, quota: float, count: int
) -> None:
    monkeypatch.setattr(node_desc, "cpu_quota", lambda: quota)
    assert len(find_cpus()) == count


def test_the_cpuset_of_a_control_group_selects_the_cpus(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus.effective").write_text("4-7,64,66-67\n")
    assert find_cpus() == [4, 5, 6, 7, 64, 66, 67]
    (tmp_path / "cpuset.cpus.effective").write_text("\n")
    assert len(find_cpus()) == 256


# ---- GPUs


@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        ({}, [0, 1, 2, 3]),
        (PERLMUTTER, [0, 1, 2, 3]),
        (SHARED_SLURM, [0, 1]),
        (SLURM_WITHOUT_MASK, [1, 3]),
        ({"SLURM_JOB_GPUS": "0-1,3"}, [0, 1, 3]),
        ({"SLURM_JOB_GPUS": "6,7"}, [0, 1]),
        ({"SLURM_JOB_GPUS": ""}, [0, 1, 2, 3]),
        (POLARIS, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "2,-1,3"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, [1]),
    ],
)
def test_a_mask_limits_the_devices_of_nvidia(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], numbers: list[int]
) -> None:
    monkeypatch.setattr(gpus, "_nvidia", lambda: UUIDS)
    found = find_gpus(environment)
    assert (found.vendor, found.numbers, found.names) == ("nvidia", numbers, [])
    assert found.variable == "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("mask", "numbers"),
    [
        (f"{UUIDS[2]},{UUIDS[0]}", [2, 0]),
        (UUIDS[3][:8], [3]),
        ("GPU-ffffffff,GPU-eeeeeeee", [0, 1]),
        ("MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", [0]),
    ],
)
def test_a_mask_can_have_the_names_of_devices(monkeypatch: pytest.MonkeyPatch, mask: str, numbers: list[int]) -> None:
    monkeypatch.setattr(gpus, "_nvidia", lambda: UUIDS)
    found = find_gpus({**PBS_WITH_CGROUPS, "CUDA_VISIBLE_DEVICES": mask})
    assert found.numbers == numbers
    assert found.names == mask.split(",")


@pytest.mark.parametrize(
    ("environment", "numbers", "variable"),
    [
        ({}, list(range(8)), "ROCR_VISIBLE_DEVICES"),
        (FRONTIER, list(range(8)), "ROCR_VISIBLE_DEVICES"),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, [4, 5], "ROCR_VISIBLE_DEVICES"),
        # Counted among what ROCR_VISIBLE_DEVICES leaves.
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, [1], "HIP_VISIBLE_DEVICES"),
    ],
)
def test_a_mask_limits_the_devices_of_amd(
    environment: dict[str, str], numbers: list[int], variable: str, monkeypatch: object
) -> None:
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    monkeypatch.setattr(gpus, "_amd", lambda: [f"GPU-{i:016x}" for i in range(8)])
    found = find_gpus(environment)
    assert (found.vendor, found.numbers, found.variable) == ("amd", numbers, variable)


@pytest.mark.parametrize(
    ("mask", "numbers"), [(None, [0, 1, 2, 3, 4, 5]), ("0,3", [0, 3]), ("0.0,0.1,5.1", [0.0, 0.1, 5.1]), ("6", [])]
)
def test_a_mask_of_intel_can_select_tiles(
    monkeypatch: pytest.MonkeyPatch, mask: str | None, numbers: list[float]
) -> None:
    monkeypatch.setattr(gpus, "_intel", lambda: [""] * 6)
    found = find_gpus(AURORA if mask is None else {**AURORA, "ZE_AFFINITY_MASK": mask})
    assert (found.vendor, found.numbers) == ("intel", numbers)
    assert [type(n) for n in found.numbers] == [type(n) for n in numbers]


# ---- rehearsed nodes


def test_a_simulated_node_has_the_claimed_cpus_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, {"CUDA_VISIBLE_DEVICES": "", "NCPUS": "2"})
    node = describe_this_node({"host_name": "node3", "cpus": 32, "gpus": 4})
    assert (node.host_name, node.cpus, node.gpus) == ("node3", list(range(32)), [0, 1, 2, 3])
    assert (node.gpu_vendor, node.gpu_env_str) == ("nvidia", "CUDA_VISIBLE_DEVICES")
    assert node.existing_cpus([0, 1, 2, 31]) == [0, 1]
    assert node.existing_cpus([30]) == [0]


def test_resources_without_limits_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_nvidia", lambda: UUIDS)
    real, claimed = describe_this_node(), describe_this_node({"host_name": "a", "cpus": None})
    assert (claimed.cpus, claimed.gpus, claimed.real_cpus) == (real.cpus, real.gpus, [])
    assert claimed.existing_cpus([7]) == [7]
    assert describe_this_node({"gpus": 0}).gpu_vendor == ""
    hosts = {real.h_uid, claimed.h_uid, describe_this_node({"host_name": "b"}).h_uid}
    assert len(hosts) == 3


@pytest.mark.parametrize("claims", [{"cpus": 0}, {"gpus": -1}, {"cpus": "many"}])
def test_invalid_claims_are_refused(claims: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cannot claim"):
        describe_this_node(claims)
