"""The choice of the launcher, and the commands with which it starts agents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragon.launcher.base import Launcher, LaunchError, Ssh
from dragon.launcher.choice import Wanted, carried, choose
from dragon.launcher.pbs import Pals, Pbs
from dragon.launcher.slurm import Slurm

SLURM = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "nid[001-003]"}


@pytest.fixture
def pbs(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "nodes"
    file.write_text("a.cluster\na.cluster\nb.cluster\nb.cluster\nc.cluster\n")
    return {"PBS_JOBID": "1.server", "PBS_NODEFILE": str(file)}


def name(launcher: Launcher | None) -> str:
    return launcher.name if launcher else ""


@pytest.mark.parametrize(
    ("wanted", "environment", "chosen"),
    [
        (Wanted(), {}, ""),
        (Wanted(nodes=1), {}, ""),
        (Wanted(nodes=3), {}, "simulated"),
        (Wanted(cpus=32, gpus=4), {}, "simulated"),
        (Wanted(), SLURM, "slurm"),
        (Wanted(single=True), SLURM, ""),
        (Wanted(nodes=2), SLURM, "slurm"),
        (Wanted(nodes=2, cpus=32), SLURM, "simulated"),
        (Wanted(wlm="local", nodes=2), SLURM, "simulated"),
        (Wanted(hosts=["a", "b"]), SLURM, "ssh"),
        (Wanted(), {**SLURM, "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "nid001"}, ""),
        (Wanted(several=True), {**SLURM, "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "nid001"}, "slurm"),
    ],
)
def test_the_launcher_is_chosen_by_options_and_environment(
    wanted: Wanted, environment: dict[str, str], chosen: str
) -> None:
    assert name(choose(wanted, environment)) == chosen


def test_a_pbs_job_is_used(pbs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = choose(Wanted(), pbs)
    assert isinstance(plain, Pbs)
    assert plain.nodes == ["a.cluster", "b.cluster", "c.cluster"]
    assert plain.slots == [0, 2, 4]
    binaries = tmp_path / "pals" / "1.4" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "mpiexec").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(binaries), prepend=":")
    pals = choose(Wanted(nodes=2), pbs)
    assert isinstance(pals, Pals)
    assert pals.mpiexec() == [
        "mpiexec",
        "--np",
        "2",
        "--ppn",
        "1",
        "--hosts",
        "a.cluster,b.cluster",
        "--cpu-bind",
        "none",
    ]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Wanted(wlm="slurm"), "not in a Slurm allocation"),
        (Wanted(wlm="pbs"), "not in a PBS job"),
        (Wanted(wlm="ssh"), "--hostlist"),
        (Wanted(hosts=["a"], nodes=2), "2 nodes were requested, and 1 hosts given"),
        (Wanted(several=True), "and there are none"),
    ],
)
def test_impossible_requests_for_nodes_raise_errors(wanted: Wanted, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        choose(wanted, {})


def test_more_nodes_than_the_allocation_has_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"4 nodes were requested; the allocation has 3: nid\[001-003\]"):
        choose(Wanted(nodes=4), SLURM)


def test_the_error_about_an_invalid_number_of_nodes_names_its_variable() -> None:
    with pytest.raises(LaunchError, match=r"SLURM_JOB_NUM_NODES is 'x', which is not a number of nodes"):
        choose(Wanted(), {**SLURM, "SLURM_JOB_NUM_NODES": "x"})


@pytest.mark.parametrize("listed", ["nid001", "nid[001-003]"])
def test_a_message_names_the_nodes_used_of_a_heterogeneous_slurm_job(
    listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    count = "1" if listed == "nid001" else "3"
    part = {"SLURM_JOB_NODELIST": listed, "SLURM_JOB_NUM_NODES": count, "SLURM_NNODES": count}
    choose(Wanted(), {**SLURM, **part, "SLURM_HET_SIZE": "2"})
    (line,) = capsys.readouterr().err.splitlines()
    assert "heterogeneous job of Slurm, of 2 components" in line
    assert f"({listed})" in line
    choose(Wanted(), {**SLURM, **part})
    choose(Wanted(hosts=["nid001", "nid007"]), {**SLURM, **part, "SLURM_HET_SIZE": "2"})
    assert capsys.readouterr().err == ""


def test_idle_nodes_are_additional_to_the_requested_ones() -> None:
    launcher = choose(Wanted(nodes=2, idle=1), SLURM)
    assert launcher is not None
    assert launcher.nodes == ["nid001", "nid002", "nid003"]


def test_one_srun_starts_all_agents() -> None:
    launcher = Slurm(2, SLURM)
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=nid001,nid002", "--overlap"} <= set(
        launcher.srun()
    )
    assert launcher.command[-6:] == ["--join", "-", "--index-from", "SLURM_NODEID", "--name-from", "SLURMD_NODENAME"]


def test_the_ssh_launcher_uses_the_options_of_the_user() -> None:
    launcher = choose(Wanted(hosts=["a"], ssh_options=["-F", "config"]), {})
    assert isinstance(launcher, Ssh)
    assert launcher.options[-2:] == ["-F", "config"]
    assert "BatchMode=yes" in launcher.options


def test_variables_of_one_node_are_not_passed_to_others() -> None:
    given = {
        "PATH": "/bin",
        "A": "1",
        "SLURM_NODEID": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "DRAGON_RUN": "x",
        "TMPDIR": "/",
    }
    assert carried(given) == {"PATH": "/bin", "A": "1"}
    assert carried({"A": "1", "B": "\udcff"}) == {"A": "1"}
    assert "PATH" in carried(os.environ)
